/* Counting FLOPs and bytes. The convention: norms, activations and pools count as traffic, not as FLOPs; each gradient of
 * a product (to the data, to the weights) costs as much as the product itself. */
#include "tensor/cost.h"

#include "tensor/net.h"

/* FLOPs of the forward product for one sample. */
static double product_flops(esper_op_kind kind, const esper_lane *lane)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];

    switch (kind) {
    case ESPER_OP_CONV_NORM:
        return 2.0 * (double)lane->out[1].count * w->dim[1] * w->dim[2] * w->dim[3];
    case ESPER_OP_CONV2D: /* every output element: C/groups * k * k products */
        return 2.0 * (double)y->count * w->dim[1] * w->dim[2] * w->dim[3];
    case ESPER_OP_LINEAR: /* every input row meets the whole matrix */
        return 2.0 * (double)(x->count / w->dim[1]) * (double)w->count;
    case ESPER_OP_LSTM: /* every step's state meets the whole matrix */
        return 2.0 * y->dim[0] * (double)w->count;
    case ESPER_OP_ATTENTION: /* scores and weighted values; causal: half of T x T */
        return 2.0 * x->dim[0] * (x->dim[0] + 1.0) * (x->dim[1] / 3);
    default:
        return 0.0;
    }
}

/* Bytes of a tensor with all its samples. Parameters and batch statistics do not repeat. */
static double view_bytes(const esper_view *view, int n_samples, bool per_sample)
{
    return 4.0 * (double)view->count * (per_sample ? n_samples : 1);
}

esper_cost esper_op_cost(esper_op_kind kind, esper_direction direction, const esper_lane *lane, int n_samples)
{
    const esper_op_info *info = esper_op_info_of(kind);
    esper_cost cost = {.flops = product_flops(kind, lane) * n_samples};

    if (kind == ESPER_OP_ISOLATE)
        return cost;
    if (direction == ESPER_BACKWARD && kind == ESPER_OP_ATTENTION)
        cost.flops *= 2.0;
    else if (direction == ESPER_BACKWARD) /* for x, and for w; an LSTM's states always pass their gradients back */
        cost.flops *= (kind == ESPER_OP_LSTM || lane->in[0].grad != NULL) + (lane->in[1].grad != NULL);
    for (int i = 0; i < info->n_in; i++) {
        const esper_view *in = &lane->in[i];
        double bytes = view_bytes(in, n_samples, !esper_op_takes_state(kind, i));

        if (direction == ESPER_FORWARD ? in->data != NULL : in->data != NULL && (info->saved_in & ESPER_BIT(i)) != 0)
            cost.bytes += bytes;
        if (direction == ESPER_BACKWARD && in->grad != NULL)
            cost.bytes += in->add ? 2 * bytes : bytes;
    }
    for (int i = 0; i < info->n_out; i++) {
        bool statistics = (kind == ESPER_OP_BATCH_NORM && i > 0) || (kind == ESPER_OP_CONV_NORM && i > 1);
        double bytes = view_bytes(&lane->out[i], n_samples, !statistics); /* those are the batch's */

        if (direction == ESPER_FORWARD || (info->saved_out & ESPER_BIT(i)) != 0)
            cost.bytes += bytes;
        if (direction == ESPER_BACKWARD && lane->out[i].grad != NULL)
            cost.bytes += bytes;
    }
    return cost;
}

double esper_net_flops(const esper_net *net)
{
    double flops = 0.0;

    for (int o = 0; o < net->n_ops; o++) {
        esper_lane lane = esper_net_lane(net, &net->ops[o]);

        flops += esper_op_cost(net->ops[o].kind, ESPER_FORWARD, &lane, 1).flops;
    }
    return flops;
}
