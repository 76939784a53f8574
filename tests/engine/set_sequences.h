/* Internal to the tests. Sets of networks: whatever happens to the others, each goes the way it would go alone.
 *
 * A sequence is drawn from a seed: networks of one engine are added, removed, forked, given seeds, trained in sets, evaluated,
 * poisoned, and brought back by their guards. Of each is written down what happened to it; at the end some of those that are left
 * are made again from that alone, in an engine of their own with one thread, and every bit of their state compared. */
#ifndef ESPER_TESTS_ENGINE_SET_SEQUENCES_H
#define ESPER_TESTS_ENGINE_SET_SEQUENCES_H

#include <inttypes.h>
#include <math.h>
#include <xxhash.h>

#include "base/rng.h"
#include "engine/helpers.h"
#include "engine/set.h"

enum { MOST_NETWORKS = 16, MOST_DEEDS = 64, N_ROUNDS = 10, N_COMPARED = 2 };

#define SET_CNN                                                                                                    \
    "batch = 4\nchannels = 2\nblocks = 2\nkernel = 1\nmax_steps = 3\nepochs = 100\ngates = permissive\nsnapshot_every = 2\n" \
    "max_rollbacks = 1000\nvalid_fraction = 0.01\n"

typedef enum deed_kind { DEED_STEP, DEED_EVALUATE, DEED_POISON, DEED_GROW, DEED_FORK } deed_kind;

typedef struct deed {
    deed_kind kind;
    int       number; /* of steps, or of the slot */
} deed;

/* A network, and all that happened to it since it, or what it was forked from, was added. */
typedef struct life {
    esper_network *network;
    uint64_t       seed;
    deed           deeds[MOST_DEEDS];
    int            n;
} life;

typedef struct house {
    esper_dataset *data;
    esper_engine  *engine;
} house;

static inline house house_with(int threads, const char *more)
{
    esper_config config = config_of("synth", SET_CNN, more);
    esper_dataset_desc desc = esper_task_data(task_named("synth"), &config);
    house it;

    config.threads = threads;
    check_good(esper_dataset_open(&desc, &it.data));
    check_good(esper_single_engine(task_named("synth"), &config, ESPER_USE_GROW, it.data, 1, &it.engine));
    return it;
}

static inline house house_open(int threads)
{
    return house_with(threads, "");
}

static inline void house_close(house *it)
{
    esper_engine_close(it->engine);
    esper_dataset_close(it->data);
}

static inline esper_network *born(const house *it, uint64_t seed)
{
    esper_network *network;

    check_good(esper_network_add(it->engine, seed, NULL, &network));
    check_good(esper_guarded_open(network));
    return network;
}

/* ---- deeds ---- */

static inline void poison(esper_network *network)
{
    const float bad = NAN;

    check_good(esper_backend_copy_in(network->engine->backend, NULL, network->slab.family[ESPER_FAMILY_PARAM] + 3, &bad,
                                     sizeof(bad)));
}

static inline void grow_seed(esper_network *network, int k)
{
    const esper_blueprint *blueprint;
    esper_slot *slot = &network->slots.slot[k];
    esper_topology topology = network->engine->host.topology;

    if (!esper_slot_is_empty(slot))
        return;
    check_good(esper_blueprint_find(topology, k % 2 == 0 ? "conv_light" : "norm", &blueprint));
    check_good(esper_slot_plant(slot, blueprint, "add", ESPER_BIRTH_OWN,
                                esper_splice_count_params(blueprint, slot->channels),
                                esper_splice_count_gate(topology, slot->channels)));
    check_good(esper_network_bear(network, k));
    check_good(esper_network_replan(network));
}

static inline esper_network *fork_of(esper_network *parent)
{
    esper_network *fork;

    check_good(esper_network_fork(parent, NULL, &fork));
    check_good(esper_guarded_open(fork));
    return fork;
}

/* Some networks, n_steps calls each; what their guards meet they have dealt with. A fork of one that was poisoned has nothing to go
 * back to: it is stopped, and stays. */
static inline void step_set(const house *it, life *const *lives, int n, int n_steps)
{
    esper_network *networks[MOST_NETWORKS];
    esper_incident incidents[MOST_NETWORKS];

    for (int call = 0; call < n_steps; call++) {
        int n_going = 0;

        for (int i = 0; i < n; i++) {
            esper_network *network = lives[i]->network;

            if (esper_guarded_reading(network).faulted)
                continue;
            if (network->cursor.batch >= network->engine->steps_per_epoch)
                esper_network_next_epoch(network);
            networks[n_going++] = network;
        }
        check_good(esper_engine_step(it->engine, networks, n_going, 1, incidents));
    }
}

static inline void evaluate_set(const house *it, life *const *lives, int n)
{
    esper_request requests[MOST_NETWORKS];

    for (int i = 0; i < n; i++)
        requests[i] = (esper_request){.network = lives[i]->network, .split = ESPER_SPLIT_VALID, .n_batches = 1};
    check_good(esper_engine_evaluate(it->engine, requests, n));
}

/* ---- the same alone ---- */

static inline esper_network *live_again(const house *it, const life *told)
{
    life self = {.network = born(it, told->seed)}, *one = &self;

    for (int i = 0; i < told->n; i++)
        switch (told->deeds[i].kind) {
        case DEED_STEP:
            step_set(it, &one, 1, told->deeds[i].number);
            break;
        case DEED_EVALUATE:
            break; /* it leaves no trace */
        case DEED_POISON:
            poison(self.network);
            break;
        case DEED_GROW:
            grow_seed(self.network, told->deeds[i].number);
            break;
        case DEED_FORK: {
            esper_network *parent = self.network;

            self.network = fork_of(parent);
            esper_network_remove(parent);
            break;
        }
        }
    return self.network;
}

/* Of all that is state: what a snapshot holds, gradients aside. */
static inline uint64_t hash_of(esper_network *network)
{
    esper_position position;

    check_good(esper_network_read(network));
    esper_network_position(network, &position);
    return XXH64(&position, sizeof(position), slab_hash(&network->slab, network->detour.draw));
}

/* ---- a sequence ---- */

typedef struct sequence {
    house     house;
    life      lives[MOST_NETWORKS];
    int       n;
    uint64_t  next_seed;
    esper_rng rng;
} sequence;

static inline int draw(sequence *self, int n)
{
    return (int)(esper_rng_u32(&self->rng) % (uint32_t)n);
}

static inline void note(life *it, deed_kind kind, int number)
{
    assert_in_range(it->n, 0, MOST_DEEDS - 1);
    it->deeds[it->n++] = (deed){kind, number};
}

static inline void add_one(sequence *self)
{
    life *it = &self->lives[self->n];

    if (self->n == MOST_NETWORKS)
        return;
    *it = (life){.seed = self->next_seed++};
    it->network = born(&self->house, it->seed);
    self->n++;
}

static inline void remove_one(sequence *self)
{
    int i = draw(self, self->n);

    if (self->n == 1)
        return;
    esper_network_remove(self->lives[i].network);
    self->lives[i] = self->lives[--self->n];
}

static inline void fork_one(sequence *self)
{
    life *parent = &self->lives[draw(self, self->n)], *it = &self->lives[self->n];

    if (self->n == MOST_NETWORKS)
        return;
    *it = *parent;
    it->network = fork_of(parent->network);
    note(it, DEED_FORK, 0);
    self->n++;
}

static inline void train_some(sequence *self)
{
    life *some[MOST_NETWORKS];
    int n = 0, n_steps = 1 + draw(self, 3);

    for (int i = 0; i < self->n; i++)
        if (draw(self, 3) > 0 || (n == 0 && i + 1 == self->n))
            some[n++] = &self->lives[i];
    for (int i = 0; i < n; i++)
        note(some[i], DEED_STEP, n_steps);
    step_set(&self->house, some, n, n_steps);
    if (draw(self, 4) == 0)
        evaluate_set(&self->house, some, n);
}

static inline void strike_one(sequence *self)
{
    life *it = &self->lives[draw(self, self->n)];

    note(it, DEED_POISON, 0);
    poison(it->network);
}

static inline void grow_one(sequence *self)
{
    life *it = &self->lives[draw(self, self->n)];
    int slot = draw(self, it->network->slots.n);

    note(it, DEED_GROW, slot);
    grow_seed(it->network, slot);
}

static inline void check_alone(sequence *self, const house *alone, const life *it, int number)
{
    esper_network *again = live_again(alone, it);

    if (hash_of(again) != hash_of(it->network))
        fail_msg("sequence %d: network of seed %" PRIu64 ", %d deeds: weights %016" PRIx64 " among %d, %016" PRIx64
                 " alone; steps %" PRIu64 " and %" PRIu64,
                 number, it->seed, it->n, esper_network_hash(it->network), self->n, esper_network_hash(again),
                 it->network->cursor.step, again->cursor.step);
    esper_network_remove(again);
}

static inline uint64_t run_sequence(int number, int threads, const house *alone)
{
    static void (*const deeds[])(sequence *) = {add_one, remove_one, fork_one, strike_one, grow_one, fork_one, add_one};
    esper_rng_key key = {.seed = (uint64_t)number, .purpose = ESPER_RNG_SYNTH};
    sequence *self = calloc(1, sizeof(*self));
    uint64_t n_steps = 0;

    assert_non_null(self);
    esper_rng_init(&self->rng, &key);
    self->house = house_open(threads);
    self->next_seed = 1;
    for (int i = 0; i < 4; i++)
        add_one(self);
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < 3; i++)
            deeds[draw(self, sizeof(deeds) / sizeof(deeds[0]))](self);
        train_some(self);
    }
    for (int i = 0; i < N_COMPARED; i++)
        check_alone(self, alone, &self->lives[draw(self, self->n)], number);
    while (self->n > 0) {
        n_steps += self->lives[--self->n].network->cursor.step;
        esper_network_remove(self->lives[self->n].network);
    }
    house_close(&self->house);
    free(self);
    return n_steps;
}

static inline void run_sequences(int first, int n, int threads)
{
    house alone = house_open(1);
    uint64_t n_steps = 0;

    for (int i = first; i < first + n; i++)
        n_steps += run_sequence(i, threads, &alone);
    house_close(&alone);
    print_message("%d sequences; those left had taken %" PRIu64 " steps\n", n, n_steps);
    assert_true(n_steps > (uint64_t)n);
}

#endif
