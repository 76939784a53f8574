/* ctest: sets=each */
/* simd_norm.h against the reference's batch norm, ReLU and max pool, one after the other: statistics, results and all
 * gradients, with ties, zeros, scales of 0, NaN and infinities, means far from 0, odd shapes and batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_norm.h"

typedef enum flavour { PLAIN, FAR, TIES, BROKEN, N_FLAVOURS } flavour;

static const char *const flavour_name[] = {"plain", "far from 0", "ties", "with NaN"};

/* A case, and what the reference makes of it. Canonical. */
typedef struct norm_case {
    char   text[120];
    int    N, C, H, W;
    bool   relu, pool, training;
    size_t count, out_count; /* elements of a sample of y and of the result */
    float *y, *scale, *shift, *running_mean, *running_var;
    float *mean, *rstd;    /* that were used */
    float *out, *g;        /* the result and its gradient */
    float *dy, *dscale, *dshift;
    float *factor;
} norm_case;

static simd_norm norm_of(const norm_case *c)
{
    return (simd_norm){c->C, c->H, c->W, c->mean, c->factor, c->shift, c->relu, c->pool};
}

static void fill(norm_case *c, flavour f, esper_rng *rng)
{
    size_t n = (size_t)c->N * c->count;

    c->y = simd_case_random(rng, n, f == FAR ? 300 : 0.3f, 1);
    c->scale = simd_case_random(rng, (size_t)c->C, 0, 1);
    c->shift = simd_case_random(rng, (size_t)c->C, 0, 0.5f);
    c->running_mean = simd_case_random(rng, (size_t)c->C, 0, 0.5f);
    c->running_var = simd_case_floats((size_t)c->C);
    for (int i = 0; i < c->C; i++)
        c->running_var[i] = 0.5f + esper_rng_uniform(rng);
    if (f == TIES) {
        for (size_t i = 0; i < n; i++)
            c->y[i] = rintf(c->y[i]);
        c->scale[0] = 0;
        c->shift[0] = 1;
    }
    if (f == BROKEN)
        for (int i = 0; i < 6; i++)
            c->y[esper_rng_below(rng, (uint32_t)n)] = i < 3 ? NAN : i == 3 ? -NAN : i == 4 ? INFINITY : -INFINITY;
}

static void open_case(norm_case *c, esper_rng *rng, flavour f)
{
    *c = (norm_case){.N = simd_case_int(rng, 2, 40), .C = simd_case_int(rng, 1, 4)};
    c->relu = esper_rng_below(rng, 2) != 0;
    c->pool = esper_rng_below(rng, 2) != 0;
    c->training = esper_rng_below(rng, 3) != 0;
    c->H = simd_case_int(rng, c->pool ? 2 : 1, 15);
    c->W = simd_case_int(rng, c->pool ? 2 : 1, 15);
    c->count = (size_t)c->C * (size_t)c->H * (size_t)c->W;
    c->out_count = c->pool ? (size_t)c->C * (size_t)(c->H / 2) * (size_t)(c->W / 2) : c->count;
    snprintf(c->text, sizeof(c->text), "%d x (%d,%d,%d)%s%s, %s, %s", c->N, c->C, c->H, c->W, c->relu ? " relu" : "",
             c->pool ? " pool" : "", c->training ? "training" : "evaluation", flavour_name[f]);
    fill(c, f, rng);
    c->mean = simd_case_floats((size_t)c->C);
    c->rstd = simd_case_floats((size_t)c->C);
    c->factor = simd_case_floats((size_t)c->C);
    c->dscale = simd_case_floats((size_t)c->C);
    c->dshift = simd_case_floats((size_t)c->C);
    c->dy = simd_case_floats((size_t)c->N * c->count);
    c->out = simd_case_floats((size_t)c->N * c->out_count);
    c->g = simd_case_random(rng, (size_t)c->N * c->out_count, 0.1f, 1);
}

/* Runs the operations one after the other and back. */
static void run_reference(norm_case *c)
{
    esper_pass pass = {.n_samples = c->N, .training = c->training};
    size_t n = (size_t)c->N * c->count;
    float *z = simd_case_floats(n), *dz = simd_case_floats(n), *r = simd_case_floats(n), *dr = simd_case_floats(n);
    float *into_pool = c->relu ? r : z, *from_pool = c->relu ? dr : dz;
    esper_lane norm = {.pass = &pass, .attr.norm = {.eps = 1e-5f, .momentum = 0.1f}};
    esper_lane relu = {.pass = &pass}, pool = {.pass = &pass};

    norm.in[0] = simd_case_view(c->y, c->dy, c->C, c->H, c->W);
    norm.in[1] = simd_case_view(c->scale, c->dscale, c->C, 0, 0);
    norm.in[2] = simd_case_view(c->shift, c->dshift, c->C, 0, 0);
    norm.in[3] = simd_case_view(c->running_mean, NULL, c->C, 0, 0);
    norm.in[4] = simd_case_view(c->running_var, NULL, c->C, 0, 0);
    norm.out[0] = simd_case_view(z, dz, c->C, c->H, c->W);
    norm.out[1] = simd_case_view(c->mean, NULL, c->C, 0, 0);
    norm.out[2] = simd_case_view(c->rstd, NULL, c->C, 0, 0);
    relu.in[0] = norm.out[0];
    relu.out[0] = simd_case_view(r, dr, c->C, c->H, c->W);
    pool.in[0] = simd_case_view(into_pool, from_pool, c->C, c->H, c->W);
    pool.out[0] = simd_case_view(c->out, c->g, c->C, c->H / 2, c->W / 2);

    simd_case_forward(ESPER_OP_BATCH_NORM, &norm);
    if (c->relu)
        simd_case_forward(ESPER_OP_RELU, &relu);
    if (c->pool)
        simd_case_forward(ESPER_OP_MAX_POOL, &pool);
    else
        memcpy(c->out, into_pool, n * sizeof(float));
    if (c->pool)
        simd_case_backward(ESPER_OP_MAX_POOL, &pool);
    else
        memcpy(from_pool, c->g, n * sizeof(float));
    if (c->relu)
        simd_case_backward(ESPER_OP_RELU, &relu);
    simd_case_backward(ESPER_OP_BATCH_NORM, &norm);
    for (int i = 0; i < c->C; i++)
        c->factor[i] = c->scale[i] * c->rstd[i];
}

/* The batch's statistics through the blocks' moments. */
static void check_statistics(const norm_case *c, const float *blocks)
{
    int n_blocks = simd_case_blocks(c->N);
    size_t pixels = (size_t)c->H * (size_t)c->W;
    simd_moments moments[3 * 4];

    for (int b = 0; b < n_blocks; b++)
        for (int i = 0; i < c->C; i++)
            simd_norm_moments(blocks + ((size_t)b * c->count + (size_t)i * pixels) * SIMD_WIDTH, pixels,
                              simd_case_valid(c->N, b), &moments[b * c->C + i]);
    for (int i = 0; i < c->C; i++) {
        simd_moments all = {0, 0};
        double mean, var, rstd;

        for (int b = 0; b < n_blocks; b++) {
            all.sum += moments[b * c->C + i].sum;
            all.squares += moments[b * c->C + i].squares;
        }
        simd_norm_statistics(all, (double)pixels * c->N, &mean, &var);
        rstd = 1 / sqrt(var + 1e-5);
        if (isnan(c->rstd[i]) ? !isnan(rstd) : !(fabs(rstd / (double)c->rstd[i] - 1) <= 2e-6))
            fail_msg("%s, channel %d: expected 1/std %.9g, found %.9g", c->text, i, (double)c->rstd[i], rstd);
        if (isfinite(c->mean[i]) ? !(fabs(mean - (double)c->mean[i]) <= 1e-7 * (1 + fabs((double)c->mean[i])))
                                 : isfinite(mean))
            fail_msg("%s, channel %d: expected mean %.9g, found %.9g", c->text, i, (double)c->mean[i], mean);
    }
}

static void check_forward(const norm_case *c, const float *blocks)
{
    size_t size = c->out_count * SIMD_WIDTH;
    float *found = simd_case_floats((size_t)simd_case_blocks(c->N) * size);
    simd_norm norm = norm_of(c);

    for (int b = 0; b < simd_case_blocks(c->N); b++)
        simd_norm_forward(&norm, blocks + (size_t)b * c->count * SIMD_WIDTH, found + (size_t)b * size);
    simd_case_compare_blocks(c->text, c->out, found, c->N, c->out_count, false);
}

/* The sums over all blocks, (C, 2). */
static double *sums_of(const norm_case *c, const float *blocks, const float *g)
{
    double *total = simd_case_doubles(2 * (size_t)c->C), *part = simd_case_doubles(2 * (size_t)c->C);
    simd_norm norm = norm_of(c);

    for (int b = 0; b < simd_case_blocks(c->N); b++) {
        simd_norm_sums(&norm, blocks + (size_t)b * c->count * SIMD_WIDTH, g + (size_t)b * c->out_count * SIMD_WIDTH,
                       simd_case_valid(c->N, b), part);
        for (int i = 0; i < 2 * c->C; i++)
            total[i] += part[i];
    }
    return total;
}

static void check_backward(const norm_case *c, float *blocks)
{
    float *g = simd_case_pack(c->g, c->N, c->out_count, 0);
    double *sums = sums_of(c, blocks, g), *dscale = simd_case_doubles((size_t)c->C);
    double *dshift = simd_case_doubles((size_t)c->C), n = (double)c->N * c->H * c->W;
    float *mean_g = simd_case_floats((size_t)c->C), *slope = simd_case_floats((size_t)c->C);
    simd_norm norm = norm_of(c);

    for (int i = 0; i < c->C; i++) {
        double rstd = (double)c->rstd[i];

        dshift[i] = sums[2 * i];
        dscale[i] = sums[2 * i + 1] * rstd;
        mean_g[i] = c->training ? (float)(sums[2 * i] / n) : 0;
        slope[i] = c->training ? (float)(sums[2 * i + 1] / n * rstd * rstd) : 0;
    }
    for (int i = 0; i < c->C; i++)
        if (!(c->pool && isnan(c->dscale[i]))) /* there the reference multiplies 0 by what is no maximum */
            simd_case_compare_sums(c->text, c->dscale + i, dscale + i, 1);
    simd_case_compare_sums(c->text, c->dshift, dshift, (size_t)c->C);
    for (int b = 0; b < simd_case_blocks(c->N); b++) { /* in place */
        float *y = blocks + (size_t)b * c->count * SIMD_WIDTH;

        simd_norm_back(&norm, y, g + (size_t)b * c->out_count * SIMD_WIDTH, mean_g, slope, simd_case_valid(c->N, b), y);
    }
    simd_case_compare_blocks(c->text, c->dy, blocks, c->N, c->count, true);
}

static void check_flavour(flavour f, int n_cases)
{
    for (int k = 0; k < n_cases; k++) {
        esper_rng rng = simd_case_rng((uint32_t)(1000 * (int)f + k));
        norm_case c;
        float *blocks;

        open_case(&c, &rng, f);
        run_reference(&c);
        blocks = simd_case_pack(c.y, c.N, c.count, 1e3f);
        if (c.training)
            check_statistics(&c, blocks);
        check_forward(&c, blocks);
        check_backward(&c, blocks);
        simd_case_end();
    }
}

static void test_plain(void **state)
{
    (void)state;
    check_flavour(PLAIN, 150);
}

static void test_far_from_zero(void **state)
{
    (void)state;
    check_flavour(FAR, 80);
}

static void test_ties_and_scales_of_zero(void **state)
{
    (void)state;
    check_flavour(TIES, 100);
}

static void test_not_a_number_is_not_lost(void **state)
{
    (void)state;
    check_flavour(BROKEN, 100);
}

/* A plane whose corner is nothing like the rest, as with padding: the variance about a large mean must not suffer. */
static void test_variance_about_a_large_mean(void **state)
{
    enum { PIXELS = 32 * 32 };
    esper_rng rng = simd_case_rng(77);
    float *plane = simd_case_random(&rng, PIXELS * SIMD_WIDTH, 1e4f, 1);
    double mean = 0, var = 0, found_mean, found_var;
    simd_moments found;

    (void)state;
    for (size_t l = 0; l < SIMD_WIDTH; l++)
        plane[l] = 9990;
    for (size_t i = 0; i < PIXELS * SIMD_WIDTH; i++)
        mean += (double)plane[i] / (PIXELS * SIMD_WIDTH);
    for (size_t i = 0; i < PIXELS * SIMD_WIDTH; i++)
        var += ((double)plane[i] - mean) * ((double)plane[i] - mean) / (PIXELS * SIMD_WIDTH);
    simd_norm_moments(plane, PIXELS, SIMD_WIDTH, &found);
    simd_norm_statistics(found, PIXELS * SIMD_WIDTH, &found_mean, &found_var);
    if (!(fabs(found_mean / mean - 1) <= 1e-9 && fabs(found_var / var - 1) <= 1e-6))
        fail_msg("expected mean %.12g and variance %.12g, found %.12g and %.12g", mean, var, found_mean, found_var);
    simd_case_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_far_from_zero),
        cmocka_unit_test(test_ties_and_scales_of_zero),
        cmocka_unit_test(test_not_a_number_is_not_lost),
        cmocka_unit_test(test_variance_about_a_large_mean),
    };

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
