/* Decision files as text. */
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/suggest.h"
#include "policy/script.h"

enum { MAX_WORDS = 16 };

static const char blanks[] = " \t\r\v\f";

/* Cuts a line into words, up to a comment. Returns their number, of which at most MAX_WORDS are in `words`. */
static int split(char *line, char *words[MAX_WORDS])
{
    char *rest = line, *word;
    int n = 0;

    line[strcspn(line, "#")] = '\0';
    while ((word = strtok_r(n == 0 ? line : NULL, blanks, &rest)) != NULL) {
        if (n < MAX_WORDS)
            words[n] = word;
        n++;
    }
    return n;
}

static esper_status read_epoch(const char *word, const esper_policy_setup *setup, int *epoch_out)
{
    int64_t epoch;
    bool fits;

    if (!esper_number_read_int(word, &epoch, &fits) || epoch < 1 || epoch > INT_MAX)
        return ESPER_FAIL(ESPER_E_CONFIG, "'%s' is no epoch: they are whole numbers from 1", word);
    if (setup->max_epochs > 0 && epoch > setup->max_epochs)
        return ESPER_FAIL(ESPER_E_CONFIG, "epoch %d: the run has %d epochs", (int)epoch, setup->max_epochs);
    *epoch_out = (int)epoch;
    return ESPER_OK;
}

static esper_status read_slot(const char *word, const esper_policy_setup *setup, int op, int32_t *slot_out)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    if (strcmp(word, "-") == 0) {
        *slot_out = -1;
        return op == ESPER_SLOT_OP_WAIT
                   ? ESPER_OK
                   : ESPER_FAIL(ESPER_E_CONFIG, "%s needs a slot; '-' is for wait", esper_slot_op_name(op));
    }
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

static esper_status read_op(const char *word, esper_slot_op *op_out)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;
    int op = esper_slot_op_find(word);

    if (op >= 0) {
        *op_out = (esper_slot_op)op;
        return ESPER_OK;
    }
    esper_suggest_init(&suggest, word);
    for (op = 0; op < ESPER_N_SLOT_OPS; op++)
        esper_suggest_offer(&suggest, esper_slot_op_name(op));
    return ESPER_FAIL(
        ESPER_E_CONFIG,
        "'%s' is no operation%s; they are wait, germinate, set_alpha_target, prune, fossilize and advance", word,
        esper_suggest_text(&suggest, "", hint));
}

/* The choices after the operation: key=value, no key twice. */
static esper_status read_choices(char **words, int n_words, const esper_policy_setup *setup, esper_decision *decision)
{
    for (int w = 0; w < n_words; w++) {
        char *value = strchr(words[w], '=');

        if (value == NULL || value == words[w] || value[1] == '\0')
            return ESPER_FAIL(ESPER_E_CONFIG, "'%s' is not of the form choice=value", words[w]);
        *value++ = '\0';
        for (int before = 0; before < w; before++)
            if (strcmp(words[before], words[w]) == 0)
                return ESPER_FAIL(ESPER_E_CONFIG, "'%s' stands there twice", words[w]);
        if (esper_decision_set(decision, setup->topology, words[w], value) != ESPER_OK)
            return ESPER_E_CONFIG; /* it has said why */
    }
    return ESPER_OK;
}

static esper_status read_words(char **words, int n_words, const esper_policy_setup *setup, esper_script_line *line)
{
    esper_slot_op op = ESPER_SLOT_OP_WAIT;

    if (n_words < 3 || n_words > MAX_WORDS)
        return ESPER_FAIL(ESPER_E_CONFIG, "%d words; a line is: epoch slot operation choice=value ...", n_words);
    ESPER_TRY(read_epoch(words[0], setup, &line->epoch));
    ESPER_TRY(read_op(words[2], &op));
    esper_decision_init(&line->decision, op);
    ESPER_TRY(read_slot(words[1], setup, op, &line->decision.slot));
    ESPER_TRY(read_choices(words + 3, n_words - 3, setup, &line->decision));
    esper_decision_because(&line->decision, ESPER_REASON_SCRIPT, "Line %d of the decision file", line->line);
    if (esper_decision_check(&line->decision, setup->topology) != ESPER_OK)
        return ESPER_E_CONFIG;
    return ESPER_OK;
}

/* One line of text, which may hold no decision. */
static esper_status read_line(esper_script *script, char *text, int number, const esper_policy_setup *setup)
{
    const esper_script_line *before = script->n_lines > 0 ? &script->lines[script->n_lines - 1] : NULL;
    esper_script_line *line = &script->lines[script->n_lines];
    char *words[MAX_WORDS];
    int n_words = split(text, words);

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

static size_t count_lines(const char *text, size_t bytes)
{
    size_t n = 1;

    for (size_t i = 0; i < bytes; i++)
        n += text[i] == '\n';
    return n;
}

/* Line after line; *number_out is the one that failed. */
static esper_status read_lines(esper_script *script, char *text, const esper_policy_setup *setup, int *number_out)
{
    char *next;

    for (*number_out = 1; text != NULL; text = next, ++*number_out) {
        next = strchr(text, '\n');
        if (next != NULL)
            *next++ = '\0';
        ESPER_TRY(read_line(script, text, *number_out, setup));
    }
    return ESPER_OK;
}

esper_status esper_script_init(esper_script *script, char *text, size_t bytes, const char *name,
                               const esper_policy_setup *setup)
{
    esper_status status;
    int number = 0;

    *script = (esper_script){0};
    if (strlen(text) != bytes)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: a zero byte after %zu bytes: this is no text", name, strlen(text));
    script->lines = esper_mem_alloc(count_lines(text, bytes) * sizeof(*script->lines));
    if (script->lines == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: its decisions", name);
    status = read_lines(script, text, setup, &number);
    if (status == ESPER_OK)
        return ESPER_OK;
    esper_script_fini(script);
    return esper_fail_within(status, "%s:%d: ", name, number);
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
