/* Trials: when they are held, what they cost, and whom they believe. The ground is made up: forks gain what a table says. */
#include "policy/helpers.h"
#include "policy/trials.h"

enum { HEAVY = 7, LIGHT = 1, STEP = 1000000 };

/* What forks would show. */
typedef struct ground {
    double gain[N_SLOTS][ESPER_POLICY_BLUEPRINTS]; /* for each 100 steps */
    double error;
    int bad_slot; /* forks there are not finite; -1: none */
    bool stops;
    int n_rounds, n_forks[8];
    int most_rounds, n_seeds; /* settings */
    esper_fork vouched;
    bool dearer; /* than usual */
    uint32_t n_steps[8];
    double flops;
    uint32_t birth_steps;
    int n_recorded;
    esper_fork recorded[ESPER_TRIAL_MAX_FORKS];
} ground;

static esper_status measure(void *context, esper_fork *fork)
{
    const ground *g = context;

    fork->birth_steps = fork->slot >= 0 ? g->birth_steps : 0;
    fork->step_flops = (g->dearer ? 8 : 1) * STEP *
                       (fork->blueprint == HEAVY   ? 3.0
                        : fork->blueprint == LIGHT ? 2.0
                                                   : 1.0);
    fork->sample_flops = fork->step_flops / 384.0;
    return ESPER_OK;
}

static esper_status compare(void *context, esper_fork *forks, int n, uint32_t n_steps, uint32_t n_batches)
{
    ground *g = context;

    if (g->stops)
        return ESPER_FAIL(ESPER_E_STOPPED, "a trial");
    assert_true(n_batches > 0 && forks[0].slot == -1);
    assert_in_range(g->n_rounds, 0, 7);
    g->n_forks[g->n_rounds] = n;
    g->n_steps[g->n_rounds++] = n_steps;
    for (int i = 0; i < n; i++) {
        esper_fork *fork = &forks[i];
        double flops = fork->step_flops * (fork->birth_steps + n_steps) + fork->sample_flops * 128 * n_batches;
        bool bad = fork->slot >= 0 && fork->slot == g->bad_slot;

        fork->n_steps = n_steps;
        fork->gain = fork->slot >= 0 ? g->gain[fork->slot][fork->blueprint] * n_steps / 100.0 : 0.0;
        fork->error = g->error;
        fork->loss = bad ? (double)NAN : 1.0 - fork->gain;
        fork->gain = bad ? (double)NAN : fork->gain;
        fork->flops += flops;
        g->flops += flops;
    }
    return ESPER_OK;
}

static esper_status record(void *context, const esper_fork *forks, int n)
{
    ground *g = context;

    memcpy(g->recorded, forks, (size_t)n * sizeof(*forks));
    g->n_recorded = n;
    return ESPER_OK;
}

static void vouch(void *context, const esper_fork *fork)
{
    ((ground *)context)->vouched = *fork;
}

static esper_policy *open_on(ground *g, double share, uint32_t n_steps)
{
    esper_trial_ground where = {.context = g, .measure = measure, .compare = compare, .record = record, .vouch = vouch};
    esper_trial_settings settings = {.share = share,
                                     .first = 0.1,
                                     .n_steps = n_steps,
                                     .n_rounds = g->most_rounds,
                                     .n_seeds = g->n_seeds,
                                     .price = 0.01,
                                     .blueprints = esper_trial_usual(ESPER_TOPOLOGY_CNN),
                                     .batch = 128,
                                     .n_batches = 16};
    esper_policy_setup setup = {.topology = ESPER_TOPOLOGY_CNN,
                                .slot_ids = slot_ids,
                                .n_slots = N_SLOTS,
                                .trials = &settings,
                                .ground = &where};
    esper_policy *policy;

    check_good(esper_policy_open("trials", &setup, &policy));
    return policy;
}

static double budget = 1e5 * STEP; /* of the run that is asked about */

static esper_decision ask(esper_policy *policy, scene *s, double share)
{
    esper_decision decision;

    s->view.share = share;
    s->view.budget = budget;
    check_good(esper_policy_decide(policy, &s->view, &decision));
    return decision;
}

static ground usual_ground(void)
{
    ground g = {.error = 0.001, .bad_slot = -1};

    g.gain[0][LIGHT] = 0.01;
    g.gain[1][LIGHT] = 0.02;
    g.gain[1][HEAVY] = 0.05;
    g.gain[2][LIGHT] = -0.02;
    return g;
}

static void the_best_that_pays_joins(void **state)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.2, 0);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    decision = ask(policy, &s, 0.05); /* it is too early */
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(g.n_rounds, 0);
    decision = ask(policy, &s, 0.1);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 1);
    assert_int_equal(decision.blueprint, HEAVY);
    assert_int_equal(decision.tempo, 0);
    assert_int_equal(decision.reason, ESPER_REASON_TRIAL_WON);
    assert_int_equal(g.n_recorded, 7); /* nothing, and two kinds in three slots */
    assert_int_equal(g.recorded[0].slot, -1);
    esper_policy_close(policy);
}

static void candidates_are_halved_and_train_longer(void **state)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.2, 0);
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    ask(policy, &s, 0.1);
    assert_int_equal(g.n_rounds, 3);
    assert_int_equal(g.n_forks[0], 7);
    assert_int_equal(g.n_forks[1], 4);
    assert_int_equal(g.n_forks[2], 3);
    assert_true(g.n_steps[1] > g.n_steps[0] && g.n_steps[2] > g.n_steps[1]);
    esper_policy_close(policy);
}

static void check_share(uint32_t birth_steps)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.2, 0);
    int n_trials = 0;
    scene s;

    g.birth_steps = birth_steps;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    for (double share = 0.0; share < 1.0; share += 0.01) {
        int before = g.n_rounds = 0;

        ask(policy, &s, share);
        n_trials += g.n_rounds > before;
        assert_true(g.flops <= 0.2 * s.view.budget);
    }
    assert_int_equal(n_trials, 1); /* what has lost is not tried again for less than twice as long */
    assert_true(g.flops > 0.08 * s.view.budget && g.flops <= 0.1 * s.view.budget);
    esper_policy_close(policy);
}

static void trials_keep_within_their_share(void **state)
{
    (void)state;
    check_share(0);
    check_share(8); /* of each candidate, in each round */
}

/* What the first trial on this ground leads to. */
static esper_decision decide_on(ground *g, uint32_t n_steps)
{
    esper_policy *policy = open_on(g, 0.2, n_steps);
    esper_decision decision;
    scene s;

    set_scene(&s, ESPER_TOPOLOGY_CNN);
    decision = ask(policy, &s, 0.1);
    esper_policy_close(policy);
    return decision;
}

/* Half of the share, where that lasts for all rounds; else all of it; and where that does not last either, fewer rounds. */
static void a_short_run_has_one_trial(void **state)
{
    static const struct {
        double steps; /* of the host, that the run could pay */
        int n_rounds;
        double least, most; /* share that went into the trial */
    } runs[] = {{1e4, 3, 0.05, 0.1}, {6e3, 3, 0.1, 0.2}, {3e3, 2, 0.1, 0.2}, {2e3, 1, 0.1, 0.2}, {1e3, 0, 0.0, 0.0}};

    (void)state;
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        ground g = usual_ground();
        esper_decision decision;

        budget = runs[i].steps * STEP;
        decision = decide_on(&g, 0);
        assert_int_equal(g.n_rounds, runs[i].n_rounds);
        assert_true(g.flops >= runs[i].least * budget && g.flops <= runs[i].most * budget);
        assert_true(g.n_rounds == 0 || g.n_steps[0] >= 16);
        assert_int_equal(decision.reason == ESPER_REASON_LATE, g.n_rounds == 0);
    }
    budget = 1e5 * STEP;
}

static void one_round_is_for_all(void **state)
{
    ground g = usual_ground();

    (void)state;
    g.most_rounds = 1;
    assert_int_equal(decide_on(&g, 0).blueprint, HEAVY);
    assert_int_equal(g.n_rounds, 1);
    assert_int_equal(g.n_forks[0], 7);
}

static void chance_is_not_believed(void **state)
{
    ground g = usual_ground();
    esper_decision decision;

    (void)state;
    g.error = 10.0; /* whatever was gained may be chance */
    decision = decide_on(&g, 0);
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(decision.reason, ESPER_REASON_TRIAL_LOST);
    assert_true(fabs(esper_trial_bound(1) - 1.6449) < 1e-3); /* once in twenty; and so still where many are tried */
    assert_true(fabs(esper_trial_bound(10) - 2.5758) < 1e-3);
}

static void what_costs_more_than_it_brings_is_left(void **state)
{
    ground g = {.error = 1e-6, .bad_slot = -1};
    esper_decision decision;

    (void)state;
    g.gain[0][HEAVY] = 0.012; /* three times the FLOPs: 0.0158 at this price */
    assert_int_equal(decide_on(&g, 100).op, ESPER_SLOT_OP_WAIT);
    g.gain[0][LIGHT] = 0.011; /* twice: 0.01 */
    decision = decide_on(&g, 100);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.blueprint, LIGHT);
    assert_in_range(g.n_steps[g.n_rounds - 1], 16, 100);
}

static void a_fork_that_is_not_finite_loses(void **state)
{
    ground g = usual_ground();
    esper_decision decision;

    (void)state;
    g.bad_slot = 1; /* where the best would have been */
    decision = decide_on(&g, 0);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 0);
}

static void what_it_remembers_is_packed(void **state)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.2, 0), *other = open_on(&g, 0.2, 0);
    char memory[1024];
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    ask(policy, &s, 0.1);
    assert_in_range(esper_policy_pack_bytes(policy), 1, sizeof(memory));
    esper_policy_pack(policy, memory);
    check_good(esper_policy_unpack(other, memory, esper_policy_pack_bytes(policy)));
    g.n_rounds = 0;
    ask(other, &s, 0.12); /* too early for the next, as it knows now */
    assert_int_equal(g.n_rounds, 0);
    esper_policy_close(policy);
    esper_policy_close(other);
}

/* Slots whose candidates were in the trial that was held last. */
static unsigned slots_tried(const ground *g)
{
    unsigned slots = 0;

    for (int i = 1; i < g->n_recorded; i++)
        slots |= 1u << g->recorded[i].slot;
    return slots;
}

/* Slot 1 wins and is kept, and slot 2, which was closed, opens behind it. */
static esper_policy *keep_first(ground *g, scene *s, uint32_t n_steps)
{
    esper_policy *policy = open_on(g, 0.2, n_steps);
    esper_decision decision;

    set_scene(s, ESPER_TOPOLOGY_CNN);
    s->slots[2].closed = true;
    g->gain[2][HEAVY] = 0.02;
    decision = ask(policy, s, 0.1);
    assert_int_equal(decision.slot, 1);
    assert_int_equal(slots_tried(g), 3);
    put_seed(s, 1, ESPER_STAGE_HOLDING, "conv_heavy");
    for (double share = 0.1; share < 0.4; share += 0.02) { /* what is left could not pay for twice as long */
        g->n_recorded = 0;
        decision = ask(policy, s, share);
        assert_int_equal(g->n_recorded, 0);
    }
    assert_string_equal(decision.text, ESPER_TRIALS_DONE);
    s->slots[1].stage = ESPER_STAGE_FOSSILIZED;
    s->slots[2].closed = false;
    return policy;
}

static void what_has_opened_is_tried(void **state)
{
    ground g = usual_ground();
    scene s;
    esper_policy *policy = keep_first(&g, &s, 0);
    esper_decision decision;
    double before = g.flops;

    (void)state;
    g.n_rounds = 0;
    g.dearer = true;
    decision = ask(policy, &s, 0.4);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 2);
    assert_int_equal(slots_tried(&g), 4); /* alone: the others could not be tried for half as long as before */
    assert_true(g.flops - before <= 0.051 * budget && g.flops - before > 0.04 * budget); /* half of what was left */
    decision = ask(policy, &s, 0.5); /* and nothing again, as long as nothing else is kept */
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(slots_tried(&g), 4);
    esper_policy_close(policy);
}

/* Those that have lost are new in a network that has changed, where they can be tried for half as long as before. */
static void check_another_network(bool is_kept)
{
    ground g = usual_ground();
    scene s;
    esper_policy *policy = keep_first(&g, &s, 500);

    s.view.n_slots = N_SLOTS + 1;
    esper_policy_slot_init(&s.slots[N_SLOTS], ESPER_TOPOLOGY_CNN, "r3c0");
    put_seed(&s, N_SLOTS, ESPER_STAGE_HOLDING, "conv_light"); /* of whom nobody knows yet whether it is kept */
    s.slots[2].closed = true;
    assert_int_equal(ask(policy, &s, 0.4).op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(g.n_recorded, 0);
    if (is_kept)
        s.slots[N_SLOTS].stage = ESPER_STAGE_FOSSILIZED;
    else
        s.view.n_slots = N_SLOTS; /* it is gone, and what was kept before it has changed the network all the same */
    s.slots[2].closed = false;
    ask(policy, &s, 0.4);
    assert_int_equal(slots_tried(&g), 5);
    assert_int_equal(g.recorded[1].n_steps, 500);
    g.n_recorded = 0;
    for (double share = 0.4; share < 1.0; share += 0.02)
        assert_int_equal(ask(policy, &s, share).op, ESPER_SLOT_OP_WAIT); /* in the same one they are not */
    assert_int_equal(g.n_recorded, 0);
    esper_policy_close(policy);
}

static void in_another_network_others_are_tried_again(void **state)
{
    (void)state;
    check_another_network(true);
    check_another_network(false);
}

/* A slot opens behind every seed that is kept: each trial takes half of what is left, so that there are some. */
static void a_long_run_has_several(void **state)
{
    ground g = {.error = 1e-5, .bad_slot = -1};
    esper_policy *policy = open_on(&g, 0.2, 0);
    int n_trials = 0;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.n_slots = 8;
    for (int i = 0; i < 8; i++) {
        esper_policy_slot_init(&s.slots[i], ESPER_TOPOLOGY_CNN, slot_ids[i % N_SLOTS]);
        s.slots[i].closed = i > 0;
        s.slots[i].blueprints = 1u << LIGHT;
    }
    for (int i = 0; i < N_SLOTS; i++)
        g.gain[i][LIGHT] = 1.0;
    for (double share = 0.1; share < 0.5 && n_trials < N_SLOTS; share += 0.01) {
        double before = g.flops;

        g.n_rounds = 0;
        if (ask(policy, &s, share).op != ESPER_SLOT_OP_GERMINATE)
            continue;
        assert_true(fabs((g.flops - before) / budget - 0.1 / (1 << n_trials)) < 0.003);
        put_seed(&s, n_trials, ESPER_STAGE_FOSSILIZED, "conv_light");
        n_trials++;
        s.slots[n_trials].closed = false;
    }
    assert_int_equal(n_trials, N_SLOTS);
    esper_policy_close(policy);
}

/* Which slots were tried goes into checkpoints; what others remembered is refused. */
static void what_was_tried_is_packed(void **state)
{
    ground g = usual_ground(), elsewhere = usual_ground();
    scene s;
    esper_policy *policy = keep_first(&g, &s, 0), *other = open_on(&elsewhere, 0.2, 0);
    char memory[1024];
    size_t bytes = esper_policy_pack_bytes(policy);

    (void)state;
    esper_policy_pack(policy, memory);
    check_good(esper_policy_unpack(other, memory, bytes));
    elsewhere.gain[2][HEAVY] = 0.02;
    elsewhere.dearer = true;
    assert_int_equal(ask(other, &s, 0.4).slot, 2);
    assert_int_equal(slots_tried(&elsewhere), 4);
    memset(memory, 0xff, sizeof(memory)); /* below the frame, which has a hash */
    check_fails(other->ops->unpack(other, memory, 24), ESPER_E_FORMAT, "where trials remember");
    check_fails(other->ops->unpack(other, memory, other->ops->pack(other, NULL)), ESPER_E_FORMAT, "what cannot be");
    esper_policy_close(policy);
    esper_policy_close(other);
}

/* One trial, and what of it joins after the best: what has won, another kind in no slot twice, as long as it fits. */
static void others_that_have_won_follow(void **state)
{
    static const int n_follow[] = {0, 0, 1, 2, 2};

    (void)state;
    for (int n_seeds = 1; n_seeds <= 4; n_seeds++)
        for (int resumed = 0; resumed < 2; resumed++) {
            ground g = {.error = 0.001, .bad_slot = -1, .most_rounds = 1, .n_seeds = n_seeds};
            esper_policy *policy, *other;
            char memory[1024];
            scene s;

            g.gain[0][LIGHT] = 0.03;
            g.gain[1][LIGHT] = 0.04; /* less than the other kind there */
            g.gain[1][HEAVY] = 0.05;
            g.gain[2][LIGHT] = 0.02;
            policy = open_on(&g, 0.2, 100);
            set_scene(&s, ESPER_TOPOLOGY_CNN);
            assert_int_equal(ask(policy, &s, 0.1).slot, 1);
            put_seed(&s, 1, ESPER_STAGE_HOLDING, "conv_heavy");
            if (resumed) {
                other = open_on(&g, 0.2, 100);
                assert_in_range(esper_policy_pack_bytes(policy), 1, sizeof(memory));
                esper_policy_pack(policy, memory);
                check_good(esper_policy_unpack(other, memory, esper_policy_pack_bytes(policy)));
                esper_policy_close(policy);
                policy = other;
            }
            for (int i = 0; i < n_follow[n_seeds]; i++) {
                esper_decision decision = ask(policy, &s, 0.101);

                assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
                assert_int_equal(decision.blueprint, LIGHT);
                assert_int_equal(decision.slot, i == 0 ? 0 : 2);
                assert_int_equal(decision.reason, ESPER_REASON_TRIAL_WON);
                assert_int_equal(g.vouched.slot, decision.slot);
                assert_true(g.vouched.gain == (i == 0 ? 0.03 : 0.02));
                put_seed(&s, decision.slot, ESPER_STAGE_HOLDING, "conv_light");
            }
            assert_int_equal(ask(policy, &s, 0.102).op, ESPER_SLOT_OP_WAIT);
            assert_int_equal(g.n_rounds, 1);
            esper_policy_close(policy);
        }
}

static void what_does_not_fit_does_not_follow(void **state)
{
    ground g = {.error = 0.001, .bad_slot = -1, .most_rounds = 1, .n_seeds = 3};
    esper_policy *policy = open_on(&g, 0.2, 100);
    scene s;

    (void)state;
    g.gain[0][HEAVY] = 0.04;
    g.gain[1][HEAVY] = 0.05;
    g.gain[2][LIGHT] = 0.02;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    assert_int_equal(ask(policy, &s, 0.1).slot, 1);
    put_seed(&s, 1, ESPER_STAGE_HOLDING, "conv_heavy");
    s.slots[0].blueprints &= ~(1u << HEAVY); /* the room for parameters is taken */
    assert_int_equal(ask(policy, &s, 0.101).slot, 2);
    esper_policy_close(policy);
}

static void stopped_it_asks_again(void **state)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.2, 0);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    g.stops = true;
    s.view.share = 0.1;
    s.view.budget = 1e5 * STEP;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_STOPPED, "trial");
    g.stops = false;
    decision = ask(policy, &s, 0.1);
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    esper_policy_close(policy);
}

static void seeds_on_probation_are_concluded(void **state)
{
    ground g = usual_ground();
    esper_policy *policy = open_on(&g, 0.0, 0); /* nothing to pay a trial with */
    esper_policy_slot *slot;
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    slot = put_seed(&s, 0, ESPER_STAGE_HOLDING, "conv_light");
    slot->contribution = 5.0;
    slot->contribution_low = 4.0;
    slot->contribution_high = 6.0;
    slot->contribution_epochs = 2;
    ask(policy, &s, 0.5);
    decision = ask(policy, &s, 0.5);
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    slot->contribution_epochs = 3;
    decision = ask(policy, &s, 0.5);
    assert_int_equal(decision.op, ESPER_SLOT_OP_FOSSILIZE);
    slot->contribution = -1.0;
    slot->contribution_low = -2.0;
    slot->contribution_high = -0.5;
    decision = ask(policy, &s, 0.5);
    assert_int_equal(decision.op, ESPER_SLOT_OP_PRUNE);
    esper_policy_close(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_that_pays_joins),
        cmocka_unit_test(candidates_are_halved_and_train_longer),
        cmocka_unit_test(one_round_is_for_all),
        cmocka_unit_test(a_short_run_has_one_trial),
        cmocka_unit_test(trials_keep_within_their_share),
        cmocka_unit_test(chance_is_not_believed),
        cmocka_unit_test(what_costs_more_than_it_brings_is_left),
        cmocka_unit_test(a_fork_that_is_not_finite_loses),
        cmocka_unit_test(what_it_remembers_is_packed),
        cmocka_unit_test(what_has_opened_is_tried),
        cmocka_unit_test(in_another_network_others_are_tried_again),
        cmocka_unit_test(a_long_run_has_several),
        cmocka_unit_test(what_was_tried_is_packed),
        cmocka_unit_test(others_that_have_won_follow),
        cmocka_unit_test(what_does_not_fit_does_not_follow),
        cmocka_unit_test(stopped_it_asks_again),
        cmocka_unit_test(seeds_on_probation_are_concluded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
