/* Internal. Memory, streams, events and copies of one device, behind one table.
 *
 * A stream is a queue of work done in order; work in different streams may overlap. An event is a mark in a stream that
 * other streams, or the caller, can wait for. Calls that queue work may return before it is done, so a failure of that
 * work surfaces in a later sync. Memory handed to a copy must live until the copy is done. Who opens closes: streams,
 * events and memory before their device. */
#ifndef ESPER_DEVICE_DEVICE_H
#define ESPER_DEVICE_DEVICE_H

#include <stdbool.h>

#include "esper.h"

#define ESPER_DEVICE_ABI 1

typedef struct esper_device esper_device;
typedef struct esper_stream esper_stream;
typedef struct esper_device_event esper_device_event; /* a mark in a stream; telemetry/fact.h is about other events */

typedef enum esper_device_memory {
    ESPER_DEVICE_MEMORY_NORMAL, /* the device's own */
    ESPER_DEVICE_MEMORY_PINNED, /* of the host, that copies to and from the device need not stage */
} esper_device_memory;

/* What a kind of device can do. Called through the functions below; new members go at the end. A device whose streams do
 * their work in the call that queues it has nothing to wait for, to order or to pin: of such a one stream_sync, stream_native,
 * event_record, event_wait, event_sync, event_query, pin and unpin are NULL. No other member ever is. */
typedef struct esper_device_ops {
    uint32_t    abi;  /* ESPER_DEVICE_ABI it was written for; others are refused */
    const char *name; /* "host": for logs and telemetry */
    esper_status (*open)(int index, esper_device **device_out);
    void         (*close)(esper_device *device);
    esper_status (*alloc)(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out);
    void         (*release)(esper_device *device, void *memory);
    esper_status (*stream_open)(esper_device *device, esper_stream **stream_out);
    void         (*stream_close)(esper_stream *stream);
    esper_status (*stream_sync)(esper_stream *stream);
    esper_status (*copy_async)(esper_stream *stream, void *to, const void *from, size_t bytes);
    esper_status (*set_async)(esper_stream *stream, void *memory, int byte, size_t bytes);
    esper_status (*event_open)(esper_device *device, esper_device_event **event_out);
    void         (*event_close)(esper_device_event *event);
    esper_status (*event_record)(esper_device_event *event, esper_stream *stream);
    esper_status (*event_wait)(esper_device_event *event, esper_stream *stream);
    esper_status (*event_sync)(esper_device_event *event);
    esper_status (*stream_wrap)(esper_device *device, void *native, esper_stream **stream_out);
    void        *(*stream_native)(const esper_stream *stream);
    esper_status (*event_query)(esper_device_event *event, bool *reached_out);
    esper_status (*memory_free)(esper_device *device, uint64_t *bytes_out);
    esper_status (*pin)(esper_device *device, void *memory, size_t bytes);
    void         (*unpin)(esper_device *device, void *memory);
} esper_device_ops;

/* What every device's own structs begin with; read-only outside device/. */
struct esper_device {
    const esper_device_ops *ops;
    int                     index;
};
struct esper_stream {
    esper_device *device;
};
struct esper_device_event {
    esper_device *device;
};

/* A device by the name of its kind ("host") and its index among them. ESPER_E_NOTFOUND: this build has no such kind. */
esper_status esper_device_open(const char *name, int index, esper_device **device_out);
void         esper_device_close(esper_device *device);
const char  *esper_device_name(const esper_device *device);

/* Zeroed, aligned to 64 bytes or more. 0 bytes give NULL, which release takes. */
esper_status esper_device_alloc(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out);
void         esper_device_release(esper_device *device, void *memory);

esper_status esper_stream_open(esper_device *device, esper_stream **stream_out);
void         esper_stream_close(esper_stream *stream);
esper_status esper_stream_sync(esper_stream *stream); /* returns when all queued so far is done */

/* A stream that someone else made (CUstream / cudaStream_t as void *, NULL for the default one), so that work can be
 * ordered against it; closing it leaves theirs as it is. native is the way back: what kernels are launched on. The host
 * has no streams of others: it takes any value and gives NULL. */
esper_status esper_stream_wrap(esper_device *device, void *native, esper_stream **stream_out);
void        *esper_stream_native(const esper_stream *stream);

/* Queue work. Source and target do not overlap; either may be host or device memory. */
esper_status esper_stream_copy(esper_stream *stream, void *to, const void *from, size_t bytes);
esper_status esper_stream_set(esper_stream *stream, void *memory, int byte, size_t bytes);

/* record marks the place reached in `stream`, moving an earlier mark; wait lets later work of `stream` begin only when
 * the mark is reached, without holding the caller; sync holds the caller. An event never recorded counts as reached. */
esper_status esper_device_event_open(esper_device *device, esper_device_event **event_out);
void         esper_device_event_close(esper_device_event *event);
esper_status esper_device_event_record(esper_device_event *event, esper_stream *stream);
esper_status esper_device_event_wait(esper_device_event *event, esper_stream *stream);
esper_status esper_device_event_sync(esper_device_event *event);
esper_status esper_device_event_query(esper_device_event *event, bool *reached_out); /* waits for nothing */

/* Memory of the device that nobody has taken, for messages. Of the host, what the system believes it could still give. */
esper_status esper_device_memory_free(esper_device *device, uint64_t *bytes_out);

/* Makes host memory that someone else allocated such as MEMORY_PINNED gives, and plain again before they free it. */
esper_status esper_device_pin(esper_device *device, void *memory, size_t bytes);
void         esper_device_unpin(esper_device *device, void *memory);

/* The kinds of device; device.c lists them. */
extern const esper_device_ops esper_device_host;
extern const esper_device_ops esper_device_cuda; /* opens where there is a CUDA driver; E_UNSUPPORTED tells why not */

#endif
