/* ctest: timeout=120 cost=8 sealed=also */
/* Faults in trainings under guard: a few of each class, and some healthy steps. The many are in test_guard_faults_all.c. */
#include "fault/guard_faults.h"

static void faults(void **state)
{
    (void)state;
    try_faults(70);
}

static void healthy(void **state)
{
    (void)state;
    for (int i = 0; i < N_LABS; i++)
        train_healthy(&all_labs[i], 60, i % 2 == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults),
        cmocka_unit_test(healthy),
    };

    return cmocka_run_group_tests(tests, labs_open, labs_close);
}
