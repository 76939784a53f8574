/* What a sound slot looks like, stage by stage. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "slot/slot.h"
#include "slot/slot_id.h"

/* Ends the check with its words unless the condition holds. */
#define DEMAND(condition, words) \
    do {                         \
        if (!(condition))        \
            return (words);      \
    } while (0)

static bool is_flag(int32_t value)
{
    return value == 0 || value == 1;
}

/* Zero-terminated, and zeros behind. */
static bool is_text(const char *field, size_t chars)
{
    for (size_t i = strnlen(field, chars); i < chars; i++)
        if (field[i] != '\0')
            return false;
    return field[chars - 1] == '\0';
}

static bool is_share(double value)
{
    return value >= 0.0 && value <= 1.0;
}

static const char *fault_of_settings(const esper_slot *slot)
{
    DEMAND(is_text(slot->id, sizeof(slot->id)) && esper_slot_id_fits(slot->id, slot->row, slot->col),
           "its name is none, or not that of its row and column");
    DEMAND(slot->depth >= 0 && slot->channels > 0, "its depth or number of channels is out of range");
    DEMAND(is_flag(slot->permissive) && is_flag(slot->isolate_blending), "a setting is neither 0 nor 1");
    DEMAND(slot->gate_epochs > 0 && slot->embargo_ticks > 0, "a setting is no number of epochs");
    DEMAND((slot->auto_forward & ~(1u << ESPER_GATE_G1 | 1u << ESPER_GATE_G2 | 1u << ESPER_GATE_G3)) == 0,
           "a gate that no tick can pass is to be passed by ticks");
    DEMAND(slot->n_seeds >= 0, "a negative number of seeds");
    return NULL;
}

static const char *fault_of_alpha(const esper_slot *slot)
{
    const esper_alpha *alpha = &slot->alpha;
    bool rests = alpha->mode == ESPER_ALPHA_HOLD && alpha->value == alpha->target;

    DEMAND(is_share(alpha->value) && is_share(alpha->start) && is_share(alpha->target), "alpha is not in 0..1");
    DEMAND(isfinite(alpha->steepness) && alpha->steepness >= 0.1, "alpha's steepness is out of range");
    DEMAND(esper_alpha_mode_name(alpha->mode) != NULL, "alpha's mode is none");
    DEMAND(esper_alpha_curve_name(alpha->curve) != NULL, "alpha's curve is none");
    DEMAND(alpha->n_done >= 0 && alpha->n_done <= alpha->n_steps, "alpha's steps are out of range");
    DEMAND(alpha->mode == ESPER_ALPHA_HOLD || alpha->n_done < alpha->n_steps, "alpha has arrived, yet moves");
    DEMAND(alpha->mode != ESPER_ALPHA_UP || alpha->target > alpha->start, "alpha goes up to something lower");
    DEMAND(alpha->mode != ESPER_ALPHA_DOWN || alpha->target < alpha->start, "alpha goes down to something higher");
    /* where it stands, by stage */
    if (slot->stage == ESPER_STAGE_HOLDING || slot->stage == ESPER_STAGE_FOSSILIZED)
        DEMAND(rests && alpha->value == 1.0, "a seed that holds has not its full weight");
    else if (slot->stage != ESPER_STAGE_BLENDING)
        DEMAND(rests && alpha->value == 0.0 && alpha->n_steps == 0, "a seed that is not blended has weight");
    DEMAND(!slot->prune_pending ||
               (slot->stage == ESPER_STAGE_BLENDING && alpha->mode == ESPER_ALPHA_DOWN && alpha->target == 0.0),
           "a prune is due without a way to 0");
    return NULL;
}

static const char *fault_of_seed(const esper_slot *slot)
{
    DEMAND(slot->n_seeds > 0, "a seed that never germinated");
    DEMAND(is_text(slot->seed_id, sizeof(slot->seed_id)) && slot->seed_id[0] != '\0', "its seed has no name");
    DEMAND(is_text(slot->blueprint, sizeof(slot->blueprint)) && slot->blueprint[0] != '\0' &&
               slot->blueprint_index >= 0,
           "its seed has no blueprint");
    DEMAND(slot->blend >= ESPER_BLEND_ADD && slot->blend <= ESPER_BLEND_GATE, "its blend is none");
    DEMAND(esper_ramp_name(slot->ramp) != NULL && slot->tempo > 0, "its ramp is none");
    DEMAND(esper_birth_name(slot->birth) != NULL, "its birth is none");
    DEMAND(slot->target > 0.0 && slot->target <= 1.0, "its target is not in 0..1");
    DEMAND(slot->host_params >= 0 && slot->seed_params >= 0 && slot->gate_params >= 0, "parameters below 0");
    DEMAND(is_flag(slot->prune_pending) && is_flag(slot->auto_pruned), "a flag of its prune is neither 0 nor 1");
    DEMAND(!slot->auto_pruned || esper_stage_cools_down(slot->stage), "it is auto-pruned and alive");
    DEMAND(is_text(slot->prune_reason, sizeof(slot->prune_reason)) &&
               is_text(slot->prune_initiator, sizeof(slot->prune_initiator)),
           "the reason of its prune is no text");
    return NULL;
}

static const char *fault_of_history(const esper_slot *slot)
{
    int n = slot->n_history, first = n > ESPER_SLOT_HISTORY ? n - ESPER_SLOT_HISTORY : 0;
    const esper_slot_past *now, *before = NULL;

    for (int i = first; i < n; i++) {
        now = &slot->history[i % ESPER_SLOT_HISTORY];
        DEMAND(now->tick >= 0 && now->tick <= slot->n_ticks, "its history is out of time");
        DEMAND(i == 0           ? now->stage == ESPER_STAGE_GERMINATED
               : before == NULL ? esper_stage_name(now->stage) != NULL /* the one before is no longer kept */
                                : esper_stage_may_move(before->stage, now->stage) && before->tick <= now->tick,
               "its history has a move that is none");
        before = now;
    }
    for (int i = n < 0 ? 0 : n; i < ESPER_SLOT_HISTORY; i++)
        DEMAND(slot->history[i].stage == 0 && slot->history[i].tick == 0, "its history knows the future");
    DEMAND(before != NULL && before->stage == slot->stage, "its history does not end in its stage");
    DEMAND(esper_stage_may_move(slot->previous_stage, slot->stage), "its stage cannot follow the one before");
    return NULL;
}

static const char *fault_of_readings(const esper_slot *slot)
{
    bool was_blended = slot->blending_started != 0;

    DEMAND(slot->n_ticks >= 0 && slot->epochs_in_stage >= 0 && slot->epochs_in_stage <= slot->epochs_total &&
               slot->previous_epochs_in_stage >= 0 && slot->previous_epochs_in_stage <= slot->epochs_total,
           "its counters are out of range");
    DEMAND(slot->stage != ESPER_STAGE_EMBARGOED || slot->epochs_in_stage < slot->embargo_ticks, "it rests too long");
    DEMAND(slot->stage != ESPER_STAGE_RESETTING || slot->epochs_in_stage < ESPER_RESET_TICKS, "it resets too long");
    /* the doubles lie side by side: see the static assertion of slots_pack.c, which has them all */
    for (const double *reading = &slot->acc_initial; reading <= &slot->alpha_downstream; reading++)
        DEMAND(isfinite(*reading), "a reading is not finite");
    DEMAND((slot->known &
            ~(uint32_t)(ESPER_KNOWN_RATIO | ESPER_KNOWN_HEALTH | ESPER_KNOWN_CONTRIBUTION | ESPER_KNOWN_PREVIOUS)) == 0,
           "something unheard of is known");
    DEMAND((slot->known & ESPER_KNOWN_RATIO || slot->grad_ratio == 0.0) &&
               (slot->known & ESPER_KNOWN_HEALTH || slot->grad_health == 0.0) &&
               (slot->known & ESPER_KNOWN_CONTRIBUTION || slot->contribution == 0.0) &&
               (slot->known & ESPER_KNOWN_PREVIOUS || slot->contribution_previous == 0.0),
           "a reading that was never taken is not 0");
    DEMAND(is_flag(slot->blending_started) && is_flag(slot->vanishing) && is_flag(slot->exploding) &&
               is_flag(slot->unhealthy),
           "a flag is neither 0 nor 1");
    DEMAND(was_blended || !(slot->stage == ESPER_STAGE_BLENDING || slot->stage == ESPER_STAGE_HOLDING ||
                            slot->stage == ESPER_STAGE_FOSSILIZED),
           "it is blended and never began to be");
    DEMAND(!was_blended || (slot->stage != ESPER_STAGE_GERMINATED && slot->stage != ESPER_STAGE_TRAINING),
           "it began to be blended too early");
    return NULL;
}

const char *esper_slot_fault(const esper_slot *slot)
{
    const char *bytes = (const char *)slot, *fault = fault_of_settings(slot);

    if (fault != NULL)
        return fault;
    DEMAND(esper_stage_name(slot->stage) != NULL && slot->stage != ESPER_STAGE_UNKNOWN, "its stage is none");
    if (slot->stage == ESPER_STAGE_DORMANT) {
        for (size_t i = offsetof(esper_slot, previous_stage); i < sizeof(*slot); i++)
            DEMAND(bytes[i] == 0, "an empty slot remembers a seed");
        return NULL;
    }
    if ((fault = fault_of_seed(slot)) != NULL || (fault = fault_of_alpha(slot)) != NULL ||
        (fault = fault_of_readings(slot)) != NULL)
        return fault;
    return fault_of_history(slot);
}
