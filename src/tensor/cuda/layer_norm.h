/* Internal. Layer norm on a GPU: what the host and the kernels reckon alike. */
#ifndef ESPER_TENSOR_CUDA_LAYER_NORM_H
#define ESPER_TENSOR_CUDA_LAYER_NORM_H

#include "tensor/cuda/kernels.h"

#ifndef FUNCTION
#define FUNCTION static inline
#endif

/* Rows of a piece in the sums over rows: sixteen to a warp. */
enum { ESPER_LAYER_NORM_THREADS = 256, ESPER_LAYER_NORM_ROWS = 128 };

FUNCTION int esper_layer_norm_pieces(int max_rows)
{
    return (max_rows + ESPER_LAYER_NORM_ROWS - 1) / ESPER_LAYER_NORM_ROWS;
}

#endif
