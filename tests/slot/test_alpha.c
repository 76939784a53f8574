/* ctest: timeout=60 labels=golden */
/* The ramp of alpha: recorded sequences row by row, what holds for every ramp and curve, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "slot/alpha.h"
#include "slot/recorded.h"

/* --------------------------------------------------------------------------------------------------------- recorded */

static int curve_of(const json_t *value)
{
    const char *name = json_string_value(value);
    char small[16];
    size_t i = 0;

    if (name == NULL)
        return 0;
    for (; name[i] != '\0' && i < 15; i++)
        small[i] = (char)(name[i] - 'A' + 'a');
    small[i] = '\0';
    for (int code = 0; code < 16; code++)
        if (esper_alpha_curve_name(code) != NULL && strcmp(esper_alpha_curve_name(code), small) == 0)
            return code;
    return -1;
}

/* Columns from `first` of a row. */
static void check_row(const json_t *line, int at, const json_t *row, size_t first, const esper_alpha *alpha)
{
    double ours[] = {alpha->value,   (double)alpha->mode,    alpha->start,          alpha->target,
                     alpha->n_steps, (double)alpha->n_done, (double)alpha->curve, alpha->steepness};
    static const char *const names[] = {"alpha", "mode", "start", "target", "steps", "done", "curve", "steepness"};

    for (size_t i = 0; i < 8; i++)
        if (!recorded_is_near(ours[i], recorded_number(json_array_get(row, first + i))))
            fail_msg("case %d, row %d: %s is %.17g, recorded %.17g", recorded_int(json_object_get(line, "case")), at,
                     names[i], ours[i], recorded_number(json_array_get(row, first + i)));
}

static void take_field(const json_t *init, const char *key, double *value)
{
    if (json_object_get(init, key) != NULL)
        *value = recorded_number(json_object_get(init, key));
}

/* A controller as recorded, brought into range. */
static esper_alpha begin(const json_t *init)
{
    double steps = 0.0, done = 0.0;
    esper_alpha alpha;

    esper_alpha_init(&alpha);
    take_field(init, "alpha", &alpha.value);
    take_field(init, "alpha_steepness", &alpha.steepness);
    take_field(init, "alpha_steps_total", &steps);
    take_field(init, "alpha_steps_done", &done);
    alpha.value = fmin(fmax(alpha.value, 0.0), 1.0);
    alpha.steepness = fmax(alpha.steepness, 0.1);
    alpha.n_steps = (int32_t)fmax(steps, 0.0);
    alpha.n_done = (int32_t)fmin(fmax(done, 0.0), alpha.n_steps);
    return alpha;
}

/* One operation in the words of the record. */
static const char *run(const json_t *op, esper_alpha *alpha)
{
    esper_alpha_ramp ramp = {0};
    double steepness;
    esper_status status;

    if (strcmp(json_string_value(json_array_get(op, 0)), "tick") == 0)
        return esper_alpha_step(alpha) ? "reached" : "not_reached";
    steepness = recorded_number(json_array_get(op, 4));
    ramp.n_steps = recorded_int(json_array_get(op, 2));
    ramp.curve = curve_of(json_array_get(op, 3));
    ramp.steepness = isnan(steepness) ? 0.0 : steepness;
    status = esper_alpha_retarget(alpha, recorded_number(json_array_get(op, 1)), &ramp);
    return status == ESPER_OK ? "ok" : status == ESPER_E_STATE ? "refused" : "argument";
}

/* The phantom of a ramp that is none: "0 of N", at rest. Ours has no steps left; N is taken over. */
static void take_phantom(const json_t *line, const json_t *row, esper_alpha *alpha)
{
    int steps = recorded_int(json_array_get(row, 5)), done = recorded_int(json_array_get(row, 6));

    if (strcmp(json_string_value(json_array_get(row, 0)), "ok") != 0 || recorded_int(json_array_get(row, 2)) != 0 ||
        steps == 0 || done != 0)
        return;
    assert_int_equal(alpha->n_steps, 0);
    assert_int_equal(alpha->n_done, 0);
    difference_met(DIFFERENCE_RAMP_PHANTOM, line);
    alpha->n_steps = steps;
}

static void check_case(const json_t *line)
{
    const json_t *ops = json_object_get(json_object_get(line, "in"), "ops");
    const json_t *out = json_object_get(line, "out"), *rows = json_object_get(out, "after");
    esper_alpha alpha = begin(json_object_get(json_object_get(line, "in"), "init"));

    check_row(line, -1, json_object_get(out, "initial"), 0, &alpha);
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *row = json_array_get(rows, i);
        esper_alpha before = alpha;
        const char *result = run(json_array_get(ops, i), &alpha);

        if (strcmp(result, "argument") == 0) { /* not finite: what was recorded has gone on with a clamped one */
            assert_false(isfinite(recorded_number(json_array_get(json_array_get(ops, i), 1))));
            assert_memory_equal(&before, &alpha, sizeof(alpha));
            difference_met(DIFFERENCE_RAMP_NOT_FINITE, line);
            return;
        }
        if (strcmp(result, json_string_value(json_array_get(row, 0))) != 0)
            fail_msg("case %d, row %zu: %s, recorded %s", recorded_int(json_object_get(line, "case")), i, result,
                     json_string_value(json_array_get(row, 0)));
        take_phantom(line, row, &alpha);
        check_row(line, (int)i, row, 1, &alpha);
    }
}

static void test_recorded(void **state)
{
    (void)state;
    golden_each_case("alpha_ramp", check_case);
    difference_say("alpha_ramp");
}

/* ------------------------------------------------------------------------------------------------------- properties */

static const double steepnesses[] = {0.1, 1.0, 6.0, 12.0, 24.0, 200.0, 1e4};
enum { N_STEEPNESSES = sizeof(steepnesses) / sizeof(steepnesses[0]) };

/* Within its ends, never turning back, exactly there after so many steps and not before. */
static void check_ramp(double start, double target, int steps, int curve, double steepness)
{
    esper_alpha alpha;
    esper_alpha_ramp ramp = {steps, curve, steepness};
    double last = start;

    esper_alpha_init(&alpha);
    alpha.value = start;
    assert_int_equal(esper_alpha_retarget(&alpha, target, &ramp), ESPER_OK);
    for (int i = 1; i <= steps && target != start; i++) {
        bool reached = esper_alpha_step(&alpha);

        if (reached != (i == steps) || alpha.value < fmin(start, target) || alpha.value > fmax(start, target) ||
            (target > start ? alpha.value < last : alpha.value > last))
            fail_msg("%g to %g in %d steps, curve %d, steepness %g: %.17g after %.17g at step %d", start, target, steps,
                     curve, steepness, alpha.value, last, i);
        last = alpha.value;
    }
    assert_true(alpha.value == target && alpha.mode == ESPER_ALPHA_HOLD && esper_alpha_is_at_target(&alpha));
    assert_int_equal(alpha.n_steps, target == start ? 0 : steps);
    assert_false(esper_alpha_step(&alpha));
    assert_true(alpha.value == target);
}

static void test_every_ramp_arrives(void **state)
{
    static const double ends[] = {0.0, 1e-7, 0.1, 0.3, 0.5, 0.7, 1.0 - 1e-7, 1.0};

    (void)state;
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 8; b++)
            for (int steps = 0; steps <= 25; steps++)
                for (int curve = ESPER_CURVE_LINEAR; curve <= ESPER_CURVE_SIGMOID; curve++)
                    for (int k = 0; k < N_STEEPNESSES; k++)
                        check_ramp(ends[a], ends[b], steps, curve, steepnesses[k]);
}

static void test_curves(void **state)
{
    double last_quarter = 1.0;

    (void)state;
    for (int k = 0; k < N_STEEPNESSES; k++) {
        double quarter = esper_alpha_progress(ESPER_CURVE_SIGMOID, steepnesses[k], 0.25);

        assert_true(quarter < last_quarter);
        last_quarter = quarter;
        for (int curve = ESPER_CURVE_LINEAR; curve <= ESPER_CURVE_SIGMOID; curve++) {
            double last = 0.0;

            assert_true(esper_alpha_progress(curve, steepnesses[k], 0.0) == 0.0);
            assert_true(esper_alpha_progress(curve, steepnesses[k], 1.0) == 1.0);
            assert_true(fabs(esper_alpha_progress(curve, steepnesses[k], 0.5) - 0.5) < 1e-15);
            for (int i = 0; i <= 1000; i++) {
                double way = esper_alpha_progress(curve, steepnesses[k], i / 1000.0);

                if (!(way >= last && way <= 1.0))
                    fail_msg("curve %d, steepness %g: %.17g at %d/1000 after %.17g", curve, steepnesses[k], way, i,
                             last);
                last = way;
            }
        }
    }
}

/* Interior ticks as the specification prints them. */
static void test_table_of_progress(void **state)
{
    static const struct {
        int    ticks, at, curve;
        double steepness, way;
    } rows[] = {
        {3, 1, ESPER_CURVE_COSINE, 12, .25},          {3, 1, ESPER_CURVE_SIGMOID, 6, .244728471},
        {3, 1, ESPER_CURVE_SIGMOID, 12, .117310428},  {3, 2, ESPER_CURVE_SIGMOID, 24, .982019713},
        {5, 1, ESPER_CURVE_COSINE, 12, .095491503},   {5, 2, ESPER_CURVE_SIGMOID, 6, .339080167},
        {5, 3, ESPER_CURVE_SIGMOID, 12, .769859304},  {5, 1, ESPER_CURVE_SIGMOID, 24, .000739894},
        {8, 3, ESPER_CURVE_SIGMOID, 12, .180847235},  {8, 7, ESPER_CURVE_SIGMOID, 12, .991443366},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double way = esper_alpha_progress(rows[i].curve, rows[i].steepness, (double)rows[i].at / rows[i].ticks);

        if (fabs(way - rows[i].way) > 5.1e-10)
            fail_msg("row %zu: %.12f, expected %.9f", i, way, rows[i].way);
    }
}

static void test_only_from_rest(void **state)
{
    esper_alpha alpha, before;
    esper_alpha_ramp ramp = {5, ESPER_CURVE_LINEAR, 0.0};

    (void)state;
    esper_alpha_init(&alpha);
    assert_int_equal(esper_alpha_retarget(&alpha, 1.0, &ramp), ESPER_OK);
    for (int i = 0; i < 5; i++) {
        before = alpha;
        assert_int_equal(esper_alpha_retarget(&alpha, 0.5, &ramp), ESPER_E_STATE);
        assert_memory_equal(&before, &alpha, sizeof(alpha));
        esper_alpha_step(&alpha);
    }
    assert_int_equal(esper_alpha_retarget(&alpha, 0.5, &ramp), ESPER_OK); /* and down */
    for (int i = 0; i < 5; i++) {
        before = alpha;
        assert_int_equal(esper_alpha_retarget(&alpha, i % 2 == 0 ? 1.0 : 0.5, &ramp), ESPER_E_STATE);
        assert_memory_equal(&before, &alpha, sizeof(alpha));
        esper_alpha_step(&alpha);
    }
    assert_int_equal(esper_alpha_retarget(&alpha, 0.5, &ramp), ESPER_OK);
}

static void test_not_finite(void **state)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    esper_alpha alpha, before;
    esper_alpha_ramp ramp = {3, 0, 0.0}, steep = {3, 0, 0.0}, no_curve = {3, 4, 0.0};

    (void)state;
    esper_alpha_init(&alpha);
    before = alpha;
    for (int i = 0; i < 3; i++) {
        steep.steepness = bad[i];
        assert_int_equal(esper_alpha_retarget(&alpha, bad[i], &ramp), ESPER_E_ARG);
        assert_int_equal(esper_alpha_retarget(&alpha, 0.5, &steep), ESPER_E_ARG);
    }
    assert_int_equal(esper_alpha_retarget(&alpha, 0.5, &no_curve), ESPER_E_ARG);
    assert_memory_equal(&before, &alpha, sizeof(alpha));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),       cmocka_unit_test(test_every_ramp_arrives),
        cmocka_unit_test(test_curves),         cmocka_unit_test(test_table_of_progress),
        cmocka_unit_test(test_only_from_rest), cmocka_unit_test(test_not_finite),
    };

    return cmocka_run_group_tests_name("slot/alpha", tests, NULL, NULL);
}
