/* Global mean in canonical layout, over pixels or tokens: a thread has a mean, whose elements lie `step` apart. */
#include "tensor/cuda/images.cuh"

ESPER_KERNEL(esper_global_mean, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    int results = (int)y->count, each = (int)(x->count / y->count), n, at = element_of(lane, results, &n);
    bool over_pixels = x->rank == 3;
    int step = over_pixels ? 1 : results;
    const float *from;
    double sum = 0;

    if (at < 0)
        return;
    from = data_of(x, n) + (over_pixels ? (size_t)at * each : (size_t)at);
    for (int i = 0; i < each; i++)
        sum += (double)from[(size_t)i * step];
    data_of(y, n)[at] = (float)(sum / each);
}

ESPER_KERNEL(esper_global_mean_back, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    int results = (int)y->count, each = (int)(x->count / y->count), n, at = element_of(lane, (int)x->count, &n);

    if (at < 0)
        return;
    put_grad(x, grad_of(x, n) + at, grad_of(y, n)[x->rank == 3 ? at / each : at % results] * (1 / (float)each));
}
