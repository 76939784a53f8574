/* One run for the index: from its store, or from its events where it keeps none. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "run/index_internal.h"
#include "telemetry/store_sql.h"

/* In the order of the columns from `kind` on; then `ended` and `changed`. The first run of a store is the one that the others belong to. What is
 * asked for here has been there since the first release. */
static const char run_sql[] =
    "WITH r AS (SELECT * FROM runs ORDER BY id LIMIT 1), "
    "e AS (SELECT * FROM epochs WHERE run = (SELECT id FROM r) ORDER BY seq DESC LIMIT 1), "
    "u AS (SELECT * FROM updates WHERE run = (SELECT id FROM r) ORDER BY seq DESC LIMIT 1), "
    "c AS (SELECT * FROM runs WHERE parent_run = (SELECT id FROM r) AND relation = 'static-control' "
    "ORDER BY ended IS NULL, id DESC LIMIT 1) "
    "SELECT CASE r.policy WHEN 'learner' THEN 'learn' ELSE 'grow' END, "
    "CASE WHEN r.ended IS NULL THEN 'cut off' WHEN r.status = 'ESPER_OK' THEN 'done' "
    "WHEN r.status = 'ESPER_E_STOPPED' THEN 'stopped' ELSE 'failed' END, "
    "r.task, r.policy, ?1, r.rng_seed, r.began, r.seconds, "
    "coalesce(r.epochs, (SELECT epoch FROM e), (SELECT round FROM u)), "
    "coalesce((SELECT acc_valid FROM e), (SELECT acc_mean FROM u)), "
    "coalesce((SELECT max(acc_valid) FROM epochs WHERE run = r.id), (SELECT max(acc_mean) FROM updates WHERE run = r.id)), "
    "r.acc_test, (SELECT loss_valid FROM e), "
    "coalesce(r.params, (SELECT params FROM e), (SELECT CAST(params_mean AS INT) FROM u)), r.params_host, "
    "coalesce(r.flops_train, (SELECT flops_train FROM e)), "
    "0, 0, 0, "
    "(SELECT count(*) FROM rollbacks WHERE run = r.id), "
    "coalesce(r.total_reward, (SELECT return_mean FROM u)), (SELECT acc_test FROM c), (SELECT params FROM c), "
    "r.kernels, r.build, NULL, r.ended, coalesce((SELECT time FROM e), (SELECT time FROM u), r.began) FROM r";

/* The rest takes SQLite longer to understand than to answer, and most stores have nothing there. */
static const char any_seeds_sql[] = "SELECT EXISTS (SELECT 1 FROM germinations)";
static const char any_trials_sql[] = "SELECT EXISTS (SELECT 1 FROM decisions WHERE source = 'trial')";

/* How it went: of a learner by round, of others by epoch. */
static const char points_sql[] = "SELECT return_mean FROM updates WHERE run = (SELECT min(id) FROM runs) UNION ALL "
                                 "SELECT acc_valid FROM epochs_standing WHERE run = (SELECT min(id) FROM runs) "
                                 "AND NOT EXISTS (SELECT 1 FROM updates WHERE run = (SELECT min(id) FROM runs))";

/* Seeds are counted where they have been copied to. */
static const char count_sql[] =
    "UPDATE runs SET (n_seeds, n_kept, n_pruned) = (SELECT count(*), count(fossilized_epoch), count(pruned_epoch) "
    "FROM seeds WHERE seeds.run = runs.run) WHERE run = ?";

/* A fork's line of the decision log has what it gained; one that was cut short is no JSON any more. */
static const char seeds_sql[] =
    "SELECT s.seed, s.slot, s.blueprint, s.params, s.stage, s.germinated_epoch, s.fossilized_epoch, s.pruned_epoch, "
    "(SELECT json_extract(d.line, '$.gain') FROM decisions AS d WHERE d.run = s.run AND d.source = 'trial' "
    "AND d.slot = s.slot AND d.blueprint = s.blueprint AND d.epoch <= s.germinated_epoch AND json_valid(d.line) "
    "ORDER BY d.seq DESC LIMIT 1), s.contribution "
    "FROM seeds AS s WHERE s.run = (SELECT min(id) FROM runs)";

static const char trials_sql[] =
    "SELECT number, epoch, slot, blueprint, json_extract(line, '$.gain'), json_extract(line, '$.error'), "
    "json_extract(line, '$.flops') FROM decisions_standing WHERE run = (SELECT min(id) FROM runs) "
    "AND source = 'trial' AND slot IS NOT NULL AND json_valid(line)";

/* ------------------------------------------------------------------------------------------------ rows */

/* Of a run, ?1; with a text as ?2, or NULL. */
static esper_status execute_of(esper_index *index, const char *sql, const char *run, const char *text)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(index->db, sql, -1, &statement, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_bind_text(statement, 1, run, -1, SQLITE_STATIC);
    if (code == SQLITE_OK && text != NULL)
        code = sqlite3_bind_text(statement, 2, text, -1, SQLITE_STATIC);
    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    sqlite3_finalize(statement);
    return code == SQLITE_DONE ? ESPER_OK : esper_store_sql_fail(index->db, code, index->path);
}

/* Hands the values of a row of one database to a statement of the other, from that place on. */
static int hand_over(sqlite3_stmt *from, sqlite3_stmt *to, int first)
{
    int code = SQLITE_OK;

    for (int i = 0; i < sqlite3_column_count(from) && code == SQLITE_OK; i++)
        code = sqlite3_bind_value(to, first + i, sqlite3_column_value(from, i));
    return code;
}

/* All rows that a query finds in the store, into a table of the index, behind the name of the run. store_code_out: what went wrong
 * there, which is no failure of the index. */
static esper_status copy_rows(esper_index *index, sqlite3 *store, const char *run, const char *query,
                              const char *insert, int *store_code_out)
{
    sqlite3_stmt *from = NULL, *to = NULL;
    int code = sqlite3_prepare_v2(index->db, insert, -1, &to, NULL);

    *store_code_out = sqlite3_prepare_v2(store, query, -1, &from, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_bind_text(to, 1, run, -1, SQLITE_STATIC);
    while (code == SQLITE_OK && (*store_code_out == SQLITE_OK || *store_code_out == SQLITE_ROW)) {
        *store_code_out = sqlite3_step(from);
        if (*store_code_out != SQLITE_ROW)
            break;
        code = hand_over(from, to, 2);
        if (code == SQLITE_OK)
            code = sqlite3_step(to) == SQLITE_DONE ? SQLITE_OK : sqlite3_errcode(index->db);
        sqlite3_reset(to);
    }
    if (*store_code_out == SQLITE_DONE)
        *store_code_out = SQLITE_OK;
    sqlite3_finalize(from);
    sqlite3_finalize(to);
    return code == SQLITE_OK ? ESPER_OK : esper_store_sql_fail(index->db, code, index->path);
}

static bool is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/");

    return name[0] != '\0' && name[n] == '\0' && n < ESPER_INDEX_ID_CHARS;
}

/* "INSERT INTO runs (run, stamp, id, kind, ..., problem, ended, changed) VALUES (?, ?, ...)". */
static esper_status prepare_run(esper_index *index, const char *run, const char *stamp, sqlite3_stmt **out)
{
    esper_store_text sql = {.used = 0};
    char hash[32];
    int code;

    esper_store_text_add(&sql, "INSERT INTO runs (run, stamp, id");
    for (int i = ESPER_INDEX_kind; i < ESPER_INDEX_N_COLUMNS; i++)
        esper_store_text_add(&sql, ", %s", esper_index_column_name((esper_index_column)i));
    esper_store_text_add(&sql, ", ended, changed) VALUES (?, ?, ?, ?, ?");
    for (int i = ESPER_INDEX_kind; i < ESPER_INDEX_N_COLUMNS; i++)
        esper_store_text_add(&sql, ", ?");
    esper_store_text_add(&sql, ")");
    code = sqlite3_prepare_v2(index->db, sql.text, -1, out, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_bind_text(*out, 1, run, -1, SQLITE_STATIC);
    if (code == SQLITE_OK)
        code = sqlite3_bind_text(*out, 2, stamp, -1, SQLITE_STATIC);
    snprintf(hash, sizeof(hash), "~%016" PRIx64, (uint64_t)XXH3_64bits(run, strlen(run)));
    if (code == SQLITE_OK)
        code = sqlite3_bind_text(*out, 3, is_plain(run) ? run : hash, -1, SQLITE_TRANSIENT);
    return code == SQLITE_OK ? ESPER_OK : esper_store_sql_fail(index->db, code, index->path);
}

/* Where a column is bound in that statement. */
static int place_of(esper_index_column column)
{
    return (int)column - ESPER_INDEX_kind + 4;
}

static esper_status step(esper_index *index, sqlite3_stmt *insert)
{
    return sqlite3_step(insert) == SQLITE_DONE
               ? ESPER_OK
               : esper_store_sql_fail(index->db, sqlite3_errcode(index->db), index->path);
}

/* ------------------------------------------------------------------------------------------------ files beside it */

/* Tags with commas between them; "" = none. The file is sorted (esper_index_tag). */
static void read_tags(const char *dir, char *tags, size_t room)
{
    char path[ESPER_PATH_CHARS], *text = NULL;
    size_t bytes, used = 0;

    tags[0] = '\0';
    if (esper_run_path(dir, ESPER_INDEX_TAGS, path) != ESPER_OK ||
        esper_file_read(path, room - 1, &text, &bytes) != ESPER_OK)
        return;
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\n')
            tags[used++] = text[i];
        else if (used > 0 && tags[used - 1] != ',' && i + 1 < bytes)
            tags[used++] = ',';
    tags[used] = '\0';
    esper_mem_free(text);
}

/* ------------------------------------------------------------------------------------------------ a store */

/* The row of a store; its number of rows in *n_out. */
static esper_status copy_run(esper_index *index, sqlite3 *store, const char *tags, sqlite3_stmt *insert, int *n_out,
                             int *store_code_out)
{
    sqlite3_stmt *query = NULL;
    esper_status status = ESPER_OK;

    *n_out = 0;
    *store_code_out = sqlite3_prepare_v2(store, run_sql, -1, &query, NULL);
    if (*store_code_out == SQLITE_OK && tags[0] != '\0')
        *store_code_out = sqlite3_bind_text(query, 1, tags, -1, SQLITE_STATIC);
    if (*store_code_out == SQLITE_OK)
        *store_code_out = sqlite3_step(query);
    if (*store_code_out == SQLITE_ROW) {
        int code = hand_over(query, insert, place_of(ESPER_INDEX_kind));

        status = code == SQLITE_OK ? step(index, insert) : esper_store_sql_fail(index->db, code, index->path);
        *store_code_out = SQLITE_OK;
        *n_out = 1;
    } else if (*store_code_out == SQLITE_DONE) {
        *store_code_out = SQLITE_OK;
    }
    sqlite3_finalize(query);
    return status;
}

/* A few of the numbers that a query finds, from the first to the last. What is not a number has been measured and lost: it is
 * left out. */
static int sample(sqlite3_stmt *query, esper_page *points)
{
    enum { MOST_POINTS = 40 };
    int64_t n = 0, n_shown, next = 0;
    int code;

    while ((code = sqlite3_step(query)) == SQLITE_ROW)
        n++;
    if (code != SQLITE_DONE)
        return code;
    sqlite3_reset(query);
    n_shown = n < MOST_POINTS ? n : MOST_POINTS;
    for (int64_t i = 0; (code = sqlite3_step(query)) == SQLITE_ROW; i++) {
        if (i != (n_shown > 1 ? next * (n - 1) / (n_shown - 1) : 0))
            continue;
        next++;
        if (sqlite3_column_type(query, 0) == SQLITE_FLOAT)
            esper_page_print(points, "%s%.5g", points->used > 0 ? "," : "", sqlite3_column_double(query, 0));
    }
    return code;
}

/* How the run went, into its row. */
static esper_status put_points(esper_index *index, sqlite3 *store, const char *run, int *store_code_out)
{
    sqlite3_stmt *query = NULL;
    esper_page points = {0};
    esper_status status;
    int code = sqlite3_prepare_v2(store, points_sql, -1, &query, NULL);

    if (code == SQLITE_OK)
        code = sample(query, &points);
    sqlite3_finalize(query);
    *store_code_out = code == SQLITE_DONE ? SQLITE_OK : code;
    status = points.status;
    if (status == ESPER_OK && points.used > 0)
        status = execute_of(index, "UPDATE runs SET points = ?2 WHERE run = ?1", run, points.text);
    esper_page_fini(&points);
    return status;
}

/* E_FORMAT and the like: the store cannot be read, and why is the last error; has_row_out: its run has a row nevertheless. */
static esper_status read_store(esper_index *index, const char *run, const char *dir, const char *tags,
                               sqlite3_stmt *insert, bool *readable_out, int *n_out)
{
    static const struct {
        const char *any, *query, *insert;
    } tables[] = {{any_seeds_sql, seeds_sql, "INSERT OR REPLACE INTO seeds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
                  {any_trials_sql, trials_sql, "INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)"}};
    char path[ESPER_PATH_CHARS];
    esper_status status = ESPER_OK;
    sqlite3 *store = NULL;
    int code = SQLITE_OK;

    *n_out = 0;
    *readable_out =
        esper_run_path(dir, ESPER_RUN_STORE, path) == ESPER_OK && esper_store_sql_glance(path, &store) == ESPER_OK;
    if (!*readable_out)
        return ESPER_OK;
    status = copy_run(index, store, tags, insert, n_out, &code);
    if (status == ESPER_OK && code == SQLITE_OK && *n_out > 0)
        status = put_points(index, store, run, &code);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && status == ESPER_OK && code == SQLITE_OK; i++) {
        int64_t any = 1;

        (void)esper_store_sql_ask(store, path, tables[i].any, NULL, &any); /* a failure is met again, and told */
        if (any != 0)
            status = copy_rows(index, store, run, tables[i].query, tables[i].insert, &code);
        if (any != 0 && i == 0 && status == ESPER_OK)
            status = execute_of(index, count_sql, run, NULL);
    }
    if (code != SQLITE_OK) {
        (void)esper_store_sql_fail(store, code, path); /* which is the last error now */
        *readable_out = false;
    }
    sqlite3_close(store);
    return status;
}

/* ------------------------------------------------------------------------------------------------ events */

/* The beginning and the end of a file, as text; a run's first event is in the one, its last ones in the other. */
static esper_status read_ends(const char *path, char **text_out)
{
    enum { HEAD = 1 << 16, TAIL = 1 << 16 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = esper_mem_alloc(HEAD + TAIL + 2);
    struct stat info;
    ssize_t head, tail = 0;

    if (fd < 0 || text == NULL || fstat(fd, &info) != 0 || (head = pread(fd, text, HEAD, 0)) < 0) {
        if (fd >= 0)
            close(fd);
        esper_mem_free(text);
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    }
    if (info.st_size > HEAD) {
        off_t from = info.st_size - TAIL > HEAD ? info.st_size - TAIL : HEAD;

        if (from > HEAD)
            text[head++] = '\n'; /* what was left out may end within a line */
        tail = pread(fd, text + head, TAIL, from);
    }
    text[head + (tail > 0 ? tail : 0)] = '\0';
    close(fd);
    *text_out = text;
    return ESPER_OK;
}

static void bind_member(sqlite3_stmt *insert, esper_index_column column, const json_t *event, const char *name)
{
    const json_t *value = json_object_get(event, name);
    int place = place_of(column);

    if (json_is_integer(value))
        sqlite3_bind_int64(insert, place, json_integer_value(value));
    else if (json_is_real(value))
        sqlite3_bind_double(insert, place, json_real_value(value));
    else if (json_is_string(value) && column != ESPER_INDEX_acc_test && column != ESPER_INDEX_acc_valid &&
             column != ESPER_INDEX_loss_valid) /* there, "nan" */
        sqlite3_bind_text(insert, place, json_string_value(value), -1, SQLITE_TRANSIENT);
}

static void take_event(sqlite3_stmt *insert, const json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event")), *status;

    if (name == NULL)
        return;
    if (strcmp(name, "run_started") == 0) {
        bind_member(insert, ESPER_INDEX_task, event, "task");
        bind_member(insert, ESPER_INDEX_rng_seed, event, "seed");
        bind_member(insert, ESPER_INDEX_began, event, "time");
        bind_member(insert, ESPER_INDEX_params, event, "params");
        bind_member(insert, ESPER_INDEX_params_host, event, "params");
        bind_member(insert, ESPER_INDEX_kernels, event, "kernels");
        bind_member(insert, ESPER_INDEX_build, event, "commit");
    } else if (strcmp(name, "run_resumed") == 0) {
        sqlite3_bind_text(insert, place_of(ESPER_INDEX_state), "cut off", -1, SQLITE_STATIC);
    } else if (strcmp(name, "epoch_ended") == 0) {
        bind_member(insert, ESPER_INDEX_epochs, event, "epoch");
        bind_member(insert, ESPER_INDEX_acc_valid, event, "acc_valid");
        bind_member(insert, ESPER_INDEX_loss_valid, event, "loss_valid");
    } else if (strcmp(name, "run_ended") == 0) {
        status = json_string_value(json_object_get(event, "status"));
        status = status == NULL                           ? "failed"
                 : strcmp(status, "ESPER_OK") == 0        ? "done"
                 : strcmp(status, "ESPER_E_STOPPED") == 0 ? "stopped"
                                                          : "failed";
        sqlite3_bind_text(insert, place_of(ESPER_INDEX_state), status, -1, SQLITE_STATIC);
        bind_member(insert, ESPER_INDEX_epochs, event, "epochs");
        bind_member(insert, ESPER_INDEX_acc_test, event, "acc_test");
        bind_member(insert, ESPER_INDEX_seconds, event, "seconds");
    }
}

static esper_status read_events(const char *dir, const char *tags, sqlite3_stmt *insert)
{
    char path[ESPER_PATH_CHARS], *text = NULL, *rest, *line;

    ESPER_TRY(esper_run_path(dir, ESPER_RUN_EVENTS, path));
    ESPER_TRY(read_ends(path, &text));
    sqlite3_bind_text(insert, place_of(ESPER_INDEX_kind), "train", -1, SQLITE_STATIC);
    sqlite3_bind_text(insert, place_of(ESPER_INDEX_state), "cut off", -1, SQLITE_STATIC);
    if (tags[0] != '\0')
        sqlite3_bind_text(insert, place_of(ESPER_INDEX_tags), tags, -1, SQLITE_TRANSIENT);
    for (rest = text; (line = strsep(&rest, "\n")) != NULL;) {
        json_t *event = line[0] == '{' ? json_loads(line, 0, NULL) : NULL;

        if (event != NULL)
            take_event(insert, event);
        json_decref(event);
    }
    esper_mem_free(text);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ either */

static esper_status remove_rows(esper_index *index, const char *run)
{
    ESPER_TRY(execute_of(index, "DELETE FROM runs WHERE run = ?", run, NULL));
    ESPER_TRY(execute_of(index, "DELETE FROM seeds WHERE run = ?", run, NULL));
    return execute_of(index, "DELETE FROM trials WHERE run = ?", run, NULL);
}

/* A row that says no more than that there is a run, and why. */
static esper_status put_problem(esper_index *index, const char *tags, sqlite3_stmt *insert, const char *why)
{
    sqlite3_bind_text(insert, place_of(ESPER_INDEX_state), "unreadable", -1, SQLITE_STATIC);
    sqlite3_bind_text(insert, place_of(ESPER_INDEX_problem), why, -1, SQLITE_TRANSIENT);
    if (tags[0] != '\0')
        sqlite3_bind_text(insert, place_of(ESPER_INDEX_tags), tags, -1, SQLITE_TRANSIENT);
    index->news.n_unreadable++;
    return step(index, insert);
}

esper_status esper_index_read_run(esper_index *index, const char *run, const char *dir, const char *stamp,
                                  bool has_store)
{
    enum { TAGS_CHARS = 4096 };
    sqlite3_stmt *insert = NULL;
    char tags[TAGS_CHARS], why[512] = "nothing has been recorded in it yet";
    bool readable = true;
    esper_status status;
    int n = 0;

    read_tags(dir, tags, sizeof(tags));
    ESPER_TRY(remove_rows(index, run));
    status = prepare_run(index, run, stamp, &insert);
    if (status == ESPER_OK && has_store) {
        status = read_store(index, run, dir, tags, insert, &readable, &n);
        if (!readable)
            snprintf(why, sizeof(why), "%s", esper_last_error());
        if (status == ESPER_OK && n == 0)
            status = put_problem(index, tags, insert, why);
    } else if (status == ESPER_OK) {
        status = read_events(dir, tags, insert);
        status = status == ESPER_OK ? step(index, insert) : put_problem(index, tags, insert, esper_last_error());
    }
    sqlite3_finalize(insert);
    return status;
}
