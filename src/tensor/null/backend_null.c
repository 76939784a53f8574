/* The null backend walks every path without computing: for tests of logic, memory and timing of everything else. */
#include "tensor/backends.h"

static esper_status open_null(esper_pool *pool, esper_backend **be_out)
{
    return esper_ram_backend_open(&esper_backend_null, pool, NULL, be_out);
}

static esper_status enqueue_null(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    (void)be;
    (void)stream;
    (void)launch;
    return ESPER_OK;
}

const esper_backend_ops esper_backend_null = {
    ESPER_RAM_BACKEND_OPS,
    .name = "null",
    .about = "computes nothing: for tests of everything around the numbers",
    .open = open_null,
    .close = esper_ram_backend_close,
    .enqueue = enqueue_null,
};
