/* Internal. Blocks of samples: the layout of the CPU backend's own.
 *
 *     canonical   [sample][channel][row][column]
 *     blocked     [block of 16 samples][channel][row][column][sample in the block]
 *
 * Samples lie side by side in vectors, so that every operation on images is vertical whatever their size. Block
 * b of a tensor begins at data + b * count * 16. Samples beyond the batch hold finite numbers in activations, and zero in
 * gradients. Parameters and their gradients are canonical.
 *
 * Lowering (tensor/lower.h) makes networks of such tensors. */
#ifndef ESPER_TENSOR_CPU_BLOCK_H
#define ESPER_TENSOR_CPU_BLOCK_H

/* Samples to a block, and the largest kernel of a convolution on blocks. */
enum { ESPER_BLOCK_SAMPLES = 16, ESPER_BLOCK_KERNEL = 7 };

/* Blocks of a batch: the last may be filled in part. */
static inline int esper_blocks_of(int n_samples)
{
    return (n_samples + ESPER_BLOCK_SAMPLES - 1) / ESPER_BLOCK_SAMPLES;
}

#endif
