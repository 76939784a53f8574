/* The members of the decision log's lines, and the names of their codes. */
#include "grow/decision_log_fields.h"

#include <string.h>

#include "slot/stage.h"
#include "telemetry/fact.h"

/* ------------------------------------------------------------------------------------------------ names */

#define NAME_IN(list, code) ((code) >= 0 && (code) < (int)(sizeof(list) / sizeof((list)[0])) ? (list)[code] : NULL)

const char *esper_log_source_name(int source)
{
    static const char *const names[] = {
#define X(name, text) text,
        ESPER_LOG_SOURCE_LIST(X)
#undef X
    };

    return NAME_IN(names, source);
}

const char *esper_log_role_name(int role)
{
    static const char *const names[] = {
#define X(name, text) text,
        ESPER_GUARD_ROLE_LIST(X)
#undef X
    };

    return NAME_IN(names, role);
}

const char *esper_log_fault_name(int fault)
{
    static const char *const names[] = {
        [ESPER_FAULT_NAN] = "nan",           [ESPER_FAULT_INF] = "inf",           [ESPER_FAULT_NEG_INF] = "neg_inf",
        [ESPER_FAULT_EXPONENT] = "exponent", [ESPER_FAULT_MANTISSA] = "mantissa",
    };

    return NAME_IN(names, fault);
}

const char *esper_log_point_name(int point)
{
    static const char *const names[] = {
        [ESPER_DRILL_BETWEEN_STEPS] = "between_steps",
        [ESPER_DRILL_BEFORE_FORWARD] = "before_forward",
        [ESPER_DRILL_GRADIENTS] = "gradients",
    };

    return NAME_IN(names, point);
}

int esper_log_find(const char *(*name_of)(int), const char *name)
{
    const char *known;

    for (int code = 0; (known = name_of(code)) != NULL; code++)
        if (strcmp(known, name) == 0)
            return code;
    return -1;
}

static const char *topology_name(int code)
{
    return code >= 0 && code < ESPER_N_TOPOLOGIES ? esper_topology_name((esper_topology)code) : NULL;
}

/* ------------------------------------------------------------------------------------------------ fields */

#define name_of_source   esper_log_source_name
#define name_of_role     esper_log_role_name
#define name_of_fault    esper_log_fault_name
#define name_of_point    esper_log_point_name
#define name_of_op       esper_slot_op_name
#define name_of_style    esper_style_name
#define name_of_birth    esper_birth_name
#define name_of_curve    esper_alpha_choice_name
#define name_of_reason   esper_reason_name
#define name_of_action   esper_fact_action
#define name_of_cause    esper_fact_cause
#define name_of_topology topology_name

#define NAME_OF_INT(arg)        NULL
#define NAME_OF_COUNT(arg)      NULL
#define NAME_OF_U64(arg)        NULL
#define NAME_OF_HASH(arg)       NULL
#define NAME_OF_MAYBE_HASH(arg) NULL
#define NAME_OF_REAL(arg)       NULL
#define NAME_OF_CODE(arg)       name_of_##arg
#define NAME_OF_MAYBE_CODE(arg) name_of_##arg
#define NAME_OF_TEXT(arg)       NULL
#define NAME_OF_MAYBE_TEXT(arg) NULL
#define NAME_OF_WORDS(arg)      NULL
#define NAME_OF_BLUEPRINT(arg)  NULL
#define NAME_OF_SLOTS(arg)      NULL

#define IN(type, e, kind, arg, name) \
    {#name, LOG_##kind, offsetof(type, e name), sizeof(((type *)NULL)->e name), NAME_OF_##kind(arg)},
#define IN_HEAD(e, where, kind, arg, name, meaning)  IN(esper_log_head, , kind, arg, name)
#define IN_ENTRY(e, where, kind, arg, name, meaning) IN(esper_log_entry, e, kind, arg, name)

const log_field log_head[] = {ESPER_FACT_LOG_HEAD_FIELDS(IN_HEAD, ){.name = NULL}};
const log_field log_entry[] = {ESPER_FACT_LOG_ENTRY_FIELDS(IN_ENTRY, ){.name = NULL}};

const log_field *log_part_of(int source)
{
    static const log_field policy[] = {ESPER_FACT_LOG_POLICY_FIELDS(IN_ENTRY, decision.){.name = NULL}};
    static const log_field governor[] = {ESPER_FACT_LOG_GOVERNOR_FIELDS(IN_ENTRY, governor.){.name = NULL}};
    static const log_field trial[] = {ESPER_FACT_LOG_TRIAL_FIELDS(IN_ENTRY, trial.){.name = NULL}};
    static const log_field injection[] = {ESPER_FACT_LOG_INJECTION_FIELDS(IN_ENTRY, injection.){.name = NULL}};

    return source == ESPER_LOG_POLICY     ? policy
           : source == ESPER_LOG_GOVERNOR ? governor
           : source == ESPER_LOG_TRIAL    ? trial
                                          : injection;
}
