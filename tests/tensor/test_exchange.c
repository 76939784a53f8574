/* ctest: cost=30 labels=tsan
 * A batch spread over ranks: each holds a slice of it, and together they compute what one rank does with all of it.
 *
 * Ranks are threads here, each with a backend and a plan of its own. They meet in a callback that adds up what they bring in
 * the order of ranks. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/init.h"
#include "support/effort.h"
#include "support/memory.h"
#include "support/small_net.h"
#include "tensor/kernel.h"

enum { MAX_RANKS = 4, MAX_NETS = 2, MAX_BATCH = 40, MAX_STEPS = 100, SEED = 11 };

/* ------------------------------------------------------------------------------------------------ meeting */

/* Where ranks add up their values. One that fails breaks the meeting for all: nobody waits for it. */
typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int             n_ranks, n_here;
    unsigned        round;
    size_t          count;
    double         *brought[MAX_RANKS], *sum; /* (room) */
    size_t          room;
    bool            broken;
} meeting;

static void meeting_init(meeting *m, int n_ranks, size_t room)
{
    *m = (meeting){.n_ranks = n_ranks, .room = room};
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->sum = esper_mem_alloc(room * sizeof(double));
    assert_non_null(m->sum);
    for (int r = 0; r < n_ranks; r++) {
        m->brought[r] = esper_mem_alloc(room * sizeof(double));
        assert_non_null(m->brought[r]);
    }
}

static void meeting_fini(meeting *m)
{
    for (int r = 0; r < m->n_ranks; r++)
        esper_mem_free(m->brought[r]);
    esper_mem_free(m->sum);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
}

static void add_up(meeting *m)
{
    for (size_t i = 0; i < m->count; i++) {
        m->sum[i] = 0.0;
        for (int r = 0; r < m->n_ranks; r++)
            m->sum[i] += m->brought[r][i];
    }
}

/* Under the lock. Breaks where ranks bring different numbers of values: they are at different places of their programs. */
static void bring(meeting *m, int rank, const double *values, size_t count)
{
    if (count > m->room || (m->n_here > 0 && count != m->count)) {
        m->broken = true;
        return;
    }
    memcpy(m->brought[rank], values, count * sizeof(double));
    m->count = count;
    if (++m->n_here == m->n_ranks) {
        add_up(m);
        m->n_here = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
}

static bool meet(meeting *m, int rank, bool fails, double *values, size_t count)
{
    unsigned round;
    bool met;

    pthread_mutex_lock(&m->lock);
    round = m->round;
    m->broken |= fails;
    if (!m->broken)
        bring(m, rank, values, count);
    while (m->round == round && !m->broken)
        pthread_cond_wait(&m->changed, &m->lock);
    met = m->round != round;
    if (met)
        memcpy(values, m->sum, count * sizeof(double));
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return met;
}

/* ------------------------------------------------------------------------------------------------ ranks */

typedef int (*net_builder)(esper_net *net, int x);

/* What is run: a host with seeds, or what `build` makes of x (C,H,W), whose gradient is given. */
typedef struct subject {
    const char       *name;
    esper_host        host;
    const small_seed *seeds;
    net_builder       build;
    int               dim[3];
    float             centre;     /* of the input: its values are centre + noise */
    int               nan_sample; /* counted from 1: its first value is NaN */
    int               n_nets; /* 0 = one */
    bool              evaluates;
} subject;

/* How. */
typedef struct setting {
    const char *backend, *kernels; /* kernels NULL = the backend has no choice */
    int         n_threads;
    int         slices[MAX_RANKS + 1]; /* samples of each rank, ended by 0 */
} setting;

struct team;

typedef struct rank_member {
    esper_net  net;
    esper_slab slab;
    esper_pass pass;
    uint32_t   sample_id[MAX_BATCH];
} rank_member;

typedef struct rank {
    struct team   *team;
    int            index, first, n_samples; /* its slice of the batch */
    esper_pool    *pool;
    esper_backend *backend;
    rank_member    members[MAX_NETS];
    esper_plan    *plan;
    esper_optim   *optim;
    esper_exchange exchange;
    pthread_t      thread;
    int            n_calls, fail_at; /* of the exchange; fails at this one, counted from 1 */
    bool           strange_thread;   /* called by another thread than that of the pass */
    esper_status   status;
    double         loss[MAX_STEPS];  /* of each step: this rank's part of the batch's mean */
} rank;

typedef struct team {
    const subject *subject;
    int            n_ranks, n_batch, n_steps;
    bool           exchanges;
    bool           apart; /* forward and backward are two calls */
    meeting        meeting;
    rank           ranks[MAX_RANKS];
} team;

static int n_nets_of(const subject *s)
{
    return s->n_nets > 0 ? s->n_nets : 1;
}

static esper_status sum_over_ranks(void *context, double *values, size_t count)
{
    rank *r = context;
    bool fails = ++r->n_calls == r->fail_at;

    r->strange_thread |= !pthread_equal(pthread_self(), r->thread);
    if (!meet(&r->team->meeting, r->index, fails, values, count))
        return ESPER_FAIL(ESPER_E_PEER, "rank %d: the meeting is broken", r->index);
    return ESPER_OK;
}

static void build_net(const subject *s, esper_net *net)
{
    int x;

    if (s->build == NULL) {
        assert_int_equal(small_build(net, &s->host, s->seeds), ESPER_OK);
        return;
    }
    esper_net_init(net);
    x = net->input = esper_net_input(net, "x", ESPER_F32, 3, s->dim);
    net->tensors[x].want_grad = true;
    net->output = s->build(net, x);
    if (esper_net_status(net) != ESPER_OK)
        fail_msg("%s: %s", s->name, esper_last_error());
}

static void open_member(rank *r, int k)
{
    const team *t = r->team;
    rank_member *member = &r->members[k];
    esper_slab_desc slab = {.n_moments = 1};

    build_net(t->subject, &member->net);
    assert_int_equal(esper_slab_init(&member->slab, r->backend, &member->net, &slab), ESPER_OK);
    esper_init_net(&member->net, &member->slab, SEED, (uint32_t)k, -1);
    member->pass = (esper_pass){.n_samples = r->n_samples,
                                .training = !t->subject->evaluates,
                                .seed = SEED,
                                .network = (uint32_t)k,
                                .sample_id = member->sample_id};
}

static void open_rank(rank *r, const setting *how)
{
    const team *t = r->team;
    esper_plan_net nets[MAX_NETS];
    const esper_slab *slabs[MAX_NETS];
    int n_nets = n_nets_of(t->subject);
    esper_plan_desc desc = {
        .backend = NULL, .nets = nets, .n_nets = n_nets, .max_samples = t->n_batch, .training = true};
    esper_optim_desc optim = {
        .slabs = slabs, .n_slabs = n_nets, .kind = ESPER_OP_SGD, .settings = {.lr = 0.05f, .momentum = 0.9f}};

    assert_int_equal(esper_pool_open(how->n_threads, &r->pool), ESPER_OK);
    assert_int_equal(esper_backend_open(how->backend, r->pool, &r->backend), ESPER_OK);
    r->exchange = (esper_exchange){sum_over_ranks, r};
    for (int k = 0; k < n_nets; k++) {
        open_member(r, k);
        slabs[k] = &r->members[k].slab;
        nets[k] = (esper_plan_net){.net = &r->members[k].net,
                                   .slab = &r->members[k].slab,
                                   .pass = &r->members[k].pass,
                                   .exchange = t->exchanges ? &r->exchange : NULL};
    }
    desc.backend = optim.backend = r->backend;
    if (esper_plan_open(&desc, &r->plan) != ESPER_OK)
        fail_msg("%s: %s", t->subject->name, esper_last_error());
    assert_int_equal(esper_optim_open(&optim, &r->optim), ESPER_OK);
}

static void open_team(team *t, const subject *s, const setting *how, bool exchanges)
{
    int first = 0;

    *t = (team){.subject = s, .exchanges = exchanges};
    if (how->kernels != NULL)
        setenv("ESPER_KERNELS", how->kernels, 1);
    for (; how->slices[t->n_ranks] > 0; t->n_ranks++)
        t->n_batch += how->slices[t->n_ranks];
    assert_true(t->n_batch <= MAX_BATCH);
    meeting_init(&t->meeting, t->n_ranks, 1 << 18);
    for (int i = 0; i < t->n_ranks; i++) {
        t->ranks[i] = (rank){.team = t, .index = i, .first = first, .n_samples = how->slices[i]};
        first += how->slices[i];
        open_rank(&t->ranks[i], how);
    }
    unsetenv("ESPER_KERNELS");
}

static void close_team(team *t)
{
    for (int i = 0; i < t->n_ranks; i++) {
        rank *r = &t->ranks[i];

        esper_optim_close(r->optim);
        esper_plan_close(r->plan);
        for (int k = 0; k < n_nets_of(t->subject); k++) {
            esper_slab_fini(&r->members[k].slab);
            esper_net_fini(&r->members[k].net);
        }
        esper_backend_close(r->backend);
        esper_pool_close(r->pool);
    }
    meeting_fini(&t->meeting);
}

/* ------------------------------------------------------------------------------------------------ a step */

/* Fills a slice with what the batch has there: a sample's numbers depend on its place in the batch alone. */
static void fill_slice(const rank *r, void *data, const esper_tensor *tensor, esper_rng_key key, float centre,
                       int n_ids)
{
    bool is_alpha = strstr(tensor->name, ".alpha") != NULL;

    for (int n = 0; n < r->n_samples; n++) {
        esper_rng rng;

        key.sample = (uint32_t)(r->first + n);
        esper_rng_init(&rng, &key);
        for (int64_t i = n * tensor->count; i < (n + 1) * tensor->count; i++)
            if (tensor->dtype == ESPER_I32)
                ((int32_t *)data)[i] = (int32_t)esper_rng_below(&rng, (uint32_t)n_ids);
            else
                ((float *)data)[i] = is_alpha ? 0.3f : centre + esper_rng_normal(&rng);
        if (r->first + n + 1 == r->team->subject->nan_sample)
            ((float *)data)[n * tensor->count] = NAN;
    }
}

static void fill_member(rank *r, int k, uint32_t step)
{
    rank_member *member = &r->members[k];
    const esper_net *net = &member->net;
    const esper_tensor *output = &net->tensors[net->output];
    esper_rng_key key = {.seed = SEED, .purpose = ESPER_RNG_TEST, .network = (uint32_t)k, .step = step};
    int64_t targets = net->target != ESPER_NO_TENSOR ? net->tensors[net->target].count : 1;

    for (int t = 0; t < net->n_tensors; t++) {
        key.tag = (uint32_t)t;
        if (net->tensors[t].role == ESPER_ROLE_INPUT)
            fill_slice(r, esper_plan_data(r->plan, k, t), &net->tensors[t], key, r->team->subject->centre,
                       output->dim[output->rank - 1]);
    }
    for (int n = 0; n < r->n_samples; n++)
        member->sample_id[n] = 1000 * step + (uint32_t)(r->first + n);
    member->pass.step = step;
    member->pass.loss_scale = 1.0f / (float)(r->team->n_batch * targets);
}

/* The gradient of an output without a loss, as if it came from one. */
static void fill_output_gradient(rank *r, int k, uint32_t step)
{
    const esper_net *net = &r->members[k].net;
    esper_rng_key key = {.seed = SEED, .purpose = ESPER_RNG_TEST, .network = (uint32_t)k, .step = step, .tag = 999};

    if (net->loss == ESPER_NO_TENSOR)
        fill_slice(r, esper_plan_grad(r->plan, k, net->output), &net->tensors[net->output], key, 0.0f, 1);
}

static double loss_of(const rank *r, int k)
{
    const esper_net *net = &r->members[k].net;
    const float *loss = esper_plan_data(r->plan, k, net->loss);
    double sum = 0.0;

    for (int n = 0; n < r->n_samples && loss != NULL; n++)
        sum += (double)loss[n];
    return sum * (double)r->members[k].pass.loss_scale;
}

static esper_status run_pass(rank *r, uint32_t step)
{
    int n_nets = n_nets_of(r->team->subject);

    for (int k = 0; k < n_nets; k++) {
        fill_member(r, k, step);
        fill_output_gradient(r, k, step);
    }
    if (!r->team->apart)
        return esper_plan_gradients(r->plan);
    ESPER_TRY(esper_plan_forward(r->plan));
    return esper_plan_backward(r->plan);
}

/* What data-parallel training does with gradients: here all ranks' are summed, in double. */
static esper_status share_gradients(rank *r)
{
    for (int k = 0; k < n_nets_of(r->team->subject); k++) {
        float *grad = r->members[k].slab.family[ESPER_FAMILY_GRAD];
        size_t n = (size_t)esper_slab_count(&r->members[k].slab, ESPER_FAMILY_GRAD);
        double *wide = esper_mem_alloc(n * sizeof(*wide));
        bool met;

        for (size_t i = 0; i < n; i++)
            wide[i] = (double)grad[i];
        met = meet(&r->team->meeting, r->index, false, wide, n);
        for (size_t i = 0; i < n; i++)
            grad[i] = (float)wide[i];
        esper_mem_free(wide);
        if (!met)
            return ESPER_FAIL(ESPER_E_PEER, "rank %d: gradients", r->index);
    }
    return ESPER_OK;
}

static esper_status train_step(rank *r, int step)
{
    ESPER_TRY(run_pass(r, (uint32_t)step));
    for (int k = 0; k < n_nets_of(r->team->subject); k++)
        r->loss[step] += loss_of(r, k);
    ESPER_TRY(share_gradients(r));
    return esper_optim_step(r->optim);
}

static void *run_rank(void *argument)
{
    rank *r = argument;

    r->thread = pthread_self();
    for (int step = 0; step < r->team->n_steps && r->status == ESPER_OK; step++)
        r->status = train_step(r, step);
    return NULL;
}

/* All ranks, each in its thread, until they are through or have failed. */
static void run_team(team *t, int n_steps)
{
    pthread_t threads[MAX_RANKS];

    t->n_steps = n_steps;
    for (int i = 0; i < t->n_ranks; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &t->ranks[i]), 0);
    for (int i = 0; i < t->n_ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < t->n_ranks; i++)
        if (t->ranks[i].strange_thread)
            fail_msg("%s: rank %d's exchange was called by a thread of the pool", t->subject->name, i);
}

static void check_through(const team *t)
{
    for (int i = 0; i < t->n_ranks; i++)
        if (t->ranks[i].status != ESPER_OK)
            fail_msg("%s: rank %d of %d ended with %d", t->subject->name, i, t->n_ranks, t->ranks[i].status);
}

/* ------------------------------------------------------------------------------------------------ comparing */

/* Differences are taken relative to the largest of what is compared, and at least to a thousandth of the largest in the
 * network: a sum in float of many parts that all but cancel cannot do better. */
typedef struct tolerance {
    double state, output, gradient, loss;
} tolerance;

/* One step. Statistics are summed in double, so running ones differ by a rounding to float; outputs by that of the mean and
 * deviation; gradients of weights are summed in float, and in another order. */
static const tolerance one_step = {.state = 3e-7, .output = 1e-6, .gradient = 3e-6, .loss = 3e-7};
/* After some steps each has amplified those of the steps before it. */
static const tolerance some_steps = {.state = 3e-6, .output = 1e-5, .gradient = 1e-5, .loss = 3e-6};

typedef struct comparison {
    const team    *one, *many;
    const setting *how;
    const char    *what;
    double         worst; /* difference, of the largest value */
} comparison;

static double largest_of(const float *values, int64_t n)
{
    double largest = 0.0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

static void compare(comparison *c, const char *name, const float *expected, const float *got, int64_t n, double largest,
                    double tolerance_of)
{
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)expected[i] - (double)got[i]);

        if (!(off <= tolerance_of * largest))
            fail_msg("%s on %s/%s, %d + %d + %d + %d: %s %s [%lld] is %.9g on one rank, %.9g on %d (largest %.3g)",
                     c->one->subject->name, c->how->backend, c->how->kernels != NULL ? c->how->kernels : "-",
                     c->how->slices[0], c->how->slices[1], c->how->slices[2], c->how->slices[3], c->what, name,
                     (long long)i, (double)expected[i], (double)got[i], c->many->n_ranks, largest);
        if (largest > 0.0)
            c->worst = fmax(c->worst, off / largest);
    }
}

/* Parameters, running statistics and gradients (after they were shared). Ranks have them alike, to the bit. */
static void compare_family(comparison *c, int k, esper_family family, const char *what, double tolerance_of)
{
    const rank_member *expected = &c->one->ranks[0].members[k];
    int64_t count = esper_slab_count(&expected->slab, family);
    double least = 1e-3 * largest_of(expected->slab.family[family], count);
    const rank_member *got = &c->many->ranks[0].members[k];

    c->what = what;
    for (int i = 1; i < c->many->n_ranks; i++)
        if (memcmp(c->many->ranks[i].members[k].slab.family[family], got->slab.family[family],
                   (size_t)count * sizeof(float)) != 0)
            fail_msg("%s: ranks 0 and %d differ in their %ss", c->one->subject->name, i, what);
    for (int t = 0; t < expected->net.n_tensors; t++) {
        const esper_tensor *tensor = &expected->net.tensors[t];
        const float *values;

        if (tensor->role != (family == ESPER_FAMILY_BUFFER ? ESPER_ROLE_BUFFER : ESPER_ROLE_PARAM))
            continue;
        values = esper_slab_at(&expected->slab, family, tensor);
        compare(c, tensor->name, values, esper_slab_at(&got->slab, family, tensor), tensor->count,
                fmax(least, largest_of(values, tensor->count)), tolerance_of);
    }
}

/* The output, slice by slice, and the gradient of the input where it is wanted. */
static void compare_samples(comparison *c, int k, int t, bool gradient, double tolerance_of)
{
    const rank *one = &c->one->ranks[0];
    const esper_tensor *tensor = &one->members[k].net.tensors[t];
    const float *expected = gradient ? esper_plan_grad(one->plan, k, t) : esper_plan_data(one->plan, k, t);
    double largest;

    if (expected == NULL)
        return;
    c->what = gradient ? "gradient" : "output";
    largest = largest_of(expected, tensor->count * c->one->n_batch);
    for (int i = 0; i < c->many->n_ranks; i++) {
        const rank *r = &c->many->ranks[i];
        const float *got = gradient ? esper_plan_grad(r->plan, k, t) : esper_plan_data(r->plan, k, t);

        compare(c, tensor->name, expected + r->first * tensor->count, got, r->n_samples * tensor->count, largest,
                tolerance_of);
    }
}

static void compare_losses(comparison *c, int n_steps, double tolerance_of)
{
    for (int step = 0; step < n_steps; step++) {
        float expected = (float)c->one->ranks[0].loss[step], got;
        double sum = 0.0;

        for (int i = 0; i < c->many->n_ranks; i++)
            sum += c->many->ranks[i].loss[step];
        got = (float)sum;
        c->what = "loss";
        compare(c, "of a step", &expected, &got, 1, fabs((double)expected), tolerance_of);
    }
}

static void compare_teams(comparison *c, int n_steps, const tolerance *allowed)
{
    for (int k = 0; k < n_nets_of(c->one->subject); k++) {
        const esper_net *net = &c->one->ranks[0].members[k].net;

        compare_family(c, k, ESPER_FAMILY_BUFFER, "running statistic", allowed->state);
        compare_samples(c, k, net->output, false, allowed->output);
        compare_family(c, k, ESPER_FAMILY_GRAD, "gradient", allowed->gradient);
        compare_samples(c, k, net->input, true, allowed->gradient);
        compare_family(c, k, ESPER_FAMILY_PARAM, "parameter", allowed->gradient);
    }
    compare_losses(c, n_steps, allowed->loss);
}

static int count_norms(const subject *s)
{
    esper_net net;
    int n = 0;

    build_net(s, &net);
    for (int o = 0; o < net.n_ops; o++)
        n += net.ops[o].kind == ESPER_OP_BATCH_NORM;
    esper_net_fini(&net);
    return n * n_nets_of(s);
}

/* The slices of `how` on as many ranks, and all of them on one that exchanges nothing. */
static void check_equal(const subject *s, const setting *how, int n_steps, const tolerance *allowed)
{
    setting alone = *how;
    static team one, many; /* large */
    comparison c = {.one = &one, .many = &many, .how = how};

    open_team(&many, s, how, true);
    alone.slices[0] = many.n_batch;
    alone.slices[1] = 0;
    open_team(&one, s, &alone, false);
    one.apart = many.n_ranks % 2 != 0;
    many.apart = !one.apart;
    run_team(&one, n_steps);
    run_team(&many, n_steps);
    check_through(&one);
    check_through(&many);
    compare_teams(&c, n_steps, allowed);
    assert_int_equal(one.ranks[0].n_calls, 0);
    for (int i = 0; i < many.n_ranks; i++) /* each norm meets once in each direction */
        assert_int_equal(many.ranks[i].n_calls, 2 * n_steps * count_norms(s));
    if (getenv("ESPER_TEST_VERBOSE") != NULL)
        print_message("%-24s %-4s %-8s %d ranks, %d steps: worst %.2g\n", s->name, how->backend,
                      how->kernels != NULL ? how->kernels : "-", many.n_ranks, n_steps, c.worst);
    close_team(&one);
    close_team(&many);
}

/* ------------------------------------------------------------------------------------------------ subjects */

static int new_norm(esper_net *net, int x, const char *name, float momentum)
{
    char full[ESPER_NAME_CHARS];
    int C = net->tensors[x].dim[0], param[2], buffer[2];

    for (int i = 0; i < 2; i++) {
        snprintf(full, sizeof(full), "%s.%s", name, i == 0 ? "scale" : "shift");
        param[i] = esper_net_param(net, full, 1, &C, (esper_init){ESPER_INIT_NORMAL, 0.7f});
        snprintf(full, sizeof(full), "%s.%s", name, i == 0 ? "mean" : "var");
        buffer[i] = esper_net_buffer(net, full, 1, &C, (float)i);
    }
    return esper_net_batch_norm(net, x, param[0], param[1], buffer[0], buffer[1], 1e-5f, momentum);
}

static int new_conv(esper_net *net, int x, const char *name, int out, int kernel)
{
    int dim[4] = {out, net->tensors[x].dim[0], kernel, kernel};

    return esper_net_conv2d(net, x, esper_net_param(net, name, 4, dim, (esper_init){ESPER_INIT_NORMAL, 0.3f}),
                            kernel / 2, 1);
}

/* No convolution before it, and the gradient of x is added to. */
static int bare_norm(esper_net *net, int x)
{
    return esper_net_add(net, x, new_norm(net, x, "norm", 0.1f));
}

/* Statistics are the running ones at once. */
static int quick_norm(esper_net *net, int x)
{
    return new_norm(net, x, "norm", 1.0f);
}

static int conv_norm(esper_net *net, int x)
{
    return new_norm(net, new_conv(net, x, "w", 6, 3), "norm", 0.1f);
}

static int conv_norm_relu(esper_net *net, int x)
{
    return esper_net_relu(net, conv_norm(net, x));
}

static int conv_norm_pool(esper_net *net, int x)
{
    return esper_net_max_pool(net, conv_norm(net, x));
}

static int conv_norm_relu_pool(esper_net *net, int x)
{
    return esper_net_max_pool(net, conv_norm_relu(net, x));
}

/* Dropout has no kernels in lanes: the whole network is canonical. */
static int with_dropout(esper_net *net, int x)
{
    int y = esper_net_dropout(net, conv_norm_relu(net, x), 0.3f);

    return new_norm(net, new_conv(net, y, "w2", 4, 1), "norm2", 0.1f);
}

/* Odd sizes, so that pools leave a rest. */
static const subject pieces[] = {
    {.name = "norm and add", .build = bare_norm, .dim = {5, 7, 6}},
    {.name = "norm of single pixels", .build = bare_norm, .dim = {9, 1, 1}},
    {.name = "conv, norm", .build = conv_norm, .dim = {3, 7, 6}},
    {.name = "conv, norm, relu", .build = conv_norm_relu, .dim = {3, 7, 6}},
    {.name = "conv, norm, pool", .build = conv_norm_pool, .dim = {3, 7, 6}},
    {.name = "conv, norm, relu, pool", .build = conv_norm_relu_pool, .dim = {3, 7, 6}, .n_nets = 2},
    {.name = "dropout between norms", .build = with_dropout, .dim = {3, 7, 6}},
};

enum { N_PIECES = sizeof(pieces) / sizeof(pieces[0]) };

static const int slicings[][MAX_RANKS + 1] = {
    {17, 3, 0}, {16, 16, 0}, {16, 16, 1, 0}, {1, 2, 3, 1, 0}, {8, 8, 8, 8, 0}, {20, 0},
};

enum { N_SLICINGS = sizeof(slicings) / sizeof(slicings[0]) };

typedef void (*setting_user)(const setting *how, const void *context);

static bool can_run(const char *kernels)
{
    const esper_kernel_set *set;

    setenv("ESPER_KERNELS", kernels, 1);
    set = esper_kernels_choose();
    unsetenv("ESPER_KERNELS");
    return set != NULL;
}

static const char *const sets[] = {"portable", "avx2", "avx512"};

/* The backends and kernel sets of this processor. */
static void on_each(setting_user use, const void *context)
{
    setting how = {.backend = "ref", .n_threads = 1};

    use(&how, context);
    for (int i = 0; i < 3; i++) {
        if (!can_run(sets[i]))
            continue;
        how = (setting){.backend = "cpu", .kernels = sets[i], .n_threads = 1 + i % 2};
        use(&how, context);
    }
}

static void check_slicings(const setting *how, const void *context)
{
    setting with = *how;

    for (int i = 0; i < N_SLICINGS; i += effort(1, 2)) {
        memcpy(with.slices, slicings[i], sizeof(with.slices));
        check_equal(context, &with, 1, &one_step);
    }
}

static void test_pieces(void **state)
{
    (void)state;
    for (int i = 0; i < N_PIECES; i++)
        on_each(check_slicings, &pieces[i]);
}

/* ------------------------------------------------------------------------------------------------ hosts */

static void check_training(const setting *how, const void *context)
{
    static const int some[][MAX_RANKS + 1] = {{17, 3, 0}, {16, 16, 1, 0}, {8, 8, 8, 8, 0}};
    setting with = *how;

    for (int i = 0; i < 3; i++) {
        memcpy(with.slices, some[i], sizeof(with.slices));
        if (!is_brief())
            check_equal(context, &with, 1, &one_step);
        check_equal(context, &with, effort(6, 2), &some_steps);
    }
}

static void test_host_trains_alike(void **state)
{
    subject pooled = {.name = "cnn", .host = small_cnn()}, flat = {.name = "cnn without pools", .host = small_cnn()};

    (void)state;
    flat.host.cnn.pools = 0;
    on_each(check_training, &pooled);
    on_each(check_training, &flat);
}

/* The losses of a hundred steps; by then weights have parted a little more than after six. */
static void test_hundred_losses(void **state)
{
    static const tolerance of_losses = {.state = 1e-3, .output = 1e-2, .gradient = 1e-2, .loss = 1e-4};
    static const int worlds[][MAX_RANKS + 1] = {{32, 0}, {16, 16, 0}, {8, 8, 8, 8, 0}};
    subject s = {.name = "cnn, a hundred steps", .host = small_cnn()};

    (void)state;
    for (int i = 0; i < 3; i++) {
        setting how = {.backend = "cpu", .n_threads = 1};

        memcpy(how.slices, worlds[i], sizeof(how.slices));
        check_equal(&s, &how, effort(MAX_STEPS, 5), &of_losses);
    }
}

/* So many weights that their gradient is not kept for each block (tensor/cpu/blocks/convolution.h). */
static int many_weights(esper_net *net, int x)
{
    return new_norm(net, new_conv(net, x, "w", 96, 3), "norm", 0.1f);
}

/* The kernels of the cpu backend for images sum over blocks of sixteen samples in halves: where both ranks have whole blocks
 * nothing is left to differ. */
static void check_bits(const setting *how, const void *context)
{
    static const tolerance none = {.loss = 3e-7}; /* which this test adds up in its own order */
    setting with = *how;

    if (strcmp(how->backend, "cpu") != 0)
        return;
    memcpy(with.slices, (int[MAX_RANKS + 1]){16, 16}, sizeof(with.slices));
    check_equal(context, &with, effort(6, 2), &none);
}

static void test_whole_blocks_give_the_same_bits(void **state)
{
    subject host = {.name = "cnn", .host = small_cnn()};
    subject many = {.name = "many weights", .build = many_weights, .dim = {96, 3, 3}};

    (void)state;
    on_each(check_bits, &host);
    on_each(check_bits, &many);
}

/* No batch norm, but dropout in attention and elsewhere: drawn for the sample, wherever it is. Nobody meets. */
static void test_transformer_trains_alike(void **state)
{
    subject s = {.name = "transformer", .host = small_transformer(0.2f)};

    (void)state;
    on_each(check_training, &s);
}

static void check_seeded(const setting *how, const void *context)
{
    setting with = *how;

    memcpy(with.slices, (int[MAX_RANKS + 1]){13, 5, 1}, sizeof(with.slices));
    check_equal(context, &with, 1, &one_step);
}

static void test_seeds(void **state)
{
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_CNN);

    (void)state;
    for (int b = 0; list[b] != NULL; b++)
        for (int mode = effort(0, b % SMALL_N_MODES); mode < effort(SMALL_N_MODES, b % SMALL_N_MODES + 1); mode++) {
            small_seed seeds[] = {{"r0c0", list[b]->name, (small_mode)mode}, {NULL, NULL, 0}};
            subject s = {.name = list[b]->name, .host = small_cnn(), .seeds = seeds};

            on_each(check_seeded, &s);
        }
}

/* ------------------------------------------------------------------------------------------------ numbers */

static double exact_variance(const team *t, int c)
{
    double mean[2] = {0.0, 0.0}; /* of x, and of the squares about it */
    size_t plane = (size_t)t->subject->dim[1] * (size_t)t->subject->dim[2];
    double count = (double)plane * t->n_batch;

    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < t->n_ranks; i++) {
            const rank *r = &t->ranks[i];
            const float *x = esper_plan_data(r->plan, 0, r->members[0].net.input);

            for (int n = 0; n < r->n_samples; n++)
                for (size_t p = 0; p < plane; p++) {
                    double value = (double)x[((size_t)n * (size_t)t->subject->dim[0] + (size_t)c) * plane + p];

                    mean[turn] += (turn == 0 ? value : (value - mean[0]) * (value - mean[0])) / count;
                }
        }
    return mean[1] * count / (count - 1.0);
}

/* Values of 10,000 with a deviation of 1: the variance is in their last digits. */
static void check_far_from_zero(const setting *how, const void *context)
{
    static team t;
    setting with = *how;

    (void)context;
    memcpy(with.slices, (int[MAX_RANKS + 1]){17, 3}, sizeof(with.slices));
    open_team(&t, &(subject){.name = "far from zero", .build = quick_norm, .dim = {3, 4, 4}, .centre = 1e4f}, &with,
              true);
    run_team(&t, 1);
    check_through(&t);
    for (int c = 0; c < 3; c++) {
        const rank_member *member = &t.ranks[1].members[0];
        const esper_tensor *var = &member->net.tensors[esper_net_find(&member->net, "norm.var")];
        double got = (double)esper_slab_at(&member->slab, ESPER_FAMILY_BUFFER, var)[c], exact = exact_variance(&t, c);

        if (!(fabs(got - exact) <= 1e-6 * exact))
            fail_msg("%s/%s: variance %.9g, exactly %.9g", how->backend, how->kernels != NULL ? how->kernels : "-", got,
                     exact);
    }
    close_team(&t);
}

static void test_far_from_zero(void **state)
{
    (void)state;
    on_each(check_far_from_zero, NULL);
}

/* A NaN on one rank is everybody's, in its channel and no other. */
static void check_nan(const setting *how, const void *context)
{
    static team t;
    static const subject s = {.name = "nan", .build = quick_norm, .dim = {2, 4, 4}, .nan_sample = 8};
    setting with = *how;

    (void)context;
    memcpy(with.slices, (int[MAX_RANKS + 1]){6, 6}, sizeof(with.slices));
    open_team(&t, &s, &with, true);
    run_team(&t, 1);
    check_through(&t);
    for (int i = 0; i < 2; i++) {
        const float *mean = t.ranks[i].members[0].slab.family[ESPER_FAMILY_BUFFER];

        assert_true(isnan(mean[0]));
        assert_false(isnan(mean[1]));
    }
    close_team(&t);
}

static void test_nan_reaches_every_rank(void **state)
{
    (void)state;
    on_each(check_nan, NULL);
}

/* ------------------------------------------------------------------------------------------------ evaluation */

/* Running statistics need nobody: the same bits as without an exchange, and no call. */
static void check_evaluation(const setting *how, const void *context)
{
    subject s = *(const subject *)context;
    static team with, without;
    setting alone = *how;

    s.evaluates = true;
    memcpy(alone.slices, (int[MAX_RANKS + 1]){19}, sizeof(alone.slices));
    open_team(&with, &s, &alone, true);
    open_team(&without, &s, &alone, false);
    run_team(&with, 2);
    run_team(&without, 2);
    check_through(&with);
    check_through(&without);
    assert_int_equal(with.ranks[0].n_calls, 0);
    for (int family = 0; family < ESPER_N_FAMILIES; family++) {
        const rank_member *a = &with.ranks[0].members[0], *b = &without.ranks[0].members[0];

        if (a->slab.family[family] != NULL)
            assert_memory_equal(a->slab.family[family], b->slab.family[family],
                                (size_t)esper_slab_count(&a->slab, (esper_family)family) * sizeof(float));
    }
    close_team(&with);
    close_team(&without);
}

static void test_evaluation_meets_nobody(void **state)
{
    subject s = {.name = "cnn", .host = small_cnn()};

    (void)state;
    on_each(check_evaluation, &s);
    on_each(check_evaluation, &pieces[0]);
}

/* ------------------------------------------------------------------------------------------------ failures */

static void repair(team *t)
{
    t->meeting.broken = false;
    t->meeting.n_here = 0;
    for (int i = 0; i < t->n_ranks; i++) {
        t->ranks[i].status = ESPER_OK;
        t->ranks[i].n_calls = t->ranks[i].fail_at = 0;
    }
}

/* Fails at every call in turn: both ranks end with the callback's status, and the pass can be run again. */
static void check_failures(const setting *how, const void *context)
{
    const subject *s = context;
    static team t;
    setting with = *how;
    int n_calls = 2 * count_norms(s);

    memcpy(with.slices, (int[MAX_RANKS + 1]){9, 4}, sizeof(with.slices));
    open_team(&t, s, &with, true);
    for (int at = 1; at <= n_calls; at++) {
        repair(&t);
        t.ranks[at % 2].fail_at = at;
        t.apart = at % 3 == 0;
        run_team(&t, 1);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(t.ranks[i].status, ESPER_E_PEER);
            assert_int_equal(t.ranks[i].n_calls, at);
        }
    }
    repair(&t);
    run_team(&t, 1);
    check_through(&t);
    close_team(&t);
}

static void test_failure_passes_up(void **state)
{
    subject one = {.name = "cnn", .host = small_cnn()}, two = {.name = "two cnns", .host = small_cnn(), .n_nets = 2};

    (void)state;
    on_each(check_failures, &one);
    on_each(check_failures, &two);
    on_each(check_failures, &pieces[0]);
}

/* One value for each channel has no variance, on however many ranks it is. */
static void check_single_value(const setting *how, const void *context)
{
    static team t;
    setting with = *how;

    memcpy(with.slices, (int[MAX_RANKS + 1]){1}, sizeof(with.slices));
    open_team(&t, context, &with, true);
    run_team(&t, 1);
    assert_int_equal(t.ranks[0].status, ESPER_E_ARG);
    close_team(&t);
}

static void test_single_value_is_refused(void **state)
{
    (void)state;
    on_each(check_single_value, &pieces[1]);
}

/* ------------------------------------------------------------------------------------------------ the enqueue path */

/* Launches of several networks, in parts where the ranks would meet, handed to the backend one by one. A launch meets nobody;
 * and as the sums of one rank are those of all, the bits are those that the plan gives. */
static void check_launches(const setting *how, const void *context)
{
    static team t;
    setting with = *how;
    int n_calls, n_parts[3] = {0};
    size_t bytes;
    float *expected;

    (void)context;
    memcpy(with.slices, (int[MAX_RANKS + 1]){11}, sizeof(with.slices));
    open_team(&t, &pieces[5], &with, true);
    t.ranks[0].thread = pthread_self();
    assert_int_equal(run_pass(&t.ranks[0], 0), ESPER_OK);
    n_calls = t.ranks[0].n_calls;
    bytes = (size_t)esper_slab_count(&t.ranks[0].members[1].slab, ESPER_FAMILY_GRAD) * sizeof(float);
    expected = esper_mem_alloc(bytes);
    memcpy(expected, t.ranks[0].members[1].slab.family[ESPER_FAMILY_GRAD], bytes);
    memset(t.ranks[0].members[1].slab.family[ESPER_FAMILY_GRAD], 0, bytes);
    for (int d = 0; d < 2; d++) {
        const esper_launch *launch;

        for (int i = 0; (launch = esper_plan_launch(t.ranks[0].plan, (esper_direction)d, i)) != NULL; i++) {
            n_parts[launch->part] += launch->n_lanes;
            assert_int_equal(esper_backend_enqueue(t.ranks[0].backend, NULL, launch), ESPER_OK);
        }
    }
    assert_int_equal(t.ranks[0].n_calls, n_calls);
    assert_int_equal(n_calls, 4);
    assert_int_equal(n_parts[ESPER_PART_BEFORE], 4); /* a norm of each of two networks, in each direction */
    assert_int_equal(n_parts[ESPER_PART_AFTER], 4);
    assert_memory_equal(expected, t.ranks[0].members[1].slab.family[ESPER_FAMILY_GRAD], bytes);
    esper_mem_free(expected);
    close_team(&t);
}

static void test_launches_by_themselves(void **state)
{
    (void)state;
    on_each(check_launches, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_host_trains_alike),
        cmocka_unit_test(test_hundred_losses),
        cmocka_unit_test(test_whole_blocks_give_the_same_bits),
        cmocka_unit_test(test_transformer_trains_alike),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_far_from_zero),
        cmocka_unit_test(test_nan_reaches_every_rank),
        cmocka_unit_test(test_evaluation_meets_nobody),
        cmocka_unit_test(test_failure_passes_up),
        cmocka_unit_test(test_single_value_is_refused),
        cmocka_unit_test(test_launches_by_themselves),
    };

    for (int i = 0; i < 3; i++)
        if (!can_run(sets[i]))
            print_message("skipped: this processor cannot run the kernels %s\n", sets[i]);
    return cmocka_run_group_tests(tests, NULL, memory_is_given_back);
}
