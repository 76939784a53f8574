/* ctest: timeout=60 labels=golden */
/* The heuristic policy: recorded decisions, and what we do otherwise on purpose.
 *
 * Recorded rules have other numbers and no limits; `recorded_settings` sets them, and every decision, reason, confidence and
 * all it remembers must then be as recorded. One deliberate difference remains. */
#include "policy/helpers.h"

#include "policy/pack.h"

/* ------------------------------------------------------------------------------------------------ recorded */

/* What the recorded rules had where ours are treated:
 *   setting             recorded   ours    why
 *   penalty_decay       0.5        0.98    gone before the embargo ended
 *   penalty_threshold   3          1       above the penalty of one prune
 *   holding_epochs      none       10      HOLDING without a measurement went on for ever
 *   training_epochs     none       30      likewise for a seed that the gate never lets pass
 * The slot of a germination was not recorded: it was always the first empty one, ours goes by evidence. */
static void recorded_settings(esper_heuristic_settings *settings, esper_topology topology)
{
    esper_heuristic_settings_init(settings, topology);
    settings->penalty_decay = 0.5;
    settings->penalty_threshold = 3.0;
    settings->holding_epochs = 0;
    settings->training_epochs = 0;
}

/* Recorded as an error, and none here. */
static bool is_default_transformer(const json_t *in)
{
    return strcmp(text_of(in, "topology"), "transformer") == 0 &&
           json_object_get(json_object_get(in, "config"), "blueprint_rotation") == NULL;
}

static int n_steps, n_differences, n_refused;

static int index_anywhere(const char *name)
{
    for (int t = 0; t < 2; t++) {
        const esper_blueprint *const *list = esper_blueprint_list((esper_topology)t);

        for (int i = 0; list[i] != NULL; i++)
            if (strcmp(list[i]->name, name) == 0)
                return list[i]->index;
    }
    fail_msg("no blueprint is called %s", name);
    return -1;
}

static void set_rotation(esper_heuristic_settings *settings, const json_t *names)
{
    settings->n_rotation = (int)json_array_size(names);
    for (size_t i = 0; i < json_array_size(names); i++)
        settings->rotation[i] = index_anywhere(json_string_value(json_array_get(names, i)));
}

static esper_status open_recorded(const json_t *in, esper_policy **policy_out)
{
    bool cnn = strcmp(text_of(in, "topology"), "cnn") == 0;
    esper_policy_setup setup = plain_setup();
    esper_heuristic_settings settings;
    const char *key;
    json_t *value;

    setup.topology = cnn ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER;
    recorded_settings(&settings, setup.topology);
    json_object_foreach(json_object_get(in, "config"), key, value) {
        if (strcmp(key, "blueprint_penalty_threshold") == 0)
            settings.penalty_threshold = number_of(value);
        else if (strcmp(key, "blueprint_penalty_decay") == 0)
            settings.penalty_decay = number_of(value);
        else if (strcmp(key, "embargo_epochs_after_prune") == 0)
            settings.embargo_epochs = (int)json_integer_value(value);
        else if (strcmp(key, "blueprint_rotation") == 0)
            set_rotation(&settings, value);
        else
            fail_msg("unknown setting %s", key);
    }
    setup.heuristic = &settings;
    return esper_policy_open("heuristic", &setup, policy_out);
}

/* Seeds in their order, then the empty slots. */
static void recorded_view(const json_t *step, esper_topology topology, scene *s)
{
    const json_t *seeds = json_object_get(step, "seeds");
    int n_seeds = (int)json_array_size(seeds), n_empty = int_of(step, "available_slots");

    set_scene(s, topology);
    s->view.epoch = int_of(step, "epoch");
    s->view.signals.host_stabilized = int_of(step, "host_stabilized") != 0;
    s->view.signals.plateau_epochs = int_of(step, "plateau_epochs");
    s->view.n_slots = n_seeds + n_empty;
    for (int i = 0; i < s->view.n_slots; i++) {
        esper_policy_slot *slot = &s->slots[i];
        const json_t *seed = json_array_get(seeds, (size_t)i);

        esper_policy_slot_init(slot, topology, "slot");
        if (i >= n_seeds)
            continue;
        snprintf(slot->seed, sizeof(slot->seed), "%s", text_of(seed, "seed_id"));
        slot->stage = stage_of(text_of(seed, "stage"));
        slot->blueprint = index_anywhere(text_of(seed, "blueprint"));
        slot->epochs_in_stage = int_of(seed, "epochs_in_stage");
        slot->improvement = real_of(seed, "accuracy_now") - real_of(seed, "accuracy_at_stage_start");
        slot->improvement_total = real_of(seed, "accuracy_now") - real_of(seed, "accuracy_initial");
        slot->alpha = real_of(seed, "alpha");
        slot->alpha_target = real_of(seed, "alpha_target");
        slot->alpha_mode = mode_of(text_of(seed, "alpha_mode"));
        slot->contribution = real_of(seed, "contribution");
    }
    if (s->view.n_slots == 0) { /* no slot at all is no view: one that rests says the same */
        esper_policy_slot_init(&s->slots[0], topology, "slot");
        s->slots[0].stage = ESPER_STAGE_EMBARGOED;
        s->view.n_slots = 1;
    }
}

/* "GERMINATE_CONV_LIGHT" */
static void recorded_name(const esper_decision *decision, esper_topology topology, char text[64])
{
    const char *op = esper_slot_op_name(decision->op);
    int n;

    if (decision->op == ESPER_SLOT_OP_GERMINATE)
        n = snprintf(text, 64, "%s_%s", op, esper_policy_blueprint(topology, decision->blueprint)->name);
    else
        n = snprintf(text, 64, "%s", op);
    for (int i = 0; i < n; i++)
        if (text[i] >= 'a' && text[i] <= 'z')
            text[i] = (char)(text[i] + 'A' - 'a');
}

static void compare_text(const char *where, const char *what, const char *ours, const char *recorded)
{
    if (strcmp(ours, recorded) != 0) {
        print_error("%s: %s \"%s\", recorded \"%s\"\n", where, what, ours, recorded);
        n_differences++;
    }
}

/* What the recording calls a contribution is a dependence in our words. */
static void in_our_words(const char *recorded, char text[256])
{
    static const char theirs[] = "contribution", ours[] = "dependence";
    const char *at = strstr(recorded, theirs);

    if (at == NULL)
        snprintf(text, 256, "%s", recorded);
    else
        snprintf(text, 256, "%.*s%s%s", (int)(at - recorded), recorded, ours, at + strlen(theirs));
}

static void compare_number(const char *where, const char *what, double ours, double recorded)
{
    if (!is_near(ours, recorded)) {
        print_error("%s: %s %.17g, recorded %.17g\n", where, what, ours, recorded);
        n_differences++;
    }
}

static void compare_decision(const char *where, const scene *s, const esper_decision *decision, const json_t *row)
{
    const char *target = json_string_value(json_array_get(row, 2));
    bool targets = decision->slot >= 0 && decision->op != ESPER_SLOT_OP_GERMINATE;
    char action[64], reason[256];

    recorded_name(decision, s->view.topology, action);
    compare_text(where, "action", action, json_string_value(json_array_get(row, 1)));
    compare_text(where, "target", targets ? s->slots[decision->slot].seed : "none", target != NULL ? target : "none");
    in_our_words(json_string_value(json_array_get(row, 3)), reason);
    compare_text(where, "reason", decision->text, reason);
    compare_number(where, "confidence", decision->confidence, number_of(json_array_get(row, 4)));
    check_good(esper_decision_check(decision, s->view.topology));
    if (decision->op == ESPER_SLOT_OP_GERMINATE)
        check_good(esper_mask_check(&s->view, decision));
}

static void compare_memory(const char *where, const esper_policy *policy, const json_t *after)
{
    char packed[ESPER_PACK_HEAD_BYTES + sizeof(esper_heuristic_memory)];
    esper_heuristic_memory memory;
    const json_t *penalties = json_object_get(after, "penalties");
    const char *key;
    json_t *value;
    int n = 0;

    assert_int_equal(esper_policy_pack_bytes(policy), sizeof(packed));
    esper_policy_pack(policy, packed);
    memcpy(&memory, packed + ESPER_PACK_HEAD_BYTES, sizeof(memory));
    compare_number(where, "rotation index", (double)memory.rotation_index, real_of(after, "rotation_index"));
    compare_number(where, "germinations", (double)memory.germinations, real_of(after, "germinations"));
    compare_number(where, "last prune", (double)memory.last_prune_epoch, real_of(after, "last_prune_epoch"));
    json_object_foreach((json_t *)(uintptr_t)penalties, key, value)
        compare_number(where, key, memory.penalties[index_anywhere(key)], number_of(value));
    for (int i = 0; i < ESPER_POLICY_BLUEPRINTS; i++)
        n += memory.penalties[i] != 0.0;
    compare_number(where, "penalties", n, (double)json_object_size(penalties));
}

static void replay_error(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in");
    esper_policy *policy = NULL;
    esper_status status = open_recorded(in, &policy);
    bool differs = is_default_transformer(in);

    if ((status == ESPER_OK) != differs)
        fail_msg("case %d: %s, recorded an error%s", int_of(entry, "case"), esper_status_name(status),
                 differs ? ", to be answered otherwise" : "");
    if (differs)
        difference_met(DIFFERENCE_ROTATION, entry);
    n_refused += status != ESPER_OK;
    esper_policy_close(policy);
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    const json_t *steps = json_object_get(in, "steps"), *rows = json_object_get(out, "decisions");
    bool cnn = strcmp(text_of(in, "topology"), "cnn") == 0;
    esper_policy *policy = NULL;
    char where[64];
    scene s;

    if (json_is_true(json_object_get(out, "error"))) {
        replay_error(entry);
        return;
    }
    assert_false(is_default_transformer(in));
    check_good(open_recorded(in, &policy));
    assert_int_equal(json_array_size(steps), json_array_size(rows));
    for (size_t i = 0; i < json_array_size(steps); i++) {
        esper_decision decision;

        recorded_view(json_array_get(steps, i), cnn ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER, &s);
        check_good(esper_policy_decide(policy, &s.view, &decision));
        snprintf(where, sizeof(where), "case %d, step %zu", int_of(entry, "case"), i);
        compare_decision(where, &s, &decision, json_array_get(rows, i));
        n_steps++;
    }
    snprintf(where, sizeof(where), "case %d, in the end", int_of(entry, "case"));
    compare_memory(where, policy, json_object_get(out, "state_after"));
    esper_policy_close(policy);
}

static void recorded_decisions(void **state)
{
    (void)state;
    golden_each_case("heuristic", replay);
    printf("%d decisions compared, %d rotations refused by both\n", n_steps, n_refused);
    difference_say("heuristic");
    assert_true(n_steps > 0);
    assert_int_equal(n_differences, 0);
}

/* ------------------------------------------------------------------------------------------------ holding */

static esper_decision decide_one(const esper_policy_setup *setup, const scene *s)
{
    esper_policy *policy = open_policy("heuristic", setup);
    esper_decision decision;

    check_good(esper_policy_decide(policy, &s->view, &decision));
    esper_policy_close(policy);
    return decision;
}

static void holding(void **state)
{
    const double unset = (double)NAN;
    static const esper_slot_op keep = ESPER_SLOT_OP_FOSSILIZE, cut = ESPER_SLOT_OP_PRUNE, wait = ESPER_SLOT_OP_WAIT;
    const struct {
        const char   *what;
        double        contribution, low, high;
        int           measured, in_stage;
        double        total;
        esper_slot_op op;
        esper_reason  reason;
        const char   *text;
    } rows[] = {
        {"surely enough", 1.6, 1.1, 2.1, 3, 3, 1, keep, ESPER_REASON_CONTRIBUTES,
         "Fossilizing: +1.60% dependence, at least +1.10%"},
        {"just enough", 1.6, 1.0, 2.1, 3, 3, 1, keep, ESPER_REASON_CONTRIBUTES, NULL},
        {"nearly enough", 1.6, 0.9999, 2.1, 3, 3, 1, wait, ESPER_REASON_UNDECIDED,
         "Undecided: +1.00% to +2.10% dependence in 3 epochs"},
        {"surely not enough", 0.6, 0.3, 0.9, 3, 3, 1, cut, ESPER_REASON_NO_CONTRIBUTION,
         "No improvement in HOLDING (+0.60%, at most +0.90%)"},
        {"might be enough", 0.6, 0.2, 1.0, 3, 3, 1, wait, ESPER_REASON_UNDECIDED, NULL},
        {"negative", -1.6, -2.0, -1.0, 4, 4, 1, cut, ESPER_REASON_NO_CONTRIBUTION, NULL},
        {"enough, measured too briefly", 1.6, 1.1, 2.1, 2, 2, 1, wait, ESPER_REASON_UNDECIDED, NULL},
        {"not enough, measured too briefly", 0.6, 0.3, 0.9, 2, 2, 1, wait, ESPER_REASON_UNDECIDED, NULL},
        {"undecided, the last epoch", 1.0, 0.5, 1.5, 9, 9, 1, wait, ESPER_REASON_UNDECIDED, NULL},
        {"undecided, too long", 1.0, 0.5, 1.5, 10, 10, 1, cut, ESPER_REASON_STUCK,
         "Not proven in 10 epochs of HOLDING (+0.50% to +1.50%)"},
        {"proven late", 1.6, 1.1, 2.1, 12, 12, 1, keep, ESPER_REASON_CONTRIBUTES, NULL},
        {"bounds outweigh ransom", 1.6, 1.1, 2.1, 3, 3, -4, keep, ESPER_REASON_CONTRIBUTES, NULL},
        {"a bare number", 0.6, unset, unset, 0, 3, 1, keep, ESPER_REASON_CONTRIBUTES, "Fossilizing: +0.60% dependence"},
        {"a bare number, one bound", 0.6, 0.5, unset, 5, 3, 1, keep, ESPER_REASON_CONTRIBUTES, NULL},
        {"a bare number, too small", 0.5, unset, unset, 0, 3, 1, cut, ESPER_REASON_NO_CONTRIBUTION,
         "No improvement in HOLDING (+0.50%)"},
        {"a bare number, ransom", 0.6, unset, unset, 0, 3, -1, cut, ESPER_REASON_RANSOMWARE, NULL},
        {"unmeasured", unset, unset, unset, 0, 9, 1, wait, ESPER_REASON_UNMEASURED, NULL},
        {"unmeasured for too long", unset, unset, unset, 0, 10, 1, cut, ESPER_REASON_STUCK,
         "No dependence was measured in 10 epochs of HOLDING"},
        {"infinite bounds are none", 0.6, -(double)INFINITY, (double)INFINITY, 5, 3, 1, keep, ESPER_REASON_CONTRIBUTES,
         NULL},
    };
    esper_policy_setup setup = plain_setup();

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        esper_policy_slot *slot;
        esper_decision decision;
        scene s;

        set_scene(&s, ESPER_TOPOLOGY_CNN);
        slot = put_seed(&s, 1, ESPER_STAGE_HOLDING, "norm");
        slot->contribution = rows[i].contribution;
        slot->contribution_low = rows[i].low;
        slot->contribution_high = rows[i].high;
        slot->contribution_epochs = rows[i].measured;
        slot->epochs_in_stage = rows[i].in_stage;
        slot->improvement_total = rows[i].total;
        decision = decide_one(&setup, &s);
        if (decision.op != (int32_t)rows[i].op || decision.reason != (int32_t)rows[i].reason || decision.slot != 1)
            fail_msg("%s: %s of slot %d (%s: %s), expected %s (%s)", rows[i].what, esper_slot_op_name(decision.op),
                     (int)decision.slot, esper_reason_name(decision.reason), decision.text,
                     esper_slot_op_name(rows[i].op), esper_reason_name(rows[i].reason));
        if (rows[i].text != NULL && strcmp(decision.text, rows[i].text) != 0)
            fail_msg("%s: \"%s\", expected \"%s\"", rows[i].what, decision.text, rows[i].text);
        check_good(esper_mask_check(&s.view, &decision));
    }
}

static void training_has_an_end(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy_slot *slot;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    slot = put_seed(&s, 0, ESPER_STAGE_TRAINING, "norm");
    slot->epochs_in_stage = 29;
    assert_int_equal(decide_one(&setup, &s).op, ESPER_SLOT_OP_ADVANCE);
    slot->epochs_in_stage = 30;
    assert_int_equal(decide_one(&setup, &s).op, ESPER_SLOT_OP_PRUNE);
    assert_string_equal(decide_one(&setup, &s).text, "Not ready to blend after 30 epochs of TRAINING");
    slot->epochs_in_stage = 6;
    slot->improvement = -5.0; /* the host's own doing: a trial says what the seed's would be */
    slot->trial_gain = 0.2;
    assert_int_equal(decide_one(&setup, &s).op, ESPER_SLOT_OP_ADVANCE);
    slot->improvement = 1.0;
    slot->trial_gain = -5.0;
    assert_int_equal(decide_one(&setup, &s).op, ESPER_SLOT_OP_PRUNE);
}

/* ------------------------------------------------------------------------------------------------ germination */

static void slot_by_evidence(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_decision decision;
    int n_drawn[N_SLOTS] = {0};
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.slots[0].evidence = 0.1;
    s.slots[1].evidence = 0.3;
    s.slots[2].evidence = 0.2;
    decision = decide_one(&setup, &s);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 1);
    s.slots[1].evidence = (double)NAN; /* unset comes last, negative evidence before it */
    s.slots[0].evidence = -3;
    s.slots[2].evidence = -2;
    assert_int_equal(decide_one(&setup, &s).slot, 2);
    put_seed(&s, 2, ESPER_STAGE_FOSSILIZED, "norm");
    assert_int_equal(decide_one(&setup, &s).slot, 0);
    s.slots[0].blueprints = 1u << 5; /* bottleneck alone, which is not in the rotation */
    assert_int_equal(decide_one(&setup, &s).slot, 1);
    s.slots[1].blueprints = 0;
    decision = decide_one(&setup, &s);
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(decision.reason, ESPER_REASON_NO_BLUEPRINT);
    /* Between equals by lot: the same lot for the same seed and epoch, each slot some time. */
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    for (s.view.epoch = 10; s.view.epoch < 310; s.view.epoch++) {
        decision = decide_one(&setup, &s);
        assert_int_equal(decision.slot, decide_one(&setup, &s).slot);
        n_drawn[decision.slot]++;
    }
    for (int i = 0; i < N_SLOTS; i++)
        if (n_drawn[i] < 70 || n_drawn[i] > 130)
            fail_msg("slot %d was drawn %d times of 300", i, n_drawn[i]);
}

static void max_seeds(void **state)
{
    esper_policy_setup setup = plain_setup();
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    put_seed(&s, 0, ESPER_STAGE_FOSSILIZED, "norm");
    s.view.max_seeds = 1;
    assert_int_equal(decide_one(&setup, &s).reason, ESPER_REASON_NO_SLOT);
    s.view.max_seeds = 2;
    assert_int_equal(decide_one(&setup, &s).op, ESPER_SLOT_OP_GERMINATE);
}

/* Blueprints that do not fit are passed over; a pruned one is, too, for more than 30 epochs. */
static void rotation(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = open_policy("heuristic", &setup);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    for (int i = 0; i < N_SLOTS; i++)
        s.slots[i].blueprints = 1u << 1 | 1u << 3; /* conv_light and norm */
    put_seed(&s, 0, ESPER_STAGE_HOLDING, "conv_light")->contribution = 0.0;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_PRUNE);
    s.slots[0].stage = ESPER_STAGE_EMBARGOED;
    for (s.view.epoch = 15; s.view.epoch < 30; s.view.epoch++) {
        check_good(esper_policy_decide(policy, &s.view, &decision));
        assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
        assert_int_equal(decision.blueprint, 3);
    }
    for (s.view.epoch = 30; s.view.epoch < 60; s.view.epoch++)
        check_good(esper_policy_decide(policy, &s.view, &decision));
    s.slots[1].blueprints = s.slots[2].blueprints = 1u << 1;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.blueprint, 1);
    esper_policy_close(policy);
}

/* All of the rotation penalised: the least one in turn, of those that fit. */
static void all_penalised(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = open_policy("heuristic", &setup);
    static const char *const names[] = {"conv_light", "conv_heavy", "attention", "norm", "depthwise"};
    esper_decision decision;
    scene s;

    (void)state;
    for (int i = 0; i < 5; i++) {
        set_scene(&s, ESPER_TOPOLOGY_CNN);
        put_seed(&s, 0, ESPER_STAGE_HOLDING, names[i])->contribution = 0.0;
        check_good(esper_policy_decide(policy, &s.view, &decision));
        assert_int_equal(decision.op, ESPER_SLOT_OP_PRUNE);
    }
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.epoch = 15;
    for (int i = 0; i < N_SLOTS; i++)
        s.slots[i].blueprints = 1u << 2 | 1u << 7; /* attention and conv_heavy, equally penalised: by name, in turn */
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.blueprint, 2);
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.blueprint, 7);
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.blueprint, 2);
    esper_policy_close(policy);
}

/* ------------------------------------------------------------------------------------------------ settings */

static void settings(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_heuristic_settings s, before;
    esper_policy *policy = NULL;

    (void)state;
    setup.heuristic = &s;
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_TRANSFORMER);
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "conv_light");
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    s.n_rotation = 0;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "0 blueprints");
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    s.rotation[2] = 0;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "cannot germinate");
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    s.penalty_decay = 1.5;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "1.5");
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    s.embargo_epochs = -1;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "negative");
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    s.bound_threshold = (double)NAN;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "not a number");
    assert_null(policy);
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    check_good(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "norm,bottleneck"));
    assert_int_equal(s.n_rotation, 2);
    assert_int_equal(s.rotation[1], 5);
    before = s;
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, ""), ESPER_E_ARG, "at least one");
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "lora"), ESPER_E_ARG, "'lora'");
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "noop"), ESPER_E_ARG, "'noop'");
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "norm,,norm"), ESPER_E_ARG, "''");
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "norm,norm"), ESPER_E_ARG, "twice");
    check_fails(esper_heuristic_settings_rotate(&s, ESPER_TOPOLOGY_CNN, "normnormnormnormnormnormnormnormnorm"),
                ESPER_E_ARG, "normnorm");
    assert_memory_equal(&s, &before, sizeof(s));
}

/* Gates that ask for other numbers of epochs: for 10 nothing changes, for 4 all that are made for 10 do. */
static void pace(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_heuristic_settings s, before;
    esper_decision decision;
    esper_policy *policy;
    scene here;

    (void)state;
    esper_heuristic_settings_init(&s, ESPER_TOPOLOGY_CNN);
    before = s;
    esper_heuristic_settings_pace(&s, 10);
    assert_memory_equal(&s, &before, sizeof(s));
    esper_heuristic_settings_pace(&s, 4);
    assert_int_equal(s.plateau_epochs, 2);
    assert_int_equal(s.min_epoch, 2);
    assert_int_equal(s.embargo_epochs, 2);
    assert_int_equal(s.late_epochs, 10);
    assert_int_equal(s.failing_epochs, 2);
    assert_int_equal(s.training_epochs, 12);
    assert_int_equal(s.holding_epochs, 4);
    assert_int_equal(s.tempo, 2);
    assert_int_equal(s.bound_epochs, 3);
    assert_true(fabs(s.failing_drop - 5.0) < 1e-12);
    assert_true(fabs(pow(s.penalty_decay, 4.0) - pow(0.98, 10.0)) < 1e-12);
    setup.heuristic = &s;
    policy = open_policy("heuristic", &setup);
    set_scene(&here, ESPER_TOPOLOGY_CNN);
    check_good(esper_policy_decide(policy, &here.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.tempo, 2);
    esper_policy_close(policy);
    s.tempo = 0;
    check_fails(esper_policy_open("heuristic", &setup, &policy), ESPER_E_ARG, "tempo");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_decisions), cmocka_unit_test(holding),   cmocka_unit_test(training_has_an_end),
        cmocka_unit_test(slot_by_evidence),   cmocka_unit_test(max_seeds), cmocka_unit_test(rotation),
        cmocka_unit_test(all_penalised),      cmocka_unit_test(settings),  cmocka_unit_test(pace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
