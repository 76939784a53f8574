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
enum { GPU_ROLE_GRAD = 1, GPU_N_ROLES = 5 };
enum { GPU_BAD_NAN_GRAD = 1, GPU_BAD_INF_GRAD = 2, GPU_BAD_NAN_STATE = 4, GPU_BAD_INF_STATE = 8 };

/* What a thread, a warp, a chunk or a tensor yields; min_abs is infinity when there is none. */
typedef struct gpu_record {
    double  sum, sum_squares;
    gpu_u64 n_nan, n_pos_inf, n_neg_inf;
    gpu_u64 first_bad;
    gpu_u64 n_zero, n_tiny;
    double  max_abs, min_abs;
    gpu_u64 checksum;
} gpu_record;

/* esper_guard_stat. */
typedef struct gpu_stat {
    gpu_u64 n_nan, n_pos_inf, n_neg_inf;
    gpu_u64 first_bad;
    gpu_u64 n_zero, n_tiny;
    double  norm, mean;
    double  max_abs, min_abs;
    gpu_u64 checksum;
    gpu_u32 scanned, norm_overflow;
} gpu_stat;

/* esper_scan_sums. */
typedef struct gpu_sums {
    double  sum_squares;
    double  min_norm, max_norm;
    gpu_u64 n_nan, n_inf, n_zero;
    gpu_u32 n_vanishing, n_exploding;
    gpu_u32 n_not_finite, n_bad;
    gpu_u32 first_bad;
    gpu_u32 unused;
} gpu_sums;

/* A tensor, in the order of the device. */
typedef struct gpu_tensor {
    gpu_u64 data;
    gpu_u64 count;
    gpu_u32 dtype, role;
    gpu_u32 n_chunks;      /* 1: its block, or its warp, has the record at once */
    gpu_u32 first_partial; /* where the records of its chunks lie, when there are several */
    gpu_u32 index;         /* where its statistics go */
    gpu_u32 node;          /* of the unit it belongs to */
} gpu_tensor;

/* What one block does: a chunk of a large tensor, or up to GPU_WARPS small tensors of one group, one for each warp. */
#define GPU_PACK 0x80000000u
typedef struct gpu_block {
    gpu_u32 tensor; /* the first of them, in a pack */
    gpu_u32 chunk;  /* or GPU_PACK + how many */
} gpu_block;

/* Sums of tensors are added up in a tree: a unit (a pack, or a large tensor) is a leaf, a role is a root, groups are on
 * the way. Siblings lie side by side. Who brings the last of them adds them all, in their order, and goes on with the
 * parent. */
#define GPU_FAN_OUT 64u         /* siblings, at most */
#define GPU_NONE    0xffffffffu
typedef struct gpu_node {
    gpu_u32 parent; /* GPU_NONE: this is a role */
    gpu_u32 first, n_siblings;
    gpu_u32 result; /* which of the results it is, of a group or a role; GPU_NONE for others */
} gpu_node;

/* Written by the last block of a scan that clips or sets a flag. */
typedef struct gpu_total {
    double  grad_norm, clip_factor;
    gpu_u32 bad;
    gpu_u32 unused;
} gpu_total;

/* Which scan it is that the results are of. Written by every one; whether there was one, and which of several graphs with
 * scans in them it was, cannot be known to the host otherwise. Sixteen bytes, which go out together. */
typedef struct gpu_mark {
    gpu_u64 number; /* of scans since the tables were made */
    gpu_u32 roles;
    gpu_u32 tag; /* the host's */
} gpu_mark;

typedef struct gpu_scan_args {
    const gpu_tensor *tensors;
    const gpu_block  *blocks;    /* of this launch */
    const gpu_node   *nodes;
    gpu_record       *partials;
    gpu_sums         *sums;      /* (nodes) */
    gpu_u32          *arrived;   /* (tensors): chunks done so far; 0 between scans */
    gpu_u32          *gathered;  /* (nodes): children done so far; 0 between scans */
    gpu_u32          *n_done;    /* roles done so far; 0 between scans */
    gpu_stat         *stats;     /* (tensors) in the host's memory, as are ... */
    gpu_sums         *results;   /* (groups, then roles) */
    gpu_total        *total;     /* in device memory; NULL: nobody asked for it */
    gpu_total        *told;      /* the same in the host's */
    gpu_u64          *n_scans;   /* done so far */
    gpu_mark         *mark;      /* in the host's memory */
    gpu_u32          *skip_flag;
    double            clip_norm;
    double            vanishing, exploding;
    gpu_u64           tiny[GPU_N_DTYPES]; /* |x| < tiny, as a bound on its bits */
    gpu_u32           roles;
    gpu_u32           chunk_vectors;
    gpu_u32           first_role; /* node of role 0; the others follow */
    gpu_u32           n_roles;    /* that were asked for and have tensors */
    gpu_u32           tag;
    gpu_u32           unused;
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
