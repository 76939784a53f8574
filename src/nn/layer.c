/* Layers with their parameters. Weights are born U(-b,b) with b = 1/sqrt(fan in), norms as scale 1 and shift 0. */
#include "nn/layer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *join(char *buffer, const char *layer, const char *what)
{
    snprintf(buffer, ESPER_NAME_CHARS, "%s.%s", layer, what);
    return buffer;
}

static esper_init uniform_for(int fan_in)
{
    assert(fan_in > 0);
    return (esper_init){ESPER_INIT_UNIFORM, 1.0f / sqrtf((float)fan_in)};
}

static esper_init constant(float value)
{
    return (esper_init){ESPER_INIT_CONSTANT, value};
}

int esper_layer_conv(esper_net *net, const char *name, int x, esper_conv conv)
{
    return esper_layer_conv_born(net, name, x, conv, 1.0f);
}

int esper_layer_conv_born(esper_net *net, const char *name, int x, esper_conv conv, float times)
{
    char full[ESPER_NAME_CHARS];
    int per_group = conv.in / conv.groups;
    int dim[4] = {conv.out, per_group, conv.kernel, conv.kernel};
    esper_init init = uniform_for(per_group * conv.kernel * conv.kernel);
    int weight;

    init.value *= times;
    weight = esper_net_param(net, join(full, name, "weight"), 4, dim, times == 0.0f ? constant(0.0f) : init);
    assert(conv.groups > 0 && conv.in % conv.groups == 0 && conv.out % conv.groups == 0 && conv.kernel % 2 == 1);
    return esper_net_conv2d(net, x, weight, conv.kernel / 2, conv.groups);
}

/* Scale and shift of a norm over `n` channels. */
static void norm_params(esper_net *net, const char *name, int n, float value, int *scale_out, int *shift_out)
{
    char full[ESPER_NAME_CHARS];

    *scale_out = esper_net_param(net, join(full, name, "weight"), 1, &n, constant(value));
    *shift_out = esper_net_param(net, join(full, name, "bias"), 1, &n, constant(0.0f));
}

/* Dimension `i` of x, from the last one where it is negative; 1 when building has already failed, which keeps the net's first mistake the only one. */
static int dim_of(const esper_net *net, int x, int i)
{
    if (x == ESPER_NO_TENSOR)
        return 1;
    assert(x >= 0 && x < net->n_tensors && i < net->tensors[x].rank && i >= -net->tensors[x].rank);
    return net->tensors[x].dim[i < 0 ? net->tensors[x].rank + i : i];
}

int esper_layer_batch_norm(esper_net *net, const char *name, int x, float scale)
{
    char full[ESPER_NAME_CHARS];
    int channels = dim_of(net, x, 0), weight, shift, mean, var;

    norm_params(net, name, channels, scale, &weight, &shift);
    mean = esper_net_buffer(net, join(full, name, "running_mean"), 1, &channels, 0.0f);
    var = esper_net_buffer(net, join(full, name, "running_var"), 1, &channels, 1.0f);
    return esper_net_batch_norm(net, x, weight, shift, mean, var, ESPER_NORM_EPS, ESPER_NORM_MOMENTUM);
}

int esper_layer_group_norm(esper_net *net, const char *name, int x)
{
    int channels = dim_of(net, x, 0), scale, shift;

    norm_params(net, name, channels, 1.0f, &scale, &shift);
    return esper_net_group_norm(net, x, scale, shift, esper_group_norm_groups(channels), ESPER_NORM_EPS);
}

int esper_layer_layer_norm(esper_net *net, const char *name, int x)
{
    int scale, shift;

    norm_params(net, name, dim_of(net, x, -1), 1.0f, &scale, &shift);
    return esper_net_layer_norm(net, x, scale, shift, ESPER_NORM_EPS);
}

int esper_layer_linear(esper_net *net, const char *name, int x, esper_linear linear)
{
    char full[ESPER_NAME_CHARS];
    int dim[2] = {linear.out, linear.in}, bias = ESPER_NO_TENSOR;
    esper_init init = uniform_for(linear.in);
    int weight;

    if (linear.shrink != 0.0f)
        init.value *= linear.shrink;
    weight = esper_net_param(net, join(full, name, "weight"), 2, dim, linear.zero ? constant(0.0f) : init);
    if (linear.bias)
        bias = esper_net_param(net, join(full, name, "bias"), 1, &linear.out,
                               linear.zero ? constant(linear.bias_value) : init);
    return esper_net_linear(net, x, weight, bias);
}

int esper_layer_transformer(esper_net *net, const char *prefix, int x, esper_transformer layer)
{
    int d = dim_of(net, x, 1), y;
    esper_linear in = {.in = d, .out = 3 * d, .bias = true};
    esper_linear back = {.in = d, .out = d, .bias = true, .zero = layer.zero, .shrink = layer.shrink};
    char name[ESPER_NAME_CHARS];

#define NAMED(what) (snprintf(name, sizeof(name), "%s%s", prefix, what), name)
    y = esper_layer_layer_norm(net, NAMED("ln1"), x);
    y = esper_layer_linear(net, NAMED("attn.c_attn"), y, in);
    y = esper_net_attention(net, y, layer.heads, layer.dropout);
    y = esper_layer_linear(net, NAMED("attn.c_proj"), y, back);
    x = esper_net_add(net, x, esper_net_dropout(net, y, layer.dropout));
    in.out = back.in = 4 * d;
    y = esper_layer_layer_norm(net, NAMED("ln2"), x);
    y = esper_net_gelu(net, esper_layer_linear(net, NAMED("mlp.c_fc"), y, in));
    y = esper_layer_linear(net, NAMED("mlp.c_proj"), y, back);
#undef NAMED
    return esper_net_add(net, x, esper_net_dropout(net, y, layer.dropout));
}

int esper_group_norm_groups(int channels)
{
    assert(channels > 0);
    for (int groups = 32; groups > 1; groups /= 2)
        if (channels % groups == 0 && channels / groups >= 16)
            return groups;
    if (channels >= 16) /* one group of all its channels, which are at least 16 */
        return 1;
    for (int groups = 8; groups > 1; groups /= 2)
        if (channels % groups == 0)
            return groups;
    return 1;
}
