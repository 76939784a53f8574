/* Internal. Copies to shared memory that a thread does not wait for, until it awaits all of its own. What is not there becomes 0. Devices
 * before 8.0, and the host, copy at once. */
#ifndef ESPER_TENSOR_CUDA_ASYNC_CUH
#define ESPER_TENSOR_CUDA_ASYNC_CUH

#include "tensor/cuda/dialect.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

FUNCTION void copy_one(float *to, const float *from, bool is)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(is ? 4 : 0)
                 : "memory");
}

/* Both addresses are multiples of 16. */
FUNCTION void copy_four(float *to, const float *from, bool is)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(is ? 16 : 0)
                 : "memory");
}

FUNCTION void await_all(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

#else

FUNCTION void copy_one(float *to, const float *from, bool is)
{
    *to = is ? *from : 0.0f;
}

FUNCTION void copy_four(float *to, const float *from, bool is)
{
    *reinterpret_cast<float4 *>(to) = is ? *reinterpret_cast<const float4 *>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

FUNCTION void await_all(void)
{
}

#endif

#endif
