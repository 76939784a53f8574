/* Slots in any stage: germinated, measured, advanced, as in a run. */
#include "support/grown_slots.h"

#include "base/status.h"

enum { EPOCHS_TO_BLEND = 10 };

static esper_status advance(esper_slot *slot)
{
    esper_gate_result result;

    ESPER_TRY(esper_slot_advance(slot, -1, NULL, NULL, &result));
    if (!result.passed)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: a gate closed in %s", slot->id, esper_stage_name(slot->stage));
    return ESPER_OK;
}

static esper_status germinate(esper_slot *slot, const grown_seed *seed)
{
    esper_germination wanted;

    esper_germination_init(&wanted, seed->blueprint, 1);
    wanted.blend = seed->blend != 0 ? seed->blend : ESPER_BLEND_ADD;
    wanted.ramp = wanted.blend == ESPER_BLEND_GATE ? ESPER_RAMP_GATED : ESPER_RAMP_LINEAR;
    wanted.tempo = 1;
    slot->isolate_blending = seed->isolated;
    return esper_slot_germinate(slot, &wanted, NULL);
}

static esper_status learn_and_blend(esper_slot *slot)
{
    for (int i = 0; i < EPOCHS_TO_BLEND; i++)
        ESPER_TRY(esper_slot_record_accuracy(slot, 50.0));
    esper_slot_set_gradient(slot, &(esper_slot_gradient){.norm = 1.0, .health = 1.0, .ratio = 1.0});
    return advance(slot);
}

static esper_status cool_down(esper_slot *slot, int stage)
{
    ESPER_TRY(esper_slot_prune(slot, "test", NULL, NULL));
    for (int i = 0; slot->stage != stage && i < 2 * ESPER_EMBARGO_TICKS; i++)
        esper_slot_tick(slot, NULL, NULL);
    return ESPER_OK;
}

/* On from BLENDING. */
static esper_status settle(esper_slot *slot, const grown_seed *seed)
{
    esper_gate_result result;

    if (seed->stage == ESPER_STAGE_BLENDING) {
        slot->alpha.value = seed->alpha;
        return ESPER_OK;
    }
    esper_slot_tick(slot, NULL, NULL);
    ESPER_TRY(advance(slot));
    if (seed->stage != ESPER_STAGE_FOSSILIZED)
        return ESPER_OK;
    esper_slot_set_contribution(slot, 5.0);
    return esper_slot_fossilize(slot, NULL, NULL, &result);
}

esper_status grown_slot(esper_slot *slot, const grown_seed *seed)
{
    ESPER_TRY(germinate(slot, seed));
    if (esper_stage_cools_down(seed->stage)) {
        ESPER_TRY(cool_down(slot, seed->stage));
    } else if (seed->stage != ESPER_STAGE_GERMINATED) {
        ESPER_TRY(advance(slot));
        if (seed->stage != ESPER_STAGE_TRAINING) {
            ESPER_TRY(learn_and_blend(slot));
            ESPER_TRY(settle(slot, seed));
        }
    }
    if (slot->stage != seed->stage || esper_slot_fault(slot) != NULL)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s is in stage %d, not %d: %s", slot->id, slot->stage, seed->stage,
                          esper_slot_fault(slot) != NULL ? esper_slot_fault(slot) : "sound");
    return ESPER_OK;
}

esper_status grown_slots(esper_slots *slots, const esper_host *host, const grown_seed *seeds)
{
    esper_slot_rules rules = {.permissive = true};
    esper_status status;
    esper_net net;

    esper_net_init(&net);
    status = esper_host_build(host, &net);
    if (status == ESPER_OK)
        status = esper_slots_init(slots, net.boundaries, net.n_boundaries, &rules);
    esper_net_fini(&net);
    for (; status == ESPER_OK && seeds != NULL && seeds->slot != NULL; seeds++) {
        int k = esper_slots_find(slots, seeds->slot);

        status = k < 0 ? ESPER_FAIL(ESPER_E_ARG, "no slot %s", seeds->slot) : grown_slot(&slots->slot[k], seeds);
    }
    return status;
}
