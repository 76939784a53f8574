/* Internal. Sums over the threads of a warp and of a block: always the same tree, whoever asks. */
#ifndef ESPER_TENSOR_CUDA_SUMS_CUH
#define ESPER_TENSOR_CUDA_SUMS_CUH

#include "tensor/cuda/dialect.cuh"

enum { WARP = 32, ALL_LANES = -1 };

/* All lanes get the sum. */
template <class T> FUNCTION T warp_sum(T value)
{
#pragma unroll
    for (int with = WARP / 2; with > 0; with /= 2)
        value += __shfl_xor_sync(static_cast<unsigned>(ALL_LANES), value, with);
    return value;
}

/* Thread 0 gets the sum of all THREADS; every thread has to call. `of_warp` is shared memory for one T a warp, free again behind the
 * next barrier. */
template <int THREADS, class T> FUNCTION T block_sum(T value, T *of_warp)
{
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    if (threadIdx.x < WARP)
        value = warp_sum(threadIdx.x < THREADS / WARP ? of_warp[threadIdx.x] : T(0));
    return value;
}

#endif
