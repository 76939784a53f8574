/* What is measured of a seed, and what can be asked of a slot. */
#include <assert.h>
#include <math.h>

#include "base/status.h"
#include "slot/slot.h"

esper_status esper_slot_record_accuracy(esper_slot *slot, double accuracy)
{
    if (!isfinite(accuracy))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: an accuracy of %g", slot->id, accuracy);
    if (!esper_slot_is_active(slot))
        return ESPER_OK;
    if (slot->epochs_total == 0)
        slot->acc_initial = slot->acc_stage = accuracy;
    slot->acc_now = accuracy;
    if (accuracy > slot->acc_best)
        slot->acc_best = accuracy;
    slot->epochs_total++;
    slot->epochs_in_stage++;
    return ESPER_OK;
}

/* A value that is 0 where it is not known, so that equal knowledge is equal bytes. */
static void set_known(esper_slot *slot, uint32_t bit, double value, double *field)
{
    bool known = isfinite(value);

    slot->known = known ? slot->known | bit : slot->known & ~bit;
    *field = known ? value : 0.0;
}

void esper_slot_set_contribution(esper_slot *slot, double contribution)
{
    if (!esper_slot_is_active(slot))
        return;
    if (isfinite(contribution) && (slot->known & ESPER_KNOWN_PREVIOUS) != 0)
        slot->contribution_velocity =
            0.7 * slot->contribution_velocity + 0.3 * (contribution - slot->contribution_previous);
    set_known(slot, ESPER_KNOWN_CONTRIBUTION, contribution, &slot->contribution);
    if (isfinite(contribution))
        set_known(slot, ESPER_KNOWN_PREVIOUS, contribution, &slot->contribution_previous);
}

void esper_slot_clear_interactions(esper_slot *slot)
{
    slot->interaction = slot->boost = slot->alpha_upstream = slot->alpha_downstream = 0.0;
}

void esper_slot_add_interaction(esper_slot *slot, double interaction)
{
    if (!isfinite(interaction) || !esper_slot_is_active(slot))
        return;
    slot->interaction += interaction;
    slot->boost = fmax(slot->boost, interaction);
}

void esper_slot_set_gradient(esper_slot *slot, const esper_slot_gradient *gradient)
{
    bool finite = isfinite(gradient->norm);

    if (!esper_slot_is_active(slot))
        return;
    slot->unhealthy = !finite;
    slot->grad_norm = finite ? gradient->norm : 0.0;
    if (finite)
        slot->grad_norm_avg = 0.9 * slot->grad_norm_avg + 0.1 * gradient->norm;
    set_known(slot, ESPER_KNOWN_HEALTH, gradient->health, &slot->grad_health);
    set_known(slot, ESPER_KNOWN_RATIO, gradient->ratio, &slot->grad_ratio);
    slot->grad_ratio = fmin(slot->grad_ratio, 10.0);
    slot->vanishing = gradient->vanishing;
    slot->exploding = gradient->exploding || !finite;
}

bool esper_slot_is_empty(const esper_slot *slot)
{
    return slot->stage == ESPER_STAGE_DORMANT;
}

bool esper_slot_is_active(const esper_slot *slot)
{
    return esper_stage_has_seed(slot->stage);
}

bool esper_slot_is_frozen(const esper_slot *slot)
{
    return slot->alpha.mode == ESPER_ALPHA_DOWN;
}

int esper_slot_cooldown(const esper_slot *slot)
{
    assert(slot->embargo_ticks >= 0 && slot->epochs_in_stage >= 0);
    switch (slot->stage) {
    case ESPER_STAGE_PRUNED:
        return 1 + slot->embargo_ticks + ESPER_RESET_TICKS;
    case ESPER_STAGE_EMBARGOED:
        return slot->embargo_ticks - slot->epochs_in_stage + ESPER_RESET_TICKS;
    case ESPER_STAGE_RESETTING:
        return ESPER_RESET_TICKS - slot->epochs_in_stage;
    default:
        return 0;
    }
}

double esper_slot_improvement(const esper_slot *slot)
{
    return slot->acc_now - slot->acc_initial;
}

double esper_slot_stage_improvement(const esper_slot *slot)
{
    return slot->acc_now - slot->acc_stage;
}

double esper_slot_alpha_velocity(const esper_slot *slot)
{
    const esper_alpha *alpha = &slot->alpha;

    if (alpha->mode == ESPER_ALPHA_HOLD || alpha->n_steps == 0)
        return 0.0;
    return (alpha->target - alpha->start) / alpha->n_steps;
}
