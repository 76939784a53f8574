/* Internal. A small JSON writer into the caller's memory. It allocates nothing and cannot fail half-way: what does not
 * fit sets `overflow`, and the caller looks once, at the end. */
#ifndef ESPER_BASE_JSON_WRITE_H
#define ESPER_BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct esper_json {
    char  *text;        /* always zero-terminated */
    size_t size, used;  /* bytes of the memory, characters written */
    bool   needs_comma; /* private: a value stands before the next one */
    bool   overflow;    /* the text is incomplete */
} esper_json;

/* size > 0. The memory stays the caller's. */
void esper_json_init(esper_json *json, char *text, size_t size);

void esper_json_object_begin(esper_json *json);
void esper_json_object_end(esper_json *json);
void esper_json_array_begin(esper_json *json);
void esper_json_array_end(esper_json *json);

/* Names the next value of an object. */
void esper_json_key(esper_json *json, const char *name);

/* Text is UTF-8; other bytes become U+FFFD, so that the result is JSON whatever a path contained. NULL gives null. */
void esper_json_text(esper_json *json, const char *text);
void esper_json_int(esper_json *json, int64_t value);
void esper_json_bool(esper_json *json, bool value);
void esper_json_null(esper_json *json);

/* Reads back as the same double. JSON has no NaN or infinity: they become the texts "nan", "inf" and "-inf". */
void esper_json_real(esper_json *json, double value);

/* All 64 bits, as text: many readers keep numbers as doubles, which end at 53. In decimal, or in 16 hex digits. */
void esper_json_u64(esper_json *json, uint64_t value);
void esper_json_hash(esper_json *json, uint64_t value);

#endif
