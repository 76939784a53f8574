/* ctest: timeout=240 cost=10 */
/* Learning over many tasks: which one an episode is of, hosts, data and budgets drawn by chance, lists with a name, episodes of different lengths and numbers of slots in
 * one round, the same bytes however it is played, and lists that cannot be. */
#include <math.h>
#include <signal.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "engine/helpers.h"
#include "run/curriculum.h"
#include "run/learn.h"
#include "run/single.h"
#include "run/task_lists.h"
#include "support/effort.h"

#define LEARNING                                                                                                       \
    "threads = 0\nbatch = 8\nchannels = 2\nblocks = 2\nmax_steps = 2\nepochs = 3\nrounds = 4\nenvs = 4\n"             \
    "policy_width = 8\nppo_chunk = 3\nppo_batch = 2\nppo_epochs = 2\n"

#define TASKS                                                                                       \
    "tasks = synth blocks=3 channels=2 batch=8 epochs=2, synth_table batch=8 epochs=4 drawn=2, "     \
    "synth_table batch=8 epochs=4 drawn=4 draws=all\n"

static esper_config configured(const char *more)
{
    esper_config config;

    esper_config_init(&config);
    check_good(esper_task_configure(task_named("synth"), ESPER_CONFIG_IN_LEARN, &config));
    set_keys(&config, LEARNING);
    set_keys(&config, more);
    return config;
}

/* ------------------------------------------------------------------------------------------------ the list */

typedef struct house {
    esper_dataset   *data;
    esper_engine    *engine;
    esper_curriculum curriculum;
} house;

static esper_status open_house(house *h, const char *more)
{
    esper_config config = configured(more);
    esper_dataset_desc data = esper_task_data(task_named("synth"), &config);

    *h = (house){.data = NULL};
    check_good(esper_dataset_open(&data, &h->data));
    check_good(esper_single_engine(task_named("synth"), &config, ESPER_USE_GROW, h->data, 1, &h->engine));
    return esper_curriculum_init(&h->curriculum, task_named("synth"), h->engine);
}

static void close_house(house *h)
{
    esper_curriculum_fini(&h->curriculum);
    esper_engine_close(h->engine);
    esper_dataset_close(h->data);
}

static void reads_a_list(void **state)
{
    house h;

    (void)state;
    check_good(open_house(&h,
                          "tasks = synth blocks=3 lr=0.5, synth_text host='embed 8 | layer 2 | slot | norm | linear'\n"
                          "reward_weights = size_price=1,gamma=0.9\n"));
    assert_int_equal(h.curriculum.n, 3);
    assert_ptr_equal(h.curriculum.entry[0].engine, h.engine);
    assert_int_equal(h.curriculum.entry[1].config->blocks, 3);
    assert_true(h.curriculum.entry[1].config->lr == 0.5);
    assert_int_equal(h.curriculum.entry[1].config->batch,
                     128); /* what the run's own task is trained with is not shared */
    assert_int_equal(h.curriculum.entry[1].config->epochs, 3);  /* but these are, unless the entry says */
    assert_int_equal(h.curriculum.entry[1].config->max_steps, 2);
    assert_string_equal(h.curriculum.entry[2].config->reward_weights, "size_price=1,gamma=0.9");
    assert_int_equal(h.curriculum.entry[2].config->gates, ESPER_CONFIG_GATES_PERMISSIVE);
    assert_int_equal(h.curriculum.entry[2].engine->host.topology, ESPER_TOPOLOGY_TRANSFORMER);
    assert_ptr_equal(h.curriculum.entry[2].engine->backend, h.engine->backend);
    assert_int_equal(h.curriculum.entry[2].engine->plain.n_boundaries, 1);
    assert_true(esper_curriculum_hash_data(&h.curriculum) != esper_dataset_hash(h.data));
    close_house(&h);
    check_good(open_house(&h, ""));
    assert_int_equal(h.curriculum.n, 1);
    assert_int_equal(esper_curriculum_hash_data(&h.curriculum), esper_dataset_hash(h.data));
    assert_int_equal(esper_curriculum_draw(&h.curriculum, 17, 0.9), 0);
    close_house(&h);
    assert_int_equal(live_blocks(), 0);
}

static void refuses_lists(void **state)
{
    static const char *const cases[][2] = {
        {"tasks = snyth\n", "tasks: "},
        {"tasks = synth,,synth\n", "nothing between two commas"},
        {"tasks = synth,\n", "nothing between two commas"},
        {"tasks = synth blocks\n", "'blocks' is no setting, such as channels=8"},
        {"tasks = synth bloks=3\n", "tasks: "},
        {"tasks = synth blocks=many\n", "tasks: "},
        {"tasks = synth seed=3\n", "seed is one for all tasks"},
        {"tasks = synth reward=sparse\n", "reward is one for all tasks"},
        {"tasks = synth drawn=0\n", "drawn=0: from 1 to 64"},
        {"tasks = fsat\n",
         "tasks: 'fsat' is no task, no list of tasks, and no folder or file here; did you mean 'fast'?"},
        {"tasks = snyth\n", "did you mean 'synth'?"},
        {"tasks = synth draws=all\n", "tasks: synth: draws says what is drawn, and drawn=N how often: give both"},
        {"tasks = synth drawn=2 draws=hosts\n",
         "draws=hosts: expected host, data and budget, with + between them, or all"},
        {"tasks = synth drawn=2 draws=host+\n", "draws=host+: expected host"},
        {"tasks = synth drawn=2 draws=data data_seed=3\n", "tasks: synth: the data is drawn: leave out data_seed"},
        {"tasks = synth drawn=2 draws=all channels=3\n", "channels has no effect: its host is given as text"},
        {"tasks = synth_text classes=3\n", "tasks: synth_text: classes has no effect: its host is a transformer"},
        {"tasks = synth drawn=64\n", "there can be 64"},
        {"tasks = synth epochs=1\n", "tasks: synth: an episode of 1 epochs"},
        {"tasks = synth host='conv 8 | linear'\n", "tasks: synth: "},
        {"tasks = table data=absent.csv\n", "tasks: "},
        {"tasks = synth layers=3\n", "tasks: synth: layers has no effect: "},
        {"tasks = synth data=there\n", "tasks: synth: data has no effect: its data is synthetic"},
        {"tasks = synth channels=8 drawn=2\n", "tasks: synth: channels has no effect: its host is given as text"},
        {"tasks = synth host='conv 8 | mean | linear' drawn=2\n", "drawn=2 draws the hosts: leave out host"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        house h;
        esper_status status = open_house(&h, cases[i][0]);

        if (status == ESPER_OK || strstr(esper_last_error(), cases[i][1]) == NULL)
            fail_msg("%s: %s (%s), expected \"%s\"", cases[i][0], esper_status_name(status), esper_last_error(),
                     cases[i][1]);
        close_house(&h);
    }
    assert_int_equal(live_blocks(), 0);
}

/* What a host says of an entry is as in a command: a name, a file, slots for new channels. */
static void reads_hosts(void **state)
{
    static const char texts[2][64] = {"conv 4 | slot | mean | linear\n", "conv 6 | slot | mean | linear\n"};
    uint64_t hash[2];
    house h;

    (void)state;
    check_good(open_house(&h, "tasks = synth host=cnn, synth widen=true blocks=3\n"));
    assert_int_equal(h.curriculum.n, 3);
    assert_non_null(strstr(h.curriculum.entry[1].config->host, "conv 8 | pool | conv 16"));
    assert_non_null(esper_net_find_boundary(&h.curriculum.entry[2].engine->plain, "wide0"));
    assert_null(esper_net_find_boundary(&h.engine->plain, "wide0"));
    close_house(&h);
    for (int i = 0; i < 2; i++) { /* one that has changed is told by the hash */
        check_good(esper_file_write("host.txt", texts[i], strlen(texts[i])));
        check_good(open_house(&h, "tasks = synth host=host.txt\n"));
        assert_int_equal(h.curriculum.entry[1].engine->plain.n_boundaries, 1);
        hash[i] = esper_curriculum_hash_data(&h.curriculum);
        close_house(&h);
    }
    assert_true(hash[0] != hash[1]);
    assert_int_equal(live_blocks(), 0);
}

/* Every host that is drawn is one: it can be built on its data, and has one slot at least. They differ. */
static void draws_hosts(void **state)
{
    char last[ESPER_CONFIG_TEXT_CHARS] = "", text[ESPER_CONFIG_TEXT_CHARS];
    int n_other = 0;
    house h;

    (void)state;
    check_good(open_house(&h, "tasks = synth drawn=25, synth_text drawn=15, synth_table drawn=15\n"));
    assert_int_equal(h.curriculum.n, 56);
    for (int i = 1; i < h.curriculum.n; i++) {
        const esper_curriculum_entry *entry = &h.curriculum.entry[i];

        assert_in_range(entry->engine->plain.n_boundaries, 1, 4);
        assert_int_equal(entry->shares, i != 26 && i != 41); /* the first has the run's data */
    }
    close_house(&h);
    for (int i = 0; i < 50; i++) {
        esper_curriculum_host(ESPER_TOPOLOGY_CNN, 7, i, text);
        n_other += strcmp(text, last) != 0;
        memcpy(last, text, sizeof(last));
    }
    assert_true(n_other > 40);
    assert_int_equal(live_blocks(), 0);
}

/* What an entry drew, as it would be written. */
static void tell(const house *h, int entry, char text[2 * ESPER_CONFIG_TEXT_CHARS])
{
    esper_curriculum_tell(&h->curriculum.entry[entry], text, 2 * ESPER_CONFIG_TEXT_CHARS);
}

/* Within bounds, with data of its own where it is another, and the same whenever it is drawn again, whatever stands behind it. */
static void draws_data_and_budgets(void **state)
{
    static const char list[] = "max_steps = 4\ngate_epochs = 1\n"
                               "tasks = synth epochs=8 drawn=12 draws=data+budget, synth_table drawn=12 draws=data, "
                               "synth_text context=8 drawn=6 draws=data, synth epochs=8 drawn=12 draws=budget%s\n";
    char lines[512], told[2][2 * ESPER_CONFIG_TEXT_CHARS], last[2 * ESPER_CONFIG_TEXT_CHARS] = "";
    int n_other = 0, n_fewer = 0, n_limited = 0, n_budgets = 0, n_lengths[16] = {0};
    house h, again;

    (void)state;
    snprintf(lines, sizeof(lines), list, "");
    check_good(open_house(&h, lines));
    assert_int_equal(h.curriculum.n, 43);
    for (int i = 1; i < h.curriculum.n; i++) {
        const esper_curriculum_entry *entry = &h.curriculum.entry[i];
        const esper_dataset_info *data = esper_dataset_info_get(entry->data);
        bool budget = i <= 12 || i > 30;

        assert_in_range(entry->config->epochs, budget ? 5 : 3, budget ? 12 : 3); /* 5: what a seed takes to be kept */
        assert_in_range(entry->config->max_steps, budget ? 2 : 4, budget ? 6 : 4);
        assert_int_equal(entry->engine->config.epochs, entry->config->epochs);
        assert_int_equal(entry->shares, i > 30);
        assert_int_equal(entry->data == h.data, i > 30);
        assert_string_equal(entry->config->host, "");
        if (i <= 24)
            assert_in_range(data->classes, 4, 10);
        n_fewer += data->classes > 0 && data->classes < 10;
        n_limited += entry->config->train_limit > 0;
        assert_true(entry->config->train_limit == 0 ||
                    data->count[ESPER_SPLIT_TRAIN] == (uint32_t)entry->config->train_limit);
        assert_in_range(data->count[ESPER_SPLIT_TRAIN], 4 * entry->config->batch, 20000);
        n_lengths[entry->config->epochs]++;
        tell(&h, i, told[0]);
        n_other += strcmp(told[0], last) != 0;
        memcpy(last, told[0], sizeof(last));
    }
    assert_in_range(n_fewer, 12, 23);
    assert_in_range(n_limited, 10, 29);
    assert_true(n_other > 38);
    for (int epochs = 5; epochs <= 12; epochs++)
        n_budgets += n_lengths[epochs] > 0;
    assert_in_range(n_budgets, 4, 5);
    assert_int_equal(h.curriculum.most_epochs, 12);
    snprintf(lines, sizeof(lines), list, ", synth");
    check_good(open_house(&again, lines));
    for (int i = 1; i < h.curriculum.n; i++) {
        tell(&h, i, told[0]);
        tell(&again, i, told[1]);
        assert_string_equal(told[0], told[1]);
        assert_int_equal(esper_dataset_hash(h.curriculum.entry[i].data),
                         esper_dataset_hash(again.curriculum.entry[i].data));
    }
    close_house(&again);
    snprintf(lines, sizeof(lines), list, "\nseed = 2");
    check_good(open_house(&again, lines));
    n_other = 0;
    for (int i = 1; i < h.curriculum.n; i++) {
        tell(&h, i, told[0]);
        tell(&again, i, told[1]);
        n_other += strcmp(told[0], told[1]) != 0;
    }
    assert_true(n_other > 30);
    assert_true(esper_curriculum_hash_data(&h.curriculum) != esper_curriculum_hash_data(&again.curriculum));
    close_house(&again);
    close_house(&h);
    assert_int_equal(live_blocks(), 0);
}

/* What was drawn is settings: given by hand they make the same entry. */
static void draws_settings(void **state)
{
    char told[2 * ESPER_CONFIG_TEXT_CHARS], lines[2 * ESPER_CONFIG_TEXT_CHARS + 16];
    house h, same;

    (void)state;
    check_good(open_house(&h, "tasks = synth_table drawn=3 draws=all\n"));
    for (int i = 1; i < h.curriculum.n; i++) {
        const esper_curriculum_entry *entry = &h.curriculum.entry[i], *made;

        tell(&h, i, told);
        assert_non_null(strstr(told, "synth_table epochs="));
        assert_non_null(strstr(told, " host='"));
        snprintf(lines, sizeof(lines), "tasks = %s\n", told);
        check_good(open_house(&same, lines));
        made = &same.curriculum.entry[1];
        assert_string_equal(made->config->host, entry->config->host);
        assert_int_equal(made->config->epochs, entry->config->epochs);
        assert_int_equal(esper_dataset_hash(made->data), esper_dataset_hash(entry->data));
        close_house(&same);
    }
    close_house(&h);
}

/* ------------------------------------------------------------------------------------------------ lists with a name */

static void check_expands(const char *tasks, const char *expected)
{
    char text[ESPER_CONFIG_TEXT_CHARS];

    snprintf(text, sizeof(text), "%s", tasks);
    check_good(esper_task_lists_expand(text));
    assert_string_equal(text, expected);
    check_good(esper_task_lists_expand(text)); /* there is nothing left to expand */
    assert_string_equal(text, expected);
}

static void refuses_to_expand(const char *tasks, const char *words)
{
    char text[ESPER_CONFIG_TEXT_CHARS];

    snprintf(text, sizeof(text), "%s", tasks);
    check_fails(esper_task_lists_expand(text), ESPER_E_CONFIG, words);
}

static void expands_lists(void **state)
{
    static const char file[] = "# mine\n\nsynth drawn=2 # two of them\r\n  synth_table host='linear 8 | # | linear'\n"
                               "fast\n\tsynth, synth_text";
    const esper_tasks_named *list = esper_task_lists();
    char expected[ESPER_CONFIG_TEXT_CHARS], many[1100];

    (void)state;
    check_expands("", "");
    check_expands("synth,synth_table  drawn=2 ,  synth", "synth,synth_table  drawn=2 ,  synth");
    check_expands("fast", list[0].text);
    snprintf(expected, sizeof(expected), "synth, %s, synth_table", list[0].text);
    check_expands("synth, fast , synth_table", expected);
    check_expands("fast drawn=2", "fast drawn=2"); /* that is no list's name, and refused later */
    check_expands("synth host='a, fast, b'", "synth host='a, fast, b'");
    check_good(esper_file_write("mine.txt", file, strlen(file)));
    snprintf(expected, sizeof(expected),
             "synth drawn=2, synth_table host='linear 8 | # | linear', %s, synth, synth_text", list[0].text);
    check_expands("@mine.txt", expected);
    refuses_to_expand("@absent.txt", "tasks: |absent.txt");
    check_good(esper_file_write("empty.txt", "# nothing\n", 10));
    refuses_to_expand("@empty.txt", "empty.txt: there is no entry in it");
    check_good(esper_file_write("other.txt", "@mine.txt\n", 10));
    refuses_to_expand("@other.txt", "a file names no other file");
    check_good(esper_file_write("binary.txt", "synth\0", 7));
    refuses_to_expand("@binary.txt", "that is no text");
    memset(many, 'a', sizeof(many));
    check_good(esper_file_write("long.txt", many, sizeof(many)));
    refuses_to_expand("@long.txt", "the list takes more than 1023 characters");
    assert_int_equal(live_blocks(), 0);
}

/* Every list that comes with the program can be learned on, where its data is. */
static void lists_can_be_opened(void **state)
{
    esper_dataset_desc fashion = esper_dataset_desc_default(ESPER_SOURCE_FASHION);
    bool has_fashion = esper_dataset_measure(&fashion, &(esper_dataset_info){.name = NULL}) == ESPER_OK;

    (void)state;
    for (const esper_tasks_named *list = esper_task_lists(); list->name != NULL; list++) {
        char lines[ESPER_CONFIG_TEXT_CHARS + 16];
        house h;

        if (strstr(list->text, "fashion") != NULL && !has_fashion)
            continue;
        snprintf(lines, sizeof(lines), "tasks = %s\nepochs = 24\n", list->text);
        check_good(open_house(&h, lines));
        assert_in_range(h.curriculum.n, 10, 20);
        assert_in_range(h.curriculum.most_epochs, 24, 36);
        close_house(&h);
    }
    assert_int_equal(live_blocks(), 0);
}

static void draws_tasks(void **state)
{
    enum { EPISODES = 6000 };
    int n[4] = {0};
    house h;

    (void)state;
    check_good(open_house(&h, "tasks = synth, synth, synth\ncurriculum = ladder\n"));
    for (uint64_t e = 0; e < 200; e++) {
        assert_int_equal(esper_curriculum_draw(&h.curriculum, e, 0.0), 0);
        assert_in_range(esper_curriculum_draw(&h.curriculum, e, 0.2), 0, 1);
        assert_in_range(esper_curriculum_draw(&h.curriculum, e, 0.49), 0, 2);
    }
    for (uint64_t e = 0; e < EPISODES; e++) {
        int which = esper_curriculum_draw(&h.curriculum, e, 0.5);

        assert_in_range(which, 0, 3);
        assert_int_equal(which, esper_curriculum_draw(&h.curriculum, e, 1.0));
        n[which]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(n[i], EPISODES / 4 - 150, EPISODES / 4 + 150); /* four deviations */
    close_house(&h);
}

/* ------------------------------------------------------------------------------------------------ a run */

typedef struct watcher {
    int                   steps_left; /* < 0: it is not stopped */
    volatile sig_atomic_t stop;
    uint64_t              n_steps;
} watcher;

static void on_step(void *context, const esper_learn_view *view)
{
    watcher *self = context;

    (void)view;
    if (--self->steps_left == 0)
        self->stop = 1;
}

static void on_round(void *context, const esper_learn_view *view, const esper_learn_round *round)
{
    (void)view;
    assert_true(isfinite(round->total_reward) && round->report.update.performed);
    ((watcher *)context)->n_steps += (uint64_t)round->report.n_steps;
}

static esper_learn_result learn(const char *dir, const char *more, const char *resume, int threads, watcher *watch)
{
    esper_learn_observer observer = {.context = watch, .step = on_step, .round = on_round};
    esper_log log = {.level = ESPER_LOG_ERROR, .stream = stderr};
    esper_config config = configured(more), none;
    esper_learn_desc desc = {.task = resume == NULL ? task_named("synth") : NULL,
                             .config = resume == NULL ? &config : &none,
                             .resume = resume,
                             .observer = &observer,
                             .log = &log,
                             .stop = &watch->stop,
                             .threads = threads};
    esper_learn_result result;

    esper_config_init(&none);
    snprintf(config.run_dir, sizeof(config.run_dir), "%s", dir);
    check_good(esper_learn_run(&desc, &result));
    return result;
}

static void check_same_file(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;

    check_good(esper_file_read(a, 1 << 26, &x, &n));
    check_good(esper_file_read(b, 1 << 26, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    esper_mem_free(x);
    esper_mem_free(y);
}

/* Hosts of four and six slots and rows of tables, episodes of two to six decisions: as many are made as those that were drawn
 * have. */
static void learns_on_all(void **state)
{
    watcher watch = {.steps_left = -1};
    const esper_learned_identity *identity;
    esper_learn_result result;
    esper_learned_file *file;
    uint64_t n_steps = 0;
    house h;

    (void)state;
    result = learn("whole", TASKS, NULL, 1, &watch);
    assert_int_equal(result.n_episodes, 16);
    check_good(open_house(&h, TASKS));
    for (uint64_t e = 0; e < 16; e++)
        n_steps += (uint64_t)h.curriculum.entry[esper_curriculum_draw(&h.curriculum, e, (double)(e / 4) / 4)]
                       .engine->config.epochs;
    assert_in_range(h.curriculum.most_epochs, 5, 6);
    assert_int_equal(watch.n_steps, n_steps);
    check_good(esper_learned_open(result.policy, &file));
    identity = esper_learned_identity_of(file);
    assert_int_equal(identity->n_slots, 6);
    assert_int_equal(identity->max_epochs, h.curriculum.most_epochs);
    assert_int_equal(identity->topologies, 1u << ESPER_TOPOLOGY_CNN | 1u << ESPER_TOPOLOGY_MLP);
    esper_learned_close(file);
    close_house(&h);
}

static void same_bytes(void **state)
{
    (void)state;
    for (int threads = 2; threads <= effort(3, 2); threads++) {
        watcher watch = {.steps_left = -1};
        char dir[32], path[64];

        snprintf(dir, sizeof(dir), "threads-%d", threads);
        (void)learn(dir, TASKS, NULL, threads, &watch);
        snprintf(path, sizeof(path), "%s/policy.safetensors", dir);
        check_same_file("whole/policy.safetensors", path);
    }
}

static void goes_on(void **state)
{
    watcher stopped = {.steps_left = 7}, rest = {.steps_left = -1};
    esper_learn_result result;

    (void)state;
    result = learn("broken", TASKS, NULL, 1, &stopped);
    assert_true(result.stopped && result.rounds < 4);
    result = learn("", "", "broken", 2, &rest);
    assert_int_equal(result.rounds, 4);
    check_same_file("whole/policy.safetensors", "broken/policy.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_list),
        cmocka_unit_test(refuses_lists),
        cmocka_unit_test(reads_hosts),
        cmocka_unit_test(draws_hosts),
        cmocka_unit_test(draws_data_and_budgets),
        cmocka_unit_test(draws_settings),
        cmocka_unit_test(expands_lists),
        cmocka_unit_test(lists_can_be_opened),
        cmocka_unit_test(draws_tasks),
        cmocka_unit_test(learns_on_all),
        cmocka_unit_test(same_bytes),
        cmocka_unit_test(goes_on),
    };

    return cmocka_run_group_tests_name("run/learn_tasks", tests, NULL, NULL);
}
