/* ctest: timeout=120 cost=5 sealed=also */
/* A backend that is behind the host: nothing is done before it is waited for. A guarded network then learns of what its scans have
 * found steps later, and still goes the way it would go if it had known at once. Where there is no such backend (the program
 * that is not sealed) both ways are one, and what is counted counts the same. */
#include <inttypes.h>
#include <math.h>

#include "engine/guarded.h"
#include "engine/helpers.h"

#define PACE "max_steps = 40\nsnapshot_every = 1000\nthreads = 1\nbatch = 4\nchannels = 2\nblocks = 2\nepochs = 40\n"

enum { MOST_INCIDENTS = 64, NEVER = -1 };

/* What can be told of a training afterwards. */
typedef struct course {
    uint64_t     state;
    esper_cursor cursor;
    esper_tally  tally;
    double       lr, grad_norm;
    bool         stopped;
    int          n_incidents;
    struct {
        esper_governor_action action;
        esper_cursor          at, to;
        char                  text[256];
    } incidents[MOST_INCIDENTS];
} course;

static esper_network *open_behind(bool behind, const char *more)
{
    esper_config config = config_of("synth", PACE, more);
    esper_network *network;
    const esper_backend *backend;

    setenv("ESPER_SEALED", behind ? "behind" : "at once", 1);
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    backend = network->engine->backend;
    if (strstr(esper_backend_identity(backend), "/sealed") != NULL)
        assert_true(esper_backend_is_behind(backend) == behind);
    check_good(esper_guarded_open(network));
    return network;
}

static void note(course *it, const esper_incident *incident)
{
    if (incident->action == ESPER_GOVERNOR_GO)
        return;
    assert_true(it->n_incidents < MOST_INCIDENTS);
    it->incidents[it->n_incidents].action = incident->action;
    it->incidents[it->n_incidents].at = incident->at;
    it->incidents[it->n_incidents].to = incident->to;
    esper_incident_describe(incident, it->incidents[it->n_incidents].text, sizeof(it->incidents[it->n_incidents].text));
    it->n_incidents++;
    it->stopped = incident->action == ESPER_GOVERNOR_STOP;
}

static void poison(const esper_network *network, esper_family family)
{
    const float bad = NAN;

    check_good(esper_backend_copy_in(network->engine->backend, NULL, network->slab.family[family], &bad, sizeof(bad)));
}

/* Two epochs, or until it is stopped; once it stands at a step, an element of a family is spoiled. */
static course go(bool behind, const char *more, int64_t poison_at, esper_family family)
{
    esper_network *network = open_behind(behind, more);
    esper_incident incident;
    course it = {0};

    while (!it.stopped && network->cursor.epoch < 2) {
        if (network->cursor.step == (uint64_t)poison_at) {
            poison(network, family);
            poison_at = NEVER;
        }
        check_good(esper_guarded_step(network, &incident));
        note(&it, &incident);
        if (network->cursor.batch < network->engine->steps_per_epoch || it.stopped)
            continue;
        check_good(esper_guarded_settle(network, &incident));
        note(&it, &incident);
        if (incident.action != ESPER_GOVERNOR_GO)
            continue;
        it.tally = network->tally;
        it.lr = network->lr;
        it.grad_norm = network->grad_norm;
        esper_network_next_epoch(network);
    }
    it.cursor = network->cursor;
    check_good(esper_network_wait(network));
    it.state = slab_hash(&network->slab, 0);
    esper_single_close(network);
    assert_int_equal(live_blocks(), 0);
    return it;
}

static void check_same(const course *a, const course *b)
{
    if (a->n_incidents != b->n_incidents)
        fail_msg("%d incidents, behind %d", a->n_incidents, b->n_incidents);
    for (int i = 0; i < a->n_incidents; i++) {
        if (strcmp(a->incidents[i].text, b->incidents[i].text) != 0)
            fail_msg("\"%s\", behind \"%s\"", a->incidents[i].text, b->incidents[i].text);
        assert_memory_equal(&a->incidents[i].at, &b->incidents[i].at, sizeof(a->incidents[i].at));
        assert_memory_equal(&a->incidents[i].to, &b->incidents[i].to, sizeof(a->incidents[i].to));
        assert_int_equal(a->incidents[i].action, b->incidents[i].action);
    }
    assert_memory_equal(&a->cursor, &b->cursor, sizeof(a->cursor));
    assert_memory_equal(&a->tally, &b->tally, sizeof(a->tally));
    assert_memory_equal(&a->lr, &b->lr, sizeof(a->lr));
    assert_memory_equal(&a->grad_norm, &b->grad_norm, sizeof(a->grad_norm));
    assert_true(a->state == b->state);
    assert_true(a->stopped == b->stopped);
}

static void compare(const char *more, int64_t poison_at, esper_family family, int least_incidents)
{
    course at_once = go(false, more, poison_at, family), behind = go(true, more, poison_at, family);

    if (at_once.n_incidents < least_incidents)
        fail_msg("%d incidents, expected %d", at_once.n_incidents, least_incidents);
    check_same(&at_once, &behind);
}

/* ---- the tests ---- */

static void healthy_training_is_the_same(void **state)
{
    (void)state;
    compare("", NEVER, ESPER_FAMILY_PARAM, 0);
    compare("optimizer = adamw\nlr = 0.001\nsnapshot_every = 7\nthreads = 2\n", NEVER, ESPER_FAMILY_PARAM, 0);
}

/* In the middle of what is read together, at its beginning and at its end; and where the run is scanned anyway. */
static void bad_state_is_found_in_its_place(void **state)
{
    static const int steps[] = {0, 5, 15, 16, 21, 39, 40, 41, 77};

    (void)state;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        compare("", steps[i], ESPER_FAMILY_PARAM, 1);
    compare("snapshot_every = 4\n", 22, ESPER_FAMILY_MOMENT1, 1);
    compare("snapshot_every = 4\n", 23, ESPER_FAMILY_BUFFER, 1);
    compare("guard_checksum = true\n", 21, ESPER_FAMILY_PARAM, 1);
}

/* Weights that grow until gradients are no longer finite: skipped one by one, gone back from, and stopped at last. */
static void divergence_is_met_step_by_step(void **state)
{
    course at_once = go(false, "lr = 1e30\nclip = 0\n", NEVER, ESPER_FAMILY_PARAM);
    course behind = go(true, "lr = 1e30\nclip = 0\n", NEVER, ESPER_FAMILY_PARAM);
    int n_skipped = 0;

    (void)state;
    for (int i = 0; i < at_once.n_incidents; i++)
        n_skipped += at_once.incidents[i].action == ESPER_GOVERNOR_SKIP;
    if (n_skipped < 3)
        fail_msg("%d steps skipped, of %d incidents", n_skipped, at_once.n_incidents);
    check_same(&at_once, &behind);
}

static int64_t waits_of_an_epoch(esper_network *network)
{
    int64_t before = esper_backend_waits(network->engine->backend);
    esper_incident incident;

    while (network->cursor.batch < network->engine->steps_per_epoch) {
        check_good(esper_guarded_step(network, &incident));
        assert_int_equal(incident.action, ESPER_GOVERNOR_GO);
    }
    return esper_backend_waits(network->engine->backend) - before;
}

/* 40 steps are read in rows of 16: three times. Further epochs begin with a snapshot, which waits as well. No step takes
 * memory. */
static void waits_are_read_backs(void **state)
{
    (void)state;
    for (int behind = 0; behind < 2; behind++) {
        esper_network *network = open_behind(behind == 1, "");
        esper_mem_stats before, after;

        assert_int_equal(waits_of_an_epoch(network), 3);
        esper_network_next_epoch(network);
        assert_int_equal(waits_of_an_epoch(network), 4);
        esper_network_next_epoch(network);
        esper_mem_stats_get(&before); /* room for both snapshots is there */
        assert_int_equal(waits_of_an_epoch(network), 4);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_allocs, before.n_allocs);
        esper_single_close(network);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_training_is_the_same),
        cmocka_unit_test(bad_state_is_found_in_its_place),
        cmocka_unit_test(divergence_is_met_step_by_step),
        cmocka_unit_test(waits_are_read_backs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
