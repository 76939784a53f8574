/* Convolution in canonical layout. */
#include "tensor/cuda/plain.h"

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_elements("esper_conv2d", lane, lane->out[0].count, launches_out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    int n = 0;

    (void)part;
    if (lane->in[0].grad != NULL)
        n += plain_elements("esper_conv2d_back", lane, lane->in[0].count, &launches_out[n]);
    if (lane->in[1].grad != NULL)
        n += plain_blocks("esper_conv2d_weights", lane->in[1].count, &launches_out[n]);
    return n;
}

const esper_cuda_op esper_cuda_conv2d = {.forward = forward, .backward = backward};
