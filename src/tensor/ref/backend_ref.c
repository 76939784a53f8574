/* The reference backend: one thread, one range, the reference kernels. Slow, plain, and the definition of correct. */
#include "base/status.h"
#include "tensor/backends.h"

static esper_status open_ref(esper_pool *pool, esper_backend **be_out)
{
    return esper_ram_backend_open(&esper_backend_ref, pool, &esper_kernels_ref, be_out);
}

static void run_lane(const esper_op_kernels *op, const esper_lane *lane, bool backward, esper_part part)
{
    const esper_phase *phases = backward ? op->backward : op->forward;
    esper_phases run = esper_phases_of(op, backward, part);

    for (int i = run.begin; i < run.end && phases[i].run != NULL; i++)
        phases[i].run(lane, 0, phases[i].units != NULL ? phases[i].units(lane) : lane->pass->n_samples);
}

static esper_status enqueue_ref(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    const esper_op_kernels *op = ((const esper_ram_backend *)be)->kernels->op[launch->kind];

    (void)stream;
    for (int l = 0; l < launch->n_lanes; l++)
        run_lane(esper_kernels_of(op, &launch->lanes[l]), &launch->lanes[l], launch->direction == ESPER_BACKWARD,
                 launch->part);
    return ESPER_OK;
}

static size_t scratch_ref(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    const esper_op_kernels *op = ((const esper_ram_backend *)be)->kernels->op[launch->kind];

    return op->scratch == NULL ? 0 : op->scratch(launch->lanes, launch->direction == ESPER_BACKWARD, max_samples);
}

static size_t sums_ref(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    const esper_op_kernels *shared = ((const esper_ram_backend *)be)->kernels->op[launch->kind]->shared;

    return shared == NULL ? 0 : shared->sums(launch->lanes, launch->direction == ESPER_BACKWARD, offset_out);
}

const esper_backend_ops esper_backend_ref = {
    .abi = ESPER_BACKEND_ABI,
    .name = "ref",
    .about = "plain C on one thread: the definition of correct",
    .open = open_ref,
    .close = esper_ram_backend_close,
    .alloc = esper_ram_backend_alloc,
    .release = esper_ram_backend_release,
    .supports = esper_ram_backend_supports,
    .scratch = scratch_ref,
    .sums = sums_ref,
    .enqueue = enqueue_ref,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
    .stream_open = esper_ram_stream_open,
    .stream_close = esper_ram_stream_close,
    .copy_in = esper_ram_copy,
    .copy_out = esper_ram_copy,
    .copy = esper_ram_copy,
    .fill = esper_ram_fill,
    .scan = esper_ram_scan,
};
