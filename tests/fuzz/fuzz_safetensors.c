/* Any bytes as a safetensors file: an error, or tensors that lie wholly within it, in order and without overlap. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check_file(const esper_safetensors *file, const uint8_t *bytes, size_t n_bytes)
{
    const uint8_t *at = NULL;

    for (size_t i = 0; i < esper_safetensors_count(file); i++) {
        const esper_safetensors_tensor *tensor = esper_safetensors_at(file, i);
        const uint8_t *data = tensor->data;
        uint64_t count = 1;

        if (data < bytes + 8 || data > bytes + n_bytes || tensor->n_bytes > (uint64_t)(bytes + n_bytes - data))
            abort();
        if (at != NULL && data != at)
            abort();
        at = data + tensor->n_bytes;
        for (int d = 0; d < tensor->rank; d++)
            count *= tensor->shape[d];
        if (count * esper_safetensors_dtype_bytes(tensor->dtype) != tensor->n_bytes)
            abort();
        if (esper_safetensors_find(file, tensor->name) != tensor)
            abort();
    }
    if (at != NULL && at != bytes + n_bytes)
        abort();
    for (size_t i = 0; i < esper_safetensors_note_count(file); i++) {
        esper_safetensors_note note = esper_safetensors_note_at(file, i);

        if (esper_safetensors_note_find(file, note.key) != note.value)
            abort();
    }
}

static void try_bytes(const uint8_t *bytes, size_t n_bytes)
{
    esper_safetensors *file;
    esper_mem_stats stats;

    if (esper_safetensors_open_memory("input", bytes, n_bytes, &file) == ESPER_OK) {
        check_file(file, bytes, n_bytes);
        esper_safetensors_close(file);
    }
    esper_mem_stats_get(&stats);
    if (stats.n_live != 0)
        abort();
}

/* Once as they are; once with a length that fits, the header ending at the last brace, so that changes to the text get
 * past the check of the length. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    const uint8_t *brace;
    uint8_t *copy;
    uint64_t n_header;

    try_bytes(bytes, n_bytes);
    brace = n_bytes > 8 ? memrchr(bytes + 8, '}', n_bytes - 8) : NULL;
    if (brace == NULL)
        return 0;
    copy = malloc(n_bytes);
    if (copy == NULL)
        return 0;
    memcpy(copy, bytes, n_bytes);
    n_header = (uint64_t)(brace + 1 - (bytes + 8));
    memcpy(copy, &n_header, sizeof(n_header));
    try_bytes(copy, n_bytes);
    free(copy);
    return 0;
}
