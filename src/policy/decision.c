/* Decisions: their choices by name, with one table of which operation asks for which. */
#include "policy/decision.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/status.h"
#include "policy/view.h"

typedef struct style_row {
    const char *name, *ramp;
    esper_blend blend;
} style_row;

static const style_row styles[ESPER_N_STYLES] = {
#define X(name, code, text, ramp, blend) [code] = {text, ramp, blend},
    ESPER_STYLE_LIST(X)
#undef X
};

typedef struct curve_row {
    const char *name;
    int         curve;
    double      steepness;
} curve_row;

static const curve_row curves[ESPER_N_ALPHA_CHOICES] = {
#define X(name, code, text, curve, steepness) [code] = {text, curve, steepness},
    ESPER_ALPHA_CHOICE_LIST(X)
#undef X
};

static const char *const reasons[ESPER_N_REASONS] = {
#define X(name, text) text,
    ESPER_REASON_LIST(X)
#undef X
};

void esper_decision_init(esper_decision *decision, esper_slot_op op)
{
    memset(decision, 0, sizeof(*decision));
    decision->op = (int32_t)op;
    decision->slot = -1;
    decision->blueprint = -1;
    decision->style = op == ESPER_SLOT_OP_GERMINATE ? ESPER_STYLE_SIGMOID_ADD : ESPER_STYLE_KEEP;
    decision->birth = ESPER_BIRTH_UNSAID;
    decision->tempo = 5;
    decision->target = 1.0;
    decision->confidence = 1.0;
}

/* Numbers are written with a point in every locale: the record is compared and hashed. */
void esper_decision_because(esper_decision *decision, esper_reason reason, const char *format, ...)
{
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t previous = c_locale != (locale_t)0 ? uselocale(c_locale) : (locale_t)0;
    va_list arguments;

    decision->reason = (int32_t)reason;
    memset(decision->text, 0, sizeof(decision->text));
    va_start(arguments, format);
    vsnprintf(decision->text, sizeof(decision->text), format, arguments);
    va_end(arguments);
    if (c_locale == (locale_t)0)
        return;
    uselocale(previous);
    freelocale(c_locale);
}

/* ------------------------------------------------------------------------------------------------ names */

const char *esper_style_name(int style)
{
    return style >= 0 && style < ESPER_N_STYLES ? styles[style].name : NULL;
}

const char *esper_style_ramp(int style)
{
    return style >= 0 && style < ESPER_N_STYLES ? styles[style].ramp : NULL;
}

const char *esper_alpha_choice_name(int choice)
{
    return choice >= 0 && choice < ESPER_N_ALPHA_CHOICES ? curves[choice].name : NULL;
}

const char *esper_reason_name(int reason)
{
    return reason >= 0 && reason < ESPER_N_REASONS ? reasons[reason] : NULL;
}

esper_blend esper_style_blend(int style)
{
    assert(style >= 0 && style < ESPER_N_STYLES);
    return styles[style].blend;
}

int esper_alpha_choice_curve(int choice)
{
    assert(choice >= 0 && choice < ESPER_N_ALPHA_CHOICES);
    return curves[choice].curve;
}

double esper_alpha_choice_steepness(int choice)
{
    assert(choice >= 0 && choice < ESPER_N_ALPHA_CHOICES);
    return curves[choice].steepness;
}

/* ------------------------------------------------------------------------------------------------ choices by name */

/* One word of a list of names; E_ARG with the names there are. */
static esper_status read_word(const char *key, const char *value, const char *(*name_of)(int), int32_t *code_out)
{
    char names[160] = "";
    const char *name;

    for (int code = 0; (name = name_of(code)) != NULL; code++) {
        if (strcmp(name, value) == 0) {
            *code_out = code;
            return ESPER_OK;
        }
        strncat(names, code == 0 ? "" : ", ", sizeof(names) - strlen(names) - 1);
        strncat(names, name, sizeof(names) - strlen(names) - 1);
    }
    return ESPER_FAIL(ESPER_E_ARG, "%s '%s' is none of %s", key, value, names);
}

static esper_status read_ticks(const char *key, const char *value, int least, int32_t *ticks_out)
{
    int64_t ticks;
    bool fits;

    if (!esper_number_read_int(value, &ticks, &fits) || ticks < least || ticks > ESPER_DECISION_MAX_TICKS)
        return ESPER_FAIL(ESPER_E_ARG, "%s '%s' is no whole number of epochs from %d to %d", key, value, least,
                          ESPER_DECISION_MAX_TICKS);
    *ticks_out = (int32_t)ticks;
    return ESPER_OK;
}

#define FOR(op) (1u << ESPER_SLOT_OP_##op)

typedef enum choice { BLUEPRINT, BIRTH, STYLE, TEMPO, TARGET, SPEED, CURVE, N_CHOICES } choice;

static const struct {
    const char *key;
    unsigned    ops; /* bits of the operations that ask for it */
} choices[N_CHOICES] = {
    [BLUEPRINT] = {"blueprint", FOR(GERMINATE)},
    [BIRTH] = {"birth", FOR(GERMINATE)},
    [STYLE] = {"style", FOR(GERMINATE) | FOR(SET_ALPHA_TARGET)},
    [TEMPO] = {"tempo", FOR(GERMINATE)},
    [TARGET] = {"target", FOR(GERMINATE) | FOR(SET_ALPHA_TARGET)},
    [SPEED] = {"speed", FOR(SET_ALPHA_TARGET) | FOR(PRUNE)},
    [CURVE] = {"curve", FOR(SET_ALPHA_TARGET) | FOR(PRUNE)},
};

static esper_status set(esper_decision *decision, esper_topology topology, choice which, const char *value)
{
    const esper_blueprint *blueprint;
    double target;

    assert((int)which >= 0 && which < N_CHOICES);
    switch (which) {
    case BLUEPRINT:
        ESPER_TRY(esper_blueprint_find(topology, value, &blueprint));
        if (blueprint->index == 0)
            return ESPER_FAIL(ESPER_E_ARG, "blueprint '%s' does nothing and cannot germinate", value);
        decision->blueprint = blueprint->index;
        return ESPER_OK;
    case BIRTH:
        return read_word("birth", value, esper_birth_name, &decision->birth);
    case STYLE:
        return read_word("style", value, esper_style_name, &decision->style);
    case TEMPO:
        return read_ticks("tempo", value, 1, &decision->tempo);
    case TARGET:
        if (!esper_number_read_real(value, &target) || !(target > 0.0 && target <= 1.0))
            return ESPER_FAIL(ESPER_E_ARG, "target '%s' is no number above 0 and up to 1", value);
        decision->target = target;
        return ESPER_OK;
    case SPEED:
        return read_ticks("speed", value, 0, &decision->speed);
    default:
        return read_word("curve", value, esper_alpha_choice_name, &decision->curve);
    }
}

esper_status esper_decision_set(esper_decision *decision, esper_topology topology, const char *key, const char *value)
{
    char names[96] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    const char *op = esper_slot_op_name(decision->op);
    esper_suggest suggest;

    esper_suggest_init(&suggest, key);
    for (int i = 0; i < N_CHOICES; i++) {
        if ((choices[i].ops & 1u << decision->op) == 0)
            continue;
        if (strcmp(choices[i].key, key) == 0)
            return set(decision, topology, (choice)i, value);
        esper_suggest_offer(&suggest, choices[i].key);
        strncat(names, names[0] == '\0' ? "" : ", ", sizeof(names) - strlen(names) - 1);
        strncat(names, choices[i].key, sizeof(names) - strlen(names) - 1);
    }
    if (names[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "'%s': %s takes no choices", key, op);
    return ESPER_FAIL(ESPER_E_ARG, "'%s': %s takes %s%s", key, op, names, esper_suggest_text(&suggest, "", hint));
}

int esper_decision_find_op(const char *name, char hint_out[ESPER_SUGGEST_TEXT_CHARS])
{
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        if (strcmp(esper_slot_op_name(op), name) == 0)
            return op;
        esper_suggest_offer(&suggest, esper_slot_op_name(op));
    }
    (void)esper_suggest_text(&suggest, "", hint_out);
    return -1;
}

/* ------------------------------------------------------------------------------------------------ judging */

esper_status esper_decision_check(const esper_decision *decision, esper_topology topology)
{
    const char *op = esper_slot_op_name(decision->op);
    bool germinates = decision->op == ESPER_SLOT_OP_GERMINATE;

    if (op == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "there is no operation %d", (int)decision->op);
    if (decision->slot < 0 && decision->op != ESPER_SLOT_OP_WAIT)
        return ESPER_FAIL(ESPER_E_ARG, "%s: a slot is missing", op);
    if (esper_reason_name(decision->reason) == NULL || !(decision->confidence >= 0.0 && decision->confidence <= 1.0) ||
        memchr(decision->text, '\0', sizeof(decision->text)) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: its reason (%d) or confidence (%g) is damaged", op, (int)decision->reason,
                          decision->confidence);
    if (germinates && (decision->blueprint <= 0 || esper_policy_blueprint(topology, decision->blueprint) == NULL))
        return ESPER_FAIL(ESPER_E_ARG, "%s: a blueprint is missing", op);
    if (decision->birth != ESPER_BIRTH_UNSAID && !germinates)
        return ESPER_FAIL(ESPER_E_ARG, "%s: a birth (%d) is for germinations", op, (int)decision->birth);
    if (decision->birth != ESPER_BIRTH_UNSAID)
        ESPER_TRY(esper_blueprint_check_birth(esper_policy_blueprint(topology, decision->blueprint), decision->birth));
    if (!(decision->target > 0.0 && decision->target <= 1.0))
        return ESPER_FAIL(ESPER_E_ARG, "%s: target %g is not above 0 and up to 1", op, decision->target);
    if (decision->tempo < (decision->reason == ESPER_REASON_TRIAL_WON ? 0 : 1) ||
        decision->tempo > ESPER_DECISION_MAX_TICKS || decision->speed < 0 || decision->speed > ESPER_DECISION_MAX_TICKS)
        return ESPER_FAIL(ESPER_E_ARG, "%s: tempo %d or speed %d is out of range", op, (int)decision->tempo,
                          (int)decision->speed);
    if ((decision->style != ESPER_STYLE_KEEP || germinates) && esper_style_name(decision->style) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: there is no style %d", op, (int)decision->style);
    if (esper_alpha_choice_name(decision->curve) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: there is no curve %d", op, (int)decision->curve);
    return ESPER_OK;
}
