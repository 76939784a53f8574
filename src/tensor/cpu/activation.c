/* Functions of one element: ReLU, GELU (exact, by the normal distribution), sigmoid, tanh. See tensor/ref/activation.c for
 * what they promise; here they are computed a vector at a time. */
#include "tensor/cpu/rows.h"
#include "tensor/cpu/vec_math.h"
#include "tensor/ref/ref.h"

/* Elements of samples begin .. end-1. */
static size_t elements(const esper_lane *lane, int begin, int end)
{
    return (size_t)(end - begin) * (size_t)lane->in[0].count;
}

/* y = f(x). */
typedef simd_vec (*value_fn)(simd_vec x);

/* The slope by which a gradient is multiplied: of GELU from x, of the others from y. */
typedef simd_vec (*slope_fn)(simd_vec from);

/* Sample by sample: whether an element stands in a whole vector or in the rest must not depend on the range, since the
 * compiler may fuse other products in the one than in the other. */
SIMD_INLINE void put_values(const esper_lane *lane, int begin, int end, value_fn f)
{
    for (int n = begin; n < end; n++) {
        const float *x = data_at(&lane->in[0], n);
        float *y = data_at(&lane->out[0], n);

        ROWS_EACH(i, some, lane->in[0].count, { rows_put(y, i, some, f(rows_get(x, i, some, 0.0f))); });
    }
}

SIMD_INLINE void put_slopes(const esper_lane *lane, int begin, int end, const esper_view *from, slope_fn slope)
{
    const esper_view *x = &lane->in[0];

    for (int n = begin; n < end && x->grad != NULL; n++) {
        const float *at = data_at(from, n), *g = grad_at(&lane->out[0], n);
        float *dx = grad_at(x, n);

        ROWS_EACH(i, some, x->count, {
            simd_vec sum = rows_get(g, i, some, 0.0f) * slope(rows_get(at, i, some, 0.0f));

            if (x->add)
                sum += rows_get(dx, i, some, 0.0f);
            rows_put(dx, i, some, sum);
        });
    }
}

/* ------------------------------------------------------------------------------------------------ relu */

/* The compiler makes vectors of these loops by itself. */
static void relu_forward(const esper_lane *lane, int begin, int end)
{
    const float *x = data_at(&lane->in[0], begin);
    float *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] <= 0 ? 0 : x[i]; /* this way round NaN stays NaN */
}

static void relu_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const float *y = data_at(&lane->out[0], begin), *g = grad_at(&lane->out[0], begin);
    float *dx = grad_at(x, begin);
    size_t n = elements(lane, begin, end);

    if (x->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        float through = g[i]; /* read in any case: a conditional read would keep the loop from being vectorised */

        grad_put(x, &dx[i], y[i] <= 0 ? 0 : through);
    }
}

/* ------------------------------------------------------------------------------------------------ smooth ones */

SIMD_INLINE simd_vec sigmoid_slope(simd_vec y)
{
    return y * (1.0f - y);
}

SIMD_INLINE simd_vec tanh_slope(simd_vec y)
{
    return 1.0f - y * y;
}

static void gelu_forward(const esper_lane *lane, int begin, int end)
{
    put_values(lane, begin, end, vec_gelu);
}

static void gelu_backward(const esper_lane *lane, int begin, int end)
{
    put_slopes(lane, begin, end, &lane->in[0], vec_gelu_slope);
}

static void sigmoid_forward(const esper_lane *lane, int begin, int end)
{
    put_values(lane, begin, end, vec_sigmoid);
}

static void sigmoid_backward(const esper_lane *lane, int begin, int end)
{
    put_slopes(lane, begin, end, &lane->out[0], sigmoid_slope);
}

static void tanh_forward(const esper_lane *lane, int begin, int end)
{
    put_values(lane, begin, end, vec_tanh);
}

static void tanh_backward(const esper_lane *lane, int begin, int end)
{
    put_slopes(lane, begin, end, &lane->out[0], tanh_slope);
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
