/* Internal. Copies, fills and scans of the cuda backend: what the host and their kernels say to each other. */
#ifndef ESPER_TENSOR_CUDA_MOVES_H
#define ESPER_TENSOR_CUDA_MOVES_H

#include "tensor/cuda/kernels.h"

#ifdef __CUDACC_RTC__
#define CUDA_ANY_NUMBER 1 /* it knows no arrays without a size */
#else
#define CUDA_ANY_NUMBER
#endif

/* From one place to another, neither of which need be the device's; or a word, over and over. */
typedef struct cuda_move {
    void       *to;
    const void *from;  /* NULL: a fill */
    uint64_t    bytes;
    uint64_t    word;  /* that it is filled with: four bytes */
} cuda_move;

/* The argument of a launch of moves takes the place of that of lanes: block (x, y) does part x of move y. */
enum { CUDA_MOVES = sizeof(esper_cuda_lanes) / sizeof(cuda_move), CUDA_MOVE_THREADS = 256, CUDA_MOVE_PART = 1 << 16 };

typedef struct cuda_moves {
    cuda_move move[CUDA_MOVES];
} cuda_moves;

/* What is scanned of a network, in device memory: stretches of floats, one behind the other, in parts of CUDA_SCAN_PART. */
enum { CUDA_SCAN_PART = 1 << 14, CUDA_SCAN_THREADS = 256 };

typedef struct cuda_stretch {
    const float *values;
    uint64_t     count;
    uint32_t     first_part;
    uint32_t     nan, inf; /* what they raise the flag by */
    uint32_t     unused;
} cuda_stretch;

typedef struct cuda_scan_table {
    uint32_t    *flag;
    uint32_t     n_stretches, n_parts;
    cuda_stretch stretch[CUDA_ANY_NUMBER];
} cuda_scan_table;

/* A batch that is gathered: picks follow. Written by the host, and brought to the device before a kernel reads it, as every block of
 * threads does: hundreds of them that ask for a few bytes of the host's memory each wait for each other. */
typedef struct cuda_gather_table {
    const void *at; /* there */
    esper_gather gather;
    esper_pick   pick[CUDA_ANY_NUMBER];
} cuda_gather_table;

enum { CUDA_GATHER_THREADS = 128 };

#endif
