#include "support/op_definition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double TOLERANCE = 1e-10; /* sums of up to a few thousand terms of order 1, in another order */

/* An element of an output, or (state) of an input after the forward pass. */
typedef struct element {
    const op_case *c;
    int            index;
    size_t         at;
    size_t         n, i;   /* sample, and place in its slice */
    const double  *factor; /* what dropout makes of each of its draws */
} element;

static double x_at(const op_case *c, int k, size_t at)
{
    return c->in[k].value[at];
}

/* ---- convolution, pooling, means, matrices ---- */

static double conv2d(const element *e)
{
    const op_tensor *x = &e->c->in[0], *w = &e->c->in[1], *y = &e->c->out[0];
    int W = y->dim[2], H = y->dim[1], col = (int)e->i % W, row = (int)e->i / W % H, o = (int)e->i / W / H;
    int k = w->dim[2], depth = w->dim[1], group = o / (y->dim[0] / e->c->attr.conv.groups);
    double sum = 0;

    for (int ch = 0; ch < depth; ch++)
        for (int tap = 0; tap < k * k; tap++) {
            int yy = row + tap / k - e->c->attr.conv.pad, xx = col + tap % k - e->c->attr.conv.pad;

            if (yy >= 0 && yy < x->dim[1] && xx >= 0 && xx < x->dim[2])
                sum += x->value[e->n * x->count + (size_t)(((group * depth + ch) * x->dim[1] + yy) * x->dim[2] + xx)] *
                       w->value[(o * depth + ch) * k * k + tap];
        }
    return sum;
}

static double max_pool(const element *e)
{
    const op_tensor *x = &e->c->in[0], *y = &e->c->out[0];
    size_t W = (size_t)y->dim[2], H = (size_t)y->dim[1], width = (size_t)x->dim[2];
    size_t corner = (e->i / W / H * (size_t)x->dim[1] + e->i / W % H * 2) * width + e->i % W * 2;
    const double *from = x->value + e->n * x->count + corner;

    return fmax(fmax(from[0], from[1]), fmax(from[width], from[width + 1]));
}

static double global_mean(const element *e)
{
    const op_tensor *x = &e->c->in[0];
    bool is_image = x->rank == 3;
    size_t count = (size_t)(is_image ? x->dim[1] * x->dim[2] : x->dim[0]), stride = is_image ? 1 : (size_t)x->dim[1];
    double sum = 0;

    for (size_t k = 0; k < count; k++)
        sum += x->value[e->n * x->count + e->i * (is_image ? count : 1) + k * stride];
    return sum / (double)count;
}

static double linear(const element *e)
{
    const op_tensor *w = &e->c->in[1], *bias = &e->c->in[2];
    size_t I = (size_t)w->dim[1], O = (size_t)w->dim[0], row = e->at / O, o = e->at % O;
    double sum = bias->role == OP_ABSENT ? 0 : bias->value[o];

    for (size_t k = 0; k < I; k++)
        sum += x_at(e->c, 0, row * I + k) * w->value[o * I + k];
    return sum;
}

static double embedding(const element *e)
{
    size_t D = (size_t)e->c->out[0].dim[1], t = e->i / D, id = (size_t)x_at(e->c, 0, e->at / D);

    return x_at(e->c, 1, id * D + e->i % D) + (e->c->in[2].role == OP_ABSENT ? 0 : x_at(e->c, 2, t * D + e->i % D));
}

/* ---- norms ---- */

typedef struct moments {
    double mean, var, count;
} moments;

/* Of `n_parts` stretches of `length` values, `stride` apart. */
static moments moments_of(const double *x, size_t n_parts, size_t stride, size_t length)
{
    moments m = {.count = (double)(n_parts * length)};

    for (size_t k = 0; k < n_parts * length; k++)
        m.mean += x[k / length * stride + k % length] / m.count;
    for (size_t k = 0; k < n_parts * length; k++)
        m.var += pow(x[k / length * stride + k % length] - m.mean, 2) / m.count;
    return m;
}

static double rstd(const op_case *c, double var)
{
    return 1 / sqrt(var + (double)c->attr.norm.eps);
}

static moments batch_moments(const op_case *c, size_t channel)
{
    const op_tensor *x = &c->in[0];
    size_t plane = (size_t)(x->dim[1] * x->dim[2]);

    return moments_of(x->value + channel * plane, (size_t)c->pass.n_samples, x->count, plane);
}

static double batch_norm(const element *e)
{
    const op_tensor *x = &e->c->in[0];
    size_t channel = e->index > 0 ? e->at : e->i / (size_t)(x->dim[1] * x->dim[2]);
    moments m = {.mean = x_at(e->c, 3, channel), .var = x_at(e->c, 4, channel)};

    if (e->c->pass.training)
        m = batch_moments(e->c, channel);
    if (e->index > 0)
        return e->index == 1 ? m.mean : rstd(e->c, m.var);
    return (x->value[e->at] - m.mean) * rstd(e->c, m.var) * x_at(e->c, 1, channel) + x_at(e->c, 2, channel);
}

/* The running statistics; the variance among them is that of a sample of the population. */
static double batch_norm_state(const element *e)
{
    double share = (double)e->c->attr.norm.momentum, old = x_at(e->c, e->index, e->at);
    moments m;

    if (e->index < 3 || !e->c->pass.training)
        return old;
    m = batch_moments(e->c, e->at);
    return (1 - share) * old + share * (e->index == 3 ? m.mean : m.var * m.count / (m.count - 1));
}

/* Stretches of `length` values are normalised, each element with scale and shift number `param`. */
static double stretch_norm(const element *e, size_t length, size_t param)
{
    const double *x = e->c->in[0].value;
    size_t stretch = e->index == 1 ? e->at / 2 : e->at / length;
    moments m = moments_of(x + stretch * length, 1, 0, length);

    if (e->index == 1)
        return e->at % 2 == 0 ? m.mean : rstd(e->c, m.var);
    return (x[e->at] - m.mean) * rstd(e->c, m.var) * x_at(e->c, 1, param) + x_at(e->c, 2, param);
}

static double group_norm(const element *e)
{
    const op_tensor *x = &e->c->in[0];

    return stretch_norm(e, x->count / (size_t)e->c->attr.norm.groups, e->i / (size_t)(x->dim[1] * x->dim[2]));
}

static double layer_norm(const element *e)
{
    const op_tensor *x = &e->c->in[0];
    size_t D = (size_t)x->dim[x->rank - 1];

    return stretch_norm(e, D, e->i % D);
}

/* ---- one element at a time ---- */

static double relu(const element *e)
{
    return fmax(x_at(e->c, 0, e->at), 0);
}

static double gelu(const element *e)
{
    double x = x_at(e->c, 0, e->at);

    return x / 2 * (1 + erf(x / sqrt(2)));
}

static double sigmoid(const element *e)
{
    return 1 / (1 + exp(-x_at(e->c, 0, e->at)));
}

static double tanh_of(const element *e)
{
    return tanh(x_at(e->c, 0, e->at));
}

static double add(const element *e)
{
    return x_at(e->c, 0, e->at) + x_at(e->c, 1, e->at);
}

static double mul(const element *e)
{
    const op_tensor *a = &e->c->in[0], *b = &e->c->in[1];

    if (b->count == a->count)
        return a->value[e->at] * b->value[e->at];
    return a->value[e->at] * b->value[e->n * b->count + e->i / (a->count / b->count)];
}

static double channel_scale(const element *e)
{
    return x_at(e->c, 0, e->at) * x_at(e->c, 1, e->i / (e->c->in[0].count / e->c->in[1].count));
}

static double mix(const element *e, double weight)
{
    return (1 - weight) * x_at(e->c, 0, e->at) + weight * x_at(e->c, 1, e->at);
}

static double mix_tanh(const element *e)
{
    return mix(e, tanh(x_at(e->c, 2, 0)));
}

static double straight_through(const element *e)
{
    return x_at(e->c, 0, e->at);
}

static double weight_at(const element *e, int k)
{
    return fmin(fmax(x_at(e->c, k, e->n), 0), 1);
}

static double blend_add(const element *e)
{
    return mix(e, weight_at(e, 2));
}

static double blend_mul(const element *e)
{
    return x_at(e->c, 0, e->at) * (1 + weight_at(e, 3) * tanh(x_at(e->c, 1, e->at) - x_at(e->c, 2, e->at)));
}

static double blend_gate(const element *e)
{
    return mix(e, weight_at(e, 2) * weight_at(e, 3));
}

/* ---- dropout, attention ---- */

/* How many draws a sample makes. */
static size_t n_draws(const op_case *c)
{
    size_t T = (size_t)c->out[0].dim[0];

    if (c->kind == ESPER_OP_DROPOUT)
        return c->in[0].count;
    return c->kind == ESPER_OP_ATTENTION ? (size_t)c->attr.attention.heads * (T * (T + 1) / 2) : 0;
}

/* The factor of each draw of each sample: which are dropped is a function of the stream's key. */
static double *draw_factors(const op_case *c)
{
    bool is_dropout = c->kind == ESPER_OP_DROPOUT;
    float drop = !c->pass.training ? 0 : is_dropout ? c->attr.dropout.drop : c->attr.attention.drop;
    uint32_t tag = is_dropout ? c->attr.dropout.tag : c->attr.attention.tag;
    double *factor = calloc((size_t)c->pass.n_samples * n_draws(c) + 1, sizeof(*factor));

    if (factor == NULL)
        abort();
    for (size_t n = 0; n < (size_t)c->pass.n_samples; n++) {
        esper_rng_key key = {c->pass.seed, ESPER_RNG_DROPOUT, c->pass.network, c->pass.step, c->pass.sample_id[n], tag};
        esper_rng rng;

        esper_rng_init(&rng, &key);
        for (size_t i = 0; i < n_draws(c); i++)
            factor[n * n_draws(c) + i] = esper_rng_uniform(&rng) < drop ? 0 : 1 / (1 - (double)drop);
    }
    return factor;
}

static double kept(const element *e, size_t nth)
{
    return e->factor[e->n * n_draws(e->c) + nth];
}

static double dropout(const element *e)
{
    return x_at(e->c, 0, e->at) * kept(e, e->i);
}

/* exp of q_i . k_j / sqrt(width) */
static double attention_term(const element *e, size_t head, size_t i, size_t j)
{
    size_t D = (size_t)e->c->out[0].dim[1], width = D / (size_t)e->c->attr.attention.heads;
    const double *qkv = e->c->in[0].value + e->n * e->c->in[0].count;
    double score = 0;

    for (size_t k = head * width; k < (head + 1) * width; k++)
        score += qkv[i * 3 * D + k] * qkv[j * 3 * D + D + k];
    return exp(score / sqrt((double)width));
}

/* Output 1 is the probabilities (heads,T,T), output 0 their mean of the values of all keys up to i that were kept. */
static double attention(const element *e)
{
    size_t T = (size_t)e->c->out[0].dim[0], D = (size_t)e->c->out[0].dim[1];
    size_t width = D / (size_t)e->c->attr.attention.heads, key = e->i % T;
    size_t head = e->index == 1 ? e->i / T / T : e->i % D / width, i = e->index == 1 ? e->i / T % T : e->i / D;
    const double *v = e->c->in[0].value + e->n * e->c->in[0].count + 2 * D + e->i % D;
    double all = 0, sum = 0;

    for (size_t j = 0; j <= i; j++)
        all += attention_term(e, head, i, j);
    if (e->index == 1)
        return key > i ? 0 : attention_term(e, head, i, key) / all;
    for (size_t j = 0; j <= i; j++)
        sum += attention_term(e, head, i, j) / all * v[j * 3 * D] *
               kept(e, head * (T * (T + 1) / 2) + i * (i + 1) / 2 + j);
    return sum;
}

/* ---- recurrence ---- */

/* h and c of a sample after step t, by walking all steps up to it; open (4H) are the gates of that step. */
static void walk_lstm(const element *e, size_t t, double *h, double *c, double *open)
{
    const op_case *k = e->c;
    size_t H = (size_t)k->out[0].dim[1], T = (size_t)k->out[0].dim[0];

    for (size_t j = 0; j < H; j++) {
        h[j] = x_at(k, 3, e->n * H + j);
        c[j] = x_at(k, 4, e->n * H + j);
    }
    for (size_t step = 0; step <= t; step++) {
        bool anew = x_at(k, 5, e->n * T + step) != 0;

        for (size_t row = 0; row < 4 * H; row++) {
            double sum = x_at(k, 0, (e->n * T + step) * 4 * H + row) + x_at(k, 2, row);

            for (size_t j = 0; j < H && !anew; j++)
                sum += x_at(k, 1, row * H + j) * h[j];
            open[row] = row / H == 2 ? tanh(sum) : 1 / (1 + exp(-sum));
        }
        for (size_t j = 0; j < H; j++) {
            c[j] = (anew ? 0 : open[H + j] * c[j]) + open[j] * open[2 * H + j];
            h[j] = open[3 * H + j] * tanh(c[j]);
        }
    }
}

static double lstm(const element *e)
{
    enum { MOST = 128 };
    double h[MOST], c[MOST], open[4 * MOST];
    size_t H = (size_t)e->c->out[0].dim[1], row = e->index == 2 ? 4 * H : H;

    if (H > MOST)
        abort();
    walk_lstm(e, e->i / row, h, c, open);
    return e->index == 0 ? h[e->i % row] : e->index == 1 ? c[e->i % row] : open[e->i % row];
}

static double concat(const element *e)
{
    size_t A = (size_t)e->c->in[0].dim[1], width = (size_t)e->c->out[0].dim[1], T = (size_t)e->c->out[0].dim[0];
    size_t row = e->n * T + e->i / width, at = e->i % width;

    return at < A ? x_at(e->c, 0, row * A + at) : x_at(e->c, 1, row * (width - A) + at - A);
}

static double add_rows(const element *e)
{
    size_t D = (size_t)e->c->in[1].dim[1], T = (size_t)e->c->in[1].dim[0], S = (size_t)e->c->in[0].dim[0] / T;
    size_t row = e->i / D;

    return x_at(e->c, 0, e->at) + x_at(e->c, 1, (e->n * T + row / S) * D + e->i % D);
}

static double pool_rows(const element *e)
{
    size_t T = (size_t)e->c->out[0].dim[0], S = (size_t)e->c->in[0].dim[0] / T, D = (size_t)e->c->in[0].dim[1];
    size_t group = e->n * T + e->i / (2 * D), column = e->i % (2 * D), n = 0;
    double sum = 0, largest = -INFINITY;

    for (size_t row = group * S; row < (group + 1) * S; row++) {
        double x = x_at(e->c, 0, row * D + column % D);

        if (x_at(e->c, 1, row) == 0)
            continue;
        sum += x;
        largest = fmax(largest, x);
        n++;
    }
    return n == 0 ? 0 : column < D ? sum / (double)n : largest;
}

/* ---- loss ---- */

static double log_sum_exp(const double *row, size_t V)
{
    double sum = 0;

    for (size_t v = 0; v < V; v++)
        sum += exp(row[v]);
    return log(sum);
}

/* Loss, number of right answers, and the logarithm of each row's sum. Rows with a negative target do not count. */
static double softmax_xent(const element *e)
{
    const op_tensor *x = &e->c->in[0], *targets = &e->c->in[1];
    size_t V = (size_t)x->dim[x->rank - 1];
    double loss = 0, n_right = 0;

    if (e->index == 2)
        return log_sum_exp(x->value + e->at * V, V);
    for (size_t r = 0; r < targets->count; r++) {
        const double *row = x->value + e->n * x->count + r * V;
        double target = targets->value[e->n * targets->count + r], top = row[0];

        if (target < 0)
            continue;
        for (size_t v = 1; v < V; v++)
            top = fmax(top, row[v]);
        loss += log_sum_exp(row, V) - row[(size_t)target];
        n_right += row[(size_t)target] == top;
    }
    return e->index == 0 ? loss : n_right;
}

/* ---- flat work ---- */

static double grad_norm(const element *e)
{
    const op_tensor *p = &e->c->in[0];
    size_t begin = e->index == 0 ? 0 : e->at * ESPER_FLAT_CHUNK;
    size_t end = e->index == 0 || begin + ESPER_FLAT_CHUNK > p->total ? p->total : begin + ESPER_FLAT_CHUNK;
    double sum = 0;

    for (size_t i = begin; i < end; i++)
        sum += p->grad[i] * p->grad[i];
    return e->index == 0 ? sqrt(sum) : sum;
}

/* The norm that the steps below read stays as it is. */
static double given_norm(const element *e)
{
    return e->c->out[0].value[e->at];
}

static double clipped(const element *e)
{
    double g = e->c->in[0].grad[e->at], clip = (double)e->c->group.clip;

    if (clip > 0 && e->c->out[0].role != OP_ABSENT)
        g *= fmin(1, clip / (e->c->out[0].value[0] + 1e-6));
    return g;
}

static double sgd_state(const element *e)
{
    const esper_group *group = &e->c->group;
    double p = x_at(e->c, 0, e->at);
    double buf = (double)group->momentum * x_at(e->c, 1, e->at) + clipped(e) + (double)group->decay * p;

    return e->index == 1 ? buf : p - (double)group->lr * buf;
}

static double adamw_state(const element *e)
{
    const esper_group *group = &e->c->group;
    double beta1 = (double)group->beta1, beta2 = (double)group->beta2, lr = (double)group->lr, g = clipped(e);
    double m = beta1 * x_at(e->c, 1, e->at) + (1 - beta1) * g;
    double v = beta2 * x_at(e->c, 2, e->at) + (1 - beta2) * g * g;
    double step = m / (1 - pow(beta1, group->t)) / (sqrt(v / (1 - pow(beta2, group->t))) + (double)group->eps);

    if (e->index > 0)
        return e->index == 1 ? m : v;
    return x_at(e->c, 0, e->at) * (1 - lr * (double)group->decay) - lr * step;
}

/* ---- the list ---- */

typedef double (*definition)(const element *e);

static const struct op_definition {
    definition out, state; /* state NULL: inputs stay as they are */
} definitions[ESPER_N_OPS] = {
    [ESPER_OP_CONV2D] = {conv2d, NULL},
    [ESPER_OP_BATCH_NORM] = {batch_norm, batch_norm_state},
    [ESPER_OP_GROUP_NORM] = {group_norm, NULL},
    [ESPER_OP_LAYER_NORM] = {layer_norm, NULL},
    [ESPER_OP_RELU] = {relu, NULL},
    [ESPER_OP_GELU] = {gelu, NULL},
    [ESPER_OP_SIGMOID] = {sigmoid, NULL},
    [ESPER_OP_TANH] = {tanh_of, NULL},
    [ESPER_OP_MAX_POOL] = {max_pool, NULL},
    [ESPER_OP_GLOBAL_MEAN] = {global_mean, NULL},
    [ESPER_OP_LINEAR] = {linear, NULL},
    [ESPER_OP_EMBEDDING] = {embedding, NULL},
    [ESPER_OP_ATTENTION] = {attention, NULL},
    [ESPER_OP_DROPOUT] = {dropout, NULL},
    [ESPER_OP_ADD] = {add, NULL},
    [ESPER_OP_MUL] = {mul, NULL},
    [ESPER_OP_CHANNEL_SCALE] = {channel_scale, NULL},
    [ESPER_OP_MIX_TANH] = {mix_tanh, NULL},
    [ESPER_OP_SOFTMAX_XENT] = {softmax_xent, NULL},
    [ESPER_OP_STRAIGHT_THROUGH] = {straight_through, NULL},
    [ESPER_OP_BLEND_ADD] = {blend_add, NULL},
    [ESPER_OP_BLEND_MUL] = {blend_mul, NULL},
    [ESPER_OP_BLEND_GATE] = {blend_gate, NULL},
    [ESPER_OP_LSTM] = {lstm, NULL},
    [ESPER_OP_CONCAT] = {concat, NULL},
    [ESPER_OP_ADD_ROWS] = {add_rows, NULL},
    [ESPER_OP_POOL_ROWS] = {pool_rows, NULL},
    [ESPER_OP_GRAD_NORM] = {grad_norm, NULL},
    [ESPER_OP_SGD] = {given_norm, sgd_state},
    [ESPER_OP_ADAMW] = {given_norm, adamw_state},
};

static double unchanged(const element *e)
{
    return x_at(e->c, e->index, e->at);
}

/* A comparison under way. */
typedef struct comparison {
    op_run  run;
    double *factor;
    int     n_bad;
    char   *first;
    size_t  chars;
} comparison;

static void check_tensor(comparison *all, const char *side, int index, const op_tensor *t, definition define)
{
    const op_case *c = all->run.c;
    const op_buffer *b;
    char name[24];

    snprintf(name, sizeof(name), "%s[%d].data", side, index);
    b = op_run_find(&all->run, name);
    for (size_t at = 0; b != NULL && at < t->total; at++) { /* NULL: absent, or the same tensor as an input before it */
        element e = {c, index, at, at / t->count, at % t->count, all->factor};
        double expected = define(&e), found = op_run_get(&all->run, b, at);

        if (fabs(expected - found) <= TOLERANCE * (1 + fabs(expected)))
            continue;
        if (all->n_bad++ == 0 && all->first[0] == '\0')
            snprintf(all->first, all->chars, "%s: %s element %zu: by definition %.12g, found %.12g", c->text, name, at,
                     expected, found);
    }
}

int op_definition_check(const op_case *c, const esper_kernel_set *set, char *first, size_t chars)
{
    const struct op_definition *d = &definitions[c->kind];
    comparison all = {.first = first, .chars = chars};

    if (d->out == NULL) {
        snprintf(first, chars, "%s: write down what it is in op_definition.c", c->text);
        return 1;
    }
    all.factor = draw_factors(c);
    op_run_init(&all.run, c, sizeof(double), 0x55);
    op_run_forward(&all.run, set, NULL);
    for (int k = 0; k < ESPER_OP_MAX_OUT; k++)
        check_tensor(&all, "out", k, &c->out[k], d->out);
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        check_tensor(&all, "in", k, &c->in[k], d->state != NULL ? d->state : unchanged);
    op_run_fini(&all.run);
    free(all.factor);
    return all.n_bad;
}
