/* A rollout as a batch to learn from: whether it fits and is finite, its advantages, how well its values explain it. */
#include <math.h>

#include "base/status.h"
#include "policy/ppo_internal.h"

static const double ADVANTAGE_STD_FLOOR = 0.1, ADVANTAGE_EPSILON = 1e-8, LEAST_VARIANCE = 1e-8;

/* Every stored choice must have been open. */
static esper_status check_step(const esper_ppo *p, const esper_ppo_batch *b, int env, int step)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t entry = ppo_entry_at(b, env, step);

    for (int head = 0; head < d->n_heads; head++) {
        size_t at = entry * (size_t)d->n_heads + (size_t)head;
        int size = d->heads[head].size;

        if (b->actions[at] < 0 || b->actions[at] >= size || (b->masks[at] >> b->actions[at] & 1u) == 0 ||
            (size < 64 && b->masks[at] >> size != 0))
            return ESPER_FAIL(ESPER_E_ARG, "step %d of environment %d: head %s, choice %d of %d is not open", step, env,
                              d->heads[head].name, (int)b->actions[at], size);
    }
    for (int i = 0; i < d->n_ids; i++) {
        int id = b->ids[entry * (size_t)d->n_ids + (size_t)i];

        if (id < -1 || id >= d->id_rows)
            return ESPER_FAIL(ESPER_E_ARG, "step %d of environment %d: id %d, there are %d", step, env, id, d->id_rows);
    }
    return ESPER_OK;
}

esper_status ppo_check_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    if (b->n_envs < 1 || b->n_envs > p->desc.n_envs || b->n_steps < 1 || b->n_steps > p->desc.max_steps)
        return ESPER_FAIL(ESPER_E_ARG, "a rollout of %d steps of %d environments: the learner takes up to %d of %d",
                          b->n_steps, b->n_envs, p->desc.max_steps, p->desc.n_envs);
    for (int env = 0; env < b->n_envs; env++)
        for (int step = 0; step < b->n_stored[env]; step++)
            ESPER_TRY(check_step(p, b, env, step));
    return ESPER_OK;
}

uint32_t ppo_scan_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    size_t wide = esper_policy_net_wide(&p->desc.net), heads = (size_t)p->desc.net.n_heads;
    uint32_t failed = 0;

    for (int env = 0; env < b->n_envs; env++)
        for (int step = 0; step < b->n_stored[env]; step++) {
            size_t at = ppo_entry_at(b, env, step);

            if (!ppo_all_finite(b->obs + at * wide, wide))
                failed |= 1u << ESPER_PPO_SOURCE_OBSERVATION;
            if (!ppo_all_finite(b->log_probs + at * heads, heads))
                failed |= 1u << ESPER_PPO_SOURCE_LOG_PROB;
            if (!isfinite(b->rewards[at]))
                failed |= 1u << ESPER_PPO_SOURCE_REWARD;
            if (!isfinite(b->advantages[at]) || !isfinite(b->targets[at]))
                failed |= 1u << ESPER_PPO_SOURCE_RETURN;
        }
    return failed;
}

/* The mean of some numbers of all steps, less others where there are (NULL: none), and the sum of their squared distances from
 * it. In order of time, then environment. */
typedef struct spread {
    double n, mean, squares;
} spread;

static spread spread_of(const esper_ppo_batch *b, const float *values, const float *less)
{
    spread s = {0};
    double sum = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int step = 0; step < b->n_steps; step++)
            for (int env = 0; env < b->n_envs; env++) {
                size_t at = ppo_entry_at(b, env, step);
                double x = (double)values[at] - (less != NULL ? (double)less[at] : 0);

                if (step >= b->n_stored[env])
                    continue;
                if (pass == 0) {
                    sum += x;
                    s.n++;
                } else {
                    s.squares += pow(x - s.mean, 2);
                }
            }
        s.mean = sum / fmax(s.n, 1);
    }
    return s;
}

void ppo_normalise_advantages(esper_ppo *p, const esper_ppo_batch *b)
{
    spread s = spread_of(b, b->advantages, NULL);
    double std = sqrt(s.squares / fmax(s.n, 1));

    for (size_t i = 0; i < (size_t)b->n_envs * (size_t)b->n_steps; i++)
        p->advantage[i] = ((double)b->advantages[i] - s.mean) / (fmax(std, ADVANTAGE_STD_FLOOR) + ADVANTAGE_EPSILON);
}

double ppo_explained_variance(const esper_ppo_batch *b)
{
    spread returns = spread_of(b, b->targets, NULL), off = spread_of(b, b->targets, b->values);

    return returns.n > 1 && returns.squares / (returns.n - 1) > LEAST_VARIANCE ? 1 - off.squares / returns.squares
                                                                               : PPO_UNKNOWN;
}
