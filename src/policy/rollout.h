/* Internal. What a round of episodes has brought, for a policy to learn from: environments by steps, plain arrays in one
 * allocation, every one of them of shape (n_envs, n_steps, ...).
 *
 *   environment 0   | segment .............. rollback | segment ...................... end |
 *
 * The steps of an environment are cut into segments where the governor rolled back: the step before is terminal, and neither
 * credit nor the recurrent state cross the cut. */
#ifndef ESPER_POLICY_ROLLOUT_H
#define ESPER_POLICY_ROLLOUT_H

#include <assert.h>

#include "policy/actions.h"
#include "policy/reward.h"

#define ESPER_ROLLOUT_CLIP 10.0 /* the largest penalty that is learned from */

typedef struct esper_rollout_shape {
    int n_envs, n_steps; /* most steps of an environment */
    int n_slots;          /* 1 .. ESPER_POLICY_MAX_SLOTS */
    int n_features;       /* of an observation */
} esper_rollout_shape;

/* One step as it is stored. Pointers are borrowed for the call. */
typedef struct esper_rollout_step {
    const float   *features;      /* (n_features) as the network saw them */
    const int32_t *blueprints;    /* (n_slots) -1 = none */
    esper_action   action;
    uint64_t       masks[ESPER_N_HEADS]; /* what each head could choose, operation and slot being chosen */
    uint64_t       open[ESPER_N_HEADS];  /* what it could have chosen had it been asked: esper_action_mask_open */
    float          log_probs[ESPER_N_HEADS];
    float          value;
    double         reward;        /* that is learned from */
    const esper_reward *paid;     /* its parts; NULL = none are kept */
    int            effective_op;  /* what the operation came to */
    bool           accepted;      /* it was done, and not refused for reasons beyond the masks */
    bool           forced;        /* there was no choice: no lesson for the policy */
    const float   *contributions; /* (n_slots) measured in this step, NaN = not; NULL = none were */
} esper_rollout_step;

typedef struct esper_rollout {
    esper_rollout_shape shape;
    int      *n_stored;   /* (n_envs) */
    int      *segment;    /* (n_envs) step at which the present segment begins */
    float    *features;   /* (.., n_features) */
    int32_t  *blueprints; /* (.., n_slots) */
    int32_t  *actions;    /* (.., ESPER_N_HEADS) */
    uint64_t *masks, *open; /* (.., ESPER_N_HEADS) */
    float    *log_probs;  /* (.., ESPER_N_HEADS) */
    float    *values, *rewards, *bootstraps;
    double   *parts;      /* (.., ESPER_N_REWARD_PARTS) raw; they add up to the raw reward */
    float    *advantages, *returns, *errors; /* by esper_rollout_credit */
    float    *contributions;                 /* (.., n_slots) NaN = not measured */
    int32_t  *effective_ops;
    uint32_t *asked;      /* heads that the effective operation asks: bits 1 << head */
    uint8_t  *done, *truncated, *accepted, *forced;
    uint8_t  *begins;     /* a segment begins here: the recurrent state is zero before this step */
    /* counts of this round; asked = applied + lost */
    int n_rollbacks_asked, n_rollbacks_applied, n_rollbacks_lost, n_steps_forfeited, n_bad_rewards;
} esper_rollout;

/* E_ARG says which number of the shape cannot be. */
esper_status esper_rollout_open(const esper_rollout_shape *shape, esper_rollout **rollout_out);
void         esper_rollout_close(esper_rollout *rollout);

/* A new round: nothing is stored. */
void esper_rollout_reset(esper_rollout *rollout);

/* Appends a step. A reward that is not finite counts as 0 and is counted. E_STATE: the environment is full. */
esper_status esper_rollout_add(esper_rollout *rollout, int env, const esper_rollout_step *step);

/* The environment's last step ends its episode for good. */
void esper_rollout_end(esper_rollout *rollout, int env);

/* The governor rolled back. The last step becomes terminal with the penalty (cut to +-ESPER_ROLLOUT_CLIP), every earlier
 * step of its segment forfeits its reward, and a new segment begins. Parts add up still: see ESPER_PART_ROLLBACK. Returns
 * false when the segment has no step yet: nobody can be blamed, and the penalty is lost and counted. */
bool esper_rollout_rollback(esper_rollout *rollout, int env, double penalty);

/* How much better than expected each step of an environment was: generalised advantage estimation. Writes advantages, returns
 * (raw: advantage + value) and errors. A step that is done and not truncated ends an episode: nothing behind it counts. The
 * last step, when truncated, is followed by its bootstrap value; else by nothing. */
typedef struct esper_credit {
    double gamma, lambda;
    double value_scale; /* what values and bootstraps are multiplied by first; 1 = they are raw */
} esper_credit;

void esper_rollout_credit(esper_rollout *rollout, int env, const esper_credit *credit);

/* Index of a step in arrays of one value each. */
static inline size_t esper_rollout_at(const esper_rollout *rollout, int env, int step)
{
    assert(env >= 0 && env < rollout->shape.n_envs && step >= 0 && step <= rollout->shape.n_steps);
    return (size_t)env * (size_t)rollout->shape.n_steps + (size_t)step;
}

int esper_rollout_count_steps(const esper_rollout *rollout);

/* ------------------------------------------------------------------------------------------------ between ranks */

/* Some environments as plain memory, to be sent and taken over by a rollout of the same shape. Counts of rollbacks stay behind. */
size_t esper_rollout_envs_bytes(const esper_rollout *rollout, int n_envs);
void   esper_rollout_copy_envs(const esper_rollout *rollout, int first, int n_envs, void *memory_out);
void   esper_rollout_take_envs(esper_rollout *rollout, int first, int n_envs, const void *memory);

#endif
