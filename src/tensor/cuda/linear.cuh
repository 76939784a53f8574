/* Internal. The gradient of a matrix that rows are multiplied by, in pieces (tensor/cuda/linear.h): linear layers have it, and what
 * an LSTM keeps from step to step. */
#ifndef ESPER_TENSOR_CUDA_LINEAR_CUH
#define ESPER_TENSOR_CUDA_LINEAR_CUH

#include "tensor/cuda/matmul.cuh"

#include "tensor/cuda/linear.h"

/* dw (O,I) = the sum over rows of g (rows,O) and x (rows,I); db (O) = the sums of g's columns. */
typedef struct linear_weights {
    int          I, O;
    int          rows, max_rows; /* of the batch, and of the largest */
    const float *g, *x;
    float       *dw, *db; /* NULL: not wanted */
    bool         add_w, add_b;
    float       *parts; /* (pieces,O,I) and (pieces,O), where there is more than one piece */
} linear_weights;

template <class tile> FUNCTION int linear_tiles(const linear_weights &at)
{
    return ((at.O + tile::BM - 1) / tile::BM) * ((at.I + tile::BN - 1) / tile::BN);
}

/* Block `block` makes one tile of one piece. */
template <class tile, bool WIDE> FUNCTION void linear_piece(const linear_weights &at, int block, float *shared)
{
    int across = (at.I + tile::BN - 1) / tile::BN, tiles = linear_tiles<tile>(at);
    int pieces = esper_linear_pieces(tiles, at.max_rows), piece_rows = esper_linear_piece_rows(pieces, at.max_rows);
    int piece = block / tiles, t = block % tiles;
    int m = t / across * tile::BM, n = t % across * tile::BN;
    int begin = piece * piece_rows, end = min(begin + piece_rows, at.rows);
    int64_t size = (int64_t)at.O * at.I;
    matmul_operand g = {at.g, at.O, at.O}, x = {at.x, at.I, at.I};
    float *dw = pieces > 1 ? at.parts + piece * size : at.dw;
    float *db = pieces > 1 ? at.parts + pieces * size + (int64_t)piece * at.O : at.db;
    float sum[tile::TM][tile::TN], sum_g;

    if (piece >= pieces)
        return;
    matmul<tile, false, false, WIDE, true>::run(g, x, m, n, begin, end, shared, sum, &sum_g);
    if (at.dw != NULL)
        matmul_write<tile, WIDE>(dw, at.O, at.I, at.I, m, n, pieces == 1 && at.add_w, NULL, sum);
    if (at.db != NULL && n == 0 && threadIdx.x < tile::BM && m + (int)threadIdx.x < at.O) {
        float *to = db + m + threadIdx.x;

        *to = pieces == 1 && at.add_b ? *to + sum_g : sum_g;
    }
}

/* Adds up the pieces of element i: of dw, and behind them of db. */
template <class tile> FUNCTION void linear_join(const linear_weights &at, int64_t i)
{
    int pieces = esper_linear_pieces(linear_tiles<tile>(at), at.max_rows);
    int64_t size = (int64_t)at.O * at.I;
    bool is_w = i < size, add = is_w ? at.add_w : at.add_b;
    float *grad = is_w ? at.dw : at.db, sum = 0.0f;
    const float *part = is_w ? at.parts + i : at.parts + pieces * size + i - size;
    int64_t step = is_w ? size : at.O;

    if (i >= size + at.O || grad == NULL)
        return;
    grad += is_w ? i : i - size;
    for (int p = 0; p < pieces; p++)
        sum += part[p * step];
    *grad = add ? *grad + sum : sum;
}

/* Tiles, as linear.c lists them.
 *                  warps of M and N, slices, lanes of M, elements of M and N, k at once */
typedef matmul_tile<2, 4, 1, 8, 8, 8, 16> tile_128x128;
typedef matmul_tile<2, 2, 1, 4, 8, 6, 16> tile_64x96;
typedef matmul_tile<2, 2, 2, 4, 8, 6, 32> tile_64x96_twice;
typedef matmul_tile<2, 2, 1, 4, 8, 4, 16> tile_64x64;
typedef matmul_tile<1, 2, 2, 8, 4, 4, 32> tile_32x32;

#endif
