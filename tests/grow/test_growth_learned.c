/* ctest: timeout=240 cost=30 sealed=also */
/* A network that grows by the file of a learned policy: stopped and resumed, rolled back, replayed without the file; and which
 * files a run refuses. The policy has weights by chance, so it decides something in most epochs. */
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "policy/learned.h"
#include "engine/helpers.h"

#define GROWING                                                                                            \
    "threads = 1\nbatch = 8\nchannels = 4\nblocks = 2\nmax_steps = 2\nlength = epochs\nepochs = 24\n" \
    "snapshot_every = 3\nprogress = none\n"

static const char path[] = "best.safetensors";

/* ------------------------------------------------------------------------------------------------ a policy */

static void make_bold(esper_ppo *ppo, uint64_t seed)
{
    const esper_net *net = esper_policy_net_program(esper_ppo_net(ppo));
    const esper_slab *slab = esper_policy_net_slab(esper_ppo_net(ppo));
    esper_rng rng;

    for (int t = 0; t < net->n_tensors; t++) {
        float *values;

        if (net->tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        values = esper_backend_address(slab->backend, esper_slab_at(slab, ESPER_FAMILY_PARAM, &net->tensors[t]));
        esper_rng_init(&rng, &(esper_rng_key){.seed = seed, .purpose = ESPER_RNG_TEST, .tag = (uint32_t)t});
        for (int64_t i = 0; i < net->tensors[t].count; i++)
            values[i] += 0.5f * esper_rng_normal(&rng);
    }
}

/* Opens the task once to learn which slots it has. */
static esper_learned_identity identity_of_task(const char *task)
{
    esper_config config = config_of(task, GROWING, "");
    const char *ids[ESPER_MAX_SLOTS];
    esper_learned_identity identity;
    esper_network *network;

    check_good(esper_single_open(task_named(task), &config, ESPER_USE_GROW, &network));
    for (int k = 0; k < network->slots.n; k++)
        ids[k] = network->slots.slot[k].id;
    esper_learned_identity_init(&identity);
    check_good(esper_learned_identity_set_slots(&identity, ids, network->slots.n));
    identity.topology = network->engine->host.topology;
    snprintf(identity.task, sizeof(identity.task), "%s", task);
    identity.max_epochs = config.epochs;
    identity.gates = ESPER_CONFIG_GATES_PERMISSIVE;
    identity.width = identity.hidden = 16;
    esper_single_close(network);
    return identity;
}

/* `trained_with`: the settings of its training, as that notes them; NULL = nobody knows them. */
static void save_policy_of(const char *to, const esper_learned_identity *identity, uint64_t seed,
                           const char *trained_with)
{
    const esper_safetensors_note notes[] = {{ESPER_LEARNED_CONFIG_NOTE, trained_with}};
    const esper_learned_extra extra = {.notes = notes, .n_notes = 1};
    esper_normaliser *norm;
    esper_backend *backend;
    esper_ppo_desc desc;
    esper_pool *pool;
    esper_ppo *ppo;

    esper_learned_ppo(identity, &desc);
    desc.n_envs = 1;
    check_good(esper_pool_open(1, &pool));
    check_good(esper_backend_open("auto", pool, &backend));
    check_good(esper_ppo_open(backend, &desc, &ppo));
    check_good(esper_learned_normaliser(0.0, &norm));
    make_bold(ppo, seed);
    check_good(esper_learned_save(ppo, identity, norm, trained_with != NULL ? &extra : NULL, to));
    esper_normaliser_close(norm);
    esper_ppo_close(ppo);
    esper_backend_close(backend);
    esper_pool_close(pool);
}

static void save_policy(const char *to, const esper_learned_identity *identity, uint64_t seed)
{
    save_policy_of(to, identity, seed, NULL);
}

/* ------------------------------------------------------------------------------------------------ runs */

static esper_config grown_config(const char *more, const char *run_dir)
{
    static const esper_config_source by_flag = {.place = ESPER_CONFIG_FLAG};
    esper_config config = config_of("synth", GROWING, "");

    check_good(esper_config_set(&config, "policy", path, &by_flag));
    check_good(esper_config_set(&config, "run_dir", run_dir, &by_flag));
    set_keys(&config, more);
    return config;
}

static esper_status grow(const esper_config *config, const char *resume, int n_steps,
                         const esper_decision_history *history, esper_run_result *result)
{
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {.task = resume == NULL ? task_named("synth") : NULL,
                           .config = config,
                           .resume = resume,
                           .grows = true,
                           .replay = history,
                           .observer = &observer,
                           .stop = &stopping.stop};

    return esper_run_train(&desc, result);
}

static char *read_part(const char *run_dir, const char *name)
{
    char place[ESPER_PATH_CHARS], *text;
    size_t bytes;

    check_good(esper_run_path(run_dir, name, place));
    check_good(esper_file_read(place, 1 << 26, &text, &bytes));
    return text;
}

static void check_says(const char *run_dir, const char *name, const char *words, bool wanted)
{
    char *text = read_part(run_dir, name);

    if ((strstr(text, words) != NULL) != wanted)
        fail_msg("%s/%s %s \"%s\"", run_dir, name, wanted ? "does not say" : "says", words);
    esper_mem_free(text);
}

static int count_ops(const char *run_dir)
{
    char *text = read_part(run_dir, ESPER_RUN_DECISIONS);
    int n = 0;

    for (const char *at = text; (at = strstr(at, "\"op\":\"")) != NULL; at++)
        n += strncmp(at, "\"op\":\"wait\"", 11) != 0;
    esper_mem_free(text);
    return n;
}

/* ------------------------------------------------------------------------------------------------ the same run */

/* Policies drawn by chance, until one acts in the run: which of them does hangs on the last bits of the kernels. */
static void grow_unbroken(const char *more, const char *dir, esper_run_result *unbroken)
{
    esper_learned_identity identity = identity_of_task("synth");
    char drawn[64];
    int n_ops = 0;

    for (unsigned seed = 21; n_ops < 3; seed++) {
        esper_config config;

        assert_in_range(seed, 21, 60);
        save_policy(path, &identity, seed);
        snprintf(drawn, sizeof(drawn), "%s-%u", dir, seed);
        config = grown_config(more, drawn);
        check_good(grow(&config, NULL, -1, NULL, unbroken));
        assert_false(unbroken->stopped);
        n_ops = count_ops(drawn);
    }
    assert_int_equal(rename(drawn, dir), 0);
}

/* Unbroken; stopped and resumed at several steps, under a sanitizer at the first of them; replayed when the file has gone. */
static void check_one_run(const char *more, const int *stops, const char *name)
{
    esper_run_result unbroken, result;
    esper_decision_history history;
    esper_config config;
    char dir[40], log[ESPER_PATH_CHARS];

    snprintf(dir, sizeof(dir), "%s-unbroken", name);
    grow_unbroken(more, dir, &unbroken);
    check_says(dir, ESPER_RUN_CONFIG, "gates = permissive", true);
    check_says(dir, ESPER_RUN_EVENTS, "\"policy\":\"learned ", true);
    check_says(dir, ESPER_RUN_EVENTS, " best.safetensors\"", true);
    for (int i = 0; stops[i] > 0 && i < effort(3, 1); i++) {
        snprintf(dir, sizeof(dir), "%s-%d", name, stops[i]);
        config = grown_config(more, dir);
        check_good(grow(&config, NULL, stops[i], NULL, &result));
        assert_true(result.stopped);
        esper_config_init(&config);
        check_good(grow(&config, dir, -1, NULL, &result));
        if (result.weight_hash != unbroken.weight_hash)
            fail_msg("%s: weights %016llx, unbroken %016llx", dir, (unsigned long long)result.weight_hash,
                     (unsigned long long)unbroken.weight_hash);
        assert_string_equal(result.kept, unbroken.kept);
    }
    assert_int_equal(unlink(path), 0);
    snprintf(dir, sizeof(dir), "%s-unbroken", name);
    check_good(esper_run_path(dir, ESPER_RUN_DECISIONS, log));
    check_good(esper_decision_history_read(log, UINT64_MAX, &history));
    config = grown_config(more, "none");
    set_keys(&config, "gates = permissive\n");
    check_good(grow(&config, NULL, -1, &history, &result));
    assert_int_equal(result.weight_hash, unbroken.weight_hash);
    assert_int_equal(result.n_replayed, history.n);
    esper_decision_history_free(&history);
}

static void resumed_is_unbroken(void **state)
{
    uint64_t live = live_blocks();

    (void)state;
    check_one_run("", (int[]){9, 25, 2, 0}, "plain");
    assert_int_equal(live_blocks(), live);
}

/* A fault in the middle of epoch 8: stopped before it, between the way back and the decision of that epoch, and after. */
static void rolled_back_is_unbroken(void **state)
{
    (void)state;
    check_one_run("inject = 15:host:param:nan\n", (int[]){16, 20, 0}, "drill");
    check_says("drill-unbroken", ESPER_RUN_EVENTS, "\"event\":\"rolled_back\"", true);
}

/* ------------------------------------------------------------------------------------------------ gates and length */

static void takes_the_gates_of_the_file(void **state)
{
    esper_learned_identity identity = identity_of_task("synth");
    esper_run_result result;
    esper_config config;

    (void)state;
    save_policy(path, &identity, 21);
    config = grown_config("epochs = 2\ngates = strict\n", "asked");
    check_good(grow(&config, NULL, -1, NULL, &result));
    check_says("asked", ESPER_RUN_CONFIG, "gates = strict", true);
    check_says(
        "asked", ESPER_RUN_EVENTS,
        "the policy was trained with permissive gates, and here they are strict, as asked for; with episodes of 24 "
        "epochs, and here 2 are for growing",
        true);
    check_says("plain-unbroken", ESPER_RUN_EVENTS, "the policy was trained with", false);
    check_says("asked", ESPER_RUN_CONFIG, "policy = ./best.safetensors",
               true); /* a path, also when the file has gone */
}

/* A host of another width, other data, other rules: the policy decides, and the run says what it has not met. */
static void tells_of_other_settings(void **state)
{
    esper_learned_identity identity = identity_of_task("synth");
    esper_config config = config_of("synth", GROWING, "");
    char record[ESPER_CONFIG_RECORD_CHARS];
    esper_run_result result;

    (void)state;
    identity.max_epochs = config.epochs = 2;
    esper_config_write(&config, record);
    save_policy_of(path, &identity, 21, record);
    config = grown_config("epochs = 2\nthreads = 2\nreward = sparse\nseed = 5\n", "alike");
    check_good(grow(&config, NULL, -1, NULL, &result));
    check_says("alike", ESPER_RUN_EVENTS, "the policy was trained with", false);
    config = grown_config("epochs = 2\nchannels = 8\nlr = 0.25\n", "wider");
    check_good(grow(&config, NULL, -1, NULL, &result));
    check_says("wider", ESPER_RUN_EVENTS,
               "\"text\":\"the policy was trained with lr = 0.05, here 0.25; with channels = 4, here 8\"", true);
    config =
        grown_config("epochs = 2\ngates = strict\nbatch = 4\nmax_steps = 3\nlr = 0.25\nembargo = 2\nmax_seeds = 1\n"
                     "channels = 8\n",
                     "all");
    check_good(grow(&config, NULL, -1, NULL, &result));
    check_says("all", ESPER_RUN_EVENTS,
               "the policy was trained with permissive gates, and here they are strict, as asked for; with batch = 8, "
               "here 4; with max_steps = 2, here 3; with lr = 0.05, here 0.25; with embargo = ",
               true);
    check_says("all", ESPER_RUN_EVENTS, "; with 2 more settings that are others here\"", true);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void check_refused(const char *more, esper_status wanted, const char *words)
{
    esper_config config = grown_config(more, "refused");
    esper_run_result result;

    check_fails(grow(&config, NULL, -1, NULL, &result), wanted, words);
    assert_int_equal(access("refused", F_OK), -1); /* before there is a directory */
}

static void refuses_files(void **state)
{
    esper_learned_identity identity = identity_of_task("synth");
    char *bytes;
    size_t n;

    (void)state;
    (void)unlink(path);
    check_refused("", ESPER_E_NOTFOUND, "best.safetensors");
    check_refused("policy = learned\n", ESPER_E_CONFIG, "give the policy's file, or the directory");
    check_refused("policy = hueristic\n", ESPER_E_CONFIG, "did you mean 'heuristic'?");
    save_policy(path, &identity, 21);
    check_refused("decisions = plan.txt\n", ESPER_E_CONFIG,
                  "only policy = scripted reads a decision file|learned decides");
    check_refused("policy_cmd = cat\n", ESPER_E_CONFIG, "one of them decides");
    check_good(esper_file_read(path, 1 << 24, &bytes, &n));
    check_good(esper_file_write(path, bytes, n / 2));
    check_refused("", ESPER_E_FORMAT, "best.safetensors");
    bytes[n - 9] ^= 4;
    check_good(esper_file_write(path, bytes, n));
    check_refused("", ESPER_E_FORMAT, "best.safetensors: damaged");
    esper_mem_free(bytes);
    identity.topology = ESPER_TOPOLOGY_MLP;
    save_policy(path, &identity, 21);
    check_refused("", ESPER_E_CONFIG, "best.safetensors was trained for hosts of the kind mlp, this one is a cnn");
}

/* Learned on the four slots of one host, it decides about the six of another, of a task that it has not met. */
static void decides_for_another_host(void **state)
{
    esper_learned_identity identity = identity_of_task("synth");
    esper_config config = grown_config("blocks = 3\n", "abroad");
    esper_run_result result;

    (void)state;
    snprintf(identity.task, sizeof(identity.task), "fashion_fast");
    save_policy(path, &identity, 21);
    check_good(grow(&config, NULL, -1, NULL, &result));
    assert_true(count_ops("abroad") > 0);
}

/* A policy may be moved, but not exchanged, between the halves of a run. */
static void resumes_by_the_same_policy(void **state)
{
    esper_learned_identity identity = identity_of_task("synth");
    esper_run_result unbroken, result;
    esper_config config;

    (void)state;
    save_policy(path, &identity, 21);
    config = grown_config("epochs = 6\n", "whole");
    check_good(grow(&config, NULL, -1, NULL, &unbroken));
    config = grown_config("epochs = 6\n", "halves");
    check_good(grow(&config, NULL, 5, NULL, &result));
    save_policy(path, &identity, 22);
    esper_config_init(&config);
    check_fails(grow(&config, "halves", -1, NULL, &result), ESPER_E_CONFIG,
                "is another policy than the one that has decided");
    check_good(esper_file_write("elsewhere", "", 0));
    save_policy("elsewhere", &identity, 21);
    assert_int_equal(unlink(path), 0);
    check_fails(grow(&config, "halves", -1, NULL, &result), ESPER_E_NOTFOUND, "best.safetensors");
    set_keys(&config, "policy = ./elsewhere\n");
    check_good(grow(&config, "halves", -1, NULL, &result));
    assert_int_equal(result.weight_hash, unbroken.weight_hash);
    set_keys(&config, "policy = heuristic\nepochs = 8\n");
    check_fails(grow(&config, "halves", -1, NULL, &result), ESPER_E_CONFIG,
                "policy is ./elsewhere in the run being resumed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_is_unbroken),
        cmocka_unit_test(rolled_back_is_unbroken),
        cmocka_unit_test(takes_the_gates_of_the_file),
        cmocka_unit_test(tells_of_other_settings),
        cmocka_unit_test(refuses_files),
        cmocka_unit_test(decides_for_another_host),
        cmocka_unit_test(resumes_by_the_same_policy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
