/* ctest: timeout=120 cost=20 sealed=also */
/* A dozen poisoned runs; all 200 are in grow_poison_all. */
#include "fault/grow_poison.h"

static void twelve_runs(void **state)
{
    (void)state;
    poison_runs(0, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(twelve_runs)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
