/* Quoting for shells. */
#include "base/shell.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Each byte takes four at most, with some for the quotes. */
enum { MOST_BYTES = (ESPER_SHELL_CHARS - 8) / 4 };

/* A tilde leads home only at the beginning of a word, and a word that begins with a minus is no matter of quoting. */
static bool is_safe(const char *text)
{
    if (text[0] == '\0' || text[0] == '~')
        return false;
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) && (unsigned char)*text < 0x80 && strchr("_-./,:=+@%^~", *text) == NULL)
            return false;
    return true;
}

/* Whether it cannot stand as it is, not even between quotes. */
static bool needs_codes(const char *text, bool ascii)
{
    for (size_t n; *text != '\0'; text += n) {
        n = esper_utf8_length((const uint8_t *)text, strnlen(text, 4));
        if (n == 0 || (n > 1 && ascii) || iscntrl((unsigned char)*text))
            return true;
    }
    return false;
}

const char *esper_shell_quote(const char *text, bool ascii, char quoted[ESPER_SHELL_CHARS])
{
    bool codes = needs_codes(text, ascii);
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
