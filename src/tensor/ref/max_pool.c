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

/* Whether b takes the place of the maximum so far. */
static inline bool beats(real b, real best)
{
    return !(b <= best) && best == best;
}

static void pool_row(const rows *r, const real *upper, real *y)
{
    const real *lower = upper + r->in_w;

    for (size_t i = 0; i < r->out_w; i++) {
        real best = upper[2 * i];

        best = beats(upper[2 * i + 1], best) ? upper[2 * i + 1] : best;
        best = beats(lower[2 * i], best) ? lower[2 * i] : best;
        best = beats(lower[2 * i + 1], best) ? lower[2 * i + 1] : best;
        y[i] = best;
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

/* The winner is kept as its number in the window, so that the loop has no branches. */
static void spread_row(const rows *r, const real *upper, const real *g, real *dx)
{
    const real *lower = upper + r->in_w;

    for (size_t i = 0; i < r->out_w; i++) {
        const real value[4] = {upper[2 * i], upper[2 * i + 1], lower[2 * i], lower[2 * i + 1]};
        real best = value[0];
        int winner = 0;

        for (int j = 1; j < 4; j++) {
            bool better = beats(value[j], best);

            best = better ? value[j] : best;
            winner = better ? j : winner;
        }
        dx[2 * i] += winner == 0 ? g[i] : 0;
        dx[2 * i + 1] += winner == 1 ? g[i] : 0;
        dx[r->in_w + 2 * i] += winner == 2 ? g[i] : 0;
        dx[r->in_w + 2 * i + 1] += winner == 3 ? g[i] : 0;
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
