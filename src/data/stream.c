/* Plain and gzip bytes behind one read function.
 *
 * zlib's gz* functions would be shorter, but they pass over bytes that follow the packed data and report a truncated
 * file only when it is closed; with inflate() both are seen where they happen, and its memory comes from ours. */
#include "data/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/status.h"

enum {
    BUFFER_BYTES = 64 * 1024,
    GZIP_WINDOW_BITS = 15 + 16, /* the largest window, and a gzip head and trailer around the data */
    GZIP_RATIO_MAX = 1032,      /* deflate cannot pack better than this */
};

struct esper_stream {
    char          *name;
    int            fd;     /* -1 when the bytes are in memory */
    const uint8_t *memory; /* what is left of them */
    size_t         n_memory;
    uint64_t       n_file; /* size on disk or in memory */
    uint8_t       *buffer; /* (BUFFER_BYTES) raw bytes read ahead: packed data, or what was read to see the magic */
    size_t         n_ahead, ahead_at;
    bool           gzip, inflating; /* inflating: `z` holds memory */
    bool           between_members; /* a packed stream has ended: the file may end, or another may begin */
    z_stream       z;
};

static void *zlib_alloc(void *opaque, unsigned items, unsigned size)
{
    (void)opaque;
    return esper_mem_alloc((size_t)items * size);
}

static void zlib_free(void *opaque, void *block)
{
    (void)opaque;
    esper_mem_free(block);
}

static size_t take_memory(esper_stream *stream, void *dest, size_t n_bytes)
{
    size_t n = n_bytes < stream->n_memory ? n_bytes : stream->n_memory;

    if (n == 0)
        return 0;
    memcpy(dest, stream->memory, n);
    stream->memory += n;
    stream->n_memory -= n;
    return n;
}

/* Raw bytes from the file or from memory; fewer than asked only at the end. */
static esper_status read_source(esper_stream *stream, void *dest, size_t n_bytes, size_t *got_out)
{
    size_t got = 0;

    if (stream->fd < 0) {
        *got_out = take_memory(stream, dest, n_bytes);
        return ESPER_OK;
    }
    while (got < n_bytes) {
        ssize_t n = read(stream->fd, (char *)dest + got, n_bytes - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ESPER_FAIL(ESPER_E_IO, "%s: cannot be read: %s", stream->name, strerror(errno));
        if (n == 0)
            break;
        got += (size_t)n;
    }
    *got_out = got;
    return ESPER_OK;
}

static esper_status fill_ahead(esper_stream *stream)
{
    stream->ahead_at = 0;
    stream->n_ahead = 0;
    return read_source(stream, stream->buffer, BUFFER_BYTES, &stream->n_ahead);
}

/* Looks at the first bytes, which stay read ahead, and gets ready to unpack when they are gzip's. */
static esper_status detect_gzip(esper_stream *stream)
{
    stream->buffer = esper_mem_alloc(BUFFER_BYTES);
    if (stream->buffer == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: buffer of %d bytes", stream->name, BUFFER_BYTES);
    ESPER_TRY(fill_ahead(stream));
    if (stream->n_ahead < 2 || stream->buffer[0] != 0x1f || stream->buffer[1] != 0x8b)
        return ESPER_OK;
    stream->gzip = true;
    stream->z.zalloc = zlib_alloc;
    stream->z.zfree = zlib_free;
    if (inflateInit2(&stream->z, GZIP_WINDOW_BITS) != Z_OK)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: memory to unpack it", stream->name);
    stream->inflating = true;
    return ESPER_OK;
}

/* Status and words for a path that open() or fstat() refused. */
static esper_status fail_open(const char *path, int error)
{
    esper_status status = error == ENOENT || error == ENOTDIR ? ESPER_E_NOTFOUND : ESPER_E_IO;

    return ESPER_FAIL(status, "%s: cannot be opened: %s", path, strerror(error));
}

static esper_status open_file(esper_stream *stream)
{
    struct stat info;

    /* Without O_NONBLOCK a named pipe would keep us waiting for a writer; regular files do not mind it. */
    stream->fd = open(stream->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (stream->fd < 0 || fstat(stream->fd, &info) != 0)
        return fail_open(stream->name, errno);
    if (!S_ISREG(info.st_mode))
        return ESPER_FAIL(ESPER_E_IO, "%s: is not a regular file", stream->name);
    stream->n_file = (uint64_t)info.st_size;
    return ESPER_OK;
}

static esper_status stream_new(const char *name, esper_stream **stream_out)
{
    esper_stream *stream = esper_mem_alloc(sizeof(*stream));

    if (stream == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: stream", name);
    stream->fd = -1;
    stream->name = esper_mem_strdup(name);
    if (stream->name == NULL) {
        esper_stream_close(stream);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: stream", name);
    }
    *stream_out = stream;
    return ESPER_OK;
}

esper_status esper_stream_open(const char *path, esper_stream_mode mode, esper_stream **stream_out)
{
    esper_stream *stream;
    esper_status st;

    ESPER_TRY(stream_new(path, &stream));
    st = open_file(stream);
    if (st == ESPER_OK && mode == ESPER_STREAM_AUTO)
        st = detect_gzip(stream);
    if (st != ESPER_OK) {
        esper_stream_close(stream);
        return st;
    }
    *stream_out = stream;
    return ESPER_OK;
}

esper_status esper_stream_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_stream_mode mode,
                                      esper_stream **stream_out)
{
    esper_stream *stream;
    esper_status st = ESPER_OK;

    ESPER_TRY(stream_new(name, &stream));
    stream->memory = bytes;
    stream->n_memory = n_bytes;
    stream->n_file = n_bytes;
    if (mode == ESPER_STREAM_AUTO)
        st = detect_gzip(stream);
    if (st != ESPER_OK) {
        esper_stream_close(stream);
        return st;
    }
    *stream_out = stream;
    return ESPER_OK;
}

void esper_stream_close(esper_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->inflating)
        inflateEnd(&stream->z);
    if (stream->fd >= 0)
        close(stream->fd); /* only read from: there is nothing a failure could have lost */
    esper_mem_free(stream->buffer);
    esper_mem_free(stream->name);
    esper_mem_free(stream);
}

const char *esper_stream_name(const esper_stream *stream)
{
    return stream->name;
}

uint64_t esper_stream_bound(const esper_stream *stream)
{
    return stream->gzip ? stream->n_file * GZIP_RATIO_MAX : stream->n_file;
}

static esper_status read_plain(esper_stream *stream, void *dest, size_t n_bytes, size_t *got_out)
{
    size_t n = stream->n_ahead - stream->ahead_at, more = 0;

    n = n < n_bytes ? n : n_bytes;
    if (n > 0)
        memcpy(dest, stream->buffer + stream->ahead_at, n);
    ESPER_TRY(read_source(stream, (char *)dest + n, n_bytes - n, &more));
    stream->ahead_at += n;
    *got_out = n + more;
    return ESPER_OK;
}

/* A packed stream has ended. Others may follow in the same file (RFC 1952, 2.2), and nothing else may. */
static esper_status next_member(esper_stream *stream, bool *end_out)
{
    if (stream->ahead_at == stream->n_ahead)
        ESPER_TRY(fill_ahead(stream));
    *end_out = stream->n_ahead == 0;
    if (*end_out)
        return ESPER_OK;
    if (stream->buffer[stream->ahead_at] != 0x1f)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: bytes follow the end of the gzip data", stream->name);
    inflateReset(&stream->z);
    stream->between_members = false;
    return ESPER_OK;
}

/* One call of inflate() on what is read ahead, into at most `room` bytes. */
static esper_status inflate_some(esper_stream *stream, void *dest, size_t room, size_t *got_out)
{
    unsigned space = room < BUFFER_BYTES ? (unsigned)room : BUFFER_BYTES;
    int code;

    if (stream->ahead_at == stream->n_ahead)
        ESPER_TRY(fill_ahead(stream));
    if (stream->n_ahead == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: the gzip data breaks off; fetch the file again",
                          stream->name);
    stream->z.next_in = stream->buffer + stream->ahead_at;
    stream->z.avail_in = (unsigned)(stream->n_ahead - stream->ahead_at);
    stream->z.next_out = dest;
    stream->z.avail_out = space;
    code = inflate(&stream->z, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: memory to unpack it", stream->name);
    if (code != Z_OK && code != Z_STREAM_END)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: damaged gzip data (%s); fetch the file again", stream->name,
                          stream->z.msg != NULL ? stream->z.msg : "no further detail");
    stream->ahead_at = stream->n_ahead - stream->z.avail_in;
    stream->between_members = code == Z_STREAM_END;
    *got_out = space - stream->z.avail_out;
    return ESPER_OK;
}

static esper_status read_gzip(esper_stream *stream, void *dest, size_t n_bytes, size_t *got_out)
{
    size_t got = 0, more = 0;
    bool end = false;

    while (got < n_bytes) {
        if (stream->between_members) {
            ESPER_TRY(next_member(stream, &end));
            if (end)
                break;
        }
        ESPER_TRY(inflate_some(stream, (char *)dest + got, n_bytes - got, &more));
        got += more;
    }
    *got_out = got;
    return ESPER_OK;
}

esper_status esper_stream_read(esper_stream *stream, void *dest, size_t n_bytes, size_t *got_out)
{
    if (stream->gzip)
        return read_gzip(stream, dest, n_bytes, got_out);
    return read_plain(stream, dest, n_bytes, got_out);
}

esper_status esper_stream_read_all(esper_stream *stream, void *dest, size_t n_bytes, const char *part)
{
    size_t got = 0;

    ESPER_TRY(esper_stream_read(stream, dest, n_bytes, &got));
    if (got != n_bytes)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: %s ends after %zu of %zu bytes", stream->name, part, got,
                          n_bytes);
    return ESPER_OK;
}

esper_status esper_stream_expect_end(esper_stream *stream)
{
    uint8_t byte;
    size_t got = 0;

    ESPER_TRY(esper_stream_read(stream, &byte, 1, &got));
    if (got != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: trailing bytes: the file is longer than its contents", stream->name);
    return ESPER_OK;
}
