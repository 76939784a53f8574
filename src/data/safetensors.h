/* Internal. Safetensors files: checkpoints, test vectors, exchange with other programs.
 *
 *     | u64 N, little-endian | N bytes of JSON: name -> dtype, shape, offsets; padded with spaces | tensor data |
 *
 * A file is accepted only whole and sound: the tensors cover the data without gap or overlap, each is as long as its
 * shape and type say, and no name appears twice. What has been accepted needs no further check by the reader's users.
 * Knows nothing of what the tensors mean.
 *
 * All memory is base/mem.h's, with one exception: a header is read by jansson, whose tree stays with the open file and
 * comes straight from malloc. When that fails, opening is E_NOMEM like any other. */
#ifndef ESPER_DATA_SAFETENSORS_H
#define ESPER_DATA_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "esper.h"

/* name, the name in the file, bytes of one element */
#define ESPER_SAFETENSORS_DTYPE_LIST(X) \
    X(F64, "F64", 8)                    \
    X(F32, "F32", 4)                    \
    X(F16, "F16", 2)                    \
    X(BF16, "BF16", 2)                  \
    X(I64, "I64", 8)                    \
    X(I32, "I32", 4)                    \
    X(I16, "I16", 2)                    \
    X(I8, "I8", 1)                      \
    X(U64, "U64", 8)                    \
    X(U32, "U32", 4)                    \
    X(U16, "U16", 2)                    \
    X(U8, "U8", 1)                      \
    X(BOOL, "BOOL", 1)

typedef enum esper_safetensors_dtype {
#define X(name, text, bytes) ESPER_SAFETENSORS_##name,
    ESPER_SAFETENSORS_DTYPE_LIST(X)
#undef X
    ESPER_SAFETENSORS_N_DTYPES
} esper_safetensors_dtype;

enum { ESPER_SAFETENSORS_MAX_RANK = 8 };

/* A tensor in a file, or one to be written. */
typedef struct esper_safetensors_tensor {
    const char             *name;
    esper_safetensors_dtype dtype;
    int                     rank; /* 0 = a scalar */
    uint64_t                shape[ESPER_SAFETENSORS_MAX_RANK];
    const void             *data;    /* last index fastest; read from a file it may lie unaligned: use memcpy */
    uint64_t                n_bytes; /* set by the reader; the writer works it out from shape and dtype */
} esper_safetensors_tensor;

/* One entry of the file's free text. */
typedef struct esper_safetensors_note {
    const char *key, *value; /* UTF-8 */
} esper_safetensors_note;

typedef struct esper_safetensors esper_safetensors;

const char *esper_safetensors_dtype_name(esper_safetensors_dtype dtype);
size_t      esper_safetensors_dtype_bytes(esper_safetensors_dtype dtype);

/* Reads and checks a whole file. What the functions below return points into it and holds until it is closed. */
esper_status esper_safetensors_open(const char *path, esper_safetensors **file_out);

/* For tests and fuzzing: over bytes in memory, which stay the caller's and must outlive the file; `name` stands in messages. */
esper_status esper_safetensors_open_memory(const char *name, const void *bytes, size_t n_bytes,
                                           esper_safetensors **file_out);
void         esper_safetensors_close(esper_safetensors *file);

/* The path, or the name given: for messages. */
const char *esper_safetensors_name(const esper_safetensors *file);

/* All tensors, in the order of their data; index below the count. */
size_t                          esper_safetensors_count(const esper_safetensors *file);
const esper_safetensors_tensor *esper_safetensors_at(const esper_safetensors *file, size_t index);

/* By name; NULL when there is none. */
const esper_safetensors_tensor *esper_safetensors_find(const esper_safetensors *file, const char *name);

/* A tensor that must exist with exactly this type and shape; otherwise says which file, which tensor, and what was found in
 * place of what was wanted. */
esper_status esper_safetensors_get(const esper_safetensors *file, const char *name, esper_safetensors_dtype dtype,
                                   int rank, const uint64_t *shape, const esper_safetensors_tensor **tensor_out);
/* The same, and copies its data. */
esper_status esper_safetensors_copy(const esper_safetensors *file, const char *name, esper_safetensors_dtype dtype,
                                    int rank, const uint64_t *shape, void *data_out);

/* Free text: the value for a key, or NULL; and all of it, in the order of the file. */
const char            *esper_safetensors_note_find(const esper_safetensors *file, const char *key);
size_t                 esper_safetensors_note_count(const esper_safetensors *file);
esper_safetensors_note esper_safetensors_note_at(const esper_safetensors *file, size_t index);

/* Writes a file in place of whatever was at `path`, all or nothing: on failure the previous file is untouched and no
 * other is left behind. Data begins at a multiple of 64 bytes and is laid out by falling element size, so that every
 * tensor is aligned for its type; among equals the order given stays. The same input gives the same bytes. */
esper_status esper_safetensors_write(const char *path, const esper_safetensors_tensor *tensors, size_t n_tensors,
                                     const esper_safetensors_note *notes, size_t n_notes);

#endif
