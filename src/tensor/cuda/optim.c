/* Flat work: norms of gradients, and the steps of optimisers. A block has a chunk. */
#include "tensor/cuda/elements.h"

static int chunks(const esper_lane *lane)
{
    return esper_cuda_divide(lane->in[0].count, ESPER_FLAT_CHUNK);
}

static int grad_norm(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return elements_push(out, elements_push(out, 0, "esper_grad_norm_chunks", chunks(lane)), "esper_grad_norm_join", 1);
}

static int sgd(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return elements_push(out, 0, "esper_sgd", chunks(lane));
}

static int adamw(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return elements_push(out, 0, "esper_adamw", chunks(lane));
}

extern const esper_cuda_op esper_cuda_grad_norm, esper_cuda_sgd, esper_cuda_adamw;
const esper_cuda_op esper_cuda_grad_norm = {.forward = grad_norm};
const esper_cuda_op esper_cuda_sgd = {.forward = sgd};
const esper_cuda_op esper_cuda_adamw = {.forward = adamw};
