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

/* Columns of a row that lie together, in the order they are asked for. */
typedef struct part {
    const esper_store_column *columns;
    int                       n;
} part;

struct esper_store_cursor {
    esper_store_reader *reader;
    sqlite3_stmt       *statement;
    cursor_kind         kind;
    esper_store_kind    table; /* of RECORDS */
    part                parts[3];
    int                 n_parts;
};

void esper_store_reader_close(esper_store_reader *reader)
{
    if (reader == NULL)
        return;
    sqlite3_close(reader->db);
    esper_mem_free(reader->path);
    esper_mem_free(reader);
}

static esper_status open_reader(const char *path, bool glance, esper_store_reader **reader_out)
{
    esper_store_reader *reader = esper_mem_alloc(sizeof(*reader));
    esper_status status;

    if (reader == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", path);
    reader->path = esper_mem_strdup(path);
    status = reader->path != NULL ? esper_store_sql_attach(path, PATIENCE_MS, glance, &reader->db)
                                  : ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", path);
    if (status != ESPER_OK) {
        esper_store_reader_close(reader);
        return status;
    }
    *reader_out = reader;
    return ESPER_OK;
}

esper_status esper_store_reader_open(const char *path, esper_store_reader **reader_out)
{
    return open_reader(path, false, reader_out);
}

esper_status esper_store_reader_glance(const char *path, esper_store_reader **reader_out)
{
    return open_reader(path, true, reader_out);
}

/* ------------------------------------------------------------------------------------------------ cursors */

/* "SELECT nonfinite, <columns of all parts> FROM <from>". Seeds have no column nonfinite: NULL in its place. */
static esper_status open_cursor(esper_store_reader *reader, const esper_store_cursor *wanted, const char *from,
                                esper_store_cursor **cursor_out)
{
    esper_store_text sql = {.used = 0};
    esper_store_cursor *cursor = esper_mem_alloc(sizeof(*cursor));
    int code;

    if (cursor == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: cursor", reader->path);
    *cursor = *wanted;
    cursor->reader = reader;
    esper_store_text_add(&sql, "SELECT %s", cursor->kind == SEEDS ? "NULL" : "nonfinite");
    for (int i = 0; i < cursor->n_parts; i++) {
        esper_store_text_add(&sql, ", ");
        esper_store_text_columns(&sql, cursor->parts[i].columns, cursor->parts[i].n);
    }
    esper_store_text_add(&sql, " FROM %s", from);
    code = sqlite3_prepare_v2(reader->db, sql.text, -1, &cursor->statement, NULL);
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

/* Numbers are written into the text: they need no quoting. */
static esper_status add_condition(esper_store_text *sql, esper_store_kind kind, const char *name, int64_t value)
{
    int n;
    const esper_store_column *columns = esper_store_columns(kind, &n);

    if (value == ESPER_STORE_ANY)
        return ESPER_OK;
    for (int i = 0; i < n; i++)
        if (strcmp(columns[i].name, name) == 0 && columns[i].kind == ESPER_STORE_COLUMN_INT) {
            esper_store_text_add(sql, " AND %s = %lld", name, (long long)value);
            return ESPER_OK;
        }
    return ESPER_FAIL(ESPER_E_ARG, "rows of %s cannot be chosen by %s: the table has no such number",
                      esper_store_table(kind), name);
}

esper_status esper_store_read(esper_store_reader *reader, esper_store_kind kind, const esper_store_filter *filter,
                              esper_store_cursor **cursor_out)
{
    esper_store_cursor wanted = {.kind = RECORDS, .table = kind, .n_parts = 2};
    esper_store_text from = {.used = 0};
    bool standing = filter->standing && esper_store_is_undone(kind);

    wanted.parts[0].columns = esper_store_part_columns(ESPER_STORE_PART_COMMON, &wanted.parts[0].n);
    wanted.parts[1].columns = esper_store_columns(kind, &wanted.parts[1].n);
    esper_store_text_add(&from, "%s%s WHERE run = %lld", esper_store_table(kind), standing ? "_standing" : "",
                         (long long)filter->run);
    ESPER_TRY(add_condition(&from, kind, "seed", filter->seed));
    ESPER_TRY(add_condition(&from, kind, "gate", filter->gate));
    if (filter->since > 0)
        esper_store_text_add(&from, " AND seq >= %lld", (long long)filter->since);
    esper_store_text_add(&from, " ORDER BY seq");
    return open_cursor(reader, &wanted, from.text, cursor_out);
}

esper_status esper_store_read_runs(esper_store_reader *reader, esper_store_cursor **cursor_out)
{
    esper_store_cursor wanted = {.kind = RUNS, .n_parts = 3};

    _Static_assert(ESPER_STORE_PART_RUN_END == 2, "the parts of a run come first");
    for (int i = 0; i < wanted.n_parts; i++)
        wanted.parts[i].columns = esper_store_part_columns((esper_store_part)i, &wanted.parts[i].n);
    return open_cursor(reader, &wanted, "runs ORDER BY id", cursor_out);
}

esper_status esper_store_read_seeds(esper_store_reader *reader, int64_t run, esper_store_cursor **cursor_out)
{
    esper_store_cursor wanted = {.kind = SEEDS, .n_parts = 1};
    esper_store_text from = {.used = 0};

    wanted.parts[0].columns = esper_store_part_columns(ESPER_STORE_PART_SEED, &wanted.parts[0].n);
    esper_store_text_add(&from, "seeds");
    if (run != ESPER_STORE_ANY)
        esper_store_text_add(&from, " WHERE run = %lld", (long long)run);
    esper_store_text_add(&from, " ORDER BY run, seed");
    return open_cursor(reader, &wanted, from.text, cursor_out);
}

/* SQLite gives NULL for a text it finds no memory for, so that is asked in the end. */
static esper_status next(esper_store_cursor *cursor, cursor_kind kind, void *row_out, bool *found_out)
{
    sqlite3 *db = cursor->reader->db;
    int code = sqlite3_step(cursor->statement), first = 1;

    assert(cursor->kind == kind);
    (void)kind;
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        return esper_store_sql_fail(db, code, cursor->reader->path);
    for (int i = 0; code == SQLITE_ROW && i < cursor->n_parts; first += cursor->parts[i++].n)
        esper_store_sql_read(cursor->statement, first, row_out, cursor->parts[i].columns, cursor->parts[i].n,
                             (const char *)sqlite3_column_text(cursor->statement, 0));
    *found_out = code == SQLITE_ROW;
    return sqlite3_errcode(db) == SQLITE_NOMEM ? esper_store_sql_fail(db, SQLITE_NOMEM, cursor->reader->path)
                                               : ESPER_OK;
}

esper_status esper_store_next(esper_store_cursor *cursor, esper_store_record *record_out, bool *found_out)
{
    esper_store_record record = esper_store_record_of(cursor->table, 0, 0);
    bool found = false;

    ESPER_TRY(next(cursor, RECORDS, &record, &found));
    if (found)
        *record_out = record;
    *found_out = found;
    return ESPER_OK;
}

esper_status esper_store_next_run(esper_store_cursor *cursor, esper_store_run *run_out, bool *found_out)
{
    return next(cursor, RUNS, run_out, found_out);
}

esper_status esper_store_next_seed(esper_store_cursor *cursor, esper_store_seed *seed_out, bool *found_out)
{
    return next(cursor, SEEDS, seed_out, found_out);
}

/* ------------------------------------------------------------------------------------------------ single answers */

esper_status esper_store_last_seq(esper_store_reader *reader, esper_store_kind kind, int64_t run, int64_t *seq_out)
{
    bool all = kind == ESPER_STORE_N_KINDS;
    int64_t last = -1;

    for (esper_store_kind k = all ? 0 : kind; k < (all ? ESPER_STORE_N_KINDS : kind + 1); k++) {
        esper_store_text sql = {.used = 0};
        int64_t seq = -1;

        esper_store_text_add(&sql, "SELECT max(seq) FROM %s WHERE run = %lld", esper_store_table(k), (long long)run);
        ESPER_TRY(esper_store_sql_ask(reader->db, reader->path, sql.text, NULL, &seq));
        last = seq > last ? seq : last;
    }
    *seq_out = last;
    return ESPER_OK;
}

esper_status esper_store_find_run(esper_store_reader *reader, int64_t parent, const char *relation,
                                  esper_store_run *run_out, bool *found_out)
{
    esper_store_run row = esper_store_run_of("");
    esper_store_cursor *cursor;
    esper_status status;
    bool more = true;

    *found_out = false;
    ESPER_TRY(esper_store_read_runs(reader, &cursor));
    while ((status = esper_store_next_run(cursor, &row, &more)) == ESPER_OK && more)
        if (relation == NULL || (row.parent_run == parent && strcmp(row.relation, relation) == 0)) {
            *run_out = row;
            *found_out = true;
        }
    esper_store_cursor_close(cursor);
    return status;
}

esper_status esper_store_read_config(esper_store_reader *reader, int64_t run, char **config_out)
{
    static const char sql[] = "SELECT coalesce(config, '') FROM runs WHERE id = ?";
    sqlite3_stmt *statement;
    esper_status status = ESPER_OK;
    char *config = NULL;
    int code;

    ESPER_STORE_SQL(reader->db, reader->path, sqlite3_prepare_v2(reader->db, sql, -1, &statement, NULL));
    code = sqlite3_bind_int64(statement, 1, run);
    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code == SQLITE_ROW)
        config = esper_mem_strdup((const char *)sqlite3_column_text(statement, 0));
    if (code == SQLITE_DONE)
        status = ESPER_FAIL(ESPER_E_NOTFOUND, "%s: has no run %lld", reader->path, (long long)run);
    else if (code != SQLITE_ROW)
        status = esper_store_sql_fail(reader->db, code, reader->path);
    else if (config == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "%s: configuration of run %lld", reader->path, (long long)run);
    else
        *config_out = config;
    sqlite3_finalize(statement);
    return status;
}

esper_status esper_store_read_drops(esper_store_reader *reader, int64_t run, uint64_t *n_out)
{
    uint64_t n[ESPER_STORE_N_KINDS] = {0};
    const char *name;
    sqlite3_stmt *statement;
    int code;

    ESPER_STORE_SQL(reader->db, reader->path,
                    sqlite3_prepare_v2(reader->db, "SELECT records, n FROM drops WHERE run = ?", -1, &statement, NULL));
    code = sqlite3_bind_int64(statement, 1, run);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        name = code == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : NULL;
        for (esper_store_kind kind = 0; name != NULL && kind < ESPER_STORE_N_KINDS; kind++)
            if (strcmp(name, esper_store_table(kind)) == 0)
                n[kind] = (uint64_t)sqlite3_column_int64(statement, 1);
    }
    sqlite3_finalize(statement);
    if (code != SQLITE_DONE)
        return esper_store_sql_fail(reader->db, code, reader->path);
    memcpy(n_out, n, sizeof(n));
    return ESPER_OK;
}
