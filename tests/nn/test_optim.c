/* ctest: cuda=also */
/* SGD and AdamW on groups with settings of their own, against the same steps in double. */
#include <math.h>
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
#include "nn/init.h"
#include "support/small_net.h"

enum { N_NETS = 2, N_STEPS = 5 };

/* Regions 0 (the host, of two chunks), 1 (conv_heavy) and 6 (norm) have parameters; 2 to 5 are empty. */
static const small_seed seeds[] = {{"r0c0", "conv_heavy", SMALL_ADD}, {"r1c2", "norm", SMALL_ADD}, {0}};
static const int regions[] = {0, 1, 6};

/* A range of a slab in double. */
typedef struct twin {
    int64_t count;
    double *p, *m, *v;
} twin;

typedef struct bench {
    esper_pool       *pool;
    esper_backend    *backend;
    esper_net         nets[N_NETS];
    esper_slab        slabs[N_NETS];
    const esper_slab *slab_list[N_NETS];
    esper_optim      *optim;
    twin              twins[N_NETS][ESPER_MAX_REGIONS];
} bench;

static const esper_group first_settings = {
    .lr = 0.1f, .momentum = 0.9f, .decay = 5e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

static float *range_of(const bench *b, int k, int region, esper_family family)
{
    return b->slabs[k].family[family] + b->slabs[k].param_begin[region];
}

static void twin_open(bench *b, int k, int region)
{
    twin *t = &b->twins[k][region];

    t->count = b->slabs[k].param_begin[region + 1] - b->slabs[k].param_begin[region];
    t->p = calloc((size_t)t->count + 1, sizeof(double));
    t->m = calloc((size_t)t->count + 1, sizeof(double));
    t->v = calloc((size_t)t->count + 1, sizeof(double));
    for (int64_t i = 0; i < t->count; i++)
        t->p[i] = (double)range_of(b, k, region, ESPER_FAMILY_PARAM)[i];
}

static void bench_open(bench *b, const char *backend, esper_op_kind kind)
{
    esper_slab_desc slab = {.n_moments = kind == ESPER_OP_ADAMW ? 2 : 1};
    esper_optim_desc desc = {.slabs = b->slab_list, .n_slabs = N_NETS, .kind = kind, .settings = first_settings};
    esper_host host = spec_cnn(3, 8, 3, 3);

    assert_int_equal(esper_pool_open(2, &b->pool), ESPER_OK);
    assert_int_equal(esper_backend_open(backend, b->pool, &b->backend), ESPER_OK);
    for (int k = 0; k < N_NETS; k++) {
        assert_int_equal(small_build(&b->nets[k], &host, k == 0 ? seeds : NULL), ESPER_OK);
        assert_int_equal(esper_slab_init(&b->slabs[k], b->backend, &b->nets[k], &slab), ESPER_OK);
        esper_init_net(&b->nets[k], &b->slabs[k], 1, (uint32_t)k, -1);
        b->slab_list[k] = &b->slabs[k];
        for (int r = 0; r < b->slabs[k].n_regions; r++)
            twin_open(b, k, r);
    }
    desc.backend = b->backend;
    if (esper_optim_open(&desc, &b->optim) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

static void bench_close(bench *b)
{
    esper_optim_close(b->optim);
    for (int k = 0; k < N_NETS; k++) {
        for (int r = 0; r < ESPER_MAX_REGIONS; r++) {
            free(b->twins[k][r].p);
            free(b->twins[k][r].m);
            free(b->twins[k][r].v);
        }
        esper_slab_fini(&b->slabs[k]);
        esper_net_fini(&b->nets[k]);
    }
    esper_backend_close(b->backend);
    esper_pool_close(b->pool);
}

/* Gradients of a step: noise in every parameter, nothing in the padding between. */
static void fill_gradients(bench *b, uint32_t step)
{
    for (int k = 0; k < N_NETS; k++)
        for (int t = 0; t < b->nets[k].n_tensors; t++) {
            float *grad = esper_slab_at(&b->slabs[k], ESPER_FAMILY_GRAD, &b->nets[k].tensors[t]);
            esper_rng_key key = {
                .seed = 3, .purpose = ESPER_RNG_TEST, .network = (uint32_t)k, .step = step, .sample = (uint32_t)t};
            esper_rng rng;

            esper_rng_init(&rng, &key);
            for (int64_t i = 0; grad != NULL && i < b->nets[k].tensors[t].count; i++)
                grad[i] = 0.05f * esper_rng_normal(&rng);
        }
}

/* ------------------------------------------------------------------------------------------------ in double */

static double norm_of(const float *values, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

static void twin_step(twin *t, const float *grad, esper_op_kind kind, const esper_group *s, int number)
{
    double norm = norm_of(grad, t->count), lr = (double)s->lr, decay = (double)s->decay;
    double clip = (double)s->clip, factor = clip > 0.0 && norm > clip ? clip / (norm + 1e-6) : 1.0;
    double b1 = (double)s->beta1, b2 = (double)s->beta2;

    for (int64_t i = 0; i < t->count; i++) {
        double g = (double)grad[i] * factor;

        if (kind == ESPER_OP_SGD) {
            t->m[i] = (double)s->momentum * t->m[i] + g + decay * t->p[i];
            t->p[i] -= lr * t->m[i];
        } else {
            t->m[i] = b1 * t->m[i] + (1.0 - b1) * g;
            t->v[i] = b2 * t->v[i] + (1.0 - b2) * g * g;
            t->p[i] -= lr * decay * t->p[i];
            t->p[i] -=
                lr * (t->m[i] / (1.0 - pow(b1, number))) / (sqrt(t->v[i] / (1.0 - pow(b2, number))) + (double)s->eps);
        }
    }
}

static void check_twin(const bench *b, int k, int region, const char *what)
{
    const twin *t = &b->twins[k][region];
    const float *p = range_of(b, k, region, ESPER_FAMILY_PARAM);

    for (int64_t i = 0; i < t->count; i++)
        if (!(fabs((double)p[i] - t->p[i]) <= 2e-6 * (0.1 + fabs(t->p[i]))))
            fail_msg("%s: network %d, region %d, element %lld is %.9g, expected %.9g", what, k, region, (long long)i,
                     (double)p[i], t->p[i]);
}

/* Runs steps of all groups and of their twins. Rates of group (k, region) fall with the step. */
static void check_steps(const char *backend, esper_op_kind kind, float clip)
{
    bench b = {0};

    bench_open(&b, backend, kind);
    for (int k = 0; k < N_NETS; k++)
        for (int r = 0; r < b.slabs[k].n_regions; r++) {
            esper_group *group = esper_optim_group(b.optim, k, r);

            group->clip = clip * (float)(1 + r);
            group->decay = r == 0 ? 5e-4f : 0.0f;
        }
    for (int step = 0; step < N_STEPS; step++) {
        fill_gradients(&b, (uint32_t)step);
        for (int k = 0; k < N_NETS; k++)
            for (int r = 0; r < b.slabs[k].n_regions; r++) {
                esper_group *group = esper_optim_group(b.optim, k, r);

                group->lr = 0.05f / (float)(1 + step) / (float)(1 + r + 2 * k);
                twin_step(&b.twins[k][r], range_of(&b, k, r, ESPER_FAMILY_GRAD), kind, group, step + 1);
            }
        assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    }
    for (int k = 0; k < N_NETS; k++)
        for (int r = 0; r < b.slabs[k].n_regions; r++)
            check_twin(&b, k, r, backend);
    bench_close(&b);
}

static void test_sgd(void **state)
{
    (void)state;
    check_steps("ref", ESPER_OP_SGD, 0.0f);
    check_steps("cpu", ESPER_OP_SGD, 0.0f);
}

static void test_sgd_with_clipping(void **state)
{
    (void)state;
    check_steps("ref", ESPER_OP_SGD, 0.5f);
    check_steps("cpu", ESPER_OP_SGD, 0.5f);
}

static void test_adamw(void **state)
{
    (void)state;
    check_steps("ref", ESPER_OP_ADAMW, 0.0f);
    check_steps("cpu", ESPER_OP_ADAMW, 0.0f);
}

static void test_adamw_with_clipping(void **state)
{
    (void)state;
    check_steps("ref", ESPER_OP_ADAMW, 0.5f);
    check_steps("cpu", ESPER_OP_ADAMW, 0.5f);
}

/* One parameter, one step, on paper: p = 1, g = 2, lr = 0.1, decay 0.5. SGD: buf = 2 + 0.5 = 2.5, p = 0.75.
 * AdamW: the first step moves by lr whatever g is, after p has shrunk by lr * decay: 1 - 0.05 - 0.1 = 0.85. */
static void check_on_paper(esper_op_kind kind, double expected)
{
    esper_slab_desc slab_desc = {.n_moments = 2};
    esper_backend *backend;
    const esper_slab *list[1];
    esper_optim *optim;
    esper_slab slab;
    esper_net net;
    int one = 1;
    double got;

    esper_net_init(&net);
    esper_net_param(&net, "p", 1, &one, (esper_init){ESPER_INIT_CONSTANT, 1.0f});
    assert_int_equal(esper_backend_open("ref", NULL, &backend), ESPER_OK);
    assert_int_equal(esper_slab_init(&slab, backend, &net, &slab_desc), ESPER_OK);
    esper_init_net(&net, &slab, 1, 0, -1);
    slab.family[ESPER_FAMILY_GRAD][0] = 2.0f;
    list[0] = &slab;
    assert_int_equal(
        esper_optim_open(
            &(esper_optim_desc){
                backend,
                list,
                1,
                kind,
                {.lr = 0.1f, .momentum = 0.9f, .decay = 0.5f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
                NULL},
            &optim),
        ESPER_OK);
    assert_int_equal(esper_optim_step(optim), ESPER_OK);
    got = (double)slab.family[ESPER_FAMILY_PARAM][0];
    if (fabs(got - expected) > 1e-6)
        fail_msg("%s: p is %.9g, expected %.9g", esper_op_info_of(kind)->name, got, expected);
    assert_true(esper_optim_norm(optim, 0, 0) == 2.0);
    assert_int_equal(esper_optim_group(optim, 0, 0)->t, 1);
    esper_optim_close(optim);
    esper_slab_fini(&slab);
    esper_backend_close(backend);
    esper_net_fini(&net);
}

static void test_on_paper(void **state)
{
    (void)state;
    check_on_paper(ESPER_OP_SGD, 0.75);
    check_on_paper(ESPER_OP_ADAMW, 0.85);
}

/* ------------------------------------------------------------------------------------------------ groups */

/* The norm is of the group alone, before clipping, whether or not it is clipped. */
static void test_norms(void **state)
{
    bench b = {0};

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_SGD);
    esper_optim_group(b.optim, 0, 0)->clip = 0.01f;
    fill_gradients(&b, 0);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        double expected = norm_of(range_of(&b, 0, regions[i], ESPER_FAMILY_GRAD), b.twins[0][regions[i]].count);
        double got = esper_optim_norm(b.optim, 0, regions[i]);

        assert_true(expected > 0.1);
        if (fabs(got - expected) > 1e-12 * expected)
            fail_msg("region %d: norm %.17g, expected %.17g", regions[i], got, expected);
    }
    bench_close(&b);
}

/* Gradients whose squares overflow a float still have a norm, and clipping brings them back. */
static void test_norm_of_huge_gradients(void **state)
{
    bench b = {0};
    double norm;

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_SGD);
    esper_optim_group(b.optim, 1, 0)->clip = 1.0f;
    range_of(&b, 1, 0, ESPER_FAMILY_GRAD)[17] = 3e30f;
    range_of(&b, 1, 0, ESPER_FAMILY_GRAD)[5000] = -4e30f;
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    norm = esper_optim_norm(b.optim, 1, 0);
    if (fabs(norm - 5e30) > 1e-6 * 5e30)
        fail_msg("norm %g, expected 5e30", norm);
    norm = norm_of(range_of(&b, 1, 0, ESPER_FAMILY_MOMENT1), b.twins[1][0].count);
    if (!(norm < 1.2))
        fail_msg("the clipped step has norm %g", norm);
    bench_close(&b);
}

static void test_group_that_is_off(void **state)
{
    bench b = {0};
    size_t bytes;
    float *moments;

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_SGD);
    bytes = (size_t)b.twins[0][1].count * sizeof(float);
    esper_optim_enable(b.optim, 0, 1, false);
    fill_gradients(&b, 0);
    for (int64_t i = 0; i < b.twins[0][1].count; i++)
        b.twins[0][1].m[i] = (double)(range_of(&b, 0, 1, ESPER_FAMILY_MOMENT1)[i] = 0.25f);
    moments = malloc(bytes);
    memcpy(moments, range_of(&b, 0, 1, ESPER_FAMILY_MOMENT1), bytes);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    check_twin(&b, 0, 1, "off");
    assert_memory_equal(moments, range_of(&b, 0, 1, ESPER_FAMILY_MOMENT1), bytes);
    assert_int_equal(esper_optim_group(b.optim, 0, 1)->t, 0);
    assert_int_equal(esper_optim_group(b.optim, 0, 0)->t, 1);
    assert_true((double)range_of(&b, 0, 0, ESPER_FAMILY_PARAM)[0] != b.twins[0][0].p[0]); /* the others went on */
    esper_optim_enable(b.optim, 0, 1, true);
    twin_step(&b.twins[0][1], range_of(&b, 0, 1, ESPER_FAMILY_GRAD), ESPER_OP_SGD, esper_optim_group(b.optim, 0, 1), 1);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    check_twin(&b, 0, 1, "on again");
    free(moments);
    bench_close(&b);
}

static void test_all_off(void **state)
{
    bench b = {0};

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_ADAMW);
    for (int k = 0; k < N_NETS; k++)
        for (int r = 0; r < b.slabs[k].n_regions; r++)
            esper_optim_enable(b.optim, k, r, false);
    fill_gradients(&b, 0);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    for (int k = 0; k < N_NETS; k++)
        for (int r = 0; r < b.slabs[k].n_regions; r++)
            check_twin(&b, k, r, "all off");
    esper_optim_enable(b.optim, 0, 3, true); /* an empty region stays off */
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    assert_int_equal(esper_optim_group(b.optim, 0, 3)->t, 0);
    bench_close(&b);
}

/* ------------------------------------------------------------------------------------------------ joined groups */

/* A host of exactly two chunks and a seed, in two regions or all in one. */
enum { HALL_HOST = 2 * ESPER_FLAT_CHUNK, HALL_SEED = 640, HALL_ALL = HALL_HOST + HALL_SEED };

typedef struct hall {
    esper_pool       *pool;
    esper_backend    *backend;
    esper_net         net;
    esper_slab        slab;
    const esper_slab *list[1];
    esper_optim      *optim;
} hall;

static void hall_open(hall *h, const char *backend, int n_threads, esper_op_kind kind, bool split)
{
    static const int counts[] = {HALL_HOST, HALL_SEED};
    esper_slab_desc desc = {.n_moments = 2};

    esper_net_init(&h->net);
    for (int i = 0; i < 2; i++) {
        esper_net_enter(&h->net, i == 0 ? "host." : "seed.", split ? i : 0);
        esper_net_param(&h->net, "p", 1, &counts[i], (esper_init){ESPER_INIT_CONSTANT, 1.0f});
    }
    assert_int_equal(esper_pool_open(n_threads, &h->pool), ESPER_OK);
    assert_int_equal(esper_backend_open(backend, h->pool, &h->backend), ESPER_OK);
    assert_int_equal(esper_slab_init(&h->slab, h->backend, &h->net, &desc), ESPER_OK);
    assert_int_equal(esper_slab_count(&h->slab, ESPER_FAMILY_PARAM), HALL_ALL);
    h->list[0] = &h->slab;
    for (int64_t i = 0; i < HALL_ALL; i++)
        h->slab.family[ESPER_FAMILY_PARAM][i] = 1.0f + 0.001f * (float)(i % 37);
    assert_int_equal(
        esper_optim_open(&(esper_optim_desc){h->backend, h->list, 1, kind, first_settings, NULL}, &h->optim), ESPER_OK);
}

static void hall_close(hall *h)
{
    esper_optim_close(h->optim);
    esper_slab_fini(&h->slab);
    esper_backend_close(h->backend);
    esper_pool_close(h->pool);
    esper_net_fini(&h->net);
}

static void hall_step(hall *h, int step)
{
    for (int64_t i = 0; i < HALL_ALL; i++)
        h->slab.family[ESPER_FAMILY_GRAD][i] = 0.02f * sinf(0.7f * (float)i + (float)step);
    assert_int_equal(esper_optim_step(h->optim), ESPER_OK);
    assert_int_equal(esper_backend_sync(h->backend), ESPER_OK);
}

static void check_halls(const hall *a, const hall *b, const char *what)
{
    for (int f = ESPER_FAMILY_PARAM; f <= ESPER_FAMILY_MOMENT2; f++)
        for (int64_t i = 0; i < HALL_ALL; i++)
            if (a->slab.family[f][i] != b->slab.family[f][i])
                fail_msg("%s: %s %lld is %.9g joined, %.9g in one region", what, esper_family_name((esper_family)f),
                         (long long)i, (double)a->slab.family[f][i], (double)b->slab.family[f][i]);
}

/* The host ends on a chunk, so the sums are made in the same order: all bits are equal. */
static void check_joined(const char *backend, int n_threads, esper_op_kind kind)
{
    hall split = {0}, whole = {0};
    char what[64];

    snprintf(what, sizeof(what), "%s, %d threads, %s", backend, n_threads, esper_op_info_of(kind)->name);
    hall_open(&split, backend, n_threads, kind, true);
    hall_open(&whole, backend, 1, kind, false);
    esper_optim_join(split.optim, 0, 1, true);
    esper_optim_group(split.optim, 0, 1)->lr = 99.0f; /* nobody asks for it now */
    for (int step = 0; step < N_STEPS; step++) {
        esper_optim_group(split.optim, 0, 0)->clip = esper_optim_group(whole.optim, 0, 0)->clip = 0.3f;
        esper_optim_group(split.optim, 0, 0)->lr = esper_optim_group(whole.optim, 0, 0)->lr = 0.1f / (float)(1 + step);
        hall_step(&split, step);
        hall_step(&whole, step);
        check_halls(&split, &whole, what);
    }
    assert_true(esper_optim_norm(whole.optim, 0, 0) > 1.0); /* it clips */
    for (int r = 0; r < 2; r++)
        if (fabs(esper_optim_norm(split.optim, 0, r) - esper_optim_norm(whole.optim, 0, 0)) > 1e-14)
            fail_msg("%s: norm of region %d is %.17g, %.17g in one region", what, r,
                     esper_optim_norm(split.optim, 0, r), esper_optim_norm(whole.optim, 0, 0));
    assert_true(esper_optim_norm_alone(split.optim, 0, 1) < 0.5 * esper_optim_norm(split.optim, 0, 1));
    assert_int_equal(esper_optim_group(split.optim, 0, 1)->t, N_STEPS);
    hall_close(&whole);
    hall_close(&split);
}

static void test_joined_is_one_region(void **state)
{
    static const esper_op_kind kinds[] = {ESPER_OP_SGD, ESPER_OP_ADAMW};

    (void)state;
    for (int i = 0; i < 2; i++) {
        check_joined("ref", 1, kinds[i]);
        check_joined("cpu", 1, kinds[i]);
        check_joined("cpu", 2, kinds[i]);
    }
}

/* Steps of both regions as the twins make them; norm: what each region is clipped by. */
static void twin_joined(bench *b, int region, esper_op_kind kind, const esper_group *s, double norm, int number)
{
    const float *grad = range_of(b, 0, region, ESPER_FAMILY_GRAD);
    twin *t = &b->twins[0][region];
    esper_group scaled = *s;

    /* the factor is clip / norm of all: the same as a limit on the part's own norm in that proportion */
    scaled.clip = (float)((double)s->clip * norm_of(grad, t->count) / norm);
    twin_step(t, grad, kind, &scaled, number);
}

/* A region that is younger keeps its age and its momentum when it joins, and takes its own settings up again when it
 * leaves. While it is off the others' norm is without it. */
static void check_joining(esper_op_kind kind)
{
    bench b = {0};
    esper_group *host, *own;
    int age[2] = {0};

    bench_open(&b, "cpu", kind);
    host = esper_optim_group(b.optim, 0, 0);
    own = esper_optim_group(b.optim, 0, 1);
    host->clip = 0.5f;
    own->clip = 0.25f;
    own->lr = 0.02f;
    for (int step = 0; step < 8; step++) {
        bool on = step > 0 && step != 5, joined = step >= 2 && step < 6;
        double part[2], norm;

        esper_optim_enable(b.optim, 0, 1, on);
        esper_optim_join(b.optim, 0, 1, joined);
        fill_gradients(&b, (uint32_t)step);
        for (int r = 0; r < 2; r++)
            part[r] = norm_of(range_of(&b, 0, r, ESPER_FAMILY_GRAD), b.twins[0][r].count);
        norm = joined && on ? sqrt(part[0] * part[0] + part[1] * part[1]) : part[0];
        twin_joined(&b, 0, kind, host, norm, ++age[0]);
        if (on)
            twin_joined(&b, 1, kind, joined ? host : own, joined ? norm : part[1], ++age[1]);
        assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
        if (fabs(esper_optim_norm(b.optim, 0, 0) - norm) > 1e-12 * norm)
            fail_msg("step %d: norm %.17g, expected %.17g", step, esper_optim_norm(b.optim, 0, 0), norm);
        assert_int_equal(own->t, age[1]);
        check_twin(&b, 0, 0, "the host's group");
        check_twin(&b, 0, 1, "the group that joins and leaves");
    }
    bench_close(&b);
}

static void test_joining_and_leaving(void **state)
{
    (void)state;
    check_joining(ESPER_OP_SGD);
    check_joining(ESPER_OP_ADAMW);
}

static void test_what_cannot_join(void **state)
{
    bench b = {0};

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_SGD);
    esper_optim_join(b.optim, 0, 0, true);
    esper_optim_join(b.optim, 0, 3, true); /* empty */
    fill_gradients(&b, 0);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    assert_true(esper_optim_norm(b.optim, 0, 0) == esper_optim_norm_alone(b.optim, 0, 0));
    bench_close(&b);
}

/* A new seed's moments and age begin at zero; its neighbours' stay. */
static void test_reset(void **state)
{
    bench b = {0};
    float before;

    (void)state;
    bench_open(&b, "cpu", ESPER_OP_ADAMW);
    fill_gradients(&b, 0);
    assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    before = range_of(&b, 0, 0, ESPER_FAMILY_MOMENT2)[b.twins[0][0].count / 2];
    assert_true(norm_of(range_of(&b, 0, 1, ESPER_FAMILY_MOMENT1), b.twins[0][1].count) > 0.0);
    esper_optim_reset(b.optim, NULL, 0, 1);
    assert_int_equal(esper_optim_group(b.optim, 0, 1)->t, 0);
    assert_int_equal(esper_optim_group(b.optim, 0, 0)->t, 1);
    for (int f = ESPER_FAMILY_GRAD; f <= ESPER_FAMILY_MOMENT2; f++)
        assert_true(norm_of(range_of(&b, 0, 1, (esper_family)f), b.twins[0][1].count) == 0.0);
    esper_optim_reset(b.optim, NULL, 0, 3); /* an empty region has nothing to lose */
    assert_true(range_of(&b, 0, 0, ESPER_FAMILY_MOMENT2)[b.twins[0][0].count / 2] == before);
    assert_true(norm_of(range_of(&b, 0, 6, ESPER_FAMILY_MOMENT1), b.twins[0][6].count) > 0.0);
    bench_close(&b);
}

static void erase_tensors(const bench *b, int k, esper_family family)
{
    for (int t = 0; t < b->nets[k].n_tensors; t++) {
        float *values = esper_slab_at(&b->slabs[k], family, &b->nets[k].tensors[t]);

        for (int64_t i = 0; values != NULL && i < b->nets[k].tensors[t].count; i++)
            values[i] = 0.0f;
    }
}

/* Steps leave the padding between tensors zero: with the tensors erased, nothing is left. */
static void check_padding(const char *backend, esper_op_kind kind)
{
    bench b = {0};

    bench_open(&b, backend, kind);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        fill_gradients(&b, step);
        assert_int_equal(esper_optim_step(b.optim), ESPER_OK);
    }
    for (int f = ESPER_FAMILY_PARAM; f <= ESPER_FAMILY_MOMENT2; f++) {
        erase_tensors(&b, 0, (esper_family)f);
        for (int64_t i = 0; b.slabs[0].family[f] != NULL && i < esper_slab_count(&b.slabs[0], (esper_family)f); i++)
            if (b.slabs[0].family[f][i] != 0.0f)
                fail_msg("%s on %s: padding at %lld of %s is %g", esper_op_info_of(kind)->name, backend, (long long)i,
                         esper_family_name((esper_family)f), (double)b.slabs[0].family[f][i]);
    }
    bench_close(&b);
}

static void test_padding_stays_zero(void **state)
{
    (void)state;
    check_padding("ref", ESPER_OP_SGD);
    check_padding("cpu", ESPER_OP_SGD);
    check_padding("cpu", ESPER_OP_ADAMW);
}

/* ------------------------------------------------------------------------------------------------ opening */

static void check_refused(const bench *b, esper_optim_desc desc, const char *words)
{
    esper_optim *optim = NULL;
    esper_status status;

    desc.backend = b->backend;
    desc.slabs = b->slab_list;
    status = esper_optim_open(&desc, &optim);
    if (status != ESPER_E_ARG || optim != NULL || strstr(esper_last_error(), words) == NULL)
        fail_msg("status %d, message \"%s\", expected words \"%s\"", status, esper_last_error(), words);
}

static void test_refusals(void **state)
{
    bench b = {0};

    (void)state;
    bench_open(&b, "null", ESPER_OP_SGD);
    check_refused(&b, (esper_optim_desc){.n_slabs = N_NETS, .kind = ESPER_OP_ADAMW},
                  "no room for the moments of adamw");
    check_refused(&b, (esper_optim_desc){.n_slabs = N_NETS, .kind = ESPER_OP_RELU}, "relu is no optimiser");
    check_refused(&b, (esper_optim_desc){.n_slabs = 0, .kind = ESPER_OP_SGD}, "0 networks");
    bench_close(&b);
    esper_optim_close(NULL);
}

static void test_bytes_and_failing_allocations(void **state)
{
    esper_mem_stats before, after;
    esper_status status = ESPER_E_NOMEM;
    esper_optim *optim = NULL;
    bench b = {0};
    uint64_t nth;

    (void)state;
    bench_open(&b, "null", ESPER_OP_SGD);
    esper_mem_stats_get(&before);
    for (nth = 1; nth < 50; nth++) {
        esper_mem_fail_at(nth);
        status = esper_optim_open(
            &(esper_optim_desc){b.backend, b.slab_list, N_NETS, ESPER_OP_SGD, first_settings, NULL}, &optim);
        esper_mem_fail_at(0);
        esper_mem_stats_get(&after);
        if (status == ESPER_OK)
            break;
        assert_int_equal(status, ESPER_E_NOMEM);
        assert_null(optim);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(after.live_bytes, before.live_bytes);
    }
    assert_int_equal(status, ESPER_OK);
    assert_int_equal(after.live_bytes - before.live_bytes, esper_optim_bytes(b.slab_list, N_NETS));
    assert_int_equal(nth, after.n_live - before.n_live + 1);
    esper_optim_close(optim);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_sgd_with_clipping),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_adamw_with_clipping),
        cmocka_unit_test(test_on_paper),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_norm_of_huge_gradients),
        cmocka_unit_test(test_group_that_is_off),
        cmocka_unit_test(test_all_off),
        cmocka_unit_test(test_joined_is_one_region),
        cmocka_unit_test(test_joining_and_leaving),
        cmocka_unit_test(test_what_cannot_join),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bytes_and_failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
