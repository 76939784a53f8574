/* The agreement record as pure functions: no ranks, only what they would say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "dist/agree.h"

enum { MOST = 20 };

static esper_agree_record reduce(const esper_agree_state *states, int n)
{
    esper_agree_record all = {{0}}, one;

    for (int r = 0; r < n; r++) {
        esper_agree_fill(&states[r], &one);
        for (int i = 0; i < 7; i++)
            all.words[i] |= one.words[i];
    }
    return all;
}

static uint64_t *field_of(esper_agree_state *state, int field)
{
    uint64_t *const fields[] = {&state->table, &state->sequence, &state->verdict, &state->weights};

    return fields[field];
}

static void make_equal(esper_agree_state *states, int n, esper_rng *rng)
{
    esper_agree_state one = {.health = 0};

    for (int f = 0; f < ESPER_AGREE_N_FIELDS; f++)
        *field_of(&one, f) = (uint64_t)esper_rng_u32(rng) << 32 | esper_rng_u32(rng);
    for (int r = 0; r < n; r++) {
        states[r] = one;
        states[r].health = 1ull << r;
    }
}

static esper_rng new_rng(uint32_t step)
{
    esper_rng_key key = {.seed = 4, .purpose = ESPER_RNG_TEST, .step = step};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

/* Every single bit of every field, on any rank of up to 20: seen, and laid at the right door. */
static void test_every_bit(void **state)
{
    esper_rng rng = new_rng(1);

    (void)state;
    for (int n = 1; n <= MOST; n++)
        for (int field = 0; field < ESPER_AGREE_N_FIELDS; field++)
            for (int bit = 0; bit < 64; bit++) {
                esper_agree_state states[MOST];
                esper_agree_record record;
                esper_agree_result result;
                int other = (int)esper_rng_below(&rng, (uint32_t)n);

                make_equal(states, n, &rng);
                record = reduce(states, n);
                assert_int_equal(esper_agree_differing(&record), 0);
                assert_true(record.words[0] == (1ull << n) - 1);
                *field_of(&states[other], field) ^= 1ull << bit;
                record = reduce(states, n);
                assert_int_equal(esper_agree_differing(&record), n > 1 ? 1u << field : 0);
                esper_agree_judge(states, n, &result);
                assert_int_equal(result.fields, n > 1 ? 1u << field : 0);
                if (n < 2)
                    continue;
                assert_int_equal(result.n_differing, n == 2 ? 2 : 1);
                assert_int_equal(result.has_majority, n > 2);
                assert_int_equal(result.rank[0], n == 2 ? 0 : other);
                assert_int_equal(result.rank_fields[0], 1u << field);
            }
}

/* A record that no OR of records can be is not taken for agreement. */
static void test_damage(void **state)
{
    esper_rng rng = new_rng(2);
    esper_agree_state states[3];

    (void)state;
    make_equal(states, 3, &rng);
    for (int bit = 64; bit < 448; bit++) {
        esper_agree_record record = reduce(states, 3);

        record.words[bit / 64] ^= 1ull << bit % 64;
        assert_int_not_equal(esper_agree_differing(&record), 0);
    }
}

/* Random groups: the named are exactly those outside of the majority, or all when there is none. */
static void test_majorities(void **state)
{
    esper_rng rng = new_rng(3);

    (void)state;
    for (int k = 0; k < 20000; k++) {
        int n = 2 + (int)esper_rng_below(&rng, MOST - 1), n_groups = 1 + (int)esper_rng_below(&rng, 3), most = -1,
            n_named = 0;
        int group[MOST], members[3] = {0};
        esper_agree_state states[MOST];
        esper_agree_record record;
        esper_agree_result result;

        make_equal(states, n, &rng);
        for (int r = 0; r < n; r++) {
            group[r] = esper_rng_below(&rng, 3) == 0 ? (int)esper_rng_below(&rng, (uint32_t)n_groups) : 0;
            members[group[r]]++;
            states[r].verdict += (uint64_t)group[r] * 1000;
        }
        for (int g = 0; g < 3; g++)
            most = members[g] > n / 2 ? g : most;
        record = reduce(states, n);
        esper_agree_judge(states, n, &result);
        assert_int_equal(result.fields,
                         members[0] == n || members[1] == n || members[2] == n ? 0 : 1u << ESPER_AGREE_VERDICT);
        assert_int_equal(esper_agree_differing(&record), result.fields);
        if (result.fields == 0) {
            assert_int_equal(result.n_differing, 0);
            continue;
        }
        for (int r = 0; r < n; r++) {
            bool named = most < 0 || group[r] != most;

            if (named && n_named < ESPER_AGREE_NAMED) {
                assert_int_equal(result.rank[n_named], r);
                assert_true(result.value[n_named] == states[r].verdict);
            }
            n_named += named;
        }
        assert_int_equal(result.n_differing, n_named);
        assert_int_equal(result.has_majority, most >= 0);
    }
}

static void test_words(void **state)
{
    esper_rng rng = new_rng(4);
    esper_agree_state states[MOST];
    esper_agree_result result;
    char text[400], small[12];

    (void)state;
    make_equal(states, MOST, &rng);
    states[2].table = 0xabc;
    esper_agree_judge(states, 4, &result);
    esper_agree_text(&result, 4, text, sizeof(text));
    assert_non_null(
        strstr(text, "rank 2 of 4 differs from the others in: slot table (slot table: rank 2 has 0000000000000abc"));
    states[1].weights ^= 1;
    esper_agree_judge(states, 5, &result);
    esper_agree_text(&result, 5, text, sizeof(text));
    assert_non_null(
        strstr(text, "ranks 1 and 2 of 5 differ from the others in: slot table, weights (weights: rank 1 has"));
    states[0] = states[1];
    states[0].table = 1;
    esper_agree_judge(states, 2, &result);
    esper_agree_text(&result, 2, text, sizeof(text));
    assert_non_null(strstr(text, "ranks 0 and 1 of 2 differ, with no majority"));
    for (int r = 0; r < MOST; r++)
        states[r].sequence = (uint64_t)r;
    esper_agree_judge(states, MOST, &result);
    esper_agree_text(&result, MOST, text, sizeof(text));
    assert_non_null(strstr(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more of 20"));
    esper_agree_text(&result, MOST, small, sizeof(small));
    assert_int_equal(strlen(small), sizeof(small) - 1);
    make_equal(states, 3, &rng);
    esper_agree_judge(states, 3, &result);
    esper_agree_text(&result, 3, text, sizeof(text));
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_majorities),
        cmocka_unit_test(test_words),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
