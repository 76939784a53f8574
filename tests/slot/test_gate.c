/* ctest: timeout=60 labels=golden */
/* The gates: recorded verdicts with their words; each check on its threshold and one step below; readings that are not
 * finite or were never taken; trial gains and lower bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "slot/alpha.h"
#include "slot/gate.h"
#include "slot/recorded.h"

static int stage_of(const char *loud)
{
    char ours[32];

    for (int code = 0; code < ESPER_STAGE_CODES; code++)
        if (esper_stage_name(code) != NULL && strcmp(recorded_name(esper_stage_name(code), ours), loud) == 0)
            return code;
    return -1;
}

static int mode_of(const char *loud)
{
    return strcmp(loud, "UP") == 0 ? ESPER_ALPHA_UP : strcmp(loud, "DOWN") == 0 ? ESPER_ALPHA_DOWN : ESPER_ALPHA_HOLD;
}

static esper_gate_input input_of(const json_t *in)
{
    const json_t *contribution = json_object_get(in, "contribution");
    const json_t *ratio = json_object_get(in, "gradient_ratio"), *health = json_object_get(in, "gradient_health");

    return (esper_gate_input){
        .permissive = json_is_true(json_object_get(in, "permissive")),
        .seed_id = json_string_value(json_object_get(in, "seed_id")),
        .blueprint = json_string_value(json_object_get(in, "blueprint_id")),
        .stage = stage_of(json_string_value(json_object_get(in, "stage"))),
        .epochs_in_stage = recorded_int(json_object_get(in, "epochs_in_stage")),
        .improvement = {.value = recorded_number(json_object_get(in, "accuracy_now")) -
                                 recorded_number(json_object_get(in, "accuracy_at_stage_start")),
                        .how = ESPER_MERIT_PLAIN},
        .contribution = {.value = recorded_number(contribution),
                         .how = json_is_null(contribution) ? ESPER_MERIT_NONE : ESPER_MERIT_PLAIN},
        .has_gradient_ratio = !json_is_null(ratio),
        .has_gradient_health = !json_is_null(health),
        .gradient_ratio = recorded_number(ratio),
        .gradient_health = recorded_number(health),
        .exploding = json_is_true(json_object_get(in, "exploding")),
        .healthy = json_is_true(json_object_get(in, "healthy")),
        .alpha = recorded_number(json_object_get(in, "alpha")),
        .alpha_target = recorded_number(json_object_get(in, "alpha_target")),
        .alpha_mode = mode_of(json_string_value(json_object_get(in, "alpha_mode"))),
    };
}

/* The words of the checks that passed, or failed, against the recorded list. */
static bool same_tokens(const esper_gate_result *result, int passed, const json_t *recorded)
{
    size_t n = 0;

    for (int i = 0; i < result->n_checks; i++)
        if (result->checks[i].passed == passed && result->checks[i].token[0] != '\0') {
            const char *token = json_string_value(json_array_get(recorded, n++));

            if (token == NULL || strcmp(token, result->checks[i].token) != 0)
                return false;
        }
    return n == json_array_size(recorded);
}

static bool same(const esper_gate_result *result, const json_t *out)
{
    return result->gate == recorded_int(json_object_get(out, "gate")) &&
           result->passed == json_is_true(json_object_get(out, "passed")) &&
           recorded_is_near(result->score, recorded_number(json_object_get(out, "score"))) &&
           strcmp(result->message, json_string_value(json_object_get(out, "message"))) == 0 &&
           same_tokens(result, 1, json_object_get(out, "checks_passed")) &&
           same_tokens(result, 0, json_object_get(out, "checks_failed"));
}

static void check_case(const json_t *line)
{
    const json_t *in = json_object_get(line, "in"), *out = json_object_get(line, "out");
    esper_gate_input input = input_of(in);
    int gate = esper_gate_before(stage_of(json_string_value(json_object_get(in, "target"))));
    esper_gate_result result;

    if (json_is_true(json_object_get(out, "error"))) {
        assert_int_equal(gate, -1);
        assert_false(esper_gate_judge(gate, &input, &result));
        return;
    }
    assert_true(esper_gate_judge(gate, &input, &result));
    if (same(&result, out))
        return;
    if (gate == ESPER_GATE_G5 && isnan(input.contribution.value) && !result.passed &&
        strcmp(result.checks[0].token, "counterfactual_not_finite") == 0) {
        difference_met(DIFFERENCE_GATE_NOT_FINITE, line);
        return;
    }
    fail_msg("case %d: passed %d, score %.17g, \"%s\", first check %s; recorded %s",
             recorded_int(json_object_get(line, "case")), result.passed, result.score, result.message,
             result.checks[0].token, json_dumps(out, 0));
}

static void test_recorded(void **state)
{
    (void)state;
    golden_each_case("gates", check_case);
    difference_say("gates");
}

/* ------------------------------------------------------------------------------------------------------- properties */

/* Passes every gate of its mode, each check exactly on its threshold. */
static esper_gate_input on_threshold(int gate, bool permissive)
{
    return (esper_gate_input){
        .permissive = permissive,
        .seed_id = "s",
        .blueprint = "norm",
        .stage = gate == ESPER_GATE_G1 ? ESPER_STAGE_GERMINATED : ESPER_STAGE_TRAINING,
        .epochs_in_stage = 10,
        .improvement = {.value = 0.5, .how = ESPER_MERIT_PLAIN},
        .contribution = {.value = 1.0, .how = ESPER_MERIT_PLAIN},
        .has_gradient_ratio = true,
        .has_gradient_health = true,
        .gradient_ratio = 0.1,
        .gradient_health = 0.7,
        .healthy = true,
        .alpha = 1.0 - 1e-6,
        .alpha_target = 1.0 - 1e-6,
    };
}

static const int gates[] = {ESPER_GATE_G0, ESPER_GATE_G1, ESPER_GATE_G2, ESPER_GATE_G3, ESPER_GATE_G5};

static bool passes(int gate, const esper_gate_input *input)
{
    esper_gate_result result;
    int n_failed = 0;

    assert_true(esper_gate_judge(gate, input, &result));
    assert_true(result.n_checks > 0 && result.n_checks <= ESPER_GATE_MAX_CHECKS);
    for (int i = 0; i < result.n_checks; i++) {
        assert_non_null(esper_gate_check_name(result.checks[i].kind));
        n_failed += !result.checks[i].passed;
    }
    assert_int_equal(result.passed, n_failed == 0);
    assert_true(result.score >= 0.0 && result.score <= 1.0);
    return result.passed;
}

/* Breaks one thing; false when there are no more. */
static bool break_one(int which, esper_gate_input *input)
{
    switch (which) {
    case 0:
        input->seed_id = "";
        return true;
    case 1:
        input->blueprint = NULL;
        return true;
    case 2:
        input->stage = ESPER_STAGE_BLENDING;
        return true;
    case 3:
        input->epochs_in_stage = 9;
        return true;
    case 4:
        input->improvement.value = nextafter(0.5, 0.0);
        return true;
    case 5:
        input->improvement.how = ESPER_MERIT_NONE;
        return true;
    case 6:
        input->gradient_ratio = nextafter(0.1, 0.0);
        return true;
    case 7:
        input->has_gradient_ratio = false;
        return true;
    case 8:
        input->gradient_health = nextafter(0.7, 0.0);
        return true;
    case 9:
        input->has_gradient_health = false;
        return true;
    case 10:
        input->exploding = true;
        return true;
    case 11:
        input->alpha_target = nextafter(1.0 - 1e-6, 0.0);
        return true;
    case 12:
        input->alpha -= 1.1e-6;
        return true;
    case 13:
        input->alpha_mode = ESPER_ALPHA_UP;
        return true;
    case 14:
        input->contribution.value = nextafter(1.0, 0.0);
        return true;
    case 15:
        input->contribution.how = ESPER_MERIT_NONE;
        return true;
    case 16:
        input->healthy = false;
        return true;
    default:
        return false;
    }
}

enum { N_BREAKS = 17 };

/* Which gate looks at what: bit 0 strict, bit 1 permissive. */
static int looks_at(int which, int gate)
{
    static const struct {
        int which, gate, modes;
    } rows[] = {{0, 0, 3},  {1, 0, 3},  {2, 1, 3},  {3, 2, 3},  {4, 2, 1},  {5, 2, 1},
                {6, 2, 1},  {7, 2, 1},  {8, 2, 2},  {9, 2, 2},  {10, 2, 2}, {3, 3, 1},
                {11, 3, 3}, {12, 3, 3}, {13, 3, 3}, {14, 5, 1}, {15, 5, 3}, {16, 5, 3}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].which == which && rows[i].gate == gate)
            return rows[i].modes;
    return 0;
}

static void test_every_check_decides(void **state)
{
    (void)state;
    for (int g = 0; g < 5; g++)
        for (int permissive = 0; permissive < 2; permissive++) {
            esper_gate_input good = on_threshold(gates[g], permissive != 0), input;

            assert_true(passes(gates[g], &good));
            for (int which = 0; which < N_BREAKS; which++) {
                input = good;
                assert_true(break_one(which, &input));
                if (passes(gates[g], &input) != ((looks_at(which, gates[g]) >> permissive & 1) == 0))
                    fail_msg("%s, permissive %d, break %d", esper_gate_name(gates[g]), permissive, which);
            }
        }
}

/* No reading that is not finite lets a seed through the gate that looks at it. */
static void test_not_finite_never_passes(void **state)
{
    static const double bad[] = {(double)NAN, -(double)NAN, (double)INFINITY, -(double)INFINITY};

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int permissive = 0; permissive < 2; permissive++) {
            esper_gate_input g2 = on_threshold(ESPER_GATE_G2, permissive != 0),
                             g3 = on_threshold(ESPER_GATE_G3, permissive != 0);
            esper_gate_input g5 = on_threshold(ESPER_GATE_G5, permissive != 0), input;

            input = g2;
            input.improvement.value = bad[i];
            assert_int_equal(passes(ESPER_GATE_G2, &input), permissive);
            input = g2;
            input.gradient_ratio = bad[i];
            assert_int_equal(passes(ESPER_GATE_G2, &input), permissive);
            input = g2;
            input.gradient_health = bad[i];
            assert_int_equal(passes(ESPER_GATE_G2, &input), !permissive);
            input = g3;
            input.alpha = bad[i];
            assert_false(passes(ESPER_GATE_G3, &input));
            input = g3;
            input.alpha_target = bad[i];
            assert_false(passes(ESPER_GATE_G3, &input));
            input = g3;
            input.alpha = input.alpha_target = bad[i];
            assert_false(passes(ESPER_GATE_G3, &input));
            input = g5;
            input.contribution.value = bad[i];
            assert_false(passes(ESPER_GATE_G5, &input));
            input.contribution.how = ESPER_MERIT_LOWER_BOUND;
            input.contribution.n_epochs = 5;
            assert_false(passes(ESPER_GATE_G5, &input));
        }
}

static void expect_token(int gate, const esper_gate_input *input, int check, bool passed, const char *token)
{
    esper_gate_result result;

    assert_true(esper_gate_judge(gate, input, &result));
    assert_true(check < result.n_checks);
    assert_string_equal(result.checks[check].token, token);
    assert_int_equal(result.checks[check].passed, passed);
}

/* The readings that replace the plain ones: same thresholds, other words, and at least three epochs for a bound. */
static void test_trial_and_bound(void **state)
{
    esper_gate_input g2 = on_threshold(ESPER_GATE_G2, false), g5 = on_threshold(ESPER_GATE_G5, false);

    (void)state;
    g2.improvement.how = ESPER_MERIT_TRIAL;
    assert_true(passes(ESPER_GATE_G2, &g2));
    expect_token(ESPER_GATE_G2, &g2, 0, true, "trial_gain_0.50%");
    g2.improvement.value = 0.25;
    assert_false(passes(ESPER_GATE_G2, &g2));
    expect_token(ESPER_GATE_G2, &g2, 0, false, "trial_gain_insufficient_0.25%");
    g2.improvement = (esper_merit){.value = 9.0, .how = ESPER_MERIT_LOWER_BOUND, .n_epochs = 9};
    assert_false(passes(ESPER_GATE_G2, &g2)); /* a bound of a contribution is no trial */
    g5.contribution = (esper_merit){.value = 1.0, .how = ESPER_MERIT_LOWER_BOUND, .n_epochs = 3};
    assert_true(passes(ESPER_GATE_G5, &g5));
    expect_token(ESPER_GATE_G5, &g5, 0, true, "counterfactual_bound_1.00%_of_3_epochs");
    g5.contribution.n_epochs = 2;
    assert_false(passes(ESPER_GATE_G5, &g5));
    expect_token(ESPER_GATE_G5, &g5, 0, false, "counterfactual_bound_of_2_of_3_epochs");
    g5.contribution.n_epochs = 30;
    g5.contribution.value = nextafter(1.0, 0.0);
    assert_false(passes(ESPER_GATE_G5, &g5));
    g5.contribution = (esper_merit){.value = 9.0, .how = ESPER_MERIT_TRIAL};
    assert_false(passes(ESPER_GATE_G5, &g5)); /* and a trial is no contribution */
}

/* Values and thresholds of the evidence, and words that fit whatever the numbers. */
static void test_evidence(void **state)
{
    esper_gate_input input = on_threshold(ESPER_GATE_G2, false);
    esper_gate_result result;

    (void)state;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_int_equal(result.n_checks, 3);
    assert_true(result.checks[0].value == 0.5 && result.checks[0].threshold == ESPER_GATE_MIN_IMPROVEMENT);
    assert_true(result.checks[1].value == 10.0 && result.checks[1].threshold == 10.0);
    assert_true(result.checks[2].value == 0.1 && result.checks[2].threshold == ESPER_GATE_MIN_RATIO);
    input.has_gradient_ratio = false;
    input.improvement.value = -1.7976931348623157e308;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_true(isnan(result.checks[2].value));
    assert_string_equal(result.message, "Improvement: -1.7976931348623157e+308%");
    input = on_threshold(ESPER_GATE_G5, true);
    input.contribution.value = -1.7976931348623157e308;
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(result.message, "Permissive G5: -1.7976931348623157e+308% contribution (no threshold)");
    assert_false(esper_gate_judge(4, &input, &result));
}

/* What people are told of a refusal: each check that failed, time among them. */
static void test_why(void **state)
{
    esper_gate_input input = on_threshold(ESPER_GATE_G2, true);
    esper_gate_result result;
    char why[ESPER_GATE_WHY_CHARS];

    (void)state;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_string_equal(esper_gate_why(&result, why), result.message);
    input.epochs_in_stage = 2;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_string_equal(esper_gate_why(&result, why), "epochs in stage 2, needs 10");
    input.exploding = true;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_string_equal(esper_gate_why(&result, why), "epochs in stage 2, needs 10; exploding gradients");
    input = on_threshold(ESPER_GATE_G2, false);
    input.improvement.value = 0.25;
    input.has_gradient_ratio = false;
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_string_equal(esper_gate_why(&result, why), "improvement 0.25, needs 0.5; gradient stats never measured");
    input = on_threshold(ESPER_GATE_G5, true);
    input.contribution.how = ESPER_MERIT_NONE;
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(esper_gate_why(&result, why), "counterfactual not available");
    esper_gate_refuse(ESPER_GATE_G1, "no_active_seed", &result);
    assert_string_equal(esper_gate_why(&result, why), "no active seed");
}

/* Another number of epochs in the place of 10, in the words too; and what goes with it. */
static void test_other_epochs(void **state)
{
    (void)state;
    for (int permissive = 0; permissive < 2; permissive++) {
        esper_gate_input g2 = on_threshold(ESPER_GATE_G2, permissive != 0);
        esper_gate_input g3 = on_threshold(ESPER_GATE_G3, permissive != 0);

        g2.min_epochs = g3.min_epochs = g2.epochs_in_stage = g3.epochs_in_stage = 4;
        assert_true(passes(ESPER_GATE_G2, &g2) && passes(ESPER_GATE_G3, &g3));
        g2.epochs_in_stage = g3.epochs_in_stage = 3;
        assert_false(passes(ESPER_GATE_G2, &g2));
        assert_int_equal(passes(ESPER_GATE_G3, &g3), permissive);
        if (permissive)
            expect_token(ESPER_GATE_G2, &g2, 0, false, "insufficient_training_3_of_4");
        g2.min_epochs = 12;
        g2.epochs_in_stage = 11;
        assert_false(passes(ESPER_GATE_G2, &g2));
    }
    for (int epochs = 0; epochs <= 1000; epochs++)
        assert_int_equal(esper_gate_pace(epochs, 10), epochs);
    assert_int_equal(esper_gate_pace(25, 4), 10);
    assert_int_equal(esper_gate_pace(3, 4), 2);
    assert_int_equal(esper_gate_pace(1, 1), 1);
    assert_int_equal(esper_gate_pace(0, 4), 0);
    assert_int_equal(esper_gate_pace(3, 20), 6);
    assert_int_equal(esper_gate_least_epochs(false, 10), 25);
    assert_int_equal(esper_gate_least_epochs(true, 10), 14);
    assert_int_equal(esper_gate_least_epochs(true, 1), 5);
    assert_int_equal(esper_gate_least_epochs(false, INT_MAX), INT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_every_check_decides),
        cmocka_unit_test(test_not_finite_never_passes),
        cmocka_unit_test(test_trial_and_bound),
        cmocka_unit_test(test_evidence),
        cmocka_unit_test(test_why),
        cmocka_unit_test(test_other_epochs),
    };

    return cmocka_run_group_tests_name("slot/gate", tests, NULL, NULL);
}
