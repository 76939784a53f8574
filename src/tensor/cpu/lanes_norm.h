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
#ifndef ESPER_TENSOR_CPU_LANES_NORM_H
#define ESPER_TENSOR_CPU_LANES_NORM_H

#include "tensor/cpu/lanes_pool.h"

/* ------------------------------------------------------------------------------------------------ statistics */

/* Of one channel of a block, or of several: sums over the pixels of the valid lanes. About zero, which all blocks have in
 * common: in double that costs the variance some m^2 2^-53 at a mean of m, which is no more than the values' own rounding to
 * float has added to it. */
typedef struct lanes_moments {
    double sum, squares;
} lanes_moments;

/* One channel of a block. Good where the mean is far larger than the deviations, too. */
static inline void lanes_norm_moments(const float *plane, size_t pixels, int n_valid, lanes_moments *out)
{
    lanes_acc centre = lanes_near_mean(plane, pixels);
    lanes_wide mean = lanes_widen(centre), m2;
    double n = (double)pixels, share = 1 / n, total, mean_all;
    lanes_sums sums = {0};

    lanes_moment_sums(plane, pixels, centre, &sums);
    for (int i = 0; i < LANES_WIDE_VECS; i++)
        mean.v[i] += sums.a.v[i] * share;
    mean_all = lanes_join(mean, n_valid) / n_valid;
    for (int i = 0; i < LANES_WIDE_VECS; i++) {
        lanes_wide_vec off = mean.v[i] - mean_all; /* of the lane's mean from that of all */

        m2.v[i] = sums.b.v[i] - sums.a.v[i] * sums.a.v[i] * share + off * off * n;
    }
    total = lanes_join(m2, n_valid);
    out->sum = mean_all * (n * n_valid);
    out->squares = (total < 0 ? 0 : total) + mean_all * mean_all * (n * n_valid);
}

/* The mean and the (biased) variance of `count` values. */
static inline void lanes_norm_statistics(lanes_moments of, double count, double *mean_out, double *var_out)
{
    double mean = of.sum / count, var = of.squares / count - mean * mean;

    *mean_out = mean;
    *var_out = var < 0 ? 0 : var;
}

/* ------------------------------------------------------------------------------------------------ one channel */

typedef struct lanes_affine {
    lanes_vec mean, factor, shift;
} lanes_affine;

LANES_INLINE lanes_affine lanes_affine_of(const float *mean, const float *factor, const float *shift, int c)
{
    return (lanes_affine){lanes_all(mean[c]), lanes_all(factor[c]), lanes_all(shift[c])};
}

/* z, given y - mean. */
LANES_INLINE lanes_vec lanes_affine_z(lanes_affine a, lanes_vec off)
{
    return off * a.factor + a.shift;
}

/* The window at y: each pixel's y - mean, and its z. */
LANES_INLINE void lanes_affine_window(lanes_affine a, const float *y, size_t W, lanes_vec off[4], lanes_vec z[4])
{
    lanes_load_window(y, W, off);
    for (int k = 0; k < 4; k++) {
        off[k] -= a.mean;
        z[k] = lanes_affine_z(a, off[k]);
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

LANES_INLINE void lanes_norm_forward_pooled(const float *y, int H, int W, lanes_affine a, bool relu, float *out)
{
    size_t row = (size_t)W * LANES_WIDTH;

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row)
        for (int w = 0; w + 1 < W; w += 2)
            for (int i = 0; i < LANES_WIDTH; i += LANES_VEC, out += LANES_VEC) {
                lanes_vec off[4], z[4], most;

                lanes_affine_window(a, y + w * LANES_WIDTH + i, (size_t)W, off, z);
                most = lanes_largest(z[0], z[1], z[2], z[3]);
                lanes_store(out, relu ? lanes_relu(most) : most);
            }
}

LANES_INLINE void lanes_norm_forward_flat(const float *y, size_t pixels, lanes_affine a, bool relu, float *out)
{
    for (size_t i = 0; i < pixels * LANES_WIDTH; i += LANES_VEC) {
        lanes_vec z = lanes_affine_z(a, lanes_load(y + i) - a.mean);

        lanes_store(out + i, relu ? lanes_relu(z) : z);
    }
}

LANES_INLINE void lanes_norm_forward_as(const float *y, int C, int H, int W, const float *mean, const float *factor,
                                        const float *shift, bool relu, bool pool, float *out)
{
    size_t pixels = (size_t)H * (size_t)W, out_pixels = pool ? (size_t)(H / 2) * (size_t)(W / 2) : pixels;

    for (int c = 0; c < C; c++, y += pixels * LANES_WIDTH, out += out_pixels * LANES_WIDTH) {
        lanes_affine a = lanes_affine_of(mean, factor, shift, c);

        if (pool)
            lanes_norm_forward_pooled(y, H, W, a, relu, out);
        else
            lanes_norm_forward_flat(y, pixels, a, relu, out);
    }
}

/* out: (C, H, W), or (C, H/2, W/2) when pooled; may be y itself when not. */
static inline void lanes_norm_forward(const float *y, int C, int H, int W, const float *mean, const float *factor,
                                      const float *shift, bool relu, bool pool, float *out)
{
    if (relu && pool)
        lanes_norm_forward_as(y, C, H, W, mean, factor, shift, true, true, out);
    else if (relu)
        lanes_norm_forward_as(y, C, H, W, mean, factor, shift, true, false, out);
    else if (pool)
        lanes_norm_forward_as(y, C, H, W, mean, factor, shift, false, true, out);
    else
        lanes_norm_forward_as(y, C, H, W, mean, factor, shift, false, false, out);
}

/* ------------------------------------------------------------------------------------------------ sums of gradients */

/* The windows of two rows: of each the gradient g, where ReLU lets it through, times its largest pixel's y - mean. */
LANES_INLINE void lanes_norm_sums_rows(const float *y, const float *g, int W, lanes_affine a, bool relu,
                                       lanes_acc *sum_g, lanes_acc *sum_gy)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < LANES_VECS; i++, g += LANES_VEC) {
            lanes_vec off[4], z[4], most, above, below, grad = lanes_load(g);
            lanes_winner at;

            lanes_affine_window(a, y + w * LANES_WIDTH + i * LANES_VEC, (size_t)W, off, z);
            at = lanes_find_winner(z, &most);
            above = lanes_blend(at.right_above, off[1], off[0]);
            below = lanes_blend(at.right_below, off[3], off[2]);
            if (relu)
                grad = lanes_relu_let(most, grad);
            sum_g->v[i] += grad;
            sum_gy->v[i] += grad * lanes_blend(at.below, below, above);
        }
}

LANES_INLINE void lanes_norm_sums_pooled(const float *y, const float *g, int H, int W, lanes_affine a, bool relu,
                                         lanes_sums *sums)
{
    size_t row = (size_t)W * LANES_WIDTH, g_row = (size_t)(W / 2) * LANES_WIDTH;
    int windows = 0; /* in this run */
    lanes_acc sum_g = {0}, sum_gy = {0};

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row, g += g_row) {
        lanes_norm_sums_rows(y, g, W, a, relu, &sum_g, &sum_gy);
        windows += W / 2;
        if (windows < LANES_RUN && h + 3 < H)
            continue;
        lanes_add_wide(&sums->a, sum_g);
        lanes_add_wide(&sums->b, sum_gy);
        sum_g = sum_gy = (lanes_acc){0};
        windows = 0;
    }
}

/* Adds one pixel's gradient. */
LANES_INLINE void lanes_norm_sums_pixel(const float *y, const float *g, lanes_affine a, bool relu, lanes_vec *sum_g,
                                        lanes_vec *sum_gy)
{
    lanes_vec off = lanes_load(y) - a.mean, grad = lanes_load(g);

    if (relu)
        grad = lanes_relu_let(lanes_affine_z(a, off), grad);
    *sum_g += grad;
    *sum_gy += grad * off;
}

/* `n` pixels, `step` apart, that no window holds. */
LANES_INLINE void lanes_norm_sums_rest(const float *y, const float *g, int n, size_t step, lanes_affine a, bool relu,
                                       lanes_sums *sums)
{
    lanes_acc sum_g = {0}, sum_gy = {0};

    for (int p = 0; p < n; p++, y += step, g += step)
        for (int i = 0; i < LANES_VECS; i++)
            lanes_norm_sums_pixel(y + i * LANES_VEC, g + i * LANES_VEC, a, relu, &sum_g.v[i], &sum_gy.v[i]);
    lanes_add_wide(&sums->a, sum_g);
    lanes_add_wide(&sums->b, sum_gy);
}

/* Without a pool pixels are taken in the same order, window by window: where a pool that follows by itself has left three
 * gradients of each window 0, the sums are those of the fused pool, bit for bit. So a network whose pool could not be fused,
 * for a seed stands before it, goes on as it would have. */
LANES_INLINE void lanes_norm_sums_flat(const float *y, const float *g, int H, int W, lanes_affine a, bool relu,
                                       lanes_sums *sums)
{
    size_t row = (size_t)W * LANES_WIDTH;
    int windows = 0; /* in this run */
    lanes_acc sum_g = {0}, sum_gy = {0};

    for (int h = 0; h + 1 < H; h += 2) {
        size_t first = (size_t)h * row;

        for (int w = 0; w + 1 < W; w += 2)
            for (int i = 0; i < LANES_VECS; i++)
                for (int k = 0; k < 4; k++) {
                    size_t at = first + (size_t)(w + k % 2) * LANES_WIDTH + (k < 2 ? 0 : row) + (size_t)i * LANES_VEC;

                    lanes_norm_sums_pixel(y + at, g + at, a, relu, &sum_g.v[i], &sum_gy.v[i]);
                }
        windows += W / 2;
        if (windows < LANES_RUN && h + 3 < H)
            continue;
        lanes_add_wide(&sums->a, sum_g);
        lanes_add_wide(&sums->b, sum_gy);
        sum_g = sum_gy = (lanes_acc){0};
        windows = 0;
    }
    if (H % 2 != 0)
        lanes_norm_sums_rest(y + (size_t)(H - 1) * row, g + (size_t)(H - 1) * row, W, LANES_WIDTH, a, relu, sums);
    if (W % 2 != 0)
        lanes_norm_sums_rest(y + row - LANES_WIDTH, g + row - LANES_WIDTH, H - H % 2, row, a, relu, sums);
}

LANES_INLINE void lanes_norm_sums_as(const float *y, const float *g_out, int C, int H, int W, const float *mean,
                                     const float *factor, const float *shift, bool relu, bool pool, int n_valid,
                                     double *sums)
{
    size_t pixels = (size_t)H * (size_t)W, out_pixels = pool ? (size_t)(H / 2) * (size_t)(W / 2) : pixels;

    for (int c = 0; c < C; c++, y += pixels * LANES_WIDTH, g_out += out_pixels * LANES_WIDTH) {
        lanes_affine a = lanes_affine_of(mean, factor, shift, c);
        lanes_sums lane = {0};

        if (pool)
            lanes_norm_sums_pooled(y, g_out, H, W, a, relu, &lane);
        else
            lanes_norm_sums_flat(y, g_out, H, W, a, relu, &lane);
        sums[2 * c] = lanes_join(lane.a, n_valid);
        sums[2 * c + 1] = lanes_join(lane.b, n_valid);
    }
}

/* The block's part of two sums for each channel, (C, 2): of g and of g (y - mean), g being the gradient of z. Pixels
 * that are no maximum of a window are passed over: where y is not finite at one of them, the reference's 0 times it is
 * not. In training that cannot differ, as the mean is NaN then. */
static inline void lanes_norm_sums(const float *y, const float *g_out, int C, int H, int W, const float *mean,
                                   const float *factor, const float *shift, bool relu, bool pool, int n_valid,
                                   double *sums)
{
    if (relu && pool)
        lanes_norm_sums_as(y, g_out, C, H, W, mean, factor, shift, true, true, n_valid, sums);
    else if (relu)
        lanes_norm_sums_as(y, g_out, C, H, W, mean, factor, shift, true, false, n_valid, sums);
    else if (pool)
        lanes_norm_sums_as(y, g_out, C, H, W, mean, factor, shift, false, true, n_valid, sums);
    else
        lanes_norm_sums_as(y, g_out, C, H, W, mean, factor, shift, false, false, n_valid, sums);
}

/* ------------------------------------------------------------------------------------------------ backward */

/* What is taken from g * factor everywhere: level + (y - mean) * tilt. */
typedef struct lanes_norm_pull {
    lanes_vec level, tilt;
} lanes_norm_pull;

LANES_INLINE lanes_vec lanes_norm_dy(lanes_vec g_factor, lanes_vec off, lanes_norm_pull pull)
{
    return g_factor - (off * pull.tilt + pull.level);
}

/* Pixels that belong to no window: their g is 0. */
LANES_INLINE void lanes_norm_back_rest(const float *y, size_t pixels, lanes_affine a, lanes_norm_pull pull, float *dy)
{
    for (size_t i = 0; i < pixels * LANES_WIDTH; i += LANES_VEC)
        lanes_store(dy + i, lanes_norm_dy((lanes_vec){0}, lanes_load(y + i) - a.mean, pull));
}

LANES_INLINE void lanes_norm_back_rows(const float *y, const float *g, int W, lanes_affine a, lanes_norm_pull pull,
                                       bool relu, float *dy)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < LANES_WIDTH; i += LANES_VEC, g += LANES_VEC) {
            lanes_vec off[4], z[4], part[4], most, grad = lanes_load(g) * a.factor;
            float *to = dy + w * LANES_WIDTH + i;
            lanes_winner at;

            lanes_affine_window(a, y + w * LANES_WIDTH + i, (size_t)W, off, z);
            at = lanes_find_winner(z, &most);
            if (relu)
                grad = lanes_relu_let(most, grad);
            lanes_give(at, grad, part);
            lanes_store(to, lanes_norm_dy(part[0], off[0], pull));
            lanes_store(to + LANES_WIDTH, lanes_norm_dy(part[1], off[1], pull));
            lanes_store(to + (size_t)W * LANES_WIDTH, lanes_norm_dy(part[2], off[2], pull));
            lanes_store(to + (size_t)(W + 1) * LANES_WIDTH, lanes_norm_dy(part[3], off[3], pull));
        }
}

LANES_INLINE void lanes_norm_back_pooled(const float *y, const float *g, int H, int W, lanes_affine a,
                                         lanes_norm_pull pull, bool relu, float *dy)
{
    size_t row = (size_t)W * LANES_WIDTH, last = row - LANES_WIDTH;

    for (int h = 0; h + 1 < H; h += 2, y += 2 * row, dy += 2 * row, g += (size_t)(W / 2) * LANES_WIDTH) {
        lanes_norm_back_rows(y, g, W, a, pull, relu, dy);
        if (W % 2 != 0) {
            lanes_norm_back_rest(y + last, 1, a, pull, dy + last);
            lanes_norm_back_rest(y + row + last, 1, a, pull, dy + row + last);
        }
    }
    if (H % 2 != 0)
        lanes_norm_back_rest(y, (size_t)W, a, pull, dy);
}

LANES_INLINE void lanes_norm_back_flat(const float *y, const float *g, size_t pixels, lanes_affine a,
                                       lanes_norm_pull pull, bool relu, float *dy)
{
    for (size_t i = 0; i < pixels * LANES_WIDTH; i += LANES_VEC) {
        lanes_vec off = lanes_load(y + i) - a.mean, grad = lanes_load(g + i) * a.factor;

        if (relu)
            grad = lanes_relu_let(lanes_affine_z(a, off), grad);
        lanes_store(dy + i, lanes_norm_dy(grad, off, pull));
    }
}

LANES_INLINE void lanes_norm_back_as(const float *y, const float *g_out, int C, int H, int W, const float *mean,
                                     const float *factor, const float *shift, const float *mean_g, const float *slope,
                                     bool relu, bool pool, float *dy)
{
    size_t pixels = (size_t)H * (size_t)W, size = pixels * LANES_WIDTH;
    size_t out_size = pool ? (size_t)(H / 2) * (size_t)(W / 2) * LANES_WIDTH : size;

    for (int c = 0; c < C; c++, y += size, dy += size, g_out += out_size) {
        lanes_affine a = lanes_affine_of(mean, factor, shift, c);
        lanes_norm_pull pull = {lanes_all(mean_g[c] * factor[c]), lanes_all(slope[c] * factor[c])};

        if (pool)
            lanes_norm_back_pooled(y, g_out, H, W, a, pull, relu, dy);
        else
            lanes_norm_back_flat(y, g_out, pixels, a, pull, relu, dy);
    }
}

/* dy = (g - mean_g - (y - mean) * slope) * factor, 0 in lanes that are not valid. mean_g and slope are the means over
 * the batch of g and of g (y - mean) / var, or 0 where the statistics were fixed. dy may be y itself. */
static inline void lanes_norm_back(const float *y, const float *g_out, int C, int H, int W, const float *mean,
                                   const float *factor, const float *shift, const float *mean_g, const float *slope,
                                   bool relu, bool pool, int n_valid, float *dy)
{
    if (relu && pool)
        lanes_norm_back_as(y, g_out, C, H, W, mean, factor, shift, mean_g, slope, true, true, dy);
    else if (relu)
        lanes_norm_back_as(y, g_out, C, H, W, mean, factor, shift, mean_g, slope, true, false, dy);
    else if (pool)
        lanes_norm_back_as(y, g_out, C, H, W, mean, factor, shift, mean_g, slope, false, true, dy);
    else
        lanes_norm_back_as(y, g_out, C, H, W, mean, factor, shift, mean_g, slope, false, false, dy);
    lanes_clear_rest(dy, (size_t)C * (size_t)H * (size_t)W, n_valid);
}

#endif
