/* Memory kept for the next. */
#include "tensor/cuda/backend_memory.h"

#include <assert.h>

#include "base/mem.h"

enum { GRAIN = 512 };

static size_t bucket_of(const void *at)
{
    return ((uintptr_t)at / GRAIN * 2654435761u) % CUDA_BLOCK_BUCKETS;
}

/* Sizes in a class differ by a quarter at most. */
static int size_class(size_t bytes)
{
    int power = 63 - __builtin_clzll(bytes);

    assert(bytes >= GRAIN);
    return 4 * power + (int)(bytes >> (power - 2) & 3);
}

void cuda_memory_init(cuda_memory *memory, esper_device *device)
{
    *memory = (cuda_memory){.device = device};
    pthread_mutex_init(&memory->lock, NULL);
}

/* The lock is held, or nobody else is there. Whether there was any. */
static bool release_spare(cuda_memory *memory)
{
    bool any = false;

    for (int i = 0; i < CUDA_BLOCK_SIZES; i++)
        while (memory->spare[i] != NULL) {
            cuda_block *block = memory->spare[i];

            memory->spare[i] = block->next;
            esper_device_release(memory->device, block->at);
            esper_mem_free(block);
            any = true;
        }
    return any;
}

void cuda_memory_fini(cuda_memory *memory)
{
    if (memory->device == NULL)
        return;
    (void)release_spare(memory);
    for (int i = 0; i < CUDA_BLOCK_BUCKETS; i++)
        assert(memory->taken[i] == NULL);
    pthread_mutex_destroy(&memory->lock);
    memory->device = NULL;
}

/* A spare block that is large enough, and not much larger; NULL: there is none. */
static cuda_block *take_spare(cuda_memory *memory, size_t bytes)
{
    int first = size_class(bytes);

    for (int i = first; i <= first + 1 && i < CUDA_BLOCK_SIZES; i++)
        for (cuda_block **at = &memory->spare[i]; *at != NULL; at = &(*at)->next) {
            cuda_block *block = *at;

            if (block->bytes < bytes)
                continue;
            *at = block->next;
            return block;
        }
    return NULL;
}

static esper_status clear(cuda_memory *memory, const cuda_block *block)
{
    CUstream own = esper_cuda_own_stream(memory->device);
    esper_status status;

    ESPER_TRY(esper_cuda_enter(memory->device));
    status = ESPER_CUDA(cuMemsetD8Async, (CUdeviceptr)(uintptr_t)block->at, 0, block->bytes, own);
    if (status == ESPER_OK)
        status = ESPER_CUDA(cuStreamSynchronize, own);
    esper_cuda_leave();
    return status;
}

/* From the driver, which is zeroed; when it has nothing left, what is spare goes back first. */
static esper_status take_new(cuda_memory *memory, size_t bytes, cuda_block **block_out)
{
    cuda_block *block = esper_mem_alloc(sizeof(*block));
    esper_status status;

    if (block == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a block of device memory");
    block->bytes = bytes;
    status = esper_device_alloc(memory->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &block->at);
    if (status == ESPER_E_NOMEM) {
        bool any;

        pthread_mutex_lock(&memory->lock);
        any = release_spare(memory);
        pthread_mutex_unlock(&memory->lock);
        if (any)
            status = esper_device_alloc(memory->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &block->at);
    }
    if (status != ESPER_OK) {
        esper_mem_free(block);
        return status;
    }
    *block_out = block;
    return ESPER_OK;
}

esper_status cuda_memory_take(cuda_memory *memory, size_t bytes, bool zeroed, void **at_out)
{
    size_t wanted = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    cuda_block *block, **bucket;

    assert(bytes > 0);
    pthread_mutex_lock(&memory->lock);
    block = take_spare(memory, wanted);
    pthread_mutex_unlock(&memory->lock);
    if (block == NULL) {
        ESPER_TRY(take_new(memory, wanted, &block));
    } else if (zeroed) {
        esper_status status = clear(memory, block);

        if (status != ESPER_OK) {
            esper_device_release(memory->device, block->at);
            esper_mem_free(block);
            return status;
        }
    }
    pthread_mutex_lock(&memory->lock);
    bucket = &memory->taken[bucket_of(block->at)];
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&memory->lock);
    *at_out = block->at;
    return ESPER_OK;
}

void cuda_memory_give_back(cuda_memory *memory, void *at)
{
    cuda_block **link, *block, **spare;

    if (at == NULL)
        return;
    pthread_mutex_lock(&memory->lock);
    link = &memory->taken[bucket_of(at)];
    while (*link != NULL && (*link)->at != at)
        link = &(*link)->next;
    block = *link;
    assert(block != NULL);
    *link = block->next;
    spare = &memory->spare[size_class(block->bytes)];
    block->next = *spare;
    *spare = block;
    pthread_mutex_unlock(&memory->lock);
}
