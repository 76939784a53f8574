/* ctest: timeout=120 cost=10 */
/* A run's length: FLOPs of training are spent until none are left, all that is measured among them, wherever an epoch stands then;
 * and what was spent is state, exact over stops and rollbacks. */
#include "grow/decision_log.h"
#include "grow/growing.h"

#define BIRTH "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n13 r0c0 advance\n"

static esper_config config_for(const char *more)
{
    write_file("birth.txt", BIRTH);
    return config_of("synth", GROWING "length = flops\n", more);
}

static esper_status run_for(const esper_config *config, const char *resume, bool grows, int n_steps,
                            esper_run_result *result)
{
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {.task = resume == NULL ? task_named("synth") : NULL,
                           .config = config,
                           .resume = resume,
                           .grows = grows,
                           .observer = &observer,
                           .stop = &stopping.stop};

    return esper_run_train(&desc, result);
}

static uint64_t step_cost_of(const esper_config *config)
{
    esper_network *network;
    uint64_t cost;

    check_good(esper_single_open(task_named("synth"), config, ESPER_USE_GROW, &network));
    cost = network->step_cost;
    esper_single_close(network);
    assert_true(cost > 0);
    return cost;
}

static void set_flops(esper_config *config, double flops)
{
    char line[64];

    snprintf(line, sizeof(line), "flops = %.17g\n", flops);
    set_keys(config, line);
}

static esper_decision_history history_of(const char *dir)
{
    esper_decision_history history;
    char path[ESPER_PATH_CHARS];

    check_good(esper_run_path(dir, ESPER_RUN_DECISIONS, path));
    check_good(esper_decision_history_read(path, UINT64_MAX, &history));
    return history;
}

static void check_same_end(const esper_run_result *a, const esper_run_result *b, const char *what)
{
    if (a->weight_hash != b->weight_hash || a->cursor.spent != b->cursor.spent || a->cursor.step != b->cursor.step)
        fail_msg("%s: weights %016" PRIx64 " and %016" PRIx64 ", spent %" PRIu64 " and %" PRIu64 ", step %" PRIu64
                 " and %" PRIu64,
                 what, a->weight_hash, b->weight_hash, a->cursor.spent, b->cursor.spent, a->cursor.step,
                 b->cursor.step);
    assert_int_equal(a->last.epoch, b->last.epoch);
    assert_true(a->last.loss_valid == b->last.loss_valid && a->loss_test == b->loss_test);
}

/* ------------------------------------------------------------------------------------------------ where it ends */

/* Twelve steps in epochs of five: the third epoch has two of them, and is validated and decided like any other. */
static void ends_in_the_middle_of_an_epoch(void **state)
{
    esper_config config = config_for("policy = none\nrun_dir = middle\n");
    uint64_t cost = step_cost_of(&config);
    static const double shares[] = {5.0 / 12.0, 10.0 / 12.0, 1.0};
    esper_decision_history history;
    esper_run_result result;

    (void)state;
    set_flops(&config, 11.5 * (double)cost); /* what is begun is ended */
    check_good(run_for(&config, NULL, true, -1, &result));
    assert_int_equal(result.cursor.epoch, 3);
    assert_int_equal(result.cursor.batch, 0);
    assert_int_equal(result.cursor.step, 12);
    assert_int_equal(result.epochs, 3);
    assert_int_equal(result.cursor.spent, 12 * cost);
    assert_int_equal(result.last.epoch, 3);
    assert_true(isfinite(result.last.loss_valid) && isfinite(result.loss_test));
    history = history_of("middle");
    assert_int_equal(history.n, 3);
    assert_int_equal(history.head.budget, (uint64_t)(11.5 * (double)cost));
    for (int i = 0; i < 3; i++) {
        double share = fmin(shares[i] * 12.0 / 11.5, 1.0);

        assert_int_equal(history.entries[i].source, ESPER_LOG_POLICY);
        assert_int_equal(history.entries[i].epoch, i + 1);
        if (!(fabs(history.entries[i].share - share) < 1e-6))
            fail_msg("epoch %d: a share of %g is spent, expected %g", i + 1, history.entries[i].share, share);
    }
    esper_decision_history_free(&history);
}

/* The rate goes by what is spent: it falls to 0 where the run ends, in the middle of an epoch or not. */
static void the_rate_falls_by_the_share(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    esper_config config = config_for("");
    uint64_t cost = step_cost_of(&config);
    char more[128];
    esper_incident incident;

    (void)state;
    snprintf(more, sizeof(more), "length = flops\nflops = %.17g\nschedule = hold\nfall = 0.5\nlr = 0.08\n",
             8.0 * (double)cost);
    garden_open(g, more, NULL, NULL);
    for (int step = 0; step < 8; step++) {
        double wanted = step < 4 ? 0.08 : 0.08 * (8 - step) / 4.0;

        assert_false(esper_network_is_over(g->network));
        if (!(fabs(esper_network_rate(g->network) - wanted) < 1e-12))
            fail_msg("step %d: rate %g, expected %g", step, esper_network_rate(g->network), wanted);
        assert_int_equal(esper_network_epochs(g->network), 2);
        check_good(esper_guarded_step(g->network, &incident));
        if (step == 4) {
            g->last = measure_epoch(g);
            check_good(esper_growth_end_epoch(g->growth, &g->last));
            esper_network_next_epoch(g->network);
        }
    }
    assert_true(esper_network_epoch_done(g->network));
    assert_false(esper_network_is_over(g->network)); /* an epoch is open */
    check_fails(esper_guarded_step(g->network, &incident), ESPER_E_STATE, "no training step is due");
    g->last = measure_epoch(g);
    check_good(esper_growth_end_epoch(g->growth, &g->last));
    assert_int_equal(esper_network_epochs(g->network), 2);
    assert_int_equal(esper_network_epochs_until(g->network, 0.5), 1); /* it is in the past by now */
    esper_network_next_epoch(g->network);
    assert_true(esper_network_is_over(g->network));
    assert_int_equal(esper_network_epochs(g->network), 2);
    garden_close(g);
    free(g);
}

/* ------------------------------------------------------------------------------------------------ what is charged */

/* Steps by what they cost the network as it is then, and attribution: all that the account of training has. */
static void what_is_measured_is_charged(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    double charged = 0.0, account;

    (void)state;
    garden_open(g, "attribution = 0.25\n", BIRTH, NULL);
    while (g->network->cursor.epoch < 20) {
        uint64_t before = g->network->cursor.spent, cost = g->network->step_cost;

        train_epoch(g);
        assert_int_equal(g->network->cursor.spent - before, 5 * cost);
        before = g->network->cursor.spent;
        g->last = measure_epoch(g);
        charged += (double)(g->network->cursor.spent - before);
        check_good(esper_growth_end_epoch(g->growth, &g->last));
        esper_network_next_epoch(g->network);
    }
    account = esper_growth_account_of(g->growth).flops_train;
    assert_true(charged > 0.0);
    if (!(fabs((double)g->network->cursor.spent - account) < 100.0)) /* whole FLOPs, some forty times */
        fail_msg("spent %" PRIu64 ", on the account %.1f", g->network->cursor.spent, account);
    garden_close(g);
    free(g);
}

/* Looking for a place costs something while there is no seed. */
static void probes_are_charged(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    double charged = 0.0, account;

    (void)state;
    garden_open(g, "policy = heuristic\nattribution = 100\nplateau = 0\nlr = 1e-6\n", NULL, NULL);
    while (g->network->cursor.epoch < 8) {
        uint64_t before;

        train_epoch(g);
        before = g->network->cursor.spent;
        g->last = measure_epoch(g);
        charged += (double)(g->network->cursor.spent - before);
        check_good(esper_growth_end_epoch(g->growth, &g->last));
        assert_int_equal(esper_slots_count(&g->network->slots, ~(1u << ESPER_STAGE_DORMANT)), 0);
        esper_network_next_epoch(g->network);
    }
    account = esper_growth_account_of(g->growth).flops_train;
    assert_true(charged > 0.0);
    assert_true(fabs((double)g->network->cursor.spent - account) < 100.0);
    garden_close(g);
    free(g);
}

/* A network that grows has fewer epochs for the same; by epochs it has them all. */
static void growing_takes_epochs(void **state)
{
    esper_config config = config_for("policy = scripted\ndecisions = birth.txt\nepochs = 20\nrun_dir = dear\n");
    esper_decision_history history;
    esper_run_result dear, all;
    uint64_t budget = 20 * 5 * step_cost_of(&config);

    (void)state;
    check_good(run_for(&config, NULL, true, -1, &dear));
    assert_in_range(dear.last.epoch, 2, 19);
    assert_true(dear.cursor.spent >= budget);
    history = history_of("dear");
    assert_int_equal(history.n, dear.last.epoch);
    assert_int_equal(history.head.budget, budget);
    assert_true(history.entries[history.n - 1].share == 1.0);
    esper_decision_history_free(&history);
    set_keys(&config, "length = epochs\nrun_dir = all\n");
    check_good(run_for(&config, NULL, true, -1, &all));
    assert_int_equal(all.last.epoch, 20);
    assert_int_equal(all.cursor.step, 100);
    history = history_of("all");
    assert_int_equal(history.head.budget, 0);
    assert_true(history.entries[9].share == 0.5);
    esper_decision_history_free(&history);
}

static void flops_and_epochs_agree(void **state)
{
    static const char *const schedules[] = {"schedule = constant\n", "schedule = cosine\n", "schedule = hold\n"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_config config = config_for(schedules[i]);
        double cost = (double)step_cost_of(&config);
        esper_run_result by_epochs, by_flops;
        char dir[64];

        snprintf(dir, sizeof(dir), "epochs = 3\nrun_dir = e-%d\n", i);
        set_keys(&config, dir);
        check_good(run_for(&config, NULL, false, -1, &by_epochs));
        assert_int_equal(by_epochs.cursor.step, 15);
        snprintf(dir, sizeof(dir), "epochs = 1\nrun_dir = f-%d\n", i);
        set_keys(&config, dir);
        set_flops(&config, 15.0 * cost);
        check_good(run_for(&config, NULL, false, -1, &by_flops));
        check_same_end(&by_epochs, &by_flops, schedules[i]);
    }
}

/* ------------------------------------------------------------------------------------------------ it is state */

static void resumes_in_the_middle(void **state)
{
    static const int stops[] = {3, 31, 52};
    esper_config config = config_for("policy = scripted\ndecisions = birth.txt\nepochs = 24\nschedule = hold\n"
                                     "run_dir = whole\n"),
                 nothing;
    esper_run_result whole, part;

    (void)state;
    esper_config_init(&nothing);
    check_good(run_for(&config, NULL, true, -1, &whole));
    assert_true(whole.cursor.step < 120 && whole.cursor.step > 52);
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        char dir[32], line[64];

        snprintf(dir, sizeof(dir), "stopped-%d", stops[i]);
        snprintf(line, sizeof(line), "run_dir = %s\n", dir);
        set_keys(&config, line);
        check_good(run_for(&config, NULL, true, stops[i], &part));
        assert_true(part.stopped && part.cursor.step == (uint64_t)stops[i]);
        assert_true(part.cursor.spent > 0 && part.cursor.spent < whole.cursor.spent);
        check_good(run_for(&nothing, dir, true, -1, &part));
        check_same_end(&whole, &part, dir);
    }
}

static void a_rollback_brings_it_back(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    uint64_t spent_at[64] = {0};
    esper_incident incident;

    (void)state;
    garden_open(g, "length = flops\nattribution = 0.25\n", BIRTH, NULL);
    grow_until(g, 3);
    for (int i = 0; i < 4; i++) {
        spent_at[g->network->cursor.step] = g->network->cursor.spent;
        check_good(esper_guarded_step(g->network, &incident));
        assert_int_equal(incident.action, ESPER_GOVERNOR_GO);
    }
    slab_values(&g->network->slab, ESPER_FAMILY_PARAM)[0] = NAN;
    check_good(esper_guarded_settle(g->network, &incident));
    heed(g, &incident);
    assert_true(incident.restored);
    assert_in_range(g->network->cursor.step, 15, 18);
    assert_true(spent_at[g->network->cursor.step] > 0);
    assert_int_equal(g->network->cursor.spent, spent_at[g->network->cursor.step]);
    garden_close(g);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_in_the_middle_of_an_epoch), cmocka_unit_test(the_rate_falls_by_the_share),
        cmocka_unit_test(what_is_measured_is_charged),    cmocka_unit_test(probes_are_charged),
        cmocka_unit_test(growing_takes_epochs),           cmocka_unit_test(flops_and_epochs_agree),
        cmocka_unit_test(resumes_in_the_middle),          cmocka_unit_test(a_rollback_brings_it_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
