/* NumPy's arrays. */
#include "data/npy.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZLIB_CONST /* its input is const */
#include <zlib.h>

#include "base/mem.h"
#include "base/status.h"

/* ------------------------------------------------------------------------------------------------ .npy */

enum { MAGIC_BYTES = 6, MAX_HEADER = 1 << 16 };

static const char npy_magic[MAGIC_BYTES + 1] = "\x93NUMPY";

static const struct {
    const char             *descr;
    esper_safetensors_dtype dtype;
} types[] = {{"|u1", ESPER_SAFETENSORS_U8},  {"|i1", ESPER_SAFETENSORS_I8},  {"|b1", ESPER_SAFETENSORS_BOOL},
             {"<u2", ESPER_SAFETENSORS_U16}, {"<i2", ESPER_SAFETENSORS_I16}, {"<u4", ESPER_SAFETENSORS_U32},
             {"<i4", ESPER_SAFETENSORS_I32}, {"<u8", ESPER_SAFETENSORS_U64}, {"<i8", ESPER_SAFETENSORS_I64},
             {"<f2", ESPER_SAFETENSORS_F16}, {"<f4", ESPER_SAFETENSORS_F32}, {"<f8", ESPER_SAFETENSORS_F64}};

static uint32_t little_endian(const uint8_t *bytes, int n)
{
    uint32_t value = 0;

    for (int i = n - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

/* What follows 'key': in the header, a Python dictionary; NULL where it is not there. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);

    if (at == NULL)
        return NULL;
    at += strlen(key);
    return at + strspn(at, " ");
}

static bool read_shape(const char *at, esper_safetensors_tensor *array)
{
    if (at == NULL || *at++ != '(')
        return false;
    for (at += strspn(at, " "); *at != ')';) {
        char *end;

        if (*at < '0' || *at > '9' || array->rank == ESPER_SAFETENSORS_MAX_RANK || strspn(at, "0123456789") > 18)
            return false;
        array->shape[array->rank++] = strtoull(at, &end, 10);
        at = end + strspn(end, " ");
        if (*at == ',')
            at += 1 + strspn(at + 1, " ");
        else if (*at != ')')
            return false;
    }
    return true;
}

static esper_status read_header(const char *name, const char *header, esper_safetensors_tensor *array)
{
    const char *descr = value_of(header, "'descr':"), *fortran = value_of(header, "'fortran_order':");
    size_t i = 0, n_types = sizeof(types) / sizeof(types[0]);

    if (descr == NULL || fortran == NULL || !read_shape(value_of(header, "'shape':"), array))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the head of the array is damaged", name);
    while (i < n_types && !(descr[0] == '\'' && strncmp(descr + 1, types[i].descr, 3) == 0 && descr[4] == '\''))
        i++;
    if (i == n_types)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: an array of the type %.12s: expected numbers, little-endian", name,
                          descr);
    if (strncmp(fortran, "False", 5) != 0 && array->rank > 1)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the array is in Fortran's order: save it with numpy.ascontiguousarray",
                          name);
    array->dtype = types[i].dtype;
    return ESPER_OK;
}

esper_status esper_npy_read(const char *name, const void *bytes, size_t n, esper_safetensors_tensor *array_out)
{
    const uint8_t *at = bytes;
    esper_safetensors_tensor array = {.name = name};
    size_t length_bytes, length, begins;
    uint64_t n_items = 1;
    char *header;
    esper_status status;

    if (n < MAGIC_BYTES + 4 || memcmp(at, npy_magic, MAGIC_BYTES) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: not an array of NumPy, or cut off", name);
    if (at[MAGIC_BYTES] < 1 || at[MAGIC_BYTES] > 3)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: version %d of NumPy's format is unknown", name, at[MAGIC_BYTES]);
    length_bytes = at[MAGIC_BYTES] == 1 ? 2 : 4;
    begins = MAGIC_BYTES + 2 + length_bytes;
    if (n < begins)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the array is cut off", name);
    length = little_endian(at + MAGIC_BYTES + 2, (int)length_bytes);
    if (length > MAX_HEADER || length > n - begins)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the head of the array is damaged", name);
    header = esper_mem_alloc(length + 1);
    if (header == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", name);
    memcpy(header, at + begins, length);
    status = read_header(name, header, &array);
    esper_mem_free(header);
    ESPER_TRY(status);
    for (int i = 0; i < array.rank; i++) {
        if (array.shape[i] > 0 && n_items > UINT64_MAX / 16 / array.shape[i])
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: the shape of the array is too large", name);
        n_items *= array.shape[i];
    }
    array.n_bytes = n_items * esper_safetensors_dtype_bytes(array.dtype);
    if (array.n_bytes != n - begins - length)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the array has %zu bytes, and its shape says %" PRIu64, name,
                          n - begins - length, array.n_bytes);
    array.data = at + begins + length;
    *array_out = array;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ .npz */

enum {
    END_BYTES = 22,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    MAX_ENTRIES = 1024,
    MAX_COMMENT = 65535,
    BEST_RATIO = 1032, /* deflate cannot pack better */
};

typedef struct member {
    char                    *name;
    uint8_t                 *unpacked; /* or NULL: the bytes are the file's own */
    esper_safetensors_tensor array;
} member;

struct esper_npz {
    const char    *name;
    const uint8_t *bytes;
    size_t         n;
    member        *members;
    size_t         n_members;
};

static esper_status damaged(const esper_npz *npz, const char *what)
{
    return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s: the file is damaged or cut off", npz->name, what);
}

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

static esper_status unpack(const esper_npz *npz, const uint8_t *packed, uint32_t n_packed, member *out, uint32_t n)
{
    z_stream z = {.zalloc = zlib_alloc, .zfree = zlib_free};
    int code;

    if (n > (uint64_t)n_packed * BEST_RATIO + BEST_RATIO)
        return damaged(npz, out->name);
    out->unpacked = esper_mem_alloc((size_t)n + 1);
    if (out->unpacked == NULL || inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: %s", npz->name, out->name);
    z.next_in = packed;
    z.avail_in = n_packed;
    z.next_out = out->unpacked;
    z.avail_out = n;
    code = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return code == Z_STREAM_END && z.avail_out == 0 ? ESPER_OK : damaged(npz, out->name);
}

/* One entry of the directory at the file's end. */
static esper_status read_member(esper_npz *npz, const uint8_t *entry, size_t name_bytes)
{
    member *out = &npz->members[npz->n_members];
    uint32_t method = little_endian(entry + 10, 2), crc = little_endian(entry + 16, 4);
    uint32_t n_packed = little_endian(entry + 20, 4), n = little_endian(entry + 24, 4),
             at = little_endian(entry + 42, 4);
    const uint8_t *local, *data;
    size_t skip, stem = name_bytes;

    out->name = esper_mem_alloc(name_bytes + 1);
    if (out->name == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", npz->name);
    npz->n_members++;
    memcpy(out->name, entry + ENTRY_BYTES, name_bytes);
    if (stem > 4 && memcmp(out->name + stem - 4, ".npy", 4) == 0)
        out->name[stem - 4] = '\0';
    if (n == UINT32_MAX || n_packed == UINT32_MAX || at == UINT32_MAX)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: %s has 4 GiB or more: save it as .npy", npz->name, out->name);
    if (at > npz->n || npz->n - at < LOCAL_BYTES || memcmp(npz->bytes + at, "PK\3\4", 4) != 0)
        return damaged(npz, out->name);
    local = npz->bytes + at;
    skip = LOCAL_BYTES + little_endian(local + 26, 2) + little_endian(local + 28, 2);
    if (npz->n - at < skip || npz->n - at - skip < n_packed)
        return damaged(npz, out->name);
    data = local + skip;
    if (method == 8) {
        ESPER_TRY(unpack(npz, data, n_packed, out, n));
        data = out->unpacked;
    } else if (method != 0 || n != n_packed)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is packed in an unknown way", npz->name, out->name);
    if (crc32_z(0, data, n) != crc)
        return damaged(npz, out->name);
    ESPER_TRY(esper_npy_read(out->name, data, n, &out->array));
    return ESPER_OK;
}

static esper_status read_members(esper_npz *npz)
{
    const uint8_t *end = NULL, *entry;
    size_t n_entries, size, at;

    for (size_t back = END_BYTES; end == NULL && back <= npz->n && back <= END_BYTES + MAX_COMMENT; back++)
        if (memcmp(npz->bytes + npz->n - back, "PK\5\6", 4) == 0)
            end = npz->bytes + npz->n - back;
    if (end == NULL)
        return damaged(npz, "no directory");
    n_entries = little_endian(end + 10, 2);
    size = little_endian(end + 12, 4);
    at = little_endian(end + 16, 4);
    if (at > npz->n || size > npz->n - at || n_entries > MAX_ENTRIES)
        return damaged(npz, "its directory");
    npz->members = esper_mem_alloc((n_entries + 1) * sizeof(*npz->members));
    if (npz->members == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", npz->name);
    entry = npz->bytes + at;
    for (size_t i = 0; i < n_entries; i++) {
        size_t left = (size_t)(npz->bytes + at + size - entry), name_bytes, bytes;

        if (left < ENTRY_BYTES || memcmp(entry, "PK\1\2", 4) != 0)
            return damaged(npz, "its directory");
        name_bytes = little_endian(entry + 28, 2);
        bytes = ENTRY_BYTES + name_bytes + little_endian(entry + 30, 2) + little_endian(entry + 32, 2);
        if (left < bytes)
            return damaged(npz, "its directory");
        ESPER_TRY(read_member(npz, entry, name_bytes));
        entry += bytes;
    }
    return ESPER_OK;
}

esper_status esper_npz_open(const char *name, const void *bytes, size_t n, esper_npz **npz_out)
{
    esper_npz *npz = esper_mem_alloc(sizeof(*npz));
    esper_status status;

    if (npz == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", name);
    npz->name = name;
    npz->bytes = bytes;
    npz->n = n;
    status = read_members(npz);
    if (status == ESPER_OK)
        *npz_out = npz;
    else
        esper_npz_close(npz);
    return status;
}

void esper_npz_close(esper_npz *npz)
{
    if (npz == NULL)
        return;
    for (size_t i = 0; i < npz->n_members; i++) {
        esper_mem_free(npz->members[i].name);
        esper_mem_free(npz->members[i].unpacked);
    }
    esper_mem_free(npz->members);
    esper_mem_free(npz);
}

size_t esper_npz_count(const esper_npz *npz)
{
    return npz->n_members;
}

const esper_safetensors_tensor *esper_npz_at(const esper_npz *npz, size_t index)
{
    return &npz->members[index].array;
}
