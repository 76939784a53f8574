/* Passes over one block that are bound by memory: batch norm with ReLU and max pool, packing. What to compare them with is
 * `copy`, memcpy over the same shapes. */
#include "lab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/cpu/simd_norm.h"
#include "tensor/cpu/simd_pack.h"

typedef struct shape {
    int C, size;
    bool relu, pool;
} shape;

static const shape shapes[] = {
    {8, 32, true, true},    {16, 16, true, true}, {32, 8, true, true}, {8, 32, true, false},
    {16, 16, false, false}, {64, 32, true, true}, {5, 13, true, true},
};

typedef struct context {
    shape s;
    size_t pixels, out_pixels; /* of a channel */
    const float *y, *g, *mean, *factor, *shift, *mean_g, *slope;
    double *sums;
    simd_norm norm;
} context;

static const context *context_of(const lab_case *c)
{
    return c->context;
}

static size_t elements(const context *k)
{
    return (size_t)k->s.C * k->pixels * SIMD_WIDTH;
}

/* Everything but the result. */
static bool open_any(int number, lab_case *c)
{
    context *k;
    shape s;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    s = shapes[number];
    snprintf(c->shape, sizeof(c->shape), "%d @%dx%d%s%s", s.C, s.size, s.size, s.relu ? " relu" : "",
             s.pool ? " pool" : "");
    k = c->context = lab_memory(c, sizeof(*k));
    k->s = s;
    k->pixels = (size_t)(s.size * s.size);
    k->out_pixels = s.pool ? (size_t)((s.size / 2) * (s.size / 2)) : k->pixels;
    k->y = lab_random(c, elements(k));
    k->g = lab_random(c, elements(k));
    k->mean = lab_random(c, (size_t)s.C);
    k->factor = lab_random(c, (size_t)s.C);
    k->shift = lab_random(c, (size_t)s.C);
    k->mean_g = lab_random(c, (size_t)s.C);
    k->slope = lab_random(c, (size_t)s.C);
    k->sums = lab_memory(c, 2 * (size_t)s.C * sizeof(double));
    k->norm = (simd_norm){s.C, s.size, s.size, k->mean, k->factor, k->shift, s.relu, s.pool};
    return true;
}

static void result_of(lab_case *c, size_t n, size_t floats_moved)
{
    c->n = n;
    c->result = lab_memory(c, n * sizeof(float));
    c->bytes = (double)(floats_moved * sizeof(float));
}

static size_t out_elements(const context *k)
{
    return (size_t)k->s.C * k->out_pixels * SIMD_WIDTH;
}

/* ------------------------------------------------------------------------------------------------ copy, pack */

static bool open_copy(int number, lab_case *c)
{
    if (!open_any(number, c))
        return false;
    result_of(c, elements(context_of(c)), 2 * elements(context_of(c)));
    return true;
}

static void expect_copy(const lab_case *c)
{
    for (size_t i = 0; i < c->n; i++)
        c->expected[i] = (double)context_of(c)->y[i];
}

static void run_copy(const lab_case *c)
{
    memcpy(c->result, context_of(c)->y, c->n * sizeof(float));
}

static void expect_pack(const lab_case *c)
{
    size_t count = c->n / SIMD_WIDTH;

    for (size_t i = 0; i < c->n; i++)
        c->expected[i] = (double)context_of(c)->y[i % SIMD_WIDTH * count + i / SIMD_WIDTH];
}

static void run_pack(const lab_case *c)
{
    simd_pack(context_of(c)->y, c->n / SIMD_WIDTH, SIMD_WIDTH, c->result);
}

static void expect_unpack(const lab_case *c)
{
    size_t count = c->n / SIMD_WIDTH;

    for (size_t i = 0; i < c->n; i++)
        c->expected[i] = (double)context_of(c)->y[i % count * SIMD_WIDTH + i / count];
}

static void run_unpack(const lab_case *c)
{
    simd_unpack(context_of(c)->y, c->n / SIMD_WIDTH, SIMD_WIDTH, c->result);
}

/* ------------------------------------------------------------------------------------------------ plain loops */

static double z_at(const context *k, size_t c, size_t i)
{
    return ((double)k->y[i] - (double)k->mean[c]) * (double)k->factor[c] + (double)k->shift[c];
}

/* The first largest element of the window of result o, the samples being a dimension like others. */
static size_t winner(const context *k, size_t c, size_t o)
{
    size_t W = (size_t)k->s.size, out_w = W / 2, pixel = o / SIMD_WIDTH, best = 0;

    for (size_t w = 0; w < 4; w++) {
        size_t at = (c * W + pixel % (out_w * out_w) / out_w * 2 + w / 2) * W + pixel % out_w * 2 + w % 2;

        at = at * SIMD_WIDTH + o % SIMD_WIDTH;
        if (w == 0 || z_at(k, c, at) > z_at(k, c, best))
            best = at;
    }
    return best;
}

/* What result o is made of. */
static size_t source_of(const context *k, size_t c, size_t o)
{
    return k->s.pool ? winner(k, c, o) : o;
}

static size_t channel_of(const context *k, size_t o)
{
    return o / (k->out_pixels * SIMD_WIDTH);
}

static double let_through(const context *k, size_t c, size_t at, double g)
{
    return k->s.relu && z_at(k, c, at) <= 0 ? 0 : g;
}

/* ------------------------------------------------------------------------------------------------ batch norm */

static bool open_moments(int number, lab_case *c)
{
    if (!open_any(number, c))
        return false;
    result_of(c, 2 * (size_t)context_of(c)->s.C, elements(context_of(c)));
    return true;
}

static void expect_moments(const lab_case *c)
{
    const context *k = context_of(c);
    size_t n = k->pixels * SIMD_WIDTH;

    for (size_t i = 0; i < (size_t)k->s.C; i++) {
        double mean = 0, square = 0;

        for (size_t j = 0; j < n; j++) {
            mean += (double)k->y[i * n + j] / (double)n;
            square += (double)k->y[i * n + j] * (double)k->y[i * n + j] / (double)n;
        }
        c->expected[2 * i] = mean;
        c->expected[2 * i + 1] = square - mean * mean;
    }
}

static void run_moments(const lab_case *c)
{
    const context *k = context_of(c);

    for (size_t i = 0; i < (size_t)k->s.C; i++) {
        simd_moments m;
        double mean, var;

        simd_norm_moments(k->y + i * k->pixels * SIMD_WIDTH, k->pixels, SIMD_WIDTH, &m);
        simd_norm_statistics(m, (double)(k->pixels * SIMD_WIDTH), &mean, &var);
        c->result[2 * i] = (float)mean;
        c->result[2 * i + 1] = (float)var;
    }
}

static bool open_forward(int number, lab_case *c)
{
    if (!open_any(number, c))
        return false;
    result_of(c, out_elements(context_of(c)), elements(context_of(c)) + out_elements(context_of(c)));
    return true;
}

static void expect_forward(const lab_case *c)
{
    const context *k = context_of(c);

    for (size_t o = 0; o < c->n; o++) {
        double z = z_at(k, channel_of(k, o), source_of(k, channel_of(k, o), o));

        c->expected[o] = k->s.relu && z <= 0 ? 0 : z;
    }
}

static void run_forward(const lab_case *c)
{
    const context *k = context_of(c);

    simd_norm_forward(&k->norm, k->y, c->result);
}

static bool open_sums(int number, lab_case *c)
{
    if (!open_any(number, c))
        return false;
    result_of(c, 2 * (size_t)context_of(c)->s.C, elements(context_of(c)) + out_elements(context_of(c)));
    return true;
}

static void expect_sums(const lab_case *c)
{
    const context *k = context_of(c);

    memset(c->expected, 0, c->n * sizeof(double));
    for (size_t o = 0; o < out_elements(k); o++) {
        size_t i = channel_of(k, o), at = source_of(k, i, o);
        double g = let_through(k, i, at, (double)k->g[o]);

        c->expected[2 * i] += g;
        c->expected[2 * i + 1] += g * ((double)k->y[at] - (double)k->mean[i]);
    }
}

static void run_sums(const lab_case *c)
{
    const context *k = context_of(c);

    simd_norm_sums(&k->norm, k->y, k->g, SIMD_WIDTH, k->sums);
    for (size_t i = 0; i < c->n; i++)
        c->result[i] = (float)k->sums[i];
}

static bool open_back(int number, lab_case *c)
{
    if (!open_any(number, c))
        return false;
    result_of(c, elements(context_of(c)), 2 * elements(context_of(c)) + out_elements(context_of(c)));
    return true;
}

static void expect_back(const lab_case *c)
{
    const context *k = context_of(c);

    for (size_t at = 0; at < c->n; at++) {
        size_t i = at / (k->pixels * SIMD_WIDTH);
        double off = (double)k->y[at] - (double)k->mean[i];

        c->expected[at] = -((double)k->mean_g[i] + off * (double)k->slope[i]) * (double)k->factor[i];
    }
    for (size_t o = 0; o < out_elements(k); o++) {
        size_t i = channel_of(k, o), at = source_of(k, i, o);

        c->expected[at] += let_through(k, i, at, (double)k->g[o]) * (double)k->factor[i];
    }
}

static void run_back(const lab_case *c)
{
    const context *k = context_of(c);

    simd_norm_back(&k->norm, k->y, k->g, k->mean_g, k->slope, SIMD_WIDTH, c->result);
}

/* ------------------------------------------------------------------------------------------------ tables */

static const lab_variant copy_variants[] = {{"memcpy", run_copy}, {NULL, NULL}};
static const lab_variant pack_variants[] = {{"simd", run_pack}, {NULL, NULL}};
static const lab_variant unpack_variants[] = {{"simd", run_unpack}, {NULL, NULL}};
static const lab_variant moments_variants[] = {{"simd", run_moments}, {NULL, NULL}};
static const lab_variant forward_variants[] = {{"simd", run_forward}, {NULL, NULL}};
static const lab_variant sums_variants[] = {{"simd", run_sums}, {NULL, NULL}};
static const lab_variant back_variants[] = {{"simd", run_back}, {NULL, NULL}};

const lab_kernel LAB_KERNELS(norm)[] = {
    {"copy", open_copy, expect_copy, copy_variants},
    {"pack", open_copy, expect_pack, pack_variants},
    {"unpack", open_copy, expect_unpack, unpack_variants},
    {"norm moments", open_moments, expect_moments, moments_variants},
    {"norm forward", open_forward, expect_forward, forward_variants},
    {"norm sums", open_sums, expect_sums, sums_variants},
    {"norm back", open_back, expect_back, back_variants},
    {NULL, NULL, NULL, NULL},
};
