/* Learned policies: the learner that an identity describes, and how it chooses. */
#include "policy/learned_case.h"

enum { RUNS = 13 };

/* ------------------------------------------------------------------------------------------------ descriptions */

static void describes_the_network(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    esper_policy_net_desc net;

    (void)state;
    esper_learned_net(&identity, &net);
    assert_int_equal(net.n_features, ESPER_FEATURES_RUN);
    assert_int_equal(net.n_slot_features, ESPER_FEATURES_SLOT);
    assert_int_equal(net.there, ESPER_FEATURE_THERE);
    assert_int_equal(net.n_slots, 3);
    assert_int_equal(net.n_ids, 3);
    assert_int_equal(esper_policy_net_wide(&net), identity.n_features);
    assert_int_equal(net.id_rows, 14);
    assert_int_equal(net.n_heads, ESPER_N_HEADS);
    assert_int_equal(net.q_head, ESPER_HEAD_OP);
    assert_int_equal(net.n_contributions, 3);
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        assert_string_equal(net.heads[head].name, esper_head_name(head));
        assert_int_equal(net.heads[head].size, esper_head_size(head, 3));
        assert_int_equal(net.heads[head].kind, head == ESPER_HEAD_OP     ? ESPER_POLICY_OF_RUN
                                               : head == ESPER_HEAD_SLOT ? ESPER_POLICY_AMONG_SLOTS
                                                                         : ESPER_POLICY_OF_SLOT);
    }
}

/* With every choice open, each head can still be all but sure of one: floors take little. */
static void leaves_room_to_commit(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    esper_ppo_desc desc;

    (void)state;
    esper_learned_ppo(&identity, &desc);
    assert_int_equal(desc.max_steps, EPISODE);
    assert_int_equal(desc.chunk_steps, 16);
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        double most = 1.0 - (desc.net.heads[head].size - 1) * desc.floors[head];

        if (!(desc.floors[head] > 0.0 && most >= 0.9))
            fail_msg("head %s: a floor of %g leaves %g at most", esper_head_name(head), desc.floors[head], most);
        assert_true(desc.collapsed[head] > 0.0 && desc.weights.head_penalty[head] > 0.0);
    }
    assert_true(desc.weights.head_floor[ESPER_HEAD_OP] == 0.30);
    assert_true(desc.collapsed[ESPER_HEAD_BLUEPRINT] == 0.05);
    identity.max_epochs = 7;
    esper_learned_ppo(&identity, &desc);
    assert_int_equal(desc.chunk_steps, 7);
}

static void checks_slots(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    const char *bad[] = {"r0c0", "a slot with blanks"}, *long_one[] = {"r0000000000000000c0"};

    (void)state;
    check_fails(esper_learned_identity_set_slots(&identity, bad, 2), ESPER_E_ARG, "'a slot with blanks' is no id");
    check_fails(esper_learned_identity_set_slots(&identity, long_one, 1), ESPER_E_ARG, "is no id");
    check_fails(esper_learned_identity_set_slots(&identity, bad, 0), ESPER_E_ARG, "1 to 64 slots, not 0");
    assert_int_equal(identity.n_slots, 3);
}

/* ------------------------------------------------------------------------------------------------ choosing */

/* What one run has of two epochs. */
typedef struct trace {
    esper_learned_choice choice[2];
    float                h[HIDDEN], c[HIDDEN];
} trace;

static esper_rng stream(uint32_t run, int epoch)
{
    esper_rng rng;

    esper_rng_init(&rng,
                   &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_POLICY, .network = run, .step = (uint32_t)epoch});
    return rng;
}

/* Lets runs act, n_envs at a time, run (first + environment) * stride of all in each environment. */
static void act_in_envs(learner *l, int n_envs, int stride, bool greedy, trace traces[RUNS])
{
    int n_features = l->identity.n_features, n_slots = l->identity.n_slots;
    float *obs = calloc((size_t)(n_envs * n_features), sizeof(float));
    float *h = calloc((size_t)(n_envs * HIDDEN), sizeof(float)), *c = calloc((size_t)(n_envs * HIDDEN), sizeof(float));
    int32_t *ids = calloc((size_t)(n_envs * n_slots), sizeof(int32_t));
    scene *scenes = calloc((size_t)n_envs, sizeof(*scenes));

    assert_true(obs != NULL && h != NULL && c != NULL && ids != NULL && scenes != NULL);
    for (int first = 0; first < RUNS; first += n_envs) {
        int n = RUNS - first < n_envs ? RUNS - first : n_envs;

        memset(h, 0, (size_t)(n_envs * HIDDEN) * sizeof(float));
        memset(c, 0, (size_t)(n_envs * HIDDEN) * sizeof(float));
        for (int epoch = 1; epoch <= 2; epoch++) {
            for (int env = 0; env < n; env++) {
                esper_feature_memory memory;
                int n_bad;

                set_epoch(&scenes[env], (uint32_t)((first + env) * stride % RUNS), epoch, n_slots);
                scenes[env].view.slots = scenes[env].slots;
                esper_feature_memory_init(&memory);
                check_good(esper_features_fill(&scenes[env].view, &memory, n_slots, obs + env * n_features,
                                               ids + env * n_slots, &n_bad));
            }
            check_good(esper_ppo_act(l->ppo, &(esper_ppo_step){.n_envs = n, .obs = obs, .ids = ids, .h = h, .c = c}));
            for (int env = 0; env < n; env++) {
                uint32_t run = (uint32_t)((first + env) * stride % RUNS);
                esper_rng rng = stream(run, epoch);
                esper_action_mask mask;

                check_good(esper_action_mask_build(&scenes[env].view, &mask));
                check_good(
                    esper_learned_choose(l->ppo, env, &mask, greedy ? NULL : &rng, &traces[run].choice[epoch - 1]));
                memcpy(traces[run].h, h + env * HIDDEN, sizeof(traces[run].h));
                memcpy(traces[run].c, c + env * HIDDEN, sizeof(traces[run].c));
            }
        }
    }
    free(obs);
    free(h);
    free(c);
    free(ids);
    free(scenes);
}

static void check_same_choice(const esper_learned_choice *a, const esper_learned_choice *b, int run, int epoch)
{
    for (int head = 0; head < ESPER_N_HEADS; head++)
        if (a->action.choice[head] != b->action.choice[head] || a->masks[head] != b->masks[head] ||
            a->open[head] != b->open[head] || memcmp(&a->log_probs[head], &b->log_probs[head], sizeof(float)) != 0)
            fail_msg("run %d, epoch %d, head %s: choice %d and %d, log-probabilities %.9g and %.9g", run, epoch,
                     esper_head_name(head), a->action.choice[head], b->action.choice[head], (double)a->log_probs[head],
                     (double)b->log_probs[head]);
    if (memcmp(&a->value, &b->value, sizeof(float)) != 0)
        fail_msg("run %d, epoch %d: values %.9g and %.9g", run, epoch, (double)a->value, (double)b->value);
}

/* The same runs one by one, in small fleets and in a large one, each time in other environments. */
static void chooses_the_same_in_any_env(void **state)
{
    static const int envs[] = {2, 5, RUNS, 32}, strides[] = {1, 3, 5, 7};
    esper_learned_identity identity = identity_of("synth", 3);
    trace alone[RUNS], together[RUNS];
    learner l;

    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        learner_open(&l, &identity, 1, 9);
        act_in_envs(&l, 1, 1, greedy, alone);
        learner_close(&l);
        for (int i = 0; i < 4; i++) {
            learner_open(&l, &identity, envs[i], 9);
            act_in_envs(&l, envs[i], strides[i], greedy, together);
            learner_close(&l);
            for (int run = 0; run < RUNS; run++) {
                for (int epoch = 0; epoch < 2; epoch++)
                    check_same_choice(&alone[run].choice[epoch], &together[run].choice[epoch], run, epoch + 1);
                assert_memory_equal(alone[run].h, together[run].h, sizeof(alone[run].h));
                assert_memory_equal(alone[run].c, together[run].c, sizeof(alone[run].c));
            }
        }
    }
}

/* One run's logits and mask, as they stand after an act. */
static void act_alone(learner *l, uint32_t run, scene *s, esper_action_mask *mask)
{
    float obs[ESPER_FEATURES_RUN + 3 * ESPER_FEATURES_SLOT], h[HIDDEN] = {0}, c[HIDDEN] = {0};
    esper_feature_memory memory;
    int32_t ids[3];
    int n_bad;

    set_epoch(s, run, 1, l->identity.n_slots);
    esper_feature_memory_init(&memory);
    check_good(esper_features_fill(&s->view, &memory, 3, obs, ids, &n_bad));
    check_good(esper_ppo_act(l->ppo, &(esper_ppo_step){.n_envs = 1, .obs = obs, .ids = ids, .h = h, .c = c}));
    check_good(esper_action_mask_build(&s->view, mask));
}

static void greedy_is_the_likeliest(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    int n_ops[ESPER_N_SLOT_OPS] = {0}, n_kinds = 0;
    esper_learned_choice choice;
    esper_action_mask mask;
    esper_masked masked;
    learner l;
    scene s;

    (void)state;
    learner_open(&l, &identity, 1, 9);
    for (uint32_t run = 0; run < 60; run++) {
        act_alone(&l, run, &s, &mask);
        check_good(esper_learned_choose(l.ppo, 0, &mask, NULL, &choice));
        for (int head = 0; head < ESPER_N_HEADS; head++) {
            int chosen = choice.action.choice[head];

            assert_true((choice.masks[head] >> chosen & 1u) != 0);
            check_good(esper_ppo_head(l.ppo, 0, head, choice.action.choice, choice.masks[head], &masked));
            for (int i = 0; i < masked.n; i++)
                if ((choice.masks[head] >> i & 1u) != 0 && masked.mixed[i] > masked.mixed[chosen])
                    fail_msg("head %s: choice %d (%g) is likelier than %d (%g)", esper_head_name(head), i,
                             masked.mixed[i], chosen, masked.mixed[chosen]);
            assert_true(choice.log_probs[head] == (float)masked.log_mixed[chosen]);
            assert_true(choice.entropies[head] == masked.entropy);
        }
        n_ops[choice.action.choice[ESPER_HEAD_OP]]++;
    }
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        n_kinds += n_ops[op] > 0;
    assert_in_range(n_kinds, 2, ESPER_N_SLOT_OPS); /* or the test would show nothing */
    learner_close(&l);
}

/* Masks are those of the operation and slot that were drawn, and each head takes one number of the stream. */
static void draws_one_number_a_head(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    esper_learned_choice choice;
    esper_action_mask mask;
    learner l;
    scene s;

    (void)state;
    learner_open(&l, &identity, 1, 9);
    for (uint32_t run = 0; run < 60; run++) {
        esper_rng rng = stream(run, 1), same = stream(run, 1);
        int op, slot;

        act_alone(&l, run, &s, &mask);
        check_good(esper_learned_choose(l.ppo, 0, &mask, &rng, &choice));
        esper_rng_skip(&same, ESPER_N_HEADS);
        assert_int_equal(esper_rng_u32(&rng), esper_rng_u32(&same));
        op = choice.action.choice[ESPER_HEAD_OP];
        slot = choice.action.choice[ESPER_HEAD_SLOT];
        for (int head = 0; head < ESPER_N_HEADS; head++) {
            assert_true(choice.masks[head] == esper_action_mask_head(&mask, head, op, slot));
            assert_true(choice.open[head] ==
                        (head == ESPER_HEAD_OP || esper_action_matters(op, head) ? choice.masks[head] : 0));
            if (!esper_action_matters(op, head))
                assert_true(choice.log_probs[head] == 0.0f);
        }
        assert_int_equal(choice.forced, esper_action_is_forced(&mask));
    }
    learner_close(&l);
}

/* The same weights for a host with slots in another order, and in a network with room for more of them: the same slot is chosen,
 * for the same things, of the same worth. */
static void chooses_by_properties(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3), roomy = identity_of("synth", 3);
    const char *ids[5] = {"a", "b", "c", "d", "e"};
    int n_slots[3] = {0}, n_moved = 0;
    learner l, wide;

    (void)state;
    check_good(esper_learned_identity_set_slots(&roomy, ids, 5));
    learner_open(&l, &identity, 1, 9);
    learner_open(&wide, &roomy, 1, 9); /* born and made bold of the same seeds */
    for (uint32_t run = 0; run < 60; run++) {
        float obs[ESPER_FEATURES_RUN + 5 * ESPER_FEATURES_SLOT], h[HIDDEN] = {0}, c[HIDDEN] = {0};
        esper_learned_choice here, there;
        esper_feature_memory memory;
        esper_policy_slot first;
        esper_action_mask mask;
        int32_t ids_of[5];
        int n_bad, chosen;
        scene s;

        act_alone(&l, run, &s, &mask);
        check_good(esper_learned_choose(l.ppo, 0, &mask, NULL, &here));
        first = s.slots[0]; /* a, b, c becomes b, c, a */
        s.slots[0] = s.slots[1];
        s.slots[1] = s.slots[2];
        s.slots[2] = first;
        esper_feature_memory_init(&memory);
        check_good(esper_features_fill(&s.view, &memory, 5, obs, ids_of, &n_bad));
        check_good(esper_ppo_act(wide.ppo, &(esper_ppo_step){.n_envs = 1, .obs = obs, .ids = ids_of, .h = h, .c = c}));
        check_good(esper_action_mask_build(&s.view, &mask));
        check_good(esper_learned_choose(wide.ppo, 0, &mask, NULL, &there));
        chosen = here.action.choice[ESPER_HEAD_SLOT];
        assert_int_equal(there.action.choice[ESPER_HEAD_OP], here.action.choice[ESPER_HEAD_OP]);
        assert_true(fabs((double)there.value - (double)here.value) < 1e-5);
        if (!esper_action_matters(here.action.choice[ESPER_HEAD_OP], ESPER_HEAD_SLOT))
            continue;
        assert_int_equal(there.action.choice[ESPER_HEAD_SLOT], (chosen + 2) % 3);
        for (int head = 0; head < ESPER_N_HEADS; head++) {
            if (head != ESPER_HEAD_SLOT)
                assert_int_equal(there.action.choice[head], here.action.choice[head]);
            assert_true(fabs((double)there.log_probs[head] - (double)here.log_probs[head]) < 1e-4);
        }
        n_slots[chosen]++;
        n_moved++;
    }
    assert_true(n_moved > 10 && n_slots[0] < n_moved && n_slots[1] < n_moved && n_slots[2] < n_moved);
    learner_close(&l);
    learner_close(&wide);
}

/* How often each operation is drawn is as likely as it says. */
static void draws_by_probability(void **state)
{
    enum { DRAWS = 4000 };
    esper_learned_identity identity = identity_of("synth", 3);
    double n[ESPER_N_SLOT_OPS] = {0};
    esper_learned_choice choice;
    esper_action_mask mask;
    esper_masked masked;
    learner l;
    scene s;

    (void)state;
    learner_open(&l, &identity, 1, 9);
    act_alone(&l, 4, &s, &mask);
    for (int i = 0; i < DRAWS; i++) {
        esper_rng rng = stream(1, i);

        check_good(esper_learned_choose(l.ppo, 0, &mask, &rng, &choice));
        n[choice.action.choice[ESPER_HEAD_OP]]++;
    }
    check_good(esper_ppo_head(l.ppo, 0, ESPER_HEAD_OP, choice.action.choice, choice.masks[ESPER_HEAD_OP], &masked));
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        if (fabs(n[op] / DRAWS - masked.mixed[op]) > 4.0 * sqrt(masked.mixed[op] * (1 - masked.mixed[op]) / DRAWS))
            fail_msg("operation %d was drawn %g times of %d, with a probability of %g", op, n[op], DRAWS,
                     masked.mixed[op]);
    learner_close(&l);
}

static void refuses_logits_that_are_not_finite(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    esper_learned_choice choice = {.probability = 0.25};
    esper_action_mask mask;
    learner l;
    scene s;

    (void)state;
    learner_open(&l, &identity, 1, 9);
    act_alone(&l, 1, &s, &mask);
    ((float *)(uintptr_t)esper_policy_net_io(esper_ppo_net(l.ppo), ESPER_POLICY_ACT).logits[ESPER_HEAD_OP])[2] = NAN;
    check_fails(esper_learned_choose(l.ppo, 0, &mask, NULL, &choice), ESPER_E_ARG, "head op of a policy: logit 2 of 7");
    assert_true(choice.probability == 0.25);
    learner_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes_the_network),
        cmocka_unit_test(leaves_room_to_commit),
        cmocka_unit_test(checks_slots),
        cmocka_unit_test(chooses_the_same_in_any_env),
        cmocka_unit_test(greedy_is_the_likeliest),
        cmocka_unit_test(draws_one_number_a_head),
        cmocka_unit_test(chooses_by_properties),
        cmocka_unit_test(draws_by_probability),
        cmocka_unit_test(refuses_logits_that_are_not_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
