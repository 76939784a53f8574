/* Between canonical layout and blocks of samples: transposed in shared memory, 32 elements of 32 samples at a time, so that both
 * sides are read and written in lines of 128 bytes. */
#include "tensor/cuda/block.cuh"

typedef float tile_row[ESPER_CUDA_BLOCK + 1]; /* a column of them lies in as many banks */

enum { PACK_ROWS = BLOCK_GROUP_THREADS / 32 };

/* Which 32 elements of which block of samples. */
struct tile_place {
    int block, element;
};

FUNCTION tile_place tile_of(const esper_view *x, int which)
{
    int tiles = block_divide((int)x->count, 32);
    tile_place p;

    p.block = which / tiles;
    p.element = (which - p.block * tiles) * 32;
    return p;
}

/* Zero in the samples beyond the batch. */
FUNCTION void to_blocks(const esper_lane *lane, const esper_view *x, int which, const float *from, float *to, bool add,
                        tile_row *tile)
{
    tile_place p = tile_of(x, which);
    int row = threadIdx.x / 32, column = threadIdx.x % 32, count = (int)x->count, valid;

    if (p.block >= blocks_of(lane))
        return;
    valid = samples_in(lane, p.block);
    from += (size_t)p.block * ESPER_CUDA_BLOCK * count + p.element;
    to += ((size_t)p.block * count + p.element) * ESPER_CUDA_BLOCK;
#pragma unroll
    for (int s = row; s < 32; s += PACK_ROWS)
        tile[s][column] = s < valid && p.element + column < count ? from[(size_t)s * count + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int e = row; e < 32; e += PACK_ROWS)
        if (p.element + e < count) {
            float *one = to + e * ESPER_CUDA_BLOCK + column;

            *one = add ? *one + tile[column][e] : tile[column][e];
        }
}

/* The samples of the batch alone. */
FUNCTION void from_blocks(const esper_lane *lane, const esper_view *x, const float *from, float *to, tile_row *tile)
{
    tile_place p = tile_of(x, blockIdx.x);
    int row = threadIdx.x / 32, column = threadIdx.x % 32, count = (int)x->count, valid;

    if (p.block >= blocks_of(lane))
        return;
    valid = samples_in(lane, p.block);
    from += ((size_t)p.block * count + p.element) * ESPER_CUDA_BLOCK;
    to += (size_t)p.block * ESPER_CUDA_BLOCK * count + p.element;
#pragma unroll
    for (int e = row; e < 32; e += PACK_ROWS)
        tile[e][column] = p.element + e < count ? from[e * ESPER_CUDA_BLOCK + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int s = row; s < 32; s += PACK_ROWS)
        if (s < valid && p.element + column < count)
            to[(size_t)s * count + column] = tile[column][s];
}

ESPER_KERNEL(esper_block_pack, BLOCK_GROUP_THREADS)
{
    __shared__ tile_row tile[32];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    int n_tiles = blocks_of(lane) * block_divide((int)lane->in[0].count, 32);

    if (lane->attr.pack.of_batch && lane->pass->packed)
        return;
    for (int which = blockIdx.x; which < n_tiles; which += gridDim.x) {
        to_blocks(lane, &lane->in[0], which, (const float *)lane->in[0].data, (float *)lane->out[0].data, false, tile);
        __syncthreads();
    }
}

/* Nobody writes the gradient of an input before this: it is not added to. */
ESPER_KERNEL(esper_block_pack_back, BLOCK_GROUP_THREADS)
{
    __shared__ tile_row tile[32];
    const esper_lane *lane = lanes.lane[blockIdx.y];

    from_blocks(lane, &lane->in[0], (const float *)lane->out[0].grad, (float *)lane->in[0].grad, tile);
}

ESPER_KERNEL(esper_block_unpack, BLOCK_GROUP_THREADS)
{
    __shared__ tile_row tile[32];
    const esper_lane *lane = lanes.lane[blockIdx.y];

    from_blocks(lane, &lane->in[0], (const float *)lane->in[0].data, (float *)lane->out[0].data, tile);
}

ESPER_KERNEL(esper_block_unpack_back, BLOCK_GROUP_THREADS)
{
    __shared__ tile_row tile[32];
    const esper_lane *lane = lanes.lane[blockIdx.y];

    to_blocks(lane, &lane->in[0], blockIdx.x, (const float *)lane->out[0].grad, (float *)lane->in[0].grad, lane->in[0].add, tile);
}
