/* Internal. What builders of operations (net_layers.c) and of the rest of a program (net.c) share. */
#ifndef ESPER_TENSOR_NET_BUILD_H
#define ESPER_TENSOR_NET_BUILD_H

#include <string.h>

#include "tensor/net.h"

/* Keeps the first mistake, which `op` or a name tells. Returns whether building may go on. */
bool esper_net_require(esper_net *net, bool holds, const char *op, const char *what);

/* An operation with its first output like `out_dim`; further outputs are the caller's to set. Ids of absent optional
 * inputs are ESPER_NO_TENSOR; a missing required one means that an earlier call failed. */
int esper_net_push_op(esper_net *net, esper_op_kind kind, const int *in, int out_rank, const int *out_dim);

/* A further output of the operation pushed last: statistics and the like that its backward pass reads. */
void esper_net_push_extra_out(esper_net *net, int index, bool per_sample, int rank, const int *dim);

/* The tensor, or NULL when building has already failed. */
static inline const esper_tensor *esper_net_get(const esper_net *net, int id)
{
    if (net->status != ESPER_OK || id < 0 || id >= net->n_tensors)
        return NULL;
    return &net->tensors[id];
}

static inline esper_op *esper_net_last_op(esper_net *net)
{
    return net->status == ESPER_OK ? &net->ops[net->n_ops - 1] : NULL;
}

static inline bool esper_tensor_same_shape(const esper_tensor *a, const esper_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof(a->dim)) == 0;
}

static inline bool esper_net_is_vector(const esper_net *net, int id, int64_t count)
{
    const esper_tensor *tensor = esper_net_get(net, id);

    return tensor != NULL && tensor->rank == 1 && tensor->count == count;
}

#endif
