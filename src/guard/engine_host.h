/* Internal. What the host's engine offers beyond the table. */
#ifndef ESPER_GUARD_ENGINE_HOST_H
#define ESPER_GUARD_ENGINE_HOST_H

#include "guard/engine.h"

struct esper_pool;

/* The threads of a host engine, for other work on its tensors; one job at a time. */
struct esper_pool *esper_engine_host_pool(const esper_engine *engine);

#endif
