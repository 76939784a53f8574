/* Internal. A choice among the open ones of up to 64, drawn from what a network says of each.
 *
 *     p = softmax of the logits over the open choices        mixed = (1 - n f) p + f
 *
 * where n choices are open and f is the floor, at most 0.99 / n. A mixture, not a bound that is enforced afterwards: every
 * open choice keeps a probability of f or more, and every logit keeps its gradient. Entropies are parts of ln n: 0 .. 1.
 * One open choice has probability 1, log-probability 0, entropy 0 and no gradient, all exactly. All in double. */
#ifndef ESPER_POLICY_MASKED_H
#define ESPER_POLICY_MASKED_H

#include <stdint.h>

#include "base/rng.h"
#include "esper.h"

enum { ESPER_MASKED_MAX = 64 };

typedef struct esper_masked {
    int      n, n_open;
    uint64_t mask; /* bits 1 << choice */
    double   floor;
    double   log_sum;                     /* of the exponentials of the open logits */
    double   p[ESPER_MASKED_MAX];         /* before the floor; 0 where not open */
    double   mixed[ESPER_MASKED_MAX];     /* what is drawn from */
    double   log_mixed[ESPER_MASKED_MAX]; /* of open choices */
    double   entropy;                     /* of mixed, 0 .. 1 */
} esper_masked;

/* E_ARG, and nothing is written: no open choice among the first n, a floor outside 0 .. 1, or a logit (open or not) that
 * is not finite. */
esper_status esper_masked_init(const float *logits, int n, uint64_t mask, double floor, esper_masked *masked_out);

/* Of a choice that is not open: that of a logit of -10,000, for stored actions that have gone stale. */
double esper_masked_log_prob(const esper_masked *masked, int choice);

int esper_masked_sample(const esper_masked *masked, esper_rng *rng); /* one draw, whatever is open */
int esper_masked_greedy(const esper_masked *masked);                 /* the likeliest; of equals the first */

/* The gradients of all n logits: `of_log_prob` times that of the choice's log-probability plus `of_entropy` times that of
 * the entropy. Added to what stands there. */
void esper_masked_backward(const esper_masked *masked, int choice, double of_log_prob, double of_entropy,
                           float *logits);

#endif
