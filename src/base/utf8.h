/* Internal. UTF-8, as far as we need it: is it? */
#ifndef ESPER_BASE_UTF8_H
#define ESPER_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The length of the UTF-8 sequence at `s`, of which n > 0 bytes may be read; 0 when it is none: stray or missing bytes,
 * overlong forms and surrogates are none (Unicode, D92). */
size_t esper_utf8_length(const uint8_t *s, size_t n);

#endif
