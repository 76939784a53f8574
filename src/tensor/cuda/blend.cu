/* How a seed's output s joins its host's h: straight_through, blend_add, blend_mul, blend_gate.
 *
 * A weight of exactly 0 gives h and a weight of exactly 1 (blend_add, blend_gate) gives s, bit for bit and whatever stands in the
 * other one. Weights are clamped to [0, 1]; a NaN among them stays and shows in y. Alpha and gate are one number for each sample, which
 * lies in memory alike in both layouts. h, s and u may be the same tensor and then share a gradient, so of each element each is
 * finished before the next is begun. */
#include "tensor/cuda/elements.cuh"
#include "tensor/cuda/sums.cuh"

FUNCTION float clamp01(float x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

FUNCTION float number_at(const esper_lane *lane, int input, int64_t sample)
{
    return static_cast<const float *>(lane->in[input].data)[sample];
}

/* ------------------------------------------------------------------------------------------------ the weight of a sample */

struct weight_add {
    static __device__ __forceinline__ float of(const esper_lane *lane, int64_t sample)
    {
        return clamp01(number_at(lane, 2, sample));
    }
};

struct weight_gate {
    static __device__ __forceinline__ float of(const esper_lane *lane, int64_t sample)
    {
        return clamp01(clamp01(number_at(lane, 3, sample)) * clamp01(number_at(lane, 2, sample)));
    }
};

struct weight_mul {
    static __device__ __forceinline__ float of(const esper_lane *lane, int64_t sample)
    {
        return clamp01(number_at(lane, 3, sample));
    }
};

/* Calls work(at, n, weights) with the weight of each element's sample. */
template <int LAYOUT, class Weight, class Work> FUNCTION void for_weighted(const esper_lane *lane, Work work)
{
    unit_counter<LAYOUT> sample(lane->in[0].count);

    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four weights = {};

#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < n)
                weights.v[k] = Weight::of(lane, sample(at + k));
        work(at, n, weights);
    });
}

/* ------------------------------------------------------------------------------------------------ straight_through */

template <int LAYOUT> FUNCTION void straight_through_forward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]),
              [&](int64_t at, int n) { write_four(&lane->out[0], at, n, data_four(&lane->in[0], at, n)); });
}

template <int LAYOUT> FUNCTION void straight_through_backward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four g = grad_four(&lane->out[0], at, n);

        offer_four(&lane->in[0], at, n, g);
        offer_four(&lane->in[1], at, n, g);
    });
}

/* ------------------------------------------------------------------------------------------------ blend_add, blend_gate */

/* h + e (s - h), reckoned from the nearer end. */
FUNCTION float between(float h, float s, float e)
{
    float blended = e < 0.5f ? h + e * (s - h) : s - (1 - e) * (s - h);

    return e == 0 ? h : e == 1 ? s : blended;
}

template <int LAYOUT, class Weight> FUNCTION void between_forward(const esper_lane *lane)
{
    for_weighted<LAYOUT, Weight>(lane, [&](int64_t at, int n, const four &weights) {
        four h = data_four(&lane->in[0], at, n), s = data_four(&lane->in[1], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            h.v[k] = between(h.v[k], s.v[k], weights.v[k]);
        write_four(&lane->out[0], at, n, h);
    });
}

template <int LAYOUT, class Weight> FUNCTION void between_backward(const esper_lane *lane)
{
    for_weighted<LAYOUT, Weight>(lane, [&](int64_t at, int n, const four &weights) {
        four dh = grad_four(&lane->out[0], at, n), ds = dh;

#pragma unroll
        for (int k = 0; k < 4; k++) {
            dh.v[k] *= 1 - weights.v[k];
            ds.v[k] *= weights.v[k];
        }
        offer_four(&lane->in[0], at, n, dh);
        offer_four(&lane->in[1], at, n, ds);
    });
}

/* The sum of g (s - h) over a stretch of a sample's elements into scratch, [sample][stretch]: a block has ELEMENTS_EACH elements of one
 * sample. */
FUNCTION void gate_parts_canonical(const esper_lane *lane)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    const esper_view *h = &lane->in[0];
    int parts = static_cast<int>((h->count + ELEMENTS_EACH - 1) / ELEMENTS_EACH);
    int64_t sample = blockIdx.x / parts, begin = static_cast<int64_t>(blockIdx.x % parts) * ELEMENTS_EACH;
    int64_t end = min(begin + ELEMENTS_EACH, h->count), from = sample * h->count;
    const float *hs = static_cast<const float *>(h->data) + from, *ss = static_cast<const float *>(lane->in[1].data) + from;
    const float *gs = static_cast<const float *>(lane->out[0].grad) + from;
    double sum = 0;

    if (lane->in[2].grad == NULL || sample >= lane->pass->n_samples)
        return;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += ELEMENTS_THREADS)
        sum += static_cast<double>(gs[i]) * (static_cast<double>(ss[i]) - static_cast<double>(hs[i]));
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0)
        static_cast<double *>(lane->scratch)[blockIdx.x] = sum;
}

/* The same for 32 samples side by side: a block has ELEMENTS_EACH / 32 elements of each, a warp one at a time. */
FUNCTION void gate_parts_blocked(const esper_lane *lane)
{
    enum { EACH = ELEMENTS_EACH / ESPER_CUDA_BLOCK, WARPS = ELEMENTS_THREADS / WARP };
    __shared__ double of_warp[WARPS][WARP];
    const esper_view *h = &lane->in[0];
    int parts = static_cast<int>((h->count + EACH - 1) / EACH), warp = threadIdx.x / WARP, in_block = threadIdx.x % WARP;
    int64_t block = blockIdx.x / parts, part = blockIdx.x % parts;
    int64_t begin = part * EACH, end = min(begin + EACH, h->count), from = block * h->count * ESPER_CUDA_BLOCK + in_block;
    const float *hs = static_cast<const float *>(h->data) + from, *ss = static_cast<const float *>(lane->in[1].data) + from;
    const float *gs = static_cast<const float *>(lane->out[0].grad) + from;
    double sum = 0;

    if (lane->in[2].grad == NULL || block * ESPER_CUDA_BLOCK >= lane->pass->n_samples)
        return;
#pragma unroll 4
    for (int64_t i = begin + warp; i < end; i += WARPS) {
        int64_t at = i * ESPER_CUDA_BLOCK;

        sum += static_cast<double>(gs[at]) * (static_cast<double>(ss[at]) - static_cast<double>(hs[at]));
    }
    of_warp[warp][in_block] = sum;
    __syncthreads();
    if (warp == 0) {
        for (int w = 1; w < WARPS; w++)
            sum += of_warp[w][in_block];
        static_cast<double *>(lane->scratch)[(block * ESPER_CUDA_BLOCK + in_block) * parts + part] = sum;
    }
}

/* A thread is a sample: a times the sum of its parts, and nothing where the gate was clamped; its ends 0 and 1 count as inside. */
template <int LAYOUT> FUNCTION void gate_join(const esper_lane *lane)
{
    enum { EACH = LAYOUT == ESPER_CUDA_BLOCKED ? ELEMENTS_EACH / ESPER_CUDA_BLOCK : ELEMENTS_EACH };
    const esper_view *gate_view = &lane->in[2];
    int64_t sample = static_cast<int64_t>(blockIdx.x) * ELEMENTS_THREADS + threadIdx.x;
    int parts = static_cast<int>((lane->in[0].count + EACH - 1) / EACH);
    double sum = 0;

    if (gate_view->grad == NULL || sample >= elements_of<LAYOUT>(lane, gate_view))
        return;

    float gate = number_at(lane, 2, sample), a = clamp01(number_at(lane, 3, sample));
    float *to = static_cast<float *>(gate_view->grad) + sample;

    if (sample < lane->pass->n_samples && !(gate < 0 || gate > 1 || a == 0)) {
        for (int p = 0; p < parts; p++)
            sum += static_cast<const double *>(lane->scratch)[sample * parts + p];
        sum *= static_cast<double>(a);
    }
    *to = (gate_view->add ? *to : 0) + static_cast<float>(sum);
}

/* ------------------------------------------------------------------------------------------------ blend_mul */

template <int LAYOUT> FUNCTION void blend_mul_forward(const esper_lane *lane)
{
    for_weighted<LAYOUT, weight_mul>(lane, [&](int64_t at, int n, const four &weights) {
        four h = data_four(&lane->in[0], at, n), s = data_four(&lane->in[1], at, n), u = data_four(&lane->in[2], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = weights.v[k], blended = h.v[k] * (1 + a * tanhf(s.v[k] - u.v[k]));

            h.v[k] = a == 0 ? h.v[k] : blended;
        }
        write_four(&lane->out[0], at, n, h);
    });
}

/* dh = g (1 + a tanh m), ds = q = g h a (1 - tanh^2 m), du = -q, with m = s - u; where a is 0, dh = g and the others are 0 g. */
template <int LAYOUT> FUNCTION void blend_mul_backward(const esper_lane *lane)
{
    for_weighted<LAYOUT, weight_mul>(lane, [&](int64_t at, int n, const four &weights) {
        four h = data_four(&lane->in[0], at, n), s = data_four(&lane->in[1], at, n), u = data_four(&lane->in[2], at, n);
        four g = grad_four(&lane->out[0], at, n), dh = g, q = {};

#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = weights.v[k], t = tanhf(s.v[k] - u.v[k]);

            dh.v[k] = a == 0 ? g.v[k] : g.v[k] * (1 + a * t);
            q.v[k] = a == 0 ? 0 * g.v[k] : g.v[k] * h.v[k] * a * (1 - t * t);
        }
        offer_four(&lane->in[0], at, n, dh);
        offer_four(&lane->in[1], at, n, q);
        offer_four(&lane->in[2], at, n, times(-1, q));
    });
}

/* ------------------------------------------------------------------------------------------------ as kernels */

#define KERNEL(name, call)               \
    ESPER_KERNEL(name, ELEMENTS_THREADS) \
    {                                    \
        call(lanes.lane[blockIdx.y]);    \
    }
#define IN_LAYOUT(prefix, LAYOUT)                                                          \
    KERNEL(prefix##straight_through_forward, (straight_through_forward<LAYOUT>))           \
    KERNEL(prefix##straight_through_backward, (straight_through_backward<LAYOUT>))         \
    KERNEL(prefix##blend_add_forward, (between_forward<LAYOUT, weight_add>))               \
    KERNEL(prefix##blend_add_backward, (between_backward<LAYOUT, weight_add>))             \
    KERNEL(prefix##blend_gate_forward, (between_forward<LAYOUT, weight_gate>))             \
    KERNEL(prefix##blend_gate_backward, (between_backward<LAYOUT, weight_gate>))           \
    KERNEL(prefix##blend_gate_join, (gate_join<LAYOUT>))                                   \
    KERNEL(prefix##blend_mul_forward, (blend_mul_forward<LAYOUT>))                         \
    KERNEL(prefix##blend_mul_backward, (blend_mul_backward<LAYOUT>))

IN_LAYOUT(esper_, ESPER_CUDA_CANONICAL)
IN_LAYOUT(esper_blocked_, ESPER_CUDA_BLOCKED)
KERNEL(esper_blend_gate_parts, gate_parts_canonical)
KERNEL(esper_blocked_blend_gate_parts, gate_parts_blocked)
