/* What a resumed run goes by: the configuration it had, and what was asked for now. */
#include <assert.h>
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

/* By file, environment or flag. */
static bool is_asked(const esper_config *asked, int key)
{
    return esper_config_place_of(asked, key) > ESPER_CONFIG_PRESET;
}

esper_status esper_config_merge(const esper_config *saved, const esper_config *asked, const char *const *free_keys,
                                esper_config *merged_out)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    char was[ESPER_CONFIG_TEXT_CHARS], now[ESPER_CONFIG_TEXT_CHARS];

    *merged_out = *saved;
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const char *key = esper_config_key_at(i)->name;

        if (!is_asked(asked, i))
            continue;
        esper_config_value_text(saved, i, was);
        esper_config_value_text(asked, i, now);
        if (strcmp(was, now) == 0)
            continue;
        if (!is_among(key, free_keys))
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s is %s in the run being resumed and cannot become %s: start a new run for that", key,
                              was[0] != '\0' ? was : "''", now[0] != '\0' ? now : "''");
        ESPER_TRY(esper_config_set(merged_out, key, now, &source));
    }
    return ESPER_OK;
}

esper_status esper_config_lay_over(esper_config *config, const esper_config *asked, const char *const *keys)
{
    char text[ESPER_CONFIG_TEXT_CHARS];

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const char *key = esper_config_key_at(i)->name;
        esper_config_source source = {.place = asked->origins[i].place, .line = asked->origins[i].line};

        if (!is_asked(asked, i) || (keys != NULL && !is_among(key, keys)))
            continue;
        if (source.place == ESPER_CONFIG_FILE)
            source.name = asked->names[asked->origins[i].name];
        esper_config_value_text(asked, i, text);
        ESPER_TRY(esper_config_set(config, key, text, &source));
    }
    return ESPER_OK;
}

void esper_config_withdraw(esper_config *config, int index)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_DEFAULT};
    const esper_config_key *key = esper_config_key_at(index);
    esper_status status;

    config->origins[index].place = ESPER_CONFIG_DEFAULT;
    status = esper_config_set(config, key->name, key->preset, &source);
    assert(status == ESPER_OK);
    (void)status;
}
