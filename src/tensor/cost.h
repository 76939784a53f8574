/* Internal. What an operation costs, counted from its shapes. */
#ifndef ESPER_TENSOR_COST_H
#define ESPER_TENSOR_COST_H

#include "tensor/backend.h"
#include "tensor/net.h"

typedef struct esper_cost {
    double flops; /* multiplications and additions of convolutions, linear layers and attention: 2 for each pair */
    double bytes; /* moved if every tensor is read or written once for each time the operation needs it */
} esper_cost;

/* The cost of one lane for a batch of n_samples. Backward counts only the gradients that the lane wants. */
esper_cost esper_op_cost(esper_op_kind kind, esper_direction direction, const esper_lane *lane, int n_samples);

/* FLOPs of a forward pass of one sample. */
double esper_net_flops(const esper_net *net);

#endif
