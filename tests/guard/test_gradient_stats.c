/* ctest: timeout=60 labels=golden */
/* Recorded gradient statistics: every number of a set of gradients, and the activity of a seed against its host. A few
 * lines are here for those who do not have the whole record.
 *
 * Compared within 1e-12, as float64 arithmetic is, but for the differences on purpose (support/difference.h). The slot's
 * own float32 ratio is not computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include <stdbool.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "esper.h"
#include "support/difference.h"
#include "support/golden.h"

enum { MAX_TENSORS = 64, MAX_ELEMENTS = 4096 };

static const char *const some_lines[] = {
    "{\"case\":194,\"kind\":\"set\",\"in\":{\"grads\":[[2.2028896484727056e-09],[-1.753584898256076e-41,-"
    "1.032406643591309e-40,3.528329403323457e-41,-8.374299752651539e-41,0.0],null]},\"out\":{\"basic\":{"
    "\"gradient_norm\":2.2028896484727056e-09,\"gradient_health\":0.5,\"has_vanishing\":true,\"has_explod"
    "ing\":false},\"full\":{\"gradient_norm\":2.2028896484727056e-09,\"gradient_health\":0.5,\"has_vanish"
    "ing\":true,\"has_exploding\":false,\"min_layer_norm\":1.3865042823379792e-40,\"max_layer_norm\":2.20"
    "28896484727056e-09,\"norm_ratio\":22.028896484727056,\"zero_grad_fraction\":0.16666666666666666,\"na"
    "n_count\":0,\"inf_count\":0},\"is_healthy\":true}}",
    "{\"case\":179,\"kind\":\"set\",\"touches\":[\"safety 2.2\"],\"in\":{\"grads\":[[\"nan\"]]},\"out\":{"
    "\"basic\":{\"gradient_norm\":\"nan\",\"gradient_health\":0.0,\"has_vanishing\":false,\"has_exploding"
    "\":true},\"full\":{\"gradient_norm\":\"nan\",\"gradient_health\":0.0,\"has_vanishing\":false,\"has_e"
    "xploding\":true,\"min_layer_norm\":\"nan\",\"max_layer_norm\":\"nan\",\"norm_ratio\":\"nan\",\"zero_"
    "grad_fraction\":0.0,\"nan_count\":1,\"inf_count\":0},\"is_healthy\":false}}",
    "{\"case\":43,\"kind\":\"set\",\"touches\":[\"safety 2.2\"],\"in\":{\"grads\":[[0.0,0.0,\"-inf\",0.0,"
    "0.0]]},\"out\":{\"basic\":{\"gradient_norm\":\"inf\",\"gradient_health\":0.0,\"has_vanishing\":false"
    ",\"has_exploding\":true},\"full\":{\"gradient_norm\":\"inf\",\"gradient_health\":0.0,\"has_vanishing"
    "\":false,\"has_exploding\":true,\"min_layer_norm\":\"inf\",\"max_layer_norm\":\"inf\",\"norm_ratio\""
    ":\"nan\",\"zero_grad_fraction\":0.8,\"nan_count\":0,\"inf_count\":1},\"is_healthy\":false}}",
    "{\"case\":12,\"kind\":\"set\",\"in\":{\"grads\":[[-6.92108093058863e-10,7.594056494752977e-10],[10.0"
    "00000953674316]]},\"out\":{\"basic\":{\"gradient_norm\":10.000000953674316,\"gradient_health\":0.35,"
    "\"has_vanishing\":true,\"has_exploding\":true},\"full\":{\"gradient_norm\":10.000000953674316,\"grad"
    "ient_health\":0.35,\"has_vanishing\":true,\"has_exploding\":true,\"min_layer_norm\":1.02747776274359"
    "06e-09,\"max_layer_norm\":10.000000953674316,\"norm_ratio\":9732571658.750185,\"zero_grad_fraction\""
    ":0.0,\"nan_count\":0,\"inf_count\":0},\"is_healthy\":false}}",
    "{\"case\":9,\"kind\":\"set\",\"touches\":[\"lifecycle D18\"],\"in\":{\"grads\":[]},\"out\":{\"basic"
    "\":{\"gradient_norm\":0.0,\"gradient_health\":1.0,\"has_vanishing\":false,\"has_exploding\":false},"
    "\"full\":{\"gradient_norm\":0.0,\"gradient_health\":1.0,\"has_vanishing\":false,\"has_exploding\":fa"
    "lse,\"min_layer_norm\":0.0,\"max_layer_norm\":0.0,\"norm_ratio\":1.0,\"zero_grad_fraction\":0.0,\"na"
    "n_count\":0,\"inf_count\":0},\"is_healthy\":true}}",
    "{\"case\":143,\"kind\":\"set\",\"in\":{\"grads\":[[-5.935820395078956e+19]]},\"out\":{\"basic\":{\"g"
    "radient_norm\":5.935820395078956e+19,\"gradient_health\":0.19999999999999996,\"has_vanishing\":false"
    ",\"has_exploding\":true},\"full\":{\"gradient_norm\":5.935820395078956e+19,\"gradient_health\":0.199"
    "99999999999996,\"has_vanishing\":false,\"has_exploding\":true,\"min_layer_norm\":5.935820395078956e+"
    "19,\"max_layer_norm\":5.935820395078956e+19,\"norm_ratio\":1.0,\"zero_grad_fraction\":0.0,\"nan_coun"
    "t\":0,\"inf_count\":0},\"is_healthy\":false}}",
    "{\"case\":205,\"kind\":\"pair\",\"in\":{\"host\":[[-1.3598586320877075],[2.150051914284745e-09,-1.76"
    "65648111009347e-10,0.0],[0.0,0.583492636680603,1.4019060134887695]],\"seed\":[[2.7105095945501034e-1"
    "0],[0.5583711862564087,0.11161230504512787,0.18064875900745392,-0.4367525279521942,1.43345046043396]"
    "]},\"out\":{\"dual\":{\"host_norm\":2.0383865254116813,\"host_count\":7,\"seed_norm\":1.613196409492"
    "8966,\"seed_count\":6,\"ratio\":0.8548188611837069},\"slot\":{\"host_norm\":2.0383865580727902,\"see"
    "d_norm\":1.6131963453511091,\"ratio\":0.854818824593984,\"gradient_norm_avg\":0.1613196345351109,\"h"
    "ost_params\":7,\"seed_params\":6}}}",
    "{\"case\":211,\"kind\":\"pair\",\"in\":{\"host\":[[0.022729918360710144,0.7034607529640198]],\"seed"
    "\":[[0.0,0.0,0.0,0.0,0.0,0.0,0.0],[-7.560934066772461,18.06172752380371,-6.677902698516846,-50.99098"
    "9685058594]]},\"out\":{\"dual\":{\"host_norm\":0.7038278767918973,\"host_count\":2,\"seed_norm\":55."
    "02789418666518,\"seed_count\":11,\"ratio\":33.337657149586704},\"slot\":{\"host_norm\":0.70382786694"
    "36644,\"seed_norm\":55.027893761226906,\"ratio\":10.0,\"gradient_norm_avg\":5.502789376122689,\"host"
    "_params\":2,\"seed_params\":11}}}",
    "{\"case\":254,\"kind\":\"pair\",\"touches\":[\"lifecycle D3\"],\"in\":{\"host\":[],\"seed\":[[\"nan"
    "\",0.0,-1.6849025508136606e-09]]},\"out\":{\"dual\":{\"host_norm\":0.0,\"host_count\":0,\"seed_norm"
    "\":\"nan\",\"seed_count\":3,\"ratio\":0.0},\"slot\":{\"host_norm\":0.0,\"seed_norm\":\"nan\",\"ratio"
    "\":0.0,\"gradient_norm_avg\":\"nan\",\"host_params\":0,\"seed_params\":3}}}",
};

static esper_guard *guard;

/* The tensors of one recorded case. */
typedef struct gradients {
    esper_guard_tensor tensors[MAX_TENSORS];
    char               names[MAX_TENSORS][24];
    float              elements[MAX_ELEMENTS];
    size_t             n_tensors, n_elements;
} gradients;

static double number_of(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text == NULL)
        return json_number_value(value);
    return strcmp(text, "nan") == 0 ? (double)NAN : strcmp(text, "inf") == 0 ? (double)INFINITY : -(double)INFINITY;
}

/* Adds the recorded list of tensors to a group; null is a parameter without gradient, which is not registered. */
static size_t take_group(gradients *grads, const json_t *list, const char *group)
{
    size_t before = grads->n_tensors;

    for (size_t t = 0; t < json_array_size(list); t++) {
        const json_t *values = json_array_get(list, t);
        size_t n = grads->n_tensors;

        if (json_is_null(values))
            continue;
        assert_true(n < MAX_TENSORS && grads->n_elements + json_array_size(values) <= MAX_ELEMENTS);
        snprintf(grads->names[n], sizeof(grads->names[n]), "%s %zu", group, t);
        grads->tensors[n] = (esper_guard_tensor){.name = grads->names[n],
                                                 .group = group,
                                                 .role = ESPER_GUARD_ROLE_GRAD,
                                                 .dtype = ESPER_GUARD_F32,
                                                 .device = ESPER_GUARD_HOST,
                                                 .data = grads->elements + grads->n_elements,
                                                 .count = json_array_size(values)};
        for (size_t i = 0; i < json_array_size(values); i++)
            grads->elements[grads->n_elements++] = (float)number_of(json_array_get(values, i));
        grads->n_tensors++;
    }
    return grads->n_tensors - before;
}

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void expect_number(long case_number, const char *what, double got, double want)
{
    if (isnan(want) ? !isnan(got) : isinf(want) ? got != want : !(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("case %ld: %s is %.17g, recorded %.17g", case_number, what, got, want);
}

static double recorded(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    assert_non_null(value);
    return json_is_boolean(value) ? json_is_true(value) : number_of(value);
}

static const esper_guard_report *scan(const gradients *grads)
{
    const esper_guard_report *report;

    check_good(esper_guard_add(guard, grads->tensors, grads->n_tensors));
    check_good(esper_guard_launch(guard, NULL));
    check_good(esper_guard_read(guard, &report));
    return report;
}

/* min, max and ratio over finite norms, where the record has something else. */
static void check_finite_norms(long number, const esper_guard_report *report, const esper_guard_group *group)
{
    double min = (double)INFINITY, max = 0.0;

    for (size_t i = 0; i < report->n_tensors; i++)
        if (isfinite(report->stats[i].norm)) {
            min = fmin(min, report->stats[i].norm);
            max = fmax(max, report->stats[i].norm);
        }
    min = isinf(min) ? 0.0 : min;
    assert_int_equal(group->norm_not_finite, 1);
    expect_number(number, "min_norm", group->min_norm, min);
    expect_number(number, "max_norm", group->max_norm, max);
    expect_number(number, "norm_ratio", group->norm_ratio, max / fmax(min, 1e-10));
}

static void check_set(const json_t *line, gradients *grads)
{
    const json_t *in = json_object_get(line, "in"), *out = json_object_get(line, "out");
    long number = (long)json_integer_value(json_object_get(line, "case"));
    const json_t *full = json_object_get(out, "full");
    const esper_guard_report *report;
    const esper_guard_group *group;

    if (take_group(grads, json_object_get(in, "grads"), "set") == 0) {
        grads->tensors[grads->n_tensors++] =
            (esper_guard_tensor){.name = "w", .group = "set", .device = ESPER_GUARD_HOST};
        report = scan(grads); /* of a parameter alone */
        assert_int_equal(report->n_groups, 1);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_GRAD].measured, 0);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_GRAD].is_healthy, 0);
        difference_met(DIFFERENCE_UNMEASURED, line);
        return;
    }
    report = scan(grads);
    assert_int_equal(report->n_groups, 1);
    group = &report->groups[0];
    assert_int_equal(group->measured, 1);
    expect_number(number, "norm", group->norm, recorded(full, "gradient_norm"));
    expect_number(number, "grad_norm", report->grad_norm, recorded(full, "gradient_norm"));
    expect_number(number, "health", group->health, recorded(full, "gradient_health"));
    expect_number(number, "vanishing", group->n_vanishing > 0, recorded(full, "has_vanishing"));
    expect_number(number, "exploding", group->n_exploding > 0, recorded(full, "has_exploding"));
    expect_number(number, "zero_fraction", group->zero_fraction, recorded(full, "zero_grad_fraction"));
    expect_number(number, "n_nan", (double)group->n_nan, recorded(full, "nan_count"));
    expect_number(number, "n_inf", (double)group->n_inf, recorded(full, "inf_count"));
    expect_number(number, "is_healthy", group->is_healthy, recorded(out, "is_healthy"));
    if (group->norm_not_finite) {
        check_finite_norms(number, report, group);
        difference_met(DIFFERENCE_FINITE_NORMS, line);
        return;
    }
    expect_number(number, "min_norm", group->min_norm, recorded(full, "min_layer_norm"));
    expect_number(number, "max_norm", group->max_norm, recorded(full, "max_layer_norm"));
    expect_number(number, "norm_ratio", group->norm_ratio, recorded(full, "norm_ratio"));
}

/* A side without any gradient has one empty tensor here: measured, with nothing in it. */
static void take_side(gradients *grads, const json_t *list, const char *group)
{
    if (take_group(grads, list, group) == 0)
        grads->tensors[grads->n_tensors++] = (esper_guard_tensor){
            .name = group, .group = group, .role = ESPER_GUARD_ROLE_GRAD, .device = ESPER_GUARD_HOST};
}

static void check_pair(const json_t *line, gradients *grads)
{
    const json_t *in = json_object_get(line, "in"), *dual = json_object_get(json_object_get(line, "out"), "dual");
    long number = (long)json_integer_value(json_object_get(line, "case"));
    double host_norm = recorded(dual, "host_norm"), seed_norm = recorded(dual, "seed_norm");
    double ratio = recorded(dual, "ratio");
    const esper_guard_report *report;

    take_side(grads, json_object_get(in, "host"), "host");
    take_side(grads, json_object_get(in, "seed"), "seed");
    report = scan(grads);
    assert_int_equal(report->n_groups, 2);
    expect_number(number, "host norm", report->groups[0].norm, host_norm);
    expect_number(number, "seed norm", report->groups[1].norm, seed_norm);
    expect_number(number, "host count", (double)report->groups[0].n_elements, recorded(dual, "host_count"));
    expect_number(number, "seed count", (double)report->groups[1].n_elements, recorded(dual, "seed_count"));
    if (!isfinite(host_norm) || !isfinite(seed_norm)) {
        ratio = (double)NAN;
        difference_met(DIFFERENCE_RATIO_NOT_FINITE, line);
    } else if (ratio > 10.0) {
        ratio = 10.0;
        difference_met(DIFFERENCE_RATIO_CAP, line);
    }
    expect_number(number, "ratio", esper_guard_ratio(&report->groups[1], &report->groups[0]), ratio);
}

static void check_line(const json_t *line)
{
    gradients *grads = esper_mem_alloc(sizeof(*grads));

    assert_non_null(grads);
    check_good(esper_guard_clear(guard));
    if (strcmp(json_string_value(json_object_get(line, "kind")), "set") == 0)
        check_set(line, grads);
    else
        check_pair(line, grads);
    esper_mem_free(grads);
}

static int open_guard(void **state)
{
    esper_guard_options options;

    (void)state;
    esper_guard_options_init(&options);
    options.n_threads = 1;
    check_good(esper_guard_open(&options, &guard));
    return 0;
}

static int close_guard(void **state)
{
    (void)state;
    esper_guard_close(guard);
    return 0;
}

static void lines_that_are_here(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(some_lines) / sizeof(some_lines[0]); i++) {
        json_error_t error;
        json_t *line = json_loads(some_lines[i], 0, &error);

        if (line == NULL)
            fail_msg("%s: %s", some_lines[i], error.text);
        check_line(line);
        json_decref(line);
    }
}

static void whole_record(void **state)
{
    (void)state;
    golden_each_case("gradient_stats", check_line);
    difference_say("gradient_stats");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_that_are_here),
        cmocka_unit_test(whole_record),
    };

    return cmocka_run_group_tests(tests, open_guard, close_guard);
}
