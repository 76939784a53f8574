/* Internal. Which networks a device computes on blocks of samples. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_LOWER_H
#define ESPER_TENSOR_CUDA_BLOCK_LOWER_H

#include "tensor/net.h"

/* As esper_backend_ops.lower and .bytes, whichever backend asks that computes with these kernels. */
esper_status esper_cuda_lower(const esper_net *net, int max_samples, esper_precision precision, esper_net *lowered_out);
size_t       esper_cuda_bytes(const esper_tensor *tensor, int max_samples);

/* Keeps activations of a network that was lowered as bf16, where there are kernels for that. On failure it is still to be given to
 * esper_net_fini. */
esper_status esper_cuda_halve(esper_net *net);

#endif
