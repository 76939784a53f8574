/* Internal. The decision log of a run: what was decided, by whom, in which order. With the seed it makes a run again.
 *
 * `decisions.jsonl` is a header and then one line of JSON for each entry. An entry is on disk when the append returns, so
 * the rule for callers is: append, then act. A policy's decision that is refused afterwards stays in the log. An append
 * that fails has changed nothing in the file; the run has to stop, since what it would do next could not be made again.
 *
 * A disk that is full is no failure. Entries then wait in memory, up to 4 MiB of them, some ten thousand, and go first when the
 * next one is appended: the file always holds the first so many. What rests on an entry that waits must not be saved: a
 * checkpoint asks esper_decision_log_catch_up before.
 *
 *     {"esper_decisions":3,"task":"fashion","topology":"cnn","seed":"7","kernels":"cpu avx2","ranks":1,"budget":"60100000000"}
 *     {"number":0,"epoch":12,"step":3400,"share":0.41,"weights":"..","source":"policy","op":"germinate","slot":"r0c1","blueprint":"conv_light",...}
 *     {"number":1,"epoch":14,"step":3811,"share":0.46,"weights":"..","source":"injection","tensor":"blocks.0.conv.weight","role":"param",...}
 *     {"number":2,"epoch":14,"step":3811,"share":0.46,"weights":"..","source":"governor","action":"roll_back","reason":"governor_scan",...}
 *
 * Reals read back with the same bits, but for NaN, of which there is one. Texts do too: one that is no UTF-8 is written for
 * people with its bad bytes replaced, and for reading as "text_bytes" in hexadecimal. */
#ifndef ESPER_GROW_DECISION_LOG_H
#define ESPER_GROW_DECISION_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "esper.h"
#include "policy/decision.h"
#include "slot/slot_id.h"
#include "telemetry/fact_list.h"
#include "engine/guarded.h"

#define ESPER_LOG_SOURCE_LIST(X) X(POLICY, "policy") X(GOVERNOR, "governor") X(INJECTION, "injection") X(TRIAL, "trial")

typedef enum esper_log_source {
#define X(name, text) ESPER_LOG_##name,
    ESPER_LOG_SOURCE_LIST(X)
#undef X
    ESPER_LOG_N_SOURCES
} esper_log_source;

enum {
    ESPER_LOG_TENSOR_CHARS = 112, /* a tensor's name with the prefix of a moment; terminator included, as below */
    ESPER_LOG_PROBLEM_CHARS = 16,
    ESPER_LOG_WORD_CHARS = 64,
    ESPER_LOG_MAX_SLOTS = ESPER_MAX_REGIONS - 1,
};

#define ESPER_LOG_C_INT(name, arg)        int32_t name;
#define ESPER_LOG_C_COUNT(name, arg)      uint64_t name;
#define ESPER_LOG_C_U64(name, arg)        uint64_t name;
#define ESPER_LOG_C_HASH(name, arg)       uint64_t name;
#define ESPER_LOG_C_MAYBE_HASH(name, arg) uint64_t name;
#define ESPER_LOG_C_REAL(name, arg)       double name;
#define ESPER_LOG_C_CODE(name, arg)       int32_t name;
#define ESPER_LOG_C_MAYBE_CODE(name, arg) int32_t name;
#define ESPER_LOG_C_TEXT(name, arg)       char name[arg];
#define ESPER_LOG_C_MAYBE_TEXT(name, arg) char name[arg];
#define ESPER_LOG_C_SLOTS(name, arg) \
    int32_t n_##name;                \
    char name[ESPER_LOG_MAX_SLOTS][ESPER_SLOT_CHARS];
#define ESPER_LOG_MEMBER(e, where, kind, arg, name, meaning) ESPER_LOG_C_##kind(name, arg)

/* What a governor did, from SKIP on. ESPER_GUARD_NONE stands for a number that there is none of, a role of -1 for no tensor:
 * it was the vital signs. loss is NaN unless it was. */
typedef struct esper_log_governor {
    ESPER_FACT_LOG_GOVERNOR_FIELDS(ESPER_LOG_MEMBER, )
} esper_log_governor;

/* A fault on purpose: the arguments of esper_guard_inject, and when. */
typedef struct esper_log_injection {
    ESPER_FACT_LOG_INJECTION_FIELDS(ESPER_LOG_MEMBER, )
} esper_log_injection;

/* A fork on trial. */
typedef struct esper_log_trial {
    int32_t  blueprint; /* -1 = none */
    int32_t  round;
    uint64_t n_steps, n_samples;
    double   loss, gain, error, flops;
    uint64_t fork;
} esper_log_trial;

/* One entry. Only the part of its source counts; the others are zeros when it was read. */
typedef struct esper_log_entry {
    ESPER_FACT_LOG_ENTRY_FIELDS(ESPER_LOG_MEMBER, ) /* the number is the log's to give */
    char                slot[ESPER_SLOT_CHARS];     /* policy: the id of decision.slot, trial: where; "" = none */
    esper_decision      decision;
    esper_log_governor  governor;
    esper_log_injection injection;
    esper_log_trial     trial;
} esper_log_entry;

/* What a log says of its run. */
typedef struct esper_log_head {
    ESPER_FACT_LOG_HEAD_FIELDS(ESPER_LOG_MEMBER, )
} esper_log_head;

/* A governor's entry of nothing: no tensor, no numbers, learning rate as it was. */
void esper_log_governor_init(esper_log_governor *governor);

/* Names; NULL for codes that are none. */
const char *esper_log_source_name(int source);
const char *esper_log_role_name(int role);   /* "param" */
const char *esper_log_fault_name(int fault); /* "nan", "inf", "neg_inf", "exponent", "mantissa" */
const char *esper_log_point_name(int point); /* "between_steps", "before_forward", "gradients" */
/* The code of a name in one of the four lists above; -1 = there is none. */
int esper_log_find(const char *(*name_of)(int), const char *name);

/* Whether an entry is whole: codes, ranges, names that go with each other. E_ARG. */
esper_status esper_log_entry_check(const esper_log_entry *entry, esper_topology topology);

/* ---------------------------------------------------------------------------------------------------------- writing */

typedef struct esper_decision_log esper_decision_log;

/* A new log in place of whatever is there; or, with `resume`, the log that is there, cut back to its first n_keep entries:
 * what came after the checkpoint, and a line that was torn by a crash, is removed. E_FORMAT with the line: fewer than n_keep
 * whole entries, or the log of another task, topology or seed (kernels may differ). Head and path are copied. */
esper_status esper_decision_log_open(const char *path, const esper_log_head *head, bool resume, uint64_t n_keep,
                                     esper_decision_log **log_out);
void         esper_decision_log_close(esper_decision_log *log);

/* Writes the entry with the next number and waits until it is on disk, or keeps it when the disk is full. Allocates nothing but for
 * that. E_ARG: not whole; E_IO: the file is as before, or, when that could not be had either, the log takes no more entries. So it is
 * with a log that is no longer at its path, or has become another. */
esper_status esper_decision_log_append(esper_decision_log *log, const esper_log_entry *entry);

/* Writes the entries that wait. E_IO: the disk is still full, and they go on waiting, or it fails otherwise. */
esper_status esper_decision_log_catch_up(esper_decision_log *log);

/* Entries that wait for room on the disk. */
uint64_t esper_decision_log_n_waiting(const esper_decision_log *log);

/* The line of the last entry, without its end; "" before there is one. Borrowed until the next append. */
const char *esper_decision_log_line(const esper_decision_log *log);

/* ---------------------------------------------------------------------------------------------------------- reading */

typedef struct esper_decision_history {
    esper_log_head   head;
    esper_log_entry *entries; /* (n) */
    uint64_t         n;
    uint64_t         bytes;   /* of the lines read */
    bool             torn;    /* a line without an end followed: it was never acted on */
} esper_decision_history;

/* Reads a log. A decision's slot is -1: its id is there. n_most: entries to read at most; what follows is not looked at. E_FORMAT
 * names path and line: anything that the log would not have written. */
esper_status esper_decision_history_read(const char *path, uint64_t n_most, esper_decision_history *history_out);
void         esper_decision_history_free(esper_decision_history *history);

#endif
