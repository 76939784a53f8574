/* The table of slots. */
#include "slot/slots.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>
#ifdef ESPER_XXH_DISPATCH /* the same hash by the widest vectors there are: 0.3 us for ten slots, which ranks wait for */
#include <xxh_x86dispatch.h>
#endif

#include "base/status.h"
#include "slot/slot_id.h"

static esper_status check_boundary(const esper_boundary *boundaries, int k)
{
    const esper_boundary *boundary = &boundaries[k];

    if (!esper_slot_id_fits(boundary->slot, boundary->row, boundary->col) || boundary->order < 0 ||
        boundary->channels <= 0)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: row %d, column %d, order %d, %d channels", boundary->slot,
                          boundary->row, boundary->col, boundary->order, boundary->channels);
    for (int i = 0; i < k; i++)
        if (strcmp(boundaries[i].slot, boundary->slot) == 0 || boundaries[i].order == boundary->order)
            return ESPER_FAIL(ESPER_E_ARG, "slots %s and %s: each needs a name and an order of its own",
                              boundaries[i].slot, boundary->slot);
    return ESPER_OK;
}

esper_status esper_slots_init(esper_slots *slots, const esper_boundary *boundaries, int n_boundaries,
                              const esper_slot_rules *rules)
{
    if (n_boundaries < 1 || n_boundaries > ESPER_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "%d slots: expected 1 to %d", n_boundaries, (int)ESPER_MAX_SLOTS);
    for (int k = 0; k < n_boundaries; k++)
        ESPER_TRY(check_boundary(boundaries, k));
    memset(slots, 0, sizeof(*slots));
    slots->n = n_boundaries;
    for (int k = 0; k < n_boundaries; k++) {
        esper_slot *slot;
        int rank = 0; /* in the policy's order */

        for (int i = 0; i < n_boundaries; i++)
            rank += boundaries[i].order < boundaries[k].order;
        assert(rank < slots->n); /* each has an order of its own */
        slot = &slots->slot[rank];
        memcpy(slot->id, boundaries[k].slot, strlen(boundaries[k].slot));
        slot->row = boundaries[k].row;
        slot->col = boundaries[k].col;
        slot->depth = k;
        slot->channels = boundaries[k].channels;
        slot->permissive = rules->permissive;
        slot->isolate_blending = rules->isolate_blending;
        slot->auto_forward = rules->auto_forward;
        slot->gate_epochs = rules->gate_epochs > 0 ? rules->gate_epochs : ESPER_GATE_MIN_EPOCHS;
        slot->embargo_ticks = rules->embargo_ticks > 0 ? rules->embargo_ticks : ESPER_EMBARGO_TICKS;
        slot->stage = ESPER_STAGE_DORMANT;
    }
    return ESPER_OK;
}

int esper_slots_find(const esper_slots *slots, const char *id)
{
    for (int k = 0; k < slots->n; k++)
        if (strcmp(slots->slot[k].id, id) == 0)
            return k;
    return -1;
}

int esper_slots_behind(const esper_slots *slots, int slot)
{
    const esper_slot *of = &slots->slot[slot];

    for (int k = 0; k < slots->n; k++)
        if (slots->slot[k].row == of->row && slots->slot[k].col == of->col && slots->slot[k].depth == of->depth - 1)
            return k;
    return -1;
}

bool esper_slots_is_open(const esper_slots *slots, int slot)
{
    int behind = esper_slots_behind(slots, slot);

    return behind < 0 || slots->slot[behind].stage == ESPER_STAGE_FOSSILIZED;
}

int esper_slots_count(const esper_slots *slots, uint32_t stages)
{
    int n = 0;

    assert(slots->n >= 0 && slots->n <= ESPER_MAX_SLOTS);
    for (int k = 0; k < slots->n; k++)
        n += (stages >> slots->slot[k].stage & 1u) != 0;
    return n;
}

void esper_slots_sum_neighbours(esper_slots *slots, uint32_t which)
{
    for (int k = 0; k < slots->n; k++) {
        esper_slot *slot = &slots->slot[k];

        if ((which >> k & 1u) == 0)
            continue;
        slot->alpha_upstream = slot->alpha_downstream = 0.0;
        for (int i = 0; i < slots->n; i++) {
            const esper_slot *other = &slots->slot[i];

            if ((which >> i & 1u) != 0 && i != k)
                *(other->depth < slot->depth ? &slot->alpha_upstream : &slot->alpha_downstream) += other->alpha.value;
        }
    }
}

uint64_t esper_slots_hash(const esper_slots *slots)
{
    return XXH3_64bits_withSeed(slots->slot, (size_t)slots->n * sizeof(slots->slot[0]), (uint64_t)slots->n);
}
