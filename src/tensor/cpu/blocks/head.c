/* Linear layers of (C), softmax and cross-entropy. */
#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_head.h"

static void linear_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1];

    for (int b = begin; b < end; b++)
        simd_linear_forward(data_block(x, b), w->dim[1], w->data, lane->in[2].data, w->dim[0],
                            data_block(&lane->out[0], b));
}

/* Scratch is the parts of each block, (blocks, O * I + O): of the weights' gradient, and of the bias's. */
static size_t part_size(const esper_lane *lane)
{
    return (size_t)lane->in[1].count + (size_t)lane->in[1].dim[0];
}

static float *parts_of(const esper_lane *lane, int block)
{
    return (float *)lane->scratch + (size_t)block * part_size(lane);
}

static void linear_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1];

    for (int b = begin; b < end; b++) {
        const float *g = grad_block(&lane->out[0], b);

        if (w->grad != NULL)
            simd_linear_back_w(data_block(x, b), w->dim[1], g, w->dim[0], false, parts_of(lane, b));
        if (lane->in[2].grad != NULL)
            simd_linear_back_bias(g, w->dim[0], false, parts_of(lane, b) + w->count);
        if (x->grad != NULL)
            simd_linear_back_x(g, w->dim[0], w->data, w->dim[1], x->add, grad_block(x, b));
    }
}

/* Units are outputs: a row of the weights, and a bias. */
static void linear_join(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1], *bias = &lane->in[2];
    const float *parts = parts_of(lane, 0);
    size_t I = (size_t)w->dim[1], stride = part_size(lane);

    join_blocks(w, parts, stride, count_blocks(lane), (size_t)begin * I, (size_t)end * I);
    join_blocks(bias, parts + w->count, stride, count_blocks(lane), (size_t)begin, (size_t)end);
}

static int outputs(const esper_lane *lane)
{
    return lane->in[1].dim[0];
}

static size_t linear_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return backward ? (size_t)esper_blocks_of(max_samples) * part_size(lane) * sizeof(float) : 0;
}

static const int32_t *targets_of(const esper_lane *lane, int block)
{
    return (const int32_t *)lane->in[1].data + (size_t)block * SIMD_WIDTH;
}

static void xent_forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *logits = &lane->in[0];

    for (int b = begin; b < end; b++)
        simd_xent_forward(data_block(logits, b), logits->dim[0], targets_of(lane, b), samples_in(lane, b),
                          data_block(&lane->out[0], b), data_block(&lane->out[1], b), data_block(&lane->out[2], b));
}

static void xent_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *logits = &lane->in[0];

    for (int b = begin; b < end && logits->grad != NULL; b++)
        simd_xent_back(data_block(logits, b), logits->dim[0], targets_of(lane, b), samples_in(lane, b),
                       data_block(&lane->out[2], b), lane->pass->loss_scale, logits->add, grad_block(logits, b));
}

const esper_op_kernels ESPER_BLOCK_KERNELS(linear) = {
    .forward = {{linear_forward, count_blocks}},
    .backward = {{linear_backward, count_blocks}, {linear_join, outputs}},
    .scratch = linear_scratch,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(softmax_xent) = {
    .forward = {{xent_forward, count_blocks}},
    .backward = {{xent_backward, count_blocks}},
};
