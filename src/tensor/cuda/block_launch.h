/* Internal. How operations on blocks of samples write their launches. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_LAUNCH_H
#define ESPER_TENSOR_CUDA_BLOCK_LAUNCH_H

#include <assert.h>

#include "tensor/cuda/block.h"

/* Launches are pushed one behind the other. */
typedef struct block_list {
    esper_cuda_launch *launches;
    int                n;
} block_list;

static inline void block_push(block_list *list, const char *kernel, int threads, int64_t blocks, int shared)
{
    assert(list->n < ESPER_CUDA_MAX_LAUNCHES && blocks <= INT32_MAX);
    list->launches[list->n++] =
        (esper_cuda_launch){.kernel = kernel, .threads = threads, .blocks = (int)blocks, .shared = shared};
}

/* Blocks of samples of the lane's largest batch. */
static inline int64_t block_most(const esper_lane *lane)
{
    return esper_cuda_blocks_of(lane->max_samples);
}

/* Tiles of a batch's change of layout that a block of threads has. What was gathered into blocks needs none, and few find that out
 * sooner than many. */
static inline int block_pack_tiles(const esper_lane *lane)
{
    return lane->attr.pack.of_batch ? 16 : 1;
}

#endif
