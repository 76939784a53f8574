/* The writer of ONNX: protobuf by hand, then a few nodes for each operation. */
#include "nn/onnx_export.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"

/* ------------------------------------------------------------------------------------------------ protobuf */

typedef struct bytes {
    uint8_t     *at;
    size_t       used, room;
    esper_status status;
} bytes;

static void put(bytes *to, const void *from, size_t n)
{
    if (to->status != ESPER_OK || n == 0)
        return;
    if (to->used + n > to->room) {
        size_t room = 2 * (to->used + n) + 256;
        uint8_t *larger = esper_mem_grow(to->at, room);

        if (larger == NULL) {
            to->status = ESPER_FAIL(ESPER_E_NOMEM, "an ONNX model of %zu bytes", room);
            return;
        }
        to->at = larger;
        to->room = room;
    }
    memcpy(to->at + to->used, from, n);
    to->used += n;
}

static void put_varint(bytes *to, uint64_t value)
{
    uint8_t byte;

    for (; value >= 128; value >>= 7) {
        byte = (uint8_t)(value | 128);
        put(to, &byte, 1);
    }
    byte = (uint8_t)value;
    put(to, &byte, 1);
}

enum { VARINT = 0, LENGTH = 2, FIXED32 = 5 };

static void put_int(bytes *to, int field, int64_t value)
{
    put_varint(to, (uint64_t)field << 3 | VARINT);
    put_varint(to, (uint64_t)value);
}

static void put_bytes(bytes *to, int field, const void *from, size_t n)
{
    put_varint(to, (uint64_t)field << 3 | LENGTH);
    put_varint(to, n);
    put(to, from, n);
}

static void put_float(bytes *to, int field, float value)
{
    put_varint(to, (uint64_t)field << 3 | FIXED32);
    put(to, &value, sizeof(value));
}

/* Text from anywhere: protobuf's strings are UTF-8. */
static void put_text(bytes *to, int field, const char *text)
{
    bytes clean = {0};
    size_t n = strlen(text), length;

    for (const uint8_t *at = (const uint8_t *)text; n > 0; at += length, n -= length) {
        length = esper_utf8_length(at, n);
        if (length > 0)
            put(&clean, at, length);
        else
            put(&clean, "\xef\xbf\xbd", 3);
        length = length > 0 ? length : 1;
    }
    if (clean.status != ESPER_OK)
        to->status = clean.status;
    put_bytes(to, field, clean.at, clean.used);
    esper_mem_free(clean.at);
}

/* A message inside of another; the inner one is done with. */
static void put_message(bytes *to, int field, bytes *inner)
{
    if (inner->status != ESPER_OK)
        to->status = inner->status;
    put_bytes(to, field, inner->at, inner->used);
    esper_mem_free(inner->at);
    *inner = (bytes){0};
}

/* ------------------------------------------------------------------------------------------------ a graph */

enum { NAME_CHARS = ESPER_NAME_CHARS + 32, TYPE_FLOAT = 1, TYPE_INT64 = 7 };

typedef struct graph {
    const esper_infer *infer;
    bytes              nodes, initializers; /* fields of GraphProto */
    bytes              attributes;          /* of the next node */
    int                n_between;           /* tensors between the nodes of one operation */
    int                n_constants;
    bool              *written;             /* (n_weights) */
} graph;

/* Names of tensors, by value so that they can stand in calls. */
typedef struct name {
    char text[NAME_CHARS];
} name;

static name name_of(const graph *g, int tensor)
{
    name out;

    if (tensor == g->infer->output)
        snprintf(out.text, NAME_CHARS, "output");
    else if (tensor == g->infer->input)
        snprintf(out.text, NAME_CHARS, "input");
    else
        snprintf(out.text, NAME_CHARS, "x%d", tensor);
    return out;
}

static name between(graph *g)
{
    name out;

    snprintf(out.text, NAME_CHARS, "y%d", g->n_between++);
    return out;
}

static void add_ints(graph *g, const char *key, int n, const int64_t *values)
{
    bytes attribute = {0};

    put_text(&attribute, 1, key);
    for (int i = 0; i < n; i++)
        put_int(&attribute, 8, values[i]);
    put_int(&attribute, 20, 7);
    put_message(&g->attributes, 5, &attribute);
}

static void add_int(graph *g, const char *key, int64_t value)
{
    bytes attribute = {0};

    put_text(&attribute, 1, key);
    put_int(&attribute, 3, value);
    put_int(&attribute, 20, 2);
    put_message(&g->attributes, 5, &attribute);
}

static void add_float(graph *g, const char *key, float value)
{
    bytes attribute = {0};

    put_text(&attribute, 1, key);
    put_float(&attribute, 2, value);
    put_int(&attribute, 20, 1);
    put_message(&g->attributes, 5, &attribute);
}

/* Attributes were added before. c may be "". */
static name add_node(graph *g, const char *kind, name a, name b, name c, name out)
{
    bytes node = {0};

    put_text(&node, 1, a.text);
    if (b.text[0] != '\0')
        put_text(&node, 1, b.text);
    if (c.text[0] != '\0')
        put_text(&node, 1, c.text);
    put_text(&node, 2, out.text);
    put_text(&node, 3, out.text);
    put_text(&node, 4, kind);
    put(&node, g->attributes.at, g->attributes.used);
    if (g->attributes.status != ESPER_OK)
        node.status = g->attributes.status;
    g->attributes.used = 0;
    put_message(&g->nodes, 1, &node);
    return out;
}

static const name nothing = {""};

static name node1(graph *g, const char *kind, name a)
{
    return add_node(g, kind, a, nothing, nothing, between(g));
}

static name node2(graph *g, const char *kind, name a, name b)
{
    return add_node(g, kind, a, b, nothing, between(g));
}

static void add_initializer(graph *g, name of, int type, int rank, const int64_t *dims, const void *data, size_t n)
{
    bytes tensor = {0};

    for (int i = 0; i < rank; i++)
        put_int(&tensor, 1, dims[i]);
    put_int(&tensor, 2, type);
    put_text(&tensor, 8, of.text);
    put_bytes(&tensor, 9, data, n);
    put_message(&g->initializers, 5, &tensor);
}

static name constant(graph *g, int type, int rank, const int64_t *dims, const void *data, size_t n)
{
    name out;

    snprintf(out.text, NAME_CHARS, "c%d", g->n_constants++);
    add_initializer(g, out, type, rank, dims, data, n);
    return out;
}

static name number(graph *g, float value)
{
    return constant(g, TYPE_FLOAT, 0, NULL, &value, sizeof(value));
}

static name reshape(graph *g, name x, int rank, const int64_t *shape)
{
    int64_t n = rank;

    return node2(g, "Reshape", x, constant(g, TYPE_INT64, 1, &n, shape, (size_t)rank * sizeof(*shape)));
}

static name scalar_id(graph *g, int64_t value)
{
    return constant(g, TYPE_INT64, 0, NULL, &value, sizeof(value));
}

/* Weights under the name they have in the checkpoint; with its number behind it where another tensor is called so. `planes` asks for
 * (C,1,1) or as many ones as `behind` says. */
static name weights(graph *g, const esper_infer_op *op, int index, const char *part, int behind)
{
    const esper_infer_weights *w = &g->infer->weights[index];
    int64_t dims[2 * ESPER_MAX_RANK];
    int rank = 0;
    name out;

    snprintf(out.text, NAME_CHARS, "%.80s%s%s.%d", op->name, op->name[0] != '\0' ? "." : "", part, index);
    if (behind > 0)
        strcat(out.text, "c");
    if (behind == 0 && g->written[index])
        return out;
    if (behind == 0)
        g->written[index] = true;
    for (int i = 0; i < w->rank; i++)
        dims[rank++] = w->dim[i];
    for (int i = 0; i < behind; i++)
        dims[rank++] = 1;
    add_initializer(g, out, TYPE_FLOAT, rank, dims, w->values, (size_t)w->count * sizeof(float));
    return out;
}

/* A table that several operations read is called by the first of them. */
static name table(graph *g, int index)
{
    for (int o = 0; o < g->infer->n_ops; o++)
        if (g->infer->ops[o].w == index)
            return weights(g, &g->infer->ops[o], index, "weight", 0);
    return nothing;
}

/* ------------------------------------------------------------------------------------------------ operations */

static name write_conv(graph *g, const esper_infer_op *op, name x)
{
    int64_t k = g->infer->weights[op->w].dim[2], p = op->pad;

    add_ints(g, "kernel_shape", 2, (int64_t[]){k, k});
    add_ints(g, "pads", 4, (int64_t[]){p, p, p, p});
    add_int(g, "group", op->groups);
    return add_node(g, "Conv", x, table(g, op->w), weights(g, op, op->b, "bias", 0), between(g));
}

static name write_linear(graph *g, const esper_infer_op *op, name x)
{
    if (g->infer->tensors[op->in[0]].rank == 1) {
        add_int(g, "transB", 1);
        return add_node(g, "Gemm", x, table(g, op->w), weights(g, op, op->b, "bias", 0), between(g));
    }
    add_ints(g, "perm", 2, (int64_t[]){1, 0});
    return node2(g, "Add", node2(g, "MatMul", x, node1(g, "Transpose", table(g, op->w))),
                 weights(g, op, op->b, "bias", 0));
}

static name max_pool(graph *g, name x)
{
    add_ints(g, "kernel_shape", 2, (int64_t[]){2, 2});
    add_ints(g, "strides", 2, (int64_t[]){2, 2});
    return node1(g, "MaxPool", x);
}

static name factor_and_shift(graph *g, const esper_infer_op *op, name x, int behind)
{
    return node2(g, "Add", node2(g, "Mul", x, weights(g, op, op->w, "weight", behind)),
                 weights(g, op, op->b, "bias", behind));
}

static name write_group_norm(graph *g, const esper_infer_op *op, name x)
{
    const esper_infer_tensor *t = &g->infer->tensors[op->in[0]];
    int64_t groups = op->groups;
    float *ones = esper_mem_alloc((size_t)groups * sizeof(*ones)),
          *zeros = esper_mem_alloc((size_t)groups * sizeof(*zeros));
    name y = nothing;

    if (ones == NULL || zeros == NULL) {
        g->nodes.status = ESPER_FAIL(ESPER_E_NOMEM, "%d groups", op->groups);
    } else {
        for (int64_t i = 0; i < groups; i++)
            ones[i] = 1.0f;
        y = reshape(g, x, 3, (int64_t[]){0, groups, t->count / groups});
        add_float(g, "epsilon", op->eps);
        y = add_node(g, "InstanceNormalization", y,
                     constant(g, TYPE_FLOAT, 1, &groups, ones, (size_t)groups * sizeof(*ones)),
                     constant(g, TYPE_FLOAT, 1, &groups, zeros, (size_t)groups * sizeof(*zeros)), between(g));
        y = reshape(g, y, 4, (int64_t[]){0, t->dim[0], t->dim[1], t->dim[2]});
        y = factor_and_shift(g, op, y, 2);
    }
    esper_mem_free(ones);
    esper_mem_free(zeros);
    return y;
}

static name mean_of(graph *g, name x, int n, const int64_t *axes, bool keep)
{
    add_ints(g, "axes", n, axes);
    add_int(g, "keepdims", keep);
    return node1(g, "ReduceMean", x);
}

static name write_layer_norm(graph *g, const esper_infer_op *op, name x)
{
    const int64_t last = -1;
    name off = node2(g, "Sub", x, mean_of(g, x, 1, &last, true));
    name variance = mean_of(g, node2(g, "Mul", off, off), 1, &last, true);
    name deviation = node1(g, "Sqrt", node2(g, "Add", variance, number(g, op->eps)));

    return factor_and_shift(g, op, node2(g, "Div", off, deviation), 0);
}

static name write_gelu(graph *g, name x)
{
    name below = node1(g, "Erf", node2(g, "Mul", x, number(g, 0.70710678f)));

    return node2(g, "Mul", node2(g, "Mul", x, number(g, 0.5f)), node2(g, "Add", below, number(g, 1.0f)));
}

static name write_embedding(graph *g, const esper_infer_op *op, name ids)
{
    int64_t dims[2] = {g->infer->tensors[op->in[0]].count, g->infer->weights[op->w].dim[1]};
    name y = node2(g, "Gather", table(g, op->w), ids);

    if (op->b == ESPER_INFER_NONE)
        return y;
    return node2(
        g, "Add", y,
        constant(g, TYPE_FLOAT, 2, dims, g->infer->weights[op->b].values, (size_t)(dims[0] * dims[1]) * sizeof(float)));
}

static name causal_mask(graph *g, int64_t T)
{
    int64_t dims[2] = {T, T};
    float *mask = esper_mem_alloc((size_t)(T * T) * sizeof(*mask));
    name out = nothing;

    if (mask == NULL) {
        g->nodes.status = ESPER_FAIL(ESPER_E_NOMEM, "a mask of %lld tokens", (long long)T);
        return out;
    }
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = i + 1; j < T; j++)
            mask[i * T + j] = -1e30f;
    out = constant(g, TYPE_FLOAT, 2, dims, mask, (size_t)(T * T) * sizeof(*mask));
    esper_mem_free(mask);
    return out;
}

static name part_of(graph *g, name parts, int64_t which)
{
    add_int(g, "axis", 0);
    return node2(g, "Gather", parts, scalar_id(g, which));
}

static name write_attention(graph *g, const esper_infer_op *op, name x)
{
    const esper_infer_tensor *t = &g->infer->tensors[op->out];
    int64_t T = t->dim[0], D = t->dim[1], size = D / op->heads;
    name parts = reshape(g, x, 5, (int64_t[]){0, T, 3, op->heads, size}), q, k, v, scores, y;

    add_ints(g, "perm", 5, (int64_t[]){2, 0, 3, 1, 4});
    parts = node1(g, "Transpose", parts);
    q = part_of(g, parts, 0);
    k = part_of(g, parts, 1);
    v = part_of(g, parts, 2);
    add_ints(g, "perm", 4, (int64_t[]){0, 1, 3, 2});
    k = node1(g, "Transpose", k);
    scores = node2(g, "Mul", node2(g, "MatMul", q, k), number(g, 1.0f / sqrtf((float)size)));
    scores = node2(g, "Add", scores, causal_mask(g, T));
    add_int(g, "axis", -1);
    y = node2(g, "MatMul", node1(g, "Softmax", scores), v);
    add_ints(g, "perm", 4, (int64_t[]){0, 2, 1, 3});
    return reshape(g, node1(g, "Transpose", y), 3, (int64_t[]){0, T, D});
}

static name write_mul(graph *g, const esper_infer_op *op, name a, name b)
{
    const esper_infer_tensor *x = &g->infer->tensors[op->in[0]], *factor = &g->infer->tensors[op->in[1]];

    if (x->count != factor->count)
        b = reshape(g, b, 4, (int64_t[]){0, factor->dim[0], 1, 1});
    return node2(g, "Mul", a, b);
}

static name write_mix(graph *g, name h, name s, name weight)
{
    return node2(g, "Add", h, node2(g, "Mul", node2(g, "Sub", s, h), weight));
}

static name write_blend_mul(graph *g, const esper_infer_op *op, name h, name s, name u)
{
    name bent = node2(g, "Mul", node1(g, "Tanh", node2(g, "Sub", s, u)), number(g, op->weight));

    return node2(g, "Mul", h, node2(g, "Add", bent, number(g, 1.0f)));
}

static name write_blend_gate(graph *g, const esper_infer_op *op, name h, name s, name gate)
{
    int64_t shape[1 + ESPER_MAX_RANK] = {0, 1, 1, 1, 1};
    name clamped = add_node(g, "Clip", gate, number(g, 0.0f), number(g, 1.0f), between(g));
    name weight = node2(g, "Mul", clamped, number(g, op->weight));

    return write_mix(g, h, s, reshape(g, weight, 1 + g->infer->tensors[op->out].rank, shape));
}

static name write_op(graph *g, const esper_infer_op *op)
{
    const esper_infer_tensor *x = &g->infer->tensors[op->in[0]];
    name in[ESPER_INFER_MAX_IN] = {nothing, nothing, nothing};

    for (int i = 0; i < ESPER_INFER_MAX_IN && op->in[i] != ESPER_INFER_NONE; i++)
        in[i] = name_of(g, op->in[i]);
    switch (op->kind) {
    case ESPER_INFER_CONV:
        return write_conv(g, op, in[0]);
    case ESPER_INFER_LINEAR:
        return write_linear(g, op, in[0]);
    case ESPER_INFER_AFFINE:
        return factor_and_shift(g, op, in[0], x->rank - 1);
    case ESPER_INFER_GROUP_NORM:
        return write_group_norm(g, op, in[0]);
    case ESPER_INFER_LAYER_NORM:
        return write_layer_norm(g, op, in[0]);
    case ESPER_INFER_RELU:
        return node1(g, "Relu", in[0]);
    case ESPER_INFER_GELU:
        return write_gelu(g, in[0]);
    case ESPER_INFER_SIGMOID:
        return node1(g, "Sigmoid", in[0]);
    case ESPER_INFER_TANH:
        return node1(g, "Tanh", in[0]);
    case ESPER_INFER_MAX_POOL:
        return max_pool(g, in[0]);
    case ESPER_INFER_GLOBAL_MEAN:
        return x->rank == 3 ? mean_of(g, in[0], 2, (int64_t[]){2, 3}, false)
                            : mean_of(g, in[0], 1, (int64_t[]){1}, false);
    case ESPER_INFER_EMBEDDING:
        return write_embedding(g, op, in[0]);
    case ESPER_INFER_ATTENTION:
        return write_attention(g, op, in[0]);
    case ESPER_INFER_ADD:
        return node2(g, "Add", in[0], in[1]);
    case ESPER_INFER_MUL:
        return write_mul(g, op, in[0], in[1]);
    case ESPER_INFER_MIX:
        return write_mix(g, in[0], in[1], number(g, op->weight));
    case ESPER_INFER_BLEND_MUL:
        return write_blend_mul(g, op, in[0], in[1], in[2]);
    case ESPER_INFER_BLEND_GATE:
        return write_blend_gate(g, op, in[0], in[1], in[2]);
    case ESPER_N_INFER:
        break;
    }
    return nothing;
}

/* ------------------------------------------------------------------------------------------------ the model */

static void put_value(bytes *to, int field, const char *text, const esper_infer_tensor *tensor)
{
    bytes value = {0}, type = {0}, of = {0}, shape = {0}, dim = {0};

    put_text(&dim, 2, "N");
    put_message(&shape, 1, &dim);
    for (int i = 0; i < tensor->rank; i++) {
        put_int(&dim, 1, tensor->dim[i]);
        put_message(&shape, 1, &dim);
    }
    put_int(&of, 1, tensor->ids ? TYPE_INT64 : TYPE_FLOAT);
    put_message(&of, 2, &shape);
    put_message(&type, 1, &of);
    put_text(&value, 1, text);
    put_message(&value, 2, &type);
    put_message(to, field, &value);
}

static void put_graph(bytes *model, graph *g)
{
    bytes out = {0};

    put(&out, g->nodes.at, g->nodes.used);
    put_text(&out, 2, "esper");
    put(&out, g->initializers.at, g->initializers.used);
    put_value(&out, 11, "input", &g->infer->tensors[g->infer->input]);
    put_value(&out, 12, "output", &g->infer->tensors[g->infer->output]);
    if (g->nodes.status != ESPER_OK || g->initializers.status != ESPER_OK)
        out.status = g->nodes.status != ESPER_OK ? g->nodes.status : g->initializers.status;
    put_message(model, 7, &out);
}

static void put_model(bytes *model, graph *g, const esper_onnx_desc *desc)
{
    bytes opset = {0}, note = {0};

    put_int(model, 1, 7); /* the version of the format that opset 13 came with */
    put_text(model, 2, "esper");
    put_text(model, 3, ESPER_VERSION);
    if (desc->about != NULL)
        put_text(model, 6, desc->about);
    put_graph(model, g);
    put_text(&opset, 1, "");
    put_int(&opset, 2, 13);
    put_message(model, 8, &opset);
    for (int i = 0; i < desc->n_notes; i++) {
        put_text(&note, 1, desc->notes[i].key);
        put_text(&note, 2, desc->notes[i].value);
        put_message(model, 14, &note);
    }
}

static void write_ops(graph *g)
{
    for (int o = 0; o < g->infer->n_ops && g->nodes.status == ESPER_OK; o++) {
        const esper_infer_op *op = &g->infer->ops[o];
        name y = write_op(g, op);

        if (op->relu)
            y = node1(g, "Relu", y);
        if (op->pool)
            y = max_pool(g, y);
        add_node(g, "Identity", y, nothing, nothing, name_of(g, op->out));
    }
}

esper_status esper_onnx_init(esper_onnx *onnx, const esper_onnx_desc *desc)
{
    graph g = {.infer = desc->infer, .written = esper_mem_alloc((size_t)desc->infer->n_weights + 1)};
    bytes model = {0};
    esper_status status;

    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ONNX keeps numbers as they lie here");
    if (desc->infer->n_ops == 0) {
        esper_mem_free(g.written);
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "a network without operations");
    }
    if (g.written == NULL)
        g.nodes.status = ESPER_FAIL(ESPER_E_NOMEM, "an ONNX model");
    write_ops(&g);
    put_model(&model, &g, desc);
    status = model.status;
    esper_mem_free(g.nodes.at);
    esper_mem_free(g.initializers.at);
    esper_mem_free(g.attributes.at);
    esper_mem_free(g.written);
    if (status == ESPER_OK)
        *onnx = (esper_onnx){model.at, model.used};
    else
        esper_mem_free(model.at);
    return status;
}

void esper_onnx_fini(esper_onnx *onnx)
{
    esper_mem_free(onnx->bytes);
    *onnx = (esper_onnx){0};
}
