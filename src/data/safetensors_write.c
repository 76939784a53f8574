/* Writing safetensors: check, lay out, describe in JSON, then put the file in place as one draft. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/safetensors.h"

enum { DATA_ALIGN = 64, LENGTH_BYTES = 8 };

#define METADATA_KEY "__metadata__"

/* Room in the header, beside names, notes and shapes. */
enum {
    FRAME_CHARS = sizeof("{\"" METADATA_KEY "\":{},}"),
    TENSOR_CHARS = sizeof(":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[,]},") + 2 * ESPER_NUMBER_CHARS,
    ESCAPE_CHARS = 6, /* the longest a single byte can become */
};

/* A tensor with the place its data will have. */
typedef struct placed {
    const esper_safetensors_tensor *tensor;
    size_t                          order;  /* in the caller's list */
    uint64_t                        n_bytes, begin;
} placed;

typedef struct layout {
    const char                   *path;
    placed                       *list; /* (n) in the order of the file */
    size_t                        n;
    const esper_safetensors_note *notes; /* (n_notes) the caller's */
    size_t                        n_notes;
    char                         *header;
    size_t                        n_header; /* characters */
} layout;

static esper_status measure(const char *path, const esper_safetensors_tensor *tensor, uint64_t *n_bytes_out)
{
    uint64_t n_bytes = esper_safetensors_dtype_bytes(tensor->dtype);

    if (tensor->name == NULL || strcmp(tensor->name, METADATA_KEY) == 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: a tensor may not be named \"%s\"", path,
                          tensor->name != NULL ? METADATA_KEY : "");
    if (n_bytes == 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: tensor \"%s\": type %d is not known", path, tensor->name,
                          (int)tensor->dtype);
    if (tensor->rank < 0 || tensor->rank > ESPER_SAFETENSORS_MAX_RANK)
        return ESPER_FAIL(ESPER_E_ARG, "%s: tensor \"%s\": rank %d: at most %d", path, tensor->name, tensor->rank,
                          ESPER_SAFETENSORS_MAX_RANK);
    for (int d = 0; d < tensor->rank; d++)
        if (__builtin_mul_overflow(n_bytes, tensor->shape[d], &n_bytes) || n_bytes > INT64_MAX ||
            tensor->shape[d] > INT64_MAX)
            return ESPER_FAIL(ESPER_E_ARG, "%s: tensor \"%s\": its shape overflows", path, tensor->name);
    if (n_bytes > 0 && tensor->data == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: tensor \"%s\": no data", path, tensor->name);
    *n_bytes_out = n_bytes;
    return ESPER_OK;
}

/* Wide elements first keeps every tensor aligned without gaps, which the format forbids. */
static int compare_widths(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    size_t width_x = esper_safetensors_dtype_bytes(x->tensor->dtype);
    size_t width_y = esper_safetensors_dtype_bytes(y->tensor->dtype);

    if (width_x != width_y)
        return width_x > width_y ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static esper_status place(layout *file, const esper_safetensors_tensor *tensors)
{
    uint64_t at = 0;

    for (size_t i = 0; i < file->n; i++) {
        file->list[i] = (placed){.tensor = &tensors[i], .order = i};
        ESPER_TRY(measure(file->path, &tensors[i], &file->list[i].n_bytes));
    }
    if (file->n > 0)
        qsort(file->list, file->n, sizeof(*file->list), compare_widths);
    for (size_t i = 0; i < file->n; i++) {
        file->list[i].begin = at;
        if (__builtin_add_overflow(at, file->list[i].n_bytes, &at) || at > INT64_MAX)
            return ESPER_FAIL(ESPER_E_ARG, "%s: more data than any file can hold", file->path);
    }
    return ESPER_OK;
}

/* ---------------------------------------------------------------- the header */

/* Adds the characters a text takes in JSON, quotes and all, or a few more. What is not UTF-8 cannot be described. */
static esper_status measure_text(const char *path, const char *what, const char *text, size_t *n_chars)
{
    size_t n, length;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: %s without its text", path, what);
    n = strlen(text);
    *n_chars += 2;
    for (size_t i = 0; i < n; i += length) {
        length = esper_utf8_length((const uint8_t *)text + i, n - i);
        if (length == 0)
            return ESPER_FAIL(ESPER_E_ARG, "%s: %s \"%.200s\" cannot be described: not UTF-8", path, what, text);
        *n_chars += length > 1 ? length : ESCAPE_CHARS;
    }
    return ESPER_OK;
}

/* The memory the header needs, terminator included. */
static esper_status measure_header(const layout *file, size_t *n_chars_out)
{
    size_t n_chars = FRAME_CHARS;

    for (size_t i = 0; i < file->n_notes; i++) {
        ESPER_TRY(measure_text(file->path, "metadata", file->notes[i].key, &n_chars));
        ESPER_TRY(measure_text(file->path, "metadata", file->notes[i].value, &n_chars));
        n_chars += 2; /* the colon and a comma */
    }
    for (size_t i = 0; i < file->n; i++) {
        ESPER_TRY(measure_text(file->path, "tensor", file->list[i].tensor->name, &n_chars));
        n_chars += TENSOR_CHARS + (size_t)file->list[i].tensor->rank * ESPER_NUMBER_CHARS;
    }
    *n_chars_out = n_chars;
    return ESPER_OK;
}

static int compare_texts(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

/* Names that come twice stand together once they are sorted. */
static esper_status check_names(const layout *file)
{
    size_t most = file->n > file->n_notes ? file->n : file->n_notes;
    const char **names = esper_mem_alloc((most + 1) * sizeof(*names));
    esper_status st = ESPER_OK;

    if (names == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a list of %zu names", file->path, most);
    for (int of_tensors = 0; of_tensors < 2; of_tensors++) {
        size_t n = of_tensors ? file->n : file->n_notes;

        for (size_t i = 0; i < n; i++)
            names[i] = of_tensors ? file->list[i].tensor->name : file->notes[i].key;
        qsort(names, n, sizeof(*names), compare_texts);
        for (size_t i = 1; i < n && st == ESPER_OK; i++)
            if (strcmp(names[i - 1], names[i]) == 0)
                st = ESPER_FAIL(ESPER_E_ARG, "%s: %s \"%s\" is given twice", file->path,
                                of_tensors ? "tensor" : "metadata", names[i]);
    }
    esper_mem_free(names);
    return st;
}

static void describe_tensor(const placed *p, esper_json *json)
{
    esper_json_key(json, p->tensor->name);
    esper_json_object_begin(json);
    esper_json_key(json, "dtype");
    esper_json_text(json, esper_safetensors_dtype_name(p->tensor->dtype));
    esper_json_key(json, "shape");
    esper_json_array_begin(json);
    for (int d = 0; d < p->tensor->rank; d++)
        esper_json_int(json, (int64_t)p->tensor->shape[d]);
    esper_json_array_end(json);
    esper_json_key(json, "data_offsets");
    esper_json_array_begin(json);
    esper_json_int(json, (int64_t)p->begin);
    esper_json_int(json, (int64_t)(p->begin + p->n_bytes));
    esper_json_array_end(json);
    esper_json_object_end(json);
}

static esper_status make_header(layout *file)
{
    size_t n_chars = 0;
    esper_json json;

    ESPER_TRY(measure_header(file, &n_chars));
    ESPER_TRY(check_names(file));
    file->header = esper_mem_alloc(n_chars);
    if (file->header == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: header for %zu tensors", file->path, file->n);
    esper_json_init(&json, file->header, n_chars);
    esper_json_object_begin(&json);
    if (file->n_notes > 0) {
        esper_json_key(&json, METADATA_KEY);
        esper_json_object_begin(&json);
        for (size_t i = 0; i < file->n_notes; i++) {
            esper_json_key(&json, file->notes[i].key);
            esper_json_text(&json, file->notes[i].value);
        }
        esper_json_object_end(&json);
    }
    for (size_t i = 0; i < file->n; i++)
        describe_tensor(&file->list[i], &json);
    esper_json_object_end(&json);
    assert(!json.overflow);
    file->n_header = json.used;
    return ESPER_OK;
}

/* ---------------------------------------------------------------- the file */

static esper_status write_draft(const layout *file, esper_draft *draft)
{
    char spaces[DATA_ALIGN];
    size_t n_pad = (DATA_ALIGN - (LENGTH_BYTES + file->n_header) % DATA_ALIGN) % DATA_ALIGN;
    uint64_t n_header = file->n_header + n_pad;

    memset(spaces, ' ', sizeof(spaces));
    ESPER_TRY(esper_draft_write(draft, &n_header, sizeof(n_header)));
    ESPER_TRY(esper_draft_write(draft, file->header, file->n_header));
    ESPER_TRY(esper_draft_write(draft, spaces, n_pad));
    for (size_t i = 0; i < file->n; i++)
        ESPER_TRY(esper_draft_write(draft, file->list[i].tensor->data, (size_t)file->list[i].n_bytes));
    return esper_draft_commit(draft);
}

esper_status esper_safetensors_write(const char *path, const esper_safetensors_tensor *tensors, size_t n_tensors,
                                     const esper_safetensors_note *notes, size_t n_notes)
{
    layout file = {.path = path, .n = n_tensors, .notes = notes, .n_notes = n_notes};
    esper_draft *draft = NULL;
    esper_status st;

    if (n_tensors > 0) {
        file.list = esper_mem_alloc(n_tensors * sizeof(*file.list));
        if (file.list == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: a list of %zu tensors", path, n_tensors);
    }
    st = place(&file, tensors);
    if (st == ESPER_OK)
        st = make_header(&file);
    if (st == ESPER_OK)
        st = esper_draft_open(path, &draft);
    if (st == ESPER_OK)
        st = write_draft(&file, draft);
    esper_draft_close(draft);
    esper_mem_free(file.header);
    esper_mem_free(file.list);
    return st;
}
