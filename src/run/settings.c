/* Settings given in vain: the table says which those are (base/config_keys.h). */
#include "run/settings.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/shell.h"
#include "base/status.h"
#include "dist/launch.h"
#include "nn/blueprint_text.h"
#include "policy/learned.h"
#include "policy/policy.h"
#include "run/checkpoint.h"
#include "run/policy_note.h"
#include "run/run_dir.h"

enum { LIST_CHARS = 2048 };

/* ------------------------------------------------------------------------------------------------ what a run is */

/* A name that is no policy's is refused when the run is opened. */
unsigned esper_settings_decider(const char *policy)
{
    static const struct {
        const esper_policy_ops *policy;
        unsigned                bit;
    } known[] = {
        {&esper_policy_none, 0},
        {&esper_policy_trials, ESPER_CONFIG_BY_TRIALS},
        {&esper_policy_heuristic, ESPER_CONFIG_BY_RULES},
        {&esper_policy_random, ESPER_CONFIG_BY_CHANCE},
        {&esper_policy_scripted, ESPER_CONFIG_BY_SCRIPT},
        {&esper_policy_command, ESPER_CONFIG_BY_PROGRAM},
        {&esper_policy_halving, ESPER_CONFIG_BY_SEARCH},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(policy, known[i].policy->name) == 0)
            return known[i].bit;
    return ESPER_CONFIG_BY_LEARNED;
}

esper_status esper_settings_read_texts(esper_config *config)
{
    char text[ESPER_HOST_CHARS];

    if (config->host[0] != '\0') {
        ESPER_TRY(esper_host_text_resolve(config->host, text));
        memcpy(config->host, text, sizeof(text));
    }
    if (config->add_blueprints[0] != '\0') {
        ESPER_TRY(esper_blueprint_texts_resolve(config->add_blueprints, text));
        memcpy(config->add_blueprints, text, sizeof(text));
    }
    if (config->widen)
        esper_blueprint_add_wide();
    return esper_blueprint_texts_add(config->add_blueprints);
}

bool esper_settings_list_has(const char *const *keys, const char *key)
{
    while (*keys != NULL && strcmp(*keys, key) != 0)
        keys++;
    return *keys != NULL;
}

esper_config_use esper_settings_use(const esper_task *task, esper_config_job job, const esper_config *config)
{
    bool has_program = config->policy_cmd[0] != '\0';

    if (job ==
        ESPER_CONFIG_IN_LEARN) /* a program that learns is named by a flag: in files and environment it is one that grows */
        has_program &= esper_config_place_of(config, esper_config_find("policy_cmd")) == ESPER_CONFIG_FLAG;
    return (esper_config_use){
        .job = job,
        .task = task->name,
        .images = esper_source_kind(task->source) == ESPER_DATASET_IMAGES,
        .text = esper_source_kind(task->source) == ESPER_DATASET_TOKENS,
        .table = esper_source_kind(task->source) == ESPER_DATASET_VECTORS,
        .has_files = !esper_source_is_synthetic(task->source),
        .own = esper_source_is_own(task->source),
        .launched = esper_launcher_look().launched,
        .deciders = job == ESPER_CONFIG_IN_TRAIN   ? 0
                    : has_program                  ? ESPER_CONFIG_BY_PROGRAM
                    : job == ESPER_CONFIG_IN_LEARN ? ESPER_CONFIG_BY_LEARNED
                                                   : esper_settings_decider(config->policy),
    };
}

/* ------------------------------------------------------------------------------------------------ in vain */

/* What is checked, and the values that the task has by itself. */
typedef struct check {
    const esper_config     *asked, *config;
    const esper_config_use *use;
    const esper_task       *task;
    const esper_log        *log;
    esper_config            usual;
} check;

/* Why a setting was given in vain; NULL: it was not. */
static const char *in_vain(const check *self, int key, const char **instead_out)
{
    esper_config_place place = esper_config_place_of(self->asked, key);
    char asked[ESPER_CONFIG_TEXT_CHARS], usual[ESPER_CONFIG_TEXT_CHARS];

    assert(key >= 0 && key < ESPER_CONFIG_N_KEYS);
    esper_config_value_text(self->asked, key, asked);
    esper_config_value_text(&self->usual, key, usual);
    if (place <= ESPER_CONFIG_PRESET || (place == ESPER_CONFIG_FILE && strcmp(asked, usual) == 0))
        return NULL;
    return esper_config_why_not(self->config, key, self->use, instead_out);
}

static esper_status refuse(const check *self, int key, const char *why, const char *instead)
{
    unsigned jobs = esper_config_jobs_of(key), shown = jobs & self->use->job ? self->use->job : jobs;
    /* The options of `esper info config` that show the setting, or else what this run has. */
    const char *options = shown & ESPER_CONFIG_IN_TRAIN                              ? ""
                          : shown & (ESPER_CONFIG_IN_GROW | ESPER_CONFIG_IN_COMPARE) ? " --grow"
                                                                                     : " --learn";
    char flag[ESPER_CONFIG_NAME_CHARS];

    esper_config_flag_name(esper_config_key_at(key)->name, flag);
    if (self->asked != self->config) /* what a run has on record stays as it is */
        instead = "";
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "%s has no effect on %s: %s; leave it out%s%s, or see `esper info config %s%s --all`", flag,
                      self->use->task, why, instead[0] != '\0' ? ", " : "", instead, self->use->task, options);
}

/* Tells all that is in vain for that reason, unless a key before this one has. */
static void warn(const check *self, int first, const char *why)
{
    char list[LIST_CHARS] = "", source[ESPER_CONFIG_TEXT_CHARS + 32];
    const char *instead;
    int n = 0;

    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        size_t used = strlen(list);

        if (in_vain(self, key, &instead) != why)
            continue;
        if (key < first)
            return;
        esper_config_source_text(self->asked, key, source, sizeof(source));
        snprintf(list + used, sizeof(list) - used, "%s%s (%s)", n++ > 0 ? ", " : "", esper_config_key_at(key)->name,
                 source);
    }
    esper_log_warn(self->log, "%s %s no effect on %s: %s", list, n == 1 ? "has" : "have", self->use->task, why);
}

static esper_status check_keys(const check *self)
{
    const char *why, *instead;

    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        why = in_vain(self, key, &instead);
        if (why != NULL && esper_config_place_of(self->asked, key) == ESPER_CONFIG_FLAG)
            return refuse(self, key, why, instead);
    }
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        why = in_vain(self, key, &instead);
        if (why != NULL)
            warn(self, key, why);
    }
    return ESPER_OK;
}

/* A limit that leaves no room for the smallest seed limits nothing: it forbids all growth. The runs of a comparison are told all
 * settings by flags, so for them it is refused wherever it comes from. */
static esper_status check_limit(const check *self, const char *name, double limit, double host, double seed)
{
    int key = esper_config_find(name), n;
    esper_config_place place = esper_config_place_of(self->asked, key);
    bool on_record = self->asked != self->config && place <= ESPER_CONFIG_PRESET;
    char source[ESPER_CONFIG_TEXT_CHARS + 32], flag[ESPER_CONFIG_NAME_CHARS], text[ESPER_CONFIG_TEXT_CHARS + 400];

    if (limit <= 0.0 || on_record || limit - host >= seed)
        return ESPER_OK;
    esper_config_source_text(self->asked, key, source, sizeof(source));
    esper_config_flag_name(name, flag);
    if (place == ESPER_CONFIG_FLAG)
        n = snprintf(text, sizeof(text), "%s %.10g", flag, limit);
    else
        n = snprintf(text, sizeof(text), "%s = %.10g (%s)", name, limit, source);
    assert(n > 0 && (size_t)n < sizeof(text));
    if (limit < host)
        snprintf(text + n, sizeof(text) - (size_t)n, " is less than the host of %s has by itself, %.10g",
                 self->use->task, host);
    else
        snprintf(text + n, sizeof(text) - (size_t)n,
                 " leaves no room for a seed: the host of %s has %.10g by itself, and the smallest %.10g",
                 self->use->task, host, seed);
    if (place == ESPER_CONFIG_FLAG || self->use->job == ESPER_CONFIG_IN_COMPARE)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: nothing could grow; ask for more, or train the host as it is with `esper train`", text);
    esper_log_warn(self->log, "%s: nothing can grow", text);
    return ESPER_OK;
}

static esper_status check_room(const check *self)
{
    const esper_config *config = self->config;
    const double kib = sizeof(float) / 1024.0; /* of a parameter */
    esper_task_size size;

    if ((config->max_params == 0 && config->max_kib <= 0.0 && config->max_flops <= 0.0) || self->use->deciders == 0 ||
        esper_task_measure_host(self->task, config, &size) != ESPER_OK)
        return ESPER_OK; /* whoever opens the run says what is wrong with its data or host */
    ESPER_TRY(
        check_limit(self, "max_params", (double)config->max_params, (double)size.params, (double)size.least_seed));
    ESPER_TRY(check_limit(self, "max_kib", config->max_kib, kib * (double)size.params, kib * (double)size.least_seed));
    return check_limit(self, "max_flops", config->max_flops, size.flops, size.least_seed_flops);
}

/* Files travel, and what starts when one is read must not depend on who wrote it: a program is named by who is here. */
esper_status esper_settings_check_program(const esper_config *asked, const esper_config *config, const char *file)
{
    char quoted[ESPER_SHELL_CHARS];

    if (config->policy_cmd[0] == '\0' ||
        esper_config_place_of(asked, esper_config_find("policy_cmd")) > ESPER_CONFIG_FILE)
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "%s names a program that decides, and a file starts none. Look at the command, and give it "
                      "yourself if it is to run: --policy-cmd %s",
                      file, esper_shell_quote(config->policy_cmd, quoted));
}

esper_status esper_settings_check(const esper_config *asked, const esper_config *config, const esper_config_use *use,
                                  const esper_log *log)
{
    check self = {.asked = asked, .config = config, .use = use, .log = log};
    char source[ESPER_CONFIG_TEXT_CHARS + 32];

    if (asked == config && (use->deciders & ESPER_CONFIG_BY_PROGRAM) != 0) {
        esper_config_source_text(asked, esper_config_find("policy_cmd"), source, sizeof(source));
        ESPER_TRY(esper_settings_check_program(asked, config, source));
    }
    ESPER_TRY(esper_task_find(use->task, &self.task));
    esper_config_init(&self.usual);
    ESPER_TRY(esper_task_configure(self.task, use->job, &self.usual));
    ESPER_TRY(check_keys(&self));
    return check_room(&self);
}

/* ------------------------------------------------------------------------------------------------ resumed runs */

/* What the run has on record. False also for a run of the other kind: that it is one matters more than any setting. */
static bool read_record(const char *run, esper_config_job job, const esper_task **task_out, esper_config *config_out)
{
    esper_checkpoint checkpoint;
    esper_learned_file *file;
    char path[ESPER_PATH_CHARS];
    bool is_read;

    if (job == ESPER_CONFIG_IN_LEARN) {
        if (esper_run_policy_find(run, path) != ESPER_OK || esper_learned_open(path, &file) != ESPER_OK)
            return false;
        is_read = esper_policy_settings(file, config_out) &&
                  esper_task_find(esper_learned_identity_of(file)->task, task_out) == ESPER_OK;
        esper_learned_close(file);
        return is_read;
    }
    if (esper_run_checkpoint_find(run, path) != ESPER_OK || esper_checkpoint_init(path, &checkpoint) != ESPER_OK)
        return false;
    *task_out = checkpoint.task;
    *config_out = checkpoint.config;
    is_read = esper_checkpoint_has_growth(&checkpoint) == (job == ESPER_CONFIG_IN_GROW);
    esper_checkpoint_fini(&checkpoint);
    return is_read;
}

esper_status esper_settings_check_resumed(const char *run, esper_config_job job, esper_config *asked,
                                          const esper_log *log)
{
    const char *instead;
    const esper_task *task;
    esper_config config;
    esper_config_use use;

    if (!read_record(run, job, &task, &config))
        return ESPER_OK;
    ESPER_TRY(
        esper_config_lay_over(&config, asked, NULL)); /* whether a value may differ is for esper_config_merge to say */
    use = esper_settings_use(task, job, &config);
    ESPER_TRY(esper_settings_check(asked, &config, &use, log));
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++)
        if (esper_config_why_not(&config, key, &use, &instead) != NULL)
            esper_config_withdraw(asked, key);
    return ESPER_OK;
}
