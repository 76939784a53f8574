/* Internal. What the files of the learner (learn/learner.h) share: learner.c acts, learner_update.c learns and is saved. */
#ifndef ESPER_LEARN_LEARNER_INTERNAL_H
#define ESPER_LEARN_LEARNER_INTERNAL_H

#include "policy/features.h"
#include "learn/learner.h"

/* One environment, as far as its policy is concerned. */
typedef struct learner_env {
    esper_feature_memory memory;
    esper_learned_choice choice;
    float                contributions[ESPER_POLICY_MAX_SLOTS]; /* measured in this step; NaN = not */
    int                  effective_op, n_decided;
    bool                 waits; /* a decision was made whose worth is not known yet */
    bool                 ended; /* the governor has stopped it, and that is dealt with */
} learner_env;

struct esper_learner {
    esper_learned_identity identity;
    const esper_ranks     *ranks;
    esper_ppo             *ppo;
    esper_normaliser      *norm;
    esper_reward_norm      reward_norm;
    esper_value_norm       value_norm;
    esper_reward_config    reward;
    esper_rollout         *rollout;
    uint64_t               seed;
    double                 lambda;
    int                    n_envs, n_steps; /* of all ranks */
    int                    first, n_own;
    /* of a round */
    uint64_t      episode; /* number of the first */
    learner_env *envs;   /* (n_own) */
    float        *obs;     /* (n_own, n_features) */
    int32_t      *ids;     /* (n_own, n_slots) */
    float        *h, *c;   /* (n_own, width) */
    size_t        width;   /* of the memory: hidden times layers */
    float        *rows, *rows_h, *rows_c; /* as obs, h and c, of those that decide together */
    int32_t      *rows_ids;
    float        *targets; /* (n_envs, n_steps) */
    float        *ends;    /* (h then c, n_envs, width) memory of all ranks' environments at the end of the round */
    esper_moments rewards;
    uint64_t      n_bad_observations;
    esper_learner_fault fault;
};

#endif
