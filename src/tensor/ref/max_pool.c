/* Max pool over windows of 2 x 2; a last odd row or column is left out.
 *
 * The gradient goes to the first maximum in row-major order of the window, found anew from x. A NaN counts as larger than
 * everything, the first NaN as the maximum, so that faults are not hidden. */
#include <string.h>

#include "tensor/ref/ref.h"

/* Two rows of a plane of x, and the row of y made of them. */
typedef struct rows {
    size_t in_w, out_w;
    size_t top;    /* where the upper row begins in a sample of x */
    size_t pooled; /* where the row begins in a sample of y */
} rows;

static size_t n_rows(const esper_lane *lane)
{
    return (size_t)lane->out[0].dim[0] * (size_t)lane->out[0].dim[1];
}

static rows rows_at(const esper_lane *lane, size_t row)
{
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    size_t out_h = (size_t)y->dim[1];
    rows r = {.in_w = (size_t)x->dim[2], .out_w = (size_t)y->dim[2]};

    r.top = (row / out_h * (size_t)x->dim[1] + row % out_h * 2) * r.in_w;
    r.pooled = row * r.out_w;
    return r;
}

/* if_b when b takes the place of a as the maximum, else if_a. Two plain choices: gcc turns them into vector code, which it
 * does not do for a condition with "or". */
static inline real choose(real a, real b, real if_a, real if_b)
{
    real chosen = b <= a ? if_a : if_b;

    return a != a ? if_a : chosen;
}

static void pool_row(const rows *r, const real *upper, real *y)
{
    const real *lower = upper + r->in_w;
    size_t n = r->out_w;

    for (size_t i = 0; i < n; i++) {
        real a = upper[2 * i], b = upper[2 * i + 1], c = lower[2 * i], d = lower[2 * i + 1];
        real top = choose(a, b, a, b), low = choose(c, d, c, d);

        y[i] = choose(top, low, top, low);
    }
}

static void forward(const esper_lane *lane, int begin, int end)
{
    size_t count = n_rows(lane);

    for (int n = begin; n < end; n++)
        for (size_t row = 0; row < count; row++) {
            rows r = rows_at(lane, row);

            pool_row(&r, data_at(&lane->in[0], n) + r.top, data_at(&lane->out[0], n) + r.pooled);
        }
}

static void spread_row(const rows *r, const real *upper, const real *restrict g, real *restrict dx)
{
    const real *lower = upper + r->in_w;
    real *dx_lower = dx + r->in_w;
    size_t n = r->out_w;

    for (size_t i = 0; i < n; i++) {
        real a = upper[2 * i], b = upper[2 * i + 1], c = lower[2 * i], d = lower[2 * i + 1], whole = g[i];
        real top = choose(a, b, a, b), low = choose(c, d, c, d);
        real to_top = choose(top, low, whole, 0), to_low = choose(top, low, 0, whole);

        dx[2 * i] += choose(a, b, to_top, 0);
        dx[2 * i + 1] += choose(a, b, 0, to_top);
        dx_lower[2 * i] += choose(c, d, to_low, 0);
        dx_lower[2 * i + 1] += choose(c, d, 0, to_low);
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    size_t count = n_rows(lane);

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++) {
        if (!x->add)
            memset(grad_at(x, n), 0, (size_t)x->count * sizeof(real));
        for (size_t row = 0; row < count; row++) {
            rows r = rows_at(lane, row);

            spread_row(&r, data_at(x, n) + r.top, grad_at(&lane->out[0], n) + r.pooled, grad_at(x, n) + r.top);
        }
    }
}

const esper_op_kernels ESPER_OP_KERNELS(max_pool) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
