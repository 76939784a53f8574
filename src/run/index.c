/* The index of all runs: which stores have changed, what is taken from them, and asking. */
#include "run/index.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "run/index_internal.h"
#include "telemetry/store_sql.h"

enum {
    INDEX_ID = 0x45737049, /* "EspI" */
    INDEX_VERSION = 2,
    PATIENCE_MS = 5000,  /* for another process that brings it up to date */
    DEEPEST = 3,         /* directories between the root and a run */
    STORES_AT_ONCE = 64, /* in a transaction */
    MOST_LOCKS = 4096,
};

static const struct {
    const char *name, *meaning;
    bool is_text;
} columns[ESPER_INDEX_N_COLUMNS] = {
#define TEXT                   true
#define REAL                   false
#define INT                    false
#define X(kind, name, meaning) {#name, meaning, kind},
    ESPER_INDEX_COLUMN_LIST(X)
#undef X
#undef TEXT
#undef REAL
#undef INT
};

const char *esper_index_column_name(esper_index_column column)
{
    return columns[column].name;
}

const char *esper_index_column_meaning(esper_index_column column)
{
    return columns[column].meaning;
}

/* ------------------------------------------------------------------------------------------------ opening */

static const char schema[] = "CREATE TABLE runs (id TEXT, stamp TEXT, ended REAL, changed REAL, points TEXT, "
#define X(kind, name, meaning) #name " " #kind ", "
    ESPER_INDEX_COLUMN_LIST(X)
#undef X
        "PRIMARY KEY (run)) WITHOUT ROWID;"
        "CREATE TABLE seeds (run TEXT, seed INT, slot TEXT, blueprint TEXT, params INT, stage TEXT, germinated_epoch INT, "
        "fossilized_epoch INT, pruned_epoch INT, gain REAL, dependence REAL, PRIMARY KEY (run, seed)) WITHOUT ROWID;"
        "CREATE INDEX runs_by_id ON runs (id);"
        "CREATE TABLE trials (run TEXT, number INT, epoch INT, slot TEXT, blueprint TEXT, gain REAL, error REAL, flops REAL, "
        "PRIMARY KEY (run, number)) WITHOUT ROWID;";

static esper_status execute(esper_index *index, const char *sql)
{
    return esper_store_sql_execute(index->db, index->path, sql);
}

/* Makes the tables, unless they are there. E_FORMAT: it is something else, or of another version. */
static esper_status make_schema(esper_index *index)
{
    int64_t version = 0, application = 0, n_objects = 0, n_tables = 0;
    char mark[96];

    snprintf(mark, sizeof(mark), "PRAGMA application_id = %d; PRAGMA user_version = %d", INDEX_ID, INDEX_VERSION);
    ESPER_TRY(execute(index, "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; BEGIN IMMEDIATE"));
    ESPER_TRY(esper_store_sql_ask(index->db, index->path, "SELECT count(*) FROM sqlite_schema", NULL, &n_objects));
    ESPER_TRY(esper_store_sql_ask(index->db, index->path, "PRAGMA application_id", NULL, &application));
    ESPER_TRY(esper_store_sql_ask(index->db, index->path, "PRAGMA user_version", NULL, &version));
    ESPER_TRY(esper_store_sql_ask(index->db, index->path,
                                  "SELECT count(*) FROM sqlite_schema WHERE name IN ('runs', 'seeds', 'trials')", NULL,
                                  &n_tables));
    if (n_objects > 0 && (application != INDEX_ID || version != INDEX_VERSION || n_tables != 3))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: is no index of this version", index->path);
    if (n_objects == 0) {
        ESPER_TRY(execute(index, schema));
        ESPER_TRY(execute(index, mark));
    }
    return execute(index, "COMMIT");
}

static esper_status open_database(esper_index *index, const char *path)
{
    int code =
        sqlite3_open_v2(path, &index->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    esper_status status;

    snprintf(index->path, sizeof(index->path), "%s", path);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(index->db, PATIENCE_MS);
        status = make_schema(index);
    } else {
        status = esper_store_sql_fail(index->db, code, path);
    }
    if (status != ESPER_OK) {
        sqlite3_close(index->db);
        index->db = NULL;
    }
    return status;
}

/* A cache that is no good is removed, and made anew. */
static esper_status replace(esper_index *index, const char *path)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char name[ESPER_PATH_CHARS + 8];

    sqlite3_close(index->db);
    index->db = NULL;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", path, endings[i]);
        unlink(name);
    }
    return open_database(index, path);
}

static bool holds(const char *dir, const char *file)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    return esper_run_path(dir, file, path) == ESPER_OK && lstat(path, &info) == 0 && S_ISREG(info.st_mode);
}

esper_status esper_index_open(const char *root, esper_index **index_out)
{
    esper_index *index = esper_mem_alloc(sizeof(*index));
    char path[ESPER_PATH_CHARS];
    struct stat info;
    esper_status status;

    if (index == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: index", root);
    *index = (esper_index){.db = NULL};
    status = esper_run_path(root, ESPER_INDEX_FILE, path);
    snprintf(index->root, sizeof(index->root), "%s", root);
    if (status == ESPER_OK && (stat(root, &info) != 0 || holds(root, ESPER_RUN_STORE) || holds(root, ESPER_RUN_EVENTS)))
        status =
            open_database(index, ":memory:"); /* nothing is made for a look where no runs are yet, nor within a run */
    else if (status == ESPER_OK) {
        status = open_database(index, path);
        if (status == ESPER_E_FORMAT)
            status = replace(index, path);
        if (status != ESPER_OK)
            status = open_database(index, ":memory:");
    }
    if (status != ESPER_OK) {
        esper_index_close(index);
        return status;
    }
    *index_out = index;
    return ESPER_OK;
}

void esper_index_close(esper_index *index)
{
    if (index == NULL)
        return;
    sqlite3_close(index->db);
    esper_mem_free(index);
}

/* ------------------------------------------------------------------------------------------------ what there is */

/* What tells that a run has changed: size and time of the files it is read from. Times of files go on in ticks of some
 * milliseconds, and a log that is written over keeps its size: a file that was changed just now gets a stamp that no later look finds
 * again. */
static void add_stamp(const char *dir, const char *file, char stamp[INDEX_STAMP_CHARS])
{
    const double just_now = 0.03; /* seconds */
    char path[ESPER_PATH_CHARS];
    size_t used = strlen(stamp);
    struct timespec now;
    struct stat info;

    clock_gettime(CLOCK_REALTIME, &now);
    if (esper_run_path(dir, file, path) == ESPER_OK && stat(path, &info) == 0) {
        double age = (double)(now.tv_sec - info.st_mtim.tv_sec) + 1e-9 * (double)(now.tv_nsec - info.st_mtim.tv_nsec);

        used += (size_t)snprintf(stamp + used, INDEX_STAMP_CHARS - used, "%lld.%09ld:%lld ",
                                 (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec, (long long)info.st_size);
        if (age > -just_now && age < just_now)
            snprintf(stamp + used, INDEX_STAMP_CHARS - used, "%09ld ", now.tv_nsec);
    } else {
        snprintf(stamp + used, INDEX_STAMP_CHARS - used, "- ");
    }
}

/* A number that is asked for, of a run: a stamp that is the same, which is 1. */
static esper_status is_known(esper_index *index, const char *run, const char *stamp, bool *known_out)
{
    sqlite3_stmt *statement = index->find;

    sqlite3_reset(statement);
    ESPER_STORE_SQL(index->db, index->path, sqlite3_bind_text(statement, 1, run, -1, SQLITE_STATIC));
    ESPER_STORE_SQL(index->db, index->path, sqlite3_bind_text(statement, 2, stamp, -1, SQLITE_STATIC));
    ESPER_STORE_SQL(index->db, index->path, sqlite3_step(statement));
    *known_out = sqlite3_column_int(statement, 0) > 0;
    sqlite3_reset(statement);
    return ESPER_OK;
}

static esper_status mark_seen(esper_index *index, const char *run)
{
    sqlite3_reset(index->see);
    ESPER_STORE_SQL(index->db, index->path, sqlite3_bind_text(index->see, 1, run, -1, SQLITE_STATIC));
    ESPER_STORE_SQL(index->db, index->path, sqlite3_step(index->see));
    sqlite3_reset(index->see);
    return ESPER_OK;
}

/* A run's directory: its rows, if they are not what they were. */
static esper_status take_run(esper_index *index, const char *run, const char *dir, bool has_store)
{
    char stamp[INDEX_STAMP_CHARS] = "";
    bool known = false;

    add_stamp(dir, has_store ? ESPER_RUN_STORE : ESPER_RUN_EVENTS, stamp);
    if (has_store)
        add_stamp(dir, ESPER_RUN_STORE "-wal", stamp);
    add_stamp(dir, ESPER_INDEX_TAGS, stamp);
    index->news.n_runs++;
    ESPER_TRY(mark_seen(index, run));
    ESPER_TRY(is_known(index, run, stamp, &known));
    if (known)
        return ESPER_OK;
    index->news.n_read++;
    if (index->news.n_read % STORES_AT_ONCE == 0)
        ESPER_TRY(execute(index, "COMMIT; BEGIN IMMEDIATE"));
    return esper_index_read_run(index, run, dir, stamp, has_store);
}

static bool is_dir(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* A run is what holds a store or events; nothing below it is another one. */
static esper_status walk_dir(esper_index *index, const char *dir, const char *run, int depth)
{
    bool has_store = holds(dir, ESPER_RUN_STORE), is_root = run[0] == '\0';
    const struct dirent *entry;
    esper_status status = ESPER_OK;
    DIR *handle;

    if (has_store || holds(dir, ESPER_RUN_EVENTS))
        return take_run(index, is_root ? "." : run, dir, has_store);
    if (depth > DEEPEST)
        return ESPER_OK;
    handle = opendir(dir);
    if (handle == NULL) /* one below that is not ours to read is none of our runs */
        return !is_root || errno == ENOENT ? ESPER_OK : esper_file_fail("cannot be listed", dir);
    while (status == ESPER_OK && (entry = readdir(handle)) != NULL) {
        char path[ESPER_PATH_CHARS], name[ESPER_PATH_CHARS];

        if (entry->d_name[0] == '.' || (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) ||
            esper_run_path(dir, entry->d_name, path) != ESPER_OK || !is_dir(path) ||
            snprintf(name, sizeof(name), "%s%s%s", run, is_root ? "" : "/", entry->d_name) >= (int)sizeof(name))
            continue;
        status = walk_dir(index, path, name, depth + 1);
    }
    closedir(handle);
    return status;
}

/* ------------------------------------------------------------------------------------------------ who is at work */

/* A run holds a lock on its directory, and the system lists who holds which: "5: FLOCK  ADVISORY  WRITE 4711 fe:00:1835010 0 EOF".
 * Asking for the lock ourselves could keep a run that begins just then from it. File systems that are layered have another device
 * number in that list; the number of the inode decides, among directories of runs. */
static int read_locks(ino_t locks[MOST_LOCKS])
{
    FILE *file = fopen("/proc/locks", "re");
    char line[256];
    int n = 0;

    while (file != NULL && n < MOST_LOCKS && fgets(line, sizeof(line), file) != NULL) {
        unsigned long long inode;

        if (sscanf(line, "%*d: FLOCK %*s WRITE %*d %*x:%*x:%llu", &inode) == 1)
            locks[n++] = (ino_t)inode;
    }
    if (file != NULL)
        fclose(file);
    return n;
}

static bool is_locked(const ino_t *locks, int n, const char *dir)
{
    struct stat info;

    if (stat(dir, &info) != 0)
        return false;
    for (int i = 0; i < n; i++)
        if (locks[i] == info.st_ino)
            return true;
    return false;
}

bool esper_index_is_running(const char *run_dir)
{
    ino_t locks[MOST_LOCKS];

    return is_locked(locks, read_locks(locks), run_dir);
}

/* Of runs that have not ended: whether they run. */
static esper_status settle_states(esper_index *index)
{
    sqlite3_stmt *open = NULL, *set = NULL;
    char dir[2 * ESPER_PATH_CHARS];
    ino_t locks[MOST_LOCKS];
    int code, n_locks = read_locks(locks);

    ESPER_STORE_SQL(index->db, index->path,
                    sqlite3_prepare_v2(index->db, "SELECT run, state FROM runs WHERE state IN ('running', 'cut off')",
                                       -1, &open, NULL));
    code = sqlite3_prepare_v2(index->db, "UPDATE runs SET state = ? WHERE run = ?", -1, &set, NULL);
    while (code == SQLITE_OK && (code = sqlite3_step(open)) == SQLITE_ROW) {
        const char *run = (const char *)sqlite3_column_text(open, 0), *state;

        snprintf(dir, sizeof(dir), "%s/%s", index->root, run);
        state = is_locked(locks, n_locks, dir) ? "running" : "cut off";
        code = SQLITE_OK;
        if (strcmp((const char *)sqlite3_column_text(open, 1), state) == 0)
            continue;
        index->news.any = true;
        sqlite3_bind_text(set, 1, state, -1, SQLITE_STATIC);
        sqlite3_bind_text(set, 2, run, -1, SQLITE_TRANSIENT);
        code = sqlite3_step(set) == SQLITE_DONE ? SQLITE_OK : sqlite3_errcode(index->db);
        sqlite3_reset(set);
    }
    sqlite3_finalize(open);
    sqlite3_finalize(set);
    return code == SQLITE_DONE ? ESPER_OK : esper_store_sql_fail(index->db, code, index->path);
}

/* ------------------------------------------------------------------------------------------------ bringing up to date */

static esper_status refresh(esper_index *index)
{
    int64_t n_gone = 0, version = index->known_version;

    ESPER_TRY(
        execute(index, "CREATE TEMP TABLE IF NOT EXISTS seen (run TEXT PRIMARY KEY) WITHOUT ROWID; DELETE FROM seen"));
    ESPER_STORE_SQL(
        index->db, index->path,
        sqlite3_prepare_v2(index->db, "SELECT count(*) FROM runs WHERE run = ? AND stamp = ?", -1, &index->find, NULL));
    ESPER_STORE_SQL(index->db, index->path,
                    sqlite3_prepare_v2(index->db, "INSERT OR IGNORE INTO seen VALUES (?)", -1, &index->see, NULL));
    ESPER_TRY(execute(index, "BEGIN IMMEDIATE")); /* whoever comes second finds it done */
    ESPER_TRY(esper_store_sql_ask(index->db, index->path, "PRAGMA data_version", NULL, &version));
    ESPER_TRY(walk_dir(index, index->root, "", 0));
    ESPER_TRY(esper_store_sql_ask(index->db, index->path,
                                  "SELECT count(*) FROM runs WHERE run NOT IN (SELECT run FROM seen)", NULL, &n_gone));
    index->news.n_gone = (int)n_gone;
    if (n_gone > 0)
        ESPER_TRY(execute(index, "DELETE FROM seeds WHERE run NOT IN (SELECT run FROM seen); "
                                 "DELETE FROM trials WHERE run NOT IN (SELECT run FROM seen); "
                                 "DELETE FROM runs WHERE run NOT IN (SELECT run FROM seen)"));
    ESPER_TRY(settle_states(index));
    ESPER_TRY(execute(index, "COMMIT"));
    index->news.any |= index->news.n_read > 0 || n_gone > 0 || version != index->known_version;
    index->known_version = version;
    return ESPER_OK;
}

static esper_status try_refresh(esper_index *index)
{
    esper_status status;

    index->news = (esper_index_news){0};
    status = refresh(index);
    sqlite3_finalize(index->find);
    sqlite3_finalize(index->see);
    index->find = index->see = NULL;
    if (status != ESPER_OK)
        sqlite3_exec(index->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

esper_status esper_index_refresh(esper_index *index, esper_index_news *news_out)
{
    esper_status status = try_refresh(index);
    char path[ESPER_PATH_CHARS];

    if (status == ESPER_E_FORMAT) { /* it is damaged where opening did not look */
        snprintf(path, sizeof(path), "%s", index->path);
        ESPER_TRY(replace(index, path));
        status = try_refresh(index);
    }
    if (status == ESPER_OK && news_out != NULL)
        *news_out = index->news;
    return status;
}

/* ------------------------------------------------------------------------------------------------ asking */

esper_status esper_index_find(esper_index *index, const char *id, char run_out[ESPER_PATH_CHARS])
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(index->db, "SELECT run FROM runs WHERE id = ?", -1, &statement, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code == SQLITE_ROW)
        snprintf(run_out, ESPER_PATH_CHARS, "%s", (const char *)sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    if (code == SQLITE_ROW)
        return ESPER_OK;
    return code == SQLITE_DONE ? ESPER_FAIL(ESPER_E_NOTFOUND, "there is no such run")
                               : esper_store_sql_fail(index->db, code, index->path);
}

static int find_column(const char *name, size_t chars)
{
    for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
        if (strlen(columns[i].name) == chars && strncmp(columns[i].name, name, chars) == 0)
            return i;
    return -1;
}

static esper_status fail_column(const char *name, size_t chars)
{
    esper_page page = {0};
    esper_status status;

    for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
        esper_page_print(&page, "%s%s", i > 0 ? ", " : "", columns[i].name);
    status = ESPER_FAIL(ESPER_E_ARG, "'%.*s' is no column of runs; there are %s", (int)chars, name,
                        page.text != NULL ? page.text : "others");
    esper_page_fini(&page);
    return status;
}

#define SIGNS "=!<>~"

static const char *find_sign(const char *at)
{
    static const char *const signs[] = {"!=", "<=", ">=", "=", "<", ">", "~"};

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (strncmp(at, signs[i], strlen(signs[i])) == 0)
            return signs[i];
    return NULL;
}

/* One condition of a filter as SQL; its value is bound as ?n. */
static esper_status add_condition(const char *text, size_t chars, int n, esper_page *sql)
{
    size_t name = strcspn(text, SIGNS);
    const char *sign = name < chars ? find_sign(text + name) : NULL;
    char value[64], *end = value;
    int column;

    if (sign == NULL)
        return ESPER_FAIL(ESPER_E_ARG,
                          "'%.*s' is no condition: write a column, one of = != < <= > >= ~, and a value, such as "
                          "acc_test>=90",
                          (int)chars, text);
    if (strncmp(text, "tag", name) == 0 && name == 3) {
        if (strcmp(sign, "=") != 0 && strcmp(sign, "!=") != 0)
            return ESPER_FAIL(ESPER_E_ARG, "'%.*s': a tag is there (=) or not (!=)", (int)chars, text);
        esper_page_print(sql, " AND instr(',' || coalesce(tags, '') || ',', ',' || ?%d || ',') %s 0", n,
                         strcmp(sign, "=") == 0 ? ">" : "=");
        return ESPER_OK;
    }
    column = find_column(text, name);
    if (column < 0)
        return fail_column(text, name);
    snprintf(value, sizeof(value), "%.*s", (int)(chars - name - strlen(sign)), text + name + strlen(sign));
    if (!columns[column].is_text && sign[0] != '~' && (strtod(value, &end), end == value || *end != '\0'))
        return ESPER_FAIL(ESPER_E_ARG, "'%.*s': %s is a number, and '%s' is none", (int)chars, text,
                          columns[column].name, value);
    if (sign[0] == '~')
        esper_page_print(sql, " AND instr(coalesce(%s, ''), ?%d) > 0", columns[column].name, n);
    else
        esper_page_print(sql, columns[column].is_text ? " AND %s %s ?%d" : " AND %s %s CAST(?%d AS REAL)",
                         columns[column].name, strcmp(sign, "!=") == 0 ? "IS NOT" : sign, n);
    return ESPER_OK;
}

static esper_status compose(const esper_index_query *query, esper_page *sql)
{
    const char *text = query->filter != NULL ? query->filter : "";
    const char *sort = query->sort != NULL && query->sort[0] != '\0' ? query->sort : "began";
    int column = find_column(sort, strlen(sort));

    if (column < 0)
        return fail_column(sort, strlen(sort));
    esper_page_print(sql, "SELECT ");
    for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
        esper_page_print(sql, "%s%s", i > 0 ? ", " : "", columns[i].name);
    esper_page_print(sql, " FROM runs WHERE 1");
    for (int n = 1; *text != '\0'; n++) {
        size_t chars = strcspn(text, ",");

        ESPER_TRY(add_condition(text, chars, n, sql));
        text += chars + (text[chars] == ',');
    }
    esper_page_print(sql, " ORDER BY %s IS NULL, %s %s, run LIMIT %d", sort, sort,
                     columns[column].is_text == query->reverse ? "DESC" : "ASC", query->most > 0 ? query->most : -1);
    return sql->status;
}

/* The values of the filter, as they stand behind their signs. */
static int bind_values(sqlite3_stmt *statement, const char *text)
{
    int code = SQLITE_OK;

    for (int n = 1; text != NULL && *text != '\0' && code == SQLITE_OK; n++) {
        size_t chars = strcspn(text, ","), begin = strcspn(text, SIGNS);

        begin += strlen(find_sign(text + begin)); /* there is one: it has become SQL */
        code = sqlite3_bind_text(statement, n, text + begin, (int)(chars - begin), SQLITE_TRANSIENT);
        text += chars + (text[chars] == ',');
    }
    return code;
}

static esper_status prepare(esper_index *index, const esper_index_query *query, sqlite3_stmt **statement_out)
{
    esper_page sql = {0};
    esper_status status = compose(query, &sql);
    int code = SQLITE_OK;

    if (status == ESPER_OK) {
        code = sqlite3_prepare_v2(index->db, sql.text, -1, statement_out, NULL);
        if (code == SQLITE_OK)
            code = bind_values(*statement_out, query->filter);
        if (code != SQLITE_OK)
            status = esper_store_sql_fail(index->db, code, index->path);
    }
    esper_page_fini(&sql);
    return status;
}

esper_status esper_index_list(esper_index *index, const esper_index_query *query, esper_index_take take, void *to)
{
    const char *texts[ESPER_INDEX_N_COLUMNS];
    sqlite3_stmt *statement = NULL;
    esper_status status = prepare(index, query, &statement);
    int code = SQLITE_DONE;

    while (status == ESPER_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
            texts[i] = (const char *)sqlite3_column_text(statement, i);
        status = take(to, texts);
    }
    if (status == ESPER_OK && code != SQLITE_DONE)
        status = esper_store_sql_fail(index->db, code, index->path);
    sqlite3_finalize(statement);
    return status;
}

/* A row as an object. The room is for texts that are escaped whole. */
static esper_status put_row(sqlite3_stmt *statement, esper_page *page)
{
    size_t room = 256;
    char *text;
    esper_json json;

    for (int i = 0; i < sqlite3_column_count(statement); i++)
        room += 64 + 6 * strlen(sqlite3_column_name(statement, i)) + 6 * (size_t)sqlite3_column_bytes(statement, i);
    text = esper_mem_alloc(room);
    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a row of the index");
    esper_json_init(&json, text, room);
    esper_json_object_begin(&json);
    for (int i = 0; i < sqlite3_column_count(statement); i++) {
        esper_json_key(&json, sqlite3_column_name(statement, i));
        switch (sqlite3_column_type(statement, i)) {
        case SQLITE_INTEGER:
            esper_json_int(&json, sqlite3_column_int64(statement, i));
            break;
        case SQLITE_FLOAT:
            esper_json_real(&json, sqlite3_column_double(statement, i));
            break;
        default: /* NULL gives null */
            esper_json_text(&json, (const char *)sqlite3_column_text(statement, i));
            break;
        }
    }
    esper_json_object_end(&json);
    assert(!json.overflow);
    esper_page_print(page, "%s", text);
    esper_mem_free(text);
    return page->status;
}

static esper_status put_rows(esper_index *index, sqlite3_stmt *statement, esper_page *page)
{
    esper_status status = ESPER_OK;
    int code = SQLITE_DONE, n = 0;

    esper_page_print(page, "[");
    while (status == ESPER_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        esper_page_print(page, n++ > 0 ? ",\n" : "\n");
        status = put_row(statement, page);
    }
    esper_page_print(page, "\n]\n");
    if (status == ESPER_OK && code != SQLITE_DONE)
        status = ESPER_FAIL(ESPER_E_ARG, "the query fails: %s", sqlite3_errmsg(index->db));
    return status == ESPER_OK ? page->status : status;
}

esper_status esper_index_json(esper_index *index, const esper_index_query *query, esper_page *page)
{
    sqlite3_stmt *statement = NULL;
    esper_status status = prepare(index, query, &statement);

    if (status == ESPER_OK)
        status = put_rows(index, statement, page);
    sqlite3_finalize(statement);
    return status;
}

esper_status esper_index_ask(esper_index *index, const char *sql, esper_page *page)
{
    sqlite3_stmt *statement = NULL;
    const char *rest = NULL;
    esper_status status;

    if (sqlite3_prepare_v2(index->db, sql, -1, &statement, &rest) != SQLITE_OK)
        return ESPER_FAIL(ESPER_E_ARG, "SQLite does not understand the query: %s", sqlite3_errmsg(index->db));
    if (statement == NULL || !sqlite3_stmt_readonly(statement) || sqlite3_column_count(statement) == 0)
        status = ESPER_FAIL(ESPER_E_ARG, "expected one SELECT: the index is only asked");
    else if (rest[strspn(rest, " \t\n;")] != '\0')
        status = ESPER_FAIL(ESPER_E_ARG, "one query at a time: '%.40s' is too much", rest);
    else
        status = put_rows(index, statement, page);
    sqlite3_finalize(statement);
    return status;
}

/* ------------------------------------------------------------------------------------------------ tags */

static bool is_tag(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:");

    return n > 0 && n <= 40 && text[n] == '\0';
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The lines of the file with or without the one; sorted, each once. */
esper_status esper_index_tag(const char *run_dir, const char *tag, bool remove)
{
    enum { MOST_TAGS = 64, MOST_BYTES = 1 << 16 };
    const char *tags[MOST_TAGS + 1];
    char path[ESPER_PATH_CHARS], *text = NULL, *rest, *line;
    esper_page page = {0};
    esper_status status;
    size_t bytes;
    int n = 0;

    if (!is_tag(tag))
        return ESPER_FAIL(ESPER_E_ARG,
                          "'%s' is no tag: expected a word of at most 40 letters, digits, '-', '_', '.' and ':'", tag);
    ESPER_TRY(esper_run_path(run_dir, ESPER_INDEX_TAGS, path));
    status = esper_file_read(path, MOST_BYTES, &text, &bytes);
    if (status != ESPER_OK && status != ESPER_E_NOTFOUND)
        return status;
    for (rest = text; rest != NULL && (line = strsep(&rest, "\n")) != NULL && n < MOST_TAGS;)
        if (is_tag(line) && strcmp(line, tag) != 0)
            tags[n++] = line;
    if (!remove)
        tags[n++] = tag;
    qsort(tags, (size_t)n, sizeof(tags[0]), compare_texts);
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(tags[i], tags[i - 1]) != 0)
            esper_page_print(&page, "%s\n", tags[i]);
    status = page.status != ESPER_OK ? page.status : esper_file_write(path, n > 0 ? page.text : "", page.used);
    esper_page_fini(&page);
    esper_mem_free(text);
    return status;
}
