#include "support/simd_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/kernel.h"

enum { WIDTH = 16, GUARD = 64, MAX_PIECES = 256 };

/* The memory of the case at hand: a guard, the bytes given out, and another guard. */
static struct piece {
    unsigned char *start;
    size_t         bytes;
} pieces[MAX_PIECES];
static int n_pieces;

esper_rng simd_case_rng(uint32_t number)
{
    esper_rng_key key = {.seed = 41, .purpose = ESPER_RNG_TEST, .sample = number};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

int simd_case_int(esper_rng *rng, int least, int most)
{
    return least + (int)esper_rng_below(rng, (uint32_t)(most - least + 1));
}

static void *take(size_t bytes)
{
    struct piece *p = &pieces[n_pieces];
    size_t whole = (bytes + 2 * GUARD + 63) / 64 * 64;

    assert_true(n_pieces < MAX_PIECES);
    p->start = aligned_alloc(64, whole);
    assert_non_null(p->start);
    p->bytes = bytes;
    n_pieces++;
    memset(p->start, 0xa5, whole);
    return memset(p->start + GUARD, 0, bytes);
}

float *simd_case_floats(size_t n)
{
    return take(n * sizeof(float));
}

double *simd_case_doubles(size_t n)
{
    return take(n * sizeof(double));
}

float *simd_case_random(esper_rng *rng, size_t n, float mean, float deviation)
{
    float *x = simd_case_floats(n);

    for (size_t i = 0; i < n; i++)
        x[i] = mean + deviation * esper_rng_normal(rng);
    return x;
}

void simd_case_end(void)
{
    for (int k = 0; k < n_pieces; k++) {
        for (size_t i = 0; i < GUARD; i++)
            if (pieces[k].start[i] != 0xa5 || pieces[k].start[GUARD + pieces[k].bytes + i] != 0xa5)
                fail_msg("something wrote around piece %d of %zu bytes", k, pieces[k].bytes);
        free(pieces[k].start);
    }
    n_pieces = 0;
}

int simd_case_blocks(int N)
{
    return (N + WIDTH - 1) / WIDTH;
}

int simd_case_valid(int N, int block)
{
    return N - block * WIDTH < WIDTH ? N - block * WIDTH : WIDTH;
}

float *simd_case_pack(const float *samples, int N, size_t count, float rest)
{
    size_t blocks = (size_t)simd_case_blocks(N);
    float *to = simd_case_floats(blocks * count * WIDTH);

    for (size_t n = 0; n < blocks * WIDTH; n++)
        for (size_t i = 0; i < count; i++)
            to[n / WIDTH * count * WIDTH + i * WIDTH + n % WIDTH] = n < (size_t)N ? samples[n * count + i] : rest;
    return to;
}

esper_view simd_case_view(void *data, void *grad, int d0, int d1, int d2)
{
    esper_view v = {.data = data, .grad = grad, .count = 1, .dim = {1, 1, 1, 1}};
    int dims[3] = {d0, d1, d2};

    for (int i = 0; i < 3 && dims[i] > 0; i++) {
        v.dim[v.rank++] = dims[i];
        v.count *= dims[i];
    }
    return v;
}

static void run_phases(const esper_phase *phases, const esper_lane *lane)
{
    for (int i = 0; phases[i].run != NULL; i++)
        phases[i].run(lane, 0, phases[i].units == NULL ? lane->pass->n_samples : phases[i].units(lane));
}

void simd_case_forward(esper_op_kind kind, const esper_lane *lane)
{
    run_phases(esper_kernels_ref.op[kind]->forward, lane);
}

void simd_case_backward(esper_op_kind kind, const esper_lane *lane)
{
    run_phases(esper_kernels_ref.op[kind]->backward, lane);
}

/* ------------------------------------------------------------------------------------------------ comparing */

static double room_for(const float *expected, size_t n)
{
    double most = 1;

    for (size_t i = 0; i < n; i++)
        if (isfinite(expected[i]))
            most = fmax(most, fabs((double)expected[i]));
    return 2e-5 * most;
}

static void compare_one(const char *text, double expected, double found, double room, size_t at)
{
    if (isnan(expected) ? isnan(found) : isinf(expected) ? found == expected : fabs(found - expected) <= room)
        return;
    fail_msg("%s, element %zu: expected %.9g, found %.9g", text, at, expected, found);
}

void simd_case_compare(const char *text, const float *expected, const float *found, size_t n)
{
    double room = room_for(expected, n);

    for (size_t i = 0; i < n; i++)
        compare_one(text, (double)expected[i], (double)found[i], room, i);
}

void simd_case_compare_sums(const char *text, const float *expected, const double *found, size_t n)
{
    double room = room_for(expected, n);

    for (size_t i = 0; i < n; i++)
        compare_one(text, (double)expected[i], found[i], room, i);
}

void simd_case_compare_blocks(const char *text, const float *expected, const float *blocks, int N, size_t count,
                              int rest_is_zero)
{
    double room = room_for(expected, (size_t)N * count);

    for (size_t n = 0; n < (size_t)simd_case_blocks(N) * WIDTH; n++)
        for (size_t i = 0; i < count; i++) {
            double found = (double)blocks[n / WIDTH * count * WIDTH + i * WIDTH + n % WIDTH];

            if (n < (size_t)N)
                compare_one(text, (double)expected[n * count + i], found, room, n * count + i);
            else if (rest_is_zero)
                compare_one(text, 0, found, 0, n * count + i);
        }
}
