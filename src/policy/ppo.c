/* An update of a policy: the outline is esper_ppo_update at the end. */
#include "policy/ppo.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/ppo_internal.h"

static const double KL_STOP = 1.5;

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
    if (d->n_envs < 1 || d->max_steps < 1 || d->chunk_steps < 1 || d->batch_chunks < 1 || d->epochs < 1)
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: %d environments of %d steps, %d chunks of %d steps, %d epochs",
                          d->n_envs, d->max_steps, d->batch_chunks, d->chunk_steps, d->epochs);
    if (d->chunk_steps > d->max_steps)
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: chunks of %d steps, but rollouts have %d", d->chunk_steps,
                          d->max_steps);
    if (!(d->lr > 0) || !(d->max_grad_norm >= 0) || !(d->weights.clip > 0 && d->weights.clip <= 1))
        return ESPER_FAIL(ESPER_E_ARG, "policy learner: rate %g, gradient norm %g, clip %g", d->lr, d->max_grad_norm,
                          d->weights.clip);
    return ESPER_OK;
}

/* Memory that lives as long as the learner; NULL when there is none, which take_memory finds. */
static void *take(esper_ppo *p, size_t n, size_t bytes)
{
    void *block = esper_mem_alloc((n > 0 ? n : 1) * bytes);

    assert(p->n_blocks < ESPER_PPO_BLOCKS);
    p->blocks[p->n_blocks++] = block;
    return block;
}

/* The numbers of a step lie in one block each kind: heads' and the step's own. */
static void take_steps(esper_ppo *p, ppo_steps *s, size_t n)
{
    size_t heads = (size_t)p->desc.net.n_heads;
    double *of_heads = take(p, 4 * n * heads, sizeof(double)), *own = take(p, 4 * n, sizeof(double));
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
    s->target = own + 2 * n;
    s->q = own + 3 * n;
    s->asked = bits;
    s->available = bits + n;
    s->entry = where;
    s->row = where + n;
}

static esper_status take_memory(esper_ppo *p)
{
    const esper_ppo_desc *d = &p->desc;
    size_t envs = (size_t)d->n_envs, n = envs * (size_t)d->max_steps, heads = (size_t)d->net.n_heads;
    size_t part = (size_t)d->batch_chunks * (size_t)d->chunk_steps;
    size_t state = envs * (size_t)(d->net.layers * d->net.hidden), slots = part * (size_t)d->net.n_contributions;

    p->n_times = (d->max_steps + d->chunk_steps - 1) / d->chunk_steps;
    p->start_h = take(p, (size_t)(p->n_times + 1) * state, sizeof(float));
    p->start_c = take(p, (size_t)(p->n_times + 1) * state, sizeof(float));
    p->order = take(p, (size_t)p->n_times * envs, sizeof(int));
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
    p->grads = take(p, (size_t)esper_slab_count(esper_policy_net_slab(p->net), ESPER_FAMILY_GRAD), sizeof(float));
    for (int i = 0; i < p->n_blocks; i++)
        if (p->blocks[i] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "policy learner for rollouts of %zu steps", n);
    return ESPER_OK;
}

static esper_status open_parts(esper_ppo *p, esper_backend *backend)
{
    const esper_policy_net_sizes sizes = {p->desc.n_envs, p->desc.chunk_steps, p->desc.batch_chunks};
    esper_optim_desc optim = {.backend = backend, .slabs = &p->slab, .n_slabs = 1, .kind = ESPER_OP_ADAMW};

    ESPER_TRY(esper_policy_net_open(backend, &p->desc.net, &sizes, p->desc.seed, &p->net));
    ESPER_TRY(take_memory(p));
    p->slab = esper_policy_net_slab(p->net);
    optim.settings = (esper_group){
        .lr = (float)p->desc.lr, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-5f, .clip = (float)p->desc.max_grad_norm};
    return esper_optim_open(&optim, &p->optim);
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
    status = open_parts(p, backend);
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

/* ------------------------------------------------------------------------------------------------ epochs */

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
    ESPER_TRY(ppo_evaluate(p, b, r));
    if (r->failed != 0) {
        r->n_skipped++;
        *go_on_out = false;
    } else {
        terms = ppo_terms_of(p, &p->whole);
        r->move = esper_ppo_moved(w, &terms);
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
    esper_ppo_weights w = ppo_weights_now(p);
    bool go_on;

    for (int epoch = 0;; epoch++) {
        ESPER_TRY(look(p, b, &w, epoch, r, &go_on));
        if (!go_on || epoch == p->desc.epochs)
            return ESPER_OK;
        r->n_epochs++;
        ppo_shuffle(p, b, epoch);
        for (int first = 0; first < p->n_order; first += p->desc.batch_chunks) {
            int left = p->n_order - first;

            ESPER_TRY(ppo_learn(p, b, &w, first, left < p->desc.batch_chunks ? left : p->desc.batch_chunks, r));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the report */

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
    double *const sums[] = {&r->loss.policy,  &r->loss.value, &r->loss.entropy,
                            &r->loss.penalty, &r->loss.q,     &r->loss.total};
    double n = r->n_updates > 0 ? r->n_updates : PPO_UNKNOWN;
    int width = p->desc.net.layers * p->desc.net.hidden;

    r->performed = r->n_updates > 0;
    r->grad_norm_mean = p->sum_norm / n;
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        *sums[i] /= n;
    p->n_calls++;
    p->n_skipped += (uint64_t)r->n_skipped;
    if (r->performed) {
        r->state = esper_state_health_of(p->start_h + ppo_state_at(p, ppo_n_times(p, b), 0),
                                         p->start_c + ppo_state_at(p, ppo_n_times(p, b), 0), b->n_envs, width);
        detect(p, r, bellman_error, state);
        p->n_performed++;
    }
    p->n_failures = !r->performed && r->n_skipped > 0 ? p->n_failures + 1 : 0;
    r->health = p->n_failures == 0                       ? ESPER_PPO_FINE
                : p->n_failures < ESPER_PPO_MAX_FAILURES ? ESPER_PPO_DEGRADED
                                                         : ESPER_PPO_HALTED;
}

void esper_ppo_drill(esper_ppo *ppo)
{
    ppo->drilled = true;
}

esper_status esper_ppo_update(esper_ppo *ppo, const esper_ppo_batch *batch, double bellman_error,
                              const esper_state_health *state, esper_ppo_report *report_out)
{
    esper_ppo_report r = {.stop_epoch = -1, .explained_variance = PPO_UNKNOWN, .entropy = PPO_UNKNOWN};

    ESPER_TRY(ppo_check_batch(ppo, batch));
    for (int head = 0; head < ppo->desc.net.n_heads; head++)
        r.head_entropy[head] = PPO_UNKNOWN;
    ppo->sum_norm = 0;
    r.failed = ppo_scan_batch(ppo, batch);
    if (r.failed == 0) {
        ppo_normalise_advantages(ppo, batch);
        r.explained_variance = ppo_explained_variance(batch);
        ESPER_TRY(ppo_refer(ppo, batch, &r));
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
