/* Internal. Facts, the sinks that take them, and the bus between.
 *
 *     whoever knows something ── fills a fact, once ──> bus ──┬─> events.jsonl: a line of JSON
 *                                                             └─> the run store: a row
 *
 * A fact is a plain struct, made from the list. Codes and numbers travel; a sink makes the text. Texts in it are borrowed for
 * the call. Telling allocates nothing and cannot fail: a sink that cannot keep up or write counts what it drops, and says so
 * when closed. A bus and its sinks belong to one thread. */
#ifndef ESPER_TELEMETRY_FACT_H
#define ESPER_TELEMETRY_FACT_H

#include <float.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json_write.h"
#include "esper.h"
#include "telemetry/fact_list.h"

typedef enum esper_fact_kind {
#define FACT(NAME, name, table, event, priority, fate, meaning) ESPER_FACT_##NAME,
    ESPER_FACT_TABLE_LIST(FACT) ESPER_FACT_N_TABLES, /* the kinds before have a table, and its number */
    ESPER_FACT_BEFORE_OTHERS = ESPER_FACT_N_TABLES - 1,
    ESPER_FACT_OTHER_LIST(FACT)
#undef FACT
    ESPER_FACT_N_KINDS
} esper_fact_kind;

typedef enum esper_fact_field_kind {
    ESPER_FACT_FIELD_INT,
    ESPER_FACT_FIELD_REAL,
    ESPER_FACT_FIELD_TEXT,
    ESPER_FACT_FIELD_NAME,
    ESPER_FACT_FIELD_U64,
    ESPER_FACT_FIELD_HASH,
    ESPER_FACT_FIELD_EPOCH,
} esper_fact_field_kind;

/* Not measured, not meant: NULL in rows; -1, "nan" and "" in lines. Texts say it by being NULL or empty, codes by being no code of
 * their vocabulary, hashes by being 0. */
#define ESPER_NO_INT  INT64_MIN
#define ESPER_NO_REAL (-DBL_MAX)
#define ESPER_NO_CODE INT_MIN

#define ESPER_FACT_C_INT(name)   int64_t name;
#define ESPER_FACT_C_REAL(name)  double name;
#define ESPER_FACT_C_TEXT(name)  const char *name;
#define ESPER_FACT_C_NAME(name)  int name;
#define ESPER_FACT_C_U64(name)   uint64_t name;
#define ESPER_FACT_C_HASH(name)  uint64_t name;
#define ESPER_FACT_C_EPOCH(name) char name[0]; /* the epoch that every fact has */

/* What follows in brackets, for fields that are in a row. */
#define ESPER_FACT_IN_ROW_BOTH(...) __VA_ARGS__
#define ESPER_FACT_IN_ROW_ROW(...)  __VA_ARGS__
#define ESPER_FACT_IN_ROW_LINE(...)
#define ESPER_FACT_IN_ROW_AS(key)      ESPER_FACT_IN_ROW_BOTH
#define ESPER_FACT_IN_ROW_LINE_AS(key) ESPER_FACT_IN_ROW_LINE

/* Whom a fact is for. */
enum { ESPER_TO_LINES = 1, ESPER_TO_ROWS = 2 };

typedef struct esper_fact {
    esper_fact_kind kind;
    unsigned        to;      /* bits, both unless told otherwise */
    uint64_t        seq;     /* counts the lines of a bus; written by esper_bus_tell */
    uint64_t        time_ns; /* wall clock, since 1970; written by esper_bus_tell */
    int64_t         epoch;   /* in which it happened, from 1; what is decided after epoch 3 belongs to 3 */
    int64_t         step;    /* optimiser steps done when it happened; after a rollback, those of the snapshot */
    union {                  /* the member named like the kind; epoch_done for EPOCH */
#define F(e, where, kind, arg, name, meaning) ESPER_FACT_C_##kind(name)
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    struct {                                                    \
        ESPER_FACT_##NAME##_FIELDS(F, name)                     \
    } name;
        ESPER_FACT_LIST(FACT)
#undef FACT
#undef F
    };
} esper_fact;

/* A fact in which nothing is measured yet. */
esper_fact esper_fact_of(esper_fact_kind kind, int64_t epoch, int64_t step);

/* NaN for what was never measured, as readings have it, becomes ESPER_NO_REAL. */
double esper_fact_known(double value);

/* Fills the parts of a REWARD; a rollout's fit as well as those of esper_reward. */
void esper_fact_set_reward(esper_fact *fact, double total, const double parts[ESPER_N_REWARD_PARTS]);
/* Fills the entropy of each head of an UPDATE, in the order of ESPER_HEAD_LIST. NaN: it never had a choice. */
void esper_fact_set_entropy(esper_fact *fact, const double *entropy);

/* Vocabularies of the governor; NULL for codes that are none. */
const char *esper_fact_action(int code);
const char *esper_fact_cause(int code);

/* The measures of ATTRIBUTION. */
#define ESPER_MEASURE_LIST(X)       \
    X(CONTRIBUTION, "contribution") \
    X(SYNERGY, "synergy") X(SHAPLEY, "shapley") X(TRIAL, "trial") X(EVIDENCE, "evidence")

typedef enum esper_measure {
#define X(name, text) ESPER_MEASURE_##name,
    ESPER_MEASURE_LIST(X)
#undef X
} esper_measure;

/* What is known about a field, for sinks. */
typedef struct esper_fact_field {
    const char           *name;
    const char           *key;    /* in lines; NULL: it is not there */
    bool                  in_row; /* a column of that name */
    esper_fact_field_kind kind;
    size_t                offset; /* in esper_fact */
    const char *(*word)(int);     /* NAME: the text of a code; NULL where there is none */
} esper_fact_field;

bool                    esper_fact_has_line(const esper_fact *fact); /* its kind has, and it is for lines */
const char             *esper_fact_event(esper_fact_kind kind); /* "epoch_ended"; NULL: it has no line */
const esper_fact_field *esper_fact_fields(esper_fact_kind kind, int *n_fields_out);

/* The text of a TEXT or a NAME; "" for none. */
const char *esper_fact_text(const esper_fact *fact, const esper_fact_field *field);

/* {"v":1,"event":"epoch_ended","seq":3,"time":1700000000.123456,"step":420,"epoch":1,...} */
void esper_fact_write_json(const esper_fact *fact, esper_json *json);

/* How a sink takes facts. No member may be NULL. */
typedef struct esper_sink_ops {
    const char *name;
    void         (*take)(void *handle, const esper_fact *facts, int n); /* that belong together */
    esper_status (*close)(void *handle); /* all is durable, or what was lost; the handle is gone whatever the answer */
} esper_sink_ops;

typedef struct esper_sink {
    const esper_sink_ops *ops;
    void                 *handle;
} esper_sink;

/* JSON Lines: one object a line, each written whole as it is told. Appending goes on after the last complete line;
 * what a crash left of an unfinished one is cut off. */
esper_status esper_sink_jsonl_open(const char *path, bool append, esper_sink *sink_out);

enum { ESPER_BUS_MAX_SINKS = 8 };

/* Hands every fact to every sink, in the order they were added. All fields but n_rows are private. */
typedef struct esper_bus {
    uint64_t   next_seq;
    int64_t    n_rows[ESPER_FACT_N_TABLES]; /* told so far by the run, by table, whether somebody keeps them or not */
    int        n_sinks;
    esper_sink sinks[ESPER_BUS_MAX_SINKS];
} esper_bus;

/* A resumed run goes on counting where it stopped. */
void esper_bus_init(esper_bus *bus, uint64_t first_seq);

/* Closes all sinks; the first failure is told, every sink is closed. The bus is empty afterwards. Unlike
 * other ends this one has an answer: it is the last chance to hear that something was lost. */
esper_status esper_bus_fini(esper_bus *bus);

/* The bus owns the sink from here on, unless it has no room left. */
esper_status esper_bus_add(esper_bus *bus, esper_sink sink);

/* Tells a fact, or one with those that are its parts: a GATE with its CHECKs. NULL is a bus that nobody listens to. */
void esper_bus_tell(esper_bus *bus, esper_fact *facts, int n);

#endif
