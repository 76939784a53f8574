/* Internal. Operations that make each element of elements at the same place: what their kernels share.
 *
 * A block of threads has one stretch of ELEMENTS_EACH elements of its lane, in the order they lie in memory, whatever the layout;
 * a thread takes four that follow each other at a time. Padded samples of the last block of the blocked layout are computed like
 * all others. */
#ifndef ESPER_TENSOR_CUDA_ELEMENTS_CUH
#define ESPER_TENSOR_CUDA_ELEMENTS_CUH

#include "tensor/cuda/dialect.cuh"
#include "tensor/cuda/elements.h"

/* Elements of a per-sample tensor in this pass, with those of padded samples. */
template <int LAYOUT> FUNCTION int64_t elements_of(const esper_lane *lane, const esper_view *view)
{
    int n = lane->pass->n_samples;

    return view->count * (LAYOUT == ESPER_CUDA_BLOCKED ? (n + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK * ESPER_CUDA_BLOCK : n);
}

FUNCTION bool is_aligned(const void *a)
{
    return (reinterpret_cast<uintptr_t>(a) & 15) == 0;
}

/* Up to four elements that follow each other, as one access where they are aligned. */
struct four {
    float v[4];
};

FUNCTION four load_four(const float *from, int n)
{
    four x = {};

    if (n == 4 && is_aligned(from)) {
        float4 all = *reinterpret_cast<const float4 *>(from);

        x.v[0] = all.x, x.v[1] = all.y, x.v[2] = all.z, x.v[3] = all.w;
        return x;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < n)
            x.v[k] = from[k];
    return x;
}

FUNCTION void store_four(float *to, int n, const four &x)
{
    if (n == 4 && is_aligned(to)) {
        *reinterpret_cast<float4 *>(to) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < n)
            to[k] = x.v[k];
}

/* Into a gradient that is wanted, as its view says. */
FUNCTION void put_four(const esper_view *view, int64_t at, int n, four x)
{
    float *to = static_cast<float *>(view->grad) + at;

    if (view->add) {
        four before = load_four(to, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            x.v[k] = before.v[k] + x.v[k];
    }
    store_four(to, n, x);
}

/* The same where it may not be wanted. */
FUNCTION void offer_four(const esper_view *view, int64_t at, int n, const four &x)
{
    if (view->grad != NULL)
        put_four(view, at, n, x);
}

FUNCTION four data_four(const esper_view *view, int64_t at, int n)
{
    return load_four(static_cast<const float *>(view->data) + at, n);
}

FUNCTION four grad_four(const esper_view *view, int64_t at, int n)
{
    return load_four(static_cast<const float *>(view->grad) + at, n);
}

FUNCTION void write_four(const esper_view *view, int64_t at, int n, const four &x)
{
    store_four(static_cast<float *>(view->data) + at, n, x);
}

FUNCTION four times(float factor, const four &x)
{
    return {{factor * x.v[0], factor * x.v[1], factor * x.v[2], factor * x.v[3]}};
}

/* Calls work(at, n) for each four of this block's stretch of `count` elements. */
template <class Work> FUNCTION void for_fours(int64_t count, Work work)
{
    int64_t begin = static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH;

#pragma unroll 4
    for (int k = 0; k < ELEMENTS_EACH; k += 4 * ELEMENTS_THREADS) {
        int64_t at = begin + k + 4 * static_cast<int>(threadIdx.x);

        if (at < count)
            work(at, static_cast<int>(min(static_cast<int64_t>(4), count - at)));
    }
}

/* Of which unit an element is, where `each` elements that follow each other in a sample make one: a sample (all its elements), or a
 * channel of it. Units are counted over samples; of a tensor with one number for each unit it is the number's place in memory.
 *
 * Division by an unsigned is of 32 bits: what comes before the block's stretch is divided once. */
template <int LAYOUT> struct unit_counter {
    unsigned each, offset;
    int64_t  begin, first;

    __device__ __forceinline__ unit_counter(int64_t elements_each)
        : each(static_cast<unsigned>(elements_each)), begin(static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH)
    {
        int64_t before = LAYOUT == ESPER_CUDA_BLOCKED ? begin / ESPER_CUDA_BLOCK : begin;

        first = before / each;
        offset = static_cast<unsigned>(before - first * each);
    }

    /* Counted without samples of a block. */
    __device__ __forceinline__ int64_t row(int64_t at) const
    {
        unsigned after = static_cast<unsigned>(at - begin);

        return first + (offset + (LAYOUT == ESPER_CUDA_BLOCKED ? after / ESPER_CUDA_BLOCK : after)) / each;
    }

    __device__ __forceinline__ int64_t operator()(int64_t at) const
    {
        return LAYOUT == ESPER_CUDA_BLOCKED ? row(at) * ESPER_CUDA_BLOCK + at % ESPER_CUDA_BLOCK : row(at);
    }
};

#endif
