/* The host as a device. Its streams do their work at once, in the call that queues it: an event is complete when it is
 * recorded, and nothing is ever left to wait for. Code written for streams and events runs here unchanged, in the order
 * in which the caller queued. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/device.h"

static esper_status host_open(int index, esper_device **device_out)
{
    esper_device *device;

    if (index != 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "host device %d: there is only one, number 0", index);
    device = esper_mem_alloc(sizeof(*device));
    if (device == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host device");
    *device = (esper_device){.ops = &esper_device_host, .index = index};
    *device_out = device;
    return ESPER_OK;
}

static void host_close(esper_device *device)
{
    esper_mem_free(device);
}

/* Pinned or not makes no difference: there is nobody to stage copies for. */
static esper_status host_alloc(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out)
{
    void *memory = esper_mem_alloc(bytes);

    (void)device;
    (void)kind;
    if (memory == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host device: %zu bytes", bytes);
    *memory_out = memory;
    return ESPER_OK;
}

static void host_release(esper_device *device, void *memory)
{
    (void)device;
    esper_mem_free(memory);
}

static esper_status host_stream_open(esper_device *device, esper_stream **stream_out)
{
    esper_stream *stream = esper_mem_alloc(sizeof(*stream));

    if (stream == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host stream");
    stream->device = device;
    *stream_out = stream;
    return ESPER_OK;
}

static void host_stream_close(esper_stream *stream)
{
    esper_mem_free(stream);
}

static esper_status host_stream_sync(esper_stream *stream)
{
    (void)stream;
    return ESPER_OK;
}

static esper_status host_copy(esper_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
    return ESPER_OK;
}

static esper_status host_set(esper_stream *stream, void *memory, int byte, size_t bytes)
{
    (void)stream;
    memset(memory, byte, bytes);
    return ESPER_OK;
}

static esper_status host_event_open(esper_device *device, esper_device_event **event_out)
{
    esper_device_event *event = esper_mem_alloc(sizeof(*event));

    if (event == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host event");
    event->device = device;
    *event_out = event;
    return ESPER_OK;
}

static void host_event_close(esper_device_event *event)
{
    esper_mem_free(event);
}

static esper_status host_event_record(esper_device_event *event, esper_stream *stream)
{
    (void)event;
    (void)stream;
    return ESPER_OK;
}

static esper_status host_event_wait(esper_device_event *event, esper_stream *stream)
{
    (void)event;
    (void)stream;
    return ESPER_OK;
}

static esper_status host_event_sync(esper_device_event *event)
{
    (void)event;
    return ESPER_OK;
}

const esper_device_ops esper_device_host = {
    .abi = ESPER_DEVICE_ABI,
    .name = "host",
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .release = host_release,
    .stream_open = host_stream_open,
    .stream_close = host_stream_close,
    .stream_sync = host_stream_sync,
    .copy_async = host_copy,
    .set_async = host_set,
    .event_open = host_event_open,
    .event_close = host_event_close,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_sync = host_event_sync,
};
