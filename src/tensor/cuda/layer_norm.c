/* Layer norm on a GPU: what is launched for a lane (layer_norm.cu). */
#include "tensor/cuda/layer_norm.h"

static const int rows_of_block = ESPER_LAYER_NORM_THREADS / 32;

static int width(const esper_lane *lane)
{
    return (int)lane->in[1].count;
}

static int rows(const esper_lane *lane, int max_samples)
{
    return max_samples * (int)(lane->in[0].count / lane->in[1].count);
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    launches_out[0] = (esper_cuda_launch){"esper_layer_norm_forward", ESPER_LAYER_NORM_THREADS,
                                          esper_cuda_divide(rows(lane, lane->max_samples), rows_of_block), 0};
    return 1;
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    int max_rows = rows(lane, lane->max_samples), pieces = esper_layer_norm_pieces(max_rows), blocks = 0, n = 0;
    bool sums = lane->in[1].grad != NULL || lane->in[2].grad != NULL;

    (void)part;
    if (lane->in[0].grad != NULL)
        blocks += esper_cuda_divide(max_rows, rows_of_block);
    if (sums)
        blocks += pieces * esper_cuda_divide(width(lane), 32);
    if (blocks > 0)
        launches_out[n++] = (esper_cuda_launch){"esper_layer_norm_backward", ESPER_LAYER_NORM_THREADS, blocks, 0};
    if (sums && pieces > 1)
        launches_out[n++] = (esper_cuda_launch){"esper_layer_norm_join", ESPER_LAYER_NORM_THREADS,
                                                esper_cuda_divide(2 * width(lane), ESPER_LAYER_NORM_THREADS), 0};
    return n;
}

static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    int pieces = esper_layer_norm_pieces(rows(lane, max_samples));

    return is_backward && pieces > 1 ? (size_t)pieces * 2 * (size_t)width(lane) * sizeof(float) : 0;
}

const esper_cuda_op esper_cuda_layer_norm = {.forward = forward, .backward = backward, .scratch = scratch};
