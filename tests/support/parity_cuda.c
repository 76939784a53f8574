/* The cuda backend in memory that the host sees as well: parity checks write and read networks where they lie. What it computes
 * with is its own: kernels, tables, lowering. Everything queued is waited for at once, as the host looks at it next. */
#include <string.h>

#include "base/status.h"
#include "support/parity.h"
#include "tensor/backends.h"
#include "tensor/cuda/backend_queue.h"

static esper_status alloc_seen(esper_backend *be, size_t bytes, void **mem_out)
{
    ESPER_TRY(esper_device_alloc(((cuda_backend *)be)->device, bytes, ESPER_DEVICE_MEMORY_PINNED, mem_out));
    memset(*mem_out, 0, bytes);
    return ESPER_OK;
}

static void release_seen(esper_backend *be, void *mem)
{
    esper_device_release(((cuda_backend *)be)->device, mem);
}

static esper_status enqueue_seen(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    ESPER_TRY(esper_backend_cuda.enqueue(be, stream, launch));
    return esper_backend_cuda.sync(be, stream);
}

static esper_status enqueue_programs_seen(esper_backend *be, esper_backend_stream *stream,
                                          const esper_program *programs, int n_programs)
{
    ESPER_TRY(esper_backend_cuda.enqueue_programs(be, stream, programs, n_programs));
    return esper_backend_cuda.sync(be, stream);
}

static esper_status copy_in_seen(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                 size_t bytes)
{
    ESPER_TRY(esper_backend_cuda.copy_in(be, stream, to, from, bytes));
    return esper_backend_cuda.sync(be, stream);
}

static esper_status fill_seen(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    ESPER_TRY(esper_backend_cuda.fill(be, stream, to, value, count));
    return esper_backend_cuda.sync(be, stream);
}

esper_status parity_cuda_open(esper_pool *pool, esper_backend **be_out)
{
    static esper_backend_ops seen;

    seen = esper_backend_cuda;
    seen.alloc = alloc_seen;
    seen.release = release_seen;
    seen.enqueue = enqueue_seen;
    seen.enqueue_programs = enqueue_programs_seen;
    seen.copy_in = copy_in_seen;
    seen.fill = fill_seen;
    ESPER_TRY(esper_backend_open("cuda", pool, be_out));
    (*be_out)->ops = &seen;
    return ESPER_OK;
}
