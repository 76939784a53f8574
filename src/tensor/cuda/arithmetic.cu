/* Sums and products of tensors: add, mul, channel_scale, mix_tanh.
 *
 * Two inputs may be the same tensor and then share a gradient, so of each element input 0 is finished before input 1 is begun. Sums
 * that a parameter's gradient is made of are taken in two steps: a double for each of many parts into scratch, and then those in
 * their order. */
#include "tensor/cuda/arithmetic.h"
#include "tensor/cuda/elements.cuh"
#include "tensor/cuda/sums.cuh"

/* ------------------------------------------------------------------------------------------------ like and like */

template <int LAYOUT> FUNCTION void add_forward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four a = data_four(&lane->in[0], at, n), b = data_four(&lane->in[1], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            a.v[k] += b.v[k];
        write_four(&lane->out[0], at, n, a);
    });
}

template <int LAYOUT> FUNCTION void add_backward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four g = grad_four(&lane->out[0], at, n);

        offer_four(&lane->in[0], at, n, g);
        offer_four(&lane->in[1], at, n, g);
    });
}

template <int LAYOUT> FUNCTION void mul_forward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four a = data_four(&lane->in[0], at, n), b = data_four(&lane->in[1], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            a.v[k] *= b.v[k];
        write_four(&lane->out[0], at, n, a);
    });
}

template <int LAYOUT> FUNCTION void mul_backward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four a = data_four(&lane->in[0], at, n), b = data_four(&lane->in[1], at, n);
        four g = grad_four(&lane->out[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            a.v[k] *= g.v[k];
            b.v[k] *= g.v[k];
        }
        offer_four(&lane->in[0], at, n, b);
        offer_four(&lane->in[1], at, n, a);
    });
}

/* ------------------------------------------------------------------------------------------------ a factor for each channel */

/* Calls work(at, n, factors) with the factor of each element: input 1's number for its channel, of its sample (mul) or of all
 * (channel_scale). */
template <int LAYOUT, bool OF_SAMPLE, class Work> FUNCTION void for_scaled(const esper_lane *lane, Work work)
{
    const esper_view *x = &lane->in[0], *s = &lane->in[1];
    const float *factor = static_cast<const float *>(s->data);
    unit_counter<LAYOUT> channel(x->count / s->count);

    for_fours(elements_of<LAYOUT>(lane, x), [&](int64_t at, int n) {
        four factors = {};

#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < n)
                factors.v[k] = factor[OF_SAMPLE ? channel(at + k) : channel.row(at + k) % s->count];
        work(at, n, factors);
    });
}

template <int LAYOUT, bool OF_SAMPLE> FUNCTION void scale_forward(const esper_lane *lane)
{
    for_scaled<LAYOUT, OF_SAMPLE>(lane, [&](int64_t at, int n, four factors) {
        four x = data_four(&lane->in[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            x.v[k] *= factors.v[k];
        write_four(&lane->out[0], at, n, x);
    });
}

template <int LAYOUT, bool OF_SAMPLE> FUNCTION void scale_backward(const esper_lane *lane)
{
    if (lane->in[0].grad == NULL)
        return;
    for_scaled<LAYOUT, OF_SAMPLE>(lane, [&](int64_t at, int n, four factors) {
        four g = grad_four(&lane->out[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            g.v[k] *= factors.v[k];
        put_four(&lane->in[0], at, n, g);
    });
}

/* Blocks are channels of samples, in their order: a warp each. db = the sum of g a over the channel's elements. */
FUNCTION void mul_planes_sums_canonical(const esper_lane *lane)
{
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    int64_t plane = a->count / b->count;
    int64_t unit = static_cast<int64_t>(blockIdx.x) * SUMS_WARPS + threadIdx.x / WARP;
    const float *x = static_cast<const float *>(a->data) + unit * plane;
    const float *g = static_cast<const float *>(lane->out[0].grad) + unit * plane;
    double sum = 0;

    if (b->grad == NULL || unit >= b->count * lane->pass->n_samples)
        return;
    for (int64_t i = threadIdx.x % WARP; i < plane; i += WARP)
        sum += static_cast<double>(g[i]) * static_cast<double>(x[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        float *to = static_cast<float *>(b->grad) + unit;

        *to = (b->add ? *to : 0) + static_cast<float>(sum);
    }
}

/* The same where a warp has 32 samples beside each other. */
FUNCTION void mul_planes_sums_blocked(const esper_lane *lane)
{
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    int64_t plane = a->count / b->count;
    int64_t unit = static_cast<int64_t>(blockIdx.x) * SUMS_WARPS + threadIdx.x / WARP;
    int64_t at = unit * plane * ESPER_CUDA_BLOCK + threadIdx.x % WARP;
    const float *x = static_cast<const float *>(a->data) + at, *g = static_cast<const float *>(lane->out[0].grad) + at;
    double sum = 0;
    float *to;

    if (b->grad == NULL || unit * ESPER_CUDA_BLOCK >= elements_of<ESPER_CUDA_BLOCKED>(lane, b))
        return;
#pragma unroll 4
    for (int64_t i = 0; i < plane; i++)
        sum += static_cast<double>(g[i * ESPER_CUDA_BLOCK]) * static_cast<double>(x[i * ESPER_CUDA_BLOCK]);
    to = static_cast<float *>(b->grad) + unit * ESPER_CUDA_BLOCK + threadIdx.x % WARP;
    *to = (b->add ? *to : 0) + static_cast<float>(sum);
}

/* Block: one channel of 32 samples; the sum of g x into scratch, [channel][32 samples]. */
template <int LAYOUT> FUNCTION void channel_scale_parts(const esper_lane *lane)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    const esper_view *x = &lane->in[0], *s = &lane->in[1];
    int parts = (lane->max_samples + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK;
    int64_t plane = x->count / s->count, channel = blockIdx.x / parts, part = blockIdx.x % parts;
    int64_t samples = min(static_cast<int64_t>(ESPER_CUDA_BLOCK), lane->pass->n_samples - part * ESPER_CUDA_BLOCK);
    int64_t from = part * ESPER_CUDA_BLOCK * x->count, count = samples * plane;
    const float *xs = static_cast<const float *>(x->data) + from, *gs = static_cast<const float *>(lane->out[0].grad) + from;
    double sum = 0;

    if (s->grad == NULL || channel >= s->count || samples <= 0)
        return;
    if (LAYOUT == ESPER_CUDA_BLOCKED)
        count = plane * ESPER_CUDA_BLOCK;
    for (int64_t i = threadIdx.x; i < count; i += ELEMENTS_THREADS) {
        int64_t at = LAYOUT == ESPER_CUDA_BLOCKED ? channel * plane * ESPER_CUDA_BLOCK + i
                                                  : i / plane * x->count + channel * plane + i % plane;

        sum += static_cast<double>(gs[at]) * static_cast<double>(xs[at]);
    }
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0)
        static_cast<double *>(lane->scratch)[blockIdx.x] = sum;
}

/* A thread is a channel. */
ESPER_KERNEL(esper_channel_scale_join, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *s = &lane->in[1];
    int channel = static_cast<int>(blockIdx.x) * ELEMENTS_THREADS + static_cast<int>(threadIdx.x);
    int parts = (lane->max_samples + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK;
    int parts_now = (lane->pass->n_samples + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK;
    double sum = 0;

    if (s->grad == NULL || channel >= s->count)
        return;
    for (int p = 0; p < parts_now; p++)
        sum += static_cast<const double *>(lane->scratch)[static_cast<int64_t>(channel) * parts + p];
    float *to = static_cast<float *>(s->grad) + channel;
    *to = (s->add ? *to : 0) + static_cast<float>(sum);
}

/* ------------------------------------------------------------------------------------------------ mix_tanh */

/* tanh(w), how much of z there is. */
FUNCTION float mix_of(const esper_lane *lane)
{
    return tanhf(*static_cast<const float *>(lane->in[2].data));
}

template <int LAYOUT> FUNCTION void mix_tanh_forward(const esper_lane *lane)
{
    float mix = mix_of(lane);

    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four x = data_four(&lane->in[0], at, n), z = data_four(&lane->in[1], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            x.v[k] += mix * (z.v[k] - x.v[k]);
        write_four(&lane->out[0], at, n, x);
    });
}

/* What w's gradient is made of, the sum of g (z - x), goes into scratch, a double for each block. */
template <int LAYOUT> FUNCTION void mix_tanh_backward(const esper_lane *lane)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    float mix = mix_of(lane);
    double sum = 0;

    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four g = grad_four(&lane->out[0], at, n);

        if (lane->in[2].grad != NULL) {
            four x = data_four(&lane->in[0], at, n), z = data_four(&lane->in[1], at, n);

#pragma unroll
            for (int k = 0; k < 4; k++)
                sum += static_cast<double>(g.v[k]) * (static_cast<double>(z.v[k]) - static_cast<double>(x.v[k]));
        }
        offer_four(&lane->in[0], at, n, times(1 - mix, g));
        offer_four(&lane->in[1], at, n, times(mix, g));
    });
    if (lane->in[2].grad == NULL || static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH >= elements_of<LAYOUT>(lane, &lane->in[0]))
        return;
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0)
        static_cast<double *>(lane->scratch)[blockIdx.x] = sum;
}

/* dw = (1 - tanh(w)^2) times the sum of the parts: one block. */
template <int LAYOUT> FUNCTION void mix_tanh_join(const esper_lane *lane)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    const esper_view *w = &lane->in[2];
    double mix = static_cast<double>(mix_of(lane)), sum = 0;
    int64_t parts = (elements_of<LAYOUT>(lane, &lane->in[0]) + ELEMENTS_EACH - 1) / ELEMENTS_EACH;

    if (w->grad == NULL || blockIdx.x != 0)
        return;
    for (int64_t p = threadIdx.x; p < parts; p += ELEMENTS_THREADS)
        sum += static_cast<const double *>(lane->scratch)[p];
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0) {
        float *to = static_cast<float *>(w->grad);

        *to = (w->add ? *to : 0) + static_cast<float>((1 - mix * mix) * sum);
    }
}

/* ------------------------------------------------------------------------------------------------ as kernels */

#define KERNEL(name, call)                \
    ESPER_KERNEL(name, ELEMENTS_THREADS)  \
    {                                     \
        (call)(lanes.lane[blockIdx.y]);   \
    }
#define IN_LAYOUT(prefix, LAYOUT)                                                          \
    KERNEL(prefix##add_forward, (add_forward<LAYOUT>))                                     \
    KERNEL(prefix##add_backward, (add_backward<LAYOUT>))                                   \
    KERNEL(prefix##mul_forward, (mul_forward<LAYOUT>))                                     \
    KERNEL(prefix##mul_backward, (mul_backward<LAYOUT>))                                   \
    KERNEL(prefix##mul_planes_forward, (scale_forward<LAYOUT, true>))                      \
    KERNEL(prefix##mul_planes_backward, (scale_backward<LAYOUT, true>))                    \
    KERNEL(prefix##channel_scale_forward, (scale_forward<LAYOUT, false>))                  \
    KERNEL(prefix##channel_scale_backward, (scale_backward<LAYOUT, false>))                \
    KERNEL(prefix##channel_scale_parts, (channel_scale_parts<LAYOUT>))                     \
    KERNEL(prefix##mix_tanh_forward, (mix_tanh_forward<LAYOUT>))                           \
    KERNEL(prefix##mix_tanh_backward, (mix_tanh_backward<LAYOUT>))                         \
    KERNEL(prefix##mix_tanh_join, (mix_tanh_join<LAYOUT>))

IN_LAYOUT(esper_, ESPER_CUDA_CANONICAL)
IN_LAYOUT(esper_blocked_, ESPER_CUDA_BLOCKED)
KERNEL(esper_mul_planes_sums, mul_planes_sums_canonical)
KERNEL(esper_blocked_mul_planes_sums, mul_planes_sums_blocked)
