/* Internal. CUDA's run-time compiler, where one is present: libnvrtc is looked for as the file that ESPER_NVRTC names,
 * then by its usual names wherever the system's loader looks (LD_LIBRARY_PATH=.../site-packages/nvidia/cu13/lib makes
 * that the one PyTorch brings). */
#ifndef ESPER_DEVICE_CUDA_NVRTC_H
#define ESPER_DEVICE_CUDA_NVRTC_H

#include "esper.h"

enum { ESPER_NVRTC_TITLE_CHARS = 48 };

/* Compiles `source` for a device of this compute capability (90 for 9.0), or, where the compiler does not know it, to
 * PTX of the latest one before it. code_out is freed with esper_mem_free; title_out becomes "NVRTC 13.0 for sm_90".
 * E_UNSUPPORTED: there is no compiler, or it refused the source. */
esper_status esper_nvrtc_compile(const char *name, const char *source, int capability, void **code_out,
                                 char title_out[ESPER_NVRTC_TITLE_CHARS]);

#endif
