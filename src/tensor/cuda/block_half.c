/* Image operations on blocks of samples with activations of bf16: what is launched (block_half.h). As block_conv.c tells of conv_norm. */
#include "tensor/cuda/block_half.h"
#include "tensor/cuda/block_launch.h"

/* ------------------------------------------------------------------------------------------------ convolution and norm */

static void push_conv(block_list *list, const esper_lane *lane, bool back)
{
    static const char *const names[2][3] = {
        {"esper_half_conv_2", "esper_half_conv_4", "esper_half_conv_8"},
        {"esper_half_conv_back_2", "esper_half_conv_back_4", "esper_half_conv_back_8"}};
    block_conv v = block_conv_of(lane, back);
    half_cut cut = half_cut_of(&v);

    block_push(list, names[back][half_depth(v.in_c) / 4], HALF_THREADS, block_most(lane) * cut.blocks,
               cut.chunk * 9 * cut.stride * (int)sizeof(uint32_t));
}

/* A first layer whose norm is behind it: of dy only the gradient of the weights is made, which forms it on the way. */
static bool forms_dy(const esper_lane *lane)
{
    return block_has_norm(lane) && lane->in[0].grad == NULL && lane->in[0].dim[0] <= 4;
}

/* The gradients of x and of the weights. */
static void push_conv_back(block_list *list, const esper_lane *lane)
{
    static const char *const names[2][5] = {{"esper_half_weigh_4_2", "esper_half_weigh_4_4", NULL,
                                             "esper_half_weigh_4_first", "esper_half_weigh_4_first_pool"},
                                            {"esper_half_weigh_8_2", "esper_half_weigh_8_4", "esper_half_weigh_8_8",
                                             "esper_half_weigh_8_first", "esper_half_weigh_8_first_pool"}};
    block_conv v = block_conv_of(lane, false);
    half_weigh_cut cut = half_weigh_cut_of(&v);

    if (lane->in[0].grad != NULL)
        push_conv(list, lane, true);
    if (lane->in[1].grad == NULL)
        return;
    block_push(list, names[cut.out / 8][forms_dy(lane) ? 3 + lane->attr.conv_norm.pool : cut.in / 4], HALF_THREADS,
               esper_cuda_divide(block_most(lane), cut.span) * (int64_t)cut.blocks, 0);
    block_push(list, "esper_half_weigh_join", HALF_THREADS, esper_cuda_divide(lane->in[1].count, HALF_THREADS), 0);
}

static int conv2d_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    push_conv(&list, lane, false);
    return list.n;
}

static int conv2d_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    push_conv_back(&list, lane);
    return list.n;
}

/* A kernel that has threads for quads of samples of pixels or windows of pairs of channels. */
static void push_cells(block_list *list, const esper_lane *lane, const char *kernel, int cells)
{
    int64_t items = (int64_t)half_pairs(block_y(lane)->dim[0]) * cells * BLOCK_QUADS;

    block_push(list, kernel, BLOCK_THREADS, block_most(lane) * esper_cuda_divide(items, BLOCK_ITEMS), 0);
}

static int norm_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    block_norm n = block_norm_of(lane);

    if (part != ESPER_PART_AFTER) {
        push_conv(&list, lane, false);
        block_push(&list, "esper_half_norm_join", BLOCK_THREADS, n.C, 0);
    } else
        block_push(&list, "esper_block_norm_met", BLOCK_THREADS, esper_cuda_divide(n.C, BLOCK_THREADS), 0);
    if (part != ESPER_PART_BEFORE)
        push_cells(&list, lane, n.pool ? "esper_half_norm_forward_pool" : "esper_half_norm_forward",
                   block_norm_cells(&n, n.pool));
    return list.n;
}

static int norm_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    block_norm n = block_norm_of(lane);

    if (part != ESPER_PART_AFTER) {
        block_push(&list, n.pool ? "esper_half_norm_sums_pool" : "esper_half_norm_sums", BLOCK_THREADS,
                   block_most(lane) * half_norm_parts(lane, true) * half_pairs(n.C), 0);
        block_push(&list, "esper_half_norm_join_back", BLOCK_THREADS, n.C, 0);
    } else
        block_push(&list, "esper_block_norm_met_back", BLOCK_THREADS, esper_cuda_divide(n.C, BLOCK_THREADS), 0);
    if (part == ESPER_PART_BEFORE || (lane->in[0].grad == NULL && lane->in[1].grad == NULL))
        return list.n;
    if (!forms_dy(lane))
        push_cells(&list, lane, n.pool ? "esper_half_norm_back_pool" : "esper_half_norm_back",
                   n.pool ? ((n.H + 1) / 2) * ((n.W + 1) / 2) : n.H * n.W);
    push_conv_back(&list, lane);
    return list.n;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return half_scratch_of(lane, backward, max_samples).bytes;
}

static size_t sums(const esper_lane *lane, bool backward, size_t *offset_out)
{
    *offset_out = block_scratch_of(lane, backward, 0).values;
    return 1 + 2 * (size_t)block_y(lane)->dim[0];
}

const esper_cuda_op esper_cuda_halves_conv2d = {
    .forward = conv2d_forward,
    .backward = conv2d_backward,
    .scratch = scratch,
};

const esper_cuda_op esper_cuda_halves_conv_norm = {
    .forward = norm_forward,
    .backward = norm_backward,
    .scratch = scratch,
    .sums = sums,
};

/* ------------------------------------------------------------------------------------------------ changes of layout, mean */

/* Between canonical layout and words: tiles are 32 pixels of 32 samples. */
static void push_tiles(block_list *list, const esper_lane *lane, const char *kernel, int each)
{
    const esper_view *x = &lane->in[0];
    int64_t tiles = block_most(lane) * half_pairs(x->dim[0]) * esper_cuda_divide(x->dim[1] * x->dim[2], 32);

    block_push(list, kernel, BLOCK_GROUP_THREADS, esper_cuda_divide(tiles, each), 0);
}

static int launch_tiles(const esper_lane *lane, const char *kernel, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    push_tiles(&list, lane, kernel, 1);
    return list.n;
}

static int launch_pack(const esper_lane *lane, const char *kernel, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    push_tiles(&list, lane, kernel, block_pack_tiles(lane));
    return list.n;
}

/* A thread for each quad of samples. */
static int launch_fours(const esper_lane *lane, const char *kernel, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    const esper_view *x = &lane->in[0];

    block_push(
        &list, kernel, BLOCK_THREADS,
        block_most(lane) *
            esper_cuda_divide((int64_t)half_pairs(x->dim[0]) * x->dim[1] * x->dim[2] * BLOCK_QUADS, BLOCK_THREADS),
        0);
    return list.n;
}

static int launch_mean(const esper_lane *lane, const char *kernel, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    block_push(&list, kernel, BLOCK_THREADS,
               esper_cuda_divide(block_most(lane) * half_pairs(lane->in[0].dim[0]), BLOCK_WARPS), 0);
    return list.n;
}

#define CHANGE(name, launch, launch_back, kernel)                                                                  \
    static int forward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)           \
    {                                                                                                              \
        (void)part;                                                                                                \
        return launch(lane, kernel, launches_out);                                                                 \
    }                                                                                                              \
    static int backward_##name(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)          \
    {                                                                                                              \
        (void)part;                                                                                                \
        return lane->in[0].grad == NULL ? 0 : launch_back(lane, kernel "_back", launches_out);                     \
    }                                                                                                              \
    extern const esper_cuda_op esper_cuda_##name;                                                                  \
    const esper_cuda_op esper_cuda_##name = {.forward = forward_##name, .backward = backward_##name}

CHANGE(halves_pack, launch_pack, launch_tiles, "esper_half_pack");
CHANGE(halves_unpack, launch_tiles, launch_tiles, "esper_half_unpack");
CHANGE(change_pack, launch_fours, launch_fours, "esper_half_narrow");
CHANGE(change_unpack, launch_fours, launch_fours, "esper_half_widen");
CHANGE(halves_global_mean, launch_mean, launch_fours, "esper_half_global_mean");
