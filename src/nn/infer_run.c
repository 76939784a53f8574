/* The program in floats. */
#include "nn/infer_run.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#include "nn/c99_kernels.inc"

int64_t esper_infer_scratch(const esper_infer *infer, const esper_infer_op *op)
{
    return op->kind == ESPER_INFER_ATTENTION ? infer->tensors[op->out].dim[0] : 0;
}

esper_status esper_infer_runner_init(esper_infer_runner *runner, const esper_infer *infer)
{
    int64_t *sizes = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*sizes));
    int64_t *scratch = esper_mem_alloc((size_t)(infer->n_ops + 1) * sizeof(*scratch));
    esper_infer_runner made = {.infer = infer};
    esper_status status = ESPER_OK;

    if (sizes == NULL || scratch == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "a program of %d operations", infer->n_ops);
    for (int t = 0; status == ESPER_OK && t < infer->n_tensors; t++)
        sizes[t] = t != infer->input && t != infer->output ? infer->tensors[t].count : 0;
    for (int o = 0; status == ESPER_OK && o < infer->n_ops; o++)
        scratch[o] = esper_infer_scratch(infer, &infer->ops[o]);
    if (status == ESPER_OK)
        status = esper_infer_place(infer, sizes, scratch, 1, &made.places);
    if (status == ESPER_OK && made.places.size > 0) {
        made.memory = esper_mem_alloc((size_t)made.places.size * sizeof(float));
        if (made.memory == NULL)
            status = ESPER_FAIL(ESPER_E_NOMEM, "activations of a sample");
    }
    esper_mem_free(sizes);
    esper_mem_free(scratch);
    if (status == ESPER_OK)
        *runner = made;
    else
        esper_infer_runner_fini(&made);
    return status;
}

void esper_infer_runner_fini(esper_infer_runner *runner)
{
    esper_infer_places_fini(&runner->places);
    esper_mem_free(runner->memory);
    *runner = (esper_infer_runner){0};
}

static void run_op(const esper_infer_runner *self, const esper_infer_op *op, const float *const in[3],
                   const int32_t *ids, float *scratch, float *out)
{
    const esper_infer *infer = self->infer;
    const esper_infer_tensor *x = &infer->tensors[op->in[0]], *y = &infer->tensors[op->out];
    const esper_infer_weights *W = op->w != ESPER_INFER_NONE ? &infer->weights[op->w] : NULL;
    const float *w = W != NULL ? W->values : NULL;
    const float *b = op->b != ESPER_INFER_NONE ? infer->weights[op->b].values : NULL;
    int32_t n = (int32_t)y->count, C = x->dim[0], plane = (int32_t)(x->count / C), D = x->dim[x->rank - 1];

    switch (op->kind) {
    case ESPER_INFER_CONV: {
        conv_shape s = {C, x->dim[1], x->dim[2], W->dim[0], W->dim[2], op->pad, op->groups, op->relu, op->pool};

        conv(from(in[0]), w, b, &s, to(out));
        break;
    }
    case ESPER_INFER_LINEAR:
        linear(from(in[0]), w, b, n / W->dim[0], W->dim[1], W->dim[0], op->relu, to(out));
        break;
    case ESPER_INFER_AFFINE:
        affine(from(in[0]), w, b, C, plane, op->relu, to(out));
        break;
    case ESPER_INFER_GROUP_NORM:
        group_norm(from(in[0]), w, b, C, plane, op->groups, op->eps, to(out));
        break;
    case ESPER_INFER_LAYER_NORM:
        layer_norm(from(in[0]), w, b, n / D, D, op->eps, to(out));
        break;
    case ESPER_INFER_RELU:
        relu(from(in[0]), n, to(out));
        break;
    case ESPER_INFER_GELU:
        gelu(from(in[0]), n, to(out));
        break;
    case ESPER_INFER_SIGMOID:
        sigmoid(from(in[0]), n, to(out));
        break;
    case ESPER_INFER_TANH:
        hyperbolic(from(in[0]), n, to(out));
        break;
    case ESPER_INFER_MAX_POOL:
        max_pool(from(in[0]), C, x->dim[1], x->dim[2], to(out));
        break;
    case ESPER_INFER_GLOBAL_MEAN:
        if (x->rank == 3)
            global_mean(from(in[0]), n, plane, plane, 1, to(out));
        else
            global_mean(from(in[0]), n, 1, C, D, to(out));
        break;
    case ESPER_INFER_EMBEDDING:
        embedding(ids, w, b, (int32_t)x->count, W->dim[1], to(out));
        break;
    case ESPER_INFER_ATTENTION:
        attention(from(in[0]), y->dim[0], y->dim[1], op->heads, scratch, to(out));
        break;
    case ESPER_INFER_ADD:
        add(from(in[0]), from(in[1]), n, to(out));
        break;
    case ESPER_INFER_MUL:
        mul(from(in[0]), from(in[1]), n, (int32_t)(x->count / infer->tensors[op->in[1]].count), to(out));
        break;
    case ESPER_INFER_MIX:
        mix(from(in[0]), from(in[1]), op->weight, n, to(out));
        break;
    case ESPER_INFER_BLEND_MUL:
        blend_mul(from(in[0]), from(in[1]), from(in[2]), op->weight, n, to(out));
        break;
    case ESPER_INFER_BLEND_GATE:
        blend_gate(from(in[0]), from(in[1]), from(in[2]), op->weight, n, to(out));
        break;
    case ESPER_N_INFER:
        break;
    }
}

void esper_infer_run(const esper_infer_runner *runner, const void *input, float *output)
{
    const esper_infer *infer = runner->infer;

    if (runner->saw != NULL && !infer->tensors[infer->input].ids)
        runner->saw(runner->context, infer->input, input);
    for (int o = 0; o < infer->n_ops; o++) {
        const esper_infer_op *op = &infer->ops[o];
        int64_t at = runner->places.scratch[o];
        float *out = op->out == infer->output ? output : runner->memory + runner->places.at[op->out];
        const float *in[ESPER_INFER_MAX_IN] = {NULL};

        for (int i = 0; i < ESPER_INFER_MAX_IN && op->in[i] != ESPER_INFER_NONE; i++)
            in[i] = op->in[i] == infer->input    ? input
                    : op->in[i] == infer->output ? output
                                                 : runner->memory + runner->places.at[op->in[i]];
        run_op(runner, op, in, input, at >= 0 ? runner->memory + at : NULL, out);
        if (runner->saw != NULL)
            runner->saw(runner->context, op->out, out);
    }
    if (infer->output == infer->input)
        memcpy(output, input, (size_t)infer->tensors[infer->input].count * sizeof(float));
}
