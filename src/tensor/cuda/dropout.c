/* Dropout, on canonical layouts: no network that is lowered has any. */
#include "base/rng.h"
#include "tensor/cuda/elements.h"

_Static_assert(ESPER_RNG_DROPOUT == 5, "RNG_DROPOUT of dropout.cu is another");

/* Every sample begins a four of its own. */
static int launch_of(const esper_lane *lane, const char *kernel, esper_cuda_launch *out)
{
    int64_t fours = (lane->in[0].count + 3) / 4 * lane->max_samples;

    return elements_push(out, 0, kernel, esper_cuda_divide(fours, ELEMENTS_EACH / 4));
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return launch_of(lane, "esper_dropout_forward", out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *out)
{
    (void)part;
    return launch_of(lane, "esper_dropout_backward", out);
}

extern const esper_cuda_op esper_cuda_dropout;
const esper_cuda_op esper_cuda_dropout = {.forward = forward, .backward = backward};
