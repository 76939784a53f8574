/* Events as data (the table of fields, made from the list) and the bus. */
#include "base/event.h"

#include <stdio.h>
#include <time.h>

#include "base/status.h"

#define FIELD(e, kind_, name_) {#name_, ESPER_EVENT_FIELD_##kind_, offsetof(esper_event, e.name_)},
#define EVENT(NAME, name, meaning) \
    static const esper_event_field fields_##name[] = {ESPER_EVENT_##NAME##_FIELDS(FIELD, name)};
ESPER_EVENT_LIST(EVENT)
#undef EVENT
#undef FIELD

static const struct {
    const char              *name;
    const esper_event_field *fields;
    int                      n_fields;
} kinds[ESPER_EVENT_N_KINDS] = {
#define EVENT(NAME, name, meaning) {#name, fields_##name, (int)(sizeof(fields_##name) / sizeof(fields_##name[0]))},
    ESPER_EVENT_LIST(EVENT)
#undef EVENT
};

const char *esper_event_name(esper_event_kind kind)
{
    return kinds[kind].name;
}

const esper_event_field *esper_event_fields(esper_event_kind kind, int *n_fields_out)
{
    *n_fields_out = kinds[kind].n_fields;
    return kinds[kind].fields;
}

static void write_field(const esper_event *event, const esper_event_field *field, esper_json *json)
{
    const void *value = (const char *)event + field->offset;

    esper_json_key(json, field->name);
    switch (field->kind) {
    case ESPER_EVENT_FIELD_INT:
        esper_json_int(json, *(const int64_t *)value);
        break;
    case ESPER_EVENT_FIELD_REAL:
        esper_json_real(json, *(const double *)value);
        break;
    case ESPER_EVENT_FIELD_TEXT:
        esper_json_text(json, *(const char *const *)value);
        break;
    case ESPER_EVENT_FIELD_U64:
        esper_json_u64(json, *(const uint64_t *)value);
        break;
    case ESPER_EVENT_FIELD_HASH:
        esper_json_hash(json, *(const uint64_t *)value);
        break;
    }
}

void esper_event_write_json(const esper_event *event, esper_json *json)
{
    uint64_t time_us = event->time_ns / 1000; /* as seconds it just fits a double; nanoseconds would not */

    esper_json_object_begin(json);
    esper_json_key(json, "v");
    esper_json_int(json, ESPER_EVENT_VERSION);
    esper_json_key(json, "event");
    esper_json_text(json, kinds[event->kind].name);
    esper_json_key(json, "seq");
    esper_json_int(json, (int64_t)event->seq);
    esper_json_key(json, "time");
    esper_json_real(json, (double)time_us / 1e6);
    esper_json_key(json, "step");
    esper_json_int(json, event->step);
    for (int i = 0; i < kinds[event->kind].n_fields; i++)
        write_field(event, &kinds[event->kind].fields[i], json);
    esper_json_object_end(json);
}

static uint64_t wall_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void esper_bus_init(esper_bus *bus, uint64_t first_seq)
{
    *bus = (esper_bus){.next_seq = first_seq};
}

esper_status esper_bus_fini(esper_bus *bus)
{
    esper_status first = ESPER_OK;

    for (int i = 0; i < bus->n_sinks; i++) {
        esper_status st = bus->sinks[i].ops->close(bus->sinks[i].handle);

        if (first == ESPER_OK)
            first = st;
    }
    bus->n_sinks = 0;
    return first;
}

esper_status esper_bus_add(esper_bus *bus, esper_sink sink)
{
    if (bus->n_sinks == ESPER_BUS_MAX_SINKS)
        return ESPER_FAIL(ESPER_E_STATE, "sink %s: a bus has room for %d sinks", sink.ops->name, ESPER_BUS_MAX_SINKS);
    bus->sinks[bus->n_sinks++] = sink;
    return ESPER_OK;
}

void esper_bus_emit(esper_bus *bus, esper_event *event)
{
    event->seq = bus->next_seq++;
    event->time_ns = wall_clock_ns();
    for (int i = 0; i < bus->n_sinks; i++)
        bus->sinks[i].ops->emit(bus->sinks[i].handle, event);
}

esper_status esper_bus_flush(esper_bus *bus)
{
    esper_status first = ESPER_OK;

    for (int i = 0; i < bus->n_sinks; i++) {
        esper_status st = bus->sinks[i].ops->flush(bus->sinks[i].handle);

        if (first == ESPER_OK)
            first = st;
    }
    return first;
}

uint64_t esper_bus_next_seq(const esper_bus *bus)
{
    return bus->next_seq;
}

uint64_t esper_bus_n_dropped(const esper_bus *bus)
{
    uint64_t n = 0;

    for (int i = 0; i < bus->n_sinks; i++)
        n += bus->sinks[i].ops->n_dropped(bus->sinks[i].handle);
    return n;
}
