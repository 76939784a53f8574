/* Internal. Sentences about ranks, put together piece by piece. */
#ifndef ESPER_DIST_APPEND_H
#define ESPER_DIST_APPEND_H

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Adds to a text that has room for so many characters; what does not fit is cut off. */
static inline __attribute__((format(printf, 3, 4))) void esper_append(char *text, size_t chars, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;

    assert(used < chars);
    va_start(args, format);
    vsnprintf(text + used, chars - used, format, args);
    va_end(args);
}

#endif
