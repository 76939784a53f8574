/* Internal. How operations over elements are cut into blocks of threads. */
#ifndef ESPER_TENSOR_CUDA_ELEMENTS_H
#define ESPER_TENSOR_CUDA_ELEMENTS_H

#include "tensor/cuda/kernels.h"

enum { ELEMENTS_THREADS = 256, ELEMENTS_EACH = 16 * ELEMENTS_THREADS };

#ifndef __cplusplus

/* Samples that lie in memory. */
static inline int elements_samples(int layout, int max_samples)
{
    return layout == ESPER_CUDA_BLOCKED ? esper_cuda_blocks_of(max_samples) * ESPER_CUDA_BLOCK : max_samples;
}

/* One launch over all elements of the first input. */
static inline int elements_launch(const esper_lane *lane, int layout, const char *kernel, esper_cuda_launch *out)
{
    *out = (esper_cuda_launch){
        .kernel = kernel,
        .threads = ELEMENTS_THREADS,
        .blocks = esper_cuda_divide(lane->in[0].count * elements_samples(layout, lane->max_samples), ELEMENTS_EACH),
    };
    return 1;
}

/* One more launch of the given blocks, behind n that are there. */
static inline int elements_push(esper_cuda_launch *out, int n, const char *kernel, int blocks)
{
    out[n] = (esper_cuda_launch){.kernel = kernel, .threads = ELEMENTS_THREADS, .blocks = blocks};
    return n + 1;
}

/* The table of an operation that is one such launch in either direction; name: of the operation in its layout. */
#define ELEMENTS_OP(name, layout)                                                                               \
    static int forward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *out)                  \
    {                                                                                                           \
        (void)part;                                                                                             \
        return elements_launch(lane, layout, "esper_" #name "_forward", out);                                   \
    }                                                                                                           \
    static int backward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *out)                 \
    {                                                                                                           \
        (void)part;                                                                                             \
        return elements_launch(lane, layout, "esper_" #name "_backward", out);                                  \
    }                                                                                                           \
    extern const esper_cuda_op esper_cuda_##name;                                                               \
    const esper_cuda_op esper_cuda_##name = {.forward = forward_##name, .backward = backward_##name}

#define ELEMENTS_OP_IN_BOTH(name)                \
    ELEMENTS_OP(name, ESPER_CUDA_CANONICAL);     \
    ELEMENTS_OP(blocked_##name, ESPER_CUDA_BLOCKED)

#endif

#endif
