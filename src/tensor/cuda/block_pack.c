/* Between canonical layout and blocks of samples. */
#include "tensor/cuda/block_launch.h"

/* `each`: how many tiles, 32 elements of 32 samples, are a block of threads'. */
static int launch(const esper_lane *lane, const char *kernel, int each, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    int64_t tiles = block_most(lane) * esper_cuda_divide(lane->in[0].count, 32);

    block_push(&list, kernel, BLOCK_GROUP_THREADS, esper_cuda_divide(tiles, each), 0);
    return list.n;
}

static int pack_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return launch(lane, "esper_block_pack", block_pack_tiles(lane), launches_out);
}

static int pack_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL ? 0 : launch(lane, "esper_block_pack_back", 1, launches_out);
}

static int unpack_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return launch(lane, "esper_block_unpack", 1, launches_out);
}

static int unpack_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL ? 0 : launch(lane, "esper_block_unpack_back", 1, launches_out);
}

const esper_cuda_op esper_cuda_blocked_pack = {.forward = pack_forward, .backward = pack_backward};
const esper_cuda_op esper_cuda_blocked_unpack = {.forward = unpack_forward, .backward = unpack_backward};
