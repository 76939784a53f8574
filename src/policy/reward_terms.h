/* Internal. The terms that the modes of rewards (reward.h) are made of. Each adds to the parts of a reward. */
#ifndef ESPER_POLICY_REWARD_TERMS_H
#define ESPER_POLICY_REWARD_TERMS_H

#include <math.h>

#include "policy/reward.h"

/* One mode: what a seed earns or costs, what the operation on it does, and what the run pays as a whole. */
typedef void (*esper_reward_term)(const esper_reward_config *config, const esper_reward_input *in,
                                  esper_reward *reward);

typedef struct esper_reward_terms {
    esper_reward_term seed, op, run;
    double (*potential)(const esper_reward_config *config, int stage, int epochs_in_stage); /* weighted; NULL = none */
} esper_reward_terms;

extern const esper_reward_terms esper_terms_gain, esper_terms_contribution, esper_terms_basic, esper_terms_simplified,
    esper_terms_sparse, esper_terms_minimal, esper_terms_loss;

const esper_reward_terms *esper_reward_terms_of(int mode);

/* A reward of nothing. */
void esper_reward_init(esper_reward *reward);
/* Leaves out what is not finite, and adds up. */
void esper_reward_close(esper_reward *reward);

/* What terms that are shaped by stage have as their potential. */
double esper_reward_weighted_potential(const esper_reward_config *config, int stage, int epochs_in_stage);

/* Shaping as recorded, from the stage and the one before alone. */
double esper_reward_stage_shaping(const esper_reward_config *config, const esper_reward_seed *seed);

/* Parameters beyond the host's that are paid for. */
double esper_reward_overhead(const esper_reward_input *in);

static inline bool esper_reward_is_last(const esper_reward_input *in)
{
    return in->epoch == in->max_epochs;
}

static inline double esper_reward_cut(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

#endif
