/* The loop of `esper train` and `esper grow`. */
#include "run/run.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/shell.h"
#include "base/status.h"
#include "guard/governor.h"
#include "run/checkpoint.h"
#include "run/run_internal.h"

/* Seconds between looks at the tally, for those who watch. */
static const double read_every = 0.1;

/* ------------------------------------------------------------------------------------------------ the loop */

/* Whether the weights are of no more use, as far as the losses tell. */
static bool is_lost(const run *self)
{
    const esper_epoch_record *last = &self->result.last;

    if (self->network->guarded != NULL)
        return false; /* the guard has scanned them, or gone back */
    return !isfinite(self->network->tally.loss) || (last->epoch > 0 && !isfinite(last->loss_valid));
}

/* The governor has seen something and not judged it yet: the snapshots by which it may go back from here are older than this state. A
 * run that is left so is resumed as if it had been killed, from the last checkpoint that is not in doubt, and comes here again. Where
 * there are none on the way that would be from its very beginning: then from here. */
static bool is_in_doubt(const run *self)
{
    esper_governor_reading reading = esper_guarded_reading(self->network);

    return reading.pending && !reading.faulted && self->base.config.checkpoint_every > 0;
}

/* Stopped there, a run that is gone on with has no snapshot from where the epoch began; see go_behind_stop. */
static bool is_in_midst(const run *self)
{
    return self->network->cursor.batch > 0 && self->network->guarded != NULL &&
           self->base.config.checkpoint_every > 0 && !esper_ranks_are_many(&self->base.ranks);
}

void run_stand_by(const run *self, bool on)
{
    if (self->desc->beside != NULL)
        esper_backend_stand_by(self->desc->beside->backend, on);
}

/* A file that cannot be linked is only missed by who goes back behind it. One that is there is older, and stays; where there is a sound
 * one, the run has come from that. */
esper_status run_write_checkpoint(run *self)
{
    bool in_doubt = is_in_doubt(self), in_midst = is_in_midst(self);

    if (self->growth != NULL)
        ESPER_TRY(esper_growth_write_log(self->growth)); /* it is to have what the checkpoint rests on */
    esper_store_catch_up(self->base.store);
    if (in_doubt)
        (void)link(self->checkpoint, self->sound);
    else if (in_midst && link(self->sound, self->before) != 0 && errno == ENOENT)
        (void)link(self->checkpoint, self->before);
    ESPER_TRY(esper_checkpoint_save(self->network, self->checkpoint));
    if (!in_doubt)
        unlink(self->sound);
    if (!in_midst)
        unlink(self->before);
    return ESPER_OK;
}

/* Weights that are lost do not take the place of sound ones. */
static esper_status save(run *self)
{
    esper_fact fact = run_fact(self, ESPER_FACT_CHECKPOINT_SAVED);
    esper_status status = ESPER_OK;
    struct stat info;
    uint64_t keeps, unsaved;

    if (self->desc->replay != NULL)
        return ESPER_OK;
    ESPER_TRY(esper_network_read(self->network));
    keeps = is_lost(self) && self->base.writes && stat(self->checkpoint, &info) == 0;
    ESPER_TRY(esper_ranks_any(&self->base.ranks, &keeps));
    if (keeps != 0)
        return ESPER_OK;
    self->is_unsaved = false;
    run_stand_by(self, true);
    if (self->base.writes)
        status = run_write_checkpoint(self);
    run_stand_by(self, false);
    if (self->base.writes && status == ESPER_OK) {
        fact.checkpoint_saved.path = self->checkpoint;
        fact.checkpoint_saved.bytes = stat(self->checkpoint, &info) == 0 ? (int64_t)info.st_size : 0;
        run_tell(self, &fact);
    }
    unsaved = status == ESPER_E_IO;
    if (status != ESPER_OK)
        snprintf(self->why_unsaved, sizeof(self->why_unsaved), "%s", esper_last_error());
    ESPER_TRY(esper_ranks_any(&self->base.ranks, &unsaved));
    self->is_unsaved = unsaved != 0;
    if (status != ESPER_OK)
        status = ESPER_FAIL(status, "%s", self->why_unsaved);
    ESPER_TRY(esper_ranks_settle(&self->base.ranks, status));
    self->saved_epoch = self->network->cursor.epoch;
    self->saved_step = self->network->cursor.step;
    return ESPER_OK;
}

bool run_look_at_disk(const run *self, esper_cursor *cursor_out)
{
    uint64_t budget, weights;
    esper_checkpoint found;
    bool good;

    if (esper_checkpoint_init(self->checkpoint, &found) != ESPER_OK)
        return false;
    good = esper_checkpoint_mark(&found, cursor_out, &budget, &weights) == ESPER_OK;
    esper_checkpoint_fini(&found);
    return good;
}

/* A disk that is full, or fails, is no reason to stop training: it is told, and tried again the next time. */
static esper_status save_or_go_on(run *self)
{
    bool before = self->is_unsaved;
    esper_status status = save(self);

    if (status != ESPER_OK && !self->is_unsaved)
        return status;
    if (self->is_unsaved && !before && self->base.writes)
        esper_log_warn(self->desc->log, "%s. The run goes on, and is saved when there is room", self->why_unsaved);
    if (!self->is_unsaved && before && self->base.writes)
        esper_log_write(self->desc->log, ESPER_LOG_INFO, "the run is saved again, as of epoch %u", self->saved_epoch);
    return ESPER_OK;
}

/* The decision log says by itself what it keeps in memory, and writes it when there is room. */
static void mind_log(run *self)
{
    uint64_t n = esper_growth_account_of(self->growth).n_waiting;

    if (n > 0 && !self->log_waits)
        esper_log_warn(
            self->desc->log,
            "%s/%s: there is no room on the disk: the run goes on, and decisions wait in memory until there is",
            self->base.dir, ESPER_RUN_DECISIONS);
    self->log_waits = n > 0;
}

/* Behind all that was tried. */
static void note_unwritten(run *self)
{
    uint64_t n = self->growth != NULL ? esper_growth_account_of(self->growth).n_waiting : 0;
    char *text = self->result.unwritten, entries[64] = "", quoted[ESPER_SHELL_CHARS];

    if (!self->is_unsaved || !self->base.writes)
        return;
    if (n > 0)
        snprintf(entries, sizeof(entries), ", nor the last %llu decision%s", (unsigned long long)n, n == 1 ? "" : "s");
    snprintf(text, sizeof(self->result.unwritten),
             "the run came to its end, but its weights are not saved%s: %s. When there is room, --resume %s goes on "
             "from epoch %u",
             entries, self->why_unsaved, esper_shell_quote_path(self->base.dir, quoted), self->saved_epoch);
}

/* For the records. A run whose weights are not saved is not done, whatever it came to: who reads its store, as a comparison does,
 * is to know that, and goes on with it. */
static esper_status way_it_ended(const run *self, esper_status status)
{
    if (status != ESPER_OK)
        return status;
    return self->result.stopped ? ESPER_E_STOPPED : self->is_unsaved ? ESPER_E_IO : ESPER_OK;
}

/* Of a replay: there is nothing left to make again. */
static bool is_replayed(const run *self)
{
    return self->growth != NULL && esper_growth_account_of(self->growth).is_replayed;
}

/* The guard went back to where a stopped run was resumed, in the midst of an epoch. The unbroken run would have gone to an earlier
 * snapshot: so the run is resumed from the checkpoint before the stop, as if it had been killed, and comes by the fault again. */
static bool goes_behind_stop(run *self, const esper_incident *incident)
{
    if (!incident->restored || self->network->cursor.step != self->midst_step || self->desc->replay != NULL ||
        esper_ranks_are_many(&self->base.ranks) || rename(self->before, self->sound) != 0)
        return false;
    esper_log_warn(
        self->desc->log,
        "a fault right behind a stop in the midst of an epoch: the run goes on from its checkpoint before that");
    self->again = true;
    return true;
}

/* Tells what the guard met; afterwards the cursor may stand elsewhere. What a governor that stops has left is saved, so that
 * somebody can go on from it. */
static esper_status met(void *context, const esper_incident *incident)
{
    run *self = context;
    char text[512];

    if (goes_behind_stop(self, incident))
        return ESPER_FAIL(ESPER_E_STATE, "the run is to be resumed from %s", self->sound);
    run_tell_incident(self, incident);
    if (self->growth != NULL)
        ESPER_TRY(esper_growth_heed(self->growth, incident));
    run_show(self, NULL, incident);
    if (incident->action != ESPER_GOVERNOR_STOP)
        return ESPER_OK;
    if (is_replayed(self)) /* as it did then */
        return ESPER_FAIL(ESPER_E_STOPPED, "the governor stopped the run");
    if (incident->restored)
        ESPER_TRY(save(self));
    return ESPER_FAIL(
        ESPER_E_STATE, "the governor stopped the run: %s%s%s", esper_incident_describe(incident, text, sizeof(text)),
        incident->restored ? "; that state is saved in " : "", incident->restored ? self->checkpoint : "");
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
                      (unsigned long long)self->network->cursor.step, self->base.dir);
}

static esper_status stepped(void *context)
{
    run *self = context;

    if (self->desc->observer != NULL && self->desc->observer->step != NULL &&
        esper_clock_seconds() - self->read_at > read_every) {
        ESPER_TRY(esper_network_read(self->network));
        self->read_at = esper_clock_seconds();
    }
    run_show(self, NULL, NULL);
    ESPER_TRY(run_ask_to_stop(self));
    return run_stop_wanted(self) ? ESPER_E_STOPPED : ESPER_OK;
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

/* What the epoch leads to. When nobody can decide any more, the run ends before the decision, to be asked for again. */
static esper_status grow(run *self, const esper_epoch_record *record)
{
    char message[1024];
    esper_status status = esper_growth_end_epoch(self->growth, record);

    if (status == ESPER_OK || (status == ESPER_E_STOPPED && self->desc->replay != NULL))
        return status;
    if (status == ESPER_E_STOPPED) { /* in a trial, which is to come again */
        ESPER_TRY(esper_governor_unpack(esper_guarded_governor(self->network), self->vitals, self->n_vitals));
        return ESPER_E_STOPPED;
    }
    snprintf(message, sizeof(message), "%s", esper_last_error());
    if (self->desc->replay != NULL ||
        esper_governor_unpack(esper_guarded_governor(self->network), self->vitals, self->n_vitals) != ESPER_OK ||
        save(self) != ESPER_OK)
        return ESPER_FAIL(status, "%s", message);
    return ESPER_FAIL(status, "%s. The run is saved as it stood before the decision: --resume %s goes on with it",
                      message, self->base.dir);
}

/* The epoch is validated; whether it is good the governor says next. */
static esper_status measured(void *context, const esper_epoch_record *record)
{
    run *self = context;
    esper_fact fact = esper_epoch_fact(self->network, record);

    self->result.last = *record;
    fact.to = ESPER_TO_LINES; /* its row is growth's to tell, when it is known what follows */
    run_tell(self, &fact);
    if (self->growth == NULL)
        run_show(self, record, NULL);
    run_warn_if_not_finite(self, record);
    return self->growth != NULL ? keep_vitals(self) : ESPER_OK;
}

/* A file that cannot be written is only missed by who asks for it: the run has its checkpoint. */
static void keep_best(run *self, const esper_epoch_record *record)
{
    bool better = esper_best_offer(&self->best, record->epoch, record->loss_valid, record->acc_valid), kept;

    if (!better || !self->base.writes || self->base.config.checkpoint_every <= 0)
        return;
    run_stand_by(self, true);
    kept = (self->growth == NULL || esper_growth_write_log(self->growth) == ESPER_OK) && /* it rests on the log, too */
           esper_checkpoint_save(self->network, self->best_path) == ESPER_OK;
    run_stand_by(self, false);
    if (!kept && !self->best_is_unsaved)
        esper_log_warn(self->desc->log, "the best network so far is not kept: %s", esper_last_error());
    self->best_is_unsaved = !kept;
}

static void wait_for_better(run *self, uint32_t epoch)
{
    int patience = self->base.config.patience;
    esper_best_verdict verdict = esper_best_wait(&self->best, patience, epoch, self->network);

    if (verdict != ESPER_BEST_GO_ON && self->base.ranks.rank == 0)
        esper_log_write(self->desc->log, ESPER_LOG_INFO,
                        "epoch %u: the validation loss is not below that of epoch %u for %d epoch%s: %s", epoch,
                        self->best.epoch, patience, patience == 1 ? "" : "s",
                        verdict == ESPER_BEST_FALL ? "the rate begins to fall" : "the run ends");
}

static esper_status play_epoch(run *self)
{
    esper_epoch_record record;
    esper_epoch_end end;

    if (run_stop_wanted(self))
        return ESPER_E_STOPPED;
    assert(!esper_network_is_over(self->network));
    ESPER_TRY(esper_epoch_play(&self->player, &record, &end));
    if (end != ESPER_EPOCH_GOOD)
        return ESPER_OK;
    keep_best(self, &record); /* as it was validated, before anything grows */
    if (self->growth != NULL) {
        ESPER_TRY(grow(self, &record));
        run_show(self, &record, NULL); /* what was decided belongs to it; an epoch that is undone is an incident */
        mind_log(self);
    }
    ESPER_TRY(run_agree(self));
    wait_for_better(self, record.epoch);
    esper_network_next_epoch(self->network);
    ESPER_TRY(esper_epoch_begin(&self->player, &end));
    if (!esper_ranks_are_many(&self->base.ranks) || self->network->guarded == NULL)
        return ESPER_OK;
    return esper_guarded_keep(self->network); /* what is saved where the ranks part later */
}

/* Not while the state is in doubt: the file that lies there is of one that is not. The last one is saved at the end. */
static bool checkpoint_due(const run *self)
{
    const esper_config *config = &self->base.config;
    uint32_t epoch = self->network->cursor.epoch, every = (uint32_t)config->checkpoint_every;

    return !esper_guarded_reading(self->network).pending && every > 0 && epoch % every == 0 &&
           !esper_network_is_over(self->network);
}

static void tell_that_it_leaves(const run *self)
{
    if (self->desc->hears != NULL)
        *self->desc->hears = ESPER_HEARS_AND_LEAVES;
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
    tell_that_it_leaves(self);
    ESPER_TRY((stopped ? save : save_or_go_on)(self));
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
    while (!esper_network_is_over(self->network) && !is_replayed(self)) {
        status = play_epoch(self);
        if (status == ESPER_E_STOPPED)
            return leave(self, true);
        ESPER_TRY(status);
        if (checkpoint_due(self))
            ESPER_TRY(save_or_go_on(self));
    }
    return leave(self, false);
}

/* The test split is read once, here. Who was lost meanwhile is told, with what is not lost by it. */
static esper_status test(run *self)
{
    esper_tally tally;
    esper_status status;
    char message[1024];

    if (self->result.stopped || self->desc->replay != NULL)
        return ESPER_OK;
    status = esper_network_evaluate(self->network, ESPER_SPLIT_TEST, &self->player.follower, &tally);
    if (status == ESPER_E_STOPPED && run_is_cut_off(self))
        status = run_tell_cut_off(self);
    self->result.stopped = status == ESPER_E_STOPPED;
    if (self->result.stopped)
        return ESPER_OK;
    if (status != ESPER_OK && run_is_cut_off(self)) {
        snprintf(message, sizeof(message), "%s", esper_last_error());
        return ESPER_FAIL(status, "%s. The training is done and saved, its test is not: esper eval %s", message,
                          self->base.dir);
    }
    ESPER_TRY(status);
    self->result.loss_test = esper_tally_loss(&tally);
    self->result.acc_test = esper_tally_accuracy(&tally);
    return ESPER_OK;
}

/* Nothing can be read from the device any more: what is on disk is what there is. */
static esper_status tell_lost_device(const run *self)
{
    char message[1024];
    esper_cursor cursor;

    snprintf(message, sizeof(message), "%s", esper_last_error());
    if (self->desc->replay != NULL || !run_look_at_disk(self, &cursor))
        return ESPER_FAIL(ESPER_E_DEVICE, "the device is lost: %s. Nothing was saved yet", message);
    return ESPER_FAIL(
        ESPER_E_DEVICE,
        "the device is lost: %s. The checkpoint of step %llu, in epoch %u, is good: --resume %s goes on from "
        "there, on whatever machine has such a device",
        message, (unsigned long long)cursor.step, cursor.epoch + 1, self->base.dir);
}

static void take_result(run *self)
{
    const esper_network *network = self->network;

    (void)esper_network_read(self->network); /* a backend that is lost has said so before */
    run_measure_network(self);
    self->result.cursor = network->cursor;
    self->result.epochs = esper_network_epochs(network);
    self->result.steps_per_epoch = network->engine->steps_per_epoch;
    self->result.n_skipped = esper_guarded_reading(network).n_skipped;
    self->result.n_rollbacks = esper_guarded_reading(network).n_rollbacks;
    self->result.loss_now = esper_tally_loss(&network->tally);
    self->result.weight_hash = esper_network_hash(network);
    self->result.best = self->best;
    self->result.store_run = self->base.store_run;
    self->result.seconds = esper_clock_seconds() - self->began;
}

static esper_status run_all(run *self)
{
    bool alone = !esper_ranks_are_many(&self->base.ranks);
    char message[1024]; /* what cannot be read of a network that is lost must not hide why */
    esper_status status;
    esper_fact end;

    self->began = esper_clock_seconds();
    ESPER_TRY(run_base_settle(&self->base, run_open(self)));
    self->player = (esper_epoch_player){
        .network = self->network,
        .growth = self->growth,
        .context = self,
        .stepped = stepped,
        .met = met,
        .failed = end_unwritten,
        .measured = measured,
        .follower = {.stop = alone ? self->desc->stop : &self->stop, .context = self, .batch = run_show_evaluation},
        .began = esper_clock_seconds()};
    run_tell_start(self);
    status = train(self);
    if (self->again)
        return status;
    if (status != ESPER_OK && run_is_cut_off(self))
        status = run_rescue(self, status);
    if (status == ESPER_OK)
        status = test(self);
    if (status == ESPER_E_DEVICE)
        status = tell_lost_device(self);
    tell_that_it_leaves(self);
    snprintf(message, sizeof(message), "%s", esper_last_error());
    take_result(self);
    if (status != ESPER_OK)
        ESPER_FAIL(status, "%s", message);
    note_unwritten(self);
    end = run_end(self, way_it_ended(self, status));
    run_stand_by(self, true);
    run_base_close_store(&self->base, &end); /* synced before the events say that all is done */
    run_stand_by(self, false);
    self->store_ended = true;
    run_tell(self, &end);
    return status;
}

/* What they have lost is no failure of a run that is done. */
static void close_records(run *self)
{
    char *text = self->result.unwritten;
    size_t used = strlen(text);

    if (esper_bus_fini(&self->bus) != ESPER_OK)
        snprintf(text + used, sizeof(self->result.unwritten) - used, "%s%s", used > 0 ? "; besides, " : "",
                 esper_last_error());
}

/* *again_out: nothing came of it, and the run in result_out->run_dir is to be resumed. */
static esper_status play(const esper_run_desc *desc, esper_run_result *result_out, bool *again_out)
{
    const run_asked asked = {desc->task, desc->config,  desc->resume,  desc->log, desc->comm,
                             desc->stop, desc->cut_off, desc->threads, desc->beside};
    run *self = esper_mem_alloc(sizeof(*self));
    char message[1024]; /* closing must not hide what went wrong first */
    esper_status status, ended;
    esper_fact end;

    *again_out = false;
    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "run");
    assert(desc->replay == NULL || (desc->grows && desc->resume == NULL));
    self->desc = desc;
    run_base_init(&self->base, &asked, desc->grows ? ESPER_CONFIG_IN_GROW : ESPER_CONFIG_IN_TRAIN,
                  self->result.run_dir);
    self->base.writes = self->base.writes && desc->replay == NULL;
    self->midst_step = UINT64_MAX;
    self->result.loss_test = self->result.acc_test = self->result.total_reward = (double)NAN;
    esper_bus_init(&self->bus, 0);
    status = run_all(self);
    ended = way_it_ended(self, status);
    if (status == ESPER_OK)
        close_records(self);
    snprintf(message, sizeof(message), "%s", esper_last_error());
    esper_bus_fini(&self->bus);
    end = run_end(self, ended);
    if (!self->store_ended && !self->again)
        run_base_close_store(&self->base, &end);
    esper_growth_close(self->growth);
    esper_network_remove(self->network);
    run_base_fini(&self->base);
    *again_out = self->again;
    if (status == ESPER_OK || self->again)
        *result_out = self->result;
    esper_mem_free(self->vitals);
    esper_mem_free(self);
    return status == ESPER_OK ? ESPER_OK : ESPER_FAIL(status, "%s", message);
}

esper_status esper_run_train(const esper_run_desc *desc, esper_run_result *result_out)
{
    esper_run_desc part = *desc;
    esper_run_result result;
    char dir[ESPER_PATH_CHARS];
    bool again;
    esper_status status = play(&part, &result, &again);

    while (again) { /* each time from an earlier checkpoint */
        snprintf(dir, sizeof(dir), "%s", result.run_dir);
        part.resume = dir;
        part.task = NULL;
        status = play(&part, &result, &again);
    }
    if (status == ESPER_OK)
        *result_out = result;
    return status;
}
