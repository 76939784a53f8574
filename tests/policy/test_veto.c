/* Vetoes before an operation: every recorded one, and each rule by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "slot/preflight.h"
#include "slot/recorded.h"

static int find_loud(const char *loud, const char *(*name_of)(int code), int end)
{
    char ours[32];

    for (int code = 0; code < end; code++)
        if (name_of(code) != NULL && strcmp(recorded_name(name_of(code), ours), loud) == 0)
            return code;
    fail_msg("nothing is called %s", loud);
    return -1;
}

static void check_case(const json_t *line)
{
    const json_t *in = json_object_get(line, "in"), *out = json_object_get(line, "out");
    const char *stage = json_string_value(json_object_get(in, "seed_stage"));
    const char *factor = json_string_value(json_object_get(out, "blocked_factor"));
    esper_preflight flight = {
        .op = (esper_slot_op)find_loud(json_string_value(json_object_get(in, "operation")), esper_slot_op_name,
                                       ESPER_N_SLOT_OPS),
        .stage = stage != NULL ? find_loud(stage, esper_stage_name, ESPER_STAGE_CODES) : ESPER_STAGE_DORMANT,
        .has_blueprint = !json_is_null(json_object_get(in, "blueprint_id")),
        .has_target = !json_is_null(json_object_get(in, "alpha_target")),
        .has_speed = !json_is_null(json_object_get(in, "alpha_speed_steps")),
        .has_curve = !json_is_null(json_object_get(in, "alpha_curve")),
        .loss = recorded_number(json_object_get(in, "val_loss")),
        .accuracy = recorded_number(json_object_get(in, "val_accuracy")),
        .n_seeds = recorded_int(json_object_get(in, "active_seed_count")),
        .max_seeds = recorded_int(json_object_get(in, "max_seeds")),
        .cooldown = recorded_int(json_object_get(in, "cooldown_epochs_remaining")),
    };
    esper_veto veto = esper_preflight_check(&flight);

    if (strcmp(esper_veto_name(veto), factor != NULL ? factor : "none") != 0 ||
        (veto == ESPER_VETO_NONE) != json_is_true(json_object_get(out, "approved")))
        fail_msg("case %d: %s, recorded %s", recorded_int(json_object_get(line, "case")), esper_veto_name(veto),
                 factor != NULL ? factor : "approved");
}

static void test_recorded(void **state)
{
    (void)state;
    if (recorded_each("preflight", check_case) < 0)
        skip();
}

static void expect(esper_preflight flight, esper_veto veto)
{
    assert_string_equal(esper_veto_name(esper_preflight_check(&flight)), esper_veto_name(veto));
}

static void test_each_rule(void **state)
{
    const esper_preflight good = {
        ESPER_SLOT_OP_GERMINATE, ESPER_STAGE_DORMANT, true, true, true, true, 0.5, 60.0, 2, 2, 0};
    esper_preflight flight = good;

    (void)state;
    expect(good, ESPER_VETO_NONE);
    flight.cooldown = 3;
    expect(flight, ESPER_VETO_NONE);
    flight.stage = ESPER_STAGE_EMBARGOED;
    expect(flight, ESPER_VETO_OCCUPIED);
    flight.has_blueprint = false;
    expect(flight, ESPER_VETO_BLUEPRINT);
    flight.n_seeds = 3;
    expect(flight, ESPER_VETO_CAPACITY);
    flight.cooldown = -1;
    expect(flight, ESPER_VETO_COOLDOWN);
    flight.accuracy = -(double)INFINITY;
    expect(flight, ESPER_VETO_ACCURACY);
    flight.loss = (double)NAN;
    expect(flight, ESPER_VETO_LOSS);
    flight = good;
    flight.op = ESPER_SLOT_OP_PRUNE;
    flight.has_target = false;
    expect(flight, ESPER_VETO_NONE);
    flight.has_curve = false;
    expect(flight, ESPER_VETO_SCHEDULE);
    flight.op = ESPER_SLOT_OP_SET_ALPHA_TARGET;
    expect(flight, ESPER_VETO_TARGET);
    flight.has_target = true;
    expect(flight, ESPER_VETO_SCHEDULE);
    flight.op = ESPER_SLOT_OP_ADVANCE;
    expect(flight, ESPER_VETO_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recorded), cmocka_unit_test(test_each_rule)};

    return cmocka_run_group_tests_name("slot/preflight", tests, NULL, NULL);
}
