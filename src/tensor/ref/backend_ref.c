/* The reference backend: one thread, one range, the reference kernels. Slow, plain, and the definition of correct. */
#include "tensor/backends.h"

static esper_status open_ref(esper_pool *pool, esper_backend **be_out)
{
    return esper_ram_backend_open(&esper_backend_ref, pool, &esper_kernels_ref, be_out);
}

static esper_status enqueue_ref(esper_backend *be, const esper_launch *launch)
{
    const esper_op_kernels *op = ((const esper_ram_backend *)be)->kernels->op[launch->kind];
    const esper_phase *phases = launch->direction == ESPER_FORWARD ? op->forward : op->backward;

    for (const esper_phase *phase = phases; phase->run != NULL; phase++)
        for (int l = 0; l < launch->n_lanes; l++) {
            const esper_lane *lane = &launch->lanes[l];

            phase->run(lane, 0, phase->units != NULL ? phase->units(lane) : lane->pass->n_samples);
        }
    return ESPER_OK;
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
    .enqueue = enqueue_ref,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
};
