/* Internal. The job of `esper learn`: rounds of episodes, an update of the policy after each, and its file.
 *
 *     runs/learn-fashion_fast-20260131-1/    config.ini    policy.safetensors    store.sqlite
 *
 * The policy's file is the checkpoint: it is written after every round, and a run that goes on from it is the unbroken run, bit
 * for bit; so is one in another directory. A round that is broken off is played again. Over ranks, each plays its part of the environments; what they saw is
 * put together, so the policy does not depend on their number. */
#ifndef ESPER_RUN_LEARN_H
#define ESPER_RUN_LEARN_H

#include "base/log.h"
#include "learn/learner.h"
#include "run/task.h"
#include "run/run_dir.h"

/* Seconds of threads, by what they were spent on. `waiting`: a thread had nothing to do while another finished. On a device, where
 * each environment has a thread, those threads are meant, and what they wait for counts as what it is for. */
typedef struct esper_learn_times {
    double hosts, validation, policy, bookkeeping, waiting;
    double deciding; /* of `policy`: without the updates */
} esper_learn_times;

/* One round. Means are over its episodes, of all ranks. */
typedef struct esper_learn_round {
    uint32_t round; /* from 1, as people count */
    uint64_t n_episodes;                /* so far */
    double   total_reward, total_reward_error; /* mean and its standard error */
    double   accuracy, params, n_kept, n_germinated;
    esper_learner_report report;
    double   steps_per_s, seconds;      /* decisions of environments; of this rank's clock */
    double   recent, best;              /* mean return of the last ten rounds; the highest so far; NaN = not ten yet */
} esper_learn_round;

typedef struct esper_learn_view {
    const esper_task             *task;
    const esper_config           *config;
    const esper_learned_identity *identity;
    const char                   *run_dir;
    int64_t                       params_host, params_policy;
    int                           n_ranks, n_threads;
    uint32_t                      round; /* that is being played, from 1 */
    double                        part;  /* of it that is done */
    double                        seconds_left; /* < 0: not known yet */
} esper_learn_view;

/* Someone who watches. Members may be NULL. Called on the thread of the run. */
typedef struct esper_learn_observer {
    void *context;
    void (*begin)(void *context, const esper_learn_view *view);
    void (*step)(void *context, const esper_learn_view *view);
    void (*round)(void *context, const esper_learn_view *view, const esper_learn_round *round);
} esper_learn_observer;

typedef struct esper_learn_desc {
    const esper_task            *task;   /* NULL when resuming: the file says */
    const esper_config          *config;
    const char                  *resume; /* a run or a policy's file, or NULL */
    const esper_learn_observer  *observer; /* or NULL */
    const esper_log             *log;
    const volatile sig_atomic_t *stop;   /* becomes non-zero: leave; the last round is saved. Or NULL */
    volatile sig_atomic_t *hears; /* is told how far it is with that, an esper_hearing. Or NULL */
    esper_comm                  *comm;   /* NULL: there is but one rank */
    const volatile sig_atomic_t *cut_off; /* becomes non-zero: the job is over, nobody is waited for. Or NULL */
    int                          threads; /* for a configuration that says 0; 0 = every core */
    /* Drills: asked before every round, from 1. Or NULL */
    esper_learner_fault (*drill)(uint32_t round);
} esper_learn_desc;

typedef struct esper_learn_result {
    bool               stopped;  /* on request */
    bool               settled;  /* patience was at its end */
    uint32_t           rounds, rounds_asked;
    uint64_t           n_episodes, n_steps;
    const char        *task;
    char               run_dir[ESPER_PATH_CHARS], policy[ESPER_PATH_CHARS];
    esper_learn_round  last; /* round 0 = none was finished */
    esper_learn_times  times;
    double             seconds;
    char               unwritten[1024]; /* a sentence about what the disk did not take; "": all is written */
    uint64_t           n_skipped, n_bad_rewards, n_bad_observations; /* minibatches; values */
} esper_learn_result;

esper_status esper_learn_run(const esper_learn_desc *desc, esper_learn_result *result_out);

#endif
