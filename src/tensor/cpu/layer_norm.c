/* Layer norm: what tensor/ref/layer_norm.c defines, rows a vector at a time.
 *
 * Sums over a row are kept in the elements of a vector, sums over a column in float for BLOCK rows and then in double: both
 * in an order that depends on the shape alone. */
#include <math.h>

#include "tensor/cpu/rows.h"
#include "tensor/ref/layer_norm.h"

enum { BLOCK = 128, COLUMNS = 64 };

/* (mean, 1/std) of a row. The second sum is around the mean of the first: it does not cancel. */
static void row_statistics(const float *x, size_t D, float eps, float *stat)
{
    simd_vec sum = {0}, squares = {0};
    float mean;

    ROWS_EACH(d, some, D, { sum += rows_get(x, d, some, 0.0f); });
    mean = rows_sum(sum) / (float)D;
    ROWS_EACH(d, some, D, {
        simd_vec off = rows_get(x, d, some, mean) - mean;

        squares += off * off;
    });
    stat[0] = mean;
    stat[1] = (float)(1 / sqrt((double)rows_sum(squares) / (double)D + (double)eps));
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const float *x = data_at(&lane->in[0], begin), *scale = lane->in[1].data, *shift = lane->in[2].data;
    float *y = data_at(&lane->out[0], begin), *stat = data_at(&lane->out[1], begin);
    size_t D = width(lane), rows = rows_in(lane, end - begin);

    for (size_t r = 0; r < rows; r++, x += D, y += D, stat += 2) {
        float mean, rstd;

        row_statistics(x, D, lane->attr.norm.eps, stat);
        mean = stat[0], rstd = stat[1]; /* y might be stat as far as the compiler knows */
        ROWS_EACH(d, some, D, {
            simd_vec hat = (rows_get(x, d, some, 0.0f) - mean) * rstd;

            rows_put(y, d, some, hat * rows_get(scale, d, some, 0.0f) + rows_get(shift, d, some, 0.0f));
        });
    }
}

static void backward_row(const esper_view *view, const float *x, const float *g, const float *scale, const float *stat,
                         size_t D, float *dx)
{
    simd_vec sum_g = {0}, sum_gx = {0};
    float mean = stat[0], rstd = stat[1], mean_g, slope;
    bool add = view->add; /* known not to change in the loop: the product and the addition become one */

    ROWS_EACH(d, some, D, {
        simd_vec weighted = rows_get(g, d, some, 0.0f) * rows_get(scale, d, some, 0.0f);

        sum_g += weighted;
        sum_gx += weighted * (rows_get(x, d, some, mean) - mean);
    });
    mean_g = rows_sum(sum_g) / (float)D;
    slope = rows_sum(sum_gx) / (float)D * rstd * rstd;
    ROWS_EACH(d, some, D, {
        simd_vec weighted = rows_get(g, d, some, 0.0f) * rows_get(scale, d, some, 0.0f);
        simd_vec value = (weighted - mean_g - (rows_get(x, d, some, 0.0f) - mean) * slope) * rstd;

        if (add)
            value += rows_get(dx, d, some, 0.0f);
        rows_put(dx, d, some, value);
    });
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    put_rows(lane, begin, end, backward_row);
}

/* Sums over rows begin .. end-1 of g xhat and g, n <= COLUMNS columns from `first` on. */
static void sum_block(const esper_lane *lane, size_t first, size_t n, size_t begin, size_t end, double *scale_sum,
                      double *shift_sum)
{
    const float *x = lane->in[0].data, *g = lane->out[0].grad, *stat = lane->out[1].data;
    float with_x[COLUMNS] = {0}, alone[COLUMNS] = {0};
    size_t D = width(lane);

    for (size_t r = begin; r < end; r++) {
        const float *x_row = x + r * D + first, *g_row = g + r * D + first;
        float mean = stat[2 * r], rstd = stat[2 * r + 1];

        for (size_t j = 0; j < n; j++) {
            with_x[j] += g_row[j] * ((x_row[j] - mean) * rstd);
            alone[j] += g_row[j];
        }
    }
    for (size_t j = 0; j < n; j++) {
        scale_sum[j] += (double)with_x[j];
        shift_sum[j] += (double)alone[j];
    }
}

static void put_columns(const esper_lane *lane, size_t first, size_t n)
{
    const esper_view *scale = &lane->in[1], *shift = &lane->in[2];
    double scale_sum[COLUMNS] = {0}, shift_sum[COLUMNS] = {0};
    size_t rows = rows_in(lane, lane->pass->n_samples);

    for (size_t r = 0; r < rows; r += BLOCK)
        sum_block(lane, first, n, r, r + BLOCK < rows ? r + BLOCK : rows, scale_sum, shift_sum);
    for (size_t j = 0; j < n; j++) {
        if (scale->grad != NULL)
            grad_put(scale, (float *)scale->grad + first + j, (float)scale_sum[j]);
        if (shift->grad != NULL)
            grad_put(shift, (float *)shift->grad + first + j, (float)shift_sum[j]);
    }
}

/* Units are groups of columns, so that a column always stands at the same place of its group. */
static void backward_scale_shift(const esper_lane *lane, int begin, int end)
{
    size_t D = width(lane);

    if (lane->in[1].grad == NULL && lane->in[2].grad == NULL)
        return;
    for (int unit = begin; unit < end; unit++) {
        size_t first = (size_t)unit * COLUMNS;

        put_columns(lane, first, D - first < COLUMNS ? D - first : COLUMNS);
    }
}

static int column_groups(const esper_lane *lane)
{
    return (int)((width(lane) + COLUMNS - 1) / COLUMNS);
}

const esper_op_kernels ESPER_OP_KERNELS(layer_norm) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_scale_shift, column_groups}},
};
