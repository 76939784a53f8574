/* The kernel lab's frame: which kernels and sets there are, checking, timing, printing.
 *   usage: kernel_lab [WORD...]      only lines that contain all words, of "kernel shape set variant", and none of those
 *                                    that are given as -WORD
 *
 * Timing: in every round each variant runs for about ROUND_S, and the peak of fused multiply-adds is measured beside them.
 * The best round of each counts, so that a neighbour on the machine disturbs little. */
#include "lab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench/cpu_peak.h"

/* What there is: add a line here and in CMakeLists.txt. */
#define LAB_THINGS(X) X(conv) X(norm) X(rows)

enum { ROUNDS = 60, LEAST_ROUNDS = 7, MAX_VARIANTS = 32, MAX_MEMORY = 64 };

static const double ROUND_S = 0.0005, ENOUGH_S = 2, TOLERANCE = 2e-5;

#define DECLARE_THING(thing)                                                                \
    extern const lab_kernel lab_kernels_##thing##_portable[], lab_kernels_##thing##_avx2[], \
        lab_kernels_##thing##_avx512[];
LAB_THINGS(DECLARE_THING)

typedef struct lab_set {
    const char *name;
    bool        here; /* this processor can run it */
} lab_set;

enum { LAB_PORTABLE, LAB_AVX2, LAB_AVX512, LAB_SETS };

#define LIST_THING(thing) {lab_kernels_##thing##_portable, lab_kernels_##thing##_avx2, lab_kernels_##thing##_avx512},
static const lab_kernel *const things[][LAB_SETS] = {LAB_THINGS(LIST_THING)};

typedef struct entry {
    char             line[512]; /* "kernel shape set variant" */
    const lab_case   *c;
    void (*run)(const lab_case *c);
    double           error, seconds; /* largest error relative to the scale; best time of one run */
} entry;

static void *must_have(void *memory)
{
    if (memory == NULL) {
        fputs("kernel_lab: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

void *lab_memory(lab_case *c, size_t bytes)
{
    int i = 0;

    while (c->memory[i] != NULL)
        i++;
    if (i == MAX_MEMORY - 1)
        must_have(NULL);
    c->memory[i] = must_have(esper_mem_alloc(bytes));
    return c->memory[i];
}

float *lab_random(lab_case *c, size_t n)
{
    esper_rng_key key = {.purpose = ESPER_RNG_TEST};
    float *values = lab_memory(c, n * sizeof(*values));
    esper_rng rng;

    for (int i = 0; c->memory[i] != NULL; i++)
        key.sample++;

    for (size_t i = 0; i < n; i++) {
        if (i % 1000000 == 0) { /* a stream ends after a few million */
            key.step++;
            esper_rng_init(&rng, &key);
        }
        values[i] = 2 * esper_rng_uniform(&rng) - 1;
    }
    return values;
}

/* ------------------------------------------------------------------------------------------------ one case */

static void check(entry *e)
{
    const lab_case *c = e->c;

    memset(c->result, 0xff, c->n * sizeof(float)); /* not a number where a variant writes nothing */
    e->run(c);
    e->error = 0;
    for (size_t i = 0; i < c->n; i++) {
        double error = fabs((double)c->result[i] - c->expected[i]) / c->scale;

        if (!(error <= e->error))
            e->error = error;
    }
}

static double seconds_of(const entry *e, int runs)
{
    double began = esper_clock_seconds();

    for (int i = 0; i < runs; i++)
        e->run(e->c);
    return (esper_clock_seconds() - began) / runs;
}

/* Fills in the times; returns the peak. */
static double time_all(esper_pool *pool, entry *entries, int n)
{
    int runs[MAX_VARIANTS];
    double peak = 0, began = esper_clock_seconds();

    for (int i = 0; i < n; i++) {
        entries[i].seconds = seconds_of(&entries[i], 1);
        runs[i] = entries[i].seconds < ROUND_S ? (int)(ROUND_S / entries[i].seconds) : 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (round >= LEAST_ROUNDS && esper_clock_seconds() - began > ENOUGH_S)
            break;
        peak = fmax(peak, esper_cpu_peak_flops(pool));
        for (int i = 0; i < n; i++)
            entries[i].seconds = fmin(entries[i].seconds, seconds_of(&entries[i], runs[i]));
    }
    return peak;
}

static void print_speed(const lab_case *c, double seconds, double peak)
{
    if (c->bytes > 0)
        printf("%9.2f us %7.1f GB/s           ", seconds * 1e6, c->bytes / seconds / 1e9);
    else
        printf("%9.2f us %7.1f GFLOP/s %5.1f %%", seconds * 1e6, c->flops / seconds / 1e9,
               100 * c->flops / seconds / peak);
}

static bool print_all(double peak, const entry *entries, int n)
{
    bool good = true;

    for (int i = 0; i < n; i++) {
        const entry *e = &entries[i];
        bool close = e->error <= TOLERANCE;

        printf("%-66s ", e->line);
        print_speed(e->c, e->seconds, peak);
        printf("   error %.1e%s\n", e->error, close ? "" : "  WRONG");
        good = good && close;
    }
    return good;
}

/* ------------------------------------------------------------------------------------------------ all of them */

static bool wanted(const char *line, char *const *words)
{
    for (; *words != NULL; words++) {
        bool unwanted = (*words)[0] == '-' && (*words)[1] != '>';

        if ((strstr(line, *words + unwanted) == NULL) != unwanted)
            return false;
    }
    return true;
}

/* The variants of one set that are wanted; returns their number. */
static int list_entries(const lab_kernel *kernel, const char *set, const lab_case *c, char *const *words,
                        entry *entries, int room)
{
    int n = 0;

    for (const lab_variant *v = kernel->variants; v->name != NULL && n < room; v++) {
        entries[n] = (entry){.c = c, .run = v->run};
        snprintf(entries[n].line, sizeof(entries[n].line), "%-16s %-26s %-8s %s", kernel->name, c->shape, set, v->name);
        if (wanted(entries[n].line, words))
            n++;
    }
    return n;
}

/* What is to come out, once for all sets. */
static void expect(const lab_kernel *kernel, lab_case cases[LAB_SETS], const lab_set *sets)
{
    lab_case *c = &cases[LAB_PORTABLE];

    c->expected = lab_memory(c, c->n * sizeof(double));
    kernel->expect(c);
    c->scale = 1;
    for (size_t i = 0; i < c->n; i++)
        c->scale = fmax(c->scale, fabs(c->expected[i]));
    for (int s = 1; s < LAB_SETS && sets[s].here; s++) {
        cases[s].expected = c->expected;
        cases[s].scale = c->scale;
    }
}

/* One shape of a kernel, a case of its own in each set (what they pack differs); false when there is no such shape. */
static bool run_shape(const lab_kernel *const kernel[LAB_SETS], const lab_set *sets, int shape, char *const *words,
                      esper_pool *pool, bool *good)
{
    void *memory[LAB_SETS][MAX_MEMORY] = {{NULL}};
    lab_case cases[LAB_SETS] = {{.n = 0}};
    entry entries[MAX_VARIANTS];
    bool is_there = true;
    int n = 0;

    for (int s = 0; s < LAB_SETS && sets[s].here && is_there; s++) {
        cases[s].memory = memory[s];
        is_there = kernel[s]->open(shape, &cases[s]);
        if (is_there)
            n += list_entries(kernel[s], sets[s].name, &cases[s], words, entries + n, MAX_VARIANTS - n);
    }
    if (n > 0) {
        expect(kernel[LAB_PORTABLE], cases, sets);
        for (int i = 0; i < n; i++)
            check(&entries[i]);
        *good = print_all(time_all(pool, entries, n), entries, n) && *good;
        fflush(stdout);
    }
    for (int s = 0; s < LAB_SETS; s++)
        for (int i = 0; memory[s][i] != NULL; i++)
            esper_mem_free(memory[s][i]);
    return is_there;
}

int main(int argc, char **argv)
{
    lab_set sets[LAB_SETS] = {{"portable", true}, {"avx2", false}, {"avx512", false}};
    bool good = true;
    esper_pool *pool;

    (void)argc;
#if defined(__x86_64__)
    sets[LAB_AVX2].here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    sets[LAB_AVX512].here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
    if (esper_pool_open(1, &pool) != ESPER_OK)
        must_have(NULL);
    printf("peak of one core: %.1f GFLOP/s\n", esper_cpu_peak_flops(pool) / 1e9);
    for (size_t t = 0; t < sizeof(things) / sizeof(things[0]); t++)
        for (int k = 0; things[t][LAB_PORTABLE][k].name != NULL; k++) {
            const lab_kernel *const kernel[LAB_SETS] = {&things[t][0][k], &things[t][1][k], &things[t][2][k]};

            for (int shape = 0; run_shape(kernel, sets, shape, argv + 1, pool, &good); shape++)
                ;
        }
    esper_pool_close(pool);
    return good ? 0 : 1;
}
