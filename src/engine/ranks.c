/* What ranks bring together. */
#include "engine/ranks.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* What stands before the norm buffers in the bucket: the batch's results, and whether this rank's part of it was finite. */
enum { HEAD_LOSS, HEAD_CORRECT, HEAD_SPOILED, N_HEAD };

void esper_ranks_init(esper_ranks *ranks, esper_comm *comm)
{
    *ranks = (esper_ranks){.comm = comm, .size = 1};
    if (comm == NULL || esper_comm_size(comm) == 1)
        return;
    ranks->rank = esper_comm_rank(comm);
    ranks->size = esper_comm_size(comm);
}

static bool is_on_device(const esper_slab *slab)
{
    return esper_backend_device(slab->backend) != ESPER_GUARD_HOST;
}

esper_status esper_ranks_reserve(esper_ranks *ranks, const esper_slab *slab)
{
    size_t n_buffers = (size_t)esper_slab_count(slab, ESPER_FAMILY_BUFFER), room = N_HEAD + n_buffers;
    size_t stage = n_buffers + (size_t)esper_slab_count(slab, ESPER_FAMILY_GRAD);
    void *grown;

    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    if (room > ranks->room) {
        grown = esper_mem_grow(ranks->bucket, room * sizeof(*ranks->bucket));
        if (grown == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%zu numbers to exchange", room);
        ranks->bucket = grown;
        ranks->room = room;
    }
    if (is_on_device(slab) && stage > ranks->stage_room) {
        grown = esper_mem_grow(ranks->stage, stage * sizeof(*ranks->stage));
        if (grown == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%zu numbers to exchange", stage);
        ranks->stage = grown;
        ranks->stage_room = stage;
    }
    return ESPER_OK;
}

void esper_ranks_fini(esper_ranks *ranks)
{
    esper_mem_free(ranks->bucket);
    esper_mem_free(ranks->stage);
    *ranks = (esper_ranks){.size = 1};
}

/* ------------------------------------------------------------------------------------------------ a step */

enum { STRIDE = 32 };

/* Marks what is not finite among STRIDE values: a fixed number, which compilers turn into vectors. */
static inline void mark_spoiled(const float *values, uint32_t marks[STRIDE])
{
    uint32_t bits[STRIDE];

    memcpy(bits, values, sizeof(bits));
    for (int j = 0; j < STRIDE; j++)
        marks[j] |= (uint32_t) - ((bits[j] & 0x7f800000u) == 0x7f800000u);
}

static bool is_finite_range(const float *values, size_t n)
{
    uint32_t marks[STRIDE] = {0}, any = 0;
    float rest[STRIDE] = {0};
    size_t n_whole = n / STRIDE * STRIDE;

    for (size_t i = 0; i < n_whole; i += STRIDE)
        mark_spoiled(values + i, marks);
    memcpy(rest, values + n_whole, (n - n_whole) * sizeof(*rest));
    mark_spoiled(rest, marks);
    for (int j = 0; j < STRIDE; j++)
        any |= marks[j];
    return any == 0;
}

/* A slab's gradients and norm buffers where the host can sum them: where they lie, or staged. */
typedef struct summands {
    const esper_slab *slab;
    float            *grads, *buffers;
} summands;

/* A region's part of a family. */
static float *range_of(const summands *of, esper_family family, int region, size_t *n_out)
{
    const int64_t *begin = family == ESPER_FAMILY_BUFFER ? of->slab->buffer_begin : of->slab->param_begin;

    assert(region >= 0 && region < of->slab->n_regions);
    *n_out = (size_t)(begin[region + 1] - begin[region]);
    return *n_out > 0 ? (family == ESPER_FAMILY_BUFFER ? of->buffers : of->grads) + begin[region] : NULL;
}

static bool is_used(uint64_t regions, int region)
{
    return (regions >> region & 1u) != 0;
}

/* A message for each region. */
static esper_status sum_gradients(esper_ranks *ranks, const summands *of, uint64_t regions)
{
    for (int r = 0; r < of->slab->n_regions; r++) {
        size_t n;
        float *grads = range_of(of, ESPER_FAMILY_GRAD, r, &n);

        if (!is_used(regions, r))
            continue;
        ranks->spoiled = ranks->spoiled || !is_finite_range(grads, n);
        ESPER_TRY(esper_comm_sum_f32(ranks->comm, grads, n));
    }
    return ESPER_OK;
}

/* The norm buffers into the bucket, or, summed, back. Returns how many numbers there are with the head. In double, so that
 * buffers that are equal on all ranks stay what they are. */
static size_t move_buffers(esper_ranks *ranks, const summands *of, uint64_t regions, double share, bool back)
{
    size_t at = N_HEAD;

    for (int r = 0; r < of->slab->n_regions; r++) {
        size_t n;
        float *buffers = range_of(of, ESPER_FAMILY_BUFFER, r, &n);

        if (!is_used(regions, r))
            continue;
        if (!back)
            ranks->spoiled = ranks->spoiled || !is_finite_range(buffers, n);
        assert(at + n <= ranks->room);
        for (size_t i = 0; i < n; i++)
            if (back)
                buffers[i] = (float)ranks->bucket[at + i];
            else
                ranks->bucket[at + i] = (double)buffers[i] * share;
        at += n;
    }
    return at;
}

/* Both families, from the backend's memory to the stage, or back. */
static esper_status move_staged(const summands *of, esper_backend_stream *stream, bool back)
{
    static const esper_family families[] = {ESPER_FAMILY_GRAD, ESPER_FAMILY_BUFFER};
    const esper_slab *slab = of->slab;

    for (int i = 0; i < 2; i++) {
        float *staged = families[i] == ESPER_FAMILY_GRAD ? of->grads : of->buffers;
        size_t bytes = (size_t)esper_slab_count(slab, families[i]) * sizeof(float);

        if (back)
            ESPER_TRY(esper_backend_copy_in(slab->backend, stream, slab->family[families[i]], staged, bytes));
        else
            ESPER_TRY(esper_backend_copy_out(slab->backend, stream, staged, slab->family[families[i]], bytes));
    }
    return back ? ESPER_OK : esper_backend_wait(slab->backend, stream);
}

esper_status esper_ranks_exchange(esper_ranks *ranks, const esper_slab *slab, esper_backend_stream *stream,
                                  uint64_t regions, double share, esper_batch_sums *sums)
{
    bool staged = is_on_device(slab);
    double *bucket = ranks->bucket;
    summands of = {.slab = slab};
    size_t n;

    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    if (staged) {
        of.grads = ranks->stage;
        of.buffers = ranks->stage + esper_slab_count(slab, ESPER_FAMILY_GRAD);
        ESPER_TRY(move_staged(&of, stream, false));
    } else {
        of.grads = esper_backend_address(slab->backend, slab->family[ESPER_FAMILY_GRAD]);
        of.buffers = esper_backend_address(slab->backend, slab->family[ESPER_FAMILY_BUFFER]);
    }
    ranks->spoiled = false;
    ESPER_TRY(sum_gradients(ranks, &of, regions));
    n = move_buffers(ranks, &of, regions, share, false);
    bucket[HEAD_LOSS] = sums->loss;
    bucket[HEAD_CORRECT] = sums->correct;
    bucket[HEAD_SPOILED] = ranks->spoiled ? 1.0 : 0.0;
    ESPER_TRY(esper_comm_sum_f64(ranks->comm, bucket, n));
    move_buffers(ranks, &of, regions, 0.0, true);
    if (staged)
        ESPER_TRY(move_staged(&of, stream, true));
    sums->loss = bucket[HEAD_LOSS];
    sums->correct = bucket[HEAD_CORRECT];
    ranks->n_spoiled = (int)bucket[HEAD_SPOILED];
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the rest */

esper_status esper_ranks_sum(const esper_ranks *ranks, double *values, size_t count)
{
    return esper_ranks_are_many(ranks) ? esper_comm_sum_f64(ranks->comm, values, count) : ESPER_OK;
}

esper_status esper_ranks_sum_f32(const esper_ranks *ranks, float *values, size_t count)
{
    return esper_ranks_are_many(ranks) ? esper_comm_sum_f32(ranks->comm, values, count) : ESPER_OK;
}

esper_status esper_ranks_any(const esper_ranks *ranks, uint64_t *bits)
{
    return esper_ranks_are_many(ranks) ? esper_comm_or_u64(ranks->comm, bits, 1) : ESPER_OK;
}

/* A bit that is set on both sides stands for two ranks that differ in it. */
esper_status esper_ranks_are_alike(const esper_ranks *ranks, uint64_t value, bool *alike_out)
{
    uint64_t pair[2] = {value, ~value};

    if (esper_ranks_are_many(ranks))
        ESPER_TRY(esper_comm_or_u64(ranks->comm, pair, 2));
    *alike_out = (pair[0] & pair[1]) == 0;
    return ESPER_OK;
}

esper_status esper_ranks_gather(const esper_ranks *ranks, const void *mine, size_t bytes, void *all)
{
    if (esper_ranks_are_many(ranks))
        return esper_comm_gather(ranks->comm, mine, bytes, all);
    memcpy(all, mine, bytes);
    return ESPER_OK;
}

esper_status esper_ranks_share(const esper_ranks *ranks, void *bytes, size_t count)
{
    return esper_ranks_are_many(ranks) ? esper_comm_broadcast(ranks->comm, bytes, count, 0) : ESPER_OK;
}

esper_status esper_ranks_settle(const esper_ranks *ranks, esper_status status)
{
    char message[1024];
    uint64_t failed = status != ESPER_OK;

    if (!esper_ranks_are_many(ranks) || status == ESPER_E_PEER)
        return status;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    ESPER_TRY(esper_ranks_any(ranks, &failed));
    if (status != ESPER_OK)
        return ESPER_FAIL(status, "%s", message);
    return failed ? ESPER_FAIL(ESPER_E_PEER, "another rank had to stop; it says why") : ESPER_OK;
}
