/* Configuration text of any kind: refused with words, or read so that its record reads back to the same values. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char record[ESPER_CONFIG_RECORD_CHARS], again[ESPER_CONFIG_RECORD_CHARS];
    static esper_config config, reread;
    size_t bytes;

    esper_config_init(&config);
    if (esper_config_load_text(&config, (const char *)data, size, "fuzz") != ESPER_OK) {
        if (esper_last_error()[0] == '\0')
            abort();
        return 0;
    }
    bytes = esper_config_write(&config, record);
    esper_config_init(&reread);
    if (esper_config_load_text(&reread, record, bytes, "record") != ESPER_OK)
        abort();
    if (esper_config_write(&reread, again) != bytes || memcmp(record, again, bytes) != 0)
        abort();
    return 0;
}
