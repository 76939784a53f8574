/* Batch norm: each channel is normalised over all samples and pixels, so a channel is the unit of everything here.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * mean and var are the batch's own in training (and then move the running ones), the running ones otherwise. What was
 * used is left in out[1] (mean) and out[2] (1/std) for the backward pass. Statistics are summed in double, in two passes:
 * the variance of values far from zero would drown in one.
 *
 * Where the batch is spread over ranks, they meet once in each direction: forward with (count, then sum and sum of squares
 * of each channel), backward with (count, then sum of g and of g (x - mean) of each channel). A rank takes its squares about
 * its own mean and moves them to zero, which all ranks have in common. In double that costs the variance some m^2 2^-53 at
 * a mean of m: no more than the values' own rounding to float has added to it. */
#include <math.h>

#include "tensor/ref/sums.h"

/* One channel of a lane. */
typedef struct channel {
    size_t plane;  /* pixels in a sample */
    double count;  /* pixels in the batch */
    size_t offset; /* of the channel within a sample */
} channel;

static channel channel_of(const esper_lane *lane, int c)
{
    size_t plane = (size_t)lane->in[0].dim[1] * (size_t)lane->in[0].dim[2];

    return (channel){plane, (double)plane * lane->pass->n_samples, plane * (size_t)c};
}

static void batch_statistics(const esper_lane *lane, const channel *ch, double *mean_out, double *var_out)
{
    double sum = 0, squares = 0;

    for (int n = 0; n < lane->pass->n_samples; n++)
        sum += sum_of(data_at(&lane->in[0], n) + ch->offset, ch->plane);
    for (int n = 0; n < lane->pass->n_samples; n++)
        squares += sum_squares(data_at(&lane->in[0], n) + ch->offset, sum / ch->count, ch->plane);
    *mean_out = sum / ch->count;
    *var_out = squares / ch->count;
}

static void normalise(const esper_lane *lane, int c, const channel *ch, real mean, real rstd)
{
    real factor = ((const real *)lane->in[1].data)[c] * rstd, shift = ((const real *)lane->in[2].data)[c];

    for (int n = 0; n < lane->pass->n_samples; n++) {
        const real *x = data_at(&lane->in[0], n) + ch->offset;
        real *y = data_at(&lane->out[0], n) + ch->offset;

        for (size_t i = 0; i < ch->plane; i++)
            y[i] = (x[i] - mean) * factor + shift;
    }
}

/* Whether the ranks have met, in scratch, with what a channel of the whole batch comes to. */
static bool have_met(const esper_lane *lane)
{
    return lane->spread && esper_lane_trains(lane);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    real *mean_used = lane->out[1].data, *rstd_used = lane->out[2].data;
    real *running_mean = lane->in[3].data, *running_var = lane->in[4].data;
    double share = (double)lane->attr.norm.momentum;
    const double *sums = lane->scratch;

    for (int c = begin; c < end; c++) {
        channel ch = channel_of(lane, c);
        double mean = (double)running_mean[c], var = (double)running_var[c];

        if (have_met(lane)) {
            ch.count = sums[0];
            mean = sums[1 + 2 * c] / sums[0];
            var = sums[2 + 2 * c] / sums[0] - mean * mean;
            var = var < 0 ? 0 : var;
        } else if (esper_lane_trains(lane))
            batch_statistics(lane, &ch, &mean, &var);
        if (esper_lane_trains(lane)) {
            running_mean[c] = (real)((1 - share) * (double)running_mean[c] + share * mean);
            running_var[c] = (real)((1 - share) * (double)running_var[c] + share * (var * ch.count / (ch.count - 1)));
        }
        mean_used[c] = (real)mean;
        rstd_used[c] = (real)(1 / sqrt(var + (double)lane->attr.norm.eps));
        normalise(lane, c, &ch, mean_used[c], rstd_used[c]);
    }
}

/* dx = scale / std * (g - mean of g - xhat * mean of g xhat); the two means are absent when statistics are fixed. */
static void put_dx(const esper_lane *lane, const channel *ch, real mean, real factor, real mean_g, real slope)
{
    const esper_view *x = &lane->in[0];

    for (int n = 0; n < lane->pass->n_samples; n++) {
        const real *g = grad_at(&lane->out[0], n) + ch->offset;
        const real *value = data_at(x, n) + ch->offset;
        real *dx = grad_at(x, n) + ch->offset;

        for (size_t i = 0; i < ch->plane; i++)
            grad_put(x, &dx[i], (g[i] - mean_g - (value[i] - mean) * slope) * factor);
    }
}

/* Of a channel: of g, and of g (x - mean). */
typedef struct sums_of_g {
    double g, gx;
} sums_of_g;

static sums_of_g sum_gradients(const esper_lane *lane, int c, const channel *ch)
{
    real mean = ((const real *)lane->out[1].data)[c];
    sums_of_g sum = {0, 0};

    for (int n = 0; n < lane->pass->n_samples; n++) {
        const real *g = grad_at(&lane->out[0], n) + ch->offset;

        sum.g += sum_of(g, ch->plane);
        sum.gx += sum_product(g, data_at(&lane->in[0], n) + ch->offset, (double)mean, ch->plane);
    }
    return sum;
}

/* All ranks have all of the gradients of scale and shift, and as gradients are summed over ranks, each gives its share of
 * them. With equal shares of a power of two nothing is rounded: the sum is that of one rank. */
static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *scale = &lane->in[1], *shift = &lane->in[2];
    const double *sums = lane->scratch;

    for (int c = begin; c < end; c++) {
        real mean = ((const real *)lane->out[1].data)[c], rstd = ((const real *)lane->out[2].data)[c];
        real factor = ((const real *)scale->data)[c] * rstd, mean_g = 0, slope = 0;
        channel ch = channel_of(lane, c);
        sums_of_g sum = have_met(lane) ? (sums_of_g){sums[1 + 2 * c], sums[2 + 2 * c]} : sum_gradients(lane, c, &ch);
        double count = have_met(lane) ? sums[0] : ch.count, share = ch.count / count;

        if (scale->grad != NULL)
            grad_put(scale, (real *)scale->grad + c, (real)(sum.gx * share * (double)rstd));
        if (shift->grad != NULL)
            grad_put(shift, (real *)shift->grad + c, (real)(sum.g * share));
        if (esper_lane_trains(lane)) {
            mean_g = (real)(sum.g / count);
            slope = (real)(sum.gx / count * (double)rstd * (double)rstd);
        }
        if (lane->in[0].grad != NULL)
            put_dx(lane, &ch, mean, factor, mean_g, slope);
    }
}

/* ------------------------------------------------------------------------------------------------ over ranks */

/* Scratch is the values that ranks sum: the count of a channel, and two for each channel. */
static size_t sums(const esper_lane *lane, bool back, size_t *offset_out)
{
    (void)back;
    *offset_out = 0;
    return 1 + 2 * (size_t)lane->in[0].dim[0];
}

static size_t scratch(const esper_lane *lane, bool back, int max_samples)
{
    size_t offset;

    (void)max_samples;
    return lane->spread ? sums(lane, back, &offset) * sizeof(double) : 0;
}

static void put_values(const esper_lane *lane, int c, const channel *ch, double first, double second)
{
    double *to = lane->scratch;

    if (c == 0)
        to[0] = ch->count;
    to[1 + 2 * c] = first;
    to[2 + 2 * c] = second;
}

static void measure(const esper_lane *lane, int begin, int end)
{
    for (int c = begin; c < end; c++) {
        channel ch = channel_of(lane, c);
        double mean, var;

        batch_statistics(lane, &ch, &mean, &var);
        put_values(lane, c, &ch, mean * ch.count, (var + mean * mean) * ch.count);
    }
}

static void take_sums(const esper_lane *lane, int begin, int end)
{
    for (int c = begin; c < end; c++) {
        channel ch = channel_of(lane, c);
        sums_of_g sum = sum_gradients(lane, c, &ch);

        put_values(lane, c, &ch, sum.g, sum.gx);
    }
}

static const esper_op_kernels shared = {
    .forward = {{measure, units_of_channels}, {forward, units_of_channels}},
    .backward = {{take_sums, units_of_channels}, {backward, units_of_channels}},
    .scratch = scratch,
    .sums = sums,
    .summed_forward = 1,
    .summed_backward = 1,
};

const esper_op_kernels ESPER_OP_KERNELS(batch_norm) = {
    .forward = {{forward, units_of_channels}},
    .backward = {{backward, units_of_channels}},
    .scratch = scratch,
    .shared = &shared,
};
