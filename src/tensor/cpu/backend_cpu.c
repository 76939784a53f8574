/* The CPU backend: the kernels built for this processor, over lanes and ranges of samples or units, on the pool.
 *
 * A work item is (lane, range). Kernels promise that a range may be cut anywhere without changing a bit, so how finely
 * work is cut is a matter of balance alone, and results depend neither on the number of threads nor on the number of
 * lanes. */
#include <stdio.h>

#include "base/status.h"
#include "tensor/backends.h"
#include "tensor/lower.h"

/* At most 16 samples (or units) an item, and enough items that no thread waits long for another. */
enum { BLOCK = 16, ITEMS_PER_THREAD = 4 };

/* Smaller batches would leave most lanes of a block empty. */
enum { LEAST_SAMPLES = 4 };

/* Launches of a chain work on so many bytes of a tensor at a time: a few tensors of it fit the second cache. */
enum { CHAIN_BYTES = 1 << 15, MOST_CHAINED = 16 };

/* What a job does for each lane: the phase of one launch, or of several in turn. */
typedef struct phase_job {
    const esper_op_kernels *op[MOST_CHAINED];
    const esper_lane       *lanes[MOST_CHAINED];
    const esper_tune       *tune;
    bool                    backward;
    int                     phase; /* its number */
    int                     n_phases;
    int                     block;          /* results of an item */
    int                     items_per_lane; /* of the longest lane; shorter ones leave their last items empty */
} phase_job;

static esper_status open_cpu(esper_pool *pool, esper_backend **be_out)
{
    const esper_kernel_set *kernels = esper_kernels_choose();
    esper_tune_table table;
    char names[64];

    if (pool == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "backend cpu needs a thread pool");
    if (kernels == NULL) {
        esper_kernels_names(names, sizeof(names));
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "ESPER_KERNELS names no kernel set this processor can run: use %s, or unset it", names);
    }
    ESPER_TRY(esper_tune_load(&table));
    ESPER_TRY(esper_ram_backend_open(&esper_backend_cpu, pool, kernels, be_out));
    esper_backend_cpu_tune(*be_out, esper_tune_of(&table, esper_tune_set(kernels->name)));
    return ESPER_OK;
}

void esper_backend_cpu_tune(esper_backend *be, esper_tune tune)
{
    esper_ram_backend *host = (esper_ram_backend *)be;

    host->tune = tune;
    snprintf(host->identity, sizeof(host->identity), "%s/%s/t%08x", be->ops->name, host->kernels->name, tune.hash);
}

/* What the p-th launch of a job does for lane l. */
static const esper_phase *phase_of(const phase_job *job, int p, int l)
{
    return esper_tune_phase(job->tune, job->op[p], job->backward, job->phase, &job->lanes[p][l]);
}

static int count_results(const phase_job *job, int l)
{
    const esper_phase *phase = phase_of(job, 0, l);
    const esper_lane *lane = &job->lanes[0][l];

    return phase->units != NULL ? phase->units(lane) : lane->pass->n_samples;
}

/* How many results are taken at a time: all of an item, or the planes that a chain finds in the cache. */
static int step_of(const phase_job *job, int l)
{
    const esper_view *y = &job->lanes[0][l].out[0];
    int64_t bytes;

    if (job->n_phases == 1) /* any work, flat ranges too: there y may be nothing at all */
        return job->block;
    bytes = y->count / y->dim[0] * ESPER_BLOCK_SAMPLES * (int64_t)sizeof(float);
    return bytes < CHAIN_BYTES ? (int)(CHAIN_BYTES / bytes) : 1;
}

static void run_item(void *context, int item, int worker)
{
    const phase_job *job = context;
    int l = item / job->items_per_lane, n = count_results(job, l);
    int begin = item % job->items_per_lane * job->block;
    int end = begin + job->block < n ? begin + job->block : n, step = step_of(job, l);

    (void)worker;
    for (int at = begin; at < end; at += step)
        for (int p = 0; p < job->n_phases; p++)
            phase_of(job, p, l)->run(&job->lanes[p][l], at, at + step < end ? at + step : end);
}

/* Cuts the job into items and runs them. */
static void run_job(esper_pool *pool, phase_job *job, int n_lanes)
{
    int longest = 0;
    int wanted_items = ITEMS_PER_THREAD * esper_pool_threads(pool);

    for (int l = 0; l < n_lanes; l++) {
        int n = count_results(job, l);

        longest = n > longest ? n : longest;
    }
    if (longest == 0)
        return;
    job->block = (int)(((int64_t)longest * n_lanes + wanted_items - 1) / wanted_items);
    job->block = job->block > BLOCK ? BLOCK : job->block;
    job->items_per_lane = (longest + job->block - 1) / job->block;
    esper_pool_run(pool, n_lanes * job->items_per_lane, run_item, job);
}

static const esper_op_kernels *kernels_of(const esper_backend *be, const esper_launch *launch)
{
    const esper_kernel_set *set = ((const esper_ram_backend *)be)->kernels;

    return launch->blocked ? set->lanes[launch->kind] : set->op[launch->kind];
}

static esper_status lower_cpu(const esper_backend *be, const esper_net *net, int max_samples, esper_net *lowered_out)
{
    if (max_samples < LEAST_SAMPLES || !esper_lower_applies(net, ((const esper_ram_backend *)be)->kernels))
        return ESPER_E_UNSUPPORTED;
    return esper_lower(net, lowered_out);
}

static size_t scratch_cpu(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    const esper_op_kernels *op = kernels_of(be, launch);

    return op->scratch == NULL ? 0 : op->scratch(launch->lanes, launch->direction == ESPER_BACKWARD, max_samples);
}

static esper_status enqueue_cpu(esper_backend *be, const esper_launch *launch)
{
    const esper_ram_backend *host = (const esper_ram_backend *)be;

    const esper_op_kernels *op = kernels_of(be, launch);
    bool backward = launch->direction == ESPER_BACKWARD;

    for (int i = 0; (backward ? op->backward : op->forward)[i].run != NULL; i++) {
        phase_job job = {.op = {op}, .lanes = {launch->lanes}, .tune = &host->tune, .n_phases = 1};

        job.backward = backward;
        job.phase = i;
        run_job(host->pool, &job, launch->n_lanes);
    }
    return ESPER_OK;
}

static bool is_local(const esper_backend *be, const esper_launch *launch)
{
    const esper_op_kernels *op = kernels_of(be, launch);

    return launch->direction == ESPER_FORWARD ? op->local_forward : op->local_backward;
}

/* The results of both depend on their own parts alone, and they have the same networks with tensors of one shape. */
static bool chains_cpu(const esper_backend *be, const esper_launch *before, const esper_launch *launch)
{
    if (!before->blocked || !launch->blocked || before->n_lanes != launch->n_lanes || !is_local(be, before) ||
        !is_local(be, launch))
        return false;
    for (int l = 0; l < launch->n_lanes; l++) {
        const esper_lane *a = &before->lanes[l], *b = &launch->lanes[l];

        if (a->pass != b->pass || a->out[0].count != b->out[0].count || a->out[0].dim[0] != b->out[0].dim[0])
            return false;
    }
    return true;
}

static esper_status enqueue_chain_cpu(esper_backend *be, const esper_launch *launches, int n_launches)
{
    const esper_ram_backend *host = (const esper_ram_backend *)be;

    for (int first = 0; first < n_launches; first += MOST_CHAINED) {
        phase_job job = {.tune = &host->tune, .backward = launches[first].direction == ESPER_BACKWARD};

        for (int i = first; i < n_launches && job.n_phases < MOST_CHAINED; i++) {
            job.op[job.n_phases] = kernels_of(be, &launches[i]);
            job.lanes[job.n_phases++] = launches[i].lanes;
        }
        run_job(host->pool, &job, launches[first].n_lanes);
    }
    return ESPER_OK;
}

const esper_backend_ops esper_backend_cpu = {
    .abi = ESPER_BACKEND_ABI,
    .name = "cpu",
    .about = "all cores, kernels for this processor",
    .open = open_cpu,
    .close = esper_ram_backend_close,
    .alloc = esper_ram_backend_alloc,
    .release = esper_ram_backend_release,
    .supports = esper_ram_backend_supports,
    .lower = lower_cpu,
    .scratch = scratch_cpu,
    .chains = chains_cpu,
    .enqueue_chain = enqueue_chain_cpu,
    .enqueue = enqueue_cpu,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
};
