/* ctest: timeout=60 labels=golden */
/* The tracker: recorded signals, edges of plateau and settling, values that are no numbers, packing. */
#include "policy/helpers.h"
#include "policy/tracker.h"

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_steps, n_differences;

static esper_tracker recorded_tracker(const json_t *config)
{
    esper_tracker_options options;
    esper_tracker tracker;
    const char *key;
    json_t *value;

    esper_tracker_options_init(&options);
    json_object_foreach((json_t *)(uintptr_t)config, key, value) {
        if (strcmp(key, "stabilization_epochs") == 0)
            options.stable_epochs = (int)json_integer_value(value);
        else if (strcmp(key, "stabilization_threshold") == 0)
            options.stable_threshold = number_of(value);
        else if (strcmp(key, "history_window") == 0)
            options.window = (int)json_integer_value(value);
        else
            fail_msg("unknown setting %s", key);
    }
    check_good(esper_tracker_init(&tracker, &options));
    return tracker;
}

static int recorded_slots(const json_t *seeds, esper_policy_slot *slots)
{
    size_t i;
    json_t *seed;

    json_array_foreach((json_t *)(uintptr_t)seeds, i, seed) {
        esper_policy_slot *slot = &slots[i];

        esper_policy_slot_init(slot, ESPER_TOPOLOGY_CNN, "slot");
        snprintf(slot->seed, sizeof(slot->seed), "%s", text_of(seed, "seed_id"));
        slot->stage = stage_of(text_of(seed, "stage"));
        slot->epochs_in_stage = int_of(seed, "epochs_in_stage");
        slot->alpha = real_of(seed, "alpha");
        slot->contribution = real_of(seed, "contribution");
        slot->improvement = real_of(seed, "accuracy_now") - real_of(seed, "accuracy_at_stage_start");
    }
    return (int)json_array_size(seeds);
}

static void compare(const char *where, const char *what, double ours, double recorded)
{
    if (!is_near(ours, recorded)) {
        print_error("%s: %s %.17g, recorded %.17g\n", where, what, ours, recorded);
        n_differences++;
    }
}

static void compare_history(const char *where, const char *what, const double *ours, int n, const json_t *recorded)
{
    compare(where, what, n, (double)json_array_size(recorded));
    for (int i = 0; i < n && i < (int)json_array_size(recorded); i++)
        compare(where, what, ours[i], number_of(json_array_get(recorded, (size_t)i)));
}

static void compare_row(const char *where, const esper_signals *s, const json_t *row)
{
    assert_int_equal(json_array_size(row), 13); /* the last, the stable accuracy: rewards have it from their ledger */
    compare(where, "loss_delta", s->loss_delta, number_of(json_array_get(row, 0)));
    compare(where, "accuracy_delta", s->accuracy_delta, number_of(json_array_get(row, 1)));
    compare(where, "plateau_epochs", s->plateau_epochs, number_of(json_array_get(row, 2)));
    compare(where, "host_stabilized", s->host_stabilized, number_of(json_array_get(row, 3)));
    compare(where, "best accuracy", s->best_accuracy, number_of(json_array_get(row, 4)));
    compare(where, "best loss", s->best_loss, number_of(json_array_get(row, 5)));
    compare_history(where, "losses", s->losses, s->n_history, json_array_get(row, 6));
    compare_history(where, "accuracies", s->accuracies, s->n_history, json_array_get(row, 7));
    compare(where, "seed stage", s->seed_stage, number_of(json_array_get(row, 8)));
    compare(where, "seed epochs", s->seed_epochs_in_stage, number_of(json_array_get(row, 9)));
    compare(where, "seed alpha", s->seed_alpha, number_of(json_array_get(row, 10)));
    compare(where, "seed improvement", s->seed_improvement, number_of(json_array_get(row, 11)));
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *rows = json_object_get(json_object_get(entry, "out"), "after");
    const json_t *steps = json_object_get(in, "steps");
    esper_tracker tracker = recorded_tracker(json_object_get(in, "config"));

    assert_true(json_array_size(rows) == json_array_size(steps) && json_array_size(rows) > 0);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        int epoch = (int)json_integer_value(json_array_get(step, 0)), n;
        double loss = number_of(json_array_get(step, 1)), accuracy = number_of(json_array_get(step, 2));
        esper_policy_slot slots[8];
        esper_signals signals;
        char where[64];

        n = recorded_slots(json_array_get(step, 3), slots);
        check_good(esper_tracker_update(&tracker, epoch, loss, accuracy, slots, n, &signals));
        snprintf(where, sizeof(where), "case %d, step %zu", int_of(entry, "case"), i);
        compare_row(where, &signals, json_array_get(rows, i));
        n_steps++;
    }
}

static void recorded_signals(void **state)
{
    (void)state;
    golden_each_case("tracker", replay);
    printf("%d epochs compared\n", n_steps);
    assert_true(n_steps > 0);
    assert_int_equal(n_differences, 0);
}

/* ------------------------------------------------------------------------------------------------ edges */

static esper_signals update(esper_tracker *tracker, int epoch, double loss, double accuracy)
{
    esper_signals signals;

    check_good(esper_tracker_update(tracker, epoch, loss, accuracy, NULL, 0, &signals));
    return signals;
}

static void settling(void **state)
{
    /* From a loss of 100: falls by just below, exactly and above 3 %; rises by just below, exactly and above 5 %. */
    static const struct {
        double loss;
        bool   stable;
    } rows[] = {{97.0001, true}, {97.0, false}, {96.0, false},        {104.9999, true},         {105.0, false},
                {106.0, false},  {100.0, true}, {(double)NAN, false}, {(double)INFINITY, false}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        esper_tracker tracker;
        esper_signals signals;

        check_good(esper_tracker_init(&tracker, &(esper_tracker_options){0.5, 10, 0.03, 0.05, 1}));
        assert_false(update(&tracker, 1, 100.0, 50).host_stabilized);
        signals = update(&tracker, 2, rows[i].loss, 50);
        if (signals.host_stabilized != rows[i].stable || signals.just_stabilized != rows[i].stable)
            fail_msg("loss 100 then %g: settled %d, just now %d, expected %d", rows[i].loss, signals.host_stabilized,
                     signals.just_stabilized, rows[i].stable);
    }
}

/* Three stable epochs after the first; once settled it stays so; a reset begins anew. */
static void settling_is_for_good(void **state)
{
    esper_tracker tracker;

    (void)state;
    check_good(esper_tracker_init(&tracker, NULL));
    for (int epoch = 1; epoch <= 3; epoch++)
        assert_false(update(&tracker, epoch, 1.0, 50).host_stabilized);
    assert_true(update(&tracker, 4, 1.0, 50).just_stabilized);
    for (int epoch = 5; epoch <= 8; epoch++) {
        esper_signals signals = update(&tracker, epoch, epoch, 50);

        assert_true(signals.host_stabilized);
        assert_false(signals.just_stabilized);
    }
    check_good(esper_tracker_init(&tracker, &(esper_tracker_options){0.5, 10, 0.03, 0.05, 0}));
    assert_true(update(&tracker, 1, 1.0, 50).host_stabilized);
}

/* A loss of nearly nothing neither counts nor resets. */
static void tiny_losses(void **state)
{
    esper_tracker tracker;

    (void)state;
    check_good(esper_tracker_init(&tracker, NULL));
    for (int epoch = 1; epoch <= 3; epoch++)
        update(&tracker, epoch, 1.0, 50);
    update(&tracker, 4, 1e-8, 50); /* falls by nearly all: not stable, the count begins anew */
    assert_int_equal(tracker.state.stable_epochs, 0);
    update(&tracker, 5, 1.0, 50);
    update(&tracker, 6, 1.0, 50);
    assert_int_equal(tracker.state.stable_epochs, 1);
    tracker.state.prev_loss = 1e-9;
    update(&tracker, 7, 1.0, 50);
    assert_int_equal(tracker.state.stable_epochs, 1);
}

static void no_numbers(void **state)
{
    esper_tracker tracker;
    esper_signals signals;

    (void)state;
    check_good(esper_tracker_init(&tracker, NULL));
    update(&tracker, 1, 1.0, 50);
    signals = update(&tracker, 2, (double)NAN, (double)NAN);
    assert_int_equal(signals.plateau_epochs, 1); /* never looks like progress */
    assert_true(signals.best_accuracy == 50 && signals.best_loss == 1.0);
    signals = update(&tracker, 3, (double)INFINITY, 60);
    assert_int_equal(signals.plateau_epochs, 2);
    assert_true(signals.best_accuracy == 60 && signals.best_loss == 1.0);
    assert_int_equal(update(&tracker, 4, 0.5, 60.5).plateau_epochs, 0);
    assert_int_equal(update(&tracker, 5, 0.5, 60.9).plateau_epochs, 1);
    assert_int_equal(update(&tracker, 6, 0.5, 10.0).plateau_epochs, 2);
}

static void suspicious_scales(void **state)
{
    esper_tracker tracker;

    (void)state;
    check_good(esper_tracker_init(&tracker, NULL));
    assert_true(update(&tracker, 1, 1.0, 0.7).scale_suspect);
    assert_true(update(&tracker, 2, 1.0, 1.0).scale_suspect);
    assert_true(update(&tracker, 3, 1.0, 100.5).scale_suspect);
    assert_false(update(&tracker, 4, 1.0, 100.0).scale_suspect);
    assert_false(update(&tracker, 5, 1.0, 0.0).scale_suspect);
    assert_false(update(&tracker, 0, 1.0, 0.7).scale_suspect);
}

static void refusals(void **state)
{
    esper_policy_slot slots[2];
    esper_tracker tracker, before;
    esper_signals signals = {.plateau_epochs = 77};

    (void)state;
    check_fails(esper_tracker_init(&tracker, &(esper_tracker_options){0.5, 0, 0.03, 0.05, 3}), ESPER_E_ARG, "not 0");
    check_fails(esper_tracker_init(&tracker, &(esper_tracker_options){0.5, 65, 0.03, 0.05, 3}), ESPER_E_ARG, "not 65");
    check_fails(esper_tracker_init(&tracker, &(esper_tracker_options){0.5, 9, 0.03, 0.05, -1}), ESPER_E_ARG, "-1");
    check_fails(esper_tracker_init(&tracker, &(esper_tracker_options){(double)NAN, 9, 0.03, 0.05, 1}), ESPER_E_ARG,
                "not a number");
    check_good(esper_tracker_init(&tracker, NULL));
    for (int i = 0; i < 2; i++) {
        esper_policy_slot_init(&slots[i], ESPER_TOPOLOGY_CNN, i == 0 ? "r0c0" : "r0c1");
        slots[i].stage = ESPER_STAGE_TRAINING;
        strcpy(slots[i].seed, "twin");
    }
    before = tracker;
    check_fails(esper_tracker_update(&tracker, 1, 1.0, 50, slots, 2, &signals), ESPER_E_ARG, "r0c0 and r0c1");
    assert_memory_equal(&tracker, &before, sizeof(tracker));
    assert_int_equal(signals.plateau_epochs, 77);
    slots[1].stage = ESPER_STAGE_EMBARGOED; /* no seed is there any more */
    check_good(esper_tracker_update(&tracker, 1, 1.0, 50, slots, 2, &signals));
    assert_int_equal(signals.seed_stage, ESPER_STAGE_TRAINING);
}

/* A tracker that was packed half-way goes on as the other does; every damaged byte and every cut is noticed. */
static void packing(void **state)
{
    char memory[ESPER_TRACKER_PACK_BYTES];
    esper_tracker tracker, copy, before;
    esper_signals a, b;

    (void)state;
    check_good(esper_tracker_init(&tracker, NULL));
    check_good(esper_tracker_init(&copy, NULL));
    for (int epoch = 1; epoch <= 14; epoch++)
        update(&tracker, epoch, 2.0 / epoch, 40 + epoch % 5);
    esper_tracker_pack(&tracker, memory);
    before = copy;
    for (size_t i = 0; i < sizeof(memory); i++) {
        memory[i] ^= 0x10;
        if (esper_tracker_unpack(&copy, memory, sizeof(memory)) != ESPER_E_FORMAT)
            fail_msg("byte %zu of %zu was damaged and nobody noticed", i, sizeof(memory));
        memory[i] ^= 0x10;
    }
    for (size_t n = 0; n < sizeof(memory); n++)
        assert_int_equal(esper_tracker_unpack(&copy, memory, n), ESPER_E_FORMAT);
    assert_memory_equal(&copy, &before, sizeof(copy));
    check_good(esper_tracker_unpack(&copy, memory, sizeof(memory)));
    for (int epoch = 15; epoch <= 20; epoch++) {
        a = update(&tracker, epoch, 0.1, 45);
        b = update(&copy, epoch, 0.1, 45);
        assert_memory_equal(&a, &b, sizeof(a));
    }
    check_good(esper_tracker_init(&copy, &(esper_tracker_options){0.5, 5, 0.03, 0.05, 3}));
    check_fails(esper_tracker_unpack(&copy, memory, sizeof(memory)), ESPER_E_FORMAT, "window of 5");
}

static void pace(void **state)
{
    esper_tracker_options options, before;

    (void)state;
    esper_tracker_options_init(&options);
    before = options;
    esper_tracker_options_pace(&options, 10);
    assert_memory_equal(&options, &before, sizeof(options));
    esper_tracker_options_pace(&options, 4);
    assert_int_equal(options.stable_epochs, 2);
    assert_int_equal(options.window, before.window);
    assert_true(fabs(pow(1.0 - options.stable_threshold, 4.0) - pow(0.97, 10.0)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_signals), cmocka_unit_test(settling),   cmocka_unit_test(settling_is_for_good),
        cmocka_unit_test(tiny_losses),      cmocka_unit_test(no_numbers), cmocka_unit_test(suspicious_scales),
        cmocka_unit_test(refusals),         cmocka_unit_test(packing),    cmocka_unit_test(pace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
