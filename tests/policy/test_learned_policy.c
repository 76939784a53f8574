/* The policy `learned`: it decides by the file, remembers exactly, and begins anew after a rollback. */
#include "policy/learned_case.h"

static void save_new(const char *path, uint64_t seed, int n_slots)
{
    esper_learned_identity identity = identity_of("synth", n_slots);
    learner l;

    learner_open(&l, &identity, 1, seed);
    learner_see(&l);
    save_policy(&l, path);
    learner_close(&l);
}

static esper_policy_setup setup_of(const char *path, int n_slots)
{
    esper_policy_setup setup = plain_setup();

    setup.n_slots = n_slots;
    setup.policy_file = path;
    setup.task = "synth";
    return setup;
}

static esper_decision decide(esper_policy *policy, const scene *s)
{
    esper_decision decision;

    check_good(esper_policy_decide(policy, &s->view, &decision));
    return decision;
}

/* ------------------------------------------------------------------------------------------------ by hand */

/* The same by hand: features, statistics, network, the likeliest choice. */
static void decides_as_its_network(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, N_SLOTS);
    float obs[ESPER_FEATURES_RUN + N_SLOTS * ESPER_FEATURES_SLOT], h[HIDDEN] = {0}, c[HIDDEN] = {0};
    esper_learned_file *file;
    esper_feature_memory memory;
    esper_policy *policy;
    int32_t ids[N_SLOTS];
    int n_ops = 0, n_bad;
    learner l;

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    policy = open_policy("learned", &setup);
    check_good(esper_learned_open(policy_path, &file));
    learner_open(&l, esper_learned_identity_of(file), 1, 99);
    check_good(esper_learned_load(file, l.ppo, l.norm, false));
    esper_learned_close(file);
    esper_feature_memory_init(&memory);
    for (int epoch = 1; epoch <= EPISODE; epoch++) {
        esper_learned_choice choice;
        esper_action_mask mask;
        esper_decision wanted, found;
        scene s;

        set_epoch(&s, 8, epoch, N_SLOTS);
        memory.last_success = !s.view.last_refused;
        for (int k = 0; k < N_SLOTS; k++)
            memory.since[k] = s.slots[k].measured ? 0 : memory.since[k];
        check_good(esper_features_fill(&s.view, &memory, N_SLOTS, obs, ids, &n_bad));
        esper_normaliser_apply(l.norm, obs, obs);
        check_good(esper_ppo_act(l.ppo, &(esper_ppo_step){.n_envs = 1, .obs = obs, .ids = ids, .h = h, .c = c}));
        check_good(esper_action_mask_build(&s.view, &mask));
        check_good(esper_learned_choose(l.ppo, 0, &mask, NULL, &choice));
        esper_action_decide(&choice.action, &wanted);
        esper_feature_memory_step(&memory, &s.view, wanted.op, true);
        found = decide(policy, &s);
        if (memcmp(&wanted, &found, offsetof(esper_decision, reason)) != 0 || wanted.target != found.target)
            fail_msg("epoch %d: %s in slot %d, expected %s in %d", epoch, esper_slot_op_name(found.op), found.slot,
                     esper_slot_op_name(wanted.op), wanted.slot);
        check_good(esper_mask_check(&s.view, &found));
        assert_int_equal(found.reason, ESPER_REASON_LEARNED);
        assert_true(found.confidence == choice.probability);
        n_ops += found.op != ESPER_SLOT_OP_WAIT;
    }
    assert_in_range(n_ops, 1, EPISODE);
    learner_close(&l);
    esper_policy_close(policy);
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Packed and unpacked into a fresh one after every epoch, with a rollback on the way. */
static void goes_on_exactly(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, N_SLOTS);
    esper_policy *unbroken, *policy;
    char packed[2048];

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    unbroken = open_policy("learned", &setup);
    policy = open_policy("learned", &setup);
    for (int epoch = 1; epoch <= EPISODE; epoch++) {
        esper_decision a, b;
        scene s;

        set_epoch(&s, 2, epoch, N_SLOTS);
        s.view.rolled_back = epoch == 9;
        a = decide(unbroken, &s);
        b = decide(policy, &s);
        assert_memory_equal(&a, &b, sizeof(a));
        assert_true(esper_policy_pack_bytes(policy) <= sizeof(packed));
        esper_policy_pack(policy, packed);
        esper_policy_close(policy);
        policy = open_policy("learned", &setup);
        check_good(esper_policy_unpack(policy, packed, esper_policy_pack_bytes(policy)));
    }
    esper_policy_close(policy);
    esper_policy_close(unbroken);
}

/* The value that a decision's text tells is of the memory: it shows whether that is new. */
static void begins_anew_after_a_rollback(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, N_SLOTS);
    esper_policy *old, *fresh;
    esper_decision a, b;
    scene s;

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    old = open_policy("learned", &setup);
    fresh = open_policy("learned", &setup);
    for (int epoch = 1; epoch <= 6; epoch++) {
        set_epoch(&s, 2, epoch, N_SLOTS);
        (void)decide(old, &s);
    }
    set_epoch(&s, 2, 7, N_SLOTS);
    s.view.rolled_back = true;
    a = decide(old, &s);
    b = decide(fresh, &s);
    assert_memory_equal(&a, &b, sizeof(a));
    set_epoch(&s, 2, 8, N_SLOTS);
    a = decide(old, &s);
    b = decide(fresh, &s);
    assert_memory_equal(&a, &b, sizeof(a));
    esper_policy_close(fresh);
    fresh = open_policy("learned", &setup);
    b = decide(fresh, &s); /* without a rollback memory counts */
    assert_memory_not_equal(&a, &b, sizeof(a));
    esper_policy_close(old);
    esper_policy_close(fresh);
}

static void knows_its_own_memory(void **state)
{
    esper_policy_setup setup = setup_of("a.safetensors", N_SLOTS), other = setup_of("b.safetensors", N_SLOTS);
    esper_policy *a, *b;
    char packed[2048];

    (void)state;
    save_new("a.safetensors", 4, N_SLOTS);
    save_new("b.safetensors", 5, N_SLOTS);
    a = open_policy("learned", &setup);
    b = open_policy("learned", &other);
    esper_policy_pack(a, packed);
    check_fails(esper_policy_unpack(b, packed, esper_policy_pack_bytes(a)), ESPER_E_CONFIG,
                "b.safetensors is another policy than the one that has decided so far");
    check_good(esper_policy_unpack(a, packed, esper_policy_pack_bytes(a)));
    esper_policy_close(a);
    esper_policy_close(b);
}

static void waits_after_its_time(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, N_SLOTS);
    esper_decision decision;
    esper_policy *policy;
    scene s;

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    policy = open_policy("learned", &setup);
    for (int epoch = EPISODE + 1; epoch < EPISODE + 10; epoch++) {
        set_epoch(&s, 8, epoch, N_SLOTS);
        decision = decide(policy, &s);
        assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
        assert_int_equal(decision.reason, ESPER_REASON_LATE);
    }
    s.view.n_slots = 2;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_ARG, "2 slots for a policy of 3");
    esper_policy_close(policy);
}

/* ------------------------------------------------------------------------------------------------ opening */

static void refuses_other_runs(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, 2);
    esper_policy *policy = NULL;

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    setup.topology = ESPER_TOPOLOGY_MLP;
    check_fails(esper_policy_open("learned", &setup, &policy), ESPER_E_CONFIG,
                "was trained for hosts of the kind cnn, this one is a mlp");
    setup.policy_file = NULL;
    check_fails(esper_policy_open("learned", &setup, &policy), ESPER_E_ARG, "give its path in place of the name");
    setup.policy_file = "absent.safetensors";
    check_fails(esper_policy_open("learned", &setup, &policy), ESPER_E_NOTFOUND, "absent.safetensors");
    assert_null(policy);
}

/* One that has learned on three slots of one task decides about two of another. */
static void travels(void **state)
{
    esper_policy_setup setup = setup_of(policy_path, 2);
    int n_ops = 0;
    esper_policy *policy;

    (void)state;
    save_new(policy_path, 4, N_SLOTS);
    setup.task = "fashion";
    setup.slot_ids = slot_ids + 1;
    policy = open_policy("learned", &setup);
    for (int epoch = 1; epoch <= EPISODE; epoch++) {
        esper_decision found;
        scene s;

        set_epoch(&s, 8, epoch, 2);
        found = decide(policy, &s);
        check_good(esper_mask_check(&s.view, &found));
        n_ops += found.op != ESPER_SLOT_OP_WAIT;
    }
    assert_in_range(n_ops, 1, EPISODE);
    esper_policy_close(policy);
}

/* Of a network as large as these notes say, which is not there. */
static void refuses_to_remember_too_much(void **state)
{
    static const esper_safetensors_note notes[] = {
        {"learned_version", "3"},     {"learned_task", "synth"},         {"learned_topology", "cnn"},
        {"learned_slots", "r0c0"},    {"learned_max_epochs", "20"},      {"learned_gates", "strict"},
        {"learned_reward", "escrow"}, {"learned_features_version", "3"}, {"learned_features", "41"},
        {"policy_version", "2"},      {"policy_width", "128"},           {"policy_hidden", "1024"},
        {"policy_layers", "4"},       {"learned_slot_features", "71"},
    };
    static const float none[1] = {0};
    esper_safetensors_tensor tensor = {
        .name = "param/none", .dtype = ESPER_SAFETENSORS_F32, .rank = 1, .shape = {1}, .data = none};
    esper_policy_setup setup = setup_of(policy_path, 1);
    esper_policy *policy = NULL;

    (void)state;
    check_good(esper_ppo_write(policy_path, &tensor, 1, notes, sizeof(notes) / sizeof(notes[0])));
    setup.room_bytes = 20480;
    check_fails(esper_policy_open("learned", &setup, &policy), ESPER_E_FORMAT, "not of the size that its notes say");
    save_new(policy_path, 4, 1);
    policy = open_policy("learned", &setup);
    setup.room_bytes = esper_policy_pack_bytes(policy);
    esper_policy_close(policy);
    policy = open_policy("learned", &setup);
    esper_policy_close(policy);
    setup.room_bytes--;
    check_fails(esper_policy_open("learned", &setup, &policy), ESPER_E_UNSUPPORTED, "there is room for");
}

static void tells_names_from_files(void **state)
{
    (void)state;
    save_new("heuristic", 1, 1); /* a name wins */
    save_new("my-policy", 1, 1);
    assert_false(esper_policy_is_file("heuristic"));
    assert_false(esper_policy_is_file("learned"));
    assert_false(esper_policy_is_file("clever"));
    assert_false(esper_policy_is_file(""));
    assert_false(esper_policy_is_file(".safetensors"));
    assert_true(esper_policy_is_file("my-policy"));
    assert_true(esper_policy_is_file("./heuristic"));
    assert_true(esper_policy_is_file("runs/x/absent"));
    assert_true(esper_policy_is_file("absent.safetensors"));
}

/* "learned <hash> <file>" fits where it is recorded, however long the name. */
static void describes_itself(void **state)
{
    static const char name[] = "a-policy-with-a-name-that-is-far-longer-than-anybody-would-like.safetensors";
    esper_policy_setup setup = setup_of(name, N_SLOTS);
    esper_learned_file *file;
    esper_policy *policy;
    char wanted[ESPER_POLICY_ABOUT_CHARS];

    (void)state;
    save_new(name, 4, N_SLOTS);
    check_good(esper_learned_open(name, &file));
    policy = open_policy("learned", &setup);
    snprintf(wanted, sizeof(wanted), "learned %016llx %.38s", (unsigned long long)esper_learned_hash_of(file), name);
    assert_string_equal(esper_policy_describe(policy), wanted);
    esper_learned_close(file);
    esper_policy_close(policy);
    policy = open_policy("random", &setup);
    assert_string_equal(esper_policy_describe(policy), "random");
    esper_policy_close(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decides_as_its_network),
        cmocka_unit_test(goes_on_exactly),
        cmocka_unit_test(begins_anew_after_a_rollback),
        cmocka_unit_test(knows_its_own_memory),
        cmocka_unit_test(waits_after_its_time),
        cmocka_unit_test(refuses_other_runs),
        cmocka_unit_test(travels),
        cmocka_unit_test(refuses_to_remember_too_much),
        cmocka_unit_test(tells_names_from_files),
        cmocka_unit_test(describes_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
