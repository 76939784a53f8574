/* What ranks bring together. */
#include "train/ranks.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* Before the gradients: the batch's results, and how many ranks had something that is not finite. */
enum { HEAD_LOSS, HEAD_CORRECT, HEAD_SPOILED, N_HEAD = 16 };

esper_status esper_ranks_init(esper_ranks *ranks, esper_comm *comm, const esper_slab *slab)
{
    *ranks = (esper_ranks){.comm = comm, .size = 1};
    if (comm == NULL || esper_comm_size(comm) == 1)
        return ESPER_OK;
    ranks->rank = esper_comm_rank(comm);
    ranks->size = esper_comm_size(comm);
    if (slab->family[ESPER_FAMILY_GRAD] == NULL)
        return ESPER_OK;
    ranks->room = N_HEAD + (size_t)esper_slab_count(slab, ESPER_FAMILY_GRAD) +
                  (size_t)esper_slab_count(slab, ESPER_FAMILY_BUFFER);
    ranks->bucket = esper_mem_alloc(ranks->room * sizeof(*ranks->bucket));
    return ranks->bucket != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "%zu floats to exchange", ranks->room);
}

void esper_ranks_fini(esper_ranks *ranks)
{
    esper_mem_free(ranks->bucket);
    *ranks = (esper_ranks){.size = 1};
}

/* ------------------------------------------------------------------------------------------------ a step */

static bool is_finite_range(const float *values, size_t n)
{
    uint32_t spoiled = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        spoiled |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return spoiled == 0;
}

/* Where a region's part of a family lies. */
static float *range_of(const esper_slab *slab, esper_family family, int region, size_t *n_out)
{
    const int64_t *begin = family == ESPER_FAMILY_BUFFER ? slab->buffer_begin : slab->param_begin;

    *n_out = (size_t)(begin[region + 1] - begin[region]);
    return slab->family[family] + begin[region];
}

/* Returns how many floats the bucket holds. */
static size_t pack(esper_ranks *ranks, const esper_slab *slab, uint64_t regions, double share)
{
    float *at = ranks->bucket + N_HEAD;
    size_t n;

    for (int r = 0; r < slab->n_regions; r++) {
        const float *from;

        if ((regions >> r & 1u) == 0)
            continue;
        from = range_of(slab, ESPER_FAMILY_GRAD, r, &n);
        memcpy(at, from, n * sizeof(*at));
        at += n;
        from = range_of(slab, ESPER_FAMILY_BUFFER, r, &n);
        for (size_t i = 0; i < n; i++)
            at[i] = from[i] * (float)share;
        at += n;
    }
    return (size_t)(at - ranks->bucket);
}

static void unpack(const esper_ranks *ranks, const esper_slab *slab, uint64_t regions)
{
    static const esper_family families[] = {ESPER_FAMILY_GRAD, ESPER_FAMILY_BUFFER};
    const float *at = ranks->bucket + N_HEAD;

    for (int r = 0; r < slab->n_regions; r++)
        for (int f = 0; f < 2 && (regions >> r & 1u) != 0; f++) {
            size_t n;
            float *to = range_of(slab, families[f], r, &n);

            memcpy(to, at, n * sizeof(*to));
            at += n;
        }
}

esper_status esper_ranks_exchange(esper_ranks *ranks, const esper_slab *slab, uint64_t regions, double share,
                                  esper_batch_sums *sums)
{
    size_t n;

    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    memset(ranks->bucket, 0, N_HEAD * sizeof(*ranks->bucket));
    n = pack(ranks, slab, regions, share);
    ranks->spoiled = !is_finite_range(ranks->bucket + N_HEAD, n - N_HEAD);
    ranks->bucket[HEAD_LOSS] = (float)sums->loss;
    ranks->bucket[HEAD_CORRECT] = (float)sums->correct;
    ranks->bucket[HEAD_SPOILED] = ranks->spoiled ? 1.0f : 0.0f;
    ESPER_TRY(esper_comm_sum_f32(ranks->comm, ranks->bucket, n));
    unpack(ranks, slab, regions);
    sums->loss = (double)ranks->bucket[HEAD_LOSS];
    sums->correct = (double)ranks->bucket[HEAD_CORRECT];
    ranks->n_spoiled = (int)ranks->bucket[HEAD_SPOILED];
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
