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

static void pack(const esper_lane *lane, int begin, int end)
{
    convolution v = convolution_in(lane);

    pack_weights(&v, lane->in[1].data, begin, end, pieces_of(lane, false).packed);
}

static void forward(const esper_lane *lane, bool split, int begin, int end)
{
    convolution v = convolution_in(lane);
    pieces p = pieces_of(lane, false);

    for (int b = begin; b < end; b++)
        convolve(&v, split, data_block(&lane->in[0], b), lane->in[1].data, p.packed, data_block(&lane->out[0], b));
}

static void forward_whole(const esper_lane *lane, int begin, int end)
{
    forward(lane, false, begin, end);
}

static void forward_split(const esper_lane *lane, int begin, int end)
{
    forward(lane, true, begin, end);
}

static void pack_back(const esper_lane *lane, int begin, int end)
{
    convolution v = convolution_in(lane);

    if (lane->in[0].grad != NULL)
        pack_weights_back(&v, lane->in[1].data, begin, end, pieces_of(lane, true).packed);
}

static void backward(const esper_lane *lane, bool split, int begin, int end)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1];
    convolution v = convolution_in(lane);
    pieces p = pieces_of(lane, true);

    for (int b = begin; b < end; b++) {
        const float *g = grad_block(&lane->out[0], b);

        if (w->grad != NULL && !has_many_weights(w))
            weights_of_block(&v, data_block(x, b), g, p.partial + (size_t)b * (size_t)w->count);
        if (x->grad != NULL)
            convolve_back(&v, split, g, w->data, p.packed, grad_block(x, b), x->add);
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
    {1, ESPER_WORK_CONV_Y, width, {forward_split, count_blocks}},
    {.width = NULL},
};

static const esper_ways ways_backward[] = {
    {1, ESPER_WORK_CONV_DX, width, {backward_split, count_blocks}},
    {.width = NULL},
};

const esper_op_kernels ESPER_BLOCK_KERNELS(conv2d) = {
    .forward = {{pack, groups}, {forward_whole, count_blocks}},
    .backward = {{pack_back, groups}, {backward_whole, count_blocks}, {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
};
