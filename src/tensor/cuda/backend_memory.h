/* Internal. Device memory that is taken and given back all the time, as programs of growing networks come and go.
 *
 * The driver's own way is slow, and giving back waits for all that the device has to do. So what is given back is kept for the next
 * who takes about as much; the driver gets it back when it has nothing left, or at the end. Whoever gives memory back has waited for
 * all that used it. */
#ifndef ESPER_TENSOR_CUDA_BACKEND_MEMORY_H
#define ESPER_TENSOR_CUDA_BACKEND_MEMORY_H

#include <pthread.h>

#include "device/device_cuda.h"

enum { CUDA_BLOCK_BUCKETS = 4096, CUDA_BLOCK_SIZES = 256 };

typedef struct cuda_block {
    struct cuda_block *next;
    void              *at;
    size_t             bytes;
} cuda_block;

typedef struct cuda_memory {
    esper_device   *device;
    pthread_mutex_t lock;
    cuda_block     *taken[CUDA_BLOCK_BUCKETS]; /* by address */
    cuda_block     *spare[CUDA_BLOCK_SIZES];   /* by size: four steps between a power of two and the next */
} cuda_memory;

void cuda_memory_init(cuda_memory *memory, esper_device *device);
/* All has been given back. */
void cuda_memory_fini(cuda_memory *memory);

/* zeroed: else it holds anything. */
esper_status cuda_memory_take(cuda_memory *memory, size_t bytes, bool zeroed, void **at_out);
void         cuda_memory_give_back(cuda_memory *memory, void *at);

#endif
