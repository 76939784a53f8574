/* Internal. Whether there is a GPU to test on. */
#ifndef ESPER_TESTS_CUDA_DEVICES_H
#define ESPER_TESTS_CUDA_DEVICES_H

#include "device/cuda_driver.h"

/* How many CUDA devices there are; 0 where there is no driver. */
static inline int cuda_devices(void)
{
    int count = 0;

    if (esper_cuda_driver_load() != ESPER_OK || ESPER_CUDA_RAW(cuDeviceGetCount, &count) != CUDA_SUCCESS)
        return 0;
    return count;
}

#endif
