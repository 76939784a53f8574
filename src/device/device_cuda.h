/* Internal. What CUDA code finds behind an esper_device of kind "cuda". */
#ifndef ESPER_DEVICE_DEVICE_CUDA_H
#define ESPER_DEVICE_DEVICE_CUDA_H

#include "device/cuda_driver.h"
#include "device/device.h"

/* The caller's thread works in the device's primary context between enter and leave; what was current before is current
 * again afterwards. They nest. */
esper_status esper_cuda_enter(esper_device *device);
void         esper_cuda_leave(void);

/* A stream of the device's own, for work that no caller's stream is named for. */
CUstream esper_cuda_own_stream(const esper_device *device);

/* Its compute capability, major * 10 + minor, and its name. */
int         esper_cuda_capability(const esper_device *device);
const char *esper_cuda_device_title(const esper_device *device);

/* All its memory, whoever has it. */
esper_status esper_cuda_memory(esper_device *device, uint64_t *bytes_out);

/* Its context, which stays while anybody has the device open. */
CUcontext esper_cuda_context(const esper_device *device);

/* Where cuda_module.c keeps what it loaded on this device, for all who have it open; nobody else looks before it is unlocked. */
struct esper_cuda_module;
struct esper_cuda_module **esper_cuda_modules_lock(esper_device *device);
void                       esper_cuda_modules_unlock(esper_device *device);

#endif
