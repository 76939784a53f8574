/* The JSON writer: the only state between two calls is whether a comma is due. */
#include "base/json_write.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

static void put(esper_json *json, const char *text, size_t n)
{
    assert(json->used < json->size);
    if (json->overflow || n >= json->size - json->used) {
        json->overflow = true;
        return;
    }
    memcpy(json->text + json->used, text, n);
    json->used += n;
    json->text[json->used] = '\0';
}

static void put_comma(esper_json *json)
{
    if (json->needs_comma)
        put(json, ",", 1);
    json->needs_comma = true;
}

/* A value that is neither text nor container. */
static void put_word(esper_json *json, const char *word)
{
    put_comma(json);
    put(json, word, strlen(word));
}

/* One character inside quotes; returns the bytes of text it took. */
static size_t put_character(esper_json *json, const char *text)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t n = esper_utf8_length((const uint8_t *)text, strnlen(text, 4));
    const char *found = n == 1 ? strchr(escaped, *text) : NULL;
    char code[8];

    if (found != NULL) {
        code[0] = '\\';
        code[1] = letters[found - escaped];
        put(json, code, 2);
    } else if (n == 1 && ((unsigned char)*text < 0x20 || *text == 0x7F)) {
        snprintf(code, sizeof(code), "\\u%04x", (unsigned)(unsigned char)*text);
        put(json, code, 6);
    } else if (n == 0) {
        put(json, "\\ufffd", 6);
    } else {
        put(json, text, n);
    }
    return n != 0 ? n : 1;
}

static void put_quoted(esper_json *json, const char *text)
{
    put(json, "\"", 1);
    while (*text != '\0' && !json->overflow)
        text += put_character(json, text);
    put(json, "\"", 1);
}

void esper_json_init(esper_json *json, char *text, size_t size)
{
    assert(text != NULL && size > 0);
    *json = (esper_json){.text = text, .size = size};
    text[0] = '\0';
}

void esper_json_object_begin(esper_json *json)
{
    put_word(json, "{");
    json->needs_comma = false;
}

void esper_json_object_end(esper_json *json)
{
    put(json, "}", 1);
    json->needs_comma = true;
}

void esper_json_array_begin(esper_json *json)
{
    put_word(json, "[");
    json->needs_comma = false;
}

void esper_json_array_end(esper_json *json)
{
    put(json, "]", 1);
    json->needs_comma = true;
}

void esper_json_key(esper_json *json, const char *name)
{
    put_comma(json);
    put_quoted(json, name);
    put(json, ":", 1);
    json->needs_comma = false;
}

void esper_json_text(esper_json *json, const char *text)
{
    if (text == NULL) {
        esper_json_null(json);
        return;
    }
    put_comma(json);
    put_quoted(json, text);
}

void esper_json_int(esper_json *json, int64_t value)
{
    char word[ESPER_NUMBER_CHARS];

    snprintf(word, sizeof(word), "%" PRId64, value);
    put_word(json, word);
}

void esper_json_bool(esper_json *json, bool value)
{
    put_word(json, value ? "true" : "false");
}

void esper_json_null(esper_json *json)
{
    put_word(json, "null");
}

void esper_json_real(esper_json *json, double value)
{
    char word[ESPER_NUMBER_CHARS];

    esper_number_write_real(value, word);
    if (isfinite(value))
        put_word(json, word);
    else
        esper_json_text(json, word);
}

static void put_digits(esper_json *json, uint64_t value, bool hexadecimal)
{
    char word[ESPER_NUMBER_CHARS];

    snprintf(word, sizeof(word), hexadecimal ? "%016" PRIx64 : "%" PRIu64, value);
    esper_json_text(json, word);
}

void esper_json_u64(esper_json *json, uint64_t value)
{
    put_digits(json, value, false);
}

void esper_json_hash(esper_json *json, uint64_t value)
{
    put_digits(json, value, true);
}
