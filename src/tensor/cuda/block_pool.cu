/* Max pool and global mean on blocks of samples. */
#include "tensor/cuda/block_norm.cuh"

/* Four samples of a window are an item, of the whole windows or of all that have a pixel. */
struct window {
    int at, out, rows, columns;
};

FUNCTION window window_of(const esper_view *x, bool whole, int item)
{
    int H = x->dim[1], W = x->dim[2], h = whole ? H / 2 : (H + 1) / 2, w = whole ? W / 2 : (W + 1) / 2;
    int place = item / BLOCK_QUADS, sample = item % BLOCK_QUADS * 4, c = place / (h * w), row, column;
    window found;

    place -= c * h * w;
    row = place / w;
    column = place - row * w;
    found.rows = min(2, H - 2 * row);
    found.columns = min(2, W - 2 * column);
    found.at = ((c * H + 2 * row) * W + 2 * column) * ESPER_CUDA_BLOCK + sample;
    found.out = found.rows + found.columns == 4 ? ((c * (H / 2) + row) * (W / 2) + column) * ESPER_CUDA_BLOCK + sample : -1;
    return found;
}

FUNCTION int windows_of(const esper_view *x, bool whole)
{
    int H = x->dim[1], W = x->dim[2];

    return x->dim[0] * (whole ? (H / 2) * (W / 2) : ((H + 1) / 2) * ((W + 1) / 2));
}

ESPER_KERNEL(esper_block_max_pool, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int items = windows_of(x, true) * BLOCK_QUADS, per_block = block_divide(items, BLOCK_THREADS);
    int block = blockIdx.x / per_block, item = (blockIdx.x - block * per_block) * BLOCK_THREADS + threadIdx.x;
    int row = x->dim[2] * ESPER_CUDA_BLOCK;
    const float *from;
    quad a, b, c, d, most;
    window at;

    if (block >= blocks_of(lane) || item >= items)
        return;
    at = window_of(x, true, item);
    from = data_block(x, block) + at.at;
    a = load_quad(from);
    b = load_quad(from + ESPER_CUDA_BLOCK);
    c = load_quad(from + row);
    d = load_quad(from + row + ESPER_CUDA_BLOCK);
#pragma unroll
    for (int i = 0; i < 4; i++)
        winner_of(a.v[i], b.v[i], c.v[i], d.v[i], &most.v[i]);
    store_quad(data_block(&lane->out[0], block) + at.out, most);
}

ESPER_KERNEL(esper_block_max_pool_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int items = windows_of(x, false) * BLOCK_QUADS, per_block = block_divide(items, BLOCK_THREADS);
    int block = blockIdx.x / per_block, item = (blockIdx.x - block * per_block) * BLOCK_THREADS + threadIdx.x;
    int row = x->dim[2] * ESPER_CUDA_BLOCK, winner[4] = {-1, -1, -1, -1};
    const float *from;
    quad g = {{0, 0, 0, 0}};
    float *to;
    window at;

    if (block >= blocks_of(lane) || item >= items)
        return;
    at = window_of(x, false, item);
    from = data_block(x, block) + at.at;
    to = grad_block(x, block) + at.at;
    if (at.out >= 0) {
        quad a = load_quad(from), b = load_quad(from + ESPER_CUDA_BLOCK), c = load_quad(from + row),
             d = load_quad(from + row + ESPER_CUDA_BLOCK);
        float most;

        g = load_quad(grad_block(&lane->out[0], block) + at.out);
#pragma unroll
        for (int i = 0; i < 4; i++)
            winner[i] = winner_of(a.v[i], b.v[i], c.v[i], d.v[i], &most);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        quad own;

        if (j / 2 >= at.rows || j % 2 >= at.columns)
            continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            own.v[i] = winner[i] == j ? g.v[i] : 0.0f;
        put_quad(to + j / 2 * row + j % 2 * ESPER_CUDA_BLOCK, x->add, own);
    }
}

/* A warp has a channel of a block of samples. Sums of a few pixels in float are added up in double. */
ESPER_KERNEL(esper_block_global_mean, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int C = x->dim[0], pixels = x->dim[1] * x->dim[2], unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;
    int block = unit / C, c = unit - block * C, sample = threadIdx.x % 32, i = 0;
    const float *plane;
    double sum = 0;

    if (block >= blocks_of(lane))
        return;
    plane = data_block(x, block) + (size_t)c * pixels * ESPER_CUDA_BLOCK + sample;
    for (; i + 8 <= pixels; i += 8) {
        float v[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = plane[(i + j) * ESPER_CUDA_BLOCK];
        sum += (double)(((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])));
    }
    for (; i < pixels; i++)
        sum += (double)plane[i * ESPER_CUDA_BLOCK];
    data_block(&lane->out[0], block)[c * ESPER_CUDA_BLOCK + sample] = (float)(sum / pixels);
}

ESPER_KERNEL(esper_block_global_mean_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int pixels = x->dim[1] * x->dim[2], items = x->dim[0] * pixels * BLOCK_QUADS;
    int per_block = block_divide(items, BLOCK_THREADS), block = blockIdx.x / per_block;
    int item = (blockIdx.x - block * per_block) * BLOCK_THREADS + threadIdx.x;
    float part = 1 / (float)pixels;
    quad g;

    if (block >= blocks_of(lane) || item >= items)
        return;
    g = load_quad(grad_block(&lane->out[0], block) +
                  (item / (BLOCK_QUADS * pixels) * BLOCK_QUADS + item % BLOCK_QUADS) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
        g.v[i] *= part;
    put_quad(grad_block(x, block) + (size_t)item * 4, x->add, g);
}
