/* Which kernels the processor at hand runs best, and what all of them share. */
#include "guard/scan_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* A set, and whether this processor has the instructions it was compiled for. */
typedef struct choice {
    const esper_scan_kernels *kernels;
    bool (*can_run)(void);
} choice;

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)

/* Not every compiler's builtin knows of it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#endif

/* Fastest first. */
static const choice choices[] = {
#if defined(__x86_64__)
    {&esper_scan_kernels_avx512, has_avx512},
    {&esper_scan_kernels_avx2, has_avx2},
#endif
    {&esper_scan_kernels_portable, always},
};

const esper_scan_kernels *esper_scan_kernels_find(const char *name)
{
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        if ((name == NULL || strcmp(name, choices[i].kernels->name) == 0) && choices[i].can_run())
            return choices[i].kernels;
    return NULL;
}

const esper_scan_kernels *esper_scan_kernels_choose(void)
{
    const char *wanted = getenv("ESPER_KERNELS");

    return esper_scan_kernels_find(wanted != NULL && wanted[0] != '\0' ? wanted : NULL);
}

esper_scan_settings esper_scan_settings_make(double tiny, bool checksum)
{
    float limit = (float)tiny; /* rounded; the smallest float that is not below `tiny` is wanted */
    esper_scan_settings settings = {.tiny = tiny, .checksum = checksum};

    if ((double)limit < tiny)
        limit = nextafterf(limit, INFINITY);
    memcpy(&settings.tiny_bits, &limit, sizeof(limit));
    return settings;
}

void esper_scan_record_add(esper_scan_record *record, const esper_scan_record *next)
{
    record->sum += next->sum;
    record->sum_squares += next->sum_squares;
    record->n_nan += next->n_nan;
    record->n_pos_inf += next->n_pos_inf;
    record->n_neg_inf += next->n_neg_inf;
    record->first_bad = next->first_bad < record->first_bad ? next->first_bad : record->first_bad;
    record->n_zero += next->n_zero;
    record->n_tiny += next->n_tiny;
    record->max_abs = next->max_abs > record->max_abs ? next->max_abs : record->max_abs;
    if (next->min_abs > 0.0 && (record->min_abs == 0.0 || next->min_abs < record->min_abs))
        record->min_abs = next->min_abs;
    record->checksum += next->checksum;
}

size_t esper_guard_dtype_bytes(esper_guard_dtype dtype)
{
    static const size_t bytes[] = {
#define X(name, text, size) size,
        ESPER_GUARD_DTYPE_LIST(X)
#undef X
    };

    assert((unsigned)dtype < ESPER_GUARD_N_DTYPES);
    return bytes[dtype];
}
