/* Internal. Records as text: a table names the members of a record, and the text has a line for each that is not 0:
 *
 *     seed.2.ratio 0x1.999999999999ap-4
 *     tracker.losses 0x1p+0 0x1.8p-1
 *
 * Reals are written in full (hexadecimal, "nan", "inf"), so that what is read is what was written, bit for bit. */
#ifndef ESPER_BASE_FIELDS_H
#define ESPER_BASE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/page.h"

typedef enum esper_field_type { ESPER_FIELD_REAL, ESPER_FIELD_I32, ESPER_FIELD_I64, ESPER_FIELD_U64 } esper_field_type;

typedef struct esper_field {
    const char      *name;
    esper_field_type type;
    size_t           offset;
    int              count; /* 1, or the elements of an array */
} esper_field;

/* A table ends with a name that is NULL. */
#define ESPER_FIELD(record, type, member)                                                          \
    {                                                                                              \
#member, ESPER_FIELD_##type, offsetof(record, member),                                     \
            (int)(sizeof(((record *)0)->member) / (ESPER_FIELD_##type == ESPER_FIELD_I32 ? 4 : 8)) \
    }
#define ESPER_FIELDS_END             \
    {                                \
        NULL, ESPER_FIELD_REAL, 0, 0 \
    }

void esper_fields_write(esper_page *out, const char *prefix, const esper_field *fields, const void *record);

/* The next line of a text, split: its name, and its values (to their end of line). *text moves on; false: there is none. */
typedef struct esper_field_line {
    const char *name, *values;
    int         name_chars, value_chars;
} esper_field_line;

bool esper_fields_next(const char **text, esper_field_line *line_out);

/* Puts a line's values into a record, when its name is that of a member behind the prefix. false: it is not, or what stands there
 * are not its values. */
bool esper_fields_read(const esper_field_line *line, const char *prefix, const esper_field *fields, void *record);

#endif
