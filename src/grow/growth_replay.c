/* A run held against the decision log of another: entry by entry they must be the same. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "grow/growth_internal.h"

/* "the governor (roll_back)", "a fault in blocks.0.conv.weight", "a decision (germinate r0c1)" */
static const char *describe(const esper_log_entry *entry, char *text, size_t chars)
{
    if (entry->source == ESPER_LOG_GOVERNOR)
        snprintf(text, chars, "the governor (%s)",
                 esper_governor_action_name((esper_governor_action)entry->governor.action));
    else if (entry->source == ESPER_LOG_INJECTION)
        snprintf(text, chars, "a fault in %s", entry->injection.tensor);
    else if (entry->source == ESPER_LOG_TRIAL)
        snprintf(text, chars, "a fork (%s) with weights %016" PRIx64, entry->slot[0] != '\0' ? entry->slot : "nothing",
                 entry->trial.fork);
    else
        snprintf(text, chars, "a decision (%s%s%s)", esper_slot_op_name(entry->decision.op),
                 entry->slot[0] != '\0' ? " " : "", entry->slot);
    return text;
}

/* An entry that is to be of that source. */
static esper_status entry_at(const esper_growth *growth, uint64_t at, int source, const esper_log_entry **entry_out)
{
    const esper_decision_history *history = growth->deciding.history;
    const esper_cursor *now = &growth->network->cursor;
    const esper_log_entry *entry;
    char text[160];

    assert(growth->deciding.n_replayed <= at && at <= history->n);
    if (at == history->n)
        return ESPER_FAIL(ESPER_E_STOPPED, "the log ends here");
    entry = &history->entries[at];
    if (entry->source != source)
        return ESPER_FAIL(ESPER_E_STATE,
                          "epoch %u, step %" PRIu64 ": a %s entry is due here, and the log's entry %" PRIu64
                          " is of %s in epoch %d, step %" PRIu64,
                          now->epoch + 1, now->step, esper_log_source_name(source), entry->number,
                          describe(entry, text, sizeof(text)), entry->epoch, entry->step);
    *entry_out = entry;
    return ESPER_OK;
}

esper_status growth_next_entry(esper_growth *growth, int source, const esper_log_entry **entry_out)
{
    return entry_at(growth, growth->deciding.n_replayed, source, entry_out);
}

/* Forks stand before the decision that asked for them. A log may end between the two, and nothing came of them then. */
esper_status growth_next_decision(esper_growth *growth, const esper_log_entry **entry_out)
{
    const esper_decision_history *history = growth->deciding.history;
    uint64_t at = growth->deciding.n_replayed;

    while (at < history->n && history->entries[at].source == ESPER_LOG_TRIAL)
        at++;
    if (at == history->n)
        growth->deciding.n_replayed = at;
    return entry_at(growth, at, ESPER_LOG_POLICY, entry_out);
}

/* What makes two entries of one source the same deed. */
static bool is_same_deed(const esper_growth *growth, const esper_log_entry *a, const esper_log_entry *b)
{
    if (a->source == ESPER_LOG_GOVERNOR)
        return a->governor.action == b->governor.action && a->governor.reason == b->governor.reason &&
               strcmp(a->governor.tensor, b->governor.tensor) == 0;
    if (a->source == ESPER_LOG_INJECTION)
        return a->injection.element == b->injection.element && a->injection.fault == b->injection.fault &&
               strcmp(a->injection.tensor, b->injection.tensor) == 0;
    if (a->source == ESPER_LOG_TRIAL)
        return a->trial.fork == b->trial.fork && a->trial.blueprint == b->trial.blueprint &&
               a->trial.n_steps == b->trial.n_steps && strcmp(a->slot, b->slot) == 0;
    if (!growth->deciding.tries)
        return true; /* a decision was taken from the log */
    return a->decision.op == b->decision.op && a->decision.blueprint == b->decision.blueprint &&
           strcmp(a->slot, b->slot) == 0;
}

esper_status growth_check_entry(esper_growth *growth, const esper_log_entry *entry)
{
    const esper_log_entry *logged;
    char ours[160], theirs[160];

    ESPER_TRY(growth_next_entry(growth, entry->source, &logged));
    if (entry->epoch != logged->epoch || entry->step != logged->step)
        return ESPER_FAIL(ESPER_E_STATE,
                          "entry %" PRIu64 " of the log is of epoch %d, step %" PRIu64
                          "; here it comes in epoch %d, step %" PRIu64,
                          logged->number, logged->epoch, logged->step, entry->epoch, entry->step);
    if (logged->weights != 0 && entry->weights != logged->weights) /* 0: made by hand, nobody knew them */
        return ESPER_FAIL(ESPER_E_STATE,
                          "epoch %d, step %" PRIu64 ": the weights are %016" PRIx64 ", and entry %" PRIu64
                          " of the log says %016" PRIx64,
                          entry->epoch, entry->step, entry->weights, logged->number, logged->weights);
    if (!is_same_deed(growth, entry, logged))
        return ESPER_FAIL(ESPER_E_STATE, "epoch %d, step %" PRIu64 ": %s, and entry %" PRIu64 " of the log says %s",
                          entry->epoch, entry->step, describe(entry, ours, sizeof(ours)), logged->number,
                          describe(logged, theirs, sizeof(theirs)));
    growth->deciding.n_replayed++;
    return ESPER_OK;
}
