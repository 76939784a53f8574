/* Softmax and cross-entropy in one: the loss of a sample, how many of its rows are right, and its gradient.
 *
 *     loss of a row = log of the sum of exp(logits) - logit of the target
 *
 * A negative target means "do not count this row": no loss, no gradient, never correct. Among equal logits the first is the answer; a
 * row with a NaN has no answer, and a loss of NaN. The loss's own gradient is taken as 1, the weight of a row is pass->loss_scale. */
#include "tensor/cuda/dialect.cuh"
#include "tensor/cuda/softmax_xent.h"
#include "tensor/cuda/sums.cuh"

FUNCTION int64_t row_of_warp()
{
    return static_cast<int64_t>(blockIdx.x) * XENT_WARPS + threadIdx.x / WARP;
}

/* A logit and where it stands. */
struct best {
    float value;
    int   at;
};

/* The larger one, of equal ones the first. A NaN is larger than nothing, as nothing is larger than the first logit where that is one. */
FUNCTION best better(best a, best b)
{
    bool b_wins = b.value > a.value || (b.value == a.value && b.at < a.at);

    return b_wins ? b : a;
}

/* One row. All lanes get the same. */
FUNCTION best largest(const float *logits, int V, int in_warp)
{
    best top = {in_warp < V ? logits[in_warp] : -INFINITY, in_warp};

    for (int i = in_warp + WARP; i < V; i += WARP)
        top = better(top, {logits[i], i});
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2)
        top = better(top, {__shfl_xor_sync(0xffffffffu, top.value, with), __shfl_xor_sync(0xffffffffu, top.at, with)});
    return top;
}

ESPER_KERNEL(esper_softmax_xent_rows, XENT_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int V = x->dim[x->rank - 1], in_warp = static_cast<int>(threadIdx.x % WARP);
    int64_t rows = lane->in[1].count, row = row_of_warp();
    const float *logits = static_cast<const float *>(x->data) + row * V;
    double sum = 0;

    if (row >= rows * lane->pass->n_samples)
        return;

    int32_t target = static_cast<const int32_t *>(lane->in[1].data)[row];
    best top = largest(logits, V, in_warp);

    for (int i = in_warp; i < V; i += WARP)
        sum += static_cast<double>(expf(logits[i] - top.value)); /* a NaN stays one, whoever is on top */
    sum = warp_sum(sum);
    if (in_warp != 0)
        return;

    double lse = static_cast<double>(top.value) + log(sum);
    double loss = target < 0 ? 0 : lse - static_cast<double>(logits[target]);
    bool is_right = target >= 0 && lse == lse && top.at == target;

    static_cast<float *>(lane->out[2].data)[row] = static_cast<float>(lse);
    if (rows == 1) {
        static_cast<float *>(lane->out[0].data)[row] = static_cast<float>(loss);
        static_cast<float *>(lane->out[1].data)[row] = is_right ? 1 : 0;
    } else {
        static_cast<xent_row *>(lane->scratch)[row] = {loss, is_right};
    }
}

/* A warp is a sample of several rows. */
ESPER_KERNEL(esper_softmax_xent_samples, XENT_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    int64_t rows = lane->in[1].count, sample = row_of_warp();
    const xent_row *of_row = static_cast<const xent_row *>(lane->scratch) + sample * rows;
    double loss = 0;
    int correct = 0;

    if (sample >= lane->pass->n_samples)
        return;
    for (int64_t r = threadIdx.x % WARP; r < rows; r += WARP) {
        loss += of_row[r].loss;
        correct += static_cast<int>(of_row[r].is_right);
    }
    loss = warp_sum(loss);
    correct = warp_sum(correct);
    if (threadIdx.x % WARP == 0) {
        static_cast<float *>(lane->out[0].data)[sample] = static_cast<float>(loss);
        static_cast<float *>(lane->out[1].data)[sample] = static_cast<float>(correct);
    }
}

ESPER_KERNEL(esper_softmax_xent_backward, XENT_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int V = x->dim[x->rank - 1];
    int64_t row = row_of_warp();
    const float *logits = static_cast<const float *>(x->data) + row * V;
    float *to = static_cast<float *>(x->grad) + row * V;

    if (x->grad == NULL || row >= lane->in[1].count * lane->pass->n_samples)
        return;

    int32_t target = static_cast<const int32_t *>(lane->in[1].data)[row];
    float lse = static_cast<const float *>(lane->out[2].data)[row], scale = lane->pass->loss_scale;

    for (int i = static_cast<int>(threadIdx.x % WARP); i < V; i += WARP) {
        float p = expf(logits[i] - lse), g = target < 0 ? 0 : (i == target ? p - 1 : p) * scale;

        to[i] = (x->add ? to[i] : 0) + g;
    }
}
