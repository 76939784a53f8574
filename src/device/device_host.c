/* The host as a device. Its streams do their work at once, in the call that queues it: an event is complete when it is
 * recorded, and nothing is ever left to wait for. Code written for streams and events runs here unchanged, in the order
 * in which the caller queued. */
#include <stdio.h>
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

static esper_status host_stream_wrap(esper_device *device, void *native, esper_stream **stream_out)
{
    (void)native;
    return host_stream_open(device, stream_out);
}

/* A number that follows `word` in a small file of the system. */
static bool read_number(const char *path, const char *word, uint64_t *number_out)
{
    FILE *file = fopen(path, "re");
    unsigned long long number = 0;
    char line[128];
    bool found = false;

    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), file) != NULL)
        found = strncmp(line, word, strlen(word)) == 0 && sscanf(line + strlen(word), "%llu", &number) == 1;
    fclose(file);
    *number_out = number;
    return found;
}

/* What Linux calls MemAvailable (free pages and those it could free at once), or what this container may still take. */
static esper_status host_memory_free(esper_device *device, uint64_t *bytes_out)
{
    uint64_t kilobytes, limit, used;

    (void)device;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kilobytes))
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "host device: the system does not tell how much memory is free");
    *bytes_out = kilobytes * 1024;
    if (read_number("/sys/fs/cgroup/memory.max", "", &limit) &&
        read_number("/sys/fs/cgroup/memory.stat", "anon ", &used)) {
        uint64_t left = limit > used ? limit - used : 0;

        *bytes_out = left < *bytes_out ? left : *bytes_out;
    }
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
    .copy_async = host_copy,
    .set_async = host_set,
    .event_open = host_event_open,
    .event_close = host_event_close,
    .stream_wrap = host_stream_wrap,
    .memory_free = host_memory_free,
};
