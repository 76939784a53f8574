/* ctest: labels=golden */
/* Running statistics: the recorded sequences, exact and order-free moments, and NaN, which must never get in. */
#include "policy/helpers.h"

#include "policy/normaliser.h"

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_rewards, n_values, n_observations;
static double worst;

/* float32 arithmetic was recorded: 1e-5 of the size. */
static void near_float(const json_t *entry, const char *what, double ours, double recorded)
{
    double miss = fabs(ours - recorded) / fmax(1.0, fabs(recorded));

    worst = fmax(worst, miss);
    if (!(miss <= 1e-5))
        fail_msg("case %d: %s %.9g, recorded %.9g", int_of(entry, "case"), what, ours, recorded);
}

/* A round of one reward. */
static double push(esper_reward_norm *norm, double reward)
{
    esper_moments moments = {0};

    (void)esper_moments_add(&moments, reward);
    esper_reward_norm_update(norm, &moments);
    return esper_reward_norm_apply(norm, reward);
}

/* Ours takes whole rounds, here of one reward each, whose sums are rounded once more than those of a reward at a time. */
static bool is_near_round(double ours, double recorded)
{
    return fabs(ours - recorded) <= 1e-9 * fmax(1.0, fabs(recorded));
}

static void replay_rewards(const json_t *entry, const json_t *in, const json_t *out)
{
    const json_t *rewards = json_object_get(in, "rewards"), *normalised = json_object_get(out, "normalised");
    esper_reward_norm norm;

    esper_reward_norm_init(&norm);
    for (size_t i = 0; i < json_array_size(rewards); i++) {
        double ours = push(&norm, number_of(json_array_get(rewards, i)));
        double recorded = number_of(json_array_get(normalised, i));

        if (!is_near_round(ours, recorded))
            fail_msg("case %d: reward %zu: %.17g, recorded %.17g", int_of(entry, "case"), i, ours, recorded);
    }
    assert_true(norm.count == real_of(out, "count"));
    assert_true(is_near_round(norm.mean, real_of(out, "mean")));
    assert_true(is_near_round(norm.squares, real_of(out, "m2")));
    n_rewards++;
}

static void replay_values(const json_t *entry, const json_t *in, const json_t *out)
{
    const json_t *batches = json_object_get(in, "batches"), *after = json_object_get(out, "after");
    esper_value_norm norm;

    esper_value_norm_init(&norm);
    for (size_t b = 0; b < json_array_size(batches); b++) {
        const json_t *batch = json_array_get(batches, b), *row = json_array_get(after, b);
        esper_moments moments = {0};

        for (size_t i = 0; i < json_array_size(batch); i++)
            esper_moments_add(&moments, number_of(json_array_get(batch, i)));
        esper_value_norm_update(&norm, &moments);
        near_float(entry, "mean", norm.mean, number_of(json_array_get(row, 0)));
        near_float(entry, "variance", norm.variance, number_of(json_array_get(row, 1)));
        near_float(entry, "count", norm.count, number_of(json_array_get(row, 2)));
        near_float(entry, "scale", esper_value_norm_scale(&norm), number_of(json_array_get(row, 3)));
    }
    n_values++;
}

static void gather_json(esper_normaliser *norm, const json_t *row)
{
    float values[16];

    for (size_t i = 0; i < json_array_size(row); i++)
        values[i] = (float)number_of(json_array_get(row, i));
    esper_normaliser_gather(norm, values);
}

static void replay_observations(const json_t *entry, const json_t *in, const json_t *out)
{
    const json_t *batches = json_object_get(in, "batches"), *after = json_object_get(out, "after"), *last = NULL;
    const json_t *momentum = json_object_get(in, "momentum");
    int n = (int)json_array_size(json_array_get(json_array_get(batches, 0), 0));
    esper_normaliser *norm;

    check_good(esper_normaliser_open(n, NULL, json_is_null(momentum) ? 0.0 : json_number_value(momentum), &norm));
    for (size_t b = 0; b < json_array_size(batches); b++) {
        const json_t *record = json_array_get(after, b);

        last = json_array_get(batches, b);
        for (size_t r = 0; r < json_array_size(last); r++)
            gather_json(norm, json_array_get(last, r));
        assert_int_equal(esper_normaliser_update(norm), 0);
        for (int i = 0; i < n; i++) {
            near_float(entry, "mean", norm->mean[i],
                       number_of(json_array_get(json_object_get(record, "mean"), (size_t)i)));
            near_float(entry, "variance", norm->variance[i],
                       number_of(json_array_get(json_object_get(record, "var"), (size_t)i)));
        }
    }
    for (size_t r = 0; r < json_array_size(last); r++) {
        const json_t *recorded = json_array_get(json_object_get(out, "normalised_last_batch"), r);
        float row[16], ours[16];

        for (int i = 0; i < n; i++)
            row[i] = (float)number_of(json_array_get(json_array_get(last, r), (size_t)i));
        esper_normaliser_apply(norm, row, ours);
        for (int i = 0; i < n; i++)
            near_float(entry, "normalised", (double)ours[i], number_of(json_array_get(recorded, (size_t)i)));
    }
    esper_normaliser_close(norm);
    n_observations++;
}

static void replay(const json_t *entry)
{
    const char *kind = text_of(entry, "kind");
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");

    if (strcmp(kind, "reward_normaliser") == 0)
        replay_rewards(entry, in, out);
    else if (strcmp(kind, "value_normaliser") == 0)
        replay_values(entry, in, out);
    else if (strcmp(kind, "observation_normaliser") == 0)
        replay_observations(entry, in, out);
}

static void recorded_sequences(void **state)
{
    (void)state;
    golden_each_case("rewards_helpers", replay);
    printf("%d sequences of rewards, %d of returns, %d of observations; at most %.1g off\n", n_rewards, n_values,
           n_observations, worst);
    assert_true(n_rewards > 0 && n_values > 0 && n_observations > 0);
}

/* ------------------------------------------------------------------------------------------------ moments */

static void moments_are_exact(void **state)
{
    esper_moments m = {0};

    (void)state;
    assert_true(esper_moments_mean(&m) == 0.0 && esper_moments_variance(&m) == 0.0);
    for (int i = 0; i < 4; i++)
        assert_true(esper_moments_add(&m, 1000.0 + i));
    assert_true(esper_moments_mean(&m) == 1001.5 && esper_moments_variance(&m) == 1.25);
    assert_true(esper_moments_add(&m, -1001.5 * 4.0)); /* a negative sum, and back to the same mean below 0 */
    assert_true(esper_moments_mean(&m) == 0.0);
    m = (esper_moments){0};
    for (int i = 0; i < 1000; i++)
        assert_true(esper_moments_add(&m, -30000.25)); /* the squares need more than 64 bits */
    assert_true(esper_moments_mean(&m) == -30000.25 && esper_moments_variance(&m) == 0.0);
    assert_true(esper_moments_add(&m, 1e30)); /* cut */
    assert_true(esper_moments_mean(&m) < 32768.0 && isfinite(esper_moments_variance(&m)));
    assert_false(esper_moments_add(&m, (double)NAN));
    assert_false(esper_moments_add(&m, -(double)INFINITY));
    assert_int_equal(m.n, 1001);
    assert_int_equal(m.n_bad, 2);
}

/* Any order, any grouping: the same bits. */
static void order_does_not_matter(void **state)
{
    enum { N = 3000 };
    double values[N];
    esper_moments straight = {0};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < N; i++) {
        values[i] = i % 97 == 0 ? (double)NAN : 3.0 * (double)esper_rng_normal(&rng) * pow(10.0, i % 7 - 3);
        esper_moments_add(&straight, values[i]);
    }
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) {
        esper_moments parts[8] = {{0}}, whole = {0};

        for (int i = N - 1; i >= 0; i--)
            esper_moments_add(&parts[i * 7 % n_ranks], values[i]);
        for (int r = 0; r < n_ranks; r++)
            esper_moments_merge(&whole, &parts[(r + 3) % n_ranks]);
        assert_memory_equal(&whole, &straight, sizeof(whole));
    }
}

/* ------------------------------------------------------------------------------------------------ observations */

static void bad_values_stay_outside(void **state)
{
    static const uint8_t how[] = {ESPER_NORM_AS_IS, ESPER_NORM_RUNNING, ESPER_NORM_OR_MISSING};
    esper_normaliser *norm;
    float row[3], out[3];

    (void)state;
    check_good(esper_normaliser_open(3, how, 0.0, &norm));
    for (int i = 0; i < 100; i++) {
        row[0] = 1.0f;
        row[1] = i % 10 == 0 ? NAN : (float)(i % 2);
        row[2] = i % 2 == 0 ? -1.0f : 5.0f;
        esper_normaliser_gather(norm, row);
    }
    assert_int_equal(esper_normaliser_update(norm), 10);
    assert_true(norm->count[2] < 51.0); /* what is missing was not gathered */
    assert_true(fabs(norm->mean[2] - 5.0) < 1e-4);
    row[1] = INFINITY;
    row[2] = -1.0f;
    esper_normaliser_apply(norm, row, out);
    assert_true(out[0] == 1.0f && out[1] == 0.0f && out[2] == 0.0f);
    row[1] = 1e30f;
    esper_normaliser_apply(norm, row, out);
    assert_true(out[1] == 10.0f);
    assert_int_equal(esper_normaliser_update(norm), 0); /* nothing new: nothing changes */
    assert_true(isfinite(norm->mean[1]) && isfinite(norm->variance[1]));
    esper_normaliser_close(norm);
    assert_true(isfinite(push(&(esper_reward_norm){.count = 3.0}, (double)NAN)));
}

static void packing(void **state)
{
    static const uint8_t how[] = {ESPER_NORM_RUNNING, ESPER_NORM_OR_MISSING}, other[] = {ESPER_NORM_RUNNING, 0};
    uint64_t blocks = live_blocks();
    esper_normaliser *norm, *again, *strange;
    char memory[512], same[512];
    size_t bytes;

    (void)state;
    check_good(esper_normaliser_open(2, how, 0.9, &norm));
    check_good(esper_normaliser_open(2, how, 0.0, &again));
    check_good(esper_normaliser_open(2, other, 0.0, &strange));
    for (int i = 0; i < 7; i++) {
        esper_normaliser_gather(norm, (float[]){(float)i, 0.1f * (float)i});
        if (i == 3)
            esper_normaliser_update(norm);
    }
    bytes = esper_normaliser_pack_bytes(norm);
    assert_true(bytes <= sizeof(memory));
    esper_normaliser_pack(norm, memory);
    check_good(esper_normaliser_unpack(again, memory, bytes));
    esper_normaliser_pack(again, same);
    assert_memory_equal(memory, same, bytes);
    check_fails(esper_normaliser_unpack(strange, memory, bytes), ESPER_E_CONFIG, "another way");
    esper_normaliser_close(strange);
    check_good(esper_normaliser_open(3, NULL, 0.0, &strange));
    check_fails(esper_normaliser_unpack(strange, memory, bytes), ESPER_E_CONFIG, "not of 3 values");
    memory[bytes / 2] ^= 1;
    check_fails(esper_normaliser_unpack(again, memory, bytes), ESPER_E_FORMAT, "damaged");
    check_fails(esper_normaliser_unpack(again, memory, 7), ESPER_E_FORMAT, "too few");
    check_fails(esper_normaliser_open(0, NULL, 0.0, &strange), ESPER_E_ARG, "0 values");
    esper_normaliser_close(norm);
    esper_normaliser_close(again);
    esper_normaliser_close(strange);
    esper_normaliser_close(NULL);
    assert_int_equal(live_blocks(), blocks);
}

/* A round at once is as good as reward by reward. */
static void rewards_by_the_round(void **state)
{
    esper_reward_norm one, all;
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 6, .purpose = ESPER_RNG_TEST});
    esper_reward_norm_init(&one);
    esper_reward_norm_init(&all);
    assert_true(esper_reward_norm_apply(&all, 25.0) == 10.0); /* before anything is known: cut alone */
    for (int round = 0; round < 5; round++) {
        esper_moments moments = {0};

        for (int i = 0; i < 50; i++) {
            double reward = 4.0 + 2.0 * (double)esper_rng_normal(&rng);

            push(&one, reward);
            esper_moments_add(&moments, reward);
        }
        esper_reward_norm_update(&all, &moments);
        assert_true(fabs(one.mean - all.mean) < 1e-8 && fabs(one.squares - all.squares) < 1e-6);
        assert_true(fabs(esper_reward_norm_apply(&all, 1.0) - esper_reward_norm_apply(&one, 1.0)) < 1e-8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_sequences),
        cmocka_unit_test(moments_are_exact),
        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(bad_values_stay_outside),
        cmocka_unit_test(packing),
        cmocka_unit_test(rewards_by_the_round),
    };

    return cmocka_run_group_tests_name("policy/normaliser", tests, NULL, NULL);
}
