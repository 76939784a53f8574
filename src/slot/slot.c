/* The life of a seed: moves, and the operations that lead to them. */
#include "slot/slot.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* --------------------------------------------------------------------------------------------------------- events */

/* Fills text of a record: cut to fit, zero behind its end, so that equal texts are equal bytes. */
static void set_text(char *field, size_t chars, const char *text)
{
    size_t n = strnlen(text, chars - 1);

    assert(chars > 0 && text != field);
    memset(field, 0, chars);
    memcpy(field, text, n);
}

/* An event with what every kind of it tells of a slot as it is now. */
static esper_slot_event describe(const esper_slot *slot, esper_slot_event_kind kind, int to)
{
    esper_slot_event event;

    memset(&event, 0, sizeof(event));
    event.kind = kind;
    set_text(event.slot, sizeof(event.slot), slot->id);
    set_text(event.seed_id, sizeof(event.seed_id), slot->seed_id);
    set_text(event.blueprint, sizeof(event.blueprint), slot->blueprint);
    event.number = slot->n_seeds;
    event.from = slot->stage;
    event.to = to;
    event.alpha = slot->alpha.value;
    event.improvement = esper_stage_cools_down(slot->stage) ? 0.0 : esper_slot_improvement(slot);
    event.contribution = slot->known & ESPER_KNOWN_CONTRIBUTION ? slot->contribution : (double)NAN;
    event.gradient_ratio = slot->known & ESPER_KNOWN_RATIO ? slot->grad_ratio : (double)NAN;
    event.vanishing = slot->vanishing;
    event.exploding = slot->exploding;
    event.epochs_total = slot->epochs_total;
    event.epochs_in_stage = slot->epochs_in_stage;
    event.ramp = slot->ramp;
    event.tempo = slot->tempo;
    event.params = slot->seed_params + slot->gate_params;
    return event;
}

static void push(esper_slot_events *events, const esper_slot_event *event)
{
    if (events == NULL)
        return;
    if (events->n < events->capacity)
        events->events[events->n++] = *event;
    else
        events->n_dropped++;
}

/* ---------------------------------------------------------------------------------------------------------- moves */

const char *esper_ramp_name(int ramp)
{
    static const char *const names[] = {
#define X(name, code, text) [code] = text,
        ESPER_RAMP_LIST(X)
#undef X
    };

    return ramp > 0 && ramp < (int)(sizeof(names) / sizeof(names[0])) ? names[ramp] : NULL;
}

int esper_ramp_find(const char *name)
{
    for (int ramp = 1; esper_ramp_name(ramp) != NULL; ramp++)
        if (strcmp(name, esper_ramp_name(ramp)) == 0)
            return ramp;
    return -1;
}

/* What entering a stage brings. Cannot fail. */
static void enter(esper_slot *slot, int from, int to)
{
    esper_alpha_ramp ramp = {.n_steps = slot->tempo,
                             .curve = slot->ramp == ESPER_RAMP_SIGMOID ? ESPER_CURVE_SIGMOID : ESPER_CURVE_LINEAR};
    size_t begin = offsetof(esper_slot, stage);
    esper_status status;

    assert(slot->stage == to && esper_stage_may_move(from, to));
    if (from == ESPER_STAGE_TRAINING && to == ESPER_STAGE_BLENDING) {
        assert(slot->tempo >= 1 && slot->target > 0.0 && slot->target <= 1.0);
        esper_alpha_init(&slot->alpha);
        status = esper_alpha_retarget(&slot->alpha, slot->target, &ramp);
        assert(status == ESPER_OK); /* at rest at 0, and the target was checked when the seed germinated */
        (void)status;
        slot->acc_blending = slot->acc_now;
        slot->blending_started = 1;
    }
    if (to == ESPER_STAGE_HOLDING)
        esper_alpha_settle(&slot->alpha, 1.0, slot->alpha.n_steps);
    if (to == ESPER_STAGE_PRUNED) {
        esper_alpha_settle(&slot->alpha, 0.0, 0);
        slot->prune_pending = 0;
    }
    if (to == ESPER_STAGE_DORMANT) { /* nothing is left of the seed; the slot itself stays */
        memset((char *)slot + begin, 0, sizeof(*slot) - begin);
        slot->stage = ESPER_STAGE_DORMANT;
    }
}

esper_status esper_slot_move(esper_slot *slot, int to, esper_slot_events *events)
{
    int from = slot->stage;
    esper_slot_event event;

    if (!esper_stage_may_move(from, to))
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: from %s there is no way to %s", slot->id, esper_stage_name(from),
                          esper_stage_name(to) != NULL ? esper_stage_name(to) : "a stage of that number");
    event = describe(slot, to == ESPER_STAGE_GERMINATED ? ESPER_SLOT_EVENT_GERMINATED : ESPER_SLOT_EVENT_STAGE, to);
    slot->previous_stage = from;
    slot->previous_epochs_in_stage = slot->epochs_in_stage;
    slot->stage = to;
    slot->history[slot->n_history++ % ESPER_SLOT_HISTORY] = (esper_slot_past){to, slot->n_ticks};
    slot->acc_stage = slot->acc_now;
    slot->epochs_in_stage = 0;
    enter(slot, from, to);
    if (to != ESPER_STAGE_PRUNED)
        event.alpha = slot->alpha.value;
    push(events, &event);
    assert(esper_slot_fault(slot) == NULL);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------ germination */

void esper_germination_init(esper_germination *wanted, const char *blueprint, int blueprint_index)
{
    *wanted = (esper_germination){.blueprint = blueprint,
                                  .blueprint_index = blueprint_index,
                                  .ramp = ESPER_RAMP_SIGMOID,
                                  .tempo = 5,
                                  .blend = ESPER_BLEND_ADD,
                                  .target = 1.0};
}

static bool is_blend(int blend)
{
    return blend >= ESPER_BLEND_ADD && blend <= ESPER_BLEND_GATE;
}

esper_status esper_slot_check_germinate(const esper_slot *slot, const esper_germination *wanted)
{
    const char *seed_id = wanted->seed_id != NULL ? wanted->seed_id : "";

    if (wanted->blueprint == NULL || wanted->blueprint[0] == '\0' || wanted->blueprint_index < 0)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: a seed needs a blueprint", slot->id);
    if (strlen(wanted->blueprint) >= ESPER_BLUEPRINT_CHARS || strlen(seed_id) >= ESPER_SEED_ID_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: blueprint \"%.40s\", seed \"%.60s\": at most %d and %d characters",
                          slot->id, wanted->blueprint, seed_id, ESPER_BLUEPRINT_CHARS - 1, ESPER_SEED_ID_CHARS - 1);
    if (wanted->host_params < 0 || wanted->seed_params < 0 || wanted->gate_params < 0)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: a negative number of parameters", slot->id);
    if (!(wanted->target > 0.0 && wanted->target <= 1.0))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: alpha target %g: expected above 0, up to 1", slot->id, wanted->target);
    if (esper_ramp_name(wanted->ramp) == NULL || !is_blend(wanted->blend))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: there is no ramp %d or no blend %d", slot->id, wanted->ramp,
                          wanted->blend);
    if ((wanted->ramp == ESPER_RAMP_GATED) != (wanted->blend == ESPER_BLEND_GATE))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: the gated ramp goes with the gated blend, and only with it", slot->id);
    if (esper_birth_name(wanted->birth) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: there is no birth %d", slot->id, wanted->birth);
    if (wanted->tempo < 1)
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: a tempo of %d ticks: expected 1 or more", slot->id, wanted->tempo);
    if (slot->stage != ESPER_STAGE_DORMANT)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s is not empty: %s", slot->id, esper_stage_name(slot->stage));
    return ESPER_OK;
}

esper_status esper_slot_germinate(esper_slot *slot, const esper_germination *wanted, esper_slot_events *events)
{
    ESPER_TRY(esper_slot_check_germinate(slot, wanted));
    esper_alpha_init(&slot->alpha);
    slot->n_seeds++;
    set_text(slot->blueprint, sizeof(slot->blueprint), wanted->blueprint);
    if (wanted->seed_id != NULL && wanted->seed_id[0] != '\0')
        set_text(slot->seed_id, sizeof(slot->seed_id), wanted->seed_id);
    else
        snprintf(slot->seed_id, sizeof(slot->seed_id), "%s-%s", slot->id, wanted->blueprint);
    slot->blueprint_index = wanted->blueprint_index;
    slot->blend = wanted->blend;
    slot->ramp = wanted->ramp;
    slot->tempo = wanted->tempo;
    slot->birth = wanted->birth;
    slot->target = wanted->target;
    slot->host_params = wanted->host_params;
    slot->seed_params = wanted->seed_params;
    slot->gate_params = wanted->gate_params;
    return esper_slot_move(slot, ESPER_STAGE_GERMINATED, events);
}

esper_status esper_slot_plant(esper_slot *slot, const esper_blueprint *blueprint, const char *how, int birth,
                              int64_t seed_params, int64_t gate_params)
{
    static const int stages[] = {ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING, ESPER_STAGE_HOLDING,
                                 ESPER_STAGE_FOSSILIZED};
    esper_germination wanted;
    int blend = esper_blend_find(how);

    if (blend < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "slot %s: no operator is called '%s': there are add, multiply, gate",
                          slot->id, how);
    esper_germination_init(&wanted, blueprint->name, blueprint->index);
    wanted.blend = blend;
    wanted.birth = birth;
    wanted.ramp = blend == ESPER_BLEND_GATE ? ESPER_RAMP_GATED : ESPER_RAMP_LINEAR;
    wanted.seed_params = seed_params;
    wanted.gate_params = blend == ESPER_BLEND_GATE ? gate_params : 0;
    if (seed_params < -1)
        return ESPER_FAIL(ESPER_E_CONFIG, "slot %s: %s cannot be built for a width of %d", slot->id, blueprint->name,
                          (int)slot->channels);
    if (seed_params < 0 || wanted.gate_params < 0)
        return ESPER_FAIL(ESPER_E_NOMEM, "slot %s", slot->id);
    ESPER_TRY(esper_slot_germinate(slot, &wanted, NULL));
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        ESPER_TRY(esper_slot_move(slot, stages[i], NULL));
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- advance */

/* What a gate looks at. merits may be NULL: plain numbers. */
static void fill_input(const esper_slot *slot, const esper_slot_merits *merits, esper_gate_input *input_out)
{
    bool has_contribution = (slot->known & ESPER_KNOWN_CONTRIBUTION) != 0;

    *input_out = (esper_gate_input){
        .permissive = slot->permissive != 0,
        .seed_id = slot->seed_id,
        .blueprint = slot->blueprint,
        .stage = slot->stage,
        .epochs_in_stage = slot->epochs_in_stage,
        .min_epochs = slot->gate_epochs,
        .improvement = {.value = esper_slot_stage_improvement(slot), .how = ESPER_MERIT_PLAIN},
        .contribution = {.value = slot->contribution, .how = has_contribution ? ESPER_MERIT_PLAIN : ESPER_MERIT_NONE},
        .has_gradient_ratio = (slot->known & ESPER_KNOWN_RATIO) != 0,
        .has_gradient_health = (slot->known & ESPER_KNOWN_HEALTH) != 0,
        .gradient_ratio = slot->grad_ratio,
        .gradient_health = slot->grad_health,
        .exploding = slot->exploding != 0,
        .healthy = slot->unhealthy == 0,
        .alpha = slot->alpha.value,
        .alpha_target = slot->alpha.target,
        .alpha_mode = slot->alpha.mode,
    };
    if (merits != NULL) {
        input_out->improvement = merits->improvement;
        input_out->contribution = merits->contribution;
    }
}

esper_status esper_slot_advance(esper_slot *slot, int to, const esper_slot_merits *merits, esper_slot_events *events,
                                esper_gate_result *result_out)
{
    int target = to >= 0 ? to : esper_stage_next(slot->stage);
    bool active = esper_slot_is_active(slot);
    esper_slot_event event, fossil;
    esper_gate_input input;

    if (!active || target < 0) {
        esper_gate_refuse(ESPER_GATE_G0, active ? "no_valid_transition" : "no_active_seed", result_out);
        return ESPER_OK;
    }
    fill_input(slot, merits, &input);
    if (!esper_gate_judge(esper_gate_before(target), &input, result_out))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: no gate leads to %s", slot->id,
                          esper_stage_name(target) != NULL ? esper_stage_name(target) : "a stage of that number");
    event = describe(slot, ESPER_SLOT_EVENT_GATE, target);
    event.gate = *result_out;
    push(events, &event);
    if (!result_out->passed)
        return ESPER_OK;
    fossil = describe(slot, ESPER_SLOT_EVENT_FOSSILIZED, target); /* its figures are those before the move */
    if (!esper_stage_may_move(slot->stage, target))
        esper_gate_refuse(result_out->gate, "transition_failed", result_out);
    else if (esper_slot_move(slot, target, events) == ESPER_OK && target == ESPER_STAGE_FOSSILIZED)
        push(events, &fossil);
    return ESPER_OK;
}

esper_status esper_slot_join(esper_slot *slot, const esper_merit *gain, esper_slot_events *events,
                             esper_gate_result *result_out)
{
    esper_slot_merits merits = {.improvement = *gain};

    assert(gain->how == ESPER_MERIT_FORKS);
    if (slot->stage != ESPER_STAGE_GERMINATED)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: only a seed that has just germinated joins, this one is %s",
                          slot->id, esper_stage_name(slot->stage));
    ESPER_TRY(esper_slot_advance(slot, ESPER_STAGE_TRAINING, &merits, events, result_out));
    if (result_out->passed)
        ESPER_TRY(esper_slot_advance(slot, ESPER_STAGE_BLENDING, &merits, events, result_out));
    return result_out->passed ? esper_slot_move(slot, ESPER_STAGE_HOLDING, events) : ESPER_OK;
}

esper_status esper_slot_fossilize(esper_slot *slot, const esper_slot_merits *merits, esper_slot_events *events,
                                  esper_gate_result *result_out)
{
    if (slot->stage != ESPER_STAGE_HOLDING)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: only a holding seed is fossilised, this one is %s", slot->id,
                          esper_stage_name(slot->stage));
    return esper_slot_advance(slot, ESPER_STAGE_FOSSILIZED, merits, events, result_out);
}

/* ------------------------------------------------------------------------------------------------------------ alpha */

esper_status esper_slot_set_alpha_target(esper_slot *slot, double target, const esper_alpha_ramp *ramp, int blend,
                                         esper_slot_events *events)
{
    esper_alpha alpha = slot->alpha;
    bool holds = slot->stage == ESPER_STAGE_HOLDING;

    if (!(target > 0.0))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: alpha target %g: expected above 0; to remove a seed, prune it",
                          slot->id, target);
    if (blend != 0 && !is_blend(blend))
        return ESPER_FAIL(ESPER_E_ARG, "slot %s: there is no blend %d", slot->id, blend);
    if (slot->stage != ESPER_STAGE_BLENDING && !holds)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: a seed that is %s has no alpha target", slot->id,
                          esper_stage_name(slot->stage));
    if (blend != 0 && blend != slot->blend && slot->alpha.value > 0.0)
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: the blend can change only at alpha 0, which is %g now", slot->id,
                          slot->alpha.value);
    if (holds && target >= 1.0 - ESPER_ALPHA_NEAR)
        target = 1.0; /* holding is full alpha, and does not tick */
    ESPER_TRY(esper_alpha_retarget(&alpha, target, ramp));
    if (holds && target < 1.0)
        ESPER_TRY(esper_slot_move(slot, ESPER_STAGE_BLENDING, events));
    slot->alpha = alpha;
    if (blend != 0)
        slot->blend = blend;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------ prune */

static void set_reason(esper_slot *slot, const char *reason, const char *initiator)
{
    set_text(slot->prune_reason, sizeof(slot->prune_reason), reason != NULL ? reason : "");
    set_text(slot->prune_initiator, sizeof(slot->prune_initiator), initiator != NULL ? initiator : "policy");
}

esper_status esper_slot_prune(esper_slot *slot, const char *reason, const char *initiator, esper_slot_events *events)
{
    esper_slot_event pruned = describe(slot, ESPER_SLOT_EVENT_PRUNED, ESPER_STAGE_PRUNED);

    if (!esper_stage_may_move(slot->stage, ESPER_STAGE_PRUNED))
        return ESPER_FAIL(ESPER_E_STATE, "slot %s: nothing to prune, it is %s", slot->id,
                          esper_stage_name(slot->stage));
    set_reason(slot, reason, initiator);
    ESPER_TRY(esper_slot_move(slot, ESPER_STAGE_PRUNED, events));
    slot->auto_pruned = strncmp(slot->prune_reason, "governor_", strlen("governor_")) == 0;
    pruned.auto_pruned = slot->auto_pruned;
    memcpy(pruned.reason, slot->prune_reason, sizeof(pruned.reason));
    memcpy(pruned.initiator, slot->prune_initiator, sizeof(pruned.initiator));
    push(events, &pruned);
    return ESPER_OK;
}

esper_status esper_slot_schedule_prune(esper_slot *slot, const esper_alpha_ramp *ramp, const char *reason,
                                       const char *initiator, esper_slot_events *events)
{
    esper_alpha alpha = slot->alpha;
    bool has_weight = slot->stage == ESPER_STAGE_BLENDING || slot->stage == ESPER_STAGE_HOLDING;

    if (ramp->n_steps <= 0 || slot->alpha.value <= 0.0 || !has_weight)
        return esper_slot_prune(slot, reason, initiator, events);
    ESPER_TRY(esper_alpha_retarget(&alpha, 0.0, ramp));
    if (slot->stage == ESPER_STAGE_HOLDING)
        ESPER_TRY(esper_slot_move(slot, ESPER_STAGE_BLENDING, events));
    slot->alpha = alpha;
    set_reason(slot, reason, initiator);
    slot->prune_pending = 1;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------- tick */

/* The ramp moves; at its end the gate ahead is due, or the prune it led to. */
static bool tick_blending(esper_slot *slot, esper_slot_events *events)
{
    char reason[ESPER_REASON_CHARS], initiator[ESPER_INITIATOR_CHARS];

    if (!esper_alpha_step(&slot->alpha) && !esper_alpha_is_at_target(&slot->alpha))
        return false;
    if (slot->alpha.target > ESPER_ALPHA_NEAR)
        return slot->permissive != 0 || slot->epochs_in_stage >= slot->gate_epochs;
    memcpy(reason, slot->prune_reason, sizeof(reason));
    memcpy(initiator, slot->prune_initiator, sizeof(initiator));
    (void)esper_slot_prune(slot, reason[0] != '\0' ? reason : "scheduled_prune", slot->prune_pending ? initiator : NULL,
                           events);
    return false;
}

void esper_slot_tick(esper_slot *slot, const esper_slot_merits *merits, esper_slot_events *events)
{
    bool embargoed = slot->stage == ESPER_STAGE_EMBARGOED, due = false; /* due: the gate ahead may be tried */
    esper_gate_result result;

    if (slot->stage != ESPER_STAGE_DORMANT)
        slot->n_ticks++;
    switch (slot->stage) {
    case ESPER_STAGE_GERMINATED:
        due = (slot->auto_forward & 1u << ESPER_GATE_G1) != 0;
        break;
    case ESPER_STAGE_TRAINING:
        due = (slot->auto_forward & 1u << ESPER_GATE_G2) != 0 && slot->epochs_in_stage >= slot->gate_epochs;
        break;
    case ESPER_STAGE_BLENDING:
        due = tick_blending(slot, events) && (slot->auto_forward & 1u << ESPER_GATE_G3) != 0;
        break;
    case ESPER_STAGE_PRUNED:
        (void)esper_slot_move(slot, ESPER_STAGE_EMBARGOED, events);
        break;
    case ESPER_STAGE_EMBARGOED:
    case ESPER_STAGE_RESETTING: /* rests so many ticks, then moves on */
        slot->epochs_total++;
        slot->epochs_in_stage++;
        if (slot->epochs_in_stage >= (embargoed ? slot->embargo_ticks : ESPER_RESET_TICKS))
            (void)esper_slot_move(slot, embargoed ? ESPER_STAGE_RESETTING : ESPER_STAGE_DORMANT, events);
        break;
    default: /* an empty slot, a seed on probation and one that was kept do nothing by themselves */
        break;
    }
    if (due)
        (void)esper_slot_advance(slot, -1, merits, events, &result); /* whatever it says is in the events */
}
