/* Internal. What host and kernels of softmax_xent.cu both know. */
#ifndef ESPER_TENSOR_CUDA_SOFTMAX_XENT_H
#define ESPER_TENSOR_CUDA_SOFTMAX_XENT_H

#include "tensor/cuda/kernels.h"

enum { XENT_THREADS = 128, XENT_WARPS = XENT_THREADS / 32 }; /* a warp has a row */

/* What is left of a row, in scratch, until those of a sample are added up. */
typedef struct xent_row {
    double  loss;
    int64_t is_right;
} xent_row;

#endif
