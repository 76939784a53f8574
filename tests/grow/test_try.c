/* ctest: timeout=120 cost=10 sealed=also driver=also */
/* Trials that a policy asks for: what they leave alone, what is kept of them and shown, what they take of the run, and what
 * becomes of that when the run goes back or is gone on with. */
#include <unistd.h>

#include "base/file.h"
#include "policy/mask.h"
#include "grow/growing.h"

/* A host that sees no neighbourhoods, and trials of a few steps of it. */
#define ASKING                                                                                          \
    "batch = 16\nchannels = 2\nkernel = 1\nlr = 0.05\nepochs = 20\ntrial_steps = 6\ntrial_share = 1\n" \
    "blueprints = conv_light,norm\n"

/* Trains an epoch; what a policy is to see at its end. */
static const esper_policy_view *observe(garden *g)
{
    const esper_policy_view *view;

    train_epoch(g);
    g->last = measure_epoch(g);
    check_good(esper_growth_observe(g->growth, &g->last, &view));
    return view;
}

static void decide(garden *g, int op, int slot, const char *blueprint)
{
    const esper_blueprint *found;
    esper_decision decision;

    esper_decision_init(&decision, (esper_slot_op)op);
    decision.slot = slot;
    if (blueprint != NULL) {
        check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, blueprint, &found));
        decision.blueprint = found->index;
    }
    check_good(esper_growth_decide(g->growth, &decision, false));
    esper_network_next_epoch(g->network);
}

/* Waits until the end of that epoch. */
static const esper_policy_view *observe_at(garden *g, uint32_t epoch)
{
    const esper_policy_view *view = observe(g);

    while (g->last.epoch < epoch) {
        decide(g, ESPER_SLOT_OP_WAIT, -1, NULL);
        view = observe(g);
    }
    return view;
}

static bool is_open(const esper_policy_view *view, int slot)
{
    return esper_mask_legal(view, slot, ESPER_SLOT_OP_TRY);
}

/* ------------------------------------------------------------------------------------------------ the run stays as it is */

typedef struct outcome {
    uint64_t weights, n_logged, spent;
} outcome;

static outcome outcome_of(const char *more, const char *script)
{
    outcome o;
    garden g;

    garden_open(&g, more, script, "log.jsonl");
    grow_until(&g, 12);
    o = (outcome){esper_network_hash(g.network), esper_growth_account_of(g.growth).n_logged, g.network->cursor.spent};
    for (int k = 0; k < g.network->slots.n; k++) /* what was only tried leaves no trace */
        assert_int_equal(slot_at(&g, k)->n_seeds, k == 0);
    garden_close(&g);
    return o;
}

/* So the seed that germinates after a trial is born with the weights that its fork had: those of a run in which it was none. */
static void nothing_changes_but_what_is_spent(void **state)
{
    outcome alone = outcome_of(ASKING, "4 r0c0 germinate blueprint=conv_light tempo=2\n5 r0c0 advance\n");
    outcome tried =
        outcome_of(ASKING, "2 r0c0 try\n3 r1c0 try\n4 r0c0 germinate blueprint=conv_light tempo=2\n5 r0c0 advance\n");

    (void)state;
    assert_true(alone.weights == tried.weights);
    assert_true(tried.spent > alone.spent);
    assert_int_equal(tried.n_logged, alone.n_logged + 6); /* two trials of three forks */
}

static void threads_do_not_matter(void **state)
{
    static const char script[] = "2 r0c0 try\n4 r0c0 germinate blueprint=norm tempo=2\n5 r0c0 advance\n9 r0c1 try\n";
    outcome one, three;
    char *text[2];
    size_t bytes[2];

    (void)state;
    one = outcome_of(ASKING, script);
    check_good(esper_file_read("log.jsonl", 1 << 20, &text[0], &bytes[0]));
    three = outcome_of(ASKING "threads = 3\n", script);
    check_good(esper_file_read("log.jsonl", 1 << 20, &text[1], &bytes[1]));
    assert_memory_equal(&one, &three, sizeof(one));
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    esper_mem_free(text[0]);
    esper_mem_free(text[1]);
}

/* ------------------------------------------------------------------------------------------------ what is kept */

static void the_answer_is_kept(void **state)
{
    const esper_policy_view *view;
    const esper_fork *best;
    double left, share;
    uint64_t n_logged;
    garden g;

    (void)state;
    garden_open(&g, ASKING, NULL, NULL);
    view = observe(&g);
    left = view->forks_left;
    share = view->slots[0].fork_share;
    assert_true(left == 1.0 && share > 0.0 && view->slots[0].fork_blueprint == -1 && is_open(view, 0));
    n_logged = esper_growth_account_of(g.growth).n_logged;
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    assert_int_equal(esper_growth_account_of(g.growth).n_logged,
                     n_logged + 4); /* three forks, and what asked for them */
    best = esper_growth_look_at(g.growth).best;
    assert_non_null(best);
    assert_int_equal(esper_growth_look_at(g.growth).n_tried, 2);
    assert_int_equal(best->n_steps, 6);

    view = observe(&g);
    assert_int_equal(view->slots[0].fork_blueprint, best->blueprint);
    assert_true(view->slots[0].fork_gain == best->gain && view->slots[0].fork_error == best->error);
    assert_int_equal(view->slots[0].fork_epochs, 1);
    assert_int_equal(view->slots[0].fork_seeds, 0);
    assert_true(view->slots[0].fork_stands && !is_open(view, 0) && is_open(view, 1));
    assert_true(fabs(left - view->forks_left - share) < 0.1 * share); /* as it was shown */
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL); /* the same question */
    assert_false(esper_growth_look_at(g.growth).accepted);
    assert_non_null(strstr(esper_growth_look_at(g.growth).refusal, "another network than the one of the last trial"));
    assert_null(esper_growth_look_at(g.growth).best);

    view = observe(&g);
    decide(&g, ESPER_SLOT_OP_GERMINATE, 1, "norm");
    view = observe(&g);
    assert_false(view->slots[0].fork_stands); /* of a network that is there no more */
    assert_true(is_open(view, 0) && view->slots[0].fork_blueprint == best->blueprint);
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    view = observe(&g);
    assert_int_equal(view->slots[0].fork_seeds, 1);
    assert_true(view->slots[0].fork_stands);
    garden_close(&g);
}

/* While the seeds stay the same the answer stands for some epochs. */
static void one_may_ask_again(void **state)
{
    const esper_policy_view *view;
    garden g;

    (void)state;
    garden_open(&g, ASKING, NULL, NULL);
    (void)observe(&g);
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    for (int epochs = 1; epochs <= 7; epochs++) {
        view = observe(&g);
        assert_int_equal(view->slots[0].fork_epochs, epochs);
        assert_int_equal(is_open(view, 0), epochs >= 6);
        decide(&g, ESPER_SLOT_OP_WAIT, -1, NULL);
    }
    garden_close(&g);
}

/* What is left of trial_share does not pay for one more; and where there is no share nobody may ask. */
static void the_share_is_an_end(void **state)
{
    const esper_policy_view *view;
    int n_held = 0;
    garden g;

    (void)state;
    garden_open(&g, ASKING "trial_share = 0.55\n", NULL, NULL); /* 24 steps and a bit of 100 */
    for (int k = 0; k < 4; k++) {
        view = observe(&g);
        n_held += is_open(view, k);
        decide(&g, ESPER_SLOT_OP_TRY, k, NULL);
        assert_int_equal(esper_growth_look_at(g.growth).accepted, k < n_held);
    }
    assert_int_equal(n_held, 2);
    view = observe(&g);
    assert_true(view->forks_left > 0.0 && view->forks_left < view->slots[3].fork_share);
    garden_close(&g);
    garden_open(&g, ASKING "trial_share = 0\n", NULL, NULL);
    view = observe(&g);
    assert_true(view->forks_left == 0.0 && !is_open(view, 0));
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    assert_non_null(strstr(esper_growth_look_at(g.growth).refusal, "trials may be asked for"));
    garden_close(&g);
}

/* Nobody who learns is told a gain that is no number. */
static int build_poison(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = net->tensors[x].dim[0];
    int scale = esper_net_param(net, "scale", 1, &channels, (esper_init){ESPER_INIT_CONSTANT, NAN});

    (void)how;
    return esper_net_add(net, x, esper_net_channel_scale(net, x, scale));
}

static void forks_that_are_not_finite_lose(void **state)
{
    static const esper_blueprint poison = {
        .name = "conv_light", .topology = ESPER_TOPOLOGY_CNN, .index = 1, .build = build_poison, .about = "poison"};
    const esper_policy_view *view;
    garden g;

    (void)state;
    garden_open(&g, ASKING, NULL, NULL);
    g.network->splice.stand_in = &poison;
    (void)observe(&g);
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    view = observe(&g);
    assert_true(view->slots[0].fork_blueprint > 0 && isnan(view->slots[0].fork_gain) && view->slots[0].fork_stands);
    assert_int_equal(g.n_incidents, 0);
    garden_close(&g);
}

/* ------------------------------------------------------------------------------------------------ going back, going on */

/* Back to the snapshot that opening takes. */
static void going_back_forgets_the_answer_and_not_the_price(void **state)
{
    esper_decision decision;
    const esper_policy_view *view;
    esper_incident incident;
    double share;
    garden g;

    (void)state;
    garden_open(&g, ASKING "snapshot_every = 1000\n", NULL, NULL);
    view = observe(&g);
    share = view->slots[0].fork_share;
    esper_decision_init(&decision, ESPER_SLOT_OP_TRY);
    decision.slot = 0;
    check_good(
        esper_growth_decide(g.growth, &decision, false)); /* the cursor stays: no snapshot before the next step */
    slab_values(&g.network->slab, ESPER_FAMILY_PARAM)[3] = (float)NAN;
    check_good(esper_guarded_settle(g.network, &incident));
    heed(&g, &incident);
    assert_true(incident.restored);
    view = observe(&g);
    assert_int_equal(view->slots[0].fork_blueprint, -1);
    assert_true(is_open(view, 0) && 1.0 - view->forks_left > 0.9 * share);
    decide(&g, ESPER_SLOT_OP_TRY, 0, NULL);
    view = observe(&g);
    assert_true(view->slots[0].fork_blueprint > 0 && 1.0 - view->forks_left > 1.8 * share);
    garden_close(&g);
}

static const esper_state_part *part_of(const garden *g)
{
    for (int i = 0; i < g->network->n_parts; i++)
        if (strcmp(g->network->parts[i].name, "growth") == 0)
            return &g->network->parts[i];
    fail_msg("a growth is no part of the network");
    return NULL;
}

static void a_checkpoint_keeps_the_answer(void **state)
{
    esper_page saved = {0}, again = {0};
    const esper_policy_view *view, *later;
    garden g, other;
    char *line;

    (void)state;
    garden_open(&g, ASKING, NULL, NULL);
    garden_open(&other, ASKING, NULL, NULL);
    (void)observe(&g);
    decide(&g, ESPER_SLOT_OP_TRY, 1, NULL);
    check_good(part_of(&g)->write(part_of(&g)->context, &saved));
    assert_non_null(strstr(saved.text, "fork.1.blueprint "));
    assert_null(strstr(saved.text, "fork.0."));
    check_good(part_of(&other)->read(part_of(&other)->context, saved.text));
    check_good(part_of(&other)->write(part_of(&other)->context, &again));
    assert_string_equal(again.text, saved.text);
    view = observe(&g);
    later = observe_at(&other, 2);
    assert_true(later->forks_left == view->forks_left && later->slots[1].fork_gain == view->slots[1].fork_gain &&
                later->slots[1].fork_error == view->slots[1].fork_error);
    assert_true(later->slots[1].fork_blueprint == view->slots[1].fork_blueprint && later->slots[1].fork_stands);
    line = strstr(saved.text, "fork.1.blueprint ") + strlen("fork.1.blueprint ");
    *line = '-';
    check_fails(part_of(&other)->read(part_of(&other)->context, saved.text), ESPER_E_FORMAT, "");
    esper_page_fini(&saved);
    esper_page_fini(&again);
    garden_close(&g);
    garden_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_but_what_is_spent),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(the_answer_is_kept),
        cmocka_unit_test(one_may_ask_again),
        cmocka_unit_test(the_share_is_an_end),
        cmocka_unit_test(forks_that_are_not_finite_lose),
        cmocka_unit_test(going_back_forgets_the_answer_and_not_the_price),
        cmocka_unit_test(a_checkpoint_keeps_the_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
