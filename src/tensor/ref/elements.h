/* Internal. Operations that make each element of elements at the same place: what their kernels share. */
#ifndef ESPER_TENSOR_REF_ELEMENTS_H
#define ESPER_TENSOR_REF_ELEMENTS_H

#include "tensor/ref/ref.h"

/* Elements of samples begin .. end-1 of the first input. */
static inline size_t elements(const esper_lane *lane, int begin, int end)
{
    return (size_t)(end - begin) * (size_t)lane->in[0].count;
}

/* Puts factor * g into the gradient of a per-sample input like the output. */
static inline void put_scaled(const esper_lane *lane, int input, real factor, int begin, int end)
{
    const esper_view *view = &lane->in[input];
    const real *g = grad_at(&lane->out[0], begin);
    real *to = grad_at(view, begin);
    size_t n = elements(lane, begin, end);

    if (view->grad == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        grad_put(view, &to[i], factor * g[i]);
}

/* A function of one element and its table: `value` of v, an element of the input, and `slope`, what the gradient g of the
 * output is to the input. There v is an element of `from`, in or out: what of the two the backward pass has kept. */
#define ELEMENT_FUNCTION(op, value, from, slope)                                                \
    static void op##_forward(const esper_lane *lane, int begin, int end)                        \
    {                                                                                           \
        const real *x = data_at(&lane->in[0], begin);                                           \
        real *y = data_at(&lane->out[0], begin);                                                \
        size_t n = elements(lane, begin, end);                                                  \
                                                                                                \
        for (size_t i = 0; i < n; i++) {                                                        \
            real v = x[i];                                                                      \
                                                                                                \
            y[i] = value;                                                                       \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static void op##_backward(const esper_lane *lane, int begin, int end)                       \
    {                                                                                           \
        const esper_view *x = &lane->in[0];                                                     \
        const real *kept = data_at(&lane->from[0], begin), *dy = grad_at(&lane->out[0], begin); \
        real *dx = grad_at(x, begin);                                                           \
        size_t n = elements(lane, begin, end);                                                  \
                                                                                                \
        if (x->grad == NULL)                                                                    \
            return;                                                                             \
        for (size_t i = 0; i < n; i++) {                                                        \
            real v = kept[i], g = dy[i]; /* read in any case: else the loop is no vector's */   \
                                                                                                \
            grad_put(x, &dx[i], slope);                                                         \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    const esper_op_kernels ESPER_OP_KERNELS(op) = {                                             \
        .forward = {{op##_forward, NULL}},                                                      \
        .backward = {{op##_backward, NULL}},                                                    \
    }

#endif
