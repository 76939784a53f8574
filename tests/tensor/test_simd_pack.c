/* ctest: sets=each */
/* simd_pack.h: blocks against plain loops, and back, for all numbers of samples and many sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_pack.h"

static void check_pack(int N, size_t count)
{
    esper_rng rng = simd_case_rng((uint32_t)(N * 1000 + (int)count));
    float *samples = simd_case_random(&rng, (size_t)N * count, 0, 1), *back = simd_case_floats((size_t)N * count);
    float *expected = simd_case_pack(samples, N, count, 0);
    float *found = simd_case_random(&rng, count * SIMD_WIDTH, 5, 1);

    simd_pack(samples, count, N, found);
    if (memcmp(expected, found, count * SIMD_WIDTH * sizeof(float)) != 0)
        fail_msg("%d samples of %zu elements: packed in another way than by plain loops", N, count);
    simd_unpack(found, count, N, back);
    if (memcmp(samples, back, (size_t)N * count * sizeof(float)) != 0)
        fail_msg("%d samples of %zu elements: something else comes back", N, count);
    simd_case_end();
}

static void test_pack(void **state)
{
    (void)state;
    for (int N = 1; N <= SIMD_WIDTH; N++)
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
