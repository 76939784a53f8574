/* Internal. What kernels on blocks of samples share: where blocks lie, and sums over a warp. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_CUH
#define ESPER_TENSOR_CUDA_BLOCK_CUH

#include "tensor/cuda/block.h"
#include "tensor/cuda/dialect.cuh"

FUNCTION int blocks_of(const esper_lane *lane)
{
    return block_divide(lane->pass->n_samples, ESPER_CUDA_BLOCK);
}

/* Samples of a block that are the batch's. */
FUNCTION int samples_in(const esper_lane *lane, int block)
{
    int left = lane->pass->n_samples - block * ESPER_CUDA_BLOCK;

    return left < ESPER_CUDA_BLOCK ? left : ESPER_CUDA_BLOCK;
}

FUNCTION float *data_block(const esper_view *view, int block)
{
    return (float *)view->data + (size_t)block * (size_t)view->count * ESPER_CUDA_BLOCK;
}

FUNCTION float *grad_block(const esper_view *view, int block)
{
    return (float *)view->grad + (size_t)block * (size_t)view->count * ESPER_CUDA_BLOCK;
}

FUNCTION void grad_put(const esper_view *view, float *grad, float value)
{
    *grad = view->add ? *grad + value : value;
}

/* N values of each thread, N a power of two up to 32, are summed over the warp: the thread of number t is given the sum
 * of value t * N / 32. Half of the values go to the other half of the threads in each step, so it takes N + 4 exchanges and not
 * 5 N. */
template <int N, int OFFSET, typename number> struct halving_sum {
    FUNCTION number of(number *v)
    {
        bool upper = (threadIdx.x & OFFSET) != 0;

#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            number give = upper ? v[i] : v[i + N / 2], keep = upper ? v[i + N / 2] : v[i];

            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, OFFSET);
        }
        return halving_sum<N / 2, OFFSET / 2, number>::of(v);
    }
};

template <int OFFSET, typename number> struct halving_sum<1, OFFSET, number> {
    FUNCTION number of(number *v)
    {
        number sum = v[0];

#pragma unroll
        for (int offset = OFFSET; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        return sum;
    }
};

template <int N, typename number> FUNCTION number sum_over_warp(number *v)
{
    return halving_sum<N, 16, number>::of(v);
}

#endif
