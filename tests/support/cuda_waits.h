/* For tests that count how often somebody has waited for a CUDA device. */
#ifndef ESPER_TESTS_SUPPORT_CUDA_WAITS_H
#define ESPER_TESTS_SUPPORT_CUDA_WAITS_H

#include "device/cuda_driver.h"

/* Calls of the process so far in which the caller waited. */
static inline uint64_t esper_cuda_waits(void)
{
    return atomic_load(&esper_cuda_calls[ESPER_CUDA_cuEventSynchronize]) +
           atomic_load(&esper_cuda_calls[ESPER_CUDA_cuStreamSynchronize]);
}

#endif
