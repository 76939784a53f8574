/* ctest: timeout=240 cost=15 */
/* The job of `esper learn`: the same bytes on any number of threads, in any directory, broken off or not; drills that are counted
 * and told; and what is refused. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "fault/alloc.h"
#include "run/learn.h"
#include "telemetry/store.h"

/* Rounds of two episodes of three decisions. threads 0: as the job says. */
#define LEARNING                                                                                                       \
    "threads = 0\nbatch = 8\nchannels = 2\nblocks = 2\nmax_steps = 2\nepochs = 3\nrounds = 4\nenvs = 2\n"             \
    "policy_width = 8\nppo_chunk = 3\nppo_batch = 2\nppo_epochs = 2\n"

static esper_config learning(const char *dir, const char *more)
{
    esper_config config;

    esper_config_init(&config);
    check_good(esper_task_configure(task_named("synth"), ESPER_CONFIG_IN_LEARN, &config));
    set_keys(&config, LEARNING);
    snprintf(config.run_dir, sizeof(config.run_dir), "%s", dir);
    set_keys(&config, more);
    return config;
}

/* Somebody who watches, stops the run, copies its file, or fills the disk. */
typedef struct watcher {
    int                   steps_left;  /* < 0: it is not stopped */
    uint32_t              copy_after;  /* a round whose file is copied to "copy.safetensors"; 0 = none */
    uint32_t              full_in;     /* a round in which the disk is full, and those after it; 0 = none */
    uint32_t              room_in;     /* a round in which it has room again; 0 = none */
    uint32_t              block_after; /* a round behind which no file can take the place of the policy's; 0 = none */
    volatile sig_atomic_t stop;
    int                   n_begun, n_steps, n_rounds;
    double                part;        /* of a round, at the last step */
    rlim_t                limit;       /* of before */
} watcher;

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void copy_file(const char *from, const char *to)
{
    char *bytes;
    size_t n;

    check_good(esper_file_read(from, 1 << 26, &bytes, &n));
    check_good(esper_file_write(to, bytes, n));
    esper_mem_free(bytes);
}

static void on_begin(void *context, const esper_learn_view *view)
{
    watcher *self = context;

    self->n_begun++;
    assert_true(view->round >= 1);
    assert_true(view->params_policy > 0 && view->params_host > 0);
}

static void on_step(void *context, const esper_learn_view *view)
{
    watcher *self = context;

    self->n_steps++;
    self->part = view->part;
    if (--self->steps_left == 0)
        self->stop = 1;
    if (self->full_in > 0 && view->round == self->full_in)
        set_limit(1000);
    if (self->room_in > 0 && view->round == self->room_in)
        set_limit(self->limit);
}

static void on_round(void *context, const esper_learn_view *view, const esper_learn_round *round)
{
    watcher *self = context;
    char path[ESPER_PATH_CHARS];

    self->n_rounds++;
    assert_true(isfinite(round->total_reward) && round->steps_per_s > 0.0);
    check_good(esper_run_path(view->run_dir, ESPER_RUN_POLICY, path));
    if (round->round == self->copy_after)
        copy_file(path, "copy.safetensors");
    if (round->round == self->block_after) {
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
    }
}

typedef struct job {
    int         threads;
    watcher     watch;
    char       *said; /* warnings; the caller frees it */
    esper_learner_fault (*drill)(uint32_t round);
    const char *task; /* NULL: synth for a new run, none for one that goes on */
} job;

static esper_status learn_with(job *j, const esper_config *config, const char *resume, esper_learn_result *result)
{
    esper_learn_observer observer = {.context = &j->watch, .begin = on_begin, .step = on_step, .round = on_round};
    size_t n;
    FILE *stream = open_memstream(&j->said, &n);
    esper_log log = {.level = ESPER_LOG_WARN, .stream = stream};
    esper_learn_desc desc = {.task = j->task != NULL  ? task_named(j->task)
                                     : resume == NULL ? task_named("synth")
                                                      : NULL,
                             .config = config,
                             .resume = resume,
                             .observer = &observer,
                             .log = &log,
                             .stop = &j->watch.stop,
                             .threads = j->threads > 0 ? j->threads : 1,
                             .drill = j->drill};
    esper_status status;

    assert_non_null(stream);
    status = esper_learn_run(&desc, result);
    fclose(stream);
    return status;
}

/* Episodes here are too short for a seed to be kept: that is said first, and nothing else. */
static void check_calm(const char *said)
{
    if (strncmp(said, "esper: warn: no seed can be kept in ", 36) != 0 || strchr(said, '\n') != strrchr(said, '\n'))
        fail_msg("warnings: \"%s\"", said);
}

/* From beginning to end, with nobody in the way and nothing to warn of. */
static esper_learn_result learn_whole(const char *dir, const char *more)
{
    esper_config config = learning(dir, more);
    job j = {.watch = {.steps_left = -1}};
    esper_learn_result result;

    check_good(learn_with(&j, &config, NULL, &result));
    check_calm(j.said);
    free(j.said);
    return result;
}

static esper_status go_on(const char *run, const char *more, esper_learn_result *result)
{
    job j = {.watch = {.steps_left = -1}};
    esper_config config;
    esper_status status;

    esper_config_init(&config);
    set_keys(&config, more);
    status = learn_with(&j, &config, run, result);
    free(j.said);
    return status;
}

static void check_same_file(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;

    check_good(esper_file_read(a, 1 << 26, &x, &n));
    check_good(esper_file_read(b, 1 << 26, &y, &m));
    if (n != m)
        fail_msg("%s has %zu bytes, %s has %zu", a, n, b, m);
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            fail_msg("%s and %s differ at byte %zu: ...%.60s", a, b, i, x + (i > 30 ? i - 30 : 0));
    esper_mem_free(x);
    esper_mem_free(y);
}

static bool is_there(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

/* ------------------------------------------------------------------------------------------------ a run */

static void learns(void **state)
{
    esper_config config = learning("plain", "");
    job j = {.watch = {.steps_left = -1}};
    esper_learn_result result;
    esper_learned_file *file;

    (void)state;
    check_good(learn_with(&j, &config, NULL, &result));
    check_calm(j.said);
    assert_int_equal(result.rounds, 4);
    assert_int_equal(result.rounds_asked, 4);
    assert_int_equal(result.n_episodes, 8);
    assert_int_equal(result.n_steps, 24);
    assert_int_equal(result.last.round, 4);
    assert_false(result.stopped || result.settled);
    assert_int_equal(result.n_skipped + result.n_bad_rewards + result.n_bad_observations, 0);
    assert_string_equal(result.run_dir, "plain");
    assert_string_equal(result.policy, "plain/policy.safetensors");
    assert_string_equal(result.task, "synth");
    assert_true(result.times.hosts > 0.0 && result.times.validation > 0.0 && result.times.policy > 0.0 &&
                result.times.bookkeeping > 0.0 && result.times.waiting >= 0.0);
    assert_int_equal(j.watch.n_begun, 1);
    assert_int_equal(j.watch.n_steps, 12);
    assert_int_equal(j.watch.n_rounds, 4);
    assert_true(j.watch.part == 1.0);
    assert_true(is_there("plain/config.ini") && is_there("plain/store.sqlite"));
    check_good(esper_learned_open(result.policy, &file));
    assert_string_equal(esper_learned_identity_of(file)->task, "synth");
    assert_int_equal(esper_learned_identity_of(file)->max_epochs, 3);
    assert_int_equal(esper_learned_identity_of(file)->gates, ESPER_CONFIG_GATES_PERMISSIVE);
    esper_learned_close(file);
    free(j.said);
}

typedef struct germinations {
    int n, n_accepted; /* rows of the table of decisions */
    int n_paid;        /* by rewards */
    int n_seeds;       /* that episodes counted */
} germinations;

/* What was planted is in the store: a row for each germination that was paid for, with slot and blueprint. */
static germinations count_germinations(const char *dir)
{
    const esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    char path[ESPER_PATH_CHARS], line[96];
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store_record record;
    germinations count = {0};
    bool found = true;

    check_good(esper_run_path(dir, ESPER_RUN_STORE, path));
    check_good(esper_store_reader_open(path, &reader));
    check_good(esper_store_read(reader, ESPER_STORE_REWARD, &filter, &cursor));
    while (esper_store_next(cursor, &record, &found) == ESPER_OK && found)
        count.n_paid += strcmp(record.reward.op, "germinate") == 0;
    esper_store_cursor_close(cursor);
    check_good(esper_store_read(reader, ESPER_STORE_EPISODE, &filter, &cursor));
    while (esper_store_next(cursor, &record, &found) == ESPER_OK && found)
        count.n_seeds += (int)record.episode.n_germinated;
    esper_store_cursor_close(cursor);
    check_good(esper_store_read(reader, ESPER_STORE_DECISION, &filter, &cursor));
    while (esper_store_next(cursor, &record, &found) == ESPER_OK && found) {
        int64_t number = record.decision.number; /* rounds of two episodes of three */

        snprintf(line, sizeof(line), "{\"round\":%d,\"env\":%d,\"epoch\":%d}", (int)(number / 6) + 1,
                 (int)(number / 3 % 2), (int)(number % 3) + 1);
        assert_string_equal(record.decision.line, line);
        assert_int_equal(record.epoch, number / 6 + 1);
        assert_string_equal(record.decision.op, "germinate");
        assert_true(record.decision.blueprint[0] != '\0' && record.decision.slot[0] == 'r');
        count.n++;
        count.n_accepted += record.decision.accepted != 0;
    }
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
    return count;
}

static void germinations_are_kept(void **state)
{
    esper_learn_result result;
    esper_config config = learning("broken-off", "rounds = 8\n");
    job j = {.watch = {.steps_left = 8}};
    germinations whole, broken;

    (void)state;
    (void)learn_whole("planted", "rounds = 8\n");
    whole = count_germinations("planted");
    assert_in_range(whole.n, 1, 48);
    assert_int_equal(whole.n_accepted, whole.n);
    assert_int_equal(whole.n_paid, whole.n);
    assert_int_equal(whole.n_seeds, whole.n);
    check_good(learn_with(&j, &config, NULL, &result));
    assert_true(result.stopped);
    free(j.said);
    check_good(go_on("broken-off", "", &result));
    broken = count_germinations("broken-off");
    assert_memory_equal(&broken, &whole, sizeof(whole));
}

/* A choice that the masks leave open may still be refused: here, because it would be too large. */
static void refused_germinations_are_told(void **state)
{
    germinations count;

    (void)state;
    (void)learn_whole("too-large", "rounds = 8\nmax_params = 230\n");
    count = count_germinations("too-large");
    assert_int_equal(count.n_paid, count.n);
    assert_int_equal(count.n_accepted, count.n_seeds);
    assert_true(count.n_accepted < count.n);
}

static void same_bytes_on_any_threads(void **state)
{
    (void)state;
    learn_whole("threads-1", "envs = 5\n");
    for (int threads = 2; threads <= 4; threads += 2) {
        char dir[32], path[64];
        esper_config config;
        esper_learn_result result;
        job j = {.threads = threads, .watch = {.steps_left = -1}};

        snprintf(dir, sizeof(dir), "threads-%d", threads);
        snprintf(path, sizeof(path), "%s/policy.safetensors", dir);
        config = learning(dir, "envs = 5\n");
        check_good(learn_with(&j, &config, NULL, &result));
        check_same_file("threads-1/policy.safetensors", path);
        free(j.said);
    }
    learn_whole("seed-2", "envs = 5\nseed = 2\n");
    assert_true(is_there("seed-2/policy.safetensors"));
}

/* ------------------------------------------------------------------------------------------------ broken off */

static void goes_on_bit_for_bit(void **state)
{
    static const int steps[] = {1, 4, 8, 9, 11}; /* in the first round, in others, and at their ends */
    esper_learn_result result;
    char dir[32], path[64];

    (void)state;
    learn_whole("unbroken", "");
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        esper_config config;
        job j = {.watch = {.steps_left = steps[i]}};

        snprintf(dir, sizeof(dir), "broken-%d", steps[i]);
        snprintf(path, sizeof(path), "%s/policy.safetensors", dir);
        config = learning(dir, "");
        check_good(learn_with(&j, &config, NULL, &result));
        assert_true(result.stopped);
        assert_int_equal(result.rounds, steps[i] / 3);
        assert_int_equal(j.watch.n_rounds, steps[i] / 3);
        free(j.said);
        check_good(go_on(dir, "", &result));
        assert_false(result.stopped);
        assert_int_equal(result.rounds, 4);
        assert_int_equal(result.n_episodes, 8);
        check_same_file("unbroken/policy.safetensors", path);
    }
}

/* In another directory, from a file by its name, and from somebody's copy of it; nothing that was there is touched. */
static void goes_on_elsewhere(void **state)
{
    esper_config config = learning("here", "");
    job j = {.watch = {.steps_left = 7}};
    esper_learn_result result;

    (void)state;
    check_good(learn_with(&j, &config, NULL, &result));
    free(j.said);
    copy_file("here/policy.safetensors", "mine.safetensors");
    check_good(go_on("here", "run_dir = there\n", &result));
    check_same_file("unbroken/policy.safetensors", "there/policy.safetensors");
    check_same_file("here/policy.safetensors", "mine.safetensors");
    check_good(go_on("mine.safetensors", "", &result));
    assert_true(strncmp(result.run_dir, "runs/learn-synth-", 17) == 0);
    check_same_file("unbroken/policy.safetensors", result.policy);
    check_same_file("here/policy.safetensors", "mine.safetensors");
    assert_false(is_there("config.ini") || is_there("policy.safetensors"));
    check_good(go_on("here/policy.safetensors", "", &result));
    assert_string_equal(result.run_dir, "here");
    check_same_file("unbroken/policy.safetensors", "here/policy.safetensors");
    check_fails(go_on("last", "", &result), ESPER_E_STATE, "runs/learn-synth-|has had 4 rounds|--rounds N");
}

/* A directory by another name: the store goes on with the run that it knows. */
static void goes_on_in_its_row_of_the_store(void **state)
{
    esper_learn_result result;
    esper_store_reader *reader;
    esper_store_run run;
    bool found;

    (void)state;
    learn_whole("called", "rounds = 1\n");
    assert_int_equal(rename("called", "renamed"), 0);
    check_good(go_on("renamed", "rounds = 2\n", &result));
    check_good(esper_store_reader_open("renamed/" ESPER_RUN_STORE, &reader));
    check_good(esper_store_find_run(reader, ESPER_STORE_NO_INT, NULL, &run, &found));
    assert_true(found);
    assert_int_equal(run.id, 1);
    assert_int_equal(run.n_resumed, 1);
    assert_string_equal(run.name, "called");
    esper_store_reader_close(reader);
}

/* Broken off before its first round is over, a new directory can still be resumed. */
static void a_new_directory_is_whole(void **state)
{
    job j = {.watch = {.steps_left = 1}};
    esper_learn_result result;
    esper_config config;

    (void)state;
    copy_file("copied/policy.safetensors", "second.safetensors");
    esper_config_init(&config);
    set_keys(&config, "run_dir = anew\nrounds = 6\n");
    check_good(learn_with(&j, &config, "second.safetensors", &result));
    assert_true(result.stopped);
    free(j.said);
    check_good(go_on("anew", "", &result));
    assert_int_equal(result.rounds, 6);
}

static int set_up_copied(void **state)
{
    (void)state;
    learn_whole("copied", "");
    return 0;
}

/* ------------------------------------------------------------------------------------------------ drills */

static esper_learner_fault drill_gradient(uint32_t round)
{
    return round == 2 ? ESPER_LEARNER_FAULT_GRADIENT : ESPER_LEARNER_NO_FAULT;
}

static esper_learner_fault drill_observation(uint32_t round)
{
    return round == 2 ? ESPER_LEARNER_FAULT_OBSERVATION : ESPER_LEARNER_NO_FAULT;
}

static esper_learner_fault drill_reward(uint32_t round)
{
    return round == 2 ? ESPER_LEARNER_FAULT_REWARD : ESPER_LEARNER_NO_FAULT;
}

static esper_learner_fault drill_thrice(uint32_t round)
{
    return round == 1 || round == 5 ? ESPER_LEARNER_NO_FAULT : ESPER_LEARNER_FAULT_GRADIENT;
}

static void drills_are_counted_and_told(void **state)
{
    static const struct {
        esper_learner_fault (*drill)(uint32_t round);
        const char *dir, *words;
        uint64_t    least_skipped, n_rewards;
    } cases[] = {
        {drill_gradient, "drill-g", "round 2: not finite: gradient|the whole update", 2, 0},
        {drill_observation, "drill-o", "round 2: not finite: observation|1 minibatch skipped", 1, 0},
        {drill_reward, "drill-r", "round 2: 3 rewards and 0 readings not finite, left out", 0, 3},
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_config config = learning(cases[i].dir, "");
        job j = {.watch = {.steps_left = -1}, .drill = cases[i].drill};
        char words[128], *rest = words, *word;
        esper_learn_result result;

        check_good(learn_with(&j, &config, NULL, &result));
        assert_int_equal(result.rounds, 4);
        assert_true(result.n_skipped >= cases[i].least_skipped);
        assert_true((result.n_skipped > 0) == (cases[i].least_skipped > 0));
        assert_int_equal(result.n_bad_rewards, cases[i].n_rewards);
        snprintf(words, sizeof(words), "%s", cases[i].words);
        while ((word = strsep(&rest, "|")) != NULL)
            if (strstr(j.said, word) == NULL)
                fail_msg("\"%s\" does not say \"%s\"", j.said, word);
        assert_null(strstr(j.said, "round 3"));
        free(j.said);
    }
}

/* The weights of a file, as far as acting goes by them. */
static void check_same_weights(const char *a, const char *b)
{
    esper_learned_file *x, *y;
    int n_weights = 0;

    check_good(esper_learned_open(a, &x));
    check_good(esper_learned_open(b, &y));
    for (size_t i = 0; i < esper_safetensors_count(esper_learned_content(x)); i++) {
        const esper_safetensors_tensor *tensor = esper_safetensors_at(esper_learned_content(x), i), *other;

        if (strncmp(tensor->name, "param/", 6) != 0)
            continue;
        n_weights++;
        other = esper_safetensors_find(esper_learned_content(y), tensor->name);
        assert_non_null(other);
        assert_int_equal(tensor->n_bytes, other->n_bytes);
        if (memcmp(tensor->data, other->data, (size_t)tensor->n_bytes) != 0)
            fail_msg("%s differs", tensor->name);
    }
    assert_true(n_weights > 10);
    esper_learned_close(x);
    esper_learned_close(y);
}

static void third_failure_stops_with_a_file(void **state)
{
    esper_config config = learning("thrice", "rounds = 9\n");
    job j = {.watch = {.steps_left = -1, .copy_after = 1}, .drill = drill_thrice};
    esper_learn_result result;

    (void)state;
    check_fails(learn_with(&j, &config, NULL, &result), ESPER_E_STATE,
                "3 updates in a row failed|gradient|is saved|thrice/policy.safetensors");
    assert_int_equal(j.watch.n_rounds, 4);
    free(j.said);
    check_same_weights("copy.safetensors", "thrice/policy.safetensors");
    check_good(go_on("thrice", "rounds = 6\n", &result)); /* it loads, acts, and learns again */
    assert_int_equal(result.rounds, 6);
    assert_int_equal(result.n_skipped, 0);
}

/* ------------------------------------------------------------------------------------------------ ends */

static void settles(void **state)
{
    esper_learn_result result = learn_whole("settled", "rounds = 60\npatience = 2\nenvs = 1\nmax_steps = 1\n");

    (void)state;
    assert_true(result.settled);
    assert_in_range(result.rounds, 12, 59); /* ten rounds make a mean, and two more do not raise it */
    assert_true(result.last.recent <= result.last.best);
}

static void rounds_that_were_had(void **state)
{
    esper_learn_result result;

    (void)state;
    check_fails(
        go_on("copied", "", &result), ESPER_E_STATE,
        "copied/policy.safetensors has had 4 rounds, and 4 were asked for|--rounds N|esper grow synth --policy");
    check_fails(go_on("copied", "rounds = 3\n", &result), ESPER_E_STATE, "has had 4 rounds, and 3");
}

/* ------------------------------------------------------------------------------------------------ what is refused */

/* A copy of a file with one piece of its text replaced by another of the same length. */
static void forge(const char *from, const char *was, const char *is, const char *to)
{
    size_t n, found = 0;
    char *bytes;

    assert_int_equal(strlen(was), strlen(is));
    check_good(esper_file_read(from, 1 << 26, &bytes, &n));
    for (size_t i = 0; i + strlen(was) <= n; i++)
        if (memcmp(bytes + i, was, strlen(was)) == 0) {
            memcpy(bytes + i, is, strlen(is));
            found++;
        }
    if (found != 1)
        fail_msg("%s is %zu times in %s", was, found, from);
    check_good(esper_file_write(to, bytes, n));
    esper_mem_free(bytes);
}

static void says_what_differs(void **state)
{
    job j = {.watch = {.steps_left = -1}, .task = "synth_text"};
    esper_learn_result result;
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_fails(learn_with(&j, &config, "copied", &result), ESPER_E_CONFIG,
                "copied/policy.safetensors learned on synth, not on synth_text");
    free(j.said);
    check_fails(go_on("copied", "blocks = 3\nrounds = 9\n", &result), ESPER_E_CONFIG,
                "blocks is 2 in the run being resumed and cannot become 3");
    check_fails(go_on("copied", "reward = sparse\nrounds = 9\n", &result), ESPER_E_CONFIG,
                "reward is |cannot become sparse");
    check_fails(go_on("copied", "envs = 3\nrounds = 9\n", &result), ESPER_E_CONFIG, "envs is 2");
    check_fails(go_on("copied", "policy_width = 16\nrounds = 9\n", &result), ESPER_E_CONFIG, "policy_width is 8");
    forge("copied/policy.safetensors", "\"policy_version\":\"2\"", "\"policy_version\":\"7\"", "forged.safetensors");
    check_fails(go_on("forged.safetensors", "rounds = 9\n", &result), ESPER_E_FORMAT,
                "forged.safetensors: a policy of version 7, this program reads version 2");
    forge("copied/policy.safetensors", "\"learn_round\":\"4\"", "\"learn_round\":\"3\"", "forged.safetensors");
    check_fails(go_on("forged.safetensors", "rounds = 9\n", &result), ESPER_E_FORMAT, "forged.safetensors: damaged");
    check_fails(go_on("absent", "", &result), ESPER_E_NOTFOUND, "'absent' is no run");
    assert_int_equal(mkdir("empty", 0777), 0);
    check_fails(go_on("empty", "", &result), ESPER_E_NOTFOUND, "empty holds no run");
    assert_false(is_there("runs/forged"));
}

static esper_status learn_in(const char *dir, const char *more)
{
    esper_config config = learning(dir, more);
    job j = {.watch = {.steps_left = -1}};
    esper_learn_result result;
    esper_status status = learn_with(&j, &config, NULL, &result);

    free(j.said);
    return status;
}

static void refuses_settings(void **state)
{
    (void)state;
    check_fails(learn_in("refused", "epochs = 1\n"), ESPER_E_CONFIG, "1 epochs leaves nothing to decide");
    check_fails(learn_in("refused", "policy_width = 12\n"), ESPER_E_CONFIG, "policy_width is 12");
    check_fails(learn_in("refused", "reward = sprase\n"), ESPER_E_CONFIG, "reward: no mode is called 'sprase'|sparse");
    check_fails(learn_in("refused", "reward_weights = rent_wieght=0.2\n"), ESPER_E_CONFIG,
                "reward_weights: |rent_wieght|rent_weight");
    check_fails(learn_in("refused", "reward_weights = rent_weight\n"), ESPER_E_CONFIG, "is no name=value");
    check_fails(learn_in("refused", "guard = false\n"), ESPER_E_CONFIG, "guard");
    assert_false(is_there("refused"));
    check_fails(learn_in("copied", ""), ESPER_E_CONFIG, "copied already holds a run|--resume copied");
}

/* ------------------------------------------------------------------------------------------------ faults around it */

static void a_full_disk_leaves_the_old_file(void **state)
{
    esper_config config = learning("full", "");
    job j = {.watch = {.steps_left = -1, .copy_after = 2, .full_in = 3}};
    esper_learn_result result;
    struct rlimit limit;
    esper_status status;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    status = learn_with(&j, &config, NULL, &result);
    set_limit(limit.rlim_cur);
    check_good(status);
    assert_non_null(strstr(result.unwritten, "full/policy.safetensors"));
    assert_non_null(strstr(result.unwritten, "--resume full goes on from round 2"));
    assert_non_null(strstr(j.said, "The learning goes on"));
    free(j.said);
    check_same_file("copy.safetensors", "full/policy.safetensors");
    nftw("full", find_draft, 16, FTW_PHYS);
    check_good(go_on("full", "", &result));
    check_same_file("unbroken/policy.safetensors", "full/policy.safetensors");
}

static void a_disk_that_has_room_again_is_written(void **state)
{
    esper_config config = learning("room", "");
    job j = {.watch = {.steps_left = -1, .full_in = 2, .room_in = 3}};
    esper_learn_result result;
    struct rlimit limit;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    j.watch.limit = limit.rlim_cur;
    check_good(learn_with(&j, &config, NULL, &result));
    set_limit(limit.rlim_cur);
    assert_string_equal(result.unwritten, "");
    assert_non_null(strstr(j.said, "The learning goes on"));
    check_same_file("unbroken/policy.safetensors", "room/policy.safetensors");
    free(j.said);
}

/* As whoever looks at its records is to know, too: it is not done. */
static void a_policy_that_is_not_saved_is_told_in_the_store(void **state)
{
    esper_config config = learning("blocked", "");
    job j = {.watch = {.steps_left = -1, .block_after = 3}};
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_learn_result result;
    esper_store_run run;
    bool found;

    (void)state;
    check_good(learn_with(&j, &config, NULL, &result));
    assert_non_null(strstr(result.unwritten, "blocked/policy.safetensors"));
    free(j.said);
    check_good(esper_store_reader_open("blocked/" ESPER_RUN_STORE, &reader));
    check_good(esper_store_read_runs(reader, &cursor));
    check_good(esper_store_next_run(cursor, &run, &found));
    assert_true(found);
    assert_string_equal(run.status, esper_status_name(ESPER_E_IO));
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
}

static uint64_t count_allocations(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_allocs;
}

/* A store that cannot be opened is done without, so some of them succeed. */
static void leaves_nothing_without_memory(void **state)
{
    static const char tiny[] = "rounds = 1\nepochs = 2\nenvs = 1\nmax_steps = 1\n";
    uint64_t live = live_blocks(), before = count_allocations(), n, n_failed = 0;

    (void)state;
    check_good(learn_in("spare", tiny));
    n = count_allocations() - before;
    assert_int_equal(live_blocks(), live);
    for (uint64_t nth = 1; nth <= n; nth += 29) {
        esper_status status;

        nftw("spare", remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        esper_mem_fail_at(nth);
        status = learn_in("spare", tiny);
        esper_mem_fail_at(0);
        if (status != ESPER_OK && status != ESPER_E_NOMEM)
            fail_msg("allocation %" PRIu64 ": %s (%s)", nth, esper_status_name(status), esper_last_error());
        if (live_blocks() != live)
            fail_msg("allocation %" PRIu64 ": %" PRIu64 " blocks left behind", nth, live_blocks() - live);
        n_failed += status != ESPER_OK;
        if (is_there("spare/policy.safetensors"))
            nftw("spare", find_draft, 16, FTW_PHYS);
    }
    print_message("%" PRIu64 " of %" PRIu64 " allocations failed the run\n", n_failed, n);
    assert_true(n_failed > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns),
        cmocka_unit_test(germinations_are_kept),
        cmocka_unit_test(refused_germinations_are_told),
        cmocka_unit_test(same_bytes_on_any_threads),
        cmocka_unit_test(goes_on_bit_for_bit),
        cmocka_unit_test(goes_on_elsewhere),
        cmocka_unit_test(goes_on_in_its_row_of_the_store),
        cmocka_unit_test(a_new_directory_is_whole),
        cmocka_unit_test(drills_are_counted_and_told),
        cmocka_unit_test(third_failure_stops_with_a_file),
        cmocka_unit_test(settles),
        cmocka_unit_test(rounds_that_were_had),
        cmocka_unit_test(says_what_differs),
        cmocka_unit_test(refuses_settings),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(a_disk_that_has_room_again_is_written),
        cmocka_unit_test(a_policy_that_is_not_saved_is_told_in_the_store),
        cmocka_unit_test(leaves_nothing_without_memory),
    };

    return cmocka_run_group_tests(tests, set_up_copied, NULL);
}
