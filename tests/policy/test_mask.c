/* ctest: timeout=60 labels=golden */
/* What is legal: recorded masks, every operation in every stage, refusals in words, and the random policy, which must never
 * ask for anything else, in made-up views and through whole lives of seeds. */
#include "policy/helpers.h"

#include "policy/actions.h"

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_compared, n_left_out, n_differences;

static int count_seeds(const scene *s)
{
    int n = 0;

    for (int i = 0; i < s->view.n_slots; i++)
        n += esper_stage_has_seed(s->slots[i].stage);
    return n;
}

/* The slots that take part, in the order of the action space. */
static void recorded_view(const json_t *in, scene *s)
{
    const json_t *slots = json_object_get(in, "slots"), *states = json_object_get(in, "states");
    bool cnn = strcmp(text_of(in, "topology"), "cnn") == 0;

    set_scene(s, cnn ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER);
    s->view.n_slots = (int)json_array_size(slots);
    s->view.advances_itself = json_is_true(json_object_get(in, "disable_advance"));
    for (int i = 0; i < s->view.n_slots; i++) {
        const char *id = json_string_value(json_array_get(slots, (size_t)i));
        const json_t *seed = json_object_get(states, id);

        esper_policy_slot_init(&s->slots[i], s->view.topology, id);
        if (!json_is_object(seed))
            continue;
        s->slots[i].stage = stage_of(text_of(seed, "stage"));
        s->slots[i].epochs_total = int_of(seed, "age");
        s->slots[i].alpha_mode = mode_of(text_of(seed, "alpha_mode"));
    }
}

/* The number of seeds was given apart from the slots there; ours are counted. Says the same with another limit, if it can. */
static bool limit_seeds(const json_t *in, scene *s)
{
    int max_seeds = int_of(in, "max_seeds"), n_seeds = count_seeds(s);

    if (max_seeds == 0 || int_of(in, "total_seeds") < max_seeds)
        return true;
    s->view.max_seeds = n_seeds;
    return n_seeds > 0;
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    const json_t *rows = json_object_get(out, "slot_by_op"), *ops = json_object_get(out, "op");
    esper_mask mask;
    scene s;

    /* Left out: the causal table; refused inputs; slots that are switched off (a view has none); the governor's override;
     * more seeds than are in the slots. test_actions.c compares them all. */
    n_left_out++;
    if (rows == NULL || json_is_true(json_object_get(in, "allow_governor_override")) ||
        json_array_size(json_object_get(in, "enabled")) != json_array_size(json_object_get(in, "slots")))
        return;
    recorded_view(in, &s);
    if (!limit_seeds(in, &s))
        return;
    esper_mask_build(&s.view, &mask);
    n_left_out--;
    n_compared++;
    for (size_t op = 0; op < json_array_size(ops); op++) { /* `try` came later */
        bool recorded = json_integer_value(json_array_get(ops, op)) != 0;

        n_differences += mask.ops[op] != recorded;
        for (size_t i = 0; i < (size_t)s.view.n_slots; i++) {
            recorded = json_integer_value(json_array_get(json_array_get(rows, op), i)) != 0;
            if (mask.slots[op][i] != recorded) {
                print_error("case %d: %s of slot %zu: %d, recorded %d\n", int_of(entry, "case"),
                            esper_slot_op_name((int)op), i, mask.slots[op][i], recorded);
                n_differences++;
            }
        }
    }
}

static void recorded_masks(void **state)
{
    (void)state;
    golden_each_case("masks", replay);
    printf("%d masks compared, %d not: switched off slots, an override, seeds elsewhere, refused\n", n_compared,
           n_left_out);
    assert_true(n_compared > 0);
    assert_int_equal(n_differences, 0);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void refusals(void **state)
{
    esper_policy_slot *slot;
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    slot = put_seed(&s, 0, ESPER_STAGE_TRAINING, "norm");
    esper_decision_init(&decision, ESPER_SLOT_OP_FOSSILIZE);
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_ARG, "a slot is missing");
    decision.slot = 3;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_ARG, "no slot 3 of 3");
    decision.slot = 0;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE,
                "fossilize r0c0 needs a seed that is holding; r0c0 is training for 6 of its 12 epochs");
    decision.op = ESPER_SLOT_OP_PRUNE;
    slot->epochs_total = 4;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "5 epochs or more");
    slot->epochs_total = 5;
    check_good(esper_mask_check(&s.view, &decision));
    slot->alpha_mode = ESPER_POLICY_ALPHA_UP;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "does not move");
    esper_decision_init(&decision, ESPER_SLOT_OP_GERMINATE);
    decision.slot = 0;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_ARG, "blueprint is missing");
    decision.blueprint = 3;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "needs an empty slot");
    decision.slot = 1;
    check_good(esper_mask_check(&s.view, &decision));
    s.slots[1].blueprints = 1u << 1;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "norm does not fit r1c0");
    s.slots[1].blueprints = 1u << 8; /* lora: of the other topology */
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "fits the slot and the budget");
    s.slots[1].blueprints = 1u << 3;
    s.view.max_seeds = 1;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "max_seeds");
    esper_decision_init(&decision, ESPER_SLOT_OP_SET_ALPHA_TARGET);
    decision.slot = 0;
    slot->stage = ESPER_STAGE_BLENDING;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "does not move");
    slot->alpha_mode = ESPER_POLICY_ALPHA_HOLD;
    check_good(esper_mask_check(&s.view, &decision));
    decision.style = ESPER_STYLE_LINEAR_ADD; /* the operator it has */
    slot->alpha = 0.5;
    check_good(esper_mask_check(&s.view, &decision));
    decision.style = ESPER_STYLE_GATED_GATE;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "at alpha 0 alone");
    slot->alpha = 0.0;
    check_good(esper_mask_check(&s.view, &decision));
    s.view.loss_valid = s.view.accuracy_valid = 1.0;
    check_fails(esper_mask_approve(&s.view, &decision), ESPER_E_STATE, "born with its seed");
    decision.style = ESPER_STYLE_LINEAR_MULTIPLY;
    check_good(esper_mask_approve(&s.view, &decision));
    esper_decision_init(&decision, ESPER_SLOT_OP_ADVANCE);
    decision.slot = 0;
    check_good(esper_mask_check(&s.view, &decision));
    s.view.advances_itself = true;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "by themselves");
    assert_false(esper_mask_legal(&s.view, -1, ESPER_SLOT_OP_WAIT));
    assert_false(esper_mask_legal(&s.view, 0, ESPER_N_SLOT_OPS));
}

/* A trial needs what a germination does, and that it may be paid for and can have another answer than the last. */
static void trials_that_are_asked_for(void **state)
{
    esper_action_mask open;
    esper_decision decision;
    esper_mask mask;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_decision_init(&decision, ESPER_SLOT_OP_TRY);
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_ARG, "try: a slot is missing");
    decision.slot = 1;
    check_fails(esper_mask_approve(&s.view, &decision), ESPER_E_STATE,
                "try r1c0 needs a run in which trials may be asked for");
    s.view.forks_left = 0.1;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "one of the kinds that are tried to fit the slot");
    s.slots[1].fork_share = 0.11;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "more left of trial_share than it takes");
    s.slots[1].fork_share = 0.1;
    check_good(esper_mask_check(&s.view, &decision));
    check_good(esper_mask_approve(&s.view, &decision));
    s.slots[1].fork_stands = true;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "another network than the one of the last trial");
    s.slots[1].fork_stands = false;
    s.slots[1].closed = true;
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "a kept seed in the slot before it");
    s.slots[1].closed = false;
    s.slots[2].fork_share = 0.05;
    esper_mask_build(&s.view, &mask);
    assert_true(mask.ops[ESPER_SLOT_OP_TRY] && !mask.slots[ESPER_SLOT_OP_TRY][0] && mask.slots[ESPER_SLOT_OP_TRY][1] &&
                mask.slots[ESPER_SLOT_OP_TRY][2]);
    check_good(esper_action_mask_build(&s.view, &open));
    assert_true(open.slots[ESPER_SLOT_OP_TRY] == (1u << 1 | 1u << 2));
    assert_int_equal(esper_action_mask_head(&open, ESPER_HEAD_BLUEPRINT, ESPER_SLOT_OP_TRY, 1), 1);
    put_seed(&s, 0, ESPER_STAGE_TRAINING, "norm"); /* one thing at a time, for who draws */
    esper_mask_build(&s.view, &mask);
    assert_false(mask.ops[ESPER_SLOT_OP_TRY]);
    check_good(esper_mask_check(&s.view, &decision));
    put_seed(&s, 1, ESPER_STAGE_HOLDING, "norm");
    check_fails(esper_mask_check(&s.view, &decision), ESPER_E_STATE, "try r1c0 needs an empty slot");
}

/* Damaged records are refused whatever the view. */
static void damaged_decisions(void **state)
{
    esper_decision good, bad;

    (void)state;
    esper_decision_init(&good, ESPER_SLOT_OP_GERMINATE);
    good.slot = 0;
    good.blueprint = 1;
    check_good(esper_decision_check(&good, ESPER_TOPOLOGY_CNN));
    check_fails(esper_decision_check(&good, ESPER_TOPOLOGY_TRANSFORMER), ESPER_E_ARG, "blueprint");
#define BAD(member, value)                                                                             \
    do {                                                                                               \
        bad = good;                                                                                    \
        bad.member = value;                                                                            \
        if (esper_decision_check(&bad, ESPER_TOPOLOGY_CNN) != ESPER_E_ARG)                             \
            fail_msg("%s = %s was accepted", #member, #value);                                         \
    } while (0)
    BAD(op, -1);
    BAD(op, ESPER_N_SLOT_OPS);
    BAD(slot, -1);
    BAD(blueprint, 0);
    BAD(blueprint, 99);
    BAD(style, ESPER_STYLE_KEEP);
    BAD(style, 4);
    BAD(tempo, 0);
    BAD(tempo, 1001);
    BAD(speed, -1);
    BAD(curve, 5);
    BAD(curve, -1);
    BAD(target, 0.0);
    BAD(target, 1.1);
    BAD(target, (double)NAN);
    BAD(reason, ESPER_N_REASONS);
    BAD(confidence, (double)NAN);
    BAD(confidence, -0.1);
#undef BAD
    bad = good;
    memset(bad.text, 'x', sizeof(bad.text));
    check_fails(esper_decision_check(&bad, ESPER_TOPOLOGY_CNN), ESPER_E_ARG, "damaged");
}

/* ------------------------------------------------------------------------------------------------ random */

static void draw_slot(esper_rng *rng, esper_policy_slot *slot, esper_topology topology)
{
    static const int stages[] = {1, 1, 2, 3, 4, 4, 6, 6, 7, 8, 9, 10};

    slot->stage = stages[esper_rng_below(rng, 12)];
    slot->epochs_total = (int)esper_rng_below(rng, 9);
    slot->alpha_mode = (int)esper_rng_below(rng, 3);
    slot->alpha = (double)esper_rng_uniform(rng);
    slot->blueprints = esper_rng_u32(rng) & 0xFFFF & esper_rng_u32(rng);
    slot->blend = (esper_blend)(1 + esper_rng_below(rng, 3));
    slot->blueprint = esper_stage_has_seed(slot->stage) ? 3 : -1;
    slot->fork_share = 0.05;
    (void)topology;
}

static void random_is_legal(void **state)
{
    int n_ops[ESPER_N_SLOT_OPS] = {0};
    esper_policy_setup setup = plain_setup();
    esper_rng rng;
    scene s;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 3, .purpose = ESPER_RNG_TEST});
    for (int topology = 0; topology < 2; topology++) {
        esper_policy *policy;

        setup.topology = (esper_topology)topology;
        policy = open_policy("random", &setup);
        for (int i = 0; i < 20000; i++) {
            esper_decision decision, again;

            set_scene(&s, (esper_topology)topology);
            s.view.epoch = i;
            s.view.max_seeds = (int)esper_rng_below(&rng, 4);
            s.view.forks_left = 0.2;
            s.view.advances_itself = esper_rng_below(&rng, 8) == 0;
            s.view.n_slots = 1 + (int)esper_rng_below(&rng, N_SLOTS);
            for (int slot = 0; slot < s.view.n_slots; slot++)
                draw_slot(&rng, &s.slots[slot], (esper_topology)topology);
            check_good(esper_policy_decide(policy, &s.view, &decision));
            if (esper_mask_check(&s.view, &decision) != ESPER_OK)
                fail_msg("draw %d: %s", i, esper_last_error());
            check_good(esper_policy_decide(policy, &s.view, &again));
            assert_memory_equal(&decision, &again, sizeof(decision));
            n_ops[decision.op]++;
        }
        esper_policy_close(policy);
    }
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        printf("%s %d\n", esper_slot_op_name(op), n_ops[op]);
        assert_true(op == ESPER_SLOT_OP_TRY ? n_ops[op] == 0
                                            : n_ops[op] > 500); /* it does not look at what it would hear */
    }
}

/* A life of slots in a few lines: what is asked happens at once, ramps end in the next epoch, prunes cool down. */
static void live(scene *s, const esper_decision *decision)
{
    for (int i = 0; i < s->view.n_slots; i++) {
        esper_policy_slot *slot = &s->slots[i];

        slot->epochs_total += slot->stage != ESPER_STAGE_DORMANT;
        slot->alpha_mode = ESPER_POLICY_ALPHA_HOLD;
        if (esper_stage_cools_down(slot->stage))
            slot->stage = slot->stage == ESPER_STAGE_RESETTING ? ESPER_STAGE_DORMANT : slot->stage + 1;
        if (decision->slot != i)
            continue;
        if (decision->op == ESPER_SLOT_OP_GERMINATE) {
            slot->epochs_total = 0;
            slot->blueprint = decision->blueprint;
            slot->blend = esper_style_blend(decision->style);
            slot->stage = ESPER_STAGE_GERMINATED;
        } else if (decision->op == ESPER_SLOT_OP_PRUNE) {
            slot->stage = ESPER_STAGE_PRUNED;
        } else if (decision->op == ESPER_SLOT_OP_ADVANCE || decision->op == ESPER_SLOT_OP_FOSSILIZE) {
            slot->stage = esper_stage_next(slot->stage);
        } else if (decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET) {
            slot->stage = ESPER_STAGE_BLENDING;
            slot->alpha_mode = decision->speed > 0 ? ESPER_POLICY_ALPHA_DOWN : ESPER_POLICY_ALPHA_HOLD;
            slot->alpha = decision->target;
        }
    }
}

static void random_lives(void **state)
{
    int n_fossils = 0, n_lives = 200;
    uint64_t different = 0;
    esper_decision first[50];

    (void)state;
    for (int run = 0; run < n_lives; run++) {
        esper_policy_setup setup = plain_setup();
        esper_policy *policy;
        scene s;

        setup.seed = (uint64_t)run;
        policy = open_policy("random", &setup);
        set_scene(&s, ESPER_TOPOLOGY_CNN);
        for (s.view.epoch = 1; s.view.epoch <= 50; s.view.epoch++) {
            esper_decision decision;

            check_good(esper_policy_decide(policy, &s.view, &decision));
            if (esper_mask_check(&s.view, &decision) != ESPER_OK)
                fail_msg("run %d, epoch %d: %s", run, s.view.epoch, esper_last_error());
            if (run == 0)
                first[s.view.epoch - 1] = decision;
            else
                different += memcmp(&first[s.view.epoch - 1], &decision, sizeof(decision)) != 0;
            live(&s, &decision);
        }
        for (int i = 0; i < N_SLOTS; i++)
            n_fossils += s.slots[i].stage == ESPER_STAGE_FOSSILIZED;
        esper_policy_close(policy);
    }
    printf("%d lives of 50 epochs, %d fossils\n", n_lives, n_fossils);
    assert_true(n_fossils > 20);
    assert_true(different > 5000); /* other seeds draw otherwise */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_masks),
        cmocka_unit_test(refusals),
        cmocka_unit_test(trials_that_are_asked_for),
        cmocka_unit_test(damaged_decisions),
        cmocka_unit_test(random_is_legal),
        cmocka_unit_test(random_lives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
