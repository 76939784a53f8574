/* Passes over a rollout: chunks of it as samples of the network, what the network says of their steps, and memory carried from
 * chunk to chunk. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "policy/ppo_internal.h"

/* ------------------------------------------------------------------------------------------------ chunks */

static void load_state(const esper_ppo *p, const esper_policy_io *io, int sample, const ppo_chunk *c)
{
    size_t H = (size_t)p->desc.net.hidden, at = ppo_state_at(p, c->time, c->env);

    for (int layer = 0; layer < p->desc.net.layers; layer++, at += H) {
        memcpy(io->h[layer] + (size_t)sample * H, p->start_h + at, H * sizeof(float));
        memcpy(io->c[layer] + (size_t)sample * H, p->start_c + at, H * sizeof(float));
    }
}

static void load_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, size_t row, size_t entry)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t wide = (size_t)d->n_features, n_ids = (size_t)d->n_ids;

    memcpy(io->obs + row * wide, b->obs + entry * wide, wide * sizeof(float));
    for (size_t i = 0; i < n_ids; i++) {
        int32_t id = b->ids[entry * n_ids + i];

        io->ids[row * n_ids + i] = id < 0 ? d->id_rows - 1 : id;
    }
    io->reset[row] = b->reset != NULL && b->reset[entry] != 0 ? 1.0f : 0.0f;
    if (d->q_head >= 0)
        io->q_choice[row * (size_t)d->heads[d->q_head].size +
                     (size_t)b->actions[entry * (size_t)d->n_heads + (size_t)d->q_head]] = 1.0f;
}

/* A chunk as one sample of the network. Steps that are not there read as zeros. */
void ppo_load_chunk(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample,
                    const ppo_chunk *c)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t T = (size_t)io->n_steps, first = (size_t)sample * T;
    size_t q_size = d->q_head >= 0 ? (size_t)d->heads[d->q_head].size : 0;

    assert(sample >= 0 && sample < io->n_samples && c->n <= io->n_steps);
    memset(io->obs + first * (size_t)d->n_features, 0, T * (size_t)d->n_features * sizeof(float));
    memset(io->reset + first, 0, T * sizeof(float));
    if (d->n_ids > 0)
        memset(io->ids + first * (size_t)d->n_ids, 0, T * (size_t)d->n_ids * sizeof(int32_t));
    if (q_size > 0)
        memset(io->q_choice + first * q_size, 0, T * q_size * sizeof(float));
    load_state(p, io, sample, c);
    for (int t = 0; t < c->n; t++)
        if (ppo_is_valid(b, ppo_entry_of(b, c, t)))
            load_step(p, b, io, first + (size_t)t, ppo_entry_of(b, c, t));
}

/* The memory after the chunk's last step, or the one before it where it has no step. */
static void keep_state(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample,
                       const ppo_chunk *c)
{
    size_t H = (size_t)p->desc.net.hidden, layers = (size_t)p->desc.net.layers;
    size_t from = ppo_state_at(p, c->time, c->env), to = ppo_state_at(p, c->time + 1, c->env);
    int last = c->n - 1;

    while (last >= 0 && !ppo_is_valid(b, ppo_entry_of(b, c, last)))
        last--;
    if (last < 0) {
        memcpy(p->start_h + to, p->start_h + from, layers * H * sizeof(float));
        memcpy(p->start_c + to, p->start_c + from, layers * H * sizeof(float));
        return;
    }
    for (size_t layer = 0; layer < layers; layer++, to += H) {
        size_t row = ((size_t)sample * (size_t)io->n_steps + (size_t)last) * H;

        memcpy(p->start_h + to, io->h_after[layer] + row, H * sizeof(float));
        memcpy(p->start_c + to, io->c_after[layer] + row, H * sizeof(float));
    }
}

/* ------------------------------------------------------------------------------------------------ reading outputs */

/* What the network says of a head at a step. Where that is not finite: PPO_UNKNOWN, and the head's bit. */
static esper_status read_head(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                              int head, esper_masked *masked, esper_ppo_report *r)
{
    size_t heads = (size_t)p->desc.net.n_heads, i = s->n, at = i * heads + (size_t)head;
    size_t size = (size_t)p->desc.net.heads[head].size, from = s->entry[i] * heads + (size_t)head;
    const float *logits = io->logits[head] + s->row[i] * size;

    if (!ppo_all_finite(logits, size)) {
        r->failed |= 1u << ESPER_PPO_SOURCE_LOGITS;
        r->failed_heads |= 1u << head;
        s->log_prob[at] = s->entropy[at] = PPO_UNKNOWN;
        return ESPER_OK;
    }
    ESPER_TRY(esper_masked_init(logits, (int)size, b->masks[from], p->desc.floors[head], masked));
    s->log_prob[at] = esper_masked_log_prob(masked, b->actions[from]);
    s->entropy[at] = masked->entropy;
    return ESPER_OK;
}

/* Entropy of a head as if it had been asked, where there was a choice. */
static esper_status read_open(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                              int head, esper_masked *open)
{
    size_t heads = (size_t)p->desc.net.n_heads, i = s->n, at = i * heads + (size_t)head;
    size_t size = (size_t)p->desc.net.heads[head].size;
    uint64_t mask = b->open[s->entry[i] * heads + (size_t)head];

    s->open_entropy[at] = 0;
    if (__builtin_popcountll(mask) < 2 || isnan(s->log_prob[at]))
        return ESPER_OK;
    ESPER_TRY(esper_masked_init(io->logits[head] + s->row[i] * size, (int)size, mask, p->desc.floors[head], open));
    s->open_entropy[at] = open->entropy;
    s->available[i] |= 1u << head;
    return ESPER_OK;
}

/* Adds a step; masked and open are (heads) to be filled. */
esper_status ppo_read_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                           size_t row, size_t entry, esper_masked *masked, esper_masked *open, esper_ppo_report *r)
{
    size_t i = s->n;

    assert(row < (size_t)io->n_samples * (size_t)io->n_steps && entry < ppo_n_entries(b));
    s->entry[i] = entry;
    s->row[i] = row;
    s->asked[i] = b->asked[entry];
    s->available[i] = 0;
    s->forced[i] = ppo_is_forced(b, entry);
    s->advantage[i] = p->advantage[entry];
    s->target[i] = (double)b->targets[entry];
    s->value[i] = (double)io->value[row];
    s->q[i] = p->desc.net.q_head >= 0 ? (double)io->q[row] : 0;
    if (!isfinite(s->value[i]) || !isfinite(s->q[i]))
        r->failed |= 1u << ESPER_PPO_SOURCE_VALUE;
    for (int head = 0; head < p->desc.net.n_heads; head++) {
        ESPER_TRY(read_head(p, b, io, s, head, &masked[head], r));
        if (b->open != NULL)
            ESPER_TRY(read_open(p, b, io, s, head, &open[head]));
    }
    s->n++;
    return ESPER_OK;
}

esper_ppo_terms ppo_terms_of(const esper_ppo *p, const esper_ppo_batch *b, const ppo_steps *s)
{
    return (esper_ppo_terms){
        .n = s->n,
        .n_heads = p->desc.net.n_heads,
        .log_prob = s->log_prob,
        .old_log_prob = s->old_log_prob,
        .entropy = s->entropy,
        .open_entropy = b->open != NULL ? s->open_entropy : NULL,
        .asked = s->asked,
        .available = s->available,
        .forced = s->forced,
        .advantage = s->advantage,
        .value = s->value,
        .old_value = s->old_value,
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
    ESPER_TRY(esper_policy_net_forward(p->net, ESPER_POLICY_LEARN, n));
    for (int s = 0; s < n; s++) {
        ppo_chunk c = ppo_chunk_at(p, b, time, env + s);

        keep_state(p, b, &io, s, &c);
        for (int t = 0; t < c.n; t++) {
            size_t entry = ppo_entry_of(b, &c, t);

            if (!ppo_is_valid(b, entry))
                continue;
            p->index_of[entry] = p->whole.n;
            ESPER_TRY(ppo_read_step(p, b, &io, &p->whole, (size_t)s * (size_t)io.n_steps + (size_t)t, entry, p->masked,
                                    p->open, r));
        }
    }
    return ESPER_OK;
}

static void begin_states(esper_ppo *p, const esper_ppo_batch *b)
{
    size_t n = (size_t)b->n_envs * (size_t)(p->desc.net.layers * p->desc.net.hidden);

    memset(p->start_h, 0, n * sizeof(float));
    memset(p->start_c, 0, n * sizeof(float));
    if (b->h != NULL && b->c != NULL) {
        memcpy(p->start_h, b->h, n * sizeof(float));
        memcpy(p->start_c, b->c, n * sizeof(float));
    }
}

/* All steps under the weights of now, memory carried from chunk to chunk. */
esper_status ppo_evaluate(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    begin_states(p, b);
    p->whole.n = 0;
    for (int time = 0; time < ppo_n_times(p, b); time++)
        for (int env = 0; env < b->n_envs; env += p->desc.batch_chunks) {
            int left = b->n_envs - env;

            ESPER_TRY(evaluate_envs(p, b, time, env, left < p->desc.batch_chunks ? left : p->desc.batch_chunks, r));
        }
    return ESPER_OK;
}

/* What the rollout had stored, against the pass that ratios start from. */
static double log_prob_gap(const esper_ppo *p, const esper_ppo_batch *b)
{
    size_t heads = (size_t)p->desc.net.n_heads;
    double gap = 0;

    for (size_t i = 0; i < p->whole.n; i++)
        for (size_t head = 0; head < heads; head++)
            if ((p->whole.asked[i] >> head & 1u) != 0)
                gap = fmax(gap, fabs(p->whole.log_prob[i * heads + head] -
                                     (double)b->log_probs[p->whole.entry[i] * heads + head]));
    return gap;
}

/* Entropy of each head where it had a choice, and how often that was. */
static void measure_heads(const esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    int heads = p->desc.net.n_heads, n_known = 0;
    double all = 0;

    for (int head = 0; head < heads; head++) {
        double sum = 0, n = 0, learnable = 0;

        for (size_t i = 0; i < p->whole.n; i++) {
            uint64_t mask = b->masks[p->whole.entry[i] * (size_t)heads + (size_t)head];

            if ((p->whole.asked[i] >> head & 1u) == 0 || __builtin_popcountll(mask) < 2)
                continue;
            sum += p->whole.entropy[i * (size_t)heads + (size_t)head];
            n++;
            learnable += p->whole.forced[i] == 0;
        }
        r->head_entropy[head] = n > 0 ? sum / n : PPO_UNKNOWN;
        r->learnable[head] = p->whole.n > 0 ? learnable / (double)p->whole.n : 0;
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
    memcpy(p->whole.old_value, p->whole.value, p->whole.n * sizeof(double));
    r->n_steps = (int)p->whole.n;
    for (size_t i = 0; i < p->whole.n; i++)
        r->n_forced += p->whole.forced[i];
    if (r->failed == 0) {
        r->log_prob_gap = log_prob_gap(p, b);
        measure_heads(p, b, r);
    }
    return ESPER_OK;
}
