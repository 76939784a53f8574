/* Which activations of a network on blocks are bf16, and where they are changed to floats and back.
 *
 * Operations are walked once, in order, as in lower.c. A tensor is what the operation that makes it makes; whoever reads it otherwise is given
 * a twin, which the first such reader brings about just before it, so that its gradient is whole when it is changed back. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/cuda/block_lower.h"
#include "tensor/cuda/kernels.h"

typedef struct halving {
    esper_net *net;
    int       *twin;    /* (tensors that there were) of the other kind; ESPER_NO_TENSOR: none yet */
    bool      *wanted;  /* (likewise) by an operation that reads words */
    esper_op  *ops;     /* as they will be */
    int        n_ops;
} halving;

/* A convolution that there are kernels for. */
static bool is_half_conv(const esper_net *net, const esper_op *op)
{
    const int32_t *w;

    if (op->kind != ESPER_OP_CONV2D && op->kind != ESPER_OP_CONV_NORM)
        return false;
    w = net->tensors[op->in[1]].dim;
    return w[2] == 3 && w[1] >= 3 &&
           (op->kind == ESPER_OP_CONV2D ? op->attr.conv.groups : op->attr.conv_norm.groups) == 1;
}

/* The tensor, or its twin, in that layout. */
static int in_layout(halving *h, int t, int layout, uint32_t place)
{
    esper_net *net = h->net;
    esper_tensor *twin = &net->tensors[net->n_tensors];

    if (net->tensors[t].layout == layout)
        return t;
    if (h->twin[t] != ESPER_NO_TENSOR)
        return h->twin[t];
    *twin = net->tensors[t];
    twin->name[ESPER_NAME_CHARS - 10] = '\0';
    strcat(twin->name, layout == ESPER_CUDA_HALVES ? ".half" : ".float");
    twin->role = ESPER_ROLE_ACTIVATION;
    twin->keep = twin->want_grad = false;
    twin->layout = layout;
    h->ops[h->n_ops++] = (esper_op){.kind = layout == ESPER_CUDA_HALVES ? ESPER_OP_PACK : ESPER_OP_UNPACK,
                                    .in = {t},
                                    .out = {net->n_tensors},
                                    .place = place,
                                    .variant = ESPER_CUDA_CHANGE};
    h->twin[t] = net->n_tensors++;
    return h->twin[t];
}

static void take_op(halving *h, const esper_op *from)
{
    const esper_op_info *info = esper_op_info_of(from->kind);
    esper_tensor *tensors = h->net->tensors;
    esper_op op = *from;

    if (from->kind == ESPER_OP_ISOLATE) { /* what it gives is what it is given */
        tensors[op.out[0]].layout = tensors[op.in[0]].layout;
    } else if (from->kind == ESPER_OP_PACK) {
        if (h->wanted[op.out[0]])
            op.variant = tensors[op.out[0]].layout = ESPER_CUDA_HALVES;
    } else if (from->kind == ESPER_OP_UNPACK) {
        op.variant = tensors[op.in[0]].layout;
    } else if (from->kind == ESPER_OP_GLOBAL_MEAN) { /* of either, floats */
        op.variant = tensors[op.in[0]].layout;
    } else if (is_half_conv(h->net, from)) {
        op.in[0] = in_layout(h, op.in[0], ESPER_CUDA_HALVES, op.place);
        op.variant = tensors[op.out[0]].layout = ESPER_CUDA_HALVES;
        if (from->kind == ESPER_OP_CONV_NORM)
            tensors[op.out[1]].layout = ESPER_CUDA_HALVES;
    } else {
        for (int i = 0; i < info->n_in; i++)
            if (op.in[i] != ESPER_NO_TENSOR && tensors[op.in[i]].layout == ESPER_CUDA_HALVES)
                op.in[i] = in_layout(h, op.in[i], ESPER_CUDA_BLOCKED, op.place);
    }
    h->ops[h->n_ops++] = op;
}

static void mark_wanted(halving *h)
{
    for (int o = 0; o < h->net->n_ops; o++)
        if (is_half_conv(h->net, &h->net->ops[o]))
            h->wanted[h->net->ops[o].in[0]] = true;
}

/* Every tensor may come to have a twin, and an operation that makes it. */
esper_status esper_cuda_halve(esper_net *net)
{
    size_t n_tensors = (size_t)net->n_tensors, n_ops = (size_t)net->n_ops;
    esper_tensor *tensors = esper_mem_grow(net->tensors, 2 * n_tensors * sizeof(*tensors));
    halving h = {.net = net};
    esper_status status = ESPER_OK;

    if (tensors != NULL)
        net->tensors = tensors;
    h.twin = esper_mem_alloc(n_tensors * sizeof(*h.twin));
    h.wanted = esper_mem_alloc(n_tensors * sizeof(*h.wanted));
    h.ops = esper_mem_alloc((n_ops + n_tensors) * sizeof(*h.ops));
    if (tensors == NULL || h.twin == NULL || h.wanted == NULL || h.ops == NULL) {
        status = ESPER_FAIL(ESPER_E_NOMEM, "lowering a network of %zu operations", n_ops);
        esper_mem_free(h.ops);
    } else {
        esper_op *old = net->ops;

        for (size_t t = 0; t < n_tensors; t++)
            h.twin[t] = ESPER_NO_TENSOR;
        mark_wanted(&h);
        for (size_t o = 0; o < n_ops; o++)
            take_op(&h, &old[o]);
        net->ops = h.ops;
        net->n_ops = h.n_ops;
        esper_mem_free(old);
    }
    esper_mem_free(h.twin);
    esper_mem_free(h.wanted);
    return status;
}
