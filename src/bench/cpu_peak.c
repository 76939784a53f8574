/* Measuring the peak: independent chains of multiply-adds, enough of them to hide the latency of one. */
#include "bench/cpu_peak.h"

#include "base/clock.h"

enum { CHAINS = 12, TURNS = 200000, ROUNDS = 50 };

typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));

/* One body for each vector width; the result is returned so that the work cannot be left out. */
#define FMA_CHAINS(name, vector, attributes)                   \
    attributes static float name(void)                         \
    {                                                          \
        vector sum[CHAINS], total = {0};                       \
        vector scale = total + 0.999f, shift = total + 0.001f; \
                                                               \
        for (int i = 0; i < CHAINS; i++)                       \
            sum[i] = total + (float)i;                         \
        for (int turn = 0; turn < TURNS; turn++)               \
            for (int i = 0; i < CHAINS; i++)                   \
                sum[i] = sum[i] * scale + shift;               \
        for (int i = 0; i < CHAINS; i++)                       \
            total += sum[i];                                   \
        return total[0];                                       \
    }

/* gcc needs to be asked for fused operations and unrolled chains; clang does both at -O2 with the pragma below. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#define HOT __attribute__((noinline))
#else
#define HOT __attribute__((noinline, optimize("O3", "unroll-loops", "fp-contract=fast")))
#endif

FMA_CHAINS(chains_portable, v4, HOT)
#if defined(__x86_64__)
FMA_CHAINS(chains_avx2, v8, HOT __attribute__((target("avx2,fma"))))
FMA_CHAINS(chains_avx512, v16, HOT __attribute__((target("avx512f,fma"))))
#endif

typedef struct peak_job {
    float (*chains)(void);
    int   width; /* floats of a vector */
    float sinks[1024];
} peak_job;

static void choose(peak_job *job)
{
    job->chains = chains_portable;
    job->width = 4;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        job->chains = chains_avx512;
        job->width = 16;
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        job->chains = chains_avx2;
        job->width = 8;
    }
#endif
}

static void run_chains(void *context, int item, int worker)
{
    peak_job *job = context;

    (void)worker;
    job->sinks[item] = job->chains();
}

double esper_cpu_peak_flops(esper_pool *pool)
{
    int n_threads = esper_pool_threads(pool);
    peak_job job;
    double best = 0.0;

    choose(&job);
    for (int round = 0; round < ROUNDS; round++) {
        double began = esper_clock_seconds(), flops;

        esper_pool_run(pool, n_threads, run_chains, &job);
        flops = 2.0 * CHAINS * TURNS * job.width * n_threads / (esper_clock_seconds() - began);
        best = flops > best ? flops : best;
    }
    return best;
}
