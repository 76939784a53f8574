/* Any bytes as a table: an error with words, or rows of finite numbers (or gaps) with a class each. */
#include "fuzz/fuzz.h"

#include <math.h>

#include "data/prepared.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_prepared set = {0};
    esper_status status = esper_table_prepare("input", (const char *)bytes, n_bytes, "", &set);

    fuzz_must_say(status);
    if (status == ESPER_OK) {
        const esper_store *store = &set.stores[ESPER_STORE_TRAIN];
        uint64_t n = store->n_items * (uint64_t)set.plan.features;

        fuzz_must(set.plan.classes >= 2 && set.plan.features >= 1 && set.plan.numbers <= set.plan.features);
        for (uint64_t i = 0; i < n; i++)
            fuzz_must(!isinf(store->rows[i]));
        for (uint64_t i = 0; i < store->n_items; i++)
            fuzz_must(store->labels[i] < set.plan.classes);
    }
    esper_prepared_fini(&set);
    fuzz_must_be_free();
    return 0;
}
