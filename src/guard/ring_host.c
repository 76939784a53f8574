/* The side of tensors in host memory: copies are done in the call, by all threads of the pool, and summed on the way.
 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/ring.h"

static esper_status host_open(ring_side *side)
{
    side->sums = esper_mem_alloc(RING_N_SUMS * sizeof(*side->sums));
    return side->sums != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "ring");
}

static void host_close(ring_side *side)
{
    esper_mem_free(side->sums);
}

static esper_status host_gather(ring_side *side, ring_copy *copy)
{
    assert(copy->arena.bytes >= side->arena_bytes);
    side->sums[RING_GATHERED] = esper_copy_gather(side->ring->pool, side->parts, side->n_parts, copy->arena.at);
    return ESPER_OK;
}

static esper_status host_scatter(ring_side *side, const ring_copy *copy)
{
    side->sums[RING_SCATTERED] = esper_copy_scatter(side->ring->pool, side->parts, side->n_parts, copy->arena.at);
    return ESPER_OK;
}

static esper_status host_load(ring_side *side, ring_copy *copy, const void *host_arena)
{
    memcpy(copy->arena.at, host_arena, side->arena_bytes);
    return ESPER_OK;
}

/* Addresses are read from the parts at every copy, sums are there when it is done, and streams have nothing to do with it. */
const ring_side_ops esper_ring_side_host = {
    .kind = "host",
    .open = host_open,
    .close = host_close,
    .gather = host_gather,
    .scatter = host_scatter,
    .load = host_load,
};
