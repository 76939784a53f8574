/* ctest: timeout=60 labels=golden */
/* The governor: recorded verdicts over loss sequences, every edge of the vital signs, the ladder rung by rung, the sticky
 * fault, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "esper.h"
#include "guard/governor.h"
#include "support/difference.h"
#include "support/golden.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void check_refused(esper_status status, const char *words)
{
    if (status != ESPER_E_ARG)
        fail_msg("%s, expected ESPER_E_ARG", esper_status_name(status));
    if (strstr(esper_last_error(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), words);
}

static esper_governor *open_with(const esper_governor_options *options)
{
    esper_governor *governor = NULL;

    check_good(esper_governor_open(options, &governor));
    return governor;
}

static esper_governor_reading check(esper_governor *governor, double loss)
{
    esper_governor_reading reading;

    check_good(esper_governor_check(governor, loss, &reading));
    return reading;
}

static esper_governor_reading scan(esper_governor *governor, uint32_t bad)
{
    esper_governor_reading reading;

    check_good(esper_governor_scan(governor, bad, &reading));
    return reading;
}

static void expect_action(const char *where, esper_governor_reading reading, esper_governor_action action)
{
    if (reading.action != action)
        fail_msg("%s: %s, expected %s", where, esper_governor_action_name(reading.action),
                 esper_governor_action_name(action));
}

static void expect_reason(const char *where, esper_governor_reading reading, esper_governor_reason reason)
{
    if (reading.reason != reason)
        fail_msg("%s: %s, expected %s", where, esper_governor_reason_name(reading.reason),
                 esper_governor_reason_name(reason));
}

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_differences;

/* Numbers of the recorded files: non-finite ones are texts. */
static double number_of(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text != NULL)
        return strcmp(text, "nan") == 0 ? (double)NAN : strcmp(text, "inf") == 0 ? (double)INFINITY : -(double)INFINITY;
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

static bool is_near(double a, double b)
{
    double size = fmax(1.0, fmax(fabs(a), fabs(b)));

    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= 1e-12 * size;
}

static esper_governor_options recorded_options(const json_t *config)
{
    esper_governor_options options;
    const char *key;
    json_t *value;

    esper_governor_options_init(&options);
    options.max_rollbacks = UINT32_MAX; /* what was recorded had no limit */
    json_object_foreach((json_t *)(uintptr_t)config, key, value) {
        if (strcmp(key, "sensitivity") == 0)
            options.sensitivity = number_of(value);
        else if (strcmp(key, "absolute_threshold") == 0)
            options.absolute = number_of(value);
        else if (strcmp(key, "random_guess_loss") == 0)
            options.random_guess_loss = number_of(value);
        else if (strcmp(key, "history_window") == 0)
            options.window = (uint32_t)json_integer_value(value);
        else if (strcmp(key, "min_panics_before_rollback") == 0)
            options.min_panics = (uint32_t)json_integer_value(value);
        else
            fail_msg("unknown setting %s", key);
    }
    return options;
}

/* One line of out.after against the governor: panic and reason as of the verdict, the rest as of after a rollback. What was
 * recorded forgot a panic that nobody answered; ours asks until there was a rollback (`asks`, and for what reason). */
static int count_differences(const char *where, const json_t *row, const esper_governor_reading *reading,
                             const esper_governor_reading *after, bool rolled_back, const char *asks)
{
    const char *reason = asks != NULL ? asks : json_string_value(json_array_get(row, 1));
    const char *our_reason =
        reading->reason == ESPER_GOVERNOR_NONE ? "null" : esper_governor_reason_name(reading->reason);
    bool panic = asks != NULL || json_is_true(json_array_get(row, 0));
    bool pending = json_is_true(json_array_get(row, 3)) || (panic && !rolled_back);
    bool our_panic = reading->action >= ESPER_GOVERNOR_ROLL_BACK;
    double threshold = number_of(json_array_get(row, 7));
    int n = 0;

#define DIFFERS(condition, ...)         \
    do {                                \
        if (condition) {                \
            print_error("%s: ", where); \
            print_error(__VA_ARGS__);   \
            n++;                        \
        }                               \
    } while (0)
    DIFFERS(json_array_size(row) != 8, "%zu columns\n", json_array_size(row));
    DIFFERS(our_panic != panic, "panic %d, recorded %d\n", our_panic, panic);
    DIFFERS(strcmp(our_reason, reason != NULL ? reason : "null") != 0, "reason %s, recorded %s\n", our_reason,
            reason != NULL ? reason : "null");
    DIFFERS(after->consecutive != json_integer_value(json_array_get(row, 2)), "%u in a row, recorded %d\n",
            after->consecutive, (int)json_integer_value(json_array_get(row, 2)));
    DIFFERS(after->pending != pending, "pending %u, recorded %d\n", after->pending, pending);
    DIFFERS(!is_near(after->panic_loss, number_of(json_array_get(row, 4))), "panic loss %.17g, recorded %.17g\n",
            after->panic_loss, number_of(json_array_get(row, 4)));
    DIFFERS(after->history_count != json_integer_value(json_array_get(row, 5)), "%u losses, recorded %d\n",
            after->history_count, (int)json_integer_value(json_array_get(row, 5)));
    DIFFERS(
        !is_near(after->history_mean, json_is_null(json_array_get(row, 6)) ? 0.0 : number_of(json_array_get(row, 6))),
        "mean %.17g, recorded %.17g\n", after->history_mean, number_of(json_array_get(row, 6)));
    DIFFERS(rolled_back == isnan(threshold), "rollback %d, recorded threshold %g\n", rolled_back, threshold);
    DIFFERS(rolled_back && !is_near(after->threshold, threshold), "threshold %.17g, recorded %.17g\n", after->threshold,
            threshold);
#undef DIFFERS
    return n;
}

static void replay_case(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *rows = json_object_get(json_object_get(entry, "out"), "after");
    const json_t *losses = json_object_get(in, "losses");
    bool rolls = json_is_true(json_object_get(in, "rollback_on_panic"));
    esper_governor_options options = recorded_options(json_object_get(in, "config"));
    esper_governor *governor = open_with(&options);
    const char *asks = NULL;

    assert_true(json_array_size(rows) == json_array_size(losses) && json_array_size(rows) > 0);
    for (size_t i = 0; i < json_array_size(losses); i++) {
        esper_governor_reading reading = check(governor, number_of(json_array_get(losses, i))), after;
        bool rolled_back = rolls && reading.action >= ESPER_GOVERNOR_ROLL_BACK;
        char where[64];

        if (rolled_back)
            check_good(esper_governor_rolled_back(governor, 0, 0));
        esper_governor_reading_get(governor, &after);
        snprintf(where, sizeof(where), "case %d, loss %zu", (int)json_integer_value(json_object_get(entry, "case")), i);
        n_differences += count_differences(where, json_array_get(rows, i), &reading, &after, rolled_back, asks);
        if (asks == NULL && !rolled_back && json_is_true(json_array_get(json_array_get(rows, i), 0)))
            asks = json_string_value(json_array_get(json_array_get(rows, i), 1));
        else if (asks != NULL && !json_is_true(json_array_get(json_array_get(rows, i), 0)))
            difference_met(DIFFERENCE_PANIC, entry); /* compared with what the list says */
    }
    esper_governor_close(governor);
}

static void recorded_verdicts(void **state)
{
    (void)state;
    golden_each_case("governor", replay_case);
    difference_say("governor");
    assert_int_equal(n_differences, 0);
}

/* ------------------------------------------------------------------------------------------------ vital signs */

/* With this guess the edges are whole numbers: collapse means within 13 of it after a mean below 120. */
static const double guess = 200.0;

/* What one loss is judged as, after `n` healthy ones that alternate between two levels. */
typedef struct vital {
    const char           *what;
    uint32_t              n;
    double                even, odd, loss;
    esper_governor_action action;
    esper_governor_reason reason;
} vital;

#define GO         ESPER_GOVERNOR_GO
#define NOTHING    ESPER_GOVERNOR_NONE
#define ROLLS      ESPER_GOVERNOR_ROLL_BACK
#define COLLAPSE   ESPER_GOVERNOR_LOBOTOMY
#define DIVERGENCE ESPER_GOVERNOR_DIVERGENCE

static const vital vitals[] = {
    {"NaN at first", 0, 0, 0, (double)NAN, ROLLS, ESPER_GOVERNOR_NAN},
    {"+Inf at first", 0, 0, 0, (double)INFINITY, ROLLS, ESPER_GOVERNOR_NAN},
    {"-Inf at first", 0, 0, 0, -(double)INFINITY, ROLLS, ESPER_GOVERNOR_NAN},
    {"NaN later", 20, 1, 1, (double)NAN, ROLLS, ESPER_GOVERNOR_NAN},
    {"+Inf later", 20, 1, 1, (double)INFINITY, ROLLS, ESPER_GOVERNOR_NAN},
    {"-Inf later", 20, 1, 1, -(double)INFINITY, ROLLS, ESPER_GOVERNOR_NAN},
    {"the largest number is one", 9, 1, 1, DBL_MAX, GO, NOTHING},
    {"collapse", 10, 119, 119, 200, ROLLS, COLLAPSE},
    {"collapse, mean on its edge", 10, 120, 120, 200, GO, NOTHING},
    {"collapse, mean just below its edge", 10, 120, 119.999, 200, ROLLS, COLLAPSE},
    {"collapse, loss on its upper edge", 10, 119, 119, 213, GO, NOTHING},
    {"collapse, loss inside its upper edge", 10, 119, 119, 212.999, ROLLS, COLLAPSE},
    {"collapse, loss on its lower edge", 10, 119, 119, 187, GO, NOTHING},
    {"collapse, loss inside its lower edge", 10, 119, 119, 187.001, ROLLS, COLLAPSE},
    {"collapse, a sample short", 9, 119, 119, 200, GO, NOTHING},
    {"collapse, a sample more", 11, 119, 119, 200, ROLLS, COLLAPSE},
    {"collapse goes before divergence", 10, 1, 1, 200, ROLLS, COLLAPSE},
    {"anything goes with 9 samples", 9, 1, 1, 1e6, GO, NOTHING},
    {"divergence with 10 samples", 10, 1, 1, 1e6, GO, DIVERGENCE},
    {"divergence with 11 samples", 11, 1, 1, 1e6, GO, DIVERGENCE},
    {"divergence, on the absolute level", 10, 1, 1, 12, GO, NOTHING},
    {"divergence, above the absolute level", 10, 1, 1, 12.001, GO, DIVERGENCE},
    {"divergence, on three times the mean", 10, 5, 5, 15, GO, NOTHING},
    {"divergence, above three times the mean", 10, 5, 5, 15.001, GO, DIVERGENCE},
    {"divergence, on six deviations", 10, 1, 9, 29, GO, NOTHING},
    {"divergence, above six deviations", 10, 1, 9, 29.001, GO, DIVERGENCE},
    {"divergence, only within six deviations", 10, 1, 9, 20, GO, NOTHING},
    {"negative losses are losses", 12, -3, -3, -4, GO, NOTHING},
};

static esper_governor *open_plain(void)
{
    esper_governor_options options;

    esper_governor_options_init(&options);
    options.random_guess_loss = guess;
    return open_with(&options);
}

static void judge(const vital *row)
{
    bool diverges = row->reason == DIVERGENCE, healthy = row->reason == NOTHING;
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    for (uint32_t i = 0; i < row->n; i++)
        expect_action(row->what, check(governor, i % 2 == 0 ? row->even : row->odd), GO);
    reading = check(governor, row->loss);
    expect_action(row->what, reading, row->action);
    expect_reason(row->what, reading, row->reason);
    if (reading.history_count != row->n + healthy)
        fail_msg("%s: %u losses remembered, expected %u", row->what, reading.history_count, row->n + healthy);
    if (reading.consecutive != diverges || reading.pending != !healthy)
        fail_msg("%s: %u in a row, pending %u, expected %d and %d", row->what, reading.consecutive, reading.pending,
                 diverges, !healthy);
    if (!is_near(reading.panic_loss, healthy ? (double)NAN : row->loss))
        fail_msg("%s: panic loss %g", row->what, reading.panic_loss);
    esper_governor_close(governor);
}

static void vital_signs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(vitals) / sizeof(vitals[0]); i++)
        judge(&vitals[i]);
}

/* One good loss forgives two bad ones; the third in a row is a panic; none of them is remembered. */
static void anomalies_in_a_row(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    for (int i = 0; i < 12; i++)
        check(governor, 1.0);
    for (int round = 0; round < 3; round++) {
        check(governor, 50.0);
        reading = check(governor, 60.0);
        assert_int_equal(reading.consecutive, 2);
        assert_true(reading.pending);
        expect_action("second anomaly", reading, GO);
        reading = check(governor, 1.0);
        assert_int_equal(reading.consecutive, 0);
        assert_false(reading.pending);
        assert_true(isnan(reading.panic_loss));
        expect_reason("good again", reading, NOTHING);
    }
    check(governor, 50.0);
    check(governor, 50.0);
    reading = check(governor, 50.0);
    expect_action("third anomaly", reading, ROLLS);
    expect_reason("third anomaly", reading, DIVERGENCE);
    assert_int_equal(reading.consecutive, 3);
    assert_true(reading.history_mean == 1.0 && reading.threshold == 1.0);
    assert_int_equal(reading.history_count, 15);
    esper_governor_close(governor);
}

/* What would be the second anomaly is a healthy loss of another network; what it has asked for stays. */
static void forgets_losses(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    for (int i = 0; i < 25; i++)
        check(governor, 1.0);
    check(governor, 50.0);
    esper_governor_forget_losses(governor);
    reading = check(governor, 50.0);
    assert_int_equal(reading.history_count, 1);
    assert_int_equal(reading.consecutive, 0);
    assert_false(reading.pending);
    expect_reason("another network", reading, NOTHING);
    for (int i = 0; i < 11; i++)
        check(governor, 50.0);
    assert_true(check(governor, 49.0).history_mean > 49.9); /* none of those of before */
    expect_action("not finite", check(governor, (double)NAN), ROLLS);
    esper_governor_forget_losses(governor);
    esper_governor_reading_get(governor, &reading);
    expect_action("still asked for", reading, ROLLS);
    assert_int_equal(reading.history_count, 0);
    esper_governor_close(governor);
}

static void panics_leave_counter_and_history(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    for (int i = 0; i < 12; i++)
        check(governor, 1.0);
    check(governor, 50.0);
    assert_int_equal(check(governor, (double)NAN).consecutive, 1);
    assert_int_equal(check(governor, 200.0).consecutive, 1);
    assert_int_equal(check(governor, 50.0).consecutive, 2);
    reading = check(governor, 50.0);
    assert_int_equal(reading.consecutive, 3);
    assert_int_equal(reading.history_count, 12);
    esper_governor_close(governor);
}

/* The oldest losses make room; a rollback keeps the rest. */
static void history_is_a_window(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    esper_governor_reading_get(governor, &reading);
    assert_true(reading.history_mean == 0.0 && reading.threshold == 0.0 && isnan(reading.panic_loss));
    for (int i = 1; i <= 25; i++)
        check(governor, (double)i);
    esper_governor_reading_get(governor, &reading);
    assert_int_equal(reading.history_count, 20);
    assert_true(reading.history_mean == 15.5);                                     /* 6 .. 25 */
    assert_true(is_near(reading.threshold, 15.5 + 6.0 * sqrt((400.0 - 1.0) / 12.0)));
    check(governor, (double)NAN);
    check_good(esper_governor_rolled_back(governor, 7, 0));
    esper_governor_reading_get(governor, &reading);
    assert_int_equal(reading.history_count, 20);
    assert_true(reading.history_mean == 15.5);
    esper_governor_close(governor);
}

/* ------------------------------------------------------------------------------------------------ the ladder */

enum {
    BAD_GRAD = ESPER_GUARD_BAD_NAN_GRAD,
    BAD_STATE = ESPER_GUARD_BAD_INF_STATE,
};

static void ten_skips_then_a_rollback(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    for (int i = 0; i < 9; i++)
        expect_action("bad gradient", scan(governor, i % 2 == 0 ? ESPER_GUARD_BAD_NAN_GRAD : ESPER_GUARD_BAD_INF_GRAD),
                      ESPER_GOVERNOR_SKIP);
    reading = scan(governor, 0); /* a clean scan: the count begins anew */
    expect_action("clean", reading, GO);
    assert_false(reading.pending);
    for (int i = 0; i < 10; i++) {
        reading = scan(governor, BAD_GRAD);
        expect_action("bad gradient", reading, ESPER_GOVERNOR_SKIP);
        expect_reason("bad gradient", reading, ESPER_GOVERNOR_SCAN);
        assert_true(reading.pending);
    }
    assert_int_equal(reading.n_skipped, 19);
    reading = scan(governor, BAD_GRAD);
    expect_action("eleventh in a row", reading, ROLLS);
    assert_int_equal(reading.n_skipped, 19);
    check_good(esper_governor_rolled_back(governor, 5, 0));
    expect_action("after the rollback", scan(governor, BAD_GRAD), ESPER_GOVERNOR_SKIP);
    esper_governor_close(governor);
}

static void bad_state_rolls_back(void **state)
{
    static const uint32_t verdicts[] = {
        ESPER_GUARD_BAD_NAN_STATE,
        ESPER_GUARD_BAD_INF_STATE,
        ESPER_GUARD_BAD_NAN_STATE | ESPER_GUARD_BAD_NAN_GRAD, /* the gradients follow from it */
        15,
        ESPER_GUARD_BAD_CHANGED,
    };

    (void)state;
    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
        esper_governor *governor = open_plain();
        esper_governor_reading reading = scan(governor, verdicts[i]);

        expect_action("bad state", reading, ROLLS);
        expect_reason("bad state", reading, ESPER_GOVERNOR_SCAN);
        assert_true(reading.pending);
        assert_int_equal(reading.n_skipped, 0);
        expect_action("a clean scan mends nothing", scan(governor, 0), ROLLS);
        expect_action("nor does a good loss", check(governor, 1.0), ROLLS);
        check_good(esper_governor_rolled_back(governor, 0, 0));
        esper_governor_reading_get(governor, &reading);
        expect_action("restored", reading, GO);
        expect_reason("restored", reading, NOTHING);
        assert_false(reading.pending);
        assert_int_equal(reading.n_rollbacks, 1);
        esper_governor_close(governor);
    }
}

/* Which rung: the second panic from one snapshot prunes, whoever panics; a later snapshot makes the ground fresh again. */
static void second_panic_prunes(void **state)
{
    esper_governor_options options;
    esper_governor *governor;

    (void)state;
    esper_governor_options_init(&options);
    options.max_rollbacks = 10;
    governor = open_with(&options);
    check_good(esper_governor_snapshot(governor, 100));
    expect_action("first", scan(governor, BAD_STATE), ROLLS);
    check_good(esper_governor_rolled_back(governor, 100, 0));
    expect_action("second, by a loss", check(governor, (double)NAN), ESPER_GOVERNOR_PRUNE);
    check_good(esper_governor_rolled_back(governor, 100, 0));
    check_good(esper_governor_snapshot(governor, 100)); /* the same place again is no progress */
    expect_action("third, by a scan", scan(governor, BAD_STATE), ESPER_GOVERNOR_PRUNE);
    check_good(esper_governor_rolled_back(governor, 100, 0));
    check_good(esper_governor_snapshot(governor, 150));
    expect_action("from a later snapshot", check(governor, (double)INFINITY), ROLLS);
    check_good(esper_governor_rolled_back(governor, 150, 0));
    for (uint32_t i = 0; i < options.max_skips; i++)
        expect_action("a bad gradient is skipped on any ground", scan(governor, BAD_GRAD), ESPER_GOVERNOR_SKIP);
    expect_action("skips ran out", scan(governor, BAD_GRAD), ESPER_GOVERNOR_PRUNE);
    check_good(esper_governor_rolled_back(governor, 100, 0)); /* the newest was damaged: the next older one */
    check_good(esper_governor_snapshot(governor, 101));
    expect_action("fresh ground", scan(governor, BAD_STATE), ROLLS);
    esper_governor_close(governor);
}

/* After three rollbacks, stop; and stay stopped until somebody restores. */
static void stop_sticks(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(scan(governor, BAD_STATE).action >= ROLLS);
        check_good(esper_governor_rolled_back(governor, (uint64_t)i, 0));
        check_good(esper_governor_snapshot(governor, (uint64_t)i + 1));
    }
    expect_action("a skip is still one", scan(governor, BAD_GRAD), ESPER_GOVERNOR_SKIP);
    reading = check(governor, (double)NAN);
    expect_action("the fourth", reading, ESPER_GOVERNOR_STOP);
    assert_true(reading.faulted);
    reading = check(governor, 1.0);
    expect_action("a good loss", reading, ESPER_GOVERNOR_STOP);
    assert_int_equal(reading.history_count, 0); /* judged no more */
    expect_action("a clean scan", scan(governor, 0), ESPER_GOVERNOR_STOP);
    check_good(esper_governor_snapshot(governor, 1000));
    esper_governor_reading_get(governor, &reading);
    assert_true(reading.faulted);
    check_good(esper_governor_rolled_back(governor, 3, 0)); /* somebody restored by hand */
    reading = scan(governor, 0);
    expect_action("restored", reading, GO);
    assert_false(reading.faulted);
    expect_action("but there is no credit left", scan(governor, BAD_STATE), ESPER_GOVERNOR_STOP);
    esper_governor_close(governor);
}

static void failed_rollback_faults(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading;

    (void)state;
    expect_action("bad state", scan(governor, BAD_STATE), ROLLS);
    check_good(esper_governor_rolled_back(governor, 0, 1));
    esper_governor_reading_get(governor, &reading);
    expect_action("nothing to go back to", reading, ESPER_GOVERNOR_STOP);
    expect_reason("the reason stays", reading, ESPER_GOVERNOR_SCAN);
    assert_true(reading.faulted);
    assert_int_equal(reading.n_rollbacks, 0);
    expect_action("clean scans do not help", scan(governor, 0), ESPER_GOVERNOR_STOP);
    check_good(esper_governor_rolled_back(governor, 12, 0)); /* an older file was found */
    expect_action("restored", scan(governor, 0), GO);
    esper_governor_close(governor);
}

/* With 0 of both, the first bad gradient stops. */
static void limits_of_zero(void **state)
{
    esper_governor_options options;
    esper_governor *governor;

    (void)state;
    esper_governor_options_init(&options);
    options.max_skips = 0;
    options.max_rollbacks = 0;
    governor = open_with(&options);
    expect_action("bad gradient", scan(governor, BAD_GRAD), ESPER_GOVERNOR_STOP);
    esper_governor_close(governor);
}

/* The worse of the two standing answers is given. */
static void worse_answer_counts(void **state)
{
    esper_governor *governor = open_plain();

    (void)state;
    expect_action("bad gradient", scan(governor, BAD_GRAD), ESPER_GOVERNOR_SKIP);
    expect_action("good loss, behind the step that was skipped", check(governor, 1.0), GO);
    expect_action("bad loss", check(governor, (double)NAN), ROLLS);
    expect_action("bad gradient on top", scan(governor, BAD_GRAD), ROLLS);
    expect_reason("bad gradient on top", scan(governor, BAD_GRAD), ESPER_GOVERNOR_NAN);
    esper_governor_close(governor);
}

/* Whatever the loss did: good ones and clean scans do not mend the weights, and no snapshot may be taken until they are. */
static void a_bad_loss_asks_until_it_was_done(void **state)
{
    static const double panics[] = {(double)NAN, 200.0, 50.0};
    static const esper_governor_reason reasons[] = {ESPER_GOVERNOR_NAN, COLLAPSE, DIVERGENCE};

    (void)state;
    for (size_t i = 0; i < sizeof(panics) / sizeof(panics[0]); i++) {
        esper_governor *governor = open_plain();
        esper_governor_reading reading;

        for (int n = 0; n < 12; n++)
            check(governor, 1.0);
        do
            reading = check(governor, panics[i]);
        while (reading.action == GO);
        for (int n = 0; n < 3; n++) {
            expect_action("asked", reading, ROLLS);
            expect_reason("asked", reading, reasons[i]);
            assert_int_equal(reading.pending, 1);
            reading = n == 0 ? scan(governor, 0) : check(governor, 1.0);
        }
        check_good(esper_governor_rolled_back(governor, 0, 0));
        esper_governor_reading_get(governor, &reading);
        expect_action("done", reading, GO);
        assert_int_equal(reading.pending, 0);
        esper_governor_close(governor);
    }
}

/* Snapshots are never allowed while something is asked for. */
static void pending_whenever_it_is_not_go(void **state)
{
    esper_governor_options options;
    esper_governor *governor;

    (void)state;
    esper_governor_options_init(&options);
    options.max_rollbacks = 0;
    governor = open_with(&options);
    assert_int_equal(scan(governor, BAD_GRAD).pending, 1); /* SKIP */
    expect_action("no rollback is left", check(governor, (double)NAN), ESPER_GOVERNOR_STOP);
    assert_int_equal(check(governor, 1.0).pending, 1);
    esper_governor_close(governor);
}

static void check_nothing_asked(esper_governor *governor, int failed)
{
    esper_governor_reading reading;
    esper_status status = esper_governor_rolled_back(governor, 7, failed);

    if (status != ESPER_E_STATE || strstr(esper_last_error(), "no rollback was asked for") == NULL)
        fail_msg("%s: \"%s\"", esper_status_name(status), esper_last_error());
    esper_governor_reading_get(governor, &reading);
    assert_int_equal(reading.n_rollbacks, 0);
    assert_int_equal(reading.faulted, 0);
}

static void a_rollback_nobody_asked_for(void **state)
{
    esper_governor *governor = open_plain();

    (void)state;
    check_nothing_asked(governor, 0);
    check_nothing_asked(governor, 1);
    expect_action("bad gradient", scan(governor, BAD_GRAD), ESPER_GOVERNOR_SKIP);
    check_nothing_asked(governor, 0);
    check_refused(esper_governor_scan(governor, 32, NULL), "0x20");
    check_refused(esper_governor_scan(governor, UINT32_MAX, NULL), "ESPER_GUARD_BAD_");
    expect_action("it was not looked at", scan(governor, 0), GO);
    esper_governor_close(governor);
}

/* ------------------------------------------------------------------------------------------------ remembering */

static void memory_round_trip(void **state)
{
    static const double losses[] = {1, 2, 1, 3, 1, 2, 1, 3, 1, 2, 1, 2, 50, 60};
    esper_governor *a = open_plain(), *b = open_plain();
    esper_governor_reading of_a, of_b;
    double numbers[64];
    size_t n;

    (void)state;
    scan(a, BAD_STATE);
    check_good(esper_governor_rolled_back(a, 40, 0));
    scan(a, BAD_GRAD);
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
        check(a, losses[i]);
    n = esper_governor_memory_count(a);
    assert_true(n <= sizeof(numbers) / sizeof(numbers[0]));
    esper_governor_pack(a, numbers);
    check_good(esper_governor_unpack(b, numbers, n));
    esper_governor_reading_get(a, &of_a);
    esper_governor_reading_get(b, &of_b);
    assert_int_equal(of_b.consecutive, 2);
    assert_int_equal(of_b.n_skipped, 1);
    assert_int_equal(of_b.n_rollbacks, 1);
    assert_true(of_a.pending == of_b.pending && of_a.history_count == of_b.history_count);
    assert_true(of_a.history_mean == of_b.history_mean && of_a.threshold == of_b.threshold);
    expect_action("the original", check(a, 70.0), ESPER_GOVERNOR_PRUNE);
    expect_action("the copy", check(b, 70.0), ESPER_GOVERNOR_PRUNE);
    esper_governor_close(a);
    esper_governor_close(b);
}

static void wrong_memory_is_refused(void **state)
{
    esper_governor *governor = open_plain();
    double numbers[40] = {0};

    (void)state;
    assert_int_equal(esper_governor_unpack(governor, numbers, 3), ESPER_E_FORMAT);
    assert_int_equal(esper_governor_unpack(governor, numbers, 40), ESPER_E_FORMAT);
    numbers[0] = -1.0;
    assert_int_equal(esper_governor_unpack(governor, numbers, 12), ESPER_E_FORMAT);
    numbers[0] = 0.5;
    assert_int_equal(esper_governor_unpack(governor, numbers, 12), ESPER_E_FORMAT);
    numbers[0] = 0.0;
    numbers[10] = (double)NAN;
    assert_int_equal(esper_governor_unpack(governor, numbers, 12), ESPER_E_FORMAT);
    numbers[10] = 1.0;
    check_good(esper_governor_unpack(governor, numbers, 12));
    esper_governor_close(governor);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void refuse(void (*spoil)(esper_governor_options *), const char *words)
{
    esper_governor_options options;
    esper_governor *governor = NULL;

    esper_governor_options_init(&options);
    spoil(&options);
    check_refused(esper_governor_open(&options, &governor), words);
    assert_null(governor);
}

static void small_window(esper_governor_options *options)
{
    options->window = 9;
}
static void huge_window(esper_governor_options *options)
{
    options->window = UINT32_MAX;
}
static void no_panics(esper_governor_options *options)
{
    options->min_panics = 0;
}
static void nan_level(esper_governor_options *options)
{
    options->absolute = (double)NAN;
}
static void negative(esper_governor_options *options)
{
    options->sensitivity = -1.0;
}
static void endless(esper_governor_options *options)
{
    options->random_guess_loss = (double)INFINITY;
}
static void no_size(esper_governor_options *options)
{
    options->size = 0;
}
static void too_large(esper_governor_options *options)
{
    options->size = sizeof(*options) + 8;
}

static void bad_options(void **state)
{
    (void)state;
    refuse(small_window, "window of 9");
    refuse(huge_window, "window of 4294967295");
    refuse(no_panics, "min_panics");
    refuse(nan_level, "absolute nan");
    refuse(negative, "sensitivity -1");
    refuse(endless, "random_guess_loss inf");
    refuse(no_size, "esper_governor_options_init");
    refuse(too_large, "esper_governor_options_init");
    check_refused(esper_governor_open(NULL, NULL), "governor");
    check_refused(esper_governor_check(NULL, 1.0, NULL), "NULL");
    check_refused(esper_governor_scan(NULL, 0, NULL), "NULL");
    check_refused(esper_governor_rolled_back(NULL, 0, 0), "NULL");
    check_refused(esper_governor_snapshot(NULL, 0), "NULL");
    esper_governor_close(NULL);
}

/* Ten is enough; a program that knows fewer options gets defaults for the rest; outputs may be left out. */
static void good_options(void **state)
{
    esper_governor_options options;
    esper_governor *governor;

    (void)state;
    esper_governor_options_init(&options);
    options.window = 10;
    esper_governor_close(open_with(&options));
    options.size = offsetof(esper_governor_options, window);
    options.window = 1; /* not looked at */
    governor = open_with(&options);
    for (int i = 0; i < 30; i++)
        check_good(esper_governor_check(governor, 1.0, NULL));
    assert_int_equal(check(governor, 1.0).history_count, 20);
    check_good(esper_governor_scan(governor, 0, NULL));
    esper_governor_close(governor);
    esper_governor_close(open_with(NULL));
}

static void out_of_memory(void **state)
{
    esper_mem_stats before, after;

    (void)state;
    esper_mem_stats_get(&before);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        esper_governor *governor = NULL;

        esper_mem_fail_at(nth);
        assert_int_equal(esper_governor_open(NULL, &governor), ESPER_E_NOMEM);
        assert_null(governor);
    }
    esper_mem_fail_at(0);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_live, before.n_live);
}

/* Nothing to write to, or nobody to ask: no crash, and nobody is told to go on. */
static void nothing_is_no_crash(void **state)
{
    esper_governor *governor = open_plain();
    esper_governor_reading reading = {.action = GO};

    (void)state;
    esper_governor_options_init(NULL);
    esper_governor_reading_get(governor, NULL);
    esper_governor_reading_get(NULL, NULL);
    esper_governor_reading_get(NULL, &reading);
    assert_int_equal(reading.action, ESPER_GOVERNOR_STOP);
    assert_int_equal(reading.faulted, 1);
    esper_governor_close(governor);
}

static void reasons_and_actions_have_names(void **state)
{
    (void)state;
    assert_string_equal(esper_governor_action_name(ESPER_GOVERNOR_GO), "go");
    assert_string_equal(esper_governor_action_name(ESPER_GOVERNOR_ROLL_BACK), "roll_back");
    assert_string_equal(esper_governor_action_name(ESPER_GOVERNOR_STOP), "stop");
    assert_string_equal(esper_governor_action_name((esper_governor_action)5), "unknown");
    assert_string_equal(esper_governor_reason_name(ESPER_GOVERNOR_NONE), "none");
    assert_string_equal(esper_governor_reason_name(ESPER_GOVERNOR_LOBOTOMY), "governor_lobotomy");
    assert_string_equal(esper_governor_reason_name(ESPER_GOVERNOR_SCAN), "governor_scan");
    assert_string_equal(esper_governor_reason_name((esper_governor_reason)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_verdicts),
        cmocka_unit_test(vital_signs),
        cmocka_unit_test(anomalies_in_a_row),
        cmocka_unit_test(forgets_losses),
        cmocka_unit_test(panics_leave_counter_and_history),
        cmocka_unit_test(history_is_a_window),
        cmocka_unit_test(ten_skips_then_a_rollback),
        cmocka_unit_test(bad_state_rolls_back),
        cmocka_unit_test(second_panic_prunes),
        cmocka_unit_test(stop_sticks),
        cmocka_unit_test(failed_rollback_faults),
        cmocka_unit_test(limits_of_zero),
        cmocka_unit_test(worse_answer_counts),
        cmocka_unit_test(memory_round_trip),
        cmocka_unit_test(wrong_memory_is_refused),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(good_options),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(reasons_and_actions_have_names),
        cmocka_unit_test(a_bad_loss_asks_until_it_was_done),
        cmocka_unit_test(pending_whenever_it_is_not_go),
        cmocka_unit_test(a_rollback_nobody_asked_for),
        cmocka_unit_test(nothing_is_no_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
