/* ctest: timeout=120 cost=4 labels=tsan */
/* The index of all runs: what is taken from stores of every kind and age, that it is a cache and no more, what can be asked, and
 * that runs which write meanwhile neither wait nor lose anything. */
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "run/index.h"
#include "support/effort.h"
#include "telemetry/helpers.h"

/* ------------------------------------------------------------------------------------------------ runs to look at */

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static esper_store *begin_run(const char *root, const char *name, const char *task)
{
    char path[256];
    esper_store *store;
    esper_store_run run = esper_store_run_of(name);
    int64_t id;

    snprintf(path, sizeof(path), "%s/%s", root, name);
    check_good(esper_file_make_dirs(path));
    snprintf(path, sizeof(path), "%s/%s/store.sqlite", root, name);
    remove_store(path);
    store = open_store(path, NULL);
    ESPER_STORE_SET(run.task, task);
    ESPER_STORE_SET(run.policy, "trials");
    run.rng_seed = 18446744073709551615u;
    run.params_host = 1000;
    check_good(esper_store_begin(store, &run, NULL, &id));
    return store;
}

static void push_epoch(esper_store *store, int64_t epoch, double acc_valid)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_EPOCH, epoch, epoch * 10);

    row.epoch_done.acc_valid = acc_valid;
    row.epoch_done.params = 1000 + epoch;
    esper_store_push(store, &row);
}

static void push_trial(esper_store *store, int64_t number, const char *slot, const char *blueprint, const char *line)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_DECISION, 2, 20);

    row.decision.number = number;
    row.decision.accepted = 1;
    ESPER_STORE_SET(row.decision.source, "trial");
    ESPER_STORE_SET(row.decision.slot, slot);
    ESPER_STORE_SET(row.decision.blueprint, blueprint);
    ESPER_STORE_SET(row.decision.line, line);
    esper_store_push(store, &row);
}

static void push_seed(esper_store *store, int64_t seed, const char *slot, const char *blueprint, const char *end)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_GERMINATION, 2, 20);

    row.germination.seed = seed;
    ESPER_STORE_SET(row.germination.slot, slot);
    ESPER_STORE_SET(row.germination.blueprint, blueprint);
    esper_store_push(store, &row);
    row = esper_store_record_of(ESPER_STORE_STAGE, 3, 30);
    row.stage.seed = seed;
    ESPER_STORE_SET(row.stage.slot, slot);
    ESPER_STORE_SET(row.stage.to_stage, end);
    esper_store_push(store, &row);
}

static void end_run(esper_store *store, esper_status status, double acc_test)
{
    esper_store_run run = esper_store_run_of("");

    ESPER_STORE_SET(run.status, esper_status_name(status));
    run.acc_test = acc_test;
    run.params = 5000;
    run.epochs = 3;
    check_good(esper_store_end(store, &run));
    esper_store_close(store);
}

/* A run that ended, with two forks on trial, of which one joined. */
static void make_run(const char *root, const char *name, const char *task, double acc_test, double gain)
{
    esper_store *store = begin_run(root, name, task);
    char line[128];

    push_epoch(store, 1, 50.0);
    push_epoch(store, 2, 70.0);
    snprintf(line, sizeof(line), "{\"gain\":%g,\"error\":0.01,\"flops\":1e6}", gain);
    push_trial(store, 0, "r0c1", "conv_light", line);
    push_trial(store, 1, "r0c0", "norm", "{\"gain\":-0.5,\"error\":0.01,\"flops\":1e6}");
    push_trial(store, 2, "r0c0", "attention", "{\"gain\":9"); /* cut short: no JSON */
    push_seed(store, 1, "r0c1", "conv_light", "fossilized");
    push_seed(store, 2, "r0c0", "norm", "pruned");
    end_run(store, ESPER_OK, acc_test);
}

/* ------------------------------------------------------------------------------------------------ asking */

static esper_index *open_index(const char *root, esper_index_news *news)
{
    esper_index *index = NULL;

    check_good(esper_index_open(root, &index));
    check_good(esper_index_refresh(index, news));
    return index;
}

/* The rows as JSON, to be freed. */
static json_t *rows_of(esper_index *index, const char *filter, const char *sort, bool reverse)
{
    esper_page page = {0};
    json_t *rows;

    check_good(
        esper_index_json(index, &(esper_index_query){.filter = filter, .sort = sort, .reverse = reverse}, &page));
    rows = json_loads(page.text, 0, NULL);
    if (rows == NULL)
        fail_msg("no JSON: %s", page.text);
    esper_page_fini(&page);
    return rows;
}

static const char *text_of(const json_t *rows, size_t row, const char *name)
{
    const char *text = json_string_value(json_object_get(json_array_get(rows, row), name));

    return text != NULL ? text : "(null)";
}

static double number_of(const json_t *rows, size_t row, const char *name)
{
    return json_number_value(json_object_get(json_array_get(rows, row), name));
}

static size_t count(esper_index *index, const char *filter)
{
    json_t *rows = rows_of(index, filter, NULL, false);
    size_t n = json_array_size(rows);

    json_decref(rows);
    return n;
}

/* ------------------------------------------------------------------------------------------------ what is taken */

static void rows_of_every_kind(void **state)
{
    static const char *const events =
        "{\"v\":1,\"event\":\"run_started\",\"seq\":0,\"time\":17.5,\"step\":0,\"task\":\"mnist\",\"seed\":\"7\","
        "\"params\":99,\"kernels\":\"cpu/avx2\",\"commit\":\"abc\"}\n"
        "{\"event\":\"epoch_ended\",\"epoch\":1,\"acc_valid\":81.5,\"loss_valid\":\"nan\"}\n"
        "no JSON\n{\"event\":\"run_ended\",\"status\":\"ESPER_OK\",\"epochs\":1,\"acc_test\":80.25,\"seconds\":3.5}\n";
    esper_index_news news;
    esper_index *index;
    esper_store *store;
    char *sql;
    size_t bytes;
    json_t *rows;
    bool has_old;

    (void)state;
    make_run("kinds", "a", "fashion", 91.5, 0.2);
    store = begin_run("kinds", "b", "fashion"); /* killed in its second epoch */
    push_epoch(store, 1, 44.0);
    esper_store_close(store);
    check_good(esper_file_make_dirs("kinds/t"));
    write_file("kinds/t/events.jsonl", events);
    check_good(esper_file_make_dirs("kinds/empty"));
    check_good(esper_file_make_dirs("kinds/damaged"));
    write_file("kinds/damaged/store.sqlite", "this is no database, and a long text, longer than its head would be ... "
                                             "................................................................");
    check_good(esper_file_make_dirs("kinds/compared"));
    write_file("kinds/compared/compare.lock", "");
    make_run("kinds/compared", "none-1", "fashion", 88.0, 0.1);
    has_old = esper_file_read(ESPER_SOURCE_DIR "/tests/telemetry/store_v3.sql", 1 << 20, &sql, &bytes) == ESPER_OK;
    if (has_old) {
        check_good(esper_file_make_dirs("kinds/old"));
        remove_store("kinds/old/store.sqlite");
        change("kinds/old/store.sqlite", sql);
        esper_mem_free(sql);
    }
    index = open_index("kinds", &news);
    assert_int_equal(news.n_runs, 5 + has_old);
    assert_int_equal(news.n_read, 5 + has_old);
    assert_int_equal(news.n_unreadable, 1);
    rows = rows_of(index, "run=a", NULL, false);
    assert_string_equal(text_of(rows, 0, "state"), "done");
    assert_string_equal(text_of(rows, 0, "rng_seed"), "18446744073709551615");
    assert_true(number_of(rows, 0, "acc_test") == 91.5 && number_of(rows, 0, "acc_best") == 70.0);
    assert_true(number_of(rows, 0, "n_seeds") == 2 && number_of(rows, 0, "n_kept") == 1);
    assert_true(number_of(rows, 0, "n_pruned") == 1);
    json_decref(rows);
    rows = rows_of(index, "run=b", NULL, false);
    assert_string_equal(text_of(rows, 0, "state"), "cut off");
    assert_true(number_of(rows, 0, "acc_valid") == 44.0 && number_of(rows, 0, "params") == 1001);
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "acc_test")));
    json_decref(rows);
    rows = rows_of(index, "kind=train", NULL, false);
    assert_int_equal(json_array_size(rows), 1);
    assert_string_equal(text_of(rows, 0, "task"), "mnist");
    assert_true(number_of(rows, 0, "acc_test") == 80.25 && number_of(rows, 0, "acc_valid") == 81.5);
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "loss_valid")));
    json_decref(rows);
    rows = rows_of(index, "state=unreadable", NULL, false);
    assert_string_equal(text_of(rows, 0, "run"), "damaged");
    assert_non_null(strstr(text_of(rows, 0, "problem"), "damaged"));
    json_decref(rows);
    assert_int_equal(count(index, "run=compared/none-1"), 1);
    rows = rows_of(index, "run=old", NULL, false);
    assert_int_equal(json_array_size(rows), has_old);
    if (has_old)
        assert_true(number_of(rows, 0, "n_seeds") == 1 && number_of(rows, 0, "n_rollbacks") == 1);
    json_decref(rows);
    esper_index_close(index);
    assert_true(access("kinds/a/store.sqlite-wal", F_OK) != 0); /* nothing is left in the directories of runs */
    assert_true(access("kinds/a/store.sqlite-shm", F_OK) != 0);
}

/* ------------------------------------------------------------------------------------------------ where they lie */

/* Runs are found some directories down, under the names that pages call them by; a link leads nowhere. */
static void runs_below_directories(void **state)
{
    static const char odd[] = "deep/<b>\"&\xff";
    char name[ESPER_PATH_CHARS], id[32];
    esper_index_news news;
    esper_index *index;
    json_t *rows;

    (void)state;
    make_run("deep", "a", "fashion", 90.0, 0.1);
    make_run("deep/some/sweeps", "b", "fashion", 91.0, 0.1);
    make_run("deep/1/2/3/4", "too-deep", "fashion", 91.0, 0.1);
    make_run("deep/a", "within-a-run", "fashion", 91.0, 0.1);
    make_run("elsewhere", "secret", "fashion", 92.0, 0.1);
    make_run("deep", odd + strlen("deep/"), "fashion", 93.0, 0.1);
    unlink("deep/link");
    unlink("deep/some/linked");
    assert_int_equal(symlink("../elsewhere", "deep/link"), 0);
    assert_int_equal(symlink("../../elsewhere/secret", "deep/some/linked"), 0);
    index = open_index("deep", &news);
    assert_int_equal(news.n_runs, 3);
    assert_int_equal(count(index, "run=some/sweeps/b"), 1);
    check_good(esper_index_find(index, "some/sweeps/b", name));
    assert_string_equal(name, "some/sweeps/b");
    rows = rows_of(index, "acc_test=93", NULL, false);
    assert_int_equal(json_array_size(rows), 1);
    json_decref(rows);
    snprintf(id, sizeof(id), "~%016llx",
             (unsigned long long)XXH3_64bits(odd + strlen("deep/"), strlen(odd + strlen("deep/"))));
    check_good(esper_index_find(index, id, name));
    assert_string_equal(name, odd + strlen("deep/"));
    check_fails(esper_index_find(index, odd + strlen("deep/"), name), ESPER_E_NOTFOUND, "no such run");
    check_fails(esper_index_find(index, "link/secret", name), ESPER_E_NOTFOUND, "no such run");
    check_fails(esper_index_find(index, "../elsewhere/secret", name), ESPER_E_NOTFOUND, "no such run");
    esper_index_close(index);
    index = open_index("deep/a", &news); /* a run by itself, in which nothing is made */
    assert_int_equal(news.n_runs, 1);
    check_good(esper_index_find(index, ".", name));
    assert_string_equal(name, ".");
    esper_index_close(index);
    assert_true(access("deep/a/index.db", F_OK) != 0);
}

/* What a page draws of each: few points, the first and the last among them, and of those alone that stand. */
static void points_of_a_curve(void **state)
{
    esper_page page = {0};
    esper_index_news news;
    esper_index *index;
    esper_store *store = begin_run("curves", "long", "fashion");
    esper_store_record row = esper_store_record_of(ESPER_STORE_ROLLBACK, 500, 5000);
    int n_points = 1;

    (void)state;
    for (int64_t i = 1; i <= 600; i++) {
        push_epoch(store, i, i > 500 ? 99.0 : (double)i / 10.0);
        if (i % 100 == 0)
            check_good(esper_store_flush(store));
    }
    row.rollback.to_step = 5000;
    esper_store_push(store, &row);
    end_run(store, ESPER_OK, 90.0);
    index = open_index("curves", &news);
    check_good(esper_index_ask(index, "SELECT points FROM runs", &page));
    assert_non_null(strstr(page.text, "\"0.1,"));
    assert_non_null(strstr(page.text, ",50\""));
    assert_null(strstr(page.text, "99"));
    for (const char *at = page.text; *at != '\0'; at++)
        n_points += *at == ',';
    assert_int_equal(n_points, 40);
    esper_page_fini(&page);
    esper_index_close(index);
}

/* ------------------------------------------------------------------------------------------------ a cache */

/* Who looks again and again is told when anything has changed, even where another process brought it up to date. */
static void changes_are_told(void **state)
{
    esper_index_news news;
    esper_index *index, *other;

    (void)state;
    make_run("told", "a", "fashion", 90.0, 0.1);
    usleep(100000);
    index = open_index("told", &news);
    assert_true(news.any);
    check_good(esper_index_refresh(index, &news));
    assert_false(news.any);
    make_run("told", "b", "fashion", 91.0, 0.1);
    usleep(100000);
    other = open_index("told", &news);
    assert_int_equal(news.n_read, 1);
    check_good(esper_index_refresh(index, &news));
    assert_true(news.any && news.n_read == 0);
    assert_int_equal(count(index, NULL), 2);
    remove_store("told/b/store.sqlite");
    check_good(esper_index_refresh(index, &news));
    assert_true(news.any && news.n_gone == 1);
    check_good(esper_index_refresh(index, &news));
    assert_false(news.any);
    esper_index_close(other);
    esper_index_close(index);
}

static void only_what_has_changed_is_read(void **state)
{
    esper_index_news news;
    esper_index *index;

    (void)state;
    make_run("cache", "a", "fashion", 90.0, 0.1);
    make_run("cache", "b", "fashion", 91.0, 0.1);
    usleep(100000); /* what was written just now is read once more */
    esper_index_close(open_index("cache", &news));
    assert_int_equal(news.n_read, 2);
    esper_index_close(open_index("cache", &news));
    assert_int_equal(news.n_read, 0);
    assert_int_equal(news.n_runs, 2);
    make_run("cache", "b", "fashion", 95.0, 0.1);
    index = open_index("cache", &news);
    assert_int_equal(news.n_read, 1);
    assert_int_equal(count(index, "acc_test=95"), 1);
    assert_int_equal(count(index, NULL), 2);
    esper_index_close(index);
    remove_store("cache/a/store.sqlite");
    index = open_index("cache", &news);
    assert_int_equal(news.n_gone, 1);
    assert_int_equal(count(index, NULL), 1);
    esper_index_close(index);
}

/* Whatever happens to the file, the answer is the same. */
static void it_can_always_be_made_anew(void **state)
{
    static const char *const harms[] = {"", "PRAGMA user_version = 9", "DROP TABLE seeds", NULL};
    esper_index_news news;
    esper_index *index;

    (void)state;
    make_run("anew", "a", "fashion", 90.0, 0.1);
    esper_index_close(open_index("anew", &news));
    for (int i = 0; harms[i] != NULL; i++) {
        if (harms[i][0] == '\0')
            unlink("anew/index.db");
        else
            change("anew/index.db", harms[i]);
        index = open_index("anew", &news);
        assert_int_equal(news.n_read, 1);
        assert_int_equal(count(index, "acc_test=90"), 1);
        esper_index_close(index);
    }
    write_file("anew/index.db", "rubbish, and more of it, so that it is longer than the head of a database: "
                                "................................................................");
    index = open_index("anew", &news);
    assert_int_equal(count(index, "acc_test=90"), 1);
    esper_index_close(index);
    index = open_index("nowhere", &news); /* there are no runs, and none are made */
    assert_int_equal(count(index, NULL), 0);
    esper_index_close(index);
    assert_true(access("nowhere", F_OK) != 0);
}

/* ------------------------------------------------------------------------------------------------ questions */

static void filters_and_order(void **state)
{
    static const char *const bad[] = {"nothing=1", "acc_test", "acc_test<>", "=1", "tag>x", "run=a,zzz=1"};
    esper_index_news news;
    esper_index *index;
    json_t *rows;

    (void)state;
    make_run("asked", "a", "fashion", 90.0, 0.1);
    make_run("asked", "b", "mnist", 99.0, 0.1);
    make_run("asked", "c'; DROP TABLE runs; --", "fashion", 80.0, 0.1);
    check_good(esper_index_tag("asked/a", "good", false));
    check_good(esper_index_tag("asked/a", "best:1", false));
    check_good(esper_index_tag("asked/a", "good", false));
    check_good(esper_index_tag("asked/b", "goodish", false));
    check_fails(esper_index_tag("asked/a", "two words", false), ESPER_E_ARG, "two words|is no tag");
    index = open_index("asked", &news);
    assert_int_equal(count(index, "task=fashion"), 2);
    assert_int_equal(count(index, "task=fashion,acc_test>=85"), 1);
    assert_int_equal(count(index, "task!=fashion"), 1);
    assert_int_equal(count(index, "acc_test<90"), 1);
    assert_int_equal(count(index, "acc_test>90"), 1);
    assert_int_equal(count(index, "run~DROP"), 1);
    assert_int_equal(count(index, "tag=good"), 1);
    assert_int_equal(count(index, "tag!=good"), 2);
    assert_int_equal(count(index, "run=x'; DROP TABLE runs; --"), 0);
    rows = rows_of(index, NULL, "acc_test", false);
    assert_string_equal(text_of(rows, 0, "run"), "b");
    assert_string_equal(text_of(rows, 1, "tags"), "best:1,good");
    json_decref(rows);
    rows = rows_of(index, NULL, "run", true);
    assert_string_equal(text_of(rows, 2, "run"), "a");
    json_decref(rows);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        esper_page page = {0};
        esper_status status = esper_index_json(index, &(esper_index_query){.filter = bad[i]}, &page);

        if (status != ESPER_E_ARG)
            fail_msg("%s: %s", bad[i], esper_status_name(status));
        esper_page_fini(&page);
    }
    check_fails(esper_index_json(index, &(esper_index_query){.sort = "began; DROP TABLE runs"}, &(esper_page){0}),
                ESPER_E_ARG, "is no column|acc_test");
    check_good(esper_index_tag("asked/a", "good", true));
    check_good(esper_index_refresh(index, &news));
    assert_int_equal(count(index, "tag=good"), 0);
    assert_int_equal(count(index, "tag=best:1"), 1);
    esper_index_close(index);
}

/* The question of docs/runs.md: which blueprint gained most, in which slot, over all runs. */
static char *query_of_docs(void)
{
    char *page = NULL, *begin, *end;
    size_t bytes;

    if (esper_file_read(ESPER_SOURCE_DIR "/docs/runs.md", 1 << 20, &page, &bytes) != ESPER_OK)
        skip();
    begin = strstr(page, "```sql\n");
    assert_non_null(begin);
    begin += strlen("```sql\n");
    end = strstr(begin, "```");
    assert_non_null(end);
    *end = '\0';
    memmove(page, begin, strlen(begin) + 1);
    return page;
}

static void which_blueprint_gained_most(void **state)
{
    esper_index_news news;
    esper_index *index;
    esper_page page = {0};
    char *sql = query_of_docs();
    json_t *rows;

    (void)state;
    make_run("gains", "a", "fashion", 90.0, 0.1);
    make_run("gains", "b", "fashion", 91.0, 0.3);
    index = open_index("gains", &news);
    check_good(esper_index_ask(index, sql, &page));
    rows = json_loads(page.text, 0, NULL);
    assert_non_null(rows);
    assert_string_equal(text_of(rows, 0, "blueprint"), "conv_light");
    assert_string_equal(text_of(rows, 0, "slot"), "r0c1");
    assert_true(number_of(rows, 0, "n_trials") == 2);
    assert_true(number_of(rows, 0, "gain") > 0.199 && number_of(rows, 0, "gain") < 0.201);
    json_decref(rows);
    esper_page_fini(&page);
    check_fails(esper_index_ask(index, "DELETE FROM runs", &page), ESPER_E_ARG, "one SELECT");
    check_fails(esper_index_ask(index, "SELECT 1; DELETE FROM runs", &page), ESPER_E_ARG, "one query at a time");
    check_fails(esper_index_ask(index, "SELECT absent FROM runs", &page), ESPER_E_ARG, "no such column");
    check_fails(esper_index_ask(index, "", &page), ESPER_E_ARG, "one SELECT");
    esper_page_fini(&page);
    esper_index_close(index);
    esper_mem_free(sql);
}

/* ------------------------------------------------------------------------------------------------ at once */

enum { N_WRITERS = 10 };

typedef struct writer {
    pthread_t thread;
    esper_store *store;
    int n_epochs;
    uint64_t n_dropped;
} writer;

static atomic_int n_writing, n_refreshed;

static void *write_epochs(void *context)
{
    writer *self = context;

    for (int i = 1; i <= self->n_epochs; i++) {
        while (i == self->n_epochs &&
               atomic_load(&n_refreshed) < 2) /* it writes while it is read, however long that takes */
            usleep(1000);
        push_epoch(self->store, i, 50.0 + i * 0.01);
        usleep(1000);
    }
    check_good(esper_store_flush(self->store));
    self->n_dropped = esper_store_counts_get(self->store).n_dropped_all;
    atomic_fetch_sub(&n_writing, 1);
    return NULL;
}

/* Ten runs write while their index is brought up to date, by two at a time: nothing is lost, and the numbers get there. */
static void runs_that_write_meanwhile(void **state)
{
    writer writers[N_WRITERS];
    esper_index *index = NULL, *other = NULL;
    esper_index_news news;
    int n_epochs = effort(400, 60);
    json_t *rows;

    (void)state;
    for (int i = 0; i < N_WRITERS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "w%d", i);
        writers[i] = (writer){.store = begin_run("busy", name, "synth"), .n_epochs = n_epochs};
    }
    atomic_store(&n_writing, N_WRITERS);
    for (int i = 0; i < N_WRITERS; i++)
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_epochs, &writers[i]), 0);
    check_good(esper_index_open("busy", &index));
    check_good(esper_index_open("busy", &other));
    while (atomic_load(&n_writing) > 0) {
        check_good(esper_index_refresh(index, &news));
        assert_int_equal(news.n_runs, N_WRITERS);
        assert_int_equal(news.n_unreadable, 0);
        check_good(esper_index_refresh(other, NULL));
        atomic_fetch_add(&n_refreshed, 1);
    }
    for (int i = 0; i < N_WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
        assert_int_equal(writers[i].n_dropped, 0);
    }
    check_good(esper_index_refresh(index, &news)); /* their writers are still there: what is in the log is seen */
    rows = rows_of(index, NULL, NULL, false);
    assert_int_equal(json_array_size(rows), N_WRITERS);
    for (size_t i = 0; i < N_WRITERS; i++)
        assert_int_equal((int)number_of(rows, i, "epochs"), n_epochs);
    json_decref(rows);
    esper_index_close(index);
    esper_index_close(other);
    for (int i = 0; i < N_WRITERS; i++)
        esper_store_close(writers[i].store);
    assert_int_equal(ask("busy/w3/store.sqlite", "SELECT count(*) FROM epochs"), n_epochs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_kind),
        cmocka_unit_test(only_what_has_changed_is_read),
        cmocka_unit_test(it_can_always_be_made_anew),
        cmocka_unit_test(filters_and_order),
        cmocka_unit_test(which_blueprint_gained_most),
        cmocka_unit_test(runs_that_write_meanwhile),
        cmocka_unit_test(runs_below_directories),
        cmocka_unit_test(points_of_a_curve),
        cmocka_unit_test(changes_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
