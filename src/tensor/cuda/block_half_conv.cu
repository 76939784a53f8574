/* Convolutions of 3 x 3 taps over words of two channels (block_half.h), and the gradients of x.
 *
 * A warp has a share: 16 samples of a tile of 4 x 4 pixels of eight output channels. Its products are of 16 samples of a pixel by up to
 * 16 input channels with those by eight output channels of a tap's weights. With up to eight input channels two taps side by side make
 * a product, with up to four all three of a row do. A thread's part of a pixel comes in loads of 8 bytes, two samples of a pair of channels;
 * what it has of a result are two samples of a pair, too, and goes where it belongs in stores of 8.
 *
 * Where a norm follows, the share's sums and squares of deviations are taken while it is in registers, before it is rounded. */
#include "tensor/cuda/block_half.cuh"

/* What a warp has to do. */
struct half_work {
    block_conv v;
    half_cut   cut;
    int        block;          /* of samples */
    int        first_share;    /* this one, and one for each turn, pixel_warps further on */
    int        first_out, out; /* output channels: the first of the block of threads, and of the warp */
};

template <bool BACK> FUNCTION bool half_work_of(const esper_lane *lane, half_work *work)
{
    const block_conv v = block_conv_of(lane, BACK);
    const half_cut cut = half_cut_of(&v);
    int warp = threadIdx.x / 32, unit = blockIdx.x;

    if (unit >= blocks_of(lane) * cut.blocks)
        return false;
    work->v = v;
    work->cut = cut;
    work->first_share = unit % cut.pixel_blocks * cut.turns * cut.pixel_warps + warp / cut.channel_warps;
    unit /= cut.pixel_blocks;
    work->first_out = unit % cut.channel_blocks * cut.channel_warps * HALF_OUT;
    work->out = work->first_out + warp % cut.channel_warps * HALF_OUT;
    work->block = unit / cut.channel_blocks;
    return true;
}

/* The weights of `width` output channels from first_out on and of n_pairs pairs of input channels from first_pair on go to shared memory:
 * [pair][tap][output channel]. What is beyond the last channel is 0. */
template <bool BACK>
FUNCTION void stage_words(const half_work &work, const float *w, int width, int first_pair, int n_pairs, unsigned *to)
{
    const block_conv &v = work.v;
    int out_step = BACK ? 9 : v.in_c * 9, in_step = BACK ? v.out_c * 9 : 9;
    int place = threadIdx.x / 32 * 4 + threadIdx.x % 32 / 8;

    for (int out = threadIdx.x % 8; out < width; out += 8) {
        const float *from = w + (size_t)(work.first_out + out) * out_step;
        bool is_out = work.first_out + out < v.out_c;

#pragma unroll 4
        for (int i = place; i < n_pairs * 9; i += HALF_WARPS * 4) {
            int pair = i / 9, tap = i - pair * 9, in = 2 * (first_pair + pair);
            const float *one = from + in * in_step + (BACK ? 8 - tap : tap);

            to[i * work.cut.stride + out] = bf16_pack(is_out && in < v.in_c ? __ldg(one) : 0.0f,
                                                      is_out && in + 1 < v.in_c ? __ldg(one + in_step) : 0.0f);
        }
    }
}

/* A row of a tile's input as a thread has it: two samples of a pair of channels at each pixel, and of the pair four further on. */
template <int PAIRS> struct half_row {
    uint2 at[HALF_TILE + 2][PAIRS == 8 ? 2 : 1];

    /* there: a bit for each pixel that is; 0: no row, or no channels. */
    __device__ __forceinline__ void load(const unsigned *from, int plane, unsigned there, int n_pairs)
    {
#pragma unroll
        for (int j = 0; j < HALF_TILE + 2; j++)
#pragma unroll
            for (int k = 0; k < (PAIRS == 8 ? 2 : 1); k++) {
                at[j][k] = make_uint2(0, 0);
                if ((there >> j & 1) != 0 && 4 * k < n_pairs)
                    at[j][k] = __ldg(reinterpret_cast<const uint2 *>(from + 4 * k * plane + j * ESPER_CUDA_BLOCK));
            }
    }
};

typedef float half_sums[HALF_TILE][HALF_TILE][4];

/* What row i of a tile's input gives to its outputs. w: words of taps, for eight pairs two of each. */
FUNCTION void multiply_row(int i, const half_row<8> &x, const unsigned (&w)[9][2], half_sums &sum)
{
#pragma unroll
    for (int j = 0; j < HALF_TILE + 2; j++) {
        const unsigned a[4] = {x.at[j][0].x, x.at[j][0].y, x.at[j][1].x, x.at[j][1].y};

#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int oy = i - tap / 3, ox = j - tap % 3;

            if (oy >= 0 && oy < HALF_TILE && ox >= 0 && ox < HALF_TILE)
                mma_16x8x16(sum[oy][ox], a, w[tap]);
        }
    }
}

FUNCTION void multiply_row(int i, const half_row<4> &x, const unsigned (&w)[9][1], half_sums &sum)
{
#pragma unroll
    for (int dy = 0; dy < 3; dy++)
#pragma unroll
        for (int ox = 0; ox < HALF_TILE; ox++)
            if (i - dy >= 0 && i - dy < HALF_TILE) {
                const uint2 &left = x.at[ox][0], &middle = x.at[ox + 1][0], &right = x.at[ox + 2][0];
                const unsigned a[4] = {left.x, left.y, middle.x, middle.y}, b[2] = {w[3 * dy][0], w[3 * dy + 1][0]};
                const unsigned last[2] = {right.x, right.y};

                mma_16x8x16(sum[i - dy][ox], a, b);
                mma_16x8x8_half(sum[i - dy][ox], last, w[3 * dy + 2][0]);
            }
}

/* Columns 2 and 3 of a warp have the pixels one further to the right: the second tap, and none. w[dy]: the words of either. */
FUNCTION void multiply_row(int i, const half_row<2> &x, const unsigned (&w)[3][2], half_sums &sum)
{
    bool has_third = threadIdx.x % 4 < 2;

#pragma unroll
    for (int ox = 0; ox < HALF_TILE; ox++) {
        const uint2 &one = x.at[ox][0], &third = x.at[ox + 2][0];
        const unsigned a[4] = {one.x, one.y, has_third ? third.x : 0, has_third ? third.y : 0};

#pragma unroll
        for (int dy = 0; dy < 3; dy++)
            if (i - dy >= 0 && i - dy < HALF_TILE)
                mma_16x8x16(sum[i - dy][ox], a, w[dy]);
    }
}

/* A thread's words of weights, `from` being those of its pair and output channel. */
FUNCTION void read_words(const unsigned *from, int stride, unsigned (&w)[9][2])
{
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        w[tap][0] = from[tap * stride];
        w[tap][1] = from[(4 * 9 + tap) * stride];
    }
}

FUNCTION void read_words(const unsigned *from, int stride, unsigned (&w)[9][1])
{
#pragma unroll
    for (int tap = 0; tap < 9; tap++)
        w[tap][0] = from[tap * stride];
}

FUNCTION void read_words(const unsigned *from, int stride, unsigned (&w)[3][2])
{
    int shift = threadIdx.x % 4 / 2;

#pragma unroll
    for (int dy = 0; dy < 3; dy++) {
        w[dy][0] = from[(3 * dy + shift) * stride];
        w[dy][1] = shift == 0 ? from[(3 * dy + 2) * stride] : 0;
    }
}

/* Of a share: the sums of either channel of the thread, and of squares, over its samples' pixels that there are. */
FUNCTION void put_half_moments(const esper_lane *lane, const half_work &work, int share, int n_rows, int n_columns, int n_samples,
                               const half_sums &sum)
{
    int row = threadIdx.x % 32 / 4, channels = 2 * half_pairs(work.v.out_c), out = work.out + threadIdx.x % 4 * 2;
    int n = n_rows * n_columns * n_samples;
    double both[2][2];

#pragma unroll
    for (int o = 0; o < 2; o++) {
        float of_column[HALF_TILE] = {}, off_column[HALF_TILE] = {}, total = 0, squares = 0, mean;

#pragma unroll
        for (int i = 0; i < HALF_TILE * HALF_TILE * 2; i++) {
            int y = i / 2 / HALF_TILE, x = i / 2 % HALF_TILE, s = i % 2;

            of_column[x] += y < n_rows && x < n_columns && s < n_samples ? sum[y][x][o + 2 * s] : 0.0f;
        }
#pragma unroll
        for (int x = 0; x < HALF_TILE; x++)
            total += of_column[x];
        mean = n > 0 ? total / (float)n : 0.0f;
#pragma unroll
        for (int i = 0; i < HALF_TILE * HALF_TILE * 2; i++) {
            int y = i / 2 / HALF_TILE, x = i / 2 % HALF_TILE, s = i % 2;
            float off = y < n_rows && x < n_columns && s < n_samples ? sum[y][x][o + 2 * s] - mean : 0.0f;

            off_column[x] = fmaf(off, off, off_column[x]);
        }
#pragma unroll
        for (int x = 0; x < HALF_TILE; x++)
            squares += off_column[x];
        both[o][0] = (double)total;
        both[o][1] = (double)squares + (double)total * (double)mean;
    }
#pragma unroll
    for (int with = 16; with >= 4; with /= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            both[i / 2][i % 2] += __shfl_xor_sync(0xffffffffu, both[i / 2][i % 2], with);
    if (row == 0 && out < channels) {
        double *parts = (double *)((char *)lane->scratch + half_scratch_of(lane, false, lane->max_samples).sums);

        parts += ((size_t)(work.block * work.cut.shares + share) * channels + out) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
            parts[i] = both[i / 2][i % 2];
    }
}

/* Where a share's results go: to y, and their moments to the norm's sums; or to the gradient of x. */
template <bool BACK>
FUNCTION void put_half_share(const esper_lane *lane, const half_work &work, int share, int oy, int ox, const half_sums &sum)
{
    const block_conv &v = work.v;
    int row = threadIdx.x % 32 / 4, pair = work.out / 2 + threadIdx.x % 4, first = share % 2 * 16 + 2 * row;
    int n_rows = min(HALF_TILE, v.out_h - oy), n_columns = min(HALF_TILE, v.out_w - ox);
    unsigned *to = BACK ? grad_words(&lane->in[0], work.block) : data_words(block_y(lane), work.block);
    bool add = BACK && lane->in[0].add;

    to += ((size_t)(pair * v.out_h + oy) * v.out_w + ox) * ESPER_CUDA_BLOCK + first;
#pragma unroll
    for (int i = 0; i < HALF_TILE; i++)
#pragma unroll
        for (int j = 0; j < HALF_TILE; j++)
            if (2 * pair < v.out_c && i < n_rows && j < n_columns) {
                uint2 *at = reinterpret_cast<uint2 *>(to + (i * v.out_w + j) * ESPER_CUDA_BLOCK);
                float4 four = make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);

                if (add) {
                    uint2 old = *at;

                    four.x += bf16_low(old.x);
                    four.y += bf16_high(old.x);
                    four.z += bf16_low(old.y);
                    four.w += bf16_high(old.y);
                }
                *at = make_uint2(bf16_pack(four.x, four.y), bf16_pack(four.z, four.w));
            }
    if (!BACK && block_has_norm(lane) && lane_trains(lane))
        put_half_moments(lane, work, share, n_rows, n_columns, max(0, min(2, samples_in(lane, work.block) - first)), sum);
}

/* PAIRS: of input channels in a product. */
template <int PAIRS, bool BACK> FUNCTION void convolve(const esper_lane *lane, unsigned *weights)
{
    half_work work;

    if (!half_work_of<BACK>(lane, &work))
        return;
    const block_conv &v = work.v;
    const half_cut &cut = work.cut;
    const esper_view *y = block_y(lane);
    const unsigned *words = !BACK                  ? data_words(&lane->in[0], work.block)
                            : block_has_norm(lane) ? data_words(y, work.block)
                                                   : grad_words(y, work.block);
    const float *w = (const float *)lane->in[1].data;
    int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4, pair = PAIRS == 2 ? column % 2 : column;
    int shift = PAIRS == 2 ? column / 2 : 0, line = v.in_w * ESPER_CUDA_BLOCK, plane = v.in_h * line, pairs = half_pairs(v.in_c);

    for (int turn = 0; turn < cut.turns; turn++) {
        int share = work.first_share + turn * cut.pixel_warps, tile = share / 2;
        int oy = tile / cut.tiles_x * HALF_TILE, ox = tile % cut.tiles_x * HALF_TILE, iy = oy - v.pad, ix = ox - v.pad + shift;
        bool is_mine = share < cut.shares && work.out < v.out_c;
        unsigned there = 0;
        half_sums sum;

#pragma unroll
        for (int j = 0; j < HALF_TILE + 2; j++)
            there |= ix + j >= 0 && ix + j < v.in_w ? 1u << j : 0u;
#pragma unroll
        for (int i = 0; i < HALF_TILE * HALF_TILE * 4; i++)
            sum[i / 4 / HALF_TILE][i / 4 % HALF_TILE][i % 4] = 0.0f;
        for (int first = 0; first < pairs; first += cut.chunk) {
            int n_pairs = min(cut.chunk, block_divide(pairs - first, PAIRS) * PAIRS);

            if (turn == 0 || cut.chunk < pairs) {
                __syncthreads();
                stage_words<BACK>(work, w, cut.channel_warps * HALF_OUT, first, n_pairs, weights);
                __syncthreads();
            }
            for (int p = 0; p < n_pairs && is_mine; p += PAIRS) {
                const unsigned *from =
                    words + (size_t)(first + p + pair) * plane + iy * line + ix * ESPER_CUDA_BLOCK + share % 2 * 16 + 2 * row;
                int own_pairs = pairs - first - p - pair;
                unsigned own[PAIRS == 2 ? 3 : 9][PAIRS == 4 ? 1 : 2];
                half_row<PAIRS> x[2];

                read_words(weights + (p + pair) * 9 * cut.stride + work.out - work.first_out + row, cut.stride, own);
                x[0].load(from, plane, iy >= 0 ? there : 0, own_pairs);
#pragma unroll
                for (int i = 0; i < HALF_TILE + 2; i++) {
                    if (i + 1 < HALF_TILE + 2)
                        x[(i + 1) % 2].load(from + (i + 1) * line, plane, iy + i + 1 >= 0 && iy + i + 1 < v.in_h ? there : 0,
                                            own_pairs);
                    if (iy + i >= 0 && iy + i < v.in_h)
                        multiply_row(i, x[i % 2], own, sum);
                }
            }
        }
        if (is_mine)
            put_half_share<BACK>(lane, work, share, oy, ox, sum);
    }
}

#define CONVOLVE(pairs, dense)                                              \
    ESPER_KERNEL_DENSE(esper_half_conv_##pairs, HALF_THREADS, dense)        \
    {                                                                       \
        ESPER_SHARED(unsigned, weights);                                    \
        convolve<pairs, false>(lanes.lane[blockIdx.y], weights);            \
    }                                                                       \
    ESPER_KERNEL_DENSE(esper_half_conv_back_##pairs, HALF_THREADS, dense)   \
    {                                                                       \
        ESPER_SHARED(unsigned, weights);                                    \
        convolve<pairs, true>(lanes.lane[blockIdx.y], weights);             \
    }

CONVOLVE(2, 4)
CONVOLVE(4, 4)
CONVOLVE(8, 3)
