/* The list of backends and the thin wrappers everybody calls. */
#include "tensor/backend.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "tensor/backends.h"
#include "tensor/net.h"

static const esper_backend_ops *const backends[] = {
    &esper_backend_cpu,
    &esper_backend_ref,
    &esper_backend_null,
    NULL,
};

const esper_backend_ops *const *esper_backend_list(void)
{
    return backends;
}

esper_status esper_backend_open(const char *name, esper_pool *pool, esper_backend **be_out)
{
    for (int i = 0; backends[i] != NULL; i++) {
        if (strcmp(name, "auto") != 0 && strcmp(name, backends[i]->name) != 0)
            continue;
        if (backends[i]->abi != ESPER_BACKEND_ABI)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "backend %s was made for interface %u, this is %d",
                              backends[i]->name, backends[i]->abi, ESPER_BACKEND_ABI);
        return backends[i]->open(pool, be_out);
    }
    return ESPER_FAIL(ESPER_E_ARG, "no backend is called '%s': see `esper info`", name);
}

void esper_backend_close(esper_backend *be)
{
    if (be != NULL)
        be->ops->close(be);
}

esper_status esper_backend_alloc(esper_backend *be, size_t bytes, void **mem_out)
{
    return be->ops->alloc(be, bytes, mem_out);
}

void esper_backend_release(esper_backend *be, void *mem)
{
    be->ops->release(be, mem);
}

bool esper_backend_supports(const esper_backend *be, esper_op_kind kind)
{
    return be->ops->supports(be, kind);
}

size_t esper_backend_bytes(const esper_backend *be, const esper_tensor *tensor, int max_samples)
{
    if (be->ops->bytes != NULL)
        return be->ops->bytes(be, tensor, max_samples);
    assert(tensor->layout == 0);
    return (size_t)tensor->count * sizeof(float) * (size_t)(tensor->per_sample ? max_samples : 1);
}

const char *esper_backend_name(const esper_backend *be)
{
    return be->ops->name;
}

const char *esper_backend_identity(const esper_backend *be)
{
    return be->ops->identity(be);
}

esper_status esper_backend_stream_open(esper_backend *be, esper_stream_kind kind, esper_backend_stream **stream_out)
{
    return be->ops->stream_open(be, kind, stream_out);
}

void esper_backend_stream_close(esper_backend_stream *stream)
{
    if (stream != NULL)
        stream->backend->ops->stream_close(stream);
}

esper_status esper_backend_enqueue(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    assert(stream == NULL || stream->backend == be);
    return be->ops->enqueue(be, stream, launch);
}

esper_status esper_backend_copy_in(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                   size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy_in(be, stream, to, from, bytes);
}

esper_status esper_backend_copy_out(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                    size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy_out(be, stream, to, from, bytes);
}

esper_status esper_backend_copy(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy(be, stream, to, from, bytes);
}

esper_status esper_backend_fill(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    assert(stream == NULL || stream->backend == be);
    assert(count == 0 || to != NULL);
    return count == 0 ? ESPER_OK : be->ops->fill(be, stream, to, value, count);
}

esper_status esper_backend_wait(esper_backend *be, esper_backend_stream *stream)
{
    assert(stream == NULL || stream->backend == be);
    atomic_fetch_add_explicit(&be->n_waits, 1, memory_order_relaxed);
    return be->ops->sync(be, stream);
}

esper_status esper_backend_sync(esper_backend *be)
{
    return esper_backend_wait(be, NULL);
}

int64_t esper_backend_waits(const esper_backend *be)
{
    return atomic_load_explicit(&be->n_waits, memory_order_relaxed);
}

esper_status esper_backend_read(esper_backend *be, void *to, const void *from, size_t bytes)
{
    ESPER_TRY(esper_backend_copy_out(be, NULL, to, from, bytes));
    return esper_backend_sync(be);
}
