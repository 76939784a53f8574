/* ctest: timeout=120 cost=10 */
/* What holds for every slot: the moves there are, what each stage allows, and 100,000 random sequences of operations
 * against a small model of the lifecycle, written anew from its description. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "slot/slots.h"

enum { MAX_EVENTS = 8 };

static esper_slot_event list[MAX_EVENTS];
static esper_slot_events events;

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void check_sound(const esper_slot *slot)
{
    if (esper_slot_fault(slot) != NULL)
        fail_msg("%s in %s: %s", slot->id, esper_stage_name(slot->stage), esper_slot_fault(slot));
}

static esper_slot_events *no_events_yet(void)
{
    events = (esper_slot_events){.events = list, .capacity = MAX_EVENTS};
    return &events;
}

static esper_slot new_slot(bool permissive, uint32_t auto_forward)
{
    esper_boundary boundary = {.slot = "r1c2", .row = 1, .col = 2, .channels = 8};
    esper_slot_rules rules = {.permissive = permissive, .auto_forward = auto_forward};
    esper_slots slots;

    check_good(esper_slots_init(&slots, &boundary, 1, &rules));
    return slots.slot[0];
}

static void germinate_one(esper_slot *slot, const char *blueprint, int index, double target)
{
    esper_germination wanted;

    esper_germination_init(&wanted, blueprint, index);
    wanted.ramp = ESPER_RAMP_LINEAR;
    wanted.tempo = 3;
    wanted.target = target;
    wanted.seed_params = 100;
    check_good(esper_slot_germinate(slot, &wanted, no_events_yet()));
}

static void germinate(esper_slot *slot, double target)
{
    germinate_one(slot, "conv_light", 1, target);
}

static void record(esper_slot *slot, int n, double first, double step)
{
    for (int i = 0; i < n; i++)
        check_good(esper_slot_record_accuracy(slot, first + step * i));
}

static void measure_gradient(esper_slot *slot)
{
    esper_slot_gradient gradient = {.norm = 1.0, .health = 0.9, .ratio = 0.4};

    esper_slot_set_gradient(slot, &gradient);
}

static bool advance(esper_slot *slot)
{
    esper_gate_result result;

    check_good(esper_slot_advance(slot, -1, NULL, no_events_yet(), &result));
    return result.passed;
}

/* A fresh seed led along the ordinary way up to a stage, strict gates included. */
static esper_slot slot_in(int stage)
{
    esper_slot slot = new_slot(false, 0);

    if (stage == ESPER_STAGE_DORMANT)
        return slot;
    germinate(&slot, 1.0);
    if (stage == ESPER_STAGE_GERMINATED)
        return slot;
    if (stage >= ESPER_STAGE_PRUNED) {
        check_good(esper_slot_prune(&slot, "test", "test", no_events_yet()));
        while (slot.stage != stage)
            esper_slot_tick(&slot, NULL, no_events_yet());
        return slot;
    }
    assert_true(advance(&slot));
    if (stage == ESPER_STAGE_TRAINING)
        return slot;
    record(&slot, 11, 50.0, 0.2);
    measure_gradient(&slot);
    assert_true(advance(&slot));
    if (stage == ESPER_STAGE_BLENDING)
        return slot;
    for (int i = 0; i < 3; i++)
        esper_slot_tick(&slot, NULL, no_events_yet());
    record(&slot, 10, 53.0, 0.1);
    assert_true(advance(&slot));
    if (stage == ESPER_STAGE_HOLDING)
        return slot;
    esper_slot_set_contribution(&slot, 1.5);
    assert_true(advance(&slot));
    return slot;
}

static const int all_stages[] = {ESPER_STAGE_DORMANT,    ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING,
                                 ESPER_STAGE_BLENDING,   ESPER_STAGE_HOLDING,    ESPER_STAGE_FOSSILIZED,
                                 ESPER_STAGE_PRUNED,     ESPER_STAGE_EMBARGOED,  ESPER_STAGE_RESETTING};
enum { N_ALL = sizeof(all_stages) / sizeof(all_stages[0]) };

/* The moves there are, as the diagram draws them. */
static bool is_drawn(int from, int to)
{
    static const char *const drawn = " 1>2 2>3 2>8 3>4 3>8 4>6 4>8 6>7 6>4 6>8 8>9 9>10 10>1 ";
    char move[16];

    snprintf(move, sizeof(move), " %d>%d ", from, to);
    return strstr(drawn, move) != NULL;
}

static void test_moves(void **state)
{
    (void)state;
    for (int i = 0; i < N_ALL; i++)
        for (int to = -1; to <= ESPER_STAGE_CODES; to++) {
            esper_slot slot = slot_in(all_stages[i]), before;
            esper_status status = ESPER_OK;

            record(&slot, 4, 55.0, 1.0);
            before = slot;
            no_events_yet();
            if (to == ESPER_STAGE_GERMINATED && all_stages[i] == ESPER_STAGE_DORMANT)
                germinate(&slot, 1.0); /* which makes that move; without a seed it would be none */
            else
                status = esper_slot_move(&slot, to, &events);
            if (is_drawn(all_stages[i], to) != (status == ESPER_OK))
                fail_msg("%s to %d: %s", esper_stage_name(all_stages[i]), to, esper_status_name(status));
            if (status != ESPER_OK) {
                assert_int_equal(status, ESPER_E_STATE);
                assert_memory_equal(&before, &slot, sizeof(slot));
                assert_int_equal(events.n, 0);
                continue;
            }
            check_sound(&slot);
            assert_int_equal(slot.stage, to);
            assert_int_equal(events.n, 1);
            if (to == ESPER_STAGE_DORMANT)
                continue; /* nothing is left to look at */
            assert_int_equal(slot.previous_stage, all_stages[i]);
            assert_int_equal(slot.previous_epochs_in_stage, before.epochs_in_stage);
            assert_int_equal(slot.epochs_in_stage, 0);
            assert_true(slot.acc_stage == before.acc_now);
            assert_int_equal(slot.n_history, before.n_history + 1);
        }
}

/* Whatever is tried with it, a fossil stays byte for byte. */
static void test_fossils_stay(void **state)
{
    esper_slot fossil = slot_in(ESPER_STAGE_FOSSILIZED), slot = fossil;
    esper_alpha_ramp ramps[] = {{0, 0, 0.0}, {5, ESPER_CURVE_COSINE, 6.0}};
    esper_gate_result result;

    (void)state;
    check_sound(&slot);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(esper_slot_prune(&slot, "governor_nan", "governor", no_events_yet()), ESPER_E_STATE);
        assert_int_equal(esper_slot_schedule_prune(&slot, &ramps[i], "x", "y", no_events_yet()), ESPER_E_STATE);
        assert_int_equal(esper_slot_set_alpha_target(&slot, 0.5, &ramps[i], 0, no_events_yet()), ESPER_E_STATE);
        assert_int_equal(esper_slot_fossilize(&slot, NULL, no_events_yet(), &result), ESPER_E_STATE);
        check_good(esper_slot_advance(&slot, -1, NULL, no_events_yet(), &result));
        assert_false(result.passed);
        assert_string_equal(result.checks[0].token, "no_valid_transition");
        assert_memory_equal(&fossil, &slot, sizeof(slot));
    }
    for (int i = 0; i < 50; i++)
        esper_slot_tick(&slot, NULL, no_events_yet());
    assert_true(slot.stage == ESPER_STAGE_FOSSILIZED && slot.alpha.value == 1.0 && slot.n_history == fossil.n_history);
}

/* Seven ticks after a prune, and not before, the slot takes a seed again, which knows nothing of the last one. */
static void test_cooldown(void **state)
{
    static const char *const blueprints[] = {"conv_light", "norm", "attention"};
    esper_slot slot = new_slot(true, 0);

    (void)state;
    for (int cycle = 0; cycle < 10; cycle++) {
        germinate_one(&slot, blueprints[cycle % 3], cycle % 3, 1.0); /* of whatever kind the last one was */
        assert_string_equal(slot.blueprint, blueprints[cycle % 3]);
        assert_true(slot.acc_best == 0.0 && slot.known == 0 && slot.epochs_total == 0);
        assert_int_equal(slot.n_seeds, cycle + 1);
        assert_true(advance(&slot));
        record(&slot, 3, 80.0, 0.0);
        measure_gradient(&slot);
        esper_slot_set_contribution(&slot, 2.0);
        check_good(esper_slot_prune(&slot, cycle % 2 ? "governor_nan" : "tired", NULL, no_events_yet()));
        assert_int_equal(slot.auto_pruned, cycle % 2);
        for (int left = 7; left > 0; left--) {
            esper_germination wanted;
            esper_slot before = slot;

            assert_int_equal(esper_slot_cooldown(&slot), left);
            esper_germination_init(&wanted, "norm", 3);
            assert_int_equal(esper_slot_germinate(&slot, &wanted, no_events_yet()), ESPER_E_STATE);
            check_good(esper_slot_record_accuracy(&slot, 99.0)); /* ignored: only ticks count */
            assert_int_equal(esper_slot_prune(&slot, "governor_nan", NULL, no_events_yet()), ESPER_E_STATE);
            assert_memory_equal(&before, &slot, sizeof(slot));
            assert_false(esper_slot_is_active(&slot));
            esper_slot_tick(&slot, NULL, no_events_yet());
            check_sound(&slot);
        }
        assert_true(esper_slot_is_empty(&slot));
    }
}

/* Slots with other lengths: four epochs of TRAINING by ticks alone, and four ticks of rest. */
static void test_other_lengths(void **state)
{
    esper_slot slot = new_slot(true, 1u << ESPER_GATE_G1 | 1u << ESPER_GATE_G2);

    (void)state;
    slot.gate_epochs = 4;
    slot.embargo_ticks = 2;
    germinate_one(&slot, "norm", 3, 1.0);
    esper_slot_tick(&slot, NULL, no_events_yet());
    assert_int_equal(slot.stage, ESPER_STAGE_TRAINING);
    measure_gradient(&slot);
    for (int epoch = 1; epoch <= 4; epoch++) {
        assert_int_equal(slot.stage, ESPER_STAGE_TRAINING);
        record(&slot, 1, 80.0, 0.0);
        esper_slot_tick(&slot, NULL, no_events_yet());
        check_sound(&slot);
    }
    assert_int_equal(slot.stage, ESPER_STAGE_BLENDING);
    check_good(esper_slot_prune(&slot, "tired", NULL, no_events_yet()));
    for (int left = 4; left > 0; left--) {
        assert_int_equal(esper_slot_cooldown(&slot), left);
        esper_slot_tick(&slot, NULL, no_events_yet());
        check_sound(&slot);
    }
    assert_true(esper_slot_is_empty(&slot));
    assert_int_equal(slot.gate_epochs, 4); /* the slot's, not the seed's */
    slot.embargo_ticks = 0;
    assert_non_null(esper_slot_fault(&slot));
}

static void test_ticks_alone(void **state)
{
    static const int resting[] = {ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, ESPER_STAGE_HOLDING};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_slot slot = slot_in(resting[i]);

        measure_gradient(&slot);
        for (int t = 0; t < 60; t++) {
            record(&slot, 1, 60.0 + t, 0.0);
            esper_slot_set_contribution(&slot, t % 3 == 0 ? -50.0 : t % 3 == 1 ? 50.0 : (double)NAN);
            esper_slot_tick(&slot, NULL, no_events_yet());
            assert_int_equal(slot.stage, resting[i]);
            assert_int_equal(events.n, 0);
        }
    }
}

/* With all gates tried by ticks a seed comes to HOLDING by itself, and no further. */
static void test_auto_forward(void **state)
{
    uint32_t all = 1u << ESPER_GATE_G1 | 1u << ESPER_GATE_G2 | 1u << ESPER_GATE_G3;

    (void)state;
    for (int permissive = 0; permissive < 2; permissive++)
        for (int full = 0; full < 2; full++) {
            esper_slot slot = new_slot(permissive != 0, all);

            germinate(&slot, full ? 1.0 : 0.7);
            for (int t = 0; t < 60; t++) {
                record(&slot, 1, 50.0 + t, 0.0);
                measure_gradient(&slot);
                esper_slot_set_contribution(&slot, 9.0);
                esper_slot_tick(&slot, NULL, no_events_yet());
                check_sound(&slot);
            }
            assert_int_equal(slot.stage, full ? ESPER_STAGE_HOLDING : ESPER_STAGE_BLENDING);
            assert_true(slot.alpha.value == (full ? 1.0 : 0.7));
            if (!full) { /* each tick tries G3 again and tells that it failed */
                assert_int_equal(events.n, 1);
                assert_true(list[0].kind == ESPER_SLOT_EVENT_GATE && !list[0].gate.passed);
            }
        }
}

/* What is refused changes nothing: germination above all. */
static void test_refused_germination(void **state)
{
    static const double targets[] = {0.0, -0.1, 1.5, (double)NAN, (double)INFINITY};

    (void)state;
    for (int i = 0; i < N_ALL; i++) {
        esper_slot slot = slot_in(all_stages[i]), before = slot;
        esper_germination good, wanted;
        char long_name[80];

        memset(long_name, 'x', sizeof(long_name));
        long_name[79] = '\0';
        esper_germination_init(&good, "norm", 3);
#define REFUSED(change, status)                                                              \
    do {                                                                                     \
        wanted = good;                                                                       \
        change;                                                                              \
        assert_int_equal(esper_slot_check_germinate(&slot, &wanted), status);                \
        assert_int_equal(esper_slot_germinate(&slot, &wanted, no_events_yet()), status);     \
        assert_memory_equal(&before, &slot, sizeof(slot));                                   \
        assert_int_equal(events.n, 0);                                                       \
    } while (0)
        for (int t = 0; t < 5; t++)
            REFUSED(wanted.target = targets[t], ESPER_E_ARG);
        REFUSED(wanted.ramp = ESPER_RAMP_GATED, ESPER_E_ARG);
        REFUSED(wanted.blend = ESPER_BLEND_GATE, ESPER_E_ARG);
        REFUSED(wanted.blend = 4, ESPER_E_ARG);
        REFUSED(wanted.ramp = 0, ESPER_E_ARG);
        REFUSED(wanted.tempo = 0, ESPER_E_ARG);
        REFUSED(wanted.blueprint = "", ESPER_E_ARG);
        REFUSED(wanted.blueprint = NULL, ESPER_E_ARG);
        REFUSED(wanted.blueprint = long_name, ESPER_E_ARG);
        REFUSED(wanted.seed_id = long_name, ESPER_E_ARG);
        REFUSED(wanted.seed_params = -1, ESPER_E_ARG);
        if (all_stages[i] != ESPER_STAGE_DORMANT)
            REFUSED((void)0, ESPER_E_STATE);
#undef REFUSED
    }
}

static void test_names_of_seeds(void **state)
{
    esper_slot slot = new_slot(true, 0);
    esper_germination wanted;

    (void)state;
    esper_germination_init(&wanted, "conv_light", 1);
    wanted.seed_id = "";
    check_good(esper_slot_germinate(&slot, &wanted, NULL));
    assert_string_equal(slot.seed_id, "r1c2-conv_light");
}

/* Instant targets act at once; freezing follows the ramp; holding means full alpha; the blend stays while it has weight. */
static void test_retargeting(void **state)
{
    esper_alpha_ramp at_once = {0, 0, 0.0}, slow = {2, ESPER_CURVE_LINEAR, 0.0};
    esper_slot slot = slot_in(ESPER_STAGE_HOLDING), before = slot;

    (void)state;
    assert_int_equal(esper_slot_set_alpha_target(&slot, 1.0, &slow, ESPER_BLEND_MULTIPLY, no_events_yet()),
                     ESPER_E_STATE);
    assert_int_equal(esper_slot_set_alpha_target(&slot, (double)NAN, &slow, 0, no_events_yet()), ESPER_E_ARG);
    assert_int_equal(esper_slot_set_alpha_target(&slot, 0.0, &slow, 0, no_events_yet()), ESPER_E_ARG);
    assert_memory_equal(&before, &slot, sizeof(slot));
    check_good(esper_slot_set_alpha_target(&slot, 0.9999995, &slow, ESPER_BLEND_ADD, no_events_yet()));
    assert_true(slot.stage == ESPER_STAGE_HOLDING && slot.alpha.target == 1.0 && !esper_slot_is_frozen(&slot));
    check_good(esper_slot_set_alpha_target(&slot, 0.5, &at_once, 0, no_events_yet()));
    assert_true(slot.stage == ESPER_STAGE_BLENDING && slot.alpha.value == 0.5 && !esper_slot_is_frozen(&slot));
    assert_int_equal(events.n, 1);
    check_good(esper_slot_set_alpha_target(&slot, 0.25, &slow, 0, no_events_yet()));
    assert_true(esper_slot_is_frozen(&slot) && fabs(esper_slot_alpha_velocity(&slot) + 0.125) < 1e-15);
    assert_int_equal(esper_slot_set_alpha_target(&slot, 1.0, &slow, 0, no_events_yet()), ESPER_E_STATE);
    esper_slot_tick(&slot, NULL, no_events_yet());
    assert_true(esper_slot_is_frozen(&slot));
    esper_slot_tick(&slot, NULL, no_events_yet());
    assert_true(!esper_slot_is_frozen(&slot) && slot.alpha.value == 0.25);
    slot.alpha.value = 0.0;
    check_good(esper_slot_set_alpha_target(&slot, 0.5, &slow, ESPER_BLEND_GATE, no_events_yet()));
    assert_true(slot.blend == ESPER_BLEND_GATE);
    check_sound(&slot);
}

static void test_scheduled_prune(void **state)
{
    esper_alpha_ramp slow = {2, ESPER_CURVE_LINEAR, 0.0};
    esper_slot slot = slot_in(ESPER_STAGE_HOLDING);

    (void)state;
    check_good(esper_slot_schedule_prune(&slot, &slow, "governor_divergence", "governor", no_events_yet()));
    assert_true(slot.stage == ESPER_STAGE_BLENDING && esper_slot_is_frozen(&slot) && slot.auto_pruned == 0);
    assert_int_equal(esper_slot_schedule_prune(&slot, &slow, "again", NULL, no_events_yet()), ESPER_E_STATE);
    esper_slot_tick(&slot, NULL, no_events_yet());
    assert_true(slot.alpha.value == 0.5 && events.n == 0);
    esper_slot_tick(&slot, NULL, no_events_yet());
    assert_int_equal(slot.stage, ESPER_STAGE_PRUNED);
    assert_int_equal(events.n, 2);
    assert_true(list[1].kind == ESPER_SLOT_EVENT_PRUNED && list[1].auto_pruned);
    assert_string_equal(list[1].reason, "governor_divergence");
    assert_string_equal(list[1].initiator, "governor");
    assert_int_equal(slot.auto_pruned, 1);
    slot = slot_in(ESPER_STAGE_TRAINING); /* without weight there is nothing to wait for */
    check_good(esper_slot_schedule_prune(&slot, &slow, NULL, NULL, no_events_yet()));
    assert_int_equal(slot.stage, ESPER_STAGE_PRUNED);
}

/* Accuracies: counted exactly, the best is the running maximum, deltas begin where they say. */
static void test_accuracies(void **state)
{
    esper_slot slot = slot_in(ESPER_STAGE_TRAINING), before;
    double best = 0.0;

    (void)state;
    assert_int_equal(slot.blending_started, 0);
    for (int i = 0; i < 20; i++) {
        double accuracy = 50.0 + 10.0 * sin(i);

        record(&slot, 1, accuracy, 0.0);
        best = fmax(best, accuracy);
        assert_true(slot.acc_best == best && slot.acc_now == accuracy && slot.epochs_total == i + 1);
        assert_true(esper_slot_improvement(&slot) == accuracy - 50.0);
        assert_int_equal(slot.blending_started, 0);
    }
    before = slot;
    assert_int_equal(esper_slot_record_accuracy(&slot, (double)NAN), ESPER_E_ARG);
    assert_int_equal(esper_slot_record_accuracy(&slot, (double)INFINITY), ESPER_E_ARG);
    assert_memory_equal(&before, &slot, sizeof(slot));
    slot = slot_in(ESPER_STAGE_BLENDING);
    record(&slot, 1, 20.0, 0.0);
    assert_true(slot.acc_now == 20.0 && slot.acc_blending == 52.0);
    assert_true(esper_slot_stage_improvement(&slot) == 20.0 - 52.0);
}

static void test_contributions(void **state)
{
    esper_slot slot = slot_in(ESPER_STAGE_HOLDING);
    esper_gate_result result;

    (void)state;
    esper_slot_set_contribution(&slot, 1.0);
    assert_true(slot.contribution_velocity == 0.0);
    esper_slot_set_contribution(&slot, 2.0);
    assert_true(fabs(slot.contribution_velocity - 0.3) < 1e-15);
    esper_slot_set_contribution(&slot, (double)NAN); /* not a reading: a fossil must not be made of the last one */
    assert_int_equal(slot.known & ESPER_KNOWN_CONTRIBUTION, 0);
    check_good(esper_slot_fossilize(&slot, NULL, no_events_yet(), &result));
    assert_false(result.passed);
    esper_slot_set_contribution(&slot, 1.0);
    assert_true(fabs(slot.contribution_velocity - (0.7 * 0.3 - 0.3)) < 1e-15);
    check_sound(&slot);
}

/* Readings that are not finite: never a pass, never lasting harm. */
static void test_bad_gradients(void **state)
{
    static const double bad[] = {(double)NAN, (double)INFINITY};
    esper_slot_gradient good = {.norm = 2.0, .health = 0.9, .ratio = 40.0}, gradient;
    esper_slot slot = slot_in(ESPER_STAGE_TRAINING);

    (void)state;
    record(&slot, 11, 50.0, 0.2);
    for (int i = 0; i < 2; i++) {
        gradient = good;
        gradient.ratio = bad[i];
        esper_slot_set_gradient(&slot, &gradient);
        assert_false(advance(&slot));
        gradient.norm = bad[i];
        esper_slot_set_gradient(&slot, &gradient);
        assert_true(slot.unhealthy && slot.exploding && isfinite(slot.grad_norm_avg));
        assert_false(advance(&slot));
        check_sound(&slot);
    }
    esper_slot_set_gradient(&slot, &good);
    assert_true(!slot.unhealthy && slot.grad_ratio == 10.0);
    assert_true(advance(&slot));
}

/* Merits given by the caller take the place of the slot's own numbers, and nothing takes theirs. */
static void test_merits(void **state)
{
    esper_slot slot = slot_in(ESPER_STAGE_TRAINING), fresh;
    esper_slot_merits merits = {.improvement.how = ESPER_MERIT_NONE};
    esper_gate_result result;

    (void)state;
    record(&slot, 11, 50.0, 5.0);
    measure_gradient(&slot);
    fresh = slot;
    check_good(esper_slot_advance(&slot, -1, &merits, no_events_yet(), &result));
    assert_false(result.passed); /* no trial was made, however much the host has gained */
    merits.improvement = (esper_merit){.value = 0.4, .how = ESPER_MERIT_TRIAL};
    check_good(esper_slot_advance(&slot, -1, &merits, no_events_yet(), &result));
    assert_false(result.passed);
    assert_memory_equal(&fresh, &slot, sizeof(slot));
    merits.improvement.value = 0.5;
    check_good(esper_slot_advance(&slot, -1, &merits, no_events_yet(), &result));
    assert_true(result.passed);
    slot = slot_in(ESPER_STAGE_HOLDING);
    esper_slot_set_contribution(&slot, 50.0);
    merits.contribution = (esper_merit){.value = 3.0, .how = ESPER_MERIT_LOWER_BOUND, .n_epochs = 2};
    check_good(esper_slot_fossilize(&slot, &merits, no_events_yet(), &result));
    assert_false(result.passed);
    merits.contribution.n_epochs = 3;
    check_good(esper_slot_fossilize(&slot, &merits, no_events_yet(), &result));
    assert_true(result.passed && slot.stage == ESPER_STAGE_FOSSILIZED);
    assert_int_equal(events.n, 3);
    assert_true(list[0].kind == ESPER_SLOT_EVENT_GATE && list[1].kind == ESPER_SLOT_EVENT_STAGE &&
                list[2].kind == ESPER_SLOT_EVENT_FOSSILIZED);
}

static void test_history_is_bounded(void **state)
{
    esper_slot slot = slot_in(ESPER_STAGE_HOLDING);
    esper_alpha_ramp at_once = {0, 0, 0.0};

    (void)state;
    for (int i = 0; i < 400; i++) {
        check_good(esper_slot_set_alpha_target(&slot, 0.5, &at_once, 0, no_events_yet()));
        check_good(esper_slot_set_alpha_target(&slot, 1.0, &at_once, 0, no_events_yet()));
        record(&slot, 10, 60.0, 0.0);
        esper_slot_tick(&slot, NULL, NULL);
        assert_true(advance(&slot));
        check_sound(&slot);
    }
    assert_int_equal(slot.n_history, 4 + 800);
}

/* One field at a time made wrong in an otherwise sound slot: each is found. */
static void test_every_fault_is_found(void **state)
{
    esper_slot slot;
    int n = 0;

    (void)state;
#define WRONG(stage_code, change)                                                               \
    do {                                                                                        \
        slot = slot_in(stage_code);                                                             \
        check_sound(&slot);                                                                     \
        change;                                                                                 \
        n++;                                                                                    \
        if (esper_slot_fault(&slot) == NULL)                                                    \
            fail_msg("%s with %s is taken for sound", esper_stage_name(stage_code), #change);   \
    } while (0)
    for (int i = 0; i < N_ALL; i++) {
        int stage = all_stages[i];
        bool cools = esper_stage_cools_down(stage),
             holds = stage == ESPER_STAGE_HOLDING || stage == ESPER_STAGE_FOSSILIZED;

        WRONG(stage, slot.id[1] = '-');
        WRONG(stage, slot.id[ESPER_SLOT_CHARS - 1] = 'x');
        WRONG(stage, slot.row = 2);
        WRONG(stage, slot.col = 1);
        WRONG(stage, slot.depth = -1);
        WRONG(stage, slot.channels = 0);
        WRONG(stage, slot.permissive = 2);
        WRONG(stage, slot.isolate_blending = -1);
        WRONG(stage, slot.auto_forward = 1u << ESPER_GATE_G5);
        WRONG(stage, slot.n_seeds = -1);
        WRONG(stage, slot.stage = 5);
        WRONG(stage, slot.stage = ESPER_STAGE_UNKNOWN);
        WRONG(stage, slot.stage = 11);
        for (int other = 0; other < N_ALL; other++)
            if (all_stages[other] != stage)
                WRONG(stage, slot.stage = all_stages[other]);
        WRONG(stage, slot.previous_stage = ESPER_STAGE_UNKNOWN + (stage == ESPER_STAGE_DORMANT));
        WRONG(stage, slot.n_ticks = -1);
        WRONG(stage, slot.epochs_total = -1);
        WRONG(stage, slot.epochs_in_stage = slot.epochs_total + 1);
        WRONG(stage, slot.previous_epochs_in_stage = -1);
        WRONG(stage, slot.n_history++);
        WRONG(stage, slot.n_history = -1);
        WRONG(stage, slot.known = 16);
        WRONG(stage, slot.history[0].stage = ESPER_STAGE_TRAINING);
        WRONG(stage, slot.history[0].tick = slot.n_ticks + 1);
        WRONG(stage, slot.history[99].tick = 1);
        WRONG(stage, slot.alpha.value = (double)NAN);
        WRONG(stage, slot.alpha.start = -0.1);
        WRONG(stage, slot.alpha.target = 1.1);
        WRONG(stage, slot.alpha.steepness = 0.01);
        WRONG(stage, slot.alpha.mode = 3);
        WRONG(stage, slot.alpha.curve = 4);
        WRONG(stage, slot.alpha.n_done = slot.alpha.n_steps + 1);
        WRONG(stage, slot.alpha.mode = ESPER_ALPHA_DOWN);
        if (stage != ESPER_STAGE_BLENDING)
            WRONG(stage, slot.alpha.value = 0.5);
        if (!holds && stage != ESPER_STAGE_BLENDING)
            WRONG(stage, (slot.alpha.n_steps = 3, slot.alpha.n_done = 3));
        WRONG(stage, slot.seed_id[0] = slot.seed_id[0] != 0 ? '\0' : 'x');
        WRONG(stage, slot.seed_id[ESPER_SEED_ID_CHARS - 1] = 'x');
        WRONG(stage, slot.blueprint[ESPER_BLUEPRINT_CHARS - 2] = 'x');
        WRONG(stage, slot.blueprint_index = -1);
        WRONG(stage, slot.blend = 4);
        WRONG(stage, slot.ramp = 4);
        WRONG(stage, slot.tempo = -1);
        WRONG(stage, slot.target = 1.5);
        WRONG(stage, slot.host_params = -1);
        WRONG(stage, slot.seed_params = -1);
        WRONG(stage, slot.gate_params = -1);
        WRONG(stage, slot.acc_initial = (double)NAN);
        WRONG(stage, slot.alpha_downstream = (double)INFINITY);
        WRONG(stage, (slot.known &= ~(uint32_t)ESPER_KNOWN_RATIO, slot.grad_ratio = 1.0));
        WRONG(stage, (slot.known &= ~(uint32_t)ESPER_KNOWN_HEALTH, slot.grad_health = 1.0));
        WRONG(stage, (slot.known &= ~(uint32_t)ESPER_KNOWN_CONTRIBUTION, slot.contribution = 1.0));
        WRONG(stage, (slot.known &= ~(uint32_t)ESPER_KNOWN_PREVIOUS, slot.contribution_previous = 1.0));
        if (!cools)
            WRONG(stage, slot.blending_started = !slot.blending_started);
        WRONG(stage, slot.blending_started = 2);
        WRONG(stage, slot.vanishing = 2);
        WRONG(stage, slot.exploding = -1);
        WRONG(stage, slot.unhealthy = 3);
        WRONG(stage, slot.prune_pending = 1);
        WRONG(stage, slot.auto_pruned = cools ? 2 : 1);
        WRONG(stage, slot.prune_reason[ESPER_REASON_CHARS - 1] = 'x');
        WRONG(stage, slot.prune_initiator[ESPER_INITIATOR_CHARS - 1] = 'x');
    }
    WRONG(ESPER_STAGE_TRAINING, slot.n_seeds = 0);
    WRONG(ESPER_STAGE_EMBARGOED, slot.epochs_in_stage = slot.epochs_total = 5);
    WRONG(ESPER_STAGE_RESETTING, slot.epochs_in_stage = 1);
    WRONG(ESPER_STAGE_HOLDING, slot.history[1].stage = ESPER_STAGE_GERMINATED);
    WRONG(ESPER_STAGE_HOLDING, (slot.history[2].tick = 3, slot.history[3].tick = 2));
    WRONG(ESPER_STAGE_BLENDING, (slot.alpha.mode = ESPER_ALPHA_HOLD, slot.prune_pending = 1, slot.alpha.target = 0.0));
    WRONG(ESPER_STAGE_BLENDING, slot.alpha.n_done = slot.alpha.n_steps);
#undef WRONG
    assert_true(n > 500);
}

/* ------------------------------------------------------------------------------------------------------- the model */

/* The lifecycle once more, as small as it can be told: only stage, alpha's ramp and the counters. The seed of the model
 * passes a gate when the test says so (`wants`), for gates have tests of their own. */
typedef struct model {
    int    stage, total, in_stage;
    double alpha, start, target;
    int    mode, steps, done; /* mode -1 down, 0, +1 up; linear */
    double wish;
    int    tempo;
    bool   doomed; /* a prune is due at 0 */
} model;

static void model_go(model *m, int stage)
{
    m->stage = stage;
    m->in_stage = 0;
    if (stage == 6)
        m->alpha = m->start = m->target = 1.0, m->done = m->steps, m->mode = 0;
    if (stage == 8)
        m->alpha = m->start = m->target = 0.0, m->done = m->steps = m->mode = 0, m->doomed = false;
    if (stage == 1)
        *m = (model){.stage = 1};
}

static void model_aim(model *m, double target, int steps)
{
    m->start = m->alpha;
    m->target = target;
    m->mode = steps > 0 ? (target > m->alpha) - (target < m->alpha) : 0;
    m->steps = m->mode != 0 ? steps : 0;
    m->done = 0;
    if (m->mode == 0)
        m->alpha = target;
}

static bool model_alive(const model *m)
{
    return m->stage >= 2 && m->stage <= 7;
}

static bool model_germinate(model *m, double wish, int tempo)
{
    if (m->stage != 1)
        return false;
    *m = (model){.stage = 2, .wish = wish, .tempo = tempo};
    return true;
}

/* Permissive gates, with healthy gradients and a contribution known: what is left of them is this. */
static bool model_advance(model *m)
{
    switch (m->stage) {
    case 2:
        model_go(m, 3);
        return true;
    case 3:
        if (m->in_stage < 10)
            return false;
        model_go(m, 4);
        model_aim(m, m->wish, m->tempo);
        return true;
    case 4:
        if (m->mode != 0 || m->target < 1.0 - 1e-6 || fabs(m->alpha - m->target) > 1e-6)
            return false;
        model_go(m, 6);
        return true;
    case 6:
        model_go(m, 7);
        return true;
    default:
        return false;
    }
}

static bool model_prune(model *m)
{
    if (!model_alive(m) || m->stage == 7)
        return false;
    model_go(m, 8);
    return true;
}

static bool model_schedule(model *m, int steps)
{
    if (steps <= 0 || m->alpha <= 0.0 || (m->stage != 4 && m->stage != 6))
        return model_prune(m);
    if (m->mode != 0)
        return false;
    if (m->stage == 6)
        model_go(m, 4);
    model_aim(m, 0.0, steps);
    m->doomed = true;
    return true;
}

static bool model_retarget(model *m, double target, int steps)
{
    if ((m->stage != 4 && m->stage != 6) || m->mode != 0 || !(target > 0.0))
        return false;
    if (target > 1.0)
        target = 1.0;
    if (m->stage == 6 && target < 1.0 - 1e-6)
        model_go(m, 4);
    else if (m->stage == 6)
        target = 1.0;
    model_aim(m, target, steps);
    return true;
}

static void model_tick(model *m)
{
    if (m->stage == 4 && m->mode != 0) {
        m->done++;
        m->alpha = m->done == m->steps ? m->target : m->start + (m->target - m->start) * ((double)m->done / m->steps);
        if (m->done == m->steps)
            m->mode = 0;
        if (m->mode == 0 && m->doomed)
            model_go(m, 8);
    } else if (m->stage == 8) {
        model_go(m, 9);
    } else if (m->stage == 9 || m->stage == 10) {
        m->total++;
        if (++m->in_stage == (m->stage == 9 ? 5 : 1))
            model_go(m, m->stage == 9 ? 10 : 1);
    }
}

static void compare(const model *m, const esper_slot *slot, uint32_t sequence, int op)
{
    int mode = slot->alpha.mode == ESPER_ALPHA_UP ? 1 : slot->alpha.mode == ESPER_ALPHA_DOWN ? -1 : 0;

    if (m->stage != slot->stage || m->total != slot->epochs_total || m->in_stage != slot->epochs_in_stage ||
        fabs(m->alpha - slot->alpha.value) > 1e-12 || m->target != slot->alpha.target || m->mode != mode ||
        m->steps != slot->alpha.n_steps || m->done != slot->alpha.n_done)
        fail_msg("sequence %u, operation %d: %s, alpha %.17g to %g, %d of %d, epochs %d and %d; the model: stage %d, "
                 "alpha %.17g to %g, %d of %d, epochs %d and %d",
                 sequence, op, esper_stage_name(slot->stage), slot->alpha.value, slot->alpha.target, slot->alpha.n_done,
                 slot->alpha.n_steps, slot->epochs_total, slot->epochs_in_stage, m->stage, m->alpha, m->target, m->done,
                 m->steps, m->total, m->in_stage);
}

static void check_answer(esper_status status, bool model_did, uint32_t sequence, int op)
{
    if ((status == ESPER_OK) != model_did)
        fail_msg("sequence %u, operation %d: %s, the model %s", sequence, op, esper_status_name(status),
                 model_did ? "did it" : "refused");
}

/* One random operation on both. */
static void one_op(esper_rng *rng, esper_slot *slot, model *m, uint32_t sequence, int op)
{
    static const double targets[] = {0.5, 0.7, 1.0, 1.4, 0.9999995, 0.0, -0.5};
    static const int tempos[] = {3, 5, 8}, steps[] = {0, 3, 5, -1};
    double target = targets[esper_rng_below(rng, 7)];
    esper_alpha_ramp ramp = {steps[esper_rng_below(rng, 4)], ESPER_CURVE_LINEAR, 0.0};
    esper_gate_result result;
    esper_germination wanted;
    esper_slot before = *slot;

    switch (esper_rng_below(rng, 16)) {
    case 0:
    case 1:
        esper_germination_init(&wanted, "norm", 3);
        wanted.ramp = ESPER_RAMP_LINEAR;
        wanted.tempo = tempos[esper_rng_below(rng, 3)];
        wanted.target = target;
        check_answer(esper_slot_germinate(slot, &wanted, no_events_yet()),
                     target > 0.0 && target <= 1.0 && model_germinate(m, target, wanted.tempo), sequence, op);
        measure_gradient(slot);
        esper_slot_set_contribution(slot, 1.0);
        return; /* measuring has changed the slot: nothing to compare with `before` */
    case 2:
    case 3:
    case 4:
    case 5:
        check_good(esper_slot_advance(slot, -1, NULL, no_events_yet(), &result));
        if (result.passed != model_advance(m))
            fail_msg("sequence %u, operation %d: gate %s %d", sequence, op, result.checks[0].token, result.passed);
        if (result.passed)
            return;
        break;
    case 6:
        if (esper_rng_below(rng, 4) == 0) {
            check_answer(esper_slot_prune(slot, "governor_nan", "governor", no_events_yet()), model_prune(m), sequence,
                         op);
            return;
        }
        break;
    case 7:
        if (esper_rng_below(rng, 2) == 0) {
            check_answer(esper_slot_schedule_prune(slot, &ramp, "", NULL, no_events_yet()),
                         model_schedule(m, ramp.n_steps), sequence, op);
            return;
        }
        break;
    case 8:
        check_answer(esper_slot_set_alpha_target(slot, target, &ramp, 0, no_events_yet()),
                     model_retarget(m, target, ramp.n_steps), sequence, op);
        return;
    case 9:
    case 10: /* several epochs, so that gates open */
        for (uint32_t n = esper_rng_below(rng, 20); n > 0; n--) {
            check_good(esper_slot_record_accuracy(slot, 40.0 + esper_rng_below(rng, 50)));
            m->total += model_alive(m);
            m->in_stage += model_alive(m);
        }
        return;
    case 11: /* wherever a ramp has led */
        if (m->stage == 4) {
            m->alpha = fmin(1.0, fmax(0.0, target));
            slot->alpha.value = m->alpha;
            return;
        }
        break;
    default:
        esper_slot_tick(slot, NULL, no_events_yet());
        model_tick(m);
        return;
    }
    assert_memory_equal(&before, slot, sizeof(before)); /* nothing was done */
}

/* What every state shows, whatever led there. */
static void check_state(const esper_slot *slot)
{
    check_sound(slot);
    assert_true(slot->acc_best >= slot->acc_now);
    assert_true(slot->stage != ESPER_STAGE_GERMINATED || slot->alpha.value == 0.0);
    assert_true((slot->stage != ESPER_STAGE_HOLDING && slot->stage != ESPER_STAGE_FOSSILIZED) ||
                slot->alpha.value == 1.0);
    assert_int_equal(esper_slot_is_active(slot), esper_stage_has_seed(slot->stage));
    assert_true(events.n_dropped == 0);
}

static void test_random_sequences(void **state)
{
    enum { N_SEQUENCES = 100000, N_OPS = 32 };
    long n_visits[ESPER_STAGE_CODES] = {0};
    esper_slot empty = new_slot(true, 0);

    (void)state;
    for (uint32_t sequence = 0; sequence < N_SEQUENCES; sequence++) {
        esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST, .step = sequence};
        esper_slot slot = empty;
        model m = {.stage = 1};
        esper_rng rng;

        esper_rng_init(&rng, &key);
        no_events_yet();
        for (int op = 0; op < N_OPS; op++) {
            one_op(&rng, &slot, &m, sequence, op);
            compare(&m, &slot, sequence, op);
            check_state(&slot);
            n_visits[slot.stage]++;
        }
    }
    for (int i = 0; i < N_ALL; i++) {
        printf("%s: %ld states\n", esper_stage_name(all_stages[i]), n_visits[all_stages[i]]);
        assert_true(n_visits[all_stages[i]] > 3000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_fossils_stay),
        cmocka_unit_test(test_cooldown),
        cmocka_unit_test(test_other_lengths),
        cmocka_unit_test(test_ticks_alone),
        cmocka_unit_test(test_auto_forward),
        cmocka_unit_test(test_refused_germination),
        cmocka_unit_test(test_names_of_seeds),
        cmocka_unit_test(test_retargeting),
        cmocka_unit_test(test_scheduled_prune),
        cmocka_unit_test(test_accuracies),
        cmocka_unit_test(test_contributions),
        cmocka_unit_test(test_bad_gradients),
        cmocka_unit_test(test_merits),
        cmocka_unit_test(test_history_is_bounded),
        cmocka_unit_test(test_every_fault_is_found),
        cmocka_unit_test(test_random_sequences),
    };

    return cmocka_run_group_tests_name("slot/slot", tests, NULL, NULL);
}
