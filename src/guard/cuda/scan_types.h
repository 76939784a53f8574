/* Internal. What host and kernels say to each other: tables in device memory and the arguments of each kernel.
 *
 * The build puts this text before scan.cu where it embeds the source, so it must stand alone under NVRTC, which has no
 * headers: fixed-width types are our own there. */
#ifndef ESPER_GUARD_CUDA_SCAN_TYPES_H
#define ESPER_GUARD_CUDA_SCAN_TYPES_H

#ifdef __CUDACC__
typedef unsigned int       gpu_u32;
typedef unsigned long long gpu_u64;
#else
#include <stdint.h>
typedef uint32_t gpu_u32;
typedef uint64_t gpu_u64;
#endif

/* A block has GPU_THREADS threads. Data are read in vectors of GPU_VECTOR bytes, GPU_BATCH of them by each thread at
 * once: GPU_TILE bytes by a block, and a chunk is a whole number of tiles. */
#define GPU_THREADS 256
#define GPU_WARPS   (GPU_THREADS / 32)
#define GPU_VECTOR  16
#define GPU_BATCH   4
#define GPU_TILE    (GPU_THREADS * GPU_VECTOR * GPU_BATCH)

/* As in esper.h; engine_cuda.c asserts that. */
enum { GPU_F32, GPU_F16, GPU_BF16, GPU_F64, GPU_N_DTYPES };
enum { GPU_ROLE_GRAD = 1 };
enum { GPU_BAD_NAN_GRAD = 1, GPU_BAD_INF_GRAD = 2, GPU_BAD_NAN_STATE = 4, GPU_BAD_INF_STATE = 8 };

/* esper_scan_record. Also what a chunk yields; there min_abs is infinity when there is none. */
typedef struct gpu_record {
    double  sum, sum_squares;
    gpu_u64 n_nan, n_pos_inf, n_neg_inf;
    gpu_u64 first_bad;
    gpu_u64 n_zero, n_tiny;
    double  max_abs, min_abs;
    gpu_u64 checksum;
} gpu_record;

/* A tensor, in the order of roles. */
typedef struct gpu_tensor {
    gpu_u64 data;
    gpu_u64 count;
    gpu_u32 dtype, role;
    gpu_u32 n_chunks;      /* 1: its block, or its warp, writes the record at once */
    gpu_u32 first_partial; /* where the records of its chunks lie, when there are several */
} gpu_tensor;

/* What one block does: a chunk of a large tensor, or up to GPU_WARPS small tensors, one for each warp. */
#define GPU_PACK 0x80000000u
typedef struct gpu_block {
    gpu_u32 tensor; /* the first of them, in a pack */
    gpu_u32 chunk;  /* or GPU_PACK + how many */
} gpu_block;

/* Written by the last block of a scan that clips or sets a flag. */
typedef struct gpu_total {
    double  grad_norm, clip_factor;
    gpu_u32 bad;
    gpu_u32 unused;
} gpu_total;

typedef struct gpu_scan_args {
    const gpu_tensor *tensors;
    const gpu_block  *blocks;   /* of this launch */
    gpu_record       *partials;
    gpu_record       *records;  /* (tensors) */
    double           *squares;  /* (tensors): their sums of squares once more, close together */
    gpu_u32          *arrived;  /* (tensors): chunks done so far; 0 between scans */
    gpu_u32          *progress; /* [0] blocks done so far, [1] bad bits; both 0 between scans */
    gpu_total        *total;    /* NULL: nobody asked for it */
    gpu_u32          *skip_flag;
    double            clip_norm;
    gpu_u64           tiny[GPU_N_DTYPES]; /* |x| < tiny, as a bound on its bits */
    gpu_u32           roles;
    gpu_u32           chunk_vectors;
    gpu_u32           first_grad, n_grads;
} gpu_scan_args;

typedef struct gpu_scale_args {
    const gpu_tensor *tensors;
    const gpu_block  *blocks; /* those of gradients alone */
    const gpu_total  *total;  /* whose factor to take; NULL: the one below */
    double            factor;
    gpu_u32           chunk_vectors;
    gpu_u32           unused;
} gpu_scale_args;

/* A part of a snapshot. */
typedef struct gpu_part {
    gpu_u64 data;
    gpu_u64 bytes;
    gpu_u64 offset; /* in the arena */
} gpu_part;

typedef struct gpu_copy_args {
    const gpu_part  *parts;
    const gpu_block *blocks;
    char            *arena;
    gpu_u64         *sum;
    gpu_u32          chunk_vectors;
    gpu_u32          unused;
} gpu_copy_args;

typedef struct gpu_inject_args {
    gpu_u64 element;
    gpu_u64 keep, flip;
    gpu_u32 bytes;
    gpu_u32 unused;
} gpu_inject_args;

#endif
