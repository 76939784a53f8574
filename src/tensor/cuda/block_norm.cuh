/* Internal. Batch norm, and the ReLU and max pool that may follow, at a pixel or in a window. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_NORM_CUH
#define ESPER_TENSOR_CUDA_BLOCK_NORM_CUH

#include "tensor/cuda/block.cuh"

/* The reference's "0 where x <= 0, else x": NaN stays. */
FUNCTION float relu_of(float x)
{
    return x <= 0 ? 0.0f : x;
}

/* g where ReLU lets it through, x being its input or output; NaN does. */
FUNCTION float relu_let(float x, float g)
{
    return x <= 0 ? 0.0f : g;
}

/* Whether b takes the place of a as the first maximum, NaN being the largest. */
FUNCTION bool beats(float b, float a)
{
    return !(b <= a) && a == a;
}

/* Number of the first maximum of a window, in row-major order. */
FUNCTION int winner_of(float a, float b, float c, float d, float *most_out)
{
    bool right_above = beats(b, a), right_below = beats(d, c), below;
    float above = right_above ? b : a, under = right_below ? d : c;

    below = beats(under, above);
    *most_out = below ? under : above;
    return below ? 2 + right_below : right_above;
}

/* ------------------------------------------------------------------------------------------------ batch norm */

/* z = (y - mean) * factor + shift */
struct affine {
    float mean, factor, shift;
};

FUNCTION affine affine_of(const block_norm &n, int c)
{
    affine a;

    a.mean = ((const float *)n.mean_used->data)[c];
    a.factor = ((const float *)n.scale->data)[c] * ((const float *)n.rstd_used->data)[c];
    a.shift = ((const float *)n.shift->data)[c];
    return a;
}

FUNCTION float z_of(const affine &a, float off)
{
    return fmaf(off, a.factor, a.shift);
}

/* From the gradient of what comes out to dy = (g - mean_g - (y - mean) * slope) * factor. */
struct way_back {
    affine a;
    float  level, tilt; /* what the batch takes: mean_g and slope, times factor */
    bool   relu;
};

FUNCTION way_back way_back_of(const esper_lane *lane, const block_norm &n, int c)
{
    block_scratch s = block_scratch_of(lane, true, lane->max_samples);
    way_back back;

    back.a = affine_of(n, c);
    back.level = ((const float *)((const char *)lane->scratch + s.mean_g))[c] * back.a.factor;
    back.tilt = ((const float *)((const char *)lane->scratch + s.slope))[c] * back.a.factor;
    back.relu = n.relu;
    return back;
}

/* Of a pixel: off is y - mean. The product is rounded by itself, so that a window's winner and a pixel alone get the same. */
FUNCTION float dy_of(const way_back &back, float off, float g)
{
    float let = back.relu ? relu_let(z_of(back.a, off), g) : g;

    return __fsub_rn(__fmul_rn(let, back.a.factor), fmaf(off, back.tilt, back.level));
}

/* Of a window with a pool, the four pixels. */
FUNCTION void dy_of(const way_back &back, const float (&off)[4], float g, float (&dy)[4])
{
    float most, let;
    int winner = winner_of(z_of(back.a, off[0]), z_of(back.a, off[1]), z_of(back.a, off[2]), z_of(back.a, off[3]), &most);

    let = __fmul_rn(back.relu ? relu_let(most, g) : g, back.a.factor);
#pragma unroll
    for (int j = 0; j < 4; j++)
        dy[j] = __fsub_rn(winner == j ? let : 0.0f, fmaf(off[j], back.tilt, back.level));
}

/* ------------------------------------------------------------------------------------------------ four samples */

/* Four samples at one place. */
struct quad {
    float v[4];
};

FUNCTION quad load_quad(const float *from)
{
    float4 four = *reinterpret_cast<const float4 *>(from);
    quad q;

    q.v[0] = four.x;
    q.v[1] = four.y;
    q.v[2] = four.z;
    q.v[3] = four.w;
    return q;
}

FUNCTION void store_quad(float *to, const quad &q)
{
    *reinterpret_cast<float4 *>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

/* As a gradient is written. */
FUNCTION void put_quad(float *to, bool add, quad q)
{
    if (add) {
        quad old = load_quad(to);

#pragma unroll
        for (int i = 0; i < 4; i++)
            q.v[i] = old.v[i] + q.v[i];
    }
    store_quad(to, q);
}

/* ------------------------------------------------------------------------------------------------ cells */

/* A pixel, or a window where a pool follows, of which the last row and column of the image may hold a part alone. */
struct cell {
    int  c, at; /* channel; the first pixel's place in the block's samples */
    int  out;   /* its result's place there; -1: no window, it has none */
    int  rows, columns;
    int  first_sample;
};

/* Item of a block of samples: quads, then cells of a plane, then channels. `whole`: windows that are none are left out. */
template <bool POOL> FUNCTION cell cell_of(const block_norm &n, bool whole, int item)
{
    int h = !POOL ? n.H : whole ? n.H / 2 : (n.H + 1) / 2, w = !POOL ? n.W : whole ? n.W / 2 : (n.W + 1) / 2;
    int place = item / BLOCK_QUADS, c = place / (h * w), y, x;
    cell found;

    place -= c * h * w;
    y = place / w;
    x = place - y * w;
    found.c = c;
    found.first_sample = item % BLOCK_QUADS * 4;
    if (POOL) {
        found.rows = min(2, n.H - 2 * y);
        found.columns = min(2, n.W - 2 * x);
        found.at = ((c * n.H + 2 * y) * n.W + 2 * x) * ESPER_CUDA_BLOCK + found.first_sample;
        found.out = found.rows == 2 && found.columns == 2
                        ? ((c * (n.H / 2) + y) * (n.W / 2) + x) * ESPER_CUDA_BLOCK + found.first_sample
                        : -1;
    } else {
        found.rows = found.columns = 1;
        found.at = found.out = item / BLOCK_QUADS * ESPER_CUDA_BLOCK + found.first_sample;
    }
    return found;
}

template <bool POOL> FUNCTION int cells_of(const block_norm &n, bool whole)
{
    return !POOL ? n.H * n.W : whole ? (n.H / 2) * (n.W / 2) : ((n.H + 1) / 2) * ((n.W + 1) / 2);
}

/* An item of those of all blocks of samples that the batch has: which block, and which item of it; -1: there are no more. */
FUNCTION int block_of_item(const esper_lane *lane, int items, int *item_out)
{
    int per_block = block_divide(items, BLOCK_ITEMS), block = blockIdx.x / per_block;

    *item_out = (blockIdx.x - block * per_block) * BLOCK_ITEMS;
    return block < blocks_of(lane) ? block : -1;
}

/* ------------------------------------------------------------------------------------------------ sums of a channel */

/* Two sums of each thread become the block's, which thread 0 writes. `room` has two doubles for each warp. */
FUNCTION void put_both(double a, double b, double *room, double *to)
{
    double both[2] = {a, b};
    int warp = threadIdx.x / 32;

    both[0] = sum_over_warp<2>(both);
    if (threadIdx.x % 16 == 0)
        room[2 * warp + threadIdx.x % 32 / 16] = both[0];
    __syncthreads();
    if (threadIdx.x < 2) {
        double sum = 0;

        for (int w = 0; w < BLOCK_WARPS; w++)
            sum += room[2 * w + threadIdx.x];
        to[threadIdx.x] = sum;
    }
}

/* Which part of which channel a block of threads sums: units are channels, parts and blocks of samples. */
struct part_of_channel {
    int block, part, c;
};

FUNCTION part_of_channel part_of(int C, int parts)
{
    part_of_channel p;
    int unit = blockIdx.x;

    p.c = unit % C;
    unit /= C;
    p.part = unit % parts;
    p.block = unit / parts;
    return p;
}

/* z, where it is there, says what y - mean was, but for rounding: (z - shift) / factor. With a pool that is a fifth of the bytes. Where
 * scale is small beside shift, too little is left of it. */
FUNCTION bool is_in_z(const esper_lane *lane, const block_norm &n, const affine &a, int c)
{
    return block_has_conv(lane) && fabsf(a.shift) <= 16 * fabsf(((const float *)n.scale->data)[c]) && fabsf(a.factor) > 1e-20f;
}

/* ------------------------------------------------------------------------------------------------ statistics */

FUNCTION double count_of(const esper_lane *lane, const block_norm &n)
{
    return (double)n.H * n.W * lane->pass->n_samples;
}

/* What the batch's statistics are, from sums over `count` values; they move the running ones. Else the running ones are used. */
FUNCTION void use_statistics(const esper_lane *lane, const block_norm &n, int c, double count, double sum, double squares)
{
    float *running_mean = (float *)n.mean->data, *running_var = (float *)n.var->data;
    double mean = running_mean[c], var = running_var[c], share = n.momentum;

    if (lane_trains(lane)) {
        mean = sum / count;
        var = squares / count - mean * mean;
        var = var < 0 ? 0 : var;
        running_mean[c] = (float)((1 - share) * running_mean[c] + share * mean);
        running_var[c] = (float)((1 - share) * running_var[c] + share * (var * count / (count - 1)));
    }
    ((float *)n.mean_used->data)[c] = (float)mean;
    ((float *)n.rstd_used->data)[c] = (float)(1 / sqrt(var + (double)n.eps));
}

/* The gradients of scale and shift, and what the batch takes from every gradient. All ranks have all of those gradients, and as
 * gradients are summed over ranks, each gives its share of them. */
FUNCTION void use_gradients(const esper_lane *lane, const block_norm &n, int c, double count, double g, double gy)
{
    block_scratch s = block_scratch_of(lane, true, lane->max_samples);
    double rstd = ((const float *)n.rstd_used->data)[c], share = count_of(lane, n) / count;
    bool training = lane_trains(lane);

    if (n.scale->grad != 0)
        grad_put(n.scale, (float *)n.scale->grad + c, (float)(gy * share * rstd));
    if (n.shift->grad != 0)
        grad_put(n.shift, (float *)n.shift->grad + c, (float)(g * share));
    ((float *)((char *)lane->scratch + s.mean_g))[c] = training ? (float)(g / count) : 0.0f;
    ((float *)((char *)lane->scratch + s.slope))[c] = training ? (float)(gy / count * rstd * rstd) : 0.0f;
}

/* A block of threads has a channel: all parts of its sums, which lie (blocks, n_parts, channels, 2), become one, and what follows from it.
 * Where ranks are still to meet it leaves its own sums for them. Forward in evaluation there are none. */
template <bool BACK>
FUNCTION void join_channel(const esper_lane *lane, const block_norm &n, const double *parts, int n_parts, int channels, double *room)
{
    block_scratch s = block_scratch_of(lane, BACK, lane->max_samples);
    double *values = (double *)((char *)lane->scratch + s.values), a = 0, b = 0;
    int c = blockIdx.x;

    if (c >= n.C)
        return;
    n_parts *= blocks_of(lane);
    for (int p = threadIdx.x; p < n_parts && (BACK || lane_trains(lane)); p += BLOCK_THREADS) {
        a += parts[((size_t)p * channels + c) * 2];
        b += parts[((size_t)p * channels + c) * 2 + 1];
    }
    put_both(a, b, room, values + 1 + 2 * c);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (c == 0)
        values[0] = count_of(lane, n);
    if (lane->spread && lane_trains(lane))
        return;
    if (BACK)
        use_gradients(lane, n, c, count_of(lane, n), values[1 + 2 * c], values[2 + 2 * c]);
    else
        use_statistics(lane, n, c, count_of(lane, n), values[1 + 2 * c], values[2 + 2 * c]);
}

#endif
