/* A comparison without its processes: which runs there are and what they wait for, budgets and sizes, statistics, what a store
 * says, and the tables. */
#include "train/helpers.h"

#include <math.h>

#include "train/compare.h"
#include "ui/compare_table.h"

static const esper_dataset_info colour = {.channels = 3, .height = 32, .width = 32, .classes = 10};
static const esper_dataset_info bytes = {.vocab = 256, .context = 128};

static void check_real(double value, double wanted)
{
    if (!(fabs(value - wanted) < 1e-9))
        fail_msg("%.12g, expected %.12g", value, wanted);
}

/* ------------------------------------------------------------------------------------------------ numbers */

static void epochs_come_nearest(void **state)
{
    static const struct {
        double flops, per_epoch;
        int    epochs;
    } cases[] = {{100.0, 10.0, 10}, {104.0, 10.0, 10}, {106.0, 10.0, 11}, {95.0, 10.0, 10},
                 {3.0, 10.0, 1},    {14.0, 10.0, 1},   {0.0, 10.0, 1},    {1.0, 0.0, 1000000}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (esper_compare_epochs(cases[i].flops, cases[i].per_epoch) != cases[i].epochs)
            fail_msg("%g FLOPs at %g: %d epochs, expected %d", cases[i].flops, cases[i].per_epoch,
                     esper_compare_epochs(cases[i].flops, cases[i].per_epoch), cases[i].epochs);
    assert_int_equal(esper_compare_epochs((double)NAN, 10.0), 1);
}

static int64_t params_of(const char *task, const esper_config *config, const esper_dataset_info *data)
{
    esper_host host = esper_task_host(task_named(task), config, data);
    esper_net net;
    int64_t n;

    esper_net_init(&net);
    check_good(esper_host_build(&host, &net));
    n = esper_net_count_params(&net, -1);
    esper_net_fini(&net);
    return n;
}

/* Against all sizes one by one. */
static void check_size(const char *task, const esper_dataset_info *data, int unit, int most, int64_t params)
{
    esper_config config = config_of(task, "", ""), other = config;
    int64_t found = 0, best = -1;
    int size = 0, best_size = 0;

    check_good(esper_compare_size(task_named(task), &config, data, params, &size, &found));
    for (int s = unit; s <= most; s += unit) {
        int64_t n;

        *(unit == 1 ? &other.channels : &other.width) = s;
        n = params_of(task, &other, data);
        if (best < 0 || llabs(n - params) < llabs(best - params)) {
            best = n;
            best_size = s;
        }
    }
    if (found != best)
        fail_msg("%s, %lld parameters: size %d has %lld; size %d has %lld", task, (long long)params, size,
                 (long long)found, best_size, (long long)best);
}

static void sizes_come_nearest(void **state)
{
    static const int64_t wanted[] = {0, 1, 77, 6417, 6418, 6419, 12345, 24346, 100000};
    esper_config config = config_of("synth", "", "");
    int64_t params;
    int size;

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        check_size("synth", &colour, 1, 64, wanted[i]);
    check_size("chars", &bytes, 4, 300, 842496);
    check_size("chars", &bytes, 4, 300, 900000);
    assert_string_equal(esper_compare_size_key(task_named("synth")), "channels");
    assert_string_equal(esper_compare_size_key(task_named("chars")), "width");
    check_good(esper_compare_size(task_named("synth"), &config, &colour, 6418, &size, &params));
    assert_int_equal(size, 8);
    check_good(esper_compare_size(task_named("synth"), &config, &colour, INT64_C(1) << 50, &size, &params));
    assert_int_equal(size, 512); /* the most a configuration takes */
    assert_int_equal(live_blocks(), 0);
}

static void spreads(void **state)
{
    static const double values[] = {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0};
    esper_compare_spread spread = esper_compare_spread_of(values, 8);

    (void)state;
    check_real(spread.mean, 5.0);
    check_real(spread.sd, sqrt(32.0 / 7.0));
    check_real(spread.min, 2.0);
    check_real(spread.max, 9.0);
    spread = esper_compare_spread_of(values, 1);
    check_real(spread.mean, 2.0);
    assert_true(isnan(spread.sd));
    spread = esper_compare_spread_of(values, 0);
    assert_true(spread.n == 0 && isnan(spread.mean) && isnan(spread.sd) && isnan(spread.min) && isnan(spread.max));
}

/* ------------------------------------------------------------------------------------------------ lines */

static void bad_requests(void **state)
{
    const esper_task *task = task_named("synth");
    esper_config config = config_of("synth", SMALL_CNN, ""), no_epochs = config_of("synth", SMALL_CNN, "epochs = 0\n");
    esper_config even = config_of("synth", SMALL_CNN, "kernel = 4\n");
    esper_compare compare;

    (void)state;
    check_fails(esper_compare_init(&compare, task, &config, "none,heuristik", 1), ESPER_E_CONFIG,
                "'heuristik'|did you mean 'heuristic'|static-equal");
    check_fails(esper_compare_init(&compare, task, &config, "none,", 1), ESPER_E_CONFIG, "''|none, heuristic");
    check_fails(esper_compare_init(&compare, task, &config, "none,random,none", 1), ESPER_E_CONFIG,
                "none stands there twice");
    check_fails(esper_compare_init(&compare, task, &config, "none,static-final", 1), ESPER_E_CONFIG,
                "static-final|such as heuristic");
    check_fails(esper_compare_init(&compare, task, &config, "static-equal", 1), ESPER_E_CONFIG, "static-equal");
    check_fails(esper_compare_init(&compare, task, &config, "command", 1), ESPER_E_CONFIG, "--policy-cmd");
    check_fails(esper_compare_init(&compare, task, &config, "scripted", 1), ESPER_E_CONFIG, "--decisions");
    check_fails(esper_compare_init(&compare, task, &config, "none", 0), ESPER_E_CONFIG, "--seeds: 0");
    check_fails(esper_compare_init(&compare, task, &config, "none", -3), ESPER_E_CONFIG, "--seeds: -3");
    check_fails(esper_compare_init(&compare, task, &config, "none", 100000), ESPER_E_CONFIG, "--seeds");
    check_fails(esper_compare_init(&compare, task, &no_epochs, "none", 1), ESPER_E_CONFIG, "epochs is 0");
    check_fails(esper_compare_init(&compare, task, &even, "none", 1), ESPER_E_ARG, "kernel 4");
    assert_int_equal(live_blocks(), 0);
}

static esper_compare compare_of(const char *policies, const char *more, int n_seeds)
{
    esper_config config = config_of("synth", SMALL_CNN, more);
    esper_compare compare;

    check_good(esper_compare_init(&compare, task_named("synth"), &config, policies, n_seeds));
    return compare;
}

static void the_grown_line(void **state)
{
    esper_compare compare = compare_of("none, random,heuristic", "", 1);

    (void)state;
    assert_int_equal(compare.grown, 2);
    assert_int_equal(compare.host, 0);
    esper_compare_fini(&compare);
    compare = compare_of("static-final,scripted,random", "decisions = plan.txt\n", 1);
    assert_int_equal(compare.grown, 1);
    assert_int_equal(compare.host, -1);
    esper_compare_fini(&compare);
    compare = compare_of("none", "", 2);
    assert_int_equal(compare.grown, -1);
    assert_int_equal(compare.n_runs, 2); /* no FLOPs to be equal to */
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* ------------------------------------------------------------------------------------------------ runs */

static esper_compare_run *run_named(esper_compare *compare, const char *name)
{
    char text[ESPER_COMPARE_NAME_CHARS];

    for (int i = 0; i < compare->n_runs; i++) {
        esper_compare_name(compare, &compare->runs[i], text);
        if (strcmp(text, name) == 0)
            return &compare->runs[i];
    }
    fail_msg("there is no run %s", name);
    return NULL;
}

static bool is_ready(esper_compare *compare, const char *name)
{
    bool ready;

    check_good(esper_compare_prepare(compare, run_named(compare, name), &ready));
    return ready;
}

static void end_run(esper_compare *compare, const char *name, double acc, double flops, int64_t params,
                    const char *tested)
{
    esper_compare_run *run = run_named(compare, name);

    if (!is_ready(compare, name))
        fail_msg("%s is not ready", name);
    run->result.outcome = ESPER_COMPARE_GOOD;
    run->result.acc_test = acc;
    run->result.loss_test = 1.0;
    run->result.flops = 1000.0;
    run->result.flops_train = flops;
    run->result.params = params;
    run->result.epochs = run->epochs;
    run->result.seconds = 1.5;
    snprintf(run->result.tested, sizeof(run->result.tested), "%s", tested);
}

static void break_run(esper_compare *compare, const char *name, const char *why)
{
    esper_compare_run *run = run_named(compare, name);

    assert_true(is_ready(compare, name));
    run->result.outcome = ESPER_COMPARE_BROKEN_OFF;
    snprintf(run->result.why, sizeof(run->result.why), "%s", why);
}

static void runs_wait_and_are_chosen(void **state)
{
    esper_compare compare = compare_of("none,random,heuristic,static-final,static-equal", "seed = 7\n", 2);
    esper_config config;

    (void)state;
    assert_int_equal(compare.n_runs, 2 * 8);
    assert_true(is_ready(&compare, "none-7"));
    assert_true(is_ready(&compare, "random-8"));
    assert_false(is_ready(&compare, "static-final-7"));
    assert_false(is_ready(&compare, "static-equal-7"));
    assert_false(is_ready(&compare, "none-7-flops"));
    end_run(&compare, "heuristic-7", 50.0, 500.0, 331, "r0c0:norm:add,r1c1:conv_light:gate");
    assert_false(is_ready(&compare, "none-7-flops")); /* what an epoch costs is not known */
    end_run(&compare, "none-7", 40.0, 300.0, 188, "");
    assert_true(is_ready(&compare, "none-7-flops"));
    assert_int_equal(run_named(&compare, "none-7-flops")->epochs, 5);
    assert_true(is_ready(&compare, "static-final-7"));
    check_good(esper_compare_configure(&compare, run_named(&compare, "static-final-7"), "somewhere", 1, &config));
    assert_string_equal(config.plant, "r0c0:norm:add,r1c1:conv_light:gate");
    assert_string_equal(config.policy, "none");
    assert_string_equal(config.run_dir, "somewhere");
    assert_true(config.seed == 7 && config.epochs == 3 && config.threads == 1);
    assert_true(is_ready(&compare, "static-equal-7"));
    check_good(esper_compare_configure(&compare, run_named(&compare, "static-equal-7"), "somewhere", 1, &config));
    assert_int_equal(config.channels, 3);
    assert_string_equal(config.plant, "");
    assert_int_equal(run_named(&compare, "static-equal-7")->size_params, 331);
    check_good(esper_compare_configure(&compare, run_named(&compare, "heuristic-7"), "x", 2, &config));
    assert_string_equal(config.policy, "heuristic");
    assert_false(is_ready(&compare, "static-final-8")); /* seeds do not mix */
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* Nothing was kept: static-final is the host, and is not trained a second time; nor is a budget that is the same. */
static void alike_runs_are_run_once(void **state)
{
    esper_compare compare = compare_of("none,heuristic,static-final,static-equal", "", 1);

    (void)state;
    end_run(&compare, "heuristic-1", 50.0, 310.0, 188, "");
    assert_true(is_ready(&compare, "none-1"));
    assert_false(is_ready(&compare, "static-final-1")); /* waits for none-1 */
    assert_int_equal(run_named(&compare, "static-final-1")->result.outcome, ESPER_COMPARE_PENDING);
    end_run(&compare, "none-1", 40.0, 300.0, 188, "");
    assert_false(is_ready(&compare, "static-final-1"));
    assert_int_equal(run_named(&compare, "static-final-1")->result.outcome, ESPER_COMPARE_GOOD);
    check_real(run_named(&compare, "static-final-1")->result.acc_test, 40.0);
    assert_false(is_ready(&compare, "none-1-flops")); /* 3 epochs come nearest to 310 FLOPs */
    check_real(run_named(&compare, "none-1-flops")->result.acc_test, 40.0);
    esper_compare_fini(&compare);
}

static void planted_from_the_start(void **state)
{
    esper_compare compare = compare_of("heuristic,static-final", "plant = r0c1:norm\n", 1);

    (void)state;
    end_run(&compare, "heuristic-1", 50.0, 310.0, 188, "r0c0:norm:add");
    assert_true(is_ready(&compare, "static-final-1"));
    assert_string_equal(run_named(&compare, "static-final-1")->plant, "r0c1:norm,r0c0:norm:add");
    esper_compare_fini(&compare);
}

static void what_needs_a_bad_run_is_not_run(void **state)
{
    esper_compare compare = compare_of("none,heuristic,static-final", "", 1);
    const esper_compare_result *result = &run_named(&compare, "static-final-1")->result;

    (void)state;
    break_run(&compare, "heuristic-1", "the governor stopped the run");
    assert_false(is_ready(&compare, "static-final-1"));
    assert_int_equal(result->outcome, ESPER_COMPARE_SKIPPED);
    assert_string_equal(result->why, "it needs heuristic-1 (broken off)");
    assert_true(is_ready(&compare, "none-1"));
    esper_compare_fini(&compare);
}

/* ------------------------------------------------------------------------------------------------ tables */

/* Three seeds; heuristic has no result on the last, whose numbers must be in no mean. */
static esper_compare example(void)
{
    esper_compare compare = compare_of("none,heuristic", "gates = permissive\n", 3);
    static const double host[] = {40.0, 42.0, 80.0}, grown[] = {45.0, 49.0};
    char name[ESPER_COMPARE_NAME_CHARS];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "none-%d", i + 1);
        end_run(&compare, name, host[i], 3e6, 1188, "");
        snprintf(name, sizeof(name), "heuristic-%d", i + 1);
        if (i < 2)
            end_run(&compare, name, grown[i], 4e6, 2000, "");
        else
            break_run(&compare, name, "the governor stopped the run: NaN");
    }
    end_run(&compare, "none-1-flops", 41.0, 4e6, 1188, "");
    end_run(&compare, "none-2-flops", 44.0, 4e6, 1188, "");
    assert_false(is_ready(&compare, "none-3-flops"));
    return compare;
}

static void summaries_pair_by_seed(void **state)
{
    esper_compare compare = example();
    esper_compare_summary summary;

    (void)state;
    assert_true(esper_compare_summarise(&compare, 1, false, &summary));
    assert_int_equal(summary.n_bad, 1);
    check_real(summary.acc.mean, 47.0);
    check_real(summary.gain.mean, 6.0); /* +5 and +7: the third seed has no pair */
    check_real(summary.gain.sd, sqrt(2.0));
    assert_true(esper_compare_summarise(&compare, 0, false, &summary));
    check_real(summary.acc.mean, 54.0);
    assert_true(esper_compare_summarise(&compare, 1, true, &summary));
    check_real(summary.gain.mean, 4.5);
    check_real(summary.epochs.mean, 3.0);
    assert_true(esper_compare_summarise(&compare, 0, true, &summary));
    assert_int_equal(summary.acc.n, 2);
    check_real(summary.epochs.mean, 4.0);
    esper_compare_fini(&compare);
    compare = compare_of("random,heuristic", "", 1);
    assert_false(esper_compare_summarise(&compare, 0, true, &summary)); /* it grows by a budget of its own */
    esper_compare_fini(&compare);
}

static void check_says(const esper_page *page, const char *words)
{
    check_good(page->status);
    if (strstr(page->text, words) == NULL)
        fail_msg("not in the text: \"%s\"\n%s", words, page->text);
}

static void tables_tell_all(void **state)
{
    esper_compare compare = example();
    esper_page plain = {0}, markdown = {0}, json = {0};

    (void)state;
    esper_compare_write(&compare, ESPER_COMPARE_PLAIN, &plain);
    check_says(&plain, "synth: 3 seeds from 1, 3 epochs, gates permissive for all\n\nAt equal epochs:\n");
    check_says(&plain, "  none            3   54.00  22.54  40.00  80.00          -     -   1,188");
    check_says(&plain, "  heuristic  2 of 3   47.00   2.83  45.00  49.00      +6.00  1.41   2,000");
    check_says(&plain, "At equal training FLOPs, those of heuristic on the same seed:\n");
    check_says(&plain, "Runs that are not counted:\n");
    check_says(&plain, "  heuristic-3: broken off: the governor stopped the run: NaN\n");
    check_says(&plain, "  none-3-flops: not run: it needs heuristic-3 (broken off)\n");
    esper_compare_write(&compare, ESPER_COMPARE_MARKDOWN, &markdown);
    check_says(&markdown, "|---|---:|");
    check_says(&markdown, "| heuristic | 2 of 3 | 47.00 | 2.83 | 45.00 | 49.00 | +6.00 | 1.41 | 2,000 |");
    check_says(&markdown, "\n- heuristic-3: broken off");
    esper_compare_write_json(&compare, &json);
    check_says(&json, "{\"line\":\"none\",\"seed\":\"3\",\"budget\":\"epochs\",\"status\":\"ok\",\"acc_test\":80,");
    check_says(&json, "\"status\":\"broken off\",\"why\":\"the governor stopped the run: NaN\",\"acc_test\":null,");
    check_says(&json,
               "{\"summary\":\"heuristic\",\"task\":\"synth\",\"gates\":\"permissive\",\"budget\":\"epochs\",\"n\":2,"
               "\"n_bad\":1,\"acc_mean\":47,");
    esper_page_fini(&plain);
    esper_page_fini(&markdown);
    esper_page_fini(&json);
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* ------------------------------------------------------------------------------------------------ stores */

static void results_come_from_the_store(void **state)
{
    esper_config config = config_of("synth", SMALL_CNN, "policy = none\nplant = r0c0:norm\nrun_dir = a-run\n");
    esper_config other = config_of("synth", SMALL_CNN, "policy = none\nplant = r0c0:norm\nlr = 0.3\n");
    esper_config alike = config_of("synth", SMALL_CNN, "policy = none\nplant = r0c0:norm\nthreads = 2\n");
    const esper_log log = {.level = ESPER_LOG_ERROR, .stream = stderr};
    const esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true, .log = &log};
    esper_compare_result result = {.outcome = ESPER_COMPARE_RUNNING};
    esper_run_result ran;

    (void)state;
    check_good(esper_compare_read("nowhere", &config, &result));
    assert_int_equal(result.outcome, ESPER_COMPARE_PENDING);
    check_good(esper_run_train(&desc, &ran));
    check_good(esper_compare_read("a-run", &alike, &result));
    assert_int_equal(result.outcome, ESPER_COMPARE_GOOD);
    check_real(result.acc_test, ran.acc_test);
    check_real(result.loss_test, ran.loss_test);
    check_real(result.flops, floor(ran.flops_sample));
    check_real(result.flops_train, floor(ran.flops_train));
    assert_int_equal(result.params, ran.params);
    assert_int_equal(result.epochs, 3);
    assert_string_equal(result.tested, ""); /* but for what was planted: it was there */
    check_fails(esper_compare_read("a-run", &other, &result), ESPER_E_CONFIG, "a-run|lr = 0.05|0.3 is wanted");
    assert_int_equal(live_blocks(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_come_nearest),
        cmocka_unit_test(sizes_come_nearest),
        cmocka_unit_test(spreads),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(the_grown_line),
        cmocka_unit_test(runs_wait_and_are_chosen),
        cmocka_unit_test(alike_runs_are_run_once),
        cmocka_unit_test(planted_from_the_start),
        cmocka_unit_test(what_needs_a_bad_run_is_not_run),
        cmocka_unit_test(summaries_pair_by_seed),
        cmocka_unit_test(tables_tell_all),
        cmocka_unit_test(results_come_from_the_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
