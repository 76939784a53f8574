/* ctest: labels=golden */
/* Recorded hosts beside ours, on every backend and kernel set this machine can run: boundaries, outputs, gradients,
 * norm buffers, evaluation, and ten steps of training. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "support/parity.h"

static void test_hosts_match(void **state)
{
    const parity_backend *wanted = *state;
    int n_mismatches = -1;
    esper_status status;

    if (golden_count(GOLDEN_HOST) == 0) /* golden_say has said so */
        skip();
    status = parity_check_backend(wanted, GOLDEN_HOST, &n_mismatches);
    if (status == ESPER_E_UNSUPPORTED) {
        printf("%s/%s: skipped, this machine cannot run it\n", wanted->name,
               wanted->kernels != NULL ? wanted->kernels : "all");
        skip();
    }
    if (status != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(n_mismatches, 0);
}

/* A backend that is added to the engine is added to parity_backends too. */
static void test_no_backend_is_left_out(void **state)
{
    (void)state;
    for (const esper_backend_ops *const *ops = esper_backend_list(); *ops != NULL; ops++) {
        const parity_backend *compared = parity_backends;

        while (compared->name != NULL && strcmp(compared->name, (*ops)->name) != 0)
            compared++;
        if (compared->name == NULL && strcmp((*ops)->name, "null") != 0)
            fail_msg("backend %s is compared with no recorded vector: add it to parity_backends", (*ops)->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_backend_is_left_out),
        {"hosts_match_ref", test_hosts_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[0]},
        {"hosts_match_cpu/portable", test_hosts_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[1]},
        {"hosts_match_cpu/avx2", test_hosts_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[2]},
        {"hosts_match_cpu/avx512", test_hosts_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[3]},
        {"hosts_match_cuda", test_hosts_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[4]},
    };

    golden_say(GOLDEN_HOST);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
