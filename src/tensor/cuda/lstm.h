/* Internal. LSTM on a GPU: what the host and the kernels reckon alike. */
#ifndef ESPER_TENSOR_CUDA_LSTM_H
#define ESPER_TENSOR_CUDA_LSTM_H

#include "tensor/cuda/linear.h"

/* A block takes so many samples through all steps: weights are read once for them. */
enum { ESPER_LSTM_THREADS = 512, ESPER_LSTM_SAMPLES = 4 };

#endif
