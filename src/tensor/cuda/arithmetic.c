/* Sums and products of tensors: add, mul, channel_scale, mix_tanh, in both layouts. */
#include "tensor/cuda/arithmetic.h"

ELEMENTS_OP_IN_BOTH(add);

/* ------------------------------------------------------------------------------------------------ mul */

static bool is_alike(const esper_lane *lane)
{
    return lane->in[0].count == lane->in[1].count;
}

/* Channels of samples, a warp for one, or for the 32 of a block. */
static int plane_blocks(const esper_lane *lane, int layout)
{
    int blocks = layout == ESPER_CUDA_BLOCKED ? esper_cuda_blocks_of(lane->max_samples) : lane->max_samples;

    return esper_cuda_divide(lane->in[1].count * blocks, SUMS_WARPS);
}

#define MUL(prefix, layout)                                                                                        \
    static int forward_##prefix##mul(const esper_lane *lane, esper_part part, esper_cuda_launch *out)              \
    {                                                                                                              \
        (void)part;                                                                                                \
        return elements_launch(                                                                                    \
            lane, layout, is_alike(lane) ? "esper_" #prefix "mul_forward" : "esper_" #prefix "mul_planes_forward", \
            out);                                                                                                  \
    }                                                                                                              \
    static int backward_##prefix##mul(const esper_lane *lane, esper_part part, esper_cuda_launch *out)             \
    {                                                                                                              \
        int n = 0;                                                                                                 \
                                                                                                                   \
        (void)part;                                                                                                \
        if (is_alike(lane))                                                                                        \
            return elements_launch(lane, layout, "esper_" #prefix "mul_backward", out);                            \
        n = elements_launch(lane, layout, "esper_" #prefix "mul_planes_backward", out);                            \
        return elements_push(out, n, "esper_" #prefix "mul_planes_sums", plane_blocks(lane, layout));              \
    }                                                                                                              \
    extern const esper_cuda_op esper_cuda_##prefix##mul;                                                           \
    const esper_cuda_op esper_cuda_##prefix##mul = {.forward = forward_##prefix##mul,                              \
                                                    .backward = backward_##prefix##mul}

MUL(, ESPER_CUDA_CANONICAL);
MUL(blocked_, ESPER_CUDA_BLOCKED);

/* ------------------------------------------------------------------------------------------------ channel_scale, mix_tanh */

static size_t channel_scale_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return backward ? (size_t)lane->in[1].count * (size_t)esper_cuda_blocks_of(max_samples) * sizeof(double) : 0;
}

#define CHANNEL_SCALE(prefix, layout)                                                                            \
    static int forward_##prefix##channel_scale(const esper_lane *lane, esper_part part, esper_cuda_launch *out)  \
    {                                                                                                            \
        (void)part;                                                                                              \
        return elements_launch(lane, layout, "esper_" #prefix "channel_scale_forward", out);                     \
    }                                                                                                            \
    static int backward_##prefix##channel_scale(const esper_lane *lane, esper_part part, esper_cuda_launch *out) \
    {                                                                                                            \
        int channels = (int)lane->in[1].count;                                                                   \
        int n = elements_launch(lane, layout, "esper_" #prefix "channel_scale_backward", out);                   \
                                                                                                                 \
        (void)part;                                                                                              \
        n = elements_push(out, n, "esper_" #prefix "channel_scale_parts",                                        \
                          channels * esper_cuda_blocks_of(lane->max_samples));                                   \
        return elements_push(out, n, "esper_channel_scale_join", esper_cuda_divide(channels, ELEMENTS_THREADS)); \
    }                                                                                                            \
    extern const esper_cuda_op esper_cuda_##prefix##channel_scale;                                               \
    const esper_cuda_op esper_cuda_##prefix##channel_scale = {.forward = forward_##prefix##channel_scale,        \
                                                              .backward = backward_##prefix##channel_scale,      \
                                                              .scratch = channel_scale_scratch}

CHANNEL_SCALE(, ESPER_CUDA_CANONICAL);
CHANNEL_SCALE(blocked_, ESPER_CUDA_BLOCKED);

/* For either layout: what blocks of samples would take. */
static size_t mix_tanh_scratch(const esper_lane *lane, bool backward, int max_samples)
{
    int64_t elements = lane->in[0].count * elements_samples(ESPER_CUDA_BLOCKED, max_samples);

    return backward ? (size_t)esper_cuda_divide(elements, ELEMENTS_EACH) * sizeof(double) : 0;
}

#define MIX_TANH(prefix, layout)                                                                            \
    static int forward_##prefix##mix_tanh(const esper_lane *lane, esper_part part, esper_cuda_launch *out)  \
    {                                                                                                       \
        (void)part;                                                                                         \
        return elements_launch(lane, layout, "esper_" #prefix "mix_tanh_forward", out);                     \
    }                                                                                                       \
    static int backward_##prefix##mix_tanh(const esper_lane *lane, esper_part part, esper_cuda_launch *out) \
    {                                                                                                       \
        int n = elements_launch(lane, layout, "esper_" #prefix "mix_tanh_backward", out);                   \
                                                                                                            \
        (void)part;                                                                                         \
        return elements_push(out, n, "esper_" #prefix "mix_tanh_join", 1);                                  \
    }                                                                                                       \
    extern const esper_cuda_op esper_cuda_##prefix##mix_tanh;                                               \
    const esper_cuda_op esper_cuda_##prefix##mix_tanh = {                                                   \
        .forward = forward_##prefix##mix_tanh, .backward = backward_##prefix##mix_tanh, .scratch = mix_tanh_scratch}

MIX_TANH(, ESPER_CUDA_CANONICAL);
MIX_TANH(blocked_, ESPER_CUDA_BLOCKED);
