/* What the driver of programs with driver=also has counted, and the call it is to fail (cuda/driver.c). */
#ifndef ESPER_TESTS_SUPPORT_CUDA_DRIVER_H
#define ESPER_TESTS_SUPPORT_CUDA_DRIVER_H

#include <stdint.h>

int  cuda_driver_syncs(void);    /* waits for a stream */
int  cuda_driver_launches(void); /* of kernels of tensor/cuda/ */
void cuda_driver_fail_at(uint64_t nth);

#endif
