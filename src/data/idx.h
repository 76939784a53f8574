/* Internal. IDX files, the format of MNIST and its kin: unsigned bytes of rank 1 (labels) or 3 (images), plain or gzip.
 *
 *     0 0 8 rank | rank sizes, 32 bits each, big-endian | the bytes, last index fastest
 *
 * Opening reads the head alone, so that sizes can be known and memory taken before any data is read. */
#ifndef ESPER_DATA_IDX_H
#define ESPER_DATA_IDX_H

#include <stddef.h>
#include <stdint.h>

#include "esper.h"

enum { ESPER_IDX_MAX_RANK = 3, ESPER_IDX_MAX_SIDE = 4096 };

typedef struct esper_idx esper_idx;

typedef struct esper_idx_shape {
    int      rank;                     /* 1 or 3 */
    uint32_t
        dims[ESPER_IDX_MAX_RANK]; /* all positive; dims[1] and dims[2] at most ESPER_IDX_MAX_SIDE; 1 past the rank */
    uint64_t n_bytes;                  /* their product */
} esper_idx_shape;

/* Fails with E_FORMAT also where the sizes claim more than a file of this length can hold. */
esper_status esper_idx_open(const char *path, esper_idx **idx_out);

/* For tests and fuzzing: over bytes in memory, which stay the caller's; `name` stands in messages. */
esper_status esper_idx_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_idx **idx_out);
void         esper_idx_close(esper_idx *idx);

const esper_idx_shape *esper_idx_shape_get(const esper_idx *idx);

/* Reads all n_bytes, once, and checks that the file ends there. The contents of data_out are undefined on failure. */
esper_status esper_idx_read(esper_idx *idx, uint8_t *data_out);

#endif
