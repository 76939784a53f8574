/* The sides of a ring: which tensors lie on which device, and where in the arenas they are kept. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/report.h"
#include "guard/ring.h"

enum { PART_ALIGN = 256, TEXT_CHARS = 48 };

static bool wants(const esper_ring *ring, const esper_guard_tensor *tensor)
{
    return (ring->options.roles >> tensor->role & 1) != 0 && tensor->count != 0;
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}

/* What must stay as it was for a snapshot to fit: which tensors there are, in which order, of which type and length. */
static uint64_t layout_of(const esper_ring *ring)
{
    uint64_t hash = 0xCBF29CE484222325u;

    for (size_t i = 0; i < esper_guard_count(ring->guard); i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(ring->guard, i);
        uint64_t kind = (uint64_t)tensor->role << 8 | tensor->dtype, count = tensor->count;

        if (!wants(ring, tensor))
            continue;
        hash = hash_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = hash_bytes(hash, &kind, sizeof(kind));
        hash = hash_bytes(hash, &count, sizeof(count));
    }
    return hash;
}

/* ---- which sides there are ---- */

ring_side *esper_ring_find_side(esper_ring *ring, int32_t number)
{
    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->sides[i].number == number)
            return &ring->sides[i];
    return NULL;
}

/* CUDA devices come first: their work is queued before the host's is done in the call. */
static bool comes_before(int32_t a, int32_t b)
{
    return (a >= 0) != (b >= 0) ? a >= 0 : a < b;
}

static esper_status add_side(esper_ring *ring, int32_t number)
{
    ring_side *larger = esper_mem_grow(ring->sides, (ring->n_sides + 1) * sizeof(*ring->sides));
    size_t at = ring->n_sides;

    if (larger == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    ring->sides = larger;
    for (; at > 0 && comes_before(number, ring->sides[at - 1].number); at--)
        ring->sides[at] = ring->sides[at - 1];
    ring->sides[at] = (ring_side){
        .ops = number >= 0 ? &esper_ring_side_cuda : &esper_ring_side_host,
        .ring = ring,
        .number = number,
    };
    ring->n_sides++;
    return ESPER_OK;
}

/* Finds the sides and counts their tensors. */
static esper_status find_sides(esper_ring *ring)
{
    char roles[ESPER_GUARD_ROLES_CHARS];

    for (size_t i = 0; i < ring->n_guard_tensors; i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(ring->guard, i);

        if (!wants(ring, tensor))
            continue;
        if (esper_ring_find_side(ring, tensor->device) == NULL)
            ESPER_TRY(add_side(ring, tensor->device));
        esper_ring_find_side(ring, tensor->device)->n_parts++;
        ring->n_scan++;
    }
    if (ring->n_sides == 0)
        return ESPER_FAIL(ESPER_E_ARG, "a ring needs tensors: the guard has %zu, none of the roles asked for (%s)",
                          ring->n_guard_tensors, esper_guard_roles_text(ring->options.roles, roles));
    return ESPER_OK;
}

/* Gives each tensor of the side its place in the arenas. */
static esper_status lay_out(ring_side *side)
{
    esper_ring *ring = side->ring;
    size_t n = 0;

    side->parts = esper_mem_alloc(side->n_parts * sizeof(*side->parts));
    side->tensors = esper_mem_alloc(side->n_parts * sizeof(*side->tensors));
    side->copies = esper_mem_alloc(ring->options.n_entries * sizeof(*side->copies));
    if (side->parts == NULL || side->tensors == NULL || side->copies == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring of %zu tensors", side->n_parts);
    for (size_t i = 0; i < ring->n_guard_tensors; i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(ring->guard, i);
        uint64_t bytes = tensor->count * esper_guard_dtype_bytes(tensor->dtype);

        if (!wants(ring, tensor) || tensor->device != side->number)
            continue;
        if (bytes > UINT64_MAX / 2 - side->arena_bytes)
            return ESPER_FAIL(ESPER_E_NOMEM, "ring: the tensors are larger than any memory");
        side->parts[n] = (esper_copy_part){.data = tensor->data, .bytes = bytes, .offset = side->arena_bytes};
        side->tensors[n++] = i;
        side->arena_bytes += (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    }
    return ESPER_OK;
}

/* ---- memory ---- */

static const char *place_text(const ring_side *side, bool on_host, char text[TEXT_CHARS])
{
    if (on_host)
        snprintf(text, TEXT_CHARS, "host memory");
    else
        snprintf(text, TEXT_CHARS, "memory of CUDA device %d", side->number);
    return text;
}

static esper_status fail_full(const ring_side *side, bool on_host, uint64_t wanted)
{
    char place[TEXT_CHARS], total[32], available[32] = "an unknown number of bytes";
    uint64_t bytes;

    if (esper_device_memory_free(on_host ? side->ring->host : side->device, &bytes) == ESPER_OK)
        esper_ring_bytes_text(bytes, available);
    return ESPER_FAIL(ESPER_E_NOMEM,
                      "a ring of %u entries wants %s of %s, %s are available: ask for fewer entries or roles%s",
                      side->ring->options.n_entries, esper_ring_bytes_text(wanted, total),
                      place_text(side, on_host, place), available, on_host ? "" : ", or for entries in host memory");
}

/* Refuses what cannot fit before the system is asked: host memory is promised freely and missed only when touched. */
static esper_status check_room(const ring_side *side, bool on_host, uint64_t wanted)
{
    const esper_ring *ring = side->ring;
    uint64_t taken = on_host ? ring->host_bytes : 0, most = ring->options.max_bytes, available;
    char place[TEXT_CHARS], total[32], limit[32];

    if (most != 0 && (taken > most || wanted > most - taken))
        return ESPER_FAIL(ESPER_E_NOMEM,
                          "a ring of %u entries wants %s of %s, the limit (max_bytes) is %s: ask for fewer "
                          "entries or roles, or raise it",
                          ring->options.n_entries, esper_ring_bytes_text(wanted + taken, total),
                          place_text(side, on_host, place), esper_ring_bytes_text(most, limit));
    if (on_host && ring->memory_options.alloc == NULL && esper_device_memory_free(ring->host, &available) == ESPER_OK &&
        wanted > available)
        return fail_full(side, on_host, wanted);
    return ESPER_OK;
}

esper_status esper_ring_side_reserve(ring_side *side, bool on_host, ring_memory *const *memories, size_t n_memories)
{
    uint64_t wanted, *counter = on_host ? &side->ring->host_bytes : &side->ring->device_bytes;
    esper_status st;

    if (__builtin_mul_overflow(side->arena_bytes, (uint64_t)n_memories, &wanted))
        wanted = UINT64_MAX / 2;
    ESPER_TRY(check_room(side, on_host, wanted));
    for (size_t i = 0; i < n_memories; i++) {
        st = esper_ring_memory_init(side, on_host, side->arena_bytes, memories[i]);
        if (st == ESPER_OK)
            continue;
        while (i-- > 0)
            esper_ring_memory_fini(side, memories[i]);
        return st == ESPER_E_NOMEM ? fail_full(side, on_host, wanted) : st;
    }
    *counter += wanted;
    return ESPER_OK;
}

static esper_status reserve_entries(ring_side *side, bool on_host, bool mirrors)
{
    size_t n = side->ring->options.n_entries;
    ring_memory **memories = esper_mem_alloc(n * sizeof(*memories));
    esper_status st;

    if (memories == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    for (size_t i = 0; i < n; i++)
        memories[i] = mirrors ? &side->copies[i].mirror : &side->copies[i].arena;
    st = esper_ring_side_reserve(side, on_host, memories, n);
    esper_mem_free(memories);
    return st;
}

/* Arenas on the device where that is wanted and possible, else in host memory. */
static esper_status open_arenas(ring_side *side)
{
    esper_ring_place place = side->ring->options.place;
    esper_status st;

    if (side->number < 0)
        return reserve_entries(side, true, false);
    if (place != ESPER_RING_HOST) {
        st = reserve_entries(side, false, false);
        side->resident = st == ESPER_OK;
        if (st != ESPER_OK && (st != ESPER_E_NOMEM || place == ESPER_RING_DEVICE))
            return st;
    }
    if (!side->resident) {
        side->scan_live = true;
        return reserve_entries(side, true, false);
    }
    if (!side->ring->options.mirror)
        return ESPER_OK;
    ESPER_TRY(reserve_entries(side, true, true));
    for (uint32_t i = 0; i < side->ring->options.n_entries; i++)
        ESPER_TRY(esper_device_event_open(side->device, &side->copies[i].mirror_done));
    return ESPER_OK;
}

/* ---- opening and closing ---- */

static esper_status open_side(ring_side *side)
{
    ESPER_TRY(lay_out(side));
    ESPER_TRY(esper_device_open(side->ops->kind, side->number < 0 ? 0 : side->number, &side->device));
    ESPER_TRY(esper_stream_open(side->device, &side->stream));
    ESPER_TRY(esper_stream_open(side->device, &side->background));
    ESPER_TRY(esper_device_event_open(side->device, &side->writers_reached));
    ESPER_TRY(esper_device_event_open(side->device, &side->copied));
    ESPER_TRY(esper_device_event_open(side->device, &side->settled));
    ESPER_TRY(esper_device_event_open(side->device, &side->staged));
    side->writers = esper_mem_alloc(sizeof(*side->writers));
    if (side->writers == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    ESPER_TRY(esper_stream_wrap(side->device, NULL, &side->writers[0]));
    side->n_writers = 1;
    ESPER_TRY(open_arenas(side));
    return side->ops->open(side);
}

esper_status esper_ring_sides_open(esper_ring *ring)
{
    ESPER_TRY(find_sides(ring));
    ring->layout = layout_of(ring);
    for (size_t i = 0; i < ring->n_sides; i++)
        ESPER_TRY(open_side(&ring->sides[i]));
    return ESPER_OK;
}

/* Waits for the ring's own streams, and nothing else, before memory goes. */
static void close_side(ring_side *side)
{
    if (side->stream != NULL)
        (void)esper_stream_sync(side->stream);
    if (side->background != NULL)
        (void)esper_stream_sync(side->background);
    side->ops->close(side);
    for (uint32_t i = 0; side->copies != NULL && i < side->ring->options.n_entries; i++) {
        esper_ring_memory_fini(side, &side->copies[i].arena);
        esper_ring_memory_fini(side, &side->copies[i].mirror);
        esper_device_event_close(side->copies[i].mirror_done);
    }
    for (size_t i = 0; i < side->n_writers; i++)
        esper_stream_close(side->writers[i]);
    esper_device_event_close(side->staged);
    esper_device_event_close(side->settled);
    esper_device_event_close(side->copied);
    esper_device_event_close(side->writers_reached);
    esper_stream_close(side->background);
    esper_stream_close(side->stream);
    esper_device_close(side->device);
    esper_mem_free(side->writers);
    esper_mem_free(side->copies);
    esper_mem_free(side->tensors);
    esper_mem_free(side->parts);
}

void esper_ring_sides_close(esper_ring *ring)
{
    for (size_t i = 0; i < ring->n_sides; i++)
        close_side(&ring->sides[i]);
    esper_mem_free(ring->sides);
    ring->sides = NULL;
    ring->n_sides = 0;
}

/* ---- in use ---- */

/* New addresses are news until `rebind` has taken them, however often it has to be asked. */
static esper_status follow_side(ring_side *side)
{
    for (size_t i = 0; i < side->n_parts; i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(side->ring->guard, side->tensors[i]);

        if (tensor->device != side->number)
            return ESPER_FAIL(ESPER_E_STATE,
                              "ring: tensor %s was on device %d when the ring was opened, now on %d: open it anew",
                              tensor->name, side->number, tensor->device);
        side->moved |= tensor->data != side->parts[i].data;
        side->parts[i].data = tensor->data;
    }
    if (side->moved && side->ops->rebind != NULL)
        ESPER_TRY(side->ops->rebind(side));
    side->moved = false;
    return ESPER_OK;
}

esper_status esper_ring_sides_follow(esper_ring *ring)
{
    if (esper_guard_count(ring->guard) != ring->n_guard_tensors || layout_of(ring) != ring->layout)
        return ESPER_FAIL(ESPER_E_STATE,
                          "ring: the guard's tensors (%zu, then %zu) are not those the ring was opened for: "
                          "close it and open it anew",
                          ring->n_guard_tensors, esper_guard_count(ring->guard));
    for (size_t i = 0; i < ring->n_sides; i++)
        ESPER_TRY(follow_side(&ring->sides[i]));
    return ESPER_OK;
}

esper_status esper_ring_sides_check(esper_ring *ring)
{
    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->sides[i].ops->check_writers != NULL)
            ESPER_TRY(ring->sides[i].ops->check_writers(&ring->sides[i]));
    return ESPER_OK;
}

esper_status esper_ring_side_fetch_sum(ring_side *side, int which)
{
    assert(which >= 0 && which < RING_N_SUMS);
    return side->ops->fetch_sum != NULL ? side->ops->fetch_sum(side, which) : ESPER_OK;
}

/* The entry is known to be good, so its copy is done: nothing to wait for. */
esper_status esper_ring_side_mirror(ring_side *side, uint32_t entry)
{
    ring_copy *copy = &side->copies[entry];

    if (copy->mirror.at == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_stream_copy(side->background, copy->mirror.at, copy->arena.at, side->arena_bytes));
    ESPER_TRY(esper_device_event_record(copy->mirror_done, side->background));
    copy->mirrored = true;
    return ESPER_OK;
}
