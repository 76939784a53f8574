/* Internal. The words kernels are written in: CUDA C++, or the same on the host, where tests run the kernels with threads of
 * their own making (tests/cuda/host_cuda.h, which the compiler is given before everything else there, with ESPER_CUDA_ON_HOST).
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

#ifndef ESPER_CUDA_ON_HOST

#define FUNCTION static __device__ __forceinline__

/* A pass that is to be left out (esper_pass.skip) is left before anything is done, by all threads of a block alike. */
FUNCTION bool lane_is_skipped(const esper_lane *lane)
{
    return lane->pass != NULL && lane->pass->skip != NULL && *lane->pass->skip != 0;
}

#define ESPER_KERNEL_OF(name, bounds)                                             \
    FUNCTION void name##_of_lane(const esper_cuda_lanes &lanes);                  \
    extern "C" __global__ void bounds name(const __grid_constant__ esper_cuda_lanes lanes) \
    {                                                                             \
        if (!lane_is_skipped(lanes.lane[blockIdx.y]))                             \
            name##_of_lane(lanes);                                                \
    }                                                                             \
    FUNCTION void name##_of_lane(const esper_cuda_lanes &lanes)
#define ESPER_KERNEL(name, threads) ESPER_KERNEL_OF(name, __launch_bounds__(threads))
/* The same, where at least so many blocks are to fit a multiprocessor at once. */
#define ESPER_KERNEL_DENSE(name, threads, blocks) \
    ESPER_KERNEL_OF(name, __launch_bounds__(threads, blocks))
/* A kernel whose argument takes the place of lanes and is something else. */
#define ESPER_KERNEL_PLAIN(name, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ esper_cuda_lanes lanes)

/* Shared memory that the launch gives besides what the kernel declares. */
#define ESPER_SHARED(type, name)                            \
    extern __shared__ __align__(16) unsigned char esper_shared[]; \
    type *name = reinterpret_cast<type *>(esper_shared)

#endif

/* Batch statistics and dropout, or not: esper_lane_trains, as a device asks it. */
FUNCTION bool lane_trains(const esper_lane *lane)
{
    return lane->pass->training && !lane->frozen;
}

#endif
