/* Any bytes as a packed slot table, as they are and with a hash that fits: refused with words, or packed again to the same bytes. */
#include <xxhash.h>

#include "fuzz/fuzz.h"
#include "slot/slots.h"

static void try_bytes(const uint8_t *bytes, size_t n_bytes)
{
    static esper_slots slots;
    esper_status status = esper_slots_unpack(bytes, n_bytes, &slots);
    uint8_t *again;

    fuzz_must_say(status);
    if (status != ESPER_OK)
        return;
    fuzz_must(esper_slots_pack_bytes(&slots) == n_bytes);
    again = malloc(n_bytes);
    fuzz_must(again != NULL);
    esper_slots_pack(&slots, again);
    fuzz_must(memcmp(again, bytes, n_bytes) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    uint8_t *copy = malloc(n_bytes + 1);
    XXH64_hash_t hash;

    fuzz_must(copy != NULL);
    try_bytes(bytes, n_bytes);
    memcpy(copy, bytes, n_bytes);
    if (n_bytes >= sizeof(hash)) {
        hash = XXH64(bytes, n_bytes - sizeof(hash), 0);
        memcpy(copy + n_bytes - sizeof(hash), &hash, sizeof(hash));
        try_bytes(copy, n_bytes);
    }
    free(copy);
    fuzz_must_be_free();
    return 0;
}
