/* Products with a factor for each channel or one for the network: mul, channel_scale, mix_tanh (ref/arithmetic.c defines
 * them).
 *
 * Two inputs may be the same tensor and then share a gradient, so input 0 is finished before input 1 is begun. */
#include <math.h>

#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_pool.h"

extern const esper_op_kernels ESPER_OP_KERNELS(mix_tanh);

/* ------------------------------------------------------------------------------------------------ mul */

/* b is like a, or has one number for each channel: a factor for each pixel of a plane, or for all of them. */
static size_t factors_of(const esper_lane *lane)
{
    return plane_size(&lane->in[1]) / SIMD_WIDTH;
}

static void mul_forward(const esper_lane *lane, int begin, int end)
{
    size_t n = factors_of(lane), pixels = plane_size(&lane->in[0]) / SIMD_WIDTH / n;

    for (int p = begin; p < end; p++)
        simd_mul(data_plane(&lane->in[0], p), data_plane(&lane->in[1], p), (int)n, pixels, false,
                 data_plane(&lane->out[0], p));
}

static void mul_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    size_t n = factors_of(lane), pixels = plane_size(a) / SIMD_WIDTH / n;

    for (int p = begin; p < end; p++) {
        const float *g = grad_plane(&lane->out[0], p);

        if (a->grad != NULL)
            simd_mul(g, data_plane(b, p), (int)n, pixels, a->add, grad_plane(a, p));
        if (b->grad != NULL)
            simd_mul_back_b(g, data_plane(a, p), (int)n, pixels, b->add, grad_plane(b, p));
    }
}

/* ------------------------------------------------------------------------------------------------ channel_scale */

/* x, or with the gradient of y in its place the gradient of x. */
static void scale_plane(const esper_lane *lane, int plane, const float *x, bool add, float *y)
{
    float scale = ((const float *)lane->in[1].data)[plane % lane->out[0].dim[0]];
    simd_acc factor;

    for (int i = 0; i < SIMD_VECS; i++)
        factor.v[i] = simd_all(scale);
    simd_put_scaled(x, factor, pixels_of(&lane->in[0]), add, y);
}

static void channel_scale_forward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++)
        scale_plane(lane, p, data_plane(&lane->in[0], p), false, data_plane(&lane->out[0], p));
}

/* Scratch is the sums of each plane, (blocks, C). */
static void channel_scale_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    for (int p = begin; p < end; p++) {
        const float *g = grad_plane(&lane->out[0], p);
        simd_sums sums = {0};

        if (lane->in[1].grad != NULL) {
            simd_product_sums(g, data_plane(x, p), pixels_of(x), (simd_acc){0}, &sums);
            ((double *)lane->scratch)[p] = simd_join(sums.b, samples_in(lane, p / x->dim[0]));
        }
        if (x->grad != NULL)
            scale_plane(lane, p, g, x->add, grad_plane(x, p));
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
    esper_lane planes = planes_as_samples(lane, 2);

    ESPER_OP_KERNELS(mix_tanh).forward[0].run(&planes, begin, end);
}

/* Scratch is the sum of g (z - x) of each block. */
static void mix_tanh_backward(const esper_lane *lane, int begin, int end)
{
    esper_lane planes = planes_as_samples(lane, 2);
    int C = lane->out[0].dim[0];

    for (int b = begin; b < end && lane->in[2].grad != NULL; b++) {
        const float *g = grad_block(&lane->out[0], b);
        simd_sums z = {0}, x = {0};

        simd_product_sums(g, data_block(&lane->in[1], b), (size_t)lane->in[0].count, (simd_acc){0}, &z);
        simd_product_sums(g, data_block(&lane->in[0], b), (size_t)lane->in[0].count, (simd_acc){0}, &x);
        ((double *)lane->scratch)[b] = simd_join(z.b, samples_in(lane, b)) - simd_join(x.b, samples_in(lane, b));
    }
    ESPER_OP_KERNELS(mix_tanh).backward[0].run(&planes, begin * C, end * C);
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

static size_t mix_tanh_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    (void)lane;
    return backward ? (size_t)esper_blocks_of(max_samples) * sizeof(double) : 0;
}

const esper_op_kernels ESPER_BLOCK_KERNELS(mul) = {
    .forward = {{mul_forward, count_planes}},
    .backward = {{mul_backward, count_planes}},
    .local_forward = true,
    .local_backward = true,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(channel_scale) = {
    .forward = {{channel_scale_forward, count_planes}},
    .backward = {{channel_scale_backward, count_planes}, {channel_scale_join, units_of_channels}},
    .scratch = channel_scale_scratch,
    .local_forward = true,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(mix_tanh) = {
    .forward = {{mix_tanh_forward, count_planes}},
    .backward = {{mix_tanh_backward, count_blocks}, {mix_tanh_join, one_unit}},
    .scratch = mix_tanh_scratch,
    .local_forward = true,
};
