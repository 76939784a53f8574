/* Layer norm: each row is normalised over its own elements.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * The row's (mean, 1/std) are left in out[1] for the backward pass. */
#include <math.h>

#include "tensor/ref/columns.h"
#include "tensor/ref/layer_norm.h"
#include "tensor/ref/sums.h"

static void forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin), *scale = lane->in[1].data, *shift = lane->in[2].data;
    real *y = data_at(&lane->out[0], begin), *stat = data_at(&lane->out[1], begin);
    size_t D = width(lane), rows = rows_in(lane, end - begin);

    for (size_t r = 0; r < rows; r++, x += D, y += D, stat += 2) {
        double mean = sum_of(x, D) / (double)D;
        double var = sum_squares(x, mean, D) / (double)D;

        stat[0] = (real)mean;
        stat[1] = (real)(1 / sqrt(var + (double)lane->attr.norm.eps));
        for (size_t d = 0; d < D; d++)
            y[d] = (x[d] - stat[0]) * stat[1] * scale[d] + shift[d];
    }
}

static void backward_row(const esper_view *view, const real *x, const real *g, const real *scale, const real *stat,
                         size_t D, real *dx)
{
    real mean = stat[0], rstd = stat[1];
    double sum_g = 0, sum_gx = 0;
    real mean_g, slope;

    for (size_t d = 0; d < D; d++) {
        double weighted = (double)g[d] * (double)scale[d];

        sum_g += weighted;
        sum_gx += weighted * ((double)x[d] - (double)mean);
    }
    mean_g = (real)(sum_g / (double)D);
    slope = (real)(sum_gx / (double)D * (double)rstd * (double)rstd);
    for (size_t d = 0; d < D; d++)
        grad_put(view, &dx[d], (g[d] * scale[d] - mean_g - (x[d] - mean) * slope) * rstd);
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    put_rows(lane, begin, end, backward_row);
}

/* The scale's gradient, sums of g xhat, in columns first .. first+n-1. */
static void put_scale(const esper_lane *lane, int first, int n)
{
    const esper_view *scale = &lane->in[1];
    const real *x = lane->in[0].data, *g = lane->out[0].grad, *stat = lane->out[1].data;
    size_t D = width(lane), rows = rows_in(lane, lane->pass->n_samples);
    double sum[COLUMN_BLOCK] = {0};

    for (size_t r = 0; r < rows; r++, stat += 2)
        for (int j = 0; j < n; j++) {
            size_t at = r * D + (size_t)(first + j);

            sum[j] += (double)g[at] * ((double)x[at] - (double)stat[0]) * (double)stat[1];
        }
    for (int j = 0; j < n; j++)
        grad_put(scale, (real *)scale->grad + first + j, (real)sum[j]);
}

/* Units are columns. */
static void backward_scale_shift(const esper_lane *lane, int begin, int end)
{
    if (lane->in[1].grad != NULL)
        for (int first = begin; first < end; first += COLUMN_BLOCK)
            put_scale(lane, first, end - first < COLUMN_BLOCK ? end - first : COLUMN_BLOCK);
    if (lane->in[2].grad != NULL)
        put_column_sums(&lane->in[2], lane->out[0].grad, rows_in(lane, lane->pass->n_samples), width(lane), begin, end);
}

static int columns(const esper_lane *lane)
{
    return (int)width(lane);
}

const esper_op_kernels ESPER_OP_KERNELS(layer_norm) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_scale_shift, columns}},
};
