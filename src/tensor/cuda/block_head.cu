/* Linear layers of (I), softmax and cross-entropy on blocks of samples: what image networks end in, and their gates. */
#include "tensor/cuda/block.cuh"

ESPER_KERNEL(esper_block_linear, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1];
    const float *weights = (const float *)w->data, *bias = (const float *)lane->in[2].data;
    int I = w->dim[1], O = w->dim[0], tiles = block_divide(O, HEAD_EACH);
    int unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32, block = unit / tiles, first = (unit - block * tiles) * HEAD_EACH;
    int sample = threadIdx.x % 32;
    float sum[HEAD_EACH] = {0, 0, 0, 0};
    const float *in;

    if (block >= blocks_of(lane))
        return;
    in = data_block(x, block) + sample;
#pragma unroll 4
    for (int i = 0; i < I; i++) {
        float v = in[i * ESPER_CUDA_BLOCK];

#pragma unroll
        for (int o = 0; o < HEAD_EACH; o++)
            sum[o] = fmaf(weights[(size_t)min(first + o, O - 1) * I + i], v, sum[o]);
    }
#pragma unroll
    for (int o = 0; o < HEAD_EACH; o++)
        if (first + o < O)
            data_block(&lane->out[0], block)[(first + o) * ESPER_CUDA_BLOCK + sample] =
                sum[o] + (bias != 0 ? bias[first + o] : 0.0f);
}

ESPER_KERNEL(esper_block_linear_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1];
    const float *weights = (const float *)w->data;
    int I = w->dim[1], O = w->dim[0], tiles = block_divide(I, HEAD_EACH);
    int unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32, block = unit / tiles, first = (unit - block * tiles) * HEAD_EACH;
    int sample = threadIdx.x % 32;
    float sum[HEAD_EACH] = {0, 0, 0, 0};
    const float *g;

    if (block >= blocks_of(lane))
        return;
    g = grad_block(&lane->out[0], block) + sample;
#pragma unroll 4
    for (int o = 0; o < O; o++) {
        float v = g[o * ESPER_CUDA_BLOCK];

#pragma unroll
        for (int i = 0; i < HEAD_EACH; i++)
            sum[i] = fmaf(weights[(size_t)o * I + min(first + i, I - 1)], v, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < HEAD_EACH; i++)
        if (first + i < I)
            grad_put(x, grad_block(x, block) + (first + i) * ESPER_CUDA_BLOCK + sample, sum[i]);
}

/* A warp has 4 by 8 weights and goes through all blocks of samples; then the 32 samples are joined. The first warp of a row has its
 * biases, too. */
ESPER_KERNEL(esper_block_linear_weights, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *bias = &lane->in[2];
    int I = w->dim[1], O = w->dim[0], tiles = block_divide(I, HEAD_IN), n_blocks = blocks_of(lane);
    int unit = blockIdx.x * BLOCK_WARPS + threadIdx.x / 32, row = unit / tiles * HEAD_EACH, column = unit % tiles * HEAD_IN;
    int sample = threadIdx.x % 32, o = row + sample / HEAD_IN, i = column + sample % HEAD_IN;
    float sum[HEAD_EACH * HEAD_IN], sum_g[HEAD_EACH] = {0, 0, 0, 0}, total, total_g;

    if (row >= O)
        return;
#pragma unroll
    for (int k = 0; k < HEAD_EACH * HEAD_IN; k++)
        sum[k] = 0;
    for (int b = 0; b < n_blocks; b++) {
        const float *in = data_block(x, b) + sample, *grad = grad_block(&lane->out[0], b) + sample;
        float g[HEAD_EACH];

#pragma unroll
        for (int k = 0; k < HEAD_EACH; k++) {
            g[k] = row + k < O ? grad[(row + k) * ESPER_CUDA_BLOCK] : 0.0f;
            sum_g[k] += g[k];
        }
#pragma unroll
        for (int j = 0; j < HEAD_IN; j++) {
            float v = column + j < I ? in[(column + j) * ESPER_CUDA_BLOCK] : 0.0f;

#pragma unroll
            for (int k = 0; k < HEAD_EACH; k++)
                sum[k * HEAD_IN + j] = fmaf(g[k], v, sum[k * HEAD_IN + j]);
        }
    }
    total = sum_over_warp<HEAD_EACH * HEAD_IN>(sum);
    total_g = sum_over_warp<HEAD_EACH>(sum_g);
    if (w->grad != 0 && o < O && i < I)
        grad_put(w, (float *)w->grad + (size_t)o * I + i, total);
    if (bias->grad != 0 && column == 0 && sample % 8 == 0 && row + sample / 8 < O)
        grad_put(bias, (float *)bias->grad + row + sample / 8, total_g);
}

/* A thread has a sample. As the reference: a target below 0 does not count, and a row with a NaN has no answer. */
ESPER_KERNEL(esper_block_xent, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    int n = blockIdx.x * BLOCK_THREADS + threadIdx.x, V = lane->in[0].dim[0], best = 0, target;
    const float *logits;
    double sum = 0, lse;
    float top;

    if (n >= lane->pass->n_samples)
        return;
    logits = data_block(&lane->in[0], n / ESPER_CUDA_BLOCK) + n % ESPER_CUDA_BLOCK;
    target = ((const int32_t *)lane->in[1].data)[n];
    top = logits[0];
    for (int i = 1; i < V; i++) {
        float v = logits[i * ESPER_CUDA_BLOCK];

        best = v > top ? i : best;
        top = v > top ? v : top;
    }
    for (int i = 0; i < V; i++)
        sum += (double)expf(logits[i * ESPER_CUDA_BLOCK] - top);
    lse = (double)top + log(sum);
    ((float *)lane->out[2].data)[n] = (float)lse;
    ((float *)lane->out[0].data)[n] = target < 0 ? 0.0f : (float)(lse - (double)logits[target * ESPER_CUDA_BLOCK]);
    ((float *)lane->out[1].data)[n] = target >= 0 && lse == lse && best == target ? 1.0f : 0.0f;
}

ESPER_KERNEL(esper_block_xent_back, BLOCK_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0];
    int n = blockIdx.x * BLOCK_THREADS + threadIdx.x, V = x->dim[0], block = n / ESPER_CUDA_BLOCK, target = -1;
    const float *logits;
    float lse = 0, *to;

    if (block >= blocks_of(lane))
        return;
    if (n < lane->pass->n_samples) {
        target = ((const int32_t *)lane->in[1].data)[n];
        lse = ((const float *)lane->out[2].data)[n];
    }
    logits = data_block(x, block) + n % ESPER_CUDA_BLOCK;
    to = grad_block(x, block) + n % ESPER_CUDA_BLOCK;
    for (int i = 0; i < V; i++) {
        float p = target < 0 ? 0.0f : expf(logits[i * ESPER_CUDA_BLOCK] - lse) - (i == target ? 1.0f : 0.0f);

        grad_put(x, to + i * ESPER_CUDA_BLOCK, p * lane->pass->loss_scale);
    }
}
