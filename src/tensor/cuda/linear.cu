/* Linear layers: y = x w^T + b over rows, and the gradients. Three products, of which each operand lies as it lies:
 *
 *     y  (rows,O) = x (rows,I) along I        w (O,I)    along I
 *     dx (rows,I) = g (rows,O) along O        w (O,I)    across O
 *     dw (O,I)    = g (rows,O) across rows    x (rows,I) across rows        db (O) = the sums of g's columns
 *
 * A block has a tile of the result. dw is cut over rows as well (linear.h): its pieces lie in scratch, (pieces, O, I) and
 * (pieces, O), and are added in order by another kernel, which is not launched where there is one piece. */
#include "tensor/cuda/linear.cuh"

typedef struct layer {
    int I, O;
    int rows, max_rows; /* of the batch, and of the largest */
} layer;

FUNCTION layer layer_of(const esper_lane *lane)
{
    int I = lane->in[1].dim[1], each = (int)lane->in[0].count / I;

    return {I, lane->in[1].dim[0], lane->pass->n_samples * each, lane->max_samples * each};
}

template <class tile, bool WIDE> FUNCTION void forward(const esper_lane *lane, float *shared)
{
    layer at = layer_of(lane);
    int across = (at.O + tile::BN - 1) / tile::BN;
    int m = (int)blockIdx.x / across * tile::BM, n = (int)blockIdx.x % across * tile::BN;
    matmul_operand x = {(const float *)lane->in[0].data, at.I, at.rows};
    matmul_operand w = {(const float *)lane->in[1].data, at.I, at.O};
    float sum[tile::TM][tile::TN];

    if (m >= at.rows)
        return;
    matmul<tile, true, true, WIDE, false>::run(x, w, m, n, 0, at.I, shared, sum, NULL);
    matmul_write<tile, WIDE>((float *)lane->out[0].data, at.rows, at.O, at.O, m, n, false, (const float *)lane->in[2].data, sum);
}

template <class tile, bool WIDE> FUNCTION void backward_x(const esper_lane *lane, float *shared)
{
    layer at = layer_of(lane);
    int across = (at.I + tile::BN - 1) / tile::BN;
    int m = (int)blockIdx.x / across * tile::BM, n = (int)blockIdx.x % across * tile::BN;
    matmul_operand g = {(const float *)lane->out[0].grad, at.O, at.rows};
    matmul_operand w = {(const float *)lane->in[1].data, at.I, at.I};
    float sum[tile::TM][tile::TN];

    if (m >= at.rows)
        return;
    matmul<tile, true, false, WIDE, false>::run(g, w, m, n, 0, at.O, shared, sum, NULL);
    matmul_write<tile, WIDE>((float *)lane->in[0].grad, at.rows, at.I, at.I, m, n, lane->in[0].add, NULL, sum);
}

FUNCTION linear_weights weights_of(const esper_lane *lane)
{
    layer at = layer_of(lane);

    return {at.I,
            at.O,
            at.rows,
            at.max_rows,
            (const float *)lane->out[0].grad,
            (const float *)lane->in[0].data,
            (float *)lane->in[1].grad,
            (float *)lane->in[2].grad,
            lane->in[1].add,
            lane->in[2].add,
            (float *)lane->scratch};
}

#define LINEAR_KERNELS(name, tile, wide, dense)                                \
    static_assert(tile::FLOATS * 4 <= 48 * 1024, "what every GPU has");        \
    ESPER_KERNEL_DENSE(esper_linear_y_##name, tile::THREADS, dense)            \
    {                                                                          \
        __shared__ float4 shared[tile::FLOATS / 4];                            \
        forward<tile, wide>(lanes.lane[blockIdx.y], (float *)shared);          \
    }                                                                          \
    ESPER_KERNEL_DENSE(esper_linear_dx_##name, tile::THREADS, dense)           \
    {                                                                          \
        __shared__ float4 shared[tile::FLOATS / 4];                            \
        backward_x<tile, wide>(lanes.lane[blockIdx.y], (float *)shared);       \
    }                                                                          \
    ESPER_KERNEL_DENSE(esper_linear_dw_##name, tile::THREADS, dense)           \
    {                                                                          \
        __shared__ float4 shared[tile::FLOATS / 4];                            \
        linear_piece<tile, wide>(weights_of(lanes.lane[blockIdx.y]), (int)blockIdx.x, (float *)shared); \
    }                                                                          \
    ESPER_KERNEL(esper_linear_join_##name, 256)                                \
    {                                                                          \
        linear_join<tile>(weights_of(lanes.lane[blockIdx.y]), (int64_t)blockIdx.x * 256 + threadIdx.x); \
    }

LINEAR_KERNELS(128x128, tile_128x128, true, 2)
LINEAR_KERNELS(64x96, tile_64x96, true, 4)
LINEAR_KERNELS(64x96_twice, tile_64x96_twice, true, 1)
LINEAR_KERNELS(64x64, tile_64x64, true, 4)
LINEAR_KERNELS(32x32, tile_32x32, true, 4)
LINEAR_KERNELS(64x64_any, tile_64x64, false, 4)
LINEAR_KERNELS(32x32_any, tile_32x32, false, 4)
