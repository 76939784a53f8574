/* Batch norm over words of two channels (block_half.h), with the ReLU and the 2 x 2 max pool that may follow: block_norm.cu's, of which a
 * thread takes four samples of both channels at a time. Statistics, and what follows from them, are of floats. */
#include "tensor/cuda/block_half.cuh"

/* Of both channels; one that is not there has nothing. */
struct two_affine {
    affine of[2];
};

FUNCTION two_affine two_affine_of(const block_norm &n, int pair)
{
    two_affine a = {};

    a.of[0] = affine_of(n, 2 * pair);
    if (2 * pair + 1 < n.C)
        a.of[1] = affine_of(n, 2 * pair + 1);
    return a;
}

FUNCTION block_norm pairs_of(const block_norm &n)
{
    block_norm pairs = n;

    pairs.C = half_pairs(n.C);
    return pairs;
}

/* y - mean of the cell's pixels; those that it has not are 0. */
template <bool POOL> FUNCTION void load_octs(const cell &at, const unsigned *y, int W, const two_affine &a, oct *off)
{
#pragma unroll
    for (int k = 0; k < (POOL ? 4 : 1); k++) {
        bool is = k / 2 < at.rows && k % 2 < at.columns;

        if (is)
            off[k] = load_oct(y + at.at + (k / 2 * W + k % 2) * ESPER_CUDA_BLOCK);
#pragma unroll
        for (int i = 0; i < 8; i++)
            off[k].v[i / 4][i % 4] = is ? off[k].v[i / 4][i % 4] - a.of[i / 4].mean : 0.0f;
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

template <bool POOL> FUNCTION void normalise(const esper_lane *lane)
{
    const block_norm n = block_norm_of(lane), pairs = pairs_of(n);
    int items = pairs.C * cells_of<POOL>(n, true) * BLOCK_QUADS, first, block = block_of_item(lane, items, &first);

    if (block < 0)
        return;
    const unsigned *y = data_words(n.y, block);
    unsigned *to = data_words(&lane->out[0], block);

#pragma unroll
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = first + k * BLOCK_THREADS + threadIdx.x;
        cell at = cell_of<POOL>(pairs, true, item);
        oct off[4], z;
        two_affine a;

        if (item >= items)
            return;
        a = two_affine_of(n, at.c);
        load_octs<POOL>(at, y, n.W, a, off);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const affine &own = a.of[i / 4];
            float &value = z.v[i / 4][i % 4];

            value = z_of(own, off[0].v[i / 4][i % 4]);
            if (POOL)
                winner_of(value, z_of(own, off[1].v[i / 4][i % 4]), z_of(own, off[2].v[i / 4][i % 4]),
                          z_of(own, off[3].v[i / 4][i % 4]), &value);
            value = n.relu ? relu_of(value) : value;
        }
        store_oct(to + at.out, z);
    }
}

ESPER_KERNEL(esper_half_norm_forward, BLOCK_THREADS)
{
    normalise<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_half_norm_forward_pool, BLOCK_THREADS)
{
    normalise<true>(lanes.lane[blockIdx.y]);
}

/* ------------------------------------------------------------------------------------------------ sums */

/* Of the gradient of z, and of it times y - mean, of a part of a pair of channels. What lets gradients by is z, where it says what y - mean
 * was (is_in_z, block_norm.cuh), as that is a fifth of the bytes behind a pool. */
template <bool POOL> FUNCTION void sum_gradients(const esper_lane *lane, double *room)
{
    const block_norm n = block_norm_of(lane), pairs = pairs_of(n);
    int parts = half_norm_parts(lane, true), items = cells_of<POOL>(n, true) * BLOCK_QUADS;
    part_of_channel p = part_of(pairs.C, parts);
    double *to = (double *)((char *)lane->scratch + half_scratch_of(lane, true, lane->max_samples).sums);
    float sum[2][2] = {{0, 0}, {0, 0}};

    if (p.block >= blocks_of(lane))
        return;
    const unsigned *y = data_words(n.y, p.block), *z = data_words(&lane->out[0], p.block);
    const unsigned *grad = grad_words(&lane->out[0], p.block);
    const two_affine a = two_affine_of(n, p.c);
    const bool in_z = is_in_z(lane, n, a.of[0], 2 * p.c) && (2 * p.c + 1 >= n.C || is_in_z(lane, n, a.of[1], 2 * p.c + 1));

#pragma unroll
    for (int k = 0; k < HALF_ITEMS / BLOCK_THREADS; k++) {
        int item = p.part * HALF_ITEMS + k * BLOCK_THREADS + threadIdx.x;
        oct off[4], g, out;
        cell at;

        if (item >= items)
            continue;
        at = cell_of<POOL>(pairs, true, item + p.c * items);
        g = load_oct(grad + at.out);
        if (in_z)
            out = load_oct(z + at.out);
        else
            load_octs<POOL>(at, y, n.W, a, off);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const affine &own = a.of[i / 4];
            float value, has, let = g.v[i / 4][i % 4];

            if (in_z) {
                value = out.v[i / 4][i % 4];
                has = value - own.shift;
            } else if (POOL) {
                float offs[4];
                int winner;

#pragma unroll
                for (int j = 0; j < 4; j++)
                    offs[j] = off[j].v[i / 4][i % 4];
                winner = winner_of(z_of(own, offs[0]), z_of(own, offs[1]), z_of(own, offs[2]), z_of(own, offs[3]), &value);
                has = winner == 0 ? offs[0] : winner == 1 ? offs[1] : winner == 2 ? offs[2] : offs[3];
            } else {
                has = off[0].v[i / 4][i % 4];
                value = z_of(own, has);
            }
            let = n.relu ? relu_let(value, let) : let;
            sum[i / 4][0] += let;
            sum[i / 4][1] = fmaf(let, has, sum[i / 4][1]);
        }
    }
    to += (size_t)(p.block * parts + p.part) * pairs.C * 4 + p.c * 4;
#pragma unroll
    for (int o = 0; o < 2; o++) {
        bool is = 2 * p.c + o < n.C;

        put_both(sum[o][0], !in_z ? (double)sum[o][1] : is ? (double)sum[o][1] / (double)a.of[o].factor : 0.0, room, to + 2 * o);
        __syncthreads();
    }
}

ESPER_KERNEL(esper_half_norm_sums, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    sum_gradients<false>(lanes.lane[blockIdx.y], room);
}

ESPER_KERNEL(esper_half_norm_sums_pool, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    sum_gradients<true>(lanes.lane[blockIdx.y], room);
}

template <bool BACK> FUNCTION void join(const esper_lane *lane, double *room)
{
    const block_norm n = block_norm_of(lane);

    join_channel<BACK>(lane, n, (const double *)((const char *)lane->scratch + half_scratch_of(lane, BACK, lane->max_samples).sums),
                       half_norm_parts(lane, BACK), 2 * half_pairs(n.C), room);
}

ESPER_KERNEL(esper_half_norm_join, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    join<false>(lanes.lane[blockIdx.y], room);
}

ESPER_KERNEL(esper_half_norm_join_back, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    join<true>(lanes.lane[blockIdx.y], room);
}

/* ------------------------------------------------------------------------------------------------ backward */

/* dy takes the place of y, which nobody needs any more; 0 in samples beyond the batch. */
template <bool POOL> FUNCTION void differentiate(const esper_lane *lane)
{
    const block_norm n = block_norm_of(lane), pairs = pairs_of(n);
    int items = pairs.C * cells_of<POOL>(n, false) * BLOCK_QUADS, first, block = block_of_item(lane, items, &first), valid;

    if (block < 0)
        return;
    valid = samples_in(lane, block);
    unsigned *y = data_words(n.y, block);
    const unsigned *grad = grad_words(&lane->out[0], block);

#pragma unroll
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = first + k * BLOCK_THREADS + threadIdx.x;
        cell at = cell_of<POOL>(pairs, false, item);
        oct off[4], g = {}, dy[4];
        way_back back[2] = {};
        two_affine a;

        if (item >= items)
            return;
        back[0] = way_back_of(lane, n, 2 * at.c);
        if (2 * at.c + 1 < n.C)
            back[1] = way_back_of(lane, n, 2 * at.c + 1);
        a.of[0] = back[0].a;
        a.of[1] = back[1].a;
        if (at.out >= 0)
            g = load_oct(grad + at.out);
        load_octs<POOL>(at, y, n.W, a, off);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float offs[4] = {off[0].v[i / 4][i % 4], off[1].v[i / 4][i % 4], off[2].v[i / 4][i % 4], off[3].v[i / 4][i % 4]};
            float own[4];

            if (POOL)
                dy_of(back[i / 4], offs, g.v[i / 4][i % 4], own);
            else
                own[0] = dy_of(back[i / 4], offs[0], g.v[i / 4][i % 4]);
#pragma unroll
            for (int j = 0; j < (POOL ? 4 : 1); j++)
                dy[j].v[i / 4][i % 4] = at.first_sample + i % 4 < valid ? own[j] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < (POOL ? 4 : 1); j++)
            if (j / 2 < at.rows && j % 2 < at.columns)
                store_oct(y + at.at + (j / 2 * n.W + j % 2) * ESPER_CUDA_BLOCK, dy[j]);
    }
}

ESPER_KERNEL(esper_half_norm_back, BLOCK_THREADS)
{
    differentiate<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_half_norm_back_pool, BLOCK_THREADS)
{
    differentiate<true>(lanes.lane[blockIdx.y]);
}
