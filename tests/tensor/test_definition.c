/* ctest: cost=11 kernels=ref64 */
/* What every operation's forward pass gives, outputs and state, against its definition on random cases, in double. That
 * this would notice an error in any of them is shown by test_mutation.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/op_definition.h"

enum { N_CASES = 60 };

static void test_kind(void **state)
{
    const esper_op_kind *kind = *state;

    for (uint32_t number = 0; number < N_CASES; number++) {
        char first[512] = "";
        op_case c;

        op_case_init(&c, *kind, number);
        if (op_definition_check(&c, &esper_kernels_ref64, first, sizeof(first)) > 0)
            fail_msg("%s", first);
        op_case_fini(&c);
    }
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    struct CMUnitTest tests[ESPER_N_OPS];
    size_t n = 0;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        if (kind == ESPER_OP_ISOLATE) /* computes nothing */
            continue;
        kinds[n] = (esper_op_kind)kind;
        tests[n] = (struct CMUnitTest){esper_op_info_of(kinds[n])->name, test_kind, NULL, NULL, &kinds[n]};
        n++;
    }
    return _cmocka_run_group_tests("definitions", tests, n, NULL, NULL);
}
