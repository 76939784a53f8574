/* The blueprints as programs. Listing order and policy numbers are contracts. */
#include "nn/blueprint.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "nn/host_build.h"
#include "nn/layer.h"

/* Channels of (C,H,W), width of (T,D) and (D). */
static int width_of(const esper_net *net, int x)
{
    assert(x == ESPER_NO_TENSOR || (x >= 0 && x < net->n_tensors));
    if (x == ESPER_NO_TENSOR)
        return 1;
    return net->tensors[x].dim[net->tensors[x].rank == 2 ? 1 : 0];
}

static int at_least(int least, int value)
{
    return value > least ? value : least;
}

/* What a seed's output is scaled by, where it is born otherwise than as its own blueprint says. */
static float scale_of(esper_birth birth, float own)
{
    return esper_birth_is_silent((int)birth) ? 0.0f : birth == ESPER_BIRTH_SMALL ? 0.1f : own;
}

/* ------------------------------------------------------------------------------------------------ shared */

static int build_noop(esper_net *net, int x, esper_blueprint_how how)
{
    (void)net;
    (void)how;
    return x;
}

/* y = x + tanh(w) (norm(x) - x), w born 0 */
static int build_norm(esper_net *net, int x, esper_blueprint_how how)
{
    int one = 1;
    int weight = esper_net_param(net, "scale", 1, &one, (esper_init){ESPER_INIT_CONSTANT, scale_of(how.birth, 0.0f)});
    bool is_cnn = x != ESPER_NO_TENSOR && net->tensors[x].rank == 3;
    int z = is_cnn ? esper_layer_group_norm(net, "norm", x) : esper_layer_layer_norm(net, "norm", x);

    return esper_net_mix_tanh(net, x, z, weight);
}

/* ------------------------------------------------------------------------------------------------ cnn */

/* Of the scale a seed ends in. What is born silent learns only as fast as its scale grows, which on a settled host takes a
 * thousand steps; what is born loud learns aside to be silent first, and its ReLUs may not come back. */
static const float scale_at_birth = 0.5f;

/* x + scale * y */
static int add_scaled(esper_net *net, int x, int y, esper_birth birth)
{
    int channels = width_of(net, x);
    int scale =
        esper_net_param(net, "scale", 1, &channels, (esper_init){ESPER_INIT_CONSTANT, scale_of(birth, scale_at_birth)});

    return esper_net_add(net, x, esper_net_channel_scale(net, y, scale));
}

/* relu(batch norm(conv k x k)) under the names <name>conv and <name>bn */
static int conv_block(esper_net *net, const char *name, int x, int kernel)
{
    char conv[ESPER_NAME_CHARS], norm[ESPER_NAME_CHARS];
    int channels = width_of(net, x);

    snprintf(conv, sizeof(conv), "%sconv", name);
    snprintf(norm, sizeof(norm), "%sbn", name);
    x = esper_layer_conv(net, conv, x, (esper_conv){channels, channels, kernel, 1});
    return esper_net_relu(net, esper_layer_batch_norm(net, norm, x, 1.0f));
}

/* Squeeze and excitation: a gate for each channel from the mean of all channels. */
static int build_cnn_attention(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = width_of(net, x), reduced = at_least(1, channels / 4);
    int z = esper_net_global_mean(net, x);

    z = esper_net_relu(net, esper_layer_linear(net, "fc.0", z, (esper_linear){.in = channels, .out = reduced}));
    z = esper_layer_linear(net, "fc.2", z,
                           (esper_linear){.in = reduced,
                                          .out = channels,
                                          .bias = true,
                                          .zero = true,
                                          .bias_value = how.blend == ESPER_BLEND_MULTIPLY ? 0.0f : 3.0f});
    return esper_net_mul(net, x, esper_net_sigmoid(net, z));
}

/* The norm's weight is its scale. Zeros before a norm would not do instead: it would bring them to full strength in one step. */
static int build_bottleneck(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = width_of(net, x), narrow = at_least(8, channels / 4), y;

    y = esper_net_relu(net, esper_layer_conv(net, "down", x, (esper_conv){channels, narrow, 1, 1}));
    y = esper_net_relu(net, esper_layer_conv(net, "conv", y, (esper_conv){narrow, narrow, 3, 1}));
    y = esper_layer_conv(net, "up", y, (esper_conv){narrow, channels, 1, 1});
    return esper_net_add(net, x, esper_layer_batch_norm(net, "bn", y, scale_of(how.birth, scale_at_birth)));
}

/* One block of convolution. */
static int build_conv(esper_net *net, int x, esper_blueprint_how how)
{
    return add_scaled(net, x, conv_block(net, how.size == 1 ? "" : "enhance.", x, how.size), how.birth);
}

static int build_depthwise(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = width_of(net, x), y;

    y = esper_layer_conv(net, "depthwise", x, (esper_conv){channels, channels, 3, channels});
    y = esper_layer_conv(net, "pointwise", y, (esper_conv){channels, channels, 1, 1});
    return add_scaled(net, x, esper_net_relu(net, esper_layer_batch_norm(net, "bn", y, 1.0f)), how.birth);
}

static int build_conv_heavy(esper_net *net, int x, esper_blueprint_how how)
{
    return add_scaled(net, x, conv_block(net, "enhance.1.", conv_block(net, "enhance.0.", x, 3), 3), how.birth);
}

/* Half as many new channels as the layer has: x, which the next layer has added up, and what it adds up of these. The last weights are
 * born as zeros. The norm is one of each channel, so these are the channels that a wider layer would have had; seeds behind the layer
 * do not see them. */
static int build_wide(esper_net *net, int x, esper_blueprint_how how)
{
    int channels, z;
    float shrink = scale_of(how.birth, 0.0f);

    channels = at_least(1, how.wide->channels / 2);
    z = esper_layer_conv(net, "conv", how.wide->source,
                         (esper_conv){width_of(net, how.wide->source), channels, how.wide->kernel, 1});
    z = esper_net_relu(net, esper_layer_batch_norm(net, "bn", z, 1.0f));
    for (int i = 0; i < how.wide->halvings; i++)
        z = esper_net_max_pool(net, z);
    if (how.wide->next > 0)
        z = esper_layer_conv_born(net, "out", z, (esper_conv){channels, width_of(net, x), how.wide->next, 1}, shrink);
    else
        z = esper_layer_linear(
            net, "out", esper_net_global_mean(net, z),
            (esper_linear){.in = channels, .out = width_of(net, x), .zero = shrink == 0.0f, .shrink = shrink});
    return esper_net_add(net, x, z);
}

/* ------------------------------------------------------------------------------------------------ transformer */

/* x + a linear layer of y, born as zeros unless it is to be small. */
static int add_linear(esper_net *net, int x, const char *name, int y, esper_linear linear, esper_birth birth)
{
    linear.out = width_of(net, x);
    linear.shrink = scale_of(birth, 0.0f);
    linear.zero = linear.shrink == 0.0f;

    return esper_net_add(net, x, esper_layer_linear(net, name, y, linear));
}

static int build_lora(esper_net *net, int x, esper_blueprint_how how)
{
    int d = width_of(net, x), rank = how.size;
    int y = esper_layer_linear(net, "down", x, (esper_linear){.in = d, .out = rank});

    return add_linear(net, x, "up", y, (esper_linear){.in = rank}, how.birth);
}

static int build_attention(esper_net *net, int x, esper_blueprint_how how)
{
    int d = width_of(net, x);
    int y = esper_layer_linear(net, "qkv", x, (esper_linear){.in = d, .out = 3 * d, .bias = true});

    y = esper_net_attention(net, y, how.size, 0.0f);
    return add_linear(net, x, "proj", y, (esper_linear){.in = d, .bias = true}, how.birth);
}

static int build_mlp(esper_net *net, int x, esper_blueprint_how how)
{
    int d = width_of(net, x), hidden = how.size * d;
    int y = esper_layer_linear(net, "fc1", x, (esper_linear){.in = d, .out = hidden, .bias = true});

    return add_linear(net, x, "fc2", esper_net_gelu(net, y), (esper_linear){.in = hidden, .bias = true}, how.birth);
}

/* One more of the host's own layers, under its names. */
static int build_layer(esper_net *net, int x, esper_blueprint_how how)
{
    return esper_layer_transformer(net, "", x,
                                   (esper_transformer){.heads = at_least(1, how.heads),
                                                       .dropout = how.dropout,
                                                       .zero = esper_birth_is_silent((int)how.birth),
                                                       .shrink = scale_of(how.birth, 1.0f)});
}

/* ------------------------------------------------------------------------------------------------ mlp */

/* x + a linear layer of value(x) sigmoid(gate(x)): what is passed on depends on what there is. */
static int build_glu(esper_net *net, int x, esper_blueprint_how how)
{
    int d = width_of(net, x), hidden = how.size * d;
    esper_linear in = {.in = d, .out = hidden, .bias = true};
    int value = esper_layer_linear(net, "value", x, in), gate = esper_layer_linear(net, "gate", x, in);

    return add_linear(net, x, "out", esper_net_mul(net, value, esper_net_sigmoid(net, gate)),
                      (esper_linear){.in = hidden, .bias = true}, how.birth);
}

/* ------------------------------------------------------------------------------------------------ texts */

/* x + scale * text(x) of images; x + text(x), whose last layer scales, of the rest. */
static int build_text(esper_net *net, int x, esper_blueprint_how how)
{
    float scale = scale_of(how.birth, 0.0f);
    int y = esper_text_build_seed(net, how.text, x, scale);

    if (x == ESPER_NO_TENSOR || y == ESPER_NO_TENSOR)
        return ESPER_NO_TENSOR;
    return net->tensors[x].rank == 3 ? add_scaled(net, x, y, how.birth) : esper_net_add(net, x, y);
}

/* ------------------------------------------------------------------------------------------------ the lists */

/* How a blueprint can be born: as its own alone, with a scale of its output, and as a copy too. */
enum {
    FIXED = 1u << ESPER_BIRTH_OWN,
    SCALED = FIXED | 1u << ESPER_BIRTH_ZERO | 1u << ESPER_BIRTH_SMALL | 1u << ESPER_BIRTH_FIRST,
    COPIED = SCALED | 1u << ESPER_BIRTH_COPY,
};

#define BLUEPRINT(topology_, name_, index_, estimate_, build_, size_, births_, about_)                       \
    &(const esper_blueprint)                                                                                 \
    {                                                                                                        \
        .name = name_, .topology = ESPER_TOPOLOGY_##topology_, .index = index_, .estimate = estimate_,       \
        .build = build_, .size = size_, .births = births_, .about = about_                                   \
    }

/* Of a list: what is compiled in, what esper_blueprint_append puts behind it, and the end. */
enum { MOST_BLUEPRINTS = ESPER_BLUEPRINT_NUMBERS + 1 };
_Static_assert(ESPER_BLUEPRINT_FIRST_TEXT + ESPER_BLUEPRINT_TEXTS <= ESPER_BLUEPRINT_WIDE, "all have a number");

static const esper_blueprint *cnn_blueprints[MOST_BLUEPRINTS] = {
    BLUEPRINT(CNN, "noop", 0, 0, build_noop, 0, SCALED, "identity"),
    BLUEPRINT(CNN, "norm", 3, 130, build_norm, 0, SCALED, "group norm, faded in by a learned weight"),
    BLUEPRINT(CNN, "attention", 2, 2000, build_cnn_attention, 0, FIXED, "squeeze-and-excitation channel gate"),
    BLUEPRINT(CNN, "conv_small", 6, 4200, build_conv, 1, SCALED, "1x1 convolution, residual"),
    BLUEPRINT(CNN, "bottleneck", 5, 4500, build_bottleneck, 0, SCALED,
              "1x1, 3x3, 1x1 through a narrow middle, residual"),
    BLUEPRINT(CNN, "depthwise", 4, 4800, build_depthwise, 0, SCALED, "depthwise 3x3 and 1x1, residual"),
    BLUEPRINT(CNN, "conv_light", 1, 37000, build_conv, 3, SCALED, "one 3x3 convolution block, residual"),
    BLUEPRINT(CNN, "conv_heavy", 7, 74000, build_conv_heavy, 0, SCALED, "two 3x3 convolution blocks, residual"),
};

static const esper_blueprint *transformer_blueprints[MOST_BLUEPRINTS] = {
    BLUEPRINT(TRANSFORMER, "noop", 0, 0, build_noop, 0, SCALED, "identity"),
    BLUEPRINT(TRANSFORMER, "norm", 3, 800, build_norm, 0, SCALED, "layer norm, faded in by a learned weight"),
    BLUEPRINT(TRANSFORMER, "lora", 8, 6000, build_lora, 8, SCALED, "low-rank linear update, rank 8"),
    BLUEPRINT(TRANSFORMER, "lora_large", 9, 25000, build_lora, 32, SCALED, "low-rank linear update, rank 32"),
    BLUEPRINT(TRANSFORMER, "attention", 2, 591000, build_attention, 4, SCALED, "causal attention of 4 heads, residual"),
    BLUEPRINT(TRANSFORMER, "flex_attention", 12, 591000, build_attention, 4, SCALED,
              "the same computation as attention"),
    BLUEPRINT(TRANSFORMER, "mlp_small", 10, 591000, build_mlp, 2, SCALED, "MLP of twice the width, residual"),
    BLUEPRINT(TRANSFORMER, "mlp", 11, 1200000, build_mlp, 4, SCALED, "MLP of four times the width, residual"),
    BLUEPRINT(TRANSFORMER, "layer", 13, 1775000, build_layer, 0, COPIED, "one more layer like the host's own"),
};

/* A policy belongs to a topology, so these may have numbers that mean others elsewhere; all have room in the head of a learned
 * one. */
static const esper_blueprint *mlp_blueprints[MOST_BLUEPRINTS] = {
    BLUEPRINT(MLP, "noop", 0, 0, build_noop, 0, SCALED, "identity"),
    BLUEPRINT(MLP, "norm", 3, 130, build_norm, 0, SCALED, "layer norm, faded in by a learned weight"),
    BLUEPRINT(MLP, "lora", 8, 1000, build_lora, 8, SCALED, "low-rank linear update, rank 8"),
    BLUEPRINT(MLP, "lora_large", 9, 4100, build_lora, 32, SCALED, "low-rank linear update, rank 32"),
    BLUEPRINT(MLP, "mlp_tiny", 1, 8300, build_mlp, 1, SCALED, "MLP of the stream's width, residual"),
    BLUEPRINT(MLP, "mlp_small", 10, 17000, build_mlp, 2, SCALED, "MLP of twice the width, residual"),
    BLUEPRINT(MLP, "glu", 2, 25000, build_glu, 2, SCALED, "gated linear unit of twice the width, residual"),
    BLUEPRINT(MLP, "mlp", 11, 33000, build_mlp, 4, SCALED, "MLP of four times the width, residual"),
};

const char *esper_blend_name(int blend)
{
    static const char *const names[] = {
        [ESPER_BLEND_ADD] = "add", [ESPER_BLEND_MULTIPLY] = "multiply", [ESPER_BLEND_GATE] = "gate"};

    return blend >= ESPER_BLEND_ADD && blend <= ESPER_BLEND_GATE ? names[blend] : NULL;
}

int esper_blend_find(const char *name)
{
    for (int blend = ESPER_BLEND_ADD; blend <= ESPER_BLEND_GATE; blend++)
        if (strcmp(esper_blend_name(blend), name) == 0)
            return blend;
    return -1;
}

const char *esper_birth_name(int birth)
{
    static const char *const names[] = {
#define X(of, name, text) text,
        ESPER_CONFIG_BIRTH_LIST(X)
#undef X
    };

    return birth >= 0 && birth < ESPER_N_BIRTHS ? names[birth] : NULL;
}

bool esper_birth_is_silent(int birth)
{
    return birth == ESPER_BIRTH_ZERO || birth == ESPER_BIRTH_FIRST;
}

esper_status esper_blueprint_check_birth(const esper_blueprint *blueprint, int birth)
{
    if (esper_birth_name(birth) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "there is no birth %d", birth);
    if ((blueprint->births >> birth & 1u) != 0)
        return ESPER_OK;
    if (birth == ESPER_BIRTH_COPY)
        return ESPER_FAIL(ESPER_E_ARG,
                          "%s cannot be born by copy: only `layer`, in a transformer, is like what it would "
                          "be a copy of",
                          blueprint->name);
    return ESPER_FAIL(ESPER_E_ARG, "%s cannot be born '%s': nothing in it scales its output", blueprint->name,
                      esper_birth_name(birth));
}

static const esper_blueprint **const lists[ESPER_N_TOPOLOGIES] = {
    [ESPER_TOPOLOGY_CNN] = cnn_blueprints,
    [ESPER_TOPOLOGY_TRANSFORMER] = transformer_blueprints,
    [ESPER_TOPOLOGY_MLP] = mlp_blueprints,
};

void esper_blueprint_init_text(esper_blueprint *blueprint, esper_topology topology, const char *name, const char *text,
                               int place)
{
    assert(place >= 0 && place < ESPER_BLUEPRINT_TEXTS);
    *blueprint = (esper_blueprint){.name = name,
                                   .topology = topology,
                                   .index = ESPER_BLUEPRINT_FIRST_TEXT + place,
                                   .about = text,
                                   .text = text,
                                   .births = SCALED,
                                   .build = build_text};
}

void esper_blueprint_add_wide(void)
{
    static const esper_blueprint wide = {.name = "wide",
                                         .topology = ESPER_TOPOLOGY_CNN,
                                         .index = ESPER_BLUEPRINT_WIDE,
                                         .estimate = 37000,
                                         .build = build_wide,
                                         .births = SCALED,
                                         .about = "half as many new channels for a layer"};

    for (int i = 0; cnn_blueprints[i] != NULL; i++)
        if (cnn_blueprints[i] == &wide)
            return;
    esper_blueprint_append(&wide);
}

void esper_blueprint_append(const esper_blueprint *blueprint)
{
    const esper_blueprint **list = lists[blueprint->topology];

    while (*list != NULL)
        list++;
    *list = blueprint;
}

const esper_blueprint *const *esper_blueprint_list(esper_topology topology)
{
    assert((unsigned)topology < ESPER_N_TOPOLOGIES);
    return (const esper_blueprint *const *)lists[topology];
}

esper_status esper_blueprint_find(esper_topology topology, const char *name, const esper_blueprint **blueprint_out)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    char names[256] = "";

    for (int i = 0; list[i] != NULL; i++) {
        if (strcmp(list[i]->name, name) == 0) {
            *blueprint_out = list[i];
            return ESPER_OK;
        }
        strncat(names, i == 0 ? "" : ", ", sizeof(names) - strlen(names) - 1);
        strncat(names, list[i]->name, sizeof(names) - strlen(names) - 1);
    }
    return ESPER_FAIL(ESPER_E_ARG, "no %s blueprint is called '%s': there are %s", esper_topology_name(topology), name,
                      names);
}

int esper_blueprint_build(const esper_blueprint *blueprint, esper_net *net, int x, esper_blueprint_how how)
{
    assert(how.blend >= ESPER_BLEND_ADD && how.blend <= ESPER_BLEND_GATE);
    how.size = blueprint->size;
    how.text = blueprint->text;
    if ((how.wide != NULL) != (blueprint->index == ESPER_BLUEPRINT_WIDE)) {
        if (net->status == ESPER_OK)
            net->status =
                ESPER_FAIL(ESPER_E_ARG, "%s: %s", blueprint->name,
                           how.wide != NULL ? "this slot takes new channels alone"
                                            : "new channels are for a layer, and this slot stands behind one");
        return ESPER_NO_TENSOR;
    }
    return blueprint->build(net, x, how);
}

int esper_gate_build(esper_net *net, int x)
{
    int channels = width_of(net, x), hidden = at_least(8, channels / 4);
    bool is_flat = x != ESPER_NO_TENSOR && net->tensors[x].rank == 1; /* nothing to take a mean over */
    int y = is_flat ? x : esper_net_global_mean(net, x);

    y = esper_net_relu(
        net, esper_layer_linear(net, "gate.0", y, (esper_linear){.in = channels, .out = hidden, .bias = true}));
    y = esper_layer_linear(net, "gate.2", y, (esper_linear){.in = hidden, .out = 1, .bias = true});
    return esper_net_sigmoid(net, y);
}
