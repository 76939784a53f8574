/* ctest: cost=10 kernels=ref64 */
/* Every gradient of every operation against finite differences of its forward pass, in double. That this would notice
 * an error in any of them is shown by test_mutation.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/grad_check.h"

static void test_kind(void **state)
{
    const esper_op_kind *kind = *state;
    esper_rng rng = grad_check_rng(*kind);
    int n_gradients[ESPER_OP_MAX_IN] = {0};

    for (uint32_t number = 0; number < GRAD_CHECK_CASES; number++) {
        char first[512] = "";
        op_case c;

        op_case_init(&c, *kind, number);
        if (grad_check_case(&c, &esper_kernels_ref64, &rng, first, sizeof(first)) > 0)
            fail_msg("%s", first);
        for (int k = 0; k < ESPER_OP_MAX_IN; k++)
            n_gradients[k] += c.in[k].grad != NULL;
        op_case_fini(&c);
    }
    for (int k = 0; k < ESPER_OP_MAX_IN; k++) /* the cases have left no gradient out */
        if ((esper_op_info_of(*kind)->grad_in & ESPER_BIT(k)) != 0)
            assert_true(n_gradients[k] > GRAD_CHECK_CASES / 4);
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    struct CMUnitTest tests[ESPER_N_OPS];
    size_t n = 0;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        if (info->grad_in == 0)
            continue;
        kinds[n] = (esper_op_kind)kind;
        tests[n] = (struct CMUnitTest){info->name, test_kind, NULL, NULL, &kinds[n]};
        n++;
    }
    return _cmocka_run_group_tests("gradients", tests, n, NULL, NULL);
}
