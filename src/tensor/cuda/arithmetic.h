/* Internal. What host and kernels of arithmetic.cu both know. */
#ifndef ESPER_TENSOR_CUDA_ARITHMETIC_H
#define ESPER_TENSOR_CUDA_ARITHMETIC_H

#include "tensor/cuda/elements.h"

enum { SUMS_WARPS = ELEMENTS_THREADS / 32 }; /* sums that a block takes, a warp each */

#endif
