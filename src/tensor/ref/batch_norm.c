/* Batch norm: each channel is normalised over all samples and pixels, so a channel is the unit of everything here.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * mean and var are the batch's own in training (and then move the running ones), the running ones otherwise. What was
 * used is left in out[1] (mean) and out[2] (1/std) for the backward pass. Statistics are summed in double, in two passes:
 * the variance of values far from zero would drown in one. */
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

static void move_running(const esper_lane *lane, int c, const channel *ch, double mean, double var)
{
    real *running_mean = (real *)lane->in[3].data + c, *running_var = (real *)lane->in[4].data + c;
    double share = (double)lane->attr.norm.momentum;

    *running_mean = (real)((1 - share) * (double)*running_mean + share * mean);
    *running_var = (real)((1 - share) * (double)*running_var + share * (var * ch->count / (ch->count - 1)));
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

static void forward(const esper_lane *lane, int begin, int end)
{
    real *mean_used = lane->out[1].data, *rstd_used = lane->out[2].data;

    for (int c = begin; c < end; c++) {
        channel ch = channel_of(lane, c);
        double mean = (double)((const real *)lane->in[3].data)[c], var = (double)((const real *)lane->in[4].data)[c];

        if (lane->pass->training) {
            batch_statistics(lane, &ch, &mean, &var);
            move_running(lane, c, &ch, mean, var);
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

static void backward_channel(const esper_lane *lane, int c)
{
    const esper_view *scale = &lane->in[1], *shift = &lane->in[2];
    real mean = ((const real *)lane->out[1].data)[c], rstd = ((const real *)lane->out[2].data)[c];
    real factor = ((const real *)scale->data)[c] * rstd;
    channel ch = channel_of(lane, c);
    double sum_g = 0, sum_gx = 0; /* of g, and of g (x - mean) */

    for (int n = 0; n < lane->pass->n_samples; n++) {
        const real *g = grad_at(&lane->out[0], n) + ch.offset;

        sum_g += sum_of(g, ch.plane);
        sum_gx += sum_product(g, data_at(&lane->in[0], n) + ch.offset, (double)mean, ch.plane);
    }
    if (lane->in[0].grad != NULL && lane->pass->training)
        put_dx(lane, &ch, mean, factor, (real)(sum_g / ch.count),
               (real)(sum_gx / ch.count * (double)rstd * (double)rstd));
    else if (lane->in[0].grad != NULL)
        put_dx(lane, &ch, mean, factor, 0, 0);
    if (scale->grad != NULL)
        grad_put(scale, (real *)scale->grad + c, (real)(sum_gx * (double)rstd));
    if (shift->grad != NULL)
        grad_put(shift, (real *)shift->grad + c, (real)sum_g);
}

static void backward(const esper_lane *lane, int begin, int end)
{
    for (int c = begin; c < end; c++)
        backward_channel(lane, c);
}

static int channels(const esper_lane *lane)
{
    return lane->in[0].dim[0];
}

const esper_op_kernels ESPER_OP_KERNELS(batch_norm) = {
    .forward = {{forward, channels}},
    .backward = {{backward, channels}},
};
