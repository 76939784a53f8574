/* Internal. Layer norm: what the sources of its kernels share. */
#ifndef ESPER_TENSOR_REF_LAYER_NORM_H
#define ESPER_TENSOR_REF_LAYER_NORM_H

#include "tensor/ref/ref.h"

static inline size_t width(const esper_lane *lane)
{
    return (size_t)lane->in[1].count;
}

/* Rows of x in n samples. */
static inline size_t rows_in(const esper_lane *lane, int n)
{
    return (size_t)n * (size_t)lane->in[0].count / width(lane);
}

/* dx = (g scale - mean of g scale - xhat * mean of g scale xhat) / std, over one row. */
typedef void (*layer_norm_row)(const esper_view *view, const real *x, const real *g, const real *scale,
                               const real *stat, size_t D, real *dx);

static inline void put_rows(const esper_lane *lane, int begin, int end, layer_norm_row put_row)
{
    const esper_view *view = &lane->in[0];
    size_t D = width(lane), rows = rows_in(lane, end - begin);

    if (view->grad == NULL)
        return;
    for (size_t r = 0; r < rows; r++)
        put_row(view, data_at(view, begin) + r * D, grad_at(&lane->out[0], begin) + r * D, lane->in[1].data,
                data_at(&lane->out[1], begin) + 2 * r, D, grad_at(view, begin) + r * D);
}

#endif
