/* Group norm on blocks of samples. */
#include "tensor/cuda/block_launch.h"

/* A block of threads for each group of a block of samples. */
static void push_groups(block_list *list, const esper_lane *lane, const char *kernel)
{
    block_push(list, kernel, BLOCK_GROUP_THREADS, block_most(lane) * lane->attr.norm.groups, 0);
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    push_groups(&list, lane, "esper_block_group_norm");
    return list.n;
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    push_groups(&list, lane, "esper_block_group_norm_back");
    if (lane->in[1].grad != NULL || lane->in[2].grad != NULL)
        block_push(&list, "esper_block_group_norm_join", BLOCK_THREADS,
                   esper_cuda_divide(2 * (int64_t)lane->in[0].dim[0], BLOCK_THREADS), 0);
    return list.n;
}

/* What each warp gives to scale and shift. */
static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    size_t n_parts = (size_t)esper_cuda_blocks_of(max_samples) * (BLOCK_GROUP_THREADS / 32);

    return is_backward ? n_parts * (size_t)lane->in[0].dim[0] * 2 * sizeof(double) : 0;
}

const esper_cuda_op esper_cuda_blocked_group_norm = {.forward = forward, .backward = backward, .scratch = scratch};
