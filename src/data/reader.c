/* Plain and gzip bytes behind one read function.
 *
 * zlib's gz* functions would be shorter, but they pass over bytes that follow the packed data and report a truncated
 * file only when it is closed; with inflate() both are seen where they happen, and its memory comes from ours. */
#include "data/reader.h"

#include <assert.h>
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

struct esper_reader {
    char          *name;
    int            fd;     /* -1 when the bytes are in memory */
    const uint8_t *memory; /* what is left of them */
    size_t         n_memory;
    uint64_t       n_file; /* size on disk or in memory */
    uint8_t       *buffer; /* (BUFFER_BYTES) raw bytes read ahead: packed data, or what was read to see the magic */
    size_t         n_ahead, ahead_at;
    bool           gzip, inflating; /* inflating: `z` holds memory */
    bool           between_members; /* a packed member has ended: the file may end, or another may begin */
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

/* Raw bytes from the file or from memory; fewer than asked only at the end. */
static esper_status read_source(esper_reader *reader, void *dest, size_t n_bytes, size_t *got_out)
{
    size_t got = 0;

    if (reader->fd < 0) {
        got = n_bytes < reader->n_memory ? n_bytes : reader->n_memory;
        if (got > 0)
            memcpy(dest, reader->memory, got);
        reader->memory += got;
        reader->n_memory -= got;
        *got_out = got;
        return ESPER_OK;
    }
    while (got < n_bytes) {
        ssize_t n = read(reader->fd, (char *)dest + got, n_bytes - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ESPER_FAIL(ESPER_E_IO, "%s: cannot be read: %s", reader->name, strerror(errno));
        if (n == 0)
            break;
        got += (size_t)n;
    }
    *got_out = got;
    return ESPER_OK;
}

static esper_status fill_ahead(esper_reader *reader)
{
    assert(reader->buffer != NULL && reader->ahead_at == reader->n_ahead); /* nothing is thrown away */
    reader->ahead_at = 0;
    reader->n_ahead = 0;
    return read_source(reader, reader->buffer, BUFFER_BYTES, &reader->n_ahead);
}

/* Looks at the first bytes, which stay read ahead, and gets ready to unpack when they are gzip's. */
static esper_status detect_gzip(esper_reader *reader)
{
    reader->buffer = esper_mem_alloc(BUFFER_BYTES);
    if (reader->buffer == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: buffer of %d bytes", reader->name, BUFFER_BYTES);
    ESPER_TRY(fill_ahead(reader));
    if (reader->n_ahead < 2 || reader->buffer[0] != 0x1f || reader->buffer[1] != 0x8b)
        return ESPER_OK;
    reader->gzip = true;
    reader->z.zalloc = zlib_alloc;
    reader->z.zfree = zlib_free;
    if (inflateInit2(&reader->z, GZIP_WINDOW_BITS) != Z_OK)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: memory to unpack it", reader->name);
    reader->inflating = true;
    return ESPER_OK;
}

static esper_status open_file(esper_reader *reader)
{
    struct stat info;

    /* Without O_NONBLOCK a named pipe would keep us waiting for a writer; regular files do not mind it. */
    reader->fd = open(reader->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (reader->fd < 0 || fstat(reader->fd, &info) != 0)
        return ESPER_FAIL(errno == ENOENT || errno == ENOTDIR ? ESPER_E_NOTFOUND : ESPER_E_IO,
                          "%s: cannot be opened: %s", reader->name, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return ESPER_FAIL(ESPER_E_IO, "%s: is not a regular file", reader->name);
    reader->n_file = (uint64_t)info.st_size;
    return ESPER_OK;
}

/* Over a file, or where `bytes` is not NULL over memory. */
static esper_status open_any(const char *name, const void *bytes, size_t n_bytes, esper_reader_mode mode,
                             esper_reader **reader_out)
{
    esper_reader *reader = esper_mem_alloc(sizeof(*reader));
    esper_status st = ESPER_OK;

    if (reader == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", name);
    reader->fd = -1;
    reader->memory = bytes;
    reader->n_memory = reader->n_file = n_bytes;
    reader->name = esper_mem_strdup(name);
    if (reader->name == NULL)
        st = ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", name);
    else if (bytes == NULL)
        st = open_file(reader);
    if (st == ESPER_OK && mode == ESPER_READER_AUTO)
        st = detect_gzip(reader);
    if (st != ESPER_OK) {
        esper_reader_close(reader);
        return st;
    }
    *reader_out = reader;
    return ESPER_OK;
}

esper_status esper_reader_open(const char *path, esper_reader_mode mode, esper_reader **reader_out)
{
    return open_any(path, NULL, 0, mode, reader_out);
}

esper_status esper_reader_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_reader_mode mode,
                                      esper_reader **reader_out)
{
    return open_any(name, bytes != NULL ? bytes : "", n_bytes, mode, reader_out);
}

void esper_reader_close(esper_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->inflating)
        inflateEnd(&reader->z);
    if (reader->fd >= 0)
        close(reader->fd); /* only read from: there is nothing a failure could have lost */
    esper_mem_free(reader->buffer);
    esper_mem_free(reader->name);
    esper_mem_free(reader);
}

const char *esper_reader_name(const esper_reader *reader)
{
    return reader->name;
}

uint64_t esper_reader_bound(const esper_reader *reader)
{
    return reader->gzip ? reader->n_file * GZIP_RATIO_MAX : reader->n_file;
}

/* A packed member has ended. Others may follow in the same file (RFC 1952, 2.2), and nothing else may. */
static esper_status next_member(esper_reader *reader, bool *end_out)
{
    if (reader->ahead_at == reader->n_ahead)
        ESPER_TRY(fill_ahead(reader));
    *end_out = reader->n_ahead == 0;
    if (*end_out)
        return ESPER_OK;
    if (reader->buffer[reader->ahead_at] != 0x1f)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: bytes follow the end of the gzip data", reader->name);
    inflateReset(&reader->z);
    reader->between_members = false;
    return ESPER_OK;
}

/* One call of inflate() on what is read ahead, into at most `room` bytes. */
static esper_status inflate_some(esper_reader *reader, void *dest, size_t room, size_t *got_out)
{
    unsigned space = room < BUFFER_BYTES ? (unsigned)room : BUFFER_BYTES;
    int code;

    if (reader->ahead_at == reader->n_ahead)
        ESPER_TRY(fill_ahead(reader));
    if (reader->n_ahead == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: the gzip data breaks off; fetch the file again",
                          reader->name);
    reader->z.next_in = reader->buffer + reader->ahead_at;
    reader->z.avail_in = (unsigned)(reader->n_ahead - reader->ahead_at);
    reader->z.next_out = dest;
    reader->z.avail_out = space;
    code = inflate(&reader->z, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: memory to unpack it", reader->name);
    if (code != Z_OK && code != Z_STREAM_END)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: damaged gzip data (%s); fetch the file again", reader->name,
                          reader->z.msg != NULL ? reader->z.msg : "no further detail");
    reader->ahead_at = reader->n_ahead - reader->z.avail_in;
    reader->between_members = code == Z_STREAM_END;
    *got_out = space - reader->z.avail_out;
    return ESPER_OK;
}

esper_status esper_reader_read(esper_reader *reader, void *dest, size_t n_bytes, size_t *got_out)
{
    size_t got = 0, more = 0;
    bool end = false;

    if (!reader->gzip) { /* what was read ahead, then the rest */
        got = reader->n_ahead - reader->ahead_at < n_bytes ? reader->n_ahead - reader->ahead_at : n_bytes;
        if (got > 0)
            memcpy(dest, reader->buffer + reader->ahead_at, got);
        ESPER_TRY(read_source(reader, (char *)dest + got, n_bytes - got, &more));
        reader->ahead_at += got;
        got += more;
    }
    while (reader->gzip && got < n_bytes) {
        if (reader->between_members) {
            ESPER_TRY(next_member(reader, &end));
            if (end)
                break;
        }
        ESPER_TRY(inflate_some(reader, (char *)dest + got, n_bytes - got, &more));
        got += more;
    }
    assert(got <= n_bytes);
    *got_out = got;
    return ESPER_OK;
}

esper_status esper_reader_read_all(esper_reader *reader, void *dest, size_t n_bytes, const char *part)
{
    size_t got = 0;

    ESPER_TRY(esper_reader_read(reader, dest, n_bytes, &got));
    if (got != n_bytes)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: %s ends after %zu of %zu bytes", reader->name, part, got,
                          n_bytes);
    return ESPER_OK;
}

esper_status esper_reader_expect_end(esper_reader *reader)
{
    uint8_t byte;
    size_t got = 0;

    ESPER_TRY(esper_reader_read(reader, &byte, 1, &got));
    if (got != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: trailing bytes: the file is longer than its contents", reader->name);
    return ESPER_OK;
}
