/* The gradient of the weights of convolutions of 3 x 3 taps over words of two channels (block_half.h),
 *
 *     dw[o][c][ky][kx] = sum of dy[o][y][x] x[c][y + ky - pad][x + kx - pad]
 *
 * over samples and pixels. Products are over 16 samples of a pixel: a thread loads four samples of a pair of channels, 16 bytes, and puts the
 * halves of one channel together. The rows of a product are eight lines of dy, the even channels of their pairs and then the odd ones, its
 * columns the even, or the odd, channels of eight lines of x. A line is a pair of channels in one of the rows of pixels that are
 * looked at: where there are fewer pairs, there are more rows, and a product serves several taps. As a warp walks along its rows, the
 * columns that it has just seen stay in registers, and the next one's words are on their way.
 *
 * It is done in parts, which a second kernel joins in order. */
#include "tensor/cuda/block_half.cuh"

#if defined(__CUDA_ARCH__)
FUNCTION unsigned low_halves(unsigned a, unsigned b)
{
    return __byte_perm(a, b, 0x5410);
}

FUNCTION unsigned high_halves(unsigned a, unsigned b)
{
    return __byte_perm(a, b, 0x7632);
}
#else
FUNCTION unsigned low_halves(unsigned a, unsigned b)
{
    return (a & 0xffffu) | b << 16;
}

FUNCTION unsigned high_halves(unsigned a, unsigned b)
{
    return a >> 16 | (b & 0xffff0000u);
}
#endif

/* Four samples of a line: of its even and of its odd channel, two and two. */
struct half_line {
    unsigned even[2], odd[2];
};

FUNCTION half_line line_of(const uint4 &words)
{
    half_line l;

    l.even[0] = low_halves(words.x, words.y);
    l.even[1] = low_halves(words.z, words.w);
    l.odd[0] = high_halves(words.x, words.y);
    l.odd[1] = high_halves(words.z, words.w);
    return l;
}

FUNCTION uint4 load_words(const unsigned *from, bool is)
{
    return is ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
}

template <int OUT, int IN> struct half_weigher {
    enum {
        ROWS = 8 / OUT,                         /* of dy that a step takes */
        SEEN = ROWS + 2,                        /* of x that these see */
        GROUPS = (SEEN * IN + 7) / 8,           /* of eight lines of x */
        ROOM = HALF_WARPS * GROUPS * 3 * 2 * 128 /* floats: [warp][group][tap's column][even, odd][row][column] */
    };
};

/* Whether dy lies in memory, or is formed from y and the gradient of what comes out of the norm, or of the pool behind it: in a first layer
 * it is wanted here alone, and is never in memory. */
enum { GIVEN, OF_NORM, OF_POOL };

/* What a thread forms dy of: four samples of its line at a pixel, or in a window. */
template <int DY> struct half_source {
    uint4 y[DY == OF_POOL ? 4 : 1], g;
};

/* At a row and column of the pair's plane, of a window those of its first pixel. What is not there is 0. */
template <int DY>
FUNCTION void load_source(half_source<DY> &s, const block_norm &n, const unsigned *y, const unsigned *g, int row, int column, bool is)
{
    constexpr int SHRINK = DY == OF_POOL ? 2 : 1;

#pragma unroll
    for (int j = 0; j < (DY == OF_POOL ? 4 : 1); j++)
        s.y[j] = load_words(y + ((row + j / 2) * n.W + column + j % 2) * ESPER_CUDA_BLOCK,
                            is && row + j / 2 < n.H && column + j % 2 < n.W);
    s.g = load_words(g + (row / SHRINK * (n.W / SHRINK) + column / SHRINK) * ESPER_CUDA_BLOCK,
                     is && row / SHRINK < n.H / SHRINK && column / SHRINK < n.W / SHRINK);
}

FUNCTION float half_at(const uint4 &words, int i, int channel)
{
    unsigned word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;

    return channel == 0 ? bf16_low(word) : bf16_high(word);
}

/* dy of a pixel, or of the two of a window that are in a row; of pixels that there are, and of n_samples of the four. */
template <int DY>
FUNCTION void form(const way_back (&back)[2], const half_source<DY> &s, int n_rows, int n_columns, int row, int n_samples,
                   uint4 (&dy)[2])
{
    float formed[2][4][2]; /* column, sample, channel */

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const way_back &own = back[i / 4];
        float off[4], all[4] = {0, 0, 0, 0};

#pragma unroll
        for (int j = 0; j < (DY == OF_POOL ? 4 : 1); j++)
            off[j] = j / 2 < n_rows && j % 2 < n_columns ? half_at(s.y[j], i % 4, i / 4) - own.a.mean : 0.0f;
        if (DY == OF_POOL)
            dy_of(own, off, half_at(s.g, i % 4, i / 4), all);
        else
            all[0] = dy_of(own, off[0], half_at(s.g, i % 4, i / 4));
        formed[0][i % 4][i / 4] = i % 4 < n_samples && row < n_rows && 0 < n_columns ? (row == 0 ? all[0] : all[2]) : 0.0f;
        formed[1][i % 4][i / 4] = i % 4 < n_samples && row < n_rows && 1 < n_columns ? (row == 0 ? all[1] : all[3]) : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < 2; c++)
        dy[c] = make_uint4(bf16_pack(formed[c][0][0], formed[c][0][1]), bf16_pack(formed[c][1][0], formed[c][1][1]),
                           bf16_pack(formed[c][2][0], formed[c][2][1]), bf16_pack(formed[c][3][0], formed[c][3][1]));
}

template <int OUT, int IN, int DY> FUNCTION void weigh(const esper_lane *lane, float *room)
{
    typedef half_weigher<OUT, IN> kind;
    constexpr int ROWS = kind::ROWS, GROUPS = kind::GROUPS;
    const block_conv v = block_conv_of(lane, false);
    const half_weigh_cut cut = half_weigh_cut_of(&v);
    const esper_view *y = block_y(lane);
    int unit = blockIdx.x, warp = threadIdx.x / 32, line = threadIdx.x % 32 / 4, samples = warp % 2 * 16 + threadIdx.x % 4 * 4;
    int in = unit % cut.in_tiles * IN, out = unit / cut.in_tiles % cut.out_tiles * OUT, part = unit / cut.in_tiles / cut.out_tiles;
    int first_block = part / cut.parts * cut.span, end_block = min(first_block + cut.span, blocks_of(lane));
    int first_row = part % cut.parts * cut.part_rows + warp / 2 * ROWS;
    int end_row = min((part % cut.parts + 1) * cut.part_rows, v.out_h);
    int out_pair = out + line % OUT, out_row = line / OUT; /* of dy */
    float sum[GROUPS][3][2][4];
    half_line seen[GROUPS][3];
    uint4 next_x[GROUPS], next_y = make_uint4(0, 0, 0, 0), formed[2];
    half_source<DY> source;
    way_back back[2] = {};
    block_norm n;

    if (first_block >= end_block)
        return;
    if (DY != GIVEN) {
        n = block_norm_of(lane);
        back[0] = way_back_of(lane, n, min(2 * out_pair, n.C - 1));
        if (2 * out_pair + 1 < n.C)
            back[1] = way_back_of(lane, n, 2 * out_pair + 1);
    }
#pragma unroll
    for (int i = 0; i < GROUPS * 24; i++)
        sum[i / 24][i / 8 % 3][i / 4 % 2][i % 4] = 0.0f;
    for (int block = first_block; block < end_block; block++)
        for (int row = first_row; row < end_row; row += 2 * ROWS) {
            const unsigned *dy = (block_has_norm(lane) ? data_words(y, block) : grad_words(y, block)) +
                                 ((size_t)(out_pair * v.out_h + row + out_row) * v.out_w) * ESPER_CUDA_BLOCK + samples;
            bool is_dy = 2 * out_pair < v.out_c && row + out_row < end_row;
            const int own_row = row + out_row, top = DY == OF_POOL ? own_row / 2 * 2 : own_row;
            const unsigned *y_plane = 0, *g_plane = 0;
            const unsigned *x[GROUPS];
            bool is_x[GROUPS];

#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                int l = 8 * g + line, pair = in + l % IN, at = row - v.pad + l / IN;

                is_x[g] = 2 * pair < v.in_c && at >= 0 && at < v.in_h && l / IN < kind::SEEN;
                x[g] = data_words(&lane->in[0], block) + ((int64_t)(pair * v.in_h + at) * v.in_w - v.pad) * ESPER_CUDA_BLOCK + samples;
#pragma unroll
                for (int k = 1; k < 3; k++)
                    seen[g][k] = line_of(load_words(x[g] + (k - 1) * ESPER_CUDA_BLOCK, is_x[g] && k - 1 >= v.pad && k - 1 - v.pad < v.in_w));
                next_x[g] = load_words(x[g] + 2 * ESPER_CUDA_BLOCK, is_x[g] && 2 >= v.pad && 2 - v.pad < v.in_w);
            }
            if (DY == GIVEN)
                next_y = load_words(dy, is_dy);
            else {
                const esper_view *result = &lane->out[0];

                y_plane = data_words(y, block) + (size_t)out_pair * v.out_h * v.out_w * ESPER_CUDA_BLOCK + samples;
                g_plane = grad_words(result, block) + (size_t)out_pair * result->dim[1] * result->dim[2] * ESPER_CUDA_BLOCK + samples;
                load_source<DY>(source, n, y_plane, g_plane, top, 0, is_dy);
            }
            for (int ox = 0; ox < v.out_w; ox++) {
                if (DY != GIVEN) {
                    int width = DY == OF_POOL ? 2 : 1;

                    if (ox % width == 0) {
                        form<DY>(back, source, is_dy ? v.out_h - top : 0, v.out_w - ox, own_row - top,
                                 samples_in(lane, block) - samples, formed);
                        load_source<DY>(source, n, y_plane, g_plane, top, ox + width, is_dy && ox + width < v.out_w);
                    }
                    next_y = ox % width == 0 ? formed[0] : formed[1];
                }
                half_line grad = line_of(next_y);
                const unsigned a[4] = {grad.even[0], grad.odd[0], grad.even[1], grad.odd[1]};
                int column = ox + 3 - v.pad;

#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    seen[g][0] = seen[g][1];
                    seen[g][1] = seen[g][2];
                    seen[g][2] = line_of(next_x[g]);
                    next_x[g] = load_words(x[g] + (ox + 3) * ESPER_CUDA_BLOCK, is_x[g] && column >= 0 && column < v.in_w);
                }
                if (DY == GIVEN)
                    next_y = load_words(dy + (ox + 1) * ESPER_CUDA_BLOCK, is_dy && ox + 1 < v.out_w);
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
#pragma unroll
                    for (int k = 0; k < 3; k++) {
                        mma_16x8x16(sum[g][k][0], a, seen[g][k].even);
                        mma_16x8x16(sum[g][k][1], a, seen[g][k].odd);
                    }
            }
        }
#pragma unroll
    for (int i = 0; i < GROUPS * 24; i++) {
        int tile = (warp * GROUPS + i / 24) * 6 + i / 4 % 6, m = line + i % 4 / 2 * 8, n = threadIdx.x % 4 * 2 + i % 2;

        room[tile * 128 + m * 8 + n] = sum[i / 24][i / 8 % 3][i / 4 % 2][i % 4];
    }
    __syncthreads();
    float *parts = (float *)((char *)lane->scratch + half_scratch_of(lane, true, lane->max_samples).weights) +
                   (size_t)part * lane->in[1].count;

    for (int i = threadIdx.x; i < 2 * OUT * 2 * IN * 9; i += HALF_THREADS) {
        int kx = i % 3, ky = i / 3 % 3, c = i / 9 % (2 * IN), o = i / (18 * IN);
        float total = 0;

        for (int w = 0; w < HALF_WARPS; w++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int l = (ky + r) * IN + c / 2, m = r * OUT + o / 2 + o % 2 * 8;

                total += room[((w * GROUPS + l / 8) * 6 + kx * 2 + c % 2) * 128 + m * 8 + l % 8];
            }
        if (2 * in + c < v.in_c && 2 * out + o < v.out_c)
            parts[((2 * out + o) * v.in_c + 2 * in + c) * 9 + ky * 3 + kx] = total;
    }
}

#define WEIGH(name, out, in, dy, dense)                       \
    ESPER_KERNEL_DENSE(esper_half_weigh_##name, HALF_THREADS, dense) \
    {                                                         \
        __shared__ float room[half_weigher<out, in>::ROOM];   \
        weigh<out, in, dy>(lanes.lane[blockIdx.y], room);     \
    }

WEIGH(4_2, 4, 2, GIVEN, 4)
WEIGH(4_4, 4, 4, GIVEN, 4)
WEIGH(8_2, 8, 2, GIVEN, 4)
WEIGH(8_4, 8, 4, GIVEN, 4)
WEIGH(8_8, 8, 8, GIVEN, 3)
WEIGH(4_first, 4, 2, OF_NORM, 3)
WEIGH(8_first, 8, 2, OF_NORM, 3)
WEIGH(4_first_pool, 4, 2, OF_POOL, 3)
WEIGH(8_first_pool, 8, 2, OF_POOL, 3)

/* A thread has a weight, and adds what all parts give to it. */
ESPER_KERNEL(esper_half_weigh_join, HALF_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *w = &lane->in[1];
    const block_conv v = block_conv_of(lane, false);
    const half_weigh_cut cut = half_weigh_cut_of(&v);
    const float *parts = (const float *)((const char *)lane->scratch + half_scratch_of(lane, true, lane->max_samples).weights);
    int at = blockIdx.x * HALF_THREADS + threadIdx.x, n_parts = block_divide(blocks_of(lane), cut.span) * cut.parts;
    double sum = 0;

    if (at >= w->count)
        return;
#pragma unroll 8
    for (int p = 0; p < n_parts; p++)
        sum += (double)parts[(size_t)p * w->count + at];
    grad_put(w, (float *)w->grad + at, (float)sum);
}
