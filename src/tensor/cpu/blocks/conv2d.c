/* Convolution by itself; where a batch norm follows, conv_norm.c does both. */
#include "tensor/cpu/blocks/convolution.h"

/* What lies in scratch. */
typedef struct pieces {
    float *packed;  /* weights, as the direction reads them */
    float *partial; /* backward: parts of the weights' gradient */
} pieces;

static convolution convolution_in(const esper_lane *lane)
{
    return convolution_of(&lane->in[0], &lane->in[1], &lane->out[0], lane->attr.conv.pad, lane->attr.conv.groups);
}

static pieces lay_out(const esper_lane *lane, bool backward, int n_blocks, scratch_cursor *at)
{
    convolution v = convolution_in(lane);
    pieces p = {.packed = scratch_take(at, packed_all(&v, backward) * sizeof(float))};

    if (backward)
        p.partial = scratch_take(at, weights_room(&lane->in[1], n_blocks) * sizeof(float));
    return p;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    scratch_cursor count = scratch_count();

    lay_out(lane, backward, esper_blocks_of(max_samples), &count);
    return count.used;
}

static pieces pieces_of(const esper_lane *lane, bool backward)
{
    scratch_cursor at = scratch_of(lane);

    return lay_out(lane, backward, count_blocks(lane), &at);
}

static int groups(const esper_lane *lane)
{
    return lane->attr.conv.groups;
}

/* ------------------------------------------------------------------------------------------------ forward */

static int tiles(const esper_lane *lane)
{
    convolution v = convolution_in(lane);

    return tiles_in(&v, false);
}

static void pack(const esper_lane *lane, int begin, int end)
{
    convolution v = convolution_in(lane);

    pack_weights(&v, lane->in[1].data, tile_begin(&v, false, begin), tile_begin(&v, false, end),
                 pieces_of(lane, false).packed);
}

static int parts(const esper_lane *lane)
{
    convolution v = convolution_in(lane);

    return count_blocks(lane) * parts_in(&v, false);
}

static void forward(const esper_lane *lane, bool split, int begin, int end)
{
    convolution v = convolution_in(lane);
    pieces p = pieces_of(lane, false);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, parts_in(&v, false), &next);

        convolve(&v, split, data_block(&lane->in[0], u.block), lane->in[1].data, p.packed,
                 part_begin(&v, false, u.first), part_begin(&v, false, u.last), data_block(&lane->out[0], u.block));
    }
}

static void forward_whole(const esper_lane *lane, int begin, int end)
{
    forward(lane, false, begin, end);
}

static void forward_split(const esper_lane *lane, int begin, int end)
{
    forward(lane, true, begin, end);
}

/* ------------------------------------------------------------------------------------------------ backward */

static int tiles_back(const esper_lane *lane)
{
    convolution v = convolution_in(lane);

    return tiles_in(&v, true);
}

static void pack_back(const esper_lane *lane, int begin, int end)
{
    convolution v = convolution_in(lane);

    if (lane->in[0].grad != NULL)
        pack_weights_back(&v, lane->in[1].data, tile_begin(&v, true, begin), tile_begin(&v, true, end),
                          pieces_of(lane, true).packed);
}

/* Of each block first the weights, then the parts of dx. */
static int steps_back(const esper_lane *lane)
{
    convolution v = convolution_in(lane);

    return count_blocks(lane) * (1 + parts_in(&v, true));
}

static void backward(const esper_lane *lane, bool split, int begin, int end)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1];
    convolution v = convolution_in(lane);
    pieces p = pieces_of(lane, true);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, 1 + parts_in(&v, true), &next);
        const float *g = grad_block(&lane->out[0], u.block);

        if (u.first == 0 && w->grad != NULL && !has_many_weights(w))
            weights_of_block(&v, data_block(x, u.block), g, p.partial + (size_t)u.block * (size_t)w->count);
        if (u.last > 1 && x->grad != NULL)
            convolve_back(&v, split, g, w->data, p.packed, part_begin(&v, true, u.first > 1 ? u.first - 1 : 0),
                          part_begin(&v, true, u.last - 1), grad_block(x, u.block), x->add);
    }
}

static void backward_whole(const esper_lane *lane, int begin, int end)
{
    backward(lane, false, begin, end);
}

static void backward_split(const esper_lane *lane, int begin, int end)
{
    backward(lane, true, begin, end);
}

static int units_of_weights(const esper_lane *lane)
{
    return weight_units(&lane->in[1]);
}

static void finish_weights(const esper_lane *lane, int begin, int end)
{
    convolution v = convolution_in(lane);

    put_weights(&v, &lane->in[0], &lane->in[1], lane->out[0].grad, block_size(&lane->out[0]),
                pieces_of(lane, true).partial, count_blocks(lane), begin, end);
}

static int width(const esper_lane *lane)
{
    return convolution_width(lane, &lane->out[0], groups(lane));
}

static const esper_ways ways_forward[] = {
    {1, ESPER_WORK_CONV_Y, width, {forward_split, parts}},
    {.width = NULL},
};

static const esper_ways ways_backward[] = {
    {1, ESPER_WORK_CONV_DX, width, {backward_split, steps_back}},
    {.width = NULL},
};

const esper_op_kernels ESPER_BLOCK_KERNELS(conv2d) = {
    .forward = {{pack, tiles}, {forward_whole, parts}},
    .backward = {{pack_back, tiles_back}, {backward_whole, steps_back}, {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
};
