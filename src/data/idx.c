/* The IDX reader. */
#include "data/idx.h"

#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/reader.h"

enum { IDX_UNSIGNED_BYTE = 0x08 };

struct esper_idx {
    esper_reader   *reader;
    esper_idx_shape shape;
};

static esper_status read_head(esper_idx *idx)
{
    const char *name = esper_reader_name(idx->reader);
    esper_idx_shape *shape = &idx->shape;
    uint8_t magic[4], sizes[ESPER_IDX_MAX_RANK][4];

    ESPER_TRY(esper_reader_read_all(idx->reader, magic, sizeof(magic), "the head"));
    if (magic[0] != 0 || magic[1] != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: not an IDX file: it begins with %02x %02x %02x %02x, not with 00 00 08",
                          name, magic[0], magic[1], magic[2], magic[3]);
    if (magic[2] != IDX_UNSIGNED_BYTE)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: IDX data of type 0x%02x: only unsigned bytes (0x08) are read", name,
                          magic[2]);
    if (magic[3] != 1 && magic[3] != 3)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: IDX data of rank %d: expected 1 (labels) or 3 (images)", name, magic[3]);
    shape->rank = magic[3];
    ESPER_TRY(esper_reader_read_all(idx->reader, sizes, 4 * (size_t)shape->rank, "the head"));
    shape->n_bytes = 1;
    for (int d = 0; d < ESPER_IDX_MAX_RANK; d++) {
        const uint8_t *b = sizes[d]; /* big-endian */

        shape->dims[d] = 1;
        if (d < shape->rank)
            shape->dims[d] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        if (shape->dims[d] == 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: size %d is 0: the file holds nothing", name, d + 1);
        if (d > 0 && shape->dims[d] > ESPER_IDX_MAX_SIDE)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: images with a side of %u: at most %d are read", name, shape->dims[d],
                              ESPER_IDX_MAX_SIDE);
        shape->n_bytes *= shape->dims[d]; /* below 2^32 * 2^12 * 2^12 */
    }
    if (shape->n_bytes > esper_reader_bound(idx->reader))
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: truncated, or its head lies: %u x %u x %u bytes cannot fit into this file", name,
                          shape->dims[0], shape->dims[1], shape->dims[2]);
    return ESPER_OK;
}

/* Over a file, or where `bytes` is not NULL over memory. */
static esper_status open_any(const char *name, const void *bytes, size_t n_bytes, esper_idx **idx_out)
{
    esper_idx *idx = esper_mem_alloc(sizeof(*idx));
    esper_status st;

    if (idx == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: reader", name);
    st = bytes == NULL ? esper_reader_open(name, ESPER_READER_AUTO, &idx->reader)
                       : esper_reader_open_memory(name, bytes, n_bytes, ESPER_READER_AUTO, &idx->reader);
    if (st == ESPER_OK)
        st = read_head(idx);
    if (st != ESPER_OK) {
        esper_idx_close(idx);
        return st;
    }
    *idx_out = idx;
    return ESPER_OK;
}

esper_status esper_idx_open(const char *path, esper_idx **idx_out)
{
    return open_any(path, NULL, 0, idx_out);
}

esper_status esper_idx_open_memory(const char *name, const void *bytes, size_t n_bytes, esper_idx **idx_out)
{
    assert(bytes != NULL);
    return open_any(name, bytes, n_bytes, idx_out);
}

void esper_idx_close(esper_idx *idx)
{
    if (idx == NULL)
        return;
    esper_reader_close(idx->reader);
    esper_mem_free(idx);
}

const esper_idx_shape *esper_idx_shape_get(const esper_idx *idx)
{
    return &idx->shape;
}

esper_status esper_idx_read(esper_idx *idx, uint8_t *data_out)
{
    const char *part = idx->shape.rank == 1 ? "label data" : "image data";

    ESPER_TRY(esper_reader_read_all(idx->reader, data_out, (size_t)idx->shape.n_bytes, part));
    return esper_reader_expect_end(idx->reader);
}
