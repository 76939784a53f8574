/* ctest: labels=golden */
/* Vetoes before an operation: every recorded one, and each rule by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "policy/mask.h"
#include "policy/veto.h"
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

enum { MOST_SEEDS = 16 };

/* A view of slot 0 in a stage, and so many further slots with seeds in them that there are n_seeds in all; and a decision. */
typedef struct request {
    esper_policy_slot slots[1 + MOST_SEEDS];
    esper_policy_view view;
    esper_decision    decision;
} request;

static void request_init(request *r, esper_slot_op op, int stage, int n_seeds)
{
    int n_others = n_seeds - esper_stage_has_seed(stage);

    assert_in_range(n_others, 0, MOST_SEEDS);
    *r = (request){0};
    for (int k = 0; k <= n_others; k++) {
        esper_policy_slot_init(&r->slots[k], ESPER_TOPOLOGY_CNN, "r0c0");
        r->slots[k].stage = k == 0 ? stage : ESPER_STAGE_FOSSILIZED;
    }
    r->view = (esper_policy_view){.topology = ESPER_TOPOLOGY_CNN,
                                  .loss_valid = 0.5,
                                  .accuracy_valid = 60.0,
                                  .slots = r->slots,
                                  .n_slots = n_others + 1};
    esper_decision_init(&r->decision, op);
    r->decision.slot = 0;
    r->decision.blueprint = 1;
}

/* The name a veto is recorded by. */
static const char *name_of(esper_veto veto)
{
    static const char *const names[] = {
#define X(name, text, about) text,
        ESPER_VETO_LIST(X)
#undef X
    };

    assert_true((size_t)veto < sizeof(names) / sizeof(names[0]));
    return names[veto];
}

static void check_case(const json_t *line)
{
    const json_t *in = json_object_get(line, "in"), *out = json_object_get(line, "out");
    const char *stage = json_string_value(json_object_get(in, "seed_stage"));
    const char *factor = json_string_value(json_object_get(out, "blocked_factor"));
    int op = find_loud(json_string_value(json_object_get(in, "operation")), esper_slot_op_name, ESPER_N_SLOT_OPS);
    int code = stage != NULL ? find_loud(stage, esper_stage_name, ESPER_STAGE_CODES) : ESPER_STAGE_DORMANT;
    int n_seeds = recorded_int(json_object_get(in, "active_seed_count")), max_seeds;
    esper_veto veto;
    request r;

    /* The recorder's count is given, ours is of the slots themselves: it is at least the seed that is asked about. What counts
     * is which of the two numbers is larger. */
    max_seeds = recorded_int(json_object_get(in, "max_seeds"));
    if (n_seeds == 0 && esper_stage_has_seed(code)) {
        n_seeds++;
        max_seeds += max_seeds > 0;
    }
    request_init(&r, (esper_slot_op)op, code, n_seeds);
    r.view.max_seeds = max_seeds;
    r.view.loss_valid = recorded_number(json_object_get(in, "val_loss"));
    r.view.accuracy_valid = recorded_number(json_object_get(in, "val_accuracy"));
    r.slots[0].cooldown_left = recorded_int(json_object_get(in, "cooldown_epochs_remaining"));
    if (json_is_null(json_object_get(in, "blueprint_id")))
        r.decision.blueprint = -1;
    if (json_is_null(json_object_get(in, "alpha_target")))
        r.decision.target = (double)NAN;
    if (json_is_null(json_object_get(in, "alpha_speed_steps")))
        r.decision.speed = -1;
    if (json_is_null(json_object_get(in, "alpha_curve")))
        r.decision.curve = -1;
    veto = esper_veto_of(&r.view, &r.decision);
    if (strcmp(name_of(veto), factor != NULL ? factor : "none") != 0 ||
        (veto == ESPER_VETO_NONE) != json_is_true(json_object_get(out, "approved")))
        fail_msg("case %d: %s, recorded %s", recorded_int(json_object_get(line, "case")), name_of(veto),
                 factor != NULL ? factor : "approved");
}

static void test_recorded(void **state)
{
    (void)state;
    golden_each_case("preflight", check_case);
}

static void expect(const request *r, esper_veto veto)
{
    assert_string_equal(name_of(esper_veto_of(&r->view, &r->decision)), name_of(veto));
    if (veto != ESPER_VETO_NONE)
        assert_int_equal(esper_mask_approve(&r->view, &r->decision), ESPER_E_STATE);
}

static void test_each_rule(void **state)
{
    request r;

    (void)state;
    request_init(&r, ESPER_SLOT_OP_GERMINATE, ESPER_STAGE_DORMANT, 2);
    r.view.max_seeds = 2;
    expect(&r, ESPER_VETO_NONE);
    r.slots[0].cooldown_left = 3;
    expect(&r, ESPER_VETO_NONE);
    r.slots[0].stage = ESPER_STAGE_EMBARGOED;
    expect(&r, ESPER_VETO_OCCUPIED);
    r.decision.blueprint = -1;
    expect(&r, ESPER_VETO_BLUEPRINT);
    r.view.max_seeds = 1;
    expect(&r, ESPER_VETO_CAPACITY);
    r.slots[0].cooldown_left = -1;
    expect(&r, ESPER_VETO_COOLDOWN);
    r.view.accuracy_valid = -(double)INFINITY;
    expect(&r, ESPER_VETO_ACCURACY);
    r.view.loss_valid = (double)NAN;
    expect(&r, ESPER_VETO_LOSS);
    request_init(&r, ESPER_SLOT_OP_PRUNE, ESPER_STAGE_HOLDING, 1);
    r.decision.target = (double)NAN;
    expect(&r, ESPER_VETO_NONE);
    r.decision.curve = -1;
    expect(&r, ESPER_VETO_SCHEDULE);
    r.decision.op = ESPER_SLOT_OP_SET_ALPHA_TARGET;
    expect(&r, ESPER_VETO_TARGET);
    r.decision.target = 0.5;
    expect(&r, ESPER_VETO_SCHEDULE);
    r.decision.op = ESPER_SLOT_OP_ADVANCE;
    expect(&r, ESPER_VETO_NONE);
}

/* A veto comes first; without one the preconditions speak; a wait is always right. */
static void test_approval(void **state)
{
    request r;

    (void)state;
    request_init(&r, ESPER_SLOT_OP_GERMINATE, ESPER_STAGE_DORMANT, 0);
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_OK);
    r.view.params_limit = 100;
    r.slots[0].blueprint_params[1] = 90;
    r.slots[0].gate_params = 20;
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_OK);
    r.decision.style = ESPER_STYLE_GATED_GATE;
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_E_STATE);
    r.view.params_limit = 110;
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_OK);
    request_init(&r, ESPER_SLOT_OP_SET_ALPHA_TARGET, ESPER_STAGE_BLENDING, 1);
    r.slots[0].blend = ESPER_BLEND_ADD;
    r.decision.style = ESPER_STYLE_GATED_GATE;
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_E_STATE);
    r.decision.op = ESPER_SLOT_OP_WAIT;
    r.decision.slot = -1;
    r.view.loss_valid = (double)NAN;
    assert_int_equal(esper_mask_approve(&r.view, &r.decision), ESPER_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recorded), cmocka_unit_test(test_each_rule),
                                       cmocka_unit_test(test_approval)};

    return cmocka_run_group_tests_name("policy/veto", tests, NULL, NULL);
}
