/* The random numbers: Philox against its authors' answers, keys that lead to different streams, and distributions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

static esper_rng stream(uint64_t seed)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = seed, .purpose = ESPER_RNG_TEST});
    return rng;
}

/* Published with Random123 as known answers of philox4x32 with 10 rounds. */
static void philox_gives_the_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, /* digits of pi */
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t out[4];

        esper_philox(cases[i].counter, cases[i].key, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(out[k], cases[i].out[k]);
    }
}

/* Replays depend on it: the numbers of a stream are blocks of Philox at the counter that rng.c draws. */
static void a_stream_is_philox_at_its_key(void **state)
{
    const esper_rng_key key = {
        .seed = 0x123456789ABCDEF0u, .purpose = ESPER_RNG_DROPOUT, .network = 5, .step = 77, .sample = 9, .tag = 3};
    const uint32_t philox_key[2] = {0x9ABCDEF0u, 0x12345678u};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &key);
    for (uint32_t block = 0; block < 3; block++) {
        const uint32_t counter[4] = {3u << 20 | block, 9, 77, (uint32_t)ESPER_RNG_DROPOUT << 24 | 5};
        uint32_t out[4];

        esper_philox(counter, philox_key, out);
        for (int k = 0; k < 4; k++)
            assert_int_equal(esper_rng_u32(&rng), out[k]);
    }
}

static void skipping_is_drawing(void **state)
{
    esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST};

    (void)state;
    for (uint32_t before = 0; before < 5; before++)
        for (uint32_t n = 0; n < 23; n++) {
            esper_rng drawn, skipped;

            esper_rng_init(&drawn, &key);
            esper_rng_init(&skipped, &key);
            for (uint32_t i = 0; i < before + n; i++)
                esper_rng_u32(&drawn);
            for (uint32_t i = 0; i < before; i++)
                esper_rng_u32(&skipped);
            esper_rng_skip(&skipped, n);
            for (int i = 0; i < 6; i++)
                assert_int_equal(esper_rng_u32(&drawn), esper_rng_u32(&skipped));
        }
}

static void every_part_of_the_key_matters(void **state)
{
    const esper_rng_key base = {.seed = 1, .purpose = ESPER_RNG_INIT};
    esper_rng_key keys[9];
    uint32_t first[9];

    (void)state;
    for (int i = 0; i < 9; i++)
        keys[i] = base;
    keys[1].seed = 2;
    keys[2].seed = 1 + (1ull << 32);
    keys[3].purpose = ESPER_RNG_SPLIT;
    keys[4].network = 1;
    keys[5].step = 1;
    keys[6].sample = 1;
    keys[7].tag = 1;
    keys[8].network = (1u << 24) - 1;
    for (int i = 0; i < 9; i++) {
        esper_rng rng;

        esper_rng_init(&rng, &keys[i]);
        first[i] = esper_rng_u32(&rng);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(first[i], first[k]);
    }
}

/* chi-square over equal cells; with 15 degrees of freedom 44 is passed once in ten thousand, and the seed is fixed. */
static double chi_square(const int *counts, int n_cells, double expected)
{
    double sum = 0;

    for (int i = 0; i < n_cells; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    return sum;
}

static void uniform_is_flat_and_below_one(void **state)
{
    enum { N = 160000, CELLS = 16 };
    esper_rng rng = stream(1);
    int counts[CELLS] = {0};
    double sum = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        float value = esper_rng_uniform(&rng);

        assert_true(value >= 0 && value < 1);
        counts[(int)(value * CELLS)]++;
        sum += (double)value;
    }
    assert_true(fabs(sum / N - 0.5) < 4 * sqrt(1.0 / 12 / N));
    assert_true(chi_square(counts, CELLS, (double)N / CELLS) < 44);
}

/* A plain remainder would give the first third half of all draws, a plain product the multiples of three. */
static void below_has_no_bias(void **state)
{
    enum { N = 90000 };
    const uint32_t end = 0xC0000000u; /* 3/4 of the range */
    esper_rng rng = stream(2);
    int by_third[3] = {0}, by_remainder[3] = {0};

    (void)state;
    for (int i = 0; i < N; i++) {
        uint32_t value = esper_rng_below(&rng, end);

        assert_true(value < end);
        by_third[value / (end / 3)]++;
        by_remainder[value % 3]++;
    }
    for (int i = 0; i < 3; i++) { /* 4 deviations of 141 */
        assert_in_range(by_third[i], N / 3 - 566, N / 3 + 566);
        assert_in_range(by_remainder[i], N / 3 - 566, N / 3 + 566);
    }
}

static void below_keeps_its_ends(void **state)
{
    static const uint32_t ends[] = {1, 2, 3, 10, 128, 1000, 0x80000000u, 0x80000001u, 0xFFFFFFFFu};
    esper_rng rng = stream(3);
    int seen[10] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        for (int k = 0; k < 1000; k++)
            assert_true(esper_rng_below(&rng, ends[i]) < ends[i]);
    for (int i = 0; i < 20000; i++)
        seen[esper_rng_below(&rng, 10)]++;
    assert_true(chi_square(seen, 10, 2000) < 36); /* 9 degrees of freedom */
}

static void normal_has_the_right_moments(void **state)
{
    enum { N = 200000 };
    esper_rng rng = stream(4);
    double sum = 0, sum2 = 0, sum3 = 0, sum4 = 0;
    int n_within_1 = 0;

    (void)state;
    for (int i = 0; i < N; i++) {
        double x = (double)esper_rng_normal(&rng);

        assert_true(isfinite(x));
        sum += x;
        sum2 += x * x;
        sum3 += x * x * x;
        sum4 += x * x * x * x;
        n_within_1 += fabs(x) < 1;
    }
    assert_true(fabs(sum / N) < 4 / sqrt(N));
    assert_true(fabs(sum2 / N - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(sum3 / N) < 4 * sqrt(15.0 / N));
    assert_true(fabs(sum4 / N - 3) < 4 * sqrt(96.0 / N));
    assert_true(fabs((double)n_within_1 / N - 0.682689) < 4 * sqrt(0.2166 / N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(a_stream_is_philox_at_its_key),
        cmocka_unit_test(skipping_is_drawing),
        cmocka_unit_test(every_part_of_the_key_matters),
        cmocka_unit_test(uniform_is_flat_and_below_one),
        cmocka_unit_test(below_has_no_bias),
        cmocka_unit_test(below_keeps_its_ends),
        cmocka_unit_test(normal_has_the_right_moments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
