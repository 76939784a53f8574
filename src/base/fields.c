/* Records as text. */
#include "base/fields.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ writing */

static size_t bytes_of(const esper_field *field)
{
    return field->type == ESPER_FIELD_I32 ? sizeof(int32_t) : sizeof(int64_t);
}

static bool is_zero(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static void write_value(esper_page *out, esper_field_type type, const void *at)
{
    if (type == ESPER_FIELD_I32)
        esper_page_print(out, " %" PRId32, *(const int32_t *)at);
    else if (type == ESPER_FIELD_I64)
        esper_page_print(out, " %" PRId64, *(const int64_t *)at);
    else if (type == ESPER_FIELD_U64)
        esper_page_print(out, " %" PRIu64, *(const uint64_t *)at);
    else if (isnan(*(const double *)at))
        esper_page_print(out, " nan"); /* whose sign means nothing */
    else
        esper_page_print(out, " %a", *(const double *)at);
}

void esper_fields_write(esper_page *out, const char *prefix, const esper_field *fields, const void *record)
{
    for (const esper_field *field = fields; field->name != NULL; field++) {
        const char *at = (const char *)record + field->offset;

        assert(field->count > 0);
        if (is_zero(at, (size_t)field->count * bytes_of(field)))
            continue;
        esper_page_print(out, "%s%s", prefix, field->name);
        for (int i = 0; i < field->count; i++)
            write_value(out, field->type, at + (size_t)i * bytes_of(field));
        esper_page_print(out, "\n");
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
