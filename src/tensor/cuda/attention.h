/* Internal. Attention on a GPU: what the host and the kernels reckon alike. */
#ifndef ESPER_TENSOR_CUDA_ATTENTION_H
#define ESPER_TENSOR_CUDA_ATTENTION_H

/* Queries or keys of a block, and its threads. */
enum { ESPER_ATTENTION_ROWS = 32, ESPER_ATTENTION_THREADS = 128 };

#endif
