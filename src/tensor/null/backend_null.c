/* The null backend walks every path without computing: for tests of logic, memory and timing of everything else. */
#include "tensor/backends.h"

static esper_status open_null(esper_pool *pool, esper_backend **be_out)
{
    return esper_ram_backend_open(&esper_backend_null, pool, NULL, be_out);
}

static esper_status enqueue_null(esper_backend *be, const esper_launch *launch)
{
    (void)be;
    (void)launch;
    return ESPER_OK;
}

const esper_backend_ops esper_backend_null = {
    .abi = ESPER_BACKEND_ABI,
    .name = "null",
    .about = "computes nothing: for tests of everything around the numbers",
    .open = open_null,
    .close = esper_ram_backend_close,
    .alloc = esper_ram_backend_alloc,
    .release = esper_ram_backend_release,
    .supports = esper_ram_backend_supports,
    .enqueue = enqueue_null,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
};
