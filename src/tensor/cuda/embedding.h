/* Internal. What host and kernels of embedding.cu both know. */
#ifndef ESPER_TENSOR_CUDA_EMBEDDING_H
#define ESPER_TENSOR_CUDA_EMBEDDING_H

#include "tensor/cuda/elements.h"

enum { EMBEDDING_COLUMNS = 128 }; /* of a table's row that a block has: four for each lane of a warp */

#endif
