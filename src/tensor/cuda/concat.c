/* Two tensors side by side, on canonical layouts. */
#include "tensor/cuda/elements.h"

static int launch_of(const esper_lane *lane, const char *kernel, esper_cuda_launch *out)
{
    return elements_push(out, 0, kernel, esper_cuda_divide(lane->out[0].count * lane->max_samples, ELEMENTS_EACH));
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return launch_of(lane, "esper_concat_forward", out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return launch_of(lane, "esper_concat_backward", out);
}

extern const esper_cuda_op esper_cuda_concat;
const esper_cuda_op esper_cuda_concat = {.forward = forward, .backward = backward};
