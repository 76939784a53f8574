/* Internal. What the kernel sources of tensor/ref/ share.
 *
 * Every source here is compiled once for each kernel set: ESPER_KERNELS is the set's name, ESPER_REAL its element type.
 * A source defines one table, `const esper_op_kernels ESPER_OP_KERNELS(conv2d) = {...}`, and set.c lists them all.
 *
 * Rules: plain loops over canonical layouts; sums whose length depends on the data (norms, losses, parameter gradients of
 * long rows) are kept in double where that costs little; a gradient is written through `add` as its view says. */
#ifndef ESPER_TENSOR_REF_H
#define ESPER_TENSOR_REF_H

#include <stddef.h>

#include "tensor/kernel.h"

#define ESPER_PASTE_(a, b, c) a##_##b##_##c
#define ESPER_PASTE(a, b, c)  ESPER_PASTE_(a, b, c)

#define ESPER_OP_KERNELS(op) ESPER_PASTE(esper_op, op, ESPER_KERNELS)

typedef ESPER_REAL real;

/* Where a sample's slice of a per-sample tensor begins. */
static inline real *data_at(const esper_view *view, int sample)
{
    return (real *)view->data + (size_t)sample * (size_t)view->count;
}

/* The same of its gradient; NULL when none is wanted. */
static inline real *grad_at(const esper_view *view, int sample)
{
    return view->grad == NULL ? NULL : (real *)view->grad + (size_t)sample * (size_t)view->count;
}

/* Units of a phase: one, or the output's channels (or rows). */
static inline int one_unit(const esper_lane *lane)
{
    (void)lane;
    return 1;
}

static inline int units_of_channels(const esper_lane *lane)
{
    return lane->out[0].dim[0];
}

/* Writes one element of a gradient. */
static inline void grad_put(const esper_view *view, real *grad, real value)
{
    *grad = view->add ? *grad + value : value;
}

/* A sample's gradient of all elements of a view, where one is wanted. */
static inline void grad_put_all(const esper_view *view, int sample, const real *values)
{
    real *grad = grad_at(view, sample);

    for (int64_t i = 0; i < view->count && grad != NULL; i++)
        grad_put(view, &grad[i], values[i]);
}

#endif
