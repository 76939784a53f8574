/* Internal. The backends' tables, and what backends that compute in host memory share. */
#ifndef ESPER_TENSOR_BACKENDS_H
#define ESPER_TENSOR_BACKENDS_H

#include "device/device.h"
#include "tensor/backend.h"
#include "tensor/kernel.h"
#include "tensor/tune.h"

extern const esper_backend_ops esper_backend_cpu;  /* lanes and ranges over the thread pool */
extern const esper_backend_ops esper_backend_cuda; /* networks side by side on an NVIDIA GPU */
extern const esper_backend_ops esper_backend_ref;  /* plain C, one thread: the definition of correct */
extern const esper_backend_ops esper_backend_null; /* walks every path and computes nothing */

/* A backend in host memory. */
typedef struct esper_ram_backend {
    esper_backend           base;
    esper_device           *device; /* whose memory it computes in */
    esper_pool             *pool;
    const esper_kernel_set *kernels;
    esper_tune              tune; /* of the cpu backend: which ways its kernels take */
    struct esper_crew      *crew; /* likewise */
    char                    identity[32];
} esper_ram_backend;

/* Gives the cpu backend other ways than the table in force, for measuring. Changes its identity. */
void esper_backend_cpu_tune(esper_backend *be, esper_tune tune);

esper_status esper_ram_backend_open(const esper_backend_ops *ops, esper_pool *pool, const esper_kernel_set *kernels,
                                    esper_backend **be_out);
void         esper_ram_backend_close(esper_backend *be);
esper_status esper_ram_backend_alloc(esper_backend *be, size_t bytes, void **mem_out);
void         esper_ram_backend_release(esper_backend *be, void *mem);
bool         esper_ram_backend_supports(const esper_backend *be, esper_op_kind kind);
esper_status esper_ram_backend_sync(esper_backend *be, esper_backend_stream *stream);
const char  *esper_ram_backend_identity(const esper_backend *be);
esper_status esper_ram_copy(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes);
esper_status esper_ram_fill(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count);
esper_status esper_ram_scan(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                            const esper_guard_scan *request, uint32_t *flag);

/* What the table of an operation says while planning (esper_backend_ops.scratch and sums). */
size_t esper_ram_scratch(const esper_op_kernels *op, const esper_launch *launch, int max_samples);
size_t esper_ram_sums(const esper_op_kernels *op, const esper_launch *launch, size_t *offset_out);

/* The members of their tables that are alike. */
#define ESPER_RAM_BACKEND_OPS                                                                                       \
    .abi = ESPER_BACKEND_ABI, .alloc = esper_ram_backend_alloc, .release = esper_ram_backend_release,               \
    .supports = esper_ram_backend_supports, .sync = esper_ram_backend_sync, .identity = esper_ram_backend_identity, \
    .copy_in = esper_ram_copy, .copy_out = esper_ram_copy, .copy = esper_ram_copy, .fill = esper_ram_fill, \
    .scan = esper_ram_scan

#endif
