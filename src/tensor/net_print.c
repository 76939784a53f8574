/* The text form of a program. */
#include "tensor/net.h"

static const char *const role_names[] = {
#define X(role, text) text,
    ESPER_ROLE_LIST(X)
#undef X
};

static void print_shape(const esper_tensor *tensor, FILE *stream)
{
    fprintf(stream, "%s(%s", tensor->name, tensor->per_sample ? "N" : "");
    for (int i = 0; i < tensor->rank; i++)
        fprintf(stream, "%s%d", i > 0 || tensor->per_sample ? "," : "", tensor->dim[i]);
    fprintf(stream, ")");
}

static void print_attr(const esper_op *op, FILE *stream)
{
    switch (op->kind) {
    case ESPER_OP_CONV2D:
        fprintf(stream, " pad=%d groups=%d", op->attr.conv.pad, op->attr.conv.groups);
        break;
    case ESPER_OP_GROUP_NORM:
        fprintf(stream, " groups=%d", op->attr.norm.groups);
        break;
    case ESPER_OP_ATTENTION:
        fprintf(stream, " heads=%d drop=%g", op->attr.attention.heads, (double)op->attr.attention.drop);
        break;
    case ESPER_OP_DROPOUT:
        fprintf(stream, " drop=%g", (double)op->attr.dropout.drop);
        break;
    default:
        break;
    }
}

static void print_op(const esper_net *net, const esper_op *op, FILE *stream)
{
    print_shape(&net->tensors[op->out[0]], stream);
    fprintf(stream, " = %s", esper_op_info_of(op->kind)->name);
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        if (op->in[i] != ESPER_NO_TENSOR)
            fprintf(stream, " %s", net->tensors[op->in[i]].name);
    print_attr(op, stream);
    fprintf(stream, "\n");
}

void esper_net_print(const esper_net *net, FILE *stream)
{
    int boundary = 0;

    for (int i = 0; i < net->n_tensors; i++) {
        if (net->tensors[i].role == ESPER_ROLE_ACTIVATION)
            continue;
        fprintf(stream, "%s ", role_names[net->tensors[i].role]);
        print_shape(&net->tensors[i], stream);
        fprintf(stream, "\n");
    }
    for (int i = 0; i < net->n_ops; i++) {
        print_op(net, &net->ops[i], stream);
        for (; boundary < net->n_boundaries && net->boundaries[boundary].tensor == net->ops[i].out[0]; boundary++)
            fprintf(stream, "slot %s: %d channels\n", net->boundaries[boundary].slot,
                    net->boundaries[boundary].channels);
    }
}
