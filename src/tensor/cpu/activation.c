/* Smooth functions of one element: GELU (exact, by the normal distribution), sigmoid, tanh. See tensor/ref/activation.c for
 * what they promise; here they are computed a vector at a time. */
#include "tensor/cpu/rows.h"
#include "tensor/cpu/vec_math.h"
#include "tensor/ref/ref.h"

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

SIMD_INLINE simd_vec sigmoid_slope(simd_vec y)
{
    return y * (1.0f - y);
}

SIMD_INLINE simd_vec tanh_slope(simd_vec y)
{
    return 1.0f - y * y;
}

#define ACTIVATION(op, value, from, slope)                                \
    static void op##_forward(const esper_lane *lane, int begin, int end)  \
    {                                                                     \
        put_values(lane, begin, end, value);                              \
    }                                                                     \
                                                                          \
    static void op##_backward(const esper_lane *lane, int begin, int end) \
    {                                                                     \
        put_slopes(lane, begin, end, &lane->from[0], slope);              \
    }                                                                     \
                                                                          \
    const esper_op_kernels ESPER_OP_KERNELS(op) = {                       \
        .forward = {{op##_forward, NULL}},                                \
        .backward = {{op##_backward, NULL}},                              \
    }

ACTIVATION(gelu, vec_gelu, in, vec_gelu_slope);
ACTIVATION(sigmoid, vec_sigmoid, out, sigmoid_slope);
ACTIVATION(tanh, vec_tanh, out, tanh_slope);
