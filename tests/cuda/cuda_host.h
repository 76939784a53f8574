/* Internal. The kernels of tensor/cuda/ on the host: as a backend, and as a set of kernels for those who build lanes by hand. */
#ifndef ESPER_TESTS_CUDA_CUDA_HOST_H
#define ESPER_TESTS_CUDA_CUDA_HOST_H

#include "tensor/backend.h"
#include "tensor/kernel.h"

/* Runs a launch whose lanes lie in host memory. Lanes whose launches differ in blocks alone are run together. */
void cuda_host_run(const esper_launch *launch);

/* Operations on canonical layouts, each of them one phase of one result. */
const esper_kernel_set *cuda_host_kernels(void);

#endif
