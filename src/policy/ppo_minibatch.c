/* Minibatches: chunks in a drawn order, some at a time; losses, gradients, a step. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"
#include "policy/ppo_internal.h"

enum { SHUFFLE_NETWORK = 1 << 20 }; /* keeps the learner's orders apart from those of data */

void ppo_shuffle(esper_ppo *p, const esper_ppo_batch *b, int epoch)
{
    esper_rng_key key = {.seed = p->desc.seed,
                         .purpose = ESPER_RNG_SHUFFLE,
                         .network = SHUFFLE_NETWORK,
                         .step = (uint32_t)p->n_calls,
                         .sample = (uint32_t)epoch};
    esper_rng rng;

    p->n_order = 0;
    for (int time = 0; time < ppo_n_times(p, b); time++)
        for (int env = 0; env < b->n_envs; env++)
            if (ppo_chunk_at(p, b, time, env).n > 0)
                p->order[p->n_order++] = time * b->n_envs + env;
    esper_rng_init(&rng, &key);
    for (int i = p->n_order - 1; i > 0; i--) {
        int other = (int)esper_rng_below(&rng, (uint32_t)i + 1), swap = p->order[i];

        p->order[i] = p->order[other];
        p->order[other] = swap;
    }
}

static ppo_chunk nth_chunk(const esper_ppo *p, const esper_ppo_batch *b, int i)
{
    assert(i >= 0 && i < p->n_order);
    return ppo_chunk_at(p, b, p->order[i] / b->n_envs, p->order[i] % b->n_envs);
}

/* Steps of the minibatch that begins at chunk `first` of the order, with what the reference pass said of them. */
static esper_status gather(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int first, int n,
                           esper_ppo_report *r)
{
    size_t heads = (size_t)p->desc.net.n_heads;

    assert(first >= 0 && n > 0 && first + n <= p->n_order);
    p->part.n = 0;
    for (int s = 0; s < n; s++) {
        ppo_chunk c = nth_chunk(p, b, first + s);

        for (int t = 0; t < c.n; t++) {
            size_t entry = ppo_entry_at(b, c.env, c.first + t), i = p->part.n;

            memcpy(p->part.old_log_prob + i * heads, p->whole.old_log_prob + p->index_of[entry] * heads,
                   heads * sizeof(double));
            ESPER_TRY(ppo_read_step(p, b, io, &p->part, (size_t)s * (size_t)io->n_steps + (size_t)t, entry,
                                    p->masked + i * heads, p->open + i * heads, r));
        }
    }
    return ESPER_OK;
}

esper_ppo_weights ppo_weights_now(const esper_ppo *p)
{
    const esper_ppo_desc *d = &p->desc;
    double done = (double)p->n_performed;
    esper_ppo_weights w = d->weights;

    if (d->entropy_updates > 0)
        w.entropy = d->entropy_start + fmin(1, done / d->entropy_updates) * (d->weights.entropy - d->entropy_start);
    for (int head = 0; head < d->net.n_heads; head++)
        w.head_penalty[head] *= esper_ppo_penalty_scale(d->total_updates > 0 ? done / d->total_updates : 0.5);
    return w;
}

/* The gradients of all outputs, zeros where no step counts. */
static void put_gradients(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int n)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t rows = (size_t)n * (size_t)io->n_steps, heads = (size_t)d->n_heads;
    const int32_t none[ESPER_POLICY_MAX_HEADS] = {0};

    assert(n <= io->n_samples && p->part.n <= rows);
    for (size_t head = 0; head < heads; head++)
        memset(io->d_logits[head], 0, rows * esper_policy_net_logits_at(d, (int)head, none).n * sizeof(float));
    memset(io->d_value, 0, rows * sizeof(float));
    if (io->d_q != NULL)
        memset(io->d_q, 0, rows * sizeof(float));
    for (size_t i = 0; i < p->part.n; i++) {
        size_t row = p->part.row[i];

        io->d_value[row] = (float)p->d_value[i];
        if (io->d_q != NULL)
            io->d_q[row] = (float)p->d_q[i];
        for (size_t head = 0; head < heads; head++) {
            const int32_t *chosen = b->actions + p->part.entry[i] * heads;
            esper_policy_logits where = esper_policy_net_logits_at(d, (int)head, chosen);
            float *to = io->d_logits[head] + row * where.n + where.first, room[ESPER_MASKED_MAX] = {0};
            float *grads = where.stride == 1 ? to : room;
            size_t at = i * heads + head;

            esper_masked_backward(&p->masked[at], chosen[head], p->d_log_prob[at], p->d_entropy[at], grads);
            if ((p->part.available[i] >> head & 1u) != 0 && p->d_open_entropy[at] != 0)
                esper_masked_backward(&p->open[at], 0, 0, p->d_open_entropy[at], grads);
            for (int k = 0; k < d->heads[head].size && grads == room; k++)
                to[(size_t)k * where.stride] = room[k];
        }
    }
}

static void put_contributions(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int n)
{
    size_t wide = (size_t)p->desc.net.n_contributions, count = p->part.n * wide;
    double weight = p->desc.contribution_weight;

    if (wide == 0)
        return;
    memset(io->d_contributions, 0, (size_t)n * (size_t)io->n_steps * wide * sizeof(float));
    for (size_t i = 0; i < p->part.n; i++) {
        memcpy(p->seen + i * wide, io->contributions + p->part.row[i] * wide, wide * sizeof(float));
        memcpy(p->measured + i * wide, b->contributions + p->part.entry[i] * wide, wide * sizeof(float));
        for (size_t k = i * wide; k < (i + 1) * wide; k++)
            p->counted[k] = (uint8_t)!isnan(p->measured[k]);
    }
    (void)esper_ppo_contribution_loss(p->seen, p->measured, p->counted, count, p->d_contributions);
    weight *= p->desc.contribution_steps > 0 ? fmin(1, (double)p->n_performed / p->desc.contribution_steps) : 1;
    for (size_t i = 0; i < count; i++)
        io->d_contributions[p->part.row[i / wide] * wide + i % wide] = (float)(weight * p->d_contributions[i]);
}

/* The norm of all gradients; NAN or infinity where one of them is not finite. */
static esper_status measure_gradients(esper_ppo *p, double *norm_out)
{
    const esper_net *net = esper_policy_net_program(p->net);
    const float *first = p->slab->family[ESPER_FAMILY_GRAD];
    double all = 0;

    ESPER_TRY(esper_backend_read(p->slab->backend, p->grads, first,
                                 (size_t)esper_slab_count(p->slab, ESPER_FAMILY_GRAD) * sizeof(*p->grads)));
    for (int t = 0; t < net->n_tensors; t++) {
        const float *grad;
        double sum = 0;

        if (net->tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        grad = p->grads + (esper_slab_at(p->slab, ESPER_FAMILY_GRAD, &net->tensors[t]) - first);
        for (int64_t i = 0; i < net->tensors[t].count; i++)
            sum += (double)grad[i] * (double)grad[i];
        all += sum;
    }
    *norm_out = sqrt(all);
    return ESPER_OK;
}

/* Takes the step unless a gradient is not finite. */
static esper_status step(esper_ppo *p, esper_ppo_report *r)
{
    double norm;

    if (p->drilled)
        ESPER_TRY(esper_backend_fill(p->slab->backend, NULL, p->slab->family[ESPER_FAMILY_GRAD], NAN, 1));
    ESPER_TRY(measure_gradients(p, &norm));
    if (!isfinite(norm)) {
        r->failed |= 1u << ESPER_PPO_SOURCE_GRADIENT;
        r->n_skipped++;
        return ESPER_OK;
    }
    ESPER_TRY(esper_optim_step(p->optim)); /* nobody waits for it: what comes next is queued behind */
    r->grad_norm_max = fmax(r->grad_norm_max, norm);
    p->sum_norm += norm;
    r->n_updates++;
    return ESPER_OK;
}

esper_status ppo_learn(esper_ppo *p, const esper_ppo_batch *b, const esper_ppo_weights *w, int first, int n,
                       esper_ppo_report *r)
{
    esper_policy_io io = esper_policy_net_io(p->net, ESPER_POLICY_LEARN);
    esper_ppo_grads grads = {p->d_log_prob, p->d_entropy, p->d_open_entropy, p->d_value, p->d_q};
    uint32_t failed = r->failed;
    esper_ppo_terms terms;
    esper_ppo_losses loss;
    int before = r->n_updates;

    for (int s = 0; s < n; s++) {
        ppo_chunk c = nth_chunk(p, b, first + s);

        ppo_load_chunk(p, b, &io, s, &c);
    }
    ESPER_TRY(esper_policy_net_forward_training(p->net, n, (uint32_t)p->n_passes++));
    r->failed = 0;
    ESPER_TRY(gather(p, b, &io, first, n, r));
    terms = ppo_terms_of(p, &p->part);
    loss = esper_ppo_loss(w, &terms, &grads);
    if (r->failed == 0 && !isfinite(loss.total))
        r->failed |= 1u << ESPER_PPO_SOURCE_LOSS;
    if (r->failed != 0) {
        r->failed |= failed;
        r->n_skipped++;
        return ESPER_OK;
    }
    r->failed = failed;
    put_gradients(p, b, &io, n);
    put_contributions(p, b, &io, n);
    ESPER_TRY(esper_policy_net_backward(p->net));
    ESPER_TRY(step(p, r));
    if (r->n_updates == before)
        return ESPER_OK;
    r->loss.policy += loss.policy;
    r->loss.value += loss.value;
    r->loss.entropy += loss.entropy;
    r->loss.penalty += loss.penalty;
    r->loss.q += loss.q;
    r->loss.total += loss.total;
    return ESPER_OK;
}
