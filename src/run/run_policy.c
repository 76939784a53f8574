/* A learned policy in a run: the gates that it brings, and where the run is not like those that it was trained in. */
#include <string.h>

#include "base/status.h"
#include "run/run_internal.h"

/* A name becomes a path. */
static esper_status make_path(esper_config *config)
{
    char path[ESPER_CONFIG_TEXT_CHARS];

    if (strchr(config->policy, '/') != NULL)
        return ESPER_OK;
    if (snprintf(path, sizeof(path), "./%s", config->policy) >= (int)sizeof(path))
        return ESPER_FAIL(ESPER_E_CONFIG, "policy: the path is too long");
    memcpy(config->policy, path, sizeof(path));
    return ESPER_OK;
}

esper_status run_adopt_policy(run *self, esper_config *config)
{
    const esper_config_source source = {.place = ESPER_CONFIG_PRESET, .name = "policy"};
    esper_learned_file *file;
    esper_status status;

    if (!self->desc->grows || self->desc->replay != NULL || config->policy_cmd[0] != '\0' ||
        !esper_policy_is_file(config->policy))
        return ESPER_OK;
    ESPER_TRY(esper_learned_open(config->policy, &file));
    status = make_path(config);
    if (status == ESPER_OK && esper_config_place_of(config, esper_config_find("gates")) <= ESPER_CONFIG_PRESET)
        status =
            esper_config_set(config, "gates", esper_config_gates_name(esper_learned_identity_of(file)->gates), &source);
    if (status == ESPER_OK)
        esper_policy_note(file, config, self->policy_note);
    esper_learned_close(file);
    return status;
}
