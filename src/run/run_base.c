/* Beginning and going on, for all jobs. */
#include "run/run_base.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "nn/blueprint_text.h"
#include "policy/policy.h"
#include "run/backend_choice.h"
#include "telemetry/logs.h"

/* Settings that may differ from the record's when a run goes on: they do not change what a step or round computes, or, like
 * epochs and rounds, how far the run goes (and with it, how a rate falls from here on, or how fast exploring fades). */
static const char *const free_when_trained[] = {"policy", /* only where it has moved */
                                                "threads",
                                                "progress",
                                                "log_level",
                                                "checkpoint_every",
                                                "log",
                                                "epochs",
                                                "flops",
                                                "run_dir",
                                                "data",
                                                "cache",
                                                "guard",
                                                "snapshot_every",
                                                "guard_checksum",
                                                "max_rollbacks",
                                                "patience",
                                                "comm",
                                                "policy_deadline",
                                                "rank_deadline",
                                                "join_deadline",
                                                NULL};
static const char *const free_when_learned[] = {
    "threads", "progress", "log_level", "log",      "checkpoint_every", "rounds",        "run_dir",       "data",
    "cache",   "patience", "policy_deadline", "comm",             "rank_deadline", "join_deadline", NULL};

void run_base_init(run_base *self, const run_asked *asked, esper_config_job job, char dir[ESPER_PATH_CHARS])
{
    assert(asked->config != NULL && (asked->task != NULL || asked->resume != NULL));
    *self =
        (run_base){.asked = *asked, .job = job, .task = asked->task, .config = *asked->config, .dir = dir, .lock = -1};
    esper_ranks_init(&self->ranks, asked->comm);
    self->writes = self->ranks.rank == 0;
}

void run_base_fini(run_base *self)
{
    esper_store_close(self->store);
    esper_engine_close(self->engine);
    esper_dataset_close(self->data);
    esper_ranks_fini(&self->ranks);
    if (self->lock >= 0)
        close(self->lock);
}

esper_status run_base_settle(run_base *self, esper_status status)
{
    if (self->failure_is_known)
        return status;
    status = esper_ranks_settle(&self->ranks, status);
    self->failure_is_known = status != ESPER_OK;
    return status;
}

bool run_base_is_ended(const run_base *self)
{
    return self->asked.cut_off != NULL && *self->asked.cut_off != 0 && esper_ranks_are_many(&self->ranks);
}

esper_status run_base_take_up(run_base *self, const char *path, const esper_task *task, const esper_config *saved)
{
    bool learns = self->job == ESPER_CONFIG_IN_LEARN;
    /* A learned policy may have moved: what it remembers knows its hash. */
    bool moves = esper_policy_is_file(saved->policy) && esper_policy_is_file(self->asked.config->policy);

    assert(self->asked.resume != NULL && self->engine == NULL);
    if (self->asked.task != NULL && self->asked.task != task)
        return ESPER_FAIL(ESPER_E_CONFIG, learns ? "%s learned on %s, not on %s" : "%s is a run of %s, not of %s", path,
                          task->name, self->asked.task->name);
    self->task = task;
    return esper_config_merge(saved, self->asked.config, learns ? free_when_learned : free_when_trained + !moves,
                              &self->config);
}

esper_status run_base_open_engine(run_base *self, const esper_config *config)
{
    const esper_engine *beside = self->asked.beside;
    esper_dataset_desc desc = esper_task_data(self->task, config), other;
    esper_dataset *data;
    esper_use use = self->job == ESPER_CONFIG_IN_TRAIN ? ESPER_USE_TRAIN : ESPER_USE_GROW;
    esper_backend_choice choice = {.name = NULL};
    esper_host host;

    assert(self->data == NULL && self->engine == NULL);
    if (config->widen)
        esper_blueprint_add_wide();
    ESPER_TRY(esper_blueprint_texts_add(config->add_blueprints));
    if (beside != NULL)
        other = esper_task_data(self->task, &beside->config);
    if (beside == NULL || !esper_dataset_is_of(&desc, &other))
        ESPER_TRY(esper_dataset_open(&desc, &self->data));
    data = self->data != NULL ? self->data : beside->data;
    if (self->job != ESPER_CONFIG_IN_LEARN &&
        beside == NULL) /* environments decide one by one, which a device waits for */
        ESPER_TRY(esper_backend_choose(self->task, config, esper_dataset_info_get(data), self->kernels, &choice));
    host = esper_task_host(self->task, config, esper_dataset_info_get(data));
    return esper_engine_open(&(esper_engine_desc){.task = self->task->name,
                                                  .data = data,
                                                  .host = &host,
                                                  .config = config,
                                                  .use = use,
                                                  .threads = self->asked.threads,
                                                  .backend = choice.name,
                                                  .backend_why = choice.why,
                                                  .beside = beside},
                             &self->engine);
}

/* ------------------------------------------------------------------------------------------------ the directory */

/* Whether two paths lead to one directory, however they are spelt. */
static bool is_same_dir(const char *a, const char *b)
{
    struct stat info_a, info_b;

    return stat(a, &info_a) == 0 && stat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

bool run_base_stays(const run_base *self, const char *resumed)
{
    const char *wanted = self->asked.config->run_dir, *slash = strrchr(resumed, '/');
    char dir[ESPER_PATH_CHARS];

    if (self->job == ESPER_CONFIG_IN_LEARN)
        return wanted[0] == '\0' && strcmp(slash != NULL ? slash + 1 : resumed, ESPER_RUN_POLICY) == 0;
    esper_run_dir_of(resumed, dir);
    return wanted[0] == '\0' || is_same_dir(wanted, dir);
}

esper_status run_base_make_dir(run_base *self, const char *resumed)
{
    char name[96];
    unsigned logs;
    esper_status status = ESPER_OK;

    ESPER_TRY(esper_logs_parse(self->config.log, &logs)); /* before there is a directory */
    snprintf(name, sizeof(name), "%s%s", self->job == ESPER_CONFIG_IN_LEARN ? "learn-" : "", self->task->name);
    if (resumed != NULL && run_base_stays(self, resumed))
        esper_run_dir_of(resumed, self->dir);
    else if (self->writes)
        status = esper_run_dir_make(self->asked.config->run_dir, name, self->dir);
    ESPER_TRY(run_base_settle(self, status));
    return esper_ranks_share(&self->ranks, self->dir, ESPER_PATH_CHARS);
}

esper_status run_base_begin_dir(run_base *self)
{
    char about[96];
    esper_status status = ESPER_OK;

    assert(self->dir[0] != '\0' && self->lock < 0);
    snprintf(about, sizeof(about), "%s%s", self->task->name,
             self->job == ESPER_CONFIG_IN_LEARN ? ", by esper learn" : "");
    esper_config_write(&self->config, self->record);
    if (self->writes)
        status = esper_run_dir_begin(self->dir, about, self->record, self->asked.resume != NULL, &self->lock);
    return run_base_settle(self, status);
}

/* ------------------------------------------------------------------------------------------------ the store */

/* The name under which the store knows a run that is resumed: its directory may have been called otherwise then. */
static void find_name(const run_base *self, const char *path, const esper_run_kin *kin, char name[ESPER_PATH_CHARS])
{
    esper_store_reader *reader = NULL;
    esper_store_run run;
    bool found = false;

    if (esper_store_reader_open(path, &reader) == ESPER_OK)
        (void)esper_store_find_run(reader, kin != NULL ? kin->parent : ESPER_STORE_NO_INT,
                                   kin != NULL ? kin->relation : "", &run, &found);
    esper_store_reader_close(reader);
    snprintf(name, ESPER_PATH_CHARS, "%s", found ? run.name : self->dir);
}

static const char *word_of(const run_base *self)
{
    return self->job == ESPER_CONFIG_IN_LEARN ? "learning" : "run";
}

/* A store of the run's own that is damaged is kept under another name, and does not cost the run its records. */
static esper_status open_or_replace(run_base *self, const char *path, bool own)
{
    char why[512], aside[ESPER_STORE_PATH_CHARS];
    esper_status status = esper_store_open(path, NULL, &self->store);

    if (status != ESPER_E_FORMAT || !own || self->asked.resume == NULL)
        return status;
    snprintf(why, sizeof(why), "%s", esper_last_error());
    ESPER_TRY(esper_store_set_aside(path, aside));
    ESPER_TRY(esper_store_open(path, NULL, &self->store));
    esper_log_warn(
        self->asked.log,
        "a new store is begun, without what was recorded so far: the old one, kept as %s, cannot be used. %s", aside,
        why);
    return ESPER_OK;
}

/* In a store: goes on in the run's rows, cut back to where it stands, or begins them. */
static esper_status take_up_rows(run_base *self, const char *path, const esper_fact *start, const esper_run_kin *kin,
                                 const run_mark *mark)
{
    esper_store_run row = esper_store_run_from(start);
    bool counted = mark->rows != NULL; /* checkpoints of an earlier version do not tell */
    char name[ESPER_PATH_CHARS];
    esper_status status = ESPER_E_NOTFOUND;

    if (self->asked.resume != NULL) {
        find_name(self, path, kin, name);
        status = counted ? esper_store_resume_at(self->store, name, mark->rows, &self->store_run)
                         : esper_store_resume(self->store, name, mark->epoch, mark->step, mark->n_decisions,
                                              &self->store_run);
    }
    if (status != ESPER_E_NOTFOUND)
        return status;
    ESPER_TRY(esper_store_begin(self->store, &row, self->record, &self->store_run));
    return counted ? esper_store_miss(self->store, mark->rows) : ESPER_OK;
}

void run_base_add_logs(run_base *self, esper_bus *bus, bool grows, int64_t epoch)
{
    esper_logs_from from = {.resumed = self->asked.resume != NULL, .epoch = epoch, .grows = grows};
    char path[ESPER_PATH_CHARS];
    unsigned logs = 0;
    esper_sink sink;
    esper_status status = esper_logs_parse(self->config.log, &logs);

    if (status == ESPER_OK && (logs & ESPER_LOGS_CSV_BIT) != 0) {
        status = esper_run_path(self->dir, ESPER_LOGS_CSV, path);
        if (status == ESPER_OK)
            status = esper_sink_csv_open(path, from, &sink);
        if (status == ESPER_OK)
            status = esper_bus_add(bus, sink);
    }
    if (status == ESPER_OK && (logs & ESPER_LOGS_TENSORBOARD_BIT) != 0) {
        status = esper_sink_tensorboard_open(self->dir, from, &sink);
        if (status == ESPER_OK)
            status = esper_bus_add(bus, sink);
    }
    if (status != ESPER_OK)
        esper_log_warn(self->asked.log, "the %s is not logged for other tools: %s", word_of(self), esper_last_error());
}

void run_base_open_store(run_base *self, const esper_fact *start, const esper_run_kin *kin, const run_mark *mark)
{
    bool own = kin == NULL || kin->store == NULL;
    char path[ESPER_PATH_CHARS];
    esper_status status = esper_run_path(self->dir, ESPER_RUN_STORE, path);

    assert(self->writes && self->store == NULL);
    if (status == ESPER_OK && !own)
        snprintf(path, sizeof(path), "%s", kin->store);
    if (status == ESPER_OK)
        status = open_or_replace(self, path, own);
    if (status == ESPER_OK)
        status = take_up_rows(self, path, start, kin, mark);
    if (status == ESPER_OK)
        return;
    esper_log_warn(self->asked.log, "the %s is not recorded in a store: %s", word_of(self), esper_last_error());
    esper_store_close(self->store);
    self->store = NULL;
}

void run_base_close_store(run_base *self, const esper_fact *end)
{
    esper_store_run row = esper_store_run_from(end);
    char before[512]; /* what ended the run is still to be told */

    snprintf(before, sizeof(before), "%s", esper_last_error());
    if (self->store == NULL || esper_store_end(self->store, &row) == ESPER_OK)
        return;
    esper_log_warn(self->asked.log, "the store does not know how the %s ended: %s", word_of(self), esper_last_error());
    (void)ESPER_FAIL(ESPER_E_IO, "%s", before);
}
