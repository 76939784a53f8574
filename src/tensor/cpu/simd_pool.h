/* Internal. What moves or scales the pixels of a block: max pool, global mean, products with a factor a channel.
 *
 * Gradients are written, or added to what is there where `add` is set. */
#ifndef ESPER_TENSOR_CPU_SIMD_POOL_H
#define ESPER_TENSOR_CPU_SIMD_POOL_H

#include <stdbool.h>
#include <string.h>

#include "tensor/cpu/simd_sums.h"

SIMD_INLINE void simd_put(float *to, bool add, simd_vec v)
{
    if (add)
        v += simd_load(to);
    simd_store(to, v);
}

/* Sets the samples from n_valid on to 0 in `pixels` pixels. */
static inline void simd_clear_rest(float *x, size_t pixels, int n_valid)
{
    if (n_valid == SIMD_WIDTH)
        return;
    for (size_t i = 0; i < pixels; i++)
        memset(x + i * SIMD_WIDTH + n_valid, 0, (size_t)(SIMD_WIDTH - n_valid) * sizeof(float));
}

/* ------------------------------------------------------------------------------------------------ ReLU */

/* The reference's "0 where x <= 0, else x": NaN stays. */
SIMD_INLINE simd_vec simd_relu(simd_vec x)
{
    return simd_max((simd_vec){0}, x);
}

/* g where ReLU's output or input x lets it through; NaN does. */
SIMD_INLINE simd_vec simd_relu_let(simd_vec x, simd_vec g)
{
    return (simd_vec)(~(simd_mask)(x <= 0) & (simd_mask)g);
}

/* ------------------------------------------------------------------------------------------------ max pool */

/* Where one of two is NaN. */
SIMD_INLINE simd_mask simd_unordered(simd_vec a, simd_vec b)
{
#if defined(__AVX512F__)
    return (simd_mask)_mm512_movm_epi32(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q));
#elif defined(__AVX__)
    return (simd_mask)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q);
#elif defined(__SSE__)
    return (simd_mask)_mm_cmpunord_ps((__m128)a, (__m128)b);
#else
    return (simd_mask)(a != a) | (simd_mask)(b != b);
#endif
}

/* The largest of a window; NaN when there is one among them. */
SIMD_INLINE simd_vec simd_largest(simd_vec a, simd_vec b, simd_vec c, simd_vec d)
{
    simd_vec most = simd_max(simd_max(a, b), simd_max(c, d));
    simd_mask none = simd_unordered(a, b) | simd_unordered(c, d);

    return (simd_vec)((simd_mask)most | none);
}

/* Where b takes the place of a as the first maximum, NaN being the largest: b is not <= a, and a is no NaN. */
SIMD_INLINE simd_mask simd_beats(simd_vec b, simd_vec a)
{
#if defined(__AVX__) && !defined(__AVX512F__)
    return (simd_mask)_mm256_and_ps(_mm256_cmp_ps((__m256)b, (__m256)a, _CMP_NLE_UQ),
                                    _mm256_cmp_ps((__m256)a, (__m256)a, _CMP_ORD_Q));
#else
    return ~(simd_mask)(b <= a) & ~simd_unordered(a, a);
#endif
}

/* simd_select by the instruction for it: where several choices have one mask, gcc makes three operations of each. */
SIMD_INLINE simd_vec simd_blend(simd_mask mask, simd_vec if_set, simd_vec if_not)
{
#if defined(__AVX512F__)
    return (simd_vec)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)if_not, (__m512)if_set);
#elif defined(__AVX__)
    return (simd_vec)_mm256_blendv_ps((__m256)if_not, (__m256)if_set, (__m256)mask);
#else
    return simd_select(mask, if_set, if_not);
#endif
}

/* Which pixel of a window is its first maximum in row-major order. */
typedef struct simd_winner {
    simd_mask right_above, right_below; /* of the upper and of the lower two pixels the right one */
    simd_mask below;                    /* one of the lower two */
} simd_winner;

/* w: upper left, upper right, lower left, lower right. The maximum itself is left in most_out. */
SIMD_INLINE simd_winner simd_find_winner(const simd_vec w[4], simd_vec *most_out)
{
    simd_winner at = {.right_above = simd_beats(w[1], w[0]), .right_below = simd_beats(w[3], w[2])};
    simd_vec above = simd_blend(at.right_above, w[1], w[0]), below = simd_blend(at.right_below, w[3], w[2]);

    at.below = simd_beats(below, above);
    *most_out = simd_blend(at.below, below, above);
    return at;
}

/* Gives g to the winner and 0 to the others. */
SIMD_INLINE void simd_give(simd_winner at, simd_vec g, simd_vec to[4])
{
    simd_mask below = at.below & (simd_mask)g, above = ~at.below & (simd_mask)g;

    to[0] = (simd_vec)(~at.right_above & above);
    to[1] = (simd_vec)(at.right_above & above);
    to[2] = (simd_vec)(~at.right_below & below);
    to[3] = (simd_vec)(at.right_below & below);
}

/* The four pixels of a window, one vector of each; x points into its upper left pixel. */
SIMD_INLINE void simd_load_window(const float *x, size_t W, simd_vec w[4])
{
    w[0] = simd_load(x);
    w[1] = simd_load(x + SIMD_WIDTH);
    w[2] = simd_load(x + W * SIMD_WIDTH);
    w[3] = simd_load(x + (W + 1) * SIMD_WIDTH);
}

/* y: (C, H/2, W/2). */
static inline void simd_max_pool_forward(const float *x, int C, int H, int W, float *y)
{
    size_t row = (size_t)W * SIMD_WIDTH;

    for (int c = 0; c < C; c++, x += (size_t)H * row)
        for (int h = 0; h + 1 < H; h += 2)
            for (int w = 0; w + 1 < W; w += 2)
                for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC, y += SIMD_VEC) {
                    simd_vec in[4];

                    simd_load_window(x + (size_t)h * row + w * SIMD_WIDTH + i, (size_t)W, in);
                    simd_store(y, simd_largest(in[0], in[1], in[2], in[3]));
                }
}

/* The windows of two rows. */
SIMD_INLINE void simd_max_pool_back_rows(const float *x, const float *g, int W, bool add, float *dx)
{
    for (int w = 0; w + 1 < W; w += 2)
        for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC, g += SIMD_VEC) {
            float *to = dx + w * SIMD_WIDTH + i;
            simd_vec in[4], part[4], most;

            simd_load_window(x + w * SIMD_WIDTH + i, (size_t)W, in);
            simd_give(simd_find_winner(in, &most), simd_load(g), part);
            simd_put(to, add, part[0]);
            simd_put(to + SIMD_WIDTH, add, part[1]);
            simd_put(to + (size_t)W * SIMD_WIDTH, add, part[2]);
            simd_put(to + (size_t)(W + 1) * SIMD_WIDTH, add, part[3]);
        }
}

SIMD_INLINE void simd_max_pool_back_as(const float *x, const float *g, int C, int H, int W, bool add, float *dx)
{
    size_t row = (size_t)W * SIMD_WIDTH;

    for (int c = 0; c < C; c++, x += (size_t)H * row, dx += (size_t)H * row) {
        for (int h = 0; h + 1 < H; h += 2, g += (size_t)(W / 2) * SIMD_WIDTH)
            simd_max_pool_back_rows(x + (size_t)h * row, g, W, add, dx + (size_t)h * row);
        if (!add && H % 2 != 0)
            memset(dx + (size_t)(H - 1) * row, 0, row * sizeof(float));
        for (int h = 0; !add && W % 2 != 0 && h < H; h++)
            memset(dx + (size_t)(h + 1) * row - SIMD_WIDTH, 0, SIMD_WIDTH * sizeof(float));
    }
}

static inline void simd_max_pool_back(const float *x, const float *g, int C, int H, int W, bool add, float *dx)
{
    if (add)
        simd_max_pool_back_as(x, g, C, H, W, true, dx);
    else
        simd_max_pool_back_as(x, g, C, H, W, false, dx);
}

/* ------------------------------------------------------------------------------------------------ global mean */

/* (C, pixels) -> (C) */
static inline void simd_global_mean_forward(const float *x, int C, size_t pixels, float *y)
{
    for (int c = 0; c < C; c++, x += pixels * SIMD_WIDTH, y += SIMD_WIDTH) {
        double sample[SIMD_WIDTH] __attribute__((aligned(64)));
        simd_wide sum = {0};

        simd_plain_sums(x, pixels, &sum);
        simd_wide_store(sample, sum);
        for (int l = 0; l < SIMD_WIDTH; l++)
            y[l] = (float)(sample[l] / (double)pixels);
    }
}

SIMD_INLINE void simd_spread_as(const float *g, int C, size_t pixels, bool add, float *dx)
{
    float part = 1 / (float)pixels;

    for (int c = 0; c < C; c++, g += SIMD_WIDTH) {
        simd_acc each = simd_acc_load(g);

        for (int i = 0; i < SIMD_VECS; i++)
            each.v[i] *= part;
        for (size_t p = 0; p < pixels; p++, dx += SIMD_WIDTH)
            for (int i = 0; i < SIMD_VECS; i++)
                simd_put(dx + i * SIMD_VEC, add, each.v[i]);
    }
}

static inline void simd_global_mean_back(const float *g, int C, size_t pixels, bool add, float *dx)
{
    if (add)
        simd_spread_as(g, C, pixels, true, dx);
    else
        simd_spread_as(g, C, pixels, false, dx);
}

/* ------------------------------------------------------------------------------------- one factor for a channel */

/* to = from times a factor that each sample has its own of. */
SIMD_INLINE void simd_scale_plane(const float *from, simd_acc factor, size_t pixels, bool add, float *to)
{
    for (size_t p = 0; p < pixels; p++, from += SIMD_WIDTH, to += SIMD_WIDTH)
        for (int i = 0; i < SIMD_VECS; i++)
            simd_put(to + i * SIMD_VEC, add, simd_load(from + i * SIMD_VEC) * factor.v[i]);
}

/* Two loops for the two cases, that the choice is not made for every pixel. */
static inline void simd_put_scaled(const float *from, simd_acc factor, size_t pixels, bool add, float *to)
{
    if (add)
        simd_scale_plane(from, factor, pixels, true, to);
    else
        simd_scale_plane(from, factor, pixels, false, to);
}

/* mul: a (C, pixels) times b (C) of the same sample. Two like tensors are C = their elements and pixels = 1. With the
 * gradient of y in the place of a, what comes out is the gradient of a. */
static inline void simd_mul(const float *a, const float *b, int C, size_t pixels, bool add, float *y)
{
    for (int c = 0; c < C; c++)
        simd_put_scaled(a + (size_t)c * pixels * SIMD_WIDTH, simd_acc_load(b + (size_t)c * SIMD_WIDTH), pixels, add,
                        y + (size_t)c * pixels * SIMD_WIDTH);
}

/* The gradient of b: for each channel the sum of g a over the pixels. */
static inline void simd_mul_back_b(const float *g, const float *a, int C, size_t pixels, bool add, float *db)
{
    for (int c = 0; c < C; c++, g += pixels * SIMD_WIDTH, a += pixels * SIMD_WIDTH, db += SIMD_WIDTH) {
        double sample[SIMD_WIDTH] __attribute__((aligned(64)));
        simd_sums sums = {0};

        simd_product_sums(g, a, pixels, (simd_acc){0}, &sums);
        simd_wide_store(sample, sums.b);
        for (int l = 0; l < SIMD_WIDTH; l++)
            db[l] = (add ? db[l] : 0) + (float)sample[l];
    }
}

#endif
