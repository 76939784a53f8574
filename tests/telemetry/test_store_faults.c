/* ctest: timeout=180 */
/* What can go wrong around a store: the process is killed, the disk is full, the file is damaged or another's, memory is
 * out. The run is never stopped by it, and what was committed is never lost. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "telemetry/helpers.h"

/* ------------------------------------------------------------------------------------------------ kill -9 */

/* Pushes until it is killed; after each flush it says how many rows must be there. */
static void write_until_killed(const char *path, int out)
{
    const esper_store_options options = {.batch_ms = 1, .batch_records = 7};
    esper_store_run run = esper_store_run_of("killed");
    esper_store *store;
    int64_t id;

    if (esper_store_open(path, &options, &store) != ESPER_OK || esper_store_begin(store, &run, NULL, &id) != ESPER_OK)
        _exit(1);
    for (int32_t n = 1;; n++) {
        esper_store_record record = filled_record(ESPER_STORE_DECISION, n / 10 + 1, n, n);

        esper_store_push(store, &record);
        if (n % 50 == 0 && (esper_store_flush(store) != ESPER_OK || write(out, &n, sizeof(n)) != sizeof(n)))
            _exit(2);
    }
}

/* Kills a child after so many flushes and some more; gives the last number it told. */
static int32_t kill_writer(const char *path, int n_flushes, long more_us)
{
    const struct timespec pause = {.tv_nsec = more_us * 1000};
    int ends[2], state;
    int32_t told = 0, next;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_until_killed(path, ends[1]);
    close(ends[1]);
    for (int i = 0; i < n_flushes; i++)
        assert_int_equal(read(ends[0], &told, sizeof(told)), sizeof(told));
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &state, 0), child);
    assert_true(WIFSIGNALED(state));
    while (read(ends[0], &next, sizeof(next)) == sizeof(next))
        told = next;
    close(ends[0]);
    return told;
}

static void survives_kill(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        int64_t n_rows, id;
        int32_t told;
        esper_store *store;

        remove_store("killed.sqlite");
        told = kill_writer("killed.sqlite", 1 + i % 3, 700L * i);
        n_rows = ask("killed.sqlite", "SELECT count(*) FROM decisions");
        if (n_rows < told)
            fail_msg("%lld rows after the kill, %d were flushed", (long long)n_rows, told);
        assert_int_equal(ask("killed.sqlite", "SELECT max(seq) + 1 FROM decisions"), n_rows); /* and no gap */
        assert_int_equal(ask("killed.sqlite", "SELECT ended IS NULL FROM runs"), 1);
        check_good(esper_store_open("killed.sqlite", NULL, &store));
        check_good(esper_store_resume(store, "killed", 3, 30, ESPER_STORE_NO_INT, &id));
        assert_int_equal(id, 1);
        esper_store_close(store);
        assert_int_equal(ask("killed.sqlite", "SELECT max(epoch) FROM decisions"), 3);
        assert_int_equal(ask("killed.sqlite", "SELECT count(*) FROM decisions"), 29);
    }
}

/* Eight processes make the same store at once. */
static void created_by_many_at_once(void **state)
{
    pid_t children[8];

    (void)state;
    for (int i = 0; i < 8; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            esper_store_run run = esper_store_run_of("x");
            esper_store_record record = filled_record(ESPER_STORE_EPOCH, 1, 1, i);
            esper_store *store;
            int64_t id;

            if (esper_store_open("race.sqlite", NULL, &store) != ESPER_OK ||
                esper_store_begin(store, &run, NULL, &id) != ESPER_OK || esper_store_push(store, &record) != 0 ||
                esper_store_flush(store) != ESPER_OK) {
                fprintf(stderr, "child %d: %s\n", i, esper_last_error());
                _exit(1);
            }
            esper_store_close(store);
            _exit(0);
        }
    }
    for (int i = 0; i < 8; i++) {
        int status;

        waitpid(children[i], &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("child %d: wait status %d", i, status);
    }
    assert_int_equal(ask("race.sqlite", "SELECT count(*) FROM runs"), 8);
    assert_int_equal(ask("race.sqlite", "SELECT count(DISTINCT run) FROM epochs"), 8);
}

/* ------------------------------------------------------------------------------------------------ full disk */

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static rlim_t limit_now(void)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    return limit.rlim_cur;
}

static uint64_t push_and_flush(esper_store *store, int n, esper_status *status_out)
{
    uint64_t n_pushed = 0;

    *status_out = ESPER_OK;
    for (int i = 0; i < n && *status_out == ESPER_OK; i++, n_pushed++) {
        esper_store_record record = filled_record(ESPER_STORE_DECISION, i + 1, i, i);

        esper_store_push(store, &record);
        *status_out = i % 20 == 19 ? esper_store_flush(store) : ESPER_OK;
    }
    return n_pushed;
}

/* Pushes into a store until its disk is full, and goes on as if nothing were. `make_room` ends the shortage. */
static void fill_disk(const char *path, void (*make_room)(void))
{
    esper_store *store = begin_store(path, NULL, "full");
    esper_store_record record = filled_record(ESPER_STORE_DECISION, 1, 1, 1);
    esper_store_run run = esper_store_run_of("full");
    esper_store_counts counts;
    esper_status status;
    uint64_t n_pushed = push_and_flush(store, 100000, &status);

    check_fails(status, ESPER_E_IO, path);
    check_fails(status, ESPER_E_IO, "the store is off, the run goes on");
    assert_true(esper_store_push(store, &record) >= 0);
    n_pushed++;
    counts = esper_store_counts_get(store);
    assert_false(counts.is_on);
    assert_int_equal(counts.n_waiting, 0);
    assert_int_equal(counts.n_written + counts.n_dropped[ESPER_STORE_DECISION], n_pushed);
    assert_true(counts.n_written > 0 && counts.n_dropped_all > 0);
    check_fails(esper_store_status(store), ESPER_E_IO, path);
    check_good(esper_store_status(store)); /* told once */
    status = esper_store_end(store, &run); /* it is tried once more: there may be room for a row */
    assert_true(status == ESPER_OK || status == ESPER_E_IO);
    if (make_room != NULL)
        make_room();
    esper_store_close(store);
    /* All that was committed is there, in a store that is sound, and the next run finds its place. */
    assert_int_equal(ask(path, "SELECT count(*) FROM decisions"), counts.n_written);
    assert_int_equal(ask(path, "SELECT max(seq) + 1 FROM decisions"), counts.n_written);
    if (make_room != NULL) {
        assert_int_equal(ask(path, "SELECT n FROM drops WHERE records = 'decisions'"), counts.n_dropped_all);
        store = begin_store(path, NULL, "next");
        esper_store_push(store, &record);
        check_good(esper_store_flush(store));
        esper_store_close(store);
        assert_int_equal(ask(path, "SELECT count(*) FROM decisions"), counts.n_written + 1);
    }
}

static rlim_t full_limit;

static void lift_limit(void)
{
    set_limit(full_limit);
}

/* A limit on the size of files stands in for the disk. SIGXFSZ keeps its deadly default: the writer's thread blocks it. */
static void full_by_limit(void **state)
{
    static const rlim_t rooms[] = {200000, 300000, 500001, 1000000};

    (void)state;
    full_limit = limit_now();
    for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
        remove_store("limit.sqlite");
        esper_store_close(begin_store("limit.sqlite", NULL, "first"));
        set_limit(rooms[i]);
        fill_disk("limit.sqlite", lift_limit);
        set_limit(full_limit);
    }
}

/* A disk that has room again is written to again; what was lost in between is counted while the run goes on. */
static void goes_on_when_there_is_room(void **state)
{
    esper_store_options options = {.retry_ms = 50};
    esper_store_run run = esper_store_run_of("full");
    esper_store_record record = filled_record(ESPER_STORE_DECISION, 1, 1, 1);
    esper_store_counts counts;
    esper_status status;
    esper_store *store;
    uint64_t n_pushed;

    (void)state;
    full_limit = limit_now();
    remove_store("again.sqlite");
    store = begin_store("again.sqlite", &options, "full");
    set_limit(400000);
    n_pushed = push_and_flush(store, 100000, &status);
    check_fails(status, ESPER_E_IO, "the store is off, the run goes on");
    for (int i = 0; i < 10; i++, n_pushed++) { /* it is tried again, in vain, and nobody waits for it */
        usleep(20000);
        esper_store_push(store, &record);
    }
    lift_limit();
    for (int i = 0; i < 500 && !esper_store_counts_get(store).is_on; i++, n_pushed++) {
        usleep(20000);
        esper_store_push(store, &record);
    }
    esper_store_push(store, &record);
    n_pushed++;
    check_good(esper_store_flush(store));
    counts = esper_store_counts_get(store);
    assert_true(counts.is_on && counts.n_dropped_all > 0);
    assert_int_equal(counts.n_written + counts.n_dropped_all, n_pushed);
    assert_int_equal(ask("again.sqlite", "SELECT count(*) FROM decisions"), counts.n_written);
    assert_int_equal(ask("again.sqlite", "SELECT max(seq) FROM decisions"),
                     n_pushed - 1); /* numbers of what was lost stay free */
    assert_int_equal(ask("again.sqlite", "SELECT n FROM drops WHERE records = 'decisions'"), counts.n_dropped_all);
    check_good(esper_store_end(store, &run));
    esper_store_close(store);
    assert_int_equal(ask("again.sqlite", "SELECT ended IS NOT NULL FROM runs"), 1);
}

/* A run that ends behind the shortage says how it ended, however short before that was. */
static void tells_its_end_when_there_is_room(void **state)
{
    esper_store_run run = esper_store_run_of("full");
    esper_status status;
    esper_store *store;

    (void)state;
    full_limit = limit_now();
    remove_store("end.sqlite");
    store = begin_store("end.sqlite", NULL, "full");
    set_limit(400000);
    push_and_flush(store, 100000, &status);
    check_fails(status, ESPER_E_IO, "the store is off, the run goes on");
    lift_limit();
    check_good(esper_store_end(store, &run));
    esper_store_close(store);
    assert_int_equal(ask("end.sqlite", "SELECT ended IS NOT NULL FROM runs"), 1);
    assert_true(ask("end.sqlite", "SELECT n FROM drops WHERE records = 'decisions'") > 0);
}

/* Also after a failure. */
static int take_disk_away(void **state)
{
    (void)state;
    return system("umount disk 2>/dev/null; rmdir disk") == 0 ? 0 : -1;
}

/* A disk of our own, where we may have one. */
static void full_for_real(void **state)
{
    (void)state;
    assert_int_equal(mkdir("disk", 0777), 0);
    if (system("mount -t tmpfs -o size=600k tmpfs disk 2>/dev/null") != 0) {
        print_message("skipped: a full disk, since no file system can be mounted here\n");
        skip();
    }
    fill_disk("disk/full.sqlite", NULL);
}

/* ------------------------------------------------------------------------------------------------ bad files */

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void check_refused(const char *path, esper_status expected, const char *words)
{
    uint64_t live = live_blocks();
    esper_store *store = NULL;
    esper_store_reader *reader = NULL;

    check_fails(esper_store_open(path, NULL, &store), expected, words);
    check_fails(esper_store_reader_open(path, &reader), expected, words);
    assert_null(store);
    assert_null(reader);
    assert_int_equal(live_blocks(), live);
}

static void fill_store(const char *path)
{
    esper_store *store;

    remove_store(path);
    store = begin_store(path, NULL, "x");
    for (int i = 0; i < 200; i++) {
        esper_store_record record = filled_record((esper_store_kind)(i % ESPER_STORE_N_KINDS), i, i, i);

        esper_store_push(store, &record);
    }
    check_good(esper_store_flush(store));
    esper_store_close(store);
}

static void refuses_what_is_no_store(void **state)
{
    char noise[5000];

    (void)state;
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)(i * 37 + i / 11);
    write_file("noise.sqlite", noise, sizeof(noise));
    check_refused("noise.sqlite", ESPER_E_FORMAT, "noise.sqlite|damaged|move it away|.recover");
    change("other.sqlite", "CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    check_refused("other.sqlite", ESPER_E_UNSUPPORTED, "other.sqlite|another program|choose another file");
    fill_store("version.sqlite");
    change("version.sqlite", "PRAGMA user_version = 2"); /* from before the first release */
    check_refused("version.sqlite", ESPER_E_UNSUPPORTED,
                  "version.sqlite|version 2,|versions 3 to 7|move the file away");
    change("version.sqlite", "PRAGMA user_version = 99");
    check_refused("version.sqlite", ESPER_E_UNSUPPORTED,
                  "version.sqlite|version 99|versions 3 to 7|move the file away");
    assert_int_equal(ask("other.sqlite", "SELECT x FROM t"), 1); /* as it was */
}

static void paths_that_lead_nowhere(void **state)
{
    esper_store_reader *reader;
    esper_store *store;

    (void)state;
    check_fails(esper_store_open("no/such/folder.sqlite", NULL, &store), ESPER_E_IO,
                "no/such/folder.sqlite|No such file");
    check_fails(esper_store_reader_open("absent.sqlite", &reader), ESPER_E_NOTFOUND, "absent.sqlite|No such file");
    assert_int_equal(access("absent.sqlite", F_OK), -1); /* looking makes nothing */
    write_file("empty.sqlite", "", 0);
    check_fails(esper_store_reader_open("empty.sqlite", &reader), ESPER_E_FORMAT, "empty.sqlite|no run");
    esper_store_close(begin_store("empty.sqlite", NULL, "x")); /* but good to begin in */
    check_fails(esper_store_open("x.sqlite", &(esper_store_options){.queue_records = -1}, &store), ESPER_E_ARG,
                "queue of -1");
}

/* Bytes are spoiled, or the end is missing: refused, or read without harm where no row was hit; never a crash. */
static void damaged_files(void **state)
{
    struct stat info;
    char *good, *bad;
    size_t bytes;
    int n_refused = 0;
    FILE *file;

    (void)state;
    fill_store("damage.sqlite");
    assert_int_equal(stat("damage.sqlite", &info), 0);
    bytes = (size_t)info.st_size;
    good = malloc(bytes);
    bad = malloc(bytes);
    assert_true(good != NULL && bad != NULL);
    file = fopen("damage.sqlite", "rb");
    assert_non_null(file);
    assert_int_equal(fread(good, 1, bytes, file), bytes);
    fclose(file);
    for (size_t i = 0; i < 60; i++) {
        esper_store *store = NULL;
        size_t at = i * bytes / 60, n = i % 2 ? 64 : bytes - at;
        esper_status status;

        memcpy(bad, good, bytes);
        if (i % 2)
            memset(bad + at, 0xa5, at + n <= bytes ? n : bytes - at);
        remove_store("damage.sqlite");
        write_file("damage.sqlite", bad, i % 2 ? bytes : at);
        status = esper_store_open("damage.sqlite", NULL, &store);
        if (status != ESPER_OK) {
            check_fails(status, ESPER_E_FORMAT, "damage.sqlite|move");
            n_refused++;
        } else {
            esper_store_record record = filled_record(ESPER_STORE_EPOCH, 1, 1, 1);
            esper_store_run run = esper_store_run_of("y");
            int64_t id;

            if (esper_store_begin(store, &run, NULL, &id) == ESPER_OK)
                esper_store_push(store, &record);
            esper_store_close(store);
        }
    }
    free(good);
    free(bad);
    print_message("%d of 60 damaged files were refused\n", n_refused);
    assert_true(n_refused > 30);
    /* As the message says: away with it, and there is a new one. */
    remove_store("damage.sqlite");
    esper_store_close(begin_store("damage.sqlite", NULL, "x"));
}

/* Reads the first run as somebody who may write nothing there, where we can be that. */
static esper_status read_as_nobody(const char *path)
{
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store_run run;
    esper_status status;
    bool found = false;

    if (geteuid() == 0 && seteuid(65534) != 0) {
        print_message("skipped: we are root and must remain so\n");
        skip();
    }
    status = esper_store_reader_open(path, &reader);
    if (status == ESPER_OK) {
        check_good(esper_store_read_runs(reader, &cursor));
        check_good(esper_store_next_run(cursor, &run, &found));
        esper_store_cursor_close(cursor);
        esper_store_reader_close(reader);
        assert_true(found);
    }
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
    return status;
}

/* A finished store in a folder that nobody can write to: as its writer left it, and as a reader did. It lies in /tmp, as
 * SQLite opens by the whole path: a checkout may lie in a folder that only its owner enters. */
static void readable_where_nothing_can_be_written(void **state)
{
    char outer[] = "/tmp/esper-store-XXXXXX", folder[64], path[80];
    esper_status first, second;

    (void)state;
    assert_non_null(mkdtemp(outer));
    assert_int_equal(chmod(outer, 0755), 0);
    snprintf(folder, sizeof(folder), "%s/odd #?%% folder", outer);
    snprintf(path, sizeof(path), "%s/x.sqlite", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    fill_store(path);
    assert_int_equal(chmod(folder, 0555), 0);
    first = read_as_nobody(path);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(ask(path, "SELECT count(*) FROM runs"), 1);
    assert_int_equal(chmod(folder, 0555), 0);
    second = read_as_nobody(path);
    assert_int_equal(chmod(folder, 0777), 0);
    remove_store(path);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rmdir(outer), 0);
    check_good(first);
    check_good(second);
}

/* ------------------------------------------------------------------------------------------------ no memory */

static esper_status use_store(void)
{
    const esper_store_filter filter = all_of(1);
    esper_store_run run = esper_store_run_of("x"), read;
    esper_store_record record = filled_record(ESPER_STORE_GATE, 1, 1, 1);
    esper_store *store = NULL;
    esper_store_reader *reader = NULL;
    esper_store_cursor *cursor = NULL, *rows = NULL;
    esper_status status;
    char *config = NULL;
    bool found;
    int64_t id;

    remove_store("memory.sqlite");
    status = esper_store_open("memory.sqlite", NULL, &store);
    if (status == ESPER_OK)
        status = esper_store_begin(store, &run, "lr = 1", &id);
    if (status == ESPER_OK) {
        esper_store_push(store, &record);
        status = esper_store_flush(store);
    }
    if (status == ESPER_OK)
        status = esper_store_end(store, &run);
    if (status == ESPER_OK)
        status = esper_store_reader_open("memory.sqlite", &reader);
    if (status == ESPER_OK)
        status = esper_store_read_runs(reader, &cursor);
    if (status == ESPER_OK)
        status = esper_store_next_run(cursor, &read, &found);
    if (status == ESPER_OK)
        status = esper_store_read(reader, ESPER_STORE_GATE, &filter, &rows);
    if (status == ESPER_OK)
        status = esper_store_next(rows, &record, &found);
    if (status == ESPER_OK)
        status = esper_store_read_config(reader, 1, &config);
    esper_mem_free(config);
    esper_store_cursor_close(rows);
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
    esper_store_close(store);
    return status;
}

static void our_allocations_fail(void **state)
{
    uint64_t live = live_blocks(), n_failed = 0;

    (void)state;
    for (uint64_t nth = 1;; nth++, n_failed++) {
        esper_status status;

        esper_mem_fail_at(nth);
        status = use_store();
        esper_mem_fail_at(0);
        assert_int_equal(live_blocks(), live);
        if (status == ESPER_OK)
            break;
        if (status != ESPER_E_NOMEM)
            fail_msg("allocation %d: %s (%s)", (int)nth, esper_status_name(status), esper_last_error());
    }
    print_message("%d allocations failed in turn\n", (int)n_failed);
    assert_true(n_failed >= 6);
}

/* SQLite's own memory passes through these, so that it can run out as well. */
static sqlite3_mem_methods plain;
static int                 countdown; /* of SQLite's allocations; 0 = off. One thread at a time allocates in use_store. */

static int must_fail(void)
{
    int left = __atomic_load_n(&countdown, __ATOMIC_SEQ_CST);

    return left > 0 && __atomic_sub_fetch(&countdown, 1, __ATOMIC_SEQ_CST) == 0;
}

static void *take(int bytes)
{
    return must_fail() ? NULL : plain.xMalloc(bytes);
}

static void *retake(void *block, int bytes)
{
    return must_fail() ? NULL : plain.xRealloc(block, bytes);
}

static void sqlites_allocations_fail(void **state)
{
    int64_t used = sqlite3_memory_used();
    uint64_t live = live_blocks();
    int n_failed = 0, n_good = 0;

    (void)state;
    for (int nth = 1; n_good < 20; nth += 1 + nth / 25) {
        esper_status status;
        bool reached;

        __atomic_store_n(&countdown, nth, __ATOMIC_SEQ_CST);
        status = use_store();
        reached = __atomic_exchange_n(&countdown, 0, __ATOMIC_SEQ_CST) == 0;
        n_good = reached ? 0 : n_good + 1;
        n_failed += status != ESPER_OK;
        assert_int_equal(live_blocks(), live);
        if (status != ESPER_OK && status != ESPER_E_NOMEM)
            fail_msg("allocation %d of SQLite: %s (%s)", nth, esper_status_name(status), esper_last_error());
        if (sqlite3_memory_used() != used)
            fail_msg("allocation %d of SQLite: %lld bytes left behind", nth, (long long)(sqlite3_memory_used() - used));
    }
    print_message("%d failures for lack of SQLite's memory\n", n_failed);
    assert_true(n_failed > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_kill),
        cmocka_unit_test(created_by_many_at_once),
        cmocka_unit_test(full_by_limit),
        cmocka_unit_test(goes_on_when_there_is_room),
        cmocka_unit_test(tells_its_end_when_there_is_room),
        cmocka_unit_test_teardown(full_for_real, take_disk_away),
        cmocka_unit_test(refuses_what_is_no_store),
        cmocka_unit_test(paths_that_lead_nowhere),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(readable_where_nothing_can_be_written),
        cmocka_unit_test(our_allocations_fail),
        cmocka_unit_test(sqlites_allocations_fail),
    };
    sqlite3_mem_methods failing;

    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &plain);
    failing = plain;
    failing.xMalloc = take;
    failing.xRealloc = retake;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
    sqlite3_initialize(); /* what it keeps for good is taken before anything is counted */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
