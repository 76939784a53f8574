/* Softmax and cross-entropy, on canonical layouts. */
#include "tensor/cuda/softmax_xent.h"

static int push(esper_cuda_launch *out, int n, const char *kernel, int64_t warps)
{
    out[n] =
        (esper_cuda_launch){.kernel = kernel, .threads = XENT_THREADS, .blocks = esper_cuda_divide(warps, XENT_WARPS)};
    return n + 1;
}

static int64_t rows_of(const esper_lane *lane)
{
    return lane->in[1].count * lane->max_samples;
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    int n = push(out, 0, "esper_softmax_xent_rows", rows_of(lane));

    (void)part;
    return lane->in[1].count == 1 ? n : push(out, n, "esper_softmax_xent_samples", lane->max_samples);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return push(out, 0, "esper_softmax_xent_backward", rows_of(lane));
}

static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    bool is_needed = !is_backward && lane->in[1].count > 1;

    return is_needed ? (size_t)lane->in[1].count * (size_t)max_samples * sizeof(xent_row) : 0;
}

extern const esper_cuda_op esper_cuda_softmax_xent;
const esper_cuda_op esper_cuda_softmax_xent = {.forward = forward, .backward = backward, .scratch = scratch};
