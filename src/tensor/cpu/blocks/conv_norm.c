/* Convolution, batch norm, and both in one with the ReLU and the max pool that may follow: conv2d, batch_norm, conv_norm.
 *
 * Forward: the convolution's output is written once, and each channel's mean and deviations are taken while it is in the
 * cache; when all blocks are done they are joined; then one pass over the output normalises, cuts and pools. Backward makes
 * the norm's output anew from the convolution's, which is all that was kept: one pass for the two sums that every gradient
 * depends on, and one for the gradient at the convolution's output, which is used at once, block by block, for the
 * gradients of weights and x.
 *
 * Where the batch is spread over ranks, the norm's statistics and its two sums are taken in halves, between which the ranks
 * meet with the values that tensor/ref/batch_norm.c defines. */
#include <assert.h>
#include <math.h>

#include "tensor/cpu/blocks/convolution.h"
#include "tensor/cpu/simd_norm.h"

/* A lane of one of the three: the parts it has, and where their pieces of scratch lie. */
typedef struct work {
    bool              has_conv, has_norm;
    convolution       conv;
    const esper_view *y;    /* the convolution's output, or what a norm by itself is given */
    simd_norm         norm; /* its factor lies in scratch: scale / std */
    const esper_view *scale, *shift;         /* (C) */
    float            *mean, *var;            /* (C) running */
    float            *mean_used, *rstd_used; /* (C) */
    float             eps, momentum;
    /* scratch */
    float        *packed;         /* weights, as the direction reads them */
    float        *factor;         /* (C) */
    double       *values;         /* (1 + 2 C) where the batch is spread: what ranks sum */
    simd_moments *moments;        /* (blocks, C) forward */
    float        *mean_g, *slope; /* (C) backward: what the batch takes from every gradient */
    double       *sums;           /* (blocks, C, 2) backward: of g, and of g (y - mean) */
    float        *partial;        /* backward: parts of the weights' gradient */
    float        *apart;          /* backward of a norm by itself: a gradient that is to be added to another */
} work;

static size_t n_values(const work *w)
{
    return 1 + 2 * (size_t)w->norm.C;
}

static void lay_out_norm(const esper_lane *lane, bool backward, size_t n_blocks, scratch_cursor *at, work *w)
{
    const esper_view *in = lane->in + w->has_conv, *out = lane->out + w->has_conv; /* behind the convolution's own */
    size_t C = (size_t)w->y->dim[0];

    assert(in[1].count == w->y->dim[0] && out[2].count == w->y->dim[0]);
    w->scale = &in[1];
    w->shift = &in[2];
    w->mean = in[3].data;
    w->var = in[4].data;
    w->mean_used = out[1].data;
    w->rstd_used = out[2].data;
    w->eps = w->has_conv ? lane->attr.conv_norm.eps : lane->attr.norm.eps;
    w->momentum = w->has_conv ? lane->attr.conv_norm.momentum : lane->attr.norm.momentum;
    w->norm = (simd_norm){.C = w->y->dim[0],
                          .H = w->y->dim[1],
                          .W = w->y->dim[2],
                          .mean = w->mean_used,
                          .shift = in[2].data,
                          .relu = w->has_conv && lane->attr.conv_norm.relu,
                          .pool = w->has_conv && lane->attr.conv_norm.pool};
    /* values before all that grows with the blocks: they lie where they lie, whatever the batch */
    w->norm.factor = w->factor = scratch_take(at, C * sizeof(float));
    w->values = scratch_take(at, lane->spread ? n_values(w) * sizeof(double) : 0);
    if (!backward) {
        w->moments = scratch_take(at, n_blocks * C * sizeof(simd_moments));
        return;
    }
    w->mean_g = scratch_take(at, C * sizeof(float));
    w->slope = scratch_take(at, C * sizeof(float));
    w->sums = scratch_take(at, n_blocks * C * 2 * sizeof(double));
}

static work lay_out(const esper_lane *lane, bool backward, int n_blocks, scratch_cursor *at)
{
    work w = {.has_conv = lane->in[1].rank == 4 /* weights */, .has_norm = lane->out[1].rank > 0};

    assert(w.has_conv || w.has_norm);
    w.y = !w.has_norm ? &lane->out[0] : w.has_conv ? &lane->out[1] : &lane->in[0];
    if (w.has_conv) {
        w.conv = convolution_of(&lane->in[0], &lane->in[1], w.y, lane->attr.conv.pad, lane->attr.conv.groups);
        w.packed = scratch_take(at, w.conv.depthwise ? 0 : (size_t)lane->in[1].count * sizeof(float));
    }
    if (w.has_norm)
        lay_out_norm(lane, backward, (size_t)n_blocks, at, &w);
    if (w.has_conv && backward)
        w.partial = scratch_take(at, weights_room(&lane->in[1], n_blocks) * sizeof(float));
    else if (backward && lane->in[0].add)
        w.apart = scratch_take(at, (size_t)n_blocks * block_size(&lane->in[0]) * sizeof(float));
    return w;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    scratch_cursor count = scratch_count();

    lay_out(lane, backward, esper_blocks_of(max_samples), &count);
    return count.used;
}

static work work_of(const esper_lane *lane, bool backward)
{
    scratch_cursor at = scratch_of(lane);

    return lay_out(lane, backward, count_blocks(lane), &at);
}

static int groups(const esper_lane *lane)
{
    return lane->attr.conv.groups;
}

/* Elements of a channel here: on all ranks together it is the first of the values. */
static double count_of(const work *w, const esper_lane *lane)
{
    return (double)pixels_of(w->y) * lane->pass->n_samples;
}

/* ------------------------------------------------------------------------------------------------ forward */

/* Units are tiles of output channels. */
static int tiles(const esper_lane *lane)
{
    work w = work_of(lane, false);

    return tiles_in(&w.conv, false);
}

static void pack(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, false);

    pack_weights(&w.conv, false, lane->in[1].data, tile_begin(&w.conv, false, begin), tile_begin(&w.conv, false, end),
                 w.packed);
}

/* Channels begin .. end-1 of a block. */
static void measure_channels(const work *w, const esper_lane *lane, int block, int begin, int end)
{
    const float *y = data_block(w->y, block);
    size_t pixels = pixels_of(w->y);

    for (size_t c = (size_t)begin; c < (size_t)end; c++)
        simd_norm_moments(y + c * pixels * SIMD_WIDTH, pixels, samples_in(lane, block),
                          &w->moments[(size_t)block * (size_t)w->norm.C + c]);
}

/* Units are parts of blocks. */
static int parts(const esper_lane *lane)
{
    work w = work_of(lane, false);

    return count_blocks(lane) * parts_in(&w.conv, false);
}

static void convolve_parts(const esper_lane *lane, bool split, int begin, int end)
{
    work w = work_of(lane, false);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, parts_in(&w.conv, false), &next);
        int first = part_begin(&w.conv, false, u.first), last = part_begin(&w.conv, false, u.last);

        convolve(&w.conv, false, split, data_block(&lane->in[0], u.block), lane->in[1].data, w.packed, first, last,
                 data_block(w.y, u.block), false);
        if (w.has_norm && esper_lane_trains(lane))
            measure_channels(&w, lane, u.block, first, last);
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

static void measure(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, false);

    for (int b = begin; b < end && esper_lane_trains(lane); b++)
        measure_channels(&w, lane, b, 0, w.norm.C);
}

/* A channel's sums over n_blocks blocks, of which these are the first. */
static simd_moments add_moments(const work *w, const simd_moments *blocks, int n_blocks)
{
    int half = blocks_in_half(n_blocks);
    simd_moments first, second;

    if (n_blocks == 1)
        return *blocks;
    first = add_moments(w, blocks, half);
    second = add_moments(w, blocks + (size_t)half * (size_t)w->norm.C, n_blocks - half);
    return (simd_moments){first.sum + second.sum, first.squares + second.squares};
}

static void put_values(const work *w, const esper_lane *lane, int c, double first, double second)
{
    if (c == 0)
        w->values[0] = count_of(w, lane);
    w->values[1 + 2 * c] = first;
    w->values[2 + 2 * c] = second;
}

/* Units are channels. Before the ranks meet: the sums of this one. */
static void offer(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, false);

    for (int c = begin; c < end; c++) {
        simd_moments sums = add_moments(&w, w.moments + c, count_blocks(lane));

        put_values(&w, lane, c, sums.sum, sums.squares);
    }
}

/* The statistics of the whole batch, on all ranks, which move the running ones. */
static void take_statistics(const work *w, const esper_lane *lane, int c, double *mean_out, double *var_out)
{
    double count = lane->spread ? w->values[0] : count_of(w, lane), share = (double)w->momentum;
    simd_moments of = lane->spread ? (simd_moments){w->values[1 + 2 * c], w->values[2 + 2 * c]}
                                   : add_moments(w, w->moments + c, count_blocks(lane));

    simd_norm_statistics(of, count, mean_out, var_out);
    w->mean[c] = (float)((1 - share) * (double)w->mean[c] + share * *mean_out);
    w->var[c] = (float)((1 - share) * (double)w->var[c] + share * (*var_out * count / (count - 1)));
}

/* Units are channels: the batch's statistics in training, otherwise the running ones. */
static void choose(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, false);

    for (int c = begin; c < end; c++) {
        double mean = (double)w.mean[c], var = (double)w.var[c];

        if (esper_lane_trains(lane))
            take_statistics(&w, lane, c, &mean, &var);
        w.mean_used[c] = (float)mean;
        w.rstd_used[c] = (float)(1 / sqrt(var + (double)w.eps));
        w.factor[c] = ((const float *)w.scale->data)[c] * w.rstd_used[c];
    }
}

static void normalise(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, false);

    for (int b = begin; b < end; b++)
        simd_norm_forward(&w.norm, data_block(w.y, b), data_block(&lane->out[0], b));
}

/* ------------------------------------------------------------------------------------------------ backward */

static int tiles_back(const esper_lane *lane)
{
    work w = work_of(lane, true);

    return tiles_in(&w.conv, true);
}

/* Units are tiles: what depends on the weights alone. */
static void prepare(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, true);

    if (lane->in[0].grad != NULL)
        pack_weights(&w.conv, true, lane->in[1].data, tile_begin(&w.conv, true, begin), tile_begin(&w.conv, true, end),
                     w.packed);
    for (int c = 0; c < w.norm.C && w.has_norm && begin == 0; c++)
        w.factor[c] = ((const float *)w.scale->data)[c] * w.rstd_used[c];
}

/* A norm by itself has its factors later: without ReLU and pool nobody looks at them here. */
static void take_sums(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, true);

    if (!w.has_conv)
        w.norm.factor = w.rstd_used;
    for (int b = begin; b < end; b++)
        simd_norm_sums(&w.norm, data_block(w.y, b), grad_block(&lane->out[0], b), samples_in(lane, b),
                       w.sums + (size_t)b * (size_t)w.norm.C * 2);
}

/* A channel's sum k over n_blocks blocks, of which these are the first. */
static double add_sums(const work *w, const double *blocks, int n_blocks)
{
    int half = blocks_in_half(n_blocks);

    if (n_blocks == 1)
        return *blocks;
    return add_sums(w, blocks, half) + add_sums(w, blocks + (size_t)half * (size_t)w->norm.C * 2, n_blocks - half);
}

/* Units are channels. Before the ranks meet: the sums of this one. */
static void offer_back(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, true);

    for (int c = begin; c < end; c++)
        put_values(&w, lane, c, add_sums(&w, w.sums + 2 * c, count_blocks(lane)),
                   add_sums(&w, w.sums + 2 * c + 1, count_blocks(lane)));
}

/* Units are channels: the gradients of scale and shift, and what the batch takes from every gradient. All ranks have all of
 * those gradients, and as gradients are summed over ranks, each gives its share of them. With equal shares of a power of two
 * nothing is rounded: the sum is that of one rank. */
static void join(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, true);
    bool training = esper_lane_trains(lane), shared = lane->spread && training;
    double here = count_of(&w, lane), count = shared ? w.values[0] : here, share = here / count;

    for (int c = begin; c < end; c++) {
        double g = shared ? w.values[1 + 2 * c] : add_sums(&w, w.sums + 2 * c, count_blocks(lane));
        double gy = shared ? w.values[2 + 2 * c] : add_sums(&w, w.sums + 2 * c + 1, count_blocks(lane));
        double rstd = (double)w.rstd_used[c];

        w.factor[c] = ((const float *)w.scale->data)[c] * w.rstd_used[c];
        if (w.scale->grad != NULL)
            grad_put(w.scale, (float *)w.scale->grad + c, (float)(gy * share * rstd));
        if (w.shift->grad != NULL)
            grad_put(w.shift, (float *)w.shift->grad + c, (float)(g * share));
        w.mean_g[c] = training ? (float)(g / count) : 0;
        w.slope[c] = training ? (float)(gy / count * rstd * rstd) : 0;
    }
}

/* The gradient at a normalised convolution's output takes that output's place: nobody needs it any more. */
static void differentiate(const work *w, const esper_lane *lane, int block, int begin, int end)
{
    simd_norm some = w->norm;
    float *dy = data_block(w->y, block) + (size_t)begin * simd_norm_size(&some, false);

    some.C = end - begin;
    some.mean += begin;
    some.factor += begin;
    some.shift += begin;
    simd_norm_back(&some, dy, grad_block(&lane->out[0], block) + (size_t)begin * simd_norm_size(&some, some.pool),
                   w->mean_g + begin, w->slope + begin, samples_in(lane, block), dy);
}

/* What the gradient there is good for: steps first .. last-1 of a block, the weights and then the parts of dx. */
static void use_gradient(const work *w, const esper_lane *lane, bool split, int block, int first, int last)
{
    const esper_view *x = &lane->in[0], *weights = &lane->in[1];
    const float *dy = w->has_norm ? data_block(w->y, block) : grad_block(w->y, block);

    if (first == 0 && weights->grad != NULL && !has_many_weights(weights))
        weights_of_block(&w->conv, data_block(x, block), dy, w->partial + (size_t)block * (size_t)weights->count);
    if (last > 1 && x->grad != NULL)
        convolve(&w->conv, true, split, dy, weights->data, w->packed,
                 part_begin(&w->conv, true, first > 1 ? first - 1 : 0), part_begin(&w->conv, true, last - 1),
                 grad_block(x, block), x->add);
}

static void backward_blocks(const esper_lane *lane, bool split, int begin, int end)
{
    work w = work_of(lane, true);

    for (int b = begin; b < end; b++) {
        differentiate(&w, lane, b, 0, w.norm.C);
        use_gradient(&w, lane, split, b, 0, 1 + parts_in(&w.conv, true));
    }
}

/* The two apart. Units are channels of blocks, and steps of blocks. */
static int planes(const esper_lane *lane)
{
    return count_blocks(lane) * units_of_channels(lane);
}

static void differentiate_planes(const esper_lane *lane, int begin, int end)
{
    work w = work_of(lane, true);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, w.norm.C, &next);

        differentiate(&w, lane, u.block, u.first, u.last);
    }
}

static int steps_back(const esper_lane *lane)
{
    work w = work_of(lane, true);

    return count_blocks(lane) * (1 + parts_in(&w.conv, true));
}

static void backward_steps(const esper_lane *lane, bool split, int begin, int end)
{
    work w = work_of(lane, true);

    for (int unit = begin, next; unit < end; unit = next) {
        block_units u = units_in_block(unit, end, 1 + parts_in(&w.conv, true), &next);

        use_gradient(&w, lane, split, u.block, u.first, u.last);
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
    work w = work_of(lane, true);

    put_weights(&w.conv, &lane->in[0], &lane->in[1], w.has_norm ? w.y->data : w.y->grad, block_size(w.y), w.partial,
                count_blocks(lane), begin, end);
}

/* A norm by itself. */
static void backward_norm(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    work w = work_of(lane, true);

    for (int b = begin; b < end && x->grad != NULL; b++) {
        float *dx = grad_block(x, b), *to = x->add ? w.apart + (size_t)b * block_size(x) : dx;

        simd_norm_back(&w.norm, data_block(x, b), grad_block(&lane->out[0], b), w.mean_g, w.slope, samples_in(lane, b),
                       to);
        for (size_t i = 0; i < block_size(x) && x->add; i++)
            dx[i] += to[i];
    }
}

/* ------------------------------------------------------------------------------------------------ tables */

/* Channels of one group, in or out: what the tune table calls the width. */
static int width(const esper_lane *lane)
{
    int in = lane->in[0].dim[0] / groups(lane), out = lane->out[0].dim[0] / groups(lane);

    return in > out ? in : out;
}

static size_t sums(const esper_lane *lane, bool backward, size_t *offset_out)
{
    scratch_cursor count = scratch_count();
    uintptr_t base = count.base;
    work w = lay_out(lane, backward, 1, &count);

    *offset_out = (uintptr_t)w.values - base;
    return n_values(&w);
}

/* The other way of a convolution, by the phase in which it stands. */
#define WAYS(name, phase, work, split, units)                                                           \
    static const esper_ways name[] = {{phase, work, width, {split, units}}, {.width = NULL}}

WAYS(ways_forward, 1, ESPER_WORK_CONV_Y, convolve_split, parts);
WAYS(ways_backward, 1, ESPER_WORK_CONV_DX, steps_split, steps_back);
WAYS(ways_backward_norm, 3, ESPER_WORK_CONV_DX, backward_split, count_blocks);
WAYS(ways_backward_fine, 4, ESPER_WORK_CONV_DX, steps_split, steps_back);
WAYS(ways_backward_shared, 4, ESPER_WORK_CONV_DX, backward_split, count_blocks);

const esper_op_kernels ESPER_BLOCK_KERNELS(conv2d) = {
    .forward = {{pack, tiles}, {convolve_whole, parts}},
    .backward = {{prepare, tiles_back}, {steps_whole, steps_back}, {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
};

static const esper_op_kernels norm_shared = {
    .forward = {{measure, count_blocks},
                {offer, units_of_channels},
                {choose, units_of_channels},
                {normalise, count_blocks}},
    .backward = {{take_sums, count_blocks},
                 {offer_back, units_of_channels},
                 {join, units_of_channels},
                 {backward_norm, count_blocks}},
    .scratch = scratch,
    .sums = sums,
    .summed_forward = 2,
    .summed_backward = 2,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(batch_norm) = {
    .forward = {{measure, count_blocks}, {choose, units_of_channels}, {normalise, count_blocks}},
    .backward = {{take_sums, count_blocks}, {join, units_of_channels}, {backward_norm, count_blocks}},
    .scratch = scratch,
    .shared = &norm_shared,
};

static const esper_op_kernels conv_norm_shared = {
    .forward = {{pack, tiles},
                {convolve_whole, parts},
                {offer, units_of_channels},
                {choose, units_of_channels},
                {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
                 {take_sums, count_blocks},
                 {offer_back, units_of_channels},
                 {join, units_of_channels},
                 {backward_whole, count_blocks},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward_shared,
    .sums = sums,
    .summed_forward = 3,
    .summed_backward = 3,
};

static const esper_op_kernels conv_norm_fine = {
    .forward = {{pack, tiles}, {convolve_whole, parts}, {choose, units_of_channels}, {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
                 {take_sums, count_blocks},
                 {join, units_of_channels},
                 {differentiate_planes, planes},
                 {steps_whole, steps_back},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward_fine,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(conv_norm) = {
    .forward = {{pack, tiles}, {convolve_whole, parts}, {choose, units_of_channels}, {normalise, count_blocks}},
    .backward = {{prepare, tiles_back},
                 {take_sums, count_blocks},
                 {join, units_of_channels},
                 {backward_whole, count_blocks},
                 {finish_weights, units_of_weights}},
    .scratch = scratch,
    .ways_forward = ways_forward,
    .ways_backward = ways_backward_norm,
    .shared = &conv_norm_shared,
    .fine = &conv_norm_fine,
};
