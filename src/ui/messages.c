/* Messages. The C library buffers lines and calls `write_lines` with whole ones, unless one is longer than its buffer. Nothing is
 * allocated on the way: that memory has run out is a message, too. */
#include "ui/messages.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "ui/ascii.h"
#include "ui/terminal.h"

enum { PART = 2048 }; /* bytes of a line at a time */

typedef struct messages {
    FILE *under;
    bool  ascii;
    char  buffer[BUFSIZ]; /* of `under`: a message is written at once, and ranks do not mix theirs */
} messages;

/* Makes a line of n bytes fit to be shown. */
static void make_plain(const messages *self, const uint8_t *at, size_t n, char line[PART * ESPER_ASCII_CHARS])
{
    size_t used = 0, took;

    for (; n > 0; at += took, n -= took) {
        took = esper_utf8_length(at, n);
        if (took == 0 || esper_utf8_is_control(at, took) || (took > 1 && self->ascii)) {
            took = esper_ascii_escape(at, n, line + used);
            used += strlen(line + used);
        } else {
            memcpy(line + used, at, took);
            used += took;
        }
    }
    assert(used < PART * ESPER_ASCII_CHARS);
    line[used] = '\0';
}

static ssize_t write_lines(void *cookie, const char *bytes, size_t n)
{
    const messages *self = cookie;
    char line[PART * ESPER_ASCII_CHARS];

    for (size_t at = 0; at < n;) {
        size_t most = n - at < PART - 1 ? n - at : PART - 1;
        const char *end = memchr(bytes + at, '\n', most);
        size_t length = end != NULL ? (size_t)(end - (bytes + at)) : most;

        make_plain(self, (const uint8_t *)bytes + at, length, line);
        esper_terminal_print(self->under, end != NULL ? "%s\n" : "%s", line);
        at += length + (end != NULL);
    }
    return fflush(self->under) == 0 ? (ssize_t)n : 0;
}

static int close_messages(void *cookie)
{
    messages *self = cookie;

    fflush(self->under);
    setvbuf(self->under, NULL, _IONBF, 0);
    esper_mem_free(self);
    return 0;
}

FILE *esper_messages_open(FILE *under, bool ascii)
{
    messages *self = esper_mem_alloc(sizeof(*self));
    FILE *stream;

    if (self == NULL)
        return NULL;
    self->under = under;
    self->ascii = ascii;
    stream = fopencookie(self, "w", (cookie_io_functions_t){.write = write_lines, .close = close_messages});
    if (stream == NULL) {
        esper_mem_free(self);
        return NULL;
    }
    setvbuf(under, self->buffer, _IOFBF, sizeof(self->buffer));
    setvbuf(stream, NULL, _IOLBF, BUFSIZ);
    return stream;
}
