/* Max pool and global mean on blocks of samples. */
#include "tensor/cuda/block_launch.h"

/* A thread for each quad of samples of so many elements. */
static int launch_quads(const esper_lane *lane, const char *kernel, int64_t elements, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    block_push(&list, kernel, BLOCK_THREADS,
               block_most(lane) * esper_cuda_divide(elements * BLOCK_QUADS, BLOCK_THREADS), 0);
    return list.n;
}

static int max_pool_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return launch_quads(lane, "esper_block_max_pool", lane->out[0].count, launches_out);
}

/* All windows that have a pixel: a last odd row or column has no gradient. */
static int max_pool_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    const esper_view *x = &lane->in[0];

    (void)part;
    if (x->grad == NULL)
        return 0;
    return launch_quads(lane, "esper_block_max_pool_back",
                        (int64_t)x->dim[0] * ((x->dim[1] + 1) / 2) * ((x->dim[2] + 1) / 2), launches_out);
}

static int global_mean_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    block_push(&list, "esper_block_global_mean", BLOCK_THREADS,
               esper_cuda_divide(block_most(lane) * lane->in[0].dim[0], BLOCK_WARPS), 0);
    return list.n;
}

static int global_mean_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL
               ? 0
               : launch_quads(lane, "esper_block_global_mean_back", lane->in[0].count, launches_out);
}

const esper_cuda_op esper_cuda_blocked_max_pool = {.forward = max_pool_forward, .backward = max_pool_backward};
const esper_cuda_op esper_cuda_blocked_global_mean = {.forward = global_mean_forward, .backward = global_mean_backward};
