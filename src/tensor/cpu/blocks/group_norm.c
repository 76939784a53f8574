/* Group norm: each sample by itself, so a block is done in one go but for the gradients of scale and shift. */
#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_group_norm.h"

static void forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_group_norm_forward(data_block(x, b), x->dim[0], pixels_of(x), lane->attr.norm.groups, lane->in[1].data,
                                lane->in[2].data, lane->attr.norm.eps, data_block(&lane->out[1], b),
                                data_block(&lane->out[0], b));
}

/* Scratch is the parts of each block, (blocks, 2, C): of the scale's gradient, and of the shift's. */
static float *parts_of(const esper_lane *lane, int block)
{
    return (float *)lane->scratch + (size_t)block * 2 * (size_t)lane->in[0].dim[0];
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_group_norm_back(data_block(x, b), grad_block(&lane->out[0], b), x->dim[0], pixels_of(x),
                             lane->attr.norm.groups, lane->in[1].data, data_block(&lane->out[1], b),
                             samples_in(lane, b), x->add, grad_block(x, b), parts_of(lane, b),
                             parts_of(lane, b) + x->dim[0]);
}

/* Units are channels. */
static void join(const esper_lane *lane, int begin, int end)
{
    size_t C = (size_t)lane->in[0].dim[0];

    for (int i = 0; i < 2; i++)
        join_blocks(&lane->in[1 + i], parts_of(lane, 0) + (size_t)i * C, 2 * C, count_blocks(lane), (size_t)begin,
                    (size_t)end);
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return backward ? (size_t)esper_blocks_of(max_samples) * 2 * (size_t)lane->in[0].dim[0] * sizeof(float) : 0;
}

const esper_op_kernels ESPER_BLOCK_KERNELS(group_norm) = {
    .forward = {{forward, count_blocks}},
    .backward = {{backward, count_blocks}, {join, units_of_channels}},
    .scratch = scratch,
};
