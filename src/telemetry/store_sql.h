/* Internal. Where the store meets SQLite: opening and checking a file, the schema made from the list, and rows as structs. */
#ifndef ESPER_TELEMETRY_STORE_SQL_H
#define ESPER_TELEMETRY_STORE_SQL_H

#include <sqlite3.h>

#include "telemetry/store.h"

/* An answer of SQLite as one of ours, described once: "runs/x/store.sqlite: cannot be written: ...". */
esper_status esper_store_sql_fail(sqlite3 *db, int code, const char *path);

/* Anything but OK, ROW and DONE is a failure. */
#define ESPER_STORE_SQL(db, path, call)                                                                   \
    do {                                                                                                  \
        int sql_code_ = (call);                                                                           \
        if (sql_code_ != SQLITE_OK && sql_code_ != SQLITE_ROW && sql_code_ != SQLITE_DONE)                \
            return esper_store_sql_fail((db), sql_code_, (path));                                         \
    } while (0)

/* Opens a store to write, creating it where there is none, or to read one. The schema is one that this version knows. */
esper_status esper_store_sql_create(const char *path, int patience_ms, sqlite3 **db_out);
esper_status esper_store_sql_attach(const char *path, int patience_ms, bool glance,
                                    sqlite3 **db_out); /* glance: its version alone */

/* Opens one of many stores to look at: all that is checked is whose it is and its version. Nothing is written, no lock is taken
 * that a writer waits for, and nothing is left behind: a store that nobody writes is read as a file that does not change. If it
 * does, what is read may be wrong, and a failure may be none: look again. */
esper_status esper_store_sql_glance(const char *path, sqlite3 **db_out);

esper_status esper_store_sql_execute(sqlite3 *db, const char *path, const char *sql);

/* The number that a query finds first, left alone where that is NULL. text: its parameter, or NULL. */
esper_status esper_store_sql_ask(sqlite3 *db, const char *path, const char *sql, const char *text, int64_t *number_out);

/* Composes SQL. All of ours fits; what does not is asserted, and cut. */
typedef struct esper_store_text {
    char   text[8192];
    size_t used;
} esper_store_text;

void esper_store_text_add(esper_store_text *sql, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "a, b, c" of a list of columns. */
void esper_store_text_columns(esper_store_text *sql, const esper_store_column *columns, int n);

bool esper_store_is_kept(esper_store_kind kind);   /* its priority */
bool esper_store_is_undone(esper_store_kind kind); /* its fate */

/* The insert statement of a table; binds a record to it. */
esper_status esper_store_sql_prepare_insert(sqlite3 *db, const char *path, esper_store_kind kind, sqlite3_stmt **out);
int          esper_store_sql_bind_record(sqlite3_stmt *statement, const esper_store_record *record);

/* Names of what is not finite, as the column nonfinite has them: "loss_valid=nan grad_norm=inf". */
enum { ESPER_STORE_NONFINITE_CHARS = 768 };

/* Binds the fields of a struct from parameter `first` on; adds to the text in `nonfinite`, unless that is NULL. */
int esper_store_sql_bind(sqlite3_stmt *statement, int first, const void *base, const esper_store_column *columns, int n,
                         char *nonfinite);

/* Reads the fields of a struct from column `first` of a row on. */
void esper_store_sql_read(sqlite3_stmt *statement, int first, void *base, const esper_store_column *columns, int n,
                          const char *nonfinite);

#endif
