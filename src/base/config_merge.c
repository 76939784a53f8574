/* What a resumed run goes by: the configuration it had, and what was asked for now. */
#include <string.h>

#include "base/config.h"
#include "base/status.h"

static bool is_among(const char *key, const char *const *keys)
{
    for (int i = 0; keys[i] != NULL; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

esper_status esper_config_merge(const esper_config *saved, const esper_config *asked, const char *const *free_keys,
                                esper_config *merged_out)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    char was[ESPER_CONFIG_TEXT_CHARS], now[ESPER_CONFIG_TEXT_CHARS];

    *merged_out = *saved;
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const char *key = esper_config_key_at(i)->name;

        if (esper_config_place_of(asked, i) <= ESPER_CONFIG_PRESET)
            continue;
        esper_config_value_text(saved, i, was);
        esper_config_value_text(asked, i, now);
        if (strcmp(was, now) == 0)
            continue;
        if (!is_among(key, free_keys))
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s is %s in the run being resumed and cannot become %s: start a new run for that", key,
                              was, now);
        ESPER_TRY(esper_config_set(merged_out, key, now, &source));
    }
    return ESPER_OK;
}
