/* Internal. Kernels on a device: an image compiled ahead where one fits, else the same source compiled now.
 *
 * An image is machine code for the architectures the build knew, PTX for later ones, and always the source text. When
 * the driver takes none of the first two, or the build had no CUDA compiler, the text is compiled by an NVRTC that is
 * present (see cuda_nvrtc.h). ESPER_TEST_NO_CUBIN=1 in the environment goes that way at once. What took long to compile is kept
 * on disk: in the folder esper of XDG_CACHE_HOME or of ~/.cache, by a hash of the text. */
#ifndef ESPER_DEVICE_CUDA_MODULE_H
#define ESPER_DEVICE_CUDA_MODULE_H

#include "device/cuda_nvrtc.h"
#include "device/device_cuda.h"

typedef struct esper_cuda_image {
    const char *name;   /* for messages, and the file name in compile errors: "scan.cu" */
    const void *binary; /* a fatbin, or NULL when the build had no CUDA compiler */
    const char *source;
    const esper_cuda_header *headers; /* that the source includes; NULL: none. What is compiled with them is kept */
} esper_cuda_image;

typedef struct esper_cuda_module esper_cuda_module;

/* The image's kernels on this device, loaded the first time that anybody wants them; they stay until nobody has the device open any more. */
esper_status esper_cuda_module_get(esper_device *device, const esper_cuda_image *image, esper_cuda_module **module_out);

/* A kernel, made ready to launch: its first launch loads nothing more, so it may be one under capture. */
esper_status esper_cuda_module_kernel(esper_cuda_module *module, const char *name, CUfunction *kernel_out);

/* "embedded", or "NVRTC 13.0 for sm_90". */
const char *esper_cuda_module_origin(const esper_cuda_module *module);

/* Called when the last who had the device open closes it, in its context. */
void esper_cuda_modules_close(esper_cuda_module *first);

#endif
