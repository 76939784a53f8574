/* Reading decision logs. Strict: an entry is read only when it is exactly what the log would have written. */
#include "grow/decision_log_fields.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "policy/view.h"

enum { MAX_BYTES = 256 << 20, FIRST_ENTRIES = 64 };

/* ------------------------------------------------------------------------------------------------ members */

/* An object whose members are taken one by one. The first failure stays; what follows gives zeros. */
typedef struct members {
    const json_t *object;
    size_t        n_taken;
    esper_status  status;
} members;

static const json_t *take(members *in, const char *key)
{
    const json_t *value = json_object_get(in->object, key);

    if (value != NULL)
        in->n_taken++;
    else if (in->status == ESPER_OK)
        in->status = ESPER_FAIL(ESPER_E_FORMAT, "%s is missing", key);
    return value;
}

static void refuse(members *in, const char *key, const char *wanted)
{
    if (in->status == ESPER_OK)
        in->status = ESPER_FAIL(ESPER_E_FORMAT, "%s is not %s", key, wanted);
}

/* NULL for null where that is allowed. */
static const char *take_text(members *in, const char *key, bool or_null)
{
    const json_t *value = take(in, key);

    if (value == NULL || (or_null && json_is_null(value)))
        return NULL;
    if (!json_is_string(value))
        refuse(in, key, or_null ? "a text or null" : "a text");
    return json_string_value(value);
}

/* A text into its place, whole. */
static void take_name(members *in, const char *key, bool or_null, char *name_out, size_t size)
{
    const char *text = take_text(in, key, or_null);

    if (text == NULL)
        return;
    if (strlen(text) >= size) {
        if (in->status == ESPER_OK)
            in->status = ESPER_FAIL(ESPER_E_FORMAT, "%s is longer than %zu bytes", key, size - 1);
        return;
    }
    strcpy(name_out, text);
}

/* The code of a name; `none` for null where that is allowed (none < 0). */
static int32_t take_code(members *in, const char *key, const char *(*name_of)(int), int none)
{
    const char *text = take_text(in, key, none < 0);
    int code = text != NULL ? esper_log_find(name_of, text) : none;

    if (text != NULL && code < 0 && in->status == ESPER_OK)
        in->status = ESPER_FAIL(ESPER_E_FORMAT, "there is no %s '%.32s'", key, text);
    return code;
}

static int32_t take_int(members *in, const char *key)
{
    const json_t *value = take(in, key);
    json_int_t number = json_integer_value(value);

    if (value != NULL && (!json_is_integer(value) || number < INT32_MIN || number > INT32_MAX))
        refuse(in, key, "a whole number of 32 bits");
    return (int32_t)number;
}

static uint64_t take_u64(members *in, const char *key)
{
    const json_t *value = take(in, key);
    uint64_t number = 0;
    bool fits;

    if (json_is_null(value))
        return ESPER_GUARD_NONE;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        return (uint64_t)json_integer_value(value);
    if (value != NULL &&
        (!json_is_string(value) || !esper_number_read_u64(json_string_value(value), &number, &fits) || !fits))
        refuse(in, key, "a whole number from 0");
    return number;
}

static uint64_t take_hash(members *in, const char *key)
{
    const char *text = take_text(in, key, false);
    unsigned long long hash = 0;
    int n = 0;

    if (text != NULL && (strlen(text) != 16 || sscanf(text, "%16llx%n", &hash, &n) != 1 || n != 16))
        refuse(in, key, "16 hexadecimal digits");
    return hash;
}

/* Those that are no JSON are texts. */
static double take_real(members *in, const char *key)
{
    static const struct word {
        const char *text;
        double      value;
    } words[] = {{"nan", (double)NAN}, {"inf", (double)INFINITY}, {"-inf", -(double)INFINITY}, {"-0", -0.0}};
    const json_t *value = take(in, key);

    if (json_is_number(value))
        return json_number_value(value);
    for (size_t i = 0; json_is_string(value) && i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i].text, json_string_value(value)) == 0)
            return words[i].value;
    if (value != NULL)
        refuse(in, key, "a number");
    return 0.0;
}

/* Everything there was has been asked for. */
static esper_status finish(const members *in)
{
    if (in->status != ESPER_OK)
        return in->status;
    if (in->n_taken != json_object_size(in->object))
        return ESPER_FAIL(ESPER_E_FORMAT, "%zu members that nobody knows", json_object_size(in->object) - in->n_taken);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ entries */

/* What a log is read with, and where it stands. */
typedef struct reader {
    esper_decision_history *history;
    uint64_t                line;     /* from 1 */
    uint64_t                capacity; /* entries there is room for */
} reader;

/* Bytes of a text, none of which is its end. */
static bool read_bytes(const char *hex, char *text_out, size_t size)
{
    size_t n = hex != NULL ? strlen(hex) / 2 : 0;

    if (n == 0 || n >= size || strspn(hex, "0123456789abcdef") != strlen(hex) || hex[2 * n] != '\0')
        return false;
    for (size_t i = 0; i < n; i++)
        if (sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&text_out[i]) != 1 || text_out[i] == '\0')
            return false;
    return true;
}

static void take_reason_text(members *in, char text_out[ESPER_DECISION_TEXT_CHARS])
{
    if (json_object_get(in->object, "text_bytes") == NULL) {
        take_name(in, "text", false, text_out, ESPER_DECISION_TEXT_CHARS);
        return;
    }
    (void)take_text(in, "text", false); /* for people */
    if (!read_bytes(take_text(in, "text_bytes", false), text_out, ESPER_DECISION_TEXT_CHARS))
        refuse(in, "text_bytes", "a text's bytes in hexadecimal");
}

static void take_blueprint(members *in, esper_topology topology, int32_t *index_out)
{
    const char *name = take_text(in, "blueprint", true);
    const esper_blueprint *blueprint;

    *index_out = -1;
    if (name == NULL || in->status != ESPER_OK)
        return;
    if (esper_blueprint_find(topology, name, &blueprint) == ESPER_OK)
        *index_out = blueprint->index;
    else
        in->status = ESPER_E_FORMAT; /* its message names those there are */
}

static void take_slots(members *in, const char *key, esper_log_governor *governor)
{
    const json_t *list = take(in, key);

    if (in->status != ESPER_OK)
        return;
    if (!json_is_array(list) || json_array_size(list) > ESPER_LOG_MAX_SLOTS) {
        in->status = ESPER_FAIL(ESPER_E_FORMAT, "%s is no list of up to %d slots", key, ESPER_LOG_MAX_SLOTS);
        return;
    }
    for (; governor->n_pruned < (int32_t)json_array_size(list); governor->n_pruned++) {
        const char *id = json_string_value(json_array_get(list, (size_t)governor->n_pruned));

        if (id == NULL || strlen(id) >= ESPER_SLOT_CHARS) {
            in->status = ESPER_FAIL(ESPER_E_FORMAT, "%s holds what is no slot", key);
            return;
        }
        strcpy(governor->pruned[governor->n_pruned], id);
    }
}

/* base: a zeroed esper_log_entry, or head. */
static void take_fields(members *in, esper_topology topology, const log_field *field, void *base)
{
    for (; field->name != NULL; field++) {
        const char *key = field->name;
        void *value = (char *)base + field->offset;

        switch (field->kind) {
        case LOG_INT:
            *(int32_t *)value = take_int(in, key);
            break;
        case LOG_COUNT:
        case LOG_U64:
            *(uint64_t *)value = take_u64(in, key);
            break;
        case LOG_MAYBE_HASH:
            if (json_object_get(in->object, key) == NULL)
                break;
            /* fallthrough */
        case LOG_HASH:
            *(uint64_t *)value = take_hash(in, key);
            break;
        case LOG_REAL:
            *(double *)value = take_real(in, key);
            break;
        case LOG_CODE:
            *(int32_t *)value = take_code(in, key, field->name_of, 0);
            break;
        case LOG_MAYBE_CODE:
            *(int32_t *)value = take_code(in, key, field->name_of, -1);
            break;
        case LOG_TEXT:
        case LOG_MAYBE_TEXT:
            take_name(in, key, field->kind == LOG_MAYBE_TEXT, value, field->bytes);
            break;
        case LOG_WORDS:
            take_reason_text(in, value);
            break;
        case LOG_BLUEPRINT:
            take_blueprint(in, topology, value);
            break;
        case LOG_SLOTS:
            take_slots(in, key, &((esper_log_entry *)base)->governor);
            break;
        }
    }
}

static esper_status read_entry(const reader *self, members *in, esper_log_entry *entry)
{
    esper_topology topology = (esper_topology)self->history->head.topology;
    uint64_t due = self->history->n;

    assert(due < self->capacity);
    take_fields(in, topology, log_entry, entry);
    ESPER_TRY(in->status);
    if (entry->number != due)
        return ESPER_FAIL(ESPER_E_FORMAT, "entry %llu where entry %llu belongs", (unsigned long long)entry->number,
                          (unsigned long long)due);
    take_fields(in, topology, log_part_of(entry->source), entry);
    ESPER_TRY(finish(in));
    if (entry->source == ESPER_LOG_POLICY)
        entry->decision.slot = -1;
    if (esper_log_entry_check(entry, topology) != ESPER_OK)
        return ESPER_E_FORMAT; /* its message says what is wrong */
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ lines */

static esper_status read_head(members *in, esper_log_head *head)
{
    const json_t *value = json_object_get(in->object, "esper_decisions");
    json_int_t version = json_integer_value(value);

    if (!json_is_integer(value))
        return ESPER_FAIL(ESPER_E_FORMAT, "this is no decision log: it does not begin with its header");
    if (version != ESPER_LOG_VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "a decision log of version %lld; this program reads version %d, and runs of "
                          "another are made again by the program that made them",
                          (long long)version, ESPER_LOG_VERSION);
    in->n_taken++;
    take_fields(in, ESPER_TOPOLOGY_CNN, log_head, head); /* it has no blueprints */
    return finish(in);
}

/* Out of memory, jansson may call the text invalid; malloc's errno tells the two apart. */
static esper_status parse(const char *line, size_t bytes, json_t **object_out)
{
    json_error_t error = {0};
    json_t *object;

    errno = 0;
    object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL && (errno == ENOMEM || json_error_code(&error) == json_error_out_of_memory))
        return ESPER_FAIL(ESPER_E_NOMEM, "a line of %zu bytes", bytes);
    if (object == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "this is no JSON: %s", error.text);
    if (!json_is_object(object)) {
        json_decref(object);
        return ESPER_FAIL(ESPER_E_FORMAT, "this is no object");
    }
    *object_out = object;
    return ESPER_OK;
}

static esper_status read_line(reader *self, const char *line, size_t bytes)
{
    esper_decision_history *history = self->history;
    members in = {0};
    json_t *object = NULL;
    esper_status status;

    if (history->n == self->capacity) { /* a zeroed place behind the last entry */
        uint64_t wanted = self->capacity == 0 ? FIRST_ENTRIES : 2 * self->capacity;
        esper_log_entry *larger = esper_mem_grow(history->entries, wanted * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%llu decisions", (unsigned long long)wanted);
        history->entries = larger;
        self->capacity = wanted;
    }
    ESPER_TRY(parse(line, bytes, &object));
    in.object = object;
    if (self->line == 1) {
        status = read_head(&in, &history->head);
    } else {
        status = read_entry(self, &in, &history->entries[history->n]);
        history->n += status == ESPER_OK;
    }
    json_decref(object);
    return status;
}

/* Line after line, up to n_most entries. */
static esper_status read_lines(reader *self, const char *text, size_t bytes, uint64_t n_most)
{
    const char *at = text, *end = text + bytes, *line_end;

    for (self->line = 1; self->line == 1 || self->history->n < n_most; self->line++) {
        line_end = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (line_end == NULL)
            break;
        ESPER_TRY(read_line(self, at, (size_t)(line_end - at)));
        at = line_end + 1;
    }
    self->history->bytes = (uint64_t)(at - text);
    self->history->torn = at < end && memchr(at, '\n', (size_t)(end - at)) == NULL;
    if (self->line == 1)
        return ESPER_FAIL(ESPER_E_FORMAT, "this is no decision log: it has no whole line");
    return ESPER_OK;
}

esper_status esper_decision_history_read(const char *path, uint64_t n_most, esper_decision_history *history_out)
{
    esper_decision_history history = {0};
    reader self = {.history = &history};
    char *text;
    size_t bytes;
    esper_status status;

    ESPER_TRY(esper_file_read(path, MAX_BYTES, &text, &bytes));
    status = read_lines(&self, text, bytes, n_most);
    esper_mem_free(text);
    if (status != ESPER_OK) {
        esper_decision_history_free(&history);
        return esper_fail_within(status, "%s:%llu: ", path, (unsigned long long)self.line);
    }
    *history_out = history;
    return ESPER_OK;
}

void esper_decision_history_free(esper_decision_history *history)
{
    esper_mem_free(history->entries);
    *history = (esper_decision_history){0};
}
