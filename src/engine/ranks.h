/* Internal. A network among the ranks of a job: what each of them has computed of a batch is brought together before it is used.
 *
 * Every rank holds the whole state and takes its part of every batch. Gradients are summed (each rank has divided by the
 * whole batch), norm buffers averaged, results added; from then on all ranks do the same with the same numbers, so weights,
 * verdicts, decisions and snapshots are equal, bit for bit, without being sent. What only one rank can see (a bit that
 * flipped there, somebody's wish to stop) is OR-ed before anybody acts on it. */
#ifndef ESPER_ENGINE_RANKS_H
#define ESPER_ENGINE_RANKS_H

#include "dist/comm.h"
#include "tensor/slab.h"

typedef struct esper_ranks {
    esper_comm *comm; /* NULL: a job of one */
    int         rank, size;
    double     *bucket; /* what is summed in a step beside the gradients, in one piece */
    size_t      room;   /* numbers in it */
    float      *stage;  /* gradients and norm buffers of a slab that is not in the host's memory, while they are summed */
    size_t      stage_room;
    bool        spoiled; /* this rank's own part of the last exchange was not finite */
    int         n_spoiled; /* ranks of which that is true */
} esper_ranks;

/* A batch's results. */
typedef struct esper_batch_sums {
    double loss, correct;
} esper_batch_sums;

/* comm is borrowed; NULL or of one rank: everything below is done at once and leaves things as they are. */
void esper_ranks_init(esper_ranks *ranks, esper_comm *comm);
void esper_ranks_fini(esper_ranks *ranks);

/* Room to exchange the norm buffers of such a slab; once is enough for all slabs of one size. */
esper_status esper_ranks_reserve(esper_ranks *ranks, const esper_slab *slab);

static inline bool esper_ranks_are_many(const esper_ranks *ranks)
{
    return ranks->size > 1;
}

/* Brings a batch's gradients and norm buffers together, of the regions with bits 1 << region, and its results. `share` is this
 * rank's part of the batch. A message for each region, and one for all the rest. Of a device's memory they are taken to the host's
 * and back: all that was queued on the stream is waited for, and what comes back is queued on it. */
esper_status esper_ranks_exchange(esper_ranks *ranks, const esper_slab *slab, esper_backend_stream *stream,
                                  uint64_t regions, double share, esper_batch_sums *sums);

esper_status esper_ranks_sum(const esper_ranks *ranks, double *values, size_t count);
esper_status esper_ranks_sum_f32(const esper_ranks *ranks, float *values, size_t count);

/* Any rank's bits are everybody's. */
esper_status esper_ranks_any(const esper_ranks *ranks, uint64_t *bits);

/* Whether all ranks have this value. */
esper_status esper_ranks_are_alike(const esper_ranks *ranks, uint64_t value, bool *alike_out);

/* All ranks' records of `bytes` in their order, to `all` (of size * bytes). */
esper_status esper_ranks_gather(const esper_ranks *ranks, const void *mine, size_t bytes, void *all);

/* What rank 0 has becomes everybody's. */
esper_status esper_ranks_share(const esper_ranks *ranks, void *bytes, size_t count);

/* After something that one rank alone does: a failure of any ends it on all of them. */
esper_status esper_ranks_settle(const esper_ranks *ranks, esper_status status);

#endif
