/* ctest: timeout=240 cost=5 labels=golden driver=only */
/* Recorded hosts, seeds, gate networks, births, slots and blends beside what the cuda backend makes of them: over the driver made of the
 * host, or with ESPER_TEST_GPU=1 on the machine's device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "support/parity.h"

static void check_parts(unsigned parts)
{
    int n_mismatches = -1;

    if (golden_count(parts) == 0) /* golden_say has said so */
        skip();
    if (parity_check_backend(&(parity_backend){"cuda", NULL}, parts, &n_mismatches) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(n_mismatches, 0);
}

static void hosts_match(void **state)
{
    (void)state;
    check_parts(GOLDEN_HOST);
}

static void seeds_match(void **state)
{
    (void)state;
    check_parts(GOLDEN_SEED | GOLDEN_GATE | GOLDEN_BIRTHS);
}

static void slots_match(void **state)
{
    (void)state;
    check_parts(GOLDEN_SLOTTED | GOLDEN_BLEND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_match),
        cmocka_unit_test(seeds_match),
        cmocka_unit_test(slots_match),
    };

    golden_say(GOLDEN_HOST | GOLDEN_SEED | GOLDEN_GATE | GOLDEN_BIRTHS | GOLDEN_SLOTTED | GOLDEN_BLEND);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
