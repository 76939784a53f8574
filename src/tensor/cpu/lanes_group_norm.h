/* Internal. Group norm of a block: the channels of a sample are normalised in groups.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * A lane is a sample, so statistics are sums down the lanes and no lane meets another but in the gradients of scale and
 * shift. A group lies in one piece. Its (mean, 1/std), sixteen of each, are left in `stat`, (groups, 2), for the way
 * back. */
#ifndef ESPER_TENSOR_CPU_LANES_GROUP_NORM_H
#define ESPER_TENSOR_CPU_LANES_GROUP_NORM_H

#include <math.h>

#include "tensor/cpu/lanes_pool.h"

typedef struct lanes_group {
    int    channels; /* of one group */
    size_t pixels;   /* of a channel */
} lanes_group;

LANES_INLINE size_t lanes_group_size(lanes_group s)
{
    return (size_t)s.channels * s.pixels * LANES_WIDTH;
}

/* mean and 1/std of each lane over one group. */
static inline void lanes_group_statistics(const float *x, size_t pixels, float eps, float stat[2 * LANES_WIDTH])
{
    lanes_acc centre = lanes_near_mean(x, pixels);
    double mean[LANES_WIDTH] __attribute__((aligned(64))), var[LANES_WIDTH] __attribute__((aligned(64)));
    lanes_wide near = lanes_widen(centre);
    double share = 1 / (double)pixels;
    lanes_sums sums = {0};

    lanes_moment_sums(x, pixels, centre, &sums);
    for (int i = 0; i < LANES_WIDE_VECS; i++) {
        lanes_wide_vec off = sums.a.v[i] * share;

        near.v[i] += off;
        sums.b.v[i] = sums.b.v[i] * share - off * off;
    }
    lanes_wide_store(mean, near);
    lanes_wide_store(var, sums.b);
    for (int l = 0; l < LANES_WIDTH; l++) {
        stat[l] = (float)mean[l];
        stat[LANES_WIDTH + l] = (float)(1 / sqrt((var[l] < 0 ? 0 : var[l]) + (double)eps));
    }
}

static inline void lanes_group_normalise(const float *x, lanes_group s, const float *stat, const float *scale,
                                         const float *shift, float *y)
{
    lanes_acc mean = lanes_acc_load(stat), rstd = lanes_acc_load(stat + LANES_WIDTH);

    for (int c = 0; c < s.channels; c++) {
        lanes_acc factor = rstd;
        lanes_vec level = lanes_all(shift[c]);

        for (int i = 0; i < LANES_VECS; i++)
            factor.v[i] *= scale[c];
        for (size_t p = 0; p < s.pixels; p++, x += LANES_WIDTH, y += LANES_WIDTH)
            for (int i = 0; i < LANES_VECS; i++)
                lanes_store(y + i * LANES_VEC, (lanes_load(x + i * LANES_VEC) - mean.v[i]) * factor.v[i] + level);
    }
}

/* x, y: (C, pixels); scale, shift: (C); stat: (groups, 2) of each lane. y may be x itself. */
static inline void lanes_group_norm_forward(const float *x, int C, size_t pixels, int groups, const float *scale,
                                            const float *shift, float eps, float *stat, float *y)
{
    lanes_group s = {C / groups, pixels};

    for (int g = 0; g < groups; g++, stat += 2 * LANES_WIDTH) {
        size_t at = (size_t)g * lanes_group_size(s);

        lanes_group_statistics(x + at, (size_t)s.channels * pixels, eps, stat);
        lanes_group_normalise(x + at, s, stat, scale + g * s.channels, shift + g * s.channels, y + at);
    }
}

/* For one group: the lanes' sums over it of g scale (a) and g scale (x - mean) (b), and the block's part of the
 * gradients of scale and shift. */
static inline void lanes_group_sums(const float *x, const float *g, lanes_group s, const float *stat,
                                    const float *scale, int n_valid, lanes_sums *sums, float *dscale, float *dshift)
{
    lanes_acc mean = lanes_acc_load(stat);
    lanes_wide rstd = lanes_widen(lanes_acc_load(stat + LANES_WIDTH));

    for (int c = 0; c < s.channels; c++, x += s.pixels * LANES_WIDTH, g += s.pixels * LANES_WIDTH) {
        lanes_sums plane = {0};

        lanes_product_sums(g, x, s.pixels, mean, &plane);
        dshift[c] = (float)lanes_join(plane.a, n_valid);
        for (int i = 0; i < LANES_WIDE_VECS; i++) {
            sums->a.v[i] += (double)scale[c] * plane.a.v[i];
            sums->b.v[i] += (double)scale[c] * plane.b.v[i];
            plane.b.v[i] *= rstd.v[i];
        }
        dscale[c] = (float)lanes_join(plane.b, n_valid);
    }
}

/* What the gradient of a group needs, of each lane. */
typedef struct lanes_group_pull {
    lanes_acc mean, rstd, mean_g, slope;
} lanes_group_pull;

static inline lanes_group_pull lanes_group_pull_of(lanes_group s, const float *stat, const lanes_sums *sums)
{
    float mean_g[LANES_WIDTH] __attribute__((aligned(64))), slope[LANES_WIDTH] __attribute__((aligned(64)));
    double sum_g[LANES_WIDTH] __attribute__((aligned(64))), sum_gx[LANES_WIDTH] __attribute__((aligned(64)));
    double share = 1 / ((double)s.channels * (double)s.pixels);

    lanes_wide_store(sum_g, sums->a);
    lanes_wide_store(sum_gx, sums->b);
    for (int l = 0; l < LANES_WIDTH; l++) {
        double rstd = (double)stat[LANES_WIDTH + l];

        mean_g[l] = (float)(sum_g[l] * share);
        slope[l] = (float)(sum_gx[l] * share * rstd * rstd);
    }
    return (lanes_group_pull){lanes_acc_load(stat), lanes_acc_load(stat + LANES_WIDTH), lanes_acc_load(mean_g),
                              lanes_acc_load(slope)};
}

/* dx = (g scale - mean_g - (x - mean) slope) / std. */
LANES_INLINE void lanes_group_dx(const float *x, const float *g, lanes_group s, lanes_group_pull pull,
                                 const float *scale, bool add, float *dx)
{
    for (int c = 0; c < s.channels; c++) {
        lanes_vec factor = lanes_all(scale[c]);

        for (size_t p = 0; p < s.pixels; p++, x += LANES_WIDTH, g += LANES_WIDTH, dx += LANES_WIDTH)
            for (int i = 0; i < LANES_VECS; i++) {
                lanes_vec off = lanes_load(x + i * LANES_VEC) - pull.mean.v[i];
                lanes_vec part = lanes_load(g + i * LANES_VEC) * factor - (off * pull.slope.v[i] + pull.mean_g.v[i]);

                lanes_put(dx + i * LANES_VEC, add, part * pull.rstd.v[i]);
            }
    }
}

/* dscale, dshift: (C) the block's part; dx may be NULL, or g itself when it is not added to. */
static inline void lanes_group_norm_back(const float *x, const float *g, int C, size_t pixels, int groups,
                                         const float *scale, const float *stat, int n_valid, bool add, float *dx,
                                         float *dscale, float *dshift)
{
    lanes_group s = {C / groups, pixels};

    for (int k = 0; k < groups; k++, stat += 2 * LANES_WIDTH) {
        size_t at = (size_t)k * lanes_group_size(s);
        int first = k * s.channels;
        lanes_sums sums = {0};

        lanes_group_sums(x + at, g + at, s, stat, scale + first, n_valid, &sums, dscale + first, dshift + first);
        if (dx != NULL && add)
            lanes_group_dx(x + at, g + at, s, lanes_group_pull_of(s, stat, &sums), scale + first, true, dx + at);
        else if (dx != NULL)
            lanes_group_dx(x + at, g + at, s, lanes_group_pull_of(s, stat, &sums), scale + first, false, dx + at);
    }
    if (dx != NULL)
        lanes_clear_rest(dx, (size_t)C * pixels, n_valid);
}

#endif
