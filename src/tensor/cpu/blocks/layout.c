/* Between canonical layout and blocks. */
#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_pack.h"

static void pack_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_pack((const float *)x->data + (size_t)b * block_size(x), (size_t)x->count, samples_in(lane, b),
                  data_block(&lane->out[0], b));
}

/* Nobody writes the gradient of an input before this: it is not added to. */
static void pack_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end && x->grad != NULL; b++)
        simd_unpack(grad_block(&lane->out[0], b), (size_t)x->count, samples_in(lane, b),
                    (float *)x->grad + (size_t)b * block_size(x));
}

static void unpack_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_unpack(data_block(x, b), (size_t)x->count, samples_in(lane, b),
                    (float *)lane->out[0].data + (size_t)b * block_size(x));
}

/* Zero in the samples beyond the batch, as for all gradients. */
static void unpack_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    size_t count = (size_t)x->count;

    for (int b = begin; b < end && x->grad != NULL; b++) {
        const float *g = (const float *)lane->out[0].grad + (size_t)b * block_size(x);
        int n = samples_in(lane, b);

        if (!x->add)
            simd_pack(g, count, n, grad_block(x, b));
        for (int l = 0; l < n && x->add; l++)
            for (size_t i = 0; i < count; i++)
                grad_block(x, b)[i * SIMD_WIDTH + (size_t)l] += g[(size_t)l * count + i];
    }
}

const esper_op_kernels ESPER_BLOCK_KERNELS(pack) = {
    .forward = {{pack_forward, count_blocks}},
    .backward = {{pack_backward, count_blocks}},
};

const esper_op_kernels ESPER_BLOCK_KERNELS(unpack) = {
    .forward = {{unpack_forward, count_blocks}},
    .backward = {{unpack_backward, count_blocks}},
};
