/* Two tensors of T rows side by side: row t of y is row t of a, then row t of b. Rows are rows whatever their shape. */
#include <string.h>

#include "tensor/ref/ref.h"

/* Elements of a row of an input. */
static size_t width(const esper_lane *lane, int input)
{
    return (size_t)lane->in[input].count / (size_t)lane->out[0].dim[0];
}

static void forward(const esper_lane *lane, int begin, int end)
{
    size_t A = width(lane, 0), B = width(lane, 1), rows = (size_t)(end - begin) * (size_t)lane->out[0].dim[0];
    const real *a = data_at(&lane->in[0], begin), *b = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin);

    for (size_t r = 0; r < rows; r++, a += A, b += B, y += A + B) {
        memcpy(y, a, A * sizeof(*y));
        memcpy(y + A, b, B * sizeof(*y));
    }
}

static void put_rows(const esper_lane *lane, int input, const real *g, int begin, int end)
{
    const esper_view *view = &lane->in[input];
    size_t n = width(lane, input), rows = (size_t)(end - begin) * (size_t)lane->out[0].dim[0];
    real *dx = grad_at(view, begin);

    if (dx == NULL)
        return;
    for (size_t r = 0; r < rows; r++, dx += n, g += lane->out[0].dim[1])
        for (size_t i = 0; i < n; i++)
            grad_put(view, &dx[i], g[i]);
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const real *g = grad_at(&lane->out[0], begin);

    put_rows(lane, 0, g, begin, end);
    put_rows(lane, 1, g + width(lane, 0), begin, end);
}

const esper_op_kernels ESPER_OP_KERNELS(concat) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
