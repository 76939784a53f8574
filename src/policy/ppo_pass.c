/* Passes over a rollout: chunks of it as samples of the network, what the network says of their steps, and memory carried from
 * chunk to chunk. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "policy/ppo_internal.h"

/* ------------------------------------------------------------------------------------------------ chunks */

void ppo_load_chunk(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample,
                    const ppo_chunk *c)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t T = (size_t)io->n_steps, first = (size_t)sample * T, H = (size_t)d->hidden;
    size_t wide = esper_policy_net_wide(d), n_ids = (size_t)d->n_ids, state = ppo_state_at(p, c->time, c->env);
    size_t q_size = d->q_head >= 0 ? (size_t)d->heads[d->q_head].size : 0;

    assert(sample >= 0 && sample < io->n_samples && c->n <= io->n_steps);
    for (size_t t = (size_t)c->n; t < T; t++)
        esper_policy_net_put(d, io, first + t, NULL, NULL);
    memset(io->reset + first, 0, T * sizeof(float));
    if (q_size > 0)
        memset(io->q_choice + first * q_size, 0, T * q_size * sizeof(float));
    for (int layer = 0; layer < d->layers; layer++, state += H) {
        memcpy(io->h[layer] + (size_t)sample * H, p->start_h + state, H * sizeof(float));
        memcpy(io->c[layer] + (size_t)sample * H, p->start_c + state, H * sizeof(float));
    }
    for (int t = 0; t < c->n; t++) {
        size_t entry = ppo_entry_at(b, c->env, c->first + t), row = first + (size_t)t;

        esper_policy_net_put(d, io, row, b->obs + entry * wide, n_ids > 0 ? b->ids + entry * n_ids : NULL);
        io->reset[row] = b->reset[entry] != 0 ? 1.0f : 0.0f;
        if (q_size > 0)
            io->q_choice[row * q_size + (size_t)b->actions[entry * (size_t)d->n_heads + (size_t)d->q_head]] = 1.0f;
    }
}

/* The memory after the chunk's last step, or the one before it where it has no step. */
static void keep_state(esper_ppo *p, const esper_policy_io *io, int sample, const ppo_chunk *c)
{
    size_t H = (size_t)p->desc.net.hidden, layers = (size_t)p->desc.net.layers;
    size_t from = ppo_state_at(p, c->time, c->env), to = ppo_state_at(p, c->time + 1, c->env);

    if (c->n == 0) {
        memcpy(p->start_h + to, p->start_h + from, layers * H * sizeof(float));
        memcpy(p->start_c + to, p->start_c + from, layers * H * sizeof(float));
        return;
    }
    for (size_t layer = 0; layer < layers; layer++, to += H) {
        size_t row = ((size_t)sample * (size_t)io->n_steps + (size_t)c->n - 1) * H;

        memcpy(p->start_h + to, io->h_after[layer] + row, H * sizeof(float));
        memcpy(p->start_c + to, io->c_after[layer] + row, H * sizeof(float));
    }
}

/* ------------------------------------------------------------------------------------------------ reading outputs */

const float *ppo_logits(const esper_policy_net_desc *d, const esper_policy_io *io, size_t row, int head,
                        const int32_t *chosen, float room[ESPER_MASKED_MAX])
{
    esper_policy_logits at = esper_policy_net_logits_at(d, head, chosen);
    const float *logits = io->logits[head] + row * at.n + at.first;

    if (at.stride == 1)
        return logits;
    for (int i = 0; i < d->heads[head].size; i++)
        room[i] = logits[(size_t)i * at.stride];
    return room;
}

esper_status ppo_read_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                           size_t row, size_t entry, esper_masked *masked, esper_masked *open, esper_ppo_report *r)
{
    size_t i = s->n++, heads = (size_t)p->desc.net.n_heads;

    assert(row < (size_t)io->n_samples * (size_t)io->n_steps);
    s->entry[i] = entry;
    s->row[i] = row;
    s->asked[i] = b->asked[entry];
    s->available[i] = 0;
    s->forced[i] = b->forced[entry] != 0;
    s->advantage[i] = p->advantage[entry];
    s->target[i] = (double)b->targets[entry];
    s->value[i] = (double)io->value[row];
    s->q[i] = p->desc.net.q_head >= 0 ? (double)io->q[row] : 0;
    if (!isfinite(s->value[i]) || !isfinite(s->q[i]))
        r->failed |= 1u << ESPER_PPO_SOURCE_VALUE;
    for (size_t head = 0; head < heads; head++) {
        size_t size = (size_t)p->desc.net.heads[head].size, at = i * heads + head, from = entry * heads + head;
        float room[ESPER_MASKED_MAX];
        const float *logits = ppo_logits(&p->desc.net, io, row, (int)head, b->actions + entry * heads, room);
        double floor = p->desc.floors[head];

        s->open_entropy[at] = 0;
        if (!ppo_all_finite(logits, size)) {
            r->failed |= 1u << ESPER_PPO_SOURCE_LOGITS;
            s->log_prob[at] = s->entropy[at] = PPO_UNKNOWN;
            continue;
        }
        ESPER_TRY(esper_masked_init(logits, (int)size, b->masks[from], floor, &masked[head]));
        s->log_prob[at] = esper_masked_log_prob(&masked[head], b->actions[from]);
        s->entropy[at] = masked[head].entropy;
        if (__builtin_popcountll(b->open[from]) < 2)
            continue;
        ESPER_TRY(esper_masked_init(logits, (int)size, b->open[from], floor, &open[head]));
        s->open_entropy[at] = open[head].entropy;
        s->available[i] |= 1u << head;
    }
    return ESPER_OK;
}

esper_ppo_terms ppo_terms_of(const esper_ppo *p, const ppo_steps *s)
{
    return (esper_ppo_terms){
        .n = s->n,
        .n_heads = p->desc.net.n_heads,
        .log_prob = s->log_prob,
        .old_log_prob = s->old_log_prob,
        .entropy = s->entropy,
        .open_entropy = s->open_entropy,
        .asked = s->asked,
        .available = s->available,
        .forced = s->forced,
        .advantage = s->advantage,
        .value = s->value,
        .target = s->target,
        .q = p->desc.net.q_head >= 0 ? s->q : NULL,
    };
}

/* ------------------------------------------------------------------------------------------------ whole rollouts */

/* One pass of some environments' chunks of one time. */
static esper_status evaluate_envs(esper_ppo *p, const esper_ppo_batch *b, int time, int env, int n, esper_ppo_report *r)
{
    esper_policy_io io = esper_policy_net_io(p->net, ESPER_POLICY_LEARN);

    assert(n > 0 && n <= p->desc.batch_chunks && env + n <= b->n_envs);
    for (int s = 0; s < n; s++) {
        ppo_chunk c = ppo_chunk_at(p, b, time, env + s);

        ppo_load_chunk(p, b, &io, s, &c);
    }
    ESPER_TRY(esper_policy_net_forward(p->net, ESPER_POLICY_LEARN, NULL, n));
    for (int s = 0; s < n; s++) {
        ppo_chunk c = ppo_chunk_at(p, b, time, env + s);

        keep_state(p, &io, s, &c);
        for (int t = 0; t < c.n; t++) {
            size_t entry = ppo_entry_at(b, c.env, c.first + t);

            p->index_of[entry] = p->whole.n;
            ESPER_TRY(ppo_read_step(p, b, &io, &p->whole, (size_t)s * (size_t)io.n_steps + (size_t)t, entry, p->masked,
                                    p->open, r));
        }
    }
    return ESPER_OK;
}

esper_status ppo_evaluate(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    size_t n = (size_t)b->n_envs * (size_t)(p->desc.net.layers * p->desc.net.hidden);

    memset(p->start_h, 0, n * sizeof(float));
    memset(p->start_c, 0, n * sizeof(float));
    p->whole.n = 0;
    for (int time = 0; time < ppo_n_times(p, b); time++)
        for (int env = 0; env < b->n_envs; env += p->desc.batch_chunks) {
            int left = b->n_envs - env;

            ESPER_TRY(evaluate_envs(p, b, time, env, left < p->desc.batch_chunks ? left : p->desc.batch_chunks, r));
        }
    return ESPER_OK;
}

/* Entropy of each head where it had a choice, and how far the rollout's log-probabilities are from those
 * of the pass that ratios start from. */
static void measure_heads(const esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    size_t heads = (size_t)p->desc.net.n_heads;
    double all = 0;
    int n_known = 0;

    for (size_t head = 0; head < heads; head++) {
        double sum = 0, n = 0;

        for (size_t i = 0; i < p->whole.n; i++) {
            size_t at = i * heads + head, from = p->whole.entry[i] * heads + head;

            if ((p->whole.asked[i] >> head & 1u) == 0)
                continue;
            r->log_prob_gap = fmax(r->log_prob_gap, fabs(p->whole.log_prob[at] - (double)b->log_probs[from]));
            if (__builtin_popcountll(b->masks[from]) < 2)
                continue;
            sum += p->whole.entropy[at];
            n++;
        }
        r->head_entropy[head] = n > 0 ? sum / n : PPO_UNKNOWN;
        all += n > 0 ? sum / n : 0;
        n_known += n > 0;
    }
    r->entropy = n_known > 0 ? all / n_known : PPO_UNKNOWN;
}

esper_status ppo_refer(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    size_t n;

    ESPER_TRY(ppo_evaluate(p, b, r));
    n = p->whole.n * (size_t)p->desc.net.n_heads;
    memcpy(p->whole.old_log_prob, p->whole.log_prob, n * sizeof(double));
    r->n_steps = (int)p->whole.n;
    for (size_t i = 0; i < p->whole.n; i++)
        r->n_forced += p->whole.forced[i];
    if (r->failed == 0)
        measure_heads(p, b, r);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ acting */

esper_status esper_ppo_act(esper_ppo *ppo, const esper_ppo_step *step)
{
    const esper_policy_net_desc *d = &ppo->desc.net;
    esper_policy_io io = esper_policy_net_io(ppo->net, ESPER_POLICY_ACT);
    size_t n = (size_t)step->n_envs, H = (size_t)d->hidden, layers = (size_t)d->layers;

    if (step->n_envs < 1 || step->n_envs > ppo->desc.n_envs)
        return ESPER_FAIL(ESPER_E_ARG, "%d environments act, the network takes 1 to %d", step->n_envs,
                          ppo->desc.n_envs);
    for (size_t env = 0; env < n; env++)
        esper_policy_net_put(d, &io, env, step->obs + env * esper_policy_net_wide(d),
                             d->n_ids > 0 ? step->ids + env * (size_t)d->n_ids : NULL);
    memset(io.reset, 0, n * sizeof(float));
    for (size_t env = 0; env < n; env++)
        for (size_t layer = 0; layer < layers; layer++) {
            memcpy(io.h[layer] + env * H, step->h + (env * layers + layer) * H, H * sizeof(float));
            memcpy(io.c[layer] + env * H, step->c + (env * layers + layer) * H, H * sizeof(float));
        }
    ESPER_TRY(esper_policy_net_forward(ppo->net, ESPER_POLICY_ACT, step->stream, step->n_envs));
    for (size_t env = 0; env < n; env++)
        for (size_t layer = 0; layer < layers; layer++) {
            memcpy(step->h + (env * layers + layer) * H, io.h_after[layer] + env * H, H * sizeof(float));
            memcpy(step->c + (env * layers + layer) * H, io.c_after[layer] + env * H, H * sizeof(float));
        }
    return ESPER_OK;
}

esper_status esper_ppo_head(const esper_ppo *ppo, int env, int head, const int32_t *chosen, uint64_t mask,
                            esper_masked *masked_out)
{
    esper_policy_io io = esper_policy_net_io(ppo->net, ESPER_POLICY_ACT);
    const esper_policy_net_desc *d = &ppo->desc.net;
    float room[ESPER_MASKED_MAX];

    assert(head >= 0 && head < d->n_heads && env >= 0 && env < ppo->desc.n_envs);
    return esper_masked_init(ppo_logits(d, &io, (size_t)env, head, chosen, room), d->heads[head].size, mask,
                             ppo->desc.floors[head], masked_out);
}

float esper_ppo_value(const esper_ppo *ppo, int env)
{
    assert(env >= 0 && env < ppo->desc.n_envs);
    return esper_policy_net_io(ppo->net, ESPER_POLICY_ACT).value[env];
}
