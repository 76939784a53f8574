/* Internal. A fleet: environments (env.h), all networks of one engine, spread over its threads.
 *
 *     begin ──> play: each trains to its first view ──> decides ──> trains to the next ──> ... ──> its last decision
 *
 * Each environment is computed by one thread at a time and shares only the data, so its episode has the same bits at any number
 * of environments and threads. A thread takes the environment that is furthest behind. Those that have trained ask together: on
 * the host whoever comes asks for all who wait, and nobody waits for who still trains; on a device, where each environment has a
 * thread, the last to come asks for all, so that they go on side by side. One that fails ends the round; one that the governor
 * has stopped has nothing more to decide. */
#ifndef ESPER_LEARN_FLEET_H
#define ESPER_LEARN_FLEET_H

#include <signal.h>

#include "learn/env.h"

typedef struct esper_fleet esper_fleet;

typedef struct esper_fleet_desc {
    esper_engine
        *engine; /* for growing; borrowed. Its seed is that of the whole, its epochs are decisions of an episode */
    int           n_envs;
    int           n_seeds; /* episodes have so many different seeds in turn, whose twins are trained once; 0: each its own */
    /* The engine of an episode, where not all are of that one: on the same threads. Each then has as many decisions as its engine's
     * configuration has epochs. NULL: all are of `engine`. */
    esper_engine *(*engine_of)(void *context, uint64_t episode);
    void         *context; /* of engine_of */
    const volatile sig_atomic_t *stop; /* becomes non-zero: leave in the midst of an epoch, with E_STOPPED. Or NULL */
} esper_fleet_desc;

esper_status esper_fleet_open(const esper_fleet_desc *desc, esper_fleet **fleet_out);
void         esper_fleet_close(esper_fleet *fleet);

/* The seed of an episode of a run, or of those that share it; no two numbers have the same, nor does anybody who counts seeds from 1. */
uint64_t esper_fleet_seed(uint64_t run_seed, uint64_t episode);
/* That of an episode of this fleet, which may share it with others. */
uint64_t esper_fleet_seed_of(const esper_fleet *fleet, uint64_t episode);

/* Opens environments for episodes number .. number + n_envs - 1; those of before are gone. */
esper_status esper_fleet_begin(esper_fleet *fleet, uint64_t number);
/* The same for seeds that somebody names: (n) of them, 1 .. n_envs. */
esper_status esper_fleet_begin_at(esper_fleet *fleet, const uint64_t *seeds, int n);

/* A decision that is due. */
typedef struct esper_fleet_ask {
    int                      env;
    const esper_policy_view *view;
    esper_decision           decision; /* to be filled in */
} esper_fleet_ask;

/* Who decides, and hears what became of it. Called by any thread, by one at a time. */
typedef struct esper_fleet_mind {
    void *context;
    /* (n) asks of different environments, by their number. What is decided for one must not depend on the others. stream: of the
     * thread that asks */
    esper_status (*decide)(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream);
    /* May be NULL. After an environment has trained, and after its last decision. */
    esper_status (*settle)(void *context, int env, const esper_env_look *look);
} esper_fleet_mind;

/* Someone who follows it. Members may be NULL. */
typedef struct esper_fleet_follower {
    const volatile sig_atomic_t *stop; /* becomes non-zero: leave, with environments at different places */
    void                        *context;
    void (*step)(void *context, double part); /* of the decisions asked for; on the calling thread alone */
} esper_fleet_follower;

/* Trains each environment that was just begun to its first view; then each decides n_decisions times, and trains to the next
 * view. last: there is none after the last. mind NULL: the policy of the configuration decides. */
esper_status esper_fleet_play(esper_fleet *fleet, int n_decisions, bool last, const esper_fleet_mind *mind,
                              const esper_fleet_follower *follower);

/* The same in lock step, with decisions for all of them. NULL: none is due yet. */
esper_status esper_fleet_advance(esper_fleet *fleet, const esper_decision *decisions);
/* The last decisions; nothing is trained any more. */
esper_status esper_fleet_finish(esper_fleet *fleet, const esper_decision *decisions);

/* Environments that are at different places of their episodes: `item` is done once for each that `which` names ((n_envs); NULL: all),
 * by any thread, for different environments at the same time. */
typedef esper_status (*esper_fleet_item)(void *context, int env, esper_backend_stream *stream);

esper_status esper_fleet_each(esper_fleet *fleet, const bool *which, esper_fleet_item item, void *context);

/* Of an item alone, for its environment. Opens it for the episode of a seed; the one of before is gone. */
esper_status esper_fleet_renew(esper_fleet *fleet, int env, uint64_t seed, esper_backend_stream *stream);
/* Carries a decision out, where one is due (else NULL), and trains to the next view; there is none after the last. */
esper_status esper_fleet_move(esper_fleet *fleet, int env, const esper_decision *decision, bool last,
                              esper_backend_stream *stream);

int              esper_fleet_envs(const esper_fleet *fleet); /* that are begun */
const esper_env *esper_fleet_env(const esper_fleet *fleet, int env);

/* Drills: the next episode of an environment is opened with this setting `inject` (growth_inject.c). */
void esper_fleet_inject(esper_fleet *fleet, int env, const char *faults);

/* An episode as it stands. */
typedef struct esper_episode {
    uint64_t seed;
    double   total_reward;
    double   accuracy_final, accuracy_best; /* on validation, percent */
    int64_t  params, params_host;
    int      n_germinated, n_kept, n_pruned;
    int      n_steps, n_rollbacks;
    bool     stopped; /* by the governor */
    double   seconds; /* of one thread */
} esper_episode;

esper_episode esper_fleet_episode(const esper_fleet *fleet, int index);

/* Seconds of threads since the fleet was opened. */
typedef struct esper_fleet_times {
    double train, valid, act, open; /* all environments together */
    double mind;                    /* deciding, where that is not the environments' own */
    double wall;                    /* in begin, play, advance and finish */
} esper_fleet_times;

esper_fleet_times esper_fleet_times_of(const esper_fleet *fleet);

#endif
