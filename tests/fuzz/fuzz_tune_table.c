/* Any text as a tune table: refused with words, or written and read again as the same table. */
#include "fuzz/fuzz.h"
#include "tensor/tune.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static esper_tune_table table, again;
    static char text[ESPER_TUNE_TEXT];
    esper_status status = esper_tune_read((const char *)bytes, n_bytes, "fuzz", &table);

    fuzz_must_say(status);
    if (status == ESPER_OK) {
        esper_tune_write(&table, text);
        fuzz_must(esper_tune_read(text, strlen(text), "again", &again) == ESPER_OK);
        fuzz_must(memcmp(&table, &again, sizeof(table)) == 0);
    }
    fuzz_must_be_free();
    return 0;
}
