/* Memory of the ring: the caller's allocator where there is one, else the device's. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "guard/ring.h"

enum { ARENA_ALIGN = 256 };

const char *esper_ring_bytes_text(uint64_t bytes, char text[32])
{
    if (bytes < 10000)
        snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
    else if (bytes < 10000000)
        snprintf(text, 32, "%.1f kB", (double)bytes / 1e3);
    else
        snprintf(text, 32, "%.1f MB", (double)bytes / 1e6);
    return text;
}

/* Memory of others has any contents and any alignment, and the host device aligns to 64 bytes only: so much more is asked for
 * that it can be aligned. */
static esper_status take(ring_side *side, ring_memory *memory)
{
    const esper_guard_options *options = &side->ring->memory_options;
    bool theirs = options->alloc != NULL;
    esper_status st;

    if (theirs)
        memory->raw = options->alloc(options->alloc_context, memory->on_host ? ESPER_GUARD_HOST : side->number,
                                     memory->bytes + ARENA_ALIGN);
    else
        ESPER_TRY(esper_device_alloc(side->device, memory->bytes + ARENA_ALIGN,
                                     memory->on_host ? ESPER_DEVICE_MEMORY_PINNED : ESPER_DEVICE_MEMORY_NORMAL,
                                     &memory->raw));
    if (memory->raw == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the caller's allocator gave none of %llu bytes",
                          (unsigned long long)memory->bytes);
    memory->at = (void *)(((uintptr_t)memory->raw + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    if (!theirs)
        return ESPER_OK;
    if (!memory->on_host)
        return esper_stream_set(side->stream, memory->at, 0, memory->bytes);
    memset(memory->at, 0, memory->bytes);
    st = esper_device_pin(side->device, memory->at, memory->bytes);
    memory->pinned = st == ESPER_OK;
    return st;
}

esper_status esper_ring_memory_init(ring_side *side, bool on_host, uint64_t bytes, ring_memory *memory_out)
{
    ring_memory memory = {.bytes = bytes, .on_host = on_host};
    esper_status st;

    if (bytes > SIZE_MAX - ARENA_ALIGN)
        return ESPER_FAIL(ESPER_E_NOMEM, "%llu bytes", (unsigned long long)bytes);
    st = take(side, &memory);
    if (st != ESPER_OK) {
        esper_ring_memory_fini(side, &memory);
        return st;
    }
    assert((uintptr_t)memory.at % ARENA_ALIGN == 0);
    *memory_out = memory;
    return ESPER_OK;
}

void esper_ring_memory_fini(ring_side *side, ring_memory *memory)
{
    const esper_guard_options *options = &side->ring->memory_options;

    if (memory->pinned)
        esper_device_unpin(side->device, memory->at);
    if (memory->raw != NULL && options->alloc != NULL)
        options->release(options->alloc_context, memory->on_host ? ESPER_GUARD_HOST : side->number, memory->raw);
    else if (memory->raw != NULL)
        esper_device_release(side->device, memory->raw);
    *memory = (ring_memory){0};
}
