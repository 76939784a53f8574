/* Random cases of every operation. Values keep away from kinks (ReLU's 0, equal maxima), so that the same cases serve for
 * finite differences. */
#include "support/op_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) /* then touching a guard is found at once, reads and harmless writes too */
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes)   ((void)(from), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(from, bytes) ((void)(from), (void)(bytes))
#endif

enum { GUARD_BYTES = 64, GUARD = 0xff }; /* as numbers NaN: reading there shows too */

static int between(esper_rng *rng, int low, int high)
{
    return low + (int)esper_rng_below(rng, (uint32_t)(high - low + 1));
}

static bool chance(esper_rng *rng, int percent)
{
    return between(rng, 1, 100) <= percent;
}

/* A float in [low, high). */
static double number(esper_rng *rng, double low, double high)
{
    return (double)(float)(low + (high - low) * (double)esper_rng_uniform(rng));
}

static void *must_alloc(size_t count, size_t bytes)
{
    void *mem = calloc(count + 1, bytes); /* + 1: calloc may answer NULL for nothing */

    if (mem == NULL)
        abort();
    return mem;
}

void op_tensor_init(op_tensor *t, op_role role, int n_samples, int rank, const int32_t *dim, bool is_output)
{
    *t = (op_tensor){.role = role, .rank = rank, .count = 1, .same_as = -1};
    for (int i = 0; i < ESPER_MAX_RANK; i++)
        t->dim[i] = i < rank ? dim[i] : 1;
    for (int i = 0; i < rank; i++)
        t->count *= (size_t)dim[i];
    t->total = t->count * (size_t)(role == OP_SAMPLE || role == OP_IDS ? n_samples : 1);
    if (!is_output)
        t->value = must_alloc(t->total, sizeof(double));
}

/* What a case is drawn with. */
typedef struct draw {
    op_case  *c;
    esper_rng rng;
    bool      large; /* shapes that need several tiles */
} draw;

static op_tensor *add_in(draw *d, int i, op_role role, int rank, const int32_t *dim)
{
    op_tensor *t = &d->c->in[i];

    op_tensor_init(t, role, d->c->pass.n_samples, rank, dim, false);
    for (size_t k = 0; k < t->total; k++)
        t->value[k] = number(&d->rng, -1, 1);
    return t;
}

static op_tensor *add_out(draw *d, int i, op_role role, int rank, const int32_t *dim)
{
    op_tensor_init(&d->c->out[i], role, d->c->pass.n_samples, rank, dim, true);
    return &d->c->out[i];
}

#define DIM(...) ((const int32_t[]){__VA_ARGS__})

/* Input i becomes the same tensor as an earlier one of its shape. */
static void make_same(draw *d, int i, int earlier)
{
    op_tensor *t = &d->c->in[i];

    memcpy(t->value, d->c->in[earlier].value, t->total * sizeof(double));
    t->same_as = earlier;
}

/* A feature map (C,H,W), or (T,D). */
static int feature_shape(draw *d, int32_t *dim)
{
    int most = d->large ? 20 : 6;

    dim[0] = between(&d->rng, 1, most);
    dim[1] = between(&d->rng, 1, most);
    dim[2] = between(&d->rng, 1, most);
    return chance(&d->rng, 70) ? 3 : 2;
}

static void draw_conv2d(draw *d)
{
    int k = 1 + 2 * between(&d->rng, 0, 3);
    int groups = chance(&d->rng, 50) ? 1 : between(&d->rng, 1, 4);
    int in_c = groups * between(&d->rng, 1, d->large ? 9 : 3);
    int out_c = groups * between(&d->rng, 1, d->large ? 70 / groups : 5);
    int pad = chance(&d->rng, 60) ? k / 2 : between(&d->rng, 0, k - 1);
    int least = k - 2 * pad > 1 ? k - 2 * pad : 1;
    int h = least + between(&d->rng, 0, d->large ? 15 : 4), w = least + between(&d->rng, 0, d->large ? 15 : 4);

    if (chance(&d->rng, 20))
        groups = in_c = out_c = between(&d->rng, 1, d->large ? 70 : 6); /* depthwise */
    if (chance(&d->rng, 15))
        k = h = w = 1, pad = 0;
    d->c->attr.conv.pad = pad;
    d->c->attr.conv.groups = groups;
    add_in(d, 0, OP_SAMPLE, 3, DIM(in_c, h, w));
    add_in(d, 1, OP_WHOLE, 4, DIM(out_c, in_c / groups, k, k));
    add_out(d, 0, OP_SAMPLE, 3, DIM(out_c, h + 2 * pad - k + 1, w + 2 * pad - k + 1));
}

static void draw_scale_shift(draw *d, int32_t n)
{
    add_in(d, 1, OP_WHOLE, 1, DIM(n));
    add_in(d, 2, OP_WHOLE, 1, DIM(n));
}

static void draw_batch_norm(draw *d)
{
    int32_t dim[3];
    op_tensor *var;

    feature_shape(d, dim);
    if (d->c->pass.n_samples * dim[1] * dim[2] < 4)
        dim[2] = 4; /* the statistics of two or three elements are all curvature */
    d->c->attr.norm.eps = chance(&d->rng, 50) ? 1e-5f : 1e-2f;
    d->c->attr.norm.momentum = 0.1f;
    add_in(d, 0, OP_SAMPLE, 3, dim);
    draw_scale_shift(d, dim[0]);
    add_in(d, 3, OP_WHOLE, 1, dim);
    var = add_in(d, 4, OP_WHOLE, 1, dim);
    for (size_t i = 0; i < var->total; i++)
        var->value[i] = number(&d->rng, 0.5, 2);
    add_out(d, 0, OP_SAMPLE, 3, dim);
    add_out(d, 1, OP_WHOLE, 1, dim);
    add_out(d, 2, OP_WHOLE, 1, dim);
}

static void draw_group_norm(draw *d)
{
    int32_t dim[3];
    int groups = between(&d->rng, 1, 4);

    feature_shape(d, dim);
    dim[0] *= groups;
    if (dim[0] / groups * dim[1] * dim[2] < 4)
        dim[2] = 4;
    d->c->attr.norm.groups = groups;
    d->c->attr.norm.eps = 1e-5f;
    add_in(d, 0, OP_SAMPLE, 3, dim);
    draw_scale_shift(d, dim[0]);
    add_out(d, 0, OP_SAMPLE, 3, dim);
    add_out(d, 1, OP_SAMPLE, 2, DIM(groups, 2));
}

static void draw_layer_norm(draw *d)
{
    int32_t rows = between(&d->rng, 1, 5), width = between(&d->rng, 3, d->large ? 150 : 9);
    int rank = rows == 1 && chance(&d->rng, 50) ? 1 : 2;

    d->c->attr.norm.eps = 1e-5f;
    add_in(d, 0, OP_SAMPLE, rank, rank == 1 ? DIM(width) : DIM(rows, width));
    draw_scale_shift(d, width);
    add_out(d, 0, OP_SAMPLE, rank, rank == 1 ? DIM(width) : DIM(rows, width));
    add_out(d, 1, OP_SAMPLE, 2, DIM(rows, 2));
}

static void draw_one_to_one(draw *d)
{
    int32_t dim[3];
    int rank = feature_shape(d, dim);

    add_in(d, 0, OP_SAMPLE, rank, dim);
    add_out(d, 0, OP_SAMPLE, rank, dim);
}

static void draw_relu(draw *d)
{
    op_tensor *x = &d->c->in[0];

    draw_one_to_one(d);
    for (size_t i = 0; i < x->total; i++)
        x->value[i] += x->value[i] < 0 ? -0.0625 : 0.0625;
}

static void draw_gelu(draw *d)
{
    op_tensor *x = &d->c->in[0];

    draw_one_to_one(d);
    for (size_t i = 0; i < x->total; i++)
        x->value[i] *= 4; /* where it bends and where it is flat */
}

/* All values of x differ by 1/64 or more. */
/* No two the same, nor so near that a difference would change which is the largest. */
static void draw_distinct(draw *d, op_tensor *x)
{
    for (size_t i = 0; i < x->total; i++)
        x->value[i] = (double)i / 64;
    for (size_t i = x->total - 1; i > 0; i--) {
        size_t other = esper_rng_below(&d->rng, (uint32_t)i + 1);
        double value = x->value[i];

        x->value[i] = x->value[other];
        x->value[other] = value;
    }
}

static void draw_max_pool(draw *d)
{
    int32_t dim[3];
    op_tensor *x;

    feature_shape(d, dim);
    dim[1]++;
    dim[2]++;
    x = add_in(d, 0, OP_SAMPLE, 3, dim);
    draw_distinct(d, x);
    add_out(d, 0, OP_SAMPLE, 3, DIM(dim[0], dim[1] / 2, dim[2] / 2));
}

static void draw_global_mean(draw *d)
{
    int32_t dim[3];
    int rank = feature_shape(d, dim);

    if (d->large)
        dim[1] *= 5;
    add_in(d, 0, OP_SAMPLE, rank, dim);
    add_out(d, 0, OP_SAMPLE, 1, DIM(rank == 3 ? dim[0] : dim[1]));
}

static void draw_linear(draw *d)
{
    int32_t I = between(&d->rng, 1, d->large ? 300 : 9), O = between(&d->rng, 1, d->large ? 80 : 9);
    int32_t T = between(&d->rng, 1, d->large ? 120 : 5);
    int rank = between(&d->rng, 1, 2);

    add_in(d, 0, OP_SAMPLE, rank, rank == 1 ? DIM(I) : DIM(T, I));
    add_in(d, 1, OP_WHOLE, 2, DIM(O, I));
    if (chance(&d->rng, 60))
        add_in(d, 2, OP_WHOLE, 1, DIM(O));
    add_out(d, 0, OP_SAMPLE, rank, rank == 1 ? DIM(O) : DIM(T, O));
}

static void draw_ids(draw *d, op_tensor *t, int least, int end)
{
    for (size_t i = 0; i < t->total; i++)
        t->value[i] = between(&d->rng, least, end - 1);
}

static void draw_embedding(draw *d)
{
    int32_t T = between(&d->rng, 1, 6), V = between(&d->rng, 1, 9), D = between(&d->rng, 1, d->large ? 90 : 7);
    int32_t P = T + between(&d->rng, 0, 3);

    draw_ids(d, add_in(d, 0, OP_IDS, 1, DIM(T)), 0, V);
    add_in(d, 1, OP_WHOLE, 2, DIM(V, D));
    if (chance(&d->rng, 75))
        add_in(d, 2, OP_WHOLE, 2, DIM(P, D));
    add_out(d, 0, OP_SAMPLE, 2, DIM(T, D));
}

static void draw_attention(draw *d)
{
    int32_t heads = between(&d->rng, 1, 3), D = heads * between(&d->rng, 1, d->large ? 20 : 5);
    int32_t T = chance(&d->rng, 20) ? 1 : between(&d->rng, 1, d->large ? 40 : 7);

    d->c->attr.attention.heads = heads;
    d->c->attr.attention.drop = chance(&d->rng, 50) ? 0 : 0.3f;
    d->c->attr.attention.tag = 3;
    add_in(d, 0, OP_SAMPLE, 2, DIM(T, 3 * D));
    add_out(d, 0, OP_SAMPLE, 2, DIM(T, D));
    add_out(d, 1, OP_SAMPLE, 3, DIM(heads, T, T));
}

static void draw_dropout(draw *d)
{
    draw_one_to_one(d);
    d->c->attr.dropout.drop = chance(&d->rng, 25) ? 0 : 0.4f;
    d->c->attr.dropout.tag = 5;
}

static void draw_add(draw *d)
{
    int32_t dim[3];
    int rank = feature_shape(d, dim);

    add_in(d, 0, OP_SAMPLE, rank, dim);
    add_in(d, 1, OP_SAMPLE, rank, dim);
    if (chance(&d->rng, 30))
        make_same(d, 1, 0);
    add_out(d, 0, OP_SAMPLE, rank, dim);
}

static void draw_mul(draw *d)
{
    int32_t dim[3];

    if (chance(&d->rng, 50)) {
        draw_add(d);
        return;
    }
    feature_shape(d, dim);
    add_in(d, 0, OP_SAMPLE, 3, dim);
    add_in(d, 1, OP_SAMPLE, 1, dim);
    add_out(d, 0, OP_SAMPLE, 3, dim);
}

static void draw_channel_scale(draw *d)
{
    int32_t dim[3];

    feature_shape(d, dim);
    add_in(d, 0, OP_SAMPLE, 3, dim);
    add_in(d, 1, OP_WHOLE, 1, dim);
    add_out(d, 0, OP_SAMPLE, 3, dim);
}

static void draw_mix_tanh(draw *d)
{
    draw_add(d);
    add_in(d, 2, OP_WHOLE, 1, DIM(1));
}

static void draw_softmax_xent(draw *d)
{
    int32_t rows = between(&d->rng, 1, 5), V = between(&d->rng, 1, d->large ? 100 : 10);
    int rank = rows == 1 ? 1 : 2;
    op_tensor *logits = add_in(d, 0, OP_SAMPLE, rank, rank == 1 ? DIM(V) : DIM(rows, V));

    for (size_t i = 0; i < logits->total; i++)
        logits->value[i] *= 6;
    draw_ids(d, add_in(d, 1, OP_IDS, 1, DIM(rows)), chance(&d->rng, 50) ? -1 : 0, V);
    add_out(d, 0, OP_SAMPLE, 1, DIM(1));
    add_out(d, 1, OP_SAMPLE, 1, DIM(1));
    add_out(d, 2, OP_SAMPLE, 1, DIM(rows));
    d->c->pass.loss_scale = 0.25f;
}

/* Weights for blending: both ends, inside, and beyond them, to be clamped. */
static void draw_weights(draw *d, int i)
{
    static const double some[] = {0, 1, -0.25, 1.5, 0.5};
    op_tensor *t = add_in(d, i, OP_SAMPLE, 1, DIM(1));

    for (size_t k = 0; k < t->total; k++)
        t->value[k] = chance(&d->rng, 50) ? some[between(&d->rng, 0, 4)] : number(&d->rng, 0.05, 0.95);
}

/* A gate keeps away from its ends: it bends there. */
static void draw_gate(draw *d, int i)
{
    op_tensor *t = add_in(d, i, OP_SAMPLE, 1, DIM(1));

    for (size_t k = 0; k < t->total; k++)
        t->value[k] = chance(&d->rng, 30) ? (chance(&d->rng, 50) ? -0.25 : 1.25) : number(&d->rng, 0.05, 0.95);
}

static void draw_blend_add(draw *d)
{
    draw_add(d);
    draw_weights(d, 2);
}

static void draw_blend_mul(draw *d)
{
    op_tensor *h = &d->c->in[0];

    draw_add(d);
    add_in(d, 2, OP_SAMPLE, h->rank, h->dim);
    if (chance(&d->rng, 40))
        make_same(d, 2, 0); /* not isolated: the seed looks at the host's own tensor */
    draw_weights(d, 3);
}

static void draw_blend_gate(draw *d)
{
    draw_add(d);
    draw_gate(d, 2);
    draw_weights(d, 3);
}

static void draw_lstm(draw *d)
{
    int32_t H = between(&d->rng, 1, d->large ? 70 : 5), T = chance(&d->rng, 20) ? 1 : between(&d->rng, 1, 6);
    op_tensor *reset;

    add_in(d, 0, OP_SAMPLE, 2, DIM(T, 4 * H));
    add_in(d, 1, OP_WHOLE, 2, DIM(4 * H, H));
    add_in(d, 2, OP_WHOLE, 1, DIM(4 * H));
    add_in(d, 3, OP_SAMPLE, 1, DIM(H));
    add_in(d, 4, OP_SAMPLE, 1, DIM(H));
    reset = add_in(d, 5, OP_SAMPLE, 1, DIM(T));
    for (size_t k = 0; k < reset->total; k++)
        reset->value[k] = chance(&d->rng, 20) ? 1 : 0;
    add_out(d, 0, OP_SAMPLE, 2, DIM(T, H));
    add_out(d, 1, OP_SAMPLE, 2, DIM(T, H));
    add_out(d, 2, OP_SAMPLE, 2, DIM(T, 4 * H));
}

/* The second input has T rows in whatever shape. */
static void draw_concat(draw *d)
{
    int32_t T = between(&d->rng, 1, 6), A = between(&d->rng, 1, d->large ? 90 : 7), B = between(&d->rng, 1, 7);
    int rank = between(&d->rng, 1, 3);

    add_in(d, 0, OP_SAMPLE, 2, DIM(T, A));
    add_in(d, 1, OP_SAMPLE, rank, rank == 1 ? DIM(T * B) : rank == 2 ? DIM(T, B) : DIM(T, 1, B));
    add_out(d, 0, OP_SAMPLE, 2, DIM(T, A + B));
}

static void draw_add_rows(draw *d)
{
    int32_t T = between(&d->rng, 1, 5), S = between(&d->rng, 1, d->large ? 20 : 4);
    int32_t D = between(&d->rng, 1, d->large ? 40 : 6);

    add_in(d, 0, OP_SAMPLE, 2, DIM(T * S, D));
    add_in(d, 1, OP_SAMPLE, 2, DIM(T, D));
    add_out(d, 0, OP_SAMPLE, 2, DIM(T * S, D));
}

/* Groups of which nothing is there, too. */
static void draw_pool_rows(draw *d)
{
    int32_t T = between(&d->rng, 1, 5), S = between(&d->rng, 1, d->large ? 20 : 4);
    int32_t D = between(&d->rng, 1, d->large ? 40 : 6);
    op_tensor *there;

    draw_distinct(d, add_in(d, 0, OP_SAMPLE, 2, DIM(T * S, D)));
    there = add_in(d, 1, OP_SAMPLE, 1, DIM(T * S));
    for (size_t k = 0; k < there->total; k++)
        there->value[k] = chance(&d->rng, 60) ? 1 : 0;
    add_out(d, 0, OP_SAMPLE, 2, DIM(T, 2 * D));
}

/* Parameters with gradients, and moments. */
static void draw_flat(draw *d, int n_moments, bool with_norm)
{
    static const int32_t counts[] = {1, 7, ESPER_FLAT_CHUNK, ESPER_FLAT_CHUNK + 1, 2 * ESPER_FLAT_CHUNK + 77};
    int32_t count = counts[between(&d->rng, 0, 4)];
    op_tensor *p = add_in(d, 0, OP_WHOLE, 1, DIM(count));

    p->grad = must_alloc(p->total, sizeof(double));
    for (size_t i = 0; i < p->total; i++)
        p->grad[i] = number(&d->rng, -1, 1);
    for (int k = 1; k <= n_moments; k++) {
        op_tensor *m = add_in(d, k, OP_WHOLE, 1, DIM(count));

        for (size_t i = 0; i < m->total; i++)
            m->value[i] = k == 2 ? m->value[i] * m->value[i] : m->value[i];
    }
    if (with_norm) {
        op_tensor_init(&d->c->out[0], OP_DOUBLE, 1, 1, DIM(1), false);
        d->c->out[0].value[0] = number(&d->rng, 0.5, 4);
    }
    d->c->flat = true;
    d->c->group = (esper_group){.lr = 0.05f,
                                .momentum = 0.9f,
                                .decay = 0.01f,
                                .beta1 = 0.9f,
                                .beta2 = 0.99f,
                                .eps = 1e-8f,
                                .clip = chance(&d->rng, 60) ? 1 : 0,
                                .t = (uint32_t)between(&d->rng, 1, 5)};
}

static void draw_grad_norm(draw *d)
{
    draw_flat(d, 0, false);
    add_out(d, 0, OP_DOUBLE, 1, DIM(1));
    add_out(d, 1, OP_DOUBLE, 1, DIM((d->c->in[0].dim[0] + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK));
}

static void draw_sgd(draw *d)
{
    draw_flat(d, 1, chance(&d->rng, 70));
}

static void draw_adamw(draw *d)
{
    draw_flat(d, 2, chance(&d->rng, 70));
}

static void (*const draw_kind[ESPER_N_OPS])(draw *d) = {
    [ESPER_OP_CONV2D] = draw_conv2d,
    [ESPER_OP_BATCH_NORM] = draw_batch_norm,
    [ESPER_OP_GROUP_NORM] = draw_group_norm,
    [ESPER_OP_LAYER_NORM] = draw_layer_norm,
    [ESPER_OP_RELU] = draw_relu,
    [ESPER_OP_GELU] = draw_gelu,
    [ESPER_OP_SIGMOID] = draw_gelu,
    [ESPER_OP_TANH] = draw_one_to_one,
    [ESPER_OP_MAX_POOL] = draw_max_pool,
    [ESPER_OP_GLOBAL_MEAN] = draw_global_mean,
    [ESPER_OP_LINEAR] = draw_linear,
    [ESPER_OP_EMBEDDING] = draw_embedding,
    [ESPER_OP_ATTENTION] = draw_attention,
    [ESPER_OP_DROPOUT] = draw_dropout,
    [ESPER_OP_ADD] = draw_add,
    [ESPER_OP_MUL] = draw_mul,
    [ESPER_OP_CHANNEL_SCALE] = draw_channel_scale,
    [ESPER_OP_MIX_TANH] = draw_mix_tanh,
    [ESPER_OP_SOFTMAX_XENT] = draw_softmax_xent,
    [ESPER_OP_STRAIGHT_THROUGH] = draw_add,
    [ESPER_OP_BLEND_ADD] = draw_blend_add,
    [ESPER_OP_BLEND_MUL] = draw_blend_mul,
    [ESPER_OP_BLEND_GATE] = draw_blend_gate,
    [ESPER_OP_LSTM] = draw_lstm,
    [ESPER_OP_CONCAT] = draw_concat,
    [ESPER_OP_ADD_ROWS] = draw_add_rows,
    [ESPER_OP_POOL_ROWS] = draw_pool_rows,
    [ESPER_OP_GRAD_NORM] = draw_grad_norm,
    [ESPER_OP_SGD] = draw_sgd,
    [ESPER_OP_ADAMW] = draw_adamw,
};

static void draw_pass(draw *d)
{
    esper_pass *pass = &d->c->pass;

    *pass = (esper_pass){.n_samples = chance(&d->rng, 25) ? 1 : between(&d->rng, 2, d->large ? 3 : 5), .loss_scale = 1};
    pass->training = chance(&d->rng, 75);
    pass->seed = 77;
    pass->network = 2;
    pass->step = 9;
    for (int n = 0; n < OP_CASE_MAX_SAMPLES; n++)
        d->c->sample_id[n] = esper_rng_below(&d->rng, 100000);
}

/* Incoming gradients, and for each input whether its gradient is wanted, and added to what. */
static void draw_gradients(draw *d)
{
    const esper_op_info *info = esper_op_info_of(d->c->kind);
    op_tensor *y = &d->c->out[0];

    y->grad = must_alloc(y->total, sizeof(double));
    for (size_t i = 0; i < y->total; i++)
        y->grad[i] = number(&d->rng, -1, 1);
    for (int k = 0; k < info->n_in; k++) {
        op_tensor *t = &d->c->in[k];

        bool wanted = t->same_as >= 0 ? d->c->in[t->same_as].grad != NULL : chance(&d->rng, 80);

        if (t->role == OP_ABSENT || (info->grad_in & ESPER_BIT(k)) == 0 || !wanted)
            continue;
        t->add = t->same_as >= 0 || chance(&d->rng, 50);
        t->grad = must_alloc(t->total, sizeof(double));
        for (size_t i = 0; i < t->total; i++)
            t->grad[i] = number(&d->rng, -1, 1);
    }
}

static void describe(op_case *c, uint32_t which)
{
    const esper_op_info *info = esper_op_info_of(c->kind);
    int at = snprintf(c->text, sizeof(c->text), "%s %u: N=%d %s", info->name, which, c->pass.n_samples,
                      c->pass.training ? "training" : "eval");

    for (int k = 0; k < info->n_in; k++) {
        const op_tensor *t = &c->in[k];

        if (t->role == OP_ABSENT || at >= (int)sizeof(c->text))
            continue;
        at += snprintf(c->text + at, sizeof(c->text) - (size_t)at, ", in[%d] %dx%dx%dx%d%s%s", k, t->dim[0], t->dim[1],
                       t->dim[2], t->dim[3],
                       t->grad == NULL ? ""
                       : t->add        ? " grad+"
                                       : " grad",
                       t->same_as >= 0 ? " same" : "");
    }
}

void op_case_init(op_case *c, esper_op_kind kind, uint32_t which)
{
    esper_rng_key key = {.seed = 4711, .purpose = ESPER_RNG_TEST, .network = (uint32_t)kind, .step = which};
    draw d = {.c = c, .large = which % 4 == 3};

    memset(c, 0, sizeof(*c));
    c->kind = kind;
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        c->in[k].same_as = -1;
    esper_rng_init(&d.rng, &key);
    draw_pass(&d);
    draw_kind[kind](&d);
    if (!c->flat)
        draw_gradients(&d);
    c->pass.sample_id = c->sample_id;
    describe(c, which);
}

void op_case_fini(op_case *c)
{
    for (int k = 0; k < ESPER_OP_MAX_IN; k++) {
        free(c->in[k].value);
        free(c->in[k].grad);
    }
    for (int k = 0; k < ESPER_OP_MAX_OUT; k++) {
        free(c->out[k].value);
        free(c->out[k].grad);
    }
    memset(c, 0, sizeof(*c));
}

void *op_buffer_mem(const op_buffer *b)
{
    return b->block + GUARD_BYTES;
}

double op_run_get(const op_run *run, const op_buffer *b, size_t at)
{
    if (b->element == OP_INT32)
        return ((const int32_t *)op_buffer_mem(b))[at];
    if (b->element == OP_REAL && run->real_bytes == sizeof(float))
        return (double)((const float *)op_buffer_mem(b))[at];
    return ((const double *)op_buffer_mem(b))[at];
}

void op_run_set(op_run *run, const op_buffer *b, size_t at, double value)
{
    if (b->element == OP_INT32)
        ((int32_t *)op_buffer_mem(b))[at] = (int32_t)value;
    else if (b->element == OP_REAL && run->real_bytes == sizeof(float))
        ((float *)op_buffer_mem(b))[at] = (float)value;
    else
        ((double *)op_buffer_mem(b))[at] = value;
}

/* A buffer of a tensor, with `values` in it or the fill pattern. */
static void *add_buffer(op_run *run, const char *side, int index, const char *what, const op_tensor *t,
                        const double *values, unsigned char fill)
{
    op_buffer *b = &run->buffers[run->n_buffers++];

    if (run->n_buffers > OP_RUN_MAX_BUFFERS)
        abort();
    snprintf(b->name, sizeof(b->name), "%s[%d].%s", side, index, what);
    b->element = t->role == OP_IDS ? OP_INT32 : t->role == OP_DOUBLE ? OP_FLOAT64 : OP_REAL;
    b->count = t->total;
    b->bytes = t->total * (b->element == OP_INT32 ? 4 : b->element == OP_FLOAT64 ? 8 : run->real_bytes);
    b->block = must_alloc(b->bytes + 2 * GUARD_BYTES, 1);
    memset(b->block, GUARD, b->bytes + 2 * GUARD_BYTES);
    memset(op_buffer_mem(b), fill, b->bytes);
    for (size_t i = 0; values != NULL && i < t->total; i++)
        op_run_set(run, b, i, values[i]);
    ASAN_POISON_MEMORY_REGION(b->block, GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(b->block + GUARD_BYTES + b->bytes, GUARD_BYTES);
    return op_buffer_mem(b);
}

static esper_view view_of(const op_tensor *t)
{
    esper_view v = {.count = (int64_t)t->count, .rank = t->rank, .add = t->add};

    memcpy(v.dim, t->dim, sizeof(v.dim));
    return v;
}

static void init_input(op_run *run, int k, unsigned char fill)
{
    const op_tensor *t = &run->c->in[k];
    const esper_view *same = t->same_as >= 0 ? &run->lane.in[t->same_as] : NULL;
    esper_view *v = &run->lane.in[k];

    *v = view_of(t);
    v->data = same != NULL ? same->data : add_buffer(run, "in", k, "data", t, t->value, fill);
    if (t->grad != NULL && same != NULL && same->grad != NULL)
        v->grad = same->grad;
    else if (t->grad != NULL)
        v->grad = add_buffer(run, "in", k, "grad", t, t->add || run->c->flat ? t->grad : NULL, fill);
}

void op_run_init(op_run *run, const op_case *c, size_t real_bytes, unsigned char fill)
{
    memset(run, 0, sizeof(*run));
    run->c = c;
    run->real_bytes = real_bytes;
    run->lane.attr = c->attr;
    run->lane.pass = c->flat ? NULL : &c->pass;
    run->lane.group = c->flat ? &c->group : NULL;
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        if (c->in[k].role != OP_ABSENT)
            init_input(run, k, fill);
    for (int k = 0; k < ESPER_OP_MAX_OUT; k++) {
        const op_tensor *t = &c->out[k];

        if (t->role == OP_ABSENT)
            continue;
        run->lane.out[k] = view_of(t);
        run->lane.out[k].data = add_buffer(run, "out", k, "data", t, t->value, fill);
        if (t->grad != NULL)
            run->lane.out[k].grad = add_buffer(run, "out", k, "grad", t, t->grad, fill);
    }
}

void op_run_fini(op_run *run)
{
    for (int i = 0; i < run->n_buffers; i++)
        free(run->buffers[i].block);
    free(run->scratch);
    memset(run, 0, sizeof(*run));
}

/* Runs one phase in ranges of random length, the ranges of odd number first. */
static void run_cut(const esper_phase *phase, const esper_lane *lane, int n, esper_rng *cuts)
{
    int edges[64], n_edges = 0;

    for (int at = 0; at < n;) {
        edges[n_edges++] = at;
        at = n_edges == 63 ? n : at + between(cuts, 1, n < 4 ? 1 : n / 2);
    }
    edges[n_edges] = n;
    for (int odd = 1; odd >= 0; odd--)
        for (int i = odd; i < n_edges; i += 2)
            phase->run(lane, edges[i], edges[i + 1] < n ? edges[i + 1] : n);
}

static void run_phases(const esper_phase *phases, const esper_lane *lane, esper_rng *cuts)
{
    for (; phases->run != NULL; phases++) {
        int n = phases->units != NULL ? phases->units(lane) : lane->pass->n_samples;

        if (cuts == NULL)
            phases->run(lane, 0, n);
        else
            run_cut(phases, lane, n, cuts);
    }
}

/* Memory as the kernels asked for, to the byte: filled, since nothing may rely on what is there. */
static void take_scratch(op_run *run, const esper_op_kernels *op, bool backward)
{
    enum { ALIGN = 64 };
    size_t bytes = op->scratch != NULL ? op->scratch(&run->lane, backward, run->c->pass.n_samples) : 0;
    void *mem = NULL;

    free(run->scratch);
    if (bytes > 0 && posix_memalign(&mem, ALIGN, bytes) != 0)
        abort();
    if (mem != NULL)
        memset(mem, GUARD, bytes);
    run->scratch = run->lane.scratch = mem;
}

void op_run_forward(op_run *run, const esper_kernel_set *set, esper_rng *cuts)
{
    take_scratch(run, set->op[run->c->kind], false);
    run_phases(set->op[run->c->kind]->forward, &run->lane, cuts);
}

void op_run_backward(op_run *run, const esper_kernel_set *set, esper_rng *cuts)
{
    take_scratch(run, set->op[run->c->kind], true);
    run_phases(set->op[run->c->kind]->backward, &run->lane, cuts);
}

const op_buffer *op_run_find(const op_run *run, const char *name)
{
    for (int i = 0; i < run->n_buffers; i++)
        if (strcmp(run->buffers[i].name, name) == 0)
            return &run->buffers[i];
    return NULL;
}

const op_buffer *op_run_broken_guard(const op_run *run)
{
    for (int i = 0; i < run->n_buffers; i++) {
        const op_buffer *b = &run->buffers[i];
        const unsigned char *before = (const unsigned char *)b->block, *after = before + GUARD_BYTES + b->bytes;

        ASAN_UNPOISON_MEMORY_REGION(before, GUARD_BYTES);
        ASAN_UNPOISON_MEMORY_REGION(after, GUARD_BYTES);
        for (int k = 0; k < GUARD_BYTES; k++)
            if (before[k] != GUARD || after[k] != GUARD)
                return b;
    }
    return NULL;
}
