/* Internal. The guard's kernels as they are carried in the program. */
#ifndef ESPER_GUARD_CUDA_IMAGE_H
#define ESPER_GUARD_CUDA_IMAGE_H

#include "device/cuda_module.h"

extern const esper_cuda_image esper_guard_image;

#endif
