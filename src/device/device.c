/* The list of device kinds, and the thin wrappers around their tables. */
#include "device/device.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "base/suggest.h"

static const esper_device_ops *const device_kinds[] = {
    &esper_device_host,
    &esper_device_cuda,
};

enum { N_DEVICE_KINDS = sizeof(device_kinds) / sizeof(device_kinds[0]) };

esper_status esper_device_open(const char *name, int index, esper_device **device_out)
{
    char meant[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; i < N_DEVICE_KINDS; i++) {
        const esper_device_ops *ops = device_kinds[i];

        assert(ops->abi == ESPER_DEVICE_ABI); /* device.h and the tables are of one build */
        if (strcmp(ops->name, name) == 0)
            return ops->open(index, device_out);
        esper_suggest_offer(&suggest, ops->name);
    }
    return ESPER_FAIL(ESPER_E_NOTFOUND, "this build has no device of kind '%s'%s", name,
                      esper_suggest_text(&suggest, "", meant));
}

void esper_device_close(esper_device *device)
{
    if (device != NULL)
        device->ops->close(device);
}

const char *esper_device_name(const esper_device *device)
{
    return device->ops->name;
}

esper_status esper_device_alloc(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out)
{
    assert(kind == ESPER_DEVICE_MEMORY_NORMAL || kind == ESPER_DEVICE_MEMORY_PINNED);
    if (bytes == 0) {
        *memory_out = NULL;
        return ESPER_OK;
    }
    return device->ops->alloc(device, bytes, kind, memory_out);
}

void esper_device_release(esper_device *device, void *memory)
{
    if (memory != NULL)
        device->ops->release(device, memory);
}

esper_status esper_stream_open(esper_device *device, esper_stream **stream_out)
{
    return device->ops->stream_open(device, stream_out);
}

void esper_stream_close(esper_stream *stream)
{
    if (stream != NULL)
        stream->device->ops->stream_close(stream);
}

esper_status esper_stream_sync(esper_stream *stream)
{
    return stream->device->ops->stream_sync == NULL ? ESPER_OK : stream->device->ops->stream_sync(stream);
}

esper_status esper_stream_copy(esper_stream *stream, void *to, const void *from, size_t bytes)
{
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : stream->device->ops->copy_async(stream, to, from, bytes);
}

esper_status esper_stream_set(esper_stream *stream, void *memory, int byte, size_t bytes)
{
    assert(byte >= 0 && byte <= 255 && (bytes == 0 || memory != NULL));
    return bytes == 0 ? ESPER_OK : stream->device->ops->set_async(stream, memory, byte, bytes);
}

esper_status esper_device_event_open(esper_device *device, esper_device_event **event_out)
{
    return device->ops->event_open(device, event_out);
}

void esper_device_event_close(esper_device_event *event)
{
    if (event != NULL)
        event->device->ops->event_close(event);
}

esper_status esper_device_event_record(esper_device_event *event, esper_stream *stream)
{
    assert(event->device == stream->device);
    return event->device->ops->event_record == NULL ? ESPER_OK : event->device->ops->event_record(event, stream);
}

esper_status esper_device_event_wait(esper_device_event *event, esper_stream *stream)
{
    assert(event->device->ops == stream->device->ops);
    return event->device->ops->event_wait == NULL ? ESPER_OK : event->device->ops->event_wait(event, stream);
}

esper_status esper_device_event_sync(esper_device_event *event)
{
    return event->device->ops->event_sync == NULL ? ESPER_OK : event->device->ops->event_sync(event);
}

esper_status esper_stream_wrap(esper_device *device, void *native, esper_stream **stream_out)
{
    return device->ops->stream_wrap(device, native, stream_out);
}

void *esper_stream_native(const esper_stream *stream)
{
    return stream->device->ops->stream_native == NULL ? NULL : stream->device->ops->stream_native(stream);
}

esper_status esper_device_event_query(esper_device_event *event, bool *reached_out)
{
    if (event->device->ops->event_query != NULL)
        return event->device->ops->event_query(event, reached_out);
    *reached_out = true;
    return ESPER_OK;
}

esper_status esper_device_memory_free(esper_device *device, uint64_t *bytes_out)
{
    return device->ops->memory_free(device, bytes_out);
}

esper_status esper_device_pin(esper_device *device, void *memory, size_t bytes)
{
    assert(bytes == 0 || memory != NULL);
    return bytes == 0 || device->ops->pin == NULL ? ESPER_OK : device->ops->pin(device, memory, bytes);
}

void esper_device_unpin(esper_device *device, void *memory)
{
    if (memory != NULL && device->ops->unpin != NULL)
        device->ops->unpin(device, memory);
}
