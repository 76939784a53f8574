/* Records as text. */
#include "base/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ------------------------------------------------------------------------------------------------ text */

void esper_text_add(esper_text *out, const char *format, ...)
{
    va_list args, again;
    int n;

    va_start(args, format);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && !out->failed && out->n + (size_t)n + 1 > out->room) {
        size_t room = 2 * (out->n + (size_t)n + 1);
        void *grown = esper_mem_grow(out->text, room);

        out->failed = grown == NULL;
        if (grown != NULL) {
            out->text = grown;
            out->room = room;
        }
    }
    if (n >= 0 && !out->failed) {
        vsnprintf(out->text + out->n, out->room - out->n, format, again);
        out->n += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void esper_text_fini(esper_text *out)
{
    esper_mem_free(out->text);
    *out = (esper_text){0};
}

/* ------------------------------------------------------------------------------------------------ writing */

static size_t bytes_of(const esper_field *field)
{
    return (size_t)field->count * (field->type == ESPER_FIELD_I32 ? sizeof(int32_t) : sizeof(int64_t));
}

static bool is_zero(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static void write_value(esper_text *out, const esper_field *field, const char *at, int i)
{
    union {
        double   real;
        int32_t  i32;
        int64_t  i64;
        uint64_t u64;
    } value;
    size_t bytes = field->type == ESPER_FIELD_I32 ? sizeof(int32_t) : sizeof(int64_t);

    memcpy(&value, at + (size_t)i * bytes, bytes);
    switch (field->type) {
    case ESPER_FIELD_REAL:
        if (isnan(value.real))
            esper_text_add(out, " nan");
        else
            esper_text_add(out, " %a", value.real);
        break;
    case ESPER_FIELD_I32:
        esper_text_add(out, " %" PRId32, value.i32);
        break;
    case ESPER_FIELD_I64:
        esper_text_add(out, " %" PRId64, value.i64);
        break;
    case ESPER_FIELD_U64:
        esper_text_add(out, " %" PRIu64, value.u64);
        break;
    }
}

void esper_fields_write(esper_text *out, const char *prefix, const esper_field *fields, const void *record)
{
    for (const esper_field *field = fields; field->name != NULL; field++) {
        const char *at = (const char *)record + field->offset;

        if (is_zero(at, bytes_of(field)))
            continue;
        esper_text_add(out, "%s%s", prefix, field->name);
        for (int i = 0; i < field->count; i++)
            write_value(out, field, at, i);
        esper_text_add(out, "\n");
    }
}

/* ------------------------------------------------------------------------------------------------ reading */

bool esper_fields_next(const char **text, esper_field_line *line_out)
{
    const char *line = *text, *end = strchr(line, '\n');
    size_t chars = end != NULL ? (size_t)(end - line) : strlen(line), name = strcspn(line, " \n");

    if (*line == '\0')
        return false;
    *line_out = (esper_field_line){
        .name = line, .name_chars = (int)name, .values = line + name, .value_chars = (int)(chars - name)};
    *text = line + chars + (end != NULL);
    return true;
}

/* One value from *text on, which moves behind it. */
static bool read_value(const char **text, const esper_field *field, char *at, int i)
{
    char *end;

    if (**text != ' ')
        return false;
    switch (field->type) {
    case ESPER_FIELD_REAL:
        ((double *)(void *)at)[i] = strtod(*text, &end);
        break;
    case ESPER_FIELD_I32:
        ((int32_t *)(void *)at)[i] = (int32_t)strtol(*text, &end, 10);
        break;
    case ESPER_FIELD_I64:
        ((int64_t *)(void *)at)[i] = strtoll(*text, &end, 10);
        break;
    default:
        ((uint64_t *)(void *)at)[i] = strtoull(*text, &end, 10);
        break;
    }
    if (end == *text)
        return false;
    *text = end;
    return true;
}

bool esper_fields_read(const esper_field_line *line, const char *prefix, const esper_field *fields, void *record)
{
    int chars = (int)strlen(prefix);

    if (line->name_chars <= chars || strncmp(line->name, prefix, (size_t)chars) != 0)
        return false;
    for (const esper_field *field = fields; field->name != NULL; field++) {
        const char *text = line->values;
        int i = 0;

        if ((int)strlen(field->name) != line->name_chars - chars ||
            strncmp(line->name + chars, field->name, strlen(field->name)) != 0)
            continue;
        while (i < field->count && read_value(&text, field, (char *)record + field->offset, i))
            i++;
        return i == field->count && text == line->values + line->value_chars;
    }
    return false;
}
