/* Internal. The end of an image network on a block: linear layer, softmax and cross-entropy.
 *
 *     linear    x (I), w (I of each of O outputs), b (O)  ->  y (O)      a vector is one number of each sample
 *     softmax   logits (V), one target for each sample   ->  loss, right or wrong, log of the sum of exponentials
 *
 * The gradient of w is a sum over the samples: x is transposed in tiles so that its channels lie in the vectors. */
#ifndef ESPER_TENSOR_CPU_SIMD_HEAD_H
#define ESPER_TENSOR_CPU_SIMD_HEAD_H

#include <stdint.h>

#include "tensor/cpu/simd_pack.h"
#include "tensor/cpu/simd_pool.h"
#include "tensor/cpu/vec_math.h"

/* ------------------------------------------------------------------------------------------------ linear */

enum { SIMD_ROWS = 4 }; /* results computed at once: as many vectors of sums as stay in registers */

/* n results: to[k] = (first ? first[k] : 0) + sum over j of w[k * w_row + j * w_step] x[j]. n is a constant where this
 * is inlined. */
SIMD_INLINE void simd_rows_times(int n, const float *w, size_t w_row, size_t w_step, const float *first, const float *x,
                                 int n_x, bool add, float *to)
{
    simd_acc sum[SIMD_ROWS];

    for (int k = 0; k < n; k++)
        for (int i = 0; i < SIMD_VECS; i++)
            sum[k].v[i] = simd_all(first != NULL ? first[k] : 0);
    for (int j = 0; j < n_x; j++)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < SIMD_VECS; i++)
                sum[k].v[i] +=
                    w[(size_t)k * w_row + (size_t)j * w_step] * simd_load(x + (size_t)j * SIMD_WIDTH + i * SIMD_VEC);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < SIMD_VECS; i++)
            simd_put(to + k * SIMD_WIDTH + i * SIMD_VEC, add, sum[k].v[i]);
}

static inline void simd_matrix_times(int rows, const float *w, size_t w_row, size_t w_step, const float *first,
                                     const float *x, int n_x, bool add, float *to)
{
    int k = 0;

    for (; k + SIMD_ROWS <= rows; k += SIMD_ROWS)
        simd_rows_times(SIMD_ROWS, w + (size_t)k * w_row, w_row, w_step, first != NULL ? first + k : NULL, x, n_x, add,
                        to + (size_t)k * SIMD_WIDTH);
    for (; k < rows; k++)
        simd_rows_times(1, w + (size_t)k * w_row, w_row, w_step, first != NULL ? first + k : NULL, x, n_x, add,
                        to + (size_t)k * SIMD_WIDTH);
}

/* bias (O) or NULL. */
static inline void simd_linear_forward(const float *x, int I, const float *w, const float *bias, int O, float *y)
{
    simd_matrix_times(O, w, (size_t)I, 1, bias, x, I, false, y);
}

static inline void simd_linear_back_x(const float *g, int O, const float *w, int I, bool add, float *dx)
{
    simd_matrix_times(I, w, 1, (size_t)I, NULL, g, O, add, dx);
}

/* 16 columns of n rows of dw, of which n_cols are there: the sums over the samples of g x. x: (16 samples, 16 channels). */
SIMD_INLINE void simd_outer_rows(int n, const float *g, const float *x, int n_cols, bool add, float *dw, size_t dw_row)
{
    simd_acc sum[SIMD_ROWS] = {{{{0}}}};
    float row[SIMD_WIDTH] __attribute__((aligned(64)));

    for (int l = 0; l < SIMD_WIDTH; l++)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < SIMD_VECS; i++)
                sum[k].v[i] += g[k * SIMD_WIDTH + l] * simd_load(x + l * SIMD_WIDTH + i * SIMD_VEC);
    for (int k = 0; k < n; k++) {
        simd_acc_store(row, sum[k]);
        for (int j = 0; j < n_cols; j++)
            dw[(size_t)k * dw_row + (size_t)j] = (add ? dw[(size_t)k * dw_row + (size_t)j] : 0) + row[j];
    }
}

/* The block's part of the gradient of w, (O, I). */
static inline void simd_linear_back_w(const float *x, int I, const float *g, int O, bool add, float *dw)
{
    float tile[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64)));
    float across[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64)));

    for (int i = 0; i < I; i += SIMD_WIDTH) {
        int n_cols = I - i < SIMD_WIDTH ? I - i : SIMD_WIDTH, o = 0;

        memset(tile, 0, sizeof(tile));
        memcpy(tile, x + (size_t)i * SIMD_WIDTH, (size_t)n_cols * SIMD_WIDTH * sizeof(float));
        simd_transpose_tile(tile, SIMD_WIDTH, across, SIMD_WIDTH, true);
        for (; o + SIMD_ROWS <= O; o += SIMD_ROWS)
            simd_outer_rows(SIMD_ROWS, g + (size_t)o * SIMD_WIDTH, across, n_cols, add, dw + (size_t)o * (size_t)I + i,
                            (size_t)I);
        for (; o < O; o++)
            simd_outer_rows(1, g + (size_t)o * SIMD_WIDTH, across, n_cols, add, dw + (size_t)o * (size_t)I + i,
                            (size_t)I);
    }
}

/* The block's part of the gradient of the bias, (O). */
static inline void simd_linear_back_bias(const float *g, int O, bool add, float *db)
{
    for (int o = 0; o < O; o++)
        db[o] = (add ? db[o] : 0) + simd_acc_sum(simd_acc_load(g + (size_t)o * SIMD_WIDTH));
}

/* ------------------------------------------------------------------------------------- softmax and cross-entropy */

/* The targets as the samples see them: -1, which no class has, where a target is negative or the sample not valid. */
static inline void simd_targets(const int32_t *targets, int n_valid, int32_t in_lane[SIMD_WIDTH])
{
    for (int l = 0; l < SIMD_WIDTH; l++)
        in_lane[l] = l < n_valid && targets[l] >= 0 ? targets[l] : -1;
}

SIMD_INLINE simd_mask simd_all_int(int value)
{
    return (simd_mask){0} + value;
}

SIMD_INLINE simd_mask simd_select_int(simd_mask mask, simd_mask if_set, simd_mask if_not)
{
    return (mask & if_set) | (~mask & if_not);
}

/* The sum of exp(logits - top). A second accumulator takes over now and then, so that long sums stay good. */
SIMD_INLINE simd_vec simd_exp_sum(const float *logits, int V, simd_vec top)
{
    simd_vec sum = {0}, part = {0};

    for (int v = 0; v < V; v++) {
        part += vec_exp(simd_load(logits + (size_t)v * SIMD_WIDTH) - top);
        if (v % 16 == 15) {
            sum += part;
            part = (simd_vec){0};
        }
    }
    return sum + part;
}

/* One vector of samples: the first largest logit, as in the reference (a NaN in the first place stays the largest), and
 * the target's logit. The loss is put together of small terms: log-sum-exp minus logit would cancel. */
SIMD_INLINE void simd_xent_vec(const float *logits, int V, simd_mask target, float *loss, float *correct, float *lse)
{
    simd_vec top = simd_load(logits), hit = top, log_sum, whole;
    simd_mask best = {0}, counted = (simd_mask)(target >= 0);

    for (int v = 1; v < V; v++) {
        simd_vec x = simd_load(logits + (size_t)v * SIMD_WIDTH);
        simd_mask above = (simd_mask)(x > top);

        top = simd_select(above, x, top);
        best = simd_select_int(above, simd_all_int(v), best);
        hit = simd_select((simd_mask)(target == v), x, hit);
    }
    log_sum = vec_log(simd_exp_sum(logits, V, top));
    whole = top + log_sum;
    simd_store(lse, whole);
    simd_store(loss, (simd_vec)(counted & (simd_mask)(log_sum + (top - hit))));
    simd_store(correct, (simd_vec)(counted & (simd_mask)(best == target) & ~simd_unordered(whole, whole) &
                                   (simd_mask)simd_all(1)));
}

/* logits: (V); targets: n_valid of them, below V; a negative one means "do not count". loss, correct (0 or 1) and lse
 * are one number for each sample, the first two 0 in samples that do not count. */
static inline void simd_xent_forward(const float *logits, int V, const int32_t *targets, int n_valid, float *loss,
                                     float *correct, float *lse)
{
    int32_t in_lane[SIMD_WIDTH] __attribute__((aligned(64)));

    simd_targets(targets, n_valid, in_lane);
    for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC)
        simd_xent_vec(logits + i, V, *(const simd_mask *)(in_lane + i), loss + i, correct + i, lse + i);
}

/* The gradient of the logits: (softmax - 1 at the target) * loss_scale, 0 in samples that do not count. */
static inline void simd_xent_back(const float *logits, int V, const int32_t *targets, int n_valid, const float *lse,
                                  float loss_scale, bool add, float *dlogits)
{
    int32_t in_lane[SIMD_WIDTH] __attribute__((aligned(64)));

    simd_targets(targets, n_valid, in_lane);
    for (int v = 0; v < V; v++)
        for (int i = 0; i < SIMD_WIDTH; i += SIMD_VEC) {
            simd_mask target = *(const simd_mask *)(in_lane + i);
            simd_vec one = (simd_vec)((simd_mask)(target == v) & (simd_mask)simd_all(1));
            simd_vec p = vec_exp(simd_load(logits + (size_t)v * SIMD_WIDTH + i) - simd_load(lse + i));
            simd_vec d = (simd_vec)((simd_mask)(target >= 0) & (simd_mask)((p - one) * loss_scale));

            simd_put(dlogits + (size_t)v * SIMD_WIDTH + i, add, d);
        }
}

#endif
