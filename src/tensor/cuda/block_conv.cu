/* Convolutions on blocks of samples, and the gradients of x: conv2d and conv_norm. (Those of the weights are in block_weigh.cu.)
 *
 * A thread has its sample's 4 x 4 pixels of a few output channels in registers. For each input channel it loads the pixels that
 * these see, all at once, and goes through the taps: a weight, which the whole warp reads from shared memory at one address,
 * serves 16 pixels. With 4 channels and 3 x 3 taps that is 576 multiply-adds for 36 loads of pixels and 9 of weights.
 *
 * Where a norm follows, the tile's sums and squares of deviations are taken while it is in registers. */
#include "tensor/cuda/block_pixels.cuh"

/* ------------------------------------------------------------------------------------------------ weights */

/* The weights of `width` output channels, from `first_out` on, and of n_in input channels from `first_in` on, go to shared memory:
 * [input channel][tap][output channel]. A warp takes eight output channels by four taps at a time. */
template <int K, bool BACK>
FUNCTION void stage_weights(const block_conv &v, const block_cut &cut, const float *w, int width, int first_out,
                            int first_in, int n_in, float *to)
{
    int taps = v.kernel * v.kernel, n_pairs = n_in * taps;
    int out_step = BACK ? taps : v.in_c * taps, in_step = BACK ? v.out_c * taps : taps;
    int warp = threadIdx.x / 32, o = threadIdx.x % 8, step = threadIdx.x % 32 / 8;

    if (v.kernel != K) { /* the taps that it has not */
        for (int i = threadIdx.x; i < n_in * K * K * cut.stride; i += BLOCK_THREADS)
            to[i] = 0.0f;
        __syncthreads();
    }
    for (int pair = warp * 4 + step; pair < n_pairs; pair += BLOCK_WARPS * 4) {
        int in = pair / taps, tap = pair - in * taps, y = tap / v.kernel, x = tap - y * v.kernel;
        int place = BACK ? (v.kernel - 1 - y) * K + v.kernel - 1 - x : y * K + x;

        for (int out = o; out < width; out += 8)
            to[(in * K * K + place) * cut.stride + out] =
                first_out + out < v.out_c
                    ? w[(size_t)(first_out + out) * out_step + (size_t)(first_in + in) * in_step + tap]
                    : 0.0f;
    }
}

template <int N> FUNCTION void load_weights(const float *from, float *w)
{
    if (N == 1) {
        w[0] = from[0];
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float4 four = reinterpret_cast<const float4 *>(from)[i];

        w[4 * i] = four.x;
        w[4 * i + 1] = four.y;
        w[4 * i + 2] = four.z;
        w[4 * i + 3] = four.w;
    }
}

/* ------------------------------------------------------------------------------------------------ y, and the gradient of x */

/* Of a tile in registers: for each channel the sums of this block's samples, to parts (C, 2). */
template <int N>
FUNCTION void put_moments(float (&sum)[N][BLOCK_TILE][BLOCK_TILE], int n_rows, int n_columns, bool valid, int n_channels,
                          double *parts)
{
    double both[2 * N], n = n_rows * n_columns;
    int value = threadIdx.x % 32 * N / 16;

#pragma unroll
    for (int o = 0; o < N; o++) {
        float total = 0, squares = 0, mean;

#pragma unroll
        for (int i = 0; i < BLOCK_TILE; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_TILE; j++)
                total += i < n_rows && j < n_columns ? sum[o][i][j] : 0.0f;
        mean = total / (float)(n_rows * n_columns);
#pragma unroll
        for (int i = 0; i < BLOCK_TILE; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_TILE; j++) {
                float off = i < n_rows && j < n_columns ? sum[o][i][j] - mean : 0.0f;

                squares = fmaf(off, off, squares);
            }
        both[2 * o] = valid ? (double)total : 0.0;
        both[2 * o + 1] = valid ? (double)squares + (double)total * (double)total / n : 0.0;
    }
    both[0] = sum_over_warp<2 * N>(both);
    if (threadIdx.x % (16 / N) == 0 && value < 2 * n_channels)
        parts[value] = both[0];
}

/* Where a tile's results go: to y, and its moments to the norm's sums; or to the gradient of x. */
template <int N, bool BACK>
FUNCTION void put_tile(const esper_lane *lane, const block_conv &v, int block, int channel, int n_channels, int tile,
                       int n_tiles, int oy, int ox, float (&sum)[N][BLOCK_TILE][BLOCK_TILE])
{
    int sample = threadIdx.x % 32, n_rows = min(BLOCK_TILE, v.out_h - oy), n_columns = min(BLOCK_TILE, v.out_w - ox);
    int plane = v.out_h * v.out_w * ESPER_CUDA_BLOCK;
    float *to = BACK ? grad_block(&lane->in[0], block) : data_block(block_y(lane), block);
    bool add = BACK && lane->in[0].add;

    to += (size_t)channel * plane + (oy * v.out_w + ox) * ESPER_CUDA_BLOCK + sample;
#pragma unroll
    for (int o = 0; o < N; o++) {
        float *row = to;

#pragma unroll
        for (int i = 0; i < BLOCK_TILE; i++) {
#pragma unroll
            for (int j = 0; j < BLOCK_TILE; j++)
                if (o < n_channels && i < n_rows && j < n_columns) {
                    float *one = row + j * ESPER_CUDA_BLOCK;

                    *one = add ? *one + sum[o][i][j] : sum[o][i][j];
                }
            row += v.out_w * ESPER_CUDA_BLOCK;
        }
        to += plane;
    }
    if (!BACK && block_has_norm(lane) && lane_trains(lane)) {
        block_scratch s = block_scratch_of(lane, false, lane->max_samples);
        double *parts = (double *)((char *)lane->scratch + s.sums);

        put_moments<N>(sum, n_rows, n_columns, sample < samples_in(lane, block), n_channels,
                       parts + ((size_t)(block * n_tiles + tile) * block_y(lane)->dim[0] + channel) * 2);
    }
}

template <int K, int N, bool BACK> FUNCTION void convolve(const esper_lane *lane, float *weights)
{
    const int side = BLOCK_TILE + K - 1;
    const block_conv v = block_conv_of(lane, BACK);
    const block_cut cut = block_cut_of(&v);
    const esper_view *y = block_y(lane);
    int warp = threadIdx.x / 32, unit = blockIdx.x, first_tile, group, block, first_out, out;
    const float *x, *w;

    if (unit >= blocks_of(lane) * cut.blocks)
        return;
    first_tile = unit % cut.pixel_blocks * cut.turns * cut.pixel_warps + warp / cut.channel_warps;
    unit /= cut.pixel_blocks;
    first_out = unit % cut.channel_blocks * cut.channel_warps * N;
    unit /= cut.channel_blocks;
    group = unit % v.groups;
    block = unit / v.groups;
    out = first_out + warp % cut.channel_warps * N; /* of the group, as first_out */
    x = !BACK ? data_block(&lane->in[0], block) : block_has_norm(lane) ? data_block(y, block) : grad_block(y, block);
    x += (size_t)group * v.in_c * v.in_h * v.in_w * ESPER_CUDA_BLOCK + threadIdx.x % 32;
    w = (const float *)lane->in[1].data + (size_t)group * v.in_c * v.out_c * v.kernel * v.kernel;

    for (int turn = 0; turn < cut.turns; turn++) {
        int tile = first_tile + turn * cut.pixel_warps;
        int oy = tile / cut.tiles_x * BLOCK_TILE, ox = tile % cut.tiles_x * BLOCK_TILE;
        bool is_mine = tile < cut.tiles && out < v.out_c;
        float sum[N][BLOCK_TILE][BLOCK_TILE];

#pragma unroll
        for (int i = 0; i < N * BLOCK_TILE * BLOCK_TILE; i++)
            sum[i / (BLOCK_TILE * BLOCK_TILE)][i / BLOCK_TILE % BLOCK_TILE][i % BLOCK_TILE] = 0.0f;
        for (int first_in = 0; first_in < v.in_c; first_in += cut.chunk) {
            int n_in = min(cut.chunk, v.in_c - first_in);

            if (turn == 0 || cut.chunk < v.in_c) {
                __syncthreads();
                stage_weights<K, BACK>(v, cut, w, cut.channel_warps * N, first_out, first_in, n_in, weights);
                __syncthreads();
            }
            for (int c = 0; c < n_in && is_mine; c++) {
                const float *taps = weights + c * K * K * cut.stride + out - first_out;
                row_of_pixels row = row_at<side, K>(v, ox);
                float seen[side][side];

#pragma unroll
                for (int i = 0; i < side; i++) {
                    int iy = oy - v.pad + i;

                    if (iy >= 0 && iy < v.in_h) {
                        row.at = x + (((first_in + c) * v.in_h + iy) * v.in_w + ox - v.pad) * ESPER_CUDA_BLOCK;
                        load_row<side, K>(row, seen[i]);
                    } else {
#pragma unroll
                        for (int j = 0; j < side; j++)
                            seen[i][j] = 0.0f;
                    }
                }
#pragma unroll
                for (int tap = 0; tap < K * K; tap++) {
                    float factor[N];

                    load_weights<N>(taps + tap * cut.stride, factor);
#pragma unroll
                    for (int o = 0; o < N; o++)
#pragma unroll
                        for (int i = 0; i < BLOCK_TILE; i++)
#pragma unroll
                            for (int j = 0; j < BLOCK_TILE; j++)
                                sum[o][i][j] = fmaf(factor[o], seen[i + tap / K][j + tap % K], sum[o][i][j]);
                }
            }
        }
        if (is_mine)
            put_tile<N, BACK>(lane, v, block, group * v.out_c + out, min(N, v.out_c - out), tile, cut.tiles, oy, ox,
                              sum);
    }
}

#define CONVOLVE(k, n, dense)                                     \
    ESPER_KERNEL_DENSE(esper_block_conv_##k##_##n, BLOCK_THREADS, dense) \
    {                                                      \
        ESPER_SHARED(float, weights);                      \
        convolve<k, n, false>(lanes.lane[blockIdx.y], weights); \
    }                                                      \
    ESPER_KERNEL_DENSE(esper_block_conv_back_##k##_##n, BLOCK_THREADS, dense) \
    {                                                      \
        ESPER_SHARED(float, weights);                      \
        convolve<k, n, true>(lanes.lane[blockIdx.y], weights); \
    }

CONVOLVE(1, 1, 5)
CONVOLVE(1, 4, 4)
CONVOLVE(1, 8, 3)
CONVOLVE(3, 1, 4)
CONVOLVE(3, 4, 4)
CONVOLVE(5, 1, 3)
CONVOLVE(5, 4, 2)
CONVOLVE(7, 1, 3)
CONVOLVE(7, 4, 2)
