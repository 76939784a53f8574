/* A choice among the open ones. */
#include "policy/masked.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "base/status.h"

static const double CLOSED_LOGIT = -1e4, FLOORS_TOGETHER = 0.99;

static bool is_open(const esper_masked *masked, int choice)
{
    assert(choice >= 0 && choice < masked->n);
    return (masked->mask >> choice & 1u) != 0;
}

/* Without a floor the logarithm is taken of the logit, which is there when p has vanished. */
static void mix(esper_masked *m, const float *logits)
{
    double sum = 0;

    assert(m->n_open > 1 && m->n_open * m->floor <= 1.0);
    for (int i = 0; i < m->n; i++) {
        m->mixed[i] = is_open(m, i) ? (1 - m->n_open * m->floor) * m->p[i] + m->floor : 0;
        if (!is_open(m, i))
            m->log_mixed[i] = CLOSED_LOGIT - m->log_sum;
        else
            m->log_mixed[i] = m->floor > 0 ? log(m->mixed[i]) : (double)logits[i] - m->log_sum;
        sum -= m->mixed[i] > 0 ? m->mixed[i] * m->log_mixed[i] : 0;
    }
    m->entropy = sum / log((double)m->n_open);
}

esper_status esper_masked_init(const float *logits, int n, uint64_t mask, double floor, esper_masked *masked_out)
{
    esper_masked m = {.n = n, .mask = mask, .n_open = __builtin_popcountll(mask)};
    double top = -(double)INFINITY, sum = 0;

    if (n < 1 || n > ESPER_MASKED_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "%d choices: 1 to %d are possible", n, ESPER_MASKED_MAX);
    if (n < ESPER_MASKED_MAX && mask >> n != 0)
        return ESPER_FAIL(ESPER_E_ARG, "choice %d and up are open, but there are only %d", n, n);
    if (mask == 0)
        return ESPER_FAIL(ESPER_E_ARG, "none of %d choices is open", n);
    if (!(floor >= 0 && floor <= 1))
        return ESPER_FAIL(ESPER_E_ARG, "a probability of at least %g", floor);
    for (int i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return ESPER_FAIL(ESPER_E_ARG, "logit %d of %d is %g", i, n, (double)logits[i]);
        if (is_open(&m, i) && (double)logits[i] > top)
            top = (double)logits[i];
    }
    m.floor = fmin(floor, FLOORS_TOGETHER / m.n_open);
    for (int i = 0; i < n; i++) {
        m.p[i] = is_open(&m, i) ? exp((double)logits[i] - top) : 0;
        sum += m.p[i];
    }
    for (int i = 0; i < n; i++)
        m.p[i] /= sum;
    m.log_sum = top + log(sum);
    if (m.n_open > 1) {
        mix(&m, logits);
    } else {
        for (int i = 0; i < n; i++) {
            m.mixed[i] = is_open(&m, i) ? 1 : 0;
            m.log_mixed[i] = is_open(&m, i) ? 0 : CLOSED_LOGIT - m.log_sum;
        }
    }
    *masked_out = m;
    return ESPER_OK;
}

double esper_masked_log_prob(const esper_masked *masked, int choice)
{
    assert(choice >= 0 && choice < masked->n);
    return masked->log_mixed[choice];
}

int esper_masked_sample(const esper_masked *masked, esper_rng *rng)
{
    double at = (double)esper_rng_uniform(rng), sum = 0;
    int last = 0;

    for (int i = 0; i < masked->n; i++) {
        if (!is_open(masked, i))
            continue;
        sum += masked->mixed[i];
        last = i;
        if (at < sum)
            break;
    }
    return last; /* rounding may leave the sum a little short of 1 */
}

int esper_masked_greedy(const esper_masked *masked)
{
    int best = -1;

    for (int i = 0; i < masked->n; i++)
        if (is_open(masked, i) && (best < 0 || masked->p[i] > masked->p[best]))
            best = i;
    return best;
}

/* With s = 1 - n f: the log-probability of choice a moves by s p_a (1[j = a] - p_j) / mixed_a, the entropy by
 * -s p_j (ln mixed_j - sum of p ln mixed) / ln n. */
void esper_masked_backward(const esper_masked *masked, int choice, double of_log_prob, double of_entropy, float *logits)
{
    double share = 1 - masked->n_open * masked->floor, mean = 0, part, bend;

    if (masked->n_open < 2)
        return;
    for (int i = 0; i < masked->n; i++)
        mean += masked->p[i] > 0 ? masked->p[i] * masked->log_mixed[i] : 0;
    part = masked->floor > 0 ? of_log_prob * share * masked->p[choice] / masked->mixed[choice] : of_log_prob;
    if (!is_open(masked, choice))
        part = 0;
    bend = of_entropy * share / log((double)masked->n_open);
    for (int i = 0; i < masked->n; i++)
        if (is_open(masked, i))
            logits[i] += (float)(part * ((i == choice ? 1 : 0) - masked->p[i]) -
                                 bend * (masked->p[i] > 0 ? masked->p[i] * (masked->log_mixed[i] - mean) : 0));
}
