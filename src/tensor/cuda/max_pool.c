/* Max pool in canonical layout. */
#include "tensor/cuda/plain.h"

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_elements("esper_max_pool", lane, lane->out[0].count, launches_out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL ? 0 : plain_elements("esper_max_pool_back", lane, lane->in[0].count, launches_out);
}

const esper_cuda_op esper_cuda_max_pool = {.forward = forward, .backward = backward};
