/* An update of a policy: the outline is esper_ppo_update at the end. */
#include "policy/ppo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "policy/ppo_internal.h"

static const double KL_STOP = 1.5, ADVANTAGE_STD_FLOOR = 0.1, ADVANTAGE_EPSILON = 1e-8, LEAST_VARIANCE = 1e-8;

#define UNKNOWN ((double)NAN)

enum { SHUFFLE_NETWORK = 1 << 20 }; /* keeps the learner's orders apart from those of data */

static const char *const source_names[] = {
#define X(name, text) text,
    ESPER_PPO_SOURCE_LIST(X)
#undef X
};

const char *esper_ppo_source_name(int source)
{
    return source >= 0 && source < ESPER_PPO_N_SOURCES ? source_names[source] : NULL;
}

void esper_ppo_desc_init(esper_ppo_desc *desc)
{
    *desc = (esper_ppo_desc){.chunk_steps = 16,
                             .batch_chunks = 8,
                             .epochs = 4,
                             .lr = 3e-4,
                             .max_grad_norm = 5.0,
                             .target_kl = 0.015,
                             .contribution_weight = 0.05,
                             .contribution_steps = 1000};
    esper_policy_net_desc_init(&desc->net);
    desc->weights = (esper_ppo_weights){.clip = 0.2, .forced_weight = 0.2, .value = 0.5, .q = 0.25, .entropy = 0.05};
    for (int head = 0; head < ESPER_POLICY_MAX_HEADS; head++) {
        desc->floors[head] = 0.01;
        desc->collapsed[head] = 0.1;
        desc->weights.head_entropy[head] = 1.0;
    }
}

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status check_desc(const esper_ppo_desc *d)
{
    if (d->n_lanes < 1 || d->max_steps < 1 || d->chunk_steps < 1 || d->batch_chunks < 1 || d->epochs < 1)
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: %d lanes of %d steps, %d chunks of %d steps, %d epochs",
                          d->n_lanes, d->max_steps, d->batch_chunks, d->chunk_steps, d->epochs);
    if (d->chunk_steps > d->max_steps)
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: chunks of %d steps, but rollouts have %d", d->chunk_steps,
                          d->max_steps);
    if (!(d->lr > 0) || !(d->max_grad_norm >= 0) || !(d->weights.clip > 0 && d->weights.clip <= 1))
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: rate %g, gradient norm %g, clip %g", d->lr, d->max_grad_norm,
                          d->weights.clip);
    return ESPER_OK;
}

/* Memory that lives as long as the learner; NULL when there is none, which `has_all` finds. */
static void *take(esper_ppo *p, size_t n, size_t bytes)
{
    void *block = esper_mem_alloc((n > 0 ? n : 1) * bytes);

    p->blocks[p->n_blocks++] = block;
    return block;
}

static bool has_all(const esper_ppo *p)
{
    for (int i = 0; i < p->n_blocks; i++)
        if (p->blocks[i] == NULL)
            return false;
    return true;
}

/* The numbers of a step lie in one block each kind: heads' and the step's own. */
static void take_steps(esper_ppo *p, ppo_steps *s, size_t n)
{
    size_t heads = (size_t)p->desc.net.n_heads;
    double *of_heads = take(p, 4 * n * heads, sizeof(double)), *own = take(p, 5 * n, sizeof(double));
    uint32_t *bits = take(p, 2 * n, sizeof(uint32_t));
    size_t *where = take(p, 2 * n, sizeof(size_t));

    s->forced = take(p, n, sizeof(uint8_t));
    if (of_heads == NULL || own == NULL || bits == NULL || where == NULL)
        return;
    s->log_prob = of_heads;
    s->old_log_prob = of_heads + n * heads;
    s->entropy = of_heads + 2 * n * heads;
    s->open_entropy = of_heads + 3 * n * heads;
    s->advantage = own;
    s->value = own + n;
    s->old_value = own + 2 * n;
    s->target = own + 3 * n;
    s->q = own + 4 * n;
    s->asked = bits;
    s->available = bits + n;
    s->entry = where;
    s->place = where + n;
}

static esper_status take_memory(esper_ppo *p)
{
    const esper_ppo_desc *d = &p->desc;
    size_t lanes = (size_t)d->n_lanes, n = lanes * (size_t)d->max_steps, heads = (size_t)d->net.n_heads;
    size_t part = (size_t)d->batch_chunks * (size_t)d->chunk_steps;
    size_t state = lanes * (size_t)(d->net.layers * d->net.hidden), slots = part * (size_t)d->net.n_contributions;

    p->n_times = (d->max_steps + d->chunk_steps - 1) / d->chunk_steps;
    p->start_h = take(p, (size_t)(p->n_times + 1) * state, sizeof(float));
    p->start_c = take(p, (size_t)(p->n_times + 1) * state, sizeof(float));
    p->order = take(p, (size_t)p->n_times * lanes, sizeof(int));
    p->index_of = take(p, n, sizeof(size_t));
    p->advantage = take(p, n, sizeof(double));
    take_steps(p, &p->whole, n);
    take_steps(p, &p->part, part);
    p->masked = take(p, part * heads, sizeof(esper_masked));
    p->open = take(p, part * heads, sizeof(esper_masked));
    p->d_log_prob = take(p, part * heads, sizeof(double));
    p->d_entropy = take(p, part * heads, sizeof(double));
    p->d_open_entropy = take(p, part * heads, sizeof(double));
    p->d_value = take(p, part, sizeof(double));
    p->d_q = take(p, part, sizeof(double));
    p->d_contributions = take(p, slots, sizeof(double));
    p->seen = take(p, slots, sizeof(float));
    p->measured = take(p, slots, sizeof(float));
    p->counted = take(p, slots, sizeof(uint8_t));
    p->group = take(p, (size_t)esper_policy_net_program(p->net)->n_tensors, sizeof(int));
    p->grads = take(p, (size_t)esper_slab_count(esper_policy_net_slab(p->net), ESPER_FAMILY_GRAD), sizeof(float));
    return has_all(p) ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "policy learner for rollouts of %zu steps", n);
}

static int group_of(const esper_policy_net_desc *d, const char *name)
{
    for (int head = 0; head < d->n_heads; head++) {
        size_t n = strlen(d->heads[head].name);

        if (strncmp(name, d->heads[head].name, n) == 0 && strncmp(name + n, "_head.", 6) == 0)
            return head;
    }
    if (strncmp(name, "state_value_head.", 17) == 0)
        return d->n_heads;
    return strncmp(name, "q_head.", 7) == 0 ? d->n_heads + 1 : -1;
}

static esper_status open_optim(esper_ppo *p, esper_backend *backend)
{
    esper_optim_desc desc = {.backend = backend, .slabs = &p->slab, .n_slabs = 1, .kind = ESPER_OP_ADAMW};

    p->slab = esper_policy_net_slab(p->net);
    desc.settings = (esper_group){
        .lr = (float)p->desc.lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-5f, .clip = (float)p->desc.max_grad_norm};
    return esper_optim_open(&desc, &p->optim);
}

static esper_status open_all(esper_ppo *p, esper_backend *backend)
{
    const esper_policy_net_sizes sizes = {p->desc.n_lanes, p->desc.chunk_steps, p->desc.batch_chunks};
    const esper_net *program;

    ESPER_TRY(esper_policy_net_open(backend, &p->desc.net, &sizes, p->desc.seed, &p->net));
    ESPER_TRY(take_memory(p));
    program = esper_policy_net_program(p->net);
    for (int t = 0; t < program->n_tensors; t++)
        p->group[t] =
            program->tensors[t].role == ESPER_ROLE_PARAM ? group_of(&p->desc.net, program->tensors[t].name) : -1;
    return open_optim(p, backend);
}

esper_status esper_ppo_open(esper_backend *backend, const esper_ppo_desc *desc, esper_ppo **ppo_out)
{
    esper_ppo *p;
    esper_status status;

    ESPER_TRY(check_desc(desc));
    p = esper_mem_alloc(sizeof(*p));
    if (p == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "policy learner");
    p->desc = *desc;
    status = open_all(p, backend);
    if (status != ESPER_OK) {
        esper_ppo_close(p);
        return status;
    }
    *ppo_out = p;
    return ESPER_OK;
}

void esper_ppo_close(esper_ppo *ppo)
{
    if (ppo == NULL)
        return;
    esper_optim_close(ppo->optim);
    esper_policy_net_close(ppo->net);
    for (int i = 0; i < ppo->n_blocks; i++)
        esper_mem_free(ppo->blocks[i]);
    esper_mem_free(ppo);
}

esper_policy_net *esper_ppo_net(esper_ppo *ppo)
{
    return ppo->net;
}

const esper_ppo_desc *esper_ppo_desc_of(const esper_ppo *ppo)
{
    return &ppo->desc;
}

/* ------------------------------------------------------------------------------------------------ the batch */

static int lane_of(const esper_ppo_batch *b, size_t entry)
{
    return (int)(b->lane_major ? entry / (size_t)b->n_steps : entry % (size_t)b->n_lanes);
}

static int step_of(const esper_ppo_batch *b, size_t entry)
{
    return (int)(b->lane_major ? entry % (size_t)b->n_steps : entry / (size_t)b->n_lanes);
}

static bool is_valid(const esper_ppo_batch *b, size_t entry)
{
    if (b->n_stored != NULL && step_of(b, entry) >= b->n_stored[lane_of(b, entry)])
        return false;
    return b->valid == NULL || b->valid[entry] != 0;
}

static bool is_forced(const esper_ppo_batch *b, size_t entry)
{
    return b->forced != NULL && b->forced[entry] != 0;
}

static size_t n_entries(const esper_ppo_batch *b)
{
    return (size_t)b->n_steps * (size_t)b->n_lanes;
}

/* Entries in order of time, then lane, however the arrays lie: sums are to have the same bits. */
static size_t nth_entry(const esper_ppo_batch *b, size_t i)
{
    size_t lanes = (size_t)b->n_lanes;

    return b->lane_major ? i % lanes * (size_t)b->n_steps + i / lanes : i;
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
            return ESPER_FAIL(ESPER_E_ARG, "step %d of lane %d: head %s, choice %d of %d is not open",
                              step_of(b, entry), lane_of(b, entry), d->heads[head].name, (int)b->actions[at], size);
    }
    for (int i = 0; i < d->n_ids; i++) {
        int id = b->ids[entry * (size_t)d->n_ids + (size_t)i];

        if (id < -1 || id >= d->id_rows)
            return ESPER_FAIL(ESPER_E_ARG, "step %d of lane %d: id %d, there are %d", step_of(b, entry),
                              lane_of(b, entry), id, d->id_rows);
    }
    return ESPER_OK;
}

static esper_status check_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    if (b->n_lanes < 1 || b->n_lanes > p->desc.n_lanes || b->n_steps < 1 || b->n_steps > p->desc.max_steps)
        return ESPER_FAIL(ESPER_E_ARG, "a rollout of %d steps of %d lanes: the learner takes up to %d of %d",
                          b->n_steps, b->n_lanes, p->desc.max_steps, p->desc.n_lanes);
    for (size_t entry = 0; entry < n_entries(b); entry++)
        if (is_valid(b, entry))
            ESPER_TRY(check_entry(p, b, entry));
    return ESPER_OK;
}

static bool all_finite(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* Sets the bits of what is not finite in the steps that count. */
static uint32_t scan_batch(const esper_ppo *p, const esper_ppo_batch *b)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t wide = (size_t)d->n_features, heads = (size_t)d->n_heads;
    uint32_t failed = 0;

    for (size_t i = 0; i < n_entries(b); i++) {
        if (!is_valid(b, i))
            continue;
        if (!all_finite(b->obs + i * wide, wide))
            failed |= 1u << ESPER_PPO_SOURCE_OBSERVATION;
        if (!all_finite(b->log_probs + i * heads, heads))
            failed |= 1u << ESPER_PPO_SOURCE_LOG_PROB;
        if (b->rewards != NULL && !isfinite(b->rewards[i]))
            failed |= 1u << ESPER_PPO_SOURCE_REWARD;
        if (!isfinite(b->advantages[i]) || !isfinite(b->targets[i]))
            failed |= 1u << ESPER_PPO_SOURCE_RETURN;
    }
    return failed;
}

/* Over all valid steps, forced ones too: less the mean, by the deviation. */
static void normalise_advantages(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    double n = 0, sum = 0, squares = 0, mean, std;

    for (size_t i = 0; i < n_entries(b); i++)
        if (is_valid(b, nth_entry(b, i))) {
            sum += (double)b->advantages[nth_entry(b, i)];
            n++;
        }
    mean = sum / fmax(n, 1);
    for (size_t i = 0; i < n_entries(b); i++)
        if (is_valid(b, nth_entry(b, i)))
            squares += pow((double)b->advantages[nth_entry(b, i)] - mean, 2);
    std = sqrt(squares / fmax(n, 1));
    for (size_t i = 0; i < n_entries(b); i++)
        p->advantage[i] = p->desc.keep_advantages ? (double)b->advantages[i]
                                                  : ((double)b->advantages[i] - mean) /
                                                        (fmax(std, ADVANTAGE_STD_FLOOR) + ADVANTAGE_EPSILON);
    r->advantage_mean = mean;
    r->advantage_std = std;
}

/* 1 - Var(R - v) / Var(R). */
static double explained_variance(const esper_ppo_batch *b)
{
    double n = 0, sum = 0, sum_off = 0, squares = 0, squares_off = 0;

    if (b->values == NULL)
        return UNKNOWN;
    for (size_t i = 0; i < n_entries(b); i++) {
        size_t at = nth_entry(b, i);

        if (!is_valid(b, at))
            continue;
        sum += (double)b->targets[at];
        sum_off += (double)b->targets[at] - (double)b->values[at];
        n++;
    }
    for (size_t i = 0; i < n_entries(b) && n > 0; i++) {
        size_t at = nth_entry(b, i);

        if (!is_valid(b, at))
            continue;
        squares += pow((double)b->targets[at] - sum / n, 2);
        squares_off += pow((double)b->targets[at] - (double)b->values[at] - sum_off / n, 2);
    }
    return n > 1 && squares / (n - 1) > LEAST_VARIANCE ? 1 - squares_off / squares : UNKNOWN;
}

/* ------------------------------------------------------------------------------------------------ chunks */

/* A chunk: some steps of a lane. */
typedef struct chunk {
    int time, lane;   /* number of the chunk in its lane */
    int first, n;     /* steps */
} chunk;

static chunk chunk_at(const esper_ppo *p, const esper_ppo_batch *b, int time, int lane)
{
    chunk c = {.time = time, .lane = lane, .first = time * p->desc.chunk_steps};
    int left = b->n_steps - c.first;

    c.n = left < p->desc.chunk_steps ? left : p->desc.chunk_steps;
    return c;
}

static size_t entry_of(const esper_ppo_batch *b, const chunk *c, int t)
{
    size_t step = (size_t)(c->first + t), lane = (size_t)c->lane;

    return b->lane_major ? lane * (size_t)b->n_steps + step : step * (size_t)b->n_lanes + lane;
}

/* Where the memory before a lane's chunk is kept; time n_times is the end. */
static size_t state_at(const esper_ppo *p, int time, int lane)
{
    return ((size_t)time * (size_t)p->desc.n_lanes + (size_t)lane) * (size_t)(p->desc.net.layers * p->desc.net.hidden);
}

static void load_state(const esper_ppo *p, const esper_policy_io *io, int sample, const chunk *c)
{
    size_t H = (size_t)p->desc.net.hidden, at = state_at(p, c->time, c->lane);

    for (int layer = 0; layer < p->desc.net.layers; layer++, at += H) {
        memcpy(io->h[layer] + (size_t)sample * H, p->start_h + at, H * sizeof(float));
        memcpy(io->c[layer] + (size_t)sample * H, p->start_c + at, H * sizeof(float));
    }
}

static void load_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, size_t place,
                      size_t entry)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t wide = (size_t)d->n_features, n_ids = (size_t)d->n_ids;

    memcpy(io->obs + place * wide, b->obs + entry * wide, wide * sizeof(float));
    for (size_t i = 0; i < n_ids; i++) {
        int32_t id = b->ids[entry * n_ids + i];

        io->ids[place * n_ids + i] = id < 0 ? d->id_rows - 1 : id;
    }
    io->reset[place] = b->reset != NULL && b->reset[entry] != 0 ? 1.0f : 0.0f;
    if (d->q_head >= 0)
        io->q_choice[place * (size_t)d->heads[d->q_head].size +
                     (size_t)b->actions[entry * (size_t)d->n_heads + (size_t)d->q_head]] = 1.0f;
}

/* A chunk as one sample of the network. Steps that are not there read as zeros. */
static void load_chunk(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample,
                       const chunk *c)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t T = (size_t)io->n_steps, first = (size_t)sample * T;
    size_t q_size = d->q_head >= 0 ? (size_t)d->heads[d->q_head].size : 0;

    memset(io->obs + first * (size_t)d->n_features, 0, T * (size_t)d->n_features * sizeof(float));
    memset(io->reset + first, 0, T * sizeof(float));
    if (d->n_ids > 0)
        memset(io->ids + first * (size_t)d->n_ids, 0, T * (size_t)d->n_ids * sizeof(int32_t));
    if (q_size > 0)
        memset(io->q_choice + first * q_size, 0, T * q_size * sizeof(float));
    load_state(p, io, sample, c);
    for (int t = 0; t < c->n; t++)
        if (is_valid(b, entry_of(b, c, t)))
            load_step(p, b, io, first + (size_t)t, entry_of(b, c, t));
}

/* The memory after the chunk's last step, or the one before it where it has no step. */
static void keep_state(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample, const chunk *c)
{
    size_t H = (size_t)p->desc.net.hidden, layers = (size_t)p->desc.net.layers;
    size_t from = state_at(p, c->time, c->lane), to = state_at(p, c->time + 1, c->lane);
    int last = c->n - 1;

    while (last >= 0 && !is_valid(b, entry_of(b, c, last)))
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

/* What the network says of a head at a step. Where that is not finite: UNKNOWN, and the head's bit. */
static esper_status read_head(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                              int head, esper_masked *masked, esper_ppo_report *r)
{
    size_t heads = (size_t)p->desc.net.n_heads, i = s->n, at = i * heads + (size_t)head;
    size_t size = (size_t)p->desc.net.heads[head].size, from = s->entry[i] * heads + (size_t)head;
    const float *logits = io->logits[head] + s->place[i] * size;

    if (!all_finite(logits, size)) {
        r->failed |= 1u << ESPER_PPO_SOURCE_LOGITS;
        r->failed_heads |= 1u << head;
        s->log_prob[at] = s->entropy[at] = UNKNOWN;
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
    ESPER_TRY(esper_masked_init(io->logits[head] + s->place[i] * size, (int)size, mask, p->desc.floors[head], open));
    s->open_entropy[at] = open->entropy;
    s->available[i] |= 1u << head;
    return ESPER_OK;
}

/* Adds a step; masked and open are (heads) to be filled. */
static esper_status read_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                              size_t place, size_t entry, esper_masked *masked, esper_masked *open, esper_ppo_report *r)
{
    size_t i = s->n;

    s->entry[i] = entry;
    s->place[i] = place;
    s->asked[i] = b->asked[entry];
    s->available[i] = 0;
    s->forced[i] = is_forced(b, entry);
    s->advantage[i] = p->advantage[entry];
    s->target[i] = (double)b->targets[entry];
    s->value[i] = (double)io->value[place];
    s->q[i] = p->desc.net.q_head >= 0 ? (double)io->q[place] : 0;
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

static esper_ppo_terms terms_of(const esper_ppo *p, const esper_ppo_batch *b, const ppo_steps *s)
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

/* One pass of some lanes' chunks of one time. */
static esper_status evaluate_lanes(esper_ppo *p, const esper_ppo_batch *b, int time, int lane, int n,
                                   esper_ppo_report *r)
{
    esper_policy_io io = esper_policy_net_io(p->net, ESPER_POLICY_LEARN);

    for (int s = 0; s < n; s++) {
        chunk c = chunk_at(p, b, time, lane + s);

        load_chunk(p, b, &io, s, &c);
    }
    ESPER_TRY(esper_policy_net_forward(p->net, ESPER_POLICY_LEARN, n));
    for (int s = 0; s < n; s++) {
        chunk c = chunk_at(p, b, time, lane + s);

        keep_state(p, b, &io, s, &c);
        for (int t = 0; t < c.n; t++) {
            size_t entry = entry_of(b, &c, t);

            if (!is_valid(b, entry))
                continue;
            p->index_of[entry] = p->whole.n;
            ESPER_TRY(read_step(p, b, &io, &p->whole, (size_t)s * (size_t)io.n_steps + (size_t)t, entry, p->masked,
                                p->open, r));
        }
    }
    return ESPER_OK;
}

static void begin_states(esper_ppo *p, const esper_ppo_batch *b)
{
    size_t n = (size_t)b->n_lanes * (size_t)(p->desc.net.layers * p->desc.net.hidden);

    memset(p->start_h, 0, n * sizeof(float));
    memset(p->start_c, 0, n * sizeof(float));
    if (b->h != NULL && b->c != NULL) {
        memcpy(p->start_h, b->h, n * sizeof(float));
        memcpy(p->start_c, b->c, n * sizeof(float));
    }
}

static int n_times(const esper_ppo *p, const esper_ppo_batch *b)
{
    return (b->n_steps + p->desc.chunk_steps - 1) / p->desc.chunk_steps;
}

/* All steps under the weights of now, memory carried from chunk to chunk. */
static esper_status evaluate(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    begin_states(p, b);
    p->whole.n = 0;
    for (int time = 0; time < n_times(p, b); time++)
        for (int lane = 0; lane < b->n_lanes; lane += p->desc.batch_chunks) {
            int left = b->n_lanes - lane;

            ESPER_TRY(evaluate_lanes(p, b, time, lane, left < p->desc.batch_chunks ? left : p->desc.batch_chunks, r));
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
        r->head_entropy[head] = n > 0 ? sum / n : UNKNOWN;
        r->learnable[head] = p->whole.n > 0 ? learnable / (double)p->whole.n : 0;
        all += n > 0 ? sum / n : 0;
        n_known += n > 0;
    }
    r->entropy = n_known > 0 ? all / n_known : UNKNOWN;
}

static esper_status refer(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    size_t n;

    ESPER_TRY(evaluate(p, b, r));
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

/* ------------------------------------------------------------------------------------------------ minibatches */

/* Chunks with steps in them, in an order that epoch and update give. */
static void shuffle(esper_ppo *p, const esper_ppo_batch *b, int epoch)
{
    esper_rng_key key = {.seed = p->desc.seed,
                         .purpose = ESPER_RNG_SHUFFLE,
                         .network = SHUFFLE_NETWORK,
                         .step = (uint32_t)p->n_calls,
                         .sample = (uint32_t)epoch};
    esper_rng rng;

    p->n_order = 0;
    for (int time = 0; time < n_times(p, b); time++)
        for (int lane = 0; lane < b->n_lanes; lane++) {
            chunk c = chunk_at(p, b, time, lane);

            for (int t = 0; t < c.n; t++)
                if (is_valid(b, entry_of(b, &c, t))) {
                    p->order[p->n_order++] = time * b->n_lanes + lane;
                    break;
                }
        }
    esper_rng_init(&rng, &key);
    for (int i = p->n_order - 1; i > 0; i--) {
        int other = (int)esper_rng_below(&rng, (uint32_t)i + 1), swap = p->order[i];

        p->order[i] = p->order[other];
        p->order[other] = swap;
    }
}

/* Steps of the minibatch that begins at chunk `first` of the order, with what the reference pass said of them. */
static esper_status gather(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int first, int n,
                           esper_ppo_report *r)
{
    size_t heads = (size_t)p->desc.net.n_heads;

    p->part.n = 0;
    for (int s = 0; s < n; s++) {
        int number = p->order[first + s];
        chunk c = chunk_at(p, b, number / b->n_lanes, number % b->n_lanes);

        for (int t = 0; t < c.n; t++) {
            size_t entry = entry_of(b, &c, t), i = p->part.n;

            if (!is_valid(b, entry))
                continue;
            memcpy(p->part.old_log_prob + i * heads, p->whole.old_log_prob + p->index_of[entry] * heads,
                   heads * sizeof(double));
            p->part.old_value[i] = p->whole.old_value[p->index_of[entry]];
            ESPER_TRY(read_step(p, b, io, &p->part, (size_t)s * (size_t)io->n_steps + (size_t)t, entry,
                                p->masked + i * heads, p->open + i * heads, r));
        }
    }
    return ESPER_OK;
}

/* From a ramp's begin to its end, by how many updates were performed. */
static double ramp(const esper_ppo *p, double start, double end, double updates)
{
    return updates > 0 ? start + fmin(1, (double)p->n_performed / updates) * (end - start) : end;
}

static esper_ppo_weights weights_now(const esper_ppo *p, esper_ppo_report *r)
{
    const esper_ppo_desc *d = &p->desc;
    esper_ppo_weights w = d->weights;

    w.entropy = r->entropy_weight = ramp(p, d->entropy_start, d->weights.entropy, d->entropy_updates);
    w.value = r->value_weight = ramp(p, d->value_start, d->weights.value, d->value_updates);
    w.q = d->weights.value > 0 ? d->weights.q * w.value / d->weights.value : d->weights.q;
    r->penalty_scale = esper_ppo_penalty_scale(d->total_updates > 0 ? (double)p->n_performed / d->total_updates : 0.5);
    for (int head = 0; head < d->net.n_heads; head++)
        w.head_penalty[head] *= r->penalty_scale;
    return w;
}

/* The gradients of all outputs, zeros where no step counts. */
static void put_gradients(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int n)
{
    const esper_policy_net_desc *d = &p->desc.net;
    size_t rows = (size_t)n * (size_t)io->n_steps, heads = (size_t)d->n_heads;

    for (size_t head = 0; head < heads; head++)
        memset(io->d_logits[head], 0, rows * (size_t)d->heads[head].size * sizeof(float));
    memset(io->d_value, 0, rows * sizeof(float));
    if (io->d_q != NULL)
        memset(io->d_q, 0, rows * sizeof(float));
    for (size_t i = 0; i < p->part.n; i++) {
        size_t place = p->part.place[i];

        io->d_value[place] = (float)p->d_value[i];
        if (io->d_q != NULL)
            io->d_q[place] = (float)p->d_q[i];
        for (size_t head = 0; head < heads; head++) {
            float *to = io->d_logits[head] + place * (size_t)d->heads[head].size;
            size_t at = i * heads + head;

            esper_masked_backward(&p->masked[at], b->actions[p->part.entry[i] * heads + head], p->d_log_prob[at],
                                  p->d_entropy[at], to);
            if ((p->part.available[i] >> head & 1u) != 0 && p->d_open_entropy[at] != 0)
                esper_masked_backward(&p->open[at], 0, 0, p->d_open_entropy[at], to);
        }
    }
}

static double put_contributions(esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int n)
{
    size_t wide = (size_t)p->desc.net.n_contributions, count = p->part.n * wide;
    double weight = p->desc.contribution_weight, loss;

    if (wide == 0)
        return 0;
    memset(io->d_contributions, 0, (size_t)n * (size_t)io->n_steps * wide * sizeof(float));
    if (b->contributions == NULL)
        return 0;
    for (size_t i = 0; i < p->part.n; i++) {
        memcpy(p->seen + i * wide, io->contributions + p->part.place[i] * wide, wide * sizeof(float));
        memcpy(p->measured + i * wide, b->contributions + p->part.entry[i] * wide, wide * sizeof(float));
        for (size_t k = i * wide; k < (i + 1) * wide; k++) {
            size_t from = p->part.entry[i] * wide + k - i * wide;

            p->counted[k] = b->measured != NULL ? b->measured[from] != 0 : !isnan(b->contributions[from]);
        }
    }
    loss = esper_ppo_contribution_loss(p->seen, p->measured, p->counted, count, p->d_contributions);
    weight *= p->desc.contribution_steps > 0 ? fmin(1, (double)p->n_performed / p->desc.contribution_steps) : 1;
    for (size_t i = 0; i < count; i++)
        io->d_contributions[p->part.place[i / wide] * wide + i % wide] = (float)(weight * p->d_contributions[i]);
    return loss;
}

/* The norm of all gradients, and the sums for each group; UNKNOWN or infinity where one of them is not finite. */
static esper_status measure_gradients(esper_ppo *p, double head_norm[ESPER_POLICY_MAX_HEADS + 2], double *norm_out)
{
    const esper_net *net = esper_policy_net_program(p->net);
    const float *first = p->slab->family[ESPER_FAMILY_GRAD];
    double all = 0;

    ESPER_TRY(esper_backend_read(p->slab->backend, p->grads, first,
                                 (size_t)esper_slab_count(p->slab, ESPER_FAMILY_GRAD) * sizeof(*p->grads)));
    memset(head_norm, 0, (ESPER_POLICY_MAX_HEADS + 2) * sizeof(*head_norm));
    for (int t = 0; t < net->n_tensors; t++) {
        const float *grad;
        double sum = 0;

        if (net->tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        grad = p->grads + (esper_slab_at(p->slab, ESPER_FAMILY_GRAD, &net->tensors[t]) - first);
        for (int64_t i = 0; i < net->tensors[t].count; i++)
            sum += (double)grad[i] * (double)grad[i];
        all += sum;
        if (p->group[t] >= 0)
            head_norm[p->group[t]] += sum;
    }
    *norm_out = sqrt(all);
    return ESPER_OK;
}

/* Takes the step unless a gradient is not finite. */
static esper_status step(esper_ppo *p, esper_ppo_report *r)
{
    double head_norm[ESPER_POLICY_MAX_HEADS + 2], norm;

    if (p->drilled)
        ESPER_TRY(esper_backend_fill(p->slab->backend, NULL, p->slab->family[ESPER_FAMILY_GRAD], NAN, 1));
    ESPER_TRY(measure_gradients(p, head_norm, &norm));
    if (!isfinite(norm)) {
        r->failed |= 1u << ESPER_PPO_SOURCE_GRADIENT;
        r->n_skipped++;
        return ESPER_OK;
    }
    ESPER_TRY(esper_optim_step(p->optim));
    ESPER_TRY(esper_backend_sync(esper_policy_net_backend(p->net)));
    r->grad_norm_max = fmax(r->grad_norm_max, norm);
    p->sum_norm += norm;
    for (int g = 0; g < p->desc.net.n_heads + 2; g++)
        p->sum_head_norm[g] += sqrt(head_norm[g]);
    r->n_updates++;
    return ESPER_OK;
}

static void add_losses(esper_ppo_report *r, const esper_ppo_losses *l, double contribution)
{
    r->loss.policy += l->policy;
    r->loss.value += l->value;
    r->loss.entropy += l->entropy;
    r->loss.penalty += l->penalty;
    r->loss.q += l->q;
    r->loss.total += l->total;
    r->contribution_loss += contribution;
}

/* One minibatch: n chunks of the order. */
static esper_status learn(esper_ppo *p, const esper_ppo_batch *b, const esper_ppo_weights *w, int first, int n,
                          esper_ppo_report *r)
{
    esper_policy_io io = esper_policy_net_io(p->net, ESPER_POLICY_LEARN);
    esper_ppo_grads grads = {p->d_log_prob, p->d_entropy, p->d_open_entropy, p->d_value, p->d_q};
    uint32_t failed = r->failed;
    esper_ppo_terms terms;
    esper_ppo_losses loss;
    double contribution;
    int before = r->n_updates;

    for (int s = 0; s < n; s++) {
        int number = p->order[first + s];
        chunk c = chunk_at(p, b, number / b->n_lanes, number % b->n_lanes);

        load_chunk(p, b, &io, s, &c);
    }
    ESPER_TRY(esper_policy_net_forward_training(p->net, n, (uint32_t)p->n_passes++));
    r->failed = 0;
    ESPER_TRY(gather(p, b, &io, first, n, r));
    terms = terms_of(p, b, &p->part);
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
    contribution = put_contributions(p, b, &io, n);
    ESPER_TRY(esper_policy_net_backward(p->net));
    ESPER_TRY(step(p, r));
    if (r->n_updates > before)
        add_losses(r, &loss, contribution);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ epochs */

/* Once an update: what was first found. Steps are told as entries of the batch. */
static void diagnose(const esper_ppo *p, const esper_ppo_terms *terms, esper_ppo_report *r)
{
    if (r->move.n_bad == 0 || r->diagnosis.n_bad > 0)
        return;
    esper_ppo_diagnose(terms, p->desc.net.n_heads - 1, &r->diagnosis);
    for (int i = 0; i < r->diagnosis.n_listed; i++)
        r->diagnosis.step[i] = (uint32_t)p->whole.entry[r->diagnosis.step[i]];
}

/* Whether the next epoch may begin: how far has the policy moved, and is what it says still finite? */
static esper_status look(esper_ppo *p, const esper_ppo_batch *b, const esper_ppo_weights *w, int epoch,
                         esper_ppo_report *r, bool *go_on_out)
{
    uint32_t failed = r->failed;
    esper_ppo_terms terms;

    *go_on_out = true;
    if (epoch == 0)
        return ESPER_OK;
    r->failed = 0;
    ESPER_TRY(evaluate(p, b, r));
    if (r->failed != 0) {
        r->n_skipped++;
        *go_on_out = false;
    } else {
        terms = terms_of(p, b, &p->whole);
        r->move = esper_ppo_moved(w, &terms);
        diagnose(p, &terms, r);
        if (p->desc.target_kl > 0 && r->move.kl > KL_STOP * p->desc.target_kl && epoch < p->desc.epochs) {
            r->stop_epoch = epoch;
            *go_on_out = false;
        }
    }
    r->failed |= failed;
    return ESPER_OK;
}

static esper_status run_epochs(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r)
{
    esper_ppo_weights w = weights_now(p, r);
    bool go_on;

    for (int epoch = 0;; epoch++) {
        ESPER_TRY(look(p, b, &w, epoch, r, &go_on));
        if (!go_on || epoch == p->desc.epochs)
            return ESPER_OK;
        r->n_epochs++;
        shuffle(p, b, epoch);
        for (int first = 0; first < p->n_order; first += p->desc.batch_chunks) {
            int left = p->n_order - first;

            ESPER_TRY(learn(p, b, &w, first, left < p->desc.batch_chunks ? left : p->desc.batch_chunks, r));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the report */

static void divide_losses(esper_ppo_report *r)
{
    double *const sums[] = {&r->loss.policy, &r->loss.value, &r->loss.entropy,      &r->loss.penalty,
                            &r->loss.q,      &r->loss.total, &r->contribution_loss};

    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        *sums[i] = r->n_updates > 0 ? *sums[i] / r->n_updates : UNKNOWN;
}

static void divide_norms(const esper_ppo *p, esper_ppo_report *r)
{
    double n = r->n_updates > 0 ? r->n_updates : UNKNOWN;
    int heads = p->desc.net.n_heads;

    r->grad_norm_mean = p->sum_norm / n;
    for (int head = 0; head < heads; head++)
        r->head_grad_norm[head] = r->learnable[head] > 0 ? p->sum_head_norm[head] / n : UNKNOWN;
    r->value_grad_norm = p->sum_head_norm[heads] / n;
    r->q_grad_norm = p->desc.net.q_head >= 0 ? p->sum_head_norm[heads + 1] / n : UNKNOWN;
}

static void detect(esper_ppo *p, esper_ppo_report *r, double bellman_error, const esper_state_health *state)
{
    esper_vitals v = {
        .ratio_max = r->move.ratio_max,
        .ratio_min = r->move.ratio_min,
        .kl = r->move.kl,
        .entropy = r->entropy,
        .value_loss = r->loss.value,
        .bellman_error = bellman_error,
        .grad_norm = r->grad_norm_max,
        .policy_loss = r->loss.policy,
        .total_loss = r->loss.total,
        .n_usable = r->n_steps - r->n_forced,
        .n_heads = p->desc.net.n_heads,
        .state = state,
    };

    for (int head = 0; head < v.n_heads; head++) {
        v.head_entropy[head] = r->head_entropy[head];
        v.head_threshold[head] = p->desc.collapsed[head];
    }
    r->findings = esper_detector_check(&p->detector, &v);
}

static void close_report(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r, double bellman_error,
                         const esper_state_health *state)
{
    int width = p->desc.net.layers * p->desc.net.hidden;

    r->performed = r->n_updates > 0;
    divide_losses(r);
    divide_norms(p, r);
    p->n_calls++;
    p->n_skipped += (uint64_t)r->n_skipped;
    if (r->performed) {
        r->state = esper_state_health_of(p->start_h + state_at(p, n_times(p, b), 0),
                                         p->start_c + state_at(p, n_times(p, b), 0), b->n_lanes, width);
        detect(p, r, bellman_error, state);
        p->n_performed++;
    }
    p->n_failures = !r->performed && r->n_skipped > 0 ? p->n_failures + 1 : 0;
    r->health = p->n_failures == 0                       ? ESPER_PPO_FINE
                : p->n_failures < ESPER_PPO_MAX_FAILURES ? ESPER_PPO_DEGRADED
                                                         : ESPER_PPO_HALTED;
}

/* Undefined until measured. */
static void begin_report(const esper_ppo *p, esper_ppo_report *r)
{
    *r = (esper_ppo_report){.stop_epoch = -1, .explained_variance = UNKNOWN, .entropy = UNKNOWN};
    for (int head = 0; head < p->desc.net.n_heads; head++)
        r->head_entropy[head] = UNKNOWN;
}

void esper_ppo_drill(esper_ppo *ppo)
{
    ppo->drilled = true;
}

esper_status esper_ppo_update(esper_ppo *ppo, const esper_ppo_batch *batch, double bellman_error,
                              const esper_state_health *state, esper_ppo_report *report_out)
{
    esper_ppo_report r;

    ESPER_TRY(check_batch(ppo, batch));
    begin_report(ppo, &r);
    memset(ppo->sum_head_norm, 0, sizeof(ppo->sum_head_norm));
    ppo->sum_norm = 0;
    r.failed = scan_batch(ppo, batch);
    if (r.failed == 0) {
        normalise_advantages(ppo, batch, &r);
        r.explained_variance = explained_variance(batch);
        ESPER_TRY(refer(ppo, batch, &r));
    }
    if (r.failed == 0)
        ESPER_TRY(run_epochs(ppo, batch, &r));
    else
        r.n_skipped = 1;
    ppo->drilled = false;
    close_report(ppo, batch, &r, bellman_error, state);
    *report_out = r;
    return ESPER_OK;
}
