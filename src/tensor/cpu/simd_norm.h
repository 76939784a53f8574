/* Internal. Batch norm of a convolution's output y, together with the ReLU and the 2 x 2 max pool that may follow.
 *
 *     z = (y - mean) * factor + shift,  factor = scale / std        out = pool(relu(z))
 *
 * Statistics are taken of each block when the convolution has just written it, and joined over the blocks afterwards.
 * Everything else is a single pass over y: nothing is kept but y and a few numbers a channel, z and the places of the
 * maxima being computed anew on the way back. What happens at ties, at 0 and with NaN is what the three operations of
 * the reference do one after the other.
 *
 * `relu` and `pool` are constants in each of the four versions of a pass. */
#ifndef ESPER_TENSOR_CPU_SIMD_NORM_H
#define ESPER_TENSOR_CPU_SIMD_NORM_H

#include "tensor/cpu/simd_pool.h"

/* ------------------------------------------------------------------------------------------------ statistics */

/* Of one channel of a block, or of several: sums over the pixels of the valid samples. About zero, which all blocks have in
 * common: in double that costs the variance some m^2 2^-53 at a mean of m, which is no more than the values' own rounding to
 * float has added to it. */
typedef struct simd_moments {
    double sum, squares;
} simd_moments;

/* One channel of a block. Good where the mean is far larger than the deviations, too. */
static inline void simd_norm_moments(const float *plane, size_t pixels, int n_valid, simd_moments *out)
{
    simd_acc centre = simd_near_mean(plane, pixels);
    simd_wide mean = simd_widen(centre), m2;
    double n = (double)pixels, share = 1 / n, total, mean_all;
    simd_sums sums = {0};

    simd_moment_sums(plane, pixels, centre, &sums);
    for (int i = 0; i < SIMD_WIDE_VECS; i++)
        mean.v[i] += sums.a.v[i] * share;
    mean_all = simd_join(mean, n_valid) / n_valid;
    for (int i = 0; i < SIMD_WIDE_VECS; i++) {
        simd_wide_vec off = mean.v[i] - mean_all; /* of the sample's mean from that of all */

        m2.v[i] = sums.b.v[i] - sums.a.v[i] * sums.a.v[i] * share + off * off * n;
    }
    total = simd_join(m2, n_valid);
    out->sum = mean_all * (n * n_valid);
    out->squares = (total < 0 ? 0 : total) + mean_all * mean_all * (n * n_valid);
}

/* The mean and the (biased) variance of `count` values. */
static inline void simd_norm_statistics(simd_moments of, double count, double *mean_out, double *var_out)
{
    double mean = of.sum / count, var = of.squares / count - mean * mean;

    *mean_out = mean;
    *var_out = var < 0 ? 0 : var;
}

/* ------------------------------------------------------------------------------------------------ one channel */

/* Maps of C channels, what each is normalised with, and what follows. */
typedef struct simd_norm {
    int          C, H, W;
    const float *mean, *factor, *shift; /* (C) */
    bool         relu, pool;
} simd_norm;

/* Floats of a channel of y, and of what comes out. */
SIMD_INLINE size_t simd_norm_size(const simd_norm *n, bool pool)
{
    return (size_t)(pool ? n->H / 2 : n->H) * (size_t)(pool ? n->W / 2 : n->W) * SIMD_WIDTH;
}

/* A pass with `relu` and `pool` as constants. */
#define SIMD_NORM_AS(pass, n, ...)              \
    do {                                        \
        if ((n)->relu && (n)->pool)             \
            pass(true, true, n, __VA_ARGS__);   \
        else if ((n)->relu)                     \
            pass(true, false, n, __VA_ARGS__);  \
        else if ((n)->pool)                     \
            pass(false, true, n, __VA_ARGS__);  \
        else                                    \
            pass(false, false, n, __VA_ARGS__); \
    } while (0)

typedef struct simd_affine {
    simd_vec mean, factor, shift;
} simd_affine;

SIMD_INLINE simd_affine simd_affine_of(const simd_norm *n, int c)
{
    return (simd_affine){simd_all(n->mean[c]), simd_all(n->factor[c]), simd_all(n->shift[c])};
}

/* z, given y - mean. */
SIMD_INLINE simd_vec simd_affine_z(simd_affine a, simd_vec off)
{
    return off * a.factor + a.shift;
}

/* The window at y: each pixel's y - mean, and its z. */
SIMD_INLINE void simd_affine_window(simd_affine a, const float *y, size_t W, simd_vec off[4], simd_vec z[4])
{
    simd_load_window(y, W, off);
    for (int k = 0; k < 4; k++) {
        off[k] -= a.mean;
        z[k] = simd_affine_z(a, off[k]);
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

SIMD_INLINE void simd_norm_forward_pooled(const float *y, int H, int W, simd_affine a, bool relu, float *out)
{
    size_t row = (size_t)W * SIMD_WIDTH;

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row)
        for (int w = 0; w + 1 < W; w += 2)
            for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC, out += SIMD_VEC) {
                simd_vec off[4], z[4], most;

                simd_affine_window(a, y + w * SIMD_WIDTH + i, (size_t)W, off, z);
                most = simd_largest(z[0], z[1], z[2], z[3]);
                simd_store(out, relu ? simd_relu(most) : most);
            }
}

SIMD_INLINE void simd_norm_forward_flat(const float *y, size_t pixels, simd_affine a, bool relu, float *out)
{
    for (size_t i = 0; i < pixels * SIMD_WIDTH; i += SIMD_VEC) {
        simd_vec z = simd_affine_z(a, simd_load(y + i) - a.mean);

        simd_store(out + i, relu ? simd_relu(z) : z);
    }
}

SIMD_INLINE void simd_norm_forward_as(bool relu, bool pool, const simd_norm *n, const float *y, float *out)
{
    for (int c = 0; c < n->C; c++, y += simd_norm_size(n, false), out += simd_norm_size(n, pool)) {
        if (pool)
            simd_norm_forward_pooled(y, n->H, n->W, simd_affine_of(n, c), relu, out);
        else
            simd_norm_forward_flat(y, (size_t)n->H * (size_t)n->W, simd_affine_of(n, c), relu, out);
    }
}

/* out: (C, H, W), or (C, H/2, W/2) when pooled; may be y itself when not. */
static inline void simd_norm_forward(const simd_norm *n, const float *y, float *out)
{
    SIMD_NORM_AS(simd_norm_forward_as, n, y, out);
}

/* ------------------------------------------------------------------------------------------------ sums of gradients */

SIMD_INLINE void simd_norm_end_run(simd_sums *sums, simd_acc *sum_g, simd_acc *sum_gy)
{
    simd_add_wide(&sums->a, *sum_g);
    simd_add_wide(&sums->b, *sum_gy);
    *sum_g = *sum_gy = (simd_acc){0};
}

/* The windows of two rows: of each the gradient g, where ReLU lets it through, times its largest pixel's y - mean. */
SIMD_INLINE void simd_norm_sums_rows(const float *y, const float *g, int W, simd_affine a, bool relu, simd_acc *sum_g,
                                     simd_acc *sum_gy)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < SIMD_VECS; i++, g += SIMD_VEC) {
            simd_vec off[4], z[4], most, above, below, grad = simd_load(g);
            simd_winner at;

            simd_affine_window(a, y + w * SIMD_WIDTH + i * SIMD_VEC, (size_t)W, off, z);
            at = simd_find_winner(z, &most);
            above = simd_blend(at.right_above, off[1], off[0]);
            below = simd_blend(at.right_below, off[3], off[2]);
            if (relu)
                grad = simd_relu_let(most, grad);
            sum_g->v[i] += grad;
            sum_gy->v[i] += grad * simd_blend(at.below, below, above);
        }
}

SIMD_INLINE void simd_norm_sums_pooled(const float *y, const float *g, int H, int W, simd_affine a, bool relu,
                                       simd_sums *sums)
{
    size_t row = (size_t)W * SIMD_WIDTH, g_row = (size_t)(W / 2) * SIMD_WIDTH;
    int windows = 0; /* in this run */
    simd_acc sum_g = {0}, sum_gy = {0};

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row, g += g_row) {
        simd_norm_sums_rows(y, g, W, a, relu, &sum_g, &sum_gy);
        windows += W / 2;
        if (windows < SIMD_RUN && h + 3 < H)
            continue;
        simd_norm_end_run(sums, &sum_g, &sum_gy);
        windows = 0;
    }
}

/* Adds one pixel's gradient. */
SIMD_INLINE void simd_norm_sums_pixel(const float *y, const float *g, simd_affine a, bool relu, simd_vec *sum_g,
                                      simd_vec *sum_gy)
{
    simd_vec off = simd_load(y) - a.mean, grad = simd_load(g);

    if (relu)
        grad = simd_relu_let(simd_affine_z(a, off), grad);
    *sum_g += grad;
    *sum_gy += grad * off;
}

/* `n` pixels, `step` apart, that no window holds. */
SIMD_INLINE void simd_norm_sums_rest(const float *y, const float *g, int n, size_t step, simd_affine a, bool relu,
                                     simd_sums *sums)
{
    simd_acc sum_g = {0}, sum_gy = {0};

    for (int p = 0; p < n; p++, y += step, g += step)
        for (int i = 0; i < SIMD_VECS; i++)
            simd_norm_sums_pixel(y + i * SIMD_VEC, g + i * SIMD_VEC, a, relu, &sum_g.v[i], &sum_gy.v[i]);
    simd_norm_end_run(sums, &sum_g, &sum_gy);
}

/* Without a pool pixels are taken in the same order, window by window: where a pool that follows by itself has left three
 * gradients of each window 0, the sums are those of the fused pool, bit for bit. So a network whose pool could not be fused,
 * for a seed stands before it, goes on as it would have. */
SIMD_INLINE void simd_norm_sums_flat(const float *y, const float *g, int H, int W, simd_affine a, bool relu,
                                     simd_sums *sums)
{
    size_t row = (size_t)W * SIMD_WIDTH;
    int windows = 0; /* in this run */
    simd_acc sum_g = {0}, sum_gy = {0};

    for (int h = 0; h + 1 < H; h += 2) {
        size_t first = (size_t)h * row;

        for (int w = 0; w + 1 < W; w += 2)
            for (int i = 0; i < SIMD_VECS; i++)
                for (int k = 0; k < 4; k++) {
                    size_t at = first + (size_t)(w + k % 2) * SIMD_WIDTH + (k < 2 ? 0 : row) + (size_t)i * SIMD_VEC;

                    simd_norm_sums_pixel(y + at, g + at, a, relu, &sum_g.v[i], &sum_gy.v[i]);
                }
        windows += W / 2;
        if (windows < SIMD_RUN && h + 3 < H)
            continue;
        simd_norm_end_run(sums, &sum_g, &sum_gy);
        windows = 0;
    }
    if (H % 2 != 0)
        simd_norm_sums_rest(y + (size_t)(H - 1) * row, g + (size_t)(H - 1) * row, W, SIMD_WIDTH, a, relu, sums);
    if (W % 2 != 0)
        simd_norm_sums_rest(y + row - SIMD_WIDTH, g + row - SIMD_WIDTH, H - H % 2, row, a, relu, sums);
}

SIMD_INLINE void simd_norm_sums_as(bool relu, bool pool, const simd_norm *n, const float *y, const float *g_out,
                                   int n_valid, double *sums)
{
    for (int c = 0; c < n->C; c++, y += simd_norm_size(n, false), g_out += simd_norm_size(n, pool)) {
        simd_sums own = {0};

        if (pool)
            simd_norm_sums_pooled(y, g_out, n->H, n->W, simd_affine_of(n, c), relu, &own);
        else
            simd_norm_sums_flat(y, g_out, n->H, n->W, simd_affine_of(n, c), relu, &own);
        sums[2 * c] = simd_join(own.a, n_valid);
        sums[2 * c + 1] = simd_join(own.b, n_valid);
    }
}

/* The block's part of two sums for each channel, (C, 2): of g and of g (y - mean), g being the gradient of z. Pixels
 * that are no maximum of a window are passed over: where y is not finite at one of them, the reference's 0 times it is
 * not. In training that cannot differ, as the mean is NaN then. */
static inline void simd_norm_sums(const simd_norm *n, const float *y, const float *g_out, int n_valid, double *sums)
{
    SIMD_NORM_AS(simd_norm_sums_as, n, y, g_out, n_valid, sums);
}

/* ------------------------------------------------------------------------------------------------ backward */

/* What is taken from g * factor everywhere: level + (y - mean) * tilt. */
typedef struct simd_norm_pull {
    simd_vec level, tilt;
} simd_norm_pull;

SIMD_INLINE simd_vec simd_norm_dy(simd_vec g_factor, simd_vec off, simd_norm_pull pull)
{
    return g_factor - (off * pull.tilt + pull.level);
}

/* Pixels that belong to no window: their g is 0. */
SIMD_INLINE void simd_norm_back_rest(const float *y, size_t pixels, simd_affine a, simd_norm_pull pull, float *dy)
{
    for (size_t i = 0; i < pixels * SIMD_WIDTH; i += SIMD_VEC)
        simd_store(dy + i, simd_norm_dy((simd_vec){0}, simd_load(y + i) - a.mean, pull));
}

SIMD_INLINE void simd_norm_back_rows(const float *y, const float *g, int W, simd_affine a, simd_norm_pull pull,
                                     bool relu, float *dy)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC, g += SIMD_VEC) {
            simd_vec off[4], z[4], part[4], most, grad = simd_load(g) * a.factor;
            float *to = dy + w * SIMD_WIDTH + i;
            simd_winner at;

            simd_affine_window(a, y + w * SIMD_WIDTH + i, (size_t)W, off, z);
            at = simd_find_winner(z, &most);
            if (relu)
                grad = simd_relu_let(most, grad);
            simd_give(at, grad, part);
            simd_store(to, simd_norm_dy(part[0], off[0], pull));
            simd_store(to + SIMD_WIDTH, simd_norm_dy(part[1], off[1], pull));
            simd_store(to + (size_t)W * SIMD_WIDTH, simd_norm_dy(part[2], off[2], pull));
            simd_store(to + (size_t)(W + 1) * SIMD_WIDTH, simd_norm_dy(part[3], off[3], pull));
        }
}

SIMD_INLINE void simd_norm_back_pooled(const float *y, const float *g, int H, int W, simd_affine a, simd_norm_pull pull,
                                       bool relu, float *dy)
{
    size_t row = (size_t)W * SIMD_WIDTH, last = row - SIMD_WIDTH;

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row, dy += 2 * row, g += (size_t)(W / 2) * SIMD_WIDTH) {
        simd_norm_back_rows(y, g, W, a, pull, relu, dy);
        if (W % 2 != 0) {
            simd_norm_back_rest(y + last, 1, a, pull, dy + last);
            simd_norm_back_rest(y + row + last, 1, a, pull, dy + row + last);
        }
    }
    if (H % 2 != 0)
        simd_norm_back_rest(y, (size_t)W, a, pull, dy);
}

SIMD_INLINE void simd_norm_back_flat(const float *y, const float *g, size_t pixels, simd_affine a, simd_norm_pull pull,
                                     bool relu, float *dy)
{
    for (size_t i = 0; i < pixels * SIMD_WIDTH; i += SIMD_VEC) {
        simd_vec off = simd_load(y + i) - a.mean, grad = simd_load(g + i) * a.factor;

        if (relu)
            grad = simd_relu_let(simd_affine_z(a, off), grad);
        simd_store(dy + i, simd_norm_dy(grad, off, pull));
    }
}

SIMD_INLINE void simd_norm_back_as(bool relu, bool pool, const simd_norm *n, const float *y, const float *g_out,
                                   const float *mean_g, const float *slope, float *dy)
{
    size_t size = simd_norm_size(n, false);

    for (int c = 0; c < n->C; c++, y += size, dy += size, g_out += simd_norm_size(n, pool)) {
        simd_affine a = simd_affine_of(n, c);
        simd_norm_pull pull = {simd_all(mean_g[c] * n->factor[c]), simd_all(slope[c] * n->factor[c])};

        if (pool)
            simd_norm_back_pooled(y, g_out, n->H, n->W, a, pull, relu, dy);
        else
            simd_norm_back_flat(y, g_out, (size_t)n->H * (size_t)n->W, a, pull, relu, dy);
    }
}

/* dy = (g - mean_g - (y - mean) * slope) * factor, 0 in samples that are not valid. mean_g and slope are the means over
 * the batch of g and of g (y - mean) / var, or 0 where the statistics were fixed. dy may be y itself. */
static inline void simd_norm_back(const simd_norm *n, const float *y, const float *g_out, const float *mean_g,
                                  const float *slope, int n_valid, float *dy)
{
    SIMD_NORM_AS(simd_norm_back_as, n, y, g_out, mean_g, slope, dy);
    simd_clear_rest(dy, (size_t)n->C * (size_t)n->H * (size_t)n->W, n_valid);
}

#endif
