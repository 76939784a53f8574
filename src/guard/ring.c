/* The ring's entries: which gives way, which counts, which is put back.
 *
 *                  take                    scan read
 *     EMPTY ─────────────────> PENDING ───────────────> GOOD ───────> (taken again)
 *       ^                          │                      │
 *       │                          └──────> REFUSED       │ its sum no longer fits
 *       └─────────────────────────────────────────────────┘
 *
 * Facts that hold between calls: at most one entry is PENDING, and it is the newest; a take reads the verdict
 * about the one before it first, so that with two entries or more the last good one is never chosen. Nothing here
 * asks the clock or whether work happens to be done (but for status_get, which decides nothing): the same calls
 * choose the same entries. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "guard/engine_host.h"
#include "guard/guard_internal.h"
#include "guard/report.h"
#include "guard/ring.h"

enum {
    DEFAULT_ENTRIES = 2,
    DEFAULT_ROLES = 1 << ESPER_GUARD_ROLE_PARAM | 1 << ESPER_GUARD_ROLE_MOMENT | 1 << ESPER_GUARD_ROLE_BUFFER,
    MAX_ENTRIES = 4096,
};

/* ---- entries ---- */

static uint32_t index_of(const esper_ring *ring, const ring_entry *entry)
{
    assert(entry >= ring->entries && entry < ring->entries + ring->options.n_entries);
    return (uint32_t)(entry - ring->entries);
}

/* The newest entry in a state (or, with EMPTY, in any but that); NULL when there is none. */
static ring_entry *newest_entry(esper_ring *ring, esper_ring_state state)
{
    ring_entry *newest = NULL;

    for (uint32_t i = 0; i < ring->options.n_entries; i++) {
        ring_entry *entry = &ring->entries[i];
        bool fits = state == ESPER_RING_EMPTY ? entry->state != ESPER_RING_EMPTY : entry->state == state;

        if (fits && (newest == NULL || entry->sequence > newest->sequence))
            newest = entry;
    }
    return newest;
}

/* How willingly an entry gives way: empty, then refused, then good ones from the oldest. */
static int worth(const ring_entry *entry)
{
    return entry->state == ESPER_RING_EMPTY ? 0 : entry->state == ESPER_RING_REFUSED ? 1 : 2;
}

static ring_entry *entry_to_take(esper_ring *ring)
{
    ring_entry *chosen = &ring->entries[0];

    assert(ring->options.n_entries > 0 && ring->pending == NULL);
    for (uint32_t i = 1; i < ring->options.n_entries; i++) {
        ring_entry *entry = &ring->entries[i];

        if (worth(entry) < worth(chosen) || (worth(entry) == worth(chosen) && entry->sequence < chosen->sequence))
            chosen = entry;
    }
    return chosen;
}

/* The entry does not count any more: its sum does not fit. */
static void drop(ring_entry *entry)
{
    assert(entry->state != ESPER_RING_PENDING);
    entry->state = ESPER_RING_EMPTY;
    entry->doubted = false;
}

static bool has_mirror(const esper_ring *ring, uint32_t entry)
{
    bool mirrored = false;

    for (size_t i = 0; i < ring->n_sides; i++)
        mirrored |= ring->sides[i].copies[entry].mirrored;
    return mirrored;
}

/* ---- verdicts ---- */

static void make_good(esper_ring *ring, ring_entry *entry)
{
    assert(entry->state != ESPER_RING_GOOD && !entry->doubted);
    entry->state = ESPER_RING_GOOD;
    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];

        side->copies[index_of(ring, entry)].sum = side->sums[RING_GATHERED];
        (void)esper_ring_side_mirror(side, index_of(ring, entry)); /* without its mirror an entry is as good */
    }
    esper_ring_disk_offer(ring, entry);
}

/* Reads the scan of the pending entry, waiting for it. */
static esper_status settle_pending(esper_ring *ring)
{
    ring_entry *entry = ring->pending;
    const esper_guard_report *report;

    assert(entry == NULL || entry->sequence == ring->sequence);
    if (entry == NULL)
        return ESPER_OK;
    ring->pending = NULL;
    entry->state = ESPER_RING_EMPTY;
    ESPER_TRY(esper_guard_read(ring->scanner, &report));
    if (report->bad == 0) {
        make_good(ring, entry);
    } else {
        entry->state = ESPER_RING_REFUSED;
        entry->refused_tensor = ring->scan_tensors[report->first_bad];
    }
    return ESPER_OK;
}

/* Whether what was put back from the entry is what was sealed, on every side; waits for the sums. */
static esper_status sums_fit(esper_ring *ring, const ring_entry *entry, bool *fit_out)
{
    bool fit = true;

    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];

        ESPER_TRY(esper_device_event_sync(side->settled));
        fit &= side->sums[RING_SCATTERED] == side->copies[index_of(ring, entry)].sum;
    }
    *fit_out = fit;
    return ESPER_OK;
}

/* Compares the sums of a rollback that nobody waited for. An entry that has a mirror stays: the next rollback mends it. */
static esper_status settle_unverified(esper_ring *ring)
{
    ring_entry *entry = ring->unverified;
    bool fit;

    if (entry == NULL)
        return ESPER_OK;
    ring->unverified = NULL;
    ESPER_TRY(sums_fit(ring, entry, &fit));
    if (!fit) {
        ring->spoiled = true;
        entry->doubted = has_mirror(ring, index_of(ring, entry));
        if (!entry->doubted)
            drop(entry);
    }
    return ESPER_OK;
}

static esper_status settle(esper_ring *ring)
{
    ESPER_TRY(settle_unverified(ring));
    return settle_pending(ring);
}

/* ---- opening and closing ---- */

void esper_ring_options_init(esper_ring_options *options)
{
    if (options == NULL)
        return;
    *options = (esper_ring_options){
        .size = sizeof(*options),
        .n_entries = DEFAULT_ENTRIES,
        .place = ESPER_RING_AUTO,
        .mirror = 1,
        .roles = DEFAULT_ROLES,
    };
}

static esper_status read_options(const esper_ring_options *given, esper_ring_options *options)
{
    char roles[ESPER_GUARD_ROLES_CHARS];

    esper_ring_options_init(options);
    if (given == NULL)
        return ESPER_OK;
    if (given->size < sizeof(given->size) || given->size > sizeof(*given))
        return ESPER_FAIL(ESPER_E_ARG, "ring: options of %zu bytes: set them up with esper_ring_options_init",
                          given->size);
    memcpy(options, given, given->size);
    options->size = sizeof(*options);
    if (options->roles == 0)
        options->roles = DEFAULT_ROLES;
    if (options->n_entries < 2 || options->n_entries > MAX_ENTRIES)
        return ESPER_FAIL(ESPER_E_ARG,
                          "ring: %u entries: expected 2 (so that the last good one stays while the next is made) "
                          "to %d",
                          options->n_entries, MAX_ENTRIES);
    if ((unsigned)options->place > ESPER_RING_HOST)
        return ESPER_FAIL(ESPER_E_ARG, "ring: place %d is none of those in esper_ring_place", (int)options->place);
    if (options->roles >> ESPER_GUARD_N_ROLES != 0)
        return ESPER_FAIL(ESPER_E_ARG, "ring: roles %s: expected bits 1u << role, or 0 for param+moment+buffer",
                          esper_guard_roles_text(options->roles, roles));
    if (options->directory != NULL && options->directory[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "ring: the directory is \"\": expected a path, or NULL for no copy on disk");
    if (options->directory == NULL && options->resume)
        return ESPER_FAIL(ESPER_E_ARG, "ring: resume without a directory: there is nothing to go on from");
    return ESPER_OK;
}

/* Where the scanner finds a part of an entry. */
static void *scanned_data(const ring_side *side, size_t part, uint32_t entry)
{
    assert(part < side->n_parts && side->parts[part].offset + side->parts[part].bytes <= side->arena_bytes);
    if (side->scan_live)
        return side->parts[part].data;
    return (char *)side->copies[entry].arena.at + side->parts[part].offset;
}

/* Adds the side's tensors to the scanner, as they lie in entry 0. */
static esper_status watch_side(esper_ring *ring, const ring_side *side, size_t *n)
{
    esper_guard_tensor *tensors = esper_mem_alloc(side->n_parts * sizeof(*tensors));
    esper_status st;

    if (tensors == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring of %zu tensors", side->n_parts);
    for (size_t i = 0; i < side->n_parts; i++) {
        tensors[i] = *esper_guard_tensor_at(ring->guard, side->tensors[i]);
        tensors[i].data = scanned_data(side, i, 0);
        ring->scan_tensors[(*n)++] = side->tensors[i];
    }
    st = esper_guard_add(ring->scanner, tensors, side->n_parts);
    esper_mem_free(tensors);
    return st;
}

/* The scanner's streams, by number of device: the ring's own. */
static esper_status name_scan_streams(esper_ring *ring)
{
    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->sides[i].number >= (int32_t)ring->n_scan_streams)
            ring->n_scan_streams = (size_t)ring->sides[i].number + 1;
    if (ring->n_scan_streams == 0)
        return ESPER_OK;
    ring->scan_streams = esper_mem_alloc(ring->n_scan_streams * sizeof(*ring->scan_streams));
    if (ring->scan_streams == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->sides[i].number >= 0)
            ring->scan_streams[ring->sides[i].number] = esper_stream_native(ring->sides[i].stream);
    return ESPER_OK;
}

static esper_status open_scanner(esper_ring *ring)
{
    size_t n = 0;

    ring->scan_tensors = esper_mem_alloc(ring->n_scan * sizeof(*ring->scan_tensors));
    ring->scan_data = esper_mem_alloc(ring->n_scan * sizeof(*ring->scan_data));
    if (ring->scan_tensors == NULL || ring->scan_data == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring of %zu tensors", ring->n_scan);
    ESPER_TRY(name_scan_streams(ring));
    ESPER_TRY(esper_guard_open(&ring->memory_options, &ring->scanner));
    for (size_t i = 0; i < ring->n_sides; i++)
        ESPER_TRY(watch_side(ring, &ring->sides[i], &n));
    if (ring->sides[ring->n_sides - 1].number < 0)
        ring->pool =
            esper_scan_engine_host_pool(esper_guard_engine(ring->scanner, ring->sides[ring->n_sides - 1].number));
    return ESPER_OK;
}

static esper_status open_parts(esper_ring *ring, const char *directory)
{
    ring->entries = esper_mem_alloc(ring->options.n_entries * sizeof(*ring->entries));
    if (ring->entries == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring of %u entries", ring->options.n_entries);
    ring->kernels = esper_scan_kernels_choose();
    if (ring->kernels == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "ring: this processor does not run the kernels that ESPER_KERNELS asks for");
    ESPER_TRY(esper_device_open("host", 0, &ring->host));
    ESPER_TRY(esper_ring_sides_open(ring));
    ESPER_TRY(open_scanner(ring));
    return directory != NULL ? esper_ring_disk_open(ring, directory) : ESPER_OK;
}

esper_status esper_ring_open(esper_guard *guard, const esper_ring_options *options, esper_ring **ring_out)
{
    esper_ring_options read;
    esper_ring *ring;
    esper_status st;

    if (guard == NULL || ring_out == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_open: %s is NULL", guard == NULL ? "the guard" : "ring_out");
    ESPER_TRY(read_options(options, &read));
    ring = esper_mem_alloc(sizeof(*ring));
    if (ring == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    ring->guard = guard;
    ring->options = read;
    ring->options.directory = NULL;
    ring->memory_options = *esper_guard_options_of(guard);
    ring->n_guard_tensors = esper_guard_count(guard);
    st = open_parts(ring, read.directory);
    if (st != ESPER_OK) {
        esper_ring_close(ring);
        return st;
    }
    *ring_out = ring;
    return ESPER_OK;
}

void esper_ring_close(esper_ring *ring)
{
    if (ring == NULL)
        return;
    (void)settle_pending(ring);
    if (ring->disk != NULL && newest_entry(ring, ESPER_RING_GOOD) != NULL) {
        esper_ring_disk_wait(ring);
        esper_ring_disk_offer(ring, newest_entry(ring, ESPER_RING_GOOD));
    }
    esper_ring_disk_close(ring);
    esper_guard_close(ring->scanner);
    esper_ring_sides_close(ring);
    for (uint32_t i = 0; ring->entries != NULL && i < ring->options.n_entries; i++)
        esper_mem_free(ring->entries[i].blob);
    esper_device_close(ring->host);
    esper_mem_free(ring->scan_streams);
    esper_mem_free(ring->scan_data);
    esper_mem_free(ring->scan_tensors);
    esper_mem_free(ring->entries);
    esper_mem_free(ring);
}

/* ---- taking ---- */

/* The entry stays as it is when there is no room. */
static esper_status make_blob_room(ring_entry *entry, size_t bytes)
{
    void *room;

    if (bytes <= entry->blob_room)
        return ESPER_OK;
    room = esper_mem_alloc(bytes);
    if (room == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring: a blob of %zu bytes", bytes);
    if (entry->blob_bytes != 0)
        memcpy(room, entry->blob, entry->blob_bytes);
    esper_mem_free(entry->blob);
    entry->blob = room;
    entry->blob_room = bytes;
    return ESPER_OK;
}

/* Queues the copies, and the scan of exactly what was copied. */
static esper_status copy_and_scan(esper_ring *ring, uint32_t entry)
{
    esper_guard_scan scan;
    size_t n = 0;

    assert(entry < ring->options.n_entries && ring->pending == NULL && ring->unverified == NULL);
    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];

        ESPER_TRY(esper_ring_side_after_writers(side));
        ESPER_TRY(side->ops->gather(side, &side->copies[entry]));
        if (!side->scan_live)
            ESPER_TRY(esper_ring_side_before_writers(side));
        ESPER_TRY(esper_ring_side_fetch_sum(side, RING_GATHERED)); /* so that reading the scan waits for both */
        for (size_t part = 0; part < side->n_parts; part++)
            ring->scan_data[n++] = scanned_data(side, part, entry);
    }
    assert(n == ring->n_scan);
    ESPER_TRY(esper_guard_replace(ring->scanner, ring->scan_data, ring->n_scan));
    esper_guard_scan_init(&scan);
    scan.streams = ring->scan_streams;
    scan.n_streams = ring->n_scan_streams;
    ESPER_TRY(esper_guard_launch(ring->scanner, &scan));
    ring->pending = &ring->entries[entry]; /* from here on there is a scan to read */
    for (size_t i = 0; i < ring->n_sides; i++) {
        if (ring->sides[i].scan_live)
            ESPER_TRY(esper_ring_side_before_writers(&ring->sides[i]));
        ESPER_TRY(esper_device_event_record(ring->sides[i].settled, ring->sides[i].stream));
    }
    return ESPER_OK;
}

static bool all_on_host(const esper_ring *ring)
{
    return ring->sides[0].number < 0; /* CUDA devices come first */
}

esper_status esper_ring_take(esper_ring *ring, uint64_t step, const void *blob, size_t blob_bytes)
{
    ring_entry *entry;
    esper_status st;

    if (ring == NULL || (blob == NULL && blob_bytes != 0))
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_take: %s is NULL", ring == NULL ? "the ring" : "the blob");
    ESPER_TRY(esper_ring_sides_check(ring));
    ESPER_TRY(settle(ring));
    if (ring->held)
        return ESPER_FAIL(ESPER_E_STATE, "ring: no snapshot while an anomaly is pending (esper_ring_hold is on)");
    if (ring->spoiled)
        return ESPER_FAIL(ESPER_E_STATE,
                          "ring: the last rollback left values of a damaged snapshot in the tensors: roll back "
                          "again or load them from elsewhere and say so with esper_ring_trust");
    ESPER_TRY(esper_ring_sides_follow(ring));
    entry = entry_to_take(ring);
    esper_ring_disk_leave(ring, entry);
    ESPER_TRY(make_blob_room(entry, blob_bytes));
    drop(entry); /* until the copy is queued */
    if (blob_bytes != 0)
        memcpy(entry->blob, blob, blob_bytes);
    entry->blob_bytes = blob_bytes;
    entry->blob_sum = ring->kernels->checksum(entry->blob, blob_bytes, 0);
    entry->step = step;
    entry->sequence = ++ring->sequence;
    st = copy_and_scan(ring, index_of(ring, entry));
    if (ring->pending == entry)
        entry->state = ESPER_RING_PENDING;
    if (st == ESPER_OK && all_on_host(ring))
        st = settle_pending(ring); /* it is done already */
    return st;
}

void esper_ring_hold(esper_ring *ring, int on)
{
    if (ring != NULL)
        ring->held = on != 0;
}

void esper_ring_trust(esper_ring *ring)
{
    if (ring == NULL)
        return;
    (void)settle_unverified(ring); /* what an earlier rollback left is not what is in the tensors now */
    ring->spoiled = false;
}

/* ---- looking ---- */

/* Reads the verdict if that needs no waiting. */
static esper_status settle_if_done(esper_ring *ring)
{
    bool done = true, reached;

    for (size_t i = 0; ring->pending != NULL && i < ring->n_sides; i++) {
        ESPER_TRY(esper_device_event_query(ring->sides[i].settled, &reached));
        done &= reached;
    }
    return done ? settle_pending(ring) : ESPER_OK;
}

esper_status esper_ring_status_get(esper_ring *ring, int wait, esper_ring_status *status_out)
{
    const ring_entry *newest, *good;

    if (ring == NULL || status_out == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_status_get: %s is NULL", ring == NULL ? "the ring" : "status_out");
    ESPER_TRY(wait ? settle(ring) : settle_if_done(ring));
    newest = newest_entry(ring, ESPER_RING_EMPTY);
    good = newest_entry(ring, ESPER_RING_GOOD);
    if (good != NULL && wait >= 2)
        esper_ring_disk_wait(ring);
    if (good != NULL)
        esper_ring_disk_offer(ring, good); /* the writer may have been busy when it became good */
    if (wait >= 2)
        esper_ring_disk_wait(ring);
    *status_out = (esper_ring_status){
        .newest = newest != NULL ? newest->state : ESPER_RING_EMPTY,
        .newest_step = newest != NULL ? newest->step : ESPER_GUARD_NONE,
        .good_step = good != NULL ? good->step : ESPER_GUARD_NONE,
        .refused_tensor =
            newest != NULL && newest->state == ESPER_RING_REFUSED ? newest->refused_tensor : ESPER_GUARD_NONE,
        .device_bytes = ring->device_bytes,
        .host_bytes = ring->host_bytes,
    };
    for (uint32_t i = 0; i < ring->options.n_entries; i++)
        status_out->n_good += ring->entries[i].state == ESPER_RING_GOOD;
    esper_ring_disk_status(ring, status_out);
    return ESPER_OK;
}

/* ---- rolling back ---- */

/* Queues the way from the entry's arenas to the tensors: behind all writers, and before their next work. */
static esper_status copy_back(esper_ring *ring, uint32_t entry, bool from_mirror)
{
    assert(entry < ring->options.n_entries);
    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];
        ring_copy *copy = &side->copies[entry];

        ESPER_TRY(esper_ring_side_after_writers(side));
        if (from_mirror && copy->mirrored)
            ESPER_TRY(side->ops->load(side, copy, copy->mirror.at));
        ESPER_TRY(side->ops->scatter(side, copy));
        ESPER_TRY(esper_ring_side_before_writers(side));
        ESPER_TRY(esper_ring_side_fetch_sum(side, RING_SCATTERED));
        ESPER_TRY(esper_device_event_record(side->settled, side->stream));
    }
    return ESPER_OK;
}

/* Puts one entry back. intact_out: its sums fit, as far as they are known. A damaged entry's values may have
 * reached the tensors: `spoiled` says so until an intact one has overwritten all of them. */
static esper_status put_back(esper_ring *ring, ring_entry *entry, bool wait, esper_ring_restored *restored,
                             bool *intact_out)
{
    uint32_t index = index_of(ring, entry);
    bool intact = ring->kernels->checksum(entry->blob, entry->blob_bytes, 0) == entry->blob_sum;

    assert(entry->state == ESPER_RING_GOOD);
    *intact_out = intact;
    if (!intact)
        return ESPER_OK;
    restored->from_host = 1;
    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->sides[i].resident)
            restored->from_host = 0;
    ring->spoiled = true;
    ESPER_TRY(copy_back(ring, index, false));
    if (wait || entry->doubted || all_on_host(ring))
        ESPER_TRY(sums_fit(ring, entry, &intact));
    else
        ring->unverified = entry;
    if (!intact && has_mirror(ring, index)) {
        restored->from_host = 1;
        ESPER_TRY(copy_back(ring, index, true));
        ESPER_TRY(sums_fit(ring, entry, &intact));
    }
    ring->spoiled = !intact;
    entry->doubted &= !intact;
    *intact_out = intact;
    return ESPER_OK;
}

static esper_status fail_no_entry(esper_ring *ring, uint32_t n_passed_over)
{
    char left_over[RING_TEXT_CHARS];

    esper_ring_disk_left_over(ring, left_over);
    if (ring->spoiled)
        return ESPER_FAIL(ESPER_E_DEVICE,
                          "ring: all snapshots (%u) were damaged, and the tensors hold values of one of them: "
                          "they are not to be trusted until a checkpoint is loaded%s",
                          n_passed_over, left_over);
    if (n_passed_over != 0)
        return ESPER_FAIL(ESPER_E_STATE, "ring: all snapshots (%u) were damaged; the tensors are as they were%s",
                          n_passed_over, left_over);
    return ESPER_FAIL(ESPER_E_STATE, "ring: there is no good snapshot to go back to: %s%s",
                      ring->sequence == 0 ? "none was taken" : "those taken were refused or found damaged", left_over);
}

/* The last resort. Waits, whatever the caller said: what was read has to be on the device before it is forgotten. */
static esper_status put_back_from_disk(esper_ring *ring, esper_ring_restored *restored, ring_entry **entry_out)
{
    ring_entry *entry = entry_to_take(ring);
    esper_status st = ring->disk == NULL ? ESPER_E_NOTFOUND : esper_ring_disk_load(ring, entry);
    bool intact;

    if (st == ESPER_E_NOTFOUND)
        return fail_no_entry(ring, restored->n_passed_over);
    if (st != ESPER_OK)
        return esper_fail_within(
            ring->spoiled ? ESPER_E_DEVICE : st, "ring: no snapshot in memory is good%s; that on disk: ",
            ring->spoiled ? ", and the tensors, which hold values of a damaged one, are not to be trusted" : "");
    ESPER_TRY(put_back(ring, entry, true, restored, &intact));
    restored->from_host = 2;
    if (!intact) {
        drop(entry);
        return fail_no_entry(ring, restored->n_passed_over + 1);
    }
    *entry_out = entry;
    return ESPER_OK;
}

esper_status esper_ring_rollback(esper_ring *ring, int wait, esper_ring_restored *restored_out)
{
    double start = esper_clock_seconds();
    esper_ring_restored restored = {0};
    ring_entry *entry;
    bool intact;

    if (ring == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_ring_rollback: the ring is NULL");
    ESPER_TRY(esper_ring_sides_check(ring));
    ESPER_TRY(wait ? settle(ring)
                   : settle_pending(ring)); /* without waiting, an earlier rollback's sums stay unknown */
    ESPER_TRY(esper_ring_sides_follow(ring));
    while ((entry = newest_entry(ring, ESPER_RING_GOOD)) != NULL) {
        ESPER_TRY(put_back(ring, entry, wait != 0, &restored, &intact));
        if (intact)
            break;
        drop(entry);
        restored.n_passed_over++;
    }
    if (entry == NULL)
        ESPER_TRY(put_back_from_disk(ring, &restored, &entry));
    restored.step = entry->step;
    restored.blob = entry->blob_bytes != 0 ? entry->blob : NULL;
    restored.blob_bytes = entry->blob_bytes;
    restored.seconds = wait ? esper_clock_seconds() - start : 0;
    if (restored_out != NULL)
        *restored_out = restored;
    return ESPER_OK;
}
