/* Internal. What moves or scales the pixels of a block: max pool, global mean, products with a factor a channel.
 *
 * Gradients are written, or added to what is there where `add` is set. */
#ifndef ESPER_TENSOR_CPU_LANES_POOL_H
#define ESPER_TENSOR_CPU_LANES_POOL_H

#include <stdbool.h>
#include <string.h>

#include "tensor/cpu/lanes_sums.h"

LANES_INLINE void lanes_put(float *to, bool add, lanes_vec v)
{
    if (add)
        v += lanes_load(to);
    lanes_store(to, v);
}

/* Sets the lanes from n_valid on to 0 in `pixels` pixels. */
static inline void lanes_clear_rest(float *x, size_t pixels, int n_valid)
{
    if (n_valid == LANES_WIDTH)
        return;
    for (size_t i = 0; i < pixels; i++)
        memset(x + i * LANES_WIDTH + n_valid, 0, (size_t)(LANES_WIDTH - n_valid) * sizeof(float));
}

/* ------------------------------------------------------------------------------------------------ ReLU */

/* The reference's "0 where x <= 0, else x": NaN stays. */
LANES_INLINE lanes_vec lanes_relu(lanes_vec x)
{
    return lanes_max((lanes_vec){0}, x);
}

/* g where ReLU's output or input x lets it through; NaN does. */
LANES_INLINE lanes_vec lanes_relu_let(lanes_vec x, lanes_vec g)
{
    return (lanes_vec)(~(lanes_mask)(x <= 0) & (lanes_mask)g);
}

/* ------------------------------------------------------------------------------------------------ max pool */

/* Where one of two is NaN. */
LANES_INLINE lanes_mask lanes_unordered(lanes_vec a, lanes_vec b)
{
#if defined(__AVX512F__)
    return (lanes_mask)_mm512_movm_epi32(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q));
#elif defined(__AVX__)
    return (lanes_mask)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q);
#elif defined(__SSE__)
    return (lanes_mask)_mm_cmpunord_ps((__m128)a, (__m128)b);
#else
    return (lanes_mask)(a != a) | (lanes_mask)(b != b);
#endif
}

/* The largest of a window; NaN when there is one among them. */
LANES_INLINE lanes_vec lanes_largest(lanes_vec a, lanes_vec b, lanes_vec c, lanes_vec d)
{
    lanes_vec most = lanes_max(lanes_max(a, b), lanes_max(c, d));
    lanes_mask none = lanes_unordered(a, b) | lanes_unordered(c, d);

    return (lanes_vec)((lanes_mask)most | none);
}

/* Where b takes the place of a as the first maximum, NaN being the largest: b is not <= a, and a is no NaN. */
LANES_INLINE lanes_mask lanes_beats(lanes_vec b, lanes_vec a)
{
#if defined(__AVX__) && !defined(__AVX512F__)
    return (lanes_mask)_mm256_and_ps(_mm256_cmp_ps((__m256)b, (__m256)a, _CMP_NLE_UQ),
                                     _mm256_cmp_ps((__m256)a, (__m256)a, _CMP_ORD_Q));
#else
    return ~(lanes_mask)(b <= a) & ~lanes_unordered(a, a);
#endif
}

/* lanes_select by the instruction for it: where several choices have one mask, gcc makes three operations of each. */
LANES_INLINE lanes_vec lanes_blend(lanes_mask mask, lanes_vec if_set, lanes_vec if_not)
{
#if defined(__AVX512F__)
    return (lanes_vec)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)if_not, (__m512)if_set);
#elif defined(__AVX__)
    return (lanes_vec)_mm256_blendv_ps((__m256)if_not, (__m256)if_set, (__m256)mask);
#else
    return lanes_select(mask, if_set, if_not);
#endif
}

/* Which pixel of a window is its first maximum in row-major order. */
typedef struct lanes_winner {
    lanes_mask right_above, right_below; /* of the upper and of the lower two pixels the right one */
    lanes_mask below;                    /* one of the lower two */
} lanes_winner;

/* w: upper left, upper right, lower left, lower right. The maximum itself is left in most_out. */
LANES_INLINE lanes_winner lanes_find_winner(const lanes_vec w[4], lanes_vec *most_out)
{
    lanes_winner at = {.right_above = lanes_beats(w[1], w[0]), .right_below = lanes_beats(w[3], w[2])};
    lanes_vec above = lanes_blend(at.right_above, w[1], w[0]), below = lanes_blend(at.right_below, w[3], w[2]);

    at.below = lanes_beats(below, above);
    *most_out = lanes_blend(at.below, below, above);
    return at;
}

/* Gives g to the winner and 0 to the others. */
LANES_INLINE void lanes_give(lanes_winner at, lanes_vec g, lanes_vec to[4])
{
    lanes_mask below = at.below & (lanes_mask)g, above = ~at.below & (lanes_mask)g;

    to[0] = (lanes_vec)(~at.right_above & above);
    to[1] = (lanes_vec)(at.right_above & above);
    to[2] = (lanes_vec)(~at.right_below & below);
    to[3] = (lanes_vec)(at.right_below & below);
}

/* The four pixels of a window, one vector of each; x points into its upper left pixel. */
LANES_INLINE void lanes_load_window(const float *x, size_t W, lanes_vec w[4])
{
    w[0] = lanes_load(x);
    w[1] = lanes_load(x + LANES_WIDTH);
    w[2] = lanes_load(x + W * LANES_WIDTH);
    w[3] = lanes_load(x + (W + 1) * LANES_WIDTH);
}

/* y: (C, H/2, W/2). */
static inline void lanes_max_pool_forward(const float *x, int C, int H, int W, float *y)
{
    size_t row = (size_t)W * LANES_WIDTH;

    for (int c = 0; c < C; c++, x += (size_t)H * row)
        for (int h = 0; h + 1 < H; h += 2)
            for (int w = 0; w + 1 < W; w += 2)
                for (int i = 0; i < LANES_WIDTH; i += LANES_VEC, y += LANES_VEC) {
                    lanes_vec in[4];

                    lanes_load_window(x + (size_t)h * row + w * LANES_WIDTH + i, (size_t)W, in);
                    lanes_store(y, lanes_largest(in[0], in[1], in[2], in[3]));
                }
}

/* The windows of two rows. */
LANES_INLINE void lanes_max_pool_back_rows(const float *x, const float *g, int W, bool add, float *dx)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < LANES_WIDTH; i += LANES_VEC, g += LANES_VEC) {
            float *to = dx + w * LANES_WIDTH + i;
            lanes_vec in[4], part[4], most;

            lanes_load_window(x + w * LANES_WIDTH + i, (size_t)W, in);
            lanes_give(lanes_find_winner(in, &most), lanes_load(g), part);
            lanes_put(to, add, part[0]);
            lanes_put(to + LANES_WIDTH, add, part[1]);
            lanes_put(to + (size_t)W * LANES_WIDTH, add, part[2]);
            lanes_put(to + (size_t)(W + 1) * LANES_WIDTH, add, part[3]);
        }
}

LANES_INLINE void lanes_max_pool_back_as(const float *x, const float *g, int C, int H, int W, bool add, float *dx)
{
    size_t row = (size_t)W * LANES_WIDTH;

    for (int c = 0; c < C; c++, x += (size_t)H * row, dx += (size_t)H * row) {
        for (int h = 0; h + 1 < H; h += 2, g += (size_t)(W / 2) * LANES_WIDTH)
            lanes_max_pool_back_rows(x + (size_t)h * row, g, W, add, dx + (size_t)h * row);
        if (!add && H % 2 != 0)
            memset(dx + (size_t)(H - 1) * row, 0, row * sizeof(float));
        for (int h = 0; !add && W % 2 != 0 && h < H; h++)
            memset(dx + (size_t)(h + 1) * row - LANES_WIDTH, 0, LANES_WIDTH * sizeof(float));
    }
}

static inline void lanes_max_pool_back(const float *x, const float *g, int C, int H, int W, bool add, float *dx)
{
    if (add)
        lanes_max_pool_back_as(x, g, C, H, W, true, dx);
    else
        lanes_max_pool_back_as(x, g, C, H, W, false, dx);
}

/* ------------------------------------------------------------------------------------------------ global mean */

/* (C, pixels) -> (C) */
static inline void lanes_global_mean_forward(const float *x, int C, size_t pixels, float *y)
{
    for (int c = 0; c < C; c++, x += pixels * LANES_WIDTH, y += LANES_WIDTH) {
        double lane[LANES_WIDTH] __attribute__((aligned(64)));
        lanes_wide sum = {0};

        lanes_plain_sums(x, pixels, &sum);
        lanes_wide_store(lane, sum);
        for (int l = 0; l < LANES_WIDTH; l++)
            y[l] = (float)(lane[l] / (double)pixels);
    }
}

LANES_INLINE void lanes_spread_as(const float *g, int C, size_t pixels, bool add, float *dx)
{
    float part = 1 / (float)pixels;

    for (int c = 0; c < C; c++, g += LANES_WIDTH) {
        lanes_acc each = lanes_acc_load(g);

        for (int i = 0; i < LANES_VECS; i++)
            each.v[i] *= part;
        for (size_t p = 0; p < pixels; p++, dx += LANES_WIDTH)
            for (int i = 0; i < LANES_VECS; i++)
                lanes_put(dx + i * LANES_VEC, add, each.v[i]);
    }
}

static inline void lanes_global_mean_back(const float *g, int C, size_t pixels, bool add, float *dx)
{
    if (add)
        lanes_spread_as(g, C, pixels, true, dx);
    else
        lanes_spread_as(g, C, pixels, false, dx);
}

/* ------------------------------------------------------------------------------------- one factor for a channel */

/* to = from times a factor that each lane has its own of. */
LANES_INLINE void lanes_scale_plane(const float *from, lanes_acc factor, size_t pixels, bool add, float *to)
{
    for (size_t p = 0; p < pixels; p++, from += LANES_WIDTH, to += LANES_WIDTH)
        for (int i = 0; i < LANES_VECS; i++)
            lanes_put(to + i * LANES_VEC, add, lanes_load(from + i * LANES_VEC) * factor.v[i]);
}

/* Two loops for the two cases, that the choice is not made for every pixel. */
static inline void lanes_put_scaled(const float *from, lanes_acc factor, size_t pixels, bool add, float *to)
{
    if (add)
        lanes_scale_plane(from, factor, pixels, true, to);
    else
        lanes_scale_plane(from, factor, pixels, false, to);
}

/* mul: a (C, pixels) times b (C) of the same sample. Two like tensors are C = their elements and pixels = 1. With the
 * gradient of y in the place of a, what comes out is the gradient of a. */
static inline void lanes_mul(const float *a, const float *b, int C, size_t pixels, bool add, float *y)
{
    for (int c = 0; c < C; c++)
        lanes_put_scaled(a + (size_t)c * pixels * LANES_WIDTH, lanes_acc_load(b + (size_t)c * LANES_WIDTH), pixels, add,
                         y + (size_t)c * pixels * LANES_WIDTH);
}

/* The gradient of b: for each channel the sum of g a over the pixels. */
static inline void lanes_mul_back_b(const float *g, const float *a, int C, size_t pixels, bool add, float *db)
{
    for (int c = 0; c < C; c++, g += pixels * LANES_WIDTH, a += pixels * LANES_WIDTH, db += LANES_WIDTH) {
        double lane[LANES_WIDTH] __attribute__((aligned(64)));
        lanes_sums sums = {0};

        lanes_product_sums(g, a, pixels, (lanes_acc){0}, &sums);
        lanes_wide_store(lane, sums.b);
        for (int l = 0; l < LANES_WIDTH; l++)
            db[l] = (add ? db[l] : 0) + (float)lane[l];
    }
}

/* channel_scale: x (C, pixels) times a parameter s (C); with the gradient of y in the place of x, the gradient of x. */
static inline void lanes_channel_scale(const float *x, const float *s, int C, size_t pixels, bool add, float *y)
{
    for (int c = 0; c < C; c++) {
        lanes_acc factor;

        for (int i = 0; i < LANES_VECS; i++)
            factor.v[i] = lanes_all(s[c]);
        lanes_put_scaled(x + (size_t)c * pixels * LANES_WIDTH, factor, pixels, add,
                         y + (size_t)c * pixels * LANES_WIDTH);
    }
}

/* The block's part of the gradient of s. */
static inline void lanes_channel_scale_back_s(const float *g, const float *x, int C, size_t pixels, int n_valid,
                                              double *ds)
{
    for (int c = 0; c < C; c++, g += pixels * LANES_WIDTH, x += pixels * LANES_WIDTH) {
        lanes_sums sums = {0};

        lanes_product_sums(g, x, pixels, (lanes_acc){0}, &sums);
        ds[c] = lanes_join(sums.b, n_valid);
    }
}

#endif
