/* A learned policy in a run: the gates that it brings, and where the run is not like those that it was trained in. Nothing here
 * keeps a policy from deciding: what does is found by esper_learned_check. */
#include <stdarg.h>
#include <string.h>

#include "base/status.h"
#include "policy/learned.h"
#include "train/run_internal.h"

enum { MOST_SETTINGS = 4 }; /* that are named one by one */

/* Settings of these sections make the network, its data and its life what they are to a policy ... */
static const char *const sections[] = {"Training", "Growth", "Data", "Network"};

/* ... but for these: who decides and what it is paid, which faults are made, where data lies; and what is told apart. */
static const char *const others[] = {"policy", "policy_cmd",     "policy_deadline", "decisions",
                                     "reward", "reward_weights", "inject",          "data",
                                     "gates",  "epochs",         "lr_finish"};

static const char *gates_name(esper_config_gates gates)
{
    return gates == ESPER_CONFIG_GATES_STRICT ? "strict" : "permissive";
}

static bool is_in(const char *const *words, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

static bool is_seen(const esper_config_key *key)
{
    return is_in(sections, sizeof(sections) / sizeof(sections[0]), key->section) &&
           !is_in(others, sizeof(others) / sizeof(others[0]), key->name);
}

/* Adds what differs; the first time it says what this is about. */
__attribute__((format(printf, 2, 3))) static void note(run *self, const char *format, ...)
{
    size_t used = strlen(self->policy_note), size = sizeof(self->policy_note);
    va_list args;

    used += (size_t)snprintf(self->policy_note + used, size - used, "%s",
                             used == 0 ? "the policy was trained with " : "; with ");
    if (used >= size)
        return;
    va_start(args, format);
    vsnprintf(self->policy_note + used, size - used, format, args);
    va_end(args);
}

/* "channels = 8, here 4": of the settings that learning recorded in the policy's file. */
static void note_settings(run *self, const esper_config *was, const esper_config *config)
{
    char old[ESPER_CONFIG_TEXT_CHARS], new[ESPER_CONFIG_TEXT_CHARS];
    int n = 0;

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const esper_config_key *key = esper_config_key_at(i);

        esper_config_value_text(was, i, old);
        esper_config_value_text(config, i, new);
        if (strcmp(old, new) != 0 && is_seen(key) && n++ < MOST_SETTINGS)
            note(self, "%s = %.40s, here %.40s", key->name, old[0] != '\0' ? old : "(nothing)",
                 new[0] != '\0' ? new : "(nothing)");
    }
    if (n > MOST_SETTINGS)
        note(self, "%d more settings that are others here", n - MOST_SETTINGS);
}

/* For tell_start. */
static void note_policy(run *self, const esper_learned_file *file, const esper_config *config)
{
    const esper_learned_identity *identity = esper_learned_identity_of(file);
    const char *text = esper_safetensors_note_find(esper_learned_content(file), ESPER_LEARNED_CONFIG_NOTE);
    int epochs = config->epochs - config->lr_finish;
    esper_config was;

    if (identity->gates != config->gates)
        note(self, "%s gates, and here they are %s, as asked for", gates_name(identity->gates),
             gates_name(config->gates));
    if (identity->max_epochs != epochs && identity->max_epochs > 0)
        note(self, "episodes of %d epochs, and here %d are for growing", identity->max_epochs, epochs);
    esper_config_init(&was);
    if (text != NULL && esper_config_load_text(&was, text, strlen(text), "the policy's file") == ESPER_OK)
        note_settings(self, &was, config); /* a policy with settings that are unknown here decides all the same */
}

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
        status = esper_config_set(config, "gates", gates_name(esper_learned_identity_of(file)->gates), &source);
    if (status == ESPER_OK)
        note_policy(self, file, config);
    esper_learned_close(file);
    return status;
}
