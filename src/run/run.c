/* The loop of `esper train` and `esper grow`. */
#include "run/run.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "guard/governor.h"
#include "run/checkpoint.h"
#include "run/pact.h"
#include "run/run_internal.h"

/* Keys that may differ from the checkpoint's when a run is resumed: they do not change what a step computes, or, like
 * the number of epochs, only how far the run goes (and with it, how a cosine schedule falls from here on). */
static const char *const free_keys[] = {
    "policy", /* only where has_moved */
    "threads",        "progress",       "log_level",     "checkpoint_every", "epochs", "run_dir",       "data", "guard",
    "snapshot_every", "guard_checksum", "max_rollbacks", "policy_deadline",  "comm",   "rank_deadline", NULL};

/* Seconds between looks at the tally, for those who watch. */
static const double read_every = 0.1;

/* ------------------------------------------------------------------------------------------------ resuming */

/* A learned policy may have moved: what it remembers knows its hash. */
static bool has_moved(const esper_config *saved, const esper_config *asked)
{
    return esper_policy_is_file(saved->policy) && esper_policy_is_file(asked->policy);
}

static bool computes_alike(const char *identity, const char *other)
{
    size_t chars = esper_pact_kernel_chars(identity);

    return chars == esper_pact_kernel_chars(other) && strncmp(identity, other, chars) == 0;
}

/* Growth comes before the guard, whose snapshots carry it, and a checkpoint's memory of it before the first snapshot. */
static esper_status open_guard(run *self, const esper_checkpoint *checkpoint)
{
    if (self->desc->grows) {
        ESPER_TRY(esper_growth_open(self->network, self->desc->replay, NULL, &self->growth));
        if (checkpoint != NULL)
            ESPER_TRY(esper_checkpoint_restore_companion(checkpoint, &self->network->companion));
    }
    if (!self->network->engine->config.guard)
        return ESPER_OK;
    ESPER_TRY(esper_guarded_open(self->network));
    if (checkpoint == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_checkpoint_restore_governor(checkpoint, esper_guarded_governor(self->network)));
    return esper_guarded_tell_snapshot(self->network);
}

static esper_use use_of(const run *self)
{
    return self->desc->grows ? ESPER_USE_GROW : ESPER_USE_TRAIN;
}

/* What can be said before data is loaded. */
static esper_status check_growth(const run *self, const esper_task *task, const esper_config *config)
{
    bool images = esper_source_kind(task->source) == ESPER_DATASET_IMAGES;

    if (!self->desc->grows)
        return ESPER_OK;
    return esper_growth_check_config(config, images ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER);
}

static esper_status resume_from(run *self, const char *path, esper_checkpoint *checkpoint)
{
    esper_config merged;

    if (self->desc->task != NULL && self->desc->task != checkpoint->task)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is a run of %s, not of %s", path, checkpoint->task->name,
                          self->desc->task->name);
    if (esper_checkpoint_has_growth(checkpoint) != self->desc->grows)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is of a run that %s: go on with `esper %s --resume`", path,
                          self->desc->grows ? "does not grow" : "grows", self->desc->grows ? "train" : "grow");
    ESPER_TRY(esper_config_merge(&checkpoint->config, self->desc->config,
                                 free_keys + !has_moved(&checkpoint->config, self->desc->config), &merged));
    ESPER_TRY(check_growth(self, checkpoint->task, &merged));
    ESPER_TRY(run_open_network(self, checkpoint->task, &merged, use_of(self)));
    ESPER_TRY(esper_checkpoint_restore(checkpoint, self->network));
    ESPER_TRY(run_check_restored(self, path));
    ESPER_TRY(open_guard(self, checkpoint));
    if (self->network->cursor.epoch >= (uint32_t)merged.epochs)
        return ESPER_FAIL(ESPER_E_STATE,
                          "%s has had %u epochs, and %d were asked for: ask for more with --epochs N, or see its score "
                          "with `esper eval`",
                          path, self->network->cursor.epoch, merged.epochs);
    self->saved_epoch = self->network->cursor.epoch;
    self->saved_step = self->network->cursor.step;
    snprintf(self->resumed_from, sizeof(self->resumed_from), "%s", path);
    snprintf(self->resumed_kernels, sizeof(self->resumed_kernels), "%s", checkpoint->kernels);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ opening */

/* A replay elsewhere would differ in its last bits. */
static esper_status check_kernels(const run *self)
{
    const char *logged = self->desc->replay->head.kernels,
               *here = esper_backend_identity(self->network->engine->backend);
    const char *slash = strchr(logged, '/'), *name = slash != NULL ? slash + 1 : logged;

    if (self->desc->replay->head.ranks != self->network->engine->ranks.size)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "the run was computed by %d ranks, and here are %d: sums over ranks differ in their last bits. "
            "Start the replay with mpirun -n %d",
            self->desc->replay->head.ranks, self->network->engine->ranks.size, self->desc->replay->head.ranks);
    if (computes_alike(logged, here))
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_UNSUPPORTED,
        "the run was computed by %s, and here it is %s: they differ in the last bits. ESPER_KERNELS=%.*s chooses "
        "the run's kernels where the processor has them; a run meant for several machines is made with a set that "
        "all of them have",
        logged, here, (int)strcspn(name, "/"), name);
}

/* Whether two paths lead to one directory, however they are spelt. */
static bool is_same_dir(const char *a, const char *b)
{
    struct stat info_a, info_b;

    return stat(a, &info_a) == 0 && stat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
           info_a.st_ino == info_b.st_ino;
}

/* A run that goes on in another directory takes its decisions along: they are its first half. */
static esper_status carry_log(const char *from, const char *to)
{
    enum { MOST_BYTES = 1 << 30 };
    char path[ESPER_PATH_CHARS], *text;
    size_t bytes;
    esper_status status;

    ESPER_TRY(esper_run_path(from, ESPER_RUN_DECISIONS, path));
    ESPER_TRY(esper_file_read(path, MOST_BYTES, &text, &bytes));
    status = esper_run_path(to, ESPER_RUN_DECISIONS, path);
    if (status == ESPER_OK)
        status = esper_file_write(path, text, bytes);
    esper_mem_free(text);
    return status;
}

/* Opens the network, fresh or from a checkpoint, and finds the run's directory. */
static esper_status open_network(run *self)
{
    const esper_run_desc *desc = self->desc;
    const esper_task *task;
    esper_config config;
    esper_checkpoint checkpoint;
    char path[ESPER_PATH_CHARS], *slash;
    esper_status status;

    if (desc->resume == NULL) {
        config = *desc->config;
        ESPER_TRY(check_growth(self, desc->task, &config));
        ESPER_TRY(run_adopt_policy(self, &config));
        ESPER_TRY(run_open_network(self, desc->task, &config, use_of(self)));
        ESPER_TRY(open_guard(self, NULL));
        if (desc->replay != NULL)
            return check_kernels(self); /* it writes nothing */
        return run_make_dir(self, desc->task->name);
    }
    ESPER_TRY(esper_run_checkpoint_find(desc->resume, path));
    ESPER_TRY(esper_checkpoint_init(path, &checkpoint));
    status = resume_from(self, path, &checkpoint);
    task = checkpoint.task;
    esper_checkpoint_fini(&checkpoint);
    ESPER_TRY(status);
    slash = strrchr(path, '/'); /* a run goes on where its checkpoint lies, unless another directory is asked for */
    if (slash != NULL)
        slash[slash == path] = '\0'; /* keeps the one of "/file" */
    else
        strcpy(path, ".");
    if (desc->config->run_dir[0] != '\0' && !is_same_dir(desc->config->run_dir, path)) {
        ESPER_TRY(run_make_dir(self, task->name));
        return desc->grows && run_writes(self) ? carry_log(path, self->result.run_dir) : ESPER_OK;
    }
    snprintf(self->result.run_dir, sizeof(self->result.run_dir), "%s", path);
    return ESPER_OK;
}

/* Events already in the file: a resumed run goes on counting. */
static esper_status count_lines(const char *path, uint64_t *n_out)
{
    char *text;
    size_t bytes;
    esper_status status = esper_file_read(path, (size_t)1 << 30, &text, &bytes);

    *n_out = 0;
    if (status == ESPER_E_NOTFOUND)
        return ESPER_OK;
    ESPER_TRY(status);
    for (size_t i = 0; i < bytes; i++)
        *n_out += text[i] == '\n';
    esper_mem_free(text);
    return ESPER_OK;
}

/* The configuration as a file to start from again; it takes no task, so that stands in a comment. */
static esper_status write_config(run *self)
{
    char path[ESPER_PATH_CHARS], text[ESPER_CONFIG_RECORD_CHARS + 64];
    int n;

    esper_config_write(&self->network->engine->config, self->record);
    n = snprintf(text, sizeof(text), "# task: %s\n%s", self->task->name, self->record);
    ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_CONFIG, path));
    return esper_file_write(path, text, (size_t)n);
}

/* ------------------------------------------------------------------------------------------------ the store */

/* The run's identity, for its first line and its row. */
static esper_fact start_of(const run *self)
{
    const esper_engine *engine = self->network->engine;
    const esper_run_kin *kin = self->desc->kin;
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, (int64_t)self->network->cursor.step);

    fact.run_started.task = self->task->name;
    fact.run_started.name = self->result.run_dir;
    fact.run_started.rng_seed = engine->config.seed;
    fact.run_started.config = self->record;
    fact.run_started.kernels = esper_backend_identity(engine->backend);
    fact.run_started.threads = esper_pool_threads(engine->pool);
    fact.run_started.ranks = engine->ranks.size;
    fact.run_started.params = self->result.params;
    fact.run_started.build = esper_build_commit();
    fact.run_started.params_host = self->result.params_host;
    if (self->growth == NULL)
        return fact;
    fact.run_started.policy = esper_growth_decider(self->growth);
    fact.run_started.reward_mode = engine->config.reward;
    fact.run_started.gate_mode = esper_config_gates_name(engine->config.gates);
    fact.run_started.flops_host = (int64_t)esper_growth_flops_host(self->growth);
    if (kin != NULL) {
        fact.run_started.parent_run = kin->parent;
        fact.run_started.relation = kin->relation;
    }
    return fact;
}

/* The name under which the store knows a run that is resumed: its directory may have been called otherwise then. */
static void find_name(const run *self, const char *path, char name[ESPER_PATH_CHARS])
{
    const esper_run_kin *kin = self->desc->kin;
    int64_t parent = kin != NULL ? kin->parent : ESPER_STORE_NO_INT;
    esper_store_reader *reader = NULL;
    esper_store_cursor *cursor = NULL;
    esper_store_run found;
    bool more = false;

    snprintf(name, ESPER_PATH_CHARS, "%s", self->result.run_dir);
    if (esper_store_reader_open(path, &reader) == ESPER_OK && esper_store_read_runs(reader, &cursor) == ESPER_OK)
        while (esper_store_next_run(cursor, &found, &more) == ESPER_OK && more)
            if (found.parent_run == parent && strcmp(found.relation, kin != NULL ? kin->relation : "") == 0)
                snprintf(name, ESPER_PATH_CHARS, "%s", found.name);
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
}

static esper_status resume_in_store(run *self, const char *path)
{
    const esper_cursor *cursor = &self->network->cursor;
    char name[ESPER_PATH_CHARS];

    find_name(self, path, name);
    return esper_store_resume(self->store, name, cursor->epoch, (int64_t)cursor->step,
                              (int64_t)esper_growth_n_logged(self->growth), &self->result.store_run);
}

/* A run goes on without its store, and says so. */
static void open_store(run *self)
{
    const esper_run_kin *kin = self->desc->kin;
    esper_fact start = start_of(self);
    esper_store_run row = esper_store_run_from(&start);
    char path[ESPER_PATH_CHARS];
    esper_status status = esper_run_path(self->result.run_dir, ESPER_RUN_STORE, path);

    if (status == ESPER_OK && kin != NULL && kin->store != NULL)
        snprintf(path, sizeof(path), "%s", kin->store);
    if (status == ESPER_OK)
        status = esper_store_open(path, NULL, &self->store);
    if (status == ESPER_OK) {
        status = self->desc->resume != NULL ? resume_in_store(self, path) : ESPER_E_NOTFOUND;
        if (status == ESPER_E_NOTFOUND)
            status = esper_store_begin(self->store, &row, self->record, &self->result.store_run);
    }
    if (status == ESPER_OK)
        return;
    esper_log_warn(self->desc->log, "the run is not recorded in a store: %s", esper_last_error());
    esper_store_close(self->store);
    self->store = NULL;
}

/* How the run ended, for its last line and its row. */
static esper_fact end_of(const run *self, esper_status status)
{
    const esper_run_result *result = &self->result;
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_ENDED, result->cursor.epoch, (int64_t)result->cursor.step);

    fact.run_ended.status = (int)status;
    fact.run_ended.epochs = result->cursor.epoch;
    fact.run_ended.steps = (int64_t)result->cursor.step;
    fact.run_ended.params = result->params;
    fact.run_ended.flops = (int64_t)result->flops_sample;
    fact.run_ended.flops_train = (int64_t)result->flops_train;
    fact.run_ended.loss_test = esper_fact_known(result->loss_test);
    fact.run_ended.acc_test = esper_fact_known(result->acc_test);
    fact.run_ended.weight_hash = result->weight_hash;
    fact.run_ended.seconds = result->seconds;
    fact.run_ended.total_reward = esper_fact_known(result->total_reward);
    return fact;
}

/* Writes the result into the row of the run. */
static void close_store(run *self, esper_status status)
{
    esper_fact fact = end_of(self, status);
    esper_store_run row = esper_store_run_from(&fact);

    if (self->store != NULL && esper_store_end(self->store, &row) != ESPER_OK)
        esper_log_warn(self->desc->log, "the store does not know how the run ended: %s", esper_last_error());
}

/* The network's size and price, now. */
static void measure_network(run *self)
{
    self->result.params = esper_network_params(self->network);
    self->result.params_host = esper_net_count_params(&self->network->net, 0);
    if (self->growth == NULL)
        return;
    self->result.flops_sample = esper_growth_flops_sample(self->growth);
    self->result.flops_train = esper_growth_flops_train(self->growth);
    self->result.total_reward = esper_growth_return(self->growth);
    self->result.n_replayed = self->desc->replay != NULL ? esper_growth_n_logged(self->growth) : 0;
    self->result.n_faults_left = esper_growth_n_faults_left(self->growth);
    esper_growth_kept(self->growth, self->result.kept);
}

static esper_status attach_growth(run *self)
{
    char path[ESPER_PATH_CHARS];
    esper_growth_records records = {
        .decisions = path, .resume = self->desc->resume != NULL, .bus = &self->bus};

    if (self->growth == NULL)
        return ESPER_OK;
    if (!run_writes(self))
        return esper_growth_attach(self->growth, &(esper_growth_records){0});
    ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_DECISIONS, path));
    return esper_growth_attach(self->growth, &records);
}

static esper_status open_records(run *self)
{
    bool resumed = self->desc->resume != NULL;
    char path[ESPER_PATH_CHARS];
    esper_sink sink;
    uint64_t n_events = 0;

    measure_network(self);
    if (self->desc->replay == NULL)
        ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_CHECKPOINT, self->checkpoint));
    if (!run_writes(self))
        return attach_growth(self);
    ESPER_TRY(esper_run_dir_lock(self->result.run_dir, &self->lock));
    esper_run_dir_clean(self->result.run_dir);
    ESPER_TRY(write_config(self));
    ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_EVENTS, path));
    if (resumed)
        ESPER_TRY(count_lines(path, &n_events));
    esper_bus_init(&self->bus, n_events);
    ESPER_TRY(esper_sink_jsonl_open(path, resumed, &sink));
    ESPER_TRY(esper_bus_add(&self->bus, sink));
    if (self->growth != NULL)
        open_store(self);
    if (self->store != NULL)
        ESPER_TRY(esper_bus_add(&self->bus, esper_store_sink(self->store)));
    return attach_growth(self);
}

/* ------------------------------------------------------------------------------------------------ telling */

static esper_fact fact_of(const run *self, esper_fact_kind kind)
{
    return esper_fact_of(kind, self->network->cursor.epoch, (int64_t)self->network->cursor.step);
}

static void tell(run *self, esper_fact *fact)
{
    esper_bus_tell(&self->bus, fact, 1);
}

static void warn(run *self, const char *text)
{
    esper_fact fact = fact_of(self, ESPER_FACT_WARNING);

    fact.warning.text = text;
    tell(self, &fact);
    esper_log_warn(self->desc->log, "%s", text);
}

static void tell_resumed(run *self)
{
    const char *identity = esper_backend_identity(self->network->engine->backend);
    esper_fact fact = fact_of(self, ESPER_FACT_RUN_RESUMED);
    char text[256];

    fact.run_resumed.path = self->resumed_from;
    fact.run_resumed.kernels = identity;
    fact.run_resumed.threads = esper_pool_threads(self->network->engine->pool);
    fact.run_resumed.ranks = self->network->engine->ranks.size;
    fact.run_resumed.config = self->record;
    tell(self, &fact);
    if (computes_alike(identity, self->resumed_kernels))
        return;
    snprintf(text, sizeof(text),
             "the run was begun with %s and goes on with %s: results will differ in their last bits",
             self->resumed_kernels, identity);
    warn(self, text);
}

/* Who decides about nothing keeps nothing. */
static void warn_if_short(run *self)
{
    const esper_config *config = &self->network->engine->config;
    char text[ESPER_GROWTH_HINT_CHARS];
    bool grows =
        self->growth != NULL && (config->policy_cmd[0] != '\0' || strcmp(config->policy, esper_policy_none.name) != 0);

    if (grows && run_writes(self) && esper_growth_foresee(config, text)[0] != '\0')
        warn(self, text);
}

static void tell_start(run *self)
{
    esper_fact fact = start_of(self);

    if (self->desc->resume != NULL) {
        tell_resumed(self);
        return;
    }
    tell(self, &fact);
    if (self->policy_note[0] != '\0')
        warn(self, self->policy_note);
    warn_if_short(self);
}

/* Its row is growth's to tell, when it is known what follows. */
static void tell_epoch(run *self, const esper_epoch_record *record)
{
    esper_fact fact = esper_epoch_fact(self->network, record);

    fact.to = ESPER_TO_LINES;
    tell(self, &fact);
}

static void tell_rollback(run *self, const esper_incident *incident, const char *why)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_ROLLBACK, incident->to.epoch + 1, (int64_t)incident->to.step);

    fact.rollback.action = incident->action;
    fact.rollback.from_epoch = incident->at.epoch + 1;
    fact.rollback.from_step = (int64_t)incident->at.step;
    fact.rollback.to_epoch = incident->to.epoch + 1;
    fact.rollback.to_step = (int64_t)incident->to.step;
    fact.rollback.n_damaged = incident->n_damaged;
    fact.rollback.n_pruned =
        incident->action == ESPER_GOVERNOR_PRUNE ? __builtin_popcount(incident->unkept) : 0; /* which growth does next */
    fact.rollback.lr_scale = self->network->detour.lr_scale;
    fact.rollback.cause = incident->reason;
    fact.rollback.seconds = incident->seconds;
    fact.rollback.reason = why;
    tell(self, &fact);
}

static void tell_incident(run *self, const esper_incident *incident)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_HEALTH, incident->at.epoch + 1, (int64_t)incident->at.step);
    char text[512];

    esper_incident_describe(incident, text, sizeof(text));
    fact.health.n_skipped = (int64_t)esper_guarded_reading(self->network).n_skipped;
    fact.health.n_tensors = (int64_t)incident->n_tensors;
    fact.health.tensor = incident->tensor;
    fact.health.role = incident->role;
    fact.health.problem = incident->problem;
    if (incident->tensor != NULL)
        fact.health.n_elements = (int64_t)incident->n_elements;
    if (incident->first_index != ESPER_GUARD_NONE)
        fact.health.first_index = (int64_t)incident->first_index;
    fact.health.loss = esper_fact_known(incident->loss);
    fact.health.reason = incident->reason;
    fact.health.action = incident->action;
    tell(self, &fact);
    if (incident->restored)
        tell_rollback(self, incident, text);
    if (self->desc->observer == NULL || self->desc->observer->incident == NULL) /* else it is told there */
        esper_log_warn(self->desc->log, "guard: %s", text);
}

static void tell_end(run *self, esper_status status)
{
    esper_fact fact = end_of(self, status);

    tell(self, &fact);
}

/* Said once: a loss that is not a number stays so until someone acts. Under guard, somebody does. */
static void warn_if_not_finite(run *self, const esper_epoch_record *record)
{
    char text[256], kept[64] = "";

    if (self->warned || self->network->guarded != NULL ||
        (isfinite(record->loss_train) && isfinite(record->loss_valid)))
        return;
    self->warned = true;
    if (!isfinite(record->loss_valid))
        snprintf(kept, sizeof(kept), "; the checkpoint of epoch %u is kept", self->saved_epoch);
    snprintf(text, sizeof(text),
             "epoch %u: the loss is no longer finite: start again with a lower lr, or with clip on%s", record->epoch,
             kept);
    warn(self, text);
}

/* ------------------------------------------------------------------------------------------------ watching */

/* Counts the training samples still to come; validation is the small part and left out. */
static double seconds_left(const run *self, double samples_per_s)
{
    const esper_network *network = self->network;
    double epochs_left = network->engine->config.epochs - (double)network->cursor.epoch;
    double steps_left = epochs_left * network->engine->steps_per_epoch - network->cursor.batch;

    return samples_per_s > 0.0 ? steps_left * network->engine->config.batch / samples_per_s : -1.0;
}

static esper_run_view view_of(const run *self)
{
    double samples_per_s = esper_epoch_speed(&self->player);

    return (esper_run_view){.task = self->task,
                            .network = self->network,
                            .growth = self->growth,
                            .run_dir = self->result.run_dir,
                            .samples_per_s = samples_per_s,
                            .seconds_left = seconds_left(self, samples_per_s)};
}

static void show_begin(const run *self)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->begin != NULL)
        observer->begin(observer->context, &view);
}

static void show_step(const run *self)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->step != NULL)
        observer->step(observer->context, &view);
}

static void show_epoch(const run *self, const esper_epoch_record *record)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->epoch != NULL)
        observer->epoch(observer->context, &view, record);
}

static void show_incident(const run *self, const esper_incident *incident)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->incident != NULL)
        observer->incident(observer->context, &view, incident);
}

static void show_evaluation(void *context, esper_split split, uint32_t n_done, uint32_t n_batches)
{
    run *self = context;
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    (void)run_ask_to_stop(self); /* a failure is everybody's next one */
    if (observer != NULL && observer->evaluation != NULL)
        observer->evaluation(observer->context, &view, split, (double)n_done / n_batches);
}

/* ------------------------------------------------------------------------------------------------ the loop */

/* Whether the weights are of no more use, as far as the losses tell. */
static bool is_lost(const run *self)
{
    const esper_epoch_record *last = &self->result.last;

    if (self->network->guarded != NULL)
        return false; /* the guard has scanned them, or gone back */
    return !isfinite(self->network->tally.loss) || (last->epoch > 0 && !isfinite(last->loss_valid));
}

static esper_status write_checkpoint(run *self)
{
    esper_fact fact = fact_of(self, ESPER_FACT_CHECKPOINT_SAVED);
    struct stat info;

    ESPER_TRY(esper_checkpoint_save(self->network, self->checkpoint));
    fact.checkpoint_saved.path = self->checkpoint;
    fact.checkpoint_saved.bytes = stat(self->checkpoint, &info) == 0 ? (int64_t)info.st_size : 0;
    tell(self, &fact);
    return ESPER_OK;
}

/* Weights that are lost do not take the place of sound ones. */
static esper_status save(run *self)
{
    struct stat info;
    uint64_t keeps;

    if (self->desc->replay != NULL)
        return ESPER_OK;
    ESPER_TRY(esper_network_read(self->network));
    keeps = is_lost(self) && run_writes(self) && stat(self->checkpoint, &info) == 0;
    ESPER_TRY(esper_ranks_any(&self->network->engine->ranks, &keeps));
    if (keeps != 0)
        return ESPER_OK;
    ESPER_TRY(esper_ranks_settle(&self->network->engine->ranks, run_writes(self) ? write_checkpoint(self) : ESPER_OK));
    self->saved_epoch = self->network->cursor.epoch;
    self->saved_step = self->network->cursor.step;
    return ESPER_OK;
}

/* Of a replay: there is nothing left to make again. */
static bool is_replayed(const run *self)
{
    return self->growth != NULL && esper_growth_is_replayed(self->growth);
}

/* Saves what the governor left, so that somebody can go on from it, and says why the run is over. */
static esper_status end_stopped(run *self, const esper_incident *incident)
{
    char text[512];

    if (is_replayed(self)) /* as it did then */
        return ESPER_FAIL(ESPER_E_STOPPED, "the governor stopped the run");
    if (incident->restored)
        ESPER_TRY(save(self));
    return ESPER_FAIL(
        ESPER_E_STATE, "the governor stopped the run: %s%s%s", esper_incident_describe(incident, text, sizeof(text)),
        incident->restored ? "; that state is saved in " : "", incident->restored ? self->checkpoint : "");
}

/* Tells what the guard met; afterwards the cursor may stand elsewhere. */
static esper_status met(void *context, const esper_incident *incident)
{
    run *self = context;

    tell_incident(self, incident);
    if (self->growth != NULL)
        ESPER_TRY(esper_growth_heed(self->growth, incident));
    show_incident(self, incident);
    return incident->action == ESPER_GOVERNOR_STOP ? end_stopped(self, incident) : ESPER_OK;
}

/* What the governor said could not be written down, so it is not done: the run ends, and is saved as it last stood well. */
static esper_status end_unwritten(void *context, esper_status status)
{
    run *self = context;
    char message[1024];

    if ((status != ESPER_E_IO && status != ESPER_E_PEER) || self->growth == NULL || self->desc->replay != NULL ||
        run_is_cut_off(self))
        return status; /* E_PEER: it is rank 0 that could not write */
    snprintf(message, sizeof(message), "%s", esper_last_error());
    if (esper_guarded_retreat(self->network) != ESPER_OK || save(self) != ESPER_OK)
        return ESPER_FAIL(status, "%s", message);
    return ESPER_FAIL(status, "%s. The run is saved as it stood at step %llu: --resume %s goes on with it", message,
                      (unsigned long long)self->network->cursor.step, self->result.run_dir);
}

static esper_status stepped(void *context)
{
    run *self = context;

    if (self->desc->observer != NULL && esper_clock_seconds() - self->read_at > read_every) {
        ESPER_TRY(esper_network_read(self->network));
        self->read_at = esper_clock_seconds();
    }
    show_step(self);
    ESPER_TRY(run_ask_to_stop(self));
    return run_stop_wanted(self) ? ESPER_E_STOPPED : ESPER_OK;
}

static esper_follower follower_of(run *self)
{
    bool many = esper_ranks_are_many(&self->engine->ranks);

    return (esper_follower){.stop = many ? &self->stop : self->desc->stop, .context = self, .batch = show_evaluation};
}

/* An epoch whose end is to come again is judged again: its loss must not count twice. */
static esper_status keep_vitals(run *self)
{
    const esper_governor *governor = esper_guarded_governor(self->network);
    size_t n = esper_governor_memory_count(governor);
    void *grown = esper_mem_grow(self->vitals, n * sizeof(*self->vitals));

    if (grown == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a governor's memory of %zu numbers", n);
    self->vitals = grown;
    self->n_vitals = n;
    esper_governor_pack(governor, self->vitals);
    return ESPER_OK;
}

static esper_status put_vitals_back(run *self)
{
    return esper_governor_unpack(esper_guarded_governor(self->network), self->vitals, self->n_vitals);
}

/* What the epoch leads to. When nobody can decide any more, the run ends before the decision, to be asked for again. */
static esper_status grow(run *self, const esper_epoch_record *record)
{
    char message[1024];
    esper_status status = esper_growth_end_epoch(self->growth, record);

    if (status == ESPER_OK || status == ESPER_E_STOPPED)
        return status;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    if (self->desc->replay != NULL || put_vitals_back(self) != ESPER_OK || save(self) != ESPER_OK)
        return ESPER_FAIL(status, "%s", message);
    return ESPER_FAIL(status, "%s. The run is saved as it stood before the decision: --resume %s goes on with it",
                      message, self->result.run_dir);
}

/* The epoch is validated; whether it is good the governor says next. */
static esper_status measured(void *context, const esper_epoch_record *record)
{
    run *self = context;

    self->result.last = *record;
    tell_epoch(self, record);
    if (self->growth == NULL)
        show_epoch(self, record);
    warn_if_not_finite(self, record);
    return self->growth != NULL ? keep_vitals(self) : ESPER_OK;
}

static esper_status play_epoch(run *self)
{
    esper_epoch_record record;
    esper_epoch_end end;

    if (run_stop_wanted(self))
        return ESPER_E_STOPPED;
    ESPER_TRY(esper_epoch_play(&self->player, &record, &end));
    if (end != ESPER_EPOCH_GOOD)
        return ESPER_OK;
    if (self->growth != NULL) {
        ESPER_TRY(grow(self, &record));
        show_epoch(self, &record); /* what was decided belongs to it; an epoch that is undone is an incident */
    }
    ESPER_TRY(run_agree(self));
    esper_network_next_epoch(self->network);
    return run_keep_agreed(self);
}

static bool checkpoint_due(const run *self)
{
    int every = self->network->engine->config.checkpoint_every;

    if (esper_guarded_reading(self->network).pending)
        return false; /* the file that lies there is of a state that nobody doubts */
    return every > 0 && self->network->cursor.epoch % (uint32_t)every == 0 &&
           self->network->cursor.epoch <
               (uint32_t)self->network->engine->config.epochs; /* the last one is saved at the end */
}

/* Saves the end of a run, or of this part of it. */
static esper_status leave(run *self, bool stopped)
{
    esper_epoch_end end;

    if (run_is_cut_off(self))
        return run_tell_cut_off(self);
    if (self->desc->replay != NULL) { /* nothing is saved, and a log that ends has been replayed */
        self->result.stopped = run_stop_wanted(self);
        return ESPER_OK;
    }
    if (stopped)
        ESPER_TRY(esper_epoch_settle(&self->player, &end)); /* what is saved is good either way */
    ESPER_TRY(save(self));
    if (is_lost(self))
        return ESPER_FAIL(ESPER_E_STATE,
                          "the loss is no longer finite: start again with a lower lr, or with clip on. %s holds the "
                          "weights after epoch %u",
                          self->checkpoint, self->saved_epoch);
    self->result.stopped = stopped;
    return ESPER_OK;
}

/* Epochs until the last, or until somebody wants the run to stop. */
static esper_status train(run *self)
{
    esper_status status;

    if (self->desc->resume == NULL) /* a place that cannot be written is better known now than after an epoch */
        ESPER_TRY(save(self));
    while (self->network->cursor.epoch < (uint32_t)self->network->engine->config.epochs && !is_replayed(self)) {
        status = play_epoch(self);
        if (status == ESPER_E_STOPPED)
            return leave(self, true);
        ESPER_TRY(status);
        if (checkpoint_due(self))
            ESPER_TRY(save(self));
    }
    return leave(self, false);
}

/* Who was lost is told, with what is not lost by it. */
static esper_status fail_test(run *self)
{
    esper_status status = run_tell_cut_off(self);
    char message[1024];

    if (status == ESPER_E_STOPPED)
        return status;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    return ESPER_FAIL(status, "%s. The training is done and saved, its test is not: esper eval %s", message,
                      self->result.run_dir);
}

/* The test split is read once, here. */
static esper_status test(run *self)
{
    esper_tally tally;
    esper_status status;

    if (self->result.stopped || self->desc->replay != NULL)
        return ESPER_OK;
    status = esper_network_evaluate(self->network, ESPER_SPLIT_TEST, &self->player.follower, &tally);
    if (status == ESPER_E_STOPPED && run_is_cut_off(self))
        status = fail_test(self);
    self->result.stopped = status == ESPER_E_STOPPED;
    if (status != ESPER_OK)
        return self->result.stopped ? ESPER_OK : status;
    self->result.loss_test = esper_tally_loss(&tally);
    self->result.acc_test = esper_tally_accuracy(&tally);
    return ESPER_OK;
}

static void note_place(run *self)
{
    const esper_network *network = self->network;

    self->result.cursor = network->cursor;
    self->result.epochs = (uint32_t)network->engine->config.epochs;
    self->result.steps_per_epoch = network->engine->steps_per_epoch;
    (void)esper_network_read(self->network); /* a backend that is lost has said so before */
    self->result.loss_now = esper_tally_loss(&network->tally);
    self->result.weight_hash = esper_network_hash(network);
    measure_network(self);
    self->result.seconds = esper_clock_seconds() - self->began;
}

static esper_status run_all(run *self)
{
    esper_status status;

    self->began = esper_clock_seconds();
    status = open_network(self);
    if (status == ESPER_OK)
        status = open_records(self);
    ESPER_TRY(run_settle(self, status));
    self->player = (esper_epoch_player){.network = self->network,
                                        .growth = self->growth,
                                        .context = self,
                                        .stepped = stepped,
                                        .met = met,
                                        .failed = end_unwritten,
                                        .measured = measured,
                                        .follower = follower_of(self),
                                        .began = esper_clock_seconds()};
    tell_start(self);
    show_begin(self);
    status = train(self);
    if (status != ESPER_OK && run_is_cut_off(self))
        status = run_rescue(self, status);
    if (status == ESPER_OK)
        status = test(self);
    self->result.n_skipped = esper_guarded_reading(self->network).n_skipped;
    self->result.n_rollbacks = esper_guarded_reading(self->network).n_rollbacks;
    note_place(self);
    tell_end(self, status == ESPER_OK && self->result.stopped ? ESPER_E_STOPPED : status);
    return status;
}

static void close_all(run *self)
{
    esper_growth_close(self->growth);
    esper_network_remove(self->network);
    esper_engine_close(self->engine);
    esper_dataset_close(self->data);
    esper_store_close(self->store);
    esper_mem_free(self->vitals);
    if (self->lock >= 0)
        close(self->lock);
}

esper_status esper_run_train(const esper_run_desc *desc, esper_run_result *result_out)
{
    run *self = esper_mem_alloc(sizeof(*self));
    esper_status status, bus_status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "run");
    self->desc = desc;
    self->lock = -1;
    self->result.loss_test = self->result.acc_test = self->result.total_reward = (double)NAN;
    esper_bus_init(&self->bus, 0);
    status = run_all(self);
    bus_status = status == ESPER_OK ? esper_bus_fini(&self->bus) : ESPER_OK;
    if (status != ESPER_OK) {
        char message[1024]; /* closing the bus must not hide what went wrong first */

        snprintf(message, sizeof(message), "%s", esper_last_error());
        esper_bus_fini(&self->bus);
        close_store(self, status);
        close_all(self);
        ESPER_FAIL(status, "%s", message);
    } else {
        close_store(self, self->result.stopped ? ESPER_E_STOPPED : ESPER_OK);
        close_all(self);
    }
    if (status == ESPER_OK && bus_status == ESPER_OK)
        *result_out = self->result;
    esper_mem_free(self);
    return status != ESPER_OK ? status : bus_status;
}
