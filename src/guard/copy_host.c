/* Copies between tensors and snapshot arenas in host memory, summed on the way.
 *
 * The arena is cut into windows; a window is one item of work, whichever tensors lie in it. Sums of windows may be
 * added in any order, so nothing is kept for each of them. */
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "guard/engine.h"
#include "guard/scan_kernels.h"

enum {
    WINDOW = 1 << 20,      /* bytes; a multiple of ALIGN */
    ALIGN = 256,           /* of parts in an arena, and of its end */
    PAST_CACHE = 16 << 20, /* an arena of this size or more is copied around the caches */
};

typedef struct copy_job {
    const esper_scan_kernels *kernels;
    const esper_copy_part    *parts;
    size_t                    n_parts;
    unsigned char            *arena;
    uint64_t                  bytes; /* of the arena */
    bool                      gather;
    atomic_uint_fast64_t      sum;
} copy_job;

static uint64_t arena_bytes(const esper_copy_part *parts, size_t n_parts)
{
    uint64_t end = n_parts > 0 ? parts[n_parts - 1].offset + parts[n_parts - 1].bytes : 0;

    return (end + ALIGN - 1) / ALIGN * ALIGN;
}

/* The share of zero words, from one byte of the arena to another (multiples of 8). */
static uint64_t sum_padding(uint64_t from, uint64_t to)
{
    uint64_t sum = 0;

    for (uint64_t word = from / 8; word < to / 8; word++) {
        uint64_t t = word * ESPER_CHECKSUM_STEP;

        sum += (t & 0xffffffffu) * (t >> 32) + t;
    }
    return sum;
}

/* The first part that ends behind byte `at`. */
static size_t find_part(const copy_job *job, uint64_t at)
{
    size_t low = 0, high = job->n_parts;

    assert(job->n_parts > 0);
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (job->parts[middle].offset + job->parts[middle].bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Copies bytes [from, to) of the arena, all within one part. */
static uint64_t copy_range(const copy_job *job, const esper_copy_part *part, uint64_t from, uint64_t to)
{
    unsigned char *data = (unsigned char *)part->data + (from - part->offset), *arena = job->arena + from;
    bool past_cache = job->bytes >= PAST_CACHE;

    assert(from <= to && to <= part->offset + part->bytes && from >= part->offset);
    if (job->gather)
        return job->kernels->copy(arena, data, to - from, from / 8, past_cache);
    return job->kernels->copy(data, arena, to - from, from / 8, past_cache);
}

static void copy_window(void *context, int item, int worker)
{
    copy_job *job = context;
    uint64_t at = (uint64_t)item * WINDOW, end = at + WINDOW < job->bytes ? at + WINDOW : job->bytes, sum = 0;

    (void)worker;
    for (size_t p = find_part(job, at); p < job->n_parts && job->parts[p].offset < end; p++) {
        const esper_copy_part *part = &job->parts[p];
        uint64_t from = part->offset > at ? part->offset : at;
        uint64_t to = part->offset + part->bytes < end ? part->offset + part->bytes : end;

        if (from >= to)
            continue;
        sum += sum_padding(at, from) + copy_range(job, part, from, to);
        at = (to + 7) / 8 * 8;
    }
    atomic_fetch_add_explicit(&job->sum, sum + sum_padding(at, end), memory_order_relaxed);
}

static uint64_t run(struct esper_pool *pool, copy_job *job)
{
    const esper_scan_kernels *kernels = esper_scan_kernels_choose();
    int n_windows;

    job->bytes = arena_bytes(job->parts, job->n_parts);
    n_windows = (int)((job->bytes + WINDOW - 1) / WINDOW);
    job->kernels = kernels != NULL ? kernels : &esper_scan_kernels_portable; /* the sums are the same */
    if (pool != NULL) {
        esper_pool_run(pool, n_windows, copy_window, job);
    } else {
        for (int item = 0; item < n_windows; item++)
            copy_window(job, item, 0);
    }
    return atomic_load(&job->sum);
}

uint64_t esper_copy_gather(struct esper_pool *pool, const esper_copy_part *parts, size_t n_parts, void *arena)
{
    copy_job job = {.parts = parts, .n_parts = n_parts, .arena = arena, .gather = true};

    return run(pool, &job);
}

uint64_t esper_copy_scatter(struct esper_pool *pool, const esper_copy_part *parts, size_t n_parts, const void *arena)
{
    copy_job job = {.parts = parts, .n_parts = n_parts, .arena = (unsigned char *)(uintptr_t)arena};

    return run(pool, &job);
}
