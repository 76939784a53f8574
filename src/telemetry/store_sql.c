/* SQLite for the store: the schema is composed from the list, a file is checked before it is used, and structs become rows
 * and come back. */
#include "telemetry/store_sql.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/status.h"

/* Says in the file's header whose database this is: "Espr". */
enum { APPLICATION_ID = 0x45737072 };

/* Since when there is a column `gain` of `rewards`, the table `parts`, and the table `classes`. */
enum { GAIN_VERSION = 5, PARTS_VERSION = 6, CLASSES_VERSION = 7 };

/* Looking through all pages of a store takes some milliseconds for each megabyte; a larger one is taken at its word until a
 * page turns out bad. */
enum { LOOK_THROUGH_BYTES = 64 << 20 };

/* ------------------------------------------------------------------------------------------------ failures */

static esper_status say_damaged(const char *path, const char *why)
{
    return ESPER_FAIL(ESPER_E_FORMAT,
                      "%s: the store is damaged (%s): move it away together with the files of that name ending in -wal "
                      "and -shm, and a new one will be made; `sqlite3 FILE .recover` shows what can be saved",
                      path, why);
}

esper_status esper_store_sql_fail(sqlite3 *db, int code, const char *path)
{
    const char *why = db != NULL ? sqlite3_errmsg(db) : sqlite3_errstr(code);
    int system_code = db != NULL ? sqlite3_system_errno(db) : 0;

    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: no memory left for SQLite", path);
    case SQLITE_ERROR: /* our statements are good, so the schema is not what its version says */
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return say_damaged(path, why);
    case SQLITE_CONSTRAINT:
        return ESPER_FAIL(ESPER_E_IO, "%s: somebody else writes the same run (%s)", path, why);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ESPER_FAIL(ESPER_E_IO, "%s: another program keeps the store locked: let it finish or close it", path);
    case SQLITE_CANTOPEN:
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be opened: %s", path, system_code != 0 ? strerror(system_code) : why);
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be read or written: %s%s%s", path, why, system_code != 0 ? ": " : "",
                          system_code != 0 ? strerror(system_code) : "");
    default:
        return ESPER_FAIL(ESPER_E_IO, "%s: %s", path, why);
    }
}

/* ------------------------------------------------------------------------------------------------ composing */

void esper_store_text_add(esper_store_text *sql, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(sql->text + sql->used, sizeof(sql->text) - sql->used, format, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < sizeof(sql->text) - sql->used);
    (void)n;
    sql->used += strlen(sql->text + sql->used); /* cut short, SQLite refuses it */
}

void esper_store_text_columns(esper_store_text *sql, const esper_store_column *columns, int n)
{
    for (int i = 0; i < n; i++)
        esper_store_text_add(sql, "%s%s", i > 0 ? ", " : "", columns[i].name);
}

static void declare(esper_store_text *sql, const esper_store_column *columns, int n)
{
    for (int i = 0; i < n; i++)
        esper_store_text_add(sql, ", %s %s", columns[i].name,
                             columns[i].kind == ESPER_STORE_COLUMN_INT    ? "INTEGER"
                             : columns[i].kind == ESPER_STORE_COLUMN_REAL ? "REAL"
                                                                          : "TEXT");
}

static const char drops_sql[] = "CREATE TABLE drops (run INTEGER NOT NULL REFERENCES runs (id), records TEXT NOT NULL, "
                                "n INTEGER NOT NULL, PRIMARY KEY (run, records)) WITHOUT ROWID";

/* In the order of ESPER_FACT_SEED_FIELDS. */
static const char seeds_sql[] =
    "CREATE VIEW seeds AS WITH moves AS (SELECT * FROM stages_standing) "
    "SELECT g.run AS run, g.seed AS seed, g.slot AS slot, g.blueprint AS blueprint, g.blend AS blend, "
    "g.params AS params, g.parent_run AS parent_run, g.parent_seed AS parent_seed, "
    "coalesce(f.to_stage, (SELECT m.to_stage FROM moves AS m WHERE m.run = g.run AND m.seed = g.seed AND m.seq > g.seq "
    "ORDER BY m.seq DESC LIMIT 1), 'germinated') AS stage, "
    "g.epoch AS germinated_epoch, "
    "(SELECT min(m.epoch) FROM moves AS m WHERE m.run = g.run AND m.seed = g.seed AND m.seq > g.seq "
    "AND m.to_stage = 'blending') AS blended_epoch, "
    "CASE f.to_stage WHEN 'fossilized' THEN f.epoch END AS fossilized_epoch, "
    "CASE f.to_stage WHEN 'pruned' THEN f.epoch END AS pruned_epoch, "
    "f.initiator AS initiator, coalesce(f.reason, CASE WHEN f.seq IS NULL THEN g.reason END) AS reason, "
    "c.value AS contribution, c.lower AS contribution_lower "
    "FROM germinations_standing AS g "
    "LEFT JOIN stages AS f ON f.run = g.run AND f.seq = (SELECT m.seq FROM moves AS m WHERE m.run = g.run "
    "AND m.seed = g.seed AND m.seq > g.seq AND m.to_stage IN ('fossilized', 'pruned') ORDER BY m.seq DESC LIMIT 1) "
    "LEFT JOIN attributions AS c ON c.run = g.run AND c.seq = (SELECT a.seq FROM attributions_standing AS a "
    "WHERE a.run = g.run AND a.seed = g.seed AND a.seq > g.seq AND a.measure = 'contribution' "
    "ORDER BY a.seq DESC LIMIT 1)";

/* ------------------------------------------------------------------------------------------------ opening */

esper_status esper_store_sql_execute(sqlite3 *db, const char *path, const char *sql)
{
    ESPER_STORE_SQL(db, path, sqlite3_exec(db, sql, NULL, NULL, NULL));
    return ESPER_OK;
}

esper_status esper_store_sql_ask(sqlite3 *db, const char *path, const char *sql, const char *text, int64_t *number_out)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);

    if (code == SQLITE_OK && text != NULL)
        code = sqlite3_bind_text(statement, 1, text, -1, SQLITE_TRANSIENT);
    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code == SQLITE_ROW && sqlite3_column_type(statement, 0) != SQLITE_NULL)
        *number_out = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return code == SQLITE_ROW ? ESPER_OK : esper_store_sql_fail(db, code, path);
}

static esper_status look_through(sqlite3 *db, const char *path)
{
    sqlite3_stmt *statement;
    int64_t n_pages = 0, page_bytes = 0;
    esper_status status = ESPER_OK;
    const char *answer;
    int code;

    ESPER_TRY(esper_store_sql_ask(db, path, "PRAGMA page_count", NULL, &n_pages));
    ESPER_TRY(esper_store_sql_ask(db, path, "PRAGMA page_size", NULL, &page_bytes));
    if (n_pages * page_bytes > LOOK_THROUGH_BYTES)
        return ESPER_OK;
    ESPER_STORE_SQL(db, path, sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &statement, NULL));
    code = sqlite3_step(statement);
    answer = code == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : NULL;
    if (answer == NULL)
        status = esper_store_sql_fail(db, code == SQLITE_ROW ? SQLITE_NOMEM : code, path);
    else if (strcmp(answer, "ok") != 0)
        status = say_damaged(path, answer);
    sqlite3_finalize(statement);
    return status;
}

/* A table that is not what we think fails where rows are written; a view only where somebody reads it. */
static esper_status try_views(sqlite3 *db, const char *path, int64_t version)
{
    sqlite3_stmt *statement;
    esper_store_text sql = {.used = 0};

    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        if ((kind == ESPER_STORE_PART && version < PARTS_VERSION) ||
            (kind == ESPER_STORE_CLASS && version < CLASSES_VERSION))
            continue;
        sql.used = 0;
        esper_store_text_add(&sql, "SELECT * FROM %s%s", esper_store_table(kind),
                             esper_store_is_undone(kind) ? "_standing" : "");
        ESPER_STORE_SQL(db, path, sqlite3_prepare_v2(db, sql.text, -1, &statement, NULL));
        sqlite3_finalize(statement);
    }
    ESPER_STORE_SQL(db, path, sqlite3_prepare_v2(db, "SELECT * FROM seeds", -1, &statement, NULL));
    sqlite3_finalize(statement);
    return ESPER_OK;
}

static esper_status check_version(sqlite3 *db, const char *path, int64_t *version_out)
{
    int64_t application = 0, version = 0, n_objects = 0;

    ESPER_TRY(esper_store_sql_ask(db, path, "SELECT count(*) FROM sqlite_schema", NULL, &n_objects));
    ESPER_TRY(esper_store_sql_ask(db, path, "PRAGMA application_id", NULL, &application));
    ESPER_TRY(esper_store_sql_ask(db, path, "PRAGMA user_version", NULL, &version));
    *version_out = version;
    if (n_objects == 0 && application == 0 && version == 0)
        return ESPER_OK;
    if (application != APPLICATION_ID)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "%s: is a database of another program: choose another file for the store", path);
    if (version < ESPER_STORE_VERSION_OLDEST || version > ESPER_STORE_VERSION)
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "%s: is a store of schema version %lld, and this program writes and reads versions %d to %d: use the "
            "program that wrote it, or move the file away, and a new one will be made",
            path, (long long)version, ESPER_STORE_VERSION_OLDEST, ESPER_STORE_VERSION);
    return ESPER_OK;
}

/* What the file is: ours, of a version that we know, or empty, which is version 0; anything else is refused. */
static esper_status check_schema(sqlite3 *db, const char *path, int64_t *version_out)
{
    int64_t version = 0;

    ESPER_TRY(check_version(db, path, &version));
    *version_out = version;
    if (version == 0)
        return ESPER_OK;
    ESPER_TRY(try_views(db, path, version));
    return look_through(db, path);
}

static esper_status create_table(sqlite3 *db, const char *path, esper_store_kind kind, bool temporary)
{
    esper_store_text sql = {.used = 0};
    int n;
    const esper_store_column *columns = esper_store_columns(kind, &n);

    esper_store_text_add(&sql,
                         "CREATE %sTABLE %s (run INTEGER NOT NULL REFERENCES runs (id), seq INTEGER NOT NULL, "
                         "time REAL NOT NULL, epoch INTEGER, step INTEGER, nonfinite TEXT",
                         temporary ? "TEMP " : "", esper_store_table(kind));
    declare(&sql, columns, n);
    esper_store_text_add(&sql, ", PRIMARY KEY (run, seq)) WITHOUT ROWID");
    return esper_store_sql_execute(db, path, sql.text);
}

static esper_status create_schema(sqlite3 *db, const char *path, int64_t version)
{
    esper_store_text sql = {.used = 0};
    const esper_store_column *columns;
    int n;

    assert(version == 0);
    (void)version;
    esper_store_text_add(&sql, "CREATE TABLE runs (id INTEGER PRIMARY KEY");
    for (esper_store_part part = ESPER_STORE_PART_RUN_OWN; part <= ESPER_STORE_PART_RUN_END; part++) {
        bool first = part == ESPER_STORE_PART_RUN_OWN; /* id is declared already */

        columns = esper_store_part_columns(part, &n);
        declare(&sql, columns + first, n - first);
    }
    esper_store_text_add(&sql, ", nonfinite TEXT, config TEXT)");
    ESPER_TRY(esper_store_sql_execute(db, path, sql.text));
    ESPER_TRY(esper_store_sql_execute(db, path, drops_sql));
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        ESPER_TRY(create_table(db, path, kind, false));
    /* A row is undone when the run later went back to a snapshot from before it. Snapshots are taken between a decision and the
     * next step, so what happened at the snapshot's own step stands. What the governor did, and faults on purpose, stand
     * always: a rollback does not undo the reason for it. */
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        if (!esper_store_is_undone(kind))
            continue;
        sql.used = 0;
        esper_store_text_add(
            &sql,
            "CREATE VIEW %s_standing AS SELECT * FROM %s AS t WHERE %sNOT EXISTS (SELECT 1 FROM rollbacks AS b "
            "WHERE b.run = t.run AND b.seq > t.seq AND b.to_step < t.step)",
            esper_store_table(kind), esper_store_table(kind),
            kind == ESPER_STORE_DECISION ? "t.source IN ('governor', 'injection') OR " : "");
        ESPER_TRY(esper_store_sql_execute(db, path, sql.text));
    }
    ESPER_TRY(esper_store_sql_execute(db, path, seeds_sql));
    sql.used = 0;
    esper_store_text_add(&sql, "PRAGMA application_id = %d; PRAGMA user_version = %d", APPLICATION_ID,
                         ESPER_STORE_VERSION);
    return esper_store_sql_execute(db, path, sql.text);
}

/* What earlier versions lack. Their view rewards_standing has every column that its table has. */
static esper_status mend_schema(sqlite3 *db, const char *path, int64_t version)
{
    esper_store_text sql = {.used = 0};

    if (version < GAIN_VERSION)
        ESPER_TRY(esper_store_sql_execute(db, path, "ALTER TABLE rewards ADD COLUMN gain REAL"));
    if (version < PARTS_VERSION)
        ESPER_TRY(create_table(db, path, ESPER_STORE_PART, false));
    if (version < CLASSES_VERSION)
        ESPER_TRY(create_table(db, path, ESPER_STORE_CLASS, false));
    esper_store_text_add(&sql, "PRAGMA user_version = %d", ESPER_STORE_VERSION);
    return esper_store_sql_execute(db, path, sql.text);
}

/* The same for who only reads: tables and views as this connection sees them. */
static esper_status mend_sight(sqlite3 *db, const char *path, int64_t version)
{
    ESPER_TRY(esper_store_sql_execute(db, path, "PRAGMA query_only = OFF"));
    if (version < GAIN_VERSION)
        ESPER_TRY(esper_store_sql_execute(
            db, path,
            "CREATE TEMP VIEW rewards AS SELECT *, NULL AS gain FROM main.rewards; "
            "CREATE TEMP VIEW rewards_standing AS SELECT *, NULL AS gain FROM main.rewards_standing"));
    if (version < PARTS_VERSION)
        ESPER_TRY(create_table(db, path, ESPER_STORE_PART, true));
    if (version < CLASSES_VERSION)
        ESPER_TRY(create_table(db, path, ESPER_STORE_CLASS, true));
    return esper_store_sql_execute(db, path, "PRAGMA query_only = ON");
}

/* Readers and the writer do not wait for each other. SQLite does not use its patience for this one switch, so we do. Where
 * the file system cannot have it, the store works without. What is committed is synced: a checkpoint waits for its rows, and must not
 * outlast them. */
static esper_status switch_to_wal(sqlite3 *db, const char *path, int patience_ms)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    int code;

    for (int waited_ms = 0;; waited_ms += 10) {
        code = sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
        if ((code & 0xff) != SQLITE_BUSY || waited_ms >= patience_ms)
            break;
        nanosleep(&pause, NULL);
    }
    ESPER_STORE_SQL(db, path, code);
    return esper_store_sql_execute(db, path, "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON");
}

/* A handle comes even from a failure, and knows why. */
static esper_status open_file(const char *path, const char *name, int flags, int patience_ms, sqlite3 **db_out)
{
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(name, &db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    esper_status status;

    if (code == SQLITE_OK && db != NULL) {
        sqlite3_extended_result_codes(db, 1);
        sqlite3_busy_timeout(db, patience_ms);
        *db_out = db;
        return ESPER_OK;
    }
    status = esper_store_sql_fail(db, code, path);
    sqlite3_close(db);
    return status;
}

esper_status esper_store_sql_create(const char *path, int patience_ms, sqlite3 **db_out)
{
    sqlite3 *db = NULL;
    int64_t version = 0;
    esper_status status;

    ESPER_TRY(open_file(path, path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, patience_ms, &db));
    status = check_schema(db, path, &version);
    if (status == ESPER_OK && version < ESPER_STORE_VERSION) {
        /* another process may be doing the same: who comes second waits, and finds it done */
        status = esper_store_sql_execute(db, path, "BEGIN IMMEDIATE");
        if (status == ESPER_OK)
            status = check_schema(db, path, &version);
        if (status == ESPER_OK && version < ESPER_STORE_VERSION)
            status = (version == 0 ? create_schema : mend_schema)(db, path, version);
        if (status == ESPER_OK)
            status = esper_store_sql_execute(db, path, "COMMIT");
    }
    if (status == ESPER_OK)
        status = switch_to_wal(db, path, patience_ms);
    if (status != ESPER_OK) {
        sqlite3_close(db); /* what was begun is rolled back */
        return status;
    }
    *db_out = db;
    return ESPER_OK;
}

/* A finished store in a folder that we may not write to: WAL wants to keep files beside the database there, and with none
 * left from a writer there is nothing to see in them. So it is named "file:" + the path, with the signs that mean something in
 * such a name written as %xx, + the flag for a file that nobody changes. */
static esper_status attach_immutable(const char *path, int patience_ms, sqlite3 **db_out)
{
    sqlite3_str *text = sqlite3_str_new(NULL);
    char *name;
    esper_status status;

    sqlite3_str_appendall(text, "file:");
    for (const char *s = path; *s != '\0'; s++) {
        if (*s == '%' || *s == '?' || *s == '#')
            sqlite3_str_appendf(text, "%%%02x", (unsigned)(unsigned char)*s);
        else
            sqlite3_str_appendchar(text, 1, *s);
    }
    sqlite3_str_appendall(text, "?immutable=1");
    name = sqlite3_str_finish(text);
    if (name == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: no memory left for SQLite", path);
    status = open_file(path, name, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, patience_ms, db_out);
    sqlite3_free(name);
    return status;
}

/* Whether a writer has left anything beside the file, or is at work; readers leave an empty one behind, which says nothing. */
static bool has_wal(const char *path)
{
    struct stat info;
    char wal[4096];

    return snprintf(wal, sizeof(wal), "%s-wal", path) >= (int)sizeof(wal) ||
           (stat(wal, &info) == 0 && info.st_size > 0);
}

esper_status esper_store_sql_glance(const char *path, sqlite3 **db_out)
{
    sqlite3 *db = NULL;
    int64_t version = 0;
    esper_status status;

    if (has_wal(path))
        ESPER_TRY(open_file(path, path, SQLITE_OPEN_READWRITE, 0, &db));
    else
        ESPER_TRY(attach_immutable(path, 0, &db));
    sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL); /* what a run left stays as it is */
    sqlite3_exec(db, "PRAGMA query_only = ON", NULL, NULL, NULL);
    status = check_version(db, path, &version);
    if (status == ESPER_OK && version == 0)
        status = ESPER_FAIL(ESPER_E_FORMAT, "%s: is empty: no run was stored in it", path);
    if (status != ESPER_OK) {
        sqlite3_close(db);
        return status;
    }
    *db_out = db;
    return ESPER_OK;
}

esper_status esper_store_sql_attach(const char *path, int patience_ms, bool glance, sqlite3 **db_out)
{
    struct stat info;
    sqlite3 *db = NULL;
    esper_status status;
    int64_t version = 0;
    int code;

    if (stat(path, &info) != 0)
        return ESPER_FAIL(errno == ENOENT ? ESPER_E_NOTFOUND : ESPER_E_IO, "%s: cannot be opened: %s", path,
                          strerror(errno));
    /* Not as a reader by its flags: that one leaves the files of WAL behind, which the last to close takes away. Where we may
     * not write SQLite takes it for a reader anyway. */
    ESPER_TRY(open_file(path, path, SQLITE_OPEN_READWRITE, patience_ms, &db));
    sqlite3_exec(db, "PRAGMA query_only = ON", NULL, NULL, NULL);
    code = sqlite3_exec(db, "SELECT 1 FROM sqlite_schema", NULL, NULL, NULL) & 0xff;
    if ((code == SQLITE_CANTOPEN || code == SQLITE_READONLY) && !has_wal(path)) {
        sqlite3_close(db);
        ESPER_TRY(attach_immutable(path, patience_ms, &db));
    }
    status = (glance ? check_version : check_schema)(db, path, &version);
    if (status == ESPER_OK && version == 0)
        status = ESPER_FAIL(ESPER_E_FORMAT, "%s: is empty: no run was stored in it", path);
    if (status == ESPER_OK && version < ESPER_STORE_VERSION)
        status = mend_sight(db, path, version);
    if (status != ESPER_OK) {
        sqlite3_close(db);
        return status;
    }
    *db_out = db;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rows */

esper_status esper_store_sql_prepare_insert(sqlite3 *db, const char *path, esper_store_kind kind, sqlite3_stmt **out)
{
    esper_store_text sql = {.used = 0};
    int n, n_common;
    const esper_store_column *columns = esper_store_columns(kind, &n);
    const esper_store_column *common = esper_store_part_columns(ESPER_STORE_PART_COMMON, &n_common);

    esper_store_text_add(&sql, "INSERT INTO %s (", esper_store_table(kind));
    esper_store_text_columns(&sql, common, n_common);
    esper_store_text_add(&sql, ", nonfinite, ");
    esper_store_text_columns(&sql, columns, n);
    esper_store_text_add(&sql, ") VALUES (?");
    for (int i = 1; i < n_common + 1 + n; i++)
        esper_store_text_add(&sql, ", ?");
    esper_store_text_add(&sql, ")");
    ESPER_STORE_SQL(db, path, sqlite3_prepare_v3(db, sql.text, -1, SQLITE_PREPARE_PERSISTENT, out, NULL));
    return ESPER_OK;
}

static int bind_real(sqlite3_stmt *statement, int place, const char *name, double value, char *nonfinite)
{
    size_t used = nonfinite != NULL ? strlen(nonfinite) : 0;

    if (value != ESPER_STORE_NO_REAL && isfinite(value))
        return sqlite3_bind_double(statement, place, value);
    if (value != ESPER_STORE_NO_REAL && nonfinite != NULL)
        snprintf(nonfinite + used, ESPER_STORE_NONFINITE_CHARS - used, "%s%s=%s", used > 0 ? " " : "", name,
                 isnan(value) ? "nan"
                 : value > 0  ? "inf"
                              : "-inf");
    return sqlite3_bind_null(statement, place);
}

static int bind_text(sqlite3_stmt *statement, int place, const char *text)
{
    return text[0] == '\0' ? sqlite3_bind_null(statement, place)
                           : sqlite3_bind_text(statement, place, text, -1, SQLITE_TRANSIENT);
}

static int bind_one(sqlite3_stmt *statement, int place, const void *value, const esper_store_column *column,
                    char *nonfinite)
{
    char digits[32];

    switch (column->kind) {
    case ESPER_STORE_COLUMN_INT:
        return *(const int64_t *)value == ESPER_STORE_NO_INT
                   ? sqlite3_bind_null(statement, place)
                   : sqlite3_bind_int64(statement, place, *(const int64_t *)value);
    case ESPER_STORE_COLUMN_REAL:
        return bind_real(statement, place, column->name, *(const double *)value, nonfinite);
    case ESPER_STORE_COLUMN_TEXT:
        return bind_text(statement, place, value);
    case ESPER_STORE_COLUMN_U64:
        snprintf(digits, sizeof(digits), "%" PRIu64, *(const uint64_t *)value);
        return bind_text(statement, place, digits);
    case ESPER_STORE_COLUMN_HASH:
        if (*(const uint64_t *)value == 0)
            return sqlite3_bind_null(statement, place);
        snprintf(digits, sizeof(digits), "%016" PRIx64, *(const uint64_t *)value);
        return bind_text(statement, place, digits);
    }
    return SQLITE_MISUSE;
}

int esper_store_sql_bind(sqlite3_stmt *statement, int first, const void *base, const esper_store_column *columns, int n,
                         char *nonfinite)
{
    int code = SQLITE_OK;

    for (int i = 0; i < n && code == SQLITE_OK; i++)
        code = bind_one(statement, first + i, (const char *)base + columns[i].offset, &columns[i], nonfinite);
    return code;
}

int esper_store_sql_bind_record(sqlite3_stmt *statement, const esper_store_record *record)
{
    char nonfinite[ESPER_STORE_NONFINITE_CHARS] = "";
    int n, n_common, code;
    const esper_store_column *columns = esper_store_columns(record->kind, &n);
    const esper_store_column *common = esper_store_part_columns(ESPER_STORE_PART_COMMON, &n_common);

    code = esper_store_sql_bind(statement, 1, record, common, n_common, NULL);
    if (code == SQLITE_OK)
        code = esper_store_sql_bind(statement, n_common + 2, record, columns, n, nonfinite);
    return code != SQLITE_OK ? code : bind_text(statement, n_common + 1, nonfinite);
}

/* What a REAL that is NULL was: the word behind its name in the list, or not measured. */
static double real_behind_null(const char *name, const char *nonfinite)
{
    size_t chars = strlen(name);

    while (nonfinite != NULL && *nonfinite != '\0') {
        if (strncmp(nonfinite, name, chars) == 0 && nonfinite[chars] == '=')
            return strtod(nonfinite + chars + 1, NULL);
        nonfinite = strchr(nonfinite, ' ');
        nonfinite = nonfinite != NULL ? nonfinite + 1 : NULL;
    }
    return ESPER_STORE_NO_REAL;
}

static void read_one(sqlite3_stmt *statement, int place, void *value, const esper_store_column *column,
                     const char *nonfinite)
{
    bool is_null = sqlite3_column_type(statement, place) == SQLITE_NULL;
    const char *text;

    switch (column->kind) {
    case ESPER_STORE_COLUMN_INT:
        *(int64_t *)value = is_null ? ESPER_STORE_NO_INT : sqlite3_column_int64(statement, place);
        return;
    case ESPER_STORE_COLUMN_REAL:
        *(double *)value =
            is_null ? real_behind_null(column->name, nonfinite) : sqlite3_column_double(statement, place);
        return;
    case ESPER_STORE_COLUMN_TEXT:
        esper_store_set(value, column->bytes, (const char *)sqlite3_column_text(statement, place));
        return;
    case ESPER_STORE_COLUMN_U64:
    case ESPER_STORE_COLUMN_HASH:
        text = (const char *)sqlite3_column_text(statement, place);
        *(uint64_t *)value = text == NULL ? 0 : strtoull(text, NULL, column->kind == ESPER_STORE_COLUMN_HASH ? 16 : 10);
        return;
    }
}

void esper_store_sql_read(sqlite3_stmt *statement, int first, void *base, const esper_store_column *columns, int n,
                          const char *nonfinite)
{
    for (int i = 0; i < n; i++)
        read_one(statement, first + i, (char *)base + columns[i].offset, &columns[i], nonfinite);
}
