/* Internal. The run store: an SQLite database that keeps what a run measured and decided, for reports, for the closing table
 * and for anybody who speaks SQL (docs/store.md). It is a copy: nothing in a run depends on it, and a run goes on without it.
 *
 *     training loop ── push: copies a record, never waits ──> bounded queue ──> one writer thread ──> SQLite (WAL)
 *
 * A record is a plain struct of fixed size; pushing takes no memory. A full queue drops and counts, by table. A disk that is
 * full or fails turns the store off: what was committed stays, the rest is counted, and esper_store_status says so once.
 *
 * A store is opened for one run. Any thread may push, ask for counts and flush; begin, resume, end and close belong to
 * one thread. Several processes may write and read one file at a time. */
#ifndef ESPER_TELEMETRY_STORE_H
#define ESPER_TELEMETRY_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"
#include "telemetry/fact.h"

/* ================================================================================================ records */

/* Rows of the list's facts. */
typedef enum esper_store_kind {
#define FACT(NAME, name, table, event, priority, fate, meaning) ESPER_STORE_##NAME = ESPER_FACT_##NAME,
    ESPER_FACT_TABLE_LIST(FACT)
#undef FACT
    ESPER_STORE_N_KINDS
} esper_store_kind;

/* NULL in SQL. Texts say it by being empty, hashes by being 0. */
#define ESPER_STORE_NO_INT  ESPER_NO_INT
#define ESPER_STORE_NO_REAL ESPER_NO_REAL

enum { ESPER_STORE_NAME_CHARS = 40 };

#define ESPER_STORE_C_INT(name, arg)  int64_t name;
#define ESPER_STORE_C_REAL(name, arg) double name;
#define ESPER_STORE_C_TEXT(name, arg) char name[arg];
#define ESPER_STORE_C_NAME(name, arg) char name[ESPER_STORE_NAME_CHARS];
#define ESPER_STORE_C_U64(name, arg)  uint64_t name;
#define ESPER_STORE_C_HASH(name, arg) uint64_t name;
#define ESPER_STORE_MEMBER(e, where, kind, arg, name, meaning) \
    ESPER_FACT_IN_ROW_##where(ESPER_STORE_C_##kind(name, arg))

/* A row: a fact with the texts made, as it waits in the queue and as it is read. */
typedef struct esper_store_record {
    esper_store_kind kind;
    int64_t          run;   /* written by the store */
    int64_t          seq;   /* counts the records of a run from 0, dropped ones too: a gap means loss; by the store */
    double           time;  /* wall clock, seconds since 1970; by the store */
    int64_t          epoch, step; /* as in esper_fact */
    union {                 /* the member named like the kind; epoch_done for EPOCH */
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    struct {                                                    \
        ESPER_FACT_##NAME##_FIELDS(ESPER_STORE_MEMBER, name)    \
    } name;
        ESPER_FACT_TABLE_LIST(FACT)
#undef FACT
    };
} esper_store_record;

typedef struct esper_store_run {
    ESPER_FACT_RUN_OWN_FIELDS(ESPER_STORE_MEMBER, run)
    ESPER_FACT_RUN_STARTED_FIELDS(ESPER_STORE_MEMBER, run)
    ESPER_FACT_RUN_ENDED_FIELDS(ESPER_STORE_MEMBER, run)
} esper_store_run;

typedef struct esper_store_seed {
    ESPER_FACT_SEED_FIELDS(ESPER_STORE_MEMBER, seed)
} esper_store_seed;

/* A record, or a run, in which nothing is measured yet. */
esper_store_record esper_store_record_of(esper_store_kind kind, int64_t epoch, int64_t step);
esper_store_run    esper_store_run_of(const char *name);

/* Fills a text column: ESPER_STORE_SET(record.gate.slot, "r0c0"). Too long a text is cut between characters. NULL: empty. */
#define ESPER_STORE_SET(column, text) esper_store_set((column), sizeof(column), (text))
void esper_store_set(char *column, size_t bytes, const char *text);

/* The row of a fact that has a table; of RUN_STARTED or RUN_ENDED, its part of the row of a run. */
esper_store_record esper_store_record_from(const esper_fact *fact);
esper_store_run    esper_store_run_from(const esper_fact *fact);

/* What is known of a column, for readers of any table. */
typedef enum esper_store_column_kind {
    ESPER_STORE_COLUMN_INT,
    ESPER_STORE_COLUMN_REAL,
    ESPER_STORE_COLUMN_TEXT,
    ESPER_STORE_COLUMN_U64,
    ESPER_STORE_COLUMN_HASH,
} esper_store_column_kind;

typedef struct esper_store_column {
    const char             *name;
    esper_store_column_kind kind;
    size_t                  offset, bytes; /* in esper_store_record */
    const char             *meaning;
} esper_store_column;

const char               *esper_store_table(esper_store_kind kind); /* "gate_checks" */
const esper_store_column *esper_store_columns(esper_store_kind kind, int *n_columns_out);

/* Columns of the tables and views that are no records; offsets are in esper_store_run and esper_store_seed. */
typedef enum esper_store_part {
    ESPER_STORE_PART_RUN_OWN,
    ESPER_STORE_PART_RUN_BEGIN,
    ESPER_STORE_PART_RUN_END,
    ESPER_STORE_PART_SEED,
    ESPER_STORE_PART_COMMON, /* what a record begins with, but for nonfinite, which comes after them; in esper_store_record */
} esper_store_part;

const esper_store_column *esper_store_part_columns(esper_store_part part, int *n_columns_out);

/* ================================================================================================ writing */

typedef struct esper_store esper_store;

/* 0 takes the default. They decide when rows become visible to readers, and nothing in a run. */
typedef struct esper_store_options {
    int queue_records; /* 2048 */
    int batch_records; /* 256: more in one transaction are not taken */
    int batch_ms;      /* 500: a record waits no longer, unless the file is locked */
    int patience_ms;   /* 5000: how long flush, end and close wait for a file that somebody else keeps locked */
    int retry_ms;      /* 5000: a disk that was full or failed is tried again so much later */
} esper_store_options;

/* Opens or creates the file; NULL options take all defaults. E_FORMAT: the file is damaged. E_UNSUPPORTED: it is sound, and of
 * another schema or program. The message says what to do. Takes all of the store's own memory here. */
esper_status esper_store_open(const char *path, const esper_store_options *options, esper_store **store_out);

/* Writes what is queued (or gives it up, after patience_ms), the counts of drops, and stops. NULL is fine. */
void esper_store_close(esper_store *store);

/* Renames a store that cannot be used, with its companions, to a name beside it that is free: "store-damaged-1.sqlite". */
enum { ESPER_STORE_PATH_CHARS = 1280 };
esper_status esper_store_set_aside(const char *path, char aside_out[ESPER_STORE_PATH_CHARS]);

/* Begins a new run with the identity columns of `run`; `config` is the configuration as text, or NULL. */
esper_status esper_store_begin(esper_store *store, const esper_store_run *run, const char *config, int64_t *id_out);

/* Goes on with the newest run of that name, cut back to a checkpoint of `epoch` finished epochs at `step`; E_NOTFOUND: there
 * is none. n_decisions: entries of the decision log then. They tell what came before the checkpoint although it lies at later
 * steps, since a rollback had undone it, and what came after it at earlier ones. ESPER_STORE_NO_INT: not known. */
esper_status esper_store_resume(esper_store *store, const char *name, int64_t epoch, int64_t step, int64_t n_decisions,
                                int64_t *id_out);

/* The same with a checkpoint that says how many rows the run had told by then, by table: all later ones are cut off, the next has
 * that number, and what is missing of those before is counted in `drops`: the machine went down before it was on disk. */
esper_status esper_store_resume_at(esper_store *store, const char *name, const int64_t n_told[ESPER_STORE_N_KINDS],
                                   int64_t *id_out);

/* Behind begin: the run has told so many rows already, and this store does not have them. They are counted in `drops`. */
esper_status esper_store_miss(esper_store *store, const int64_t n_told[ESPER_STORE_N_KINDS]);

/* Copies the record; never waits for the disk. The answer is its seq, also when it was dropped (full queue, store off, no
 * run begun: -1). */
int64_t esper_store_push(esper_store *store, const esper_store_record *record);

/* An evaluation with its checks: all or none of them enter the queue. The checks' gate, epoch and step are filled in. */
int64_t esper_store_push_gate(esper_store *store, const esper_store_record *gate, const esper_store_record *checks,
                              int n_checks);

/* Waits until all that was pushed before is committed. E_IO: the store is off, or the file stays locked. */
esper_status esper_store_flush(esper_store *store);

/* Before a checkpoint is written: waits for all that was pushed before, so that a process which is killed behind it has lost none of
 * them. Not for long, and not again while the file stays locked: what is late then is counted by the checkpoint. NULL is fine. */
void esper_store_catch_up(esper_store *store);

/* Flushes, then writes the result columns of `run` and the counts of drops: the run is over. */
esper_status esper_store_end(esper_store *store, const esper_store_run *run);

/* The failure that turned the store off, told once; ESPER_OK before, and afterwards. A disk that has room again turns it on again;
 * what was lost meanwhile is counted. NULL is fine. */
esper_status esper_store_status(esper_store *store);

typedef struct esper_store_counts {
    bool     is_on;
    uint64_t n_written;                      /* committed */
    uint64_t n_waiting;                      /* in the queue */
    uint64_t n_dropped[ESPER_STORE_N_KINDS]; /* lost for any reason, by table */
    uint64_t n_dropped_all;
} esper_store_counts;

esper_store_counts esper_store_counts_get(esper_store *store);

/* Pushes the rows of facts that belong together, as far as they have any. */
void esper_store_tell(esper_store *store, const esper_fact *facts, int n);

/* The same as a sink for the bus. The store is borrowed and must outlive the bus. Its close never fails: a store that is off is
 * no reason for a run to fail. */
esper_sink esper_store_sink(esper_store *store);

/* ================================================================================================ reading
 *
 * A reader has its own connection and may look at a store that is being written. A cursor belongs to its reader and is
 * closed before it. It sees the store as it was at its first row. */

typedef struct esper_store_reader esper_store_reader;
typedef struct esper_store_cursor esper_store_cursor;

esper_status esper_store_reader_open(const char *path, esper_store_reader **reader_out);
void         esper_store_reader_close(esper_store_reader *reader);

/* The same without looking through the file first, for who reads a little of many: damage shows where it is read. */
esper_status esper_store_reader_glance(const char *path, esper_store_reader **reader_out);

#define ESPER_STORE_ANY (-1)

/* Which rows. Set all: {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY}. */
typedef struct esper_store_filter {
    int64_t run;
    int64_t seed;     /* for tables with a seed */
    int64_t gate;     /* for gate_checks: the seq of the evaluation */
    bool    standing; /* leave out what a later rollback has undone */
    int64_t since;    /* from this seq on: for those who have read the rows before it already */
} esper_store_filter;

/* Rows in the order of seq; runs by id; seeds by run and number (run ESPER_STORE_ANY: of all). E_ARG: that table has no such
 * column. */
esper_status esper_store_read(esper_store_reader *reader, esper_store_kind kind, const esper_store_filter *filter,
                              esper_store_cursor **cursor_out);
esper_status esper_store_read_runs(esper_store_reader *reader, esper_store_cursor **cursor_out);
esper_status esper_store_read_seeds(esper_store_reader *reader, int64_t run, esper_store_cursor **cursor_out);

/* The next row, of the kind the cursor was opened for; *found_out false: there are no more. NULL reads as NO_INT, NO_REAL, ""
 * or 0; a number that was not finite reads as it was. */
esper_status esper_store_next(esper_store_cursor *cursor, esper_store_record *record_out, bool *found_out);
esper_status esper_store_next_run(esper_store_cursor *cursor, esper_store_run *run_out, bool *found_out);
esper_status esper_store_next_seed(esper_store_cursor *cursor, esper_store_seed *seed_out, bool *found_out);
void         esper_store_cursor_close(esper_store_cursor *cursor);

/* The largest seq of a run in a table, or in all of them (kind ESPER_STORE_N_KINDS); -1: it has no rows there. Rows are committed in
 * the order of seq, so all up to it that were not dropped are there to be read. */
esper_status esper_store_last_seq(esper_store_reader *reader, esper_store_kind kind, int64_t run, int64_t *seq_out);

/* The newest run that is this to that parent; relation NULL: the newest of all. */
esper_status esper_store_find_run(esper_store_reader *reader, int64_t parent, const char *relation,
                                  esper_store_run *run_out, bool *found_out);

/* The configuration of a run; "" when it has none; free with esper_mem_free. E_NOTFOUND: no such run. */
esper_status esper_store_read_config(esper_store_reader *reader, int64_t run, char **config_out);

/* Lost records of a run by table, as far as they were written down: n_out[ESPER_STORE_N_KINDS]. */
esper_status esper_store_read_drops(esper_store_reader *reader, int64_t run, uint64_t *n_out);

#endif
