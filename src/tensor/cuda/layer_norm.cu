/* Layer norm: a warp has a row, and holds in turn every 32nd element of it. What it is of all elements are sums in fp32, each
 * lane's own first, and then over lanes; the mean is taken away before squares are summed.
 *
 * Gradients of scale and shift are sums over rows. A block has 32 columns and a piece of the rows, every eighth row to a warp;
 * the pieces, (pieces, 2, D) in scratch, are added in order by another kernel, which is not launched where there is one. */
#include "tensor/cuda/sums.cuh"

#include "tensor/cuda/layer_norm.h"

enum { THREADS = ESPER_LAYER_NORM_THREADS, WARPS = THREADS / 32 };

typedef struct norm_rows {
    int D, rows, max_rows;
} norm_rows;

FUNCTION norm_rows norm_of(const esper_lane *lane)
{
    int D = (int)lane->in[1].count, each = (int)lane->in[0].count / D;

    return {D, lane->pass->n_samples * each, lane->max_samples * each};
}

ESPER_KERNEL(esper_layer_norm_forward, THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    norm_rows at = norm_of(lane);
    int row = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, first = (int)threadIdx.x % 32, D = at.D;
    const float *x = (const float *)lane->in[0].data + (int64_t)row * D;
    const float *scale = (const float *)lane->in[1].data, *shift = (const float *)lane->in[2].data;
    float *y = (float *)lane->out[0].data + (int64_t)row * D, *stat = (float *)lane->out[1].data + 2 * (int64_t)row;
    float sum = 0.0f, squares = 0.0f, mean, rstd;

    if (row >= at.rows)
        return;
    for (int d = first; d < D; d += 32)
        sum += x[d];
    mean = warp_sum(sum) / (float)D;
    for (int d = first; d < D; d += 32) {
        float off = x[d] - mean;

        squares = fmaf(off, off, squares);
    }
    rstd = 1.0f / sqrtf(warp_sum(squares) / (float)D + lane->attr.norm.eps);
    if (first == 0)
        stat[0] = mean, stat[1] = rstd;
    for (int d = first; d < D; d += 32)
        y[d] = (x[d] - mean) * rstd * scale[d] + shift[d];
}

FUNCTION void backward_row(const esper_lane *lane, const norm_rows &at, int row)
{
    const esper_view *view = &lane->in[0];
    int first = (int)threadIdx.x % 32, D = at.D;
    const float *x = (const float *)view->data + (int64_t)row * D, *g = (const float *)lane->out[0].grad + (int64_t)row * D;
    const float *scale = (const float *)lane->in[1].data, *stat = (const float *)lane->out[1].data + 2 * (int64_t)row;
    float *dx = (float *)view->grad + (int64_t)row * D;
    float sum_g = 0.0f, sum_gx = 0.0f, mean_g, slope, mean, rstd;

    if (row >= at.rows)
        return;
    mean = stat[0], rstd = stat[1];
    for (int d = first; d < D; d += 32) {
        float weighted = g[d] * scale[d];

        sum_g += weighted;
        sum_gx = fmaf(weighted, x[d] - mean, sum_gx);
    }
    mean_g = warp_sum(sum_g) / (float)D;
    slope = warp_sum(sum_gx) / (float)D * rstd * rstd;
    for (int d = first; d < D; d += 32) {
        float v = (g[d] * scale[d] - mean_g - (x[d] - mean) * slope) * rstd;

        dx[d] = view->add ? dx[d] + v : v;
    }
}

FUNCTION void put(const esper_view *view, int d, float v)
{
    float *grad = (float *)view->grad;

    if (grad != NULL)
        grad[d] = view->add ? grad[d] + v : v;
}

/* Columns of a piece of the rows. */
FUNCTION void backward_columns(const esper_lane *lane, const norm_rows &at, int block)
{
    __shared__ float sums[2][WARPS][32];
    int groups = (at.D + 31) / 32, piece = block / groups, pieces = esper_layer_norm_pieces(at.max_rows);
    int warp = (int)threadIdx.x / 32, column = (int)threadIdx.x % 32, d = block % groups * 32 + column;
    int end = min((piece + 1) * ESPER_LAYER_NORM_ROWS, at.rows);
    const float *x = (const float *)lane->in[0].data, *g = (const float *)lane->out[0].grad;
    const float2 *stat = (const float2 *)lane->out[1].data;
    float scale = 0.0f, shift = 0.0f;

    if (piece >= pieces)
        return;
    if (d < at.D)
        for (int r = piece * ESPER_LAYER_NORM_ROWS + warp; r < end; r += WARPS) {
            int64_t i = (int64_t)r * at.D + d;
            float2 s = stat[r];

            scale = fmaf(g[i], (x[i] - s.x) * s.y, scale);
            shift += g[i];
        }
    sums[0][warp][column] = scale;
    sums[1][warp][column] = shift;
    __syncthreads();
    if (warp > 0 || d >= at.D)
        return;
    scale = shift = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        scale += sums[0][w][column];
        shift += sums[1][w][column];
    }
    if (pieces == 1) {
        put(&lane->in[1], d, scale);
        put(&lane->in[2], d, shift);
    } else {
        float *part = (float *)lane->scratch + (int64_t)piece * 2 * at.D;

        part[d] = scale;
        part[at.D + d] = shift;
    }
}

/* First the blocks of rows, where a gradient of x is wanted, then those of columns. */
ESPER_KERNEL(esper_layer_norm_backward, THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    norm_rows at = norm_of(lane);
    int n_rows = lane->in[0].grad == NULL ? 0 : (at.max_rows + WARPS - 1) / WARPS, block = (int)blockIdx.x;

    if (block < n_rows)
        backward_row(lane, at, block * WARPS + (int)threadIdx.x / 32);
    else if (lane->in[1].grad != NULL || lane->in[2].grad != NULL)
        backward_columns(lane, at, block - n_rows);
}

ESPER_KERNEL(esper_layer_norm_join, THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    norm_rows at = norm_of(lane);
    int pieces = esper_layer_norm_pieces(at.max_rows), i = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    const float *part = (const float *)lane->scratch + i;
    float sum = 0.0f;

    if (i >= 2 * at.D)
        return;
    for (int p = 0; p < pieces; p++)
        sum += part[(int64_t)p * 2 * at.D];
    put(&lane->in[i < at.D ? 1 : 2], i < at.D ? i : i - at.D, sum);
}
