/* Batch norm on blocks of samples, together with the ReLU and the 2 x 2 max pool that may follow: batch_norm and conv_norm.
 *
 *     z = (y - mean) * factor + shift,  factor = scale / std        out = pool(relu(z))
 *
 * Nothing is kept but y, what comes out and a few numbers a channel: the places of the maxima are computed anew on the way back. Memory
 * is all that these kernels cost, so a thread takes four samples at a time, 16 bytes, of a pixel or of a window. */
#include "tensor/cuda/block_norm.cuh"

/* ------------------------------------------------------------------------------------------------ cells */

/* y - mean of the cell's pixels; those that it has not are 0. */
template <bool POOL> FUNCTION void load_cell(const cell &at, const float *y, int W, float mean, quad *off)
{
#pragma unroll
    for (int k = 0; k < (POOL ? 4 : 1); k++) {
        bool is = k / 2 < at.rows && k % 2 < at.columns;

        if (is)
            off[k] = load_quad(y + at.at + (k / 2 * W + k % 2) * ESPER_CUDA_BLOCK);
#pragma unroll
        for (int i = 0; i < 4; i++)
            off[k].v[i] = is ? off[k].v[i] - mean : 0.0f;
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

template <bool POOL> FUNCTION void normalise(const esper_lane *lane)
{
    block_norm n = block_norm_of(lane);
    int items = n.C * cells_of<POOL>(n, true) * BLOCK_QUADS, first, block = block_of_item(lane, items, &first);
    const float *y;
    float *to;

    if (block < 0)
        return;
    y = data_block(n.y, block);
    to = data_block(&lane->out[0], block);
#pragma unroll
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = first + k * BLOCK_THREADS + threadIdx.x;
        cell at = cell_of<POOL>(n, true, item);
        quad off[4], z;
        affine a;

        if (item >= items)
            return;
        a = affine_of(n, at.c);
        load_cell<POOL>(at, y, n.W, a.mean, off);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (POOL)
                winner_of(z_of(a, off[0].v[i]), z_of(a, off[1].v[i]), z_of(a, off[2].v[i]), z_of(a, off[3].v[i]), &z.v[i]);
            else
                z.v[i] = z_of(a, off[0].v[i]);
            z.v[i] = n.relu ? relu_of(z.v[i]) : z.v[i];
        }
        store_quad(to + at.out, z);
    }
}

ESPER_KERNEL(esper_block_norm_forward, BLOCK_THREADS)
{
    normalise<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_block_norm_forward_pool, BLOCK_THREADS)
{
    normalise<true>(lanes.lane[blockIdx.y]);
}

/* ------------------------------------------------------------------------------------------------ sums of a channel */

/* Of what a norm by itself is given: sums of values, and of squares, about each thread's first, that the difference of large
 * numbers may not be what remains. */
ESPER_KERNEL(esper_block_norm_moments, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    block_norm n = block_norm_of(lane);
    int parts = block_norm_parts(lane, false), items = n.H * n.W * BLOCK_QUADS;
    part_of_channel p = part_of(n.C, parts);
    double *to = (double *)((char *)lane->scratch + block_scratch_of(lane, false, lane->max_samples).sums);
    const float *plane;
    float centre = 0, sum = 0, squares = 0;
    int count = 0;

    if (!lane_trains(lane) || p.block >= blocks_of(lane))
        return;
    plane = data_block(n.y, p.block) + (size_t)p.c * n.H * n.W * ESPER_CUDA_BLOCK;
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = p.part * BLOCK_ITEMS + k * BLOCK_THREADS + threadIdx.x;
        int valid = samples_in(lane, p.block) - item % BLOCK_QUADS * 4;
        quad x;

        if (item >= items || valid <= 0)
            continue;
        x = load_quad(plane + (size_t)item * 4);
        centre = count == 0 ? x.v[0] : centre;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float off = i < valid ? x.v[i] - centre : 0.0f;

            count += i < valid;
            sum += off;
            squares = fmaf(off, off, squares);
        }
    }
    {
        double c = centre, s = sum;

        put_both(count * c + s, (double)squares + 2 * c * s + count * c * c, room,
                 to + ((size_t)(p.block * parts + p.part) * n.C + p.c) * 2);
    }
}

/* Sums that a thread takes: of the gradient of z, and of it times what a pixel has: y - mean, or z - shift. */
struct two_sums {
    float g, gy;
};

FUNCTION void add_to(two_sums &sums, float let, float has)
{
    sums.g += let;
    sums.gy = fmaf(let, has, sums.gy);
}

/* Of a window without a pool: four gradients of a sample, in this order, that those which a pool lets by give the same sums. */
FUNCTION void add_window(two_sums &sums, const affine &a, const block_norm &n, bool in_z, const float *values, const float *grad,
                         int W, int n_pixels)
{
    quad v[4], g[4];

#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < n_pixels) {
            v[j] = load_quad(values + (j / 2 * W + j % 2) * ESPER_CUDA_BLOCK);
            g[j] = load_quad(grad + (j / 2 * W + j % 2) * ESPER_CUDA_BLOCK);
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < n_pixels) {
                float has = v[j].v[i] - (in_z ? a.shift : a.mean), z = in_z ? v[j].v[i] : z_of(a, has);

                add_to(sums, n.relu ? relu_let(z, g[j].v[i]) : g[j].v[i], has);
            }
}

/* The same with a pool: the winner has the gradient. */
FUNCTION void add_pool(two_sums &sums, const affine &a, const block_norm &n, const cell &at, const float *y, const float *grad)
{
    quad off[4], g = load_quad(grad + at.out);

    load_cell<true>(at, y, n.W, a.mean, off);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float most;
        int winner =
            winner_of(z_of(a, off[0].v[i]), z_of(a, off[1].v[i]), z_of(a, off[2].v[i]), z_of(a, off[3].v[i]), &most);

        add_to(sums, n.relu ? relu_let(most, g.v[i]) : g.v[i],
               winner == 0 ? off[0].v[i] : winner == 1 ? off[1].v[i] : winner == 2 ? off[2].v[i] : off[3].v[i]);
    }
}

/* Pixels that are in no window: the last column, where there is an odd one, and what is left of the last row. */
FUNCTION int pixel_in_no_window(const block_norm &n, int number)
{
    int column = n.W % 2 * n.H;

    return number < column ? number * n.W + n.W - 1 : (n.H - 1) * n.W + number - column;
}

/* Of the gradient of z, and of it times y - mean. Samples beyond the batch have no gradient. With a pool and without the order is the
 * same, windows first: where a pool stands by itself behind, the other gradients are 0, and the sums the same to the bit. */
template <bool POOL> FUNCTION void sum_gradients(const esper_lane *lane, double *room)
{
    block_norm n = block_norm_of(lane);
    int parts = block_norm_parts(lane, true), windows = (n.H / 2) * (n.W / 2), rest = (n.H * n.W - 4 * windows) * BLOCK_QUADS;
    part_of_channel p = part_of(n.C, parts);
    double *to = (double *)((char *)lane->scratch + block_scratch_of(lane, true, lane->max_samples).sums);
    const float *y, *z, *grad;
    two_sums sums = {0, 0};
    bool in_z;
    affine a;

    if (p.block >= blocks_of(lane))
        return;
    y = data_block(n.y, p.block);
    z = data_block(&lane->out[0], p.block);
    grad = grad_block(&lane->out[0], p.block);
    a = affine_of(n, p.c);
    in_z = is_in_z(lane, n, a, p.c);
#pragma unroll
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = p.part * BLOCK_ITEMS + k * BLOCK_THREADS + threadIdx.x;
        cell at;

        if (item >= windows * BLOCK_QUADS)
            continue;
        at = cell_of<true>(n, true, item + p.c * windows * BLOCK_QUADS);
        if (!POOL)
            add_window(sums, a, n, in_z, (in_z ? z : y) + at.at, grad + at.at, n.W, 4);
        else if (in_z)
            add_window(sums, a, n, true, z + at.out, grad + at.out, 0, 1);
        else
            add_pool(sums, a, n, at, y, grad);
    }
    for (int i = rest * p.part / parts + threadIdx.x; i < rest * (p.part + 1) / parts && !POOL; i += BLOCK_THREADS) {
        int at = (p.c * n.H * n.W + pixel_in_no_window(n, i / BLOCK_QUADS)) * ESPER_CUDA_BLOCK + i % BLOCK_QUADS * 4;

        add_window(sums, a, n, in_z, (in_z ? z : y) + at, grad + at, 0, 1);
    }
    put_both(sums.g, in_z ? (double)sums.gy / (double)a.factor : (double)sums.gy, room,
             to + ((size_t)(p.block * parts + p.part) * n.C + p.c) * 2);
}

ESPER_KERNEL(esper_block_norm_sums, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    sum_gradients<false>(lanes.lane[blockIdx.y], room);
}

ESPER_KERNEL(esper_block_norm_sums_pool, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    sum_gradients<true>(lanes.lane[blockIdx.y], room);
}

/* ------------------------------------------------------------------------------------------------ statistics */

template <bool BACK> FUNCTION void join(const esper_lane *lane, double *room)
{
    block_norm n = block_norm_of(lane);

    join_channel<BACK>(lane, n, (const double *)((const char *)lane->scratch + block_scratch_of(lane, BACK, lane->max_samples).sums),
                       block_norm_parts(lane, BACK), n.C, room);
}

ESPER_KERNEL(esper_block_norm_join, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    join<false>(lanes.lane[blockIdx.y], room);
}

ESPER_KERNEL(esper_block_norm_join_back, BLOCK_THREADS)
{
    __shared__ double room[2 * BLOCK_WARPS];

    join<true>(lanes.lane[blockIdx.y], room);
}

/* A thread has a channel, and the ranks have met. (In evaluation they do not, and it has been done.) */
template <bool BACK> FUNCTION void use_values(const esper_lane *lane)
{
    block_norm n = block_norm_of(lane);
    const double *values =
        (const double *)((const char *)lane->scratch + block_scratch_of(lane, BACK, lane->max_samples).values);
    int c = blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (c >= n.C || !lane_trains(lane))
        return;
    if (BACK)
        use_gradients(lane, n, c, values[0], values[1 + 2 * c], values[2 + 2 * c]);
    else
        use_statistics(lane, n, c, values[0], values[1 + 2 * c], values[2 + 2 * c]);
}

ESPER_KERNEL(esper_block_norm_met, BLOCK_THREADS)
{
    use_values<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_block_norm_met_back, BLOCK_THREADS)
{
    use_values<true>(lanes.lane[blockIdx.y]);
}

/* ------------------------------------------------------------------------------------------------ backward */

/* dy, 0 in samples beyond the batch. A convolution's takes the place of y, which nobody needs any more. */
template <bool POOL> FUNCTION void differentiate(const esper_lane *lane)
{
    block_norm n = block_norm_of(lane);
    int items = n.C * cells_of<POOL>(n, false) * BLOCK_QUADS, first, block = block_of_item(lane, items, &first), valid;
    bool add = !block_has_conv(lane) && lane->in[0].add;
    const float *y, *grad;
    float *to;

    if (block < 0)
        return;
    valid = samples_in(lane, block);
    y = data_block(n.y, block);
    to = block_has_conv(lane) ? data_block(n.y, block) : grad_block(&lane->in[0], block);
    grad = grad_block(&lane->out[0], block);
#pragma unroll
    for (int k = 0; k < BLOCK_ITEMS / BLOCK_THREADS; k++) {
        int item = first + k * BLOCK_THREADS + threadIdx.x;
        cell at = cell_of<POOL>(n, false, item);
        quad off[4], g = {{0, 0, 0, 0}}, dy[4];
        way_back back;

        if (item >= items)
            return;
        back = way_back_of(lane, n, at.c);
        if (at.out >= 0)
            g = load_quad(grad + at.out);
        load_cell<POOL>(at, y, n.W, back.a.mean, off);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float offs[4] = {off[0].v[i], off[1].v[i], off[2].v[i], off[3].v[i]};
            float own[4];

            if (POOL)
                dy_of(back, offs, g.v[i], own);
            else
                own[0] = dy_of(back, offs[0], g.v[i]);
#pragma unroll
            for (int j = 0; j < (POOL ? 4 : 1); j++)
                dy[j].v[i] = at.first_sample + i < valid ? own[j] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < (POOL ? 4 : 1); j++)
            if (j / 2 < at.rows && j % 2 < at.columns)
                put_quad(to + at.at + (j / 2 * n.W + j % 2) * ESPER_CUDA_BLOCK, add, dy[j]);
    }
}

ESPER_KERNEL(esper_block_norm_back, BLOCK_THREADS)
{
    differentiate<false>(lanes.lane[blockIdx.y]);
}

ESPER_KERNEL(esper_block_norm_back_pool, BLOCK_THREADS)
{
    differentiate<true>(lanes.lane[blockIdx.y]);
}
