/* The operations of a net: each checks the shapes of what it reads and appends itself. */
#include "base/status.h"
#include "tensor/net_build.h"

/* Random streams for dropout (12 bits, base/rng.h). Every region has its own: what grows in a slot leaves the host's as
 * they were. A stream serves so many elements of a sample. */
enum { HOST_TAGS = 2048, SLOT_TAGS = 64, MAX_DROP_COUNT = 1 << 22 };
_Static_assert(HOST_TAGS + (ESPER_MAX_REGIONS - 1) * SLOT_TAGS <= 1 << 12, "a tag has 12 bits");

/* What a layer needs of its inputs, or the net's first mistake. */
#define NEED(...)                                \
    do {                                         \
        if (!esper_net_require(net, __VA_ARGS__)) \
            return ESPER_NO_TENSOR;              \
    } while (0)

int esper_net_conv2d(esper_net *net, int x, int weight, int pad, int groups)
{
    const esper_tensor *in = esper_net_get(net, x), *w = esper_net_get(net, weight);
    int id;

    NEED(in != NULL && w != NULL && in->rank == 3 && w->rank == 4, "conv2d", "needs x (C,H,W) and w (O,C,k,k)");
    NEED(w->dim[2] == w->dim[3] && pad >= 0, "conv2d", "needs a square kernel, and padding of 0 or more");
    NEED(groups > 0 && in->dim[0] == w->dim[1] * groups && w->dim[0] % groups == 0, "conv2d",
         "channels and groups do not fit the weights");
    id = esper_net_push_op(
        net, ESPER_OP_CONV2D, (int[]){x, weight}, 3,
        (int[]){w->dim[0], in->dim[1] + 2 * pad - w->dim[2] + 1, in->dim[2] + 2 * pad - w->dim[3] + 1});
    if (id != ESPER_NO_TENSOR) {
        esper_net_last_op(net)->attr.conv.pad = pad;
        esper_net_last_op(net)->attr.conv.groups = groups;
    }
    return id;
}

int esper_net_batch_norm(esper_net *net, int x, int scale, int shift, int mean, int var, float eps, float momentum)
{
    const esper_tensor *in = esper_net_get(net, x);
    int channels, id;

    NEED(in != NULL && in->rank == 3 && esper_net_is_vector(net, scale, in->dim[0]) &&
             esper_net_is_vector(net, shift, in->dim[0]) && esper_net_is_vector(net, mean, in->dim[0]) &&
             esper_net_is_vector(net, var, in->dim[0]),
         "batch_norm", "needs x (C,H,W) and four vectors of C");
    channels = in->dim[0];
    id = esper_net_push_op(net, ESPER_OP_BATCH_NORM, (int[]){x, scale, shift, mean, var}, 3, in->dim);
    esper_net_push_extra_out(net, 1, false, 1, &channels);
    esper_net_push_extra_out(net, 2, false, 1, &channels);
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    esper_net_last_op(net)->attr.norm.eps = eps;
    esper_net_last_op(net)->attr.norm.momentum = momentum;
    return id;
}

int esper_net_group_norm(esper_net *net, int x, int scale, int shift, int groups, float eps)
{
    const esper_tensor *in = esper_net_get(net, x);
    int id;

    NEED(in != NULL && in->rank == 3 && groups > 0 && in->dim[0] % groups == 0 &&
             esper_net_is_vector(net, scale, in->dim[0]) && esper_net_is_vector(net, shift, in->dim[0]),
         "group_norm", "needs x (C,H,W), two vectors of C, and groups that divide C");
    id = esper_net_push_op(net, ESPER_OP_GROUP_NORM, (int[]){x, scale, shift}, 3, in->dim);
    esper_net_push_extra_out(net, 1, true, 2, (int[]){groups, 2});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    esper_net_last_op(net)->attr.norm.groups = groups;
    esper_net_last_op(net)->attr.norm.eps = eps;
    return id;
}

int esper_net_layer_norm(esper_net *net, int x, int scale, int shift, float eps)
{
    const esper_tensor *in = esper_net_get(net, x);
    int rows, id;

    NEED(in != NULL && esper_net_is_vector(net, scale, in->dim[in->rank - 1]) &&
             esper_net_is_vector(net, shift, in->dim[in->rank - 1]),
         "layer_norm", "needs x (..,D) and two vectors of D");
    rows = (int)(in->count / in->dim[in->rank - 1]);
    id = esper_net_push_op(net, ESPER_OP_LAYER_NORM, (int[]){x, scale, shift}, in->rank, in->dim);
    esper_net_push_extra_out(net, 1, true, 2, (int[]){rows, 2});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    esper_net_last_op(net)->attr.norm.eps = eps;
    return id;
}

/* An operation whose output is like its first input. */
static int push_like(esper_net *net, esper_op_kind kind, const int *in)
{
    const esper_tensor *first = esper_net_get(net, in[0]);

    NEED(first != NULL, esper_op_info_of(kind)->name, "has no input");
    return esper_net_push_op(net, kind, in, first->rank, first->dim);
}

int esper_net_relu(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_RELU, &x);
}

int esper_net_gelu(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_GELU, &x);
}

int esper_net_sigmoid(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_SIGMOID, &x);
}

int esper_net_tanh(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_TANH, &x);
}

int esper_net_max_pool(esper_net *net, int x)
{
    const esper_tensor *in = esper_net_get(net, x);

    NEED(in != NULL && in->rank == 3, "max_pool", "needs x (C,H,W)");
    NEED(in->dim[1] >= 2 && in->dim[2] >= 2, "max_pool", "the map is too small: use fewer pools");
    return esper_net_push_op(net, ESPER_OP_MAX_POOL, &x, 3, (int[]){in->dim[0], in->dim[1] / 2, in->dim[2] / 2});
}

int esper_net_global_mean(esper_net *net, int x)
{
    const esper_tensor *in = esper_net_get(net, x);

    NEED(in != NULL && (in->rank == 2 || in->rank == 3), "global_mean", "needs x (C,H,W) or (T,D)");
    return esper_net_push_op(net, ESPER_OP_GLOBAL_MEAN, &x, 1, in->rank == 3 ? &in->dim[0] : &in->dim[1]);
}

int esper_net_linear(esper_net *net, int x, int weight, int bias)
{
    const esper_tensor *in = esper_net_get(net, x), *w = esper_net_get(net, weight);
    int dim[ESPER_MAX_RANK];

    NEED(in != NULL && w != NULL && w->rank == 2 && in->dim[in->rank - 1] == w->dim[1], "linear",
         "needs x (..,I) and w (O,I)");
    NEED(bias == ESPER_NO_TENSOR || esper_net_is_vector(net, bias, w->dim[0]), "linear", "needs a bias of O");
    memcpy(dim, in->dim, sizeof(dim));
    dim[in->rank - 1] = w->dim[0];
    return esper_net_push_op(net, ESPER_OP_LINEAR, (int[]){x, weight, bias}, in->rank, dim);
}

int esper_net_embedding(esper_net *net, int ids, int tokens, int positions)
{
    const esper_tensor *id = esper_net_get(net, ids), *tok = esper_net_get(net, tokens),
                       *pos = esper_net_get(net, positions);
    bool placed = positions != ESPER_NO_TENSOR;

    NEED(id != NULL && tok != NULL && id->rank == 1 && tok->rank == 2 &&
             (!placed || (pos != NULL && pos->rank == 2 && tok->dim[1] == pos->dim[1])),
         "embedding", "needs ids (T), tokens (V,D), positions (P,D) or none");
    if (placed && id->dim[0] > pos->dim[0]) {
        net->status =
            ESPER_FAIL(ESPER_E_ARG, "sequence of %d tokens, but there are only %d positions", id->dim[0], pos->dim[0]);
        return ESPER_NO_TENSOR;
    }
    return esper_net_push_op(net, ESPER_OP_EMBEDDING, (int[]){ids, tokens, positions}, 2,
                             (int[]){id->dim[0], tok->dim[1]});
}

/* The number of a random stream for a dropout over `count` elements of a sample. */
static uint32_t take_tag(esper_net *net, const char *op, float drop, int64_t count)
{
    int region = net->region;
    uint32_t first = region == 0 ? 0 : (uint32_t)(HOST_TAGS + (region - 1) * SLOT_TAGS);

    if (!esper_net_require(net, drop > 0.0f && drop < 1.0f, op, "the share to drop is not in [0, 1)") ||
        !esper_net_require(net, count <= MAX_DROP_COUNT, op, "a sample has more than 2^22 elements to drop") ||
        !esper_net_require(net, net->n_tags[region] < (region == 0 ? HOST_TAGS : SLOT_TAGS), op,
                           "too many dropouts in one region"))
        return 0;
    return first + net->n_tags[region]++;
}

int esper_net_attention(esper_net *net, int qkv, int heads, float drop)
{
    const esper_tensor *in = esper_net_get(net, qkv);
    uint32_t tag = 0;
    int tokens, id;

    NEED(in != NULL && in->rank == 2 && heads > 0 && in->dim[1] % (3 * heads) == 0, "attention",
         "needs qkv (T,3D) with D divisible by the number of heads");
    tokens = in->dim[0];
    if (drop != 0.0f)
        tag = take_tag(net, "attention", drop, (int64_t)heads * tokens * tokens);
    id = esper_net_push_op(net, ESPER_OP_ATTENTION, &qkv, 2, (int[]){tokens, in->dim[1] / 3});
    esper_net_push_extra_out(net, 1, true, 3, (int[]){heads, tokens, tokens});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    esper_net_last_op(net)->attr.attention.heads = heads;
    esper_net_last_op(net)->attr.attention.drop = drop;
    esper_net_last_op(net)->attr.attention.tag = tag;
    return id;
}

int esper_net_dropout(esper_net *net, int x, float drop)
{
    const esper_tensor *in = esper_net_get(net, x);
    uint32_t tag;
    int id;

    if (drop == 0.0f)
        return x;
    tag = take_tag(net, "dropout", drop, in != NULL ? in->count : 0);
    id = push_like(net, ESPER_OP_DROPOUT, &x);
    if (id != ESPER_NO_TENSOR) {
        esper_net_last_op(net)->attr.dropout.drop = drop;
        esper_net_last_op(net)->attr.dropout.tag = tag;
    }
    return id;
}

/* Two inputs of one shape. */
static int push_pair(esper_net *net, esper_op_kind kind, const int *in)
{
    const esper_tensor *a = esper_net_get(net, in[0]), *b = esper_net_get(net, in[1]);

    NEED(a != NULL && b != NULL && esper_tensor_same_shape(a, b), esper_op_info_of(kind)->name,
         "needs two tensors of one shape");
    return push_like(net, kind, in);
}

int esper_net_add(esper_net *net, int a, int b)
{
    return push_pair(net, ESPER_OP_ADD, (int[]){a, b});
}

int esper_net_mul(esper_net *net, int a, int b)
{
    const esper_tensor *left = esper_net_get(net, a), *right = esper_net_get(net, b);

    NEED(left != NULL && right != NULL &&
             (esper_tensor_same_shape(left, right) || (left->rank == 3 && esper_net_is_vector(net, b, left->dim[0]))),
         "mul", "needs b like a, or a (C,H,W) and b (C)");
    return push_like(net, ESPER_OP_MUL, (int[]){a, b});
}

int esper_net_channel_scale(esper_net *net, int x, int scale)
{
    const esper_tensor *in = esper_net_get(net, x);

    NEED(in != NULL && in->rank == 3 && esper_net_is_vector(net, scale, in->dim[0]), "channel_scale",
         "needs x (C,H,W) and a vector of C");
    return push_like(net, ESPER_OP_CHANNEL_SCALE, (int[]){x, scale});
}

int esper_net_mix_tanh(esper_net *net, int x, int z, int weight)
{
    NEED(esper_net_is_vector(net, weight, 1), "mix_tanh", "needs one weight");
    return push_pair(net, ESPER_OP_MIX_TANH, (int[]){x, z, weight});
}

int esper_net_softmax_xent(esper_net *net, int logits, int target)
{
    const esper_tensor *in = esper_net_get(net, logits), *want = esper_net_get(net, target);
    int one = 1, rows, id;

    NEED(in != NULL && want != NULL && want->dtype == ESPER_I32 && want->count == in->count / in->dim[in->rank - 1],
         "softmax_xent", "needs logits (rows,V) and a target for each row");
    rows = (int)want->count;
    id = esper_net_push_op(net, ESPER_OP_SOFTMAX_XENT, (int[]){logits, target}, 1, &one);
    esper_net_push_extra_out(net, 1, true, 1, &one);
    esper_net_push_extra_out(net, 2, true, 1, &rows);
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    net->loss = id;
    net->correct = esper_net_last_op(net)->out[1];
    net->tensors[net->loss].keep = net->tensors[net->correct].keep = true;
    return id;
}

int esper_net_isolate(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_ISOLATE, &x);
}

int esper_net_straight_through(esper_net *net, int h, int s)
{
    return push_pair(net, ESPER_OP_STRAIGHT_THROUGH, (int[]){h, s});
}

int esper_net_blend_add(esper_net *net, int h, int s, int alpha)
{
    NEED(esper_net_is_vector(net, alpha, 1), "blend_add", "needs one alpha for each sample");
    return push_pair(net, ESPER_OP_BLEND_ADD, (int[]){h, s, alpha});
}

int esper_net_blend_mul(esper_net *net, int h, int s, int u, int alpha)
{
    const esper_tensor *host = esper_net_get(net, h), *seen = esper_net_get(net, u);

    NEED(esper_net_is_vector(net, alpha, 1), "blend_mul", "needs one alpha for each sample");
    NEED(host != NULL && seen != NULL && esper_tensor_same_shape(host, seen), "blend_mul",
         "needs h, s and u of one shape");
    return push_pair(net, ESPER_OP_BLEND_MUL, (int[]){h, s, u, alpha});
}

int esper_net_blend_gate(esper_net *net, int h, int s, int gate, int alpha)
{
    NEED(esper_net_is_vector(net, alpha, 1) && esper_net_is_vector(net, gate, 1), "blend_gate",
         "needs one gate value and one alpha for each sample");
    return push_pair(net, ESPER_OP_BLEND_GATE, (int[]){h, s, gate, alpha});
}

int esper_net_lstm(esper_net *net, esper_net_lstm_in in, int *cells_out)
{
    const esper_tensor *gates = esper_net_get(net, in.gates), *w = esper_net_get(net, in.weight);
    int T, H, id;

    NEED(gates != NULL && w != NULL && gates->rank == 2 && w->rank == 2, "lstm", "needs gates (T,4H) and w (4H,H)");
    T = gates->dim[0];
    H = w->dim[1];
    NEED(w->dim[0] == 4 * H && gates->dim[1] == 4 * H && esper_net_is_vector(net, in.bias, 4 * H), "lstm",
         "needs gates (T,4H), w (4H,H) and a bias of 4H");
    NEED(esper_net_is_vector(net, in.h, H) && esper_net_is_vector(net, in.c, H) &&
             esper_net_is_vector(net, in.reset, T),
         "lstm", "needs a state of H and H, and a reset for each step");
    id = esper_net_push_op(net, ESPER_OP_LSTM, (int[]){in.gates, in.weight, in.bias, in.h, in.c, in.reset}, 2,
                           (int[]){T, H});
    esper_net_push_extra_out(net, 1, true, 2, (int[]){T, H});
    esper_net_push_extra_out(net, 2, true, 2, (int[]){T, 4 * H});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    if (cells_out != NULL)
        *cells_out = esper_net_last_op(net)->out[1];
    return id;
}

int esper_net_concat(esper_net *net, int a, int b)
{
    const esper_tensor *left = esper_net_get(net, a), *right = esper_net_get(net, b);
    const int in[ESPER_OP_MAX_IN] = {a, b};
    int T;

    NEED(left != NULL && right != NULL && left->rank == 2 && right->count % left->dim[0] == 0, "concat",
         "needs a (T,A) and b with T rows");
    T = left->dim[0];
    return esper_net_push_op(net, ESPER_OP_CONCAT, in, 2, (int[]){T, left->dim[1] + (int)(right->count / T)});
}

int esper_net_add_rows(esper_net *net, int a, int b)
{
    const esper_tensor *rows = esper_net_get(net, a), *one = esper_net_get(net, b);

    NEED(rows != NULL && one != NULL && rows->rank == 2 && one->rank == 2 && rows->dim[1] == one->dim[1] &&
             rows->dim[0] % one->dim[0] == 0,
         "add_rows", "needs a (T S,D) and b (T,D)");
    return push_like(net, ESPER_OP_ADD_ROWS, (int[]){a, b});
}

int esper_net_pool_rows(esper_net *net, int x, int there, int groups)
{
    const esper_tensor *rows = esper_net_get(net, x);

    NEED(rows != NULL && rows->rank == 2 && groups > 0 && rows->dim[0] % groups == 0 &&
             esper_net_is_vector(net, there, rows->dim[0]),
         "pool_rows", "needs x (T S,D) and a number for each of its rows");
    return esper_net_push_op(net, ESPER_OP_POOL_ROWS, (int[]){x, there}, 2, (int[]){groups, 2 * rows->dim[1]});
}
