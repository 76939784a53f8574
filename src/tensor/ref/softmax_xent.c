/* Softmax and cross-entropy in one: the loss of a sample, how many of its rows are right, and its gradient.
 *
 *     loss of a row = log of the sum of exp(logits) - logit of the target
 *
 * A negative target means "do not count this row": no loss, no gradient, never correct. Among equal logits the first is
 * the answer; a row with a NaN has no answer, and a loss of NaN.
 *
 * This is where backward passes begin: the loss's own gradient is taken as 1, the weight of a row in the batch's mean is
 * pass->loss_scale, and out[0].grad is not read. */
#include <assert.h>
#include <tgmath.h>

#include "tensor/ref/softmax_xent.h"

static size_t first_largest(const real *logits, size_t V)
{
    size_t best = 0;

    for (size_t i = 1; i < V; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static double log_sum_exp(const real *logits, size_t V, real top)
{
    double sum = 0;

    for (size_t i = 0; i < V; i++)
        sum += (double)exp(logits[i] - top);
    return (double)top + log(sum);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    size_t V = classes(lane);

    for (int sample = begin; sample < end; sample++) {
        const real *logits = data_at(&lane->in[0], sample);
        const int32_t *targets = targets_at(lane, sample);
        real *lse_at = data_at(&lane->out[2], sample);
        double loss = 0;
        int correct = 0;

        for (int64_t row = 0; row < lane->in[1].count; row++, logits += V) {
            size_t best = first_largest(logits, V);
            double lse = log_sum_exp(logits, V, logits[best]);

            assert(targets[row] < (int64_t)V);
            lse_at[row] = (real)lse;
            if (targets[row] < 0)
                continue;
            loss += lse - (double)logits[targets[row]];
            correct += lse == lse && best == (size_t)targets[row];
        }
        *data_at(&lane->out[0], sample) = (real)loss;
        *data_at(&lane->out[1], sample) = (real)correct;
    }
}

static void backward_row(const esper_view *view, const real *logits, size_t V, int32_t target, real lse, real scale,
                         real *dlogits)
{
    if (target < 0) {
        for (size_t i = 0; i < V; i++)
            grad_put(view, &dlogits[i], 0);
        return;
    }
    for (size_t i = 0; i < V; i++) {
        real p = exp(logits[i] - lse);

        grad_put(view, &dlogits[i], (i == (size_t)target ? p - 1 : p) * scale);
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    put_rows(lane, begin, end, backward_row);
}

const esper_op_kernels ESPER_OP_KERNELS(softmax_xent) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
