/* Internal. For tests with "sets=each" in their ctest comment: they include the headers that kernels are made of, and are
 * compiled once for each kernel set, with its instructions. */
#ifndef ESPER_TESTS_EACH_SET_H
#define ESPER_TESTS_EACH_SET_H

#include <stdio.h>

enum { EACH_SET_SKIPPED = 77 }; /* what main returns then */

/* Whether this processor has the instructions the test was compiled for; says so when it has not. */
static inline int each_set_can_run(void)
{
#if defined(__AVX512F__)
    int can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
    int can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    int can = 1;
#endif

    if (!can)
        printf("skipped: this processor lacks the instructions of the set\n");
    return can;
}

#endif
