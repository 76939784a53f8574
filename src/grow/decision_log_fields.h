/* Internal to grow/decision_log*.c. The members of the log's lines as data, from the list of facts. */
#ifndef ESPER_GROW_DECISION_LOG_FIELDS_H
#define ESPER_GROW_DECISION_LOG_FIELDS_H

#include "grow/decision_log.h"

typedef enum log_kind {
    LOG_INT,
    LOG_COUNT,
    LOG_U64,
    LOG_HASH,
    LOG_MAYBE_HASH, /* 0: there is no such member */
    LOG_REAL,
    LOG_CODE,
    LOG_MAYBE_CODE,
    LOG_TEXT,
    LOG_MAYBE_TEXT,
    LOG_WORDS,
    LOG_BLUEPRINT,
    LOG_SLOTS,
} log_kind;

typedef struct log_field {
    const char *name;
    log_kind    kind;
    size_t      offset, bytes;    /* in esper_log_entry, or esper_log_head */
    const char *(*name_of)(int);  /* of codes; NULL for those that are none */
} log_field;

/* Tables end with a name that is NULL. */
extern const log_field log_head[], log_entry[];

/* What an entry of that source goes on with. */
const log_field *log_part_of(int source);

#endif
