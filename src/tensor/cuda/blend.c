/* How a seed's output joins its host's: straight_through, blend_add, blend_mul, blend_gate, in both layouts. */
#include "tensor/cuda/elements.h"

ELEMENTS_OP_IN_BOTH(straight_through);
ELEMENTS_OP_IN_BOTH(blend_add);
ELEMENTS_OP_IN_BOTH(blend_mul);

/* Blocks that sum up what the gate's gradients are made of: for each sample, or each 32 of them, so many. */
static int gate_parts(const esper_lane *lane, int layout)
{
    return esper_cuda_divide(lane->in[0].count,
                             layout == ESPER_CUDA_BLOCKED ? ELEMENTS_EACH / ESPER_CUDA_BLOCK : ELEMENTS_EACH);
}

/* A double for each of them and each sample. */
static size_t gate_scratch(const esper_lane *lane, int layout, bool backward, int max_samples)
{
    return backward ? (size_t)elements_samples(layout, max_samples) * (size_t)gate_parts(lane, layout) * sizeof(double)
                    : 0;
}

static int gate_backward(const esper_lane *lane, int layout, esper_cuda_launch *out)
{
    bool is_blocked = layout == ESPER_CUDA_BLOCKED;
    int n = elements_launch(lane, layout,
                            is_blocked ? "esper_blocked_blend_gate_backward" : "esper_blend_gate_backward", out);

    n = elements_push(out, n, is_blocked ? "esper_blocked_blend_gate_parts" : "esper_blend_gate_parts",
                      gate_parts(lane, layout) *
                          (is_blocked ? esper_cuda_blocks_of(lane->max_samples) : lane->max_samples));
    return elements_push(out, n, is_blocked ? "esper_blocked_blend_gate_join" : "esper_blend_gate_join",
                         esper_cuda_divide(elements_samples(layout, lane->max_samples), ELEMENTS_THREADS));
}

#define BLEND_GATE(name, layout)                                                                       \
    static int forward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *out)         \
    {                                                                                                  \
        (void)part;                                                                                    \
        return elements_launch(lane, layout, "esper_" #name "_forward", out);                          \
    }                                                                                                  \
    static int backward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *out)        \
    {                                                                                                  \
        (void)part;                                                                                    \
        return gate_backward(lane, layout, out);                                                       \
    }                                                                                                  \
    static size_t scratch_##name(const esper_lane *lane, bool backward, int max_samples)               \
    {                                                                                                  \
        return gate_scratch(lane, layout, backward, max_samples);                                      \
    }                                                                                                  \
    extern const esper_cuda_op esper_cuda_##name;                                                      \
    const esper_cuda_op esper_cuda_##name = {                                                          \
        .forward = forward_##name, .backward = backward_##name, .scratch = scratch_##name}

BLEND_GATE(blend_gate, ESPER_CUDA_CANONICAL);
BLEND_GATE(blocked_blend_gate, ESPER_CUDA_BLOCKED);
