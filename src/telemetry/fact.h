/* Internal. Events, the sinks that take them, and the bus between.
 *
 * An event is a plain struct, filled by whoever has something to tell and emitted once: texts in it are borrowed for
 * the call. Emitting allocates nothing and cannot fail: a sink that cannot keep up or write counts what it drops, and
 * says so when flushed or closed. A bus and its sinks belong to one thread. */
#ifndef ESPER_BASE_EVENT_H
#define ESPER_BASE_EVENT_H

#include <stdbool.h>

#include "base/event_list.h"
#include "base/json_write.h"
#include "esper.h"

typedef enum esper_event_kind {
#define EVENT(NAME, name, meaning) ESPER_EVENT_##NAME,
    ESPER_EVENT_LIST(EVENT)
#undef EVENT
    ESPER_EVENT_N_KINDS
} esper_event_kind;

typedef enum esper_event_field_kind {
    ESPER_EVENT_FIELD_INT,
    ESPER_EVENT_FIELD_REAL,
    ESPER_EVENT_FIELD_TEXT,
    ESPER_EVENT_FIELD_U64,
    ESPER_EVENT_FIELD_HASH,
} esper_event_field_kind;

#define ESPER_EVENT_C_INT  int64_t
#define ESPER_EVENT_C_REAL double
#define ESPER_EVENT_C_TEXT const char *
#define ESPER_EVENT_C_U64  uint64_t
#define ESPER_EVENT_C_HASH uint64_t

typedef struct esper_event {
    esper_event_kind kind;
    uint64_t         seq;     /* counts the events of a bus; written by esper_bus_emit */
    uint64_t         time_ns; /* wall clock, since 1970; written by esper_bus_emit */
    int64_t          step;    /* optimiser steps done when it happened */
    union {                   /* the member named like the kind */
#define FIELD(e, kind, name)       ESPER_EVENT_C_##kind name;
#define EVENT(NAME, name, meaning)               \
    struct {                                     \
        ESPER_EVENT_##NAME##_FIELDS(FIELD, name) \
    } name;
        ESPER_EVENT_LIST(EVENT)
#undef EVENT
#undef FIELD
    };
} esper_event;

/* What is known about a field, for sinks that store events in their own form. */
typedef struct esper_event_field {
    const char            *name;
    esper_event_field_kind kind;
    size_t                 offset; /* in esper_event */
} esper_event_field;

const char              *esper_event_name(esper_event_kind kind); /* "epoch_ended" */
const esper_event_field *esper_event_fields(esper_event_kind kind, int *n_fields_out);

/* {"v":1,"event":"epoch_ended","seq":3,"time":1700000000.123456,"step":420,"epoch":1,...} */
void esper_event_write_json(const esper_event *event, esper_json *json);

/* How a sink takes events. No member may be NULL. */
typedef struct esper_sink_ops {
    const char *name;
    void         (*emit)(void *handle, const esper_event *event);
    esper_status (*flush)(void *handle);            /* all is durable, or the first failure since the last flush */
    esper_status (*close)(void *handle);            /* flushes; the handle is gone whatever the answer */
    uint64_t     (*n_dropped)(const void *handle);  /* events lost since open */
} esper_sink_ops;

typedef struct esper_sink {
    const esper_sink_ops *ops;
    void                 *handle;
} esper_sink;

/* JSON Lines: one object a line, each written whole as it is emitted. Appending goes on after the last complete line;
 * what a crash left of an unfinished one is cut off. */
esper_status esper_sink_jsonl_open(const char *path, bool append, esper_sink *sink_out);

enum { ESPER_BUS_MAX_SINKS = 8 };

/* Hands every event to every sink, in the order they were added. All fields private. */
typedef struct esper_bus {
    uint64_t   next_seq;
    int        n_sinks;
    esper_sink sinks[ESPER_BUS_MAX_SINKS];
} esper_bus;

/* A resumed run goes on counting where it stopped. */
void esper_bus_init(esper_bus *bus, uint64_t first_seq);

/* Flushes and closes all sinks; the first failure is told, every sink is closed. The bus is empty afterwards. Unlike
 * other ends this one has an answer: it is the last chance to hear that events were lost. */
esper_status esper_bus_fini(esper_bus *bus);

/* The bus owns the sink from here on, unless it has no room left. */
esper_status esper_bus_add(esper_bus *bus, esper_sink sink);

void         esper_bus_emit(esper_bus *bus, esper_event *event);
esper_status esper_bus_flush(esper_bus *bus);
uint64_t     esper_bus_next_seq(const esper_bus *bus);
uint64_t     esper_bus_n_dropped(const esper_bus *bus);

#endif
