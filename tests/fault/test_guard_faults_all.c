/* ctest: timeout=900 labels=soak */
/* A thousand faults that must be found (and the honest rate of those that need not be), and ten thousand healthy steps. */
#include "fault/guard_faults.h"

static void faults(void **state)
{
    (void)state;
    try_faults(1400); /* five of the seven classes must be found: a thousand */
}

static void healthy(void **state)
{
    (void)state;
    for (int i = 0; i < N_LABS; i++)
        for (int checksum = 0; checksum < 2; checksum++)
            train_healthy(&all_labs[i], 10000 / (2 * N_LABS), checksum == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults),
        cmocka_unit_test(healthy),
    };

    return cmocka_run_group_tests(tests, labs_open, labs_close);
}
