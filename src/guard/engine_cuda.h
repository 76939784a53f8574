/* Internal. What the CUDA engine offers beyond the table: copies between tensors and snapshot arenas on a device,
 * summed on the way. All calls queue on `stream` and return; nothing waits. */
#ifndef ESPER_GUARD_ENGINE_CUDA_H
#define ESPER_GUARD_ENGINE_CUDA_H

#include "guard/engine.h"

/* A table of parts in device memory, made once for each list of parts. */
typedef struct esper_cuda_copy esper_cuda_copy;

esper_status esper_cuda_copy_open(esper_device *device, const esper_copy_part *parts, size_t n_parts,
                                  esper_cuda_copy **copy_out);
void         esper_cuda_copy_close(esper_cuda_copy *copy);

/* Between the tensors and an arena in memory of the same device (one launch). The checksum is added up in *sum_device,
 * a word of device memory that the caller has set to 0 on the same stream. */
esper_status esper_cuda_copy_gather(esper_cuda_copy *copy, void *arena, uint64_t *sum_device, void *stream);
esper_status esper_cuda_copy_scatter(esper_cuda_copy *copy, const void *arena, uint64_t *sum_device, void *stream);
/* The checksum of the live tensors as they would stand in an arena: to verify a restore that went by plain copies. */
esper_status esper_cuda_copy_checksum(esper_cuda_copy *copy, uint64_t *sum_device, void *stream);

/* E_STATE while the stream is under capture, so that what is queued there would be put into a graph instead of done. */
esper_status esper_cuda_check_live(esper_device *device, void *stream);

/* Spoils one element, a word of `bytes` (2, 4 or 8) in memory of the CUDA engine's device: (word & keep) ^ flip. */
esper_status esper_cuda_inject(esper_scan_engine *engine, void *element, uint32_t bytes, uint64_t keep, uint64_t flip,
                               void *stream);

/* A scan that was queued on a stream under capture runs, and may be collected, once for each launch of the graph: true
 * when the engine's latest scan is such a one. */
bool esper_cuda_engine_captured(const esper_scan_engine *engine);

/* For tests and the kernel lab: the device memory the engine holds ... */
uint64_t esper_cuda_engine_bytes(const esper_scan_engine *engine);

/* ... and where its kernels came from: "embedded", or "NVRTC 13.0 for sm_90". */
const char *esper_cuda_engine_origin(const esper_scan_engine *engine);

#endif
