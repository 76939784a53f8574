/* From a program to what it computes in evaluation: translated operation by operation, then shortened. */
#include "nn/infer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/plan_schedule.h"

const char *esper_infer_name(esper_infer_kind kind)
{
    static const char *const names[ESPER_N_INFER] = {
#define X(kind, name) [ESPER_INFER_##kind] = name,
        ESPER_INFER_LIST(X)
#undef X
    };

    assert((unsigned)kind < ESPER_N_INFER);
    return names[kind];
}

/* ------------------------------------------------------------------------------------------------ weights */

/* An empty place for weights of that shape; NONE when memory is out. */
static int add_weights(esper_infer *infer, int rank, const int32_t *dim)
{
    esper_infer_weights *w = &infer->weights[infer->n_weights];

    assert(infer->n_weights < infer->room_weights);
    *w = (esper_infer_weights){.rank = rank, .count = 1};
    for (int i = 0; i < ESPER_MAX_RANK; i++) {
        w->dim[i] = i < rank ? dim[i] : 1;
        w->count *= w->dim[i];
    }
    w->values = esper_mem_alloc((size_t)w->count * sizeof(float));
    if (w->values == NULL)
        return ESPER_INFER_NONE;
    return infer->n_weights++;
}

static const float *state_at(const esper_infer_desc *desc, int tensor)
{
    const esper_tensor *t = &desc->net->tensors[tensor];

    return esper_slab_at(desc->mirror, t->role == ESPER_ROLE_PARAM ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, t);
}

static esper_status take_state(esper_infer *infer, const esper_infer_desc *desc, int tensor, int *weights_out)
{
    const esper_tensor *t = &desc->net->tensors[tensor];
    const float *values = state_at(desc, tensor);
    int w;

    for (int64_t i = 0; i < t->count; i++)
        if (!isfinite(values[i]))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: element %lld is %g: a network that is not finite is not exported",
                              t->name, (long long)i, (double)values[i]);
    w = add_weights(infer, t->rank, t->dim);
    if (w == ESPER_INFER_NONE)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: its weights", t->name);
    memcpy(infer->weights[w].values, values, (size_t)t->count * sizeof(float));
    *weights_out = w;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ translating */

typedef struct translator {
    const esper_infer_desc *desc;
    esper_infer            *infer;
    int                    *now; /* (net tensors) what stands for it; NONE = nothing yet */
    int                     n_flat; /* tensors of the list so far */
} translator;

static int add_tensor(translator *self, int net_tensor)
{
    const esper_tensor *from = &self->desc->net->tensors[net_tensor];
    esper_infer_tensor *to = &self->infer->tensors[self->infer->n_tensors];

    *to = (esper_infer_tensor){.rank = from->rank, .count = from->count, .ids = from->dtype == ESPER_I32};
    memcpy(to->dim, from->dim, sizeof(to->dim));
    return self->infer->n_tensors++;
}

static void take_name(esper_infer_op *op, const esper_tensor *weight)
{
    const char *dot = strrchr(weight->name, '.');

    snprintf(op->name, sizeof(op->name), "%.*s", dot != NULL ? (int)(dot - weight->name) : (int)strlen(weight->name),
             weight->name);
}

static esper_status number_of(const translator *self, int tensor, float *value_out)
{
    const char *name = self->desc->net->tensors[tensor].name;

    for (int i = 0; i < self->desc->n_numbers; i++)
        if (strcmp(self->desc->numbers[i].name, name) == 0) {
            float value = self->desc->numbers[i].value;

            *value_out = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
            return ESPER_OK;
        }
    return ESPER_FAIL(ESPER_E_ARG, "%s: the network needs this number, and nobody says what it is", name);
}

/* Factor and shift of a batch norm's channels, reckoned in double. */
static esper_status fold_norm(translator *self, const esper_op *op, esper_infer_op *to)
{
    const float *state[4];
    int32_t C = self->desc->net->tensors[op->in[1]].dim[0];

    for (int i = 0; i < 4; i++) {
        int checked;

        ESPER_TRY(take_state(self->infer, self->desc, op->in[1 + i], &checked));
        state[i] = self->infer->weights[checked].values;
        if (i < 2)
            *(i == 0 ? &to->w : &to->b) = checked;
    }
    for (int c = 0; c < C; c++) {
        double factor = (double)state[0][c] / sqrt((double)state[3][c] + (double)op->attr.norm.eps);
        double shift = (double)state[1][c] - (double)state[2][c] * factor;

        self->infer->weights[to->w].values[c] = (float)factor;
        self->infer->weights[to->b].values[c] = (float)shift;
    }
    self->infer->n_weights -= 2; /* mean and variance are in them now */
    esper_mem_free(self->infer->weights[self->infer->n_weights].values);
    esper_mem_free(self->infer->weights[self->infer->n_weights + 1].values);
    return ESPER_OK;
}

static esper_status no_shift(translator *self, esper_infer_op *to)
{
    const esper_infer_weights *w = &self->infer->weights[to->w];

    to->b = add_weights(self->infer, 1, w->dim);
    return to->b != ESPER_INFER_NONE ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "%s", to->name);
}

/* What an operation becomes: an alias of one of its inputs (its number), or NONE and *to is filled. */
static esper_status translate(translator *self, const esper_op *op, esper_infer_op *to, int *alias_out)
{
    const esper_net *net = self->desc->net;
    float alpha = 0.0f;

    *alias_out = ESPER_INFER_NONE;
    switch (op->kind) {
    case ESPER_OP_CONV2D:
        to->kind = ESPER_INFER_CONV;
        to->pad = op->attr.conv.pad;
        to->groups = op->attr.conv.groups;
        return take_state(self->infer, self->desc, op->in[1], &to->w);
    case ESPER_OP_BATCH_NORM:
        to->kind = ESPER_INFER_AFFINE;
        return fold_norm(self, op, to);
    case ESPER_OP_CHANNEL_SCALE:
        to->kind = ESPER_INFER_AFFINE;
        ESPER_TRY(take_state(self->infer, self->desc, op->in[1], &to->w));
        return no_shift(self, to);
    case ESPER_OP_GROUP_NORM:
    case ESPER_OP_LAYER_NORM:
        to->kind = op->kind == ESPER_OP_GROUP_NORM ? ESPER_INFER_GROUP_NORM : ESPER_INFER_LAYER_NORM;
        to->groups = op->attr.norm.groups;
        to->eps = op->attr.norm.eps;
        ESPER_TRY(take_state(self->infer, self->desc, op->in[1], &to->w));
        return take_state(self->infer, self->desc, op->in[2], &to->b);
    case ESPER_OP_LINEAR:
    case ESPER_OP_EMBEDDING:
        to->kind = op->kind == ESPER_OP_LINEAR ? ESPER_INFER_LINEAR : ESPER_INFER_EMBEDDING;
        ESPER_TRY(take_state(self->infer, self->desc, op->in[1], &to->w));
        return op->in[2] != ESPER_NO_TENSOR ? take_state(self->infer, self->desc, op->in[2], &to->b) : ESPER_OK;
    case ESPER_OP_RELU:
        to->kind = ESPER_INFER_RELU;
        return ESPER_OK;
    case ESPER_OP_GELU:
        to->kind = ESPER_INFER_GELU;
        return ESPER_OK;
    case ESPER_OP_SIGMOID:
        to->kind = ESPER_INFER_SIGMOID;
        return ESPER_OK;
    case ESPER_OP_TANH:
        to->kind = ESPER_INFER_TANH;
        return ESPER_OK;
    case ESPER_OP_MAX_POOL:
        to->kind = ESPER_INFER_MAX_POOL;
        return ESPER_OK;
    case ESPER_OP_GLOBAL_MEAN:
        to->kind = ESPER_INFER_GLOBAL_MEAN;
        return ESPER_OK;
    case ESPER_OP_ATTENTION:
        to->kind = ESPER_INFER_ATTENTION;
        to->heads = op->attr.attention.heads;
        return ESPER_OK;
    case ESPER_OP_ADD:
        to->kind = ESPER_INFER_ADD;
        return ESPER_OK;
    case ESPER_OP_MUL:
        to->kind = ESPER_INFER_MUL;
        return ESPER_OK;
    case ESPER_OP_MIX_TANH:
        to->kind = ESPER_INFER_MIX;
        to->weight = (float)tanh((double)*state_at(self->desc, op->in[2]));
        return ESPER_OK;
    case ESPER_OP_DROPOUT:
    case ESPER_OP_ISOLATE:
    case ESPER_OP_STRAIGHT_THROUGH:
        *alias_out = 0;
        return ESPER_OK;
    case ESPER_OP_BLEND_ADD:
        ESPER_TRY(number_of(self, op->in[2], &alpha));
        to->kind = ESPER_INFER_MIX;
        to->weight = alpha;
        *alias_out = alpha <= 0.0f ? 0 : alpha >= 1.0f ? 1 : ESPER_INFER_NONE;
        return ESPER_OK;
    case ESPER_OP_BLEND_MUL:
    case ESPER_OP_BLEND_GATE:
        ESPER_TRY(number_of(self, op->in[3], &alpha));
        to->kind = op->kind == ESPER_OP_BLEND_MUL ? ESPER_INFER_BLEND_MUL : ESPER_INFER_BLEND_GATE;
        to->weight = alpha;
        *alias_out = alpha <= 0.0f ? 0 : ESPER_INFER_NONE;
        return ESPER_OK;
    default:
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: the operation %s is not exported", net->tensors[op->out[0]].name,
                          esper_op_info_of(op->kind)->name);
    }
}

/* Activations among an operation's inputs, in their order. */
static void take_inputs(const translator *self, const esper_op *op, esper_infer_op *to)
{
    const esper_net *net = self->desc->net;
    int n = 0;

    for (int i = 0; i < ESPER_OP_MAX_IN; i++) {
        int t = op->in[i];
        bool number = t != ESPER_NO_TENSOR && net->tensors[t].role == ESPER_ROLE_INPUT && t != net->input;

        if (t == ESPER_NO_TENSOR || number || net->tensors[t].role == ESPER_ROLE_PARAM ||
            net->tensors[t].role == ESPER_ROLE_BUFFER)
            continue;
        if (to->name[0] == '\0' && to->w != ESPER_INFER_NONE)
            take_name(to, &net->tensors[op->in[1]]);
        assert(n < ESPER_INFER_MAX_IN && self->now[t] != ESPER_INFER_NONE);
        to->in[n++] = self->now[t];
    }
}

static esper_status translate_all(translator *self)
{
    const esper_net *net = self->desc->net;

    for (int t = 0; t < net->n_tensors; t++)
        self->now[t] = ESPER_INFER_NONE;
    self->infer->input = self->now[net->input] = add_tensor(self, net->input);
    for (int o = 0; o < net->n_ops; o++) {
        const esper_op *op = &net->ops[o];
        esper_infer_op to = {
            .in = {ESPER_INFER_NONE, ESPER_INFER_NONE, ESPER_INFER_NONE}, .w = ESPER_INFER_NONE, .b = ESPER_INFER_NONE};
        int alias;

        if (op->kind == ESPER_OP_SOFTMAX_XENT)
            continue; /* a loss is no part of it */
        ESPER_TRY(translate(self, op, &to, &alias));
        if (alias != ESPER_INFER_NONE) {
            self->now[op->out[0]] = self->now[op->in[alias]];
            continue;
        }
        take_inputs(self, op, &to);
        to.out = self->now[op->out[0]] = add_tensor(self, op->out[0]);
        self->infer->ops[self->infer->n_ops++] = to;
    }
    self->infer->output = self->now[net->output];
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ shortening */

static void count_uses(esper_infer *infer)
{
    for (int t = 0; t < infer->n_tensors; t++)
        infer->tensors[t].n_uses = infer->tensors[t].last_use = 0;
    for (int o = 0; o < infer->n_ops; o++)
        for (int i = 0; i < ESPER_INFER_MAX_IN; i++)
            if (infer->ops[o].in[i] != ESPER_INFER_NONE) {
                infer->tensors[infer->ops[o].in[i]].n_uses++;
                infer->tensors[infer->ops[o].in[i]].last_use = o;
            }
    infer->tensors[infer->output].n_uses++;
    infer->tensors[infer->output].last_use = infer->n_ops;
}

/* Operations whose results nobody reads, from the end, so that what only they read goes with them. */
static void drop_unused(esper_infer *infer)
{
    int n = 0;

    count_uses(infer);
    for (int o = infer->n_ops - 1; o >= 0; o--)
        if (infer->tensors[infer->ops[o].out].n_uses == 0)
            for (int i = 0; i < ESPER_INFER_MAX_IN; i++)
                if (infer->ops[o].in[i] != ESPER_INFER_NONE)
                    infer->tensors[infer->ops[o].in[i]].n_uses--;
    for (int o = 0; o < infer->n_ops; o++)
        if (infer->tensors[infer->ops[o].out].n_uses > 0)
            infer->ops[n++] = infer->ops[o];
    infer->n_ops = n;
    count_uses(infer);
}

/* The operation that makes what operation o alone reads; NULL where there is none, or others read it too. */
static esper_infer_op *sole_maker(esper_infer *infer, int o)
{
    int t = infer->ops[o].in[0];

    if (infer->tensors[t].n_uses != 1)
        return NULL;
    for (int k = o - 1; k >= 0; k--)
        if (infer->ops[k].out == t)
            return &infer->ops[k];
    return NULL;
}

/* Factors and shifts of channels go into weights and biases of what comes before. */
static esper_status fold_affine(esper_infer *infer, esper_infer_op *before, const esper_infer_op *affine)
{
    const float *factor = infer->weights[affine->w].values, *shift = infer->weights[affine->b].values;
    esper_infer_weights *w = &infer->weights[before->w];
    int64_t C = infer->weights[affine->w].count, each = w->count / C;

    if (before->b == ESPER_INFER_NONE) {
        before->b = add_weights(infer, 1, (int32_t[]){(int32_t)C});
        if (before->b == ESPER_INFER_NONE)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: bias", before->name);
    }
    for (int64_t c = 0; c < C; c++) {
        float *bias = &infer->weights[before->b].values[c];

        *bias = (float)((double)*bias * (double)factor[c] + (double)shift[c]);
        for (int64_t i = 0; i < each; i++)
            w->values[c * each + i] = (float)((double)w->values[c * each + i] * (double)factor[c]);
    }
    return ESPER_OK;
}

static bool takes_affine(const esper_infer *infer, const esper_infer_op *before)
{
    if (before == NULL || before->relu || before->pool)
        return false;
    return before->kind == ESPER_INFER_CONV || before->kind == ESPER_INFER_AFFINE ||
           (before->kind == ESPER_INFER_LINEAR && infer->tensors[before->out].rank == 1);
}

static bool takes_relu(const esper_infer_op *before)
{
    return before != NULL && !before->relu && !before->pool &&
           (before->kind == ESPER_INFER_CONV || before->kind == ESPER_INFER_LINEAR ||
            before->kind == ESPER_INFER_AFFINE);
}

/* One operation less: `before` makes what o made. */
static void join(esper_infer *infer, esper_infer_op *before, int o)
{
    before->out = infer->ops[o].out;
    memmove(&infer->ops[o], &infer->ops[o + 1], (size_t)(infer->n_ops - o - 1) * sizeof(*infer->ops));
    infer->n_ops--;
    count_uses(infer);
}

static esper_status shorten(esper_infer *infer)
{
    drop_unused(infer);
    for (int o = 0; o < infer->n_ops;) {
        esper_infer_kind kind = infer->ops[o].kind;
        esper_infer_op *before = infer->ops[o].relu ? NULL : sole_maker(infer, o);

        if (kind == ESPER_INFER_AFFINE && takes_affine(infer, before))
            ESPER_TRY(fold_affine(infer, before, &infer->ops[o]));
        else if (kind == ESPER_INFER_RELU && takes_relu(before))
            before->relu = true;
        else if (kind == ESPER_INFER_MAX_POOL && before != NULL && before->kind == ESPER_INFER_CONV && !before->pool)
            before->pool = true;
        else {
            o++;
            continue;
        }
        join(infer, before, o);
    }
    for (int o = 0; o < infer->n_ops; o++) {
        esper_infer_op *op = &infer->ops[o];

        if ((op->kind != ESPER_INFER_CONV && op->kind != ESPER_INFER_LINEAR) || op->b != ESPER_INFER_NONE)
            continue;
        op->b = add_weights(infer, 1, infer->weights[op->w].dim);
        if (op->b == ESPER_INFER_NONE)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: bias", op->name);
    }
    return ESPER_OK;
}

/* Weights that nobody has any more: of operations that were dropped, or folded away. */
static void drop_weights(esper_infer *infer)
{
    for (int w = 0; w < infer->n_weights; w++) {
        bool used = false;

        for (int o = 0; o < infer->n_ops; o++)
            used = used || infer->ops[o].w == w || infer->ops[o].b == w;
        if (!used) {
            esper_mem_free(infer->weights[w].values);
            infer->weights[w].values = NULL;
            infer->weights[w].count = 0;
        }
    }
}

/* Finite numbers need not stay so: a variance below 0, factors that are folded into large weights. */
static esper_status check_finite(const esper_infer *infer)
{
    for (int o = 0; o < infer->n_ops; o++) {
        const esper_infer_op *op = &infer->ops[o];
        const int tables[2] = {op->w, op->b};

        if (!isfinite(op->weight))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: its weight is %g: a network that is not finite is not exported",
                              esper_infer_name(op->kind), (double)op->weight);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; tables[k] != ESPER_INFER_NONE && i < infer->weights[tables[k]].count; i++)
                if (!isfinite(infer->weights[tables[k]].values[i]))
                    return ESPER_FAIL(ESPER_E_FORMAT,
                                      "%s: element %lld is %g once norms are folded into it: a network that is not "
                                      "finite is not exported",
                                      op->name, (long long)i, (double)infer->weights[tables[k]].values[i]);
    }
    return ESPER_OK;
}

/* A table that an embedding and another operation read, the head, is kept once. */
static void share_weights(esper_infer *infer)
{
    for (int a = 0; a < infer->n_ops; a++)
        for (int b = 0; b < a; b++) {
            int wa = infer->ops[a].w, wb = infer->ops[b].w;
            const esper_infer_weights *x, *y;

            if (wa == ESPER_INFER_NONE || wb == ESPER_INFER_NONE || wa == wb ||
                (infer->ops[a].kind != ESPER_INFER_EMBEDDING && infer->ops[b].kind != ESPER_INFER_EMBEDDING))
                continue;
            x = &infer->weights[wa];
            y = &infer->weights[wb];
            if (x->count == y->count && x->rank == y->rank && memcmp(x->dim, y->dim, sizeof(x->dim)) == 0 &&
                memcmp(x->values, y->values, (size_t)x->count * sizeof(float)) == 0)
                infer->ops[a].w = wb;
        }
}

esper_status esper_infer_init(esper_infer *infer, const esper_infer_desc *desc)
{
    const esper_net *net = desc->net;
    esper_infer made = {.room_weights = 5 * net->n_ops + 4};
    translator self = {.desc = desc, .infer = &made};
    esper_status status;

    if (net->input == ESPER_NO_TENSOR || net->output == ESPER_NO_TENSOR)
        return ESPER_FAIL(ESPER_E_ARG, "a network without input or output cannot be exported");
    made.tensors = esper_mem_alloc((size_t)(net->n_tensors + 1) * sizeof(*made.tensors));
    made.ops = esper_mem_alloc((size_t)(net->n_ops + 1) * sizeof(*made.ops));
    made.weights = esper_mem_alloc((size_t)made.room_weights * sizeof(*made.weights));
    self.now = esper_mem_alloc((size_t)net->n_tensors * sizeof(*self.now));
    status = made.tensors != NULL && made.ops != NULL && made.weights != NULL && self.now != NULL
                 ? translate_all(&self)
                 : ESPER_FAIL(ESPER_E_NOMEM, "a program of %d operations", net->n_ops);
    if (status == ESPER_OK)
        status = shorten(&made);
    if (status == ESPER_OK)
        status = check_finite(&made);
    if (status == ESPER_OK) {
        share_weights(&made);
        drop_weights(&made);
    }
    esper_mem_free(self.now);
    if (status == ESPER_OK)
        *infer = made;
    else
        esper_infer_fini(&made);
    return status;
}

void esper_infer_fini(esper_infer *infer)
{
    for (int w = 0; w < infer->n_weights; w++)
        esper_mem_free(infer->weights[w].values);
    esper_mem_free(infer->weights);
    esper_mem_free(infer->tensors);
    esper_mem_free(infer->ops);
    *infer = (esper_infer){0};
}

/* ------------------------------------------------------------------------------------------------ its cost */

int64_t esper_infer_op_macs(const esper_infer *infer, const esper_infer_op *op)
{
    const esper_infer_tensor *x = &infer->tensors[op->in[0]], *y = &infer->tensors[op->out];
    const esper_infer_weights *w = op->w != ESPER_INFER_NONE ? &infer->weights[op->w] : NULL;
    int64_t T;

    switch (op->kind) {
    case ESPER_INFER_CONV: /* taps beyond the border are counted, as everybody does */
        return (int64_t)w->count * (x->dim[1] + 2 * op->pad - w->dim[2] + 1) *
               (x->dim[2] + 2 * op->pad - w->dim[3] + 1);
    case ESPER_INFER_LINEAR:
        return w->count * (y->count / w->dim[0]);
    case ESPER_INFER_ATTENTION:
        T = y->dim[0];
        return T * (T + 1) / 2 * y->dim[1] * 2;
    case ESPER_INFER_AFFINE:
        return y->count;
    default:
        return 0;
    }
}

int64_t esper_infer_macs(const esper_infer *infer)
{
    int64_t macs = 0;

    for (int o = 0; o < infer->n_ops; o++)
        macs += esper_infer_op_macs(infer, &infer->ops[o]);
    return macs;
}

int64_t esper_infer_params(const esper_infer *infer)
{
    int64_t n = 0;

    for (int w = 0; w < infer->n_weights; w++)
        n += infer->weights[w].count;
    return n;
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Whether element i of the output is made of element i of the inputs, and of nothing else of the first. */
static bool is_elementwise(const esper_infer *infer, const esper_infer_op *op)
{
    switch (op->kind) {
    case ESPER_INFER_AFFINE:
    case ESPER_INFER_RELU:
    case ESPER_INFER_GELU:
    case ESPER_INFER_SIGMOID:
    case ESPER_INFER_TANH:
    case ESPER_INFER_ADD:
    case ESPER_INFER_MUL:
    case ESPER_INFER_MIX:
    case ESPER_INFER_BLEND_MUL:
    case ESPER_INFER_BLEND_GATE:
        return infer->tensors[op->in[0]].count == infer->tensors[op->out].count;
    default:
        return false;
    }
}

static void live(esper_extent *extent, int begin, int end)
{
    extent->begin = extent->begin == ESPER_NEVER || begin < extent->begin ? begin : extent->begin;
    extent->end = end > extent->end ? end : extent->end;
}

esper_status esper_infer_place(const esper_infer *infer, const int64_t *sizes, const int64_t *scratch, int64_t align,
                               esper_infer_places *places)
{
    int room = infer->n_tensors + infer->n_ops, n = 0;
    esper_extent *extents = esper_mem_alloc((size_t)room * sizeof(*extents));
    esper_extent **list = esper_mem_alloc((size_t)room * sizeof(*list));
    int *home = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*home));
    esper_infer_places made = {.at = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*made.at)),
                               .scratch = esper_mem_alloc((size_t)infer->n_ops * sizeof(*made.scratch) + 1)};
    bool good = extents != NULL && list != NULL && home != NULL && made.at != NULL && made.scratch != NULL;

    for (int i = 0; good && i < room; i++)
        extents[i].begin = extents[i].end = ESPER_NEVER;
    for (int t = 0; good && t < infer->n_tensors; t++)
        home[t] = t;
    if (good && sizes[infer->input] > 0)
        live(&extents[infer->input], 0, infer->tensors[infer->input].last_use);
    for (int o = 0; good && o < infer->n_ops; o++) {
        const esper_infer_op *op = &infer->ops[o];
        bool over = is_elementwise(infer, op) && sizes[op->out] > 0 && sizes[op->in[0]] == sizes[op->out] &&
                    op->in[0] != infer->input && infer->tensors[op->in[0]].last_use == o;

        for (int i = 1; i < ESPER_INFER_MAX_IN; i++) /* a factor of many elements is read after they were written */
            over = over && (op->in[i] == ESPER_INFER_NONE || op->in[i] != op->in[0]);
        home[op->out] = over ? home[op->in[0]] : op->out;
        live(&extents[home[op->out]], o, infer->tensors[op->out].last_use);
        if (scratch[o] > 0)
            live(&extents[infer->n_tensors + o], o, o);
    }
    for (int i = 0; good && i < room; i++) {
        int64_t size = i < infer->n_tensors ? sizes[i] : scratch[i - infer->n_tensors];

        extents[i].bytes = (size_t)((size + align - 1) / align * align);
        if (extents[i].begin != ESPER_NEVER && size > 0)
            list[n++] = &extents[i];
    }
    if (good)
        made.size = (int64_t)esper_extents_place(list, n);
    for (int t = 0; good && t < infer->n_tensors; t++)
        made.at[t] = sizes[t] > 0 && extents[home[t]].begin != ESPER_NEVER ? (int64_t)extents[home[t]].offset : -1;
    for (int o = 0; good && o < infer->n_ops; o++)
        made.scratch[o] = scratch[o] > 0 ? (int64_t)extents[infer->n_tensors + o].offset : -1;
    esper_mem_free(extents);
    esper_mem_free(list);
    esper_mem_free(home);
    if (!good) {
        esper_infer_places_fini(&made);
        return ESPER_FAIL(ESPER_E_NOMEM, "places of %d tensors", infer->n_tensors);
    }
    *places = made;
    return ESPER_OK;
}

void esper_infer_places_fini(esper_infer_places *places)
{
    esper_mem_free(places->at);
    esper_mem_free(places->scratch);
    *places = (esper_infer_places){0};
}
