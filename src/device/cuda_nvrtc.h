/* Internal. CUDA's run-time compiler, where one is present: libnvrtc is looked for as the file that ESPER_NVRTC names,
 * then by its usual names wherever the system's loader looks (LD_LIBRARY_PATH=.../site-packages/nvidia/cu13/lib makes
 * that the one PyTorch brings). */
#ifndef ESPER_DEVICE_CUDA_NVRTC_H
#define ESPER_DEVICE_CUDA_NVRTC_H

#include <stddef.h>

#include "esper.h"

enum { ESPER_NVRTC_TITLE_CHARS = 48 };

/* Code for a device. */
typedef struct esper_cuda_code {
    void  *bytes; /* machine code, or PTX, which is text */
    size_t n_bytes;
    char   title[ESPER_NVRTC_TITLE_CHARS];
} esper_cuda_code;

/* A text that a source includes by this name, with quotes or brackets. */
typedef struct esper_cuda_header {
    const char *name, *text; /* name NULL ends a list */
} esper_cuda_header;

/* Compiles `source` (in C++14, and with a list of headers in C++17) for a device of this compute capability (90 for 9.0), or, where the compiler does not know it, to
 * PTX of the latest one before it. The code is freed with esper_mem_free; its title becomes "NVRTC 13.0 for sm_90".
 * E_UNSUPPORTED: there is no compiler, or it refused the source. */
esper_status esper_nvrtc_compile(const char *name, const char *source, const esper_cuda_header *headers, int capability,
                                 esper_cuda_code *code_out);

#endif
