/* Which kernel set the processor at hand runs best. ESPER_NO_X86_KERNELS: the build has the portable set alone;
 * ESPER_NO_AVX512_KERNELS: that and avx2. */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/kernel.h"

/* A set, and whether this processor has the instructions it was compiled for. */
typedef struct choice {
    const esper_kernel_set *set;
    bool (*can_run)(void); /* NULL: any does */
} choice;

#ifndef ESPER_NO_X86_KERNELS

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#ifndef ESPER_NO_AVX512_KERNELS

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#endif
#endif

/* Fastest first. */
static const choice choices[] = {
#ifndef ESPER_NO_X86_KERNELS
#ifndef ESPER_NO_AVX512_KERNELS
    {&esper_kernels_avx512, has_avx512},
#endif
    {&esper_kernels_avx2, has_avx2},
#endif
    {&esper_kernels_portable, NULL},
};

void esper_kernels_names(char *text, size_t chars)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        if ((choices[i].can_run == NULL || choices[i].can_run()) && used < chars)
            used += (size_t)snprintf(text + used, chars - used, "%s%s", used > 0 ? " or " : "", choices[i].set->name);
}

const esper_kernel_set *esper_kernels_choose(void)
{
    const char *wanted = getenv("ESPER_KERNELS");

    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (wanted != NULL && wanted[0] != '\0' && strcmp(wanted, choices[i].set->name) != 0)
            continue;
        if (choices[i].can_run == NULL || choices[i].can_run())
            return choices[i].set;
    }
    return NULL;
}
