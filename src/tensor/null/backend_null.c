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
    .stream_open = esper_ram_stream_open,
    .stream_close = esper_ram_stream_close,
    .copy_in = esper_ram_copy,
    .copy_out = esper_ram_copy,
    .copy = esper_ram_copy,
    .fill = esper_ram_fill,
    .scan = esper_ram_scan,
};
