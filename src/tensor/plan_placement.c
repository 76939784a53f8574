/* Where a network's memory lies in its part of the arena: what is not needed at the same time may share a place. Largest
 * first, each at the lowest place that is free while it lives. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/plan_schedule.h"

static int by_size_then_time(const void *a, const void *b)
{
    const esper_extent *left = *(const esper_extent *const *)a, *right = *(const esper_extent *const *)b;

    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    if (left->begin != right->begin)
        return left->begin - right->begin;
    return left->order - right->order;
}

/* The lowest offset at which `wanted` meets none of the extents placed before it. */
static size_t lowest_free(esper_extent *const *placed, int n_placed, const esper_extent *wanted)
{
    size_t offset = 0;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int i = 0; i < n_placed; i++) {
            const esper_extent *other = placed[i];

            if (other->begin <= wanted->end && wanted->begin <= other->end && offset < other->offset + other->bytes &&
                other->offset < offset + wanted->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

static size_t align_bytes(size_t bytes)
{
    return (bytes + ESPER_ARENA_ALIGN - 1) / ESPER_ARENA_ALIGN * ESPER_ARENA_ALIGN;
}

/* All extents that are needed at some time, with their sizes. */
static int list_extents(esper_schedule *schedule, const esper_backend *backend, esper_extent **list)
{
    const esper_net *net = &schedule->net;
    int n = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        esper_extent *data = &schedule->data[t], *grad = &schedule->grad[t];

        if (net->tensors[t].role == ESPER_ROLE_PARAM || net->tensors[t].role == ESPER_ROLE_BUFFER)
            continue; /* of the slab */
        data->bytes = grad->bytes = align_bytes(esper_backend_bytes(backend, &net->tensors[t], schedule->max_samples));
        if (data->begin != ESPER_NEVER)
            list[n++] = data;
        if (grad->begin != ESPER_NEVER)
            list[n++] = grad;
    }
    for (int d = 0; d < 2; d++)
        for (int o = 0; o < net->n_ops; o++) {
            esper_extent *scratch = &schedule->scratch[d][o];

            scratch->bytes = align_bytes(scratch->bytes);
            if (scratch->begin != ESPER_NEVER)
                list[n++] = scratch;
        }
    return n;
}

size_t esper_extents_place(esper_extent **list, int n)
{
    size_t size = 0;

    for (int i = 0; i < n; i++)
        list[i]->order = i;
    qsort(list, (size_t)n, sizeof(*list), by_size_then_time);
    for (int i = 0; i < n; i++) {
        assert(list[i]->bytes > 0);
        list[i]->offset = lowest_free(list, i, list[i]);
        if (list[i]->offset + list[i]->bytes > size)
            size = list[i]->offset + list[i]->bytes;
    }
    return size;
}

esper_status esper_schedule_place(esper_schedule *schedule, const esper_backend *backend)
{
    int room = 2 * schedule->net.n_tensors + 2 * schedule->net.n_ops, n;
    esper_extent **list = esper_mem_alloc((size_t)(room + 1) * sizeof(*list));

    if (list == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d tensors", schedule->net.n_tensors);
    n = list_extents(schedule, backend, list);
    assert(n <= room);
    for (int i = 0; i < n; i++)
        schedule->unshared_bytes += list[i]->bytes;
    schedule->arena_bytes = esper_extents_place(list, n);
    for (int i = 0; i < n; i++)
        assert(list[i]->offset % ESPER_ARENA_ALIGN == 0);
    esper_mem_free(list);
    return ESPER_OK;
}
