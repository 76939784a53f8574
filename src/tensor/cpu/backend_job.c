/* Cutting jobs and running their items. */
#include "tensor/cpu/backend_job.h"

#include <assert.h>

#include "tensor/cpu/block.h"
#include "tensor/lower.h"

/* Where work is shared, at most so many samples (or units) an item, so that no thread waits long for another. */
enum { MOST_RESULTS = 16 };

/* Launches of a chain work on so many bytes of a tensor at a time: a few tensors of it fit the second cache. */
enum { CHAIN_BYTES = 1 << 15 };

const esper_op_kernels *esper_job_table(const esper_kernel_set *set, const esper_launch *launch)
{
    const esper_op_kernels *const *family = launch->variant == ESPER_BLOCKED ? set->blocks : set->op;

    assert(launch->variant == ESPER_BLOCKED || launch->kind < ESPER_N_OPS);
    assert(family != NULL && family[launch->kind] != NULL);
    return family[launch->kind];
}

const esper_op_kernels *esper_job_kernels(const esper_kernel_set *set, const esper_launch *launch)
{
    return esper_kernels_of(esper_job_table(set, launch), launch->lanes);
}

static int count_results(const esper_phase *phase, const esper_lane *lane)
{
    int n = phase->units != NULL ? phase->units(lane) : lane->pass->n_samples;

    assert(n >= 0);
    return n;
}

int esper_job_cut(esper_job *job, int n_wanted)
{
    int64_t longest = 0;

    for (int l = 0; l < job->n_lanes; l++) {
        int n = count_results(job->phase[0], &job->lanes[0][l]);

        longest = n > longest ? n : longest;
    }
    if (longest == 0)
        return 0;
    job->block = (int)((longest * job->n_lanes + n_wanted - 1) / n_wanted);
    if (n_wanted > 1 && job->block > MOST_RESULTS)
        job->block = MOST_RESULTS;
    job->items_per_lane = ((int)longest + job->block - 1) / job->block;
    return job->n_lanes * job->items_per_lane;
}

/* How many results are taken at a time: all of a range, or the planes that a chain finds in the cache. */
static int step_of(const esper_job *job, int l, int n)
{
    const esper_view *y = &job->lanes[0][l].out[0];
    int64_t bytes;

    if (job->n_phases == 1) /* any work, flat ranges too: there y may be nothing at all */
        return n;
    bytes = y->count / y->dim[0] * ESPER_BLOCK_SAMPLES * (int64_t)sizeof(float);
    return bytes < CHAIN_BYTES ? (int)(CHAIN_BYTES / bytes) : 1;
}

/* Results begin .. end-1 of lane l. */
static void run_range(const esper_job *job, int l, int begin, int end)
{
    int step = step_of(job, l, end - begin);

    for (int at = begin; at < end; at += step)
        for (int p = 0; p < job->n_phases; p++)
            job->phase[p]->run(&job->lanes[p][l], at, at + step < end ? at + step : end);
}

void esper_job_run_items(const esper_job *job, int begin, int end)
{
    for (int item = begin, next; item < end; item = next) { /* those of a lane in one go */
        int l = item / job->items_per_lane, first = item - l * job->items_per_lane;
        int n = count_results(job->phase[0], &job->lanes[0][l]), last;

        next = (l + 1) * job->items_per_lane < end ? (l + 1) * job->items_per_lane : end;
        last = (next - l * job->items_per_lane) * job->block;
        run_range(job, l, first * job->block, last < n ? last : n);
    }
}
