/* Internal. UTF-8, as far as we need it: is it, and can it be shown? */
#ifndef ESPER_BASE_UTF8_H
#define ESPER_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the UTF-8 sequence at `s`, of which n > 0 bytes may be read; 0 when it is none: stray or missing bytes,
 * overlong forms and surrogates are none (Unicode, D92). */
size_t esper_utf8_length(const uint8_t *s, size_t n);

/* Whether the character at `s`, of that length, commands terminals instead of being shown: below the blank, delete, and the C1
 * controls U+0080 to U+009F. */
bool esper_utf8_is_control(const uint8_t *s, size_t length);

/* Makes a text one that can be shown on one line: every byte of control characters and of what is no UTF-8 becomes '?'. */
void esper_utf8_show(char *text);

#endif
