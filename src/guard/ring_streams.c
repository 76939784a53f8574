/* How a ring's copies, snapshots and rollbacks alike, are ordered against the streams on which others write its tensors: each
 * waits for what they had queued before it, and they wait for it. Nobody else waits, least of all a host thread or a whole device. */
#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/ring.h"

esper_status esper_ring_side_after_writers(ring_side *side)
{
    for (size_t i = 0; i < side->n_writers; i++) {
        ESPER_TRY(esper_device_event_record(side->writers_reached, side->writers[i]));
        ESPER_TRY(esper_device_event_wait(side->writers_reached, side->stream));
    }
    return ESPER_OK;
}

esper_status esper_ring_side_before_writers(ring_side *side)
{
    assert(side->n_writers > 0);
    ESPER_TRY(esper_device_event_record(side->copied, side->stream));
    for (size_t i = 0; i < side->n_writers; i++)
        ESPER_TRY(esper_device_event_wait(side->copied, side->writers[i]));
    return ESPER_OK;
}

/* The first stream that is named takes the place of the default one. */
esper_status esper_ring_add_stream(esper_ring *ring, int32_t device, void *stream)
{
    ring_side *side = ring == NULL ? NULL : esper_ring_find_side(ring, device);
    esper_stream **larger;

    if (ring == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_add_stream: the ring is NULL");
    if (side == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_add_stream: the ring has no tensors on device %d", device);
    if (side->number < 0)
        return ESPER_OK; /* work on host memory is done in the call */
    for (size_t i = 0; side->writers_named && i < side->n_writers; i++)
        if (esper_stream_native(side->writers[i]) == stream)
            return ESPER_OK;
    larger = esper_mem_grow(side->writers, (side->n_writers + 1) * sizeof(*larger));
    if (larger == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring: stream");
    side->writers = larger;
    ESPER_TRY(esper_stream_wrap(side->device, stream, &side->writers[side->n_writers]));
    side->n_writers++;
    if (!side->writers_named) {
        assert(side->n_writers == 2); /* the default one and this */
        esper_stream_close(side->writers[0]);
        side->writers[0] = side->writers[1];
        side->n_writers = 1;
        side->writers_named = true;
    }
    return ESPER_OK;
}
