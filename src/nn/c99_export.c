/* The writer of C. */
#include "nn/c99_export.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/page.h"
#include "base/status.h"

#if __has_include("generated/c99_kernels.h")
#include "generated/c99_kernels.h"
#else /* for tools that read this file outside of the build */
static const char c99_kernels[] = {0};
#endif

enum { MOST_SECTIONS = 32, MOST_STRING = 4000, LONG_CHARS = 24 };

typedef struct writer {
    const esper_c99_desc *desc;
    const esper_infer    *infer;
    const esper_fixed    *fixed;
    esper_infer_places    places; /* of floats; those of whole numbers are fixed->places */
    char                  upper[ESPER_C99_NAME_CHARS];
    const char           *sections[MOST_SECTIONS]; /* of the kernels, that are needed */
    int                   n_sections;
    int64_t               weight_bytes;
    esper_page           *page;
} writer;

bool esper_c99_is_name(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n >= ESPER_C99_NAME_CHARS || !((name[0] | 32) >= 'a' && (name[0] | 32) <= 'z'))
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == n;
}

/* ------------------------------------------------------------------------------------------------ texts */

static bool is_plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr(" .,:;_+-=()%", c) != NULL;
}

/* Into a comment: nothing that ends one, begins one, or joins lines. */
static void print_comment(esper_page *page, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '\n')
            esper_page_print(page, "\n *%s", text[1] != '\0' && text[1] != '\n' ? " " : "");
        else
            esper_page_print(page, "%c",
                             is_plain((unsigned char)*text)   ? *text
                             : *text == '/' && text[1] != '*' ? '/'
                                                              : '_');
}

/* A string: what is not plain by three octal digits, which no digit behind them can lengthen. A very long one is cut. */
static void print_string(esper_page *page, const char *text)
{
    size_t n = 0;

    esper_page_print(page, "\"");
    for (; *text != '\0' && n < MOST_STRING; text++, n++)
        if (is_plain((unsigned char)*text) && *text != '%')
            esper_page_print(page, "%c", *text);
        else
            esper_page_print(page, "\\%03o", (unsigned char)*text);
    esper_page_print(page, "\"");
}

static void print_float(esper_page *page, float value)
{
    char text[ESPER_NUMBER_CHARS];

    esper_number_write_float(value, text);
    esper_page_print(page, "%s%s", text, strpbrk(text, ".e") != NULL ? "f" : ".0f");
}

typedef enum element { FLOATS, BYTES, INTS, UBYTES } element;

static void print_array(esper_page *page, const char *name, element type, const void *values, int64_t n)
{
    static const char *const types[] = {"float", "int8_t", "int32_t", "uint8_t"};
    static const int in_line[] = {8, 24, 10, 24};

    esper_page_print(page, "static const %s %s[%lld] = {", types[type], name, (long long)n);
    for (int64_t i = 0; i < n && page->status == ESPER_OK; i++) {
        esper_page_print(page, i % in_line[type] == 0 ? "\n    " : " ");
        if (type == FLOATS)
            print_float(page, ((const float *)values)[i]);
        else
            esper_page_print(page, "%d",
                             type == BYTES  ? ((const int8_t *)values)[i]
                             : type == INTS ? ((const int32_t *)values)[i]
                                            : ((const uint8_t *)values)[i]);
        esper_page_print(page, i + 1 < n ? "," : "");
    }
    esper_page_print(page, "\n};\n\n");
}

static void print_shape(esper_page *page, const esper_infer_tensor *tensor)
{
    for (int i = 0; i < tensor->rank; i++)
        esper_page_print(page, "%s%d", i == 0 ? "(" : ",", tensor->dim[i]);
    esper_page_print(page, ")");
}

/* ------------------------------------------------------------------------------------------------ kernels */

static void need(writer *w, const char *section)
{
    for (int i = 0; i < w->n_sections; i++)
        if (strcmp(w->sections[i], section) == 0)
            return;
    assert(w->n_sections < MOST_SECTIONS);
    w->sections[w->n_sections++] = section;
}

static void need_access(writer *w, bool reads, bool writes)
{
    if (reads)
        need(w, w->fixed != NULL ? "fixed_get" : "float_get");
    if (writes)
        need(w, w->fixed != NULL ? "fixed_put" : "float_put");
}

static void need_op(writer *w, int o)
{
    const esper_infer_op *op = &w->infer->ops[o];
    bool fixed = w->fixed != NULL;

    switch (op->kind) {
    case ESPER_INFER_CONV:
        need(w, "conv_shape");
        need(w, fixed ? "conv_fixed" : "conv");
        need(w, fixed ? "rescale" : "float_put");
        return;
    case ESPER_INFER_LINEAR:
        if (fixed && w->fixed->ops[o].last) {
            need(w, "linear_at");
            need(w, "linear_last");
            return;
        }
        need(w, fixed ? "linear_fixed" : "linear");
        need(w, fixed ? "linear_at" : "float_put");
        if (fixed)
            need(w, "rescale");
        return;
    case ESPER_INFER_EMBEDDING:
        need(w, fixed ? "embedding_fixed" : "embedding");
        need_access(w, false, true);
        return;
    case ESPER_INFER_GROUP_NORM:
    case ESPER_INFER_LAYER_NORM:
        need(w, "normalise");
        break;
    case ESPER_INFER_BLEND_GATE:
        need(w, "mix");
        break;
    default:
        break;
    }
    need(w, esper_infer_name(op->kind));
    need_access(w, true, true);
}

static void find_sections(writer *w)
{
    const esper_infer *infer = w->infer;
    bool floats = false;

    need(w, w->fixed != NULL ? "fixed" : "float");
    for (int o = 0; o < infer->n_ops; o++) {
        need_op(w, o);
        floats = floats || (w->fixed != NULL && w->fixed->ops[o].last);
    }
    if (w->fixed != NULL)
        need_access(w, !floats, !infer->tensors[infer->input].ids);
}

/* The sections that are needed, in their order. */
static void print_kernels(const writer *w)
{
    const char *at = c99_kernels;
    bool wanted = false;

    while (*at != '\0') {
        const char *end = strchr(at, '\n');
        int n = end != NULL ? (int)(end - at) : (int)strlen(at);

        if (n > 4 && strncmp(at, "/* @", 4) == 0) {
            wanted = false;
            for (int i = 0; i < w->n_sections; i++)
                wanted = wanted ||
                         ((int)strlen(w->sections[i]) == n - 7 && strncmp(at + 4, w->sections[i], (size_t)n - 7) == 0);
        } else if (at[0] == '#')
            wanted = false;
        else if (wanted)
            esper_page_print(w->page, "%.*s\n", n, at);
        at += n + (end != NULL);
    }
}

/* ------------------------------------------------------------------------------------------------ weights */

static void print_weights_of(writer *w, int index, bool table)
{
    const esper_infer_weights *values = &w->infer->weights[index];
    char name[48];

    snprintf(name, sizeof(name), "w%d", index);
    if (table && w->fixed != NULL) {
        print_array(w->page, name, BYTES, w->fixed->weights[index].q, values->count);
        w->weight_bytes += values->count;
        return;
    }
    print_array(w->page, name, FLOATS, values->values, values->count);
    w->weight_bytes += values->count * (int64_t)sizeof(float);
}

static void print_scales(writer *w, int index)
{
    char name[48];

    snprintf(name, sizeof(name), "w%d_scale", index);
    print_array(w->page, name, FLOATS, w->fixed->weights[index].scale, w->infer->weights[index].dim[0]);
    w->weight_bytes += w->infer->weights[index].dim[0] * (int64_t)sizeof(float);
}

/* Numbers beside an operation's weights in 8 bits. */
static void print_factors(writer *w, int o)
{
    const esper_fixed_op *of = &w->fixed->ops[o];
    int rows = w->infer->weights[w->infer->ops[o].w].dim[0];
    char name[48];

    snprintf(name, sizeof(name), "op%d_bias", o);
    print_array(w->page, name, INTS, of->bias, rows);
    w->weight_bytes += rows * (int64_t)sizeof(int32_t);
    if (of->last)
        return;
    snprintf(name, sizeof(name), "op%d_factor", o);
    print_array(w->page, name, INTS, of->factor, rows);
    snprintf(name, sizeof(name), "op%d_shift", o);
    print_array(w->page, name, UBYTES, of->shift, rows);
    w->weight_bytes += rows * 5;
}

static bool is_sum(const esper_infer_op *op)
{
    return op->kind == ESPER_INFER_CONV || op->kind == ESPER_INFER_LINEAR;
}

/* Whether the scales of a table are read: by an embedding, or by the last layer. */
static bool wants_scales(const writer *w, int index)
{
    for (int o = 0; w->fixed != NULL && o < w->infer->n_ops; o++) {
        const esper_infer_op *op = &w->infer->ops[o];

        if ((op->w == index && (op->kind == ESPER_INFER_EMBEDDING || w->fixed->ops[o].last)) ||
            (op->b == index && op->kind == ESPER_INFER_EMBEDDING))
            return true;
    }
    return false;
}

static void print_weights(writer *w)
{
    const esper_infer *infer = w->infer;

    for (int index = 0; index < infer->n_weights; index++) {
        bool table = false, used = false, bias = false;
        const char *name = "";

        for (int o = 0; o < infer->n_ops; o++) {
            const esper_infer_op *op = &infer->ops[o];
            bool embeds = op->kind == ESPER_INFER_EMBEDDING;

            if (op->w != index && op->b != index)
                continue;
            used = true;
            name = op->name;
            table = table || embeds || (is_sum(op) && op->w == index);
            bias = bias || (is_sum(op) && op->b == index);
        }
        if (!used || (bias && w->fixed != NULL))
            continue; /* in whole numbers a bias belongs to its operation */
        esper_page_print(w->page, "/* ");
        print_comment(w->page, name[0] != '\0' ? name : "weights");
        esper_page_print(w->page, " */\n");
        print_weights_of(w, index, table);
        if (wants_scales(w, index))
            print_scales(w, index);
    }
    for (int o = 0; o < infer->n_ops; o++) {
        const esper_infer_op *op = &infer->ops[o];
        const esper_infer_tensor *x = &infer->tensors[op->in[0]];

        if (w->fixed != NULL && is_sum(op))
            print_factors(w, o);
        if (op->kind == ESPER_INFER_CONV)
            esper_page_print(w->page, "static const conv_shape op%d_shape = {%d, %d, %d, %d, %d, %d, %d, %d, %d};\n\n",
                             o, x->dim[0], x->dim[1], x->dim[2], infer->weights[op->w].dim[0],
                             infer->weights[op->w].dim[2], op->pad, op->groups, op->relu, op->pool);
    }
}

/* ------------------------------------------------------------------------------------------------ the calls */

static int64_t place_of(const writer *w, int tensor)
{
    return w->fixed != NULL ? w->fixed->places.at[tensor] : w->places.at[tensor];
}

static void print_source(const writer *w, int tensor)
{
    if (w->fixed == NULL && tensor == w->infer->input) {
        esper_page_print(w->page, "from(input)");
        return;
    }
    if (w->fixed == NULL && tensor == w->infer->output) {
        esper_page_print(w->page, "from(output)");
        return;
    }
    esper_page_print(w->page, "from(memory->at + %lld", (long long)place_of(w, tensor));
    if (w->fixed != NULL) {
        esper_page_print(w->page, ", ");
        print_float(w->page, w->fixed->tensors[tensor].scale);
    }
    esper_page_print(w->page, ")");
}

static void print_sink(const writer *w, int tensor)
{
    if (w->fixed == NULL && tensor == w->infer->output) {
        esper_page_print(w->page, "to(output)");
        return;
    }
    esper_page_print(w->page, "to(memory->at + %lld", (long long)place_of(w, tensor));
    if (w->fixed != NULL) {
        esper_page_print(w->page, ", ");
        print_float(w->page, 1.0f / w->fixed->tensors[tensor].scale);
        esper_page_print(w->page, ", %d", w->fixed->tensors[tensor].most);
    }
    esper_page_print(w->page, ")");
}

static void print_line_comment(const writer *w, const esper_infer_op *op)
{
    esper_page_print(w->page, "    /* ");
    print_comment(w->page, op->name[0] != '\0' ? op->name : esper_infer_name(op->kind));
    esper_page_print(w->page, ": ");
    print_shape(w->page, &w->infer->tensors[op->in[0]]);
    esper_page_print(w->page, " to ");
    print_shape(w->page, &w->infer->tensors[op->out]);
    esper_page_print(w->page, " */\n    ");
}

static void print_embedding(const writer *w, const esper_infer_op *op)
{
    int32_t n = (int32_t)w->infer->tensors[op->in[0]].count, width = w->infer->weights[op->w].dim[1];

    esper_page_print(w->page, w->fixed != NULL ? "embedding_fixed(input, w%d, w%d_scale, " : "embedding(input, w%d, ",
                     op->w, op->w);
    if (op->b == ESPER_INFER_NONE)
        esper_page_print(w->page, w->fixed != NULL ? "NULL, NULL" : "NULL");
    else
        esper_page_print(w->page, w->fixed != NULL ? "w%d, w%d_scale" : "w%d", op->b, op->b);
    esper_page_print(w->page, ", %d, %d, ", n, width);
    print_sink(w, op->out);
    esper_page_print(w->page, ");\n");
}

static void print_sum(const writer *w, int o)
{
    const esper_infer_op *op = &w->infer->ops[o];
    const esper_infer_weights *weights = &w->infer->weights[op->w];
    bool conv = op->kind == ESPER_INFER_CONV, last = w->fixed != NULL && w->fixed->ops[o].last;

    esper_page_print(w->page, "%s%s(", conv ? "conv" : "linear", last ? "_last" : w->fixed != NULL ? "_fixed" : "");
    print_source(w, op->in[0]);
    if (w->fixed == NULL)
        esper_page_print(w->page, ", w%d, w%d, ", op->w, op->b);
    else if (last)
        esper_page_print(w->page, ", w%d, op%d_bias, w%d_scale, ", op->w, o, op->w);
    else
        esper_page_print(w->page, ", w%d, op%d_bias, op%d_factor, op%d_shift, ", op->w, o, o, o);
    if (conv)
        esper_page_print(w->page, "&op%d_shape, ", o);
    else
        esper_page_print(w->page, "%d, %d, %d, %d, ", (int)(w->infer->tensors[op->out].count / weights->dim[0]),
                         weights->dim[1], weights->dim[0], op->relu);
    if (last)
        esper_page_print(w->page, "output");
    else
        print_sink(w, op->out);
    esper_page_print(w->page, ");\n");
}

static void print_call(const writer *w, int o)
{
    const esper_infer_op *op = &w->infer->ops[o];
    const esper_infer_tensor *x = &w->infer->tensors[op->in[0]], *y = &w->infer->tensors[op->out];
    int32_t n = (int32_t)y->count, C = x->dim[0], plane = (int32_t)(x->count / C), D = x->dim[x->rank - 1];
    esper_page *page = w->page;

    print_line_comment(w, op);
    if (op->kind == ESPER_INFER_EMBEDDING) {
        print_embedding(w, op);
        return;
    }
    if (is_sum(op)) {
        print_sum(w, o);
        return;
    }
    esper_page_print(page, "%s(", op->kind == ESPER_INFER_TANH ? "hyperbolic" : esper_infer_name(op->kind));
    for (int i = 0; i < ESPER_INFER_MAX_IN && op->in[i] != ESPER_INFER_NONE; i++) {
        print_source(w, op->in[i]);
        esper_page_print(page, ", ");
    }
    if (op->w != ESPER_INFER_NONE)
        esper_page_print(page, "w%d, w%d, ", op->w, op->b);
    switch (op->kind) {
    case ESPER_INFER_AFFINE:
        esper_page_print(page, "%d, %d, %d, ", C, plane, op->relu);
        break;
    case ESPER_INFER_GROUP_NORM:
        esper_page_print(page, "%d, %d, %d, ", C, plane, op->groups);
        print_float(page, op->eps);
        esper_page_print(page, ", ");
        break;
    case ESPER_INFER_LAYER_NORM:
        esper_page_print(page, "%d, %d, ", n / D, D);
        print_float(page, op->eps);
        esper_page_print(page, ", ");
        break;
    case ESPER_INFER_MAX_POOL:
        esper_page_print(page, "%d, %d, %d, ", C, x->dim[1], x->dim[2]);
        break;
    case ESPER_INFER_GLOBAL_MEAN:
        if (x->rank == 3)
            esper_page_print(page, "%d, %d, %d, 1, ", n, plane, plane);
        else
            esper_page_print(page, "%d, 1, %d, %d, ", n, C, D);
        break;
    case ESPER_INFER_ATTENTION:
        if (w->fixed != NULL)
            esper_page_print(page, "%d, %d, %d, memory->scratch, ", y->dim[0], y->dim[1], op->heads);
        else
            esper_page_print(page, "%d, %d, %d, memory->at + %lld, ", y->dim[0], y->dim[1], op->heads,
                             (long long)w->places.scratch[o]);
        break;
    case ESPER_INFER_MUL:
        esper_page_print(page, "%d, %d, ", n, (int)(x->count / w->infer->tensors[op->in[1]].count));
        break;
    case ESPER_INFER_MIX:
    case ESPER_INFER_BLEND_MUL:
    case ESPER_INFER_BLEND_GATE:
        print_float(page, op->weight);
        esper_page_print(page, ", %d, ", n);
        break;
    default:
        esper_page_print(page, "%d, ", n);
        break;
    }
    print_sink(w, op->out);
    esper_page_print(page, ");\n");
}

/* ------------------------------------------------------------------------------------------------ functions */

static const char *input_type(const writer *w)
{
    return w->infer->tensors[w->infer->input].ids ? "int32_t" : "float";
}

static void print_calls(const writer *w)
{
    for (int o = 0; o < w->infer->n_ops; o++)
        print_call(w, o);
}

static void print_run(const writer *w)
{
    const char *name = w->desc->name;
    const esper_infer *infer = w->infer;
    bool ids = infer->tensors[infer->input].ids, floats = false;

    if (w->fixed == NULL) {
        esper_page_print(w->page,
                         "void %s_run(%s_memory *memory, const %s *input, float *output)\n{\n    (void)memory;\n", name,
                         name, input_type(w));
        print_calls(w);
        esper_page_print(w->page, "}\n");
        return;
    }
    esper_page_print(w->page, "static void compute(%s_memory *memory, %sfloat *output)\n{\n", name,
                     ids ? "const int32_t *input, " : "");
    print_calls(w);
    for (int o = 0; o < infer->n_ops; o++)
        floats = floats || w->fixed->ops[o].last;
    if (!floats) {
        esper_page_print(
            w->page,
            "    {\n        int32_t i;\n\n        for (i = 0; i < %s_OUTPUTS; i++)\n            output[i] = get(",
            w->upper);
        print_source(w, infer->output);
        esper_page_print(w->page, ", i);\n    }\n");
    }
    esper_page_print(w->page, "}\n\nvoid %s_run(%s_memory *memory, const %s *input, float *output)\n{\n", name, name,
                     input_type(w));
    if (ids) {
        esper_page_print(w->page, "    compute(memory, input, output);\n}\n");
        return;
    }
    esper_page_print(w->page, "    int32_t i;\n\n    for (i = 0; i < %s_INPUTS; i++)\n        put(", w->upper);
    print_sink(w, infer->input);
    esper_page_print(w->page, ", i, input[i]);\n    compute(memory, output);\n}\n");
}

static void print_run_pixels(const writer *w)
{
    const esper_infer_tensor *input = &w->infer->tensors[w->infer->input];
    const char *name = w->desc->name;

    if (w->desc->mean == NULL)
        return;
    esper_page_print(w->page, "\n");
    print_array(w->page, "pixel_mean", FLOATS, w->desc->mean, input->dim[0]);
    print_array(w->page, "pixel_std", FLOATS, w->desc->std, input->dim[0]);
    esper_page_print(
        w->page,
        "void %s_run_pixels(%s_memory *memory, const uint8_t *pixels, float *output)\n{\n    int32_t c, i, at = 0;\n\n"
        "    for (c = 0; c < %s_CHANNELS; c++)\n"
        "        for (i = 0; i < %s_HEIGHT * %s_WIDTH; i++, at++) {\n"
        "            float value = ((float)pixels[at] / 255.0f - pixel_mean[c]) / pixel_std[c];\n\n",
        name, name, w->upper, w->upper, w->upper);
    if (w->fixed != NULL) {
        esper_page_print(w->page, "            put(");
        print_sink(w, w->infer->input);
        esper_page_print(w->page, ", at, value);\n        }\n    compute(memory, output);\n}\n");
    } else
        esper_page_print(
            w->page,
            "            memory->at[%lld + at] = value;\n        }\n    %s_run(memory, memory->at + %lld, output);\n}\n",
            (long long)w->places.at[w->infer->input], name, (long long)w->places.at[w->infer->input]);
}

static void print_names(const writer *w)
{
    const esper_c99_desc *desc = w->desc;

    if (desc->n_classes > 0) {
        esper_page_print(w->page, "\nconst char *const %s_class_names[%s_CLASSES] = {\n", desc->name, w->upper);
        for (int c = 0; c < desc->n_classes; c++) {
            esper_page_print(w->page, "    ");
            print_string(w->page, desc->classes[c]);
            esper_page_print(w->page, "%s\n", c + 1 < desc->n_classes ? "," : "");
        }
        esper_page_print(w->page, "};\n");
    }
    if (desc->n_features == 0)
        return;
    esper_page_print(w->page, "\nconst char *const %s_feature_names[%s_INPUTS] = {\n", desc->name, w->upper);
    for (int f = 0; f < desc->n_features; f++) {
        esper_page_print(w->page, "    ");
        print_string(w->page, desc->features[f].name);
        esper_page_print(w->page, "%s\n", f + 1 < desc->n_features ? "," : "");
    }
    esper_page_print(w->page, "};\n\nstatic const float feature_mean_std[%s_INPUTS][2] = {\n", w->upper);
    for (int f = 0; f < desc->n_features; f++) {
        esper_page_print(w->page, "    {");
        print_float(w->page, desc->features[f].mean);
        esper_page_print(w->page, ", ");
        print_float(w->page, desc->features[f].std);
        esper_page_print(w->page, "}%s\n", f + 1 < desc->n_features ? "," : "");
    }
    esper_page_print(
        w->page,
        "};\n\nvoid %s_normalise(float *row)\n{\n    int32_t i;\n\n    for (i = 0; i < %s_INPUTS; i++)\n"
        "        row[i] = row[i] != row[i] ? 0.0f : (row[i] - feature_mean_std[i][0]) / feature_mean_std[i][1];\n}\n",
        desc->name, w->upper);
}

static void print_source_file(writer *w, const esper_page *weights)
{
    esper_page_print(w->page,
                     "/* %s.c: written by esper %s; %s.h tells what it is. */\n#include \"%s.h\"\n\n#include <math.h>\n"
                     "#include <stddef.h>\n\n",
                     w->desc->name, ESPER_VERSION, w->desc->name, w->desc->name);
    print_kernels(w);
    esper_page_print(w->page, "%s", weights->text != NULL ? weights->text : "");
    print_run(w);
    print_run_pixels(w);
    print_names(w);
}

/* ------------------------------------------------------------------------------------------------ the header */

static int64_t memory_bytes(const writer *w)
{
    int64_t n = w->fixed != NULL ? w->fixed->places.size : w->places.size;

    if (w->fixed == NULL)
        return (n > 0 ? n : 1) * (int64_t)sizeof(float);
    n = (n > 0 ? n : 1) * (int64_t)sizeof(int16_t);
    return w->fixed->n_scratch > 0 ? (n + 3) / 4 * 4 + w->fixed->n_scratch * (int64_t)sizeof(float) : n;
}

static void print_header_comment(const writer *w)
{
    esper_page_print(w->page, "/* ");
    if (w->desc->about != NULL)
        print_comment(w->page, w->desc->about);
    esper_page_print(
        w->page,
        "\n *\n * Written by esper %s. Valid as C99 and C++; needs libc and libm (-lm), takes no memory of its own.\n *\n"
        " *   numbers      %s\n"
        " *   weights      %lld bytes, constant (flash)\n"
        " *   activations  %lld bytes, a %s_memory of the caller's (RAM); the stack takes less than 512\n"
        " *   operations   %lld multiplications with an addition for each sample\n *\n"
        " *     static %s_memory memory;\n",
        ESPER_VERSION,
        w->fixed != NULL ? "weights of 8 bits with a scale for each channel, activations of 16" : "floats",
        (long long)w->weight_bytes, (long long)memory_bytes(w), w->desc->name, (long long)esper_infer_macs(w->infer),
        w->desc->name);
    if (w->desc->mean != NULL)
        esper_page_print(w->page, " *     %s_run_pixels(&memory, pixels, output);\n */\n", w->desc->name);
    else
        esper_page_print(w->page, " *     %s_run(&memory, input, output);\n */\n", w->desc->name);
}

static void print_run_declarations(const writer *w)
{
    const esper_infer_tensor *input = &w->infer->tensors[w->infer->input];
    const char *name = w->desc->name;

    if (input->ids)
        esper_page_print(
            w->page,
            "/* Ids of %s_INPUTS tokens; a row of scores for each of them, of which each sees only what stands before:\n"
            " * of fewer, fill the rest with any ids and leave their rows. */\n",
            w->upper);
    else if (w->desc->mean != NULL)
        esper_page_print(w->page, "/* Pixels normalised as %s_run_pixels does it: (channels, height, width). */\n",
                         name);
    else if (w->desc->n_features > 0)
        esper_page_print(w->page, "/* A row of numbers, normalised (%s_normalise). */\n", name);
    else
        esper_page_print(w->page, "/* Numbers as the network was trained on. */\n");
    esper_page_print(w->page, "void %s_run(%s_memory *memory, const %s *input, float *output);\n", name, name,
                     input_type(w));
    if (w->desc->mean != NULL)
        esper_page_print(w->page,
                         "\n/* Bytes from 0 to 255: (channels, height, width). */\n"
                         "void %s_run_pixels(%s_memory *memory, const uint8_t *pixels, float *output);\n",
                         name, name);
    if (w->desc->n_features > 0)
        esper_page_print(
            w->page,
            "\n/* Rows as they come: (value - mean) / deviation; NaN, a missing number, becomes 0. What each number is stands in\n"
            " * the names: \"column = word\" is 1 for that word and 0 for others. */\n"
            "void %s_normalise(float *row);\nextern const char *const %s_feature_names[%s_INPUTS];\n",
            name, name, w->upper);
    if (w->desc->n_classes > 0)
        esper_page_print(
            w->page,
            "\n/* UTF-8. The class is that of the largest output; outputs are logits (softmax makes them probabilities). */\n"
            "extern const char *const %s_class_names[%s_CLASSES];\n",
            name, w->upper);
}

static void print_header_file(const writer *w)
{
    const esper_infer_tensor *input = &w->infer->tensors[w->infer->input],
                             *output = &w->infer->tensors[w->infer->output];
    const char *name = w->desc->name;
    int64_t n = w->fixed != NULL ? w->fixed->places.size : w->places.size;

    print_header_comment(w);
    esper_page_print(
        w->page,
        "#ifndef ESPER_%s_H\n#define ESPER_%s_H\n\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
        w->upper, w->upper);
    esper_page_print(w->page, "#define %s_INPUTS %lld /* ", w->upper, (long long)input->count);
    print_shape(w->page, input);
    esper_page_print(w->page, " */\n#define %s_OUTPUTS %lld /* ", w->upper, (long long)output->count);
    print_shape(w->page, output);
    esper_page_print(w->page, " */\n");
    if (w->desc->n_classes > 0)
        esper_page_print(w->page, "#define %s_CLASSES %d\n", w->upper, w->desc->n_classes);
    if (w->desc->mean != NULL)
        esper_page_print(w->page, "#define %s_CHANNELS %d\n#define %s_HEIGHT %d\n#define %s_WIDTH %d\n", w->upper,
                         input->dim[0], w->upper, input->dim[1], w->upper, input->dim[2]);
    esper_page_print(
        w->page,
        "\n/* Activations while a sample is computed; nothing in it has to be kept, or set. */\ntypedef struct %s_memory {\n",
        name);
    esper_page_print(w->page, "    %s at[%lld];\n", w->fixed != NULL ? "int16_t" : "float", (long long)(n > 0 ? n : 1));
    if (w->fixed != NULL && w->fixed->n_scratch > 0)
        esper_page_print(w->page, "    float scratch[%lld];\n", (long long)w->fixed->n_scratch);
    esper_page_print(w->page, "} %s_memory;\n\n", name);
    print_run_declarations(w);
    esper_page_print(w->page, "\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
}

/* ------------------------------------------------------------------------------------------------ the test */

static void print_test_samples(const writer *w)
{
    const esper_c99_desc *desc = w->desc;
    int64_t n_in = w->infer->tensors[w->infer->input].count, n_out = w->infer->tensors[w->infer->output].count;
    bool ids = w->infer->tensors[w->infer->input].ids;

    print_array(w->page, "samples",
                desc->mean != NULL ? UBYTES
                : ids              ? INTS
                                   : FLOATS,
                desc->samples, desc->n_samples * n_in);
    print_array(w->page, "expected", FLOATS, desc->expected, desc->n_samples * n_out);
}

static void print_test_file(const writer *w)
{
    const char *name = w->desc->name, *type = w->desc->mean != NULL ? "uint8_t" : input_type(w);
    const char *run = w->desc->mean != NULL ? "run_pixels" : "run";
    bool ids = w->infer->tensors[w->infer->input].ids;

    esper_page_print(
        w->page,
        "/* A test of %s.c: without arguments it computes %d sample%s and compares them with what Esper computed. With a\n"
        " * file, or - for what comes in, it reads one sample after the other, %s_INPUTS times %s as they lie in memory, and\n"
        " * prints for each the number of the largest output%s.\n"
        " *\n *     cc -O2 -o test main.c %s.c -lm && ./test\n */\n"
        "#include <math.h>\n#include <stdio.h>\n#include <string.h>\n\n#include \"%s.h\"\n\n",
        name, w->desc->n_samples, w->desc->n_samples == 1 ? "" : "s", w->upper, type,
        ids                      ? " of its last token"
        : w->desc->n_classes > 0 ? ", its name and value"
                                 : " and its value",
        name, name);
    print_test_samples(w);
    esper_page_print(w->page, "static %s_memory memory;\n\n", name);
    esper_page_print(w->page,
                     "/* In the last row of outputs. */\nstatic int largest(const float *output)\n{\n"
                     "    int first = %s_OUTPUTS - %d, best = first, i;\n\n    for (i = first; i < %s_OUTPUTS; i++)\n"
                     "        if (output[i] > output[best])\n            best = i;\n    return best;\n}\n\n",
                     w->upper, w->infer->tensors[w->infer->output].dim[w->infer->tensors[w->infer->output].rank - 1],
                     w->upper);
    esper_page_print(w->page,
                     "static int read_samples(const char *path)\n{\n    static %s input[%s_INPUTS];\n"
                     "    static float output[%s_OUTPUTS];\n"
                     "    FILE *file = strcmp(path, \"-\") == 0 ? stdin : fopen(path, \"rb\");\n    size_t n;\n\n"
                     "    if (file == NULL) {\n        perror(path);\n        return 1;\n    }\n"
                     "    while ((n = fread(input, sizeof(*input), %s_INPUTS, file)) == %s_INPUTS) {\n"
                     "        int best;\n\n        %s_%s(&memory, input, output);\n        best = largest(output);\n",
                     type, w->upper, w->upper, w->upper, w->upper, name, run);
    if (w->desc->n_classes > 0 && !ids)
        esper_page_print(
            w->page, "        printf(\"%%d %%s %%.6g\\n\", best, %s_class_names[best], (double)output[best]);\n", name);
    else
        esper_page_print(w->page, "        printf(\"%%d %%.6g\\n\", best %% %d, (double)output[best]);\n",
                         w->infer->tensors[w->infer->output].dim[w->infer->tensors[w->infer->output].rank - 1]);
    esper_page_print(
        w->page,
        "    }\n    if (file != stdin)\n        fclose(file);\n    if (n > 0)\n"
        "        fprintf(stderr, \"%%s: the last sample is cut off\\n\", path);\n    return n > 0;\n}\n\n"
        "int main(int argc, char **argv)\n{\n    static float output[%s_OUTPUTS];\n    double worst = 0.0;\n"
        "    int n, i;\n\n    if (argc > 1)\n        return read_samples(argv[1]);\n"
        "    for (n = 0; n < %d; n++) {\n        %s_%s(&memory, samples + n * %s_INPUTS, output);\n"
        "        for (i = 0; i < %s_OUTPUTS; i++) {\n"
        "            double wanted = (double)expected[n * %s_OUTPUTS + i];\n"
        "            double off = fabs((double)output[i] - wanted) / (1.0 + fabs(wanted));\n\n"
        "            if (worst == worst && !(off <= worst)) /* NaN stays */\n                worst = off;\n        }\n    }\n"
        "    printf(\"%%d samples, the worst output is %%.3g off: %%s\\n\", n, worst, worst <= %s ? \"good\" : \"BAD\");\n"
        "    return worst <= %s ? 0 : 1;\n}\n",
        w->upper, w->desc->n_samples, name, run, w->upper, w->upper, w->upper, w->fixed != NULL ? "1e-3" : "1e-5",
        w->fixed != NULL ? "1e-3" : "1e-5");
}

/* ------------------------------------------------------------------------------------------------ all of it */

static esper_status place_floats(writer *w)
{
    const esper_infer *infer = w->infer;
    int64_t *sizes = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*sizes));
    int64_t *scratch = esper_mem_alloc((size_t)(infer->n_ops + 1) * sizeof(*scratch));
    esper_status status = sizes != NULL && scratch != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "places");

    for (int t = 0; status == ESPER_OK && t < infer->n_tensors; t++)
        sizes[t] = t != infer->output ? infer->tensors[t].count : 0;
    for (int o = 0; status == ESPER_OK && o < infer->n_ops; o++)
        scratch[o] = esper_infer_scratch(infer, &infer->ops[o]);
    if (status == ESPER_OK && w->desc->mean == NULL)
        sizes[infer->input] = 0; /* the caller's */
    if (status == ESPER_OK)
        status = esper_infer_place(infer, sizes, scratch, 1, &w->places);
    esper_mem_free(sizes);
    esper_mem_free(scratch);
    return status;
}

static esper_status write_all(writer *w, esper_c99 *out)
{
    esper_page header = {0}, source = {0}, test = {0}, weights = {0};
    esper_status status = ESPER_OK;

    if (w->fixed == NULL)
        ESPER_TRY(place_floats(w));
    find_sections(w);
    w->page = &weights;
    print_weights(w);
    w->page = &source;
    print_source_file(w, &weights);
    w->page = &header;
    print_header_file(w);
    w->page = &test;
    print_test_file(w);
    if (header.status != ESPER_OK || source.status != ESPER_OK || test.status != ESPER_OK || weights.status != ESPER_OK)
        status = ESPER_FAIL(ESPER_E_NOMEM, "text of %d operations", w->infer->n_ops);
    esper_page_fini(&weights);
    out->header = header.text;
    out->source = source.text;
    out->test = test.text;
    out->weight_bytes = w->weight_bytes;
    out->memory_bytes = memory_bytes(w);
    return status;
}

esper_status esper_c99_init(esper_c99 *c99, const esper_c99_desc *desc)
{
    writer w = {.desc = desc, .infer = desc->infer, .fixed = desc->fixed};
    esper_c99 made = {0};
    esper_status status;

    if (!esper_c99_is_name(desc->name))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "'%.40s' is no name for functions of C: a letter, then letters, digits and _, at most %d",
                          desc->name, ESPER_C99_NAME_CHARS - 1);
    if (desc->infer->n_ops == 0)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "a network without operations");
    for (int t = 0; t < desc->infer->n_tensors; t++)
        if (desc->infer->tensors[t].count > INT32_MAX / 4)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "an activation of %lld numbers is too large for exported C",
                              (long long)desc->infer->tensors[t].count);
    for (size_t i = 0; i <= strlen(desc->name); i++)
        w.upper[i] = (char)toupper((unsigned char)desc->name[i]);
    status = write_all(&w, &made);
    esper_infer_places_fini(&w.places);
    if (status == ESPER_OK)
        *c99 = made;
    else
        esper_c99_fini(&made);
    return status;
}

void esper_c99_fini(esper_c99 *c99)
{
    esper_mem_free(c99->header);
    esper_mem_free(c99->source);
    esper_mem_free(c99->test);
    *c99 = (esper_c99){0};
}
