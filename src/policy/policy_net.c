/* Building the two programs of a policy's network, and running them. */
#include "policy/policy_net.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/init.h"
#include "nn/layer.h"

static const float GAIN = 1.41421356f, GAIN_HEAD = 0.01f, GAIN_CRITIC = 0.1f, TABLE_DEVIATION = 0.02f;

/* The tensors a caller reads or writes. */
typedef struct places {
    int obs, slots, there, ids, reset, q_choice;
    int embedded; /* slots */
    int h[ESPER_POLICY_MAX_LAYERS], c[ESPER_POLICY_MAX_LAYERS];
    int h_after[ESPER_POLICY_MAX_LAYERS], c_after[ESPER_POLICY_MAX_LAYERS];
    int logits[ESPER_POLICY_MAX_HEADS];
    int value, q, contributions;
} places;

/* A tensor of the plan with a copy in the host's memory, and when one goes to the other. */
typedef enum port_kind {
    PORT_IN,
    PORT_OUT,
    PORT_GRAD
} port_kind; /* before and after a forward pass; before a backward one */

typedef struct port {
    port_kind kind;
    int       tensor;
    void     *host; /* (n_samples, ...) */
} port;

enum { MAX_PORTS = 12 + 4 * ESPER_POLICY_MAX_LAYERS + 2 * ESPER_POLICY_MAX_HEADS };

typedef struct side {
    esper_net       net;
    places          at;
    esper_pass      pass;
    esper_plan     *plan;
    uint32_t       *sample_id; /* (n_samples) */
    esper_policy_io io;
    port            ports[MAX_PORTS];
    int             n_ports;
} side;

struct esper_policy_net {
    esper_policy_net_desc desc;
    esper_backend        *backend;
    esper_backend_stream
        *alone; /* acting is a few rows: the caller does it by itself, and may be one of the backend's threads */
    esper_slab            slab;
    side                  sides[ESPER_POLICY_N_SIDES];
};

void esper_policy_net_desc_init(esper_policy_net_desc *desc)
{
    *desc = (esper_policy_net_desc){.q_head = -1, .drop = 0.1f, .width = 128, .hidden = 128, .layers = 1};
}

/* ------------------------------------------------------------------------------------------------ the program */

/* What a program is built with. */
typedef struct builder {
    const esper_policy_net_desc *desc;
    esper_net                   *net;
    places                      *at;
    int                          T;
} builder;

/* Names that are too long for a net are refused there, whole: here is room for them. */
enum { TEXT_CHARS = 2 * ESPER_NAME_CHARS, LONG_CHARS = 3 * ESPER_NAME_CHARS };

/* "name.number" */
static const char *part(char text[TEXT_CHARS], const char *name, int number)
{
    snprintf(text, TEXT_CHARS, "%s.%d", name, number);
    return text;
}

static int param(const builder *b, const char *layer, const char *what, int rank, const int *dim, esper_init init)
{
    char name[LONG_CHARS];

    snprintf(name, sizeof(name), "%s.%s", layer, what);
    return esper_net_param(b->net, name, rank, dim, init);
}

static int linear(const builder *b, const char *name, int x, int in, int out, float gain)
{
    int weight = param(b, name, "weight", 2, (int[]){out, in}, (esper_init){ESPER_INIT_ORTHOGONAL, gain});
    int bias = param(b, name, "bias", 1, &out, (esper_init){ESPER_INIT_CONSTANT, 0.0f});

    return esper_net_linear(b->net, x, weight, bias);
}

/* Linear and relu, with a norm between them where `norm` is a number. */
static int stage(const builder *b, const char *name, int number, int norm, int x, int in, int out)
{
    char text[TEXT_CHARS];

    x = linear(b, part(text, name, number), x, in, out, GAIN);
    if (norm >= 0)
        x = esper_layer_layer_norm(b->net, part(text, name, norm), x);
    return esper_net_relu(b->net, x);
}

/* Rows of x, and beside each its ids' rows of the table. */
static int with_ids(const builder *b, int x)
{
    const esper_policy_net_desc *d = b->desc;
    int count = b->T * d->n_ids, table;

    b->at->ids = esper_net_input(b->net, "ids", ESPER_I32, 1, &count);
    table = esper_net_param(b->net, "blueprint_embedding.embedding.weight", 2, (int[]){d->id_rows, d->id_width},
                            (esper_init){ESPER_INIT_NORMAL, TABLE_DEVIATION});
    return esper_net_concat(b->net, x, esper_net_embedding(b->net, b->at->ids, table, ESPER_NO_TENSOR));
}

/* What is known of the slots together. */
static int build_slots(const builder *b)
{
    const esper_policy_net_desc *d = b->desc;
    int rows = b->T * d->n_slots, width = d->n_slot_features;
    int x = b->at->slots = esper_net_input(b->net, "slots", ESPER_F32, 2, (int[]){rows, width});

    b->at->there = esper_net_input(b->net, "there", ESPER_F32, 1, &rows);
    if (d->n_ids > 0) {
        x = with_ids(b, x);
        width += d->id_width;
    }
    b->at->embedded = stage(b, "slot_net", 0, 1, x, width, d->slot_width);
    return esper_net_pool_rows(b->net, b->at->embedded, b->at->there, b->T);
}

/* What is known of each slot, e, and of the run, x, together. */
static int meet(const builder *b, const char *name, int e, int x)
{
    const esper_policy_net_desc *d = b->desc;
    int half = d->hidden / 2;
    char text[TEXT_CHARS];
    int weight;

    snprintf(text, sizeof(text), "%s.slot", name);
    weight = param(b, text, "weight", 2, (int[]){half, d->slot_width}, (esper_init){ESPER_INIT_ORTHOGONAL, 1.0f});
    e = esper_net_linear(b->net, e, weight, ESPER_NO_TENSOR);
    snprintf(text, sizeof(text), "%s.run", name);
    return esper_net_relu(b->net, esper_net_add_rows(b->net, e, linear(b, text, x, d->hidden, half, 1.0f)));
}

static int build_features(const builder *b)
{
    const esper_policy_net_desc *d = b->desc;
    int x = b->at->obs = esper_net_input(b->net, "obs", ESPER_F32, 2, (int[]){b->T, d->n_features});
    int width = d->n_features;

    if (d->n_slots > 0) {
        x = esper_net_concat(b->net, x, build_slots(b));
        width += 2 * d->slot_width;
    } else if (d->n_ids > 0) {
        x = with_ids(b, x);
        width += d->n_ids * d->id_width;
    }
    x = stage(b, "feature_net", 0, 1, x, width, d->width);
    return d->width == d->hidden ? x : linear(b, "lstm.input_proj", x, d->width, d->hidden, GAIN);
}

static int build_layer(const builder *b, int layer, int x)
{
    esper_net *net = b->net;
    int H = b->desc->hidden, rows = 4 * H, in_weight, in_bias, y;
    esper_init turned = {ESPER_INIT_ORTHOGONAL, 1.0f}, zero = {ESPER_INIT_CONSTANT, 0.0f};
    esper_net_lstm_in in = {.reset = b->at->reset};
    char name[TEXT_CHARS], text[TEXT_CHARS];

    part(name, "lstm.layers", layer);
    in_weight = param(b, name, "weight_ih_l0", 2, (int[]){rows, H}, turned);
    in.weight = param(b, name, "weight_hh_l0", 2, (int[]){rows, H}, turned);
    in_bias = param(b, name, "bias_ih_l0", 1, &rows, zero);
    in.bias = param(b, name, "bias_hh_l0", 1, &rows, zero);
    in.h = b->at->h[layer] = esper_net_input(net, part(text, "h", layer), ESPER_F32, 1, &H);
    in.c = b->at->c[layer] = esper_net_input(net, part(text, "c", layer), ESPER_F32, 1, &H);
    in.gates = esper_net_linear(net, x, in_weight, in_bias);
    y = b->at->h_after[layer] = esper_net_lstm(net, in, &b->at->c_after[layer]);
    if (esper_net_status(net) == ESPER_OK)
        net->tensors[y].keep = net->tensors[b->at->c_after[layer]].keep = true;
    return esper_net_add(net, esper_layer_layer_norm(net, part(text, "lstm.layer_norms", layer), y), x);
}

/* u: what is known of each slot and of the run. */
static int build_head(const builder *b, const esper_policy_head *head, int x, int u)
{
    const esper_policy_net_desc *d = b->desc;
    int H = d->hidden, number = 0;
    char name[ESPER_NAME_CHARS], text[TEXT_CHARS];

    snprintf(name, sizeof(name), "%s_head", head->name);
    if (head->kind != ESPER_POLICY_OF_RUN) {
        x = linear(b, part(text, name, 0), u, H / 2,
                   head->kind == ESPER_POLICY_AMONG_SLOTS ? d->heads[d->q_head].size : head->size, GAIN_HEAD);
        esper_net_take_grad(b->net, x);
        return x;
    }
    if (head->deep) {
        x = stage(b, name, number, -1, x, H, H);
        number += 2;
    }
    x = stage(b, name, number, -1, x, H, H / 2);
    x = linear(b, part(text, name, number + 2), x, H / 2, head->size, GAIN_HEAD);
    esper_net_take_grad(b->net, x);
    return x;
}

static int build_critic(const builder *b, const char *name, int x, int in)
{
    int H = b->desc->hidden;
    char text[TEXT_CHARS];

    x = stage(b, name, 0, 1, x, in, H / 2);
    x = stage(b, name, 3, 4, x, H / 2, H / 4);
    x = stage(b, name, 6, -1, x, H / 4, H / 8);
    x = linear(b, part(text, name, 8), x, H / 8, 1, GAIN_CRITIC);
    esper_net_take_grad(b->net, x);
    return x;
}

/* The parameters come in the same order for every T, so that all programs find them in one slab. */
static esper_status build(const builder *b)
{
    const esper_policy_net_desc *d = b->desc;
    static const char *const predictor = "contribution_predictor";
    int T = b->T, H = d->hidden, x, y, u = ESPER_NO_TENSOR;
    char text[TEXT_CHARS];

    esper_net_init(b->net);
    memset(b->at, 0xff, sizeof(*b->at)); /* ESPER_NO_TENSOR everywhere */
    x = build_features(b);
    b->at->reset = esper_net_input(b->net, "reset", ESPER_F32, 1, &T);
    for (int layer = 0; layer < d->layers; layer++)
        x = build_layer(b, layer, x);
    if (d->n_slots > 0)
        u = meet(b, "slot_heads", b->at->embedded, x);
    for (int head = 0; head < d->n_heads; head++)
        b->at->logits[head] = build_head(b, &d->heads[head], x, u);
    b->at->value = build_critic(b, "state_value_head", x, d->hidden);
    if (d->q_head >= 0) {
        int n = d->heads[d->q_head].size;

        b->at->q_choice = esper_net_input(b->net, "q_choice", ESPER_F32, 2, (int[]){T, n});
        y = esper_net_concat(b->net, esper_net_isolate(b->net, x), b->at->q_choice);
        b->at->q = build_critic(b, "q_head", y, H + n);
    }
    if (d->n_slots > 0 && d->n_contributions > 0) {
        y = meet(b, predictor, esper_net_isolate(b->net, b->at->embedded), esper_net_isolate(b->net, x));
        y = esper_net_dropout(b->net, y, d->drop);
        b->at->contributions = linear(b, part(text, predictor, 3), y, H / 2, 1, GAIN_CRITIC);
        esper_net_take_grad(b->net, b->at->contributions);
    } else if (d->n_contributions > 0) {
        y = stage(b, predictor, 0, 1, esper_net_isolate(b->net, x), H, H / 2);
        y = stage(b, predictor, 4, -1, esper_net_dropout(b->net, y, d->drop), H / 2, H / 4);
        b->at->contributions = linear(b, part(text, predictor, 6), y, H / 4, d->n_contributions, GAIN_CRITIC);
        esper_net_take_grad(b->net, b->at->contributions);
    }
    return esper_net_status(b->net);
}

_Static_assert(ESPER_NO_TENSOR == -1, "places are filled with it byte by byte");

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status check_desc(const esper_policy_net_desc *d)
{
    if (d->n_features < 1 || d->width < 1)
        return ESPER_FAIL(ESPER_E_ARG, "policy network: %d features, %d wide", d->n_features, d->width);
    if (d->hidden < 8 || d->hidden % 8 != 0)
        return ESPER_FAIL(ESPER_E_ARG, "policy network: hidden %d, use a multiple of 8", d->hidden);
    if (d->layers < 1 || d->layers > ESPER_POLICY_MAX_LAYERS)
        return ESPER_FAIL(ESPER_E_ARG, "policy network: %d layers, 1 to %d are possible", d->layers,
                          ESPER_POLICY_MAX_LAYERS);
    if (d->n_heads < 1 || d->n_heads > ESPER_POLICY_MAX_HEADS || d->q_head >= d->n_heads)
        return ESPER_FAIL(ESPER_E_ARG, "policy network: %d heads, 1 to %d are possible; the second critic is told %d",
                          d->n_heads, ESPER_POLICY_MAX_HEADS, d->q_head);
    if (d->n_slots < 0 || d->n_slots > 64 ||
        (d->n_slots > 0 &&
         (d->n_slot_features < 1 || d->slot_width < 1 || d->there < 0 || d->there >= d->n_slot_features ||
          (d->n_ids > 0 && d->n_ids != d->n_slots) || (d->n_contributions > 0 && d->n_contributions != d->n_slots))))
        return ESPER_FAIL(ESPER_E_ARG, "policy network: %d slots of %d features, %d wide, %d ids, %d contributions",
                          d->n_slots, d->n_slot_features, d->slot_width, d->n_ids, d->n_contributions);
    for (int head = 0, n_among = 0; head < d->n_heads; head++) {
        const esper_policy_head *h = &d->heads[head];

        if (h->size < 1 || h->size > 64)
            return ESPER_FAIL(ESPER_E_ARG, "head %s: %d choices, 1 to 64 are possible", h->name, h->size);
        n_among += h->kind == ESPER_POLICY_AMONG_SLOTS;
        if (h->kind != ESPER_POLICY_OF_RUN &&
            (d->n_slots == 0 || d->q_head < 0 || h->deep || n_among > 1 || head == d->q_head))
            return ESPER_FAIL(ESPER_E_ARG, "head %s cannot choose among slots, or for one: %d slots, operation %d",
                              h->name, d->n_slots, d->q_head);
        if (h->kind == ESPER_POLICY_AMONG_SLOTS && h->size != d->n_slots)
            return ESPER_FAIL(ESPER_E_ARG, "head %s: %d choices among %d slots", h->name, h->size, d->n_slots);
    }
    return ESPER_OK;
}

/* The forget gates begin open: both biases together are twice this. */
static esper_status open_forget_gates(esper_policy_net *net)
{
    static const char *const biases[] = {"bias_ih_l0", "bias_hh_l0"};
    const esper_net *program = &net->sides[0].net;
    int H = net->desc.hidden;

    for (int layer = 0; layer < net->desc.layers; layer++)
        for (int i = 0; i < 2; i++) {
            char name[ESPER_NAME_CHARS];
            float *values;

            snprintf(name, sizeof(name), "lstm.layers.%d.%s", layer, biases[i]);
            values = esper_slab_at(&net->slab, ESPER_FAMILY_PARAM, &program->tensors[esper_net_find(program, name)]);
            ESPER_TRY(esper_backend_fill(net->backend, NULL, values + H, 1.0f + (float)log((double)net->desc.layers),
                                         (size_t)H));
        }
    return ESPER_OK;
}

/* The host's memory for a tensor of the plan; NULL where the plan has none, and where there is no memory to take, which
 * `status` then tells. */
static void *add_port(side *s, port_kind kind, int tensor, esper_status *status)
{
    const void *there = kind == PORT_GRAD ? esper_plan_grad(s->plan, 0, tensor) : esper_plan_data(s->plan, 0, tensor);
    size_t bytes;
    void *host;

    assert(tensor == ESPER_NO_TENSOR || (tensor >= 0 && tensor < s->net.n_tensors));
    if (there == NULL || *status != ESPER_OK)
        return NULL;
    bytes = (size_t)s->net.tensors[tensor].count * (size_t)s->io.n_samples * sizeof(float);
    host = esper_mem_alloc(bytes);
    if (host == NULL) {
        *status = ESPER_FAIL(ESPER_E_NOMEM, "policy network: %zu bytes for %s", bytes, s->net.tensors[tensor].name);
        return NULL;
    }
    assert(s->n_ports < MAX_PORTS);
    s->ports[s->n_ports++] = (port){kind, tensor, host};
    return host;
}

static esper_status open_ports(const esper_policy_net_desc *desc, side *s)
{
    const places *at = &s->at;
    esper_policy_io *io = &s->io;
    esper_status status = ESPER_OK;

    io->obs = add_port(s, PORT_IN, at->obs, &status);
    io->slots = add_port(s, PORT_IN, at->slots, &status);
    io->there = add_port(s, PORT_IN, at->there, &status);
    io->ids = add_port(s, PORT_IN, at->ids, &status);
    io->reset = add_port(s, PORT_IN, at->reset, &status);
    io->q_choice = add_port(s, PORT_IN, at->q_choice, &status);
    for (int layer = 0; layer < desc->layers; layer++) {
        io->h[layer] = add_port(s, PORT_IN, at->h[layer], &status);
        io->c[layer] = add_port(s, PORT_IN, at->c[layer], &status);
        io->h_after[layer] = add_port(s, PORT_OUT, at->h_after[layer], &status);
        io->c_after[layer] = add_port(s, PORT_OUT, at->c_after[layer], &status);
    }
    for (int head = 0; head < desc->n_heads; head++) {
        io->logits[head] = add_port(s, PORT_OUT, at->logits[head], &status);
        io->d_logits[head] = add_port(s, PORT_GRAD, at->logits[head], &status);
    }
    io->value = add_port(s, PORT_OUT, at->value, &status);
    io->q = add_port(s, PORT_OUT, at->q, &status);
    io->contributions = add_port(s, PORT_OUT, at->contributions, &status);
    io->d_value = add_port(s, PORT_GRAD, at->value, &status);
    io->d_q = add_port(s, PORT_GRAD, at->q, &status);
    io->d_contributions = add_port(s, PORT_GRAD, at->contributions, &status);
    return status;
}

static esper_status open_side(esper_policy_net *net, side *s, int n_samples, int n_steps, bool training)
{
    esper_plan_net planned = {.net = &s->net, .slab = &net->slab, .pass = &s->pass, .exact = true};
    esper_plan_desc desc = {
        .backend = net->backend, .nets = &planned, .n_nets = 1, .max_samples = n_samples, .training = training};

    s->io.n_samples = n_samples;
    s->io.n_steps = n_steps;
    s->sample_id = esper_mem_alloc((size_t)n_samples * sizeof(*s->sample_id));
    if (s->sample_id == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "policy network for %d samples", n_samples);
    for (int i = 0; i < n_samples; i++)
        s->sample_id[i] = (uint32_t)i;
    s->pass = (esper_pass){.loss_scale = 1.0f, .sample_id = s->sample_id};
    ESPER_TRY(esper_plan_open(&desc, &s->plan));
    return open_ports(&net->desc, s);
}

static esper_status open_parts(esper_policy_net *net, const esper_policy_net_sizes *sizes, uint64_t seed)
{
    const esper_slab_desc slab = {.n_moments = 2, .n_regions = 1};
    side *act = &net->sides[ESPER_POLICY_ACT], *learn = &net->sides[ESPER_POLICY_LEARN];

    ESPER_TRY(build(&(builder){&net->desc, &act->net, &act->at, 1}));
    ESPER_TRY(build(&(builder){&net->desc, &learn->net, &learn->at, sizes->n_steps}));
    ESPER_TRY(esper_slab_init(&net->slab, net->backend, &learn->net, &slab));
    if (!net->desc.unborn) {
        ESPER_TRY(esper_init_net(&learn->net, &net->slab, seed, 0, -1));
        ESPER_TRY(open_forget_gates(net));
    }
    ESPER_TRY(open_side(net, act, sizes->n_envs, 1, false));
    ESPER_TRY(open_side(net, learn, sizes->n_chunks, sizes->n_steps, true));
    learn->pass.seed = seed;
    return ESPER_OK;
}

esper_status esper_policy_net_build(const esper_policy_net_desc *desc, esper_net *net_out)
{
    places at;

    esper_net_init(net_out);
    ESPER_TRY(check_desc(desc));
    return build(&(builder){desc, net_out, &at, 1});
}

esper_status esper_policy_net_open(esper_backend *backend, const esper_policy_net_desc *desc,
                                   const esper_policy_net_sizes *sizes, uint64_t seed, esper_policy_net **net_out)
{
    esper_policy_net *net;
    esper_status status;

    ESPER_TRY(check_desc(desc));
    if (sizes->n_envs < 1 || sizes->n_steps < 1 || sizes->n_chunks < 1)
        return ESPER_FAIL(ESPER_E_ARG, "policy network for %d environments, %d chunks of %d steps", sizes->n_envs,
                          sizes->n_chunks, sizes->n_steps);
    net = esper_mem_alloc(sizeof(*net));
    if (net == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "policy network");
    net->desc = *desc;
    net->backend = backend;
    status = open_parts(net, sizes, seed);
    if (status != ESPER_OK) {
        esper_policy_net_close(net);
        return status;
    }
    *net_out = net;
    return ESPER_OK;
}

void esper_policy_net_close(esper_policy_net *net)
{
    if (net == NULL)
        return;
    for (int i = 0; i < ESPER_POLICY_N_SIDES; i++) {
        esper_plan_close(net->sides[i].plan);
        esper_net_fini(&net->sides[i].net);
        esper_mem_free(net->sides[i].sample_id);
        for (int k = 0; k < net->sides[i].n_ports; k++)
            esper_mem_free(net->sides[i].ports[k].host);
    }
    esper_slab_fini(&net->slab);
    esper_mem_free(net);
}

/* ------------------------------------------------------------------------------------------------ running */

esper_policy_io esper_policy_net_io(const esper_policy_net *net, esper_policy_side which)
{
    assert((int)which >= 0 && which < ESPER_POLICY_N_SIDES);
    return net->sides[which].io;
}

void esper_policy_net_put(const esper_policy_net_desc *d, const esper_policy_io *io, size_t row, const float *obs,
                          const int32_t *ids)
{
    size_t wide = (size_t)d->n_features, n_slots = (size_t)d->n_slots, slot_wide = (size_t)d->n_slot_features;
    size_t n_ids = (size_t)d->n_ids;

    assert(row < (size_t)io->n_samples * (size_t)io->n_steps);
    if (obs == NULL) {
        memset(io->obs + row * wide, 0, wide * sizeof(float));
        if (n_slots > 0) {
            memset(io->slots + row * n_slots * slot_wide, 0, n_slots * slot_wide * sizeof(float));
            memset(io->there + row * n_slots, 0, n_slots * sizeof(float));
        }
        if (n_ids > 0)
            memset(io->ids + row * n_ids, 0, n_ids * sizeof(*io->ids));
        return;
    }
    memcpy(io->obs + row * wide, obs, wide * sizeof(float));
    if (n_slots > 0)
        memcpy(io->slots + row * n_slots * slot_wide, obs + wide, n_slots * slot_wide * sizeof(float));
    for (size_t s = 0; s < n_slots; s++)
        io->there[row * n_slots + s] = obs[wide + s * slot_wide + (size_t)d->there];
    for (size_t i = 0; i < n_ids; i++)
        io->ids[row * n_ids + i] = ids[i] < 0 ? d->id_rows - 1 : ids[i];
}

esper_policy_logits esper_policy_net_logits_at(const esper_policy_net_desc *d, int head, const int32_t *chosen)
{
    size_t size = (size_t)d->heads[head].size, slots = (size_t)d->n_slots;

    assert(head >= 0 && head < d->n_heads);
    if (d->heads[head].kind == ESPER_POLICY_AMONG_SLOTS) {
        size_t ops = (size_t)d->heads[d->q_head].size, op = (size_t)chosen[d->q_head];

        assert(op < ops);
        return (esper_policy_logits){slots * ops, op, ops};
    }
    if (d->heads[head].kind == ESPER_POLICY_OF_SLOT) {
        size_t slot = 0;

        for (int i = 0; i < d->n_heads; i++)
            slot = d->heads[i].kind == ESPER_POLICY_AMONG_SLOTS ? (size_t)chosen[i] : slot;
        assert(slot < slots);
        return (esper_policy_logits){slots * size, slot * size, 1};
    }
    return (esper_policy_logits){size, 0, 1};
}

static esper_status forward(esper_policy_net *net, side *s, esper_backend_stream *stream, int n_samples, bool training,
                            uint32_t number)
{
    assert(n_samples > 0 && n_samples <= s->io.n_samples);
    s->pass.n_samples = n_samples;
    s->pass.training = training;
    s->pass.step = number;
    for (int k = 0; k < s->n_ports; k++)
        if (s->ports[k].kind == PORT_IN)
            ESPER_TRY(esper_plan_write(s->plan, stream, 0, s->ports[k].tensor, s->ports[k].host, n_samples));
    ESPER_TRY(esper_plan_forward_one(s->plan, stream, 0));
    for (int k = 0; k < s->n_ports; k++)
        if (s->ports[k].kind == PORT_OUT)
            ESPER_TRY(esper_plan_read(s->plan, stream, 0, s->ports[k].tensor, s->ports[k].host, n_samples));
    return esper_backend_wait(net->backend, stream);
}

esper_status esper_policy_net_forward(esper_policy_net *net, esper_policy_side which, esper_backend_stream *stream,
                                      int n_samples)
{
    return forward(net, &net->sides[which], stream, n_samples, false, 0);
}

esper_status esper_policy_net_forward_training(esper_policy_net *net, int n_samples, uint32_t number)
{
    return forward(net, &net->sides[ESPER_POLICY_LEARN], NULL, n_samples, true, number);
}

esper_status esper_policy_net_backward(esper_policy_net *net)
{
    const side *s = &net->sides[ESPER_POLICY_LEARN];

    assert(s->pass.n_samples > 0); /* there is a forward pass to go back through */
    for (int k = 0; k < s->n_ports; k++)
        if (s->ports[k].kind == PORT_GRAD)
            ESPER_TRY(esper_backend_copy_in(
                net->backend, NULL, esper_plan_grad(s->plan, 0, s->ports[k].tensor), s->ports[k].host,
                (size_t)s->net.tensors[s->ports[k].tensor].count * (size_t)s->pass.n_samples * sizeof(float)));
    return esper_plan_backward(s->plan); /* whoever reads gradients waits for them */
}

const esper_net *esper_policy_net_program(const esper_policy_net *net)
{
    return &net->sides[ESPER_POLICY_LEARN].net;
}

esper_slab *esper_policy_net_slab(esper_policy_net *net)
{
    return &net->slab;
}

esper_backend *esper_policy_net_backend(const esper_policy_net *net)
{
    return net->backend;
}
