/* Facts as data (the table of fields, made from the list), the vocabularies of their codes, and the bus. */
#include "telemetry/fact.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "guard/governor.h"
#include "nn/blueprint.h"
#include "policy/actions.h"
#include "policy/decision.h"
#include "slot/gate.h"
#include "slot/stage.h"

/* ------------------------------------------------------------------------------------------------ vocabularies */

#define word_stage  esper_stage_name
#define word_gate   esper_gate_name
#define word_check  esper_gate_check_name
#define word_blend  esper_blend_name
#define word_curve  esper_alpha_choice_name
#define word_op     esper_slot_op_name
#define word_action esper_fact_action
#define word_cause  esper_fact_cause

const char *esper_fact_action(int code)
{
    return code >= 0 && code <= ESPER_GOVERNOR_STOP ? esper_governor_action_name((esper_governor_action)code) : NULL;
}

const char *esper_fact_cause(int code)
{
    return code >= 0 && code <= ESPER_GOVERNOR_SCAN ? esper_governor_reason_name((esper_governor_reason)code) : NULL;
}

static const char *word_status(int code)
{
    return code != ESPER_NO_CODE ? esper_status_name((esper_status)code) : NULL;
}

static const char *word_mode(int permissive)
{
    return permissive < 0 ? NULL : permissive ? "permissive" : "strict";
}

static const char *word_measure(int code)
{
    static const char *const names[] = {
#define X(name, text) text,
        ESPER_MEASURE_LIST(X)
#undef X
    };

    return code >= 0 && code < (int)(sizeof(names) / sizeof(names[0])) ? names[code] : NULL;
}

/* ------------------------------------------------------------------------------------------------ fields */

#define WORD_OF_INT(arg)   NULL
#define WORD_OF_REAL(arg)  NULL
#define WORD_OF_TEXT(arg)  NULL
#define WORD_OF_NAME(arg)  word_##arg
#define WORD_OF_U64(arg)   NULL
#define WORD_OF_HASH(arg)  NULL
#define WORD_OF_EPOCH(arg) NULL

/* KEY_AS(x)(name): the name is passed over. */
#define KEY_BOTH(name) #name
#define KEY_LINE(name) #name
#define KEY_ROW(name)  NULL
#define KEY_AS(key)      #key PASS_OVER
#define KEY_LINE_AS(key) #key PASS_OVER
#define PASS_OVER(name)

#define F(e, where, kind_, arg, name_, meaning)                                                         \
    {#name_,                                                                                            \
     KEY_##where(name_),                                                                                \
     ESPER_FACT_IN_ROW_##where(1) + 0,                                                                  \
     ESPER_FACT_FIELD_##kind_,                                                                               \
     offsetof(esper_fact, e.name_),                                                                       \
     WORD_OF_##kind_(arg)},
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    static const esper_fact_field fields_##name[] = {ESPER_FACT_##NAME##_FIELDS(F, name)};
ESPER_FACT_LIST(FACT)
#undef FACT
#undef F

static const struct {
    const char             *event;
    const esper_fact_field *fields;
    int                     n_fields;
} kinds[ESPER_FACT_N_KINDS] = {
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    {event, fields_##name, (int)(sizeof(fields_##name) / sizeof(fields_##name[0]))},
    ESPER_FACT_LIST(FACT)
#undef FACT
};

const char *esper_fact_event(esper_fact_kind kind)
{
    return kinds[kind].event;
}

const esper_fact_field *esper_fact_fields(esper_fact_kind kind, int *n_fields_out)
{
    *n_fields_out = kinds[kind].n_fields;
    return kinds[kind].fields;
}

bool esper_fact_has_line(const esper_fact *fact)
{
    return (fact->to & ESPER_TO_LINES) != 0 && kinds[fact->kind].event != NULL;
}

/* ------------------------------------------------------------------------------------------------ filling */

esper_fact esper_fact_of(esper_fact_kind kind, int64_t epoch, int64_t step)
{
    esper_fact fact;

    assert(kind < ESPER_FACT_N_KINDS);
    memset(&fact, 0, sizeof(fact)); /* all of the union */
    fact.kind = kind;
    fact.to = ESPER_TO_LINES | ESPER_TO_ROWS;
    fact.epoch = epoch;
    fact.step = step;
    for (int i = 0; i < kinds[kind].n_fields; i++) {
        const esper_fact_field *field = &kinds[kind].fields[i];
        void *value = (char *)&fact + field->offset;

        if (field->kind == ESPER_FACT_FIELD_INT)
            *(int64_t *)value = ESPER_NO_INT;
        else if (field->kind == ESPER_FACT_FIELD_REAL)
            *(double *)value = ESPER_NO_REAL;
        else if (field->kind == ESPER_FACT_FIELD_NAME)
            *(int *)value = ESPER_NO_CODE;
    }
    return fact;
}

double esper_fact_known(double value)
{
    return isnan(value) ? ESPER_NO_REAL : value;
}

void esper_fact_set_reward(esper_fact *fact, double total, const double parts[ESPER_N_REWARD_PARTS])
{
    assert(fact->kind == ESPER_FACT_REWARD);
    fact->reward.total = total;
#define X(e, part, name, about) fact->reward.name = parts[ESPER_PART_##part];
    ESPER_REWARD_PART_LIST(X, )
#undef X
}

void esper_fact_set_entropy(esper_fact *fact, const double *entropy)
{
    double *const fields[] = {
        [ESPER_HEAD_SLOT] = &fact->update.entropy_slot,
        [ESPER_HEAD_BLUEPRINT] = &fact->update.entropy_blueprint,
        [ESPER_HEAD_STYLE] = &fact->update.entropy_style,
        [ESPER_HEAD_TEMPO] = &fact->update.entropy_tempo,
        [ESPER_HEAD_TARGET] = &fact->update.entropy_alpha_target,
        [ESPER_HEAD_SPEED] = &fact->update.entropy_alpha_speed,
        [ESPER_HEAD_CURVE] = &fact->update.entropy_alpha_curve,
        [ESPER_HEAD_OP] = &fact->update.entropy_op,
    };
    _Static_assert(sizeof(fields) / sizeof(fields[0]) == ESPER_N_HEADS, "a head without its field");

    assert(fact->kind == ESPER_FACT_UPDATE);
    for (int head = 0; head < ESPER_N_HEADS; head++)
        *fields[head] = esper_fact_known(entropy[head]);
}

/* ------------------------------------------------------------------------------------------------ as JSON */

const char *esper_fact_text(const esper_fact *fact, const esper_fact_field *field)
{
    const void *value = (const char *)fact + field->offset;
    const char *text =
        field->kind == ESPER_FACT_FIELD_NAME ? field->word(*(const int *)value) : *(const char *const *)value;

    return text != NULL ? text : "";
}

static void write_field(const esper_fact *fact, const esper_fact_field *field, esper_json *json)
{
    const void *value = (const char *)fact + field->offset;

    esper_json_key(json, field->key);
    switch (field->kind) {
    case ESPER_FACT_FIELD_INT:
        esper_json_int(json, *(const int64_t *)value != ESPER_NO_INT ? *(const int64_t *)value : -1);
        break;
    case ESPER_FACT_FIELD_EPOCH:
        esper_json_int(json, fact->epoch);
        break;
    case ESPER_FACT_FIELD_REAL:
        esper_json_real(json, *(const double *)value != ESPER_NO_REAL ? *(const double *)value : (double)NAN);
        break;
    case ESPER_FACT_FIELD_TEXT:
    case ESPER_FACT_FIELD_NAME:
        esper_json_text(json, esper_fact_text(fact, field));
        break;
    case ESPER_FACT_FIELD_U64:
        esper_json_u64(json, *(const uint64_t *)value);
        break;
    case ESPER_FACT_FIELD_HASH:
        esper_json_hash(json, *(const uint64_t *)value);
        break;
    }
}

void esper_fact_write_json(const esper_fact *fact, esper_json *json)
{
    uint64_t time_us = fact->time_ns / 1000; /* as seconds it just fits a double; nanoseconds would not */

    esper_json_object_begin(json);
    esper_json_key(json, "v");
    esper_json_int(json, ESPER_EVENT_VERSION);
    esper_json_key(json, "event");
    esper_json_text(json, kinds[fact->kind].event);
    esper_json_key(json, "seq");
    esper_json_int(json, (int64_t)fact->seq);
    esper_json_key(json, "time");
    esper_json_real(json, (double)time_us / 1e6);
    esper_json_key(json, "step");
    esper_json_int(json, fact->step);
    for (int i = 0; i < kinds[fact->kind].n_fields; i++)
        if (kinds[fact->kind].fields[i].key != NULL)
            write_field(fact, &kinds[fact->kind].fields[i], json);
    esper_json_object_end(json);
}

/* ------------------------------------------------------------------------------------------------ the bus */

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

void esper_bus_tell(esper_bus *bus, esper_fact *facts, int n)
{
    struct timespec now;

    if (bus == NULL)
        return;
    assert(n >= 1);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < n; i++) {
        facts[i].time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        if (esper_fact_has_line(&facts[i]))
            facts[i].seq = bus->next_seq++;
        if (facts[i].kind < ESPER_FACT_N_TABLES && (facts[0].to & ESPER_TO_ROWS) != 0)
            bus->n_rows[facts[i].kind]++;
    }
    for (int i = 0; i < bus->n_sinks; i++)
        bus->sinks[i].ops->take(bus->sinks[i].handle, facts, n);
}
