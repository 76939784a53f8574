/* To words of two channels (block_half.h) and from them: canonical layout, blocks of floats; and the mean over an image, whose results are
 * floats. Samples beyond the batch become 0. */
#include "tensor/cuda/block_half.cuh"

typedef float half_tile[2][32][ESPER_CUDA_BLOCK + 1]; /* [channel of the pair][sample][pixel] */

enum { HALF_ROWS = BLOCK_GROUP_THREADS / 32 };

/* Which 32 pixels of which pair of channels of which block of samples. */
struct pixels_place {
    int block, pair, pixel, plane;
};

FUNCTION pixels_place pixels_of(const esper_view *x, int unit)
{
    int plane = x->dim[1] * x->dim[2], tiles = block_divide(plane, 32);
    pixels_place p;

    p.plane = plane;
    p.pixel = unit % tiles * 32;
    unit /= tiles;
    p.pair = unit % half_pairs(x->dim[0]);
    p.block = unit / half_pairs(x->dim[0]);
    return p;
}

/* From canonical layout. */
FUNCTION void to_words(const esper_lane *lane, const esper_view *x, const pixels_place &p, const float *from, unsigned *words, bool add,
                       half_tile &tile)
{
    int row = threadIdx.x / 32, column = threadIdx.x % 32, valid;

    if (p.block >= blocks_of(lane))
        return;
    valid = samples_in(lane, p.block);
#pragma unroll
    for (int k = 0; k < 64 / HALF_ROWS; k++) {
        int i = row + k * HALF_ROWS, channel = 2 * p.pair + i / 32, s = i % 32;
        bool is = s < valid && p.pixel + column < p.plane && channel < x->dim[0];

        tile[i / 32][s][column] =
            is ? from[((size_t)p.block * ESPER_CUDA_BLOCK + s) * x->count + (size_t)channel * p.plane + p.pixel + column] : 0.0f;
    }
    __syncthreads();
    words += ((size_t)p.pair * p.plane + p.pixel) * ESPER_CUDA_BLOCK + column;
#pragma unroll
    for (int k = 0; k < 32 / HALF_ROWS; k++) {
        int e = row + k * HALF_ROWS;
        unsigned *one = words + e * ESPER_CUDA_BLOCK;
        float low = tile[0][column][e], high = tile[1][column][e];

        if (p.pixel + e < p.plane)
            *one = add ? bf16_pack(bf16_low(*one) + low, bf16_high(*one) + high) : bf16_pack(low, high);
    }
}

/* To canonical layout: the samples of the batch alone. */
FUNCTION void from_words(const esper_lane *lane, const esper_view *x, const unsigned *words, float *to, half_tile &tile)
{
    pixels_place p = pixels_of(x, blockIdx.x);
    int row = threadIdx.x / 32, column = threadIdx.x % 32, valid;

    if (p.block >= blocks_of(lane))
        return;
    valid = samples_in(lane, p.block);
    words += ((size_t)p.pair * p.plane + p.pixel) * ESPER_CUDA_BLOCK + column;
#pragma unroll
    for (int k = 0; k < 32 / HALF_ROWS; k++) {
        int e = row + k * HALF_ROWS;
        unsigned word = p.pixel + e < p.plane ? words[e * ESPER_CUDA_BLOCK] : 0;

        tile[0][column][e] = bf16_low(word);
        tile[1][column][e] = bf16_high(word);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 64 / HALF_ROWS; k++) {
        int i = row + k * HALF_ROWS, channel = 2 * p.pair + i / 32, s = i % 32;

        if (s < valid && p.pixel + column < p.plane && channel < x->dim[0])
            to[((size_t)p.block * ESPER_CUDA_BLOCK + s) * x->count + (size_t)channel * p.plane + p.pixel + column] = tile[i / 32][s][column];
    }
}

ESPER_KERNEL(esper_half_pack, BLOCK_GROUP_THREADS)
{
    __shared__ half_tile tile;
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];

    int n_tiles = blocks_of(lane) * half_pairs(x->dim[0]) * block_divide(x->dim[1] * x->dim[2], 32);

    if (lane->attr.pack.of_batch && lane->pass->packed)
        return;
    for (int unit = blockIdx.x; unit < n_tiles; unit += gridDim.x) {
        pixels_place p = pixels_of(x, unit);

        to_words(lane, x, p, (const float *)x->data, data_words(&lane->out[0], p.block), false, tile);
        __syncthreads();
    }
}

/* Nobody writes the gradient of an input before this: it is not added to. */
ESPER_KERNEL(esper_half_pack_back, BLOCK_GROUP_THREADS)
{
    __shared__ half_tile tile;
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];

    from_words(lane, x, grad_words(&lane->out[0], pixels_of(x, blockIdx.x).block), (float *)x->grad, tile);
}

ESPER_KERNEL(esper_half_unpack, BLOCK_GROUP_THREADS)
{
    __shared__ half_tile tile;
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];

    from_words(lane, x, data_words(x, pixels_of(x, blockIdx.x).block), (float *)lane->out[0].data, tile);
}

ESPER_KERNEL(esper_half_unpack_back, BLOCK_GROUP_THREADS)
{
    __shared__ half_tile tile;
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];

    to_words(lane, x, pixels_of(x, blockIdx.x), (const float *)lane->out[0].grad, grad_words(x, pixels_of(x, blockIdx.x).block), x->add, tile);
}

/* ------------------------------------------------------------------------------------------------ blocks of floats */

/* Four samples of a pair of channels at a pixel: where they are in words, and their floats in a block's. */
struct four_place {
    int  block;
    int  word, low, high; /* high: -1 where the channel is not there */
};

/* block -1: there is nothing to do. */
FUNCTION four_place four_of(const esper_lane *lane, const esper_view *x)
{
    int plane = x->dim[1] * x->dim[2], items = half_pairs(x->dim[0]) * plane * BLOCK_QUADS;
    int per_block = block_divide(items, BLOCK_THREADS), block = blockIdx.x / per_block;
    int item = (blockIdx.x - block * per_block) * BLOCK_THREADS + threadIdx.x, pair = item / (plane * BLOCK_QUADS);
    four_place p;

    p.block = block < blocks_of(lane) && item < items ? block : -1;
    p.word = item * 4;
    p.low = p.word + pair * plane * ESPER_CUDA_BLOCK;
    p.high = 2 * pair + 1 < x->dim[0] ? p.low + plane * ESPER_CUDA_BLOCK : -1;
    return p;
}

FUNCTION void widen(const four_place &p, const unsigned *from, float *to, bool add)
{
    oct x = load_oct(from + p.word);
    quad q;

#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            q.v[i] = x.v[c][i];
        if (c == 0 || p.high >= 0)
            put_quad(to + (c == 0 ? p.low : p.high), add, q);
    }
}

FUNCTION void narrow(const four_place &p, const float *from, unsigned *to, bool add)
{
    quad low = load_quad(from + p.low), high = {};
    oct x;

    if (p.high >= 0)
        high = load_quad(from + p.high);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.v[0][i] = low.v[i];
        x.v[1][i] = high.v[i];
    }
    put_oct(to + p.word, add, x);
}

ESPER_KERNEL(esper_half_narrow, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    four_place p = four_of(lane, &lane->in[0]);

    if (p.block >= 0)
        narrow(p, data_block(&lane->in[0], p.block), data_words(&lane->out[0], p.block), false);
}

ESPER_KERNEL(esper_half_narrow_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    four_place p = four_of(lane, &lane->in[0]);

    if (p.block >= 0)
        widen(p, grad_words(&lane->out[0], p.block), grad_block(&lane->in[0], p.block), lane->in[0].add);
}

ESPER_KERNEL(esper_half_widen, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    four_place p = four_of(lane, &lane->in[0]);

    if (p.block >= 0)
        widen(p, data_words(&lane->in[0], p.block), data_block(&lane->out[0], p.block), false);
}

ESPER_KERNEL(esper_half_widen_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    four_place p = four_of(lane, &lane->in[0]);

    if (p.block >= 0)
        narrow(p, grad_block(&lane->out[0], p.block), grad_words(&lane->in[0], p.block), lane->in[0].add);
}

/* ------------------------------------------------------------------------------------------------ mean */

/* A warp has a pair of channels of a block of samples. */
ESPER_KERNEL(esper_half_global_mean, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int pairs = half_pairs(x->dim[0]), pixels = x->dim[1] * x->dim[2], unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;
    int block = unit / pairs, pair = unit - block * pairs, sample = threadIdx.x % 32;
    float low = 0, high = 0, *to;

    if (block >= blocks_of(lane))
        return;
    const unsigned *plane = data_words(x, block) + (size_t)pair * pixels * ESPER_CUDA_BLOCK + sample;

#pragma unroll 8
    for (int i = 0; i < pixels; i++) {
        unsigned word = plane[i * ESPER_CUDA_BLOCK];

        low += bf16_low(word);
        high += bf16_high(word);
    }
    to = data_block(&lane->out[0], block) + 2 * pair * ESPER_CUDA_BLOCK + sample;
    to[0] = low / (float)pixels;
    if (2 * pair + 1 < x->dim[0])
        to[ESPER_CUDA_BLOCK] = high / (float)pixels;
}

ESPER_KERNEL(esper_half_global_mean_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    four_place p = four_of(lane, x);
    int plane = x->dim[1] * x->dim[2] * ESPER_CUDA_BLOCK;
    float part = 1 / (float)(x->dim[1] * x->dim[2]);
    quad low, high = {};
    oct g;

    if (p.block < 0)
        return;
    const float *grad = grad_block(&lane->out[0], p.block) + p.word / plane * 2 * ESPER_CUDA_BLOCK + p.word % ESPER_CUDA_BLOCK;

    low = load_quad(grad);
    if (p.high >= 0)
        high = load_quad(grad + ESPER_CUDA_BLOCK);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g.v[0][i] = low.v[i] * part;
        g.v[1][i] = high.v[i] * part;
    }
    put_oct(grad_words(x, p.block) + p.word, x->add, g);
}
