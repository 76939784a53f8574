/* Quoting for shells. */
#include "base/shell.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Each byte takes four at most, with some for the quotes. */
enum { MOST_BYTES = (ESPER_SHELL_CHARS - 8) / 4 };

static bool keeps_ascii;

void esper_shell_keep_ascii(bool ascii)
{
    keeps_ascii = ascii;
}

/* Not among these: ~, which leads home at the beginning of a word and behind the = of an assignment; and so =. */
static bool is_safe(const char *text)
{
    if (text[0] == '\0')
        return false;
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) && (unsigned char)*text < 0x80 && strchr("_-./,:+@%^", *text) == NULL)
            return false;
    return true;
}

/* Whether it cannot stand as it is, not even between quotes. */
static bool needs_codes(const char *text)
{
    for (size_t n; *text != '\0'; text += n) {
        n = esper_utf8_length((const uint8_t *)text, strnlen(text, 4));
        if (n == 0 || (n > 1 && keeps_ascii) || esper_utf8_is_control((const uint8_t *)text, n))
            return true;
    }
    return false;
}

const char *esper_shell_quote(const char *text, char quoted[ESPER_SHELL_CHARS])
{
    bool codes = needs_codes(text);
    size_t used = 0;

    if (strlen(text) > MOST_BYTES || (!codes && is_safe(text)))
        return text;
    if (codes)
        quoted[used++] = '$';
    quoted[used++] = '\'';
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (codes && (c < ' ' || c >= 0x7F))
            used += (size_t)snprintf(quoted + used, ESPER_SHELL_CHARS - used, "\\%03o", c);
        else if (codes && (c == '\'' || c == '\\'))
            used += (size_t)snprintf(quoted + used, ESPER_SHELL_CHARS - used, "\\%c", c);
        else if (c == '\'')
            used += (size_t)snprintf(quoted + used, ESPER_SHELL_CHARS - used, "'\\''");
        else
            quoted[used++] = (char)c;
    }
    quoted[used++] = '\'';
    quoted[used] = '\0';
    return quoted;
}

const char *esper_shell_quote_path(const char *path, char quoted[ESPER_SHELL_CHARS])
{
    char from_here[MOST_BYTES + 1];
    const char *word;

    if (path[0] != '-' || strlen(path) + 2 > MOST_BYTES)
        return esper_shell_quote(path, quoted);
    snprintf(from_here, sizeof(from_here), "./%s", path);
    word = esper_shell_quote(from_here, quoted);
    return word == from_here ? strcpy(quoted, from_here) : word;
}
