/* Any bytes as an IDX file: an error or an array, never more memory than the bytes can justify. */
#include <stdlib.h>

#include "base/mem.h"
#include "data/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    const esper_idx_shape *shape;
    esper_mem_stats stats;
    uint8_t *data = NULL;
    esper_idx *idx;

    if (esper_idx_open_memory("input", bytes, n_bytes, &idx) == ESPER_OK) {
        shape = esper_idx_shape_get(idx);
        if (shape->n_bytes == 0 || shape->n_bytes > n_bytes * 1032)
            abort();
        data = esper_mem_alloc((size_t)shape->n_bytes);
        if (data != NULL)
            (void)esper_idx_read(idx, data);
        esper_mem_free(data);
        esper_idx_close(idx);
    }
    esper_mem_stats_get(&stats);
    if (stats.n_live != 0)
        abort();
    return 0;
}
