/* ctest: timeout=60 */
/* Recorded gradient statistics: every number of a set of gradients, and the activity of a seed against its host. The
 * whole record lies in ../shared/golden beside the source tree; a few of its lines are here for those who do not have
 * it.
 *
 * Compared within 1e-12, as float64 arithmetic is. Answered otherwise than recorded, on purpose:
 *   - a set without any gradient is unmeasured, neither healthy nor ill (recorded: norm 0, health 1);
 *   - smallest and largest norm, and their ratio, are over finite norms (recorded: NaN or Inf where one is not);
 *   - a ratio is at most 10, and NaN where a norm is not finite; the slot's own float32 ratio is not computed. */
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

enum { MAX_TENSORS = 64, MAX_ELEMENTS = 4096, LINE_CHARS = 1 << 16 };

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

static const esper_guard_report *scan(esper_guard *guard, const gradients *grads)
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

static void check_set(esper_guard *guard, long number, gradients *grads, const json_t *in, const json_t *out)
{
    const json_t *full = json_object_get(out, "full");
    const esper_guard_report *report;
    const esper_guard_group *group;

    if (take_group(grads, json_object_get(in, "grads"), "set") == 0) {
        grads->tensors[grads->n_tensors++] =
            (esper_guard_tensor){.name = "w", .group = "set", .device = ESPER_GUARD_HOST};
        report = scan(guard, grads); /* of a parameter alone */
        assert_int_equal(report->n_groups, 1);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_GRAD].measured, 0);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_GRAD].is_healthy, 0);
        return;
    }
    report = scan(guard, grads);
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

static void check_pair(esper_guard *guard, long number, gradients *grads, const json_t *in, const json_t *out)
{
    const json_t *dual = json_object_get(out, "dual");
    double host_norm = recorded(dual, "host_norm"), seed_norm = recorded(dual, "seed_norm");
    const esper_guard_report *report;

    take_side(grads, json_object_get(in, "host"), "host");
    take_side(grads, json_object_get(in, "seed"), "seed");
    report = scan(guard, grads);
    assert_int_equal(report->n_groups, 2);
    expect_number(number, "host norm", report->groups[0].norm, host_norm);
    expect_number(number, "seed norm", report->groups[1].norm, seed_norm);
    expect_number(number, "host count", (double)report->groups[0].n_elements, recorded(dual, "host_count"));
    expect_number(number, "seed count", (double)report->groups[1].n_elements, recorded(dual, "seed_count"));
    expect_number(number, "ratio", esper_guard_ratio(&report->groups[1], &report->groups[0]),
                  isfinite(host_norm) && isfinite(seed_norm) ? fmin(recorded(dual, "ratio"), 10.0) : (double)NAN);
}

/* Checks a line of the record; false for the one that tells about it. */
static bool check_line(esper_guard *guard, const char *line)
{
    json_error_t error;
    json_t *root = json_loads(line, 0, &error);
    gradients *grads = esper_mem_alloc(sizeof(*grads));
    const json_t *in = json_object_get(root, "in"), *out = json_object_get(root, "out");
    const char *kind = json_string_value(json_object_get(root, "kind"));
    long number = (long)json_integer_value(json_object_get(root, "case"));

    if (root == NULL)
        fail_msg("%s: %s", line, error.text);
    check_good(esper_guard_clear(guard));
    if (kind != NULL && strcmp(kind, "set") == 0)
        check_set(guard, number, grads, in, out);
    else if (kind != NULL)
        check_pair(guard, number, grads, in, out);
    esper_mem_free(grads);
    json_decref(root);
    return kind != NULL;
}

static esper_guard *open_guard(void)
{
    esper_guard_options options;
    esper_guard *guard;

    esper_guard_options_init(&options);
    options.n_threads = 1;
    check_good(esper_guard_open(&options, &guard));
    return guard;
}

static void lines_that_are_here(void **state)
{
    esper_guard *guard = open_guard();

    (void)state;
    for (size_t i = 0; i < sizeof(some_lines) / sizeof(some_lines[0]); i++)
        assert_true(check_line(guard, some_lines[i]));
    esper_guard_close(guard);
}

static void whole_record(void **state)
{
    static char line[LINE_CHARS];
    FILE *file = fopen(ESPER_SOURCE_DIR "/../shared/golden/gradient_stats.jsonl", "r");
    esper_guard *guard;
    int n_cases = 0;

    (void)state;
    if (file == NULL) {
        printf("../shared/golden/gradient_stats.jsonl absent: skipped\n");
        skip();
    }
    guard = open_guard();
    while (fgets(line, sizeof(line), file) != NULL)
        n_cases += check_line(guard, line);
    fclose(file);
    esper_guard_close(guard);
    printf("gradient_stats.jsonl: %d cases\n", n_cases);
    assert_int_equal(n_cases, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_that_are_here),
        cmocka_unit_test(whole_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
