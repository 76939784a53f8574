/* ctest: labels=golden */
/* What a learned policy sees: recorded vectors, the table against the vector, readings that are not finite, and what is
 * remembered from step to step. */
#include "policy/helpers.h"

#include "policy/features.h"

enum { MAX_FEATURES = ESPER_FEATURES_RUN + ESPER_FEATURES_SLOT * ESPER_POLICY_MAX_SLOTS };

/* What was recorded stands first among what is seen now: of the run, and of each slot. */
enum { RECORDED_RUN = 23, RECORDED_SLOT = 31 };

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_compared, n_mismatches;
static double worst;

static void recorded_slot(const json_t *report, esper_policy_slot *slot)
{
    const json_t *telemetry = json_object_get(report, "telemetry");

    slot->stage = stage_of(text_of(report, "stage"));
    slot->blueprint = int_of(report, "blueprint_index");
    slot->alpha = real_of(report, "alpha");
    slot->contribution = real_of(report, "contribution");
    slot->contribution_velocity = real_of(report, "contribution_velocity");
    slot->tempo = int_of(report, "tempo");
    slot->alpha_target = real_of(report, "alpha_target");
    slot->alpha_mode = int_of(report, "alpha_mode");
    slot->alpha_steps = int_of(report, "alpha_steps_total");
    slot->alpha_done = int_of(report, "alpha_steps_done");
    slot->alpha_velocity = real_of(report, "alpha_velocity");
    slot->blend = (esper_blend)int_of(report, "operator");
    slot->interaction = real_of(report, "interaction_sum");
    slot->epochs_in_stage = int_of(report, "epochs_in_stage");
    slot->epochs_total = int_of(report, "epochs_total");
    if (!json_is_object(telemetry))
        return;
    slot->gradient_norm = real_of(telemetry, "gradient_norm");
    slot->gradient_health = real_of(telemetry, "gradient_health");
    slot->vanishing = json_is_true(json_object_get(telemetry, "has_vanishing"));
    slot->exploding = json_is_true(json_object_get(telemetry, "has_exploding"));
}

/* A view holds the newest few. */
static void recorded_history(const json_t *losses, const json_t *accuracies, esper_signals *signals)
{
    size_t n = json_array_size(losses), first = n > ESPER_POLICY_HISTORY ? n - ESPER_POLICY_HISTORY : 0;

    signals->n_history = (int)(n - first);
    for (size_t i = first; i < n; i++) {
        signals->losses[i - first] = number_of(json_array_get(losses, i));
        signals->accuracies[i - first] = number_of(json_array_get(accuracies, i));
    }
}

static void recorded_view(const json_t *in, scene *s, esper_feature_memory *memory)
{
    const json_t *order = json_object_get(in, "slot_order"), *signals = json_object_get(in, "signals");
    const json_t *tracking = json_object_get(in, "tracking"), *last = json_object_get(in, "last_action");
    const json_t *losses = json_object_get(signals, "loss_history");
    const json_t *accuracies = json_object_get(signals, "accuracy_history");
    const json_t *health = json_object_get(tracking, "gradient_health_prev");
    const json_t *since = json_object_get(tracking, "epochs_since_contribution");

    set_scene(s, ESPER_TOPOLOGY_CNN);
    esper_feature_memory_init(memory);
    s->view.n_slots = (int)json_array_size(order);
    s->view.epoch = int_of(signals, "epoch");
    s->view.max_epochs = int_of(in, "max_epochs");
    s->view.loss_valid = real_of(signals, "val_loss");
    s->view.accuracy_valid = real_of(signals, "val_accuracy");
    recorded_history(losses, accuracies, &s->view.signals);
    memory->last_op = int_of(last, "op");
    memory->last_success = json_is_true(json_object_get(last, "success"));
    for (int i = 0; i < s->view.n_slots; i++) {
        const char *id = json_string_value(json_array_get(order, (size_t)i));
        const json_t *report = json_object_get(json_object_get(in, "slots"), id);

        esper_policy_slot_init(&s->slots[i], s->view.topology, id);
        if (json_is_object(report))
            recorded_slot(report, &s->slots[i]);
        if (json_object_get(health, id) != NULL)
            memory->health[i] = real_of(health, id);
        if (json_object_get(since, id) != NULL)
            memory->since[i] = int_of(since, id);
    }
}

static void expect(const json_t *entry, const char *what, size_t at, double ours, double recorded)
{
    double miss = fabs(ours - recorded) / fmax(1.0, fabs(recorded));

    worst = fmax(worst, miss);
    if (miss <= 1e-5)
        return;
    print_error("case %d: %s %zu: %.9g, recorded %.9g\n", int_of(entry, "case"), what, at, ours, recorded);
    n_mismatches++;
}

/* Recorded with a DORMANT stage and yet a report: a slot of ours is empty then, and all zeros. */
static bool is_emptied(const json_t *in, const esper_policy_slot *slot)
{
    return slot->stage == ESPER_STAGE_DORMANT &&
           json_is_object(json_object_get(json_object_get(in, "slots"), slot->id));
}

/* Recorded as refused: for a health of NaN, which is "not measured" here, and for nothing else. */
static void check_health(const json_t *entry, const scene *s, const float *ours)
{
    int n_nan = 0;

    for (int i = 0; i < s->view.n_slots; i++)
        if (isnan(s->slots[i].gradient_health)) {
            assert_true(ours[esper_features_count(i) + ESPER_FEATURE_HEALTH] == 0.0f);
            n_nan++;
        }
    if (n_nan == 0)
        fail_msg("case %d: recorded as refused, and no health is NaN", int_of(entry, "case"));
    difference_met(DIFFERENCE_HEALTH, entry);
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    const json_t *obs = json_object_get(out, "obs"), *indices = json_object_get(out, "blueprint_indices");
    float ours[MAX_FEATURES];
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS];
    esper_feature_memory memory;
    scene s;
    int n_bad;

    recorded_view(in, &s, &memory);
    check_good(esper_features_fill(&s.view, &memory, s.view.n_slots, ours, blueprints, &n_bad));
    if (json_is_true(json_object_get(out, "error"))) {
        check_health(entry, &s, ours);
        return;
    }
    n_compared++;
    assert_int_equal(json_array_size(obs), RECORDED_RUN + RECORDED_SLOT * s.view.n_slots);
    difference_met(DIFFERENCE_PROPERTIES, entry);
    for (size_t i = 0; i < RECORDED_RUN; i++)
        expect(entry, "of the run", i, (double)ours[i], number_of(json_array_get(obs, i)));
    for (int k = 0; k < s.view.n_slots; k++) {
        size_t from = (size_t)esper_features_count(k), at = RECORDED_RUN + RECORDED_SLOT * (size_t)k;
        bool emptied = is_emptied(in, &s.slots[k]);

        if (emptied) /* compared with what the list says */
            difference_met(DIFFERENCE_DORMANT, entry);
        for (size_t i = 0; i < RECORDED_SLOT; i++)
            expect(entry, "of a slot", i, (double)ours[from + i],
                   emptied ? 0.0 : number_of(json_array_get(obs, at + i)));
        expect(entry, "blueprint", (size_t)k, blueprints[k],
               emptied ? -1.0 : number_of(json_array_get(indices, (size_t)k)));
    }
}

static void recorded_vectors(void **state)
{
    (void)state;
    golden_each_case("features", replay);
    printf("%d vectors compared, at most %.1g off\n", n_compared, worst);
    difference_say("features");
    assert_int_equal(n_mismatches, 0);
    assert_true(n_compared > 0);
}

/* ------------------------------------------------------------------------------------------------ the table */

/* It covers the vector without gap or overlap, and says something about everything. */
static void table_is_whole(void **state)
{
    const esper_feature *list;
    int n, next = 0;
    uint8_t how[MAX_FEATURES];

    (void)state;
    list = esper_feature_list(&n);
    for (int i = 0; i < n; i++) {
        if (list[i].group == ESPER_FEATURE_SLOT && list[i - 1].group == ESPER_FEATURE_TASK) {
            assert_int_equal(next, ESPER_FEATURES_RUN);
            next = 0;
        }
        assert_int_equal(list[i].at, next);
        assert_true(list[i].n > 0 && list[i].name[0] != '\0' && list[i].range[0] != '\0' && list[i].about[0] != '\0');
        for (int j = 0; j < i; j++)
            assert_string_not_equal(list[i].name, list[j].name);
        next += list[i].n;
    }
    assert_int_equal(next, ESPER_FEATURES_SLOT);
    assert_int_equal(esper_features_count(3), ESPER_FEATURES_RUN + 3 * ESPER_FEATURES_SLOT);
    assert_int_equal(ESPER_FEATURE_LAST_OP + ESPER_SLOT_OP_TRY, RECORDED_RUN); /* which came later */
    assert_int_equal(ESPER_FEATURE_SEED_EPOCHS_END + 1, RECORDED_SLOT);
    memset(how, 9, sizeof(how));
    esper_features_how(how);
    for (int i = 0; i < ESPER_FEATURES_RUN; i++) {
        bool measured = (i >= ESPER_FEATURE_LOSS && i <= ESPER_FEATURE_ACCURACIES_END) ||
                        (i >= ESPER_FEATURE_LOSS_TRAIN && i <= ESPER_FEATURE_ACCURACY_BEST);

        assert_int_equal(how[i], measured ? ESPER_NORM_OR_MISSING : ESPER_NORM_AS_IS);
    }
    assert_int_equal(how[ESPER_FEATURES_RUN], 9);
}

/* ------------------------------------------------------------------------------------------------ slots */

/* Where a slot stands in the view says nothing: what is said of it goes with it; and room for more of them holds zeros. */
static void slots_are_their_properties(void **state)
{
    float obs[MAX_FEATURES], turned[MAX_FEATURES];
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS], turned_blueprints[ESPER_POLICY_MAX_SLOTS];
    esper_feature_memory memory;
    esper_policy_slot first;
    int n_bad;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_feature_memory_init(&memory);
    put_seed(&s, 0, ESPER_STAGE_HOLDING, "norm");
    s.slots[1].blueprints = 0;
    s.slots[1].cooldown_left = 3;
    s.slots[2].evidence = 2.0;
    s.slots[2].params_before = 0.25;
    s.slots[2].flops_before = 0.5;
    check_good(esper_features_fill(&s.view, &memory, 5, obs, blueprints, &n_bad));
    assert_int_equal(n_bad, 0);
    first = s.slots[0];
    s.slots[0] = s.slots[2];
    s.slots[2] = first;
    check_good(esper_features_fill(&s.view, &memory, 5, turned, turned_blueprints, &n_bad));
    assert_memory_equal(obs, turned, ESPER_FEATURES_RUN * sizeof(float));
    for (int k = 0; k < 5; k++) {
        const float *slot = obs + esper_features_count(k);
        int other = k < 3 ? 2 - k : k;

        assert_memory_equal(slot, turned + esper_features_count(other), ESPER_FEATURES_SLOT * sizeof(float));
        assert_int_equal(blueprints[k], turned_blueprints[other]);
        assert_true(slot[ESPER_FEATURE_THERE] == (k < 3 ? 1.0f : 0.0f));
        for (int i = 0; i < ESPER_FEATURES_SLOT && k >= 3; i++)
            assert_true(slot[i] == 0.0f);
    }
    assert_true(obs[esper_features_count(0) + ESPER_FEATURE_PRESENT] == 1.0f);
    assert_true(obs[esper_features_count(0) + ESPER_FEATURE_OPEN] == 0.0f);
    assert_true(obs[esper_features_count(1) + ESPER_FEATURE_OPEN] == 0.0f);
    assert_true(obs[esper_features_count(1) + ESPER_FEATURE_COOLDOWN] == 0.25f);
    assert_true(obs[esper_features_count(1) + ESPER_FEATURE_EVIDENCE] == -1.0f);
    assert_true(obs[esper_features_count(2) + ESPER_FEATURE_OPEN] == 1.0f);
    assert_true(obs[esper_features_count(2) + ESPER_FEATURE_EVIDENCE] == 1.0f);
    assert_true(obs[esper_features_count(2) + ESPER_FEATURE_FLOPS_BEFORE] == 0.5f);
    assert_true(obs[esper_features_count(2) + ESPER_FEATURE_WIDTH] == 1.0f);
    assert_true(obs[ESPER_FEATURE_TOPOLOGY] == 1.0f && obs[ESPER_FEATURE_TOPOLOGY_END] == 0.0f);
    check_fails(esper_features_fill(&s.view, &memory, 2, obs, blueprints, &n_bad), ESPER_E_ARG, "room for 2");
}

/* What forks of a slot have shown, and no trial blend. */
static void forks_are_of_the_slot(void **state)
{
    float obs[MAX_FEATURES], *slot = obs + esper_features_count(1);
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS];
    esper_feature_memory memory;
    int n_bad;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_feature_memory_init(&memory);
    s.view.forks_left = 0.25;
    s.slots[1].fork_share = 0.125;
    check_good(esper_features_fill(&s.view, &memory, 3, obs, blueprints, &n_bad));
    assert_true(obs[ESPER_FEATURE_FORKS_LEFT] == 0.25f && slot[ESPER_FEATURE_FORK_SHARE] == 0.125f);
    for (int i = ESPER_FEATURE_FORKED; i < ESPER_FEATURE_FORK_SHARE; i++)
        assert_true(slot[i] == 0.0f); /* none was held */
    s.slots[1].fork_blueprint = 3;
    s.slots[1].fork_gain = 0.1;
    s.slots[1].fork_error = 0.04;
    s.slots[1].fork_epochs = 250;
    s.slots[1].fork_stands = true;
    memory.last_op = ESPER_SLOT_OP_TRY;
    for (int filled = 0; filled < 2; filled++) { /* also when something has grown there since */
        check_good(esper_features_fill(&s.view, &memory, 3, obs, blueprints, &n_bad));
        assert_true(obs[ESPER_FEATURE_LAST_OP_END] == 1.0f);
        assert_true(slot[ESPER_FEATURE_FORKED] == 1.0f && slot[ESPER_FEATURE_FORK_GAIN] == 0.5f);
        assert_true(slot[ESPER_FEATURE_FORK_CERTAINTY] == 0.5f && slot[ESPER_FEATURE_FORK_AGE] == 0.25f);
        assert_true(slot[ESPER_FEATURE_FORK_STANDS] == 1.0f && slot[ESPER_FEATURE_TRIED] == 0.0f);
        for (int i = 0; i < 13; i++)
            assert_true(slot[ESPER_FEATURE_FORK_BLUEPRINT + i] == (i == 3 ? 1.0f : 0.0f));
        put_seed(&s, 1, ESPER_STAGE_TRAINING, "norm");
    }
    s.slots[1].fork_gain = s.slots[1].fork_error = NAN; /* what cannot be trained is no bad reading */
    s.slots[1].fork_blueprint = ESPER_POLICY_BLUEPRINTS - 1;
    check_good(esper_features_fill(&s.view, &memory, 3, obs, blueprints, &n_bad));
    assert_int_equal(n_bad, 0);
    assert_true(slot[ESPER_FEATURE_FORK_GAIN] == -1.0f && slot[ESPER_FEATURE_FORK_CERTAINTY] == 0.0f);
    assert_true(slot[ESPER_FEATURE_FORK_BLUEPRINT] == 1.0f);
}

/* ------------------------------------------------------------------------------------------------ not finite */

static void bad_readings(void **state)
{
    double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1e300};
    float obs[MAX_FEATURES];
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS];
    esper_feature_memory memory;
    int n_bad;
    scene s;

    (void)state;
    for (int i = 0; i < 4; i++) {
        esper_policy_slot *slot;

        set_scene(&s, ESPER_TOPOLOGY_CNN);
        esper_feature_memory_init(&memory);
        slot = put_seed(&s, 1, ESPER_STAGE_BLENDING, "norm");
        s.view.loss_valid = s.view.accuracy_valid = bad[i];
        s.view.signals.n_history = 2;
        s.view.signals.losses[1] = bad[i];
        slot->alpha = slot->contribution = slot->interaction = slot->gradient_norm = slot->gradient_health = bad[i];
        slot->contribution_velocity = slot->alpha_velocity = bad[i];
        check_good(esper_features_fill(&s.view, &memory, s.view.n_slots, obs, blueprints, &n_bad));
        assert_true(n_bad > 0);
        for (int k = 0; k < esper_features_count(N_SLOTS); k++)
            assert_true(isfinite(obs[k]));
        assert_true(obs[ESPER_FEATURE_ACCURACY] == -1.0f);
        assert_int_equal(blueprints[1], slot->blueprint);
        assert_int_equal(blueprints[0], -1);
    }
    set_scene(&s, ESPER_TOPOLOGY_TRANSFORMER);
    put_seed(&s, 1, ESPER_STAGE_BLENDING,
             "layer"); /* no row of the table is its own, and the last is an empty slot's */
    check_good(esper_features_fill(&s.view, &memory, s.view.n_slots, obs, blueprints, &n_bad));
    assert_int_equal(blueprints[1], 0);
    memory.last_op = 7;
    check_fails(esper_features_fill(&s.view, &memory, s.view.n_slots, obs, blueprints, &n_bad), ESPER_E_ARG,
                "last operation is 7");
    memory.last_op = 0;
    s.slots[0].stage = 5;
    check_fails(esper_features_fill(&s.view, &memory, s.view.n_slots, obs, blueprints, &n_bad), ESPER_E_ARG,
                "5 is no stage");
}

/* ------------------------------------------------------------------------------------------------ memory */

static void see(const scene *s, const esper_feature_memory *memory, float *slot_out)
{
    float obs[MAX_FEATURES];
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS];
    int n_bad;

    check_good(esper_features_fill(&s->view, memory, s->view.n_slots, obs, blueprints, &n_bad));
    memcpy(slot_out, obs + esper_features_count(1), ESPER_FEATURES_SLOT * sizeof(*obs));
}

/* Never measured is not "just measured", however many epochs pass; and an emptied slot is forgotten. */
static void what_is_remembered(void **state)
{
    esper_feature_memory memory;
    float slot[ESPER_FEATURES_SLOT];
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_feature_memory_init(&memory);
    put_seed(&s, 1, ESPER_STAGE_BLENDING, "norm");
    for (int i = 0; i < 3; i++) {
        see(&s, &memory, slot);
        assert_true(slot[ESPER_FEATURE_FRESHNESS] == -1.0f && slot[ESPER_FEATURE_HEALTH_BEFORE] == -1.0f);
        esper_feature_memory_step(&memory, &s.view, ESPER_SLOT_OP_WAIT, true);
    }
    s.slots[1].measured = true;
    esper_feature_memory_begin(&memory, &s.view);
    see(&s, &memory, slot);
    assert_true(slot[ESPER_FEATURE_FRESHNESS] == 1.0f);
    s.slots[1].gradient_health = 0.75;
    esper_feature_memory_step(&memory, &s.view, ESPER_SLOT_OP_ADVANCE, false);
    see(&s, &memory, slot);
    assert_true(slot[ESPER_FEATURE_FRESHNESS] == 0.995f && slot[ESPER_FEATURE_HEALTH_BEFORE] == 0.75f);
    assert_int_equal(memory.last_op, ESPER_SLOT_OP_ADVANCE);
    assert_int_equal(memory.last_success, 0);
    s.slots[1].stage = ESPER_STAGE_DORMANT;
    esper_feature_memory_step(&memory, &s.view, ESPER_SLOT_OP_GERMINATE, true);
    assert_true(isnan(memory.health[1]) && memory.since[1] == -1);
    s.view.rolled_back = true;
    esper_feature_memory_begin(&memory, &s.view);
    assert_int_equal(memory.last_op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(memory.last_success, 0);
}

/* Behind all others: new channels stay in the process. */
static void another_runs_blueprints(void **state)
{
    esper_feature_memory memory;
    float before[ESPER_FEATURES_SLOT], after[ESPER_FEATURES_SLOT];
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_feature_memory_init(&memory);
    s.slots[1].blueprints = 0x6;
    see(&s, &memory, before);
    esper_blueprint_add_wide();
    see(&s, &memory, after);
    assert_true(before[ESPER_FEATURE_N_BLUEPRINTS] > 0.0f && before[ESPER_FEATURE_N_BLUEPRINTS] < 1.0f);
    assert_memory_equal(before, after, sizeof(before));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_vectors),
        cmocka_unit_test(table_is_whole),
        cmocka_unit_test(slots_are_their_properties),
        cmocka_unit_test(forks_are_of_the_slot),
        cmocka_unit_test(bad_readings),
        cmocka_unit_test(what_is_remembered),
        cmocka_unit_test(another_runs_blueprints),
    };

    return cmocka_run_group_tests_name("policy/features", tests, NULL, NULL);
}
