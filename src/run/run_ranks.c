/* One run, several ranks. */
#include <stdio.h>

#include "base/status.h"
#include "dist/agree.h"
#include "run/checkpoint.h"
#include "run/pact.h"
#include "run/run_internal.h"
#include "run/single.h"

bool run_writes(const run *self)
{
    return self->desc->replay == NULL && (self->desc->comm == NULL || esper_comm_rank(self->desc->comm) == 0);
}

/* ------------------------------------------------------------------------------------------------ opening */

/* The ranks, also before the network is one of them. */
static esper_ranks ranks_of(const run *self)
{
    esper_comm *comm = self->desc->comm;

    if (comm == NULL)
        return (esper_ranks){.size = 1};
    return (esper_ranks){.comm = comm, .rank = esper_comm_rank(comm), .size = esper_comm_size(comm)};
}

esper_status run_settle(run *self, esper_status status)
{
    esper_ranks ranks = ranks_of(self);

    if (self->failure_is_known)
        return status;
    status = esper_ranks_settle(&ranks, status);
    self->failure_is_known = status != ESPER_OK;
    return status;
}

/* Data and engine. */
static esper_status open_engine(run *self, const esper_config *config, esper_use use)
{
    esper_dataset_desc desc = esper_task_data(self->task, config);

    ESPER_TRY(esper_dataset_open(&desc, &self->data));
    return esper_single_engine(self->task, config, use, self->data, self->desc->threads, &self->engine);
}

esper_status run_open_network(run *self, const esper_task *task, const esper_config *config, esper_use use)
{
    esper_ranks ranks = ranks_of(self);
    bool many = esper_ranks_are_many(&ranks), alike;
    esper_status status;

    self->task = task;
    status = open_engine(self, config, use);
    if (many) {
        ESPER_TRY(run_settle(self, status));
        ESPER_TRY(esper_pact_check(self->engine, self->desc->grows, ranks.comm));
        status = esper_engine_join(self->engine, ranks.comm);
    }
    if (status == ESPER_OK)
        status = esper_network_add(self->engine, config->seed, &self->network);
    if (!many)
        return status;
    ESPER_TRY(run_settle(self, status));
    ESPER_TRY(esper_ranks_are_alike(&self->engine->ranks, esper_network_hash(self->network), &alike));
    return alike ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "the ranks begin with different weights");
}

esper_status run_check_restored(const run *self, const char *path)
{
    const esper_ranks *ranks = &self->network->engine->ranks;
    bool same_weights, same_step;

    ESPER_TRY(esper_ranks_are_alike(ranks, esper_network_hash(self->network), &same_weights));
    ESPER_TRY(esper_ranks_are_alike(ranks, self->network->cursor.step, &same_step));
    if (same_weights && same_step)
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_CONFIG,
        "the ranks go on from different checkpoints (here it is %s, of step %llu): give all of them the same file "
        "with --resume",
        path, (unsigned long long)self->network->cursor.step);
}

esper_status run_make_dir(run *self, const char *task)
{
    esper_status status = ESPER_OK;

    if (run_writes(self))
        status = esper_run_dir_make(self->desc->config->run_dir, task, self->result.run_dir);
    ESPER_TRY(run_settle(self, status));
    return esper_ranks_share(&self->network->engine->ranks, self->result.run_dir, sizeof(self->result.run_dir));
}

/* ------------------------------------------------------------------------------------------------ stopping */

bool run_is_cut_off(const run *self)
{
    const esper_run_desc *desc = self->desc;

    if (desc->comm == NULL || esper_comm_size(desc->comm) == 1)
        return false;
    return esper_comm_is_broken(desc->comm) || (desc->cut_off != NULL && *desc->cut_off != 0);
}

esper_status run_tell_cut_off(run *self)
{
    if (self->desc->cut_off != NULL && *self->desc->cut_off != 0)
        return ESPER_FAIL(ESPER_E_STOPPED, "the launcher has ended the job");
    return esper_comm_barrier(self->desc->comm); /* broken: it says again what broke it */
}

esper_status run_ask_to_stop(run *self)
{
    uint64_t wanted = self->desc->stop != NULL && *self->desc->stop != 0;

    if (!esper_ranks_are_many(&self->network->engine->ranks))
        return ESPER_OK;
    if (run_is_cut_off(self)) {
        self->stop = 1;
        return run_tell_cut_off(self);
    }
    ESPER_TRY(esper_ranks_any(&self->network->engine->ranks, &wanted));
    self->stop = wanted != 0;
    return ESPER_OK;
}

bool run_stop_wanted(const run *self)
{
    if (esper_ranks_are_many(&self->network->engine->ranks))
        return self->stop != 0;
    return self->desc->stop != NULL && *self->desc->stop != 0;
}

/* ------------------------------------------------------------------------------------------------ agreeing */

static esper_agree_state state_of(const run *self)
{
    esper_network *network = self->network;

    return (esper_agree_state){.table = esper_slots_hash(&network->slots),
                               .sequence = network->cursor.step,
                               .verdict = self->growth != NULL ? esper_growth_verdict(self->growth) : 0,
                               .weights = esper_network_hash(network)};
}

/* Back to where the ranks last agreed, all of them: whether they still do, and none of their copies is damaged. */
static esper_status return_to_agreed(run *self, bool *sound_out)
{
    const esper_ranks *ranks = &self->network->engine->ranks;
    uint64_t failed = self->network->guarded == NULL || esper_guarded_retreat_to_kept(self->network) != ESPER_OK;
    bool same_weights, same_step;

    ESPER_TRY(esper_ranks_any(ranks, &failed));
    ESPER_TRY(esper_ranks_are_alike(ranks, esper_network_hash(self->network), &same_weights));
    ESPER_TRY(esper_ranks_are_alike(ranks, self->network->cursor.step, &same_step));
    *sound_out = failed == 0 && same_weights && same_step;
    return ESPER_OK;
}

/* Saves that state, unless the checkpoint that lies there is of it. */
static esper_status save_agreed(run *self, bool *saved_out)
{
    esper_network *network = self->network;
    esper_status status = ESPER_OK;
    bool is_sound;

    *saved_out = false;
    if (self->desc->replay != NULL)
        return ESPER_OK;
    ESPER_TRY(return_to_agreed(self, &is_sound));
    if (!is_sound || network->cursor.step <= self->saved_step)
        return ESPER_OK;
    if (run_writes(self))
        status = esper_checkpoint_save(network, self->checkpoint);
    ESPER_TRY(esper_ranks_settle(&network->engine->ranks, status));
    self->saved_epoch = network->cursor.epoch;
    self->saved_step = network->cursor.step;
    *saved_out = true;
    return ESPER_OK;
}

/* Whatever becomes of saving, why the run is over comes first. */
static esper_status end_parted(run *self, const esper_agree_result *result)
{
    uint32_t epoch = self->network->cursor.epoch + 1;
    char text[512];
    bool saved;

    esper_agree_text(result, self->network->engine->ranks.size, text, sizeof(text));
    if (save_agreed(self, &saved) != ESPER_OK)
        saved = false;
    return ESPER_FAIL(
        ESPER_E_STATE,
        "epoch %u: %s. The ranks no longer compute the same. The checkpoint of epoch %u, on which they agreed, is "
        "%s: --resume %s",
        epoch, text, self->saved_epoch, saved ? "saved" : "kept", self->result.run_dir);
}

esper_status run_agree(run *self)
{
    const esper_ranks *ranks = &self->network->engine->ranks;
    esper_agree_state state;
    esper_agree_result result;

    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    state = state_of(self);
    ESPER_TRY(esper_agree(ranks->comm, &state, &result));
    return result.fields == 0 ? ESPER_OK : end_parted(self, &result);
}

esper_status run_keep_agreed(run *self)
{
    bool many = esper_ranks_are_many(&self->network->engine->ranks);

    return many && self->network->guarded != NULL ? esper_guarded_keep(self->network) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the end of a job */

esper_status run_rescue(run *self, esper_status status)
{
    const esper_cursor *cursor = &self->network->cursor;
    bool is_sound = status != ESPER_E_STATE; /* ranks that are not at the same call may not have the same state */
    char message[1024];

    if (self->desc->cut_off != NULL && *self->desc->cut_off != 0)
        snprintf(message, sizeof(message), "the launcher has ended the job (Ctrl-C, or it lost a rank)");
    else
        snprintf(message, sizeof(message), "%s", esper_last_error());
    if (!is_sound || self->network->guarded == NULL || self->desc->replay != NULL ||
        esper_guarded_retreat(self->network) != ESPER_OK || cursor->step <= self->saved_step)
        return ESPER_FAIL(status, "%s. The checkpoint of epoch %u is as it was: --resume %s", message,
                          self->saved_epoch, self->result.run_dir);
    if (esper_checkpoint_save(self->network, self->checkpoint) != ESPER_OK)
        return ESPER_FAIL(status, "%s. Nothing could be saved", message);
    return ESPER_FAIL(
        status, "%s. Step %llu, in epoch %u, is saved: --resume %s goes on from there, with as many ranks as you like",
        message, (unsigned long long)cursor->step, cursor->epoch + 1, self->result.run_dir);
}
