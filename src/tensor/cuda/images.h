/* Internal. The kernels of the cuda backend as they are carried in the program: an image for each source of this folder, and the
 * sources with all that they include, to be compiled where no image fits. cmake/TensorCuda.cmake writes the lists. */
#ifndef ESPER_TENSOR_CUDA_IMAGES_H
#define ESPER_TENSOR_CUDA_IMAGES_H

#include "device/cuda_module.h"

typedef struct esper_tensor_image {
    esper_cuda_image image;
    const void      *end;     /* of its binary; NULL: the build had no CUDA compiler */
    const char      *kernels; /* their names, each with a space before and behind it */
} esper_tensor_image;

/* Ends where name is NULL. */
extern const esper_tensor_image esper_tensor_images[];

#endif
