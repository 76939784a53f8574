/* ctest: timeout=60 labels=golden */
/* Heads, masks and the mapping to decisions: recorded masks of every head, the table of what matters, and random views, in
 * which whatever is drawn from the masks must be legal. */
#include "policy/helpers.h"

#include "policy/actions.h"

/* ------------------------------------------------------------------------------------------------ recorded */

enum { RECORDED_OPS = 6 };

static int n_compared, n_causal, n_refused, n_mismatches;

static bool is_in(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0)
            return true;
    return false;
}

/* The slots that take part, in the order of the action space; column[i] is where slot i of the view was recorded. */
static void recorded_view(const json_t *in, scene *s, size_t column[ESPER_POLICY_MAX_SLOTS])
{
    const json_t *slots = json_object_get(in, "slots"), *states = json_object_get(in, "states");

    set_scene(s, strcmp(text_of(in, "topology"), "cnn") == 0 ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER);
    s->view.n_slots = 0;
    s->view.advances_itself = json_is_true(json_object_get(in, "disable_advance"));
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const char *id = json_string_value(json_array_get(slots, i));
        const json_t *seed = json_object_get(states, id);
        esper_policy_slot *slot = &s->slots[s->view.n_slots];

        if (!is_in(json_object_get(in, "enabled"), id))
            continue;
        column[s->view.n_slots++] = i;
        esper_policy_slot_init(slot, s->view.topology, id);
        if (!json_is_object(seed))
            continue;
        slot->stage = stage_of(text_of(seed, "stage"));
        slot->epochs_total = int_of(seed, "age");
        slot->alpha_mode = mode_of(text_of(seed, "alpha_mode"));
    }
}

static int count_seeds(const scene *s)
{
    int n = 0;

    for (int i = 0; i < s->view.n_slots; i++)
        n += esper_stage_has_seed(s->slots[i].stage);
    return n;
}

static void mismatch(const json_t *entry, const char *what, size_t at, uint64_t ours, int64_t recorded)
{
    print_error("case %d: %s %zu: %d, recorded %d\n", int_of(entry, "case"), what, at, (int)ours, (int)recorded);
    n_mismatches++;
}

static void compare_bits(const json_t *entry, const json_t *list, const char *what, uint64_t bits)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if ((bits >> i & 1u) != (uint64_t)json_integer_value(json_array_get(list, i)))
            mismatch(entry, what, i, bits >> i & 1u, json_integer_value(json_array_get(list, i)));
}

/* Bits of the view's slots as bits of the recorded columns: a slot that takes no part is never open. */
static uint64_t in_columns(uint64_t bits, const scene *s, const size_t *column)
{
    uint64_t there = 0;

    for (int i = 0; i < s->view.n_slots; i++)
        there |= (bits >> i & 1u) << column[i];
    return there;
}

/* The number of seeds was given apart from the slots; ours are counted. One that takes no part makes them enough. */
static void reach_limit(scene *s, size_t *column)
{
    esper_policy_slot *more = &s->slots[s->view.n_slots];

    esper_policy_slot_init(more, s->view.topology, "r9c9");
    more->stage = ESPER_STAGE_FOSSILIZED;
    column[s->view.n_slots++] = 63;
    s->view.max_seeds = count_seeds(s);
}

/* The governor's override lets a seed be pruned while alpha moves. A policy has none; with alpha at rest its mask is that. */
static void override(const json_t *entry, scene *s, esper_action_mask *mask)
{
    uint64_t moving = 0;
    esper_action_mask at_rest;

    for (int i = 0; i < s->view.n_slots; i++) {
        moving |= (uint64_t)(s->slots[i].alpha_mode != ESPER_POLICY_ALPHA_HOLD) << i;
        s->slots[i].alpha_mode = ESPER_POLICY_ALPHA_HOLD;
    }
    check_good(esper_action_mask_build(&s->view, &at_rest));
    if (at_rest.slots[ESPER_SLOT_OP_PRUNE] != mask->slots[ESPER_SLOT_OP_PRUNE]) {
        assert_true(mask->slots[ESPER_SLOT_OP_PRUNE] == (at_rest.slots[ESPER_SLOT_OP_PRUNE] & ~moving));
        difference_met(DIFFERENCE_MASK_OVERRIDE, entry);
    }
    mask->slots[ESPER_SLOT_OP_PRUNE] = at_rest.slots[ESPER_SLOT_OP_PRUNE];
    mask->heads[ESPER_HEAD_OP] |= at_rest.heads[ESPER_HEAD_OP] & 1u << ESPER_SLOT_OP_PRUNE;
}

static void compare_masks(const json_t *entry, scene *s, const size_t *column)
{
    const json_t *out = json_object_get(entry, "out");
    esper_action_mask mask;

    check_good(esper_action_mask_build(&s->view, &mask));
    if (json_is_true(json_object_get(json_object_get(entry, "in"), "allow_governor_override")))
        override(entry, s, &mask);
    for (int head = 0; head < ESPER_N_HEADS; head++)
        compare_bits(entry, json_object_get(out, esper_head_name(head)), esper_head_name(head),
                     head == ESPER_HEAD_SLOT ? in_columns(mask.heads[head], s, column) : mask.heads[head]);
    assert_true(mask.slots[ESPER_SLOT_OP_TRY] == 0); /* the others are compared */
    difference_met(DIFFERENCE_TRY, entry);
    for (size_t op = 0; op < RECORDED_OPS; op++)
        compare_bits(entry, json_array_get(json_object_get(out, "slot_by_op"), op), esper_slot_op_name((int)op),
                     in_columns(mask.slots[op], s, column));
}

static void compare_causal(const json_t *entry)
{
    static const int columns[] = {ESPER_HEAD_OP,    ESPER_HEAD_SLOT,   ESPER_HEAD_BLUEPRINT, ESPER_HEAD_STYLE,
                                  ESPER_HEAD_TEMPO, ESPER_HEAD_TARGET, ESPER_HEAD_SPEED,     ESPER_HEAD_CURVE};
    const json_t *rows = json_object_get(json_object_get(entry, "out"), "causal");

    n_causal++;
    difference_met(DIFFERENCE_TRY, entry);
    for (size_t op = 0; op < RECORDED_OPS; op++)
        for (size_t i = 0; i < ESPER_N_HEADS; i++) {
            int64_t recorded = json_integer_value(json_array_get(json_array_get(rows, op), i));

            if (esper_action_matters((int)op, columns[i]) != (recorded != 0))
                mismatch(entry, esper_head_name(columns[i]), op, recorded == 0, recorded);
        }
}

/* Recorded as refused: refused here, too, or nothing that a view could say. */
static void replay_error(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *enabled = json_object_get(in, "enabled");
    const char *topology = text_of(in, "topology");
    esper_action_mask mask;
    scene s;

    if (json_array_size(enabled) == 0) { /* no slot takes part */
        set_scene(&s, ESPER_TOPOLOGY_CNN);
        s.view.n_slots = 0;
        check_fails(esper_action_mask_build(&s.view, &mask), ESPER_E_ARG, "slots");
        n_refused++;
        return;
    }
    if (strcmp(topology, "cnn") != 0 && strcmp(topology, "transformer") != 0) {
        difference_met(DIFFERENCE_MASK_TOPOLOGY, entry);
        return;
    }
    for (size_t i = 0; i < json_array_size(enabled); i++) {
        const char *id = json_string_value(json_array_get(enabled, i));

        if (!is_in(json_object_get(in, "slots"), id)) {
            difference_met(DIFFERENCE_MASK_SLOT, entry);
            return;
        }
        if (json_object_get(json_object_get(in, "states"), id) == NULL) {
            difference_met(DIFFERENCE_MASK_STATE, entry);
            return;
        }
    }
    fail_msg("case %d: recorded as refused, and nothing is wrong with it", int_of(entry, "case"));
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    size_t column[ESPER_POLICY_MAX_SLOTS];
    int max_seeds = int_of(in, "max_seeds");
    scene s;

    if (json_object_get(out, "causal") != NULL) {
        compare_causal(entry);
        return;
    }
    if (json_is_true(json_object_get(out, "error"))) {
        replay_error(entry);
        return;
    }
    recorded_view(in, &s, column);
    if (max_seeds > 0 && int_of(in, "total_seeds") >= max_seeds)
        reach_limit(&s, column);
    compare_masks(entry, &s, column);
    n_compared++;
}

static void recorded_masks(void **state)
{
    (void)state;
    golden_each_case("masks", replay);
    printf("%d masks and %d tables compared, %d refused by both\n", n_compared, n_causal, n_refused);
    difference_say("masks");
    assert_int_equal(n_mismatches, 0);
    assert_true(n_compared > 0);
}

/* ------------------------------------------------------------------------------------------------ properties */

/* op always; the others by the table of what asks them. */
static void availability(void **state)
{
    (void)state;
    for (uint64_t ops = 1; ops < 1u << ESPER_N_SLOT_OPS; ops += 2) { /* waiting is always open */
        bool germinate = (ops >> ESPER_SLOT_OP_GERMINATE & 1u) != 0, prune = (ops >> ESPER_SLOT_OP_PRUNE & 1u) != 0;
        bool set = (ops >> ESPER_SLOT_OP_SET_ALPHA_TARGET & 1u) != 0;

        assert_true(esper_action_available(ops, ESPER_HEAD_OP));
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_SLOT), ops != 1);
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_BLUEPRINT), germinate); /* `try` tries all candidates */
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_TEMPO), germinate);
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_STYLE), germinate || set);
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_TARGET), germinate || set);
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_SPEED), set || prune);
        assert_int_equal(esper_action_available(ops, ESPER_HEAD_CURVE), set || prune);
    }
}

static void draw_scene(esper_rng *rng, scene *s)
{
    static const int stages[] = {1, 1, 1, 2, 3, 4, 4, 6, 6, 7, 8, 9, 10};

    set_scene(s, (esper_topology)esper_rng_below(rng, 2));
    s->view.n_slots = 1 + (int)esper_rng_below(rng, esper_rng_below(rng, 4) == 0 ? ESPER_POLICY_MAX_SLOTS : 4);
    s->view.max_seeds = (int)esper_rng_below(rng, 4);
    s->view.advances_itself = esper_rng_below(rng, 8) == 0;
    s->view.forks_left = 0.1 * (double)esper_rng_below(rng, 3);
    for (int i = 0; i < s->view.n_slots; i++) {
        esper_policy_slot *slot = &s->slots[i];
        char id[ESPER_POLICY_ID_CHARS];

        snprintf(id, sizeof(id), "r%dc0", i);
        esper_policy_slot_init(slot, s->view.topology, id);
        slot->stage = stages[esper_rng_below(rng, s->view.n_slots < 5 ? 13 : 3 + 10 * (esper_rng_below(rng, 9) == 0))];
        slot->epochs_total = (int)esper_rng_below(rng, 9);
        slot->alpha_mode = (int)esper_rng_below(rng, 3);
        slot->alpha = esper_rng_below(rng, 2) == 0 ? 0.0 : 0.5;
        slot->blueprints = esper_rng_u32(rng) & esper_rng_u32(rng) & 0xFFFF;
        slot->blend = (esper_blend)(1 + esper_rng_below(rng, 3));
        slot->blueprint = esper_stage_has_seed(slot->stage) ? 3 : -1;
        slot->fork_share = 0.06 * (double)esper_rng_below(rng, 4);
        slot->fork_stands = esper_rng_below(rng, 3) == 0;
    }
}

static int32_t draw_bit(esper_rng *rng, uint64_t bits)
{
    int32_t at = 0;
    uint32_t nth;

    assert_true(bits != 0);
    nth = esper_rng_below(rng, (uint32_t)__builtin_popcountll(bits));
    while ((bits >> at & 1u) == 0 || nth-- > 0)
        at++;
    return at;
}

static void draw_action(esper_rng *rng, const esper_action_mask *mask, esper_action *action)
{
    int32_t op = draw_bit(rng, esper_action_mask_head(mask, ESPER_HEAD_OP, 0, 0));
    int32_t slot = draw_bit(rng, esper_action_mask_head(mask, ESPER_HEAD_SLOT, op, 0));

    for (int head = 0; head < ESPER_N_HEADS; head++)
        action->choice[head] = draw_bit(rng, esper_action_mask_head(mask, head, op, slot));
    action->choice[ESPER_HEAD_OP] = op;
    action->choice[ESPER_HEAD_SLOT] = slot;
}

static void check_rows(const scene *s, const esper_action_mask *mask)
{
    uint64_t all = mask->heads[ESPER_HEAD_SLOT];

    assert_true(mask->heads[ESPER_HEAD_OP] & 1u);
    assert_true((mask->heads[ESPER_HEAD_BLUEPRINT] & 1u) == 0);
    assert_true(mask->slots[ESPER_SLOT_OP_WAIT] == all);
    assert_int_equal(__builtin_popcountll(all), s->view.n_slots);
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        assert_int_equal(mask->heads[ESPER_HEAD_OP] >> op & 1u, mask->slots[op] != 0);
        assert_true((mask->slots[op] & ~all) == 0);
        for (int head = 0; head < ESPER_N_HEADS; head++) {
            uint64_t bits = esper_action_mask_head(mask, head, op, s->view.n_slots - 1);

            assert_true(bits != 0);
            if (!esper_action_matters(op, head) && head != ESPER_HEAD_OP)
                assert_int_equal(__builtin_popcountll(bits), 1);
        }
    }
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        uint64_t open = esper_action_mask_open(mask, head);

        assert_int_equal(open != 0, esper_action_available(mask->heads[ESPER_HEAD_OP], head));
        assert_true((open & ~mask->heads[head]) == 0);
    }
    assert_int_equal(esper_action_is_forced(mask), __builtin_popcountll(mask->heads[ESPER_HEAD_OP]) == 1);
}

/* A decision says what the action chose, where its operation asks, and the usual where it does not. */
static void check_decision(const esper_action *action, const esper_decision *decision)
{
    const int32_t *choice = action->choice;
    int op = choice[ESPER_HEAD_OP];
    esper_decision usual;

    esper_decision_init(&usual, op);
#define SAYS(head, field, chosen) \
    assert_true(decision->field == (esper_action_matters(op, ESPER_HEAD_##head) ? (chosen) : usual.field))
    assert_int_equal(decision->op, op);
    SAYS(SLOT, slot, choice[ESPER_HEAD_SLOT]);
    SAYS(BLUEPRINT, blueprint, choice[ESPER_HEAD_BLUEPRINT]);
    SAYS(STYLE, style, choice[ESPER_HEAD_STYLE]);
    SAYS(TEMPO, tempo, esper_action_tempo(choice[ESPER_HEAD_TEMPO]));
    SAYS(TARGET, target, esper_action_target(choice[ESPER_HEAD_TARGET]));
    SAYS(SPEED, speed, esper_action_speed(choice[ESPER_HEAD_SPEED]));
    SAYS(CURVE, curve, choice[ESPER_HEAD_CURVE]);
#undef SAYS
}

/* Whatever is drawn head by head is a legal decision, and comes back from it. */
static void drawn_is_legal(void **state)
{
    int n_ops[ESPER_N_SLOT_OPS] = {0};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 8, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 20000; i++) {
        esper_action action;
        esper_action_mask mask;
        esper_decision decision;
        scene s;

        draw_scene(&rng, &s);
        check_good(esper_action_mask_build(&s.view, &mask));
        check_rows(&s, &mask);
        draw_action(&rng, &mask, &action);
        esper_action_decide(&action, &decision);
        if (esper_mask_check(&s.view, &decision) != ESPER_OK)
            fail_msg("draw %d: %s", i, esper_last_error());
        check_decision(&action, &decision);
        n_ops[decision.op]++;
    }
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        assert_true(n_ops[op] > 300);
}

/* The head has the size it was learned with: `layer` came later, and is for those who name what they plant. */
static void the_head_is_as_it_was(void **state)
{
    const esper_blueprint *layer;
    esper_action_mask mask;
    scene s;

    (void)state;
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_TRANSFORMER, "layer", &layer));
    assert_int_equal(layer->index, esper_head_size(ESPER_HEAD_BLUEPRINT, 1));
    set_scene(&s, ESPER_TOPOLOGY_TRANSFORMER);
    s.slots[0].blueprints = 1u << layer->index;
    check_good(esper_action_mask_build(&s.view, &mask));
    assert_true((s.slots[1].blueprints & 1u << layer->index) != 0);
    assert_true(mask.heads[ESPER_HEAD_BLUEPRINT] < UINT64_C(1) << layer->index);
    assert_true((mask.slots[ESPER_SLOT_OP_GERMINATE] & 1u) == 0); /* nothing fits there that the head knows */
    assert_true((mask.slots[ESPER_SLOT_OP_GERMINATE] & 2u) != 0);
    for (int i = 1; i < s.view.n_slots; i++)
        s.slots[i].blueprints = 1u << layer->index;
    check_good(esper_action_mask_build(&s.view, &mask));
    assert_true((mask.heads[ESPER_HEAD_OP] & 1u << ESPER_SLOT_OP_GERMINATE) == 0);
}

static void what_comes_of_it(void **state)
{
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_decision_init(&decision, ESPER_SLOT_OP_GERMINATE);
    decision.slot = 1;
    decision.blueprint = 3;
    assert_int_equal(esper_action_effective_op(&s.view, &decision), ESPER_SLOT_OP_GERMINATE);
    put_seed(&s, 1, ESPER_STAGE_TRAINING, "norm");
    assert_int_equal(esper_action_effective_op(&s.view, &decision), ESPER_SLOT_OP_WAIT);
    s.view.n_slots = ESPER_POLICY_MAX_SLOTS + 1;
    check_fails(esper_action_mask_build(&s.view, &(esper_action_mask){.slots = {0}}), ESPER_E_ARG, "not 65");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_masks),        cmocka_unit_test(availability),     cmocka_unit_test(drawn_is_legal),
        cmocka_unit_test(the_head_is_as_it_was), cmocka_unit_test(what_comes_of_it),
    };

    return cmocka_run_group_tests_name("policy/actions", tests, NULL, NULL);
}
