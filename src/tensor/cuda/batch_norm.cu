/* Batch norm in canonical layout: a block of threads has a channel, in two passes as the reference. Where the batch is spread over
 * ranks, a kernel before they meet leaves what the reference leaves, and the same kernels as ever find it. */
#include "tensor/cuda/images.cuh"

struct channel {
    int     c, plane;
    int64_t pixels; /* of the batch here */
};

FUNCTION channel channel_of(const esper_lane *lane)
{
    channel ch;

    ch.c = blockIdx.x;
    ch.plane = lane->in[0].dim[1] * lane->in[0].dim[2];
    ch.pixels = (int64_t)ch.plane * lane->pass->n_samples;
    return ch;
}

/* Where pixel p of the batch lies. */
FUNCTION size_t place_of(const esper_lane *lane, const channel &ch, int64_t p)
{
    int64_t n = p / ch.plane;

    return (size_t)(n * lane->in[0].count + (int64_t)ch.c * ch.plane + (p - n * ch.plane));
}

FUNCTION bool have_met(const esper_lane *lane)
{
    return lane->spread && lane_trains(lane);
}

FUNCTION void batch_statistics(const esper_lane *lane, const channel &ch, double *room, double *mean_out, double *var_out)
{
    const float *x = (const float *)lane->in[0].data;
    double sum = 0, squares = 0;

    for (int64_t p = threadIdx.x; p < ch.pixels; p += PLAIN_THREADS)
        sum += (double)x[place_of(lane, ch, p)];
    sum = sum_for_all(sum, room) / (double)ch.pixels;
    for (int64_t p = threadIdx.x; p < ch.pixels; p += PLAIN_THREADS) {
        double off = (double)x[place_of(lane, ch, p)] - sum;

        squares += off * off;
    }
    *mean_out = sum;
    *var_out = sum_for_all(squares, room) / (double)ch.pixels;
}

FUNCTION void gradient_sums(const esper_lane *lane, const channel &ch, double *room, double *g_out, double *gx_out)
{
    const float *x = (const float *)lane->in[0].data, *grad = (const float *)lane->out[0].grad;
    double mean = (double)((const float *)lane->out[1].data)[ch.c], sum_g = 0, sum_gx = 0;

    for (int64_t p = threadIdx.x; p < ch.pixels; p += PLAIN_THREADS) {
        size_t at = place_of(lane, ch, p);

        sum_g += (double)grad[at];
        sum_gx += (double)grad[at] * ((double)x[at] - mean);
    }
    *g_out = sum_for_all(sum_g, room);
    *gx_out = sum_for_all(sum_gx, room);
}

FUNCTION void put_values(const esper_lane *lane, const channel &ch, double first, double second)
{
    double *values = (double *)lane->scratch;

    if (threadIdx.x != 0)
        return;
    if (ch.c == 0)
        values[0] = (double)ch.pixels;
    values[1 + 2 * ch.c] = first;
    values[2 + 2 * ch.c] = second;
}

ESPER_KERNEL(esper_batch_norm_measure, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    channel ch = channel_of(lane);
    double mean, var, count = (double)ch.pixels;

    if (ch.c >= lane->in[0].dim[0] || !lane_trains(lane))
        return;
    batch_statistics(lane, ch, room, &mean, &var);
    put_values(lane, ch, mean * count, (var + mean * mean) * count);
}

ESPER_KERNEL(esper_batch_norm, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    channel ch = channel_of(lane);
    float *running_mean = (float *)lane->in[3].data, *running_var = (float *)lane->in[4].data, *y, used, factor, shift;
    const float *x;
    double mean, var, count = (double)ch.pixels, share = (double)lane->attr.norm.momentum, rstd;

    if (ch.c >= lane->in[0].dim[0])
        return;
    mean = (double)running_mean[ch.c];
    var = (double)running_var[ch.c];
    if (have_met(lane)) {
        const double *values = (const double *)lane->scratch;

        count = values[0];
        mean = values[1 + 2 * ch.c] / count;
        var = values[2 + 2 * ch.c] / count - mean * mean;
        var = var < 0 ? 0 : var;
    } else if (lane_trains(lane)) {
        batch_statistics(lane, ch, room, &mean, &var);
    }
    rstd = 1 / sqrt(var + (double)lane->attr.norm.eps);
    __syncthreads(); /* all have read the running ones */
    if (threadIdx.x == 0) {
        ((float *)lane->out[1].data)[ch.c] = (float)mean;
        ((float *)lane->out[2].data)[ch.c] = (float)rstd;
        if (lane_trains(lane)) {
            running_mean[ch.c] = (float)((1 - share) * (double)running_mean[ch.c] + share * mean);
            running_var[ch.c] = (float)((1 - share) * (double)running_var[ch.c] + share * (var * count / (count - 1)));
        }
    }
    used = (float)mean;
    factor = ((const float *)lane->in[1].data)[ch.c] * (float)rstd;
    shift = ((const float *)lane->in[2].data)[ch.c];
    x = (const float *)lane->in[0].data;
    y = (float *)lane->out[0].data;
    for (int64_t p = threadIdx.x; p < ch.pixels; p += PLAIN_THREADS) {
        size_t at = place_of(lane, ch, p);

        y[at] = fmaf(x[at] - used, factor, shift);
    }
}

ESPER_KERNEL(esper_batch_norm_sums, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    channel ch = channel_of(lane);
    double g, gx;

    if (ch.c >= lane->in[0].dim[0] || !lane_trains(lane))
        return;
    gradient_sums(lane, ch, room, &g, &gx);
    put_values(lane, ch, g, gx);
}

/* dx = scale / std * (g - mean of g - xhat * mean of g xhat); the two means are absent where statistics are fixed. All ranks have all
 * of the gradients of scale and shift: each gives its share. */
ESPER_KERNEL(esper_batch_norm_back, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *view = &lane->in[0], *scale = &lane->in[1], *shift = &lane->in[2];
    channel ch = channel_of(lane);
    const float *x = (const float *)view->data, *grad = (const float *)lane->out[0].grad;
    double g, gx, count = (double)ch.pixels, share;
    float mean, rstd, factor, mean_g = 0, slope = 0;

    if (ch.c >= view->dim[0])
        return;
    mean = ((const float *)lane->out[1].data)[ch.c];
    rstd = ((const float *)lane->out[2].data)[ch.c];
    if (have_met(lane)) {
        const double *values = (const double *)lane->scratch;

        count = values[0];
        g = values[1 + 2 * ch.c];
        gx = values[2 + 2 * ch.c];
    } else {
        gradient_sums(lane, ch, room, &g, &gx);
    }
    share = (double)ch.pixels / count;
    if (threadIdx.x == 0 && scale->grad != 0)
        put_grad(scale, (float *)scale->grad + ch.c, (float)(gx * share * (double)rstd));
    if (threadIdx.x == 0 && shift->grad != 0)
        put_grad(shift, (float *)shift->grad + ch.c, (float)(g * share));
    if (view->grad == 0)
        return;
    if (lane_trains(lane)) {
        mean_g = (float)(g / count);
        slope = (float)(gx / count * (double)rstd * (double)rstd);
    }
    factor = ((const float *)scale->data)[ch.c] * rstd;
    for (int64_t p = threadIdx.x; p < ch.pixels; p += PLAIN_THREADS) {
        size_t at = place_of(lane, ch, p);

        put_grad(view, (float *)view->grad + at, (grad[at] - mean_g - (x[at] - mean) * slope) * factor);
    }
}
