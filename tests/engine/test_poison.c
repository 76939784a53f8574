/* ctest: timeout=240 cost=3 driver=only */
/* Networks side by side on the cuda backend, one of which is poisoned, time after time: a NaN or an Inf in a random element of a random
 * parameter, moment or norm buffer of a random network, at a random step. It is found, the tensor is named, and the network is back at
 * its last snapshot to the bit; all the others are what they are in a twin fleet that nobody poisons. Who was poisoned is then replaced
 * by a fork of its twin, so that the fleets stay alike.
 *
 * ESPER_TEST_COUNT says how many times. ESPER_TEST_GPU=1: on the machine's device, and 64 networks. */
#include "base/clock.h"
#include "engine/set_sequences.h"

enum { MOST = 64, STRETCH = 4 }; /* networks; steps from one snapshot to the next */

#define FLEET                                                                                                                    \
    "batch = 4\nchannels = 2\nblocks = 2\nkernel = 1\nmax_steps = 48\nepochs = 100000\ngates = permissive\nsnapshot_every = 4\n" \
    "max_rollbacks = 1000\nvalid_fraction = 0.01\n"

typedef struct fleets {
    house house;
    int n;
    esper_network *hit[MOST], *spared[MOST]; /* one fleet and its twin */
    esper_rng rng;
    uint64_t n_of[ESPER_N_FAMILIES];
} fleets;

static int below(fleets *self, uint32_t n)
{
    return (int)esper_rng_below(&self->rng, n);
}

static void step_both(fleets *self, uint32_t n_steps, esper_incident *incidents)
{
    esper_network *all[2 * MOST];

    memcpy((void *)all, (void *)self->hit, (size_t)self->n * sizeof(esper_network *));
    memcpy((void *)(all + self->n), (void *)self->spared, (size_t)self->n * sizeof(esper_network *));
    check_good(esper_engine_step(self->house.engine, all, 2 * self->n, n_steps, incidents));
}

/* What was done to a network, and what its guard is to say of it. */
typedef struct deed_done {
    char name[ESPER_NAME_CHARS + 16], role[16];
    uint64_t element;
    bool infinite;
} deed_done;

static deed_done poison_any(fleets *self, esper_network *network)
{
    static const struct {
        esper_family family;
        const char *prefix, *role;
    } kinds[] = {{ESPER_FAMILY_PARAM, "", "param"},
                 {ESPER_FAMILY_MOMENT1, "moment1/", "moment"},
                 {ESPER_FAMILY_BUFFER, "", "buffer"}};
    const esper_net *net = &network->net;

    for (;;) {
        int t = below(self, (uint32_t)net->n_tensors), k = below(self, 3);
        const esper_tensor *tensor = &net->tensors[t];
        float *values = esper_slab_at(&network->slab, kinds[k].family, tensor), bad;
        deed_done done = {.infinite = below(self, 2) == 0};

        if (values == NULL)
            continue;
        snprintf(done.name, sizeof(done.name), "%s%s", kinds[k].prefix, tensor->name);
        snprintf(done.role, sizeof(done.role), "%s", kinds[k].role);
        done.element = (uint64_t)below(self, (uint32_t)tensor->count);
        bad = done.infinite ? -INFINITY : NAN;
        check_good(esper_backend_copy_in(network->engine->backend, NULL, values + done.element, &bad, sizeof(bad)));
        self->n_of[kinds[k].family]++;
        return done;
    }
}

static void check_incident(const esper_incident *incident, const deed_done *done, uint64_t step, int number)
{
    char text[512];

    if (incident->action != ESPER_GOVERNOR_ROLL_BACK || !incident->restored || incident->tensor == NULL ||
        strcmp(incident->tensor, done->name) != 0 || strcmp(incident->role, done->role) != 0 ||
        strcmp(incident->problem, done->infinite ? "Inf" : "NaN") != 0 || incident->n_elements != 1 ||
        incident->first_index != done->element || incident->n_tensors != 1 || incident->to.step != step)
        fail_msg("event %d: %s in element %" PRIu64 " of %s (%s), to go back to step %" PRIu64 ": the guard says %s",
                 number, done->infinite ? "Inf" : "NaN", done->element, done->name, done->role, step,
                 esper_incident_describe(incident, text, sizeof(text)));
}

static void check_alike(fleets *self, int i, int number)
{
    if (hash_of(self->hit[i]) != hash_of(self->spared[i]))
        fail_msg("event %d: network %d is not what it is where nobody is poisoned", number, i);
}

/* The slab alone: a rollback remembers what to pass over. */
static uint64_t state_of(esper_network *network)
{
    check_good(esper_network_read(network));
    return slab_hash(&network->slab, 0);
}

/* Where a victim has stood at the last two snapshots. */
typedef struct stand {
    int network;
    uint64_t state[2], step[2];
} stand;

static void note_stand(fleets *self, stand *of)
{
    of->state[0] = of->state[1];
    of->step[0] = of->step[1];
    of->state[1] = state_of(self->hit[of->network]);
    of->step[1] = self->hit[of->network]->cursor.step;
}

static void begin_epoch_where_due(fleets *self)
{
    for (int i = 0; i < self->n; i++)
        if (self->hit[i]->cursor.batch >= self->house.engine->steps_per_epoch) {
            esper_network_next_epoch(self->hit[i]);
            esper_network_next_epoch(self->spared[i]);
        }
}

/* STRETCH steps of all, in the midst of which the victim is poisoned. */
static void strike(fleets *self, const stand *victim, int number)
{
    esper_incident incidents[2 * MOST], *told = &incidents[victim->network];
    esper_network *network = self->hit[victim->network];
    uint32_t before = (uint32_t)below(self, STRETCH);
    deed_done done;
    int snapshot = before > 0 ? 1 : 0; /* at the stretch's beginning the state is scanned before it is kept */

    if (before > 0)
        step_both(self, before, incidents);
    done = poison_any(self, network);
    step_both(self, STRETCH - before, incidents);
    if (told->action == ESPER_GOVERNOR_GO)
        check_good(esper_guarded_settle(network, told));
    for (int i = 0; i < 2 * self->n; i++)
        if (i != victim->network)
            assert_int_equal(incidents[i].action, ESPER_GOVERNOR_GO);
    check_incident(told, &done, victim->step[snapshot], number);
    if (state_of(network) != victim->state[snapshot])
        fail_msg("event %d: network %d is not what it was at step %" PRIu64, number, victim->network,
                 victim->step[snapshot]);
    esper_network_remove(network);
    self->hit[victim->network] = fork_of(self->spared[victim->network]);
}

/* Somebody else than the last two: their snapshots are older than they are. */
static int choose(fleets *self, int last, int before_last)
{
    int chosen;

    do
        chosen = below(self, (uint32_t)self->n);
    while (chosen == last || chosen == before_last);
    return chosen;
}

static void nobody_notices(void **state)
{
    const char *gpu = getenv("ESPER_TEST_GPU"), *count = getenv("ESPER_TEST_COUNT");
    bool on_device = gpu != NULL && strcmp(gpu, "1") == 0;
    int n_events = count != NULL && atoi(count) > 0 ? atoi(count) : on_device ? 100 : effort(3, 2);
    static fleets self;
    stand now = {.network = 0}, next = {.network = 1};
    double began;

    (void)state;
    self = (fleets){.house = house_with(2, FLEET), .n = on_device ? MOST : 3};
    esper_rng_init(&self.rng, &(esper_rng_key){.seed = 17, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < self.n; i++) {
        self.hit[i] = born(&self.house, (uint64_t)i + 1);
        self.spared[i] = born(&self.house, (uint64_t)i + 1);
        for (int slot = 0; slot < self.hit[i]->slots.n; slot++)
            if ((i >> slot) % 2 == 1) {
                grow_seed(self.hit[i], slot);
                grow_seed(self.spared[i], slot);
            }
    }
    began = esper_clock_seconds();
    note_stand(&self, &now);
    step_both(&self, STRETCH, (esper_incident[2 * MOST]){0});
    for (int event = 0; event < n_events; event++) {
        int last = now.network;

        begin_epoch_where_due(&self);
        note_stand(&self, &now);
        note_stand(&self, &next);
        strike(&self, &now, event);
        now = next;
        next = (stand){.network = choose(&self, last, now.network)};
        check_alike(&self, now.network, event);
    }
    for (int i = 0; i < self.n; i++) {
        check_alike(&self, i, n_events);
        esper_network_remove(self.hit[i]);
        esper_network_remove(self.spared[i]);
    }
    print_message(
        "%d networks, one of them poisoned %d times (%" PRIu64 " parameters, %" PRIu64 " moments, %" PRIu64
        " norm buffers): found, named, and brought back; the others to the bit as in a fleet without. %.1f s\n",
        self.n, n_events, self.n_of[ESPER_FAMILY_PARAM], self.n_of[ESPER_FAMILY_MOMENT1],
        self.n_of[ESPER_FAMILY_BUFFER], esper_clock_seconds() - began);
    house_close(&self.house);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_notices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
