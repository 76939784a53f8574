/* How a run begins: its network, fresh or from a checkpoint, its directory, and what is written down of it. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "run/checkpoint.h"
#include "run/halving.h"
#include "run/own.h"
#include "run/pact.h"
#include "run/run_internal.h"
#include "run/settings.h"

bool run_computes_alike(const char *identity, const char *other)
{
    size_t chars = esper_pact_kernel_chars(identity);

    return chars == esper_pact_kernel_chars(other) && strncmp(identity, other, chars) == 0;
}

/* ------------------------------------------------------------------------------------------------ the network */

/* A replay of other data would be another run, and one elsewhere would differ in its last bits. */
static esper_status check_replay(const run *self)
{
    const esper_log_head *head = &self->desc->replay->head;
    const char *here = esper_backend_identity(self->base.engine->backend);
    const char *slash = strchr(head->kernels, '/'), *name = slash != NULL ? slash + 1 : head->kernels;

    if (head->data != 0 && head->data != esper_dataset_hash(self->base.engine->data))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "the data is not what the run was trained on: its hash is %016" PRIx64
                          ", the log says %016" PRIx64 ". Bring that data back (--data PATH where it has moved)",
                          esper_dataset_hash(self->base.engine->data), head->data);
    if (head->ranks != self->base.ranks.size)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "the run was computed by %d ranks, and here are %d: sums over ranks differ in their last bits. "
            "Start the replay with mpirun -n %d",
            head->ranks, self->base.ranks.size, head->ranks);
    if (run_computes_alike(head->kernels, here))
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_UNSUPPORTED,
        "the run was computed by %s, and here it is %s: they differ in the last bits. ESPER_KERNELS=%.*s chooses "
        "the run's kernels where the processor has them; a run meant for several machines is made with a set that "
        "all of them have",
        head->kernels, here, (int)strcspn(name, "/"), name);
}

/* A learned policy in a run: the gates that it brings, and where the run is not like those that it was trained in. */
static esper_status adopt_policy(run *self)
{
    const esper_config_source source = {.place = ESPER_CONFIG_PRESET, .name = "policy"};
    esper_config *config = &self->base.config;
    char path[ESPER_CONFIG_TEXT_CHARS];
    esper_learned_file *file;
    esper_status status = ESPER_OK;

    if (!self->desc->grows || self->desc->replay != NULL || config->policy_cmd[0] != '\0' ||
        !esper_policy_is_file(config->policy))
        return ESPER_OK;
    ESPER_TRY(esper_learned_open(config->policy, &file));
    if (strchr(config->policy, '/') ==
        NULL) { /* a name becomes a path: it stays one in the record when the file has gone */
        if (snprintf(path, sizeof(path), "./%s", config->policy) >= (int)sizeof(path))
            status = ESPER_FAIL(ESPER_E_CONFIG, "policy: the path is too long");
        else
            memcpy(config->policy, path, sizeof(path));
    }
    if (status == ESPER_OK)
        status =
            esper_config_set(config, "gates", esper_config_gates_name(esper_learned_identity_of(file)->gates), &source);
    if (status == ESPER_OK)
        esper_policy_note(file, config, self->policy_note);
    esper_learned_close(file);
    return status;
}

static esper_status ask_in_search(void *context)
{
    run *self = context;

    ESPER_TRY(run_ask_to_stop(self));
    return run_stop_wanted(self)
               ? ESPER_FAIL(ESPER_E_STOPPED, "stopped while networks were searched for: the search begins anew")
               : ESPER_OK;
}

static bool is_search(const esper_config *config)
{
    return config->policy_cmd[0] == '\0' && strcmp(config->policy, esper_policy_halving.name) == 0;
}

/* What can be said before data is loaded. */
static esper_status check_search(const esper_config *config, const esper_config *was)
{
    if (config->length != ESPER_CONFIG_LENGTH_FLOPS)
        return ESPER_FAIL(ESPER_E_CONFIG, "halving divides FLOPs among networks: set length = flops");
    if (was == NULL && config->plant[0] != '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "halving chooses the seeds: leave out plant");
    if (was != NULL && (was->epochs != config->epochs || was->flops != config->flops))
        return ESPER_FAIL(ESPER_E_CONFIG, "halving has divided what it may spend already: its length cannot change");
    return ESPER_OK;
}

/* Finds the network that the run goes on with. Resumed, it is the one that was found, and what was left for it. */
static esper_status search(run *self, const esper_checkpoint *checkpoint, double *spent_out)
{
    const esper_halving_desc desc = {
        .log = self->base.ranks.rank == 0 ? self->desc->log : NULL, .context = self, .step = ask_in_search};
    esper_cursor cursor;
    uint64_t weights;

    if (checkpoint != NULL)
        return esper_checkpoint_mark(checkpoint, &cursor, &self->network->budget, &weights);
    ESPER_TRY(esper_halving_search(&desc, &self->network, spent_out));
    memcpy(self->base.config.plant, self->base.engine->config.plant, sizeof(self->base.config.plant));
    return ESPER_OK;
}

/* Growth comes before the guard, whose snapshots carry it, and a checkpoint's memory of it before the first snapshot. */
static esper_status open_guard(run *self, const esper_checkpoint *checkpoint)
{
    double spent = 0.0;

    if (self->desc->grows) {
        if (is_search(&self->base.config))
            ESPER_TRY(search(self, checkpoint, &spent));
        ESPER_TRY(esper_growth_open(self->network, self->desc->replay, NULL, &self->growth));
        esper_growth_count_before(self->growth, spent);
        if (checkpoint != NULL)
            ESPER_TRY(esper_checkpoint_restore_part(checkpoint, self->network, "growth"));
    }
    if (!self->base.config.guard)
        return ESPER_OK;
    ESPER_TRY(esper_guarded_open(self->network));
    if (checkpoint == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_checkpoint_restore_part(checkpoint, self->network, "governor"));
    return esper_guarded_tell_snapshot(self->network);
}

/* What can be said before data is loaded comes first. checkpoint NULL: a new run. */
static esper_status open_network(run *self, const char *path, const esper_checkpoint *checkpoint)
{
    esper_config *config = &self->base.config;

    if (self->desc->grows)
        ESPER_TRY(esper_growth_check_config(config, esper_task_topology(self->base.task)));
    if (self->desc->grows && is_search(config))
        ESPER_TRY(check_search(config, checkpoint != NULL ? &checkpoint->config : NULL));
    if (checkpoint == NULL)
        ESPER_TRY(adopt_policy(self));
    if (checkpoint != NULL || self->desc->replay != NULL)
        snprintf(self->base.kernels, sizeof(self->base.kernels), "%s",
                 checkpoint != NULL ? checkpoint->kernels : self->desc->replay->head.kernels);
    ESPER_TRY(run_open_network(self));
    if (self->desc->hears != NULL)
        *self->desc->hears = ESPER_HEARS;
    if (checkpoint != NULL && !esper_checkpoint_knows_data(checkpoint, self->network))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: the data is not what the run was trained on: it would go on as another run. Bring that "
                          "data back (--data PATH where it has moved), or start a new run",
                          path);
    esper_best_attach(&self->best, self->network);
    if (checkpoint != NULL) {
        ESPER_TRY(esper_checkpoint_restore(checkpoint, self->network));
        ESPER_TRY(run_check_restored(self, path));
        ESPER_TRY(esper_checkpoint_restore_part(checkpoint, self->network, "best"));
        if (self->best.budget > 0 && config->epochs == checkpoint->config.epochs &&
            config->flops == checkpoint->config.flops)
            self->network->budget = self->best.budget; /* shortened, and nobody asks for more */
    }
    ESPER_TRY(open_guard(self, checkpoint));
    if (checkpoint == NULL)
        return self->desc->replay != NULL ? check_replay(self) : ESPER_OK;
    if (esper_network_is_over(self->network) &&
        (!run_base_stays(&self->base, path) || esper_run_is_closed(path, self->desc->kin)))
        return ESPER_FAIL(ESPER_E_STATE,
                          "%s has had %u epochs, and spent all that was asked for: ask for more with %s, or see its "
                          "score with `esper eval`",
                          path, self->network->cursor.epoch, config->flops > 0.0 ? "--flops N" : "--epochs N");
    self->saved_epoch = self->network->cursor.epoch;
    self->saved_step = self->network->cursor.step;
    snprintf(self->resumed_from, sizeof(self->resumed_from), "%s", path);
    snprintf(self->resumed_kernels, sizeof(self->resumed_kernels), "%s", checkpoint->kernels);
    return ESPER_OK;
}

/* The last line of a run's events says that it ended well. Where there are none somebody has carried the checkpoint alone. */
static bool events_are_closed(const char *dir)
{
    char path[ESPER_PATH_CHARS], *text = NULL;
    size_t bytes = 0;
    bool closed = true;

    if (esper_run_path(dir, ESPER_RUN_EVENTS, path) == ESPER_OK &&
        esper_file_read(path, (size_t)1 << 30, &text, &bytes) == ESPER_OK) {
        size_t at = bytes > 0 ? bytes - 1 : 0; /* that line's end, unless it was cut off */

        closed = bytes > 0 && text[at] == '\n';
        while (at > 0 && text[at - 1] != '\n')
            at--;
        closed =
            closed && strstr(text + at, "\"event\":\"run_ended\"") != NULL && strstr(text + at, "\"ESPER_OK\"") != NULL;
    }
    esper_mem_free(text);
    return closed;
}

bool esper_run_is_closed(const char *checkpoint, const esper_run_kin *kin)
{
    char dir[ESPER_PATH_CHARS], path[ESPER_PATH_CHARS];
    esper_store_reader *reader = NULL;
    esper_store_run row;
    bool found = false;

    esper_run_dir_of(checkpoint, dir);
    if (!events_are_closed(dir))
        return false;
    if (esper_run_path(dir, ESPER_RUN_STORE, path) != ESPER_OK)
        return true;
    if (esper_store_reader_open(kin != NULL && kin->store != NULL ? kin->store : path, &reader) == ESPER_OK)
        (void)esper_store_find_run(reader, kin != NULL ? kin->parent : ESPER_STORE_NO_INT,
                                   kin != NULL ? kin->relation : "", &row, &found);
    esper_store_reader_close(reader);
    return !found || row.ended != ESPER_STORE_NO_REAL;
}

static bool is_asked(const esper_config *asked, const char *key)
{
    return esper_config_place_of(asked, esper_config_find(key)) > ESPER_CONFIG_PRESET;
}

bool esper_run_is_done(const esper_checkpoint *checkpoint, const char *path, const esper_config *asked,
                       const esper_run_kin *kin)
{
    uint64_t budget, weights;
    esper_cursor cursor;

    return esper_checkpoint_mark(checkpoint, &cursor, &budget, &weights) == ESPER_OK && cursor.batch == 0 &&
           (budget > 0 ? cursor.spent >= budget : cursor.epoch >= (uint32_t)checkpoint->config.epochs) &&
           (!is_asked(asked, "epochs") || asked->epochs <= checkpoint->config.epochs) &&
           (!is_asked(asked, "flops") || asked->flops <= (double)budget) && esper_run_is_closed(path, kin);
}

static esper_status resume(run *self, const char *path)
{
    esper_checkpoint checkpoint;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init(path, &checkpoint));
    if (esper_checkpoint_has_growth(&checkpoint) != self->desc->grows)
        status = ESPER_FAIL(ESPER_E_CONFIG, "%s is of a run that %s: go on with `esper %s --resume`", path,
                            self->desc->grows ? "does not grow" : "grows", self->desc->grows ? "train" : "grow");
    else
        status = run_base_take_up(&self->base, path, checkpoint.task, &checkpoint.config);
    if (status == ESPER_OK && self->desc->grows)
        status = esper_settings_check_program(self->desc->config, &self->base.config, path);
    if (status == ESPER_OK)
        status = open_network(self, path, &checkpoint);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

/* ------------------------------------------------------------------------------------------------ records */

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

/* The network's size and price, now. */
void run_measure_network(run *self)
{
    esper_growth_account account;

    self->result.params = esper_network_params(self->network);
    self->result.params_host = esper_net_count_params(&self->network->net, 0);
    if (self->growth == NULL)
        return;
    account = esper_growth_account_of(self->growth);
    self->result.flops_sample = account.flops_sample;
    self->result.flops_train = account.flops_train;
    self->result.total_reward = account.total_reward;
    self->result.n_replayed = self->desc->replay != NULL ? account.n_logged : 0;
    self->result.n_faults_left = account.n_faults_left;
    esper_growth_kept(self->growth, self->result.kept);
}

/* A resumed run goes on counting behind the events that are already in the file. */
static esper_status open_events(run *self)
{
    bool resumed = self->desc->resume != NULL;
    char path[ESPER_PATH_CHARS], *text = NULL;
    size_t bytes = 0;
    uint64_t n_events = 0;
    esper_sink sink;
    esper_status status = ESPER_E_NOTFOUND;

    ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_EVENTS, path));
    if (resumed)
        status = esper_file_read(path, (size_t)1 << 30, &text, &bytes);
    if (status != ESPER_OK && status != ESPER_E_NOTFOUND)
        return status;
    for (size_t i = 0; status == ESPER_OK && i < bytes; i++)
        n_events += text[i] == '\n';
    esper_mem_free(text);
    esper_bus_init(&self->bus, n_events);
    ESPER_TRY(esper_sink_jsonl_open(path, resumed, &sink));
    return esper_bus_add(&self->bus, sink);
}

static esper_status open_records(run *self)
{
    char path[ESPER_PATH_CHARS];
    esper_growth_records records = {0};

    if (self->desc->replay == NULL) {
        records.bus = &self->bus; /* on every rank: whichever saves has counted the rows */
        ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_CHECKPOINT, self->checkpoint));
        ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_SOUND, self->sound));
        ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_BEST, self->best_path));
        ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_BEFORE, self->before));
        ESPER_TRY(run_base_begin_dir(&self->base));
    }
    assert(self->desc->replay == NULL || !self->base.writes);
    if (self->base.writes) {
        ESPER_TRY(open_events(self));
        run_base_add_logs(&self->base, &self->bus, self->growth != NULL, self->network->cursor.epoch);
    }
    if (self->growth == NULL)
        return ESPER_OK;
    if (self->base.writes) {
        esper_growth_account account = esper_growth_account_of(self->growth);
        run_mark mark = {self->network->cursor.epoch, (int64_t)self->network->cursor.step, (int64_t)account.n_logged,
                         account.rows};
        esper_fact start = run_start(self);

        run_base_open_store(&self->base, &start, self->desc->kin, &mark);
        if (self->base.store != NULL)
            ESPER_TRY(esper_bus_add(&self->bus, esper_store_sink(self->base.store)));
        ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_DECISIONS, path));
        records.decisions = path;
        records.resume = self->desc->resume != NULL;
    }
    return esper_growth_attach(self->growth, &records);
}

/* Of a run that was left in doubt: its last checkpoint that is not, unless the run is over and asked for no more. */
static esper_status prefer_sound(const run *self, char path[ESPER_PATH_CHARS])
{
    char dir[ESPER_PATH_CHARS], sound[ESPER_PATH_CHARS];
    esper_checkpoint last;
    struct stat info;
    bool done = false;

    esper_run_dir_of(path, dir);
    ESPER_TRY(esper_run_path(dir, ESPER_RUN_SOUND, sound));
    if (lstat(sound, &info) != 0 || !S_ISREG(info.st_mode))
        return ESPER_OK;
    if (esper_checkpoint_init(path, &last) == ESPER_OK) {
        done = esper_run_is_done(&last, path, self->desc->config, self->desc->kin);
        esper_checkpoint_fini(&last);
    }
    if (!done)
        memcpy(path, sound, sizeof(sound));
    return ESPER_OK;
}

esper_status run_open(run *self)
{
    const char *from = NULL;
    char path[ESPER_PATH_CHARS], dir[ESPER_PATH_CHARS], few[ESPER_OWN_FEW_CHARS];

    if (self->desc->resume != NULL) {
        ESPER_TRY(esper_run_checkpoint_find(self->desc->resume, path));
        if (strcmp(path, self->desc->resume) != 0) /* else that very file is wanted */
            ESPER_TRY(prefer_sound(self, path));
        ESPER_TRY(resume(self, path));
        if (strcmp(path, self->desc->resume) != 0 && self->network->cursor.batch > 0)
            self->midst_step = self->network->cursor.step;
        from = path;
    } else {
        ESPER_TRY(open_network(self, NULL, NULL));
    }
    assert(self->network != NULL && (self->growth != NULL) == self->desc->grows);
    if (self->base.writes && from == NULL && esper_source_is_own(self->base.task->source) &&
        esper_own_is_few(self->network->engine->data, few))
        esper_log_warn(self->desc->log, "%s", few);
    if (self->desc->replay == NULL)
        ESPER_TRY(run_base_make_dir(&self->base, from));
    if (from != NULL && self->desc->grows && self->base.writes && !run_base_stays(&self->base, from)) {
        esper_run_dir_of(from, dir);
        ESPER_TRY(carry_log(dir, self->base.dir));
    }
    run_measure_network(self);
    return open_records(self);
}
