/* One run, several ranks. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "dist/agree.h"
#include "run/checkpoint.h"
#include "run/pact.h"
#include "run/run_internal.h"

/* ------------------------------------------------------------------------------------------------ opening */

esper_status run_open_network(run *self)
{
    run_base *base = &self->base;
    bool many = esper_ranks_are_many(&base->ranks), alike;
    esper_status status = run_base_open_engine(base, &base->config);

    if (many) {
        ESPER_TRY(run_base_settle(base, status));
        ESPER_TRY(esper_pact_check(base->engine, self->desc->grows, base->ranks.comm));
        status = esper_engine_join(base->engine, base->ranks.comm);
    }
    run_stand_by(self, true);
    if (status == ESPER_OK)
        status = esper_network_add(base->engine, base->config.seed, self->desc->stream, &self->network);
    run_stand_by(self, false);
    if (!many)
        return status;
    ESPER_TRY(run_base_settle(base, status));
    ESPER_TRY(esper_ranks_are_alike(&base->ranks, esper_network_hash(self->network), &alike));
    return alike ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "the ranks begin with different weights");
}

/* Whether all ranks have the same weights and stand at the same step. */
static esper_status compare_states(const run *self, bool *alike_out)
{
    bool same_weights, same_step;

    ESPER_TRY(esper_ranks_are_alike(&self->base.ranks, esper_network_hash(self->network), &same_weights));
    ESPER_TRY(esper_ranks_are_alike(&self->base.ranks, self->network->cursor.step, &same_step));
    *alike_out = same_weights && same_step;
    return ESPER_OK;
}

esper_status run_check_restored(const run *self, const char *path)
{
    bool alike;

    ESPER_TRY(compare_states(self, &alike));
    if (alike)
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_CONFIG,
        "the ranks go on from different checkpoints (here it is %s, of step %llu): give all of them the same file "
        "with --resume",
        path, (unsigned long long)self->network->cursor.step);
}

/* ------------------------------------------------------------------------------------------------ stopping */

bool run_is_cut_off(const run *self)
{
    const esper_ranks *ranks = &self->base.ranks;

    return run_base_is_ended(&self->base) || (esper_ranks_are_many(ranks) && esper_comm_is_broken(ranks->comm));
}

esper_status run_tell_cut_off(run *self)
{
    if (run_base_is_ended(&self->base))
        return ESPER_FAIL(ESPER_E_STOPPED, "the launcher has ended the job");
    return esper_comm_barrier(self->desc->comm); /* broken: it says again what broke it */
}

esper_status run_ask_to_stop(run *self)
{
    uint64_t wanted = self->desc->stop != NULL && *self->desc->stop != 0;

    if (run_is_cut_off(self)) {
        self->stop = 1;
        return run_tell_cut_off(self);
    }
    ESPER_TRY(esper_ranks_any(&self->base.ranks, &wanted));
    self->stop = wanted != 0;
    return ESPER_OK;
}

bool run_stop_wanted(const run *self)
{
    bool alone = !esper_ranks_are_many(&self->base.ranks);

    return self->stop != 0 || (alone && self->desc->stop != NULL && *self->desc->stop != 0);
}

/* ------------------------------------------------------------------------------------------------ agreeing */

/* Back to where the ranks last agreed, all of them. That state is saved where they still do and none of their copies is damaged,
 * unless the checkpoint that lies there is of it. */
static esper_status save_agreed(run *self, bool *saved_out)
{
    esper_network *network = self->network;
    uint64_t failed = network->guarded == NULL || esper_guarded_retreat_to_kept(network) != ESPER_OK;
    bool alike;

    ESPER_TRY(esper_ranks_any(&self->base.ranks, &failed));
    ESPER_TRY(compare_states(self, &alike));
    if (failed != 0 || !alike || network->cursor.step <= self->saved_step)
        return ESPER_OK;
    ESPER_TRY(esper_ranks_settle(&self->base.ranks, self->base.writes ? run_write_checkpoint(self) : ESPER_OK));
    self->saved_epoch = network->cursor.epoch;
    self->saved_step = network->cursor.step;
    *saved_out = true;
    return ESPER_OK;
}

esper_status run_agree(run *self)
{
    esper_network *network = self->network;
    uint32_t epoch = network->cursor.epoch + 1;
    esper_agree_state state;
    esper_agree_result result;
    char text[512];
    bool saved = false;

    if (!esper_ranks_are_many(&self->base.ranks))
        return ESPER_OK;
    state = (esper_agree_state){.table = esper_slots_hash(&network->slots),
                                .sequence = network->cursor.step,
                                .verdict = self->growth != NULL ? esper_growth_verdict(self->growth) : 0,
                                .weights = esper_network_hash(network)};
    ESPER_TRY(esper_agree(self->base.ranks.comm, &state, &result));
    if (result.fields == 0)
        return ESPER_OK;
    esper_agree_text(&result, self->base.ranks.size, text, sizeof(text));
    if (self->desc->replay == NULL)
        (void)save_agreed(self, &saved); /* whatever becomes of it, why the run is over comes first */
    return ESPER_FAIL(
        ESPER_E_STATE,
        "epoch %u: %s. The ranks no longer compute the same. The checkpoint of epoch %u, on which they agreed, is "
        "%s: --resume %s",
        epoch, text, self->saved_epoch, saved ? "saved" : "kept", self->base.dir);
}

/* ------------------------------------------------------------------------------------------------ the end of a job */

/* Survivors save one by one, since each looks at what is there before; -1: somebody keeps the others waiting too long. The
 * directory itself is locked by rank 0. */
static int take_turn(const run *self)
{
    enum { WAIT_MS = 1000, LOOK_MS = 5 };
    char path[ESPER_PATH_CHARS + 32];
    int file;

    snprintf(path, sizeof(path), "%s/%s", self->base.dir, ESPER_RUN_CONFIG);
    file = open(path, O_RDONLY | O_CLOEXEC);
    for (int ms = 0; file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0; ms += LOOK_MS) {
        if (errno != EWOULDBLOCK || ms >= WAIT_MS) {
            close(file);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
    return file;
}

/* Goes back to the newest snapshot, and saves it unless what is on disk is as new: the last file that ranks have written together,
 * or that another survivor has. Gives what is on disk then. */
static esper_status save_newest(run *self, bool may_save, bool *is_there_out, esper_cursor *cursor_out)
{
    esper_network *network = self->network;
    bool has_newest = may_save && network->guarded != NULL && self->desc->replay == NULL &&
                      esper_guarded_retreat(network) == ESPER_OK;
    int turn = take_turn(self);
    esper_status status = ESPER_OK;

    *is_there_out = run_look_at_disk(self, cursor_out);
    if (has_newest && (!*is_there_out || cursor_out->step < network->cursor.step)) {
        status = run_write_checkpoint(self);
        *is_there_out = run_look_at_disk(self, cursor_out);
    }
    if (turn >= 0)
        close(turn);
    return status;
}

esper_status run_rescue(run *self, esper_status status)
{
    bool is_sound = status != ESPER_E_STATE; /* ranks that are not at the same call may not have the same state */
    char message[1024], ended[256];
    esper_cursor cursor;
    bool is_there;

    assert(status != ESPER_OK && esper_ranks_are_many(&self->base.ranks));
    if (!run_base_is_ended(&self->base))
        snprintf(message, sizeof(message), "%s", esper_last_error());
    else if (esper_comm_ended(self->base.ranks.comm, ended, sizeof(ended)) > 0)
        snprintf(message, sizeof(message), "the launcher has ended the job, since it lost %s", ended);
    else
        snprintf(message, sizeof(message), "the launcher has ended the job (Ctrl-C, or it lost a rank)");
    if (save_newest(self, is_sound, &is_there, &cursor) != ESPER_OK)
        return ESPER_FAIL(status, "%s. The newest state could not be saved%s%s", message,
                          is_there ? "; the last checkpoint is as it was: --resume " : "",
                          is_there ? self->base.dir : "");
    if (!is_there)
        return ESPER_FAIL(status, "%s. Nothing was saved yet", message);
    if (cursor.step > self->saved_step)
        return ESPER_FAIL(
            status,
            "%s. Step %llu, in epoch %u, is saved: --resume %s goes on from there, with as many ranks as you like",
            message, (unsigned long long)cursor.step, cursor.epoch + 1, self->base.dir);
    return ESPER_FAIL(status, "%s. The checkpoint of step %llu, behind epoch %u, is as it was: --resume %s", message,
                      (unsigned long long)cursor.step, cursor.epoch, self->base.dir);
}
