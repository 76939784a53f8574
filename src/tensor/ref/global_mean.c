/* Global mean: over the pixels of each channel, (C,H,W) -> (C), or over the tokens, (T,D) -> (D). */
#include "tensor/ref/columns.h"
#include "tensor/ref/sums.h"

static bool over_pixels(const esper_lane *lane)
{
    return lane->in[0].rank == 3;
}

/* How many elements one result is the mean of. */
static size_t share(const esper_lane *lane)
{
    return (size_t)lane->in[0].count / (size_t)lane->out[0].count;
}

static void mean_of_tokens(const real *x, size_t T, size_t D, real *y)
{
    for (size_t first = 0; first < D; first += COLUMN_BLOCK) {
        size_t n = D - first < COLUMN_BLOCK ? D - first : COLUMN_BLOCK;
        double sum[COLUMN_BLOCK] = {0};

        for (size_t t = 0; t < T; t++)
            for (size_t j = 0; j < n; j++)
                sum[j] += (double)x[t * D + first + j];
        for (size_t j = 0; j < n; j++)
            y[first + j] = (real)(sum[j] / (double)T);
    }
}

static void forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        const real *x = data_at(&lane->in[0], n);
        real *y = data_at(&lane->out[0], n);
        size_t results = (size_t)lane->out[0].count, each = share(lane);

        if (!over_pixels(lane))
            mean_of_tokens(x, each, results, y);
        for (size_t c = 0; c < results && over_pixels(lane); c++)
            y[c] = (real)(sum_of(x + c * each, each) / (double)each);
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    size_t results = (size_t)lane->out[0].count, each = share(lane);
    real part = 1 / (real)each;

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++) {
        const real *g = grad_at(&lane->out[0], n);
        real *dx = grad_at(x, n);

        if (over_pixels(lane)) {
            for (size_t c = 0; c < results; c++)
                for (size_t i = 0; i < each; i++)
                    grad_put(x, &dx[c * each + i], g[c] * part);
        } else {
            for (size_t t = 0; t < each; t++)
                for (size_t d = 0; d < results; d++)
                    grad_put(x, &dx[t * results + d], g[d] * part);
        }
    }
}

const esper_op_kernels ESPER_OP_KERNELS(global_mean) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
