/* Internal. What the files of the vector environment (include/esper.h, experimental) share: grow_env_open.c makes it out of a task
 * and settings, grow_env.c plays it, grow_env_rows.c reads actions and writes what is shown. */
#ifndef ESPER_RUN_GROW_ENV_INTERNAL_H
#define ESPER_RUN_GROW_ENV_INTERNAL_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "learn/fleet.h"
#include "policy/actions.h"
#include "policy/features.h"

/* One environment of the fleet. */
typedef struct grow_env_member {
    esper_feature_memory memory;
    esper_action_mask    mask;
    esper_decision       decision; /* that is due */
    int                  op;       /* what it comes to */
    uint64_t             seed, next; /* of the episode at hand; the number of the run's next */
    bool                 has_seed;   /* the next one is of this seed, and not of that number */
    esper_episode        ended;
    bool                 has_ended;
} grow_env_member;

struct esper_grow_env {
    esper_config   config;
    esper_dataset *data;
    esper_engine  *engine;
    esper_fleet   *fleet;
    grow_env_member *members; /* (n_envs) */
    bool          *which;     /* (n_envs) */
    esper_grow_env_shape shape;
    esper_topology topology;
    char           slots[ESPER_POLICY_MAX_SLOTS][ESPER_POLICY_ID_CHARS]; /* (n_slots) */
    uint64_t       run_seed;
    pid_t          pid;   /* of the process that has opened it, and has its threads */
    bool           begun; /* it may be stepped */
    atomic_bool    busy;
    volatile sig_atomic_t stop;
    /* of the call that is under way */
    const esper_grow_env_arrays *shown;
    bool           steps; /* and does not only reset */
};

/* grow_env_rows.c. Shapes, names and masks that a caller may ask for. Judges all actions; E_ARG says which is none, and then nothing
 * has changed. Otherwise decisions are due. */
esper_status grow_env_take_actions(esper_grow_env *env, const int32_t *actions);

/* Writes an environment's row of what is seen; `look` has no view where the governor has stopped it. */
esper_status grow_env_show(esper_grow_env *env, int index, const esper_env_look *look);

/* And of what the decision was worth. */
void grow_env_show_worth(esper_grow_env *env, int index, const esper_env_look *look, bool over);

#endif
