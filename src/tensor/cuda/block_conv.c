/* Convolution, batch norm, and both in one with the ReLU and the max pool that may follow, on blocks of samples: conv2d,
 * batch_norm, conv_norm. What is launched:
 *
 *     forward    the convolution, with its channels' sums (or the sums by themselves); sums joined; normalised
 *     backward   sums of the gradients; joined; the gradient at the convolution's output, in its place (a first layer's is formed
 *                where it is used); the gradients of x, and of the weights in parts; the parts joined
 *
 * Where the batch is spread over ranks, the part before they meet ends with sums joined, and the part after begins with their
 * use. In evaluation ranks do not meet, and nothing is there to be used: the statistics have been set. */
#include "tensor/cuda/block_launch.h"

/* ------------------------------------------------------------------------------------------------ convolution */

static void push_conv(block_list *list, const esper_lane *lane, bool back)
{
    static const char *const names[2][4][3] = {
        {{"esper_block_conv_1_1", "esper_block_conv_1_4", "esper_block_conv_1_8"},
         {"esper_block_conv_3_1", "esper_block_conv_3_4", "esper_block_conv_3_8"},
         {"esper_block_conv_5_1", "esper_block_conv_5_4", NULL},
         {"esper_block_conv_7_1", "esper_block_conv_7_4", NULL}},
        {{"esper_block_conv_back_1_1", "esper_block_conv_back_1_4", "esper_block_conv_back_1_8"},
         {"esper_block_conv_back_3_1", "esper_block_conv_back_3_4", "esper_block_conv_back_3_8"},
         {"esper_block_conv_back_5_1", "esper_block_conv_back_5_4", NULL},
         {"esper_block_conv_back_7_1", "esper_block_conv_back_7_4", NULL}}};
    static const char *const tensor[2][2][3] = {
        {{"esper_block_conv_3_8", "esper_block_conv_3_8_few", "esper_block_conv_3_8_small"},
         {"esper_block_conv_back_3_8", "esper_block_conv_back_3_8_few", "esper_block_conv_back_3_8_small"}},
        {{"esper_block_conv_3_8_tf32", "esper_block_conv_3_8_few_tf32", "esper_block_conv_3_8_small_tf32"},
         {"esper_block_conv_back_3_8_tf32", "esper_block_conv_back_3_8_few_tf32",
          "esper_block_conv_back_3_8_small_tf32"}}};
    block_conv v = block_conv_of(lane, back);
    block_cut cut = block_cut_of(&v);
    int side = block_side(&v), channels = block_channels(&v),
        form = block_depth(&v) == 4 ? 1
               : block_is_small(&v) ? 2
                                    : 0;
    const char *name = names[back][side / 2][channels / 4];
    int floats = cut.chunk * side * side * cut.stride;

    if (block_is_tensor(&v)) {
        name = tensor[lane->precision != ESPER_FP32][back][form];
        floats += block_ahead_floats(&v);
    }
    assert(v.kernel <= BLOCK_KERNEL && name != NULL && cut.chunk > 0);
    block_push(list, name, BLOCK_THREADS, block_most(lane) * cut.blocks, floats * (int)sizeof(float));
}

static void push_weights(block_list *list, const esper_lane *lane)
{
    static const char *const names[4][2] = {{NULL, "esper_block_conv_weights_1_8"},
                                            {"esper_block_conv_weights_3_1", "esper_block_conv_weights_3_8"},
                                            {"esper_block_conv_weights_5_1", "esper_block_conv_weights_5_8"},
                                            {"esper_block_conv_weights_7_1", "esper_block_conv_weights_7_8"}};
    static const char *const on_cores[2][4] = {
        {"esper_block_weigh_8", "esper_block_weigh_16", "esper_block_weigh_first", "esper_block_weigh_first_pool"},
        {"esper_block_weigh_8_tf32", "esper_block_weigh_16_tf32", "esper_block_weigh_first_tf32",
         "esper_block_weigh_first_pool_tf32"}};
    block_conv v = block_conv_of(lane, false);
    block_weights_cut cut = block_weights_cut_of(&v);
    int joiners = esper_cuda_divide(lane->in[1].count, BLOCK_THREADS);

    if (block_weighs_on_cores(&v)) {
        block_weigh_cut tiles = block_weigh_cut_of(&v);
        int kind = !block_forms_dy(lane) ? tiles.wide : lane->attr.conv_norm.pool ? 3 : 2;

        block_push(list, on_cores[lane->precision != ESPER_FP32][kind], BLOCK_THREADS,
                   esper_cuda_divide(block_most(lane), tiles.span) * (int64_t)tiles.blocks, 0);
        block_push(list, "esper_block_weigh_join", BLOCK_THREADS, joiners, 0);
        return;
    }
    block_push(list, names[block_side(&v) / 2][cut.out / 8], BLOCK_THREADS,
               esper_cuda_divide(block_most(lane) * cut.parts * cut.warps, BLOCK_WARPS), 0);
    block_push(list, "esper_block_conv_join", BLOCK_THREADS, joiners, 0);
}

/* The gradients of x and of the weights. */
static void push_conv_back(block_list *list, const esper_lane *lane)
{
    if (lane->in[0].grad != NULL)
        push_conv(list, lane, true);
    if (lane->in[1].grad != NULL)
        push_weights(list, lane);
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

/* ------------------------------------------------------------------------------------------------ norm */

/* A kernel that has threads for channels, parts and blocks of samples. */
static void push_sums(block_list *list, const esper_lane *lane, const char *kernel, bool back)
{
    block_push(list, kernel, BLOCK_THREADS, block_most(lane) * block_norm_parts(lane, back) * block_y(lane)->dim[0], 0);
}

/* A kernel that has threads for quads of samples of pixels or windows. */
static void push_cells(block_list *list, const esper_lane *lane, const char *kernel, int64_t cells)
{
    block_push(list, kernel, BLOCK_THREADS, block_most(lane) * esper_cuda_divide(cells * BLOCK_QUADS, BLOCK_ITEMS), 0);
}

static int norm_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    block_norm n = block_norm_of(lane);

    if (part != ESPER_PART_AFTER) {
        if (block_has_conv(lane))
            push_conv(&list, lane, false);
        else
            push_sums(&list, lane, "esper_block_norm_moments", false);
        block_push(&list, "esper_block_norm_join", BLOCK_THREADS, n.C, 0);
    }
    if (part == ESPER_PART_AFTER)
        block_push(&list, "esper_block_norm_met", BLOCK_THREADS, esper_cuda_divide(n.C, BLOCK_THREADS), 0);
    if (part != ESPER_PART_BEFORE)
        push_cells(&list, lane, n.pool ? "esper_block_norm_forward_pool" : "esper_block_norm_forward",
                   (int64_t)n.C * block_norm_cells(&n, n.pool));
    return list.n;
}

static int norm_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    block_norm n = block_norm_of(lane);
    int windows = ((n.H + 1) / 2) * ((n.W + 1) / 2);
    bool wanted = lane->in[0].grad != NULL || (block_has_conv(lane) && lane->in[1].grad != NULL);

    if (part != ESPER_PART_AFTER) {
        push_sums(&list, lane, n.pool ? "esper_block_norm_sums_pool" : "esper_block_norm_sums", true);
        block_push(&list, "esper_block_norm_join_back", BLOCK_THREADS, n.C, 0);
    }
    if (part == ESPER_PART_AFTER)
        block_push(&list, "esper_block_norm_met_back", BLOCK_THREADS, esper_cuda_divide(n.C, BLOCK_THREADS), 0);
    if (part == ESPER_PART_BEFORE || !wanted)
        return list.n;
    if (!block_forms_dy(lane))
        push_cells(&list, lane, n.pool ? "esper_block_norm_back_pool" : "esper_block_norm_back",
                   (int64_t)n.C * (n.pool ? windows : n.H * n.W));
    if (block_has_conv(lane))
        push_conv_back(&list, lane);
    return list.n;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    return block_scratch_of(lane, backward, max_samples).bytes;
}

static size_t sums(const esper_lane *lane, bool backward, size_t *offset_out)
{
    *offset_out = block_scratch_of(lane, backward, 0).values;
    return 1 + 2 * (size_t)block_y(lane)->dim[0];
}

const esper_cuda_op esper_cuda_blocked_conv2d = {
    .forward = conv2d_forward,
    .backward = conv2d_backward,
    .scratch = scratch,
};

const esper_cuda_op esper_cuda_blocked_batch_norm = {
    .forward = norm_forward,
    .backward = norm_backward,
    .scratch = scratch,
    .sums = sums,
};

const esper_cuda_op esper_cuda_blocked_conv_norm = {
    .forward = norm_forward,
    .backward = norm_backward,
    .scratch = scratch,
    .sums = sums,
};
