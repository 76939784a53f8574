/* The store's writing side: a ring of records under a lock that is held for the copying alone, and a thread that empties it
 * in transactions.
 *
 *     ring   tail ─ being written, stays until committed ─ ... ─ head: the next free place
 *
 * Two locks. `lock` guards ring, counts and state, and is never held while SQLite works. `db_lock` guards the connection,
 * which the writer thread and, for begin, cut and end, the owner's thread use in turn. Who needs both takes db_lock first. */
#include "telemetry/store.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "slot/gate.h"
#include "telemetry/store_sql.h"

/* How long one attempt of the writer waits for a lock of somebody else's. */
enum { ATTEMPT_MS = 100 };

/* How long a checkpoint waits for rows that it covers. */
enum { CATCH_UP_MS = 1000 };

struct esper_store {
    char               *path;
    esper_store_options options;
    pthread_mutex_t     lock, db_lock;
    pthread_cond_t      wake, settled; /* there is something to do; something was committed, or the store went off */
    pthread_t           thread;
    bool                has_thread;

    /* under db_lock */
    sqlite3      *db;
    sqlite3_stmt *inserts[ESPER_STORE_N_KINDS];
    uint64_t      n_drops_stored[ESPER_STORE_N_KINDS];

    /* under lock */
    esper_store_record *ring;       /* (queue_records) */
    uint64_t            head, tail; /* counts since open; places are these modulo queue_records */
    int64_t             run;        /* 0: none begun */
    int64_t             next_seq;
    bool                closing, urgent, is_off, told;
    bool                asked; /* whether a store that is off can be written again */
    bool                late; /* somebody has waited for a commit in vain, and none has come since */
    esper_status        failure; /* that turned it off */
    char                failure_text[512];
    uint64_t            retry_ns; /* when a store that is off is tried again, by esper_clock_ns; 0 = not */
    uint64_t            n_written, n_dropped[ESPER_STORE_N_KINDS];
};

/* ------------------------------------------------------------------------------------------------ small things */

static double wall_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)(now.tv_nsec / 1000) / 1e6;
}

static struct timespec after_ms(int ms)
{
    struct timespec when;

    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += ms / 1000;
    when.tv_nsec += (ms % 1000) * 1000000L;
    if (when.tv_nsec >= 1000000000L) {
        when.tv_sec++;
        when.tv_nsec -= 1000000000L;
    }
    return when;
}

static esper_status execute(esper_store *store, const char *sql)
{
    return esper_store_sql_execute(store->db, store->path, sql);
}

/* Statements are prepared anew for each of the few calls outside of the writer's loop. */
static esper_status prepare(esper_store *store, const char *sql, sqlite3_stmt **statement_out)
{
    ESPER_STORE_SQL(store->db, store->path, sqlite3_prepare_v2(store->db, sql, -1, statement_out, NULL));
    return ESPER_OK;
}

/* Runs a statement that gives no rows, and is done with it. `code` is how binding its parameters went. */
static esper_status run_and_finalize(esper_store *store, sqlite3_stmt *statement, int code)
{
    esper_status status = ESPER_OK;

    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code != SQLITE_DONE)
        status = esper_store_sql_fail(store->db, code, store->path);
    sqlite3_finalize(statement);
    return status;
}

/* A limit on the size of files ends a process by a signal, unless it is blocked: then a full disk is an answer. The writer's thread
 * blocks all; the owner's, for as long as it writes itself. */
static void hold_limit_signal(sigset_t *before)
{
    sigset_t limit;

    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, before);
}

static void release_limit_signal(const sigset_t *before)
{
    const struct timespec at_once = {0};
    sigset_t limit;

    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (!sigismember(before, SIGXFSZ))
        sigtimedwait(&limit, NULL, &at_once); /* the answer has been told */
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* ------------------------------------------------------------------------------------------------ queue; under lock */

static esper_store_record *place_of(esper_store *store, uint64_t count)
{
    return &store->ring[count % (uint64_t)store->options.queue_records];
}

static bool has_room(const esper_store *store, esper_store_kind kind, int n)
{
    int limit = store->options.queue_records;

    if (!esper_store_is_kept(kind))
        limit -= limit / 4;
    return store->run != 0 && !store->is_off && store->head - store->tail + (uint64_t)n <= (uint64_t)limit;
}

/* Has the writer see whether the disk is better, when the time has come. Until it is, records are dropped, and nobody waits. */
static void ask_again(esper_store *store, bool now)
{
    if (store->is_off && store->retry_ns != 0 && (now || esper_clock_ns() >= store->retry_ns)) {
        store->retry_ns = 0;
        store->asked = true;
        pthread_cond_signal(&store->wake);
    }
}

/* Copies one record in, or counts it. */
static int64_t enter(esper_store *store, const esper_store_record *record, bool room, double time)
{
    esper_store_record *place;

    if (!room) {
        store->n_dropped[record->kind]++;
        return store->run != 0 ? store->next_seq++ : -1;
    }
    place = place_of(store, store->head++);
    assert(record->kind < ESPER_STORE_N_KINDS && store->head - store->tail <= (uint64_t)store->options.queue_records);
    *place = *record;
    place->run = store->run;
    place->seq = store->next_seq++;
    place->time = time;
    if (store->head - store->tail == (uint64_t)store->options.batch_records)
        pthread_cond_signal(&store->wake);
    return place->seq;
}

/* Takes the description of the failure from the thread that met it. A disk that is full or fails may be better later; a file that is
 * damaged will not. */
static void turn_off(esper_store *store, esper_status failure)
{
    assert(failure != ESPER_OK);
    store->retry_ns = failure == ESPER_E_IO ? esper_clock_ns() + (uint64_t)store->options.retry_ms * 1000000u : 0;
    if (!store->is_off) {
        store->is_off = true;
        store->failure = failure;
        snprintf(store->failure_text, sizeof(store->failure_text), "%s", esper_last_error());
    }
    for (; store->tail != store->head; store->tail++)
        store->n_dropped[place_of(store, store->tail)->kind]++;
    pthread_cond_broadcast(&store->settled);
}

/* ------------------------------------------------------------------------------------------------ the writer */

typedef enum outcome { WRITTEN, LOCKED, FAILED } outcome;

static esper_status insert_record(esper_store *store, const esper_store_record *record)
{
    sqlite3_stmt *statement = store->inserts[record->kind];
    int code = esper_store_sql_bind_record(statement, record);
    esper_status status = ESPER_OK;

    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code != SQLITE_DONE)
        status = esper_store_sql_fail(store->db, code, store->path);
    sqlite3_reset(statement);
    return status;
}

/* One transaction. Only its beginning can meet a lock; once it has begun, nobody else can write. */
static outcome write_batch(esper_store *store, uint64_t first, uint64_t n, esper_status *failure_out)
{
    esper_status status = ESPER_OK;
    int code;

    sqlite3_busy_timeout(store->db, ATTEMPT_MS);
    code = sqlite3_exec(store->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if ((code & 0xff) == SQLITE_BUSY)
        return LOCKED;
    if (code != SQLITE_OK)
        status = esper_store_sql_fail(store->db, code, store->path);
    for (uint64_t i = 0; i < n && status == ESPER_OK; i++)
        status = insert_record(store, place_of(store, first + i));
    if (status == ESPER_OK)
        status = execute(store, "COMMIT");
    if (status == ESPER_OK)
        return WRITTEN;
    sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL); /* SQLite may have done it already; then this says no more */
    *failure_out = status;
    return FAILED;
}

static esper_status store_drops(esper_store *store);

/* Writes what is there, up to a batch. Called and left with `lock` held. */
static outcome write_some(esper_store *store)
{
    uint64_t first = store->tail, n = store->head - store->tail;
    esper_status failure = ESPER_OK;
    outcome result;

    if (n > (uint64_t)store->options.batch_records)
        n = (uint64_t)store->options.batch_records;
    pthread_mutex_unlock(&store->lock);
    pthread_mutex_lock(&store->db_lock);
    result = write_batch(store, first, n, &failure); /* places from tail on are not written to while they wait */
    if (result == WRITTEN)
        (void)store_drops(store); /* so that readers see a gap as one; else it is tried again later */
    pthread_mutex_unlock(&store->db_lock);
    pthread_mutex_lock(&store->lock);
    if (result == WRITTEN) {
        assert(store->tail == first && store->head - store->tail >= n); /* nobody else takes records out */
        store->tail += n;
        store->n_written += n;
        store->late = false;
        pthread_cond_broadcast(&store->settled);
    } else if (result == FAILED) {
        turn_off(store, failure);
    }
    return result;
}

/* Somebody asked whether the disk is better: it is when it takes what must be written first, the counts of what was lost. In this
 * thread, which a limit on the size of files does not end. Called and left with `lock` held. */
static void look_again(esper_store *store)
{
    esper_status status;

    pthread_mutex_unlock(&store->lock);
    pthread_mutex_lock(&store->db_lock);
    sqlite3_busy_timeout(store->db, ATTEMPT_MS);
    status = store_drops(store);
    pthread_mutex_unlock(&store->db_lock);
    pthread_mutex_lock(&store->lock);
    if (status == ESPER_OK)
        store->is_off = false;
    else
        turn_off(store, status);
    store->asked = false;
    pthread_cond_broadcast(&store->settled);
}

/* Until there is a batch, somebody waits, or the first of few has waited long enough. */
static void await_work(esper_store *store)
{
    struct timespec until = after_ms(store->options.batch_ms);

    while (!store->closing && !store->urgent && !store->asked &&
           store->head - store->tail < (uint64_t)store->options.batch_records)
        if (pthread_cond_timedwait(&store->wake, &store->lock, &until) == ETIMEDOUT)
            break;
}

static void *write_all(void *context)
{
    esper_store *store = context;
    uint64_t deadline_ns = 0; /* for a file that stays locked when the store is to close; 0 = none yet */

    pthread_mutex_lock(&store->lock);
    for (;;) {
        await_work(store);
        if (store->asked)
            look_again(store);
        if (store->head != store->tail) {
            if (write_some(store) != LOCKED || !store->closing)
                continue;
            if (deadline_ns == 0)
                deadline_ns = esper_clock_ns() + (uint64_t)store->options.patience_ms * 1000000u;
            else if (esper_clock_ns() >= deadline_ns)
                turn_off(store, esper_store_sql_fail(NULL, SQLITE_BUSY, store->path));
            continue;
        }
        store->urgent = false;
        if (store->closing)
            break;
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ open and close */

static esper_store_options with_defaults(const esper_store_options *options)
{
    esper_store_options result = options != NULL ? *options : (esper_store_options){.queue_records = 0};
    int *const values[] = {&result.queue_records, &result.batch_records, &result.batch_ms, &result.patience_ms,
                           &result.retry_ms};
    static const int usual[] = {2048, 256, 500, 5000, 5000};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (*values[i] == 0)
            *values[i] = usual[i];
    if (result.batch_records > result.queue_records / 2 && result.queue_records > 1)
        result.batch_records = result.queue_records / 2; /* or it would always be late */
    return result;
}

static esper_status open_parts(esper_store *store, const char *path)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->db_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&store->wake, &monotonic);
    pthread_cond_init(&store->settled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    store->path = esper_mem_strdup(path);
    store->ring = esper_mem_alloc((size_t)store->options.queue_records * sizeof(*store->ring));
    if (store->path == NULL || store->ring == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a store with a queue of %d records", path, store->options.queue_records);
    ESPER_TRY(esper_store_sql_create(path, store->options.patience_ms, &store->db));
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        ESPER_TRY(esper_store_sql_prepare_insert(store->db, path, kind, &store->inserts[kind]));
    return ESPER_OK;
}

esper_status esper_store_open(const char *path, const esper_store_options *options, esper_store **store_out)
{
    esper_store_options all = with_defaults(options);
    esper_store *store;
    esper_status status;

    if (all.queue_records <= 0 || all.queue_records > 1 << 20 || all.batch_records <= 0 || all.batch_ms <= 0 ||
        all.patience_ms <= 0 || all.retry_ms <= 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: a store with a queue of %d records, batches of %d, every %d ms", path,
                          all.queue_records, all.batch_records, all.batch_ms);
    store = esper_mem_alloc(sizeof(*store));
    if (store == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: store", path);
    store->options = all;
    status = open_parts(store, path);
    if (status != ESPER_OK) {
        esper_store_close(store);
        return status;
    }
    *store_out = store;
    return ESPER_OK;
}

void esper_store_close(esper_store *store)
{
    char before[512]; /* closing must not hide a failure that somebody is about to read */
    sigset_t signals;

    if (store == NULL)
        return;
    if (store->has_thread) {
        pthread_mutex_lock(&store->lock);
        store->closing = true;
        pthread_cond_signal(&store->wake);
        pthread_mutex_unlock(&store->lock);
        pthread_join(store->thread, NULL);
        snprintf(before, sizeof(before), "%s", esper_last_error());
    }
    hold_limit_signal(&signals);
    if (store->has_thread && store->run != 0 && store_drops(store) != ESPER_OK) /* the last: there may be room by now */
        ESPER_FAIL(ESPER_E_IO, "%s", before);
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        sqlite3_finalize(store->inserts[kind]);
    sqlite3_close(store->db);
    release_limit_signal(&signals);
    pthread_cond_destroy(&store->settled);
    pthread_cond_destroy(&store->wake);
    pthread_mutex_destroy(&store->db_lock);
    pthread_mutex_destroy(&store->lock);
    esper_mem_free(store->ring);
    esper_mem_free(store->path);
    esper_mem_free(store);
}

/* The companions first: whoever is killed in between leaves a file that is set aside the next time. */
esper_status esper_store_set_aside(const char *path, char aside_out[ESPER_STORE_PATH_CHARS])
{
    static const char *const endings[] = {"-shm", "-wal", ""};
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    int stem = dot != NULL && (slash == NULL || dot > slash) ? (int)(dot - path) : (int)strlen(path);
    char from[ESPER_STORE_PATH_CHARS + 8], to[ESPER_STORE_PATH_CHARS + 8];
    struct stat info;

    for (int n = 1;; n++) {
        if (snprintf(aside_out, ESPER_STORE_PATH_CHARS, "%.*s-damaged-%d%s", stem, path, n, path + stem) >=
            ESPER_STORE_PATH_CHARS)
            return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", path);
        if (lstat(aside_out, &info) != 0)
            break;
    }
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        snprintf(from, sizeof(from), "%s%s", path, endings[i]);
        snprintf(to, sizeof(to), "%s%s", aside_out, endings[i]);
        if (rename(from, to) != 0 && errno != ENOENT)
            return ESPER_FAIL(ESPER_E_IO, "%s: cannot be renamed: %s", from, strerror(errno));
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ runs */

static esper_status insert_run(esper_store *store, const esper_store_run *run, const char *config)
{
    esper_store_text sql = {.used = 0};
    sqlite3_stmt *statement;
    int n, code;
    const esper_store_column *columns = esper_store_part_columns(ESPER_STORE_PART_RUN_BEGIN, &n);

    esper_store_text_add(&sql, "INSERT INTO runs (began, n_resumed, config, ");
    esper_store_text_columns(&sql, columns, n);
    esper_store_text_add(&sql, ") VALUES (?, 0, ?");
    for (int i = 0; i < n; i++)
        esper_store_text_add(&sql, ", ?");
    esper_store_text_add(&sql, ")");
    ESPER_TRY(prepare(store, sql.text, &statement));
    code = sqlite3_bind_double(statement, 1, wall_clock());
    if (code == SQLITE_OK && config != NULL)
        code = sqlite3_bind_text(statement, 2, config, -1, SQLITE_TRANSIENT);
    if (code == SQLITE_OK)
        code = esper_store_sql_bind(statement, 3, run, columns, n, NULL);
    return run_and_finalize(store, statement, code);
}

/* Starts the writer. Signals are for the program's own threads; and with SIGXFSZ blocked a full disk is an answer there, not the
 * end. */
static esper_status take_up(esper_store *store, int64_t run, int64_t next_seq)
{
    sigset_t all, before;
    int code;

    assert(!store->has_thread && store->run == 0 && run > 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&store->thread, NULL, write_all, store);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: the thread that writes cannot be started: %s", store->path,
                          strerror(code));
    store->has_thread = true;
    pthread_mutex_lock(&store->lock);
    store->run = run;
    store->next_seq = next_seq;
    pthread_mutex_unlock(&store->lock);
    return ESPER_OK;
}

/* Only this thread writes store->run, so it may look at it without the lock. */
static esper_status check_fresh(const esper_store *store)
{
    if (store->run != 0)
        return ESPER_FAIL(ESPER_E_STATE, "%s: a run has begun already in this store: open another one for the next run",
                          store->path);
    return ESPER_OK;
}

esper_status esper_store_begin(esper_store *store, const esper_store_run *run, const char *config, int64_t *id_out)
{
    esper_status status;
    int64_t id;

    ESPER_TRY(check_fresh(store));
    pthread_mutex_lock(&store->db_lock);
    sqlite3_busy_timeout(store->db, store->options.patience_ms);
    status = insert_run(store, run, config);
    id = sqlite3_last_insert_rowid(store->db);
    pthread_mutex_unlock(&store->db_lock);
    ESPER_TRY(status);
    ESPER_TRY(take_up(store, id, 0));
    *id_out = id;
    return ESPER_OK;
}

/* Where a checkpoint lies: by what was trained, and by the records that are known to be from before and from after it. */
typedef struct mark {
    int64_t epoch, step;
    int64_t seq_before, seq_after;
} mark;

/* A run that goes on has no end yet. */
static esper_status reopen_run(esper_store *store, int64_t run)
{
    esper_store_text sql = {.used = 0};
    int n;
    const esper_store_column *columns = esper_store_part_columns(ESPER_STORE_PART_RUN_END, &n);

    esper_store_text_add(&sql, "UPDATE runs SET ended = NULL, nonfinite = NULL, n_resumed = n_resumed + 1");
    for (int i = 0; i < n; i++)
        esper_store_text_add(&sql, ", %s = NULL", columns[i].name);
    esper_store_text_add(&sql, " WHERE id = %lld", (long long)run);
    return execute(store, sql.text);
}

static esper_status find_run(esper_store *store, const char *name, int64_t *run_out)
{
    esper_store_run key = esper_store_run_of(name); /* as it was stored: maybe cut, maybe mended */

    *run_out = 0;
    ESPER_TRY(
        esper_store_sql_ask(store->db, store->path, "SELECT max(id) FROM runs WHERE name = ?", key.name, run_out));
    return *run_out != 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_NOTFOUND, "%s: has no run %s", store->path, name);
}

/* Finds the run, its decisions before and after the checkpoint, cuts off all that came later, and counts on. */
static esper_status cut_run(esper_store *store, const char *name, mark *at, int64_t n_decisions, int64_t *run_out,
                            int64_t *seq_out)
{
    esper_store_text sql = {.used = 0};
    int64_t run;

    ESPER_TRY(find_run(store, name, &run));
    if (n_decisions != ESPER_STORE_NO_INT) {
        esper_store_text_add(&sql, "SELECT max(seq) FROM decisions WHERE run = %lld AND number < %lld", (long long)run,
                             (long long)n_decisions);
        ESPER_TRY(esper_store_sql_ask(store->db, store->path, sql.text, NULL, &at->seq_before));
        sql.used = 0;
        esper_store_text_add(&sql, "SELECT min(seq) FROM decisions WHERE run = %lld AND number >= %lld", (long long)run,
                             (long long)n_decisions);
        ESPER_TRY(esper_store_sql_ask(store->db, store->path, sql.text, NULL, &at->seq_after));
    }
    sqlite3_busy_timeout(store->db, store->options.patience_ms);
    ESPER_TRY(execute(store, "BEGIN IMMEDIATE"));
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        sql.used = 0;
        esper_store_text_add(&sql,
                             "DELETE FROM %s WHERE run = %lld AND "
                             "(seq >= %lld OR (seq > %lld AND epoch > %lld AND step >= %lld))",
                             esper_store_table(kind), (long long)run, (long long)at->seq_after,
                             (long long)at->seq_before, (long long)at->epoch, (long long)at->step);
        ESPER_TRY(execute(store, sql.text));
    }
    ESPER_TRY(reopen_run(store, run));
    ESPER_TRY(execute(store, "COMMIT"));
    *seq_out = 0; /* all rows of the run that are left have smaller ones */
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        int64_t last = -1;

        sql.used = 0;
        esper_store_text_add(&sql, "SELECT max(seq) FROM %s WHERE run = %lld", esper_store_table(kind), (long long)run);
        ESPER_TRY(esper_store_sql_ask(store->db, store->path, sql.text, NULL, &last));
        *seq_out = last + 1 > *seq_out ? last + 1 : *seq_out;
    }
    *run_out = run;
    return ESPER_OK;
}

esper_status esper_store_resume(esper_store *store, const char *name, int64_t epoch, int64_t step, int64_t n_decisions,
                                int64_t *id_out)
{
    mark at = {.epoch = epoch, .step = step, .seq_before = -1, .seq_after = INT64_MAX};
    int64_t run = 0, next_seq = 0;
    esper_status status;

    ESPER_TRY(check_fresh(store));
    pthread_mutex_lock(&store->db_lock);
    status = cut_run(store, name, &at, n_decisions, &run, &next_seq);
    if (status != ESPER_OK)
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL); /* where something was begun */
    pthread_mutex_unlock(&store->db_lock);
    ESPER_TRY(status);
    ESPER_TRY(take_up(store, run, next_seq));
    *id_out = run;
    return ESPER_OK;
}

static int64_t sum_of(const int64_t n_told[ESPER_STORE_N_KINDS])
{
    int64_t sum = 0;

    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        sum += n_told[kind];
    return sum;
}

/* Every row has a number, so the rows told by then are those of smaller ones. */
static esper_status cut_run_at(esper_store *store, const char *name, const int64_t n_told[ESPER_STORE_N_KINDS],
                               int64_t *run_out)
{
    esper_store_text sql = {.used = 0};
    long long run, next_seq = sum_of(n_told);

    ESPER_TRY(find_run(store, name, run_out));
    run = *run_out;
    sqlite3_busy_timeout(store->db, store->options.patience_ms);
    ESPER_TRY(execute(store, "BEGIN IMMEDIATE"));
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        const char *table = esper_store_table(kind);

        sql.used = 0;
        esper_store_text_add(&sql,
                             "DELETE FROM %s WHERE run = %lld AND seq >= %lld; "
                             "DELETE FROM drops WHERE run = %lld AND records = '%s'; "
                             "INSERT INTO drops (run, records, n) SELECT %lld, '%s', %lld - n FROM "
                             "(SELECT count(*) AS n FROM %s WHERE run = %lld) WHERE n < %lld",
                             table, run, next_seq, run, table, run, table, (long long)n_told[kind], table, run,
                             (long long)n_told[kind]);
        ESPER_TRY(execute(store, sql.text));
    }
    ESPER_TRY(reopen_run(store, *run_out));
    return execute(store, "COMMIT");
}

esper_status esper_store_resume_at(esper_store *store, const char *name, const int64_t n_told[ESPER_STORE_N_KINDS],
                                   int64_t *id_out)
{
    esper_status status;
    int64_t run = 0;

    ESPER_TRY(check_fresh(store));
    pthread_mutex_lock(&store->db_lock);
    status = cut_run_at(store, name, n_told, &run);
    if (status != ESPER_OK)
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL); /* where something was begun */
    pthread_mutex_unlock(&store->db_lock);
    ESPER_TRY(status);
    ESPER_TRY(take_up(store, run, sum_of(n_told)));
    *id_out = run;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ pushing */

int64_t esper_store_push(esper_store *store, const esper_store_record *record)
{
    double time = wall_clock();
    int64_t seq;

    pthread_mutex_lock(&store->lock);
    ask_again(store, false);
    seq = enter(store, record, has_room(store, record->kind, 1), time);
    pthread_mutex_unlock(&store->lock);
    return seq;
}

int64_t esper_store_push_gate(esper_store *store, const esper_store_record *gate, const esper_store_record *checks,
                              int n_checks)
{
    double time = wall_clock();
    int64_t seq;
    bool room;

    assert(gate->kind == ESPER_STORE_GATE && n_checks >= 0 && n_checks <= ESPER_GATE_MAX_CHECKS);
    pthread_mutex_lock(&store->lock);
    ask_again(store, false);
    room = has_room(store, ESPER_STORE_GATE, 1 + n_checks);
    seq = enter(store, gate, room, time);
    for (int i = 0; i < n_checks; i++) {
        esper_store_record check = checks[i];

        check.check.gate = seq;
        check.epoch = gate->epoch;
        check.step = gate->step;
        enter(store, &check, room, time);
    }
    pthread_mutex_unlock(&store->lock);
    return seq;
}

static esper_status say_failure(const esper_store *store)
{
    return ESPER_FAIL(store->failure, "the store is off, the run goes on without it: %s", store->failure_text);
}

esper_status esper_store_flush(esper_store *store)
{
    struct timespec until = after_ms(store->options.patience_ms);
    esper_status status = ESPER_OK;
    uint64_t target;

    pthread_mutex_lock(&store->lock);
    target = store->head;
    while (store->tail < target && !store->is_off && status == ESPER_OK) {
        store->urgent = true;
        pthread_cond_signal(&store->wake);
        if (pthread_cond_timedwait(&store->settled, &store->lock, &until) == ETIMEDOUT && store->tail < target)
            status = esper_store_sql_fail(NULL, SQLITE_BUSY, store->path);
    }
    if (store->is_off)
        status = say_failure(store);
    pthread_mutex_unlock(&store->lock);
    return status;
}

void esper_store_catch_up(esper_store *store)
{
    struct timespec until = after_ms(CATCH_UP_MS);
    uint64_t target;

    if (store == NULL)
        return;
    pthread_mutex_lock(&store->lock);
    target = store->head;
    while (store->tail < target && !store->is_off && !store->late) {
        store->urgent = true;
        pthread_cond_signal(&store->wake);
        if (pthread_cond_timedwait(&store->settled, &store->lock, &until) == ETIMEDOUT && store->tail < target)
            store->late = true;
    }
    pthread_mutex_unlock(&store->lock);
}

/* ------------------------------------------------------------------------------------------------ the end */

/* Adds what was lost since the last time. Under db_lock, or when the writer is gone. */
static esper_status store_drops(esper_store *store)
{
    esper_store_counts counts = esper_store_counts_get(store);
    esper_store_text sql = {.used = 0};

    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        uint64_t n = counts.n_dropped[kind] - store->n_drops_stored[kind];

        if (n == 0)
            continue;
        sql.used = 0;
        esper_store_text_add(&sql,
                             "INSERT INTO drops (run, records, n) VALUES (%lld, '%s', %lld) "
                             "ON CONFLICT (run, records) DO UPDATE SET n = n + excluded.n",
                             (long long)store->run, esper_store_table(kind), (long long)n);
        ESPER_TRY(execute(store, sql.text));
        store->n_drops_stored[kind] = counts.n_dropped[kind];
    }
    return ESPER_OK;
}

esper_status esper_store_miss(esper_store *store, const int64_t n_told[ESPER_STORE_N_KINDS])
{
    esper_status status;

    assert(store->run != 0 && store->next_seq == 0);
    pthread_mutex_lock(&store->db_lock);
    pthread_mutex_lock(&store->lock);
    store->next_seq = sum_of(n_told);
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        store->n_dropped[kind] += (uint64_t)n_told[kind];
    pthread_mutex_unlock(&store->lock);
    sqlite3_busy_timeout(store->db, store->options.patience_ms);
    status = store_drops(store);
    pthread_mutex_unlock(&store->db_lock);
    return status;
}

static esper_status update_run(esper_store *store, const esper_store_run *run)
{
    char nonfinite[ESPER_STORE_NONFINITE_CHARS] = "";
    esper_store_text sql = {.used = 0};
    sqlite3_stmt *statement;
    int n, code;
    const esper_store_column *columns = esper_store_part_columns(ESPER_STORE_PART_RUN_END, &n);

    esper_store_text_add(&sql, "UPDATE runs SET ended = ?1, nonfinite = nullif(?2, '')");
    for (int i = 0; i < n; i++)
        esper_store_text_add(&sql, ", %s = ?%d", columns[i].name, i + 3);
    esper_store_text_add(&sql, " WHERE id = ?%d", n + 3);
    ESPER_TRY(prepare(store, sql.text, &statement));
    code = sqlite3_bind_double(statement, 1, wall_clock());
    if (code == SQLITE_OK)
        code = esper_store_sql_bind(statement, 3, run, columns, n, nonfinite);
    if (code == SQLITE_OK)
        code = sqlite3_bind_text(statement, 2, nonfinite, -1, SQLITE_TRANSIENT);
    if (code == SQLITE_OK)
        code = sqlite3_bind_int64(statement, n + 3, store->run);
    return run_and_finalize(store, statement, code);
}

esper_status esper_store_end(esper_store *store, const esper_store_run *run)
{
    sigset_t before;
    esper_status status;

    if (store->run == 0)
        return ESPER_FAIL(ESPER_E_STATE, "%s: no run has begun that could be ended", store->path);
    pthread_mutex_lock(&store->lock);
    ask_again(store, true); /* there may be room where the disk was full, and how it ended is worth a try */
    while (store->asked)
        pthread_cond_wait(&store->settled, &store->lock);
    pthread_mutex_unlock(&store->lock);
    ESPER_TRY(esper_store_flush(store));
    pthread_mutex_lock(&store->db_lock);
    hold_limit_signal(&before);
    sqlite3_busy_timeout(store->db, store->options.patience_ms);
    status = update_run(store, run);
    if (status == ESPER_OK)
        status = store_drops(store);
    release_limit_signal(&before);
    pthread_mutex_unlock(&store->db_lock);
    if (status != ESPER_OK) {
        pthread_mutex_lock(&store->lock);
        turn_off(store, status);
        pthread_mutex_unlock(&store->lock);
    }
    return status;
}

esper_status esper_store_status(esper_store *store)
{
    esper_status status = ESPER_OK;

    if (store == NULL)
        return ESPER_OK;
    pthread_mutex_lock(&store->lock);
    if (store->is_off && !store->told) {
        store->told = true;
        status = say_failure(store);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

esper_store_counts esper_store_counts_get(esper_store *store)
{
    esper_store_counts counts = {.n_dropped_all = 0};

    pthread_mutex_lock(&store->lock);
    counts.is_on = !store->is_off;
    counts.n_written = store->n_written;
    counts.n_waiting = store->head - store->tail;
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        counts.n_dropped[kind] = store->n_dropped[kind];
        counts.n_dropped_all += store->n_dropped[kind];
    }
    pthread_mutex_unlock(&store->lock);
    return counts;
}

/* ------------------------------------------------------------------------------------------------ facts become rows */

void esper_store_tell(esper_store *store, const esper_fact *facts, int n)
{
    esper_store_record record, checks[ESPER_GATE_MAX_CHECKS];

    assert(n >= 1 && n <= 1 + ESPER_GATE_MAX_CHECKS);
    if (facts[0].kind >= ESPER_FACT_N_TABLES || (facts[0].to & ESPER_TO_ROWS) == 0)
        return;
    record = esper_store_record_from(&facts[0]);
    for (int i = 1; i < n; i++)
        checks[i - 1] = esper_store_record_from(&facts[i]);
    if (record.kind == ESPER_STORE_GATE)
        (void)esper_store_push_gate(store, &record, checks, n - 1);
    else
        (void)esper_store_push(store, &record);
}

static void sink_take(void *handle, const esper_fact *facts, int n)
{
    esper_store_tell(handle, facts, n);
}

/* What the store loses is the store's to tell: it is no loss of the run's own record. */
static esper_status sink_close(void *handle)
{
    (void)handle;
    return ESPER_OK;
}

esper_sink esper_store_sink(esper_store *store)
{
    static const esper_sink_ops ops = {.name = "store", .take = sink_take, .close = sink_close};

    return (esper_sink){.ops = &ops, .handle = store};
}
