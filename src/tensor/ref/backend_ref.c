/* The reference backend: one thread, one range, the reference kernels. Slow, plain, and the definition of correct. */
#include "base/status.h"
#include "tensor/backends.h"

static esper_status open_ref(esper_pool *pool, esper_backend **be_out)
{
    return esper_ram_backend_open(&esper_backend_ref, pool, &esper_kernels_ref, be_out);
}

static esper_status enqueue_ref(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    bool backward = launch->direction == ESPER_BACKWARD;

    (void)stream;
    for (const esper_lane *lane = launch->lanes; lane < launch->lanes + launch->n_lanes; lane++) {
        const esper_op_kernels *op = esper_kernels_of(((const esper_ram_backend *)be)->kernels->op[launch->kind], lane);
        const esper_phase *phases = backward ? op->backward : op->forward;
        esper_phases run = esper_phases_of(op, backward, launch->part);

        for (int i = run.begin; i < run.end && phases[i].run != NULL; i++)
            phases[i].run(lane, 0, phases[i].units != NULL ? phases[i].units(lane) : lane->pass->n_samples);
    }
    return ESPER_OK;
}

static size_t scratch_ref(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    return esper_ram_scratch(((const esper_ram_backend *)be)->kernels->op[launch->kind], launch, max_samples);
}

static size_t sums_ref(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    return esper_ram_sums(((const esper_ram_backend *)be)->kernels->op[launch->kind], launch, offset_out);
}

const esper_backend_ops esper_backend_ref = {
    ESPER_RAM_BACKEND_OPS,
    .name = "ref",
    .about = "plain C on one thread: the definition of correct",
    .open = open_ref,
    .close = esper_ram_backend_close,
    .scratch = scratch_ref,
    .sums = sums_ref,
    .enqueue = enqueue_ref,
};
