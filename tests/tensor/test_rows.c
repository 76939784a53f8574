/* Token networks at sizes where the cpu sets cut their work into blocks: several chunks of rows, blocks of k, blocks of
 * queries. Each set agrees with the reference (2e-5 of the largest entry) and gives the same bits however ranges are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/op_cases.h"

static const double TOLERANCE = 2e-5;

#define DIM(...) ((const int32_t[]){__VA_ARGS__})

static void fill(double *to, size_t n, esper_rng *rng)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (double)(float)(esper_rng_uniform(rng) - 0.5f);
}

/* A tensor with random contents; `graded`: 0 = no gradient, 1 = written, 2 = added to. */
static void add(op_tensor *t, op_role role, const op_case *c, int rank, const int32_t *dim, bool is_output, int graded,
                esper_rng *rng)
{
    op_tensor_init(t, role, c->pass.n_samples, rank, dim, is_output);
    if (t->value != NULL)
        fill(t->value, t->total, rng);
    if (graded == 0)
        return;
    t->grad = calloc(t->total, sizeof(double));
    assert_non_null(t->grad);
    fill(t->grad, t->total, rng);
    t->add = graded == 2;
}

static void begin(op_case *c, esper_op_kind kind, int n_samples, const char *text)
{
    memset(c, 0, sizeof(*c));
    c->kind = kind;
    c->pass = (esper_pass){.n_samples = n_samples, .training = true, .loss_scale = 1, .seed = 3};
    for (uint32_t n = 0; n < OP_CASE_MAX_SAMPLES; n++)
        c->sample_id[n] = 11 * n;
    c->pass.sample_id = c->sample_id;
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        c->in[i].same_as = -1;
    for (int i = 0; i < ESPER_OP_MAX_OUT; i++)
        c->out[i].same_as = -1;
    snprintf(c->text, sizeof(c->text), "%s", text);
}

static void run_one(op_run *run, const op_case *c, const esper_kernel_set *set, esper_rng *cuts)
{
    op_run_init(run, c, sizeof(float), 0x55);
    op_run_forward(run, set, cuts);
    op_run_backward(run, set, cuts);
    if (op_run_broken_guard(run) != NULL)
        fail_msg("%s: %s wrote outside of %s", c->text, set->name, op_run_broken_guard(run)->name);
}

static void check_close(const op_run *expected, const op_run *found, const char *set)
{
    for (int k = 0; k < expected->n_buffers; k++) {
        const op_buffer *e = &expected->buffers[k], *f = &found->buffers[k];
        double most = 1;

        for (size_t i = 0; i < e->count; i++)
            most = fmax(most, fabs(op_run_get(expected, e, i)));
        for (size_t i = 0; i < e->count; i++) {
            double a = op_run_get(expected, e, i), b = op_run_get(found, f, i);

            if (!(fabs(a - b) <= TOLERANCE * most))
                fail_msg("%s: %s element %zu: expected %.9g, %s gives %.9g", expected->c->text, e->name, i, a, set, b);
        }
    }
}

static void check_equal(const op_run *one, const op_run *cut)
{
    for (int k = 0; k < one->n_buffers; k++)
        if (memcmp(op_buffer_mem(&one->buffers[k]), op_buffer_mem(&cut->buffers[k]), one->buffers[k].bytes) != 0)
            fail_msg("%s: %s depends on how its ranges are cut", one->c->text, one->buffers[k].name);
}

static void check_case(const op_case *c)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    esper_rng_key key = {.seed = 4, .purpose = ESPER_RNG_TEST};
    op_run ref, one, cut;
    esper_rng cuts;

    run_one(&ref, c, &esper_kernels_ref, NULL);
    for (int i = 0; i < 3; i++) {
        const esper_kernel_set *set;

        setenv("ESPER_KERNELS", names[i], 1);
        set = esper_kernels_choose();
        unsetenv("ESPER_KERNELS");
        if (set == NULL)
            continue;
        esper_rng_init(&cuts, &key);
        run_one(&one, c, set, NULL);
        run_one(&cut, c, set, &cuts);
        check_close(&ref, &one, set->name);
        check_equal(&one, &cut);
        op_run_fini(&cut);
        op_run_fini(&one);
    }
    op_run_fini(&ref);
}

static void check_linear(int tokens, int inputs, int outputs, int graded, bool bias)
{
    esper_rng_key key = {.seed = 1, .purpose = ESPER_RNG_TEST};
    esper_rng rng;
    op_case c;

    esper_rng_init(&rng, &key);
    begin(&c, ESPER_OP_LINEAR, 3, "linear");
    add(&c.in[0], OP_SAMPLE, &c, 2, DIM(tokens, inputs), false, graded, &rng);
    add(&c.in[1], OP_WHOLE, &c, 2, DIM(outputs, inputs), false, graded, &rng);
    if (bias)
        add(&c.in[2], OP_WHOLE, &c, 1, DIM(outputs), false, graded, &rng);
    add(&c.out[0], OP_SAMPLE, &c, 2, DIM(tokens, outputs), true, 1, &rng);
    check_case(&c);
    op_case_fini(&c);
}

static void linear_in_chunks_and_blocks(void **state)
{
    (void)state;
    check_linear(401, 300, 131, 1, true); /* 1,203 rows: three chunks; 300 inputs: two blocks of k */
    check_linear(37, 128, 384, 2, true);
    check_linear(90, 17, 530, 2, false);
    check_linear(1, 1, 1, 1, true);
    check_linear(190, 200, 1, 1, false);
}

static void check_attention(int tokens, int heads, int width, float drop, int graded)
{
    esper_rng_key key = {.seed = 2, .purpose = ESPER_RNG_TEST};
    esper_rng rng;
    op_case c;

    esper_rng_init(&rng, &key);
    begin(&c, ESPER_OP_ATTENTION, 2, "attention");
    c.attr.attention.heads = heads;
    c.attr.attention.drop = drop;
    c.attr.attention.tag = 7;
    add(&c.in[0], OP_SAMPLE, &c, 2, DIM(tokens, 3 * heads * width), false, graded, &rng);
    add(&c.out[0], OP_SAMPLE, &c, 2, DIM(tokens, heads * width), true, 1, &rng);
    add(&c.out[1], OP_SAMPLE, &c, 3, DIM(heads, tokens, tokens), true, 0, &rng);
    check_case(&c);
    op_case_fini(&c);
}

static void attention_in_blocks_of_queries(void **state)
{
    (void)state;
    check_attention(128, 4, 32, 0.0f, 1);
    check_attention(200, 2, 20, 0.0f, 1);
    check_attention(403, 1, 9, 0.3f, 2);  /* five blocks, two blocks of keys, draws across them */
    check_attention(31, 2, 270, 0.3f, 1); /* a head wider than a block of k */
    check_attention(260, 3, 16, 0.0f, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_in_chunks_and_blocks),
        cmocka_unit_test(attention_in_blocks_of_queries),
    };

    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
