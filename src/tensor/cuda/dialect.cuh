/* Internal. The words kernels are written in: CUDA C++, or the same on the host, where tests run the kernels with threads of
 * their own making (tests/cuda/host_cuda.h, which defines ESPER_CUDA_ON_HOST).
 *
 *     ESPER_KERNEL(esper_relu_forward, 256)      256 threads to a block
 *     {
 *         const esper_lane *lane = lanes.lane[blockIdx.y];
 *         ...
 *     }
 *
 * No C++ library, and of CUDA's words those that tests/cuda/host_cuda.h has too. */
#ifndef ESPER_TENSOR_CUDA_DIALECT_CUH
#define ESPER_TENSOR_CUDA_DIALECT_CUH

#include "tensor/cuda/kernels.h"

#ifdef ESPER_CUDA_ON_HOST
#include "cuda/host_cuda.h"
#else

#define ESPER_KERNEL(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ esper_cuda_lanes lanes)
/* The same, where at least so many blocks are to fit a multiprocessor at once. */
#define ESPER_KERNEL_DENSE(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ esper_cuda_lanes lanes)
#define FUNCTION static __device__ __forceinline__

/* Shared memory that the launch gives besides what the kernel declares. */
#define ESPER_SHARED(type, name)                            \
    extern __shared__ __align__(16) unsigned char esper_shared[]; \
    type *name = reinterpret_cast<type *>(esper_shared)

#endif

/* The lane of this block. A pass that is to be left out is left before any barrier, by all threads alike. */
#define ESPER_LANE(lane)                                    \
    const esper_lane *lane = lanes.lane[blockIdx.y];        \
    if (lane->pass->skip != NULL && *lane->pass->skip != 0) \
    return

/* Batch statistics and dropout, or not: esper_lane_trains, as a device asks it. */
FUNCTION bool lane_trains(const esper_lane *lane)
{
    return lane->pass->training && !lane->frozen;
}

#endif
