/* Internal. A GPU made of the host: runs kernels that were compiled for it (host_cuda.h), one block after the other, the threads of
 * a block on stacks of their own of which one runs at a time. It shows that kernels compute what they should, that barriers are
 * reached by all, and that nothing is taken from shared memory that nobody put there; not their speed.
 *
 * One launch at a time in a process: whoever has several threads takes turns. */
#ifndef ESPER_TESTS_CUDA_HOST_CUDA_RUN_H
#define ESPER_TESTS_CUDA_HOST_CUDA_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ for those who launch */

enum { HOST_CUDA_MAX_THREADS = 1024, HOST_CUDA_MAX_SHARED = 227 * 1024 };

/* Runs blocks (x, y), x below blocks_x and y below n_lanes, in order. `lanes` is the kernel's argument. Aborts with a sentence
 * where a GPU would hang or refuse. */
void host_cuda_launch(const char *kernel, int blocks_x, int n_lanes, int threads, int shared_bytes, const void *lanes);

bool host_cuda_has(const char *kernel);

/* The last thread of a block goes first, from now on, and the last block: what nobody orders may not matter. */
void host_cuda_reverse(bool backwards);

/* Whether the device has tensor cores for floats, as those from 8.0 on; it has at first. */
void host_cuda_set_cores(bool has);
bool host_cuda_has_cores(void);

/* --------------------------------------------------------------------------------------------------------- for kernels */

typedef struct host_cuda_kernel {
    const char              *name;
    void                   (*run)(const void *lanes);
    int                      threads; /* no block has more */
    struct host_cuda_kernel *next;
} host_cuda_kernel;

void host_cuda_register(host_cuda_kernel *kernel);

typedef struct host_cuda_3 {
    unsigned x, y, z;
} host_cuda_3;

/* Of the thread that runs. */
typedef struct host_cuda_place {
    host_cuda_3 thread, block, block_dim, grid_dim;
    unsigned    linear; /* number of the thread in its block */
} host_cuda_place;

extern host_cuda_place host_cuda_now;

void *host_cuda_shared(void);

typedef enum host_cuda_what { HOST_CUDA_SYNC, HOST_CUDA_SHUFFLE, HOST_CUDA_BALLOT } host_cuda_what;

/* Waits for all lanes of the mask. Gives the bits of lane `source`, or a bit for each lane that offered something. */
uint64_t host_cuda_exchange(host_cuda_what what, unsigned mask, uint64_t bits, int source, int line);

void host_cuda_wait_for_block(int line);
int  host_cuda_any_of_block(int predicate, int line);

#ifdef __cplusplus
}
#endif

#endif
