/* ctest: timeout=60 labels=golden */
/* Choices among the open ones: recorded distributions, gradients by finite differences, what the floor promises, draws.
 *
 * Recorded with a floor (marked "policy D-1"), probabilities below it were raised to it and lost their gradient. Ours are a
 * mixture: those cases are checked by its properties. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "policy/masked.h"
#include "slot/recorded.h"

enum { MOST = ESPER_MASKED_MAX };

static int n_compared, n_refused;

/* ------------------------------------------------------------------------------------------------ recorded */

static int read_case(const json_t *in, float logits[MOST], uint64_t *mask_out)
{
    const json_t *values = json_object_get(in, "logits"), *open = json_object_get(in, "mask");
    int n = (int)json_array_size(values);

    *mask_out = 0;
    for (int i = 0; i < n; i++) {
        logits[i] = (float)recorded_number(json_array_get(values, (size_t)i));
        if (json_integer_value(json_array_get(open, (size_t)i)) != 0)
            *mask_out |= UINT64_C(1) << i;
    }
    return n;
}

static void expect_near(const json_t *line, const char *what, int i, double found, double recorded)
{
    if (!(fabs(found - recorded) <= 1e-5 * fmax(1, fabs(recorded))))
        fail_msg("case %d: %s %d: found %.9g, recorded %.9g", recorded_int(json_object_get(line, "case")), what, i,
                 found, recorded);
}

static void compare(const json_t *line, const esper_masked *m, int choice)
{
    const json_t *out = json_object_get(line, "out");
    float of_log_prob[MOST] = {0}, of_entropy[MOST] = {0};

    esper_masked_backward(m, choice, 1, 0, of_log_prob);
    esper_masked_backward(m, choice, 0, 1, of_entropy);
    expect_near(line, "entropy", 0, m->entropy, recorded_number(json_object_get(out, "entropy")));
    for (int i = 0; i < m->n; i++) {
#define OUT(name) recorded_number(json_array_get(json_object_get(out, name), (size_t)i))
        expect_near(line, "log-probability", i, esper_masked_log_prob(m, i), OUT("log_probs"));
        expect_near(line, "probability", i, m->mixed[i], OUT("probs"));
        expect_near(line, "gradient of the log-probability", i, (double)of_log_prob[i], OUT("grad_log_prob"));
        expect_near(line, "gradient of the entropy", i, (double)of_entropy[i], OUT("grad_entropy"));
#undef OUT
    }
    n_compared++;
}

/* What a mixture promises. */
static void check_mixture(const json_t *line, const esper_masked *m, double floor)
{
    double sum = 0, least = fmin(floor, 0.99 / m->n_open);

    for (int i = 0; i < m->n; i++) {
        bool open = (m->mask >> i & 1u) != 0;

        sum += m->mixed[i];
        if (open ? m->n_open > 1 && m->mixed[i] < least - 1e-12 : m->mixed[i] != 0)
            fail_msg("case %d: choice %d of probability %g, floor %g", recorded_int(json_object_get(line, "case")), i,
                     m->mixed[i], least);
    }
    expect_near(line, "sum of probabilities", 0, sum, 1);
    assert_true(m->entropy >= 0 && m->entropy <= 1 + 1e-12);
    for (int a = 0; a < m->n && m->n_open > 1; a++) {
        float grad[MOST] = {0};

        if ((m->mask >> a & 1u) == 0)
            continue;
        esper_masked_backward(m, a, 1, 0, grad);
        if (m->p[a] > 1e-30 && m->p[a] < 1 - 1e-9 && !(grad[a] > 0))
            fail_msg("case %d: choice %d of probability %g has the gradient %g",
                     recorded_int(json_object_get(line, "case")), a, m->mixed[a], (double)grad[a]);
    }
    difference_met(DIFFERENCE_FLOOR, line);
}

static void replay(const json_t *line)
{
    const json_t *in = json_object_get(line, "in");
    double floor = json_is_null(json_object_get(in, "floor")) ? 0 : recorded_number(json_object_get(in, "floor"));
    float logits[MOST];
    uint64_t mask;
    int n = read_case(in, logits, &mask);
    esper_masked m;
    esper_status status = esper_masked_init(logits, n, mask, floor, &m);

    if (json_is_true(json_object_get(json_object_get(line, "out"), "error"))) {
        assert_int_equal(status, ESPER_E_ARG);
        n_refused++;
        return;
    }
    assert_int_equal(status, ESPER_OK);
    if (floor > 0 && difference_is_marked(DIFFERENCE_FLOOR, line))
        check_mixture(line, &m, floor);
    else
        compare(line, &m, recorded_int(json_object_get(in, "action")));
}

static void recorded_distributions(void **state)
{
    (void)state;
    golden_each_case("masked_dist", replay);
    printf("%d as recorded, %d refused\n", n_compared, n_refused);
    difference_say("masked_dist");
    assert_true(n_compared > 0);
}

/* ------------------------------------------------------------------------------------------------ gradients */

/* Values are multiples of 2^-6, so that steps of 2^-6 are exact in float. */
static double value_with(const float *logits, int n, uint64_t mask, double floor, int choice, bool entropy, int at,
                         float off)
{
    float moved[MOST];
    esper_masked m;

    memcpy(moved, logits, (size_t)n * sizeof(float));
    moved[at] += off;
    assert_int_equal(esper_masked_init(moved, n, mask, floor, &m), ESPER_OK);
    return entropy ? m.entropy : esper_masked_log_prob(&m, choice);
}

static void check_slopes(esper_rng *rng, double floor)
{
    int n = 2 + (int)esper_rng_below(rng, 12), choice;
    uint64_t mask = 3 | esper_rng_u32(rng) % (1u << n);
    float logits[MOST];
    esper_masked m;

    for (int i = 0; i < n; i++)
        logits[i] = (float)((int)esper_rng_below(rng, 512) - 256) / 64.0f;
    assert_int_equal(esper_masked_init(logits, n, mask, floor, &m), ESPER_OK);
    choice = esper_masked_sample(&m, rng);
    for (int entropy = 0; entropy <= 1; entropy++) {
        float grad[MOST] = {0};

        esper_masked_backward(&m, choice, entropy ? 0 : 1, entropy ? 1 : 0, grad);
        for (int i = 0; i < n; i++) {
            const float h = 1.0f / 64;
#define AT(off) value_with(logits, n, mask, floor, choice, entropy != 0, i, off)
            double slope = (8 * (AT(h) - AT(-h)) - (AT(2 * h) - AT(-2 * h))) / (12 * (double)h);
#undef AT
            if (fabs(slope - (double)grad[i]) > 2e-6)
                fail_msg("%s, floor %g, logit %d of %d: finite differences %.9g, backward %.9g",
                         entropy ? "entropy" : "log-probability", floor, i, n, slope, (double)grad[i]);
        }
    }
}

static void gradients_by_differences(void **state)
{
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 3, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 200; i++)
        check_slopes(&rng, i % 3 == 0 ? 0 : i % 3 == 1 ? 0.01 : 0.15);
}

/* Logits [5, .1, -.2, 0, .3, -.1] under a floor of 0.15: enforced afterwards, no logit had a gradient. */
static void the_floor_keeps_gradients(void **state)
{
    const float logits[] = {5, 0.1f, -0.2f, 0, 0.3f, -0.1f};
    float grad[6] = {0};
    esper_masked m;

    (void)state;
    assert_int_equal(esper_masked_init(logits, 6, 0x3f, 0.15, &m), ESPER_OK);
    esper_masked_backward(&m, 3, 1, 0, grad);
    for (int i = 0; i < 6; i++)
        assert_true(fabs((double)grad[i]) > 1e-6);
    assert_true(m.mixed[0] > 0.24 && m.mixed[0] <= 0.25 + 1e-12);
}

/* ------------------------------------------------------------------------------------------------ draws */

static void draws_follow_the_mixture(void **state)
{
    const float logits[] = {1, -2, 0.5f, 3, 9};
    int counts[5] = {0};
    esper_masked m;
    esper_rng rng;

    (void)state;
    assert_int_equal(esper_masked_init(logits, 5, 0xf, 0.05, &m), ESPER_OK);
    esper_rng_init(&rng, &(esper_rng_key){.seed = 4, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 20000; i++)
        counts[esper_masked_sample(&m, &rng)]++;
    for (int i = 0; i < 5; i++) {
        double expected = 20000 * m.mixed[i];

        if (fabs(counts[i] - expected) > 5 * sqrt(expected + 1) || (i == 4 && counts[i] != 0))
            fail_msg("choice %d was drawn %d times, expected %g", i, counts[i], expected);
    }
    assert_int_equal(esper_masked_greedy(&m), 3);
}

static void one_open_choice_is_certain(void **state)
{
    const float logits[] = {-30, 40, 2};
    float grad[3] = {0};
    esper_masked m;
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST});
    assert_int_equal(esper_masked_init(logits, 3, 1, 0.1, &m), ESPER_OK);
    assert_true(esper_masked_log_prob(&m, 0) == 0 && m.entropy == 0 && m.mixed[0] == 1);
    assert_true(esper_masked_log_prob(&m, 1) < -9000);
    assert_int_equal(esper_masked_sample(&m, &rng), 0);
    esper_masked_backward(&m, 0, 1, 1, grad);
    assert_true(grad[0] == 0 && grad[1] == 0 && grad[2] == 0);
}

static void equals_go_to_the_first(void **state)
{
    const float logits[] = {1, 2, 2, 2};
    esper_masked m;

    (void)state;
    assert_int_equal(esper_masked_init(logits, 4, 0xd, 0, &m), ESPER_OK);
    assert_int_equal(esper_masked_greedy(&m), 2);
}

static void bad_input_is_refused(void **state)
{
    const float logits[] = {0, 1}, bad[] = {0, INFINITY};
    esper_masked m = {.n = 77};

    (void)state;
    assert_int_equal(esper_masked_init(logits, 2, 0, 0, &m), ESPER_E_ARG);
    assert_int_equal(esper_masked_init(logits, 2, 4, 0, &m), ESPER_E_ARG);
    assert_int_equal(esper_masked_init(logits, 0, 1, 0, &m), ESPER_E_ARG);
    assert_int_equal(esper_masked_init(logits, 2, 1, (double)NAN, &m), ESPER_E_ARG);
    assert_int_equal(esper_masked_init(bad, 2, 1, 0, &m), ESPER_E_ARG);
    assert_int_equal(m.n, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_distributions),  cmocka_unit_test(gradients_by_differences),
        cmocka_unit_test(the_floor_keeps_gradients), cmocka_unit_test(draws_follow_the_mixture),
        cmocka_unit_test(one_open_choice_is_certain), cmocka_unit_test(equals_go_to_the_first),
        cmocka_unit_test(bad_input_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
