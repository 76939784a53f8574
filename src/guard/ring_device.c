/* The side of tensors on a CUDA device. Entries lie in the device's memory (one kernel copies all tensors and sums
 * them on the way) or, where they do not fit, in pinned host memory (plain copies, which the copy engines do at
 * the speed of the link, and a sum of the live tensors). Everything is queued on side->stream; nothing here waits,
 * but for a change of addresses. */
#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/engine_cuda.h"
#include "guard/ring.h"

typedef struct cuda_side {
    esper_cuda_copy *table;       /* the parts, in device memory */
    uint64_t        *device_sums; /* (RING_N_SUMS) */
} cuda_side;

static esper_status cuda_open(ring_side *side)
{
    cuda_side *cuda = esper_mem_alloc(sizeof(*cuda));
    void *sums, *device_sums;

    if (cuda == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    side->private_data = cuda;
    ESPER_TRY(esper_device_alloc(side->device, RING_N_SUMS * sizeof(uint64_t), ESPER_DEVICE_MEMORY_PINNED, &sums));
    side->sums = sums;
    ESPER_TRY(
        esper_device_alloc(side->device, RING_N_SUMS * sizeof(uint64_t), ESPER_DEVICE_MEMORY_NORMAL, &device_sums));
    cuda->device_sums = device_sums;
    return esper_cuda_copy_open(side->device, side->parts, side->n_parts, &cuda->table);
}

static void cuda_close(ring_side *side)
{
    cuda_side *cuda = side->private_data;

    if (cuda == NULL)
        return;
    esper_cuda_copy_close(cuda->table);
    esper_device_release(side->device, cuda->device_sums);
    esper_device_release(side->device, side->sums);
    esper_mem_free(cuda);
}

/* The old table may still be read by what is queued; moving tensors is rare enough to wait for that. */
static esper_status cuda_rebind(ring_side *side)
{
    cuda_side *cuda = side->private_data;
    esper_cuda_copy *table;

    ESPER_TRY(esper_stream_sync(side->stream));
    ESPER_TRY(esper_cuda_copy_open(side->device, side->parts, side->n_parts, &table));
    esper_cuda_copy_close(cuda->table);
    cuda->table = table;
    return ESPER_OK;
}

static esper_status clear_sum(ring_side *side, int which, uint64_t **sum_out)
{
    cuda_side *cuda = side->private_data;

    assert(which >= 0 && which < RING_N_SUMS);
    *sum_out = &cuda->device_sums[which];
    return esper_stream_set(side->stream, *sum_out, 0, sizeof(**sum_out));
}

/* Plain copies between tensors and an arena in host memory. Neighbours in both go together. */
static esper_status copy_parts(ring_side *side, char *arena, bool to_arena)
{
    assert(!side->resident && arena != NULL);
    for (size_t i = 0, next; i < side->n_parts; i = next) {
        const esper_copy_part *part = &side->parts[i];
        uint64_t bytes = part->bytes;

        for (next = i + 1; next < side->n_parts && side->parts[next].offset == part->offset + bytes &&
                           (char *)side->parts[next].data == (char *)part->data + bytes;
             next++)
            bytes += side->parts[next].bytes;
        if (to_arena)
            ESPER_TRY(esper_stream_copy(side->stream, arena + part->offset, part->data, bytes));
        else
            ESPER_TRY(esper_stream_copy(side->stream, part->data, arena + part->offset, bytes));
    }
    return ESPER_OK;
}

static esper_status cuda_gather(ring_side *side, ring_copy *copy)
{
    cuda_side *cuda = side->private_data;
    void *stream = esper_stream_native(side->stream);
    uint64_t *sum;

    copy->mirrored = false; /* one still on its way may find anything: the next one follows it on the same stream */
    ESPER_TRY(clear_sum(side, RING_GATHERED, &sum));
    if (side->resident)
        return esper_cuda_copy_gather(cuda->table, copy->arena.at, sum, stream);
    ESPER_TRY(esper_cuda_copy_checksum(cuda->table, sum, stream));
    return copy_parts(side, copy->arena.at, true);
}

static esper_status cuda_scatter(ring_side *side, const ring_copy *copy)
{
    cuda_side *cuda = side->private_data;
    void *stream = esper_stream_native(side->stream);
    uint64_t *sum;

    ESPER_TRY(clear_sum(side, RING_SCATTERED, &sum));
    if (side->resident)
        return esper_cuda_copy_scatter(cuda->table, copy->arena.at, sum, stream);
    ESPER_TRY(copy_parts(side, copy->arena.at, false));
    return esper_cuda_copy_checksum(cuda->table, sum, stream);
}

static esper_status cuda_load(ring_side *side, ring_copy *copy, const void *host_arena)
{
    if (copy->mirrored)
        ESPER_TRY(esper_device_event_wait(copy->mirror_done, side->stream));
    return esper_stream_copy(side->stream, copy->arena.at, host_arena, side->arena_bytes);
}

static esper_status cuda_fetch_sum(ring_side *side, int which)
{
    cuda_side *cuda = side->private_data;

    return esper_stream_copy(side->stream, &side->sums[which], &cuda->device_sums[which], sizeof(uint64_t));
}

static esper_status cuda_check_writers(ring_side *side)
{
    for (size_t i = 0; i < side->n_writers; i++) {
        esper_status st = esper_cuda_check_live(side->device, esper_stream_native(side->writers[i]));

        if (st != ESPER_OK)
            return esper_fail_within(st, "ring: ");
    }
    return ESPER_OK;
}

const ring_side_ops esper_ring_side_cuda = {
    .kind = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .rebind = cuda_rebind,
    .gather = cuda_gather,
    .scatter = cuda_scatter,
    .load = cuda_load,
    .fetch_sum = cuda_fetch_sum,
    .check_writers = cuda_check_writers,
};
