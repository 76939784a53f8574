/* Batch norm by itself; where it follows a convolution, conv_norm.c does both. */
#include "tensor/cpu/blocks/batch_statistics.h"

/* dx_out: memory for a gradient that is to be added to another. */
static batch_norm norm_in(const esper_lane *lane, bool backward, int n_blocks, scratch_cursor *at, float **dx_out)
{
    batch_norm norm = {
        .scale = &lane->in[1],
        .shift = &lane->in[2],
        .mean = lane->in[3].data,
        .var = lane->in[4].data,
        .mean_used = lane->out[1].data,
        .rstd_used = lane->out[2].data,
        .channels = (size_t)lane->in[0].dim[0],
        .pixels = pixels_of(&lane->in[0]),
        .eps = lane->attr.norm.eps,
        .momentum = lane->attr.norm.momentum,
        .shared = lane->spread,
    };

    batch_norm_lay_out(&norm, backward, n_blocks, at);
    if (backward && lane->in[0].add)
        *dx_out = scratch_take(at, (size_t)n_blocks * block_size(&lane->in[0]) * sizeof(float));
    return norm;
}

static size_t scratch(const esper_lane *lane, bool backward, int max_samples)
{
    scratch_cursor count = scratch_count();
    float *dx;

    norm_in(lane, backward, esper_blocks_of(max_samples), &count, &dx);
    return count.used;
}

static batch_norm norm_of(const esper_lane *lane, bool backward)
{
    scratch_cursor at = scratch_of(lane);
    float *dx;

    return norm_in(lane, backward, count_blocks(lane), &at, &dx);
}

static int channels(const esper_lane *lane)
{
    return lane->in[0].dim[0];
}

static void measure(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, false);

    for (int b = begin; b < end && lane->pass->training; b++)
        batch_norm_measure(&norm, lane, b, 0, norm.channels, data_block(&lane->in[0], b));
}

static void choose(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, false);

    batch_norm_choose(&norm, lane, (size_t)begin, (size_t)end);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    batch_norm norm = norm_of(lane, false);

    for (int b = begin; b < end; b++)
        simd_norm_forward(data_block(x, b), x->dim[0], x->dim[1], x->dim[2], norm.mean_used, norm.factor,
                          lane->in[2].data, false, false, data_block(&lane->out[0], b));
}

static void take_sums(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    batch_norm norm = norm_of(lane, true);

    for (int b = begin; b < end; b++)
        simd_norm_sums(data_block(x, b), grad_block(&lane->out[0], b), x->dim[0], x->dim[1], x->dim[2], norm.mean_used,
                       norm.rstd_used, lane->in[2].data, false, false, samples_in(lane, b),
                       norm.sums + (size_t)b * norm.channels * 2);
}

static void join(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, true);

    batch_norm_factors(&norm, (size_t)begin, (size_t)end);
    batch_norm_join(&norm, lane, (size_t)begin, (size_t)end);
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    scratch_cursor at = scratch_of(lane);
    float *apart = NULL;
    batch_norm norm = norm_in(lane, true, count_blocks(lane), &at, &apart);

    for (int b = begin; b < end && x->grad != NULL; b++) {
        float *dx = grad_block(x, b), *to = x->add ? apart + (size_t)b * block_size(x) : dx;

        simd_norm_back(data_block(x, b), grad_block(&lane->out[0], b), x->dim[0], x->dim[1], x->dim[2], norm.mean_used,
                       norm.factor, lane->in[2].data, norm.mean_g, norm.slope, false, false, samples_in(lane, b), to);
        for (size_t i = 0; i < block_size(x) && x->add; i++)
            dx[i] += to[i];
    }
}

/* ------------------------------------------------------------------------------------------------ over ranks */

static size_t sums(const esper_lane *lane, bool back, size_t *offset_out)
{
    scratch_cursor count = scratch_count();
    uintptr_t base = count.base;
    float *dx;
    batch_norm norm = norm_in(lane, back, 1, &count, &dx);

    *offset_out = (uintptr_t)norm.values - base;
    return batch_norm_n_values(&norm);
}

static void offer(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, false);

    batch_norm_offer(&norm, lane, (size_t)begin, (size_t)end);
}

static void choose_shared(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, false);

    batch_norm_choose_shared(&norm, (size_t)begin, (size_t)end);
}

static void offer_back(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, true);

    batch_norm_offer_back(&norm, lane, (size_t)begin, (size_t)end);
}

static void join_shared(const esper_lane *lane, int begin, int end)
{
    batch_norm norm = norm_of(lane, true);

    batch_norm_factors(&norm, (size_t)begin, (size_t)end);
    batch_norm_join_shared(&norm, lane, (size_t)begin, (size_t)end);
}

static const esper_op_kernels shared = {
    .forward = {{measure, count_blocks}, {offer, channels}, {choose_shared, channels}, {forward, count_blocks}},
    .backward = {{take_sums, count_blocks}, {offer_back, channels}, {join_shared, channels}, {backward, count_blocks}},
    .scratch = scratch,
    .sums = sums,
    .summed_forward = 2,
    .summed_backward = 2,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(batch_norm) = {
    .forward = {{measure, count_blocks}, {choose, channels}, {forward, count_blocks}},
    .backward = {{take_sums, count_blocks}, {join, channels}, {backward, count_blocks}},
    .scratch = scratch,
    .shared = &shared,
};
