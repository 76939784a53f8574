/* Reading safetensors. The JSON tree stays alive with the file, since names and notes point into it. */
#include "data/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/reader.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data is used as it lies in the file");

enum {
    HEADER_MAX = 100 * 1000 * 1000, /* the format's own limit */
    LENGTH_BYTES = 8,
    SHAPE_CHARS = 192, /* 8 numbers of up to 20 digits with their commas */
};

#define METADATA_KEY "__metadata__"

struct esper_safetensors {
    char                           *name;
    void                           *owned;   /* the bytes, when they were read from a file */
    json_t                         *root;    /* the header */
    json_t                         *notes;   /* in root; NULL when there are none */
    size_t                          n_tensors, n_notes;
    esper_safetensors_tensor       *tensors; /* (n_tensors) in the order of their data */
    const esper_safetensors_tensor **by_name; /* (n_tensors) sorted by name */
    esper_safetensors_note         *note_list; /* (n_notes) */
    const uint8_t                  *data;
    uint64_t                        n_data;
};

static const struct {
    const char *text;
    size_t      bytes;
} dtypes[ESPER_SAFETENSORS_N_DTYPES] = {
#define X(name, text, bytes) [ESPER_SAFETENSORS_##name] = {text, bytes},
    ESPER_SAFETENSORS_DTYPE_LIST(X)
#undef X
};

const char *esper_safetensors_dtype_name(esper_safetensors_dtype dtype)
{
    return (unsigned)dtype < ESPER_SAFETENSORS_N_DTYPES ? dtypes[dtype].text : "unknown type";
}

size_t esper_safetensors_dtype_bytes(esper_safetensors_dtype dtype)
{
    return (unsigned)dtype < ESPER_SAFETENSORS_N_DTYPES ? dtypes[dtype].bytes : 0;
}

/* Every message about one tensor begins alike. */
#define FAIL_TENSOR(file, tensor, ...)                 \
    (ESPER_FAIL(ESPER_E_FORMAT, __VA_ARGS__),          \
     esper_fail_within(ESPER_E_FORMAT, "%s: tensor \"%.200s\": ", (file)->name, (tensor)->name))

/* A size or an offset: an integer that is not negative. */
static bool parse_natural(const json_t *value, uint64_t *number_out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *number_out = (uint64_t)json_integer_value(value);
    return true;
}

static esper_status parse_shape(const esper_safetensors *file, const json_t *value, esper_safetensors_tensor *tensor)
{
    uint64_t n_bytes = dtypes[tensor->dtype].bytes;

    if (!json_is_array(value))
        return FAIL_TENSOR(file, tensor, "has no \"shape\" list");
    if (json_array_size(value) > ESPER_SAFETENSORS_MAX_RANK)
        return FAIL_TENSOR(file, tensor, "has %zu dimensions: at most %d are read", json_array_size(value),
                           ESPER_SAFETENSORS_MAX_RANK);
    tensor->rank = (int)json_array_size(value);
    for (int d = 0; d < tensor->rank; d++)
        if (!parse_natural(json_array_get(value, (size_t)d), &tensor->shape[d]))
            return FAIL_TENSOR(file, tensor, "dimension %d of its shape is not a whole number from 0 up", d + 1);
    for (int d = 0; d < tensor->rank; d++)
        if (__builtin_mul_overflow(n_bytes, tensor->shape[d], &n_bytes))
            return FAIL_TENSOR(file, tensor, "its shape has more elements than any file could hold");
    tensor->n_bytes = n_bytes;
    return ESPER_OK;
}

static esper_status parse_offsets(const esper_safetensors *file, const json_t *value, esper_safetensors_tensor *tensor)
{
    uint64_t begin, end;

    if (json_array_size(value) != 2 || !parse_natural(json_array_get(value, 0), &begin) ||
        !parse_natural(json_array_get(value, 1), &end))
        return FAIL_TENSOR(file, tensor, "has no \"data_offsets\" list of two whole numbers");
    if (begin > end)
        return FAIL_TENSOR(file, tensor, "its data ends (%" PRIu64 ") before it begins (%" PRIu64 ")", end, begin);
    if (end > file->n_data)
        return FAIL_TENSOR(file, tensor,
                           "its data ends at %" PRIu64 ", but the file holds only %" PRIu64 " bytes of data", end,
                           file->n_data);
    if (end - begin != tensor->n_bytes)
        return FAIL_TENSOR(file, tensor, "has %" PRIu64 " bytes of data, but its shape and type make %" PRIu64,
                           end - begin, tensor->n_bytes);
    tensor->data = file->data + begin;
    return ESPER_OK;
}

static esper_status parse_tensor(const esper_safetensors *file, const char *name, const json_t *value,
                                 esper_safetensors_tensor *tensor)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    int i = 0;

    tensor->name = name;
    if (!json_is_object(value))
        return FAIL_TENSOR(file, tensor, "is not described by an object");
    if (dtype == NULL)
        return FAIL_TENSOR(file, tensor, "has no \"dtype\" text");
    while (i < ESPER_SAFETENSORS_N_DTYPES && strcmp(dtypes[i].text, dtype) != 0)
        i++;
    if (i == ESPER_SAFETENSORS_N_DTYPES)
        return FAIL_TENSOR(file, tensor, "type \"%.32s\" is not known", dtype);
    tensor->dtype = (esper_safetensors_dtype)i;
    ESPER_TRY(parse_shape(file, json_object_get(value, "shape"), tensor));
    return parse_offsets(file, json_object_get(value, "data_offsets"), tensor);
}

static esper_status parse_notes(esper_safetensors *file)
{
    const char *key;
    json_t *value;

    file->notes = json_object_get(file->root, METADATA_KEY);
    if (file->notes == NULL)
        return ESPER_OK;
    if (!json_is_object(file->notes))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: \"" METADATA_KEY "\" is not an object", file->name);
    if (json_object_size(file->notes) == 0)
        return ESPER_OK;
    file->note_list = esper_mem_alloc(json_object_size(file->notes) * sizeof(*file->note_list));
    if (file->note_list == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: its metadata", file->name);
    json_object_foreach(file->notes, key, value) {
        if (!json_is_string(value))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: metadata \"%.200s\" is not text", file->name, key);
        file->note_list[file->n_notes++] = (esper_safetensors_note){.key = key, .value = json_string_value(value)};
    }
    return ESPER_OK;
}

static int compare_names(const void *a, const void *b)
{
    const esper_safetensors_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

/* By place; empty tensors come before the one that begins where they lie. Names settle the rest. */
static int compare_places(const void *a, const void *b)
{
    const esper_safetensors_tensor *x = a, *y = b;

    if (x->data != y->data)
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static esper_status parse_tensors(esper_safetensors *file)
{
    size_t n = json_object_size(file->root) - (file->notes != NULL);
    const char *key;
    json_t *value;

    if (n == 0)
        return ESPER_OK;
    file->tensors = esper_mem_alloc(n * sizeof(*file->tensors));
    file->by_name = esper_mem_alloc(n * sizeof(*file->by_name));
    if (file->tensors == NULL || file->by_name == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a list of %zu tensors", file->name, n);
    json_object_foreach(file->root, key, value) {
        if (value != file->notes)
            ESPER_TRY(parse_tensor(file, key, value, &file->tensors[file->n_tensors++]));
    }
    qsort(file->tensors, n, sizeof(*file->tensors), compare_places);
    for (size_t i = 0; i < n; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, n, sizeof(*file->by_name), compare_names);
    return ESPER_OK;
}

/* The tensors, sorted by place, must follow each other from the first byte of data to the last. */
static esper_status check_cover(const esper_safetensors *file)
{
    uint64_t at = 0;

    for (size_t i = 0; i < file->n_tensors; i++) {
        const esper_safetensors_tensor *tensor = &file->tensors[i];
        uint64_t begin = (uint64_t)((const uint8_t *)tensor->data - file->data);

        if (begin < at)
            return FAIL_TENSOR(file, tensor, "its data overlaps that of \"%.200s\"", file->tensors[i - 1].name);
        if (begin > at)
            return FAIL_TENSOR(file, tensor, "%" PRIu64 " bytes before its data belong to no tensor", begin - at);
        at += tensor->n_bytes;
    }
    if (at != file->n_data)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the last %" PRIu64 " bytes belong to no tensor", file->name,
                          file->n_data - at);
    return ESPER_OK;
}

/* Out of memory, jansson gives an empty message, or calls the text invalid; malloc's errno tells the two apart. */
static esper_status load_header(esper_safetensors *file, const char *header, size_t n_header)
{
    json_error_t error = {0};

    errno = 0;
    file->root = json_loadb(header, n_header, JSON_REJECT_DUPLICATES, &error);
    if (file->root != NULL)
        return ESPER_OK;
    if (errno == ENOMEM || error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a header of %zu bytes", file->name, n_header);
    return ESPER_FAIL(ESPER_E_FORMAT, "%s: the header is not valid JSON: %s (byte %d)", file->name, error.text,
                      LENGTH_BYTES + error.position);
}

/* The first eight bytes, checked against the size of the file. */
static esper_status check_header_length(const char *name, const uint8_t *bytes, uint64_t n_bytes, size_t *n_header_out)
{
    uint64_t n_header;

    if (n_bytes < LENGTH_BYTES)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: %" PRIu64 " bytes are too few for a safetensors file", name,
                          n_bytes);
    memcpy(&n_header, bytes, sizeof(n_header));
    if (n_header > HEADER_MAX)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: not a safetensors file: its first %d bytes are not the length of a header", name,
                          LENGTH_BYTES);
    if (n_header > n_bytes - LENGTH_BYTES)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: a header of %" PRIu64 " bytes in a file of %" PRIu64, name,
                          n_header, n_bytes);
    *n_header_out = (size_t)n_header;
    return ESPER_OK;
}

static esper_status parse_bytes(esper_safetensors *file, const uint8_t *bytes, size_t n_bytes)
{
    size_t n_header = 0;

    ESPER_TRY(check_header_length(file->name, bytes, n_bytes, &n_header));
    file->data = bytes + LENGTH_BYTES + n_header;
    file->n_data = n_bytes - LENGTH_BYTES - n_header;
    if (n_header == 0 || bytes[LENGTH_BYTES] != '{')
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: not a safetensors file: its header does not begin with {", file->name);
    ESPER_TRY(load_header(file, (const char *)bytes + LENGTH_BYTES, n_header));
    ESPER_TRY(parse_notes(file));
    ESPER_TRY(parse_tensors(file));
    return check_cover(file);
}

/* Reads a whole file. The first bytes are looked at first: no large memory for a file that is no safetensors. */
static esper_status read_bytes(esper_safetensors *file, esper_reader *reader, size_t *n_bytes_out)
{
    uint64_t n_bytes = esper_reader_bound(reader);
    uint8_t length[LENGTH_BYTES];
    size_t got = 0, n_header;

    ESPER_TRY(esper_reader_read(reader, length, sizeof(length), &got));
    ESPER_TRY(check_header_length(file->name, length, got < LENGTH_BYTES ? got : n_bytes, &n_header));
    file->owned = esper_mem_alloc((size_t)n_bytes);
    if (file->owned == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a file of %" PRIu64 " bytes", file->name, n_bytes);
    memcpy(file->owned, length, sizeof(length));
    ESPER_TRY(esper_reader_read_all(reader, (uint8_t *)file->owned + LENGTH_BYTES, (size_t)n_bytes - LENGTH_BYTES,
                                    "tensor data"));
    *n_bytes_out = (size_t)n_bytes;
    return ESPER_OK;
}

/* A file, or where `bytes` is not NULL what lies in memory. */
static esper_status open_any(const char *name, const void *bytes, size_t n_bytes, esper_safetensors **file_out)
{
    esper_safetensors *file = esper_mem_alloc(sizeof(*file));
    esper_reader *reader = NULL;
    esper_status st = ESPER_OK;

    if (file != NULL)
        file->name = esper_mem_strdup(name);
    if (file == NULL || file->name == NULL)
        st = ESPER_FAIL(ESPER_E_NOMEM, "%s", name);
    if (st == ESPER_OK && bytes == NULL)
        st = esper_reader_open(name, ESPER_READER_PLAIN, &reader);
    if (reader != NULL)
        st = read_bytes(file, reader, &n_bytes);
    esper_reader_close(reader);
    if (st == ESPER_OK)
        st = parse_bytes(file, bytes != NULL ? bytes : file->owned, n_bytes);
    if (st != ESPER_OK) {
        esper_safetensors_close(file);
        return st;
    }
    *file_out = file;
    return ESPER_OK;
}

esper_status esper_safetensors_open(const char *path, esper_safetensors **file_out)
{
    return open_any(path, NULL, 0, file_out);
}

esper_status esper_safetensors_open_memory(const char *name, const void *bytes, size_t n_bytes,
                                           esper_safetensors **file_out)
{
    assert(bytes != NULL);
    return open_any(name, bytes, n_bytes, file_out);
}

void esper_safetensors_close(esper_safetensors *file)
{
    if (file == NULL)
        return;
    json_decref(file->root);
    esper_mem_free(file->note_list);
    esper_mem_free(file->by_name);
    esper_mem_free(file->tensors);
    esper_mem_free(file->owned);
    esper_mem_free(file->name);
    esper_mem_free(file);
}

const char *esper_safetensors_name(const esper_safetensors *file)
{
    return file->name;
}

size_t esper_safetensors_count(const esper_safetensors *file)
{
    return file->n_tensors;
}

const esper_safetensors_tensor *esper_safetensors_at(const esper_safetensors *file, size_t index)
{
    assert(index < file->n_tensors);
    return &file->tensors[index];
}

const esper_safetensors_tensor *esper_safetensors_find(const esper_safetensors *file, const char *name)
{
    size_t low = 0, high = file->n_tensors;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->by_name[middle]->name);

        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* "F32 (8, 3, 3, 3)" */
static void describe(esper_safetensors_dtype dtype, int rank, const uint64_t *shape, char *text, size_t n_text)
{
    int used = snprintf(text, n_text, "%s (", esper_safetensors_dtype_name(dtype));

    for (int d = 0; d < rank && used >= 0 && (size_t)used < n_text; d++)
        used += snprintf(text + used, n_text - (size_t)used, "%s%" PRIu64, d > 0 ? ", " : "", shape[d]);
    if (used >= 0 && (size_t)used < n_text)
        snprintf(text + used, n_text - (size_t)used, ")");
}

esper_status esper_safetensors_get(const esper_safetensors *file, const char *name, esper_safetensors_dtype dtype,
                                   int rank, const uint64_t *shape, const esper_safetensors_tensor **tensor_out)
{
    const esper_safetensors_tensor *tensor = esper_safetensors_find(file, name);
    char found[SHAPE_CHARS], wanted[SHAPE_CHARS];
    bool same;

    if (tensor == NULL)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s: holds no tensor \"%.200s\"", file->name, name);
    same = tensor->dtype == dtype && tensor->rank == rank;
    for (int d = 0; same && d < rank; d++)
        same = tensor->shape[d] == shape[d];
    if (!same) {
        describe(tensor->dtype, tensor->rank, tensor->shape, found, sizeof(found));
        describe(dtype, rank, shape, wanted, sizeof(wanted));
        return FAIL_TENSOR(file, tensor, "is %s where %s is wanted", found, wanted);
    }
    *tensor_out = tensor;
    return ESPER_OK;
}

esper_status esper_safetensors_copy(const esper_safetensors *file, const char *name, esper_safetensors_dtype dtype,
                                    int rank, const uint64_t *shape, void *data_out)
{
    const esper_safetensors_tensor *tensor;

    ESPER_TRY(esper_safetensors_get(file, name, dtype, rank, shape, &tensor));
    if (tensor->n_bytes > 0)
        memcpy(data_out, tensor->data, (size_t)tensor->n_bytes);
    return ESPER_OK;
}

const char *esper_safetensors_note_find(const esper_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->notes, key));
}

size_t esper_safetensors_note_count(const esper_safetensors *file)
{
    return file->n_notes;
}

esper_safetensors_note esper_safetensors_note_at(const esper_safetensors *file, size_t index)
{
    assert(index < file->n_notes);
    return file->note_list[index];
}
