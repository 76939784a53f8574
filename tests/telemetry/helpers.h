/* Internal to tests/telemetry. Stores to write and to look into, and records with something in every column. */
#ifndef ESPER_TESTS_TELEMETRY_HELPERS_H
#define ESPER_TESTS_TELEMETRY_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/mem.h"
#include "base/status.h"
#include "telemetry/store.h"
#include "telemetry/store_sql.h"

static inline void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* `words`: separated by "|", all of them in the message. */
static inline void check_fails(esper_status status, esper_status expected, const char *words)
{
    char copy[512], *rest = copy, *word;

    if (status != expected)
        fail_msg("%s (%s), expected %s", esper_status_name(status), esper_last_error(), esper_status_name(expected));
    snprintf(copy, sizeof(copy), "%s", words);
    while ((word = strsep(&rest, "|")) != NULL)
        if (strstr(esper_last_error(), word) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), word);
}

static inline uint64_t live_blocks(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

static inline void remove_store(const char *path)
{
    char name[256];

    unlink(path);
    snprintf(name, sizeof(name), "%s-wal", path);
    unlink(name);
    snprintf(name, sizeof(name), "%s-shm", path);
    unlink(name);
}

/* Something different in every column, from a number. */
static inline void fill_columns(void *base, const esper_store_column *columns, int n, int64_t number)
{
    for (int i = 0; i < n; i++) {
        void *field = (char *)base + columns[i].offset;

        number = (number * 7 + i + 1) % 1000003;
        switch (columns[i].kind) {
        case ESPER_STORE_COLUMN_INT:
            *(int64_t *)field = number % 100000;
            break;
        case ESPER_STORE_COLUMN_REAL:
            *(double *)field = (double)(number % 1000) + 0.1;
            break;
        case ESPER_STORE_COLUMN_TEXT:
            snprintf(field, columns[i].bytes, "%.3s%d", columns[i].name, (int)(number % 100));
            memset((char *)field + strlen(field), 0, columns[i].bytes - strlen(field));
            break;
        case ESPER_STORE_COLUMN_U64:
        case ESPER_STORE_COLUMN_HASH:
            *(uint64_t *)field = 0x9e3779b97f4a7c15u * (uint64_t)number; /* beyond 63 bits, too */
            break;
        }
    }
}

static inline esper_store_record filled_record(esper_store_kind kind, int64_t epoch, int64_t step, int64_t number)
{
    esper_store_record record = esper_store_record_of(kind, epoch, step);
    int n;
    const esper_store_column *columns = esper_store_columns(kind, &n);

    fill_columns(&record, columns, n, number);
    return record;
}

static inline esper_store *open_store(const char *path, const esper_store_options *options)
{
    esper_store *store = NULL;

    check_good(esper_store_open(path, options, &store));
    return store;
}

static inline esper_store *begin_store(const char *path, const esper_store_options *options, const char *name)
{
    esper_store *store = open_store(path, options);
    esper_store_run run = esper_store_run_of(name);
    int64_t id;

    check_good(esper_store_begin(store, &run, NULL, &id));
    return store;
}

static inline esper_store_filter all_of(int64_t run)
{
    return (esper_store_filter){.run = run, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
}

/* How many rows a query gives through a connection of our own, and the first column of the first as a number. */
static inline int count_rows(const char *path, const char *sql, int64_t *first_out)
{
    sqlite3_stmt *statement;
    sqlite3 *db;
    int n = 0, code;

    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        if (n++ == 0 && first_out != NULL)
            *first_out = sqlite3_column_int64(statement, 0);
    if (code != SQLITE_DONE)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return n;
}

static inline int64_t ask(const char *path, const char *sql)
{
    int64_t answer = INT64_MIN;

    if (count_rows(path, sql, &answer) < 1)
        fail_msg("%s: no row", sql);
    return answer;
}

/* Changes a database from outside. */
static inline void change(const char *path, const char *sql)
{
    char *why = NULL;
    sqlite3 *db;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
}

#endif
