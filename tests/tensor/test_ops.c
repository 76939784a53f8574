/* ctest: kernels=ref64 */
/* What each operation must do where a random test does not look: small cases reckoned by hand, ties, ends of a range, NaN,
 * and a few plain loops beside the kernels. Every case runs on every kernel set that the processor can run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/op_cases.h"

#define DIMS(...)                                                                      \
    (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (const int32_t[]) \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }
#define VALUES(...) ((const double[]){__VA_ARGS__})
#define D_NAN       ((double)NAN)
#define D_INF       ((double)INFINITY)

static const esper_kernel_set *sets[5];
static int                     n_sets;

static void begin(op_case *c, esper_op_kind kind, int n_samples)
{
    memset(c, 0, sizeof(*c));
    c->kind = kind;
    c->pass = (esper_pass){.n_samples = n_samples, .training = true, .loss_scale = 1, .sample_id = c->sample_id};
    snprintf(c->text, sizeof(c->text), "%s", esper_op_info_of(kind)->name);
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        c->in[k].same_as = -1;
}

static void input(op_case *c, int k, op_role role, int rank, const int32_t *dim, const double *values)
{
    op_tensor_init(&c->in[k], role, c->pass.n_samples, rank, dim, false);
    memcpy(c->in[k].value, values, c->in[k].total * sizeof(double));
}

static void output(op_case *c, int k, op_role role, int rank, const int32_t *dim)
{
    op_tensor_init(&c->out[k], role, c->pass.n_samples, rank, dim, true);
}

/* The gradient that comes in through an output, or stands in an input's place; NULL: zeros. */
static void gradient(op_tensor *t, const double *values)
{
    t->grad = calloc(t->total, sizeof(double));
    assert_non_null(t->grad);
    if (values != NULL)
        memcpy(t->grad, values, t->total * sizeof(double));
}

static void start(op_run *run, const op_case *c, const esper_kernel_set *set)
{
    op_run_init(run, c, set == &esper_kernels_ref64 ? sizeof(double) : sizeof(float), 0x55);
}

static void go(op_run *run, const op_case *c, const esper_kernel_set *set)
{
    start(run, c, set);
    op_run_forward(run, set, NULL);
    if (c->out[0].grad != NULL)
        op_run_backward(run, set, NULL);
}

/* NaN is expected where `values` has NaN; `room` is relative to 1 and to the expected value. */
static void expect(const op_run *run, const char *buffer, const double *values, double room)
{
    const op_buffer *b = op_run_find(run, buffer);

    assert_non_null(b);
    for (size_t i = 0; i < b->count; i++) {
        double found = op_run_get(run, b, i);

        if (isnan(values[i]) ? !isnan(found) : !(fabs(found - values[i]) <= room * fmax(1, fabs(values[i]))))
            fail_msg("%s: %s element %zu: expected %.9g, found %.9g", run->c->text, buffer, i, values[i], found);
    }
}

static void expect_bits(const op_run *run, const char *buffer, const char *source)
{
    const op_buffer *a = op_run_find(run, buffer), *b = op_run_find(run, source);

    assert_int_equal(a->bytes, b->bytes);
    if (memcmp(op_buffer_mem(a), op_buffer_mem(b), a->bytes) != 0)
        fail_msg("%s: %s is not %s bit for bit: first element %.9g, %.9g", run->c->text, buffer, source,
                 op_run_get(run, a, 0), op_run_get(run, b, 0));
}

static const double EXACT = 0, FLOAT = 1e-6;

/* ---- optimisers ---- */

static void check_sgd(const esper_kernel_set *set)
{
    op_case c;
    op_run run;
    double *norm;

    begin(&c, ESPER_OP_SGD, 1);
    c.flat = true;
    c.group = (esper_group){.lr = 0.1f, .momentum = 0.5f, .decay = 0.1f, .clip = 2.5f};
    input(&c, 0, OP_WHOLE, DIMS(2), VALUES(1, -2));
    input(&c, 1, OP_WHOLE, DIMS(2), VALUES(0, 0));
    gradient(&c.in[0], VALUES(3, 4));
    op_tensor_init(&c.out[0], OP_DOUBLE, 1, DIMS(1), false);
    start(&run, &c, set);
    norm = run.lane.out[0].data;

    *norm = 5; /* the clip halves the gradient: g' = 1.5 + 0.1, 2 - 0.2 */
    op_run_forward(&run, set, NULL);
    expect(&run, "in[1].data", VALUES(1.6, 1.8), FLOAT);
    expect(&run, "in[0].data", VALUES(0.84, -2.18), FLOAT);

    op_run_set(&run, op_run_find(&run, "in[0].grad"), 0, 1);
    op_run_set(&run, op_run_find(&run, "in[0].grad"), 1, 0);
    *norm = 1; /* no clip: g' = 1 + 0.084, -0.218 */
    op_run_forward(&run, set, NULL);
    expect(&run, "in[1].data", VALUES(1.884, 0.682), FLOAT);
    expect(&run, "in[0].data", VALUES(0.6516, -2.2482), FLOAT);
    op_run_fini(&run);
    op_case_fini(&c);
}

static void test_sgd(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++)
        check_sgd(sets[i]);
}

static void test_sgd_without_norm(void **state)
{
    op_case c;
    op_run run;

    (void)state;
    begin(&c, ESPER_OP_SGD, 1);
    c.flat = true;
    c.group = (esper_group){.lr = 1, .clip = 0.5f}; /* clip is set but nobody measured a norm */
    input(&c, 0, OP_WHOLE, DIMS(1), VALUES(1));
    input(&c, 1, OP_WHOLE, DIMS(1), VALUES(0));
    gradient(&c.in[0], VALUES(3));
    go(&run, &c, &esper_kernels_ref);
    expect(&run, "in[0].data", VALUES(-2), EXACT);
    op_run_fini(&run);
    op_case_fini(&c);
}

static void check_adamw(const esper_kernel_set *set)
{
    op_case c;
    op_run run;

    begin(&c, ESPER_OP_ADAMW, 1);
    c.flat = true;
    c.group = (esper_group){.lr = 0.1f, .decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .t = 1};
    input(&c, 0, OP_WHOLE, DIMS(1), VALUES(1));
    input(&c, 1, OP_WHOLE, DIMS(1), VALUES(0));
    input(&c, 2, OP_WHOLE, DIMS(1), VALUES(0));
    gradient(&c.in[0], VALUES(0.5));
    start(&run, &c, set);
    op_run_forward(&run, set, NULL); /* corrected moments are g and g^2: a step of lr, after 1 % of decay */
    expect(&run, "in[1].data", VALUES(0.05), FLOAT);
    expect(&run, "in[2].data", VALUES(0.0025), FLOAT);
    expect(&run, "in[0].data", VALUES(0.89), FLOAT);

    c.group.t = 2;
    op_run_set(&run, op_run_find(&run, "in[0].grad"), 0, -0.5);
    op_run_forward(&run, set, NULL); /* m = -0.005, over 0.19; v = 0.004975, over 0.0199 */
    expect(&run, "in[1].data", VALUES(-0.005), FLOAT);
    expect(&run, "in[2].data", VALUES(0.004975), FLOAT);
    expect(&run, "in[0].data", VALUES(0.8811 + 0.1 * (0.005 / 0.19) / 0.5), FLOAT);
    op_run_fini(&run);
    op_case_fini(&c);
}

static void test_adamw(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++)
        check_adamw(sets[i]);
}

/* Squares of 1e19 overflow a float; a NaN and an infinity must show. */
static void test_grad_norm(void **state)
{
    static const double values[3][3] = {{3e19, 4e19, 0}, {1, D_NAN, 1}, {D_INF, 1, 1}};
    static const double norms[3] = {5e19, D_NAN, D_INF};

    (void)state;
    for (int i = 0; i < 3 * n_sets; i++) {
        op_case c;
        op_run run;
        double norm;

        begin(&c, ESPER_OP_GRAD_NORM, 1);
        c.flat = true;
        input(&c, 0, OP_WHOLE, DIMS(3), VALUES(0, 0, 0));
        gradient(&c.in[0], values[i % 3]);
        output(&c, 0, OP_DOUBLE, DIMS(1));
        output(&c, 1, OP_DOUBLE, DIMS(1));
        go(&run, &c, sets[i / 3]);
        norm = op_run_get(&run, op_run_find(&run, "out[0].data"), 0);
        if (isfinite(norms[i % 3]) ? fabs(norm - norms[i % 3]) > 1e13
                                   : !(isnan(norms[i % 3]) ? isnan(norm) : isinf(norm)))
            fail_msg("norm: expected %g, %s gives %g", norms[i % 3], sets[i / 3]->name, norm);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- norms ---- */

static void batch_norm_case(op_case *c)
{
    begin(c, ESPER_OP_BATCH_NORM, 2);
    c->attr.norm.eps = 1e-5f;
    c->attr.norm.momentum = 0.1f;
    input(c, 0, OP_SAMPLE, DIMS(1, 1, 2), VALUES(1, 2, 3, 4));
    input(c, 1, OP_WHOLE, DIMS(1), VALUES(2));
    input(c, 2, OP_WHOLE, DIMS(1), VALUES(0.5));
    input(c, 3, OP_WHOLE, DIMS(1), VALUES(0));
    input(c, 4, OP_WHOLE, DIMS(1), VALUES(1));
    output(c, 0, OP_SAMPLE, DIMS(1, 1, 2));
    output(c, 1, OP_WHOLE, DIMS(1));
    output(c, 2, OP_WHOLE, DIMS(1));
}

/* Normalised by the biased variance 1.25; the running one moves towards the unbiased 5/3. */
static void test_batch_norm(void **state)
{
    double rstd = 1 / sqrt(1.25 + 1e-5), rstd_eval = 1 / sqrt(1 + 1e-5);

    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        batch_norm_case(&c);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(0.5 - 3 * rstd, 0.5 - rstd, 0.5 + rstd, 0.5 + 3 * rstd), FLOAT);
        expect(&run, "in[3].data", VALUES(0.25), FLOAT);
        expect(&run, "in[4].data", VALUES(0.9 + 0.1 * 5 / 3), FLOAT);
        op_run_fini(&run);
        c.pass.training = false;
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data",
               VALUES(0.5 + 2 * rstd_eval, 0.5 + 4 * rstd_eval, 0.5 + 6 * rstd_eval, 0.5 + 8 * rstd_eval), FLOAT);
        expect(&run, "in[3].data", VALUES(0), EXACT); /* evaluation leaves the running statistics alone */
        expect(&run, "in[4].data", VALUES(1), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* Two groups of one channel each: the second one's values, far from zero, keep their digits. */
static void test_group_norm(void **state)
{
    double r = 1 / sqrt(0.25 + 1e-5);

    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_GROUP_NORM, 1);
        c.attr.norm.groups = 2;
        c.attr.norm.eps = 1e-5f;
        input(&c, 0, OP_SAMPLE, DIMS(2, 1, 2), VALUES(0, 1, 30000, 30001));
        input(&c, 1, OP_WHOLE, DIMS(2), VALUES(1, 2));
        input(&c, 2, OP_WHOLE, DIMS(2), VALUES(0, 1));
        output(&c, 0, OP_SAMPLE, DIMS(2, 1, 2));
        output(&c, 1, OP_SAMPLE, DIMS(2, 2));
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(-0.5 * r, 0.5 * r, 1 - r, 1 + r), FLOAT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_layer_norm(void **state)
{
    double r = 1 / sqrt(0.25 + 1e-5);

    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_LAYER_NORM, 1);
        c.attr.norm.eps = 1e-5f;
        input(&c, 0, OP_SAMPLE, DIMS(2, 2), VALUES(0, 1, 6, 5));
        input(&c, 1, OP_WHOLE, DIMS(2), VALUES(1, 2));
        input(&c, 2, OP_WHOLE, DIMS(2), VALUES(0, 1));
        output(&c, 0, OP_SAMPLE, DIMS(2, 2));
        output(&c, 1, OP_SAMPLE, DIMS(2, 2));
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(-0.5 * r, 1 + r, 0.5 * r, 1 - r), FLOAT);
        expect(&run, "out[1].data", VALUES(0.5, r, 5.5, r), FLOAT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- convolution, pooling, means ---- */

/* The definition, in plain loops. */
static double conv_at(const op_case *c, size_t n, int o, int y, int x)
{
    const op_tensor *in = &c->in[0], *w = &c->in[1];
    int group_in = w->dim[1], group = o / (c->out[0].dim[0] / c->attr.conv.groups), k = w->dim[2];
    double sum = 0;

    for (int ch = 0; ch < group_in; ch++)
        for (int ky = 0; ky < k; ky++)
            for (int kx = 0; kx < k; kx++) {
                int yy = y + ky - c->attr.conv.pad, xx = x + kx - c->attr.conv.pad;
                size_t plane = n * (size_t)in->dim[0] + (size_t)(group * group_in + ch);

                if (yy >= 0 && yy < in->dim[1] && xx >= 0 && xx < in->dim[2])
                    sum += in->value[(plane * (size_t)in->dim[1] + (size_t)yy) * (size_t)in->dim[2] + (size_t)xx] *
                           w->value[((o * group_in + ch) * k + ky) * k + kx];
            }
    return sum;
}

static void check_conv(const op_case *c)
{
    const op_tensor *y = &c->out[0];
    const op_buffer *found;
    op_run run;
    size_t i = 0;

    start(&run, c, &esper_kernels_ref64);
    op_run_forward(&run, &esper_kernels_ref64, NULL);
    found = op_run_find(&run, "out[0].data");
    for (size_t n = 0; n < (size_t)c->pass.n_samples; n++)
        for (int o = 0; o < y->dim[0]; o++)
            for (int row = 0; row < y->dim[1]; row++)
                for (int col = 0; col < y->dim[2]; col++, i++)
                    if (!(fabs(op_run_get(&run, found, i) - conv_at(c, n, o, row, col)) < 1e-12))
                        fail_msg("%s: sample %zu channel %d pixel %d,%d: expected %.15g, found %.15g", c->text, n, o,
                                 row, col, conv_at(c, n, o, row, col), op_run_get(&run, found, i));
    op_run_fini(&run);
}

static void test_conv_by_definition(void **state)
{
    (void)state;
    for (uint32_t number = 0; number < 60; number++) {
        op_case c;

        op_case_init(&c, ESPER_OP_CONV2D, number);
        check_conv(&c);
        op_case_fini(&c);
    }
}

static void test_conv_groups(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_CONV2D, 1);
        c.attr.conv.groups = 2;
        input(&c, 0, OP_SAMPLE, DIMS(2, 1, 2), VALUES(1, 2, 3, 4));
        input(&c, 1, OP_WHOLE, DIMS(4, 1, 1, 1), VALUES(1, 10, 100, 1000));
        output(&c, 0, OP_SAMPLE, DIMS(4, 1, 2));
        gradient(&c.out[0], VALUES(1, 1, 1, 1, 1, 1, 1, 1));
        gradient(&c.in[0], NULL);
        gradient(&c.in[1], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(1, 2, 10, 20, 300, 400, 3000, 4000), EXACT);
        expect(&run, "in[0].grad", VALUES(11, 11, 1100, 1100), EXACT);
        expect(&run, "in[1].grad", VALUES(3, 3, 7, 7), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* Equal maxima: the first in row-major order takes the gradient; a last odd row and column take none. */
static void test_pool_ties(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_MAX_POOL, 1);
        input(&c, 0, OP_SAMPLE, DIMS(2, 3, 3), VALUES(1, 1, 9, 1, 1, 9, 9, 9, 9, 0, 2, 9, 2, 1, 9, 9, 9, 9));
        output(&c, 0, OP_SAMPLE, DIMS(2, 1, 1));
        gradient(&c.out[0], VALUES(5, 7));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(1, 2), EXACT);
        expect(&run, "in[0].grad", VALUES(5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_pool_nan(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_MAX_POOL, 1);
        input(&c, 0, OP_SAMPLE, DIMS(4, 2, 2),
              VALUES(D_NAN, 1, 2, 3, 1, D_NAN, 2, 3, 1, 2, D_NAN, D_NAN, 1, 2, 3, D_NAN));
        output(&c, 0, OP_SAMPLE, DIMS(4, 1, 1));
        gradient(&c.out[0], VALUES(1, 2, 3, 4));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(D_NAN, D_NAN, D_NAN, D_NAN), EXACT);
        expect(&run, "in[0].grad", VALUES(1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_global_mean(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_GLOBAL_MEAN, 1);
        if (i % 2 == 0)
            input(&c, 0, OP_SAMPLE, DIMS(2, 1, 2), VALUES(1, 2, 3, 4));
        else
            input(&c, 0, OP_SAMPLE, DIMS(2, 2), VALUES(1, 3, 2, 4));
        output(&c, 0, OP_SAMPLE, DIMS(2));
        go(&run, &c, sets[i / 2]);
        expect(&run, "out[0].data", VALUES(1.5, 3.5), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- one element at a time ---- */

static void test_relu(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_RELU, 1);
        input(&c, 0, OP_SAMPLE, DIMS(5), VALUES(-1, 0, 2, D_NAN, -D_INF));
        output(&c, 0, OP_SAMPLE, DIMS(5));
        gradient(&c.out[0], VALUES(3, 3, 3, 3, 3));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(0, 0, 2, D_NAN, 0), EXACT);
        expect(&run, "in[0].grad", VALUES(0, 0, 3, 3, 0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* Values of the exact forms, and both ends. */
static void test_smooth(void **state)
{
    static const esper_op_kind kinds[] = {ESPER_OP_GELU, ESPER_OP_SIGMOID, ESPER_OP_TANH};
    static const double expected[3][5] = {
        {0, 0.8413447460685429, -0.15865525393145707, 200, 0},
        {0.5, 0.7310585786300049, 0.2689414213699951, 1, 0},
        {0, 0.7615941559557649, -0.7615941559557649, 1, -1},
    };

    (void)state;
    for (int i = 0; i < 3 * n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, kinds[i % 3], 1);
        input(&c, 0, OP_SAMPLE, DIMS(5), VALUES(0, 1, -1, 200, -200));
        output(&c, 0, OP_SAMPLE, DIMS(5));
        gradient(&c.out[0], VALUES(1, 1, 1, 1, 1));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i / 3]);
        expect(&run, "out[0].data", expected[i % 3], FLOAT);
        assert_true(isfinite(op_run_get(&run, op_run_find(&run, "in[0].grad"), 4)));
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* At w = 0 the mix is x itself, bit for bit. */
static void test_mix_tanh_at_birth(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_MIX_TANH, 1);
        input(&c, 0, OP_SAMPLE, DIMS(3), VALUES(0.1, -1e-30, 12345.678));
        input(&c, 1, OP_SAMPLE, DIMS(3), VALUES(7, 8, 9));
        input(&c, 2, OP_WHOLE, DIMS(1), VALUES(0));
        output(&c, 0, OP_SAMPLE, DIMS(3));
        go(&run, &c, sets[i]);
        expect_bits(&run, "out[0].data", "in[0].data");
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- linear, embedding, attention, dropout ---- */

static void test_linear(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_LINEAR, 2);
        input(&c, 0, OP_SAMPLE, DIMS(2), VALUES(1, 2, 3, 4));
        input(&c, 1, OP_WHOLE, DIMS(3, 2), VALUES(1, 0, 0, 1, 1, -1));
        input(&c, 2, OP_WHOLE, DIMS(3), VALUES(10, 20, 30));
        output(&c, 0, OP_SAMPLE, DIMS(3));
        gradient(&c.out[0], VALUES(1, 0, 2, 0, 1, 1));
        for (int k = 0; k < 3; k++)
            gradient(&c.in[k], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(11, 22, 29, 13, 24, 29), EXACT);
        expect(&run, "in[0].grad", VALUES(3, -2, 1, 0), EXACT);
        expect(&run, "in[1].grad", VALUES(1, 2, 3, 4, 5, 8), EXACT);
        expect(&run, "in[2].grad", VALUES(1, 1, 3), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* The same id twice: its row gathers both gradients. Positions beyond T get zeros. */
static void test_embedding(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_EMBEDDING, 2);
        input(&c, 0, OP_IDS, DIMS(2), VALUES(2, 0, 2, 2));
        input(&c, 1, OP_WHOLE, DIMS(3, 1), VALUES(1, 2, 3));
        input(&c, 2, OP_WHOLE, DIMS(3, 1), VALUES(10, 20, 30));
        output(&c, 0, OP_SAMPLE, DIMS(2, 1));
        gradient(&c.out[0], VALUES(1, 2, 4, 8));
        gradient(&c.in[1], NULL);
        gradient(&c.in[2], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(13, 21, 13, 23), EXACT);
        expect(&run, "in[1].grad", VALUES(2, 0, 13), EXACT);
        expect(&run, "in[2].grad", VALUES(5, 10, 0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* One token can only look at itself: y = v, and no gradient for q and k. */
static void test_attention_of_one(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_ATTENTION, 1);
        c.attr.attention.heads = 2;
        input(&c, 0, OP_SAMPLE, DIMS(1, 6), VALUES(1, 2, 3, 4, 5, 6));
        output(&c, 0, OP_SAMPLE, DIMS(1, 2));
        output(&c, 1, OP_SAMPLE, DIMS(2, 1, 1));
        gradient(&c.out[0], VALUES(7, 8));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(5, 6), EXACT);
        expect(&run, "out[1].data", VALUES(1, 1), EXACT);
        expect(&run, "in[0].grad", VALUES(0, 0, 0, 0, 7, 8), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* The definition, in plain loops: element d of token i of one sample, without dropout. */
static double attention_at(const op_case *c, size_t n, int i, int d)
{
    int T = c->out[0].dim[0], D = c->out[0].dim[1], width = D / c->attr.attention.heads, first = d / width * width;
    const double *qkv = c->in[0].value + n * c->in[0].count;
    double top = -D_INF, sum = 0, y = 0, score[64];

    assert_true(T <= 64);
    for (int j = 0; j <= i; j++) {
        score[j] = 0;
        for (int k = first; k < first + width; k++)
            score[j] += qkv[i * 3 * D + k] * qkv[j * 3 * D + D + k] / sqrt(width);
        top = fmax(top, score[j]);
    }
    for (int j = 0; j <= i; j++)
        sum += exp(score[j] - top);
    for (int j = 0; j <= i; j++)
        y += exp(score[j] - top) / sum * qkv[j * 3 * D + 2 * D + d];
    return y;
}

static void test_attention_by_definition(void **state)
{
    (void)state;
    for (uint32_t number = 0; number < 40; number++) {
        op_case c;
        op_run run;
        const op_buffer *y;

        op_case_init(&c, ESPER_OP_ATTENTION, number);
        c.attr.attention.drop = 0;
        start(&run, &c, &esper_kernels_ref64);
        op_run_forward(&run, &esper_kernels_ref64, NULL);
        y = op_run_find(&run, "out[0].data");
        for (size_t at = 0; at < y->count; at++) {
            size_t D = (size_t)c.out[0].dim[1];
            double expected = attention_at(&c, at / c.out[0].count, (int)(at % c.out[0].count / D), (int)(at % D));

            if (!(fabs(op_run_get(&run, y, at) - expected) < 1e-12))
                fail_msg("%s: element %zu: expected %.15g, found %.15g", c.text, at, expected, op_run_get(&run, y, at));
        }
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

enum { DROP_COUNT = 1000 };

/* 4 samples of ones through dropout of 0.25. */
static void drop_ones(op_case *c, op_run *run, const esper_kernel_set *set, const uint32_t id[4])
{
    begin(c, ESPER_OP_DROPOUT, 4);
    c->attr.dropout.drop = 0.25f;
    c->attr.dropout.tag = 1;
    memcpy(c->sample_id, id, 4 * sizeof(id[0]));
    op_tensor_init(&c->in[0], OP_SAMPLE, 4, DIMS(DROP_COUNT), false);
    for (size_t i = 0; i < c->in[0].total; i++)
        c->in[0].value[i] = 1;
    output(c, 0, OP_SAMPLE, DIMS(DROP_COUNT));
    gradient(&c->out[0], c->in[0].value);
    gradient(&c->in[0], NULL);
    go(run, c, set);
}

/* A sample's mask goes with its global index, not with its place in the batch, and is the same backwards. */
static void test_dropout_mask(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case a, b;
        op_run run_a, run_b;
        const float *mask_a, *mask_b;
        int n_kept = 0;

        if (sets[i] == &esper_kernels_ref64)
            continue;
        drop_ones(&a, &run_a, sets[i], (const uint32_t[]){10, 11, 12, 13});
        drop_ones(&b, &run_b, sets[i], (const uint32_t[]){13, 12, 99, 10});
        mask_a = run_a.lane.out[0].data;
        mask_b = run_b.lane.out[0].data;
        assert_memory_equal(mask_a, mask_b + 3 * DROP_COUNT, DROP_COUNT * sizeof(float));
        assert_memory_equal(mask_a + 2 * DROP_COUNT, mask_b + DROP_COUNT, DROP_COUNT * sizeof(float));
        assert_memory_not_equal(mask_a + DROP_COUNT, mask_b + 2 * DROP_COUNT, DROP_COUNT * sizeof(float));
        expect_bits(&run_a, "in[0].grad", "out[0].data");
        for (int k = 0; k < 4 * DROP_COUNT; k++) {
            assert_true(mask_a[k] == 0 || fabsf(mask_a[k] - 1 / 0.75f) < 1e-6f);
            n_kept += mask_a[k] != 0;
        }
        assert_in_range(n_kept, 2900, 3100); /* 3000, deviation 27 */
        op_run_fini(&run_a);
        op_run_fini(&run_b);
        op_case_fini(&a);
        op_case_fini(&b);
    }
}

/* Which step, network and tag count too. */
static void test_dropout_key(void **state)
{
    op_case c;
    op_run run, other;

    (void)state;
    drop_ones(&c, &run, &esper_kernels_ref, (const uint32_t[]){1, 2, 3, 4});
    for (int i = 0; i < 4; i++) {
        esper_pass pass = c.pass;
        esper_attr attr = c.attr;

        c.pass.step += i == 0;
        c.pass.network += i == 1;
        c.pass.seed += i == 2;
        c.attr.dropout.tag += i == 3;
        go(&other, &c, &esper_kernels_ref);
        assert_memory_not_equal(run.lane.out[0].data, other.lane.out[0].data, DROP_COUNT * sizeof(float));
        op_run_fini(&other);
        c.pass = pass;
        c.attr = attr;
    }
    c.pass.training = false;
    go(&other, &c, &esper_kernels_ref);
    expect_bits(&other, "out[0].data", "in[0].data");
    expect_bits(&other, "in[0].grad", "out[0].grad");
    op_run_fini(&other);
    op_run_fini(&run);
    op_case_fini(&c);
}

/* ---- loss ---- */

static void test_xent(void **state)
{
    double lse = 2 + log(2 + exp(-2));
    double two = 0.5 * exp(2 - lse), zero = 0.5 * exp(-lse), right = 0.5 * (exp(2 - lse) - 1);

    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        /* Rows: ignored; two ties answered by 0, the target; a tie answered by 1, not the target. */
        begin(&c, ESPER_OP_SOFTMAX_XENT, 1);
        c.pass.loss_scale = 0.5f;
        input(&c, 0, OP_SAMPLE, DIMS(4, 3), VALUES(9, 9, 9, 2, 0, 2, 2, 2, 0, 0, 2, 2));
        input(&c, 1, OP_IDS, DIMS(4), VALUES(-1, 0, 0, 2));
        output(&c, 0, OP_SAMPLE, DIMS(1));
        output(&c, 1, OP_SAMPLE, DIMS(1));
        output(&c, 2, OP_SAMPLE, DIMS(4));
        gradient(&c.out[0], VALUES(1234)); /* not read */
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(3 * (lse - 2)), FLOAT);
        expect(&run, "out[1].data", VALUES(2), EXACT);
        expect(&run, "out[2].data", VALUES(9 + log(3), lse, lse, lse), FLOAT);
        expect(&run, "in[0].grad", VALUES(0, 0, 0, right, zero, two, right, two, zero, zero, two, right), FLOAT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* Three samples: a NaN first, a NaN later, an infinity. Each loss is NaN and no answer is right. A fourth is all huge. */
static void test_xent_not_finite(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_SOFTMAX_XENT, 4);
        input(&c, 0, OP_SAMPLE, DIMS(2), VALUES(D_NAN, 1, 1, D_NAN, D_INF, 1, 3e38, -3e38));
        input(&c, 1, OP_IDS, DIMS(1), VALUES(0, 0, 0, 0));
        output(&c, 0, OP_SAMPLE, DIMS(1));
        output(&c, 1, OP_SAMPLE, DIMS(1));
        output(&c, 2, OP_SAMPLE, DIMS(1));
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(D_NAN, D_NAN, D_NAN, 0), EXACT);
        expect(&run, "out[1].data", VALUES(0, 0, 0, 1), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- a seed joins its host ---- */

static void blend_case(op_case *c, esper_op_kind kind, const double *h, const double *s, double gate, double alpha)
{
    int at = 2;

    begin(c, kind, 1);
    input(c, 0, OP_SAMPLE, DIMS(4), h);
    input(c, 1, OP_SAMPLE, DIMS(4), s);
    if (kind == ESPER_OP_BLEND_MUL)
        input(c, at++, OP_SAMPLE, DIMS(4), h);
    if (kind == ESPER_OP_BLEND_GATE)
        input(c, at++, OP_SAMPLE, DIMS(1), &gate);
    if (kind != ESPER_OP_STRAIGHT_THROUGH)
        input(c, at, OP_SAMPLE, DIMS(1), &alpha);
    output(c, 0, OP_SAMPLE, DIMS(4));
    gradient(&c->out[0], VALUES(1, 2, 3, 4));
    for (int k = 0; k < 3; k++)
        if (c->in[k].role != OP_ABSENT && (esper_op_info_of(kind)->grad_in & ESPER_BIT(k)) != 0)
            gradient(&c->in[k], NULL);
}

static const double HOST[4] = {0.1, -3e30, 1e-30, 7}, BAD[4] = {D_NAN, D_INF, -D_INF, D_NAN};

/* A seed without weight may be anything: y is h, bit for bit, and the host's gradient is its own. */
static void test_bad_seed_without_weight(void **state)
{
    static const struct {
        esper_op_kind kind;
        double        gate, alpha;
    } ways[] = {
        {ESPER_OP_STRAIGHT_THROUGH, 0, 0}, {ESPER_OP_BLEND_ADD, 0, 0},    {ESPER_OP_BLEND_ADD, 0, -0.5},
        {ESPER_OP_BLEND_MUL, 0, 0},        {ESPER_OP_BLEND_MUL, 0, -1},   {ESPER_OP_BLEND_GATE, 0.5, 0},
        {ESPER_OP_BLEND_GATE, 0, 0.5},     {ESPER_OP_BLEND_GATE, -1, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) * (size_t)n_sets; i++) {
        size_t way = i / (size_t)n_sets;
        op_case c;
        op_run run;

        blend_case(&c, ways[way].kind, HOST, BAD, ways[way].gate, ways[way].alpha);
        go(&run, &c, sets[i % (size_t)n_sets]);
        expect_bits(&run, "out[0].data", "in[0].data");
        expect_bits(&run, "in[0].grad", "out[0].grad");
        if (c.kind == ESPER_OP_STRAIGHT_THROUGH)
            expect_bits(&run, "in[1].grad", "out[0].grad");
        else
            expect(&run, "in[1].grad", VALUES(0, 0, 0, 0), EXACT);
        if (c.kind == ESPER_OP_BLEND_GATE && ways[way].gate != 0)
            expect(&run, "in[2].grad", VALUES(0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* At full weight y is s, bit for bit, whatever h is. */
static void test_full_weight(void **state)
{
    static const double weights[] = {1, 1.5};

    (void)state;
    for (int i = 0; i < 4 * n_sets; i++) {
        op_case c;
        op_run run;

        blend_case(&c, i % 2 == 0 ? ESPER_OP_BLEND_ADD : ESPER_OP_BLEND_GATE, BAD, HOST, weights[i / 2 % 2],
                   weights[i / 2 % 2]);
        go(&run, &c, sets[i / 4]);
        expect_bits(&run, "out[0].data", "in[1].data");
        expect(&run, "in[0].grad", VALUES(0, 0, 0, 0), EXACT);
        expect_bits(&run, "in[1].grad", "out[0].grad");
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* r = a * sum of g (s - h) = 0.5 * (1 + 2 + 3 + 4), at both ends of the gate too, but not beyond them. */
static void test_gate_gradient(void **state)
{
    static const double gates[] = {0, 0.25, 1, -0.001, 1.001}, expected[] = {5, 5, 5, 0, 0};

    (void)state;
    for (int i = 0; i < 5 * n_sets; i++) {
        op_case c;
        op_run run;

        blend_case(&c, ESPER_OP_BLEND_GATE, VALUES(1, 2, 3, 4), VALUES(2, 3, 4, 5), gates[i % 5], 0.5);
        go(&run, &c, sets[i / 5]);
        expect(&run, "in[2].grad", &expected[i % 5], EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_blend_values(void **state)
{
    double t = tanh(1), slope = 1 - t * t;

    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        blend_case(&c, ESPER_OP_BLEND_ADD, VALUES(0, 1, 2, 3), VALUES(4, 5, 6, 7), 0, 0.25);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(1, 2, 3, 4), EXACT);
        expect(&run, "in[0].grad", VALUES(0.75, 1.5, 2.25, 3), EXACT);
        expect(&run, "in[1].grad", VALUES(0.25, 0.5, 0.75, 1), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);

        blend_case(&c, ESPER_OP_BLEND_MUL, VALUES(0, 1, 2, 3), VALUES(1, 2, 3, 4), 0, 0.5);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(0, 1 + t / 2, 2 + t, 3 + 1.5 * t), FLOAT);
        expect(&run, "in[0].grad", VALUES(1 + t / 2, 2 + t, 3 + 1.5 * t, 4 + 2 * t), FLOAT);
        expect(&run, "in[1].grad", VALUES(0, slope, 3 * slope, 6 * slope), FLOAT);
        expect(&run, "in[2].grad", VALUES(0, -slope, -3 * slope, -6 * slope), FLOAT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

/* ---- the list ---- */

/* One step of width 1 by hand; then a reset hides a state that is not finite, and sends no gradient back. */
static void check_lstm(const esper_kernel_set *set)
{
    const double s1 = 0.7310585786300049, s2 = 0.8807970779778823, t1 = 0.7615941559557649; /* sigmoid 1, 2; tanh 1 */
    op_case c;
    op_run run;

    for (int anew = 0; anew <= 1; anew++) {
        double cell = s1 * t1 + (anew ? 0 : s2 * 0.5), y = s1 * tanh(cell);

        begin(&c, ESPER_OP_LSTM, 1);
        input(&c, 0, OP_SAMPLE, DIMS(1, 4), VALUES(0, 1, 0, 0));
        input(&c, 1, OP_WHOLE, DIMS(4, 1), VALUES(0, 0, 0, 0));
        input(&c, 2, OP_WHOLE, DIMS(4), VALUES(1, 1, 1, 1));
        input(&c, 3, OP_SAMPLE, DIMS(1), anew ? VALUES(D_NAN) : VALUES(3));
        input(&c, 4, OP_SAMPLE, DIMS(1), anew ? VALUES(D_INF) : VALUES(0.5));
        input(&c, 5, OP_SAMPLE, DIMS(1), anew ? VALUES(1) : VALUES(0));
        output(&c, 0, OP_SAMPLE, DIMS(1, 1));
        output(&c, 1, OP_SAMPLE, DIMS(1, 1));
        output(&c, 2, OP_SAMPLE, DIMS(1, 4));
        gradient(&c.out[0], VALUES(1));
        gradient(&c.in[1], NULL);
        gradient(&c.in[4], NULL);
        go(&run, &c, set);
        expect(&run, "out[1].data", VALUES(cell), FLOAT);
        expect(&run, "out[0].data", VALUES(y), FLOAT);
        expect(&run, "out[2].data", VALUES(s1, s2, t1, s1), FLOAT);
        expect(&run, "in[4].grad", VALUES(anew ? 0 : s1 * (1 - tanh(cell) * tanh(cell)) * s2), FLOAT);
        if (anew)
            expect(&run, "in[1].grad", VALUES(0, 0, 0, 0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_lstm(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++)
        check_lstm(sets[i]);
}

/* Of equals the first gets the gradient; where nothing is there nothing comes, nor goes back; NaN is the largest. */
static void test_pool_rows(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        op_case c;
        op_run run;

        begin(&c, ESPER_OP_POOL_ROWS, 1);
        input(&c, 0, OP_SAMPLE, DIMS(6, 1), VALUES(2, 4, 4, 8, D_NAN, 5));
        input(&c, 1, OP_SAMPLE, DIMS(6), VALUES(0, 1, 1, 0, 0, 0));
        output(&c, 0, OP_SAMPLE, DIMS(2, 2));
        gradient(&c.out[0], VALUES(6, 3, 9, 9));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(4, 4, 0, 0), EXACT);
        expect(&run, "in[0].grad", VALUES(0, 6, 3, 0, 0, 0), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
        begin(&c, ESPER_OP_POOL_ROWS, 1);
        input(&c, 0, OP_SAMPLE, DIMS(3, 1), VALUES(2, D_NAN, 7));
        input(&c, 1, OP_SAMPLE, DIMS(3), VALUES(1, 1, 1));
        output(&c, 0, OP_SAMPLE, DIMS(1, 2));
        gradient(&c.out[0], VALUES(3, 1));
        gradient(&c.in[0], NULL);
        go(&run, &c, sets[i]);
        expect(&run, "out[0].data", VALUES(D_NAN, D_NAN), EXACT);
        expect(&run, "in[0].grad", VALUES(1, 2, 1), EXACT);
        op_run_fini(&run);
        op_case_fini(&c);
    }
}

static void test_op_info(void **state)
{
    (void)state;
    assert_string_equal(esper_op_info_of(ESPER_OP_CONV2D)->name, "conv2d");
    assert_string_equal(esper_op_info_of(ESPER_OP_ADAMW)->name, "adamw");
    assert_int_equal(esper_op_info_of(ESPER_OP_BATCH_NORM)->n_in, 5);
    assert_int_equal(esper_op_info_of(ESPER_OP_BATCH_NORM)->saved_out, 6);
    assert_null(esper_op_info_of(ESPER_N_KINDS));
    assert_null(esper_op_info_of((esper_op_kind)-1));
    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        assert_true(info->n_in <= ESPER_OP_MAX_IN && info->n_out <= ESPER_OP_MAX_OUT);
        assert_true((info->grad_in | info->saved_in) >> info->n_in == 0 && info->saved_out >> info->n_out == 0);
    }
}

static void find_sets(void)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};

    sets[n_sets++] = &esper_kernels_ref;
    sets[n_sets++] = &esper_kernels_ref64;
    for (int i = 0; i < 3; i++) {
        setenv("ESPER_KERNELS", names[i], 1);
        if (esper_kernels_choose() != NULL)
            sets[n_sets++] = esper_kernels_choose();
    }
    unsetenv("ESPER_KERNELS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_sgd_without_norm),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_grad_norm),
        cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_group_norm),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_conv_by_definition),
        cmocka_unit_test(test_conv_groups),
        cmocka_unit_test(test_pool_ties),
        cmocka_unit_test(test_pool_nan),
        cmocka_unit_test(test_global_mean),
        cmocka_unit_test(test_relu),
        cmocka_unit_test(test_smooth),
        cmocka_unit_test(test_mix_tanh_at_birth),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_attention_of_one),
        cmocka_unit_test(test_attention_by_definition),
        cmocka_unit_test(test_dropout_mask),
        cmocka_unit_test(test_dropout_key),
        cmocka_unit_test(test_xent),
        cmocka_unit_test(test_xent_not_finite),
        cmocka_unit_test(test_bad_seed_without_weight),
        cmocka_unit_test(test_full_weight),
        cmocka_unit_test(test_gate_gradient),
        cmocka_unit_test(test_blend_values),
        cmocka_unit_test(test_lstm),
        cmocka_unit_test(test_pool_rows),
        cmocka_unit_test(test_op_info),
    };

    find_sets();
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
