/* Internal. The end of an image network on a block: linear layer, softmax and cross-entropy.
 *
 *     linear    x (I), w (I of each of O outputs), b (O)  ->  y (O)      a vector is one number of each sample
 *     softmax   logits (V), one target for each sample   ->  loss, right or wrong, log of the sum of exponentials
 *
 * The gradient of w is a sum over the lanes: x is transposed in tiles so that its channels lie in the vectors. */
#ifndef ESPER_TENSOR_CPU_LANES_HEAD_H
#define ESPER_TENSOR_CPU_LANES_HEAD_H

#include <stdint.h>

#include "tensor/cpu/lanes_pack.h"
#include "tensor/cpu/lanes_pool.h"
#include "tensor/cpu/vec_math.h"

/* ------------------------------------------------------------------------------------------------ linear */

enum { LANES_ROWS = 4 }; /* results computed at once: as many vectors of sums as stay in registers */

/* n results: to[k] = (first ? first[k] : 0) + sum over j of w[k * w_row + j * w_step] x[j]. n is a constant where this
 * is inlined. */
LANES_INLINE void lanes_rows_times(int n, const float *w, size_t w_row, size_t w_step, const float *first,
                                   const float *x, int n_x, bool add, float *to)
{
    lanes_acc sum[LANES_ROWS];

    for (int k = 0; k < n; k++)
        for (int i = 0; i < LANES_VECS; i++)
            sum[k].v[i] = lanes_all(first != NULL ? first[k] : 0);
    for (int j = 0; j < n_x; j++)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < LANES_VECS; i++)
                sum[k].v[i] +=
                    w[(size_t)k * w_row + (size_t)j * w_step] * lanes_load(x + (size_t)j * LANES_WIDTH + i * LANES_VEC);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < LANES_VECS; i++)
            lanes_put(to + k * LANES_WIDTH + i * LANES_VEC, add, sum[k].v[i]);
}

static inline void lanes_matrix_times(int rows, const float *w, size_t w_row, size_t w_step, const float *first,
                                      const float *x, int n_x, bool add, float *to)
{
    int k = 0;

    for (; k + LANES_ROWS <= rows; k += LANES_ROWS)
        lanes_rows_times(LANES_ROWS, w + (size_t)k * w_row, w_row, w_step, first != NULL ? first + k : NULL, x, n_x,
                         add, to + (size_t)k * LANES_WIDTH);
    for (; k < rows; k++)
        lanes_rows_times(1, w + (size_t)k * w_row, w_row, w_step, first != NULL ? first + k : NULL, x, n_x, add,
                         to + (size_t)k * LANES_WIDTH);
}

/* bias (O) or NULL. */
static inline void lanes_linear_forward(const float *x, int I, const float *w, const float *bias, int O, float *y)
{
    lanes_matrix_times(O, w, (size_t)I, 1, bias, x, I, false, y);
}

static inline void lanes_linear_back_x(const float *g, int O, const float *w, int I, bool add, float *dx)
{
    lanes_matrix_times(I, w, 1, (size_t)I, NULL, g, O, add, dx);
}

/* 16 columns of n rows of dw, of which n_cols are there: the sums over the lanes of g x. x: (16 lanes, 16 channels). */
LANES_INLINE void lanes_outer_rows(int n, const float *g, const float *x, int n_cols, bool add, float *dw,
                                   size_t dw_row)
{
    lanes_acc sum[LANES_ROWS] = {{{{0}}}};
    float row[LANES_WIDTH] __attribute__((aligned(64)));

    for (int l = 0; l < LANES_WIDTH; l++)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < LANES_VECS; i++)
                sum[k].v[i] += g[k * LANES_WIDTH + l] * lanes_load(x + l * LANES_WIDTH + i * LANES_VEC);
    for (int k = 0; k < n; k++) {
        lanes_acc_store(row, sum[k]);
        for (int j = 0; j < n_cols; j++)
            dw[(size_t)k * dw_row + (size_t)j] = (add ? dw[(size_t)k * dw_row + (size_t)j] : 0) + row[j];
    }
}

/* The block's part of the gradient of w, (O, I). */
static inline void lanes_linear_back_w(const float *x, int I, const float *g, int O, bool add, float *dw)
{
    float tile[LANES_WIDTH * LANES_WIDTH] __attribute__((aligned(64)));
    float across[LANES_WIDTH * LANES_WIDTH] __attribute__((aligned(64)));

    for (int i = 0; i < I; i += LANES_WIDTH) {
        int n_cols = I - i < LANES_WIDTH ? I - i : LANES_WIDTH, o = 0;

        memset(tile, 0, sizeof(tile));
        memcpy(tile, x + (size_t)i * LANES_WIDTH, (size_t)n_cols * LANES_WIDTH * sizeof(float));
        lanes_transpose_tile(tile, LANES_WIDTH, across, LANES_WIDTH, true);
        for (; o + LANES_ROWS <= O; o += LANES_ROWS)
            lanes_outer_rows(LANES_ROWS, g + (size_t)o * LANES_WIDTH, across, n_cols, add,
                             dw + (size_t)o * (size_t)I + i, (size_t)I);
        for (; o < O; o++)
            lanes_outer_rows(1, g + (size_t)o * LANES_WIDTH, across, n_cols, add, dw + (size_t)o * (size_t)I + i,
                             (size_t)I);
    }
}

/* The block's part of the gradient of the bias, (O). */
static inline void lanes_linear_back_bias(const float *g, int O, bool add, float *db)
{
    for (int o = 0; o < O; o++)
        db[o] = (add ? db[o] : 0) + lanes_acc_sum(lanes_acc_load(g + (size_t)o * LANES_WIDTH));
}

/* ------------------------------------------------------------------------------------- softmax and cross-entropy */

/* The targets as the lanes see them: -1, which no class has, where a target is negative or the lane not valid. */
static inline void lanes_targets(const int32_t *targets, int n_valid, int32_t in_lane[LANES_WIDTH])
{
    for (int l = 0; l < LANES_WIDTH; l++)
        in_lane[l] = l < n_valid && targets[l] >= 0 ? targets[l] : -1;
}

LANES_INLINE lanes_mask lanes_all_int(int value)
{
    return (lanes_mask){0} + value;
}

LANES_INLINE lanes_mask lanes_select_int(lanes_mask mask, lanes_mask if_set, lanes_mask if_not)
{
    return (mask & if_set) | (~mask & if_not);
}

/* The sum of exp(logits - top). A second accumulator takes over now and then, so that long sums stay good. */
LANES_INLINE lanes_vec lanes_exp_sum(const float *logits, int V, lanes_vec top)
{
    lanes_vec sum = {0}, part = {0};

    for (int v = 0; v < V; v++) {
        part += vec_exp(lanes_load(logits + (size_t)v * LANES_WIDTH) - top);
        if (v % 16 == 15) {
            sum += part;
            part = (lanes_vec){0};
        }
    }
    return sum + part;
}

/* One vector of lanes: the first largest logit, as in the reference (a NaN in the first place stays the largest), and
 * the target's logit. The loss is put together of small terms: log-sum-exp minus logit would cancel. */
LANES_INLINE void lanes_xent_vec(const float *logits, int V, lanes_mask target, float *loss, float *correct, float *lse)
{
    lanes_vec top = lanes_load(logits), hit = top, log_sum, whole;
    lanes_mask best = {0}, counted = (lanes_mask)(target >= 0);

    for (int v = 1; v < V; v++) {
        lanes_vec x = lanes_load(logits + (size_t)v * LANES_WIDTH);
        lanes_mask above = (lanes_mask)(x > top);

        top = lanes_select(above, x, top);
        best = lanes_select_int(above, lanes_all_int(v), best);
        hit = lanes_select((lanes_mask)(target == v), x, hit);
    }
    log_sum = vec_log(lanes_exp_sum(logits, V, top));
    whole = top + log_sum;
    lanes_store(lse, whole);
    lanes_store(loss, (lanes_vec)(counted & (lanes_mask)(log_sum + (top - hit))));
    lanes_store(correct, (lanes_vec)(counted & (lanes_mask)(best == target) & ~lanes_unordered(whole, whole) &
                                     (lanes_mask)lanes_all(1)));
}

/* logits: (V); targets: n_valid of them, below V; a negative one means "do not count". loss, correct (0 or 1) and lse
 * are one number for each lane, the first two 0 in lanes that do not count. */
static inline void lanes_xent_forward(const float *logits, int V, const int32_t *targets, int n_valid, float *loss,
                                      float *correct, float *lse)
{
    int32_t in_lane[LANES_WIDTH] __attribute__((aligned(64)));

    lanes_targets(targets, n_valid, in_lane);
    for (int i = 0; i < LANES_WIDTH; i += LANES_VEC)
        lanes_xent_vec(logits + i, V, *(const lanes_mask *)(in_lane + i), loss + i, correct + i, lse + i);
}

/* The gradient of the logits: (softmax - 1 at the target) * loss_scale, 0 in lanes that do not count. */
static inline void lanes_xent_back(const float *logits, int V, const int32_t *targets, int n_valid, const float *lse,
                                   float loss_scale, bool add, float *dlogits)
{
    int32_t in_lane[LANES_WIDTH] __attribute__((aligned(64)));

    lanes_targets(targets, n_valid, in_lane);
    for (int v = 0; v < V; v++)
        for (int i = 0; i < LANES_WIDTH; i += LANES_VEC) {
            lanes_mask target = *(const lanes_mask *)(in_lane + i);
            lanes_vec one = (lanes_vec)((lanes_mask)(target == v) & (lanes_mask)lanes_all(1));
            lanes_vec p = vec_exp(lanes_load(logits + (size_t)v * LANES_WIDTH + i) - lanes_load(lse + i));
            lanes_vec d = (lanes_vec)((lanes_mask)(target >= 0) & (lanes_mask)((p - one) * loss_scale));

            lanes_put(dlogits + (size_t)v * LANES_WIDTH + i, add, d);
        }
}

#endif
