/* What backends that compute in host memory share: everything but `enqueue`. */
#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"
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

esper_status esper_ram_backend_sync(esper_backend *be)
{
    (void)be; /* enqueue returns when the work is done */
    return ESPER_OK;
}

const char *esper_ram_backend_identity(const esper_backend *be)
{
    return ((const esper_ram_backend *)be)->identity;
}
