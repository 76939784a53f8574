/* Max pool and global mean. */
#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_pool.h"

static void max_pool_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_max_pool_forward(data_block(x, b), x->dim[0], x->dim[1], x->dim[2], data_block(&lane->out[0], b));
}

static void max_pool_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end && x->grad != NULL; b++)
        simd_max_pool_back(data_block(x, b), grad_block(&lane->out[0], b), x->dim[0], x->dim[1], x->dim[2], x->add,
                           grad_block(x, b));
}

static void global_mean_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_global_mean_forward(data_block(x, b), x->dim[0], pixels_of(x), data_block(&lane->out[0], b));
}

static void global_mean_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end && x->grad != NULL; b++)
        simd_global_mean_back(grad_block(&lane->out[0], b), x->dim[0], pixels_of(x), x->add, grad_block(x, b));
}

const esper_op_kernels ESPER_BLOCK_KERNELS(max_pool) = {
    .forward = {{max_pool_forward, count_blocks}},
    .backward = {{max_pool_backward, count_blocks}},
};

const esper_op_kernels ESPER_BLOCK_KERNELS(global_mean) = {
    .forward = {{global_mean_forward, count_blocks}},
    .backward = {{global_mean_backward, count_blocks}},
};
