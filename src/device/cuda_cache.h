/* Internal. Kernels that were compiled at run time, kept on disk: a network's take half a minute. Everything here may fail
 * without a word: then it is compiled again. */
#ifndef ESPER_DEVICE_CUDA_CACHE_H
#define ESPER_DEVICE_CUDA_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/cuda_nvrtc.h"

/* Of all that is compiled. */
uint64_t esper_cuda_cache_key(const char *source, const esper_cuda_header *headers);

/* code_out as esper_nvrtc_compile gives it. */
bool esper_cuda_cache_find(const char *name, uint64_t key, int capability, esper_cuda_code *code_out);
void esper_cuda_cache_put(const char *name, uint64_t key, int capability, const esper_cuda_code *code);

#endif
