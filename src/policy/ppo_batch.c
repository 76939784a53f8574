/* A rollout as a batch to learn from: whether it fits and is finite, its advantages, how well its values explain it. */
#include <math.h>

#include "base/status.h"
#include "policy/ppo_internal.h"

static const double ADVANTAGE_STD_FLOOR = 0.1, ADVANTAGE_EPSILON = 1e-8, LEAST_VARIANCE = 1e-8;

/* Entries in order of time, then environment, however the arrays lie: sums are to have the same bits. */
static size_t nth_entry(const esper_ppo_batch *b, size_t i)
{
    size_t envs = (size_t)b->n_envs;

    return b->env_major ? i % envs * (size_t)b->n_steps + i / envs : i;
}

/* Every stored choice must have been open. */
static esper_status check_entry(const esper_ppo *p, const esper_ppo_batch *b, size_t entry)
{
    const esper_policy_net_desc *d = &p->desc.net;

    for (int head = 0; head < d->n_heads; head++) {
        size_t at = entry * (size_t)d->n_heads + (size_t)head;
        int size = d->heads[head].size;

        if (b->actions[at] < 0 || b->actions[at] >= size || (b->masks[at] >> b->actions[at] & 1u) == 0 ||
            (size < 64 && b->masks[at] >> size != 0))
            return ESPER_FAIL(ESPER_E_ARG, "step %d of environment %d: head %s, choice %d of %d is not open",
                              ppo_step_of(b, entry), ppo_env_of(b, entry), d->heads[head].name, (int)b->actions[at],
                              size);
    }
    for (int i = 0; i < d->n_ids; i++) {
        int id = b->ids[entry * (size_t)d->n_ids + (size_t)i];

        if (id < -1 || id >= d->id_rows)
            return ESPER_FAIL(ESPER_E_ARG, "step %d of environment %d: id %d, there are %d", ppo_step_of(b, entry),
                              ppo_env_of(b, entry), id, d->id_rows);
    }
    return ESPER_OK;
}

esper_status ppo_check_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    if (b->n_envs < 1 || b->n_envs > p->desc.n_envs || b->n_steps < 1 || b->n_steps > p->desc.max_steps)
        return ESPER_FAIL(ESPER_E_ARG, "a rollout of %d steps of %d environments: the learner takes up to %d of %d",
                          b->n_steps, b->n_envs, p->desc.max_steps, p->desc.n_envs);
    for (size_t entry = 0; entry < ppo_n_entries(b); entry++)
        if (ppo_is_valid(b, entry))
            ESPER_TRY(check_entry(p, b, entry));
    return ESPER_OK;
}

/* Sets the bits of what is not finite in the steps that count. */
uint32_t ppo_scan_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t wide = (size_t)d->n_features, heads = (size_t)d->n_heads;
    uint32_t failed = 0;

    for (size_t i = 0; i < ppo_n_entries(b); i++) {
        if (!ppo_is_valid(b, i))
            continue;
        if (!ppo_all_finite(b->obs + i * wide, wide))
            failed |= 1u << ESPER_PPO_SOURCE_OBSERVATION;
        if (!ppo_all_finite(b->log_probs + i * heads, heads))
            failed |= 1u << ESPER_PPO_SOURCE_LOG_PROB;
        if (b->rewards != NULL && !isfinite(b->rewards[i]))
            failed |= 1u << ESPER_PPO_SOURCE_REWARD;
        if (!isfinite(b->advantages[i]) || !isfinite(b->targets[i]))
            failed |= 1u << ESPER_PPO_SOURCE_RETURN;
    }
    return failed;
}

/* Over all valid steps, forced ones too: less the mean, by the deviation. */
void ppo_normalise_advantages(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    double n = 0, sum = 0, squares = 0, mean, std;

    for (size_t i = 0; i < ppo_n_entries(b); i++)
        if (ppo_is_valid(b, nth_entry(b, i))) {
            sum += (double)b->advantages[nth_entry(b, i)];
            n++;
        }
    mean = sum / fmax(n, 1);
    for (size_t i = 0; i < ppo_n_entries(b); i++)
        if (ppo_is_valid(b, nth_entry(b, i)))
            squares += pow((double)b->advantages[nth_entry(b, i)] - mean, 2);
    std = sqrt(squares / fmax(n, 1));
    for (size_t i = 0; i < ppo_n_entries(b); i++)
        p->advantage[i] = p->desc.keep_advantages ? (double)b->advantages[i]
                                                  : ((double)b->advantages[i] - mean) /
                                                        (fmax(std, ADVANTAGE_STD_FLOOR) + ADVANTAGE_EPSILON);
    r->advantage_mean = mean;
    r->advantage_std = std;
}

/* 1 - Var(R - v) / Var(R). */
double ppo_explained_variance(const esper_ppo_batch *b)
{
    double n = 0, sum = 0, sum_off = 0, squares = 0, squares_off = 0;

    if (b->values == NULL)
        return PPO_UNKNOWN;
    for (size_t i = 0; i < ppo_n_entries(b); i++) {
        size_t at = nth_entry(b, i);

        if (!ppo_is_valid(b, at))
            continue;
        sum += (double)b->targets[at];
        sum_off += (double)b->targets[at] - (double)b->values[at];
        n++;
    }
    for (size_t i = 0; i < ppo_n_entries(b) && n > 0; i++) {
        size_t at = nth_entry(b, i);

        if (!ppo_is_valid(b, at))
            continue;
        squares += pow((double)b->targets[at] - sum / n, 2);
        squares_off += pow((double)b->targets[at] - (double)b->values[at] - sum_off / n, 2);
    }
    return n > 1 && squares / (n - 1) > LEAST_VARIANCE ? 1 - squares_off / squares : PPO_UNKNOWN;
}
