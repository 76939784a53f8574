/* Internal. Launches of the plain kernels for images in canonical layout (images.cuh). */
#ifndef ESPER_TENSOR_CUDA_PLAIN_H
#define ESPER_TENSOR_CUDA_PLAIN_H

#include "tensor/cuda/kernels.h"

enum { PLAIN_THREADS = 128 };

#ifndef __cplusplus

/* So many blocks of threads: for each channel, group or weight its own. */
static inline int plain_blocks(const char *kernel, int64_t blocks, esper_cuda_launch *launch_out)
{
    *launch_out = (esper_cuda_launch){.kernel = kernel, .threads = PLAIN_THREADS, .blocks = (int)blocks};
    return 1;
}

/* A thread for each of `count` elements of every sample. */
static inline int plain_elements(const char *kernel, const esper_lane *lane, int64_t count,
                                 esper_cuda_launch *launch_out)
{
    return plain_blocks(kernel, esper_cuda_divide(lane->max_samples * count, PLAIN_THREADS), launch_out);
}

#endif

#endif
