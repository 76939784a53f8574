/* The CPU backend: the kernels built for this processor, over lanes and ranges of samples or units, on the pool.
 *
 * A work item is (lane, range). Kernels promise that a range may be cut anywhere without changing a bit, so how finely
 * work is cut is a matter of balance alone, and results depend neither on the number of threads nor on the number of
 * lanes. */
#include "base/status.h"
#include "tensor/backends.h"
#include "tensor/lower.h"

/* At most 16 samples (or units) an item, and enough items that no thread waits long for another. */
enum { BLOCK = 16, ITEMS_PER_THREAD = 4 };

/* Smaller batches would leave most lanes of a block empty. */
enum { LEAST_SAMPLES = 4 };

typedef struct phase_job {
    const esper_phase *phase;
    const esper_lane  *lanes;
    int                block;          /* results of an item */
    int                items_per_lane; /* of the longest lane; shorter ones leave their last items empty */
} phase_job;

static esper_status open_cpu(esper_pool *pool, esper_backend **be_out)
{
    const esper_kernel_set *kernels = esper_kernels_choose();
    char names[64];

    if (pool == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "backend cpu needs a thread pool");
    if (kernels == NULL) {
        esper_kernels_names(names, sizeof(names));
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "ESPER_KERNELS names no kernel set this processor can run: use %s, or unset it", names);
    }
    return esper_ram_backend_open(&esper_backend_cpu, pool, kernels, be_out);
}

static int count_results(const esper_phase *phase, const esper_lane *lane)
{
    return phase->units != NULL ? phase->units(lane) : lane->pass->n_samples;
}

static void run_item(void *context, int item, int worker)
{
    const phase_job *job = context;
    const esper_lane *lane = &job->lanes[item / job->items_per_lane];
    int n = count_results(job->phase, lane);
    int begin = item % job->items_per_lane * job->block;
    int end = begin + job->block < n ? begin + job->block : n;

    (void)worker;
    if (begin < end)
        job->phase->run(lane, begin, end);
}

static void run_phase(esper_pool *pool, const esper_phase *phase, const esper_launch *launch)
{
    phase_job job = {.phase = phase, .lanes = launch->lanes};
    int longest = 0;
    int wanted_items = ITEMS_PER_THREAD * esper_pool_threads(pool);

    for (int l = 0; l < launch->n_lanes; l++) {
        int n = count_results(phase, &launch->lanes[l]);

        longest = n > longest ? n : longest;
    }
    if (longest == 0)
        return;
    job.block = (int)(((int64_t)longest * launch->n_lanes + wanted_items - 1) / wanted_items);
    job.block = job.block > BLOCK ? BLOCK : job.block;
    job.items_per_lane = (longest + job.block - 1) / job.block;
    esper_pool_run(pool, launch->n_lanes * job.items_per_lane, run_item, &job);
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
    const esper_phase *phases = launch->direction == ESPER_FORWARD ? op->forward : op->backward;

    for (const esper_phase *phase = phases; phase->run != NULL; phase++)
        run_phase(host->pool, phase, launch);
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
    .enqueue = enqueue_cpu,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
};
