/* ctest: sets=each */
/* lanes_pack.h: blocks against plain loops, and back, for all numbers of samples and many sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/lanes_case.h"
#include "tensor/cpu/lanes_pack.h"

static void check_pack(int N, size_t count)
{
    esper_rng rng = lanes_case_rng((uint32_t)(N * 1000 + (int)count));
    float *samples = lanes_case_random(&rng, (size_t)N * count, 0, 1), *back = lanes_case_floats((size_t)N * count);
    float *expected = lanes_case_pack(samples, N, count, 0);
    float *found = lanes_case_random(&rng, count * LANES_WIDTH, 5, 1);

    lanes_pack(samples, count, N, found);
    if (memcmp(expected, found, count * LANES_WIDTH * sizeof(float)) != 0)
        fail_msg("%d samples of %zu elements: packed in another way than by plain loops", N, count);
    lanes_unpack(found, count, N, back);
    if (memcmp(samples, back, (size_t)N * count * sizeof(float)) != 0)
        fail_msg("%d samples of %zu elements: something else comes back", N, count);
    lanes_case_end();
}

static void test_pack(void **state)
{
    (void)state;
    for (int N = 1; N <= LANES_WIDTH; N++)
        for (size_t count = 1; count < 70; count++)
            check_pack(N, count);
    check_pack(16, 3 * 32 * 32);
    check_pack(16, 3 * 33 * 31);
    check_pack(7, 1 * 28 * 28);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pack)};

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
