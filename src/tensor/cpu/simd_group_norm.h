/* Internal. Group norm of a block: the channels of a sample are normalised in groups.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * Statistics are sums down a sample, and no sample meets another but in the gradients of scale and
 * shift. A group lies in one piece. Its (mean, 1/std), sixteen of each, are left in `stat`, (groups, 2), for the way
 * back. */
#ifndef ESPER_TENSOR_CPU_SIMD_GROUP_NORM_H
#define ESPER_TENSOR_CPU_SIMD_GROUP_NORM_H

#include <math.h>

#include "tensor/cpu/simd_pool.h"

typedef struct simd_group {
    int    channels; /* of one group */
    size_t pixels;   /* of a channel */
} simd_group;

SIMD_INLINE size_t simd_group_size(simd_group s)
{
    return (size_t)s.channels * s.pixels * SIMD_WIDTH;
}

/* mean and 1/std of each sample over one group. */
static inline void simd_group_statistics(const float *x, size_t pixels, float eps, float stat[2 * SIMD_WIDTH])
{
    simd_acc centre = simd_near_mean(x, pixels);
    double mean[SIMD_WIDTH] __attribute__((aligned(64))), var[SIMD_WIDTH] __attribute__((aligned(64)));
    simd_wide near = simd_widen(centre);
    double share = 1 / (double)pixels;
    simd_sums sums = {0};

    simd_moment_sums(x, pixels, centre, &sums);
    for (int i = 0; i < SIMD_WIDE_VECS; i++) {
        simd_wide_vec off = sums.a.v[i] * share;

        near.v[i] += off;
        sums.b.v[i] = sums.b.v[i] * share - off * off;
    }
    simd_wide_store(mean, near);
    simd_wide_store(var, sums.b);
    for (int l = 0; l < SIMD_WIDTH; l++) {
        stat[l] = (float)mean[l];
        stat[SIMD_WIDTH + l] = (float)(1 / sqrt((var[l] < 0 ? 0 : var[l]) + (double)eps));
    }
}

static inline void simd_group_normalise(const float *x, simd_group s, const float *stat, const float *scale,
                                        const float *shift, float *y)
{
    simd_acc mean = simd_acc_load(stat), rstd = simd_acc_load(stat + SIMD_WIDTH);

    for (int c = 0; c < s.channels; c++) {
        simd_acc factor = rstd;
        simd_vec level = simd_all(shift[c]);

        for (int i = 0; i < SIMD_VECS; i++)
            factor.v[i] *= scale[c];
        for (size_t p = 0; p < s.pixels; p++, x += SIMD_WIDTH, y += SIMD_WIDTH)
            for (int i = 0; i < SIMD_VECS; i++)
                simd_store(y + i * SIMD_VEC, (simd_load(x + i * SIMD_VEC) - mean.v[i]) * factor.v[i] + level);
    }
}

/* x, y: (C, pixels); scale, shift: (C); stat: (groups, 2) of each sample. y may be x itself. */
static inline void simd_group_norm_forward(const float *x, int C, size_t pixels, int groups, const float *scale,
                                           const float *shift, float eps, float *stat, float *y)
{
    simd_group s = {C / groups, pixels};

    for (int g = 0; g < groups; g++, stat += 2 * SIMD_WIDTH) {
        size_t at = (size_t)g * simd_group_size(s);

        simd_group_statistics(x + at, (size_t)s.channels * pixels, eps, stat);
        simd_group_normalise(x + at, s, stat, scale + g * s.channels, shift + g * s.channels, y + at);
    }
}

/* For one group: the samples' sums over it of g scale (a) and g scale (x - mean) (b), and the block's part of the
 * gradients of scale and shift. */
static inline void simd_group_sums(const float *x, const float *g, simd_group s, const float *stat, const float *scale,
                                   int n_valid, simd_sums *sums, float *dscale, float *dshift)
{
    simd_acc mean = simd_acc_load(stat);
    simd_wide rstd = simd_widen(simd_acc_load(stat + SIMD_WIDTH));

    for (int c = 0; c < s.channels; c++, x += s.pixels * SIMD_WIDTH, g += s.pixels * SIMD_WIDTH) {
        simd_sums plane = {0};

        simd_product_sums(g, x, s.pixels, mean, &plane);
        dshift[c] = (float)simd_join(plane.a, n_valid);
        for (int i = 0; i < SIMD_WIDE_VECS; i++) {
            sums->a.v[i] += (double)scale[c] * plane.a.v[i];
            sums->b.v[i] += (double)scale[c] * plane.b.v[i];
            plane.b.v[i] *= rstd.v[i];
        }
        dscale[c] = (float)simd_join(plane.b, n_valid);
    }
}

/* What the gradient of a group needs, of each sample. */
typedef struct simd_group_pull {
    simd_acc mean, rstd, mean_g, slope;
} simd_group_pull;

static inline simd_group_pull simd_group_pull_of(simd_group s, const float *stat, const simd_sums *sums)
{
    float mean_g[SIMD_WIDTH] __attribute__((aligned(64))), slope[SIMD_WIDTH] __attribute__((aligned(64)));
    double sum_g[SIMD_WIDTH] __attribute__((aligned(64))), sum_gx[SIMD_WIDTH] __attribute__((aligned(64)));
    double share = 1 / ((double)s.channels * (double)s.pixels);

    simd_wide_store(sum_g, sums->a);
    simd_wide_store(sum_gx, sums->b);
    for (int l = 0; l < SIMD_WIDTH; l++) {
        double rstd = (double)stat[SIMD_WIDTH + l];

        mean_g[l] = (float)(sum_g[l] * share);
        slope[l] = (float)(sum_gx[l] * share * rstd * rstd);
    }
    return (simd_group_pull){simd_acc_load(stat), simd_acc_load(stat + SIMD_WIDTH), simd_acc_load(mean_g),
                             simd_acc_load(slope)};
}

/* dx = (g scale - mean_g - (x - mean) slope) / std. */
SIMD_INLINE void simd_group_dx(const float *x, const float *g, simd_group s, simd_group_pull pull, const float *scale,
                               bool add, float *dx)
{
    for (int c = 0; c < s.channels; c++) {
        simd_vec factor = simd_all(scale[c]);

        for (size_t p = 0; p < s.pixels; p++, x += SIMD_WIDTH, g += SIMD_WIDTH, dx += SIMD_WIDTH)
            for (int i = 0; i < SIMD_VECS; i++) {
                simd_vec off = simd_load(x + i * SIMD_VEC) - pull.mean.v[i];
                simd_vec part = simd_load(g + i * SIMD_VEC) * factor - (off * pull.slope.v[i] + pull.mean_g.v[i]);

                simd_put(dx + i * SIMD_VEC, add, part * pull.rstd.v[i]);
            }
    }
}

/* dscale, dshift: (C) the block's part; dx may be NULL, or g itself when it is not added to. */
static inline void simd_group_norm_back(const float *x, const float *g, int C, size_t pixels, int groups,
                                        const float *scale, const float *stat, int n_valid, bool add, float *dx,
                                        float *dscale, float *dshift)
{
    simd_group s = {C / groups, pixels};

    for (int k = 0; k < groups; k++, stat += 2 * SIMD_WIDTH) {
        size_t at = (size_t)k * simd_group_size(s);
        int first = k * s.channels;
        simd_sums sums = {0};

        simd_group_sums(x + at, g + at, s, stat, scale + first, n_valid, &sums, dscale + first, dshift + first);
        if (dx != NULL && add)
            simd_group_dx(x + at, g + at, s, simd_group_pull_of(s, stat, &sums), scale + first, true, dx + at);
        else if (dx != NULL)
            simd_group_dx(x + at, g + at, s, simd_group_pull_of(s, stat, &sums), scale + first, false, dx + at);
    }
    if (dx != NULL)
        simd_clear_rest(dx, (size_t)C * pixels, n_valid);
}

#endif
