/* Settings that a learned policy has not met, and the flags that bring back those it has. */
#include "run/policy_note.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/shell.h"
#include "engine/network.h"
#include "run/settings.h"

enum { MOST_SETTINGS = 4 }; /* that are named one by one */

/* Settings of these sections make the network, its data and its life what they are to a policy ... */
static const char *const sections[] = {"Training", "Growth", "Data", "Network", NULL};

/* ... but for these: who decides and what it is paid, which faults are made, where data lies; and what is told apart. */
static const char *const others[] = {"policy", "policy_cmd", "policy_deadline", "decisions", "reward", "reward_weights",
                                     "inject", "data",       "gates",           "epochs",    NULL};

/* Of those, what a run must be told all the same to be like the training. The gates come with the policy. */
static const char *const told[] = {"data", "epochs", NULL};

static bool is_seen(const esper_config_key *key)
{
    return esper_settings_list_has(sections, key->section) && !esper_settings_list_has(others, key->name);
}

bool esper_policy_settings(const esper_learned_file *file, esper_config *was_out)
{
    const char *text = esper_safetensors_note_find(esper_learned_content(file), ESPER_LEARNED_CONFIG_NOTE);

    esper_config_init(was_out);
    if (text == NULL || esper_config_load_text(was_out, text, strlen(text), "the policy's file") != ESPER_OK)
        return false;
    esper_config_withdraw(was_out, esper_config_find("cache"));
    was_out->length = ESPER_CONFIG_LENGTH_EPOCHS; /* an episode's, whatever its record says */
    return true;
}

/* ------------------------------------------------------------------------------------------------ in words */

/* Adds what differs; the first time it says what this is about. */
__attribute__((format(printf, 2, 3))) static void note(char text[ESPER_POLICY_NOTE_CHARS], const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;

    used += (size_t)snprintf(text + used, ESPER_POLICY_NOTE_CHARS - used, "%s",
                             used == 0 ? "the policy was trained with " : "; with ");
    if (used >= ESPER_POLICY_NOTE_CHARS)
        return;
    va_start(args, format);
    vsnprintf(text + used, ESPER_POLICY_NOTE_CHARS - used, format, args);
    va_end(args);
}

/* The next key from `key` on that differs between the two and has an effect where the first was; its values as texts. With `more`
 * also those that a run must be told all the same. ESPER_CONFIG_N_KEYS: there is none. */
static int next_difference(int key, const esper_config *was, const esper_config *is, const esper_config_use *use,
                           bool more, char old[ESPER_CONFIG_TEXT_CHARS], char new[ESPER_CONFIG_TEXT_CHARS])
{
    const char *instead;

    for (; key < ESPER_CONFIG_N_KEYS; key++) {
        const esper_config_key *about = esper_config_key_at(key);

        esper_config_value_text(was, key, old);
        esper_config_value_text(is, key, new);
        if (strcmp(old, new) != 0 && (is_seen(about) || (more && esper_settings_list_has(told, about->name))) &&
            esper_config_why_not(was, key, use, &instead) == NULL)
            break;
    }
    return key;
}

void esper_policy_note(const esper_learned_file *file, const esper_config *config, char text[ESPER_POLICY_NOTE_CHARS])
{
    const esper_learned_identity *identity = esper_learned_identity_of(file);
    bool finishes = config->length == ESPER_CONFIG_LENGTH_FLOPS && config->schedule == ESPER_CONFIG_SCHEDULE_HOLD;
    int epochs = finishes ? (int)ceil(config->epochs * (1.0 - config->fall)) : config->epochs, n = 0, key = -1;
    char old[ESPER_CONFIG_TEXT_CHARS], new[ESPER_CONFIG_TEXT_CHARS];
    const esper_task *task;
    esper_config_use use;
    esper_config was;

    text[0] = '\0';
    if (identity->gates != config->gates)
        note(text, "%s gates, and here they are %s, as asked for", esper_config_gates_name(identity->gates),
             esper_config_gates_name(config->gates));
    if (identity->max_epochs != epochs && identity->max_epochs > 0)
        note(text, "episodes of %d epochs, and here %d are for growing", identity->max_epochs, epochs);
    if (!esper_policy_settings(file, &was) || esper_task_find(identity->task, &task) != ESPER_OK)
        return; /* a policy with settings that are unknown here decides all the same */
    use = esper_settings_use(task, ESPER_CONFIG_IN_LEARN, &was); /* what had no effect there it has not met at all */
    while ((key = next_difference(key + 1, &was, config, &use, false, old, new)) < ESPER_CONFIG_N_KEYS)
        if (n++ < MOST_SETTINGS)
            note(text, "%s = %.40s, here %.40s", esper_config_key_at(key)->name, old[0] != '\0' ? old : "(nothing)",
                 new[0] != '\0' ? new : "(nothing)");
    if (n > MOST_SETTINGS)
        note(text, "%d more settings that are others here", n - MOST_SETTINGS);
}

/* ------------------------------------------------------------------------------------------------ as flags */

/* Only what can have an effect where the policy decides: other flags are refused there. As a shell takes them; what has no room
 * is left to whoever types it. */
void esper_policy_flags(const char *path, const esper_task *task, char text[ESPER_POLICY_FLAGS_CHARS])
{
    char old[ESPER_CONFIG_TEXT_CHARS], new[ESPER_CONFIG_TEXT_CHARS];
    char flag[ESPER_CONFIG_NAME_CHARS], quoted[ESPER_SHELL_CHARS],
        word[ESPER_CONFIG_NAME_CHARS + ESPER_SHELL_CHARS + 8];
    esper_config was, usual;
    esper_config_use use;
    esper_learned_file *file;
    bool known;
    int key = -1;

    text[0] = '\0';
    if (esper_learned_open(path, &file) != ESPER_OK)
        return;
    known = esper_policy_settings(file, &was);
    esper_learned_close(file);
    esper_config_init(&usual);
    if (!known || esper_task_configure(task, ESPER_CONFIG_IN_GROW, &usual) != ESPER_OK)
        return;
    use = esper_settings_use(task, ESPER_CONFIG_IN_GROW, &was);
    use.deciders = ESPER_CONFIG_BY_LEARNED;
    while ((key = next_difference(key + 1, &was, &usual, &use, true, old, new)) < ESPER_CONFIG_N_KEYS) {
        esper_config_flag_name(esper_config_key_at(key)->name, flag);
        snprintf(word, sizeof(word), " %s=%s", flag, esper_shell_quote(old, quoted));
        if (strlen(text) + strlen(word) < ESPER_POLICY_FLAGS_CHARS)
            strcat(text, word);
    }
}
