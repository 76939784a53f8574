/* Internal. What the host and the kernels of the cuda backend say to each other.
 *
 * A lane (tensor/op.h) lies in device memory as it is, and a kernel is given the addresses of lanes: block (x, y) of the grid is
 * block x of lane y. What a block does depends on its lane and on x alone, never on how many lanes there are, so a network's bits
 * are the same alone and among a thousand. A lane may have fewer blocks than the widest one of its launch: kernels look whether
 * there is anything left to do.
 *
 * Rules for kernels:
 *   - sums are taken in an order that the lane's shape and its number of samples fix; no atomics on floats;
 *   - the batch is lane->pass->n_samples, at most lane->max_samples, for which blocks are counted;
 *   - a gradient is written through `add` of its view, and not at all where its address is NULL;
 *   - whether a batch trains is asked on the device (esper_lane_trains), as the pass lies there;
 *   - which kernel a lane is computed with is decided by its shape and settings, on the host, in the table of its operation. */
#ifndef ESPER_TENSOR_CUDA_KERNELS_H
#define ESPER_TENSOR_CUDA_KERNELS_H

#include "tensor/op.h"

/* Lanes of one launch: their addresses are its argument, which may have 4 KB. */
enum { ESPER_CUDA_LANES = 448 };

typedef struct esper_cuda_lanes {
    const esper_lane *lane[ESPER_CUDA_LANES];
} esper_cuda_lanes;

/* Layouts, as lowering writes them into tensors, and variants of work on them. Blocked: [block of 32 samples][element][sample of
 * the block], so that a warp has 32 samples at one element; block b of a tensor begins at data + b * count * 32. Samples of the
 * last block beyond the batch hold finite numbers in activations, and zero in gradients. Parameters are canonical. Halves: the same with
 * bf16 of two channels in a word (block_half.h); the variant `change` is that of operations between the last two. */
enum { ESPER_CUDA_CANONICAL, ESPER_CUDA_BLOCKED, ESPER_CUDA_HALVES, ESPER_CUDA_CHANGE };
enum { ESPER_CUDA_BLOCK = 32 };

/* ------------------------------------------------------------------------------------------------ the host's side */

/* A kernel for one lane; lanes whose launches differ in blocks alone are computed together. */
typedef struct esper_cuda_launch {
    const char *kernel;
    int         threads; /* of a block */
    int         blocks;  /* of the lane, for its largest batch */
    int         shared;  /* bytes of shared memory that it is given besides what it declares */
} esper_cuda_launch;

enum { ESPER_CUDA_MAX_LAUNCHES = 8 };

/* How an operation is computed. Lanes are the host's: their shapes, settings and addresses may be looked at, what lies at the
 * addresses may not. */
typedef struct esper_cuda_op {
    /* Writes what is launched for the lane, one behind the other; returns how many. */
    int (*forward)(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out);
    int (*backward)(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out);
    /* As in esper_op_kernels (tensor/kernel.h); NULL = none. */
    size_t (*scratch)(const esper_lane *lane, bool backward, int max_samples);
    size_t (*sums)(const esper_lane *lane, bool backward, size_t *offset_out);
} esper_cuda_op;

/* NULL: there is none for that layout. */
const esper_cuda_op *esper_cuda_op_of(esper_op_kind kind, int variant);

static inline int esper_cuda_blocks_of(int n_samples)
{
    return (n_samples + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK;
}

/* Blocks that it takes when each does so many of them. */
static inline int esper_cuda_divide(int64_t n, int64_t each)
{
    return (int)((n + each - 1) / each);
}

#endif
