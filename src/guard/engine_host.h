/* Internal. What the host's engine offers beyond the table. */
#ifndef ESPER_GUARD_ENGINE_HOST_H
#define ESPER_GUARD_ENGINE_HOST_H

#include "guard/engine.h"

struct esper_pool;

/* The threads of a host engine, for other work on its tensors; one job at a time. */
struct esper_pool *esper_scan_engine_host_pool(const esper_scan_engine *engine);

/* May `bytes` of host memory be written? E_ARG says why not. Each byte that is tried is written as it was read. */
esper_status esper_scan_engine_host_check_writable(void *memory, uint64_t bytes);
/* The same for all gradients of a host engine, before they are clipped; once for each set of addresses. */
esper_status esper_scan_engine_host_check_grads(esper_scan_engine *engine);

#endif
