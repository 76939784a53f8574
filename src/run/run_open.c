/* How a run begins: its network, fresh or from a checkpoint, its directory, and what is written down of it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/build_info.h"
#include "base/event.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "run/checkpoint.h"
#include "run/pact.h"
#include "run/run_internal.h"

/* Keys that may differ from the checkpoint's when a run is resumed: they do not change what a step computes, or, like
 * the number of epochs, only how far the run goes (and with it, how a cosine schedule falls from here on). */
static const char *const free_keys[] = {
    "policy", /* only where has_moved */
    "threads",        "progress",       "log_level",     "checkpoint_every", "epochs", "run_dir",       "data", "guard",
    "snapshot_every", "guard_checksum", "max_rollbacks", "policy_deadline",  "comm",   "rank_deadline", NULL};

/* ------------------------------------------------------------------------------------------------ resuming */

/* A learned policy may have moved: what it remembers knows its hash. */
static bool has_moved(const esper_config *saved, const esper_config *asked)
{
    return esper_policy_is_file(saved->policy) && esper_policy_is_file(asked->policy);
}

bool run_computes_alike(const char *identity, const char *other)
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
            ESPER_TRY(esper_checkpoint_restore_part(checkpoint, self->network, "growth"));
    }
    if (!self->network->engine->config.guard)
        return ESPER_OK;
    ESPER_TRY(esper_guarded_open(self->network));
    if (checkpoint == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_checkpoint_restore_part(checkpoint, self->network, "governor"));
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
    if (run_computes_alike(logged, here))
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
    char path[ESPER_PATH_CHARS], dir[ESPER_PATH_CHARS];
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
    esper_run_dir_of(path, dir); /* it goes on where its checkpoint lies, unless another directory is asked for */
    if (desc->config->run_dir[0] != '\0' && !is_same_dir(desc->config->run_dir, dir)) {
        ESPER_TRY(run_make_dir(self, task->name));
        return desc->grows && run_writes(self) ? carry_log(dir, self->result.run_dir) : ESPER_OK;
    }
    snprintf(self->result.run_dir, sizeof(self->result.run_dir), "%s", dir);
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

/* ------------------------------------------------------------------------------------------------ the store */

static esper_store_run identity_of(const run *self)
{
    const esper_network *network = self->network;
    const esper_run_kin *kin = self->desc->kin;
    esper_store_run identity = esper_store_run_of(self->result.run_dir);

    ESPER_STORE_SET(identity.task, self->task->name);
    ESPER_STORE_SET(identity.policy, esper_growth_decider(self->growth));
    ESPER_STORE_SET(identity.reward_mode, network->engine->config.reward);
    ESPER_STORE_SET(identity.gate_mode, esper_config_gates_name(network->engine->config.gates));
    identity.rng_seed = network->engine->config.seed;
    ESPER_STORE_SET(identity.kernels, esper_backend_identity(network->engine->backend));
    identity.threads = esper_pool_threads(network->engine->pool);
    ESPER_STORE_SET(identity.build, esper_build_commit());
    if (kin != NULL) {
        identity.parent_run = kin->parent;
        ESPER_STORE_SET(identity.relation, kin->relation);
    }
    identity.params_host = self->result.params_host;
    identity.flops_host = (int64_t)esper_growth_flops_host(self->growth);
    return identity;
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
    esper_store_run identity = identity_of(self);
    char path[ESPER_PATH_CHARS];
    esper_status status = esper_run_path(self->result.run_dir, ESPER_RUN_STORE, path);

    if (status == ESPER_OK && kin != NULL && kin->store != NULL)
        snprintf(path, sizeof(path), "%s", kin->store);
    if (status == ESPER_OK)
        status = esper_store_open(path, NULL, &self->store);
    if (status == ESPER_OK) {
        status = self->desc->resume != NULL ? resume_in_store(self, path) : ESPER_E_NOTFOUND;
        if (status == ESPER_E_NOTFOUND)
            status = esper_store_begin(self->store, &identity, self->record, &self->result.store_run);
    }
    if (status == ESPER_OK)
        return;
    esper_log_warn(self->desc->log, "the run is not recorded in a store: %s", esper_last_error());
    esper_store_close(self->store);
    self->store = NULL;
}

/* Writes the result and closes. */
void run_close_store(run *self, esper_status status)
{
    const esper_run_result *result = &self->result;
    esper_store_run end = esper_store_run_of(result->run_dir);

    if (self->store == NULL)
        return;
    ESPER_STORE_SET(end.status, esper_status_name(status));
    end.epochs = result->cursor.epoch;
    end.steps = (int64_t)result->cursor.step;
    end.params = result->params;
    end.flops = (int64_t)result->flops_sample;
    end.flops_train = (int64_t)result->flops_train;
    end.loss_test = isnan(result->loss_test) ? ESPER_STORE_NO_REAL : result->loss_test;
    end.total_reward = isnan(result->total_reward) ? ESPER_STORE_NO_REAL : result->total_reward;
    end.acc_test = isnan(result->acc_test) ? ESPER_STORE_NO_REAL : result->acc_test;
    end.weight_hash = result->weight_hash;
    end.seconds = result->seconds;
    if (esper_store_end(self->store, &end) != ESPER_OK)
        esper_log_warn(self->desc->log, "the store does not know how the run ended: %s", esper_last_error());
}

/* The network's size and price, now. */
void run_measure_network(run *self)
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
        .decisions = path, .resume = self->desc->resume != NULL, .store = self->store, .bus = &self->bus};

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

    run_measure_network(self);
    if (self->desc->replay == NULL)
        ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_CHECKPOINT, self->checkpoint));
    if (!run_writes(self))
        return attach_growth(self);
    esper_config_write(&self->engine->config, self->record);
    ESPER_TRY(esper_run_dir_begin(self->result.run_dir, self->task->name, self->record, &self->lock));
    ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_EVENTS, path));
    if (resumed)
        ESPER_TRY(count_lines(path, &n_events));
    esper_bus_init(&self->bus, n_events);
    ESPER_TRY(esper_sink_jsonl_open(path, resumed, &sink));
    ESPER_TRY(esper_bus_add(&self->bus, sink));
    if (self->growth != NULL)
        open_store(self);
    return attach_growth(self);
}

esper_status run_open(run *self)
{
    ESPER_TRY(open_network(self));
    return open_records(self);
}
