/* Snapshots of a network, and the way back to them. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "engine/guarded_internal.h"

static const double lr_lowered_by = 0.5;

/* ------------------------------------------------------------------------------------------------ snapshots */

static uint32_t unkept_seeds(const esper_network *network)
{
    uint32_t bits = 0;

    _Static_assert(ESPER_MAX_SLOTS <= 32, "a bit for every slot");
    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_active(&network->slots.slot[k]) && network->slots.slot[k].stage != ESPER_STAGE_FOSSILIZED)
            bits |= 1u << k;
    return bits;
}

/* Before the first step of an epoch and every so many steps; put off while something is not yet judged. */
bool guarded_snapshot_due(const esper_guarded *guarded)
{
    const esper_cursor *now = &guarded->network->cursor, *last = &guarded->taken[0].cursor;

    if (esper_guarded_reading(guarded->network).pending)
        return false;
    return guarded->n_taken == 0 || now->epoch != last->epoch ||
           now->step - last->step >= (uint64_t)guarded->network->engine->config.snapshot_every;
}

/* What is known now, beside what lies in a ring. */
void guarded_remember(const esper_guarded *guarded, taken *now)
{
    const esper_detour *detour = &guarded->network->detour;

    now->cursor = guarded->network->cursor;
    now->unkept = unkept_seeds(guarded->network);
    now->n_passed = detour->n_passed;
    now->draw = detour->draw;
    now->lr_scale = detour->lr_scale;
    now->n_vitals = esper_governor_memory_count(guarded->governor);
    assert(now->n_vitals <= MOST_VITALS);
    esper_governor_pack(guarded->governor, now->vitals);
}

static esper_status take_into(esper_guarded *guarded, esper_ring *ring, bool *good_out)
{
    const esper_network *network = guarded->network;
    esper_ring_status status;

    assert(!esper_network_has_unread(network));
    esper_network_position(network, guarded->blob);
    if (network->companion.pack != NULL)
        network->companion.pack(network->companion.context, (char *)guarded->blob + sizeof(esper_position));
    ESPER_TRY(esper_ring_take(ring, network->cursor.step, guarded->blob, guarded->blob_bytes));
    ESPER_TRY(esper_ring_status_get(ring, 1, &status));
    *good_out = status.newest == ESPER_RING_GOOD;
    return ESPER_OK;
}

esper_status guarded_take_snapshot(esper_guarded *guarded)
{
    bool good;

    ESPER_TRY(take_into(guarded, guarded->ring, &good));
    if (!good)
        return ESPER_OK; /* spoiled since the scan just before: the next one will say so */
    memmove(&guarded->taken[1], &guarded->taken[0], (N_SNAPSHOTS - 1) * sizeof(guarded->taken[0]));
    guarded->n_taken += guarded->n_taken < N_SNAPSHOTS;
    guarded->taken[0].cursor = guarded->network->cursor;
    if (guarded->kept_ring == NULL) /* else what is kept counts on all that were passed over before it */
        esper_network_forget_before(guarded->network, &guarded->taken[guarded->n_taken - 1].cursor);
    ESPER_TRY(esper_governor_snapshot(guarded->governor, guarded->network->cursor.step));
    guarded_remember(guarded, &guarded->taken[0]);
    return ESPER_OK;
}

esper_status esper_guarded_keep(esper_network *network)
{
    esper_guarded *guarded = network->guarded;
    bool good;

    ESPER_TRY(esper_network_read(network));
    if (esper_guarded_reading(network).pending)
        return ESPER_OK; /* what was kept before is of a state that nobody doubts */
    if (guarded->kept_ring == NULL)
        ESPER_TRY(guarded_open_ring(guarded, &guarded->kept_ring));
    ESPER_TRY(esper_network_wait(network));
    ESPER_TRY(take_into(guarded, guarded->kept_ring, &good));
    if (good)
        guarded_remember(guarded, &guarded->kept);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ going back */

/* What follows a restore goes another way than before: it passes over what may have done the damage, or, when the vital
 * signs panicked, meets the samples in another order. */
static esper_status take_detour(esper_guarded *guarded, const esper_incident *incident)
{
    esper_network *network = guarded->network;

    if (incident->action == ESPER_GOVERNOR_PRUNE)
        network->detour.lr_scale *= lr_lowered_by;
    if (incident->reason != ESPER_GOVERNOR_SCAN)
        esper_network_redraw(network, network->detour.draw + 1);
    else if (guarded->has_suspect)
        return esper_network_pass_over(network, guarded->suspect.epoch, guarded->suspect.batch);
    return ESPER_OK;
}

/* The snapshots that are still ahead of us will not be gone back to. */
static void forget_newer(esper_guarded *guarded, const esper_cursor *cursor)
{
    while (guarded->n_taken > 0 && memcmp(&guarded->taken[0].cursor, cursor, sizeof(*cursor)) != 0)
        memmove(&guarded->taken[0], &guarded->taken[1], (size_t)--guarded->n_taken * sizeof(guarded->taken[0]));
}

/* The rest of a snapshot: where the run stood, what the network was, and what a companion knew then. */
static esper_status put_back(esper_guarded *guarded, const void *blob, bool whole, esper_cursor *cursor_out)
{
    esper_network *network = guarded->network;

    memcpy(guarded->blob, blob, guarded->blob_bytes);
    ESPER_TRY(esper_network_go_back(network, guarded->blob));
    if (network->companion.pack != NULL)
        ESPER_TRY(network->companion.unpack(network->companion.context, (char *)guarded->blob + sizeof(esper_position),
                                            whole));
    *cursor_out = network->cursor;
    ESPER_TRY(guarded_lower_flag(guarded));
    return guarded_remember_sums(guarded);
}

/* Puts the newest good snapshot back. That there is none, or none that is whole, is a finding and ends the run; it is not
 * this call that failed. */
esper_status guarded_go_back(esper_guarded *guarded, esper_incident *incident)
{
    esper_ring_restored restored;
    bool found, alike;

    ESPER_TRY(esper_network_wait(guarded->network)); /* the ring writes where launches do */
    found = esper_ring_rollback(guarded->ring, 1, &restored) == ESPER_OK && restored.blob_bytes == guarded->blob_bytes;
    snprintf(incident->failure, sizeof(incident->failure), "%s", found ? "" : esper_last_error());
    ESPER_TRY(esper_ranks_are_alike(&guarded->network->engine->ranks, found ? restored.step : UINT64_MAX, &alike));
    if (!alike)
        snprintf(incident->failure, sizeof(incident->failure), "snapshots of some ranks are damaged and others not");
    if (!found || !alike) {
        incident->action = ESPER_GOVERNOR_STOP;
        return esper_governor_rolled_back(guarded->governor, 0, 1);
    }
    ESPER_TRY(put_back(guarded, restored.blob, false, &incident->to));
    forget_newer(guarded, &incident->to);
    ESPER_TRY(esper_governor_unpack_history(guarded->governor, guarded->taken[0].vitals, guarded->taken[0].n_vitals));
    incident->unkept = unkept_seeds(guarded->network);
    incident->restored = true;
    incident->n_damaged = restored.n_passed_over;
    incident->seconds = restored.seconds;
    ESPER_TRY(take_detour(guarded, incident));
    guarded->has_suspect = false;
    if (incident->action != ESPER_GOVERNOR_STOP)
        return esper_governor_rolled_back(guarded->governor, restored.step, 0);
    esper_network_drop_part(guarded->network, "governor"); /* it has given up: who goes on begins with another */
    return ESPER_OK;
}

/* To what a ring's newest snapshot should be. */
static esper_status retreat_to(esper_guarded *guarded, esper_ring *ring, const taken *then)
{
    esper_network *network = guarded->network;
    esper_detour *detour = &network->detour;
    esper_ring_restored restored;
    esper_cursor cursor;

    ESPER_TRY(esper_network_wait(network));
    ESPER_TRY(esper_ring_rollback(ring, 1, &restored));
    if (restored.blob_bytes != guarded->blob_bytes)
        return ESPER_FAIL(ESPER_E_STATE, "the snapshot is not one of this run's");
    ESPER_TRY(put_back(guarded, restored.blob, true, &cursor));
    if (memcmp(&then->cursor, &cursor, sizeof(cursor)) != 0)
        return ESPER_FAIL(ESPER_E_STATE, "the newest snapshot is damaged");
    detour->n_passed = then->n_passed; /* since then they were added alone */
    detour->lr_scale = then->lr_scale;
    esper_network_redraw(network, then->draw);
    return esper_governor_unpack(guarded->governor, then->vitals, then->n_vitals);
}

esper_status esper_guarded_retreat(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded->n_taken == 0)
        return ESPER_FAIL(ESPER_E_STATE, "there is no snapshot");
    return retreat_to(guarded, guarded->ring, &guarded->taken[0]);
}

esper_status esper_guarded_retreat_to_kept(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded->kept_ring == NULL)
        return ESPER_FAIL(ESPER_E_STATE, "the ranks have not agreed yet");
    return retreat_to(guarded, guarded->kept_ring, &guarded->kept);
}
