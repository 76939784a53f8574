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

static int tiles(const esper_lane *lane)
{
    conv_norm both = both_of(lane, false);

    return tiles_in(&both.conv, false);
}

static void pack(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    pack_weights(&both.conv, lane->in[1].data, tile_begin(&both.conv, false, begin), tile_begin(&both.conv, false, end),
                 both.packed);
}

static int parts(const esper_lane *lane)
{
    conv_norm both = both_of(lane, false);

    return count_blocks(lane) * parts_in(&both.conv, false);
}

static void convolve_parts(const esper_lane *lane, bool split, int begin, int end)
{
    conv_norm both = both_of(lane, false);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, parts_in(&both.conv, false), &next);
        int first = part_begin(&both.conv, false, u.first), last = part_begin(&both.conv, false, u.last);
        float *y = data_block(&lane->out[1], u.block);

        convolve(&both.conv, split, data_block(&lane->in[0], u.block), lane->in[1].data, both.packed, first, last, y);
        if (lane->pass->training)
            batch_norm_measure(&both.norm, lane, u.block, (size_t)first, (size_t)last, y);
    }
}

static void convolve_whole(const esper_lane *lane, int begin, int end)
{
    convolve_parts(lane, false, begin, end);
}

static void convolve_split(const esper_lane *lane, int begin, int end)
{
    convolve_parts(lane, true, begin, end);
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

static int tiles_back(const esper_lane *lane)
{
    conv_norm both = both_of(lane, true);

    return tiles_in(&both.conv, true);
}

/* What depends on the weights alone. */
static void prepare(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    if (lane->in[0].grad != NULL)
        pack_weights_back(&both.conv, lane->in[1].data, tile_begin(&both.conv, true, begin),
                          tile_begin(&both.conv, true, end), both.packed);
    if (begin == 0)
        batch_norm_factors(&both.norm, 0, both.norm.channels);
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

/* The gradient at the convolution's output, of channels first .. last-1 of a block, takes that output's place: nobody needs it
 * any more. */
static void differentiate(const esper_lane *lane, const conv_norm *both, int block, int first, int last)
{
    const esper_view *y = &lane->out[1];
    const batch_norm *norm = &both->norm;
    float *dy = data_block(y, block) + (size_t)first * plane_size(y);

    simd_norm_back(dy, grad_block(&lane->out[0], block) + (size_t)first * plane_size(&lane->out[0]), last - first,
                   y->dim[1], y->dim[2], norm->mean_used + first, norm->factor + first,
                   (const float *)lane->in[3].data + first, norm->mean_g + first, norm->slope + first,
                   lane->attr.conv_norm.relu, lane->attr.conv_norm.pool, samples_in(lane, block), dy);
}

/* Of a block, once that is there: steps first .. last-1, of which the first are the weights and the others parts of dx. */
static void use_gradient(const esper_lane *lane, const conv_norm *both, bool split, int block, int first, int last)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1];
    const float *dy = data_block(&lane->out[1], block);

    if (first == 0 && w->grad != NULL && !has_many_weights(w))
        weights_of_block(&both->conv, data_block(x, block), dy, both->partial + (size_t)block * (size_t)w->count);
    if (last > 1 && x->grad != NULL)
        convolve_back(&both->conv, split, dy, w->data, both->packed,
                      part_begin(&both->conv, true, first > 1 ? first - 1 : 0), part_begin(&both->conv, true, last - 1),
                      grad_block(x, block), x->add);
}

static void backward_blocks(const esper_lane *lane, bool split, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    for (int b = begin; b < end; b++) {
        differentiate(lane, &both, b, 0, channels(lane));
        use_gradient(lane, &both, split, b, 0, 1 + parts_in(&both.conv, true));
    }
}

/* The two apart, in finer units: where blocks are few, threads end together. */
static int planes(const esper_lane *lane)
{
    return count_blocks(lane) * channels(lane);
}

static void differentiate_planes(const esper_lane *lane, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, channels(lane), &next);

        differentiate(lane, &both, u.block, u.first, u.last);
    }
}

static int steps_back(const esper_lane *lane)
{
    conv_norm both = both_of(lane, true);

    return count_blocks(lane) * (1 + parts_in(&both.conv, true));
}

static void backward_steps(const esper_lane *lane, bool split, int begin, int end)
{
    conv_norm both = both_of(lane, true);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, 1 + parts_in(&both.conv, true), &next);

        use_gradient(lane, &both, split, u.block, u.first, u.last);
    }
}

static void steps_whole(const esper_lane *lane, int begin, int end)
{
    backward_steps(lane, false, begin, end);
}

static void steps_split(const esper_lane *lane, int begin, int end)
{
    backward_steps(lane, true, begin, end);
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
    {1, ESPER_WORK_CONV_Y, width, {convolve_split, parts}},
    {.width = NULL},
};

static const esper_ways ways_backward[] = {
    {3, ESPER_WORK_CONV_DX, width, {backward_split, count_blocks}},
    {.width = NULL},
};

static const esper_ways ways_backward_fine[] = {
    {4, ESPER_WORK_CONV_DX, width, {steps_split, steps_back}},
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
    .forward = {{pack, tiles},
                {convolve_whole, parts},
                {offer, channels},
                {choose_shared, channels},
                {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
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

static const esper_op_kernels fine = {
    .forward = {{pack, tiles}, {convolve_whole, parts}, {choose, channels}, {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
                 {take_sums, count_blocks},
                 {join_sums, channels},
                 {differentiate_planes, planes},
                 {steps_whole, steps_back},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward_fine,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(conv_norm) = {
    .forward = {{pack, tiles}, {convolve_whole, parts}, {choose, channels}, {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
                 {take_sums, count_blocks},
                 {join_sums, channels},
                 {backward_whole, count_blocks},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
    .shared = &shared,
    .fine = &fine,
};
