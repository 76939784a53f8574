/* The store's reading side: queries composed from the list, and cursors over their rows. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "telemetry/store_sql.h"

enum { PATIENCE_MS = 5000 };

struct esper_store_reader {
    sqlite3 *db;
    char    *path;
};

typedef enum cursor_kind { RECORDS, RUNS, SEEDS } cursor_kind;

struct esper_store_cursor {
    esper_store_reader *reader;
    sqlite3_stmt       *statement;
    cursor_kind         kind;
    esper_store_kind    table; /* of RECORDS */
};

void esper_store_reader_close(esper_store_reader *reader)
{
    if (reader == NULL)
        return;
    sqlite3_close(reader->db);
    esper_mem_free(reader->path);
    esper_mem_free(reader);
}

esper_status esper_store_reader_open(const char *path, esper_store_reader **reader_out)
{
    esper_store_reader *reader = esper_mem_alloc(sizeof(*reader));
    esper_status status;

    if (reader == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", path);
    reader->path = esper_mem_strdup(path);
    status = reader->path != NULL ? esper_store_sql_attach(path, PATIENCE_MS, &reader->db)
                                  : ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", path);
    if (status != ESPER_OK) {
        esper_store_reader_close(reader);
        return status;
    }
    *reader_out = reader;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ cursors */

static esper_status open_cursor(esper_store_reader *reader, cursor_kind kind, const esper_store_text *sql,
                                esper_store_cursor **cursor_out)
{
    esper_store_cursor *cursor = esper_mem_alloc(sizeof(*cursor));
    int code;

    if (cursor == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: cursor", reader->path);
    cursor->reader = reader;
    cursor->kind = kind;
    code = sqlite3_prepare_v2(reader->db, sql->text, -1, &cursor->statement, NULL);
    if (code != SQLITE_OK) {
        esper_mem_free(cursor);
        return esper_store_sql_fail(reader->db, code, reader->path);
    }
    *cursor_out = cursor;
    return ESPER_OK;
}

void esper_store_cursor_close(esper_store_cursor *cursor)
{
    if (cursor == NULL)
        return;
    sqlite3_finalize(cursor->statement);
    esper_mem_free(cursor);
}

static bool has_column(esper_store_kind kind, const char *name)
{
    int n;
    const esper_store_column *columns = esper_store_columns(kind, &n);

    for (int i = 0; i < n; i++)
        if (strcmp(columns[i].name, name) == 0)
            return columns[i].kind == ESPER_STORE_COLUMN_INT;
    return false;
}

/* Numbers are written into the text: they need no quoting. */
static esper_status add_condition(esper_store_text *sql, esper_store_kind kind, const char *name, int64_t value)
{
    if (value == ESPER_STORE_ANY)
        return ESPER_OK;
    if (!has_column(kind, name))
        return ESPER_FAIL(ESPER_E_ARG, "rows of %s cannot be chosen by %s: the table has no such number",
                          esper_store_table(kind), name);
    esper_store_text_add(sql, " AND %s = %lld", name, (long long)value);
    return ESPER_OK;
}

esper_status esper_store_read(esper_store_reader *reader, esper_store_kind kind, const esper_store_filter *filter,
                              esper_store_cursor **cursor_out)
{
    esper_store_text sql = {.used = 0};
    int n, n_common;
    const esper_store_column *columns = esper_store_columns(kind, &n);
    const esper_store_column *common = esper_store_common_columns(&n_common);
    bool standing = filter->standing && esper_store_is_undone(kind);

    esper_store_text_add(&sql, "SELECT ");
    esper_store_text_columns(&sql, common, n_common, "");
    esper_store_text_add(&sql, ", nonfinite, ");
    esper_store_text_columns(&sql, columns, n, "");
    esper_store_text_add(&sql, " FROM %s%s WHERE run = %lld", esper_store_table(kind), standing ? "_standing" : "",
                         (long long)filter->run);
    ESPER_TRY(add_condition(&sql, kind, "seed", filter->seed));
    ESPER_TRY(add_condition(&sql, kind, "gate", filter->gate));
    esper_store_text_add(&sql, " ORDER BY seq");
    ESPER_TRY(open_cursor(reader, RECORDS, &sql, cursor_out));
    (*cursor_out)->table = kind;
    return ESPER_OK;
}

esper_status esper_store_read_runs(esper_store_reader *reader, esper_store_cursor **cursor_out)
{
    esper_store_text sql = {.used = 0};

    esper_store_text_add(&sql, "SELECT nonfinite");
    for (esper_store_part part = ESPER_STORE_PART_RUN_OWN; part <= ESPER_STORE_PART_RUN_END; part++) {
        int n;
        const esper_store_column *columns = esper_store_part_columns(part, &n);

        esper_store_text_add(&sql, ", ");
        esper_store_text_columns(&sql, columns, n, "");
    }
    esper_store_text_add(&sql, " FROM runs ORDER BY id");
    return open_cursor(reader, RUNS, &sql, cursor_out);
}

esper_status esper_store_read_seeds(esper_store_reader *reader, int64_t run, esper_store_cursor **cursor_out)
{
    esper_store_text sql = {.used = 0};
    int n;
    const esper_store_column *columns = esper_store_part_columns(ESPER_STORE_PART_SEED, &n);

    esper_store_text_add(&sql, "SELECT ");
    esper_store_text_columns(&sql, columns, n, "");
    esper_store_text_add(&sql, " FROM seeds");
    if (run != ESPER_STORE_ANY)
        esper_store_text_add(&sql, " WHERE run = %lld", (long long)run);
    esper_store_text_add(&sql, " ORDER BY run, seed");
    return open_cursor(reader, SEEDS, &sql, cursor_out);
}

/* SQLite gives NULL for a text it finds no memory for. */
static esper_status check_memory(const esper_store_cursor *cursor)
{
    if (sqlite3_errcode(cursor->reader->db) == SQLITE_NOMEM)
        return esper_store_sql_fail(cursor->reader->db, SQLITE_NOMEM, cursor->reader->path);
    return ESPER_OK;
}

static esper_status step(esper_store_cursor *cursor, bool *found_out)
{
    int code = sqlite3_step(cursor->statement);

    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return esper_store_sql_fail(cursor->reader->db, code, cursor->reader->path);
    *found_out = code == SQLITE_ROW;
    return ESPER_OK;
}

esper_status esper_store_next(esper_store_cursor *cursor, esper_store_record *record_out, bool *found_out)
{
    int n, n_common;
    const esper_store_column *columns, *common = esper_store_common_columns(&n_common);
    const char *nonfinite;
    bool found = false;

    assert(cursor->kind == RECORDS);
    ESPER_TRY(step(cursor, &found));
    if (found) {
        columns = esper_store_columns(cursor->table, &n);
        *record_out = esper_store_record_of(cursor->table, 0, 0);
        nonfinite = (const char *)sqlite3_column_text(cursor->statement, n_common);
        esper_store_sql_read(cursor->statement, 0, record_out, common, n_common, NULL);
        esper_store_sql_read(cursor->statement, n_common + 1, record_out, columns, n, nonfinite);
    }
    *found_out = found;
    return check_memory(cursor);
}

esper_status esper_store_next_run(esper_store_cursor *cursor, esper_store_run *run_out, bool *found_out)
{
    const char *nonfinite;
    int first = 1;
    bool found = false;

    assert(cursor->kind == RUNS);
    ESPER_TRY(step(cursor, &found));
    if (found) {
        nonfinite = (const char *)sqlite3_column_text(cursor->statement, 0);
        for (esper_store_part part = ESPER_STORE_PART_RUN_OWN; part <= ESPER_STORE_PART_RUN_END; part++) {
            int n;
            const esper_store_column *columns = esper_store_part_columns(part, &n);

            esper_store_sql_read(cursor->statement, first, run_out, columns, n, nonfinite);
            first += n;
        }
    }
    *found_out = found;
    return check_memory(cursor);
}

esper_status esper_store_next_seed(esper_store_cursor *cursor, esper_store_seed *seed_out, bool *found_out)
{
    int n;
    const esper_store_column *columns = esper_store_part_columns(ESPER_STORE_PART_SEED, &n);
    bool found = false;

    assert(cursor->kind == SEEDS);
    ESPER_TRY(step(cursor, &found));
    if (found)
        esper_store_sql_read(cursor->statement, 0, seed_out, columns, n, NULL);
    *found_out = found;
    return check_memory(cursor);
}

/* ------------------------------------------------------------------------------------------------ single answers */

static esper_status copy_config(esper_store_reader *reader, int64_t run, sqlite3_stmt *statement, char **config_out)
{
    int code = sqlite3_bind_int64(statement, 1, run);
    char *config;

    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code == SQLITE_DONE)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s: has no run %lld", reader->path, (long long)run);
    if (code != SQLITE_ROW)
        return esper_store_sql_fail(reader->db, code, reader->path);
    config = esper_mem_strdup((const char *)sqlite3_column_text(statement, 0));
    if (config == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: configuration of run %lld", reader->path, (long long)run);
    *config_out = config;
    return ESPER_OK;
}

esper_status esper_store_read_config(esper_store_reader *reader, int64_t run, char **config_out)
{
    static const char sql[] = "SELECT coalesce(config, '') FROM runs WHERE id = ?";
    sqlite3_stmt *statement;
    esper_status status;

    ESPER_STORE_SQL(reader->db, reader->path, sqlite3_prepare_v2(reader->db, sql, -1, &statement, NULL));
    status = copy_config(reader, run, statement, config_out);
    sqlite3_finalize(statement);
    return status;
}

static void count_drop(sqlite3_stmt *statement, uint64_t *n_out)
{
    const char *name = (const char *)sqlite3_column_text(statement, 0);

    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        if (name != NULL && strcmp(name, esper_store_table(kind)) == 0)
            n_out[kind] = (uint64_t)sqlite3_column_int64(statement, 1);
}

esper_status esper_store_read_drops(esper_store_reader *reader, int64_t run, uint64_t *n_out)
{
    uint64_t n[ESPER_STORE_N_KINDS] = {0};
    sqlite3_stmt *statement;
    int code;

    ESPER_STORE_SQL(reader->db, reader->path,
                    sqlite3_prepare_v2(reader->db, "SELECT records, n FROM drops WHERE run = ?", -1, &statement, NULL));
    code = sqlite3_bind_int64(statement, 1, run);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        if (code == SQLITE_ROW)
            count_drop(statement, n);
    }
    sqlite3_finalize(statement);
    if (code != SQLITE_DONE)
        return esper_store_sql_fail(reader->db, code, reader->path);
    memcpy(n_out, n, sizeof(n));
    return ESPER_OK;
}
