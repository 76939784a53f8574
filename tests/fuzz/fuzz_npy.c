/* Any bytes as a .npy file: an error with words, or an array that lies within them. */
#include "fuzz/fuzz.h"

#include "data/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_safetensors_tensor array = {0};
    esper_status status = esper_npy_read("input", bytes, n_bytes, &array);

    fuzz_must_say(status);
    if (status == ESPER_OK) {
        const uint8_t *data = array.data;

        fuzz_must(data >= bytes && array.n_bytes <= n_bytes && data + array.n_bytes == bytes + n_bytes);
        fuzz_must(array.rank >= 0 && array.rank <= ESPER_SAFETENSORS_MAX_RANK);
    }
    fuzz_must_be_free();
    return 0;
}
