/* Group norm in canonical layout. */
#include "tensor/cuda/plain.h"

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_blocks("esper_group_norm", (int64_t)lane->max_samples * lane->attr.norm.groups, launches_out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    int n = 0;

    (void)part;
    if (lane->in[0].grad != NULL)
        n += plain_blocks("esper_group_norm_back", (int64_t)lane->max_samples * lane->attr.norm.groups,
                          &launches_out[n]);
    if (lane->in[1].grad != NULL || lane->in[2].grad != NULL)
        n += plain_blocks("esper_group_norm_params", lane->in[0].dim[0], &launches_out[n]);
    return n;
}

const esper_cuda_op esper_cuda_group_norm = {.forward = forward, .backward = backward};
