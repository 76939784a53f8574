/* Internal. What the kernel sources of the family over blocks share: where blocks lie, and how sums over blocks are joined.
 *
 * A source defines tables, `const esper_op_kernels ESPER_BLOCK_KERNELS(relu) = {...}`, and table.c lists them all. A
 * parameter's gradient is summed over the samples and pixels of each block by itself, into scratch, and then over blocks in
 * halves (blocks_in_half): so neither threads nor other networks change a bit, nor do ranks that have whole blocks. */
#ifndef ESPER_TENSOR_CPU_BLOCKS_KERNELS_H
#define ESPER_TENSOR_CPU_BLOCKS_KERNELS_H

#include <string.h>

#include "tensor/cpu/block.h"
#include "tensor/cpu/simd.h"
#include "tensor/ref/ref.h"

#define ESPER_BLOCK_KERNELS(op) ESPER_PASTE(esper_blocks, op, ESPER_KERNELS)

_Static_assert((int)SIMD_WIDTH == (int)ESPER_BLOCK_SAMPLES, "a block has a sample for each float of its vectors");

/* Units that are blocks. */
static inline int count_blocks(const esper_lane *lane)
{
    return esper_blocks_of(lane->pass->n_samples);
}

/* Samples of a block that are the batch's. */
static inline int samples_in(const esper_lane *lane, int block)
{
    int left = lane->pass->n_samples - block * SIMD_WIDTH;

    return left < SIMD_WIDTH ? left : SIMD_WIDTH;
}

/* A sum over blocks is that of the first half and that of the second, each taken in the same way. So the halves of a batch
 * can be two ranks', and their halves four ranks': ranks are added in pairs and pairs of pairs (dist/mpi/tree.h). */
static inline int blocks_in_half(int n_blocks)
{
    return n_blocks - n_blocks / 2;
}

static inline size_t block_size(const esper_view *view)
{
    return (size_t)view->count * SIMD_WIDTH;
}

static inline float *data_block(const esper_view *view, int block)
{
    return (float *)view->data + (size_t)block * block_size(view);
}

/* NULL when no gradient is wanted. */
static inline float *grad_block(const esper_view *view, int block)
{
    return view->grad == NULL ? NULL : (float *)view->grad + (size_t)block * block_size(view);
}

/* Pixels of a channel of (C,H,W), and 1 for (C). */
static inline size_t pixels_of(const esper_view *view)
{
    return (size_t)view->dim[1] * (size_t)view->dim[2];
}

/* Units that are planes: the pixels of one channel of one block, for operations on single elements. They follow each other
 * in memory, channels of a block and blocks. */
static inline int count_planes(const esper_lane *lane)
{
    return count_blocks(lane) * lane->out[0].dim[0];
}

static inline size_t plane_size(const esper_view *view)
{
    return block_size(view) / (size_t)view->dim[0];
}

static inline float *data_plane(const esper_view *view, int plane)
{
    return (float *)view->data + (size_t)plane * plane_size(view);
}

/* NULL when no gradient is wanted. */
static inline float *grad_plane(const esper_view *view, int plane)
{
    return view->grad == NULL ? NULL : (float *)view->grad + (size_t)plane * plane_size(view);
}

/* The same lane with planes for samples, for canonical kernels that do not care how elements lie. */
static inline esper_lane planes_as_samples(const esper_lane *lane, int n_in)
{
    esper_lane planes = *lane;

    for (int i = 0; i < n_in; i++)
        planes.in[i].count = (int64_t)plane_size(&lane->in[i]);
    planes.out[0].count = (int64_t)plane_size(&lane->out[0]);
    return planes;
}

enum { JOIN_CHUNK = 256 }; /* numbers that are summed over all blocks in one go: they stay in the first cache */

/* to = the sum over blocks of n <= JOIN_CHUNK numbers, those of a block `stride` floats behind those of the one before. */
static inline void add_blocks(const float *parts, size_t stride, int n_blocks, size_t n, float *to)
{
    const float *next = parts + (size_t)blocks_in_half(n_blocks) * stride;
    float more[JOIN_CHUNK];

    if (n_blocks == 1) {
        memcpy(to, parts, n * sizeof(*to));
        return;
    }
    if (n_blocks > 2) {
        add_blocks(parts, stride, blocks_in_half(n_blocks), n, to);
        add_blocks(next, stride, n_blocks / 2, n, more);
        parts = to;
        next = more;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = parts[i] + next[i];
}

/* Numbers first .. last-1 of a parameter's gradient. */
static inline void join_blocks(const esper_view *view, const float *parts, size_t stride, int n_blocks, size_t first,
                               size_t last)
{
    float sum[JOIN_CHUNK], *grad = view->grad;

    for (size_t at = first; at < last && grad != NULL; at += JOIN_CHUNK) {
        size_t n = last - at < JOIN_CHUNK ? last - at : JOIN_CHUNK;

        add_blocks(parts + at, stride, n_blocks, n, view->add ? sum : grad + at);
        for (size_t i = 0; i < n && view->add; i++)
            grad[at + i] += sum[i];
    }
}

/* Scratch is handed out piece by piece, each at a multiple of 64 bytes. */
typedef struct scratch_cursor {
    uintptr_t base;
    size_t    used;
} scratch_cursor;

/* To find out how much is wanted, pieces are handed out from an address that nobody reads. */
static inline scratch_cursor scratch_count(void)
{
    return (scratch_cursor){.base = 64};
}

static inline scratch_cursor scratch_of(const esper_lane *lane)
{
    return (scratch_cursor){.base = (uintptr_t)lane->scratch};
}

static inline void *scratch_take(scratch_cursor *cursor, size_t bytes)
{
    void *piece = (void *)(cursor->base + cursor->used);

    cursor->used += (bytes + 63) / 64 * 64;
    return piece;
}

#endif
