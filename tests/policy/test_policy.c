/* ctest: timeout=60 */
/* What all policies share: the list, packing and damage, allocations that fail, the decision as plain memory. */
#include "policy/learned_case.h"

#include <locale.h>

#include "policy/pack.h"

static const char *const names[] = {"none",    "heuristic", "random",  "scripted",
                                    "command", "halving",   "learned", "trials"};

enum { N_NAMES = sizeof(names) / sizeof(names[0]), PACK_BYTES = 2048 };

/* Ground that is never used: there is nothing to pay a trial with. */
static esper_status measure(void *context, esper_fork *fork)
{
    (void)context;
    fork->step_flops = fork->sample_flops = 1.0;
    return ESPER_OK;
}

static const esper_trial_ground ground = {.measure = measure};
static const esper_trial_settings trials = {.batch = 1, .n_batches = 1, .blueprints = 2};

static esper_policy_setup full_setup(void)
{
    esper_policy_setup setup = plain_setup();
    esper_learned_identity identity = identity_of("synth", N_SLOTS);
    learner l;

    learner_open(&l, &identity, 1, 1);
    save_policy(&l, policy_path);
    learner_close(&l);
    setup.policy_file = policy_path;
    write_file("plan.txt", "10 r0c0 germinate blueprint=norm\n");
    setup.script = "plan.txt";
    setup.trials = &trials;
    setup.ground = &ground;
    setup.command = "while read -r view; do echo '{\"epoch\":10,\"op\":\"wait\",\"memory\":\"m\"}'; done";
    return setup;
}

static void the_list(void **state)
{
    const esper_policy_ops *const *list = esper_policy_list();
    esper_policy_setup setup = full_setup();
    esper_policy *policy = NULL;
    const esper_policy_ops *ops;
    int n = 0;

    (void)state;
    for (; list[n] != NULL; n++) {
        assert_true(n < N_NAMES);
        assert_string_equal(list[n]->name, names[n]);
        assert_true(strlen(list[n]->about) > 10 && strlen(names[n]) < ESPER_PACK_NAME_CHARS);
        assert_true((list[n]->pack == NULL) == (list[n]->unpack == NULL));
        check_good(esper_policy_find(names[n], &ops));
        assert_ptr_equal(ops, list[n]);
        policy = open_policy(names[n], &setup);
        assert_string_equal(esper_policy_name(policy), names[n]);
        esper_policy_close(policy);
    }
    assert_int_equal(n, N_NAMES);
    policy = NULL;
    check_fails(
        esper_policy_open("clever", &setup, &policy), ESPER_E_ARG,
        "'clever'. There are none, heuristic, random, scripted, command, halving, learned, trials (learned: by its "
        "file or its run)");
    check_fails(esper_policy_open("hueristic", &setup, &policy), ESPER_E_ARG, "did you mean 'heuristic'? There are");
    setup.n_slots = 0;
    check_fails(esper_policy_open("none", &setup, &policy), ESPER_E_ARG, "0 slots");
    setup.n_slots = ESPER_POLICY_MAX_SLOTS + 1;
    check_fails(esper_policy_open("none", &setup, &policy), ESPER_E_ARG, "65 slots");
    assert_null(policy);
    esper_policy_close(NULL);
}

static void views_without_slots(void **state)
{
    esper_policy_setup setup = full_setup();
    esper_policy *policy = open_policy("none", &setup);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    s.view.n_slots = 0;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_ARG, "0 slots");
    s.view.n_slots = 65;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_ARG, "65 slots");
    esper_policy_close(policy);
}

/* Every policy, packed after a decision: back into another, byte for byte; each damage is noticed and changes nothing. */
static void packing(void **state)
{
    esper_policy_setup setup = full_setup();
    char packed[N_NAMES][PACK_BYTES], again[PACK_BYTES];
    size_t bytes[N_NAMES];

    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        esper_policy *policy = open_policy(names[i], &setup), *other = open_policy(names[i], &setup);
        esper_decision decision;
        scene s;

        set_scene(&s, ESPER_TOPOLOGY_CNN);
        check_good(esper_policy_decide(policy, &s.view, &decision));
        bytes[i] = esper_policy_pack_bytes(policy);
        assert_true(bytes[i] >= ESPER_PACK_HEAD_BYTES && bytes[i] <= sizeof(packed[i]));
        esper_policy_pack(policy, packed[i]);
        for (size_t b = 0; b < bytes[i]; b++) {
            packed[i][b] ^= 1;
            if (esper_policy_unpack(other, packed[i], bytes[i]) != ESPER_E_FORMAT)
                fail_msg("%s: byte %zu of %zu was damaged and nobody noticed", names[i], b, bytes[i]);
            packed[i][b] ^= 1;
        }
        for (size_t n = 0; n < bytes[i]; n++)
            assert_int_equal(esper_policy_unpack(other, packed[i], n), ESPER_E_FORMAT);
        assert_int_equal(esper_policy_unpack(other, packed[i], bytes[i] + 1), ESPER_E_FORMAT);
        check_good(esper_policy_unpack(other, packed[i], bytes[i]));
        assert_int_equal(esper_policy_pack_bytes(other), bytes[i]);
        esper_policy_pack(other, again);
        assert_memory_equal(again, packed[i], bytes[i]);
        esper_policy_close(policy);
        esper_policy_close(other);
    }
    for (int i = 0; i < N_NAMES; i++) {
        esper_policy *policy = open_policy(names[i], &setup);

        for (int j = 0; j < N_NAMES; j++)
            if (i != j)
                check_fails(esper_policy_unpack(policy, packed[j], bytes[j]), ESPER_E_FORMAT, names[j]);
        esper_policy_close(policy);
    }
}

/* A frame that is sound around a payload that is not: sealed by somebody else. */
static void unsound_payloads(void **state)
{
    esper_policy_setup setup = full_setup();
    esper_heuristic_memory memory = {.last_prune_epoch = -100};
    size_t shorter = offsetof(esper_heuristic_memory, penalties[16]);
    char frame[512];

    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        esper_policy *policy = open_policy(names[i], &setup);

        memset(frame, 0, sizeof(frame));
        memset(frame + ESPER_PACK_HEAD_BYTES, 'x', 7);
        esper_pack_seal(frame, names[i], 7);
        check_fails(esper_policy_unpack(policy, frame, ESPER_PACK_HEAD_BYTES + 7), ESPER_E_FORMAT, "7 bytes");
        if (i == 1) {
            memory.penalties[3] = (double)NAN;
            memcpy(frame + ESPER_PACK_HEAD_BYTES, &memory, sizeof(memory));
            esper_pack_seal(frame, names[i], sizeof(memory));
            check_fails(esper_policy_unpack(policy, frame, ESPER_PACK_HEAD_BYTES + sizeof(memory)), ESPER_E_FORMAT,
                        "penalty 3");
            memory.penalties[3] = 0.0;
            memory.rotation_index = -1;
            memcpy(frame + ESPER_PACK_HEAD_BYTES, &memory, sizeof(memory));
            esper_pack_seal(frame, names[i], sizeof(memory));
            check_fails(esper_policy_unpack(policy, frame, ESPER_PACK_HEAD_BYTES + sizeof(memory)), ESPER_E_FORMAT,
                        "impossible");
            memory.rotation_index = 2; /* packed when sixteen blueprints had a number */
            memcpy(frame + ESPER_PACK_HEAD_BYTES, &memory, shorter);
            esper_pack_seal(frame, names[i], shorter);
            check_good(esper_policy_unpack(policy, frame, ESPER_PACK_HEAD_BYTES + shorter));
        }
        esper_policy_close(policy);
    }
}

/* A heuristic that was packed half-way decides as the one that went on. */
static void going_on(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = open_policy("heuristic", &setup), *other = open_policy("heuristic", &setup);
    char packed[512];
    scene s;

    (void)state;
    for (int epoch = 1; epoch <= 200; epoch++) {
        esper_decision a, b;

        set_scene(&s, ESPER_TOPOLOGY_CNN);
        s.view.epoch = epoch;
        if (epoch % 7 == 0)
            put_seed(&s, 1, ESPER_STAGE_HOLDING, epoch % 2 == 0 ? "norm" : "conv_light")->contribution = 0.0;
        check_good(esper_policy_decide(policy, &s.view, &a));
        if (epoch <= 100) {
            esper_policy_pack(policy, packed);
            check_good(esper_policy_unpack(other, packed, esper_policy_pack_bytes(policy)));
        } else {
            check_good(esper_policy_decide(other, &s.view, &b));
            assert_memory_equal(&a, &b, sizeof(a));
        }
    }
    esper_policy_close(policy);
    esper_policy_close(other);
}

static void failing_allocations(void **state)
{
    esper_policy_setup setup = full_setup();

    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        uint64_t live = live_blocks(), nth = 0;
        esper_policy *policy = NULL;
        esper_status status;

        do {
            policy = NULL;
            esper_fail(ESPER_OK, "no message");
            esper_mem_fail_at(++nth);
            status = esper_policy_open(names[i], &setup, &policy);
            esper_mem_fail_at(0);
            if (status != ESPER_OK && (status != ESPER_E_NOMEM || policy != NULL || live_blocks() != live))
                fail_msg("%s: allocation %d failed: %s (%s), %d blocks left", names[i], (int)nth,
                         esper_status_name(status), esper_last_error(), (int)(live_blocks() - live));
        } while (status != ESPER_OK);
        printf("%s: %d allocations failed in turn\n", names[i], (int)nth - 1);
        assert_true(nth > 1);
        esper_policy_close(policy);
        assert_int_equal(live_blocks(), live);
    }
}

/* No decision takes memory, but for JSON trees, which are not ours to count. */
static void deciding_takes_no_memory(void **state)
{
    esper_policy_setup setup = full_setup();

    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        esper_policy *policy = open_policy(names[i], &setup);
        esper_mem_stats before, after;
        esper_decision decision;
        scene s;

        set_scene(&s, ESPER_TOPOLOGY_CNN);
        esper_mem_stats_get(&before);
        for (int n = 0; n < 5; n++)
            check_good(esper_policy_decide(policy, &s.view, &decision));
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_allocs, before.n_allocs);
        esper_policy_close(policy);
    }
}

/* The same decision is the same bytes, whatever stood in that memory before and whatever the locale. */
static void plain_memory(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = open_policy("heuristic", &setup);
    esper_decision a, b;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    put_seed(&s, 0, ESPER_STAGE_BLENDING, "norm")->alpha = 0.25;
    memset(&a, 0xFF, sizeof(a));
    memset(&b, 0x00, sizeof(b));
    check_good(esper_policy_decide(policy, &s.view, &a));
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL)
        printf("no other locale here\n");
    check_good(esper_policy_decide(policy, &s.view, &b));
    setlocale(LC_ALL, "C");
    assert_memory_equal(&a, &b, sizeof(a));
    assert_string_equal(a.text, "Blending: alpha=0.25");
    esper_decision_because(&a, ESPER_REASON_PROGRAM, "%0200d", 7); /* cut, and still a text */
    assert_int_equal(strlen(a.text), ESPER_DECISION_TEXT_CHARS - 1);
    check_good(esper_decision_check(&a, ESPER_TOPOLOGY_CNN));
    esper_policy_close(policy);
}

static void codes(void **state)
{
    (void)state;
    assert_string_equal(esper_style_name(3), "gated_gate");
    assert_string_equal(esper_style_ramp(1), "linear");
    assert_int_equal(esper_style_blend(1), ESPER_BLEND_MULTIPLY);
    assert_null(esper_style_name(-1));
    assert_null(esper_style_ramp(4));
    assert_int_equal(esper_alpha_choice_curve(ESPER_ALPHA_CHOICE_COSINE), 2);
    assert_true(esper_alpha_choice_steepness(ESPER_ALPHA_CHOICE_SIGMOID_SHARP) == 24.0);
    assert_null(esper_alpha_choice_name(5));
    assert_null(esper_reason_name(ESPER_N_REASONS));
    assert_null(esper_policy_alpha_name(3));
    assert_null(esper_policy_blueprint(ESPER_TOPOLOGY_CNN, 8));
    assert_int_equal(esper_policy_blueprints(ESPER_TOPOLOGY_CNN), 0xFE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list),
        cmocka_unit_test(views_without_slots),
        cmocka_unit_test(packing),
        cmocka_unit_test(unsound_payloads),
        cmocka_unit_test(going_on),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(deciding_takes_no_memory),
        cmocka_unit_test(plain_memory),
        cmocka_unit_test(codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
