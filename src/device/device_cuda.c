/* A CUDA device over its primary context, the one that PyTorch and the CUDA runtime use too. Each call makes it current
 * and then puts back what was: a caller with contexts of their own notices nothing.
 *
 * No call here waits for a whole device. Taking and giving back memory may, in the driver. */
#include "device/device_cuda.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda_module.h"

/* Pinned memory is everybody's: all contexts copy to and from it, and kernels reach it. */
enum { TITLE_CHARS = 96, PINNED = CU_MEMHOST_PORTABLE | CU_MEMHOST_DEVICEMAP };

typedef struct cuda_device {
    esper_device base;
    CUdevice     handle;
    CUcontext    context;
    CUstream     own;
    bool         shares; /* it is counted among those that have the device open */
    int          capability;
    char         title[TITLE_CHARS];
} cuda_device;

/* What all who have a device open have in common, as they have its primary context: kernels, which are loaded once. Of the process,
 * like the context, and gone with the last of them. */
typedef struct cuda_common {
    int                       n_open;
    struct esper_cuda_module *modules;
    pthread_mutex_t           lock;
} cuda_common;

enum { MOST_DEVICES = 64 };

static cuda_common     commons[MOST_DEVICES];
static pthread_mutex_t commons_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct cuda_stream {
    esper_stream base;
    CUstream     handle; /* NULL: the default stream */
    bool         is_ours;
} cuda_stream;

typedef struct cuda_event {
    esper_device_event base;
    CUevent            handle;
} cuda_event;

/* The structs of device.h come first in ours, so that a pointer to one is a pointer to the other. */
static cuda_device *device_of(esper_device *device)
{
    return (cuda_device *)device;
}

static CUstream handle_of(const esper_stream *stream)
{
    return ((const cuda_stream *)stream)->handle;
}

static CUevent event_of(const esper_device_event *event)
{
    return ((const cuda_event *)event)->handle;
}

esper_status esper_cuda_enter(esper_device *device)
{
    return ESPER_CUDA(cuCtxPushCurrent, device_of(device)->context);
}

void esper_cuda_leave(void)
{
    CUcontext context;

    (void)ESPER_CUDA_RAW(cuCtxPopCurrent, &context);
}

/* Leaves, with what was found out in the device's context. */
static esper_status leave(esper_status st)
{
    esper_cuda_leave();
    return st;
}

/* For close functions: they try every step and leave the description of the failure that led to them as it is. */
static bool try_enter(esper_device *device)
{
    return ESPER_CUDA_RAW(cuCtxPushCurrent, device_of(device)->context) == CUDA_SUCCESS;
}

CUstream esper_cuda_own_stream(const esper_device *device)
{
    return ((const cuda_device *)device)->own;
}

CUcontext esper_cuda_context(const esper_device *device)
{
    return ((const cuda_device *)device)->context;
}

struct esper_cuda_module **esper_cuda_modules_lock(esper_device *device)
{
    cuda_common *common = &commons[device->index];

    assert(device_of(device)->shares);
    pthread_mutex_lock(&common->lock);
    return &common->modules;
}

void esper_cuda_modules_unlock(esper_device *device)
{
    pthread_mutex_unlock(&commons[device->index].lock);
}

static void join(cuda_device *self)
{
    cuda_common *common = &commons[self->base.index];

    pthread_mutex_lock(&commons_lock);
    if (common->n_open++ == 0)
        pthread_mutex_init(&common->lock, NULL);
    pthread_mutex_unlock(&commons_lock);
    self->shares = true;
}

/* In the device's context, if that is still there. */
static void part(cuda_device *self)
{
    cuda_common *common = &commons[self->base.index];

    pthread_mutex_lock(&commons_lock);
    assert(common->n_open > 0);
    if (--common->n_open == 0) {
        esper_cuda_modules_close(common->modules);
        common->modules = NULL;
        pthread_mutex_destroy(&common->lock);
    }
    pthread_mutex_unlock(&commons_lock);
    self->shares = false;
}

int esper_cuda_capability(const esper_device *device)
{
    return ((const cuda_device *)device)->capability;
}

const char *esper_cuda_device_title(const esper_device *device)
{
    return ((const cuda_device *)device)->title;
}

static void cuda_close(esper_device *device)
{
    cuda_device *self = device_of(device);
    bool entered = self->context != NULL && try_enter(device); /* not where it was lost */

    assert(self->own == NULL || self->context != NULL); /* streams lie in the context */
    if (self->shares)
        part(self);
    if (entered) {
        if (self->own != NULL)
            (void)ESPER_CUDA_RAW(cuStreamDestroy, self->own);
        esper_cuda_leave();
    }
    if (self->context != NULL)
        (void)ESPER_CUDA_RAW(cuDevicePrimaryCtxRelease, self->handle);
    esper_mem_free(self);
}

static esper_status read_facts(cuda_device *self, int index)
{
    int major = 0, minor = 0;

    ESPER_TRY(ESPER_CUDA(cuDeviceGet, &self->handle, index));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetName, self->title, TITLE_CHARS - 1, self->handle));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self->handle));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self->handle));
    self->capability = major * 10 + minor;
    return ESPER_OK;
}

static esper_status open_context(cuda_device *self)
{
    ESPER_TRY(ESPER_CUDA(cuDevicePrimaryCtxRetain, &self->context, self->handle));
    ESPER_TRY(esper_cuda_enter(&self->base));
    ESPER_TRY(leave(ESPER_CUDA(cuStreamCreate, &self->own, CU_STREAM_NON_BLOCKING)));
    join(self);
    return ESPER_OK;
}

static esper_status cuda_open(int index, esper_device **device_out)
{
    cuda_device *self;
    int count = 0;
    esper_status st;

    ESPER_TRY(esper_cuda_driver_load());
    ESPER_TRY(ESPER_CUDA(cuDeviceGetCount, &count));
    if (count == 0)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "CUDA cannot be used here: there is no CUDA device");
    if (index < 0 || index >= count || index >= MOST_DEVICES)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "CUDA device %d: there are %d, from 0", index, count);
    self = esper_mem_alloc(sizeof(*self));
    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "CUDA device %d", index);
    self->base = (esper_device){.ops = &esper_device_cuda, .index = index};
    st = read_facts(self, index);
    if (st == ESPER_OK)
        st = open_context(self);
    if (st != ESPER_OK) {
        cuda_close(&self->base);
        return st;
    }
    *device_out = &self->base;
    return ESPER_OK;
}

/* In the device's context. */
static esper_status alloc_normal(cuda_device *self, size_t bytes, void **memory_out)
{
    CUdeviceptr memory = 0;
    CUresult result = ESPER_CUDA_RAW(cuMemAlloc, &memory, bytes);
    esper_status st;

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return ESPER_FAIL(ESPER_E_NOMEM, "CUDA device %d has no %zu bytes of memory left", self->base.index, bytes);
    ESPER_TRY(esper_cuda_check(result, ESPER_CUDA_cuMemAlloc));
    st = ESPER_CUDA(cuMemsetD8Async, memory, 0, bytes, self->own);
    if (st == ESPER_OK)
        st = ESPER_CUDA(cuStreamSynchronize, self->own);
    if (st != ESPER_OK) {
        (void)ESPER_CUDA_RAW(cuMemFree, memory);
        return st;
    }
    *memory_out = (void *)(uintptr_t)memory;
    return ESPER_OK;
}

static esper_status alloc_pinned(size_t bytes, void **memory_out)
{
    void *memory = NULL;
    CUresult result = ESPER_CUDA_RAW(cuMemHostAlloc, &memory, bytes, PINNED);

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return ESPER_FAIL(ESPER_E_NOMEM, "the system has no %zu bytes of pinned memory left", bytes);
    ESPER_TRY(esper_cuda_check(result, ESPER_CUDA_cuMemHostAlloc));
    memset(memory, 0, bytes);
    *memory_out = memory;
    return ESPER_OK;
}

static esper_status cuda_alloc(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out)
{
    ESPER_TRY(esper_cuda_enter(device));
    return leave(kind == ESPER_DEVICE_MEMORY_PINNED ? alloc_pinned(bytes, memory_out)
                                                    : alloc_normal(device_of(device), bytes, memory_out));
}

static void cuda_release(esper_device *device, void *memory)
{
    int type = 0, attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *value = &type;

    if (!try_enter(device))
        return;
    (void)ESPER_CUDA_RAW(cuPointerGetAttributes, 1, &attribute, &value, (CUdeviceptr)(uintptr_t)memory);
    if (type == CU_MEMORYTYPE_HOST)
        (void)ESPER_CUDA_RAW(cuMemFreeHost, memory);
    else
        (void)ESPER_CUDA_RAW(cuMemFree, (CUdeviceptr)(uintptr_t)memory);
    esper_cuda_leave();
}

static esper_status wrap(esper_device *device, CUstream handle, bool is_ours, esper_stream **stream_out)
{
    cuda_stream *stream = esper_mem_alloc(sizeof(*stream));

    if (stream == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "CUDA stream");
    *stream = (cuda_stream){.base = {.device = device}, .handle = handle, .is_ours = is_ours};
    *stream_out = &stream->base;
    return ESPER_OK;
}

static void cuda_stream_close(esper_stream *stream)
{
    if (((cuda_stream *)stream)->is_ours && try_enter(stream->device)) {
        (void)ESPER_CUDA_RAW(cuStreamDestroy, handle_of(stream));
        esper_cuda_leave();
    }
    esper_mem_free(stream);
}

static esper_status cuda_stream_open(esper_device *device, esper_stream **stream_out)
{
    CUstream handle;
    esper_status st;

    ESPER_TRY(esper_cuda_enter(device));
    st = ESPER_CUDA(cuStreamCreate, &handle, CU_STREAM_NON_BLOCKING);
    if (st == ESPER_OK) {
        st = wrap(device, handle, true, stream_out);
        if (st != ESPER_OK)
            (void)ESPER_CUDA_RAW(cuStreamDestroy, handle);
    }
    esper_cuda_leave();
    return st;
}

static esper_status cuda_stream_wrap(esper_device *device, void *native, esper_stream **stream_out)
{
    return wrap(device, native, false, stream_out);
}

static void *cuda_stream_native(const esper_stream *stream)
{
    return handle_of(stream);
}

static esper_status cuda_stream_sync(esper_stream *stream)
{
    ESPER_TRY(esper_cuda_enter(stream->device));
    return leave(ESPER_CUDA(cuStreamSynchronize, handle_of(stream)));
}

static esper_status cuda_copy(esper_stream *stream, void *to, const void *from, size_t bytes)
{
    ESPER_TRY(esper_cuda_enter(stream->device));
    return leave(
        ESPER_CUDA(cuMemcpyAsync, (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, handle_of(stream)));
}

static esper_status cuda_set(esper_stream *stream, void *memory, int byte, size_t bytes)
{
    ESPER_TRY(esper_cuda_enter(stream->device));
    return leave(
        ESPER_CUDA(cuMemsetD8Async, (CUdeviceptr)(uintptr_t)memory, (unsigned char)byte, bytes, handle_of(stream)));
}

static esper_status cuda_event_open(esper_device *device, esper_device_event **event_out)
{
    cuda_event *event = esper_mem_alloc(sizeof(*event));
    esper_status st;

    if (event == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "CUDA event");
    event->base.device = device;
    st = esper_cuda_enter(device);
    if (st == ESPER_OK)
        st = leave(ESPER_CUDA(cuEventCreate, &event->handle, CU_EVENT_DISABLE_TIMING));
    if (st != ESPER_OK) {
        esper_mem_free(event);
        return st;
    }
    *event_out = &event->base;
    return ESPER_OK;
}

static void cuda_event_close(esper_device_event *event)
{
    if (try_enter(event->device)) {
        (void)ESPER_CUDA_RAW(cuEventDestroy, event_of(event));
        esper_cuda_leave();
    }
    esper_mem_free(event);
}

static esper_status cuda_event_record(esper_device_event *event, esper_stream *stream)
{
    ESPER_TRY(esper_cuda_enter(event->device));
    return leave(ESPER_CUDA(cuEventRecord, event_of(event), handle_of(stream)));
}

static esper_status cuda_event_wait(esper_device_event *event, esper_stream *stream)
{
    ESPER_TRY(esper_cuda_enter(stream->device));
    return leave(ESPER_CUDA(cuStreamWaitEvent, handle_of(stream), event_of(event), 0));
}

static esper_status cuda_event_sync(esper_device_event *event)
{
    ESPER_TRY(esper_cuda_enter(event->device));
    return leave(ESPER_CUDA(cuEventSynchronize, event_of(event)));
}

static esper_status cuda_event_query(esper_device_event *event, bool *reached_out)
{
    CUresult result;

    ESPER_TRY(esper_cuda_enter(event->device));
    result = ESPER_CUDA_RAW(cuEventQuery, event_of(event));
    esper_cuda_leave();
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        return esper_cuda_check(result, ESPER_CUDA_cuEventQuery);
    *reached_out = result == CUDA_SUCCESS;
    return ESPER_OK;
}

static esper_status look_at_memory(esper_device *device, size_t *free_out, size_t *total_out)
{
    ESPER_TRY(esper_cuda_enter(device));
    return leave(ESPER_CUDA(cuMemGetInfo, free_out, total_out));
}

static esper_status cuda_memory_free(esper_device *device, uint64_t *bytes_out)
{
    size_t bytes = 0, total = 0;

    ESPER_TRY(look_at_memory(device, &bytes, &total));
    *bytes_out = bytes;
    return ESPER_OK;
}

esper_status esper_cuda_memory(esper_device *device, uint64_t *bytes_out)
{
    size_t bytes = 0, total = 0;

    ESPER_TRY(look_at_memory(device, &bytes, &total));
    *bytes_out = total;
    return ESPER_OK;
}

static esper_status cuda_pin(esper_device *device, void *memory, size_t bytes)
{
    ESPER_TRY(esper_cuda_enter(device));
    return leave(ESPER_CUDA(cuMemHostRegister, memory, bytes, PINNED));
}

static void cuda_unpin(esper_device *device, void *memory)
{
    if (!try_enter(device))
        return;
    (void)ESPER_CUDA_RAW(cuMemHostUnregister, memory);
    esper_cuda_leave();
}

const esper_device_ops esper_device_cuda = {
    .abi = ESPER_DEVICE_ABI,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_sync = cuda_stream_sync,
    .copy_async = cuda_copy,
    .set_async = cuda_set,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .stream_wrap = cuda_stream_wrap,
    .stream_native = cuda_stream_native,
    .event_query = cuda_event_query,
    .memory_free = cuda_memory_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
};
