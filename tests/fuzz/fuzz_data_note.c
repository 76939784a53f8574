/* Any bytes as the description of data in a checkpoint, and any table for a set made of it: an error with words, or finite numbers. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "data/inputs.h"

/* The description ends at the first zero; names of classes follow, up to the next. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char *text = esper_mem_alloc(n_bytes + 2);
    esper_dataset *set = NULL;
    esper_status status;

    fuzz_must(text != NULL);
    memcpy(text, bytes, n_bytes);
    status = esper_dataset_recall(text, text + strlen(text) + 1, &set);
    fuzz_must_say(status);
    if (status == ESPER_OK) {
        const esper_dataset_info *info = esper_dataset_info_get(set);

        fuzz_must(esper_dataset_count(set, ESPER_SPLIT_TRAIN) == 0);
        for (int c = 0; c < info->classes; c++)
            fuzz_must(esper_dataset_class_name(set, c) != NULL);
        for (int c = 0; c < info->channels; c++)
            fuzz_must(isfinite(info->mean[c]) && info->std[c] > 0.0f);
        for (uint32_t f = 0; f < esper_dataset_feature_count(set); f++) {
            float mean, std;

            fuzz_must(esper_dataset_feature(set, f, &mean, &std) != NULL && isfinite(mean) && std > 0.0f);
        }
    }
    esper_dataset_close(set);
    esper_mem_free(text);
    fuzz_must_be_free();
    return 0;
}
