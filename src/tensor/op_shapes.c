/* The table of op.h as assertions, a case for each kind. */
#include "tensor/op_shapes.h"

#ifndef NDEBUG
#include <assert.h>

static bool is_like(const esper_view *a, const esper_view *b)
{
    return a->count == b->count;
}

static bool is_share(float value)
{
    return value >= 0.0f && value < 1.0f;
}

/* y is what a square kernel of stride 1 makes of x. */
static void assert_conv(const esper_view *x, const esper_view *w, const esper_view *y, int pad, int groups)
{
    assert(x->rank == 3 && w->rank == 4 && y->rank == 3);
    assert(groups > 0 && pad >= 0);
    assert(w->dim[1] * groups == x->dim[0] && w->dim[0] % groups == 0);
    assert(w->dim[2] == w->dim[3]);
    assert(y->dim[0] == w->dim[0]);
    assert(y->dim[1] > 0 && y->dim[1] == x->dim[1] + 2 * pad - w->dim[2] + 1);
    assert(y->dim[2] > 0 && y->dim[2] == x->dim[2] + 2 * pad - w->dim[3] + 1);
}

/* params: scale, shift, running mean and variance of C channels; stats: mean and 1/std of the batch. */
static void assert_batch_norm(const esper_view *params, const esper_view *stats, int64_t C, float eps, float momentum)
{
    for (int i = 0; i < 4; i++)
        assert(params[i].count == C);
    for (int i = 0; i < 2; i++)
        assert(stats[i].count == C);
    assert(eps > 0.0f && momentum >= 0.0f && momentum <= 1.0f);
}

static void assert_lstm(const esper_view *in, const esper_view *out)
{
    int64_t T = in[0].dim[0], H = in[3].count;

    assert(in[0].rank == 2 && in[0].dim[1] == 4 * H);
    assert(in[1].count == 4 * H * H && in[2].count == 4 * H);
    assert(in[4].count == H && in[5].count == T);
    assert(out[0].count == T * H && out[1].count == T * H && out[2].count == T * 4 * H);
}

/* Flat work: parameters with gradients, moments beside them, a norm. */
static void assert_flat(esper_op_kind kind, const esper_lane *lane)
{
    int64_t n = lane->in[0].count;

    assert(n > 0 && lane->in[0].grad != NULL);
    if (kind == ESPER_OP_GRAD_NORM) {
        assert(lane->out[0].data != NULL && lane->out[1].data != NULL);
        assert(lane->out[1].count == (n + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK);
        return;
    }
    assert(lane->in[1].data != NULL && lane->in[1].count == n);
    assert(kind != ESPER_OP_ADAMW || (lane->in[2].data != NULL && lane->in[2].count == n));
}

void esper_assert_shapes(esper_op_kind kind, const esper_lane *lane)
{
    const esper_view *in = lane->in, *out = lane->out, *x = &in[0], *y = &out[0];
    const esper_attr *attr = &lane->attr;

    switch (kind) {
    case ESPER_OP_CONV2D:
        assert_conv(x, &in[1], y, attr->conv.pad, attr->conv.groups);
        break;
    case ESPER_OP_CONV_NORM:
        assert_conv(x, &in[1], &out[1], attr->conv_norm.pad, attr->conv_norm.groups);
        assert_batch_norm(&in[2], &out[2], in[1].dim[0], attr->conv_norm.eps, attr->conv_norm.momentum);
        assert(y->dim[0] == out[1].dim[0]);
        assert(y->dim[1] == out[1].dim[1] >> attr->conv_norm.pool &&
               y->dim[2] == out[1].dim[2] >> attr->conv_norm.pool);
        break;
    case ESPER_OP_BATCH_NORM:
        assert(x->rank == 3 && is_like(x, y));
        assert_batch_norm(&in[1], &out[1], x->dim[0], attr->norm.eps, attr->norm.momentum);
        break;
    case ESPER_OP_GROUP_NORM:
        assert(x->rank == 3 && is_like(x, y));
        assert(attr->norm.groups > 0 && x->dim[0] % attr->norm.groups == 0 && attr->norm.eps > 0.0f);
        assert(in[1].count == x->dim[0] && in[2].count == x->dim[0]);
        assert(out[1].count == 2 * (int64_t)attr->norm.groups);
        break;
    case ESPER_OP_LAYER_NORM:
        assert(is_like(x, y) && in[1].count > 0 && in[2].count == in[1].count && attr->norm.eps > 0.0f);
        assert(x->count % in[1].count == 0 && out[1].count == 2 * (x->count / in[1].count));
        break;
    case ESPER_OP_RELU:
    case ESPER_OP_GELU:
    case ESPER_OP_SIGMOID:
    case ESPER_OP_TANH:
    case ESPER_OP_PACK:
    case ESPER_OP_UNPACK:
        assert(is_like(x, y));
        break;
    case ESPER_OP_DROPOUT:
        assert(is_like(x, y) && is_share(attr->dropout.drop));
        break;
    case ESPER_OP_MAX_POOL:
        assert(x->rank == 3 && y->dim[0] == x->dim[0]);
        assert(y->dim[1] == x->dim[1] / 2 && y->dim[2] == x->dim[2] / 2);
        break;
    case ESPER_OP_GLOBAL_MEAN:
        assert(y->count == (x->rank == 3 ? x->dim[0] : x->dim[1]));
        break;
    case ESPER_OP_LINEAR:
        assert(in[1].rank == 2 && in[1].dim[0] > 0 && in[1].dim[1] > 0);
        assert(x->count % in[1].dim[1] == 0 && x->count / in[1].dim[1] * in[1].dim[0] == y->count);
        assert(in[2].data == NULL || in[2].count == in[1].dim[0]); /* it may be left out */
        break;
    case ESPER_OP_EMBEDDING:
        assert(in[1].rank == 2 && y->count == x->count * in[1].dim[1]);
        assert(in[2].data == NULL || (in[2].dim[1] == in[1].dim[1] && in[2].dim[0] >= x->count));
        break;
    case ESPER_OP_ATTENTION:
        assert(x->rank == 2 && x->count == 3 * y->count && is_share(attr->attention.drop));
        assert(attr->attention.heads > 0 && y->dim[1] % attr->attention.heads == 0);
        assert(out[1].count == (int64_t)attr->attention.heads * x->dim[0] * x->dim[0]);
        break;
    case ESPER_OP_ADD:
    case ESPER_OP_STRAIGHT_THROUGH:
        assert(is_like(x, y) && is_like(&in[1], y));
        break;
    case ESPER_OP_MUL:
        assert(is_like(x, y) && (is_like(&in[1], y) || in[1].count == x->dim[0]));
        break;
    case ESPER_OP_CHANNEL_SCALE:
        assert(is_like(x, y) && in[1].count == x->dim[0]);
        break;
    case ESPER_OP_MIX_TANH:
        assert(is_like(x, y) && is_like(&in[1], y) && in[2].count == 1);
        break;
    case ESPER_OP_SOFTMAX_XENT:
        assert(in[1].count > 0 && x->count % in[1].count == 0); /* a row of logits for each target */
        assert(out[0].count == 1 && out[1].count == 1 && out[2].count == in[1].count);
        break;
    case ESPER_OP_BLEND_ADD:
        assert(is_like(x, y) && is_like(&in[1], y) && in[2].count == 1);
        break;
    case ESPER_OP_BLEND_MUL:
        assert(is_like(x, y) && is_like(&in[1], y) && is_like(&in[2], y) && in[3].count == 1);
        break;
    case ESPER_OP_BLEND_GATE:
        assert(is_like(x, y) && is_like(&in[1], y) && in[2].count == 1 && in[3].count == 1);
        break;
    case ESPER_OP_LSTM:
        assert_lstm(in, out);
        break;
    case ESPER_OP_CONCAT:
        assert(y->count == x->count + in[1].count);
        assert(x->count % y->dim[0] == 0 && in[1].count % y->dim[0] == 0);
        break;
    case ESPER_OP_ADD_ROWS:
        assert(is_like(x, y) && in[1].dim[1] == y->dim[1] && y->dim[0] % in[1].dim[0] == 0);
        break;
    case ESPER_OP_POOL_ROWS:
        assert(x->rank == 2 && y->dim[1] == 2 * x->dim[1] && x->dim[0] % y->dim[0] == 0);
        assert(in[1].count == x->dim[0]);
        break;
    case ESPER_OP_GRAD_NORM:
    case ESPER_OP_SGD:
    case ESPER_OP_ADAMW:
        assert_flat(kind, lane);
        break;
    default: /* isolate is no work and is never launched */
        assert(kind != ESPER_OP_ISOLATE);
        break;
    }
}
#endif
