/* Linear layer: y = x w^T + b, for every row of x. Written for the eye: row by row. */
#include <string.h>

#include "tensor/ref/columns.h"
#include "tensor/ref/sums.h"

static int inputs(const esper_lane *lane)
{
    return lane->in[1].dim[1];
}

static int outputs(const esper_lane *lane)
{
    return lane->in[1].dim[0];
}

/* Rows of x in n samples. */
static size_t rows_in(const esper_lane *lane, int n)
{
    return (size_t)n * (size_t)lane->in[0].count / (size_t)inputs(lane);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin), *w = lane->in[1].data, *bias = lane->in[2].data;
    real *y = data_at(&lane->out[0], begin);
    int n_in = inputs(lane), n_out = outputs(lane);

    for (size_t r = 0; r < rows_in(lane, end - begin); r++, x += n_in, y += n_out)
        for (int o = 0; o < n_out; o++)
            y[o] = dot(x, w + (size_t)o * (size_t)n_in, n_in) + (bias != NULL ? bias[o] : 0);
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const real *g = grad_at(&lane->out[0], begin), *w = lane->in[1].data;
    int n_in = inputs(lane), n_out = outputs(lane);
    real *dx;

    if (x->grad == NULL)
        return;
    dx = grad_at(x, begin);
    for (size_t r = 0; r < rows_in(lane, end - begin); r++, dx += n_in, g += n_out) {
        if (!x->add)
            memset(dx, 0, (size_t)n_in * sizeof(*dx));
        for (int o = 0; o < n_out; o++)
            add_scaled(dx, w + (size_t)o * (size_t)n_in, g[o], n_in);
    }
}

/* Units are outputs: rows of w. */
static void backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1];
    const real *g = lane->out[0].grad, *x = lane->in[0].data;
    int n_in = inputs(lane), n_out = outputs(lane);

    if (w->grad == NULL)
        return;
    if (!w->add)
        memset((real *)w->grad + (size_t)begin * (size_t)n_in, 0, (size_t)(end - begin) * (size_t)n_in * sizeof(real));
    for (size_t r = 0; r < rows_in(lane, lane->pass->n_samples); r++, x += n_in, g += n_out)
        for (int o = begin; o < end; o++)
            add_scaled((real *)w->grad + (size_t)o * (size_t)n_in, x, g[o], n_in);
}

static void backward_b(const esper_lane *lane, int begin, int end)
{
    const esper_view *b = &lane->in[2];

    if (b->grad != NULL)
        put_column_sums(b, lane->out[0].grad, rows_in(lane, lane->pass->n_samples), (size_t)outputs(lane), begin, end);
}

const esper_op_kernels ESPER_OP_KERNELS(linear) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_w, outputs}, {backward_b, outputs}},
};
