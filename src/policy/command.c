/* The policy that asks a program in any language: docs/policy-protocol.md is its contract. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "policy/child.h"
#include "policy/command.h"
#include "policy/mask.h"
#include "policy/policy.h"

enum {
    PROTOCOL = 1,
    MEMORY_CHARS = ESPER_COMMAND_MEMORY_CHARS,
    VIEW_CHARS = 4096,    /* of a view as JSON, without its slots and the memory */
    SLOT_CHARS = 2048,
    EXCERPT_CHARS = 48,
};

typedef struct command {
    esper_policy   base;
    char          *line; /* what the program is called in messages */
    esper_child   *child;
    int            deadline_ms, n_slots;
    char          *question; /* (n_question) */
    size_t         n_question;
    bool           has_memory;
    char           memory[MEMORY_CHARS];
} command;

static void close_command(esper_policy *base)
{
    command *policy = (command *)base;

    esper_child_close(policy->child);
    esper_mem_free(policy->question);
    esper_mem_free(policy->line);
    esper_mem_free(policy);
}

static esper_status open_command(const esper_policy_setup *setup, esper_policy **policy_out)
{
    command *policy;
    esper_status status;

    if (setup->command == NULL || setup->command[strspn(setup->command, " \t\n")] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "the command policy needs a program to run");
    if (setup->deadline_ms < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "a policy program cannot answer within %d ms", setup->deadline_ms);
    policy = esper_mem_alloc(sizeof(*policy));
    if (policy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "command policy");
    policy->base.ops = &esper_policy_command;
    policy->deadline_ms = setup->deadline_ms > 0 ? setup->deadline_ms : ESPER_POLICY_DEADLINE_MS;
    policy->n_slots = setup->n_slots;
    policy->n_question = VIEW_CHARS + (size_t)setup->n_slots * SLOT_CHARS + 6 * MEMORY_CHARS; /* \u0001: six for one */
    policy->line = esper_mem_strdup(setup->command);
    policy->question = esper_mem_alloc(policy->n_question);
    if (policy->line == NULL || policy->question == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "command policy");
    else
        status = esper_child_open(setup->command, &policy->child);
    if (status != ESPER_OK) {
        close_command(&policy->base);
        return status;
    }
    *policy_out = &policy->base;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the answer */

/* The beginning of an answer, fit to be shown. */
static const char *excerpt(const char *line, size_t bytes, char text[EXCERPT_CHARS + 4])
{
    size_t n = bytes < EXCERPT_CHARS ? bytes : EXCERPT_CHARS;

    for (size_t i = 0; i < n; i++)
        text[i] = (char)(line[i] >= 0x20 && line[i] < 0x7F ? line[i] : '?');
    strcpy(text + n, n < bytes ? "..." : "");
    return text;
}

static esper_status parse(const char *line, size_t bytes, json_t **answer_out)
{
    char shown[EXCERPT_CHARS + 4];
    json_error_t error = {0};
    json_t *answer = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);

    if (answer == NULL && json_error_code(&error) == json_error_out_of_memory)
        return ESPER_FAIL(ESPER_E_NOMEM, "its answer of %zu bytes", bytes);
    if (answer == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "its answer is no JSON: %s in \"%s\"", error.text,
                          excerpt(line, bytes, shown));
    if (!json_is_object(answer)) {
        json_decref(answer);
        return ESPER_FAIL(ESPER_E_FORMAT, "its answer is no object: \"%s\"", excerpt(line, bytes, shown));
    }
    *answer_out = answer;
    return ESPER_OK;
}

/* A member of the answer; null is as if it were not there. */
static esper_status read_member(const char *key, const json_t *value, const esper_policy_view *view,
                                esper_decision *decision)
{
    const char *text = json_string_value(value);
    char number[ESPER_NUMBER_CHARS];

    if (strcmp(key, "epoch") == 0 || strcmp(key, "op") == 0 || json_is_null(value))
        return ESPER_OK; /* the first two were read before */
    if (strcmp(key, "slot") == 0) {
        decision->slot = text != NULL ? esper_policy_view_find(view, text) : -1;
        if (decision->slot < 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "there is no slot '%.32s'", text != NULL ? text : "(not a text)");
        return ESPER_OK;
    }
    if (strcmp(key, "reason") == 0) {
        if (text == NULL)
            return ESPER_FAIL(ESPER_E_FORMAT, "its reason is no text");
        esper_decision_because(decision, ESPER_REASON_PROGRAM, "%s", text);
        return ESPER_OK;
    }
    if (strcmp(key, "memory") == 0) {
        if (text == NULL || json_string_length(value) >= MEMORY_CHARS)
            return ESPER_FAIL(ESPER_E_FORMAT, "its memory is no text of up to %d bytes", MEMORY_CHARS - 1);
        return ESPER_OK;
    }
    if (json_is_integer(value)) /* blueprint, style and so on: texts or numbers */
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        esper_number_write_real(json_real_value(value), number);
    else if (text == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "'%.32s' is neither a text nor a number", key);
    if (esper_decision_set(decision, view->topology, key, text != NULL ? text : number) != ESPER_OK)
        return ESPER_E_FORMAT; /* it has said why */
    return ESPER_OK;
}

static esper_status read_answer(json_t *answer, const esper_policy_view *view, esper_decision *decision)
{
    const json_t *epoch = json_object_get(answer, "epoch");
    const char *op_name = json_string_value(json_object_get(answer, "op")), *key;
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_status status;
    json_t *value;
    int op;

    if (!json_is_integer(epoch))
        return ESPER_FAIL(ESPER_E_FORMAT, "its answer has no epoch: repeat that of the view");
    if (json_integer_value(epoch) != view->epoch)
        return ESPER_FAIL(ESPER_E_FORMAT, "it answered for epoch %lld when asked for epoch %d: one line for each view",
                          (long long)json_integer_value(epoch), view->epoch);
    if (op_name == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "its answer has no op, which is a text");
    op = esper_decision_find_op(op_name, hint);
    if (op < 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "there is no op '%.32s'%s", op_name, hint);
    esper_decision_init(decision, (esper_slot_op)op);
    esper_decision_because(decision, ESPER_REASON_PROGRAM, "The program gave no reason");
    json_object_foreach(answer, key, value)
        ESPER_TRY(read_member(key, value, view, decision));
    status = esper_mask_check(view, decision);
    return status == ESPER_E_ARG ? ESPER_E_FORMAT : status;
}

esper_status esper_command_take_answer(const char *line, size_t bytes, const esper_policy_view *view,
                                       esper_decision *decision_out, char memory[ESPER_COMMAND_MEMORY_CHARS],
                                       bool *remembers_out)
{
    esper_decision decision;
    json_t *answer = NULL;
    const json_t *said;
    esper_status status;

    ESPER_TRY(parse(line, bytes, &answer));
    status = read_answer(answer, view, &decision);
    said = json_object_get(answer, "memory");
    if (status == ESPER_OK && json_is_string(said)) { /* kept until the program says otherwise */
        memset(memory, 0, MEMORY_CHARS);
        memcpy(memory, json_string_value(said), json_string_length(said));
        *remembers_out = true;
    }
    if (status == ESPER_OK)
        *decision_out = decision;
    json_decref(answer);
    return status;
}

static esper_status ask(command *policy, const esper_policy_view *view, esper_decision *decision_out)
{
    const char *line = NULL;
    size_t n_line = 0;
    esper_json json;

    esper_json_init(&json, policy->question, policy->n_question - 1);
    esper_json_object_begin(&json);
    esper_json_key(&json, "protocol");
    esper_json_int(&json, PROTOCOL);
    esper_policy_view_write(view, &json);
    esper_json_key(&json, "memory");
    esper_json_text(&json, policy->has_memory ? policy->memory : NULL);
    esper_json_object_end(&json);
    if (json.overflow)
        return ESPER_FAIL(ESPER_E_ARG, "a view of %d slots, opened for %d, does not fit", view->n_slots,
                          policy->n_slots);
    assert(json.used < policy->n_question);
    policy->question[json.used] = '\n';
    ESPER_TRY(esper_child_ask(policy->child, policy->question, json.used + 1, policy->deadline_ms, &line, &n_line));
    return esper_command_take_answer(line, n_line, view, decision_out, policy->memory, &policy->has_memory);
}

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    command *policy = (command *)base;
    esper_status status = ask(policy, view, decision_out);

    if (status != ESPER_OK)
        return esper_fail_within(status, "policy program '%.80s', epoch %d (deadline %g s): ", policy->line,
                                 view->epoch, policy->deadline_ms / 1000.0);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ packed */

static size_t pack(const esper_policy *base, void *memory)
{
    const command *policy = (const command *)base;
    size_t bytes = policy->has_memory ? strlen(policy->memory) + 1 : 0;

    if (memory != NULL)
        memcpy(memory, policy->memory, bytes);
    return bytes;
}

static esper_status unpack(esper_policy *base, const void *memory, size_t bytes)
{
    command *policy = (command *)base;

    if (bytes > MEMORY_CHARS || (bytes > 0 && memchr(memory, '\0', bytes) != (const char *)memory + bytes - 1))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of a policy program: %zu bytes are no text", bytes);
    memset(policy->memory, 0, sizeof(policy->memory));
    memcpy(policy->memory, memory, bytes);
    policy->has_memory = bytes > 0;
    return ESPER_OK;
}

const esper_policy_ops esper_policy_command = {
    .name = "command",
    .about = "asks a program of yours, in JSON lines",
    .open = open_command,
    .close = close_command,
    .decide = decide,
    .pack = pack,
    .unpack = unpack,
};
