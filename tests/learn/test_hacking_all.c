/* ctest: timeout=7200 labels=soak */
/* Rewards that cannot be had for nothing: eighty agents that try, on several seeds. */
#include "learn/hacking.h"

static void honest_growth_pays_most(void **state)
{
    (void)state;
    compare_agents(20, 5, 0);
    compare_agents(6, 1, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(honest_growth_pays_most)};

    return cmocka_run_group_tests_name("learn/hacking_all", tests, NULL, NULL);
}
