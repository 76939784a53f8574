/* Internal. Softmax and cross-entropy: what the sources of its kernels share. */
#ifndef ESPER_TENSOR_REF_SOFTMAX_XENT_H
#define ESPER_TENSOR_REF_SOFTMAX_XENT_H

#include "tensor/ref/ref.h"

static inline size_t classes(const esper_lane *lane)
{
    return (size_t)lane->in[0].dim[lane->in[0].rank - 1];
}

static inline const int32_t *targets_at(const esper_lane *lane, int sample)
{
    return (const int32_t *)lane->in[1].data + (size_t)sample * (size_t)lane->in[1].count;
}

/* A row's gradient. */
typedef void (*xent_row)(const esper_view *view, const real *logits, size_t V, int32_t target, real lse, real scale,
                         real *dlogits);

/* The gradients of samples begin .. end-1, row by row. */
static inline void put_rows(const esper_lane *lane, int begin, int end, xent_row put_row)
{
    const esper_view *view = &lane->in[0];
    size_t V = classes(lane);

    if (view->grad == NULL)
        return;
    for (int n = begin; n < end; n++)
        for (int64_t row = 0; row < lane->in[1].count; row++)
            put_row(view, data_at(view, n) + (size_t)row * V, V, targets_at(lane, n)[row],
                    data_at(&lane->out[2], n)[row], (real)lane->pass->loss_scale, grad_at(view, n) + (size_t)row * V);
}

#endif
