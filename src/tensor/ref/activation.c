/* Functions of one element: ReLU, GELU (exact, by the error function), sigmoid, tanh.
 *
 * ReLU, sigmoid and tanh take their slope from the output, so that the input need not be kept. ReLU lets NaN through in
 * both directions; its slope at 0 is 0. */
#include <tgmath.h>

#include "tensor/ref/ref.h"

/* Elements of samples begin .. end-1. */
static size_t elements(const esper_lane *lane, int begin, int end)
{
    return (size_t)(end - begin) * (size_t)lane->in[0].count;
}

static void relu_forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] <= 0 ? 0 : x[i]; /* this way round NaN stays NaN */
}

static void relu_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const real *y = data_at(&lane->out[0], begin), *g = grad_at(&lane->out[0], begin);
    real *dx = grad_at(x, begin);
    size_t n = elements(lane, begin, end);

    if (x->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        real through = g[i]; /* read in any case: a conditional read would keep the loop from being vectorised */

        grad_put(x, &dx[i], y[i] <= 0 ? 0 : through);
    }
}

/* The normal distribution up to x. */
static real normal_below(real x)
{
    return (real)0.5 * (1 + erf(x * (real)0.70710678118654752)); /* x / sqrt(2) */
}

static void gelu_forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * normal_below(x[i]);
}

static void gelu_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *view = &lane->in[0];
    const real *x = data_at(view, begin), *g = grad_at(&lane->out[0], begin);
    real *dx = grad_at(view, begin);
    size_t n = elements(lane, begin, end);

    if (view->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        real density = (real)0.39894228040143268 * exp((real)-0.5 * x[i] * x[i]); /* 1 / sqrt(2 pi) */

        grad_put(view, &dx[i], g[i] * (normal_below(x[i]) + x[i] * density));
    }
}

static void sigmoid_forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = 1 / (1 + exp(-x[i])); /* exp may reach infinity: then this is 0, as it should be */
}

static void sigmoid_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const real *y = data_at(&lane->out[0], begin), *g = grad_at(&lane->out[0], begin);
    real *dx = grad_at(x, begin);
    size_t n = elements(lane, begin, end);

    if (x->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        grad_put(x, &dx[i], g[i] * y[i] * (1 - y[i]));
}

static void tanh_forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = tanh(x[i]);
}

static void tanh_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const real *y = data_at(&lane->out[0], begin), *g = grad_at(&lane->out[0], begin);
    real *dx = grad_at(x, begin);
    size_t n = elements(lane, begin, end);

    if (x->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        grad_put(x, &dx[i], g[i] * (1 - y[i] * y[i]));
}

const esper_op_kernels ESPER_OP_KERNELS(relu) = {
    .forward = {{relu_forward, NULL}},
    .backward = {{relu_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(gelu) = {
    .forward = {{gelu_forward, NULL}},
    .backward = {{gelu_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(sigmoid) = {
    .forward = {{sigmoid_forward, NULL}},
    .backward = {{sigmoid_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(tanh) = {
    .forward = {{tanh_forward, NULL}},
    .backward = {{tanh_backward, NULL}},
};
