/* Batch norm in canonical layout. */
#include "tensor/cuda/plain.h"

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    return plain_blocks(part == ESPER_PART_BEFORE ? "esper_batch_norm_measure" : "esper_batch_norm", lane->in[0].dim[0],
                        launches_out);
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    return plain_blocks(part == ESPER_PART_BEFORE ? "esper_batch_norm_sums" : "esper_batch_norm_back",
                        lane->in[0].dim[0], launches_out);
}

/* Scratch is the values that ranks sum: the count of a channel, and two for each channel. */
static size_t sums(const esper_lane *lane, bool is_backward, size_t *offset_out)
{
    (void)is_backward;
    *offset_out = 0;
    return 1 + 2 * (size_t)lane->in[0].dim[0];
}

static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    size_t offset;

    (void)max_samples;
    return lane->spread ? sums(lane, is_backward, &offset) * sizeof(double) : 0;
}

const esper_cuda_op esper_cuda_batch_norm = {
    .forward = forward, .backward = backward, .scratch = scratch, .sums = sums};
