/* Any bytes as a .npz file: an error with words, or arrays; never more memory than the bytes can justify. */
#include "fuzz/fuzz.h"

#include "data/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_npz *npz = NULL;
    esper_status status = esper_npz_open("input", bytes, n_bytes, &npz);
    uint64_t sum = 0;

    fuzz_must_say(status);
    for (size_t i = 0; status == ESPER_OK && i < esper_npz_count(npz); i++) {
        const esper_safetensors_tensor *array = esper_npz_at(npz, i);

        for (uint64_t k = 0; k < array->n_bytes; k++)
            sum += ((const uint8_t *)array->data)[k];
    }
    fuzz_must(sum != UINT64_MAX); /* all of it can be read */
    esper_npz_close(npz);
    fuzz_must_be_free();
    return 0;
}
