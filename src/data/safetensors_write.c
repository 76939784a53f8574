/* Writing safetensors: check, lay out, describe in JSON, then put the file in place as one draft. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/safetensors.h"

enum { DATA_ALIGN = 64, LENGTH_BYTES = 8 };

#define METADATA_KEY "__metadata__"

/* A tensor with the place its data will have. */
typedef struct placed {
    const esper_safetensors_tensor *tensor;
    size_t                          order;  /* in the caller's list */
    uint64_t                        n_bytes, begin;
} placed;

typedef struct layout {
    const char *path;
    placed     *list; /* (n) in the order of the file */
    size_t      n;
    char       *header; /* made by jansson, so freed by free() */
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
        if (__builtin_mul_overflow(n_bytes, tensor->shape[d], &n_bytes) || n_bytes > INT64_MAX)
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

static json_t *describe_tensor(const placed *p)
{
    json_t *shape = json_array();

    for (int d = 0; d < p->tensor->rank; d++)
        json_array_append_new(shape, json_integer((json_int_t)p->tensor->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", esper_safetensors_dtype_name(p->tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)p->begin, (json_int_t)(p->begin + p->n_bytes));
}

/* Adds a member; refuses names that are there already or are not UTF-8. The value is taken, also on failure. */
static esper_status add_member(const char *path, json_t *object, const char *what, const char *key, json_t *value)
{
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return ESPER_FAIL(ESPER_E_ARG, "%s: %s \"%s\" is given twice", path, what, key);
    }
    if (json_object_set_new(object, key, value) != 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: %s \"%s\" cannot be described: not UTF-8, or out of memory", path, what,
                          key);
    return ESPER_OK;
}

static esper_status describe_notes(const char *path, json_t *root, const esper_safetensors_note *notes, size_t n_notes)
{
    json_t *object = json_object();

    ESPER_TRY(add_member(path, root, "member", METADATA_KEY, object));
    for (size_t i = 0; i < n_notes; i++)
        ESPER_TRY(add_member(path, object, "metadata", notes[i].key, json_string(notes[i].value)));
    return ESPER_OK;
}

static esper_status describe_all(const layout *file, json_t *root, const esper_safetensors_note *notes, size_t n_notes)
{
    if (n_notes > 0)
        ESPER_TRY(describe_notes(file->path, root, notes, n_notes));
    for (size_t i = 0; i < file->n; i++)
        ESPER_TRY(add_member(file->path, root, "tensor", file->list[i].tensor->name, describe_tensor(&file->list[i])));
    return ESPER_OK;
}

static esper_status make_header(layout *file, const esper_safetensors_note *notes, size_t n_notes)
{
    json_t *root = json_object();
    esper_status st = describe_all(file, root, notes, n_notes);

    if (st == ESPER_OK)
        file->header = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (st == ESPER_OK && file->header == NULL)
        st = ESPER_FAIL(ESPER_E_NOMEM, "%s: header for %zu tensors", file->path, file->n);
    return st;
}

static esper_status write_draft(const layout *file, esper_draft *draft)
{
    char spaces[DATA_ALIGN];
    size_t n_text = strlen(file->header);
    size_t n_pad = (DATA_ALIGN - (LENGTH_BYTES + n_text) % DATA_ALIGN) % DATA_ALIGN;
    uint64_t n_header = n_text + n_pad;

    memset(spaces, ' ', sizeof(spaces));
    ESPER_TRY(esper_draft_write(draft, &n_header, sizeof(n_header)));
    ESPER_TRY(esper_draft_write(draft, file->header, n_text));
    ESPER_TRY(esper_draft_write(draft, spaces, n_pad));
    for (size_t i = 0; i < file->n; i++)
        ESPER_TRY(esper_draft_write(draft, file->list[i].tensor->data, (size_t)file->list[i].n_bytes));
    return esper_draft_commit(draft);
}

static esper_status write_file(const layout *file)
{
    esper_draft *draft;
    esper_status st;

    ESPER_TRY(esper_draft_open(file->path, &draft));
    st = write_draft(file, draft);
    esper_draft_close(draft);
    return st;
}

esper_status esper_safetensors_write(const char *path, const esper_safetensors_tensor *tensors, size_t n_tensors,
                                     const esper_safetensors_note *notes, size_t n_notes)
{
    layout file = {.path = path, .n = n_tensors};
    esper_status st;

    if (n_tensors > 0) {
        file.list = esper_mem_alloc(n_tensors * sizeof(*file.list));
        if (file.list == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: a list of %zu tensors", path, n_tensors);
    }
    st = place(&file, tensors);
    if (st == ESPER_OK)
        st = make_header(&file, notes, n_notes);
    if (st == ESPER_OK)
        st = write_file(&file);
    free(file.header);
    esper_mem_free(file.list);
    return st;
}
