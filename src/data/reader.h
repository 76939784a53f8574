/* Internal. Bytes of a data file, from its beginning to its end: plain, or gzip where that is allowed.
 *
 * It knows nothing of what the bytes mean. Every failure it finds names the file. */
#ifndef ESPER_DATA_READER_H
#define ESPER_DATA_READER_H

#include <stddef.h>
#include <stdint.h>

#include "esper.h"

typedef struct esper_reader esper_reader;

typedef enum esper_reader_mode {
    ESPER_READER_PLAIN, /* the bytes as they lie in the file */
    ESPER_READER_AUTO,  /* unpacked when the file begins as gzip does, otherwise plain */
} esper_reader_mode;

/* Opens a regular file. E_NOTFOUND when there is none, E_IO when there is one that cannot be read. */
esper_status esper_reader_open(const char *path, esper_reader_mode mode, esper_reader **reader_out);

/* For tests and fuzzing: the same over bytes in memory, which stay the caller's and must outlive the reader; `name` stands in messages. */
esper_status esper_reader_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_reader_mode mode,
                                      esper_reader **reader_out);
void         esper_reader_close(esper_reader *reader);

const char *esper_reader_name(const esper_reader *reader);

/* The most bytes the reader can still be expected to yield in all: the file's size, or for gzip the size times the best
 * ratio the format can reach. A file that claims to hold more than this lies. */
uint64_t esper_reader_bound(const esper_reader *reader);

/* Reads n_bytes; fewer only where the reader ends. */
esper_status esper_reader_read(esper_reader *reader, void *dest, size_t n_bytes, size_t *got_out);

/* Reads n_bytes or fails, saying that the file is truncated and in what (`part`: "image data"). */
esper_status esper_reader_read_all(esper_reader *reader, void *dest, size_t n_bytes, const char *part);

/* Fails when bytes are left; for gzip also when the checksum at the end is missing or wrong. */
esper_status esper_reader_expect_end(esper_reader *reader);

#endif
