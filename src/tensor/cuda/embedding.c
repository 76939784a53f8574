/* Embedding, on canonical layouts. */
#include "tensor/cuda/embedding.h"

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return elements_push(out, 0, "esper_embedding_forward",
                         esper_cuda_divide(lane->out[0].count * lane->max_samples, ELEMENTS_EACH));
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    int slices = esper_cuda_divide(lane->in[1].dim[1], EMBEDDING_COLUMNS), n = 0;

    (void)part;
    n = elements_push(out, n, "esper_embedding_tokens", lane->in[1].dim[0] * slices);
    if (lane->in[2].data != NULL)
        n = elements_push(out, n, "esper_embedding_positions", lane->in[2].dim[0] * slices);
    return n;
}

extern const esper_cuda_op esper_cuda_embedding;
const esper_cuda_op esper_cuda_embedding = {.forward = forward, .backward = backward};
