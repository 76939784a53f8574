/* A frontier without its processes: its comparisons, who is the best within a limit, and the shares. */
#include "engine/helpers.h"

#include <math.h>

#include "run/frontier.h"
#include "ui/frontier.h"

static const esper_frontier_desc wanted = {.budgets = {0.5, 2.0},
                                           .sizes = {1.0, 1.5, 2.0},
                                           .rates = {1.0, 2.0},
                                           .n_budgets = 2,
                                           .n_sizes = 3,
                                           .n_rates = 2,
                                           .policy = "heuristic"};

static esper_frontier frontier_of(int n_seeds)
{
    esper_config config = config_of("synth", SMALL_CNN, "lr = 0.5\n");
    esper_frontier frontier;

    check_good(esper_frontier_init(&frontier, task_named("synth"), &config, &wanted, n_seeds));
    return frontier;
}

/* All runs of a line end with this result, but for a hundredth of a point for each seed. */
static void end_line(esper_frontier *frontier, int budget, const char *name, int64_t params, double valid, double test)
{
    esper_compare *compare = &frontier->budgets[budget];
    int n = 0;

    for (int i = 0; i < compare->n_runs; i++)
        if (strcmp(compare->lines[compare->runs[i].line].name, name) == 0) {
            esper_compare_result *result = &compare->runs[i].result;

            result->outcome = ESPER_COMPARE_GOOD;
            result->acc_valid = valid;
            result->acc_test = test + 0.01 * compare->runs[i].seed;
            result->params = params;
            result->flops_train = compare->flops;
            n++;
        }
    if (n == 0)
        fail_msg("no line of budget %d is called %s", budget, name);
}

static void lists(void **state)
{
    double values[3];
    int n;

    (void)state;
    check_good(esper_frontier_read_list("--sizes", "0.5,1,2e1", 3, values, &n));
    assert_true(n == 3 && values[0] == 0.5 && values[1] == 1.0 && values[2] == 20.0);
    check_fails(esper_frontier_read_list("--sizes", "1,2,3,4", 3, values, &n), ESPER_E_CONFIG, "--sizes: more than 3");
    check_fails(esper_frontier_read_list("--sizes", "1,1", 3, values, &n), ESPER_E_CONFIG, "numbers that rise");
    check_fails(esper_frontier_read_list("--sizes", "", 3, values, &n), ESPER_E_CONFIG, "'' is no number above 0");
    check_fails(esper_frontier_read_list("--sizes", "-1", 3, values, &n), ESPER_E_CONFIG, "'-1'");
    check_fails(esper_frontier_read_list("--sizes", "nan", 3, values, &n), ESPER_E_CONFIG, "'nan'");
}

static void comparisons(void **state)
{
    esper_frontier frontier = frontier_of(2);
    static const char *const names[] = {"none",
                                        "none:lr=1",
                                        "none:size=3",
                                        "none:size=3:lr=1",
                                        "none:size=4",
                                        "none:size=4:lr=1",
                                        "heuristic:max_params=",
                                        "heuristic:max_params=",
                                        "heuristic:max_params=",
                                        "heuristic:max_params="};
    const esper_compare *small = &frontier.budgets[0], *large = &frontier.budgets[1];

    (void)state;
    assert_int_equal(frontier.n_budgets, 2);
    assert_int_equal(small->n_lines, 10);
    for (int i = 0; i < small->n_lines; i++)
        if (strncmp(small->lines[i].name, names[i], strlen(names[i])) != 0)
            fail_msg("line %d is %s, expected %s", i, small->lines[i].name, names[i]);
    assert_true(large->flops == 4.0 * small->flops && small->flops > 0.0);
    assert_true(frontier.n_caps == 2 && frontier.caps[0] < frontier.caps[1]);
    esper_frontier_fini(&frontier);
    assert_int_equal(live_blocks(), 0);
}

static void check_share(esper_frontier_share share, int n, int n_on, int n_above)
{
    if (share.n != n || share.n_on != n_on || share.n_above != n_above)
        fail_msg("%d on and %d above of %d, expected %d, %d of %d", share.n_on, share.n_above, share.n, n_on, n_above,
                 n);
}

/* Chosen by validation: a network with the better test and the worse validation is not the best. */
static void bests_and_shares(void **state)
{
    esper_frontier frontier = frontier_of(2);
    char grown[64], large[64];
    esper_frontier_gap gap;
    esper_page page = {0};

    (void)state;
    snprintf(grown, sizeof(grown), "heuristic:max_params=%lld", (long long)frontier.caps[0]);
    snprintf(large, sizeof(large), "heuristic:max_params=%lld:lr=1", (long long)frontier.caps[1]);
    check_good(esper_frontier_measure(&frontier)); /* nothing has been run */
    assert_null(esper_frontier_best(&frontier, false, (double)INFINITY, 1));
    check_share(esper_frontier_by_both(&frontier), 0, 0, 0);
    end_line(&frontier, 0, "none", 100, 60.0, 61.0);
    end_line(&frontier, 0, "none:lr=1", 100, 59.0, 66.0);
    end_line(&frontier, 0, grown, 100, 60.0, 61.0); /* it kept no seed */
    end_line(&frontier, 1, "none:size=3", frontier.caps[0], 70.0, 70.0);
    end_line(&frontier, 1, large, frontier.caps[1], 72.0, 71.5);
    check_good(esper_frontier_measure(&frontier));
    assert_int_equal(frontier.n_points, 5);
    assert_int_equal(esper_frontier_best(&frontier, false, 100.0, 1)->line, 0);
    assert_null(esper_frontier_best(&frontier, true, 99.0, 1));
    gap = esper_frontier_compare(&frontier, (double)INFINITY, 1);
    assert_true(gap.acc.n == 2 && fabs(gap.acc.mean - 1.5) < 1e-9);
    gap = esper_frontier_compare(&frontier, (double)frontier.caps[0], 1);
    assert_true(gap.acc.n == 2 && fabs(gap.acc.mean + 9.0) < 1e-9); /* the small grown one against the larger host */
    check_share(esper_frontier_by_params(&frontier), 3, 2, 1);
    check_share(esper_frontier_by_flops(&frontier), 2, 2, 1);
    check_share(esper_frontier_by_both(&frontier), 4, 3, 1);
    esper_frontier_write(&frontier, &page);
    esper_frontier_write_json(&frontier, &page);
    esper_frontier_report(&frontier, &page);
    check_good(page.status);
    assert_non_null(
        strstr(page.text, "on or above the static frontier at 2 of 3 sizes whatever the FLOPs (above it at 1)"));
    assert_non_null(
        strstr(page.text, "{\"frontier\":\"share\",\"by\":\"both\",\"n\":4,\"on_or_above\":3,\"above\":1}"));
    assert_null(strstr(page.text, "nan"));
    esper_page_fini(&page);
    esper_frontier_fini(&frontier);
    assert_int_equal(live_blocks(), 0);
}

static void bad_requests(void **state)
{
    esper_config epochs = config_of("synth", SMALL_CNN, "length = epochs\n"),
                 config = config_of("synth", SMALL_CNN, "");
    esper_frontier_desc desc = wanted;
    esper_frontier frontier;

    (void)state;
    check_fails(esper_frontier_init(&frontier, task_named("synth"), &epochs, &wanted, 1), ESPER_E_CONFIG,
                "leave out --length");
    desc.n_sizes = 1;
    check_fails(esper_frontier_init(&frontier, task_named("synth"), &config, &desc, 1), ESPER_E_CONFIG,
                "nothing to grow to");
    desc = wanted;
    desc.policy = "heuristik";
    check_fails(esper_frontier_init(&frontier, task_named("synth"), &config, &desc, 1), ESPER_E_CONFIG,
                "did you mean 'heuristic'");
    assert_int_equal(live_blocks(), 0);
}

static void failed_allocations(void **state)
{
    (void)state;
    for (uint64_t nth = 1;; nth += 7) {
        esper_config config = config_of("synth", SMALL_CNN, "");
        esper_frontier frontier;
        esper_status status;

        esper_mem_fail_at(nth);
        status = esper_frontier_init(&frontier, task_named("synth"), &config, &wanted, 1);
        if (status == ESPER_OK)
            status = esper_frontier_measure(&frontier);
        esper_mem_fail_at(0);
        esper_frontier_fini(&frontier);
        assert_int_equal(live_blocks(), 0);
        if (status == ESPER_OK)
            break;
        assert_int_equal(status, ESPER_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),        cmocka_unit_test(comparisons),        cmocka_unit_test(bests_and_shares),
        cmocka_unit_test(bad_requests), cmocka_unit_test(failed_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
