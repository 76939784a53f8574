/* Rows in groups of S, such as what is known of each slot beside what is known of the run: one row added to all of a group, and
 * the mean and the largest of those of a group that are there. Sums go in the order of the rows. */
#include "tensor/ref/ref.h"

/* Rows of a group, and elements of a row. */
static size_t group_of(const esper_lane *lane, const esper_view *groups)
{
    return (size_t)(lane->in[0].dim[0] / groups->dim[0]);
}

static size_t width_of(const esper_lane *lane)
{
    return (size_t)lane->in[0].dim[1];
}

static void add_rows_forward(const esper_lane *lane, int begin, int end)
{
    size_t S = group_of(lane, &lane->in[1]), D = width_of(lane),
           groups = (size_t)(end - begin) * (size_t)lane->in[1].dim[0];
    const real *a = data_at(&lane->in[0], begin), *b = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin);

    for (size_t g = 0; g < groups; g++, b += D)
        for (size_t s = 0; s < S; s++, a += D, y += D)
            for (size_t d = 0; d < D; d++)
                y[d] = a[d] + b[d];
}

static void add_rows_backward(const esper_lane *lane, int begin, int end)
{
    size_t S = group_of(lane, &lane->in[1]), D = width_of(lane),
           groups = (size_t)(end - begin) * (size_t)lane->in[1].dim[0];
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    const real *g = grad_at(&lane->out[0], begin);
    real *da = grad_at(a, begin), *db = grad_at(b, begin);

    for (size_t i = 0; i < groups * S * D && da != NULL; i++)
        grad_put(a, &da[i], g[i]);
    for (size_t k = 0; k < groups && db != NULL; k++)
        for (size_t d = 0; d < D; d++) {
            double sum = 0;

            for (size_t s = 0; s < S; s++)
                sum += (double)g[(k * S + s) * D + d];
            grad_put(b, &db[k * D + d], (real)sum);
        }
}

/* How many rows of a group are there. */
static size_t count_rows(const real *there, size_t S)
{
    size_t n = 0;

    for (size_t s = 0; s < S; s++)
        n += there[s] != 0;
    return n;
}

/* The row that has the largest element of a column, of equals the first; S: none is there. What is not a number is the largest. */
static size_t largest_row(const real *x, const real *there, size_t S, size_t D)
{
    size_t best = S;

    for (size_t s = 0; s < S; s++)
        if (there[s] != 0 && (best == S || (x[best * D] == x[best * D] && !(x[s * D] <= x[best * D]))))
            best = s;
    return best;
}

static void pool_rows_forward(const esper_lane *lane, int begin, int end)
{
    size_t S = group_of(lane, &lane->out[0]), D = width_of(lane);
    size_t groups = (size_t)(end - begin) * (size_t)lane->out[0].dim[0];
    const real *x = data_at(&lane->in[0], begin), *there = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin);

    for (size_t g = 0; g < groups; g++, x += S * D, there += S, y += 2 * D) {
        size_t n = count_rows(there, S);

        for (size_t d = 0; d < D; d++) {
            size_t best = largest_row(x + d, there, S, D);
            double sum = 0;

            for (size_t s = 0; s < S; s++)
                sum += there[s] != 0 ? (double)x[s * D + d] : 0;
            y[d] = n > 0 ? (real)(sum / (double)n) : 0;
            y[D + d] = n > 0 ? x[best * D + d] : 0;
        }
    }
}

static void pool_rows_backward(const esper_lane *lane, int begin, int end)
{
    size_t S = group_of(lane, &lane->out[0]), D = width_of(lane);
    size_t groups = (size_t)(end - begin) * (size_t)lane->out[0].dim[0];
    const esper_view *view = &lane->in[0];
    const real *x = data_at(view, begin), *there = data_at(&lane->in[1], begin), *g = grad_at(&lane->out[0], begin);
    real *dx = grad_at(view, begin);

    if (dx == NULL)
        return;
    for (size_t k = 0; k < groups; k++, x += S * D, dx += S * D, there += S, g += 2 * D) {
        real part = 1 / (real)count_rows(there, S);

        for (size_t d = 0; d < D; d++) {
            size_t best = largest_row(x + d, there, S, D);

            for (size_t s = 0; s < S; s++)
                grad_put(view, &dx[s * D + d], there[s] != 0 ? g[d] * part + (s == best ? g[D + d] : 0) : 0);
        }
    }
}

const esper_op_kernels ESPER_OP_KERNELS(add_rows) = {
    .forward = {{add_rows_forward, NULL}},
    .backward = {{add_rows_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(pool_rows) = {
    .forward = {{pool_rows_forward, NULL}},
    .backward = {{pool_rows_backward, NULL}},
};
