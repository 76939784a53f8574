/* Products with a factor for each channel or one for the network: mul, channel_scale, mix_tanh (ref/arithmetic.c defines
 * them).
 *
 * Two inputs may be the same tensor and then share a gradient, so input 0 is finished before input 1 is begun. */
#include <math.h>

#include "tensor/cpu/lanes/kernels.h"
#include "tensor/cpu/lanes_pool.h"

extern const esper_op_kernels ESPER_OP_KERNELS(mix_tanh);

/* The same lane with blocks for samples, for functions of single elements. */
static esper_lane blocks_as_samples(const esper_lane *lane)
{
    esper_lane blocks = *lane;

    blocks.in[0].count *= LANES_WIDTH;
    blocks.in[1].count *= LANES_WIDTH;
    blocks.out[0].count *= LANES_WIDTH;
    return blocks;
}

/* ------------------------------------------------------------------------------------------------ mul */

/* Elements of a that share one factor: the pixels of a channel, or 1 when b is like a. */
static size_t plane_of(const esper_lane *lane)
{
    return (size_t)lane->in[0].count / (size_t)lane->in[1].count;
}

static int channels(const esper_lane *lane)
{
    return (int)lane->in[1].count;
}

static void mul_forward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++)
        lanes_mul(data_block(&lane->in[0], b), data_block(&lane->in[1], b), channels(lane), plane_of(lane), false,
                  data_block(&lane->out[0], b));
}

static void mul_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *a = &lane->in[0], *factor = &lane->in[1];

    for (int b = begin; b < end; b++) {
        const float *g = grad_block(&lane->out[0], b);

        if (a->grad != NULL)
            lanes_mul(g, data_block(factor, b), channels(lane), plane_of(lane), a->add, grad_block(a, b));
        if (factor->grad != NULL)
            lanes_mul_back_b(g, data_block(a, b), channels(lane), plane_of(lane), factor->add, grad_block(factor, b));
    }
}

/* ------------------------------------------------------------------------------------------------ channel_scale */

static void channel_scale_forward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++)
        lanes_channel_scale(data_block(&lane->in[0], b), lane->in[1].data, channels(lane), plane_of(lane), false,
                            data_block(&lane->out[0], b));
}

/* Scratch is the sums of each block, (blocks, C). */
static void channel_scale_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0], *scale = &lane->in[1];

    for (int b = begin; b < end; b++) {
        const float *g = grad_block(&lane->out[0], b);

        if (scale->grad != NULL)
            lanes_channel_scale_back_s(g, data_block(x, b), channels(lane), plane_of(lane), samples_in(lane, b),
                                       (double *)lane->scratch + (size_t)b * (size_t)scale->count);
        if (x->grad != NULL)
            lanes_channel_scale(g, scale->data, channels(lane), plane_of(lane), x->add, grad_block(x, b));
    }
}

/* Units are channels. */
static void channel_scale_join(const esper_lane *lane, int begin, int end)
{
    const esper_view *scale = &lane->in[1];
    const double *sums = lane->scratch;

    for (int c = begin; c < end && scale->grad != NULL; c++) {
        double sum = 0;

        for (int b = 0; b < count_blocks(lane); b++)
            sum += sums[(size_t)b * (size_t)scale->count + (size_t)c];
        grad_put(scale, (float *)scale->grad + c, (float)sum);
    }
}

static size_t channel_scale_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return backward ? (size_t)esper_blocks_of(max_samples) * (size_t)lane->in[1].count * sizeof(double) : 0;
}

/* ------------------------------------------------------------------------------------------------ mix_tanh */

static void mix_tanh_forward(const esper_lane *lane, int begin, int end)
{
    esper_lane blocks = blocks_as_samples(lane);

    ESPER_OP_KERNELS(mix_tanh).forward[0].run(&blocks, begin, end);
}

/* Scratch is the sum of g (z - x) of each block. */
static void mix_tanh_backward(const esper_lane *lane, int begin, int end)
{
    esper_lane blocks = blocks_as_samples(lane);

    for (int b = begin; b < end && lane->in[2].grad != NULL; b++) {
        const float *g = grad_block(&lane->out[0], b);
        lanes_sums z = {0}, x = {0};

        lanes_product_sums(g, data_block(&lane->in[1], b), (size_t)lane->in[0].count, (lanes_acc){0}, &z);
        lanes_product_sums(g, data_block(&lane->in[0], b), (size_t)lane->in[0].count, (lanes_acc){0}, &x);
        ((double *)lane->scratch)[b] = lanes_join(z.b, samples_in(lane, b)) - lanes_join(x.b, samples_in(lane, b));
    }
    ESPER_OP_KERNELS(mix_tanh).backward[0].run(&blocks, begin, end);
}

/* One unit. */
static void mix_tanh_join(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[2];
    double mix = (double)tanhf(*(const float *)w->data), sum = 0;

    if (w->grad == NULL || begin == end)
        return;
    for (int b = 0; b < count_blocks(lane); b++)
        sum += ((const double *)lane->scratch)[b];
    grad_put(w, w->grad, (float)((1 - mix * mix) * sum));
}

static int one(const esper_lane *lane)
{
    (void)lane;
    return 1;
}

static size_t mix_tanh_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    (void)lane;
    return backward ? (size_t)esper_blocks_of(max_samples) * sizeof(double) : 0;
}

const esper_op_kernels ESPER_LANES_KERNELS(mul) = {
    .forward = {{mul_forward, count_blocks}},
    .backward = {{mul_backward, count_blocks}},
};

const esper_op_kernels ESPER_LANES_KERNELS(channel_scale) = {
    .forward = {{channel_scale_forward, count_blocks}},
    .backward = {{channel_scale_backward, count_blocks}, {channel_scale_join, channels}},
    .scratch = channel_scale_scratch,
};

const esper_op_kernels ESPER_LANES_KERNELS(mix_tanh) = {
    .forward = {{mix_tanh_forward, count_blocks}},
    .backward = {{mix_tanh_backward, count_blocks}, {mix_tanh_join, one}},
    .scratch = mix_tanh_scratch,
};
