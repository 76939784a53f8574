/* The table of keys, and values in and out of it. Where texts come from is the business of config_file.c (files) and
 * config_args.c (flags and environment); config_help.c shows the table to people. */
#include "base/config.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

/* The words of each choice. */
#define X(of, name, text) text,
static const char *const choices_backend[] = {ESPER_CONFIG_BACKEND_LIST(X) NULL};
static const char *const choices_progress[] = {ESPER_CONFIG_PROGRESS_LIST(X) NULL};
static const char *const choices_precision[] = {ESPER_CONFIG_PRECISION_LIST(X) NULL};
static const char *const choices_optimizer[] = {ESPER_CONFIG_OPTIMIZER_LIST(X) NULL};
static const char *const choices_length[] = {ESPER_CONFIG_LENGTH_LIST(X) NULL};
static const char *const choices_schedule[] = {ESPER_CONFIG_SCHEDULE_LIST(X) NULL};
static const char *const choices_gates[] = {ESPER_CONFIG_GATES_LIST(X) NULL};
static const char *const choices_comm[] = {ESPER_CONFIG_COMM_LIST(X) NULL};
static const char *const choices_curriculum[] = {ESPER_CONFIG_CURRICULUM_LIST(X) NULL};
static const char *const choices_incubation[] = {ESPER_CONFIG_INCUBATION_LIST(X) NULL};
static const char *const choices_birth[] = {ESPER_CONFIG_BIRTH_LIST(X) NULL};
#undef X
#define X(name, text) text,
static const char *const choices_log_level[] = {ESPER_LOG_LEVEL_LIST(X) NULL};
#undef X

#define X(name, text) static const char section_##name[] = text;
ESPER_CONFIG_SECTION_LIST(X)
#undef X

#define CHOICES_INT(name)    NULL
#define CHOICES_U64(name)    NULL
#define CHOICES_REAL(name)   NULL
#define CHOICES_BOOL(name)   NULL
#define CHOICES_TEXT(name)   NULL
#define CHOICES_CHOICE(name) choices_##name

/* clang-format off */
#define ANY           {.any = true}
#define BETWEEN(a, b) {.low = a, .high = b}
#define BELOW(a, b)   {.low = a, .high = b, .high_open = true}
#define ABOVE(a, b)   {.low = a, .high = b, .low_open = true}
#define FROM(a)       {.low = a, .high = (double)INFINITY}
#define OVER(a)       {.low = a, .high = (double)INFINITY, .low_open = true}

static const esper_config_key keys[ESPER_CONFIG_N_KEYS] = {
#define X(head, name_, kind_, preset_, range_, unit_, jobs_, needs_, effect_, help_)                 \
    {.section = section_##head, .name = #name_, .kind = ESPER_CONFIG_##kind_, .preset = preset_,     \
     .range = range_, .choices = CHOICES_##kind_(name_), .unit = unit_, .help = help_,               \
     .offset = offsetof(esper_config, name_)},
    ESPER_CONFIG_KEY_LIST(X)
#undef X
};
/* clang-format on */

/* Choices are read and written as int; names of flags and variables have room. */
#define FIELD_SIZE(name) sizeof(((esper_config *)0)->name)
#define X(section, name, kind, preset, range, unit, jobs, needs, effect, help)                               \
    _Static_assert(ESPER_CONFIG_##kind != ESPER_CONFIG_CHOICE || FIELD_SIZE(name) == sizeof(int), #name);    \
    _Static_assert(sizeof(#name) + sizeof("ESPER_") <= ESPER_CONFIG_NAME_CHARS, #name);
ESPER_CONFIG_KEY_LIST(X)
#undef X

/* What came of reading a text as a value. */
typedef enum outcome { GOOD, WRONG_KIND, OUT_OF_RANGE } outcome;

static bool in_range(const esper_config_key *key, double value)
{
    if (key->range.any)
        return true;
    return (key->range.low_open ? value > key->range.low : value >= key->range.low) &&
           (key->range.high_open ? value < key->range.high : value <= key->range.high);
}

static outcome read_int(const esper_config_key *key, const char *text, void *field)
{
    int64_t value;
    bool fits;

    if (!esper_number_read_int(text, &value, &fits))
        return WRONG_KIND;
    if (!fits || value < INT_MIN || value > INT_MAX || !in_range(key, (double)value))
        return OUT_OF_RANGE;
    *(int *)field = (int)value;
    return GOOD;
}

static outcome read_u64(const esper_config_key *key, const char *text, void *field)
{
    uint64_t value;
    bool fits;

    (void)key; /* the whole range is allowed: a double could not tell its ends anyway */
    if (!esper_number_read_u64(text, &value, &fits))
        return WRONG_KIND;
    if (!fits)
        return OUT_OF_RANGE;
    *(uint64_t *)field = value;
    return GOOD;
}

static outcome read_real(const esper_config_key *key, const char *text, void *field)
{
    double value;

    if (!esper_number_read_real(text, &value))
        return WRONG_KIND;
    if (!in_range(key, value))
        return OUT_OF_RANGE;
    *(double *)field = value == 0 ? 0 : value; /* -0 would be a second way to write 0 */
    return GOOD;
}

static outcome read_bool(const esper_config_key *key, const char *text, void *field)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

    (void)key;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0) {
            *(bool *)field = i % 2 == 1;
            return GOOD;
        }
    return WRONG_KIND;
}

static outcome read_choice(const esper_config_key *key, const char *text, void *field)
{
    for (int i = 0; key->choices[i] != NULL; i++)
        if (strcmp(text, key->choices[i]) == 0) {
            *(int *)field = i;
            return GOOD;
        }
    return WRONG_KIND;
}

/* Refuses what could not be written into a file and read back: see esper_config_load_text for its grammar. */
static outcome read_text(const esper_config_key *key, const char *text, void *field)
{
    size_t n = strlen(text);
    char before = ' ';

    (void)key;
    if (n >= ESPER_CONFIG_TEXT_CHARS || *text == ' ' || *text == '"' || *text == '\'' || (n > 0 && text[n - 1] == ' '))
        return WRONG_KIND;
    for (size_t i = 0, length; i < n; i += length) {
        length = esper_utf8_length((const uint8_t *)text + i, n - i);
        if (length == 0 || iscntrl((unsigned char)text[i]) || (before == ' ' && (text[i] == ';' || text[i] == '#')))
            return WRONG_KIND;
        before = text[i];
    }
    memcpy(field, text, n + 1);
    return GOOD;
}

static outcome (*const readers[])(const esper_config_key *key, const char *text, void *field) = {
    [ESPER_CONFIG_INT] = read_int,   [ESPER_CONFIG_U64] = read_u64,       [ESPER_CONFIG_REAL] = read_real,
    [ESPER_CONFIG_BOOL] = read_bool, [ESPER_CONFIG_CHOICE] = read_choice, [ESPER_CONFIG_TEXT] = read_text,
};

/* " from 1 to 65536", ", 0 or more", " above 0 and up to 0.5"; "" where anything goes. */
static void range_text(const esper_config_key *key, char *text, size_t size)
{
    char low[ESPER_NUMBER_CHARS], high[ESPER_NUMBER_CHARS];

    text[0] = '\0';
    if (key->range.any)
        return;
    esper_number_write_real(key->range.low, low);
    esper_number_write_real(key->range.high, high);
    if (isinf(key->range.high))
        snprintf(text, size, key->range.low_open ? " above %s" : ", %s or more", low);
    else if (key->range.low_open)
        snprintf(text, size, " above %s and up to %s", low, high);
    else
        snprintf(text, size, key->range.high_open ? " from %s to below %s" : " from %s to %s", low, high);
}

void esper_config_expected_text(const esper_config_key *key, char *text, size_t size)
{
    bool is_int = key->kind == ESPER_CONFIG_INT;
    char range[ESPER_SUGGEST_TEXT_CHARS];
    size_t used = 0;

    range_text(key, range, sizeof(range));
    if (is_int || key->kind == ESPER_CONFIG_REAL)
        snprintf(text, size, "a %snumber%s%s%s", is_int ? "whole " : "", key->unit[0] != '\0' ? " of " : "", key->unit,
                 range);
    else if (key->kind == ESPER_CONFIG_U64)
        snprintf(text, size, "a whole number from 0 to %llu", ULLONG_MAX);
    else if (key->kind == ESPER_CONFIG_BOOL)
        snprintf(text, size, "true or false");
    else if (key->kind == ESPER_CONFIG_TEXT)
        snprintf(text, size, "at most %d bytes of UTF-8, no quotes, control characters, comments or blanks at the ends",
                 ESPER_CONFIG_TEXT_CHARS - 1);
    for (int i = 0; key->choices != NULL && key->choices[i] != NULL && used < size; i++) /* "auto, cpu, ref or null" */
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 i == 0                        ? ""
                                 : key->choices[i + 1] == NULL ? " or "
                                                               : ", ",
                                 key->choices[i]);
}

/* A value as it may be shown: short, and without characters that would upset a terminal. */
static void shown_text(const char *text, char *shown, size_t size)
{
    size_t i;

    for (i = 0; text[i] != '\0' && i + 1 < size; i++)
        shown[i] = iscntrl((unsigned char)text[i]) ? '?' : text[i];
    shown[i] = '\0';
    if (text[i] != '\0' && size > 3)
        memcpy(shown + size - 4, "...", 4);
}

/* The assignment as its author wrote it: "my.conf:3: lr = fast", "--lr fast", "ESPER_LR=fast". */
static void assignment_text(const esper_config_source *source, const char *key, const char *value, char *text,
                            size_t size)
{
    char name[ESPER_CONFIG_NAME_CHARS], shown[80];

    shown_text(value, shown, sizeof(shown));
    if (source->place == ESPER_CONFIG_ENVIRON) {
        esper_config_variable_name(key, name);
        snprintf(text, size, "environment variable %s=%s", name, shown);
    } else if (source->place == ESPER_CONFIG_FLAG) {
        esper_config_flag_name(key, name);
        snprintf(text, size, "%s %s", name, shown);
    } else if (source->place == ESPER_CONFIG_FILE)
        snprintf(text, size, "%s:%d: %s = %s", source->name, source->line, key, shown);
    else
        snprintf(text, size, "%s%s: %s = %s", source->place == ESPER_CONFIG_PRESET ? "preset " : "default",
                 source->place == ESPER_CONFIG_PRESET ? source->name : "", key, shown);
}

static esper_status fail_value(const esper_config_key *key, const char *text, outcome what,
                               const esper_config_source *source)
{
    char assignment[512], expected[160], meant[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    assignment_text(source, key->name, text, assignment, sizeof(assignment));
    esper_config_expected_text(key, expected, sizeof(expected));
    esper_suggest_init(&suggest, text);
    for (int i = 0; key->choices != NULL && key->choices[i] != NULL; i++)
        esper_suggest_offer(&suggest, key->choices[i]);
    esper_suggest_text(&suggest, "", meant);
    return ESPER_FAIL(ESPER_E_CONFIG, "%s: %sexpected %s%s", assignment, what == OUT_OF_RANGE ? "out of range, " : "",
                      expected, meant);
}

/* Only for places that name keys freely; flags and variables are looked up by config_args.c. */
static esper_status fail_unknown(const char *name, const esper_config_source *source)
{
    char shown[ESPER_CONFIG_NAME_CHARS], meant[ESPER_SUGGEST_TEXT_CHARS], place[512] = "";
    esper_suggest suggest;

    shown_text(name, shown, sizeof(shown));
    if (source->place == ESPER_CONFIG_FILE)
        snprintf(place, sizeof(place), "%s:%d: ", source->name, source->line);
    else if (source->place == ESPER_CONFIG_PRESET)
        snprintf(place, sizeof(place), "preset %s: ", source->name);
    esper_config_suggest(&suggest, shown);
    esper_suggest_text(&suggest, "", meant);
    return ESPER_FAIL(ESPER_E_CONFIG, "%sthere is no key '%s'%s", place, shown,
                      suggest.best != NULL ? meant : "; 'esper info config --all' lists them");
}

/* The index of a source's name, kept at its first use. */
static esper_status keep_name(esper_config *config, const char *name, int *index_out)
{
    int i = 0;

    while (i < config->n_names && strncmp(config->names[i], name, ESPER_CONFIG_TEXT_CHARS - 1) != 0)
        i++;
    if (i == ESPER_CONFIG_MAX_NAMES)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: a configuration can come from %d presets and files, not more", name,
                          ESPER_CONFIG_MAX_NAMES);
    if (i == config->n_names)
        snprintf(config->names[config->n_names++], ESPER_CONFIG_TEXT_CHARS, "%s", name);
    *index_out = i;
    return ESPER_OK;
}

static void *field_of(esper_config *config, const esper_config_key *key)
{
    return (char *)config + key->offset;
}

void esper_config_init(esper_config *config)
{
    memset(config, 0, sizeof(*config));
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        outcome what = readers[keys[i].kind](&keys[i], keys[i].preset, field_of(config, &keys[i]));

        assert(what == GOOD);
        (void)what;
    }
}

esper_status esper_config_set(esper_config *config, const char *key, const char *text,
                              const esper_config_source *source)
{
    union {
        int      as_int;
        uint64_t as_u64;
        double   as_real;
        bool     as_bool;
        char     as_text[ESPER_CONFIG_TEXT_CHARS];
    } unused; /* what a weaker place says is checked all the same */
    int index = esper_config_find(key);
    bool weaker;
    outcome what;
    int name = 0;

    if (index < 0 && (strcmp(key, "lr_epochs") == 0 || strcmp(key, "lr_finish") == 0)) /* of version 0.1's records */
        return strcmp(text, "0") == 0
                   ? ESPER_OK
                   : ESPER_FAIL(ESPER_E_CONFIG, "%s is no setting any more: set schedule = hold, and fall", key);
    if (index < 0)
        return fail_unknown(key, source);
    weaker = source->place < config->origins[index].place;
    if (!weaker && source->name != NULL)
        ESPER_TRY(keep_name(config, source->name, &name));
    what = readers[keys[index].kind](&keys[index], text, weaker ? (void *)&unused : field_of(config, &keys[index]));
    if (what != GOOD)
        return fail_value(&keys[index], text, what, source);
    if (weaker)
        return ESPER_OK;
    config->origins[index].place = source->place;
    config->origins[index].name = name;
    config->origins[index].line = source->line;
    return ESPER_OK;
}

size_t esper_config_write(const esper_config *config, char text[ESPER_CONFIG_RECORD_CHARS])
{
    char value[ESPER_CONFIG_TEXT_CHARS];
    size_t used = 0;

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        esper_config_value_text(config, i, value);
        used += (size_t)snprintf(text + used, ESPER_CONFIG_RECORD_CHARS - used, "%s = %s\n", keys[i].name, value);
    }
    return used;
}

static bool joins_words(char c)
{
    return c == '-' || c == '_';
}

int esper_config_find(const char *name)
{
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const char *a = name, *b = keys[i].name;

        while (*a != '\0' && (*a == *b || (joins_words(*a) && joins_words(*b))))
            a++, b++;
        if (*a == *b)
            return i;
    }
    return -1;
}

const esper_config_key *esper_config_key_at(int index)
{
    assert(index >= 0 && index < ESPER_CONFIG_N_KEYS);
    return &keys[index];
}

void esper_config_suggest(esper_suggest *suggest, const char *name)
{
    esper_suggest_init(suggest, name);
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++)
        esper_suggest_offer(suggest, keys[i].name);
}

void esper_config_value_text(const esper_config *config, int index, char text[ESPER_CONFIG_TEXT_CHARS])
{
    const esper_config_key *key = esper_config_key_at(index);
    const void *field = (const char *)config + key->offset;

    if (key->kind == ESPER_CONFIG_INT)
        snprintf(text, ESPER_NUMBER_CHARS, "%d", *(const int *)field);
    else if (key->kind == ESPER_CONFIG_U64)
        snprintf(text, ESPER_NUMBER_CHARS, "%llu", (unsigned long long)*(const uint64_t *)field);
    else if (key->kind == ESPER_CONFIG_REAL)
        esper_number_write_real(*(const double *)field, text);
    else if (key->kind == ESPER_CONFIG_BOOL)
        strcpy(text, *(const bool *)field ? "true" : "false");
    else
        strcpy(text, key->kind == ESPER_CONFIG_CHOICE ? key->choices[*(const int *)field] : field);
}

void esper_config_source_text(const esper_config *config, int index, char *text, size_t size)
{
    const char *name = config->names[config->origins[index].name];
    esper_config_place place = esper_config_place_of(config, index);
    char own_name[ESPER_CONFIG_NAME_CHARS];

    if (place == ESPER_CONFIG_ENVIRON)
        esper_config_variable_name(keys[index].name, own_name);
    else
        esper_config_flag_name(keys[index].name, own_name);
    if (place == ESPER_CONFIG_FILE)
        snprintf(text, size, "%s:%d", name, config->origins[index].line);
    else if (place == ESPER_CONFIG_PRESET)
        snprintf(text, size, "preset %s", name);
    else if (place == ESPER_CONFIG_DEFAULT)
        snprintf(text, size, "default");
    else
        snprintf(text, size, "%s %s", place == ESPER_CONFIG_ENVIRON ? "environment" : "flag", own_name);
}

esper_config_place esper_config_place_of(const esper_config *config, int index)
{
    assert(index >= 0 && index < ESPER_CONFIG_N_KEYS);
    return config->origins[index].place;
}

const char *esper_config_gates_name(esper_config_gates gates)
{
    assert((unsigned)gates < sizeof(choices_gates) / sizeof(choices_gates[0]) - 1);
    return choices_gates[gates];
}

void esper_config_flag_name(const char *key, char text[ESPER_CONFIG_NAME_CHARS])
{
    snprintf(text, ESPER_CONFIG_NAME_CHARS, "--%s", key);
    for (char *at = text; *at != '\0'; at++)
        if (*at == '_')
            *at = '-';
}

void esper_config_variable_name(const char *key, char text[ESPER_CONFIG_NAME_CHARS])
{
    snprintf(text, ESPER_CONFIG_NAME_CHARS, "ESPER_%s", key);
    for (char *at = text; *at != '\0'; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
}
