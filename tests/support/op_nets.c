/* A small network for every operation. */
#include "support/op_nets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static int image(esper_net *net)
{
    return net->input = esper_net_input(net, "pixels", ESPER_F32, 3, (int[]){4, 7, 5});
}

static int rows(esper_net *net, int width)
{
    return net->input = esper_net_input(net, "rows", ESPER_F32, 2, (int[]){5, width});
}

static int param(esper_net *net, const char *name, int n)
{
    return esper_net_param(net, name, 1, &n, (esper_init){ESPER_INIT_NORMAL, 0.5f});
}

static int matrix(esper_net *net, const char *name, int height, int width)
{
    return esper_net_param(net, name, 2, (int[]){height, width}, (esper_init){ESPER_INIT_NORMAL, 0.5f});
}

static int alpha(esper_net *net)
{
    int one = 1;

    return esper_net_input(net, "alpha", ESPER_F32, 1, &one);
}

static int conv2d(esper_net *net)
{
    int x = image(net);

    return esper_net_conv2d(
        net, x, esper_net_param(net, "w", 4, (int[]){6, 2, 3, 3}, (esper_init){ESPER_INIT_NORMAL, 0.5f}), 2, 2);
}

static int batch_norm(esper_net *net)
{
    int x = image(net), four = 4, scale = param(net, "bn.scale", 4), shift = param(net, "bn.shift", 4);
    int mean = esper_net_buffer(net, "bn.mean", 1, &four, 0.25f), var = esper_net_buffer(net, "var", 1, &four, 2.0f);

    return esper_net_batch_norm(net, x, scale, shift, mean, var, 1e-3f, 0.2f);
}

static int group_norm(esper_net *net)
{
    int x = image(net);

    return esper_net_group_norm(net, x, param(net, "scale", 4), param(net, "shift", 4), 2, 1e-3f);
}

static int layer_norm(esper_net *net)
{
    int x = rows(net, 6);

    return esper_net_layer_norm(net, x, param(net, "scale", 6), param(net, "shift", 6), 1e-3f);
}

static int relu(esper_net *net)
{
    return esper_net_relu(net, image(net));
}

static int gelu(esper_net *net)
{
    return esper_net_gelu(net, image(net));
}

static int sigmoid(esper_net *net)
{
    return esper_net_sigmoid(net, image(net));
}

static int hyperbolic_tangent(esper_net *net)
{
    return esper_net_tanh(net, image(net));
}

static int max_pool(esper_net *net)
{
    return esper_net_max_pool(net, image(net));
}

static int global_mean(esper_net *net)
{
    return esper_net_global_mean(net, rows(net, 6));
}

static int linear(esper_net *net)
{
    int x = rows(net, 6);

    return esper_net_linear(net, x, matrix(net, "dense.w", 3, 6), param(net, "dense.b", 3));
}

static int embedding(esper_net *net)
{
    int five = 5, ids = net->input = esper_net_input(net, "ids", ESPER_I32, 1, &five);

    return esper_net_embedding(net, ids, matrix(net, "words", 11, 4), matrix(net, "places", 7, 4));
}

static int attention(esper_net *net)
{
    return esper_net_attention(net, rows(net, 12), 2, 0.1f);
}

static int dropout(esper_net *net)
{
    return esper_net_dropout(net, rows(net, 6), 0.5f);
}

static int add(esper_net *net)
{
    int x = image(net);

    return esper_net_add(net, esper_net_relu(net, x), x);
}

static int mul(esper_net *net)
{
    int x = image(net);

    return esper_net_mul(net, x, esper_net_sigmoid(net, x));
}

static int channel_scale(esper_net *net)
{
    int x = image(net);

    return esper_net_channel_scale(net, x, param(net, "s", 4));
}

static int mix_tanh(esper_net *net)
{
    int x = image(net);

    return esper_net_mix_tanh(net, x, esper_net_relu(net, x), param(net, "mix", 1));
}

static int softmax_xent(esper_net *net)
{
    int y = esper_net_tanh(net, rows(net, 6)), five = 5;

    net->target = esper_net_input(net, "targets", ESPER_I32, 1, &five);
    esper_net_softmax_xent(net, y, net->target);
    return y;
}

static int isolate(esper_net *net)
{
    int x = image(net);

    return esper_net_add(net, esper_net_isolate(net, esper_net_relu(net, x)), x);
}

static int straight_through(esper_net *net)
{
    int x = esper_net_tanh(net, image(net));

    return esper_net_straight_through(net, x, esper_net_relu(net, x));
}

static int blend_add(esper_net *net)
{
    int x = esper_net_tanh(net, image(net));

    return esper_net_blend_add(net, x, esper_net_relu(net, x), alpha(net));
}

static int blend_mul(esper_net *net)
{
    int x = image(net), h = esper_net_tanh(net, x);

    return esper_net_blend_mul(net, h, esper_net_relu(net, x), x, alpha(net));
}

/* The gate is not squashed: it must be clamped. */
static int blend_gate(esper_net *net)
{
    int x = image(net),
        gate = esper_net_linear(net, esper_net_global_mean(net, x), matrix(net, "gate", 1, 4), ESPER_NO_TENSOR);

    return esper_net_blend_gate(net, x, esper_net_relu(net, x), gate, alpha(net));
}

/* Some of the resets are 0, some are not. */
static int lstm(esper_net *net)
{
    int x = rows(net, 6), mean = esper_net_global_mean(net, x);
    esper_net_lstm_in in = {.gates = esper_net_linear(net, x, matrix(net, "cell.in", 12, 6), ESPER_NO_TENSOR)};

    in.weight = matrix(net, "cell.w", 12, 3);
    in.bias = param(net, "cell.b", 12);
    in.h = esper_net_tanh(net, esper_net_linear(net, mean, matrix(net, "h", 3, 6), ESPER_NO_TENSOR));
    in.c = esper_net_linear(net, mean, matrix(net, "c", 3, 6), ESPER_NO_TENSOR);
    in.reset = esper_net_relu(net, esper_net_linear(net, mean, matrix(net, "reset", 5, 6), ESPER_NO_TENSOR));
    return esper_net_lstm(net, in, NULL);
}

static int concat(esper_net *net)
{
    int x = rows(net, 6);

    return esper_net_concat(net, x, esper_net_tanh(net, x));
}

/* NULL: not part of a network. A kind that is not in the list stops the test. */
static const struct {
    bool known;
    int (*build)(esper_net *net);
} nets[ESPER_N_OPS] = {
    [ESPER_OP_CONV2D] = {true, conv2d},
    [ESPER_OP_BATCH_NORM] = {true, batch_norm},
    [ESPER_OP_GROUP_NORM] = {true, group_norm},
    [ESPER_OP_LAYER_NORM] = {true, layer_norm},
    [ESPER_OP_RELU] = {true, relu},
    [ESPER_OP_GELU] = {true, gelu},
    [ESPER_OP_SIGMOID] = {true, sigmoid},
    [ESPER_OP_TANH] = {true, hyperbolic_tangent},
    [ESPER_OP_MAX_POOL] = {true, max_pool},
    [ESPER_OP_GLOBAL_MEAN] = {true, global_mean},
    [ESPER_OP_LINEAR] = {true, linear},
    [ESPER_OP_EMBEDDING] = {true, embedding},
    [ESPER_OP_ATTENTION] = {true, attention},
    [ESPER_OP_DROPOUT] = {true, dropout},
    [ESPER_OP_ADD] = {true, add},
    [ESPER_OP_MUL] = {true, mul},
    [ESPER_OP_CHANNEL_SCALE] = {true, channel_scale},
    [ESPER_OP_MIX_TANH] = {true, mix_tanh},
    [ESPER_OP_SOFTMAX_XENT] = {true, softmax_xent},
    [ESPER_OP_ISOLATE] = {true, isolate},
    [ESPER_OP_STRAIGHT_THROUGH] = {true, straight_through},
    [ESPER_OP_BLEND_ADD] = {true, blend_add},
    [ESPER_OP_BLEND_MUL] = {true, blend_mul},
    [ESPER_OP_BLEND_GATE] = {true, blend_gate},
    [ESPER_OP_LSTM] = {true, lstm},
    [ESPER_OP_CONCAT] = {true, concat},
    [ESPER_OP_ADD_ROWS] = {true, NULL}, /* in policies alone, which nobody exports */
    [ESPER_OP_POOL_ROWS] = {true, NULL},
    [ESPER_OP_GRAD_NORM] = {true, NULL},
    [ESPER_OP_SGD] = {true, NULL},
    [ESPER_OP_ADAMW] = {true, NULL},
};

bool op_net_build(esper_net *net, esper_op_kind kind)
{
    if (!nets[kind].known)
        fail_msg("tests/support/op_nets.c has no network with the operation %s", esper_op_info_of(kind)->name);
    if (nets[kind].build == NULL)
        return false;
    esper_net_init(net);
    net->output = nets[kind].build(net);
    if (esper_net_status(net) != ESPER_OK)
        fail_msg("%s: %s", esper_op_info_of(kind)->name, esper_last_error());
    return true;
}
