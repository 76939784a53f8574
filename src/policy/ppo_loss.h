/* Internal. The losses of PPO over some steps, and their gradients: pure functions of numbers in double.
 *
 * A step has a log-probability and an entropy for each head. Head h counts at a step when the operation that came of it asked
 * that head (`asked`), and for the actor when there was something to choose (not `forced`). With d = new - old, cut to
 * +-20, and r = e^d:
 *
 *     policy   - sum over heads and steps of min(r A, clip(r, 1 +- clip) A) / n
 *     value    0.5 weighted mean of (V - target)^2, forced steps weigh less
 *     entropy  - sum over heads of weight * sum over steps of H / n
 *     penalty  sum over heads of penalty * max(0, floor - mean H)^2, the mean over steps where the head was available
 *     q        like value, for the critic that is told the choice
 *
 * n is the number of steps, so that heads weigh as often as they count; with `head_means` it is that of the steps where the
 * head counts, as recorded. */
#ifndef ESPER_POLICY_PPO_LOSS_H
#define ESPER_POLICY_PPO_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/policy_net.h"

typedef struct esper_ppo_weights {
    double clip;           /* 0.2 */
    double forced_weight;  /* of a forced step in the critics' losses: 0.2 */
    double value, q, entropy; /* weights of the losses in the total */
    bool   head_means;
    double head_entropy[ESPER_POLICY_MAX_HEADS];  /* weight of each head's entropy */
    double head_floor[ESPER_POLICY_MAX_HEADS];    /* mean entropy below which there is a penalty */
    double head_penalty[ESPER_POLICY_MAX_HEADS];
} esper_ppo_weights;

/* Of n steps and n_heads heads: (n, n_heads) or (n). */
typedef struct esper_ppo_terms {
    size_t          n;
    int             n_heads;
    const double   *log_prob, *old_log_prob, *entropy;
    const double   *open_entropy; /* of the head had it been asked; NULL: no penalty */
    const uint32_t *asked;        /* bits 1 << head */
    const uint32_t *available;    /* the same, where open_entropy counts */
    const uint8_t  *forced;
    const double   *advantage, *value, *target;
    const double   *q; /* NULL: none */
} esper_ppo_terms;

typedef struct esper_ppo_losses {
    double policy, value, entropy, penalty, q, total;
} esper_ppo_losses;

/* Gradients of the total; entries may be NULL where the terms are. */
typedef struct esper_ppo_grads {
    double *log_prob, *entropy, *open_entropy; /* (n, n_heads) */
    double *value, *q;                         /* (n) */
} esper_ppo_grads;

esper_ppo_losses esper_ppo_loss(const esper_ppo_weights *weights, const esper_ppo_terms *terms, esper_ppo_grads *grads);

/* How far the policy has moved: over all steps, forced ones too. */
typedef struct esper_ppo_move {
    double kl;                                         /* mean of e^d - 1 - d over the heads and steps that count */
    double clip_fraction, clip_above, clip_below;      /* parts of steps whose joint ratio is outside 1 +- clip */
    double head_clip_fraction[ESPER_POLICY_MAX_HEADS];
    double ratio_mean, ratio_max, ratio_min, ratio_std; /* joint ratio: e^(sum of d), the sum cut to +-30 */
    size_t n_bad;                                      /* joint ratios above 5, below 0.1 or not finite */
} esper_ppo_move;

esper_ppo_move esper_ppo_moved(const esper_ppo_weights *weights, const esper_ppo_terms *terms);

/* The loss of predicted contributions: mean of (predicted - target cut to +-10)^2 over those that are `counted`; the
 * gradient is written for all n. */
double esper_ppo_contribution_loss(const float *predicted, const float *target, const uint8_t *counted, size_t n,
                                   double *grad_out);

/* By how much the penalty for low entropy weighs: 1.5 in the first quarter of a run, 1 to the third, down to 0.5. */
double esper_ppo_penalty_scale(double progress);

#endif
