/* Seeds in words. */
#include "ui/grow_words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policy/trials.h"
#include "ui/text.h"

enum { CHECK_CHARS = 128 };

/* "gradient ratio" for "gradient_ratio". */
static void put_name(const char *name, char *text, size_t size)
{
    snprintf(text, size, "%s", name);
    for (char *at = text; *at != '\0'; at++)
        if (*at == '_')
            *at = ' ';
}

static bool has_text(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* " (why)", or nothing. */
static void in_brackets(const char *why, char text[ESPER_WORDS_CHARS])
{
    text[0] = '\0';
    if (has_text(why))
        snprintf(text, ESPER_WORDS_CHARS, " (%.200s)", why);
}

/* ------------------------------------------------------------------------------------------------ gates */

static bool is_yes_no(int kind)
{
    return kind == ESPER_CHECK_SEED || kind == ESPER_CHECK_SEED_ID || kind == ESPER_CHECK_BLUEPRINT ||
           kind == ESPER_CHECK_STAGE || kind == ESPER_CHECK_EXPLODING || kind == ESPER_CHECK_HEALTHY;
}

static const char *name_of(const esper_gate_check *check)
{
    switch (check->kind) {
    case ESPER_CHECK_IMPROVEMENT: /* measured in three ways, one of which is a gain; the token tells them apart */
        return strncmp(check->token, "fork_gain", strlen("fork_gain")) == 0 ? "gain" : "improvement";
    case ESPER_CHECK_CONTRIBUTION:
    case ESPER_CHECK_CONTRIBUTION_MEASURED:
        return "dependence";
    case ESPER_CHECK_GRADIENT_MEASURED:
        return "gradient health";
    case ESPER_CHECK_BOUND_EPOCHS:
        return "epochs measured";
    default:
        return esper_gate_check_name(check->kind);
    }
}

static void put_check(const esper_gate_check *check, char text[CHECK_CHARS])
{
    char name[64];

    if (is_yes_no(check->kind) && check->token[0] != '\0') {
        put_name(check->token, text, CHECK_CHARS);
        return;
    }
    put_name(name_of(check) != NULL ? name_of(check) : "check", name, sizeof(name));
    if (isnan(check->value))
        snprintf(text, CHECK_CHARS, "%s %s", name, check->passed ? "not a number" : "not measured");
    else if (check->kind == ESPER_CHECK_CONTRIBUTION_MEASURED)
        snprintf(text, CHECK_CHARS, "%s %+.3g", name, check->value);
    else if (check->kind == ESPER_CHECK_ALPHA)
        snprintf(text, CHECK_CHARS, "%s %.3g of %.3g", name, check->value, check->threshold);
    else
        snprintf(text, CHECK_CHARS, "%s %.3g %s %.3g", name, check->value, check->passed ? ">=" : "<",
                 check->threshold);
}

const char *esper_words_gate(const esper_gate_result *result, char text[ESPER_WORDS_CHARS])
{
    const char *gate = esper_gate_name(result->gate);
    char words[CHECK_CHARS];

    snprintf(text, ESPER_WORDS_CHARS, "%s%s", gate != NULL ? gate : "-",
             gate == NULL     ? ""
             : result->passed ? " passed"
                              : " failed");
    if (gate == NULL || result->passed)
        return text;
    for (int i = 0; i < result->n_checks; i++) {
        if (result->checks[i].passed)
            continue;
        put_check(&result->checks[i], words);
        snprintf(text, ESPER_WORDS_CHARS, "%s failed: %s", gate, words);
        break;
    }
    return text;
}

const char *esper_words_checks(const esper_gate_result *result, char text[ESPER_WORDS_CHARS])
{
    char words[CHECK_CHARS];
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < result->n_checks && used < ESPER_WORDS_CHARS; i++) {
        put_check(&result->checks[i], words);
        used += (size_t)snprintf(text + used, ESPER_WORDS_CHARS - used, "%s%s", i == 0 ? "" : ", ", words);
    }
    return text;
}

/* ------------------------------------------------------------------------------------------------ the others */

const char *esper_words_dependence(double mean, double low, double high, char text[ESPER_WORDS_CHARS])
{
    if (isnan(mean))
        snprintf(text, ESPER_WORDS_CHARS, "-");
    else if (isnan(low) || isnan(high))
        snprintf(text, ESPER_WORDS_CHARS, "%+.1f", mean);
    else
        snprintf(text, ESPER_WORDS_CHARS, "%+.1f [%.1f, %.1f]", mean, low, high);
    return text;
}

const char *esper_words_gain(double gain, double error, int n_candidates, char text[ESPER_WORDS_CHARS])
{
    double reach = n_candidates > 0 ? esper_trial_bound(n_candidates) * error : (double)NAN;

    if (isfinite(gain) && isfinite(reach))
        snprintf(text, ESPER_WORDS_CHARS, "%+.4f [%.4f, %.4f]", gain, gain - reach, gain + reach);
    else
        snprintf(text, ESPER_WORDS_CHARS, "-");
    return text;
}

const char *esper_words_trial(const esper_words_best *best, bool won, char text[ESPER_WORDS_CHARS])
{
    const char *plural = best->n_candidates == 1 ? "" : "s";
    char gain[ESPER_WORDS_CHARS], count[ESPER_TEXT_CHARS];

    esper_words_gain(best->gain, best->error, best->n_candidates, gain);
    if (won)
        snprintf(text, ESPER_WORDS_CHARS,
                 "trial of %d seed%s: %s %s wins, gain %.64s nats, and joins with %s parameters", best->n_candidates,
                 plural, best->slot, best->blueprint, gain, esper_text_count(best->params, count));
    else if (best->asked)
        snprintf(text, ESPER_WORDS_CHARS, "trial of %d seed%s, asked for: %s %s did best, gain %.64s nats",
                 best->n_candidates, plural, best->slot, best->blueprint, gain);
    else
        snprintf(text, ESPER_WORDS_CHARS, "trial of %d seed%s: none pays; the best was %s %s, gain %.64s nats",
                 best->n_candidates, plural, best->slot, best->blueprint, gain);
    return text;
}

const char *esper_words_decision(const esper_growth_decision *decision, char text[ESPER_WORDS_CHARS])
{
    bool on_slot = has_text(decision->slot), has_reason = has_text(decision->reason);
    const char *refusal = has_text(decision->refusal) ? decision->refusal : "";

    text[0] = '\0';
    if (!has_text(decision->op))
        return text;
    snprintf(text, ESPER_WORDS_CHARS, "%.32s%s%.16s%s%.200s%s%s%.200s%s", decision->op, on_slot ? " " : "",
             on_slot ? decision->slot : "", has_reason ? ": " : "", has_reason ? decision->reason : "",
             decision->refused ? " (refused" : "", decision->refused && refusal[0] != '\0' ? ": " : "",
             decision->refused ? refusal : "", decision->refused ? ")" : "");
    return text;
}

static const char *stage_word(int stage)
{
    const char *name = esper_stage_name(stage);

    return name != NULL ? name : "?";
}

/* What leads to a fossil is told by that. */
static const char *tell_gate(const esper_slot_event *event, char text[ESPER_WORDS_CHARS])
{
    char words[ESPER_WORDS_CHARS];
    const char *gate = esper_gate_name(event->gate.gate);

    if (!event->gate.passed || event->to == ESPER_STAGE_FOSSILIZED || event->to == ESPER_STAGE_GERMINATED)
        return NULL;
    snprintf(text, ESPER_WORDS_CHARS, "%s %s passed %s to %s: %.360s", event->slot, event->blueprint,
             gate != NULL ? gate : "a gate", stage_word(event->to), esper_words_checks(&event->gate, words));
    return text;
}

const char *esper_words_event(const esper_slot_event *event, const char *why, char text[ESPER_WORDS_CHARS])
{
    const char *slot = event->slot, *blueprint = event->blueprint;
    char count[ESPER_TEXT_CHARS], lost[ESPER_WORDS_CHARS], because[ESPER_WORDS_CHARS];
    double none = (double)NAN;

    in_brackets(why, because);
    esper_text_count(event->params, count);
    switch (event->kind) {
    case ESPER_SLOT_EVENT_GERMINATED:
        snprintf(text, ESPER_WORDS_CHARS, "%s %s germinated, %s parameters%.210s", slot, blueprint, count, because);
        return text;
    case ESPER_SLOT_EVENT_GATE:
        return tell_gate(event, text);
    case ESPER_SLOT_EVENT_STAGE: /* moves through gates, and those of a prune, are told by their own events */
        if (event->to == ESPER_STAGE_DORMANT)
            snprintf(text, ESPER_WORDS_CHARS, "%s is free again", slot);
        else if (event->from == ESPER_STAGE_HOLDING && event->to == ESPER_STAGE_BLENDING)
            snprintf(text, ESPER_WORDS_CHARS, "%s %s back to blending%.210s", slot, blueprint, because);
        else
            return NULL;
        return text;
    case ESPER_SLOT_EVENT_FOSSILIZED:
        esper_words_dependence(event->contribution, none, none, lost);
        snprintf(text, ESPER_WORDS_CHARS, "%s %s fossilized after %d epochs, dependence %.32s, %s parameters%.210s",
                 slot, blueprint, event->epochs_total, lost, count, because);
        return text;
    case ESPER_SLOT_EVENT_PRUNED:
        snprintf(text, ESPER_WORDS_CHARS, "%s %s pruned after %d epochs in %s: %s by %s%.210s", slot, blueprint,
                 event->epochs_total, stage_word(event->from),
                 has_text(event->reason) ? event->reason : "no reason given",
                 has_text(event->initiator) ? event->initiator : "?", because);
        return text;
    }
    return NULL;
}
