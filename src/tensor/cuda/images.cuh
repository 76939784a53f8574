/* Internal. Images in canonical layout: where samples lie, and sums that all threads of a block get to know.
 *
 * These kernels are for batches too small for blocks of samples, and for networks with an operation that has none: a thread has
 * a result, or a block of threads a sum, and that is all. */
#ifndef ESPER_TENSOR_CUDA_IMAGES_CUH
#define ESPER_TENSOR_CUDA_IMAGES_CUH

#include "tensor/cuda/plain.h"
#include "tensor/cuda/sums.cuh"

FUNCTION float *data_of(const esper_view *view, int sample)
{
    return (float *)view->data + (size_t)sample * (size_t)view->count;
}

FUNCTION float *grad_of(const esper_view *view, int sample)
{
    return (float *)view->grad + (size_t)sample * (size_t)view->count;
}

FUNCTION void put_grad(const esper_view *view, float *grad, float value)
{
    *grad = view->add ? *grad + value : value;
}

/* Which element of the batch, `count` a sample, a thread has; -1: none. */
FUNCTION int element_of(const esper_lane *lane, int count, int *sample_out)
{
    int64_t at = (int64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x;

    *sample_out = (int)(at / count);
    return *sample_out < lane->pass->n_samples ? (int)(at - (int64_t)*sample_out * count) : -1;
}

/* Every thread of the block gets the sum. `room` is shared memory for a double a warp and one more. */
FUNCTION double sum_for_all(double value, double *room)
{
    double sum = block_sum<PLAIN_THREADS>(value, room);

    __syncthreads();
    if (threadIdx.x == 0)
        room[0] = sum;
    __syncthreads();
    sum = room[0];
    __syncthreads();
    return sum;
}

#endif
