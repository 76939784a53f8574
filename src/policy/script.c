/* Decision files as text. */
#include <assert.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "policy/script.h"

enum { MAX_WORDS = 16 };

static const char blanks[] = " \t\r\v\f";

static esper_status read_slot(const char *word, const esper_policy_setup *setup, int op, int32_t *slot_out)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    if (strcmp(word, "-") == 0 && op != ESPER_SLOT_OP_WAIT)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s needs a slot; '-' is for wait", esper_slot_op_name(op));
    if (strcmp(word, "-") == 0)
        return ESPER_OK; /* a decision begins without one */
    esper_suggest_init(&suggest, word);
    for (int s = 0; s < setup->n_slots; s++) {
        if (strcmp(setup->slot_ids[s], word) == 0) {
            *slot_out = s;
            return ESPER_OK;
        }
        esper_suggest_offer(&suggest, setup->slot_ids[s]);
    }
    return ESPER_FAIL(ESPER_E_CONFIG, "the host has no slot '%s'%s (there are %d, from %s to %s)", word,
                      esper_suggest_text(&suggest, "", hint), setup->n_slots, setup->slot_ids[0],
                      setup->slot_ids[setup->n_slots - 1]);
}

/* epoch slot operation, then choices: key=value, no key twice. */
static esper_status read_words(char **words, int n_words, const esper_policy_setup *setup, esper_script_line *line)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    int64_t epoch;
    bool fits;
    int op;

    if (n_words < 3 || n_words > MAX_WORDS)
        return ESPER_FAIL(ESPER_E_CONFIG, "%d words; a line is: epoch slot operation choice=value ...", n_words);
    if (!esper_number_read_int(words[0], &epoch, &fits) || epoch < 1 || epoch > INT_MAX)
        return ESPER_FAIL(ESPER_E_CONFIG, "'%s' is no epoch: they are whole numbers from 1", words[0]);
    if (setup->max_epochs > 0 && epoch > setup->max_epochs)
        return ESPER_FAIL(ESPER_E_CONFIG, "epoch %d: the run has %d epochs", (int)epoch, setup->max_epochs);
    op = esper_decision_find_op(words[2], hint);
    if (op < 0)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "'%s' is no operation%s; they are wait, germinate, set_alpha_target, prune, fossilize and advance",
            words[2], hint);
    line->epoch = (int)epoch;
    esper_decision_init(&line->decision, (esper_slot_op)op);
    ESPER_TRY(read_slot(words[1], setup, op, &line->decision.slot));
    for (int w = 3; w < n_words; w++) {
        char *value = strchr(words[w], '=');

        if (value == NULL || value == words[w] || value[1] == '\0')
            return ESPER_FAIL(ESPER_E_CONFIG, "'%s' is not of the form choice=value", words[w]);
        *value++ = '\0';
        for (int before = 3; before < w; before++)
            if (strcmp(words[before], words[w]) == 0)
                return ESPER_FAIL(ESPER_E_CONFIG, "'%s' stands there twice", words[w]);
        if (esper_decision_set(&line->decision, setup->topology, words[w], value) != ESPER_OK)
            return ESPER_E_CONFIG; /* it has said why */
    }
    esper_decision_because(&line->decision, ESPER_REASON_SCRIPT, "Line %d of the decision file", line->line);
    return esper_decision_check(&line->decision, setup->topology) == ESPER_OK ? ESPER_OK : ESPER_E_CONFIG;
}

/* One line of text, which may hold no decision. */
static esper_status read_line(esper_script *script, char *text, int number, const esper_policy_setup *setup)
{
    const esper_script_line *before = script->n_lines > 0 ? &script->lines[script->n_lines - 1] : NULL;
    esper_script_line *line = &script->lines[script->n_lines];
    char *words[MAX_WORDS], *rest = text, *word;
    int n_words = 0;

    text[strcspn(text, "#")] = '\0';
    while ((word = strtok_r(n_words == 0 ? text : NULL, blanks, &rest)) != NULL) {
        if (n_words < MAX_WORDS)
            words[n_words] = word;
        n_words++;
    }
    if (n_words == 0)
        return ESPER_OK;
    line->line = number;
    ESPER_TRY(read_words(words, n_words, setup, line));
    if (before != NULL && line->epoch == before->epoch)
        return ESPER_FAIL(ESPER_E_CONFIG, "epoch %d has its decision in line %d already: one an epoch", line->epoch,
                          before->line);
    if (before != NULL && line->epoch < before->epoch)
        return ESPER_FAIL(ESPER_E_CONFIG, "epoch %d after epoch %d in line %d: lines go by epoch", line->epoch,
                          before->epoch, before->line);
    script->n_lines++;
    return ESPER_OK;
}

esper_status esper_script_init(esper_script *script, char *text, size_t bytes, const char *name,
                               const esper_policy_setup *setup)
{
    esper_status status = ESPER_OK;
    size_t n_lines = 1;
    char *next;

    *script = (esper_script){0};
    if (strlen(text) != bytes)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: a zero byte after %zu bytes: this is no text", name, strlen(text));
    for (size_t i = 0; i < bytes; i++)
        n_lines += text[i] == '\n';
    script->lines = esper_mem_alloc(n_lines * sizeof(*script->lines));
    if (script->lines == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: its decisions", name);
    for (int number = 1; text != NULL; text = next, number++) {
        next = strchr(text, '\n');
        if (next != NULL)
            *next++ = '\0';
        assert((size_t)script->n_lines < n_lines);
        status = read_line(script, text, number, setup);
        if (status != ESPER_OK) {
            esper_script_fini(script);
            return esper_fail_within(status, "%s:%d: ", name, number);
        }
    }
    return status;
}

void esper_script_fini(esper_script *script)
{
    esper_mem_free(script->lines);
    *script = (esper_script){0};
}

const esper_script_line *esper_script_find(const esper_script *script, int epoch)
{
    int low = 0, high = script->n_lines;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (script->lines[middle].epoch < epoch)
            low = middle + 1;
        else
            high = middle;
    }
    return low < script->n_lines && script->lines[low].epoch == epoch ? &script->lines[low] : NULL;
}
