/* ctest: cost=10 kernels=ref64 */
/* Every kernel set on random cases of every operation:
 *   - it agrees with the reference in double, and with the reference, up to rounding;
 *   - any cutting of the ranges gives the same bits as one range;
 *   - nothing is written outside of a buffer, and nothing that must be written is left out.
 *
 * Tolerance: 2e-5 of the largest entry of a tensor, with a floor of 2e-5 for tensors whose terms, of order 1, cancel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/op_cases.h"

enum { N_CASES = 100, N_CUTS = 4 };

static const double TOLERANCE = 2e-5;

typedef struct subject {
    esper_op_kind           kind;
    const esper_kernel_set *set;
    char                    name[64];
} subject;

/* A whole run, in ranges drawn from `cuts` or in one. */
static void run_case(op_run *run, const op_case *c, const esper_kernel_set *set, unsigned char fill, esper_rng *cuts)
{
    op_run_init(run, c, set == &esper_kernels_ref64 ? sizeof(double) : sizeof(float), fill);
    op_run_forward(run, set, cuts);
    if (!c->flat)
        op_run_backward(run, set, cuts);
    if (op_run_broken_guard(run) != NULL)
        fail_msg("%s: %s wrote outside of %s", c->text, set->name, op_run_broken_guard(run)->name);
}

static double largest(const op_run *run, const op_buffer *b)
{
    double most = 1;

    for (size_t i = 0; i < b->count; i++)
        most = fmax(most, fabs(op_run_get(run, b, i)));
    return most;
}

static void check_close(const op_run *expected, const op_run *found, const char *set)
{
    for (int k = 0; k < expected->n_buffers; k++) {
        const op_buffer *e = &expected->buffers[k], *f = &found->buffers[k];
        double room = TOLERANCE * largest(expected, e);

        for (size_t i = 0; i < e->count; i++) {
            double a = op_run_get(expected, e, i), b = op_run_get(found, f, i);

            if (!(fabs(a - b) <= room))
                fail_msg("%s: %s element %zu: expected %.9g, %s gives %.9g", expected->c->text, e->name, i, a, set, b);
        }
    }
}

static void check_equal(const op_run *one, const op_run *cut)
{
    for (int k = 0; k < one->n_buffers; k++) {
        const op_buffer *a = &one->buffers[k], *b = &cut->buffers[k];

        for (size_t i = 0; i < a->count; i++)
            if (memcmp((char *)op_buffer_mem(a) + i * (a->bytes / a->count),
                       (char *)op_buffer_mem(b) + i * (a->bytes / a->count), a->bytes / a->count) != 0)
                fail_msg("%s: %s element %zu: %.9g in one range, %.9g when cut", one->c->text, a->name, i,
                         op_run_get(one, a, i), op_run_get(cut, b, i));
    }
}

static void check_case(const op_case *c, const esper_kernel_set *set, esper_rng *rng)
{
    op_run exact, ref, one, cut;

    run_case(&exact, c, &esper_kernels_ref64, 0x55, NULL);
    run_case(&ref, c, &esper_kernels_ref, 0x55, NULL);
    run_case(&one, c, set, 0x55, NULL);
    check_close(&exact, &one, set->name);
    check_close(&ref, &one, set->name);
    for (int i = 0; i < N_CUTS; i++) {
        run_case(&cut, c, set, 0xaa, rng); /* another fill: an element that is not written differs */
        check_equal(&one, &cut);
        op_run_fini(&cut);
    }
    op_run_fini(&one);
    op_run_fini(&ref);
    op_run_fini(&exact);
}

static void test_set(void **state)
{
    const subject *s = *state;
    esper_rng_key key = {.seed = 2, .purpose = ESPER_RNG_TEST, .network = (uint32_t)s->kind};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (uint32_t number = 0; number < N_CASES; number++) {
        op_case c;

        op_case_init(&c, s->kind, 1000 + number);
        check_case(&c, s->set, &rng);
        op_case_fini(&c);
    }
}

/* The tables are complete: forward for all, backward for what a gradient passes. */
static void test_table(void **state)
{
    const esper_kernel_set *set = ((const subject *)*state)->set;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        assert_non_null(set->op[kind]);
        assert_int_equal(set->op[kind]->forward[0].run != NULL, kind != ESPER_OP_ISOLATE);
        assert_int_equal(set->op[kind]->backward[0].run != NULL, info->grad_in != 0);
    }
}

/* The set of that name if this processor can run it. */
static const esper_kernel_set *set_named(const char *name)
{
    const esper_kernel_set *set;

    setenv("ESPER_KERNELS", name, 1);
    set = esper_kernels_choose();
    unsetenv("ESPER_KERNELS");
    return set;
}

static void test_choose(void **state)
{
    (void)state;
    assert_string_equal(set_named("portable")->name, "portable");
    assert_null(set_named("ref64"));
    assert_null(set_named("fastest"));
    assert_non_null(esper_kernels_choose());
    assert_ptr_equal(set_named(esper_kernels_choose()->name), esper_kernels_choose());
    assert_ptr_equal(set_named(""), esper_kernels_choose());
}

int main(void)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    static subject subjects[4 * (ESPER_N_OPS + 1) + 1];
    static struct CMUnitTest tests[4 * (ESPER_N_OPS + 1) + 1];
    const esper_kernel_set *sets[4] = {&esper_kernels_ref};
    size_t n = 0;

    for (int i = 0; i < 3; i++) {
        sets[i + 1] = set_named(names[i]);
        if (sets[i + 1] == NULL)
            print_message("skipped: this processor cannot run the %s set\n", names[i]);
    }
    tests[n++] = (struct CMUnitTest){"choose", test_choose, NULL, NULL, NULL};
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind <= ESPER_N_OPS && sets[i] != NULL; kind++) { /* the last is no operation: the table */
            subject *s = &subjects[n];
            const esper_op_info *info = kind < ESPER_N_OPS ? esper_op_info_of((esper_op_kind)kind) : NULL;

            *s = (subject){.kind = (esper_op_kind)kind, .set = sets[i]};
            if (kind == ESPER_OP_ISOLATE)
                continue;
            snprintf(s->name, sizeof(s->name), "%s %s", sets[i]->name, info != NULL ? info->name : "table");
            tests[n++] = (struct CMUnitTest){s->name, info != NULL ? test_set : test_table, NULL, NULL, s};
        }
    return _cmocka_run_group_tests("kernels", tests, n, NULL, NULL);
}
