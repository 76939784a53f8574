/* The gradient of the weights of convolutions on blocks of samples: a sum of products over samples and pixels,
 *
 *     dw[o][c][ky][kx] = sum of dy[o][y][x] x[c][y + ky - pad][x + kx - pad]
 *
 * taken in parts, some rows of a block of samples each, which a second kernel joins in order. Where taps are 3 x 3 tensor cores do it.
 *
 * Of a first layer with a norm behind it, dy is wanted here alone: it is formed from y on the way and never in memory. */
#include "tensor/cuda/block_norm.cuh"
#include "tensor/cuda/block_pixels.cuh"
#include "tensor/cuda/mma.cuh"

/* ------------------------------------------------------------------------------------------------ where things are */

FUNCTION const float *x_plane(const esper_lane *lane, const block_conv &v, int block, int group, int channel)
{
    return data_block(&lane->in[0], block) + (size_t)(group * v.in_c + channel) * (v.in_h * v.in_w * ESPER_CUDA_BLOCK);
}

/* Where a norm follows, the gradient of y has taken the place of y. */
FUNCTION const float *dy_plane(const esper_lane *lane, const block_conv &v, int block, int group, int channel)
{
    const esper_view *y = block_y(lane);

    return (block_has_norm(lane) ? data_block(y, block) : grad_block(y, block)) +
           (size_t)(group * v.out_c + channel) * (v.out_h * v.out_w * ESPER_CUDA_BLOCK);
}

/* A part of the sum for all weights, at those of an output and an input channel. */
FUNCTION float *part_of(const esper_lane *lane, const block_conv &v, int part, int group, int out, int in)
{
    float *parts = (float *)((char *)lane->scratch + block_scratch_of(lane, true, lane->max_samples).weights);

    return parts + (size_t)part * lane->in[1].count + ((group * v.out_c + out) * v.in_c + in) * (v.kernel * v.kernel);
}

/* ------------------------------------------------------------------------------------------------ by multiply-adds */

/* A thread sums over pixels of its sample: ROWS x K taps of OUT by IN channels. Only at the end are the 32 samples joined. A strip
 * of four pixels of 8 by 1 channels with 3 x 3 taps is 288 multiply-adds for 50 loads, of which the other warps of the block,
 * that have other input channels, find most in the first cache. */

/* Adds what some rows of a block of samples give. x and g are of the tile's first channels, at the thread's sample. */
template <int K, int ROWS, int OUT, int IN>
FUNCTION void weigh_rows(const block_conv &v, const float *x, const float *g, int n_in, int n_out, int first_tap, int first_row,
                         int end_row, float (&sum)[IN][ROWS][K][OUT])
{
    const int seen = BLOCK_TILE + K - 1;
    int in_plane = v.in_h * v.in_w * ESPER_CUDA_BLOCK, out_plane = v.out_h * v.out_w * ESPER_CUDA_BLOCK;

    for (int oy = first_row; oy < end_row; oy++)
        for (int ox = 0; ox < v.out_w; ox += BLOCK_TILE) {
            const float *strip = g + (size_t)(oy * v.out_w + ox) * ESPER_CUDA_BLOCK;
            int n_columns = min(BLOCK_TILE, v.out_w - ox);
            row_of_pixels row = row_at<seen, K>(v, ox);
            float pixel[IN][ROWS][seen];

#pragma unroll
            for (int i = 0; i < IN * ROWS; i++) {
                int c = i / ROWS, tap = i % ROWS, iy = oy - v.pad + first_tap + tap;

                if (iy >= 0 && iy < v.in_h && c < n_in) {
                    row.at = x + c * in_plane + (iy * v.in_w + ox - v.pad) * ESPER_CUDA_BLOCK;
                    load_row<seen, K>(row, pixel[c][tap]);
                } else {
#pragma unroll
                    for (int j = 0; j < seen; j++)
                        pixel[c][tap][j] = 0.0f;
                }
            }
#pragma unroll
            for (int o = 0; o < OUT; o++) {
                float grad[BLOCK_TILE];

#pragma unroll
                for (int j = 0; j < BLOCK_TILE; j++)
                    grad[j] = o < n_out && j < n_columns ? strip[j * ESPER_CUDA_BLOCK] : 0.0f;
                strip += out_plane;
#pragma unroll
                for (int i = 0; i < IN * ROWS; i++)
#pragma unroll
                    for (int k = 0; k < K; k++)
#pragma unroll
                        for (int j = 0; j < BLOCK_TILE; j++)
                            sum[i / ROWS][i % ROWS][k][o] =
                                fmaf(grad[j], pixel[i / ROWS][i % ROWS][j + k], sum[i / ROWS][i % ROWS][k][o]);
            }
        }
}

/* Joins the 32 samples and puts the tile where it belongs; w: the weights of its first channels. */
template <int K, int ROWS, int OUT, int IN>
FUNCTION void put_weights(const block_conv &v, float *w, int n_in, int n_out, int first_tap, float (&sum)[IN][ROWS][K][OUT])
{
    int sample = threadIdx.x % 32, o = sample * OUT / 32;

#pragma unroll
    for (int c = 0; c < IN; c++)
#pragma unroll
        for (int tap = 0; tap < ROWS; tap++)
#pragma unroll
            for (int k = 0; k < K; k++) {
                float total = sum_over_warp<OUT>(sum[c][tap][k]);

                if (sample % (32 / OUT) == 0 && o < n_out && c < n_in && first_tap + tap < v.kernel && k < v.kernel)
                    w[((o * v.in_c + c) * v.kernel + first_tap + tap) * v.kernel + k] = total;
            }
}

template <int K, int ROWS, int OUT, int IN> FUNCTION void weigh(const esper_lane *lane)
{
    const block_conv v = block_conv_of(lane, false);
    const block_weights_cut cut = block_weights_cut_of(&v);
    int unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32, in, out, group, part, block, first_tap, n_in, n_out;
    float sum[IN][ROWS][K][OUT];

    if (unit >= blocks_of(lane) * cut.parts * cut.warps)
        return;
    in = unit % cut.in_tiles * IN;
    unit /= cut.in_tiles;
    first_tap = unit % cut.row_tiles * ROWS;
    unit /= cut.row_tiles;
    out = unit % cut.out_tiles * OUT;
    unit /= cut.out_tiles;
    group = unit % v.groups;
    unit /= v.groups;
    part = unit % cut.parts;
    block = unit / cut.parts;
    n_in = min(IN, v.in_c - in);
    n_out = min(OUT, v.out_c - out);
#pragma unroll
    for (int i = 0; i < IN * ROWS * K * OUT; i++)
        sum[i / (ROWS * K * OUT)][i / (K * OUT) % ROWS][i / OUT % K][i % OUT] = 0.0f;
    weigh_rows<K, ROWS, OUT, IN>(v, x_plane(lane, v, block, group, in) + threadIdx.x % 32,
                                 dy_plane(lane, v, block, group, out) + threadIdx.x % 32, n_in, n_out, first_tap,
                                 part * cut.part_rows, min((part + 1) * cut.part_rows, v.out_h), sum);
    put_weights<K, ROWS, OUT, IN>(v, part_of(lane, v, block * cut.parts + part, group, out, in), n_in, n_out, first_tap, sum);
}

#define WEIGH(k, rows, out, in, dense)                                   \
    ESPER_KERNEL_DENSE(esper_block_conv_weights_##k##_##out, BLOCK_THREADS, dense) \
    {                                                                    \
        weigh<k, rows, out, in>(lanes.lane[blockIdx.y]);                  \
    }

WEIGH(1, 1, 8, 8, 4)
WEIGH(3, 3, 1, 1, 6)
WEIGH(3, 3, 8, 1, 4)
WEIGH(5, 1, 1, 1, 6)
WEIGH(5, 1, 8, 1, 4)
WEIGH(7, 1, 1, 1, 6)
WEIGH(7, 1, 8, 1, 4)

/* ------------------------------------------------------------------------------------------------ on tensor cores */

/* What a block of threads does. */
struct weigh_work {
    int in, out, group; /* the first channels, of the group */
    int part, first_row, end_row, first_block, end_block;
};

FUNCTION weigh_work weigh_work_of(const esper_lane *lane, const block_conv &v, int n_in, int n_out)
{
    const block_weigh_cut cut = block_weigh_cut_of(&v);
    int unit = blockIdx.x;
    weigh_work work;

    work.in = unit % cut.in_tiles * n_in;
    unit /= cut.in_tiles;
    work.out = unit % cut.out_tiles * n_out;
    unit /= cut.out_tiles;
    work.group = unit % v.groups;
    work.part = unit / v.groups;
    work.first_block = work.part / cut.parts * cut.span;
    work.end_block = min(work.first_block + cut.span, blocks_of(lane));
    work.first_row = work.part % cut.parts * cut.part_rows;
    work.end_row = min(work.first_row + cut.part_rows, v.out_h);
    return work;
}

/* Samples lie side by side, so a fragment of eight lines by eight samples comes straight from memory: a thread loads two samples of
 * one line. Lines of dy are output channels. Those of x are (input channel, row that the taps see), which makes one product serve
 * three taps; the other three come as a warp walks along its rows of pixels with the columns it has just seen in registers. Two
 * columns are a step, and the next one's numbers are on their way meanwhile.
 *
 * The four warps of a block of threads have eight samples each of the same pixels, so all of a line of memory is used at about the
 * same time. Tensor cores cut off what is behind the last bit of a sum and do not round it: a chain of products is six long, and is
 * then added as floats are. */
/* Where a warp is in its walk: at which two columns of which rows of which block of samples. */
struct walk {
    int block, row, step;
};

/* Two samples of a line. */
FUNCTION float2 load_samples(const float *from, bool is)
{
    return is ? *reinterpret_cast<const float2 *>(from) : make_float2(0.0f, 0.0f);
}

struct part_of_line {
    unsigned hi[2], lo[2];
};

template <int PRODUCTS> FUNCTION part_of_line split(float2 samples)
{
    part_of_line p = {{tf32_near(samples.x), tf32_near(samples.y)}, {0, 0}};

    if (PRODUCTS == 3) {
        tf32_cut(samples.x, &p.hi[0], &p.lo[0]);
        tf32_cut(samples.y, &p.hi[1], &p.lo[1]);
    }
    return p;
}

/* c += a b, a of sixteen lines and b of eight. */
template <int PRODUCTS> FUNCTION void multiply(float (&c)[4], const part_of_line &upper, const part_of_line &lower, const part_of_line &b)
{
    const unsigned a_hi[4] = {upper.hi[0], lower.hi[0], upper.hi[1], lower.hi[1]};
    const unsigned a_lo[4] = {upper.lo[0], lower.lo[0], upper.lo[1], lower.lo[1]};

    if (PRODUCTS == 3)
        mma_3(c, a_hi, a_lo, b.hi, b.lo);
    else
        mma_16x8x8(c, a_hi, b.hi);
}

/* Whether dy lies in memory, or is formed from y and the gradient of what comes out of the norm, or of the pool behind it. */
enum { GIVEN, OF_NORM, OF_POOL };

/* dy of two rows and columns, from y and its two samples' gradients; what is not there is 0. */
template <int DY>
FUNCTION void form(const way_back &back, const float2 (&y)[2][2], const float2 (&g)[4], int rows, int columns, int samples,
                   float2 (&dy)[2][2])
{
    float formed[2][4];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        float off[4], from[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            off[j] = (i == 0 ? y[j / 2][j % 2].x : y[j / 2][j % 2].y) - back.a.mean;
            from[j] = i == 0 ? g[j].x : g[j].y;
        }
        if (DY == OF_POOL)
            dy_of(back, off, from[0], formed[i]);
        else
#pragma unroll
            for (int j = 0; j < 4; j++)
                formed[i][j] = dy_of(back, off[j], from[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        bool is = j / 2 < rows && j % 2 < columns;

        dy[j / 2][j % 2].x = is && samples > 0 ? formed[0][j] : 0.0f;
        dy[j / 2][j % 2].y = is && samples > 1 ? formed[1][j] : 0.0f;
    }
}

/* ROWS rows of dy at a time; X and Y: eights of lines of x and of dy. Those of which there are two or four are the rows of products. */
template <int ROWS, int X, int Y, int DY, int PRODUCTS> FUNCTION void weigh_on_cores(const esper_lane *lane, float *room)
{
    constexpr int SEEN = ROWS + 2, CHANNELS = 8 * X / SEEN,
                  OUT = 8 * Y; /* rows of x for a channel; channels of a block of threads */
    constexpr bool X_FIRST = Y == 1;
    constexpr int TILES = X_FIRST ? X / 2 : X;
    static_assert(X_FIRST ? X % 2 == 0 : Y == 2, "sixteen lines by eight");
    static_assert(DY == GIVEN || (ROWS == 2 && Y == 1), "windows");
    const block_conv v = block_conv_of(lane, false);
    const weigh_work work = weigh_work_of(lane, v, CHANNELS, OUT);
    const int in_plane = v.in_h * v.in_w * ESPER_CUDA_BLOCK, out_plane = v.out_h * v.out_w * ESPER_CUDA_BLOCK;
    const int warp = threadIdx.x / 32, line = threadIdx.x % 32 / 4, column = threadIdx.x % 4;
    const size_t x_block = (size_t)lane->in[0].count * ESPER_CUDA_BLOCK,
                 g_block = (size_t)block_y(lane)->count * ESPER_CUDA_BLOCK;
    const float *x = x_plane(lane, v, 0, work.group, work.in) + warp * 8 + column * 2;
    const float *g = dy_plane(lane, v, 0, work.group, work.out) + warp * 8 + column * 2;
    int x_row[X], x_at[X];
    float sum[ROWS][3][TILES][4];
    float2 seen[X][4], seen_next[X][2], grad_next[ROWS][Y][2]; /* y's, where dy is formed, and what it is formed of: */
    float2 out_next[4];
    const esper_view *result = &lane->out[0];
    const int channel = min(work.out + line, v.out_c - 1);
    way_back back;
    walk here, next;

    if (work.first_block >= work.end_block)
        return;
#pragma unroll
    for (int i = 0; i < X; i++) {
        int c = (8 * i + line) / SEEN;

        x_row[i] = (8 * i + line) % SEEN - v.pad;
        x_at[i] = c * in_plane + x_row[i] * v.in_w * ESPER_CUDA_BLOCK;
        x_row[i] = work.in + c < v.in_c ? x_row[i] : -(1 << 20); /* a row that no image has */
    }
#pragma unroll
    for (int i = 0; i < ROWS * 3 * TILES * 4; i++)
        sum[i / (12 * TILES)][i / (4 * TILES) % 3][i / 4 % TILES][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < X; i++)
        seen[i][2] = seen[i][3] = seen_next[i][0] = seen_next[i][1] = make_float2(0.0f, 0.0f);
    if (DY != GIVEN)
        back = way_back_of(lane, block_norm_of(lane), channel);
    here.block = next.block = work.first_block;
    here.row = next.row = work.first_row;
    here.step = -1;
    next.step = 0;

    /* A step's columns of x are those that its two columns of dy see last; the first two of a row have no dy yet. */
    while (here.block < work.end_block) {
        int steps = block_divide(v.out_w, 2);
        part_of_line grad[ROWS][Y][2];

#pragma unroll
        for (int i = 0; i < X; i++) {
            seen[i][0] = seen[i][2];
            seen[i][1] = seen[i][3];
            seen[i][2] = seen_next[i][0];
            seen[i][3] = seen_next[i][1];
        }
        if (here.step > 0) {
            if constexpr (DY != GIVEN) {
                float2 y[2][2] = {{grad_next[0][0][0], grad_next[0][0][1]}, {grad_next[1][0][0], grad_next[1][0][1]}}, dy[2][2];

                form<DY>(back, y, out_next, work.end_row - here.row, v.out_w - (2 * here.step - 2),
                         samples_in(lane, here.block) - warp * 8 - column * 2, dy);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    grad[i / 2][0][i % 2] = split<PRODUCTS>(dy[i / 2][i % 2]);
            } else
#pragma unroll
                for (int i = 0; i < ROWS * Y * 2; i++)
                    grad[i / (2 * Y)][i / 2 % Y][i % 2] = split<PRODUCTS>(grad_next[i / (2 * Y)][i / 2 % Y][i % 2]);
        }
        if (next.block < work.end_block) {
            int first = 2 * next.step - v.pad, first_out = 2 * next.step - 2;
            const float *x_now = x + (size_t)next.block * x_block + (next.row * v.in_w + first) * ESPER_CUDA_BLOCK;
            const float *g_now = g + (size_t)next.block * g_block + (next.row * v.out_w + first_out) * ESPER_CUDA_BLOCK;

#pragma unroll
            for (int i = 0; i < X; i++) {
                bool is = next.row + x_row[i] >= 0 && next.row + x_row[i] < v.in_h;

#pragma unroll
                for (int j = 0; j < 2; j++)
                    seen_next[i][j] =
                        load_samples(x_now + x_at[i] + j * ESPER_CUDA_BLOCK, is && first + j >= 0 && first + j < v.in_w);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < Y; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        grad_next[r][i][j] =
                            load_samples(g_now + (8 * i + line) * out_plane + (r * v.out_w + j) * ESPER_CUDA_BLOCK,
                                         next.step > 0 && first_out + j < v.out_w && next.row + r < work.end_row &&
                                             work.out + 8 * i + line < v.out_c);
            if (DY != GIVEN) {
                const int w = result->dim[2], shrink = DY == OF_POOL ? 2 : 1;
                const float *o_now = grad_block(result, next.block) + warp * 8 + column * 2 +
                                     ((channel * result->dim[1] + next.row / shrink) * w + first_out / shrink) * ESPER_CUDA_BLOCK;

#pragma unroll
                for (int j = 0; j < (DY == OF_POOL ? 1 : 4); j++)
                    out_next[j] = load_samples(o_now + (j / 2 * w + j % 2) * ESPER_CUDA_BLOCK,
                                               next.step > 0 && first_out / shrink + j % 2 < w &&
                                                   next.row / shrink + j / 2 < result->dim[1]);
            }
        }
        if (here.step > 0)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                part_of_line pixel[X_FIRST ? 2 : 1][4];

#pragma unroll
                for (int i = 0; i < (X_FIRST ? 2 : 1); i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        pixel[i][j] = split<PRODUCTS>(seen[X_FIRST ? 2 * t + i : t][j]);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int k = 0; k < 3; k++) {
                        float chain[4] = {0, 0, 0, 0};

#pragma unroll
                        for (int j = 0; j < 2; j++)
                            if constexpr (X_FIRST)
                                multiply<PRODUCTS>(chain, pixel[0][j + k], pixel[1][j + k], grad[r][0][j]);
                            else
                                multiply<PRODUCTS>(chain, grad[r][0][j], grad[r][1][j], pixel[0][j + k]);
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            sum[r][k][t][i] += chain[i];
                    }
            }
        here = next;
        if (++next.step > steps) {
            next.step = 0;
            next.row += ROWS;
            if (next.row >= work.end_row) {
                next.row = work.first_row;
                next.block++;
            }
        }
    }

    float *to = part_of(lane, v, work.part, work.group, work.out, work.in);

    /* To room[warp][row of dy][tap's column][line of x][output channel] */
#pragma unroll
    for (int i = 0; i < ROWS * 3 * TILES * 4; i++) {
        int r = i / (12 * TILES), k = i / (4 * TILES) % 3, t = i / 4 % TILES, m = line + i % 4 / 2 * 8, n = column * 2 + i % 2;
        int of_x = X_FIRST ? 16 * t + m : 8 * t + n, of_y = X_FIRST ? n : m;

        room[(((warp * ROWS + r) * 3 + k) * 8 * X + of_x) * OUT + of_y] = sum[r][k][t][i % 4];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < OUT * CHANNELS * 9; i += BLOCK_THREADS) {
        int k = i % 3, tap = i / 3 % 3, c = i / 9 % CHANNELS, o = i / (9 * CHANNELS);
        float total = 0;

        for (int w = 0; w < BLOCK_WARPS; w++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                total += room[(((w * ROWS + r) * 3 + k) * 8 * X + c * SEEN + tap + r) * OUT + o];
        if (work.in + c < v.in_c && work.out + o < v.out_c)
            to[(o * v.in_c + c) * 9 + tap * 3 + k] = total;
    }
}

/* Devices without: the same tiles, parts and spans by multiply-adds. A warp takes 8 output by 1 input channel at a time. */
template <int ROWS, int X, int Y> FUNCTION void weigh_without_cores(const esper_lane *lane)
{
    const int channels = 8 * X / (ROWS + 2);
    const block_conv v = block_conv_of(lane, false);
    const weigh_work work = weigh_work_of(lane, v, channels, 8 * Y);

    for (int tile = threadIdx.x / 32; tile < channels * Y; tile += BLOCK_WARPS) {
        int in = work.in + tile / Y, out = work.out + tile % Y * 8, n_out = min(8, v.out_c - out);
        float sum[1][3][3][8];

        if (in >= v.in_c || n_out <= 0 || work.first_block >= work.end_block)
            continue;
#pragma unroll
        for (int i = 0; i < 72; i++)
            sum[0][i / 24][i / 8 % 3][i % 8] = 0.0f;
        for (int block = work.first_block; block < work.end_block; block++)
            weigh_rows<3, 3, 8, 1>(v, x_plane(lane, v, block, work.group, in) + threadIdx.x % 32,
                                   dy_plane(lane, v, block, work.group, out) + threadIdx.x % 32, 1, n_out, 0, work.first_row,
                                   work.end_row, sum);
        put_weights<3, 3, 8, 1>(v, part_of(lane, v, work.part, work.group, out, in), 1, n_out, 0, sum);
    }
}

/* There dy takes the place of y first, of the pixels of this block of threads: a warp has a window of 32 samples at a time. */
template <int DY> FUNCTION void form_without_cores(const esper_lane *lane)
{
    const block_conv v = block_conv_of(lane, false);
    const weigh_work work = weigh_work_of(lane, v, 4, 8);
    const esper_view *result = &lane->out[0];
    const int sample = threadIdx.x % 32, windows_x = block_divide(v.out_w, 2), shrink = DY == OF_POOL ? 2 : 1;
    const int windows = block_divide(work.end_row - work.first_row, 2) * windows_x;

    for (int block = work.first_block; block < work.end_block; block++)
        for (int i = threadIdx.x / 32; i < min(8, v.out_c - work.out) * windows; i += BLOCK_WARPS) {
            int channel = work.out + i / windows, row = work.first_row + i % windows / windows_x * 2, x = i % windows_x * 2;
            float *y = const_cast<float *>(dy_plane(lane, v, block, 0, channel)) + (row * v.out_w + x) * ESPER_CUDA_BLOCK + sample;
            const float *out = grad_block(result, block) + sample;
            float2 from[2][2], g[4], dy[2][2];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                int oy = row / shrink + j / 2, ox = x / shrink + j % 2;

                from[j / 2][j % 2] = g[j] = make_float2(0.0f, 0.0f);
                if (row + j / 2 < work.end_row && x + j % 2 < v.out_w)
                    from[j / 2][j % 2].x = y[(j / 2 * v.out_w + j % 2) * ESPER_CUDA_BLOCK];
                if (oy < result->dim[1] && ox < result->dim[2])
                    g[j].x = out[((channel * result->dim[1] + oy) * result->dim[2] + ox) * ESPER_CUDA_BLOCK];
            }
            form<DY>(way_back_of(lane, block_norm_of(lane), channel), from, g, work.end_row - row, v.out_w - x,
                     samples_in(lane, block) - sample, dy);
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (row + j / 2 < work.end_row && x + j % 2 < v.out_w)
                    y[(j / 2 * v.out_w + j % 2) * ESPER_CUDA_BLOCK] = dy[j / 2][j % 2].x;
        }
    __syncthreads();
}

/* Up to eight output channels, or all of a few input channels: two rows of dy by 16 lines of x, which are four input channels. */
template <int DY, int PRODUCTS> FUNCTION void weigh_8(const esper_lane *lane, float *room)
{
    if (HAS_TENSOR_CORES) {
        weigh_on_cores<2, 2, 1, DY, PRODUCTS>(lane, room);
        return;
    }
    if (DY != GIVEN)
        form_without_cores<DY>(lane);
    weigh_without_cores<2, 2, 1>(lane);
}

enum { ROOM_8 = BLOCK_WARPS * 2 * 3 * 16 * 8 };

template <int PRODUCTS> FUNCTION void weigh_16(const esper_lane *lane, float *room)
{
    if (HAS_TENSOR_CORES)
        weigh_on_cores<1, 3, 2, GIVEN, PRODUCTS>(lane, room);
    else
        weigh_without_cores<1, 3, 2>(lane);
}

/* weigh_16 has sixteen output channels of one row by 24 lines of x: eight input channels. */
#define WEIGH_ON_CORES(name, products)                                  \
    ESPER_KERNEL_DENSE(esper_block_weigh_8##name, BLOCK_THREADS, 5)     \
    {                                                                   \
        __shared__ float room[ROOM_8];                                  \
        weigh_8<GIVEN, products>(lanes.lane[blockIdx.y], room);         \
    }                                                                   \
    ESPER_KERNEL_DENSE(esper_block_weigh_first##name, BLOCK_THREADS, 4) \
    {                                                                   \
        __shared__ float room[ROOM_8];                                  \
        weigh_8<OF_NORM, products>(lanes.lane[blockIdx.y], room);       \
    }                                                                   \
    ESPER_KERNEL_DENSE(esper_block_weigh_first_pool##name, BLOCK_THREADS, 5) \
    {                                                                   \
        __shared__ float room[ROOM_8];                                  \
        weigh_8<OF_POOL, products>(lanes.lane[blockIdx.y], room);       \
    }                                                                   \
    ESPER_KERNEL_DENSE(esper_block_weigh_16##name, BLOCK_THREADS, 4)    \
    {                                                                   \
        __shared__ float room[BLOCK_WARPS * 3 * 24 * 16];               \
        weigh_16<products>(lanes.lane[blockIdx.y], room);               \
    }

WEIGH_ON_CORES(, 3)
WEIGH_ON_CORES(_tf32, 1)

/* ------------------------------------------------------------------------------------------------ parts joined */

/* A thread has a weight, and adds what all parts give to it. */
template <bool ON_CORES> FUNCTION void join_parts(const esper_lane *lane)
{
    const esper_view *w = &lane->in[1];
    const block_conv v = block_conv_of(lane, false);
    const float *parts = part_of(lane, v, 0, 0, 0, 0);
    int at = blockIdx.x * BLOCK_THREADS + threadIdx.x, n_parts;
    double sum = 0;

    if (ON_CORES) {
        block_weigh_cut cut = block_weigh_cut_of(&v);

        n_parts = block_divide(blocks_of(lane), cut.span) * cut.parts;
    } else
        n_parts = blocks_of(lane) * block_weights_cut_of(&v).parts;
    if (at >= w->count)
        return;
#pragma unroll 8
    for (int p = 0; p < n_parts; p++)
        sum += (double)parts[(size_t)p * w->count + at];
    grad_put(w, (float *)w->grad + at, (float)sum);
}

ESPER_KERNEL(esper_block_conv_join, BLOCK_THREADS)
{
    join_parts<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_block_weigh_join, BLOCK_THREADS)
{
    join_parts<true>(lanes.lane[blockIdx.y]);
}
