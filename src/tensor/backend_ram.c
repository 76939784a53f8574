/* What backends that compute in host memory share: everything but `enqueue`. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/guard_internal.h"
#include "tensor/backends.h"

esper_status esper_ram_backend_open(const esper_backend_ops *ops, esper_pool *pool, const esper_kernel_set *kernels,
                                    esper_backend **be_out)
{
    esper_ram_backend *host = esper_mem_alloc(sizeof(*host));
    esper_status status;

    if (host == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "backend %s", ops->name);
    status = esper_device_open("host", 0, &host->device);
    if (status != ESPER_OK) {
        esper_mem_free(host);
        return status;
    }
    host->base.ops = ops;
    host->pool = pool;
    host->kernels = kernels;
    snprintf(host->identity, sizeof(host->identity), "%s/%s", ops->name, kernels != NULL ? kernels->name : "none");
    *be_out = &host->base;
    return ESPER_OK;
}

void esper_ram_backend_close(esper_backend *be)
{
    esper_device_close(((esper_ram_backend *)be)->device);
    esper_mem_free(be);
}

esper_status esper_ram_backend_alloc(esper_backend *be, size_t bytes, void **mem_out)
{
    return esper_device_alloc(((esper_ram_backend *)be)->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, mem_out);
}

void esper_ram_backend_release(esper_backend *be, void *mem)
{
    esper_device_release(((esper_ram_backend *)be)->device, mem);
}

bool esper_ram_backend_supports(const esper_backend *be, esper_op_kind kind)
{
    const esper_ram_backend *host = (const esper_ram_backend *)be;

    return host->kernels == NULL || host->kernels->op[kind] != NULL;
}

esper_status esper_ram_backend_sync(esper_backend *be, esper_backend_stream *stream)
{
    (void)be; /* whatever is queued is done when the call returns */
    (void)stream;
    return ESPER_OK;
}

const char *esper_ram_backend_identity(const esper_backend *be)
{
    return ((const esper_ram_backend *)be)->identity;
}

esper_status esper_ram_copy(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)be;
    (void)stream;
    memcpy(to, from, bytes);
    return ESPER_OK;
}

esper_status esper_ram_fill(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    (void)be;
    (void)stream;
    for (size_t i = 0; i < count; i++)
        to[i] = value;
    return ESPER_OK;
}

size_t esper_ram_scratch(const esper_op_kernels *op, const esper_launch *launch, int max_samples)
{
    return op->scratch == NULL ? 0 : op->scratch(launch->lanes, launch->direction == ESPER_BACKWARD, max_samples);
}

size_t esper_ram_sums(const esper_op_kernels *op, const esper_launch *launch, size_t *offset_out)
{
    return op->shared == NULL ? 0 : op->shared->sums(launch->lanes, launch->direction == ESPER_BACKWARD, offset_out);
}

esper_status esper_ram_scan(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                            const esper_guard_scan *request, uint32_t *flag)
{
    esper_guard_scan flagged = *request;

    (void)stream;
    flagged.skip_flag = esper_backend_address(be, flag);
    if (*flagged.skip_flag != 0)
        return ESPER_OK;
    esper_guard_give_up(guard);
    return esper_guard_launch(guard, &flagged);
}
