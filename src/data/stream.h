/* Internal. Bytes of a data file, from its beginning to its end: plain, or gzip where that is allowed.
 *
 * It knows nothing of what the bytes mean. Every failure it finds names the file. */
#ifndef ESPER_DATA_STREAM_H
#define ESPER_DATA_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "esper.h"

typedef struct esper_stream esper_stream;

typedef enum esper_stream_mode {
    ESPER_STREAM_PLAIN, /* the bytes as they lie in the file */
    ESPER_STREAM_AUTO,  /* unpacked when the file begins as gzip does, otherwise plain */
} esper_stream_mode;

/* Opens a regular file. E_NOTFOUND when there is none, E_IO when there is one that cannot be read. */
esper_status esper_stream_open(const char *path, esper_stream_mode mode, esper_stream **stream_out);

/* The same over bytes in memory, which stay the caller's and must outlive the stream; `name` stands in messages. */
esper_status esper_stream_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_stream_mode mode,
                                      esper_stream **stream_out);
void         esper_stream_close(esper_stream *stream);

const char *esper_stream_name(const esper_stream *stream);

/* The most bytes the stream can still be expected to yield in all: the file's size, or for gzip the size times the best
 * ratio the format can reach. A file that claims to hold more than this lies. */
uint64_t esper_stream_bound(const esper_stream *stream);

/* Reads n_bytes; fewer only where the stream ends. */
esper_status esper_stream_read(esper_stream *stream, void *dest, size_t n_bytes, size_t *got_out);

/* Reads n_bytes or fails, saying that the file is truncated and in what (`part`: "image data"). */
esper_status esper_stream_read_all(esper_stream *stream, void *dest, size_t n_bytes, const char *part);

/* Fails when bytes are left; for gzip also when the checksum at the end is missing or wrong. */
esper_status esper_stream_expect_end(esper_stream *stream);

#endif
