/* ASCII alone. The C library buffers and calls `write_ascii` with whatever has gathered, which may end within a character: such
 * a beginning waits for the next call. */
#include "ui/ascii.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"

enum {
    PENDING = 4,
    ESCAPED = ESPER_ASCII_CHARS - 1,
    CHUNK = 1024
}; /* bytes: of a character, of what stands for it, written at once */

typedef struct ascii {
    int     fd;
    uint8_t pending[PENDING]; /* the beginning of a character */
    size_t  n_pending;
} ascii;

/* Standard output's is there for as long as the process, and is never closed: it takes no memory that somebody would miss. */
static ascii standard_output;

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(fd, text, n);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return false;
        text += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

size_t esper_ascii_escape(const uint8_t *at, size_t n, char text[ESPER_ASCII_CHARS])
{
    static const uint8_t lead[] = {0, 0x7F, 0x1F, 0x0F, 0x07}; /* the bits of the first byte, by the length */
    size_t length = esper_utf8_length(at, n);
    uint32_t code = at[0] & lead[length];

    assert(length <= 4);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (at[i] & 0x3F);
    if (length == 0 || (length == 1 && esper_utf8_is_control(at, length)))
        snprintf(text, ESPER_ASCII_CHARS, "\\x%02x", at[0]);
    else if (length == 1)
        snprintf(text, ESPER_ASCII_CHARS, "%c", at[0]);
    else if (code < 0x10000)
        snprintf(text, ESPER_ASCII_CHARS, "\\u%04x", code);
    else
        snprintf(text, ESPER_ASCII_CHARS, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                 0xDC00 + ((code - 0x10000) & 0x3FF));
    return length > 0 ? length : 1;
}

/* The same for a stream, whose controls are meant; 0 when the character may go on in bytes that are still to come. */
static size_t escape(const uint8_t *at, size_t n, char text[ESPER_ASCII_CHARS])
{
    size_t whole = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;

    if (at[0] >= 0xC2 && at[0] <= 0xF4 && n < whole && esper_utf8_length(at, n) == 0)
        return 0;
    if (at[0] < 0x80) {
        snprintf(text, ESPER_ASCII_CHARS, "%c", at[0]);
        return 1;
    }
    return esper_ascii_escape(at, n, text);
}

static ssize_t write_ascii(void *cookie, const char *bytes, size_t n)
{
    ascii *self = cookie;
    char out[CHUNK + ESCAPED + 1], text[ESCAPED + 1];
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        size_t took;

        assert(self->n_pending < PENDING);
        self->pending[self->n_pending++] = (uint8_t)bytes[i];
        while (self->n_pending > 0 && (took = escape(self->pending, self->n_pending, text)) > 0) {
            used += (size_t)snprintf(out + used, sizeof(out) - used, "%s", text);
            self->n_pending -= took;
            memmove(self->pending, self->pending + took, self->n_pending);
            if (used >= CHUNK && !write_all(self->fd, out, used))
                return 0;
            used = used < CHUNK ? used : 0;
        }
    }
    return write_all(self->fd, out, used) ? (ssize_t)n : 0;
}

static int close_ascii(void *cookie)
{
    ascii *self = cookie;
    char text[ESCAPED + 1];
    bool good = true;

    for (size_t i = 0; i < self->n_pending; i++) /* a character that never came to its end */
        good = good && write_all(self->fd, text, (size_t)snprintf(text, sizeof(text), "\\x%02x", self->pending[i]));
    if (self != &standard_output)
        esper_mem_free(self);
    return good ? 0 : EOF;
}

FILE *esper_ascii_open(int fd)
{
    ascii *self = fd == STDOUT_FILENO ? &standard_output : esper_mem_alloc(sizeof(*self));
    FILE *stream;

    if (self == NULL)
        return NULL;
    *self = (ascii){.fd = fd};
    stream = fopencookie(self, "w", (cookie_io_functions_t){.write = write_ascii, .close = close_ascii});
    if (stream == NULL) {
        if (self != &standard_output)
            esper_mem_free(self);
        return NULL;
    }
    setvbuf(stream, NULL, _IOLBF, BUFSIZ);
    return stream;
}
