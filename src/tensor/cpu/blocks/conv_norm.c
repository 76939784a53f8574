/* Convolution and batch norm in one, with ReLU and max pool where they follow.
 *
 * Forward: the convolution's output is written once, and each channel's mean and deviations are taken while it is in the
 * cache; when all blocks are done they are joined; then one pass over the output normalises, cuts and pools. Backward makes
 * the norm's output anew from the convolution's, which is all that was kept: one pass for the two sums that every gradient
 * depends on, and one for the gradient at the convolution's output, which is used at once, block by block, for the
 * gradients of weights and x. */
#include "tensor/cpu/blocks/batch_statistics.h"
#include "tensor/cpu/blocks/convolution.h"

/* Both parts of a lane, with what they have in scratch. */
typedef struct conv_norm {
    convolution conv;
    batch_norm  norm;
    float      *packed;  /* weights, as the direction reads them */
    float *partial;      /* backward: parts of the weights' gradient */
} conv_norm;

static int channels(const esper_lane *lane)
{
    return lane->out[1].dim[0];
}

static conv_norm lay_out(const esper_lane *lane, bool backward, int n_blocks, scratch_cursor *at)
{
    const esper_view *y = &lane->out[1];
    conv_norm both = {
        .conv = convolution_of(&lane->in[0], &lane->in[1], y, lane->attr.conv_norm.pad, lane->attr.conv_norm.groups),
        .norm =
            {
                .scale = &lane->in[2],
                .shift = &lane->in[3],
                .mean = lane->in[4].data,
                .var = lane->in[5].data,
                .mean_used = lane->out[2].data,
                .rstd_used = lane->out[3].data,
                .channels = (size_t)channels(lane),
                .pixels = pixels_of(y),
                .eps = lane->attr.conv_norm.eps,
                .momentum = lane->attr.conv_norm.momentum,
                .shared = lane->spread,
            },
    };

    both.packed = scratch_take(at, packed_all(&both.conv, backward) * sizeof(float));
    batch_norm_lay_out(&both.norm, backward, n_blocks, at);
    if (backward)
        both.partial = scratch_take(at, weights_room(&lane->in[1], n_blocks) * sizeof(float));
    return both;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    scratch_cursor count = scratch_count();

    lay_out(lane, backward, esper_blocks_of(max_samples), &count);
    return count.used;
}

static conv_norm both_of(const esper_lane *lane, bool backward)
{
    scratch_cursor at = scratch_of(lane);

    return lay_out(lane, backward, count_blocks(lane), &at);
}

static int groups(const esper_lane *lane)
{
    return lane->attr.conv_norm.groups;
}

/* ------------------------------------------------------------------------------------------------ forward */

static void pack(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    pack_weights(&both.conv, lane->in[1].data, begin, end, both.packed);
}

static void convolve_blocks(const esper_lane *lane, bool split, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    for (int b = begin; b < end; b++) {
        float *y = data_block(&lane->out[1], b);

        convolve(&both.conv, split, data_block(&lane->in[0], b), lane->in[1].data, both.packed, y);
        if (lane->pass->training)
            batch_norm_measure(&both.norm, lane, b, y);
    }
}

static void convolve_whole(const esper_lane *lane, int begin, int end)
{
    convolve_blocks(lane, false, begin, end);
}

static void convolve_split(const esper_lane *lane, int begin, int end)
{
    convolve_blocks(lane, true, begin, end);
}

static void choose(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    batch_norm_choose(&both.norm, lane, (size_t)begin, (size_t)end);
}

static void normalise(const esper_lane *lane, int begin, int end)
{
    const esper_view *y = &lane->out[1];
    conv_norm both = both_of(lane, false);

    for (int b = begin; b < end; b++)
        simd_norm_forward(data_block(y, b), y->dim[0], y->dim[1], y->dim[2], both.norm.mean_used, both.norm.factor,
                          lane->in[3].data, lane->attr.conv_norm.relu, lane->attr.conv_norm.pool,
                          data_block(&lane->out[0], b));
}

/* ------------------------------------------------------------------------------------------------ backward */

/* Units are groups: what depends on the weights alone. */
static void prepare(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);
    size_t per_group = (size_t)both.conv.group.out_c;

    if (lane->in[0].grad != NULL)
        pack_weights_back(&both.conv, lane->in[1].data, begin, end, both.packed);
    batch_norm_factors(&both.norm, (size_t)begin * per_group, (size_t)end * per_group);
}

static void take_sums(const esper_lane *lane, int begin, int end)
{
    const esper_view *y = &lane->out[1];
    conv_norm both = both_of(lane, true);

    for (int b = begin; b < end; b++)
        simd_norm_sums(data_block(y, b), grad_block(&lane->out[0], b), y->dim[0], y->dim[1], y->dim[2],
                       both.norm.mean_used, both.norm.factor, lane->in[3].data, lane->attr.conv_norm.relu,
                       lane->attr.conv_norm.pool, samples_in(lane, b),
                       both.norm.sums + (size_t)b * both.norm.channels * 2);
}

static void join_sums(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    batch_norm_join(&both.norm, lane, (size_t)begin, (size_t)end);
}

/* The gradient at the convolution's output takes that output's place: nobody needs it any more. */
static void backward_blocks(const esper_lane *lane, bool split, int begin, int end)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[1];
    conv_norm both = both_of(lane, true);

    for (int b = begin; b < end; b++) {
        float *dy = data_block(y, b);

        simd_norm_back(dy, grad_block(&lane->out[0], b), y->dim[0], y->dim[1], y->dim[2], both.norm.mean_used,
                       both.norm.factor, lane->in[3].data, both.norm.mean_g, both.norm.slope, lane->attr.conv_norm.relu,
                       lane->attr.conv_norm.pool, samples_in(lane, b), dy);
        if (w->grad != NULL && !has_many_weights(w))
            weights_of_block(&both.conv, data_block(x, b), dy, both.partial + (size_t)b * (size_t)w->count);
        if (x->grad != NULL)
            convolve_back(&both.conv, split, dy, w->data, both.packed, grad_block(x, b), x->add);
    }
}

static void backward_whole(const esper_lane *lane, int begin, int end)
{
    backward_blocks(lane, false, begin, end);
}

static void backward_split(const esper_lane *lane, int begin, int end)
{
    backward_blocks(lane, true, begin, end);
}

static int units_of_weights(const esper_lane *lane)
{
    return weight_units(&lane->in[1]);
}

static void finish_weights(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    put_weights(&both.conv, &lane->in[0], &lane->in[1], lane->out[1].data, block_size(&lane->out[1]), both.partial,
                count_blocks(lane), begin, end);
}

static int width(const esper_lane *lane)
{
    return convolution_width(lane, &lane->out[1], groups(lane));
}

static const esper_ways ways_forward[] = {
    {1, ESPER_WORK_CONV_Y, width, {convolve_split, count_blocks}},
    {.width = NULL},
};

static const esper_ways ways_backward[] = {
    {3, ESPER_WORK_CONV_DX, width, {backward_split, count_blocks}},
    {.width = NULL},
};

/* ------------------------------------------------------------------------------------------------ over ranks */

static size_t sums(const esper_lane *lane, bool backward, size_t *offset_out)
{
    scratch_cursor count = scratch_count();
    uintptr_t base = count.base;
    conv_norm both = lay_out(lane, backward, 1, &count);

    *offset_out = (uintptr_t)both.norm.values - base;
    return batch_norm_n_values(&both.norm);
}

static void offer(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    batch_norm_offer(&both.norm, lane, (size_t)begin, (size_t)end);
}

static void choose_shared(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    batch_norm_choose_shared(&both.norm, (size_t)begin, (size_t)end);
}

static void offer_sums(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    batch_norm_offer_back(&both.norm, lane, (size_t)begin, (size_t)end);
}

static void join_shared(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    batch_norm_join_shared(&both.norm, lane, (size_t)begin, (size_t)end);
}

static const esper_ways ways_backward_shared[] = {
    {4, ESPER_WORK_CONV_DX, width, {backward_split, count_blocks}},
    {.width = NULL},
};

static const esper_op_kernels shared = {
    .forward = {{pack, groups},
                {convolve_whole, count_blocks},
                {offer, channels},
                {choose_shared, channels},
                {normalise, count_blocks}},
    .backward = {{prepare, groups},
                 {take_sums, count_blocks},
                 {offer_sums, channels},
                 {join_shared, channels},
                 {backward_whole, count_blocks},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward_shared,
    .sums = sums,
    .summed_forward = 3,
    .summed_backward = 3,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(conv_norm) = {
    .forward = {{pack, groups}, {convolve_whole, count_blocks}, {choose, channels}, {normalise, count_blocks}},
    .backward = {{prepare, groups},
                 {take_sums, count_blocks},
                 {join_sums, channels},
                 {backward_whole, count_blocks},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
    .shared = &shared,
};
