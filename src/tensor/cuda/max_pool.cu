/* Max pool in canonical layout: a thread has a window. */
#include "tensor/cuda/block_norm.cuh"
#include "tensor/cuda/images.cuh"

ESPER_KERNEL(esper_max_pool, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    int W = x->dim[2], n, at = element_of(lane, (int)y->count, &n);
    const float *from;

    if (at < 0)
        return;
    from = data_of(x, n) + ((size_t)(at / (y->dim[1] * y->dim[2])) * x->dim[1] + at / y->dim[2] % y->dim[1] * 2) * W +
           at % y->dim[2] * 2;
    winner_of(from[0], from[1], from[W], from[W + 1], data_of(y, n) + at);
}

/* Pixels of the last odd row or column have no gradient. */
ESPER_KERNEL(esper_max_pool_back, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    int H = x->dim[1], W = x->dim[2], n, at = element_of(lane, (int)x->count, &n), c, i, j;
    const float *from;
    float g = 0, most;

    if (at < 0)
        return;
    c = at / (H * W);
    i = at / W % H;
    j = at % W;
    if (i / 2 < y->dim[1] && j / 2 < y->dim[2]) {
        from = data_of(x, n) + ((size_t)c * H + i / 2 * 2) * W + j / 2 * 2;
        if (winner_of(from[0], from[1], from[W], from[W + 1], &most) == i % 2 * 2 + j % 2)
            g = grad_of(y, n)[(c * y->dim[1] + i / 2) * y->dim[2] + j / 2];
    }
    put_grad(x, grad_of(x, n) + at, g);
}
