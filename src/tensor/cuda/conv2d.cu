/* Convolution in canonical layout: a thread has a pixel of y, or of the gradient of x; a block of threads a weight. */
#include "tensor/cuda/images.cuh"

/* The output pixels of a tap in one direction: those whose input, `step` further on, lies inside of the image. */
FUNCTION int first_of(int step)
{
    return step < 0 ? -step : 0;
}

FUNCTION int end_of(int step, int in, int out)
{
    return out < in - step ? out : in - step;
}

ESPER_KERNEL(esper_conv2d, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];
    int H = x->dim[1], W = x->dim[2], k = w->dim[2], per_group = w->dim[1], pad = lane->attr.conv.pad, n;
    int at = element_of(lane, (int)y->count, &n), o, i, j;
    const float *weights, *planes;
    float sum = 0;

    if (at < 0)
        return;
    o = at / (y->dim[1] * y->dim[2]);
    i = at / y->dim[2] % y->dim[1];
    j = at % y->dim[2];
    weights = (const float *)w->data + (size_t)o * per_group * k * k;
    planes = data_of(x, n) + (size_t)(o / (y->dim[0] / lane->attr.conv.groups)) * per_group * H * W;
    for (int c = 0; c < per_group; c++)
        for (int ky = 0; ky < k; ky++)
            for (int kx = 0; kx < k; kx++) {
                int iy = i + ky - pad, ix = j + kx - pad;

                if (iy >= 0 && iy < H && ix >= 0 && ix < W)
                    sum = fmaf(weights[(c * k + ky) * k + kx], planes[(c * H + iy) * W + ix], sum);
            }
    data_of(y, n)[at] = sum;
}

ESPER_KERNEL(esper_conv2d_back, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];
    int H = y->dim[1], W = y->dim[2], k = w->dim[2], per_group = w->dim[1], pad = lane->attr.conv.pad, n;
    int out_each = y->dim[0] / lane->attr.conv.groups, at = element_of(lane, (int)x->count, &n), c, i, j, first;
    const float *g;
    float sum = 0;

    if (at < 0)
        return;
    c = at / (x->dim[1] * x->dim[2]);
    i = at / x->dim[2] % x->dim[1];
    j = at % x->dim[2];
    first = c / per_group * out_each;
    g = grad_of(y, n);
    for (int o = first; o < first + out_each; o++)
        for (int ky = 0; ky < k; ky++)
            for (int kx = 0; kx < k; kx++) {
                int oy = i - ky + pad, ox = j - kx + pad;

                if (oy >= 0 && oy < H && ox >= 0 && ox < W)
                    sum = fmaf(((const float *)w->data)[((o * per_group + c % per_group) * k + ky) * k + kx],
                               g[(o * H + oy) * W + ox], sum);
            }
    put_grad(x, grad_of(x, n) + at, sum);
}

ESPER_KERNEL(esper_conv2d_weights, PLAIN_THREADS)
{
    __shared__ double room[PLAIN_THREADS / 32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];
    int k = w->dim[2], per_group = w->dim[1], tap = blockIdx.x % (k * k), pair = blockIdx.x / (k * k);
    int o = pair / per_group, c = pair % per_group + o / (y->dim[0] / lane->attr.conv.groups) * per_group;
    int step_y = tap / k - lane->attr.conv.pad, step_x = tap % k - lane->attr.conv.pad;
    int first_y = first_of(step_y), first_x = first_of(step_x);
    int rows = end_of(step_y, x->dim[1], y->dim[1]) - first_y, columns = end_of(step_x, x->dim[2], y->dim[2]) - first_x;
    int64_t n_pixels = (int64_t)(rows > 0 && columns > 0 ? rows * columns : 0) * lane->pass->n_samples;
    double sum = 0;

    if (blockIdx.x >= (unsigned)w->count)
        return;
    for (int64_t p = threadIdx.x; p < n_pixels; p += PLAIN_THREADS) {
        int n = (int)(p / (rows * columns)), at = (int)(p - (int64_t)n * rows * columns);
        int oy = first_y + at / columns, ox = first_x + at % columns;

        sum += (double)(grad_of(y, n)[(o * y->dim[1] + oy) * y->dim[2] + ox] *
                        data_of(x, n)[(c * x->dim[1] + oy + step_y) * x->dim[2] + ox + step_x]);
    }
    sum = block_sum<PLAIN_THREADS>(sum, room);
    if (threadIdx.x == 0)
        put_grad(w, (float *)w->grad + blockIdx.x, (float)sum);
}
