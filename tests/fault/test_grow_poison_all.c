/* ctest: timeout=1200 labels=soak */
/* 200 poisoned runs, each of them twice. */
#include "fault/grow_poison.h"

static void two_hundred_runs(void **state)
{
    (void)state;
    poison_runs(0, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_hundred_runs)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
