/* The program in whole numbers. */
#include <math.h>
#include <string.h>

#include "nn/fixed.h"

#define ESPER_C99_FIXED
#include "nn/c99_kernels.inc"

static source source_of(const esper_fixed *self, int tensor)
{
    if (tensor == ESPER_INFER_NONE || self->places.at[tensor] < 0)
        return from(NULL, 0.0f);
    return from(self->memory + self->places.at[tensor], self->tensors[tensor].scale);
}

static sink sink_of(const esper_fixed *self, int tensor)
{
    if (self->places.at[tensor] < 0)
        return to(NULL, 0.0f, 0);
    return to(self->memory + self->places.at[tensor], 1.0f / self->tensors[tensor].scale, self->tensors[tensor].most);
}

static void run_op(const esper_fixed *self, int o, const int32_t *ids, float *output)
{
    const esper_infer *infer = self->infer;
    const esper_infer_op *op = &infer->ops[o];
    const esper_fixed_op *of = &self->ops[o];
    const esper_infer_tensor *x = &infer->tensors[op->in[0]], *y = &infer->tensors[op->out];
    const esper_infer_weights *W = op->w != ESPER_INFER_NONE ? &infer->weights[op->w] : NULL;
    const float *w = W != NULL ? W->values : NULL;
    const float *b = op->b != ESPER_INFER_NONE ? infer->weights[op->b].values : NULL;
    const esper_fixed_weights *Q = op->w != ESPER_INFER_NONE ? &self->weights[op->w] : NULL;
    const esper_fixed_weights *P = op->b != ESPER_INFER_NONE ? &self->weights[op->b] : NULL;
    source a = source_of(self, op->in[0]), second = source_of(self, op->in[1]), third = source_of(self, op->in[2]);
    sink out = sink_of(self, op->out);
    int32_t n = (int32_t)y->count, C = x->dim[0], plane = (int32_t)(x->count / C), D = x->dim[x->rank - 1];

    switch (op->kind) {
    case ESPER_INFER_CONV: {
        conv_shape s = {C, x->dim[1], x->dim[2], W->dim[0], W->dim[2], op->pad, op->groups, op->relu, op->pool};

        conv_fixed(a, Q->q, of->bias, of->factor, of->shift, &s, out);
        break;
    }
    case ESPER_INFER_LINEAR:
        if (of->last)
            linear_last(a, Q->q, of->bias, Q->scale, n / W->dim[0], W->dim[1], W->dim[0], op->relu, output);
        else
            linear_fixed(a, Q->q, of->bias, of->factor, of->shift, n / W->dim[0], W->dim[1], W->dim[0], op->relu, out);
        break;
    case ESPER_INFER_AFFINE:
        affine(a, w, b, C, plane, op->relu, out);
        break;
    case ESPER_INFER_GROUP_NORM:
        group_norm(a, w, b, C, plane, op->groups, op->eps, out);
        break;
    case ESPER_INFER_LAYER_NORM:
        layer_norm(a, w, b, n / D, D, op->eps, out);
        break;
    case ESPER_INFER_RELU:
        relu(a, n, out);
        break;
    case ESPER_INFER_GELU:
        gelu(a, n, out);
        break;
    case ESPER_INFER_SIGMOID:
        sigmoid(a, n, out);
        break;
    case ESPER_INFER_TANH:
        hyperbolic(a, n, out);
        break;
    case ESPER_INFER_MAX_POOL:
        max_pool(a, C, x->dim[1], x->dim[2], out);
        break;
    case ESPER_INFER_GLOBAL_MEAN:
        if (x->rank == 3)
            global_mean(a, n, plane, plane, 1, out);
        else
            global_mean(a, n, 1, C, D, out);
        break;
    case ESPER_INFER_EMBEDDING:
        embedding_fixed(ids, Q->q, Q->scale, P != NULL ? P->q : NULL, P != NULL ? P->scale : NULL, (int32_t)x->count,
                        W->dim[1], out);
        break;
    case ESPER_INFER_ATTENTION:
        attention(a, y->dim[0], y->dim[1], op->heads, self->scratch, out);
        break;
    case ESPER_INFER_ADD:
        add(a, second, n, out);
        break;
    case ESPER_INFER_MUL:
        mul(a, second, n, (int32_t)(x->count / infer->tensors[op->in[1]].count), out);
        break;
    case ESPER_INFER_MIX:
        mix(a, second, op->weight, n, out);
        break;
    case ESPER_INFER_BLEND_MUL:
        blend_mul(a, second, third, op->weight, n, out);
        break;
    case ESPER_INFER_BLEND_GATE:
        blend_gate(a, second, third, op->weight, n, out);
        break;
    case ESPER_N_INFER:
        break;
    }
}

void esper_fixed_run(const esper_fixed *fixed, const void *input, float *output)
{
    const esper_infer *infer = fixed->infer;
    bool floats = false;

    if (!infer->tensors[infer->input].ids && fixed->places.at[infer->input] >= 0)
        for (int32_t i = 0; i < infer->tensors[infer->input].count; i++)
            put(sink_of(fixed, infer->input), i, ((const float *)input)[i]);
    for (int o = 0; o < infer->n_ops; o++) {
        run_op(fixed, o, input, output);
        floats = floats || fixed->ops[o].last;
    }
    for (int32_t i = 0; !floats && i < infer->tensors[infer->output].count; i++)
        output[i] = get(source_of(fixed, infer->output), i);
}
