/* Group norm in canonical layout: a block of threads has a group of a sample, which lies in one piece; for the gradients of scale
 * and shift, a channel. */
#include "tensor/cuda/images.cuh"

ESPER_KERNEL(esper_group_norm, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int groups = lane->attr.norm.groups, n = blockIdx.x / groups, group = blockIdx.x % groups;
    int plane = x->dim[1] * x->dim[2], channels = x->dim[0] / groups, size = channels * plane;
    const float *scale = (const float *)lane->in[1].data + group * channels, *from;
    const float *shift = (const float *)lane->in[2].data + group * channels;
    double sum = 0, squares = 0;
    float *to, mean, rstd;

    if (n >= lane->pass->n_samples)
        return;
    from = data_of(x, n) + (size_t)group * size;
    to = data_of(&lane->out[0], n) + (size_t)group * size;
    for (int i = threadIdx.x; i < size; i += PLAIN_THREADS)
        sum += (double)from[i];
    sum = sum_for_all(sum, room) / size;
    for (int i = threadIdx.x; i < size; i += PLAIN_THREADS)
        squares += ((double)from[i] - sum) * ((double)from[i] - sum);
    squares = sum_for_all(squares, room) / size;
    mean = (float)sum;
    rstd = (float)(1 / sqrt(squares + (double)lane->attr.norm.eps));
    if (threadIdx.x == 0) {
        data_of(&lane->out[1], n)[2 * group] = mean;
        data_of(&lane->out[1], n)[2 * group + 1] = rstd;
    }
    for (int i = threadIdx.x; i < size; i += PLAIN_THREADS)
        to[i] = fmaf(from[i] - mean, scale[i / plane] * rstd, shift[i / plane]);
}

/* dx = (g scale - mean of g scale - xhat * mean of g scale xhat) / std, over one group. */
ESPER_KERNEL(esper_group_norm_back, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int groups = lane->attr.norm.groups, n = blockIdx.x / groups, group = blockIdx.x % groups;
    int plane = x->dim[1] * x->dim[2], channels = x->dim[0] / groups, size = channels * plane;
    const float *scale = (const float *)lane->in[1].data + group * channels, *value, *g;
    double sum_g = 0, sum_gx = 0;
    float mean, rstd, mean_g, slope, *to;

    if (n >= lane->pass->n_samples)
        return;
    value = data_of(x, n) + (size_t)group * size;
    g = grad_of(&lane->out[0], n) + (size_t)group * size;
    to = grad_of(x, n) + (size_t)group * size;
    mean = data_of(&lane->out[1], n)[2 * group];
    rstd = data_of(&lane->out[1], n)[2 * group + 1];
    for (int i = threadIdx.x; i < size; i += PLAIN_THREADS) {
        double scaled = (double)g[i] * (double)scale[i / plane];

        sum_g += scaled;
        sum_gx += scaled * ((double)value[i] - (double)mean);
    }
    sum_g = sum_for_all(sum_g, room);
    sum_gx = sum_for_all(sum_gx, room);
    mean_g = (float)(sum_g / size);
    slope = (float)(sum_gx / size * (double)rstd * (double)rstd);
    for (int i = threadIdx.x; i < size; i += PLAIN_THREADS)
        put_grad(x, to + i, (g[i] * scale[i / plane] - mean_g - (value[i] - mean) * slope) * rstd);
}

ESPER_KERNEL(esper_group_norm_params, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *scale = &lane->in[1], *shift = &lane->in[2];
    int plane = x->dim[1] * x->dim[2], c = blockIdx.x, group = c / (x->dim[0] / lane->attr.norm.groups);
    int64_t n_pixels = (int64_t)plane * lane->pass->n_samples;
    double sum_g = 0, sum_gx = 0;

    if (c >= x->dim[0])
        return;
    for (int64_t p = threadIdx.x; p < n_pixels; p += PLAIN_THREADS) {
        int n = (int)(p / plane), at = c * plane + (int)(p - (int64_t)n * plane);
        const float *stat = data_of(&lane->out[1], n) + 2 * group;
        double g = (double)grad_of(&lane->out[0], n)[at];

        sum_g += g;
        sum_gx += g * ((double)data_of(x, n)[at] - (double)stat[0]) * (double)stat[1];
    }
    sum_g = sum_for_all(sum_g, room);
    sum_gx = sum_for_all(sum_gx, room);
    if (threadIdx.x == 0 && scale->grad != 0)
        put_grad(scale, (float *)scale->grad + c, (float)sum_gx);
    if (threadIdx.x == 0 && shift->grad != 0)
        put_grad(shift, (float *)shift->grad + c, (float)sum_g);
}
