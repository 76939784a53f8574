/* Dropout with inverted scaling. The mask is not stored: the backward pass draws it again. */
#include <string.h>

#include "tensor/ref/keep.h"

static bool is_on(const esper_lane *lane)
{
    return esper_lane_trains(lane) && lane->attr.dropout.drop > 0;
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int n = begin; n < end; n++) {
        const real *from = data_at(x, n);
        real *y = data_at(&lane->out[0], n);
        esper_rng rng;

        if (!is_on(lane)) {
            memmove(y, from, (size_t)x->count * sizeof(real));
            continue;
        }
        rng = keep_stream(lane->pass, n, lane->attr.dropout.tag);
        for (int64_t i = 0; i < x->count; i++) {
            real factor = keep_factor(&rng, lane->attr.dropout.drop);

            y[i] = factor == 0 ? 0 : from[i] * factor; /* a dropped NaN is gone */
        }
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++) {
        const real *g = grad_at(&lane->out[0], n);
        real *dx = grad_at(x, n);
        esper_rng rng;

        if (!is_on(lane)) {
            for (int64_t i = 0; i < x->count; i++)
                grad_put(x, &dx[i], g[i]);
            continue;
        }
        rng = keep_stream(lane->pass, n, lane->attr.dropout.tag);
        for (int64_t i = 0; i < x->count; i++) {
            real factor = keep_factor(&rng, lane->attr.dropout.drop);

            grad_put(x, &dx[i], factor == 0 ? 0 : g[i] * factor);
        }
    }
}

const esper_op_kernels ESPER_OP_KERNELS(dropout) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
