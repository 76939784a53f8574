/* ctest: timeout=60 labels=golden */
/* Recorded operation sequences on one slot: result, full state and events after every operation, but for the differences
 * on purpose (support/difference.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "slot/recorded.h"
#include "slot/slots.h"

enum { MAX_EVENTS = 8, GATE_PARAMS = 49 /* of 4 channels */ };

/* The columns of a row. */
enum {
    RESULT,
    STAGE,
    ALPHA,
    MODE,
    START,
    TARGET,
    STEPS,
    DONE,
    BLEND,
    ISOLATE,
    FROZEN,
    GATE_NET,
    TOTAL,
    IN_STAGE,
    AUTO_PRUNED,
    TRAINABLE,
    EVENTS
};

/* One case under way. */
typedef struct replay {
    const json_t     *line, *row;
    const json_t     *op; /* its arguments */
    int               at;
    esper_slot        slot;
    esper_slot_event  list[MAX_EVENTS];
    esper_slot_events events;
    bool              lags;      /* what was recorded has not noticed an instant target yet ... */
    double            lag_alpha; /* ... and stands here */
    bool              stuck;     /* what was recorded ramps down while holding, and will not arrive */
    bool              cold;      /* what was recorded has frozen weights as of the last tick, target or scheduled prune */
} replay;

static int n_rows;

static int row_int(const replay *r, int column)
{
    return recorded_int(json_array_get(r->row, (size_t)column));
}

static bool row_bool(const replay *r, int column)
{
    return json_is_true(json_array_get(r->row, (size_t)column));
}

static const char *row_text(const replay *r, int column)
{
    return json_string_value(json_array_get(r->row, (size_t)column));
}

static double arg_number(const replay *r, const char *key)
{
    return recorded_number(json_object_get(r->op, key));
}

static const char *arg_text(const replay *r, const char *key)
{
    return json_string_value(json_object_get(r->op, key));
}

/* ------------------------------------------------------------------------------------------------- names in arguments */

static int blend_of(const char *name)
{
    if (name == NULL)
        return 0;
    return strcmp(name, "ADD") == 0    ? ESPER_BLEND_ADD
           : strcmp(name, "GATE") == 0 ? ESPER_BLEND_GATE
                                       : ESPER_BLEND_MULTIPLY;
}

static int curve_of(const char *name)
{
    if (name == NULL)
        return 0;
    return strcmp(name, "LINEAR") == 0   ? ESPER_CURVE_LINEAR
           : strcmp(name, "COSINE") == 0 ? ESPER_CURVE_COSINE
                                         : ESPER_CURVE_SIGMOID;
}

static int stage_of(const char *loud)
{
    char ours[32];

    for (int code = 0; loud != NULL && code < ESPER_STAGE_CODES; code++)
        if (esper_stage_name(code) != NULL && strcmp(recorded_name(esper_stage_name(code), ours), loud) == 0)
            return code;
    return -1;
}

static const char *done_or_refused(esper_status status)
{
    return status == ESPER_OK ? "ok" : "refused";
}

/* ---------------------------------------------------------------------------------------------------------- operations */

/* As a caller does it: asks, finds and would build the blueprint, commits. */
static esper_status germinate(replay *r, esper_germination *wanted)
{
    const esper_blueprint *blueprint;
    const json_t *in = json_object_get(r->line, "in");
    bool is_cnn = strcmp(json_string_value(json_object_get(in, "topology")), "cnn") == 0;
    esper_status status = esper_slot_check_germinate(&r->slot, wanted);

    if (status == ESPER_OK)
        status = esper_blueprint_find(is_cnn ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER, wanted->blueprint,
                                      &blueprint);
    if (status != ESPER_OK)
        return status;
    wanted->blueprint_index = blueprint->index;
    wanted->seed_params = row_int(r, TRAINABLE);
    wanted->gate_params = GATE_PARAMS;
    return esper_slot_germinate(&r->slot, wanted, &r->events);
}

static const char *run_germinate(replay *r)
{
    esper_germination wanted;
    esper_slot before = r->slot;
    double target = arg_number(r, "alpha_target");
    esper_status status;

    esper_germination_init(&wanted, arg_text(r, "blueprint"), 0);
    wanted.seed_id = arg_text(r, "seed_id");
    wanted.ramp = esper_ramp_find(arg_text(r, "blend"));
    wanted.tempo = (int)arg_number(r, "tempo");
    wanted.blend = blend_of(arg_text(r, "operator"));
    wanted.target = isnan(target) ? 1.0 : target;
    status = germinate(r, &wanted);
    if (status == ESPER_OK)
        return "ok";
    assert_memory_equal(&before, &r->slot, sizeof(before));
    if (r->slot.stage != ESPER_STAGE_DORMANT) { /* what was recorded has overwritten the live seed's settings */
        difference_met(DIFFERENCE_GERMINATION, r->line);
        r->slot.ramp = wanted.ramp;
        r->slot.tempo = wanted.tempo;
        if (wanted.target > 0.0 && wanted.target <= 1.0)
            r->slot.target = wanted.target;
    }
    return status == ESPER_E_ARG ? "error:argument" : "error:state";
}

static const char *run_advance(replay *r)
{
    esper_gate_result result;
    esper_status status = esper_slot_advance(&r->slot, stage_of(arg_text(r, "to")), NULL, &r->events, &result);

    if (status != ESPER_OK)
        return "error:argument";
    if (result.passed)
        r->lags = false;
    return result.passed ? "ok" : "refused";
}

static const char *run_accuracy(replay *r)
{
    const json_t *values = json_object_get(r->op, "values");
    esper_slot before = r->slot;

    for (size_t i = 0; i < json_array_size(values); i++)
        assert_int_equal(esper_slot_record_accuracy(&r->slot, recorded_number(json_array_get(values, i))), ESPER_OK);
    if (esper_stage_cools_down(r->slot.stage)) { /* what was recorded has counted it */
        assert_memory_equal(&before, &r->slot, sizeof(before));
        difference_met(DIFFERENCE_COOLING, r->line);
        r->slot.epochs_total += (int)json_array_size(values);
        r->slot.epochs_in_stage += (int)json_array_size(values);
    }
    return "ok";
}

static const char *run_gradient(replay *r)
{
    esper_slot_gradient gradient = {.norm = 1.0,
                                    .health = arg_number(r, "health"),
                                    .ratio = arg_number(r, "ratio"),
                                    .exploding = json_is_true(json_object_get(r->op, "exploding"))};

    esper_slot_set_gradient(&r->slot, &gradient);
    return "ok";
}

static esper_alpha_ramp ramp_of(const replay *r)
{
    return (esper_alpha_ramp){(int)arg_number(r, "steps"), curve_of(arg_text(r, "curve")), arg_number(r, "steepness")};
}

/* While what was recorded is stuck, it refuses what ours can do; ours is tried and taken back. */
static const char *refuse_as_recorded(replay *r, const esper_slot *before)
{
    difference_met(DIFFERENCE_STUCK, r->line);
    r->slot = *before;
    r->events.n = 0;
    return "refused";
}

static const char *run_alpha_target(replay *r)
{
    esper_slot before = r->slot;
    double target = arg_number(r, "target");
    int blend = blend_of(arg_text(r, "operator"));
    esper_alpha_ramp ramp = ramp_of(r);
    bool switches = blend != 0 && blend != r->slot.blend;
    esper_status status = esper_slot_set_alpha_target(&r->slot, target, &ramp, blend, &r->events);

    if (status != ESPER_OK)
        assert_memory_equal(&before, &r->slot, sizeof(before));
    if (status == ESPER_OK && r->stuck && strcmp(row_text(r, RESULT), "refused") == 0)
        return refuse_as_recorded(r, &before);
    if (status == ESPER_E_STATE && switches && strcmp(row_text(r, RESULT), "ok") == 0) {
        assert_true(before.alpha.value > 0.0);
        difference_met(DIFFERENCE_SWITCH, r->line); /* refused; the rest is done, and the blend taken over */
        status = esper_slot_set_alpha_target(&r->slot, target, &ramp, 0, &r->events);
        r->slot.blend = blend;
    }
    if (status != ESPER_OK)
        return "refused";
    r->cold = esper_slot_is_frozen(&r->slot);
    if (before.stage == ESPER_STAGE_HOLDING && target >= 1.0 - 1e-6 && target < 1.0) {
        assert_true(r->slot.stage == ESPER_STAGE_HOLDING && r->slot.alpha.target == 1.0 && r->slot.alpha.n_steps == 0);
        difference_met(DIFFERENCE_STUCK, r->line);
        r->stuck = true;
    } else if (ramp.n_steps <= 0 && r->slot.alpha.value != before.alpha.value) {
        difference_met(DIFFERENCE_INSTANT, r->line);
        r->lags = true;
        r->lag_alpha = before.alpha.value;
    } else if (ramp.n_steps > 0 && r->slot.alpha.mode == ESPER_ALPHA_HOLD) {
        assert_int_equal(r->slot.alpha.n_steps, 0);
        difference_met(DIFFERENCE_PHANTOM, r->line);
        r->slot.alpha.n_steps = ramp.n_steps;
    }
    return "ok";
}

/* Refused: nothing changes. What was recorded has rewritten the flag; marked where the governor asked for it at once. */
static void refuse_prune(replay *r, const esper_slot *before)
{
    assert_memory_equal(before, &r->slot, sizeof(*before));
    if (!esper_stage_cools_down(r->slot.stage) || r->slot.auto_pruned == row_bool(r, AUTO_PRUNED))
        return;
    difference_met(row_bool(r, AUTO_PRUNED) && json_object_get(r->op, "steps") == NULL ? DIFFERENCE_PRUNE
                                                                                       : DIFFERENCE_PRUNE_OTHER,
                   r->line);
    r->slot.auto_pruned = row_bool(r, AUTO_PRUNED);
}

static const char *run_prune(replay *r)
{
    esper_slot before = r->slot;
    esper_status status = esper_slot_prune(&r->slot, arg_text(r, "reason"), NULL, &r->events);

    if (status == ESPER_OK)
        r->lags = r->stuck = false;
    else
        refuse_prune(r, &before);
    return done_or_refused(status);
}

static const char *run_schedule_prune(replay *r)
{
    esper_slot before = r->slot;
    esper_alpha_ramp ramp = ramp_of(r);
    esper_status status = esper_slot_schedule_prune(&r->slot, &ramp, arg_text(r, "reason"), NULL, &r->events);

    if (status == ESPER_OK && r->stuck && strcmp(row_text(r, RESULT), "refused") == 0)
        return refuse_as_recorded(r, &before);
    if (status == ESPER_OK && r->slot.stage == ESPER_STAGE_PRUNED)
        r->lags = r->stuck = false;
    if (status == ESPER_OK)
        r->cold = esper_slot_is_frozen(&r->slot);
    else
        refuse_prune(r, &before);
    return done_or_refused(status);
}

static const char *run_set_alpha(replay *r)
{
    assert_int_equal(r->slot.stage, ESPER_STAGE_BLENDING);
    r->slot.alpha.value = fmin(1.0, fmax(0.0, arg_number(r, "value")));
    r->lags = false;
    return "ok";
}

static const char *run(replay *r, const char *name)
{
    if (strcmp(name, "germinate") == 0)
        return run_germinate(r);
    if (strcmp(name, "advance") == 0)
        return run_advance(r);
    if (strcmp(name, "accuracy") == 0)
        return run_accuracy(r);
    if (strcmp(name, "gradient") == 0)
        return run_gradient(r);
    if (strcmp(name, "alpha_target") == 0)
        return run_alpha_target(r);
    if (strcmp(name, "prune") == 0)
        return run_prune(r);
    if (strcmp(name, "schedule_prune") == 0)
        return run_schedule_prune(r);
    if (strcmp(name, "set_alpha") == 0)
        return run_set_alpha(r);
    if (strcmp(name, "contribution") == 0) {
        esper_slot_set_contribution(&r->slot, arg_number(r, "value"));
        return "ok";
    }
    assert_string_equal(name, "tick");
    if (r->slot.stage == ESPER_STAGE_BLENDING)
        r->lags = false;
    r->cold = esper_slot_is_frozen(&r->slot); /* looked at before the ramp goes on */
    esper_slot_tick(&r->slot, NULL, &r->events);
    return "ok";
}

/* ----------------------------------------------------------------------------------------------------------- comparing */

/* An event in the words of the record. */
static const char *event_text(const esper_slot_event *event, char text[128])
{
    char from[32], to[32];

    switch (event->kind) {
    case ESPER_SLOT_EVENT_GERMINATED:
        return "SEED_GERMINATED";
    case ESPER_SLOT_EVENT_FOSSILIZED:
        return "SEED_FOSSILIZED";
    case ESPER_SLOT_EVENT_GATE:
        snprintf(text, 128, "gate %s %s", esper_gate_name(event->gate.gate), event->gate.passed ? "pass" : "fail");
        return text;
    case ESPER_SLOT_EVENT_STAGE:
        snprintf(text, 128, "%s>%s", recorded_name(esper_stage_name(event->from), from),
                 recorded_name(esper_stage_name(event->to), to));
        return text;
    default:
        snprintf(text, 128, "pruned reason=%s auto=%s by=%s", event->reason, event->auto_pruned ? "yes" : "no",
                 event->initiator);
        return text;
    }
}

static void check_text(const replay *r, const char *what, const char *ours, const char *recorded)
{
    if (strcmp(ours != NULL ? ours : "null", recorded != NULL ? recorded : "null") != 0)
        fail_msg("case %d, row %d: %s is %s, recorded %s", recorded_int(json_object_get(r->line, "case")), r->at, what,
                 ours, recorded);
}

static void check_number(const replay *r, const char *what, double ours, int column)
{
    double recorded = json_is_boolean(json_array_get(r->row, (size_t)column))
                          ? row_bool(r, column)
                          : recorded_number(json_array_get(r->row, (size_t)column));

    if (!recorded_is_near(ours, recorded))
        fail_msg("case %d, row %d: %s is %.17g, recorded %.17g", recorded_int(json_object_get(r->line, "case")), r->at,
                 what, ours, recorded);
}

static void check_events(const replay *r)
{
    const json_t *recorded = json_array_get(r->row, EVENTS);
    char text[128];

    for (int i = 0; i < r->events.n; i++)
        check_text(r, "an event", event_text(&r->list[i], text),
                   json_string_value(json_array_get(recorded, (size_t)i)));
    if ((size_t)r->events.n != json_array_size(recorded))
        fail_msg("case %d, row %d: %d events, recorded %zu", recorded_int(json_object_get(r->line, "case")), r->at,
                 r->events.n, json_array_size(recorded));
}

static void check_alpha(const replay *r)
{
    const esper_alpha *alpha = &r->slot.alpha;

    if (r->lags)
        check_number(r, "alpha that was recorded late", r->lag_alpha, ALPHA);
    else
        check_number(r, "alpha", alpha->value, ALPHA);
    if (r->stuck)
        return;
    check_number(r, "mode", alpha->mode, MODE);
    check_number(r, "start", alpha->start, START);
    check_number(r, "target", alpha->target, TARGET);
    check_number(r, "steps", alpha->n_steps, STEPS);
    check_number(r, "done", alpha->n_done, DONE);
}

/* What the recordings call isolated (no gradient reaches the host through the seed), and a gate network in use: slot/splice.c
 * has this from the part a seed plays in the program. */
static bool is_isolated(const esper_slot *slot)
{
    return slot->stage == ESPER_STAGE_TRAINING || (slot->isolate_blending != 0 && esper_stage_runs_seed(slot->stage));
}

static bool has_gate(const esper_slot *slot)
{
    return slot->blend == ESPER_BLEND_GATE && slot->stage != ESPER_STAGE_TRAINING && esper_stage_runs_seed(slot->stage);
}

/* Weights are frozen while alpha goes down. What was recorded thaws them at the next look after that, whatever happens in
 * between, an advance to HOLDING among it; and counts none of them as trainable. */
static void check_frozen(const replay *r)
{
    int64_t params =
        esper_slot_is_active(&r->slot) ? r->slot.seed_params + (has_gate(&r->slot) ? r->slot.gate_params : 0) : 0;

    if (r->cold && esper_slot_is_active(&r->slot) && !esper_slot_is_frozen(&r->slot)) {
        check_number(r, "frozen, as recorded late,", true, FROZEN);
        difference_met(DIFFERENCE_THAW, r->line);
    } else if (!r->stuck) {
        check_number(r, "frozen", esper_slot_is_frozen(&r->slot), FROZEN);
    }
    if (row_bool(r, FROZEN) && params > 0) {
        assert_int_equal(row_int(r, TRAINABLE), 0);
        difference_met(DIFFERENCE_TRAINABLE, r->line);
    } else {
        check_number(r, "parameters", (double)params, TRAINABLE);
    }
}

static void check_row(const replay *r, const char *result)
{
    char loud[32];
    static const char *const blends[] = {NULL, "ADD", "MULTIPLY", "GATE"};

    check_text(r, "the result", result, row_text(r, RESULT));
    check_text(r, "the stage",
               esper_slot_is_empty(&r->slot) ? "EMPTY" : recorded_name(esper_stage_name(r->slot.stage), loud),
               row_text(r, STAGE));
    check_events(r);
    check_alpha(r);
    check_text(r, "the blend", blends[r->slot.blend], row_text(r, BLEND));
    check_number(r, "isolation", is_isolated(&r->slot), ISOLATE);
    check_number(r, "the gate network", has_gate(&r->slot), GATE_NET);
    check_number(r, "epochs", r->slot.epochs_total, TOTAL);
    check_number(r, "epochs in stage", r->slot.epochs_in_stage, IN_STAGE);
    check_number(r, "auto-pruned", r->slot.auto_pruned, AUTO_PRUNED);
    check_frozen(r);
    n_rows++;
}

static esper_slot new_slot(const json_t *in)
{
    const json_t *gates = json_object_get(in, "auto_forward");
    esper_boundary boundary = {.slot = "r0c0", .channels = recorded_int(json_object_get(in, "channels"))};
    esper_slot_rules rules = {.permissive = json_is_true(json_object_get(in, "permissive")),
                              .isolate_blending =
                                  strcmp(json_string_value(json_object_get(in, "topology")), "cnn") == 0};
    esper_slots slots;

    for (size_t i = 0; i < json_array_size(gates); i++)
        rules.auto_forward |= 1u << (json_string_value(json_array_get(gates, i))[1] - '0');
    assert_int_equal(esper_slots_init(&slots, &boundary, 1, &rules), ESPER_OK);
    return slots.slot[0];
}

static void check_case(const json_t *line)
{
    const json_t *in = json_object_get(line, "in"), *ops = json_object_get(in, "ops");
    const json_t *rows = json_object_get(json_object_get(line, "out"), "after");
    replay r = {.line = line, .slot = new_slot(in)};

    assert_int_equal(json_array_size(ops), json_array_size(rows));
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const char *result;

        r.at = (int)i;
        r.row = json_array_get(rows, i);
        r.op = json_array_get(json_array_get(ops, i), 1);
        r.events = (esper_slot_events){.events = r.list, .capacity = MAX_EVENTS};
        result = run(&r, json_string_value(json_array_get(json_array_get(ops, i), 0)));
        check_row(&r, result);
    }
}

/* Written by hand after the description of what was recorded: a ramp down to just below 1 is done, and nothing looks at it
 * before the seed advances to HOLDING: weights stay frozen there until the tick. */
static const char late_thaw[] =
    "{\"case\":0,\"touches\":[\"lifecycle D12\",\"lifecycle D21\"],\"in\":{\"channels\":4,\"topology\":"
    "\"cnn\",\"permissive\":true,\"auto_forward\":[],\"ops\":[[\"germinate\",{\"blueprint\":\"attention"
    "\",\"seed_id\":\"s0\",\"blend\":\"linear\",\"tempo\":3,\"operator\":\"ADD\",\"alpha_target\":1.0}]"
    ",[\"advance\",{\"to\":null}],[\"accuracy\",{\"values\":[50.0,51.0,52.0,53.0,54.0,55.0,56.0,57.0,58"
    ".0,59.0,60.0]}],[\"gradient\",{\"health\":0.9,\"exploding\":false,\"ratio\":0.4}],[\"advance\",{\""
    "to\":null}],[\"tick\"],[\"tick\"],[\"tick\"],[\"alpha_target\",{\"target\":0.9999995,\"steps\":2,"
    "\"curve\":\"LINEAR\",\"steepness\":12.0,\"operator\":null}],[\"tick\"],[\"tick\"],[\"contribution"
    "\",{\"value\":1.5}],[\"advance\",{\"to\":null}],[\"tick\"]]},\"out\":{\"after\":[[\"ok\",\"GERMINA"
    "TED\",0.0,0,0.0,0.0,0,0,\"ADD\",false,false,false,0,0,false,12,[\"SEED_GERMINATED\"]],[\"ok\",\"TR"
    "AINING\",0.0,0,0.0,0.0,0,0,\"ADD\",true,false,false,0,0,false,12,[\"gate G1 pass\",\"GERMINATED>TR"
    "AINING\"]],[\"ok\",\"TRAINING\",0.0,0,0.0,0.0,0,0,\"ADD\",true,false,false,11,11,false,12,[]],[\"o"
    "k\",\"TRAINING\",0.0,0,0.0,0.0,0,0,\"ADD\",true,false,false,11,11,false,12,[]],[\"ok\",\"BLENDING"
    "\",0.0,1,0.0,1.0,3,0,\"ADD\",true,false,false,11,0,false,12,[\"gate G2 pass\",\"TRAINING>BLENDING"
    "\"]],[\"ok\",\"BLENDING\",0.3333333333333333,1,0.0,1.0,3,1,\"ADD\",true,false,false,11,0,false,12,"
    "[]],[\"ok\",\"BLENDING\",0.6666666666666666,1,0.0,1.0,3,2,\"ADD\",true,false,false,11,0,false,12,["
    "]],[\"ok\",\"BLENDING\",1.0,0,0.0,1.0,3,3,\"ADD\",true,false,false,11,0,false,12,[]],[\"ok\",\"BLE"
    "NDING\",1.0,2,1.0,0.9999995,2,0,\"ADD\",true,true,false,11,0,false,0,[]],[\"ok\",\"BLENDING\",0.99"
    "999975,2,1.0,0.9999995,2,1,\"ADD\",true,true,false,11,0,false,0,[]],[\"ok\",\"BLENDING\",0.9999995"
    ",0,1.0,0.9999995,2,2,\"ADD\",true,true,false,11,0,false,0,[]],[\"ok\",\"BLENDING\",0.9999995,0,1.0"
    ",0.9999995,2,2,\"ADD\",true,true,false,11,0,false,0,[]],[\"ok\",\"HOLDING\",1.0,0,1.0,1.0,2,2,\"AD"
    "D\",true,true,false,11,0,false,0,[\"gate G3 pass\",\"BLENDING>HOLDING\"]],[\"ok\",\"HOLDING\",1.0,"
    "0,1.0,1.0,2,2,\"ADD\",true,false,false,11,0,false,12,[]]]}}";

static void test_late_thaw(void **state)
{
    json_t *line = json_loads(late_thaw, 0, NULL);

    (void)state;
    assert_non_null(line);
    check_case(line);
    assert_int_equal(difference_say("lifecycle"), 8); /* 3 rows late; 5 without trainable parameters */
    json_decref(line);
}

static void test_recorded(void **state)
{
    (void)state;
    golden_each_case("lifecycle", check_case);
    printf("%d rows compared\n", n_rows);
    difference_say("lifecycle");
    assert_true(n_rows > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_late_thaw), cmocka_unit_test(test_recorded)};

    return cmocka_run_group_tests_name("slot/lifecycle", tests, NULL, NULL);
}
