/* The static control of a grown run. */
#include "cli/grow_control.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "cli/job.h"
#include "policy/policy.h"
#include "run/checkpoint.h"
#include "ui/progress.h"
#include "ui/report.h"
#include "ui/terminal.h"

/* What makes a host stay as it is, and be nobody's drill. */
static const char *const emptied[] = {"policy_cmd", "decisions", "plant", "inject", NULL};

/* How a run is shown and computed, which changes nothing in it. */
static const char *const passed_on[] = {"threads", "progress", "log_level", "checkpoint_every", "data", "cache", NULL};

static const esper_config_source by_flag = {.place = ESPER_CONFIG_FLAG};

/* Everything of the control. `name` is its directory. */
typedef struct control {
    const esper_task *task;
    esper_config      config;
    char              dir[ESPER_PATH_CHARS], store[ESPER_PATH_CHARS], checkpoint[ESPER_PATH_CHARS];
    esper_run_kin     kin;
    bool              has_store; /* else the grown run could not keep one, and it has none to be kin in */
    bool              begun; /* there is a checkpoint of it */
} control;

static bool is_asked(const esper_config *asked, const char *key)
{
    return esper_config_place_of(asked, esper_config_find(key)) > ESPER_CONFIG_PRESET;
}

esper_status esper_grow_is_done(const char *path, const esper_task *task, const esper_config *asked,
                                const esper_run_kin *kin, bool *done_out)
{
    esper_checkpoint checkpoint;

    ESPER_TRY(esper_checkpoint_init(path, &checkpoint));
    *done_out = esper_checkpoint_has_growth(&checkpoint) && (task == NULL || task == checkpoint.task) &&
                esper_run_is_done(&checkpoint, path, asked, kin);
    esper_checkpoint_fini(&checkpoint);
    return ESPER_OK;
}

static esper_status pass_on(const esper_config *asked, esper_config *config)
{
    char text[ESPER_CONFIG_TEXT_CHARS];

    for (int i = 0; passed_on[i] != NULL; i++) {
        if (!is_asked(asked, passed_on[i]))
            continue;
        esper_config_value_text(asked, esper_config_find(passed_on[i]), text);
        ESPER_TRY(esper_config_set(config, passed_on[i], text, &by_flag));
    }
    return ESPER_OK;
}

/* The settings of the grown run, but for those of growing. */
static esper_status derive_config(const char *grown, const esper_config *asked, control *self)
{
    esper_checkpoint checkpoint;

    assert(self->dir[0] != '\0');
    ESPER_TRY(esper_checkpoint_init(grown, &checkpoint));
    self->task = checkpoint.task;
    self->config = checkpoint.config;
    esper_checkpoint_fini(&checkpoint);
    for (int i = 0; emptied[i] != NULL; i++)
        ESPER_TRY(esper_config_set(&self->config, emptied[i], "", &by_flag));
    if (strcmp(self->config.policy, esper_policy_halving.name) == 0) /* those that it found */
        ESPER_TRY(esper_config_set(&self->config, "plant", "", &by_flag));
    ESPER_TRY(esper_config_set(&self->config, "policy", "none", &by_flag));
    ESPER_TRY(esper_config_set(&self->config, "run_dir", self->dir, &by_flag));
    return pass_on(asked, &self->config);
}

static esper_status prepare(const esper_grow_control_desc *desc, control *self, bool *done_out)
{
    char grown[ESPER_PATH_CHARS], length[ESPER_CONFIG_TEXT_CHARS];
    const char *key;
    struct stat info;

    ESPER_TRY(esper_run_path(desc->run_dir, ESPER_RUN_CHECKPOINT, grown));
    ESPER_TRY(esper_run_path(desc->run_dir, ESPER_RUN_STORE, self->store));
    ESPER_TRY(esper_run_path(desc->run_dir, ESPER_GROW_CONTROL_DIR, self->dir));
    ESPER_TRY(esper_run_path(self->dir, ESPER_RUN_CHECKPOINT, self->checkpoint));
    ESPER_TRY(derive_config(grown, desc->asked, self));
    self->kin = (esper_run_kin){.store = self->store, .parent = ESPER_REPORT_RUN, .relation = ESPER_REPORT_CONTROL};
    self->has_store = stat(self->store, &info) == 0;
    self->begun = stat(self->checkpoint, &info) == 0;
    *done_out = false;
    if (!self->begun)
        return ESPER_OK;
    /* to go on with it: only what may differ then. The grown run may have been made longer since */
    key = self->config.flops > 0.0 && self->config.length == ESPER_CONFIG_LENGTH_FLOPS ? "flops" : "epochs";
    esper_config_value_text(&self->config, esper_config_find(key), length);
    esper_config_init(&self->config);
    ESPER_TRY(esper_config_set(&self->config, key, length, &by_flag));
    ESPER_TRY(pass_on(desc->asked, &self->config));
    return esper_grow_is_done(self->checkpoint, NULL, &self->config, self->has_store ? &self->kin : NULL, done_out);
}

static esper_status train(const esper_grow_control_desc *desc, const control *self, bool *stopped_out, int *code_out)
{
    esper_progress progress;
    esper_run_observer observer;
    esper_run_result result;
    esper_run_desc run = {.task = self->begun ? NULL : self->task,
                          .config = &self->config,
                          .resume = self->begun ? self->dir : NULL,
                          .grows = true, /* so that it is counted and guarded as the grown one was */
                          .kin = self->has_store ? &self->kin : NULL,
                          .observer = &observer,
                          .log = desc->log,
                          .stop = desc->stop};
    esper_status status;

    esper_progress_init(&progress, desc->asked->progress, stdout);
    progress.brief = true;
    observer = esper_progress_observer(&progress);
    if (esper_live_is_shown(&progress.live))
        esper_terminal_print(
            stdout, "\nstatic control: the same host, fixed, on the same seed and budget (Ctrl-C saves and leaves)\n%s",
            progress.live.plain ? "\n" : "");
    status = esper_run_train(&run, &result);
    esper_live_clear(&progress.live);
    if (status != ESPER_OK)
        return status;
    *stopped_out = result.stopped;
    if (esper_job_report_unwritten(result.unwritten) != ESPER_EXIT_OK)
        *code_out = ESPER_EXIT_FAILED;
    return ESPER_OK;
}

esper_status esper_grow_control_run(const esper_grow_control_desc *desc, bool *stopped_out, int *code_out)
{
    control self = {0};
    bool done;

    *stopped_out = false;
    ESPER_TRY(prepare(desc, &self, &done));
    return done ? ESPER_OK : train(desc, &self, stopped_out, code_out);
}
