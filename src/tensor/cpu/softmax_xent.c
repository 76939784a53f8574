/* Softmax and cross-entropy in one: what tensor/ref/softmax_xent.c defines, with exponentials a vector at a time. */
#include <assert.h>
#include <math.h>

#include "tensor/cpu/rows.h"
#include "tensor/cpu/vec_math.h"
#include "tensor/ref/softmax_xent.h"

/* The largest of a row; NaN in a row is passed over, or not. */
static float largest(const float *logits, size_t V)
{
    simd_vec top = simd_all(logits[0]);

    ROWS_EACH(i, some, V, { top = simd_max(top, rows_get(logits, i, some, logits[0])); });
    return rows_largest(top);
}

/* Where `top` stands first; V when it does not (NaN). */
static size_t first_at(const float *logits, size_t V, float top)
{
    size_t i = 0;

    while (i < V && logits[i] != top)
        i++;
    return i;
}

static double log_sum_exp(const float *logits, size_t V, float top)
{
    simd_vec sum = {0};

    ROWS_EACH(i, some, V, { sum += vec_exp(rows_get(logits, i, some, -__builtin_inff()) - top); });
    return (double)top + log((double)rows_sum(sum));
}

static void forward(const esper_lane *lane, int begin, int end)
{
    size_t V = classes(lane);

    for (int sample = begin; sample < end; sample++) {
        const float *logits = data_at(&lane->in[0], sample);
        const int32_t *targets = targets_at(lane, sample);
        float *lse_at = data_at(&lane->out[2], sample);
        double loss = 0;
        int correct = 0;

        for (int64_t row = 0; row < lane->in[1].count; row++, logits += V) {
            float top = largest(logits, V);
            double lse = log_sum_exp(logits, V, top); /* NaN where a logit is */

            assert(targets[row] < (int64_t)V);
            lse_at[row] = (float)lse;
            if (targets[row] < 0)
                continue;
            loss += lse - (double)logits[targets[row]];
            correct += lse == lse && logits[targets[row]] == top && first_at(logits, V, top) == (size_t)targets[row];
        }
        *data_at(&lane->out[0], sample) = (float)loss;
        *data_at(&lane->out[1], sample) = (float)correct;
    }
}

/* Puts scale * exp(logit - lse) into a row of the gradient, and takes scale from the target's. */
static void backward_row(const esper_view *view, const float *logits, size_t V, int32_t target, float lse, float scale,
                         float *dlogits)
{
    if (target < 0) {
        if (!view->add)
            memset(dlogits, 0, V * sizeof(float));
        return;
    }
    if (view->add) {
        ROWS_EACH(i, some, V, {
            simd_vec p = vec_exp(rows_get(logits, i, some, 0.0f) - lse);

            rows_put(dlogits, i, some, rows_get(dlogits, i, some, 0.0f) + p * scale);
        });
        dlogits[target] -= scale;
        return;
    }
    ROWS_EACH(i, some, V, { rows_put(dlogits, i, some, vec_exp(rows_get(logits, i, some, 0.0f) - lse) * scale); });
    dlogits[target] -= scale;
}

static void backward(const esper_lane *lane, int begin, int end)
{
    put_rows(lane, begin, end, backward_row);
}

const esper_op_kernels ESPER_OP_KERNELS(softmax_xent) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
