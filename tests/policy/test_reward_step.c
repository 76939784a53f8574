/* Rewards of whole episodes with several seeds: shaping that adds nothing, every seed rewarded, gates, accounts, drips and
 * hindsight settled when they should be, and three ways to cheat that must not pay. */
#include "policy/helpers.h"

#include "policy/reward_step.h"

/* A small world: three slots in a scene, a ledger, and what has come of it. */
typedef struct world {
    scene               s;
    esper_reward_config config;
    esper_reward_ledger ledger;
    esper_reward        reward;
    double              paid, discounted, shaping; /* sums over the steps so far */
    double              weight;              /* gamma ^ steps */
    int                 stages[N_SLOTS], epochs[N_SLOTS];
} world;

static void begin(world *w, esper_reward_mode mode)
{
    memset(w, 0, sizeof(*w));
    set_scene(&w->s, ESPER_TOPOLOGY_CNN);
    w->s.view.epoch = 0;
    w->s.view.max_epochs = 60;
    w->s.view.accuracy_valid = 60.0;
    esper_reward_config_init(&w->config, mode);
    esper_reward_ledger_init(&w->ledger, &w->config, &w->s.view);
    w->weight = 1.0;
}

/* An epoch passes; then the operation is tried, and the slots are as they are after it. */
static esper_reward_facts facts_of(world *w, int op, int slot, bool last)
{
    w->s.view.epoch++;
    for (int i = 0; i < N_SLOTS; i++)
        if (w->s.slots[i].stage != ESPER_STAGE_DORMANT) {
            w->s.slots[i].epochs_in_stage++;
            w->s.slots[i].epochs_total++;
        }
    w->s.view.params_total = 10000;
    for (int i = 0; i < N_SLOTS; i++)
        if (esper_stage_has_seed(w->s.slots[i].stage))
            w->s.view.params_total += w->s.slots[i].params;
    return (esper_reward_facts){.view = &w->s.view,
                                .op = op,
                                .slot = slot,
                                .stages = w->stages,
                                .epochs = w->epochs,
                                .last = last,
                                .params_host = 10000.0,
                                .params_begun = 10000.0,
                                .accuracy_twin = 60.0,
                                .improvement = (double)NAN,
                                .accuracy_committed = (double)NAN};
}

static void settle(world *w, const esper_reward_facts *facts, int stage_after)
{
    double sum = 0.0;

    for (int i = 0; i < N_SLOTS; i++) {
        w->stages[i] = w->s.slots[i].stage;
        w->epochs[i] = w->s.slots[i].epochs_in_stage;
    }
    if (stage_after >= 0) {
        w->stages[facts->slot] = stage_after;
        w->epochs[facts->slot] = 0;
    }
    check_good(esper_reward_step(&w->config, facts, &w->ledger, &w->reward));
    for (int p = 0; p < ESPER_N_REWARD_PARTS; p++)
        sum += w->reward.part[p];
    assert_true(sum == w->reward.total && isfinite(sum));
    w->paid += w->reward.total;
    w->discounted += w->weight * w->reward.total;
    w->shaping += w->weight * w->reward.part[ESPER_PART_SHAPING];
    w->weight *= w->config.gamma;
    if (stage_after >= 0) {
        esper_policy_slot *slot = &w->s.slots[facts->slot];

        slot->stage = stage_after;
        slot->epochs_in_stage = 0;
        if (stage_after == ESPER_STAGE_GERMINATED) {
            slot->epochs_total = 0;
            slot->params = 1000;
        }
    }
}

static void step(world *w, int op, int slot, int stage_after, bool last)
{
    esper_reward_facts facts = facts_of(w, op, slot, last);

    settle(w, &facts, stage_after);
}

/* The life of a seed up to a stage, one move an epoch. */
static void grow_to(world *w, int slot, int stage)
{
    step(w, ESPER_SLOT_OP_GERMINATE, slot, ESPER_STAGE_GERMINATED, false);
    while (w->s.slots[slot].stage != stage) {
        int next = esper_stage_next(w->s.slots[slot].stage);

        step(w, next == ESPER_STAGE_FOSSILIZED ? ESPER_SLOT_OP_FOSSILIZE : ESPER_SLOT_OP_ADVANCE, slot, next, false);
        w->s.slots[slot].alpha = next >= ESPER_STAGE_BLENDING ? 1.0 : 0.0;
    }
}

/* ------------------------------------------------------------------------------------------------ shaping */

/* Whatever is done, the discounted shaping of an episode is 0. */
static void shaping_telescopes(void **state)
{
    static const int ops[] = {ESPER_SLOT_OP_GERMINATE, ESPER_SLOT_OP_ADVANCE, ESPER_SLOT_OP_PRUNE, ESPER_SLOT_OP_WAIT};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 12, .purpose = ESPER_RNG_TEST});
    for (int episode = 0; episode < 400; episode++) {
        world w;
        double moved = 0.0;

        begin(&w, (esper_reward_mode)(episode % ESPER_N_REWARD_MODES));
        for (int t = 0; t < 40; t++) {
            int op = ops[esper_rng_below(&rng, 4)], slot = (int)esper_rng_below(&rng, N_SLOTS), after = -1;
            int stage = w.s.slots[slot].stage;

            if (op == ESPER_SLOT_OP_GERMINATE && stage == ESPER_STAGE_DORMANT)
                after = ESPER_STAGE_GERMINATED;
            else if (op == ESPER_SLOT_OP_ADVANCE && esper_stage_next(stage) >= 0 && stage != ESPER_STAGE_DORMANT)
                after = esper_stage_next(stage);
            else if (op == ESPER_SLOT_OP_PRUNE && esper_stage_has_seed(stage) && stage != ESPER_STAGE_FOSSILIZED)
                after = ESPER_STAGE_DORMANT;
            else
                op = ESPER_SLOT_OP_WAIT;
            step(&w, op, op == ESPER_SLOT_OP_WAIT ? -1 : slot, after, t == 39);
            moved += fabs(w.reward.part[ESPER_PART_SHAPING]);
        }
        if (fabs(w.shaping) > 1e-12)
            fail_msg("%s: shaping of %g", esper_reward_mode_name(w.config.mode), w.shaping);
        assert_true((moved > 0.0) == (w.config.mode != ESPER_REWARD_SPARSE && w.config.mode != ESPER_REWARD_MINIMAL &&
                                      w.config.mode != ESPER_REWARD_GAIN));
    }
}

/* ------------------------------------------------------------------------------------------------ every slot */

static void every_seed_is_rewarded(void **state)
{
    double alone[2] = {0}, both = 0.0;
    world w;

    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(&w, ESPER_REWARD_SHAPED);
        w.s.view.epoch = 20;
        for (int slot = 1; slot < N_SLOTS; slot++) {
            put_seed(&w.s, slot, ESPER_STAGE_BLENDING, "norm");
            w.ledger.slot[slot].accuracy_before = 50.0;
            w.s.slots[slot].contribution = i == 2 || i == slot - 1 ? 2.0 + slot : (double)NAN;
            w.s.slots[slot].improvement = (double)NAN;
        }
        step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false); /* which points at no slot */
        if (i < 2)
            alone[i] = w.reward.part[ESPER_PART_ATTRIBUTION];
        both = w.reward.part[ESPER_PART_ATTRIBUTION];
    }
    assert_true(alone[0] > 1.0 && alone[1] > 1.0);
    assert_true(is_near(both, alone[0] + alone[1]));
}

/* A seed alone is held against the accuracy since it germinated, not against itself. */
static void a_seed_alone_is_judged(void **state)
{
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_SHAPED);
    w.s.view.epoch = 20;
    put_seed(&w.s, 0, ESPER_STAGE_BLENDING, "norm");
    w.ledger.slot[0].accuracy_before = 70.0; /* ten points were lost since */
    w.s.slots[0].contribution = 6.0;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.reward.discount < 0.01 && w.reward.part[ESPER_PART_ATTRIBUTION] <= 0.0);
    assert_true(w.reward.part[ESPER_PART_BLENDING] < 0.0);
}

/* ------------------------------------------------------------------------------------------------ after the outcome */

static void gates_decide_first(void **state)
{
    double bonus[2];

    (void)state;
    for (int failed = 0; failed < 2; failed++) {
        esper_reward_facts facts;
        world w;

        begin(&w, ESPER_REWARD_SHAPED);
        grow_to(&w, 0, ESPER_STAGE_HOLDING);
        w.s.slots[0].contribution = 3.0;
        w.s.view.accuracy_valid = 65.0;
        facts = facts_of(&w, ESPER_SLOT_OP_FOSSILIZE, 0, false);
        facts.failed = failed != 0;
        settle(&w, &facts, failed ? -1 : ESPER_STAGE_FOSSILIZED);
        bonus[failed] = w.reward.part[ESPER_PART_ACTION];
        assert_int_equal(w.ledger.n_fossils, !failed);
        assert_int_equal(w.ledger.n_contributing, !failed);
    }
    assert_true(bonus[0] > 0.2 && bonus[1] == -0.01);
}

static void accounts(void **state)
{
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_ESCROW);
    grow_to(&w, 0, ESPER_STAGE_BLENDING);
    w.s.view.accuracy_valid = 65.0;
    w.s.slots[0].contribution = 4.0;
    for (int i = 0; i < 6; i++)
        step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.ledger.slot[0].escrow > 3.9); /* all that it deserves, not more */
    step(&w, ESPER_SLOT_OP_PRUNE, 0, -1, false); /* on its way out, slowly */
    assert_true(w.ledger.slot[0].escrow == 0.0 && w.reward.part[ESPER_PART_ATTRIBUTION] < -3.9);
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.ledger.slot[0].escrow == 0.0 && w.reward.part[ESPER_PART_ATTRIBUTION] == 0.0);
    w.s.slots[0].stage = ESPER_STAGE_DORMANT;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_int_equal(w.ledger.slot[0].frozen, 0);
    grow_to(&w, 0, ESPER_STAGE_BLENDING);
    w.s.view.accuracy_valid = 70.0;
    for (int i = 0; i < 6; i++)
        step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.ledger.slot[0].escrow > 3.0);
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, true);
    assert_true(w.reward.part[ESPER_PART_FORFEIT] < -3.0 && w.ledger.slot[0].escrow == 0.0);
}

static void drips_and_partners(void **state)
{
    esper_reward_facts facts;
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_BASIC_PLUS);
    grow_to(&w, 0, ESPER_STAGE_BLENDING);
    grow_to(&w, 1, ESPER_STAGE_HOLDING);
    w.s.view.accuracy_valid = 66.0;
    w.s.slots[1].contribution = 3.0;
    for (int i = 0; i < 5; i++) {
        facts = facts_of(&w, ESPER_SLOT_OP_WAIT, -1, false);
        facts.pairs = &(esper_reward_pair){0, 1, 2.0}; /* one entry, however often it is measured */
        facts.n_pairs = 1;
        settle(&w, &facts, -1);
    }
    step(&w, ESPER_SLOT_OP_FOSSILIZE, 1, ESPER_STAGE_FOSSILIZED, false);
    assert_true(w.reward.part[ESPER_PART_FOSSIL] > 0.1 && w.ledger.slot[1].drip.total > 0.2);
    assert_true(fabs(w.reward.part[ESPER_PART_HINDSIGHT] - 0.1 * tanh(0.6) * 0.995) < 1e-12);
    assert_true(w.reward.part[ESPER_PART_DRIP] == 0.0);
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.reward.part[ESPER_PART_DRIP] > 0.0);
    w.s.slots[1].contribution = (double)NAN; /* not measured: nothing drips, nothing breaks */
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.reward.part[ESPER_PART_DRIP] == 0.0 && w.reward.n_bad == 0);
    facts = facts_of(&w, ESPER_SLOT_OP_WAIT, -1, true);
    facts.n_auto_pruned = 2;
    settle(&w, &facts, -1);
    assert_true(w.reward.part[ESPER_PART_AUTO_PRUNE] == -0.4);
    assert_true(fabs(w.reward.part[ESPER_PART_TERMINAL] - 5.0 * 0.06) < 1e-12); /* since the episode began */
}

/* The loss family: the first epoch is no fall, and a fall is good. */
static void falling_loss(void **state)
{
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_LOSS);
    w.s.view.loss_valid = 2.0;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.reward.total == 0.0);
    w.s.view.loss_valid = 1.9;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(fabs(w.reward.part[ESPER_PART_LOSS_DELTA] - 5.0) < 1e-9);
    w.s.view.loss_valid = 2.0;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(fabs(w.reward.part[ESPER_PART_LOSS_DELTA] + 2.5) < 1e-9);
    w.s.view.loss_valid = (double)NAN;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(w.reward.n_bad == 1 && w.reward.total == 0.0);
    w.s.view.loss_valid = 1.9;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    assert_true(fabs(w.reward.part[ESPER_PART_LOSS_DELTA] - 5.0) < 1e-9); /* against the last that was a number */
}

/* ------------------------------------------------------------------------------------------------ gain */

/* Epochs of a seed that grows from the second to the fourth of six; what the network has, what its twin has. Gives the return. */
static double gained(const double accuracies[6], const double twins[6], double parts_out[2])
{
    double total = 0.0;
    world w;

    begin(&w, ESPER_REWARD_GAIN);
    parts_out[0] = parts_out[1] = 0.0;
    for (int t = 0; t < 6; t++) {
        static const int ops[] = {ESPER_SLOT_OP_WAIT,    ESPER_SLOT_OP_GERMINATE, ESPER_SLOT_OP_ADVANCE,
                                  ESPER_SLOT_OP_ADVANCE, ESPER_SLOT_OP_WAIT,      ESPER_SLOT_OP_WAIT};
        static const int after[] = {-1, ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING, -1, -1};
        esper_reward_facts facts = facts_of(&w, ops[t], after[t] >= 0 ? 0 : -1, t == 5);

        w.s.view.accuracy_valid = accuracies[t];
        facts.accuracy_twin = twins[t];
        settle(&w, &facts, after[t]);
        total += w.reward.total;
        parts_out[0] += w.reward.part[ESPER_PART_GAIN];
        parts_out[1] += w.reward.part[ESPER_PART_RENT];
        assert_int_equal(w.reward.n_bad, 0);
    }
    return total;
}

/* An episode adds up to what the network has over its twin in the end, less the price of 1,000 parameters beside 10,000, whatever it
 * went through; an epoch that is not known is made up for by the next. */
static void returns_are_gains(void **state)
{
    static const double twin[6] = {50, 52, 54, 55, 56, 57}, helps[6] = {50, 52, 54, 60, 61, 62.5},
                        harms[6] = {50, 52, 54, 60, 40, 55}, holes[6] = {50, 52, NAN, 60, INFINITY, 62.5},
                        gone[6] = {50, 52, 54, NAN, 56, 57};
    double price = 0.5 * log2(1.1), parts[2];

    (void)state;
    assert_true(fabs(gained(helps, twin, parts) - (5.5 - price)) < 1e-12);
    assert_true(fabs(parts[0] - 5.5) < 1e-12 && fabs(parts[1] + price) < 1e-12);
    assert_true(fabs(gained(harms, twin, parts) - (-2.0 - price)) < 1e-12);
    assert_true(fabs(gained(holes, twin, parts) - (5.5 - price)) < 1e-12);
    assert_true(fabs(gained(helps, gone, parts) - (5.5 - price)) < 1e-12);
    assert_true(fabs(gained(twin, twin, parts) + price) < 1e-12 && parts[0] == 0.0);
}

/* Doing nothing earns exactly nothing in every step; a seed that came and went leaves no debt, and after a rollback, which forfeits
 * what was paid, the gain is paid anew. */
static void nothing_earns_nothing(void **state)
{
    esper_reward_facts facts;
    double total = 0.0;
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_GAIN);
    for (int t = 0; t < 20; t++) {
        facts = facts_of(&w, t % 2 == 0 ? ESPER_SLOT_OP_WAIT : ESPER_SLOT_OP_GERMINATE, t % 2 == 0 ? -1 : 0, false);
        facts.failed = t % 2 != 0; /* asked for, and refused */
        w.s.view.accuracy_valid = facts.accuracy_twin = 40.0 + t;
        settle(&w, &facts, -1);
        assert_true(w.reward.total == 0.0);
    }
    for (int t = 0; t < 30; t++) {
        facts = facts_of(&w, t % 3 == 0 ? ESPER_SLOT_OP_GERMINATE : ESPER_SLOT_OP_PRUNE, 0, t == 29);
        w.s.view.accuracy_valid = 60.0 + (t % 3 == 0 ? 0.0 : 0.25 * t);
        settle(&w, &facts, t % 3 == 0 ? ESPER_STAGE_GERMINATED : ESPER_STAGE_DORMANT);
        total += w.reward.total;
    }
    assert_true(fabs(total - (60.0 + 0.25 * 29 - 60.0)) < 1e-12); /* what the last epoch has */
    begin(&w, ESPER_REWARD_GAIN);
    grow_to(&w, 0, ESPER_STAGE_HOLDING);
    w.s.view.accuracy_valid = 70.0;
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
    esper_reward_ledger_init(&w.ledger, &w.config, &w.s.view);
    step(&w, ESPER_SLOT_OP_WAIT, -1, -1, true);
    assert_true(fabs(w.reward.total - esper_reward_gain_return(&w.config, 10.0, 1.1, 1.0)) < 1e-12);
}

/* All FLOPs that were spent count, and those of a seed that is gone as well: who tries and removes pays for it, who does nothing
 * pays nothing, to the bit. */
static void flops_have_their_price(void **state)
{
    double paid[3];
    world w;

    (void)state;
    for (int who = 0; who < 3; who++) { /* waits; has a seed all the time; has one in the first half */
        begin(&w, ESPER_REWARD_GAIN);
        w.config.size_price = 0.0;
        w.s.view.accuracy_valid = 60.0;
        for (int t = 0; t < 20; t++) {
            esper_reward_facts facts = facts_of(&w, ESPER_SLOT_OP_WAIT, -1, t == 19);

            facts.flops_begun = 3e6;
            facts.flops = who == 1 || (who == 2 && t < 10) ? 6e6 : 3e6;
            settle(&w, &facts, -1);
        }
        paid[who] = w.paid;
    }
    assert_true(paid[0] == 0.0);
    assert_true(fabs(paid[1] - esper_reward_gain_return(&w.config, 0.0, 1.0, 2.0)) < 1e-12);
    assert_true(fabs(paid[2] - esper_reward_gain_return(&w.config, 0.0, 1.0, 1.5)) < 1e-12);
    assert_true(paid[1] == -0.5 && paid[2] > paid[1] && paid[2] < 0.0);
}

/* ------------------------------------------------------------------------------------------------ cheating */

/* Seeding and pruning in a loop earns nothing in any mode. */
static void loops_do_not_pay(void **state)
{
    (void)state;
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode++) {
        world w, idle;

        begin(&w, (esper_reward_mode)mode);
        begin(&idle, (esper_reward_mode)mode);
        for (int t = 0; t < 56; t++) {
            int at = t % 8;

            if (at == 0)
                step(&w, ESPER_SLOT_OP_GERMINATE, 0, ESPER_STAGE_GERMINATED, false);
            else if (at == 1)
                step(&w, ESPER_SLOT_OP_ADVANCE, 0, ESPER_STAGE_TRAINING, false);
            else if (at == 7)
                step(&w, ESPER_SLOT_OP_PRUNE, 0, ESPER_STAGE_DORMANT, false);
            else
                step(&w, ESPER_SLOT_OP_WAIT, -1, -1, false);
            step(&idle, ESPER_SLOT_OP_WAIT, -1, -1, false);
        }
        step(&w, ESPER_SLOT_OP_WAIT, -1, -1, true);
        step(&idle, ESPER_SLOT_OP_WAIT, -1, -1, true);
        if (w.discounted > idle.discounted + 1e-12)
            fail_msg("%s: a loop earns %g, waiting %g", esper_reward_mode_name(mode), w.discounted, idle.discounted);
    }
}

/* An episode of 60 epochs on a host that gets to 70 by itself. `gain` points come with each seed, from blending on; what is
 * not kept at the end counts as lost. */
static double play(int mode, int n_seeds, double gain, bool keep)
{
    world w;
    int grown = 0, slot = 0;

    begin(&w, (esper_reward_mode)mode);
    w.s.view.loss_valid = 1.5;
    for (int t = 0; t < 60; t++) {
        int op = ESPER_SLOT_OP_WAIT, after = -1, stage;
        double carried = 0.0, kept = 0.0;
        esper_reward_facts facts;

        while (slot < n_seeds && w.s.slots[slot].stage == ESPER_STAGE_FOSSILIZED)
            slot++;
        stage = slot < n_seeds ? w.s.slots[slot].stage : -1;
        for (int i = 0; i < n_seeds; i++) {
            carried += gain * w.s.slots[i].alpha;
            kept += w.s.slots[i].stage == ESPER_STAGE_FOSSILIZED ? gain : 0.0;
            w.s.slots[i].contribution = w.s.slots[i].alpha > 0.0 ? gain : (double)NAN;
        }
        w.s.view.accuracy_valid = 60.0 + fmin(10.0, t / 3.0) + carried;
        w.s.view.loss_valid = 2.3 * (1.0 - w.s.view.accuracy_valid / 100.0);
        if (t >= 10 && stage == ESPER_STAGE_DORMANT) {
            op = ESPER_SLOT_OP_GERMINATE;
            after = ESPER_STAGE_GERMINATED;
        } else if (stage > ESPER_STAGE_DORMANT && w.s.slots[slot].epochs_in_stage >= 4 &&
                   (stage != ESPER_STAGE_HOLDING || keep)) {
            op = stage == ESPER_STAGE_HOLDING ? ESPER_SLOT_OP_FOSSILIZE : ESPER_SLOT_OP_ADVANCE;
            after = esper_stage_next(stage);
        }
        facts = facts_of(&w, op, after >= 0 ? slot : -1, t == 59);
        facts.accuracy_committed = w.s.view.accuracy_valid - carried + kept;
        facts.accuracy_twin = w.s.view.accuracy_valid - carried;
        settle(&w, &facts, after);
        if (after >= ESPER_STAGE_BLENDING)
            w.s.slots[slot].alpha = 1.0;
        grown += after == ESPER_STAGE_FOSSILIZED;
        if (!keep && stage == ESPER_STAGE_HOLDING)
            slot++;
    }
    assert_true(grown <= n_seeds);
    return mode == ESPER_REWARD_GAIN ? w.paid
                                     : w.discounted; /* who keeps takes longer over two seeds than who never does */
}

/* Growing what helps earns more than waiting, than keeping what does not help and, where a contribution is paid once, than
 * leaving seeds on probation for ever. */
static void honest_growth_pays(void **state)
{
    (void)state;
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode++) {
        double honest = play(mode, 2, 3.0, true), waits = play(mode, 0, 0.0, true), hoards = play(mode, 3, 0.0, true);
        double clings = play(mode, 2, 3.0, false);

        bool by_the_step = mode == ESPER_REWARD_SHAPED || mode == ESPER_REWARD_LOSS; /* pay as long as it lasts */

        printf("%-10s honest %8.3f  waits %8.3f  hoards %8.3f  never keeps %8.3f\n", esper_reward_mode_name(mode),
               honest, waits, hoards, clings);
        assert_true(honest > waits && honest > hoards);
        if (by_the_step) /* so somebody who never decides earns more: why these are not the default */
            assert_true(clings > honest);
        else if (mode ==
                 ESPER_REWARD_GAIN) /* the same network is worth the same, whether its seeds are kept or on probation */
            assert_true(fabs(honest - clings) < 1e-12 && waits == 0.0 && hoards < 0.0);
        else
            assert_true(honest > clings);
    }
}

static void bounds_of_a_ledger(void **state)
{
    esper_policy_slot many[ESPER_REWARD_MAX_SLOTS + 1];
    esper_reward_facts facts;
    world w;

    (void)state;
    begin(&w, ESPER_REWARD_SHAPED);
    facts = facts_of(&w, ESPER_SLOT_OP_WAIT, 3, false);
    check_fails(esper_reward_step(&w.config, &facts, &w.ledger, &w.reward), ESPER_E_ARG, "slot 3 of 3");
    for (int i = 0; i <= ESPER_REWARD_MAX_SLOTS; i++)
        esper_policy_slot_init(&many[i], ESPER_TOPOLOGY_CNN, "r0c0");
    w.s.view.slots = many;
    w.s.view.n_slots = ESPER_REWARD_MAX_SLOTS + 1;
    facts.slot = -1;
    check_fails(esper_reward_step(&w.config, &facts, &w.ledger, &w.reward), ESPER_E_ARG, "a ledger has 32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shaping_telescopes),
        cmocka_unit_test(every_seed_is_rewarded),
        cmocka_unit_test(a_seed_alone_is_judged),
        cmocka_unit_test(gates_decide_first),
        cmocka_unit_test(accounts),
        cmocka_unit_test(drips_and_partners),
        cmocka_unit_test(falling_loss),
        cmocka_unit_test(returns_are_gains),
        cmocka_unit_test(flops_have_their_price),
        cmocka_unit_test(nothing_earns_nothing),
        cmocka_unit_test(loops_do_not_pay),
        cmocka_unit_test(honest_growth_pays),
        cmocka_unit_test(bounds_of_a_ledger),
    };

    return cmocka_run_group_tests_name("policy/reward_step", tests, NULL, NULL);
}
