/* ctest: labels=golden */
/* The blend operations against recorded vectors of the operators they follow: output, and gradients to host, seed and gate.
 *
 * Tolerance: 1e-5 of a tensor's largest entry for outputs, 2e-5 for gradients: both sides are float32. Where the recorded
 * straight-through value is h, ours is too, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/golden.h"
#include "support/op_cases.h"

static int n_operators;

static esper_op_kind kind_of(const char *op)
{
    if (strcmp(op, "add") == 0)
        return ESPER_OP_BLEND_ADD;
    if (strcmp(op, "multiply") == 0)
        return ESPER_OP_BLEND_MUL;
    if (strcmp(op, "gate") == 0)
        return ESPER_OP_BLEND_GATE;
    if (strcmp(op, "straight_through") != 0)
        fail_msg("unknown operator %s", op);
    return ESPER_OP_STRAIGHT_THROUGH;
}

/* Reads numbers into a tensor; a single one is repeated. */
static void fill(op_tensor *t, const json_t *numbers)
{
    size_t n = json_array_size(numbers);

    assert_true(n == t->total || n == 1);
    for (size_t i = 0; i < t->total; i++)
        t->value[i] = json_number_value(json_array_get(numbers, n == 1 ? 0 : i));
}

static void add_input(op_case *c, int k, int rank, const int32_t *dim, const json_t *numbers)
{
    op_tensor_init(&c->in[k], OP_SAMPLE, c->pass.n_samples, rank, dim, false);
    fill(&c->in[k], numbers);
}

static void want_gradient(op_tensor *t, bool add)
{
    t->grad = calloc(t->total, sizeof(double));
    assert_non_null(t->grad);
    t->add = add;
}

/* blend_mul's u is h: the very tensor, or one that no gradient reaches. */
static void add_reference(op_case *c, const json_t *in, int rank, const int32_t *dim)
{
    add_input(c, 2, rank, dim, json_object_get(in, "h"));
    if (json_is_true(json_object_get(in, "reference_detached")))
        return;
    c->in[2].same_as = 0;
    want_gradient(&c->in[2], true);
}

static void build_case(op_case *c, const json_t *entry)
{
    static const int32_t one = 1;
    const json_t *in = json_object_get(entry, "in"), *shape = json_object_get(in, "shape");
    int rank = (int)json_array_size(shape) - 1, at = 2;
    int32_t dim[ESPER_MAX_RANK] = {0};

    memset(c, 0, sizeof(*c));
    c->kind = kind_of(json_string_value(json_object_get(in, "op")));
    c->pass.n_samples = (int32_t)json_integer_value(json_array_get(shape, 0));
    snprintf(c->text, sizeof(c->text), "case %d", (int)json_integer_value(json_object_get(entry, "case")));
    for (int i = 0; i < rank; i++)
        dim[i] = (int32_t)json_integer_value(json_array_get(shape, (size_t)i + 1));
    add_input(c, 0, rank, dim, json_object_get(in, "h"));
    add_input(c, 1, rank, dim, json_object_get(in, "s"));
    want_gradient(&c->in[0], false);
    want_gradient(&c->in[1], false);
    if (c->kind == ESPER_OP_BLEND_MUL)
        add_reference(c, in, rank, dim), at++;
    if (c->kind == ESPER_OP_BLEND_GATE) {
        add_input(c, at, 1, &one, json_object_get(in, "gate"));
        want_gradient(&c->in[at++], false);
    }
    if (c->kind != ESPER_OP_STRAIGHT_THROUGH)
        add_input(c, at, 1, &one, json_object_get(in, "alpha"));
    op_tensor_init(&c->out[0], OP_SAMPLE, c->pass.n_samples, rank, dim, false); /* values: a place for the gradient */
    fill(&c->out[0], json_object_get(in, "upstream"));
    c->out[0].grad = c->out[0].value;
    c->out[0].value = NULL;
}

static void check(const op_run *run, const char *buffer, const json_t *recorded, double tolerance)
{
    const op_buffer *b = op_run_find(run, buffer);
    double most = 0;

    assert_non_null(b);
    assert_int_equal(json_array_size(recorded), b->count);
    for (size_t i = 0; i < b->count; i++)
        most = fmax(most, fabs(json_number_value(json_array_get(recorded, i))));
    for (size_t i = 0; i < b->count; i++) {
        double expected = json_number_value(json_array_get(recorded, i)), found = op_run_get(run, b, i);

        if (!(fabs(expected - found) <= tolerance * most))
            fail_msg("%s: %s element %zu: recorded %.9g, found %.9g", run->c->text, buffer, i, expected, found);
    }
}

static void check_case(const json_t *entry, const esper_kernel_set *set)
{
    const json_t *out = json_object_get(entry, "out");
    op_case c;
    op_run run;

    build_case(&c, entry);
    op_run_init(&run, &c, sizeof(float), 0x55);
    op_run_forward(&run, set, NULL);
    op_run_backward(&run, set, NULL);
    check(&run, "out[0].data", json_object_get(out, "y"), c.kind == ESPER_OP_STRAIGHT_THROUGH ? 0 : 1e-5);
    check(&run, "in[0].grad", json_object_get(out, "grad_h"), 2e-5);
    check(&run, "in[1].grad", json_object_get(out, "grad_s"), 2e-5);
    if (c.kind == ESPER_OP_BLEND_GATE)
        check(&run, "in[2].grad", json_object_get(out, "grad_gate"), 2e-5);
    op_run_fini(&run);
    op_case_fini(&c);
}

static void check_operator(const json_t *entry)
{
    if (strcmp(json_string_value(json_object_get(entry, "kind")), "operator") != 0)
        return; /* whole slots: parity/test_slotted.c */
    check_case(entry, &esper_kernels_ref);
    check_case(entry, esper_kernels_choose());
    n_operators++;
}

static void test_operators(void **state)
{
    (void)state;
    golden_each_case("blend", check_operator);
    printf("%d operators compared\n", n_operators);
    assert_true(n_operators > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators)};

    return cmocka_run_group_tests_name("recorded blends", tests, NULL, NULL);
}
