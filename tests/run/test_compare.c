/* A comparison without its processes: which runs there are and what they wait for, budgets and sizes, statistics, what a store
 * says, and the tables. */
#include "engine/helpers.h"

#include <math.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "policy/learned.h"
#include "run/compare.h"
#include "ui/compare_table.h"

static const esper_dataset_info colour = {.channels = 3, .height = 32, .width = 32, .classes = 10};
static const esper_dataset_info bytes = {.vocab = 256, .context = 128};

static void check_real(double value, double wanted)
{
    if (!(fabs(value - wanted) < 1e-9))
        fail_msg("%.12g, expected %.12g", value, wanted);
}

/* ------------------------------------------------------------------------------------------------ numbers */

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
    assert_string_equal(esper_compare_size_key(task_named("synth"), &config), "channels");
    assert_string_equal(esper_compare_size_key(task_named("chars"), &config), "width");
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

/* Against a table of Student's t. */
static void intervals(void **state)
{
    static const struct {
        int    n_free;
        double t;
    } table[] = {{1, 12.706205}, {2, 4.302653}, {3, 3.182446},  {4, 2.776445},  {5, 2.570582},
                 {9, 2.262157},  {29, 2.045230}, {30, 2.042272}, {100, 1.983972}, {999, 1.962341}};
    static const double values[] = {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0};
    esper_compare_spread spread = esper_compare_spread_of(values, 8);

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!(fabs(esper_compare_t95(table[i].n_free) - table[i].t) < 1e-6))
            fail_msg("t of %d: %.7f, expected %.6f", table[i].n_free, esper_compare_t95(table[i].n_free), table[i].t);
    if (!(fabs(esper_compare_margin(&spread) - 1.7875) < 1e-3))
        fail_msg("margin %.6f, expected 1.7875", esper_compare_margin(&spread));
    spread = esper_compare_spread_of(values, 1);
    assert_true(isnan(esper_compare_margin(&spread)));
}

/* ------------------------------------------------------------------------------------------------ lines */

static void bad_requests(void **state)
{
    const esper_task *task = task_named("synth");
    esper_config config = config_of("synth", SMALL_CNN, ""), no_epochs = config_of("synth", SMALL_CNN, "epochs = 0\n");
    esper_config even = config_of("synth", SMALL_CNN, "kernel = 4\n");
    esper_config planted = config_of("synth", SMALL_CNN, "plant = r0c0:norm\n");
    esper_compare compare;

    (void)state;
    check_fails(esper_compare_init(&compare, task, &config, "none,heuristik", 1), ESPER_E_CONFIG,
                "'heuristik'|did you mean 'heuristic'|static-equal");
    check_fails(esper_compare_init(&compare, task, &config, "none,", 1), ESPER_E_CONFIG, "''|none, heuristic");
    check_fails(esper_compare_init(&compare, task, &config, "none,random,none", 1), ESPER_E_CONFIG,
                "none stands there twice");
    check_fails(esper_compare_init(&compare, task, &config, "none,static-final", 1), ESPER_E_CONFIG,
                "static-final|such as trials");
    check_fails(esper_compare_init(&compare, task, &config, "static-equal", 1), ESPER_E_CONFIG, "static-equal");
    check_fails(esper_compare_init(&compare, task, &config, "command", 1), ESPER_E_CONFIG, "--policy-cmd");
    check_fails(esper_compare_init(&compare, task, &config, "scripted", 1), ESPER_E_CONFIG, "--decisions");
    check_fails(esper_compare_init(&compare, task, &planted, "none,halving", 1), ESPER_E_CONFIG, "halving|--plant");
    check_fails(esper_compare_init(&compare, task, &config, "none", 0), ESPER_E_CONFIG, "--seeds: 0");
    check_fails(esper_compare_init(&compare, task, &config, "none", -3), ESPER_E_CONFIG, "--seeds: -3");
    check_fails(esper_compare_init(&compare, task, &config, "none", 100000), ESPER_E_CONFIG, "--seeds");
    check_fails(esper_compare_init(&compare, task, &no_epochs, "none", 1), ESPER_E_CONFIG, "epochs is 0");
    check_fails(esper_compare_init(&compare, task, &even, "none", 1), ESPER_E_ARG, "kernel 4");
    check_fails(esper_compare_init(&compare, task, &config, "none:seed=3", 1), ESPER_E_CONFIG,
                "--policies: none:seed=3|seed is the same for all lines");
    check_fails(esper_compare_init(&compare, task, &config, "none:lr=quick", 1), ESPER_E_CONFIG, "none:lr=quick|lr");
    check_fails(esper_compare_init(&compare, task, &config, "none:size=0", 1), ESPER_E_CONFIG, "size: '0'");
    check_fails(esper_compare_init(&compare, task, &config, "none:size=100000", 1), ESPER_E_CONFIG, "channels");
    check_fails(esper_compare_init(&compare, task, &config, "none:kernel=4", 1), ESPER_E_ARG,
                "none:kernel=4: |kernel 4");
    check_fails(esper_compare_init(&compare, task, &config, "none:lr=0.1:", 1), ESPER_E_CONFIG, "'' is no setting");
    check_fails(esper_compare_init(&compare, task, &config, "none:leap=3", 1), ESPER_E_CONFIG, "leap");
    check_fails(esper_compare_init(&compare, task, &config, "halving:lr=0.1", 1), ESPER_E_CONFIG, "leave out :lr=0.1");
    check_fails(esper_compare_init(&compare, task, &config, "none:lr=0.1,none:lr=0.1", 1), ESPER_E_CONFIG,
                "stands there twice");
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
    compare = compare_of("heuristic,trials,random,static-final", "", 1); /* the default policy before all others */
    assert_int_equal(compare.grown, 1);
    esper_compare_fini(&compare);
    compare = compare_of("halving,none,random", "", 1); /* a search grows nothing */
    assert_int_equal(compare.grown, 2);
    assert_int_equal(compare.lines[0].kind, ESPER_COMPARE_SEARCH);
    esper_compare_fini(&compare);
    compare = compare_of("none", "", 2);
    assert_int_equal(compare.grown, -1);
    assert_int_equal(compare.n_runs, 2);
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
    run->result.epochs = 3;
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

static esper_config configured(esper_compare *compare, const char *name)
{
    esper_config config;

    assert_true(is_ready(compare, name));
    check_good(esper_compare_configure(compare, run_named(compare, name), "somewhere", 1, &config));
    return config;
}

/* What three epochs of the small host cost. */
static double host_budget(void)
{
    esper_config config = config_of("synth", SMALL_CNN, "");
    esper_network *network;
    double budget;

    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    budget = (double)(3 * 5 * network->step_cost);
    esper_single_close(network);
    return budget;
}

static void runs_wait_and_are_chosen(void **state)
{
    esper_compare compare = compare_of("none,random,heuristic,halving,static-final,static-equal", "seed = 7\n", 2);
    static const char *const lines[] = {"none", "random", "halving", "static-final", "static-equal", "heuristic"};
    double budget = host_budget();
    esper_config config;

    (void)state;
    assert_int_equal(compare.n_runs, 2 * 6);
    assert_true(is_ready(&compare, "none-7"));
    assert_true(is_ready(&compare, "random-8"));
    assert_true(is_ready(&compare, "halving-8"));
    assert_false(is_ready(&compare, "static-final-7"));
    assert_false(is_ready(&compare, "static-equal-7"));
    end_run(&compare, "heuristic-7", 50.0, 500.0, 331, "r0c0:norm:add,r1c1:conv_light:gate");
    for (int i = 0; i < 6; i++) { /* whatever a network costs */
        char name[ESPER_COMPARE_NAME_CHARS];

        snprintf(name, sizeof(name), "%s-7", lines[i]);
        config = configured(&compare, name);
        assert_int_equal(config.length, ESPER_CONFIG_LENGTH_FLOPS);
        check_real(run_named(&compare, name)->flops, budget);
        if (strncmp(name, "static", 6) == 0)
            check_real(config.flops, budget);
        else /* it begins with the host, and comes to the same */
            assert_true(config.epochs == 3 && config.flops == 0.0);
    }
    config = configured(&compare, "static-final-7");
    assert_string_equal(config.plant, "r0c0:norm:add,r1c1:conv_light:gate");
    assert_string_equal(config.policy, "none");
    assert_string_equal(config.run_dir, "somewhere");
    assert_true(config.seed == 7 && config.threads == 1);
    config = configured(&compare, "static-equal-7");
    assert_int_equal(config.channels, 3);
    assert_string_equal(config.plant, "");
    assert_int_equal(run_named(&compare, "static-equal-7")->size_params, 331);
    config = configured(&compare, "heuristic-7");
    assert_string_equal(config.policy, "heuristic");
    config = configured(&compare, "halving-7");
    assert_string_equal(config.policy, "halving");
    assert_false(is_ready(&compare, "static-final-8")); /* seeds do not mix */
    esper_compare_fini(&compare);
    compare = compare_of("none,random", "flops = 12345\n", 1);
    check_real(configured(&compare, "none-1").flops, 12345.0);
    check_real(configured(&compare, "random-1").flops, 12345.0);
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* A length in epochs is that of all lines, whatever they cost; a search, which knows no epochs, spends what they cost the host. */
static void epochs_are_those_of_all(void **state)
{
    esper_compare compare =
        compare_of("none,random,heuristic,halving,static-final,static-equal", "length = epochs\n", 1);
    static const char *const lines[] = {"none-1", "random-1", "heuristic-1", "static-final-1", "static-equal-1"};

    (void)state;
    end_run(&compare, "none-1", 40.0, 300.0, 188, "");
    end_run(&compare, "heuristic-1", 50.0, 500.0, 331, "r0c0:norm:add");
    for (int i = 0; i < 5; i++) {
        esper_config config = configured(&compare, lines[i]);

        assert_int_equal(config.length, ESPER_CONFIG_LENGTH_EPOCHS);
        assert_int_equal(config.epochs, 3);
    }
    assert_int_equal(configured(&compare, "halving-1").length, ESPER_CONFIG_LENGTH_FLOPS);
    check_real(configured(&compare, "halving-1").flops, host_budget());
    /* a gain is held against the host of as many epochs */
    assert_true(isfinite(esper_compare_return(&compare, run_named(&compare, "heuristic-1"))));
    esper_compare_fini(&compare);
}

/* Nothing was kept: static-final is the host, and is not trained a second time. */
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

/* ------------------------------------------------------------------------------------------------ learned policies */

/* A policy at birth for the small network of the tests; three slots are of another one. `note`: what its training noted of its
 * settings; NULL = nothing. */
static void make_policy_noted(const char *path, const char *task, int n_slots, esper_config_gates gates,
                              const char *reward, const char *note)
{
    const esper_safetensors_note notes[] = {{ESPER_LEARNED_CONFIG_NOTE, note}};
    const esper_learned_extra extra = {.notes = notes, .n_notes = 1};
    static const char *const ids[] = {"r0c0", "r0c1", "r1c0", "r1c1"};
    esper_learned_identity identity;
    esper_normaliser *norm;
    esper_backend *backend;
    esper_ppo_desc desc;
    esper_pool *pool;
    esper_ppo *ppo;

    esper_learned_identity_init(&identity);
    snprintf(identity.task, sizeof(identity.task), "%s", task);
    snprintf(identity.reward, sizeof(identity.reward), "%s", reward);
    identity.topology = ESPER_TOPOLOGY_CNN;
    identity.max_epochs = 3;
    identity.gates = gates;
    identity.width = identity.hidden = 8;
    check_good(esper_learned_identity_set_slots(&identity, ids, n_slots));
    esper_learned_ppo(&identity, &desc);
    desc.n_envs = 1;
    desc.seed = 5;
    check_good(esper_pool_open(1, &pool));
    check_good(esper_backend_open("auto", pool, &backend));
    check_good(esper_ppo_open(backend, &desc, &ppo));
    check_good(esper_learned_normaliser(0.0, &norm));
    check_good(esper_learned_save(ppo, &identity, norm, note != NULL ? &extra : NULL, path));
    esper_normaliser_close(norm);
    esper_ppo_close(ppo);
    esper_backend_close(backend);
    esper_pool_close(pool);
}

static void make_policy(const char *path, const char *task, int n_slots, esper_config_gates gates, const char *reward)
{
    make_policy_noted(path, task, n_slots, gates, reward, NULL);
}

static const esper_config_gates strict = ESPER_CONFIG_GATES_STRICT, permissive = ESPER_CONFIG_GATES_PERMISSIVE;

/* A line with settings of its own has these and nothing else; static-final is trained like the network that it is made after. */
static void lines_of_their_own(void **state)
{
    esper_compare compare =
        compare_of("none,none:size=3:lr=0.25,heuristic:max_params=900:lr=0.125,static-final", "lr = 0.5\n", 1);
    esper_config config;

    (void)state;
    assert_int_equal(compare.host, 0);
    assert_string_equal(compare.lines[1].name, "none:size=3:lr=0.25");
    config = configured(&compare, "none-1");
    assert_true(config.channels == 2 && config.lr == 0.5);
    config = configured(&compare, "none:size=3:lr=0.25-1");
    assert_true(config.channels == 3 && config.lr == 0.25 && config.flops == compare.flops);
    assert_string_equal(config.policy, "none");
    config = configured(&compare, "heuristic:max_params=900:lr=0.125-1");
    assert_true(config.channels == 2 && config.lr == 0.125 && config.max_params == 900 &&
                config.flops == compare.flops);
    assert_string_equal(config.policy, "heuristic");
    end_run(&compare, "heuristic:max_params=900:lr=0.125-1", 70.0, compare.flops, 270, "");
    config =
        configured(&compare, "static-final-1"); /* no seed was kept: still another network than none, at its rate */
    assert_true(config.lr == 0.125);
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

static void learned_lines(void **state)
{
    esper_compare compare;
    esper_config config;

    (void)state;
    make_policy("one.safetensors", "synth", 4, permissive, "escrow");
    compare = compare_of("static,random,one.safetensors,static-final", "", 1);
    assert_string_equal(compare.lines[0].name, "none");
    assert_string_equal(compare.lines[2].name, "learned");
    assert_string_equal(compare.lines[2].file, "./one.safetensors"); /* as the run will write it down */
    assert_string_equal(compare.lines[2].reward, "escrow");
    assert_int_equal(compare.against, 2);
    assert_int_equal(compare.grown, 1); /* the first that grows */
    assert_int_equal(compare.config.gates, permissive); /* those that it was trained with */
    assert_true(is_ready(&compare, "learned-1"));
    check_good(esper_compare_configure(&compare, run_named(&compare, "learned-1"), "x", 1, &config));
    assert_string_equal(config.policy, "./one.safetensors");
    assert_int_equal(config.gates, permissive);
    check_good(esper_compare_set_against(&compare, "static"));
    assert_int_equal(compare.against, 0);
    check_good(esper_compare_set_against(&compare, "./one.safetensors"));
    assert_int_equal(compare.against, 2);
    check_fails(esper_compare_set_against(&compare, "heuristic"), ESPER_E_CONFIG,
                "--against: 'heuristic' is not compared|none, random, learned, static-final-random, "
                "static-final-learned");
    check_good(esper_compare_set_against(&compare, "static-final"));
    assert_string_equal(compare.lines[compare.against].name, "static-final-random");
    esper_compare_fini(&compare);
    compare = compare_of("one.safetensors", "gates = strict\n", 1); /* asked for */
    assert_int_equal(compare.config.gates, strict);
    esper_compare_fini(&compare);
}

/* What each learned policy ended with is trained from scratch, too. */
static void finals_of_each_policy(void **state)
{
    static const char *const names[] = {"none", "static-final-heuristic", "static-final-a", "static-final-b",
                                        "a",    "static-equal",           "heuristic",      "b"};
    static const int follows[] = {-1, 6, 4, 7, -1, 6, -1, -1};
    esper_compare compare;

    (void)state;
    check_good(esper_file_make_dirs("a"));
    check_good(esper_file_make_dirs("b"));
    make_policy("a/policy.safetensors", "synth", 4, strict, "escrow");
    make_policy("b/policy.safetensors", "synth", 4, strict, "sparse");
    compare = compare_of("none,static-final,a,static-equal,heuristic,b", "", 1);
    assert_int_equal(compare.n_lines, 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(compare.lines[i].name, names[i]);
        assert_int_equal(compare.lines[i].of, follows[i]);
    }
    assert_true(compare.host == 0 && compare.grown == 6 && compare.against == 4);
    assert_true(compare.runs[0].line == 6 && compare.runs[1].line == 4 && compare.runs[2].line == 7); /* waited for */
    end_run(&compare, "b-1", 50.0, 800.0, 200, "r1c1:norm:add");
    assert_true(is_ready(&compare, "static-final-b-1"));
    assert_string_equal(run_named(&compare, "static-final-b-1")->plant, "r1c1:norm:add");
    assert_false(is_ready(&compare, "static-final-a-1"));
    assert_false(is_ready(&compare, "static-final-heuristic-1"));
    end_run(&compare, "heuristic-1", 50.0, 500.0, 250, "r0c0:norm:add");
    assert_true(is_ready(&compare, "static-final-heuristic-1"));
    assert_string_equal(run_named(&compare, "static-final-heuristic-1")->plant, "r0c0:norm:add");
    esper_compare_fini(&compare);
    compare = compare_of("none,a,static-final", "", 1); /* one is enough */
    assert_string_equal(compare.lines[2].name, "static-final");
    assert_int_equal(compare.lines[2].of, 1);
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* Each file has the name that tells it from the others. */
static void names_of_files(void **state)
{
    static const struct {
        const char *policies, *names[3];
    } cases[] = {{"one.safetensors,a/policy.safetensors", {"one", "policy"}},
                 {"a/policy.safetensors,b/policy.safetensors", {"a", "b"}},
                 {"a/policy.safetensors,c/a/policy.safetensors,one.safetensors", {"policy-1", "policy-2", "one"}},
                 {"random,a/random.safetensors,one.safetensors", {"random", "a", "one"}}};

    (void)state;
    check_good(esper_file_make_dirs("a"));
    check_good(esper_file_make_dirs("b"));
    check_good(esper_file_make_dirs("c/a"));
    make_policy("one.safetensors", "synth", 4, strict, "escrow");
    make_policy("a/policy.safetensors", "synth", 4, strict, "escrow");
    make_policy("b/policy.safetensors", "synth", 4, strict, "sparse");
    make_policy("c/a/policy.safetensors", "synth", 4, strict, "sparse");
    make_policy("a/random.safetensors", "synth", 4, strict, "escrow");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_compare compare = compare_of(cases[i].policies, "", 1);

        for (int line = 0; line < compare.n_lines; line++)
            assert_string_equal(compare.lines[line].name, cases[i].names[line]);
        esper_compare_fini(&compare);
    }
    assert_int_equal(live_blocks(), 0);
}

static void learned_lines_refused(void **state)
{
    const esper_task *task = task_named("synth");
    esper_config config = config_of("synth", SMALL_CNN, "");
    esper_compare compare;

    (void)state;
    make_policy("one.safetensors", "synth", 4, strict, "escrow");
    make_policy("loose.safetensors", "synth", 4, permissive, "escrow");
    check_good(esper_file_write("noise.safetensors", "no policy at all", 16));
    check_fails(esper_compare_init(&compare, task, &config, "none,nowhere/policy.safetensors", 1), ESPER_E_CONFIG,
                "--policies: |nowhere/policy.safetensors");
    check_fails(esper_compare_init(&compare, task, &config, "noise.safetensors", 1), ESPER_E_CONFIG,
                "noise.safetensors");
    check_fails(esper_compare_init(&compare, task, &config, "one.safetensors,loose.safetensors", 1), ESPER_E_CONFIG,
                "strict gates|permissive ones|choose --gates");
    check_fails(esper_compare_init(&compare, task, &config, "one.safetensors,./one.safetensors", 1), ESPER_E_CONFIG,
                "./one.safetensors stands there twice");
    check_fails(esper_compare_init(&compare, task, &config, "none,learned", 1), ESPER_E_CONFIG, "compared by its file");
    assert_int_equal(live_blocks(), 0);
}

/* ------------------------------------------------------------------------------------------------ tables */

/* Three seeds; heuristic has no result on the last, whose numbers must be in no mean. */
static esper_compare example(void)
{
    esper_compare compare = compare_of("none,heuristic", "gates = permissive\nreward = escrow\n", 3);
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
    for (int i = 0; i < 3; i++) { /* 1, 1.5 and 2; 3 and 4 */
        snprintf(name, sizeof(name), "none-%d", i + 1);
        run_named(&compare, name)->result.total_reward = 1.0 + 0.5 * i;
        snprintf(name, sizeof(name), "heuristic-%d", i + 1);
        if (i < 2)
            run_named(&compare, name)->result.total_reward = 3.0 + i;
    }
    return compare;
}

static void summaries_pair_by_seed(void **state)
{
    esper_compare compare = example();
    esper_compare_summary summary;

    (void)state;
    esper_compare_summarise(&compare, 1, &summary);
    assert_int_equal(summary.n_bad, 1);
    check_real(summary.acc.mean, 47.0);
    check_real(summary.gain.mean, 6.0); /* +5 and +7: the third seed has no pair */
    check_real(summary.gain.sd, sqrt(2.0));
    check_real(summary.epochs.mean, 3.0);
    esper_compare_summarise(&compare, 0, &summary);
    check_real(summary.acc.mean, 54.0);
    esper_compare_fini(&compare);
    compare = compare_of("heuristic,static-equal,halving", "", 1);
    end_run(&compare, "heuristic-1", 50.0, 310.0, 270, "");
    end_run(&compare, "static-equal-1", 50.0, 310.0, 270, "");
    end_run(&compare, "halving-1", 50.0, 310.0, 270, "r0c0:norm");
    for (int line = 1; line < 3; line++) {
        char name[ESPER_COMPARE_NAME_CHARS];

        snprintf(name, sizeof(name), "%s-1", compare.lines[line].name);
        run_named(&compare, name)->result.total_reward = 7.0; /* nobody decided: it is no return */
        esper_compare_summarise(&compare, line, &summary);
        assert_true(summary.acc.n == 1 && summary.total_reward.n == 0);
    }
    esper_compare_fini(&compare);
}

/* By gain a run's return is what it has over `none` on its seed, less the price of its size; of `none` it is 0, and where `none` has
 * no good result nobody knows. */
static void returns_by_gain(void **state)
{
    esper_compare compare = compare_of("none,heuristic", "reward_weights = size_price=2\n", 2);
    esper_compare_summary summary;

    (void)state;
    end_run(&compare, "none-1", 40.0, 3e6, 1000, "");
    end_run(&compare, "heuristic-1", 49.0, 3e6, 4000, "");
    break_run(&compare, "none-2", "the governor stopped the run: NaN");
    end_run(&compare, "heuristic-2", 49.0, 3e6, 4000, "");
    run_named(&compare, "heuristic-1")->result.total_reward = (double)NAN; /* its store has none */
    esper_compare_summarise(&compare, 0, &summary);
    assert_true(summary.total_reward.n == 1 && summary.total_reward.mean == 0.0);
    esper_compare_summarise(&compare, 1, &summary);
    assert_int_equal(summary.total_reward.n, 1);
    check_real(summary.total_reward.mean, 9.0 - 2.0 * 2.0);
    run_named(&compare, "heuristic-1")->result.flops_train *= 0.8; /* it stopped earlier: that is no fair comparison */
    esper_compare_summarise(&compare, 1, &summary);
    assert_int_equal(summary.total_reward.n, 0);
    esper_compare_fini(&compare);
    compare = compare_of("heuristic", "", 1);
    end_run(&compare, "heuristic-1", 49.0, 3e6, 4000, "");
    esper_compare_summarise(&compare, 0, &summary);
    assert_int_equal(summary.total_reward.n, 0);
    esper_compare_fini(&compare);
}

/* Who is beaten in both is not on the front; of equals both are. */
static void the_front(void **state)
{
    esper_compare compare = compare_of("none,random,heuristic,static-final", "", 2);
    static const struct {
        const char *line;
        double      acc;
        int64_t     params;
        bool        front;
    } lines[] = {{"none", 40.0, 188, true},
                 {"random", 39.0, 270, false},
                 {"heuristic", 50.0, 270, true},
                 {"static-final", 50.0, 300, false}};
    char name[ESPER_COMPARE_NAME_CHARS];

    (void)state;
    for (int seed = 1; seed <= 2; seed++)
        for (int i = 0; i < 4; i++) {
            int line = (i + 2) % 4; /* heuristic first: static-final waits for it */

            snprintf(name, sizeof(name), "%s-%d", lines[line].line, seed);
            end_run(&compare, name, lines[line].acc + seed, 300.0, lines[line].params,
                    line == 2 ? "r0c0:norm:add" : "");
        }
    for (int line = 0; line < 4; line++)
        if (esper_compare_on_front(&compare, line) != lines[line].front)
            fail_msg("%s is %son the front", lines[line].line, lines[line].front ? "not " : "");
    esper_compare_fini(&compare);
    compare = compare_of("none", "", 1);
    assert_false(esper_compare_on_front(&compare, 0)); /* nothing is known */
    esper_compare_fini(&compare);
}

static int count_words(const esper_page *page, const char *words)
{
    int n = 0;

    for (const char *at = page->text; (at = strstr(at, words)) != NULL; at++)
        n++;
    return n;
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
    esper_page plain = {0}, narrow = {0}, markdown = {0}, json = {0};

    (void)state;
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_PLAIN, 200}, &plain);
    check_says(&plain, "synth: 3 seeds from 1, gates permissive for all\n\nAt equal training FLOPs, ");
    check_says(&plain, " for each, what 3 epochs of the host cost:\n");
    check_says(&plain, "  none            3   54.00  22.54  40.00  80.00          -     -    1.50  0.50   1,188");
    check_says(&plain, "  heuristic  2 of 3   47.00   2.83  45.00  49.00      +6.00  1.41    3.50  0.71   2,000");
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_PLAIN, 79}, &narrow);
    check_says(&narrow, "  line         runs  test %     sd    min    max  over none    sd  return    sd\n");
    check_says(&narrow, "\n\n  line       params  FLOPs/sample  training FLOPs  epochs   time\n");
    check_says(&narrow, "  line  seeds  return              95 %  test %             95 %\n");
    check_says(&narrow, "\n\n  line  params          95 %  return a TFLOP ");
    check_says(&plain, "heuristic less each other line, on the same seeds");
    check_says(&plain, "  none      2  +2.250  -0.927 to +5.427   +6.00  -6.71 to +18.71    +812  +812 to +812 ");
    assert_int_equal(count_words(&plain, "At equal"), 1);
    check_says(&plain, "Runs that are not counted:\n");
    check_says(&plain, "  heuristic-3: broken off: the governor stopped the run: NaN\n");
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_MARKDOWN, 0}, &markdown);
    check_says(&markdown, "|---|---:|");
    check_says(&markdown, "| heuristic | 2 of 3 | 47.00 | 2.83 | 45.00 | 49.00 | +6.00 | 1.41 | 3.50 | 0.71 | 2,000 |");
    check_says(&markdown, "| none | 2 | +2.250 | -0.927 to +5.427 | +6.00 | -6.71 to +18.71 | +812 | +812 to +812 | +");
    check_says(&markdown, "\n- heuristic-3: broken off");
    esper_compare_write_json(&compare, &json);
    check_says(&json, "{\"line\":\"none\",\"seed\":\"3\",\"status\":\"ok\",\"acc_test\":80,");
    check_says(&json, "\"status\":\"broken off\",\"why\":\"the governor stopped the run: NaN\",\"acc_test\":null,");
    check_says(&json, "{\"summary\":\"heuristic\",\"task\":\"synth\",\"gates\":\"permissive\",\"n\":2,"
                      "\"n_bad\":1,\"acc_mean\":47,");
    check_says(&json, "\"return_n\":2,\"return_mean\":3.5,");
    check_says(&json, "\"return_per_tflop_mean\":875000,"); /* 3.5 for 4 MFLOP */
    check_says(&json, "\"on_front\":true}");
    check_says(&json, "{\"pair\":\"heuristic\",\"less\":\"none\",");
    check_says(&json, "\"return_n\":2,\"return\":2.25,");
    check_says(&json, "\"acc_test_n\":2,\"acc_test\":6,\"acc_test_sd\":1.414");
    esper_page_fini(&plain);
    esper_page_fini(&narrow);
    esper_page_fini(&markdown);
    esper_page_fini(&json);
    esper_compare_fini(&compare);
    assert_int_equal(live_blocks(), 0);
}

/* Two policies that learned from the same reward with other weights are told apart; where all have the usual ones, nothing is
 * said. */
static void weights_are_told(void **state)
{
    esper_page plain = {0}, json = {0}, page = {0}, usual = {0}, unpaired = {0};
    esper_compare compare;

    (void)state;
    make_policy_noted("low.safetensors", "synth", 4, strict, "escrow", "reward_weights = rent_weight=0.1,gamma=0.9\n");
    make_policy_noted("plain.safetensors", "synth", 4, strict, "escrow", "reward_weights =\n");
    make_policy("old.safetensors", "synth", 4, strict, "escrow");
    compare = compare_of("low.safetensors,plain.safetensors,old.safetensors", "reward = escrow\n", 1);
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_PLAIN, 200}, &plain);
    check_says(&plain, "trained by the reward escrow (weights: rent_weight=0.1,gamma=0.9) with strict gates");
    check_says(&plain, "trained by the reward escrow (weights: the usual ones) with strict gates");
    check_says(&plain, "trained by the reward escrow (weights: not known) with strict gates");
    esper_compare_write_json(&compare, &json);
    check_says(&json, "\"trained_by\":\"escrow\",\"trained_weights\":\"rent_weight=0.1,gamma=0.9\",");
    check_says(&json, "\"trained_by\":\"escrow\",\"trained_weights\":\"\",");
    check_says(&json, "\"trained_by\":\"escrow\",\"trained_gates\"");
    esper_compare_report(&compare, "here", &page);
    check_says(&page, ">Weights</th>");
    check_says(&json, "\"note\":\"\"}"); /* of `old`, whose training noted nothing, and which had as many epochs */
    check_says(&page, "rent_weight=0.1,gamma=0.9</td>");
    esper_compare_fini(&compare);
    compare = compare_of("plain.safetensors,low.safetensors", "", 1);
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_MARKDOWN, 0}, &unpaired);
    check_says(&unpaired, "| line | runs | test % | sd | min | max | return | sd | params |"); /* over whom? */
    assert_null(strstr(unpaired.text, "over none"));
    esper_compare_fini(&compare);
    compare = compare_of("plain.safetensors,none", "reward = escrow\n", 1);
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_PLAIN, 200}, &usual);
    check_says(&usual, "trained by the reward escrow with strict gates");
    check_says(&usual, "on the same seeds, returns by the reward escrow:\n");
    snprintf(compare.config.reward_weights, sizeof(compare.config.reward_weights), "rent_weight=1.5");
    esper_compare_write(&compare, (esper_compare_style){ESPER_COMPARE_PLAIN, 200}, &usual);
    check_says(&usual, "returns by the reward escrow with rent_weight=1.5:\n");
    esper_compare_report(&compare, "here", &page);
    check_says(&page, "<dt>Reward</dt><dd>escrow with rent_weight=1.5</dd>");
    esper_compare_write_json(&compare, &json);
    check_says(&json, "\"reward\":\"escrow\",\"reward_weights\":\"rent_weight=1.5\",");
    esper_compare_fini(&compare);
    esper_page_fini(&plain);
    esper_page_fini(&json);
    esper_page_fini(&page);
    esper_page_fini(&usual);
    esper_page_fini(&unpaired);
    assert_int_equal(live_blocks(), 0);
}

/* The plot has a mark for each run, a mean with its two spans for each line, and one front. Whether a page is
 * well-formed tells tests/cli/test_compare.sh, where there is xmllint. */
static void the_page(void **state)
{
    esper_compare compare = example(), empty = compare_of("none,heuristic", "", 1);
    esper_page page = {0}, nothing = {0};

    (void)state;
    esper_compare_report(&compare, "here & <there>", &page);
    check_says(&page, "<title>synth: 2 ways compared</title>");
    check_says(&page, "here &amp; &lt;there&gt;");
    check_says(&page, "47.00 % <span class=\"soft\">(21.59 to 72.41)</span>");
    check_says(&page, ", its best rival, by ");
    check_says(&page, "on the same seeds: that is ");
    check_says(&page, "heuristic-3</td>");
    check_says(&page, "<caption>At equal training FLOPs</caption>");
    check_says(&page, "broken off: the governor stopped the run: NaN");
    assert_int_equal(count_words(&page, "<path class=\"run "), 5);
    assert_int_equal(count_words(&page, "<path class=\"mean ") - count_words(&page, "aria-hidden"), 2);
    assert_int_equal(count_words(&page, "<line class=\"span "), 4);
    assert_int_equal(count_words(&page, "<path class=\"front\""), 1);
    assert_int_equal(count_words(&page, "nan"), 0);
    assert_int_equal(count_words(&page, "<script"), 0);
    check_good(esper_file_write("page.html", page.text, page.used));
    esper_compare_report(&empty, "here", &nothing);
    check_says(&nothing, "No run has a result that could be drawn.");
    assert_int_equal(count_words(&nothing, "nan"), 0);
    check_good(esper_file_write("empty.html", nothing.text, nothing.used));
    esper_page_fini(&page);
    esper_page_fini(&nothing);
    esper_compare_fini(&compare);
    esper_compare_fini(&empty);
    assert_int_equal(live_blocks(), 0);
}

/* The name of a mark stays inside the plot, however long it is. */
static void long_names_are_inside(void **state)
{
    esper_page page = {0};
    esper_compare compare;

    (void)state;
    make_policy("one.safetensors", "synth", 4, strict, "escrow");
    compare = compare_of("none,heuristic,one.safetensors,static-final", "", 1);
    end_run(&compare, "heuristic-1", 60.0, 500.0, 2000, "r0c0:norm:add");
    end_run(&compare, "none-1", 50.0, 300.0, 1000, "");
    assert_true(is_ready(&compare, "static-final-heuristic-1"));
    end_run(&compare, "static-final-heuristic-1", 40.0, 300.0, 1860, "");
    esper_compare_report(&compare, "here", &page);
    check_says(&page, " text-anchor=\"end\">static-final-heuristic</text>");
    check_says(&page, " text-anchor=\"start\">none</text>");
    esper_page_fini(&page);
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
        cmocka_unit_test(sizes_come_nearest),
        cmocka_unit_test(spreads),
        cmocka_unit_test(intervals),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(the_grown_line),
        cmocka_unit_test(runs_wait_and_are_chosen),
        cmocka_unit_test(epochs_are_those_of_all),
        cmocka_unit_test(alike_runs_are_run_once),
        cmocka_unit_test(planted_from_the_start),
        cmocka_unit_test(what_needs_a_bad_run_is_not_run),
        cmocka_unit_test(lines_of_their_own),
        cmocka_unit_test(learned_lines),
        cmocka_unit_test(finals_of_each_policy),
        cmocka_unit_test(names_of_files),
        cmocka_unit_test(learned_lines_refused),
        cmocka_unit_test(summaries_pair_by_seed),
        cmocka_unit_test(returns_by_gain),
        cmocka_unit_test(the_front),
        cmocka_unit_test(tables_tell_all),
        cmocka_unit_test(weights_are_told),
        cmocka_unit_test(the_page),
        cmocka_unit_test(long_names_are_inside),
        cmocka_unit_test(results_come_from_the_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
