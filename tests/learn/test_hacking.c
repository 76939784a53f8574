/* ctest: timeout=300 cost=30 labels=noasan */
/* Rewards that cannot be had for nothing: a few agents that try, on one seed. Eighty on several: test_hacking_all.c. */
#include "learn/hacking.h"

static void honest_growth_pays_most(void **state)
{
    (void)state;
    compare_agents(3, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(honest_growth_pays_most)};

    return cmocka_run_group_tests_name("learn/hacking", tests, NULL, NULL);
}
