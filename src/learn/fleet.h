/* Internal. A fleet: environments (env.h) in lock step, all networks of one engine, spread over its threads.
 *
 *     begin ──> advance(NULL): views ──> [decide for each] ──> advance(decisions): rewards, views ──> ... ──> finish
 *
 * Each environment is computed by one thread at a time and shares only the data, so its episode has the same bits at any number
 * of environments and threads. One that fails ends the round; one that the governor has stopped waits for the others. */
#ifndef ESPER_LEARN_FLEET_H
#define ESPER_LEARN_FLEET_H

#include "learn/env.h"

typedef struct esper_fleet esper_fleet;

typedef struct esper_fleet_desc {
    esper_engine
        *engine; /* for growing; borrowed. Its seed is that of the whole, its epochs are decisions of an episode */
    int           n_envs;
} esper_fleet_desc;

esper_status esper_fleet_open(const esper_fleet_desc *desc, esper_fleet **fleet_out);
void         esper_fleet_close(esper_fleet *fleet);

/* The seed of an episode of a run; no two episodes share one, nor does anybody who counts seeds from 1. */
uint64_t esper_fleet_seed(uint64_t run_seed, uint64_t episode);

/* Opens environments for episodes number .. number + n_envs - 1; those of before are gone. */
esper_status esper_fleet_begin(esper_fleet *fleet, uint64_t number);
/* The same for seeds that somebody names: (n) of them, 1 .. n_envs. */
esper_status esper_fleet_begin_at(esper_fleet *fleet, const uint64_t *seeds, int n);

/* Carries out the decision of each environment that has a view, and trains all of them to the next one. decisions: one for
 * each, NULL: none is due yet. own: the policy of the configuration decides. */
esper_status esper_fleet_advance(esper_fleet *fleet, const esper_decision *decisions);
esper_status esper_fleet_advance_own(esper_fleet *fleet);
/* The last decisions; nothing is trained any more. NULL: of the policy of the configuration. */
esper_status esper_fleet_finish(esper_fleet *fleet, const esper_decision *decisions);

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
    double wall;                    /* in begin, advance and finish */
} esper_fleet_times;

esper_fleet_times esper_fleet_times_of(const esper_fleet *fleet);

#endif
