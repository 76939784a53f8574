/* Snapshot copies on a CUDA device: one launch moves all parts and sums them on the way. */
#include "guard/engine_cuda.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/cuda_image.h"
#include "guard/cuda_plan.h"

struct esper_cuda_copy {
    esper_device *device;
    CUfunction    gather, scatter, checksum;
    void         *table; /* in device memory: the parts, then the blocks */
    size_t        n_parts;
    uint32_t      n_blocks, chunk_vectors;
};

static esper_status upload(esper_device *device, void *to, const void *from, size_t bytes)
{
    CUstream stream = esper_cuda_own_stream(device);
    esper_status st;

    ESPER_TRY(esper_cuda_enter(device));
    st = ESPER_CUDA(cuMemcpyHtoDAsync, (CUdeviceptr)(uintptr_t)to, from, bytes, stream);
    if (st == ESPER_OK)
        st = ESPER_CUDA(cuStreamSynchronize, stream);
    esper_cuda_leave();
    return st;
}

/* Parts and blocks as the device wants them, in one piece. */
static esper_status make_table(esper_cuda_copy *copy, const esper_copy_part *parts)
{
    gpu_block *blocks = NULL;
    gpu_part *table;
    size_t bytes;
    esper_status st;

    ESPER_TRY(esper_cuda_plan_parts(parts, copy->n_parts, &blocks, &copy->n_blocks, &copy->chunk_vectors));
    if (copy->n_blocks == 0) {
        esper_mem_free(blocks);
        return ESPER_OK;
    }
    bytes = copy->n_parts * sizeof(*table) + copy->n_blocks * sizeof(*blocks);
    table = esper_mem_alloc(bytes);
    for (size_t i = 0; table != NULL && i < copy->n_parts; i++)
        table[i] = (gpu_part){.data = (uintptr_t)parts[i].data, .bytes = parts[i].bytes, .offset = parts[i].offset};
    if (table != NULL)
        memcpy(table + copy->n_parts, blocks, copy->n_blocks * sizeof(*blocks));
    esper_mem_free(blocks);
    if (table == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a table of %zu parts", copy->n_parts);
    st = esper_device_alloc(copy->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &copy->table);
    if (st == ESPER_OK)
        st = upload(copy->device, copy->table, table, bytes);
    esper_mem_free(table);
    return st;
}

static esper_status find_kernels(esper_cuda_copy *copy)
{
    esper_cuda_module *module;

    ESPER_TRY(esper_cuda_module_get(copy->device, &esper_guard_image, &module));
    ESPER_TRY(esper_cuda_module_kernel(module, "esper_guard_gather", &copy->gather));
    ESPER_TRY(esper_cuda_module_kernel(module, "esper_guard_scatter", &copy->scatter));
    return esper_cuda_module_kernel(module, "esper_guard_checksum", &copy->checksum);
}

esper_status esper_cuda_copy_open(esper_device *device, const esper_copy_part *parts, size_t n_parts,
                                  esper_cuda_copy **copy_out)
{
    esper_cuda_copy *copy;
    esper_status st;

    if (device->ops != &esper_device_cuda)
        return ESPER_FAIL(ESPER_E_ARG, "copies on a CUDA device were asked of a device of kind %s",
                          esper_device_name(device));
    copy = esper_mem_alloc(sizeof(*copy));
    if (copy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "copies on a CUDA device");
    copy->device = device;
    copy->n_parts = n_parts;
    st = find_kernels(copy);
    if (st == ESPER_OK)
        st = make_table(copy, parts);
    if (st != ESPER_OK) {
        esper_cuda_copy_close(copy);
        return st;
    }
    *copy_out = copy;
    return ESPER_OK;
}

void esper_cuda_copy_close(esper_cuda_copy *copy)
{
    if (copy == NULL)
        return;
    esper_device_release(copy->device, copy->table);
    esper_mem_free(copy);
}

static esper_status launch(esper_cuda_copy *copy, CUfunction kernel, void *arena, uint64_t *sum, void *stream)
{
    gpu_part *parts = copy->table;
    gpu_copy_args args = {.parts = parts,
                          .blocks = (const gpu_block *)(parts + copy->n_parts),
                          .arena = arena,
                          .sum = sum,
                          .chunk_vectors = copy->chunk_vectors};
    void *parameters[] = {&args};
    esper_status st;

    if (copy->n_blocks == 0)
        return ESPER_OK;
    if (((uintptr_t)arena % GPU_VECTOR) != 0)
        return ESPER_FAIL(ESPER_E_ARG, "a snapshot arena at %p: its address must be a multiple of %d", arena,
                          GPU_VECTOR);
    assert(copy->table != NULL && copy->chunk_vectors > 0);
    ESPER_TRY(esper_cuda_enter(copy->device));
    st = ESPER_CUDA(cuLaunchKernel, kernel, copy->n_blocks, 1, 1, GPU_THREADS, 1, 1, 0, stream, parameters, NULL);
    esper_cuda_leave();
    return st;
}

esper_status esper_cuda_copy_gather(esper_cuda_copy *copy, void *arena, uint64_t *sum_device, void *stream)
{
    return launch(copy, copy->gather, arena, sum_device, stream);
}

esper_status esper_cuda_copy_scatter(esper_cuda_copy *copy, const void *arena, uint64_t *sum_device, void *stream)
{
    return launch(copy, copy->scatter, (void *)(uintptr_t)arena, sum_device, stream); /* the kernel only reads it */
}

esper_status esper_cuda_copy_checksum(esper_cuda_copy *copy, uint64_t *sum_device, void *stream)
{
    return launch(copy, copy->checksum, NULL, sum_device, stream);
}

esper_status esper_cuda_check_live(esper_device *device, void *stream)
{
    int state = CU_STREAM_CAPTURE_STATUS_NONE;
    esper_status st;

    ESPER_TRY(esper_cuda_enter(device));
    st = ESPER_CUDA(cuStreamIsCapturing, stream, &state);
    esper_cuda_leave();
    if (st == ESPER_OK && state != CU_STREAM_CAPTURE_STATUS_NONE)
        return ESPER_FAIL(ESPER_E_STATE,
                          "stream %p is under capture: snapshots and rollbacks cannot be part of a graph; call before "
                          "the capture begins or after it has ended",
                          stream);
    return st;
}
