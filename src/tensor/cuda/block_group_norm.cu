/* Group norm on blocks of samples: a block of threads has a group of channels of 32 samples, each of its warps every eighth
 * element (forward) or pixel (backward), a thread for its sample.
 *
 * Sums of a few elements in float are added up in double; the variance is taken in a second pass, which finds the group in a
 * cache. */
#include "tensor/cuda/block.cuh"

enum { GROUP_WARPS = BLOCK_GROUP_THREADS / 32, GROUP_RUN = 8 };

struct group_place {
    int groups, channels, plane; /* channels of one group, pixels */
    int block, group;
};

FUNCTION group_place group_of(const esper_lane *lane)
{
    const esper_view *x = &lane->in[0];
    group_place p;

    p.groups = lane->attr.norm.groups;
    p.channels = x->dim[0] / p.groups;
    p.plane = x->dim[1] * x->dim[2];
    p.block = blockIdx.x / p.groups;
    p.group = blockIdx.x - p.block * p.groups;
    return p;
}

/* Every thread comes out with its sample's sum over the warps. */
FUNCTION double sum_over_warps(double v, double *room)
{
    double sum = 0;

    room[threadIdx.x] = v;
    __syncthreads();
    for (int w = 0; w < GROUP_WARPS; w++)
        sum += room[w * 32 + threadIdx.x % 32];
    __syncthreads();
    return sum;
}

ESPER_KERNEL(esper_block_group_norm, BLOCK_GROUP_THREADS)
{
    __shared__ double room[BLOCK_GROUP_THREADS];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    group_place p = group_of(lane);
    int size = p.channels * p.plane, warp = threadIdx.x / 32, sample = threadIdx.x % 32;
    const float *scale = (const float *)lane->in[1].data + p.group * p.channels;
    const float *shift = (const float *)lane->in[2].data + p.group * p.channels;
    double sum = 0, squares = 0;
    float mean, rstd, *stat, *y;
    const float *x;

    if (p.block >= blocks_of(lane))
        return;
    x = data_block(&lane->in[0], p.block) + (size_t)p.group * size * ESPER_CUDA_BLOCK + sample;
    y = data_block(&lane->out[0], p.block) + (size_t)p.group * size * ESPER_CUDA_BLOCK + sample;
    for (int first = warp; first < size; first += GROUP_WARPS * GROUP_RUN) {
        float run = 0;

#pragma unroll
        for (int k = 0; k < GROUP_RUN; k++) {
            int e = first + k * GROUP_WARPS;

            run += e < size ? x[e * ESPER_CUDA_BLOCK] : 0.0f;
        }
        sum += (double)run;
    }
    sum = sum_over_warps(sum, room) / size;
    mean = (float)sum;
    for (int first = warp; first < size; first += GROUP_WARPS * GROUP_RUN) {
        float run = 0;

#pragma unroll
        for (int k = 0; k < GROUP_RUN; k++) {
            int e = first + k * GROUP_WARPS;
            float off = e < size ? x[e * ESPER_CUDA_BLOCK] - mean : 0.0f;

            run = fmaf(off, off, run);
        }
        squares += (double)run;
    }
    squares = sum_over_warps(squares, room) / size;
    rstd = (float)(1 / sqrt(squares + (double)lane->attr.norm.eps));
    stat = data_block(&lane->out[1], p.block) + 2 * p.group * ESPER_CUDA_BLOCK + sample;
    if (warp == 0) {
        stat[0] = mean;
        stat[ESPER_CUDA_BLOCK] = rstd;
    }
    for (int e = warp; e < size; e += GROUP_WARPS) {
        int c = e / p.plane;

        y[e * ESPER_CUDA_BLOCK] = fmaf(x[e * ESPER_CUDA_BLOCK] - mean, scale[c] * rstd, shift[c]);
    }
}

/* Parts of the gradients of scale and shift, (blocks, warps, C, 2), and where one wants it the gradient of x:
 *
 *     dx = (g scale - mean of g scale - xhat * mean of g scale xhat) / std, over one group */
ESPER_KERNEL(esper_block_group_norm_back, BLOCK_GROUP_THREADS)
{
    __shared__ double room[BLOCK_GROUP_THREADS];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *view = &lane->in[0];
    group_place p = group_of(lane);
    int warp = threadIdx.x / 32, sample = threadIdx.x % 32, C = view->dim[0];
    const float *scale = (const float *)lane->in[1].data + p.group * p.channels, *x, *g, *stat;
    double sum_g = 0, sum_gx = 0, *parts;
    float mean, rstd, mean_g, slope, *dx;
    size_t offset = (size_t)p.group * p.channels * p.plane * ESPER_CUDA_BLOCK + sample;

    if (p.block >= blocks_of(lane))
        return;
    x = data_block(view, p.block) + offset;
    g = grad_block(&lane->out[0], p.block) + offset;
    dx = grad_block(view, p.block) + offset;
    stat = data_block(&lane->out[1], p.block) + 2 * p.group * ESPER_CUDA_BLOCK + sample;
    mean = stat[0];
    rstd = stat[ESPER_CUDA_BLOCK];
    parts = (double *)lane->scratch + ((size_t)(p.block * GROUP_WARPS + warp) * C + p.group * p.channels) * 2;
    for (int c = 0; c < p.channels; c++) {
        double both[2] = {0, 0};

        for (int first = warp; first < p.plane; first += GROUP_WARPS * GROUP_RUN) {
            float run_g = 0, run_gx = 0;

#pragma unroll
            for (int k = 0; k < GROUP_RUN; k++) {
                int e = first + k * GROUP_WARPS;
                float grad = e < p.plane ? g[(c * p.plane + e) * ESPER_CUDA_BLOCK] : 0.0f;
                float off = e < p.plane ? x[(c * p.plane + e) * ESPER_CUDA_BLOCK] - mean : 0.0f;

                run_g += grad;
                run_gx = fmaf(grad, off, run_gx);
            }
            both[0] += (double)run_g;
            both[1] += (double)run_gx;
        }
        sum_g += (double)scale[c] * both[0];
        sum_gx += (double)scale[c] * both[1];
        both[1] *= (double)rstd;
        both[0] = sum_over_warp<2>(both);
        if (sample % 16 == 0)
            parts[2 * c + sample / 16] = both[0];
    }
    if (view->grad == 0)
        return;
    sum_g = sum_over_warps(sum_g, room);
    sum_gx = sum_over_warps(sum_gx, room);
    mean_g = (float)(sum_g / (p.channels * p.plane));
    slope = (float)(sum_gx / (p.channels * p.plane) * (double)rstd * (double)rstd);
    for (int e = warp; e < p.channels * p.plane; e += GROUP_WARPS) {
        int at = e * ESPER_CUDA_BLOCK;
        float own = (g[at] * scale[e / p.plane] - mean_g - (x[at] - mean) * slope) * rstd;

        grad_put(view, dx + at, own);
    }
}

/* A thread has a channel's gradient of scale or of shift. */
ESPER_KERNEL(esper_block_group_norm_join, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const double *parts = (const double *)lane->scratch;
    int C = lane->in[0].dim[0], at = blockIdx.x * BLOCK_THREADS + threadIdx.x, n_parts = blocks_of(lane) * GROUP_WARPS;
    const esper_view *to = at % 2 == 0 ? &lane->in[2] : &lane->in[1];
    double sum = 0;

    if (at >= 2 * C)
        return;
#pragma unroll 8
    for (int i = 0; i < n_parts; i++)
        sum += parts[(size_t)i * 2 * C + at];
    if (to->grad != 0)
        grad_put(to, (float *)to->grad + at / 2, (float)sum);
}
