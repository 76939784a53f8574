/* The common order of programs on the cuda backend: each program's launches keep their order, and many share a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "tensor/cuda/backend_order.h"

#define assert_ok(call) assert_int_equal((call), ESPER_OK)

enum { MOST_KINDS = 512 };

/* Kinds as letters. */
static const cuda_form *find(cuda_order *order, const char *kinds)
{
    uint32_t numbers[MOST_KINDS];
    const cuda_form *form;
    int n = 0;

    for (; kinds[n] != '\0'; n++)
        numbers[n] = (uint32_t)kinds[n];
    assert_ok(cuda_order_find(order, numbers, n, &form));
    return form;
}

/* A form's launches stand at rising ranks, each in a step of its kind. */
static void check_form(const cuda_order *order, const cuda_form *form)
{
    for (int i = 0, last = -1; i < form->n; i++) {
        const cuda_step *step = &order->steps[form->steps[i]];

        assert_int_equal(step->kind, form->kinds[i]);
        assert_true(step->rank > last);
        assert_int_equal(order->sequence[step->rank], form->steps[i]);
        last = step->rank;
    }
}

static int n_shared(const cuda_form *a, const cuda_form *b)
{
    int n = 0;

    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < b->n; j++)
            n += a->steps[i] == b->steps[j];
    return n;
}

static void test_programs_share_what_they_have_in_common(void **state)
{
    cuda_order order = {0};
    const cuda_form *host = find(&order, "cpcpcpl"), *first = find(&order, "csgpcpcpl"), *later, *again;

    (void)state;
    assert_int_equal(order.n_steps, 9); /* the seed's two besides the host's seven */
    assert_int_equal(n_shared(host, first), 7);
    later = find(&order, "cpcpcsgpl"); /* the same seed in another slot: as many launches as if it stood in the first */
    assert_true(n_shared(first, later) >= 7);
    again = find(&order, "csgpcpcpl");
    assert_ptr_equal(again, first);
    assert_int_equal(order.n_forms, 3);
    check_form(&order, host);
    check_form(&order, first);
    check_form(&order, later);
    cuda_order_fini(&order);
}

/* One in three kinds of a base sequence is left out, changed, or has another before it. */
static int draw_kinds(esper_rng *rng, const char *base, char *kinds)
{
    int n = 0;

    for (int i = 0; base[i] != '\0'; i++) {
        uint32_t what = esper_rng_below(rng, 9);

        if (what == 0)
            continue;
        if (what == 1)
            kinds[n++] = (char)('a' + esper_rng_below(rng, 20));
        kinds[n++] = what == 2 ? (char)('a' + esper_rng_below(rng, 20)) : base[i];
    }
    kinds[n] = '\0';
    return n;
}

/* However many there are, and also when they come to be so many that the order is begun anew. */
static void test_any_programs_keep_their_order(void **state)
{
    static const char base[] = "abcdefghijklmnopqrstabcdefghijklmnopqrst";
    esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST};
    const cuda_form *forms[64];
    cuda_order order = {0};
    char kinds[MOST_KINDS];
    int n_begun = 0;
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &key);
    for (int round = 0; round < 60; round++) {
        int n_before = order.n_forms;

        cuda_order_tidy(&order);
        n_begun += order.n_forms < n_before;
        for (int i = 0; i < 64; i++) {
            draw_kinds(&rng, base, kinds);
            forms[i] = find(&order, kinds);
            check_form(&order, forms[i]);
        }
        for (int i = 0; i < 64; i++) /* those who came later have moved no launch before another */
            check_form(&order, forms[i]);
    }
    assert_true(n_begun > 0);
    cuda_order_fini(&order);
}

static void test_a_program_may_be_empty(void **state)
{
    cuda_order order = {0};

    (void)state;
    assert_int_equal(find(&order, "")->n, 0);
    assert_int_equal(order.n_steps, 0);
    assert_int_equal(find(&order, "ab")->n, 2);
    assert_int_equal(find(&order, "")->n, 0);
    assert_int_equal(order.n_forms, 2);
    cuda_order_fini(&order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs_share_what_they_have_in_common),
        cmocka_unit_test(test_any_programs_keep_their_order),
        cmocka_unit_test(test_a_program_may_be_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
