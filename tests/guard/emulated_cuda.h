/* A CUDA driver made of the host: memory is the host's, work is queued and done when somebody waits, and the kernels of
 * src/guard/cuda/scan.cu, compiled as C, are run by threads of our own making (256 stacks, one of which runs at a
 * time). It shows that tables, arguments, order of calls and the kernels' logic are right; not their speed, nor races.
 *
 *   emulated_cuda_install()        from now on this is the driver
 *   emulated_cuda_fail_at(n)       the nth call from now fails with "out of memory", and only that one
 *   emulated_capture(), emulated_replay()   work goes into a graph instead of the queue; the graph's work is queued
 */
#ifndef ESPER_TESTS_GUARD_EMULATED_CUDA_H
#define ESPER_TESTS_GUARD_EMULATED_CUDA_H

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "device/cuda_driver.h"
#include "guard/cuda/scan_types.h"

/* ----------------------------------------------------------------------------------------------- threads of a block */

enum { FIBER_STACK = 32 * 1024 };

typedef enum fiber_state { FIBER_READY, FIBER_AT_WARP, FIBER_AT_BLOCK, FIBER_DONE } fiber_state;

/* A context begins a fiber on its stack; from then on jumps change between fibers, without a system call each. */
typedef struct fiber {
    ucontext_t  context;
    jmp_buf     place;
    bool        has_begun;
    char       *stack;
    fiber_state state;
    unsigned    n_exchanges;
    long long   offered[2]; /* to the other lanes; two, as a lane may be one exchange ahead */
} fiber;

typedef struct index3 {
    unsigned x;
} index3;

static fiber      fibers[GPU_THREADS];
static int        fiber_now;
static jmp_buf    scheduler;
static unsigned   block_now, grid_now;
static void       (*kernel_now)(const void *args);
static const void *args_now;

static void fiber_yield(fiber_state state)
{
    fibers[fiber_now].state = state;
    if (_setjmp(fibers[fiber_now].place) == 0)
        _longjmp(scheduler, 1);
}

static void fiber_main(void)
{
    kernel_now(args_now);
    fibers[fiber_now].state = FIBER_DONE;
    _longjmp(scheduler, 1);
}

/* Returns when the fiber yields or ends. */
static void fiber_run(fiber *self)
{
    if (_setjmp(scheduler) != 0)
        return;
    if (self->has_begun)
        _longjmp(self->place, 1);
    self->has_begun = true;
    setcontext(&self->context);
}

/* Lets those go on that wait in [first, first + n) for each other, when all who are left of them wait. */
static bool release(int first, int n, fiber_state waiting)
{
    int n_waiting = 0;

    for (int i = first; i < first + n; i++) {
        if (fibers[i].state != FIBER_DONE && fibers[i].state != waiting)
            return false;
        n_waiting += fibers[i].state == waiting;
    }
    for (int i = first; i < first + n; i++)
        if (fibers[i].state == waiting)
            fibers[i].state = FIBER_READY;
    return n_waiting != 0;
}

static bool run_ready(void)
{
    bool any = false;

    for (int i = 0; i < GPU_THREADS; i++) {
        if (fibers[i].state != FIBER_READY)
            continue;
        any = true;
        fiber_now = i;
        fiber_run(&fibers[i]);
    }
    return any;
}

/* A function of its own: getcontext counts as one that may return twice, and nothing lives across it here. */
static void prepare_fiber(int i)
{
    if (fibers[i].stack == NULL)
        fibers[i].stack = malloc(FIBER_STACK);
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = fibers[i].stack;
    fibers[i].context.uc_stack.ss_size = FIBER_STACK;
    fibers[i].state = FIBER_READY;
    fibers[i].has_begun = false;
    fibers[i].n_exchanges = 0;
    makecontext(&fibers[i].context, fiber_main, 0);
}

static void run_block(void)
{
    bool going = true;

    for (int i = 0; i < GPU_THREADS; i++)
        prepare_fiber(i);
    while (going) {
        going = run_ready();
        for (int warp = 0; warp < GPU_WARPS; warp++)
            going |= release(warp * 32, 32, FIBER_AT_WARP);
        going |= release(0, GPU_THREADS, FIBER_AT_BLOCK);
    }
    for (int i = 0; i < GPU_THREADS; i++)
        if (fibers[i].state != FIBER_DONE) {
            fprintf(stderr, "emulated CUDA: block %u hangs: thread %d waits for others that never come\n", block_now,
                    i);
            abort();
        }
}

static void run_kernel(void (*kernel)(const void *args), const void *args, unsigned n_blocks)
{
    kernel_now = kernel;
    args_now = args;
    grid_now = n_blocks;
    for (block_now = 0; block_now < n_blocks; block_now++)
        run_block();
}

/* ---------------------------------------------------------------------------------------- CUDA's words, for scan.cu */

/* Sixteen bytes, or eight, of whatever there is. */
typedef struct __attribute__((may_alias)) uint4 {
    unsigned x, y, z, w;
} uint4;
typedef uint64_t __attribute__((may_alias)) any_u64;

static long long exchange(long long value, int distance)
{
    fiber *self = &fibers[fiber_now];
    int lane = fiber_now % 32, turn = self->n_exchanges++ & 1;

    self->offered[turn] = value;
    fiber_yield(FIBER_AT_WARP);
    return lane + distance < 32 ? self[distance].offered[turn] : value;
}

static long long from_lane(long long value, int lane)
{
    fiber *self = &fibers[fiber_now];
    int turn = self->n_exchanges++ & 1;

    self->offered[turn] = value;
    fiber_yield(FIBER_AT_WARP);
    return fibers[fiber_now / 32 * 32 + lane].offered[turn];
}

static int any_lane(int predicate)
{
    fiber *self = &fibers[fiber_now], *warp = &fibers[fiber_now / 32 * 32];
    int turn = self->n_exchanges++ & 1, any = 0;

    self->offered[turn] = predicate;
    fiber_yield(FIBER_AT_WARP);
    for (int i = 0; i < 32; i++)
        any |= warp[i].state != FIBER_DONE && warp[i].offered[turn] != 0;
    return any;
}

static inline double as_double(long long bits)
{
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline long long as_long(double value)
{
    long long bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float as_float(unsigned bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline unsigned as_bits(float value)
{
    unsigned bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline double half_value(gpu_u32 bits)
{
    uint16_t word = (uint16_t)bits;
    _Float16 value;

    memcpy(&value, &word, sizeof(value));
    return (double)value;
}

static inline gpu_u32 half_bits(float value)
{
    _Float16 rounded = (_Float16)value;
    uint16_t word;

    memcpy(&word, &rounded, sizeof(word));
    return word;
}

#define threadIdx                       ((index3){(unsigned)fiber_now})
#define blockIdx                        ((index3){block_now})
#define gridDim                         ((index3){grid_now})
#define __shared__                      static
#define KERNEL                          static void
#define FUNCTION                        static inline
#define LOAD16(p)                       (*(const uint4 *)(const void *)(p))
#define STORE16(p, v)                   (*(uint4 *)(void *)(p) = (v))
#define COHERENT(p)                     (*(p))
#define ALL_LANES                       0xffffffffu
#define ALIGNED16                       _Alignas(16)
#define UNROLL
#define KEEP_LOOP
#define __syncthreads()                 fiber_yield(FIBER_AT_BLOCK)
#define __syncwarp()                    fiber_yield(FIBER_AT_WARP)
#define __threadfence()                 ((void)0)
#define __shfl_sync(mask, v, lane)      from_lane((v), (lane))
#define __shfl_down_sync(mask, v, d)    exchange((v), (d))
#define __any_sync(mask, p)             any_lane(p)
#define atomicAdd(p, v)                 __sync_fetch_and_add((p), (v))
#define atomicOr(p, v)                  __sync_fetch_and_or((p), (v))
#define __longlong_as_double(v)         as_double(v)
#define __double_as_longlong(v)         as_long(v)
#define __uint_as_float(v)              as_float(v)
#define __float_as_uint(v)              as_bits(v)

/* What the kernels do with casts is right on a GPU and is not ours to judge here. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
#pragma GCC diagnostic ignored "-Wshadow"
#include "guard/cuda/scan.cu"
#pragma GCC diagnostic pop

#define EMULATED_KERNEL_LIST(X)                \
    X(esper_guard_scan_plain, gpu_scan_args)   \
    X(esper_guard_scan_summed, gpu_scan_args)  \
    X(esper_guard_scale, gpu_scale_args)       \
    X(esper_guard_gather, gpu_copy_args)       \
    X(esper_guard_scatter, gpu_copy_args)      \
    X(esper_guard_checksum, gpu_copy_args)     \
    X(esper_guard_inject_word, gpu_inject_args)

typedef struct emulated_kernel {
    const char *name;
    void (*run)(const void *args);
    size_t args_bytes;
} emulated_kernel;

#define X(name, type)                        \
    static void run_##name(const void *args) \
    {                                        \
        name(*(const type *)args);           \
    }
EMULATED_KERNEL_LIST(X)
#undef X

static emulated_kernel emulated_kernels[] = {
#define X(name, type) {#name, run_##name, sizeof(type)},
    EMULATED_KERNEL_LIST(X)
#undef X
};

/* ----------------------------------------------------------------------------------------- the queue, and the graph */

enum { ARGS_BYTES = 256, MAX_OPS = 4096, MAX_BLOCKS_OF_MEMORY = 1 << 15, EMULATED_DEVICES = 2 };

_Static_assert(sizeof(gpu_scan_args) <= ARGS_BYTES, "ARGS_BYTES is too small");

typedef enum emulated_op_kind { OP_COPY, OP_SET, OP_KERNEL } emulated_op_kind;

typedef struct emulated_op {
    emulated_op_kind       kind;
    void                  *to;
    const void            *from;
    size_t                 bytes;
    int                    byte;
    const emulated_kernel *kernel;
    unsigned               n_blocks;
    _Alignas(16) char      args[ARGS_BYTES];
} emulated_op;

typedef struct emulated_list {
    emulated_op ops[MAX_OPS];
    int         n;
} emulated_list;

static emulated_list queued, captured;
static bool          is_capturing, graph_records_event;
static uint64_t      fail_countdown;
static int           n_external_waits; /* that became part of graphs */
static int           context_depth, current_device;
static int           contexts[1024];

typedef struct emulated_memory {
    char  *at;
    size_t bytes;
    int    type, device;
} emulated_memory;

static emulated_memory memories[MAX_BLOCKS_OF_MEMORY];
static int             n_memories;

static emulated_op *push_op(emulated_op_kind kind)
{
    emulated_list *list = is_capturing ? &captured : &queued;
    emulated_op *op = &list->ops[list->n++];

    if (list->n > MAX_OPS)
        abort();
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

static void do_op(const emulated_op *op)
{
    if (op->kind == OP_COPY)
        memcpy(op->to, op->from, op->bytes);
    else if (op->kind == OP_SET)
        memset(op->to, op->byte, op->bytes);
    else
        run_kernel(op->kernel->run, op->args, op->n_blocks);
}

/* Someone waits: all that is queued is done. */
static void drain(void)
{
    for (int i = 0; i < queued.n; i++)
        do_op(&queued.ops[i]);
    queued.n = 0;
}

static inline void emulated_capture(bool on)
{
    is_capturing = on;
    if (on)
        captured.n = 0;
}

static inline void emulated_replay(void)
{
    for (int i = 0; i < captured.n; i++)
        queued.ops[queued.n++] = captured.ops[i];
}

static inline void emulated_cuda_fail_at(uint64_t nth)
{
    fail_countdown = nth;
}

static inline int emulated_cuda_live(void)
{
    return n_memories;
}

/* ------------------------------------------------------------------------------------------------------- the driver */

static bool fails(void)
{
    return fail_countdown != 0 && --fail_countdown == 0;
}

#define MAY_FAIL()                           \
    do {                                     \
        if (fails())                         \
            return CUDA_ERROR_OUT_OF_MEMORY; \
    } while (0)

/* Every call but the first few works on the current context. */
#define IN_CONTEXT()         \
    do {                     \
        MAY_FAIL();          \
        if (!context_depth)  \
            return 201;      \
    } while (0)

static CUresult emu_init(unsigned flags)
{
    (void)flags;
    MAY_FAIL();
    return CUDA_SUCCESS;
}

static CUresult emu_device_count(int *count)
{
    MAY_FAIL();
    *count = EMULATED_DEVICES;
    return CUDA_SUCCESS;
}

static CUresult emu_device_get(CUdevice *device, int ordinal)
{
    MAY_FAIL();
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult emu_device_name(char *name, int chars, CUdevice device)
{
    MAY_FAIL();
    snprintf(name, (size_t)chars, "Emulated GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult emu_device_attribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    MAY_FAIL();
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}

static CUresult emu_retain(CUcontext *context, CUdevice device)
{
    MAY_FAIL();
    *context = (CUcontext)(uintptr_t)(device + 1);
    return CUDA_SUCCESS;
}

static CUresult emu_release(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}

static CUresult emu_push(CUcontext context) /* never fails: closing could do nothing about it */
{
    contexts[context_depth++] = current_device = (int)(uintptr_t)context - 1;
    return CUDA_SUCCESS;
}

static CUresult emu_pop(CUcontext *context)
{
    if (context_depth == 0)
        return 201;
    *context = (CUcontext)(uintptr_t)(contexts[--context_depth] + 1);
    current_device = context_depth ? contexts[context_depth - 1] : -1;
    return CUDA_SUCCESS;
}

static CUresult emu_mem_info(size_t *free_bytes, size_t *total_bytes)
{
    IN_CONTEXT();
    *free_bytes = *total_bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static void *take(size_t bytes, int type, int device)
{
    char *memory = aligned_alloc(512, (bytes + 511) / 512 * 512);

    if (n_memories == MAX_BLOCKS_OF_MEMORY)
        abort();
    memset(memory, 0xA5, bytes);
    memories[n_memories++] = (emulated_memory){memory, bytes, type, device};
    return memory;
}

static CUresult give(const char *memory, int type)
{
    drain();
    for (int i = 0; i < n_memories; i++)
        if (memories[i].at == memory && memories[i].type == type) {
            free(memories[i].at);
            memories[i] = memories[--n_memories];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult emu_alloc(CUdeviceptr *memory, size_t bytes)
{
    IN_CONTEXT();
    if (bytes > (size_t)1 << 32)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (CUdeviceptr)(uintptr_t)take(bytes, CU_MEMORYTYPE_DEVICE, current_device);
    return CUDA_SUCCESS;
}

static CUresult emu_free(CUdeviceptr memory)
{
    return give((char *)(uintptr_t)memory, CU_MEMORYTYPE_DEVICE);
}

static CUresult emu_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    IN_CONTEXT();
    *memory = take(bytes, CU_MEMORYTYPE_HOST, current_device);
    return CUDA_SUCCESS;
}

static CUresult emu_host_free(void *memory)
{
    return give(memory, CU_MEMORYTYPE_HOST);
}

static CUresult emu_register(void *memory, size_t bytes, unsigned flags)
{
    (void)memory;
    (void)bytes;
    (void)flags;
    IN_CONTEXT();
    return CUDA_SUCCESS;
}

static CUresult emu_unregister(void *memory)
{
    (void)memory;
    drain();
    return CUDA_SUCCESS;
}

static CUresult emu_device_pointer(CUdeviceptr *address, void *memory, unsigned flags)
{
    (void)flags;
    IN_CONTEXT();
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static CUresult emu_pointer(unsigned n, int *attributes, void **values, CUdeviceptr memory)
{
    char *at = (char *)(uintptr_t)memory;
    int type = 0, device = -2;

    for (int i = 0; i < n_memories; i++)
        if (at >= memories[i].at && at < memories[i].at + memories[i].bytes) {
            type = memories[i].type;
            device = memories[i].device;
        }
    for (unsigned i = 0; i < n; i++)
        memcpy(values[i], attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? &type : &device, sizeof(int));
    return CUDA_SUCCESS;
}

static CUresult queue_copy(uintptr_t to, uintptr_t from, size_t bytes)
{
    emulated_op *op;

    IN_CONTEXT();
    op = push_op(OP_COPY);
    op->to = (void *)to;
    op->from = (const void *)from;
    op->bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult emu_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    return queue_copy((uintptr_t)to, (uintptr_t)from, bytes);
}

static CUresult emu_upload(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    (void)stream;
    return queue_copy((uintptr_t)to, (uintptr_t)from, bytes);
}

static CUresult emu_download(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    return queue_copy((uintptr_t)to, (uintptr_t)from, bytes);
}

static CUresult emu_set(CUdeviceptr memory, unsigned char byte, size_t bytes, CUstream stream)
{
    emulated_op *op;

    (void)stream;
    IN_CONTEXT();
    op = push_op(OP_SET);
    op->to = (void *)(uintptr_t)memory;
    op->byte = byte;
    op->bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult emu_stream_create(CUstream *stream, unsigned flags)
{
    (void)flags;
    IN_CONTEXT();
    *stream = (CUstream)(uintptr_t)take(1, 100, current_device);
    return CUDA_SUCCESS;
}

static CUresult emu_stream_destroy(CUstream stream)
{
    return give((char *)stream, 100);
}

static CUresult emu_stream_sync(CUstream stream)
{
    (void)stream;
    IN_CONTEXT();
    drain();
    return CUDA_SUCCESS;
}

static CUresult emu_stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream;
    (void)event;
    IN_CONTEXT();
    if (is_capturing != (flags == CU_EVENT_WAIT_EXTERNAL))
        return is_capturing ? 907 : CUDA_ERROR_INVALID_VALUE; /* the event is not one of the graph's own */
    n_external_waits += is_capturing;
    return CUDA_SUCCESS;
}

static CUresult emu_is_capturing(CUstream stream, int *state)
{
    (void)stream;
    IN_CONTEXT();
    *state = is_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult emu_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    IN_CONTEXT();
    *event = (CUevent)(uintptr_t)take(1, 101, current_device);
    return CUDA_SUCCESS;
}

static CUresult emu_event_destroy(CUevent event)
{
    return give((char *)event, 101);
}

static CUresult emu_event_record(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    IN_CONTEXT();
    return is_capturing ? 907 : CUDA_SUCCESS; /* it could not be waited for */
}

static CUresult emu_event_record_flags(CUevent event, CUstream stream, unsigned flags)
{
    (void)event;
    (void)stream;
    IN_CONTEXT();
    if (flags == CU_EVENT_RECORD_EXTERNAL && !is_capturing)
        return CUDA_ERROR_INVALID_VALUE;
    graph_records_event = is_capturing;
    return CUDA_SUCCESS;
}

static CUresult emu_event_query(CUevent event)
{
    (void)event;
    IN_CONTEXT();
    return queued.n == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult emu_event_sync(CUevent event)
{
    (void)event;
    IN_CONTEXT();
    drain();
    return CUDA_SUCCESS;
}

static CUresult emu_module_load(CUmodule *module, const void *image)
{
    (void)image;
    IN_CONTEXT();
    *module = (CUmodule)(uintptr_t)take(1, 102, current_device);
    return CUDA_SUCCESS;
}

static CUresult emu_module_unload(CUmodule module)
{
    return give((char *)module, 102);
}

static CUresult emu_function(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    IN_CONTEXT();
    for (size_t i = 0; i < sizeof(emulated_kernels) / sizeof(emulated_kernels[0]); i++)
        if (strcmp(emulated_kernels[i].name, name) == 0) {
            *function = (CUfunction)(void *)&emulated_kernels[i];
            return CUDA_SUCCESS;
        }
    return 500;
}

static CUresult emu_function_attribute(int *value, int attribute, CUfunction function)
{
    (void)attribute;
    (void)function;
    IN_CONTEXT();
    *value = 1024;
    return CUDA_SUCCESS;
}

static CUresult emu_launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                           void **parameters, void **extra)
{
    emulated_op *op;

    (void)stream;
    (void)extra;
    IN_CONTEXT();
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != GPU_THREADS || block_y != 1 || block_z != 1 ||
        shared_bytes != 0)
        return CUDA_ERROR_INVALID_VALUE;
    op = push_op(OP_KERNEL);
    op->kernel = (const emulated_kernel *)(const void *)function;
    op->n_blocks = grid_x;
    memcpy(op->args, parameters[0], op->kernel->args_bytes);
    return CUDA_SUCCESS;
}

static CUresult emu_error_name(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
    return CUDA_SUCCESS;
}

static CUresult emu_error_text(CUresult result, const char **text)
{
    (void)result;
    *text = "emulated";
    return CUDA_SUCCESS;
}

static inline void emulated_cuda_install(void)
{
    static const esper_cuda_driver driver = {
        .cuInit = emu_init,
        .cuDeviceGetCount = emu_device_count,
        .cuDeviceGet = emu_device_get,
        .cuDeviceGetName = emu_device_name,
        .cuDeviceGetAttribute = emu_device_attribute,
        .cuDevicePrimaryCtxRetain = emu_retain,
        .cuDevicePrimaryCtxRelease = emu_release,
        .cuCtxPushCurrent = emu_push,
        .cuCtxPopCurrent = emu_pop,
        .cuMemGetInfo = emu_mem_info,
        .cuMemAlloc = emu_alloc,
        .cuMemFree = emu_free,
        .cuMemHostAlloc = emu_host_alloc,
        .cuMemFreeHost = emu_host_free,
        .cuMemHostRegister = emu_register,
        .cuMemHostUnregister = emu_unregister,
        .cuMemHostGetDevicePointer = emu_device_pointer,
        .cuPointerGetAttributes = emu_pointer,
        .cuMemcpyAsync = emu_copy,
        .cuMemcpyHtoDAsync = emu_upload,
        .cuMemcpyDtoHAsync = emu_download,
        .cuMemsetD8Async = emu_set,
        .cuStreamCreate = emu_stream_create,
        .cuStreamDestroy = emu_stream_destroy,
        .cuStreamSynchronize = emu_stream_sync,
        .cuStreamWaitEvent = emu_stream_wait,
        .cuStreamIsCapturing = emu_is_capturing,
        .cuEventCreate = emu_event_create,
        .cuEventDestroy = emu_event_destroy,
        .cuEventRecord = emu_event_record,
        .cuEventRecordWithFlags = emu_event_record_flags,
        .cuEventQuery = emu_event_query,
        .cuEventSynchronize = emu_event_sync,
        .cuModuleLoadData = emu_module_load,
        .cuModuleUnload = emu_module_unload,
        .cuModuleGetFunction = emu_function,
        .cuFuncGetAttribute = emu_function_attribute,
        .cuLaunchKernel = emu_launch,
        .cuGetErrorName = emu_error_name,
        .cuGetErrorString = emu_error_text,
        .knows_kernels = true,
    };

    esper_cuda_driver_replace(&driver);
}

#endif
