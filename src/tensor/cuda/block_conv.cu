/* Convolutions on blocks of samples, and the gradients of x: conv2d and conv_norm. (Those of the weights are in block_weigh.cu.)
 *
 * A thread has its sample's 4 x 4 pixels of a few output channels in registers. For each input channel it loads the pixels that
 * these see, all at once, and goes through the taps: a weight, which the whole warp reads from shared memory at one address,
 * serves 16 pixels. With 4 channels and 3 x 3 taps that is 576 multiply-adds for 36 loads of pixels and 9 of weights.
 *
 * With 3 x 3 taps and enough channels, tensor cores do this: a warp has half of the block's samples, and its products are of
 * 16 samples of a pixel by 8 input channels with 8 input by 8 output channels of a tap's weights. What lies side by side in memory
 * are samples, so a thread's part of the pixel comes in two loads of 8 bytes; it serves all taps that see the pixel.
 *
 * Where a norm follows, the tile's sums and squares of deviations are taken while it is in registers. */
#include "tensor/cuda/block_pixels.cuh"
#include "tensor/cuda/mma.cuh"

/* ------------------------------------------------------------------------------------------------ weights */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* A float goes to shared memory, or 0 where there is none; the thread does not wait for it. */
FUNCTION void copy_float(float *to, const float *from, bool is)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(is ? 4 : 0)
                 : "memory");
}

/* Until the thread's own are there. */
FUNCTION void await_copies(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

#else

FUNCTION void copy_float(float *to, const float *from, bool is)
{
    *to = is ? __ldg(from) : 0.0f;
}

FUNCTION void await_copies(void)
{
}

#endif

/* The weights of `width` output channels, from `first_out` on, and of n_in input channels from `first_in` on, go to shared memory:
 * [input channel][tap][output channel]. What is beyond the last channel is 0, and so are taps that the kernel has not. A warp takes
 * eight output channels by four taps at a time. */
template <int K, bool BACK>
FUNCTION void stage_weights(const block_conv &v, const block_cut &cut, const float *w, int width, int first_out,
                            int first_in, int n_in, float *to)
{
    int taps = v.kernel * v.kernel, out_step = BACK ? taps : v.in_c * taps, in_step = BACK ? v.out_c * taps : taps;
    int place = threadIdx.x / 32 * 4 + threadIdx.x % 32 / 8, n_there = min(n_in, v.in_c - first_in) * K * K;

    w += first_in * in_step;
    for (int out = threadIdx.x % 8; out < width; out += 8) {
        const float *from = w + (size_t)(first_out + out) * out_step;
        int end = first_out + out < v.out_c ? n_there : 0;

        for (int i = place; i < n_in * K * K; i += BLOCK_WARPS * 4) {
            int in = i / (K * K), y = (i - in * K * K) / K, x = i % K, tap;

            if (BACK) {
                y = v.kernel - 1 - y;
                x = v.kernel - 1 - x;
            }
            tap = y * v.kernel + x;
            copy_float(to + i * cut.stride + out, from + in * in_step + tap,
                       i < end && y >= 0 && x >= 0 && y < v.kernel && x < v.kernel);
        }
    }
    await_copies();
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

/* Where the sums of a share's channels go. */
FUNCTION double *parts_at(const esper_lane *lane, int block, int share, int n_shares, int channel)
{
    double *parts = (double *)((char *)lane->scratch + block_scratch_of(lane, false, lane->max_samples).sums);

    return parts + ((size_t)(block * n_shares + share) * block_y(lane)->dim[0] + channel) * 2;
}

/* Where a tile's results go: to y, and its moments to the norm's sums; or to the gradient of x. */
template <int N, int SHARES, bool BACK>
FUNCTION void put_tile(const esper_lane *lane, const block_conv &v, int block, int channel, int n_channels, int share,
                       int n_shares, int oy, int ox, float (&sum)[N][BLOCK_TILE][BLOCK_TILE])
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
        put_moments<N>(sum, n_rows, n_columns, sample < samples_in(lane, block), n_channels,
                       parts_at(lane, block, share, n_shares, channel));
        if (SHARES == 2 && sample < 2 * n_channels) /* the tile's other share has none of these channels */
            parts_at(lane, block, share ^ 1, n_shares, channel)[sample] = 0;
    }
}

/* What a block of threads has to do, and which part of it a warp has. */
struct conv_work {
    block_conv   v;
    block_cut    cut;
    int          block;          /* of samples */
    int          first_share;    /* of the warp: this one, and one for each turn, pixel_warps further on */
    int          first_out, out; /* output channels of the group: the first of the block of threads, and of the warp */
    int          first_channel;  /* of the group, in y */
    const float *x, *w;          /* the group's */
};

/* Whether there is anything to do. */
template <bool BACK> FUNCTION bool conv_work_of(const esper_lane *lane, conv_work *work)
{
    const block_conv v = block_conv_of(lane, BACK);
    const block_cut cut = block_cut_of(&v);
    const esper_view *y = block_y(lane);
    int warp = threadIdx.x / 32, unit = blockIdx.x, channels = block_channels(&v), group;

    if (unit >= blocks_of(lane) * cut.blocks)
        return false;
    work->v = v;
    work->cut = cut;
    work->first_share = unit % cut.pixel_blocks * cut.turns * cut.pixel_warps + warp / cut.channel_warps;
    unit /= cut.pixel_blocks;
    work->first_out = unit % cut.channel_blocks * cut.channel_warps * channels;
    work->out = work->first_out + warp % cut.channel_warps * channels;
    unit /= cut.channel_blocks;
    group = unit % v.groups;
    work->block = unit / v.groups;
    work->first_channel = group * v.out_c;
    work->x = !BACK                  ? data_block(&lane->in[0], work->block)
              : block_has_norm(lane) ? data_block(y, work->block)
                                     : grad_block(y, work->block);
    work->x += (size_t)group * v.in_c * v.in_h * v.in_w * ESPER_CUDA_BLOCK;
    work->w = (const float *)lane->in[1].data + (size_t)group * v.in_c * v.out_c * v.kernel * v.kernel;
    return true;
}

/* SHARES: of a tile; each has so many of the warp's channels. */
template <int K, int N, int SHARES, bool BACK> FUNCTION void convolve(const esper_lane *lane, float *weights)
{
    const int side = BLOCK_TILE + K - 1;
    conv_work work;

    if (!conv_work_of<BACK>(lane, &work))
        return;
    const block_conv &v = work.v;
    const block_cut &cut = work.cut;
    const float *x = work.x + threadIdx.x % 32;

    for (int turn = 0; turn < cut.turns; turn++) {
        int share = work.first_share + turn * cut.pixel_warps, tile = share / SHARES, out = work.out + share % SHARES * N;
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
                stage_weights<K, BACK>(v, cut, work.w, cut.channel_warps * N * SHARES, work.first_out, first_in, n_in, weights);
                __syncthreads();
            }
            for (int c = 0; c < n_in && is_mine; c++) {
                const float *taps = weights + c * K * K * cut.stride + out - work.first_out;
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
            put_tile<N, SHARES, BACK>(lane, v, work.block, work.first_channel + out, min(N, v.out_c - out), share, cut.shares,
                                      oy, ox, sum);
    }
}

#define CONVOLVE(k, n, dense)                                     \
    ESPER_KERNEL_DENSE(esper_block_conv_##k##_##n, BLOCK_THREADS, dense) \
    {                                                      \
        ESPER_SHARED(float, weights);                      \
        convolve<k, n, 1, false>(lanes.lane[blockIdx.y], weights); \
    }                                                      \
    ESPER_KERNEL_DENSE(esper_block_conv_back_##k##_##n, BLOCK_THREADS, dense) \
    {                                                      \
        ESPER_SHARED(float, weights);                      \
        convolve<k, n, 1, true>(lanes.lane[blockIdx.y], weights); \
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

/* ------------------------------------------------------------------------------------------------ the same on tensor cores */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/* As put_moments: for either channel of a thread the sum and that of squares, of its samples' pixels that there are; the others are
 * written over. One pass, about a pixel of the tile: what the difference of large numbers would lose is small beside that. */
template <int TILE>
FUNCTION void moments_of(float (&sum)[TILE][TILE][4], int n_rows, int n_columns, int n_samples, double (&moments_out)[4])
{
    int n = n_rows * n_columns * n_samples;

    if (n < TILE * TILE * 2)
#pragma unroll
        for (int i = 0; i < TILE * TILE * 4; i++) {
            int y = i / 4 / TILE, x = i / 4 % TILE;

            if (y >= n_rows || x >= n_columns || i % 4 / 2 >= n_samples)
                sum[y][x][i % 4] = n > 0 ? sum[0][0][i % 2] : 0.0f;
        }
#pragma unroll
    for (int o = 0; o < 2; o++) {
        float centre = sum[0][0][o], of_column[TILE] = {}, squares_of[TILE] = {}, total = 0, squares = 0;

#pragma unroll
        for (int i = 0; i < TILE * TILE * 2; i++) {
            int x = i / 2 % TILE;
            float off = sum[i / 2 / TILE][x][o + i % 2 * 2] - centre;

            of_column[x] += off;
            squares_of[x] = fmaf(off, off, squares_of[x]);
        }
#pragma unroll
        for (int x = 0; x < TILE; x++) {
            total += of_column[x];
            squares += squares_of[x];
        }
        moments_out[2 * o] = fma((double)n, (double)centre, (double)total);
        moments_out[2 * o + 1] = fma((double)centre, (double)total + moments_out[2 * o], (double)squares);
    }
}

/* Where a share's results go. first: of the thread's two samples; channel: of its two. */
template <int TILE, bool BACK>
FUNCTION void put_share(const esper_lane *lane, const conv_work &work, int share, int oy, int ox, float (&sum)[TILE][TILE][4])
{
    const block_conv &v = work.v;
    int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4, first = share % 2 * 16 + 2 * row, out = work.out + 2 * column;
    int n_rows = min(TILE, v.out_h - oy), n_columns = min(TILE, v.out_w - ox), plane = v.out_h * v.out_w * ESPER_CUDA_BLOCK;
    int n_samples = samples_in(lane, work.block) - first;
    float *to = BACK ? grad_block(&lane->in[0], work.block) : data_block(block_y(lane), work.block);
    bool add = BACK && lane->in[0].add;
    double moments[4];
    int channel, which;

    to += (size_t)(work.first_channel + out) * plane + (oy * v.out_w + ox) * ESPER_CUDA_BLOCK + first;
#pragma unroll
    for (int o = 0; o < 2; o++)
#pragma unroll
        for (int i = 0; i < TILE; i++)
#pragma unroll
            for (int j = 0; j < TILE; j++)
                if (out + o < v.out_c && i < n_rows && j < n_columns) {
                    float2 *at = reinterpret_cast<float2 *>(to + o * plane + (i * v.out_w + j) * ESPER_CUDA_BLOCK);
                    float2 two = make_float2(sum[i][j][o], sum[i][j][o + 2]);

                    if (add) {
                        float2 old = *at;

                        two = make_float2(old.x + two.x, old.y + two.y);
                    }
                    *at = two;
                }
    if (BACK || !block_has_norm(lane) || !lane_trains(lane))
        return;

    /* The eight threads that have the same two channels: half of the values go to the other half of them each time, so that one value
     * of one channel is left with two of them. */
    moments_of<TILE>(sum, n_rows, n_columns, max(0, min(2, n_samples)), moments);
#pragma unroll
    for (int with = 16, n = 2; n > 0; with /= 2, n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            bool upper = (threadIdx.x & with) != 0;
            double give = upper ? moments[i] : moments[i + n], keep = upper ? moments[i + n] : moments[i];

            moments[i] = keep + __shfl_xor_sync(0xffffffffu, give, with);
        }
    moments[0] += __shfl_xor_sync(0xffffffffu, moments[0], 4);
    channel = out + row / 4;
    which = row / 2 % 2;
    if (row % 2 == 0 && channel < v.out_c)
        parts_at(lane, work.block, share, work.cut.shares, work.first_channel + channel)[which] = moments[0];
}

/* Pixels come by asynchronous copies into rows of shared memory that a warp has to itself, two rows ahead of those that it multiplies:
 *
 *     [row of the tile's input % ROWS][channel, DEPTH][pixel, SIDE][16 samples]
 *
 * Channels are so far apart that what a warp reads at once, two samples each of eight rows of a product by four channels, lies in
 * banks of its own. A thread copies four samples at a time: of eight channels at a pixel, or four at two, the whole warp. */
template <int DEPTH, int TILE> struct pixel_rows {
    static constexpr int SIDE = TILE + 2, ROWS = BLOCK_AHEAD_ROWS(SIDE), CHANNEL = BLOCK_AHEAD_CHANNEL(SIDE), ROW = DEPTH * CHANNEL;
    static_assert(SIDE % ROWS == 0, "a row's place is known when this is compiled");
};

/* Where a thread copies from: its four samples, at its channel and its first pixel, of the first row of a tile's input. */
struct pixel_source {
    const float *at;       /* perhaps none */
    unsigned     there;    /* a bit for each pixel of a row from there on that the image and the channels have */
    int          iy;       /* of the first row */
};

FUNCTION void copy_samples(float *to, const float *from, bool is)
{
#ifdef __CUDA_ARCH__
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(is ? 16 : 0)
                 : "memory");
#else
    *reinterpret_cast<float4 *>(to) = is ? *reinterpret_cast<const float4 *>(from) : make_float4(0, 0, 0, 0);
#endif
}

/* Row `i`, to `rows` of the warp, and it is a row of copies by itself. */
template <int DEPTH, int TILE> FUNCTION void copy_row(const block_conv &v, const pixel_source &from, int i, float *rows)
{
    typedef pixel_rows<DEPTH, TILE> ring;
    constexpr int STEP = 8 / DEPTH; /* pixels that a warp copies at a time */
    int place = threadIdx.x % 32, iy = from.iy + i;
    unsigned there = iy >= 0 && iy < v.in_h ? from.there : 0;
    const float *at = from.at + (int64_t)(i * v.in_w) * ESPER_CUDA_BLOCK;
    float *to = rows + i % ring::ROWS * ring::ROW + place / 4 % DEPTH * ring::CHANNEL + place / 4 / DEPTH * 16 + place % 4 * 4;

#pragma unroll
    for (int k = 0; k < ring::SIDE; k += STEP)
        copy_samples(to + k * 16, at + k * ESPER_CUDA_BLOCK, (there >> k & 1) != 0);
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

/* Until all of the warp's rows but the last N are there. */
template <int N> FUNCTION void await_rows(void)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
#endif
    __syncwarp();
}

/* What row `i` of a tile's input gives to its outputs, TILE x TILE pixels of 16 samples by 8 channels. `row`: at the thread's two
 * samples of its channel. Products of one kind follow each other, each to a pixel of its own, that none waits for the one before. */
template <int TILE, int PRODUCTS>
FUNCTION void multiply_row(int i, const float *row, const unsigned (&w_hi)[9][2], const unsigned (&w_lo)[9][2],
                           float (&sum)[TILE][TILE][4])
{
#pragma unroll
    for (int j = 0; j < TILE + 2; j++) {
        unsigned hi[4], lo[4];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            float2 two = *reinterpret_cast<const float2 *>(row + 4 * k * pixel_rows<8, TILE>::CHANNEL + j * 16);

            tf32_parts<PRODUCTS>(two.x, &hi[2 * k], &lo[2 * k]);
            tf32_parts<PRODUCTS>(two.y, &hi[2 * k + 1], &lo[2 * k + 1]);
        }
#pragma unroll
        for (int kind = 3 - PRODUCTS; kind < 3; kind++)
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                int oy = i - tap / 3, ox = j - tap % 3;

                if (oy >= 0 && oy < TILE && ox >= 0 && ox < TILE)
                    mma_16x8x8(sum[oy][ox], kind == 0 ? lo : hi, kind == 1 ? w_lo[tap] : w_hi[tap]);
            }
    }
}

/* The same for up to four channels: two taps side by side make eight. */
template <int TILE, int PRODUCTS>
FUNCTION void multiply_row(int i, const float *row, const unsigned (&w_hi)[9][1], const unsigned (&w_lo)[9][1],
                           float (&sum)[TILE][TILE][4])
{
    unsigned part[2][TILE + 2][2]; /* hi, lo */

#pragma unroll
    for (int j = 0; j < TILE + 2; j++) {
        float2 two = *reinterpret_cast<const float2 *>(row + j * 16);

        tf32_parts<PRODUCTS>(two.x, &part[0][j][0], &part[1][j][0]);
        tf32_parts<PRODUCTS>(two.y, &part[0][j][1], &part[1][j][1]);
    }
#pragma unroll
    for (int kind = 3 - PRODUCTS; kind < 3; kind++)
#pragma unroll
        for (int dy = 0; dy < 3; dy++)
#pragma unroll
            for (int ox = 0; ox < TILE; ox++)
                if (i - dy >= 0 && i - dy < TILE) {
                    const unsigned(&left)[2] = part[kind == 0][ox], (&right)[2] = part[kind == 0][ox + 1];
                    const unsigned a[4] = {left[0], left[1], right[0], right[1]};
                    const unsigned b[2] = {kind == 1 ? w_lo[3 * dy][0] : w_hi[3 * dy][0],
                                           kind == 1 ? w_lo[3 * dy + 1][0] : w_hi[3 * dy + 1][0]};

                    mma_16x8x8(sum[i - dy][ox], a, b);
                }
#pragma unroll
    for (int kind = 3 - PRODUCTS; kind < 3; kind++)
#pragma unroll
        for (int dy = 0; dy < 3; dy++)
#pragma unroll
            for (int ox = 0; ox < TILE; ox++)
                if (i - dy >= 0 && i - dy < TILE)
                    mma_16x8x4(sum[i - dy][ox], part[kind == 0][ox + 2],
                               kind == 1 ? w_lo[3 * dy + 2][0] : w_hi[3 * dy + 2][0]);
}

/* DEPTH: input channels of a product. PRODUCTS: of TF32 for one of floats. TILE: the tile's side, or 2 where the image has no more. */
template <int DEPTH, int TILE, bool BACK, int PRODUCTS> FUNCTION void convolve_3(const esper_lane *lane, float *weights)
{
    typedef pixel_rows<DEPTH, TILE> ring;
    conv_work work;

    if (!conv_work_of<BACK>(lane, &work))
        return;
    const block_conv &v = work.v;
    const block_cut &cut = work.cut;
    const int place = threadIdx.x % 32, row = place / 4, column = place % 4, plane = v.in_h * v.in_w * ESPER_CUDA_BLOCK;
    const float *own_weights = weights + column * 9 * cut.stride + work.out - work.first_out + row;
    float *rows = weights + cut.chunk * 9 * cut.stride + threadIdx.x / 32 * (ring::ROWS * ring::ROW);

    /* What a share copies of the channels from first_in on. */
    auto source_of = [&](int share, int first_in) {
        int tile = share / 2, ix = tile % cut.tiles_x * BLOCK_TILE - v.pad + row / DEPTH, channel = first_in + row % DEPTH;
        pixel_source from;

        from.iy = tile / cut.tiles_x * BLOCK_TILE - v.pad;
        from.at = work.x + channel * plane + (from.iy * v.in_w + ix) * ESPER_CUDA_BLOCK + share % 2 * 16 + column * 4;
        from.there = 0;
#pragma unroll
        for (int k = 0; k < ring::SIDE; k++)
            from.there |= ix + k >= 0 && ix + k < v.in_w && channel < v.in_c ? 1u << k : 0u;
        return from;
    };
    auto is_mine = [&](int share) { return share < cut.shares && work.out < v.out_c; };
    pixel_source from = source_of(work.first_share, 0);

    if (is_mine(work.first_share))
#pragma unroll
        for (int i = 0; i < ring::ROWS - 1; i++)
            copy_row<DEPTH, TILE>(v, from, i, rows);
    for (int turn = 0; turn < cut.turns; turn++) {
        int share = work.first_share + turn * cut.pixel_warps, next_share = share + cut.pixel_warps;
        float sum[TILE][TILE][4];

#pragma unroll
        for (int i = 0; i < TILE * TILE * 4; i++)
            sum[i / 4 / TILE][i / 4 % TILE][i % 4] = 0.0f;
        for (int first_in = 0; first_in < v.in_c; first_in += cut.chunk) {
            int n_in = min(cut.chunk, block_divide(v.in_c - first_in, DEPTH) * DEPTH);

            if (turn == 0 || cut.chunk < v.in_c) {
                __syncthreads();
                stage_weights<3, BACK>(v, cut, work.w, cut.channel_warps * BLOCK_OUT_TENSOR, work.first_out, first_in, n_in,
                                       weights);
                __syncthreads();
            }
            for (int c = 0; c < n_in && is_mine(share); c += DEPTH) {
                bool goes_on = first_in + c + DEPTH < v.in_c, ends = !goes_on && (turn + 1 == cut.turns || !is_mine(next_share));
                pixel_source next = source_of(goes_on ? share : next_share, goes_on ? first_in + c + DEPTH : 0);
                unsigned w_hi[9][DEPTH / 4], w_lo[9][DEPTH / 4];

                next.there = ends ? 0 : next.there;
#pragma unroll
                for (int tap = 0; tap < 9; tap++)
#pragma unroll
                    for (int k = 0; k < DEPTH / 4; k++)
                        tf32_parts<PRODUCTS>(own_weights[((c + 4 * k) * 9 + tap) * cut.stride], &w_hi[tap][k], &w_lo[tap][k]);
#pragma unroll
                for (int i = 0; i < ring::SIDE; i++) {
                    const int ahead = i + ring::ROWS - 1;

                    await_rows<ring::ROWS - 2>();
                    copy_row<DEPTH, TILE>(v, ahead < ring::SIDE ? from : next, ahead % ring::SIDE, rows);
                    if ((i > 0 && i + 1 < ring::SIDE) || (from.iy + i >= 0 && from.iy + i < v.in_h))
                        multiply_row<TILE, PRODUCTS>(i, rows + i % ring::ROWS * ring::ROW + column * ring::CHANNEL + 2 * row, w_hi,
                                                     w_lo, sum);
                }
                from = next;
            }
        }
        if (is_mine(share)) {
            int tile = share / 2;

            put_share<TILE, BACK>(lane, work, share, tile / cut.tiles_x * BLOCK_TILE, tile % cut.tiles_x * BLOCK_TILE, sum);
        }
    }
}

#else

/* Devices without tensor cores for floats: a share is four of the warp's channels. */
template <int DEPTH, int TILE, bool BACK, int PRODUCTS> FUNCTION void convolve_3(const esper_lane *lane, float *weights)
{
    convolve<3, BLOCK_OUT_TENSOR / 2, 2, BACK>(lane, weights);
}

#endif

#define CONVOLVE_3(name, depth, tile, dense, products)                                       \
    ESPER_KERNEL_DENSE(esper_block_conv_3_8##name, BLOCK_THREADS, dense)           \
    {                                                                              \
        ESPER_SHARED(float, weights);                                              \
        convolve_3<depth, tile, false, products>(lanes.lane[blockIdx.y], weights);           \
    }                                                                              \
    ESPER_KERNEL_DENSE(esper_block_conv_back_3_8##name, BLOCK_THREADS, dense)      \
    {                                                                              \
        ESPER_SHARED(float, weights);                                              \
        convolve_3<depth, tile, true, products>(lanes.lane[blockIdx.y], weights);            \
    }

CONVOLVE_3(, 8, 4, 3, 3)
CONVOLVE_3(_few, 4, 4, 3, 3)
CONVOLVE_3(_small, 8, 2, 4, 3)
CONVOLVE_3(_tf32, 8, 4, 3, 1)
CONVOLVE_3(_few_tf32, 4, 4, 3, 1)
CONVOLVE_3(_small_tf32, 8, 2, 4, 1)
