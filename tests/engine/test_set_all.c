/* ctest: timeout=1800 labels=soak */
/* A thousand sequences of what may happen to sixteen networks. */
#include "engine/set_sequences.h"

static void a_thousand_sequences(void **state)
{
    (void)state;
    run_sequences(1, effort(1000, 100), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_sequences)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
