/* ctest: labels=golden */
/* Recorded slots beside ours, on every backend and kernel set this machine can run: hosts with seeds in several stages
 * (output, gradients, one alpha for each sample, evaluation, ten steps with a group for each slot), and the operators and
 * single slots of blend.jsonl. Where they differ on purpose: support/difference.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "support/parity.h"

static void test_slots_match(void **state)
{
    const parity_backend *wanted = *state;
    int n_mismatches = -1;
    esper_status status;

    if (golden_count(GOLDEN_SLOTTED | GOLDEN_BLEND) == 0) /* golden_say has said so */
        skip();
    status = parity_check_backend(wanted, GOLDEN_SLOTTED | GOLDEN_BLEND, &n_mismatches);
    if (status == ESPER_E_UNSUPPORTED) {
        printf("%s/%s: skipped, this processor cannot run it\n", wanted->name, wanted->kernels);
        skip();
    }
    if (status != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(n_mismatches, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"slots_match_ref", test_slots_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[0]},
        {"slots_match_cpu/portable", test_slots_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[1]},
        {"slots_match_cpu/avx2", test_slots_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[2]},
        {"slots_match_cpu/avx512", test_slots_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[3]},
    };

    golden_say(GOLDEN_SLOTTED | GOLDEN_BLEND);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
