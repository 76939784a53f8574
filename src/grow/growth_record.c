/* What growth does, written down: the decision log, which must hold, and copies for the store and the bus. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/actions.h"
#include "grow/growth_internal.h"

static esper_store_record record_of(const esper_growth *growth, esper_store_kind kind, uint32_t epoch)
{
    return esper_store_record_of(kind, epoch, (int64_t)growth->network->cursor.step);
}

static void push(const esper_growth *growth, const esper_store_record *record)
{
    if (growth->recording.records.store != NULL)
        (void)esper_store_push(growth->recording.records.store, record);
}

static void emit(const esper_growth *growth, esper_event *event)
{
    event->step = (int64_t)growth->network->cursor.step;
    if (growth->recording.records.bus != NULL)
        esper_bus_emit(growth->recording.records.bus, event);
}

/* What was never measured is left out. */
static double known(double value)
{
    return isnan(value) ? ESPER_STORE_NO_REAL : value;
}

/* ------------------------------------------------------------------------------------------------ the decision log */

esper_status growth_log(esper_growth *growth, const esper_log_entry *entry)
{
    esper_log_entry whole = *entry;

    whole.weights = esper_network_hash(growth->network);
    ESPER_TRY(esper_ranks_share(&growth->network->engine->ranks, &whole.weights,
                                sizeof(whole.weights))); /* a fault may be one rank's */
    if (growth->deciding.history != NULL)
        ESPER_TRY(growth_check_entry(growth, &whole));
    ESPER_TRY(esper_ranks_settle(
        &growth->network->engine->ranks,
        growth->recording.log != NULL ? esper_decision_log_append(growth->recording.log, &whole) : ESPER_OK));
    growth->facts.n_logged++;
    return ESPER_OK;
}

/* The store's copy of the entry just logged: what all of them have. */
static esper_store_record copy_of_entry(const esper_growth *growth, const char *source, const char *op, uint32_t epoch)
{
    esper_store_record record = record_of(growth, ESPER_STORE_DECISION, epoch);

    record.decision.number = (int64_t)growth->facts.n_logged - 1;
    ESPER_STORE_SET(record.decision.source, source);
    ESPER_STORE_SET(record.decision.op, op);
    if (growth->recording.log != NULL)
        ESPER_STORE_SET(record.decision.line, esper_decision_log_line(growth->recording.log));
    return record;
}

esper_status growth_log_decision(esper_growth *growth, uint32_t epoch)
{
    const esper_slots *slots = &growth->network->slots;
    int k = growth->deciding.decision.slot;
    esper_log_entry entry = {.step = growth->network->cursor.step,
                             .epoch = (int32_t)epoch,
                             .source = ESPER_LOG_POLICY,
                             .decision = growth->deciding.decision};

    if (k >= 0 && k < slots->n)
        snprintf(entry.slot, sizeof(entry.slot), "%s", slots->slot[k].id);
    return growth_log(growth, &entry);
}

static void record_governor(const esper_growth *growth, const esper_log_entry *entry)
{
    const esper_log_governor *governor = &entry->governor;
    const char *action = esper_governor_action_name((esper_governor_action)governor->action);
    const char *reason = esper_governor_reason_name((esper_governor_reason)governor->reason);
    esper_store_record record = copy_of_entry(growth, "governor", action, (uint32_t)entry->epoch);
    char why[ESPER_LOG_TENSOR_CHARS + 96];

    if (governor->role >= 0)
        snprintf(why, sizeof(why), "%s: %s in %s (%s)", reason, governor->problem, governor->tensor,
                 esper_log_role_name(governor->role));
    else
        snprintf(why, sizeof(why), "%s: validation loss %g", reason, governor->loss);
    record.decision.accepted = 1;
    ESPER_STORE_SET(record.decision.reason, why);
    push(growth, &record);
}

esper_status growth_log_governor(void *context, const esper_incident *incident)
{
    esper_growth *growth = context;
    esper_log_entry entry = {
        .step = incident->at.step, .epoch = (int32_t)incident->at.epoch + 1, .source = ESPER_LOG_GOVERNOR};
    esper_log_governor *governor = &entry.governor;

    esper_log_governor_init(governor);
    governor->action = (int32_t)incident->action;
    governor->reason = (int32_t)incident->reason;
    governor->loss = incident->loss;
    governor->lr_scale = growth->network->detour.lr_scale;
    if (incident->action != ESPER_GOVERNOR_SKIP)
        governor->to_step = incident->to.step;
    for (int k = 0; incident->action == ESPER_GOVERNOR_PRUNE && k < growth->network->slots.n; k++)
        if ((incident->unkept >> k & 1u) != 0)
            snprintf(governor->pruned[governor->n_pruned++], ESPER_SLOT_CHARS, "%s", growth->network->slots.slot[k].id);
    if (incident->tensor != NULL) {
        snprintf(governor->tensor, sizeof(governor->tensor), "%s", incident->tensor);
        snprintf(governor->problem, sizeof(governor->problem), "%s", incident->problem);
        governor->role = esper_log_find(esper_log_role_name, incident->role);
        governor->n_elements = incident->n_elements;
        governor->first_index = incident->first_index;
    }
    ESPER_TRY(growth_log(growth, &entry));
    record_governor(growth, &entry);
    return ESPER_OK;
}

void growth_record_injection(esper_growth *growth, const esper_log_entry *entry)
{
    const esper_log_injection *injection = &entry->injection;
    esper_store_record record =
        copy_of_entry(growth, "injection", esper_log_fault_name(injection->fault), (uint32_t)entry->epoch);
    char what[ESPER_LOG_TENSOR_CHARS + 64];

    snprintf(what, sizeof(what), "%s (%s), element %" PRIu64, injection->tensor, esper_log_role_name(injection->role),
             injection->element);
    record.decision.accepted = 1;
    ESPER_STORE_SET(record.decision.reason, what);
    push(growth, &record);
}

/* ------------------------------------------------------------------------------------------------ epochs */

static void record_decision(const esper_growth *growth, uint32_t epoch)
{
    const esper_decision *decision = &growth->deciding.decision;
    const esper_blueprint *blueprint =
        esper_policy_blueprint(growth->network->engine->host.topology, decision->blueprint);
    bool has_slot = decision->slot >= 0 && decision->slot < growth->network->slots.n;
    const char *slot = has_slot ? growth->network->slots.slot[decision->slot].id : "";
    esper_store_record record = copy_of_entry(growth, "policy", esper_slot_op_name(decision->op), epoch);
    esper_event event = {.kind = ESPER_EVENT_DECIDED};

    record.decision.accepted = growth->deciding.accepted;
    ESPER_STORE_SET(record.decision.slot, slot);
    if (has_slot && esper_slot_is_active(&growth->network->slots.slot[decision->slot]))
        record.decision.seed = growth->state.seed[decision->slot].number;
    ESPER_STORE_SET(record.decision.reason, growth->deciding.accepted ? decision->text : growth->deciding.refusal);
    if (decision->op == ESPER_SLOT_OP_GERMINATE) {
        ESPER_STORE_SET(record.decision.blueprint, blueprint != NULL ? blueprint->name : "");
        ESPER_STORE_SET(record.decision.blend, esper_blend_name(esper_style_blend(decision->style)));
        record.decision.tempo = decision->tempo;
        record.decision.alpha_target = decision->target;
    }
    if (decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET || decision->op == ESPER_SLOT_OP_PRUNE) {
        record.decision.alpha_target = decision->op == ESPER_SLOT_OP_PRUNE ? 0.0 : decision->target;
        record.decision.alpha_speed = decision->speed;
        ESPER_STORE_SET(record.decision.alpha_curve, esper_alpha_choice_name(decision->curve));
    }
    push(growth, &record);
    event.decided.epoch = epoch;
    event.decided.op = esper_slot_op_name(decision->op);
    event.decided.slot = slot;
    event.decided.blueprint = decision->op == ESPER_SLOT_OP_GERMINATE && blueprint != NULL ? blueprint->name : "";
    event.decided.accepted = growth->deciding.accepted;
    event.decided.reason = decision->text;
    event.decided.refusal = growth->deciding.refusal;
    emit(growth, &event);
}

static void record_seed(const esper_growth *growth, int k, uint32_t epoch)
{
    const esper_slot *slot = &growth->network->slots.slot[k];
    esper_store_record record = record_of(growth, ESPER_STORE_SEED_EPOCH, epoch);

    record.seed_epoch.seed = growth->state.seed[k].number;
    ESPER_STORE_SET(record.seed_epoch.slot, slot->id);
    ESPER_STORE_SET(record.seed_epoch.stage, esper_stage_name(slot->stage));
    record.seed_epoch.epochs_in_stage = slot->epochs_in_stage;
    record.seed_epoch.alpha = slot->alpha.value;
    record.seed_epoch.alpha_target = slot->alpha.target;
    record.seed_epoch.params = slot->seed_params + slot->gate_params;
    if (slot->known & ESPER_KNOWN_HEALTH) {
        record.seed_epoch.grad_norm = slot->grad_norm;
        record.seed_epoch.grad_health = slot->grad_health;
    }
    if (slot->known & ESPER_KNOWN_RATIO)
        record.seed_epoch.grad_ratio = slot->grad_ratio;
    push(growth, &record);
}

/* One estimate of one seed, with bounds where there are any. */
static void record_estimate(const esper_growth *growth, int k, uint32_t epoch, const char *measure,
                            const esper_estimate *estimate)
{
    const esper_bound *bound = &growth->state.seed[k].bound;
    bool pooled = strcmp(measure, "contribution") == 0 && bound->n_epochs >= 2;
    esper_store_record record = record_of(growth, ESPER_STORE_ATTRIBUTION, epoch);

    if (isnan(estimate->value))
        return;
    ESPER_STORE_SET(record.attribution.measure, measure);
    ESPER_STORE_SET(record.attribution.slot, growth->network->slots.slot[k].id);
    record.attribution.seed = growth->state.seed[k].number;
    record.attribution.value = pooled ? esper_bound_mean(bound) : estimate->value;
    record.attribution.lower = pooled ? esper_bound_lower(bound) : known(estimate->value - 1.645 * estimate->error);
    record.attribution.upper = pooled ? esper_bound_upper(bound) : known(estimate->value + 1.645 * estimate->error);
    record.attribution.n_samples = (int64_t)growth->measuring.found.n_samples;
    record.attribution.n_epochs = pooled ? (int64_t)bound->n_epochs : 1;
    push(growth, &record);
}

static void record_attribution(const esper_growth *growth, uint32_t epoch)
{
    const esper_attribution *found = &growth->measuring.found;

    for (int k = 0; k < growth->network->slots.n; k++) {
        esper_estimate shapley = {found->shapley[k], (double)NAN};

        record_estimate(growth, k, epoch, "contribution", &found->contribution[k]);
        record_estimate(growth, k, epoch, "trial", &found->trial[k]);
        record_estimate(growth, k, epoch, "shapley", &shapley);
    }
    for (int i = 0; i < found->n_synergies; i++) {
        esper_store_record record = record_of(growth, ESPER_STORE_ATTRIBUTION, epoch);

        ESPER_STORE_SET(record.attribution.measure, "synergy");
        ESPER_STORE_SET(record.attribution.slot, growth->network->slots.slot[found->synergy[i].first].id);
        record.attribution.seed = growth->state.seed[found->synergy[i].first].number;
        record.attribution.other_seed = growth->state.seed[found->synergy[i].second].number;
        record.attribution.value = known(found->synergy[i].value);
        record.attribution.n_samples = (int64_t)found->n_samples;
        record.attribution.n_epochs = 1;
        push(growth, &record);
    }
}

/* What the policy is shown of empty slots. */
static void record_evidence(const esper_growth *growth, uint32_t epoch)
{
    for (int k = 0; k < growth->network->slots.n; k++) {
        esper_store_record record = record_of(growth, ESPER_STORE_ATTRIBUTION, epoch);

        if (isnan(growth->measuring.probed[k]))
            continue;
        ESPER_STORE_SET(record.attribution.measure, "evidence");
        ESPER_STORE_SET(record.attribution.slot, growth->network->slots.slot[k].id);
        record.attribution.value = known(growth_evidence(growth, k));
        record.attribution.n_epochs = 1;
        push(growth, &record);
    }
}

static void record_reward(const esper_growth *growth, uint32_t epoch)
{
    esper_store_record record = record_of(growth, ESPER_STORE_REWARD, epoch);

    record.reward.episode_epoch = epoch;
    ESPER_STORE_SET(record.reward.op,
                    esper_slot_op_name(esper_action_effective_op(&growth->deciding.view, &growth->deciding.decision)));
    esper_store_set_reward(&record, growth->deciding.reward.total, growth->deciding.reward.part);
    push(growth, &record);
}

void growth_record_epoch(esper_growth *growth, const esper_epoch_record *done)
{
    const esper_network *network = growth->network;
    esper_store_record record = record_of(growth, ESPER_STORE_EPOCH, done->epoch);

    if (growth->recording.records.store == NULL && growth->recording.records.bus == NULL)
        return; /* an environment: nobody keeps it, and a hash of all weights would be for nothing */
    record.epoch_done.loss_train = done->loss_train;
    record.epoch_done.acc_train = done->acc_train;
    record.epoch_done.loss_valid = done->loss_valid;
    record.epoch_done.acc_valid = done->acc_valid;
    record.epoch_done.lr = done->lr;
    record.epoch_done.grad_norm = done->grad_norm;
    record.epoch_done.params = esper_growth_params(growth);
    record.epoch_done.n_seeds = 0;
    for (int k = 0; k < network->slots.n; k++)
        record.epoch_done.n_seeds += esper_slot_is_active(&network->slots.slot[k]);
    record.epoch_done.flops_train = (int64_t)growth->facts.flops;
    record.epoch_done.samples_per_s = done->samples_per_s;
    record.epoch_done.seconds = done->seconds;
    record.epoch_done.weight_hash = esper_network_hash(network);
    push(growth, &record);
    if (growth->measuring.measured)
        record_attribution(growth, done->epoch);
    record_evidence(growth, done->epoch);
    record_decision(growth, done->epoch);
    record_reward(growth, done->epoch);
    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_active(&network->slots.slot[k]))
            record_seed(growth, k, done->epoch);
}

/* ------------------------------------------------------------------------------------------------ what slots tell */

static void record_germination(const esper_growth *growth, int k, uint32_t epoch)
{
    const esper_slot *slot = &growth->network->slots.slot[k];
    esper_store_record record = record_of(growth, ESPER_STORE_GERMINATION, epoch);

    record.germination.seed = growth->state.seed[k].number;
    ESPER_STORE_SET(record.germination.slot, slot->id);
    ESPER_STORE_SET(record.germination.blueprint, slot->blueprint);
    ESPER_STORE_SET(record.germination.blend, esper_blend_name(slot->blend));
    record.germination.params = slot->seed_params + slot->gate_params;
    ESPER_STORE_SET(record.germination.reason, growth->deciding.decision.text);
    push(growth, &record);
}

static void record_move(const esper_growth *growth, int k, const esper_slot_event *what, uint32_t epoch)
{
    bool pruned = what->kind == ESPER_SLOT_EVENT_PRUNED;
    esper_store_record record = record_of(growth, ESPER_STORE_STAGE, epoch);
    esper_event event = {.kind = ESPER_EVENT_SEED_MOVED};
    const char *reason = what->reason[0] != '\0' ? what->reason
                         : growth->deciding.decision.slot == k && growth->deciding.decision.op != ESPER_SLOT_OP_WAIT
                             ? growth->deciding.decision.text
                             : "";

    record.stage.seed = growth->state.seed[k].number;
    ESPER_STORE_SET(record.stage.slot, what->slot);
    ESPER_STORE_SET(record.stage.from_stage, esper_stage_name(what->from));
    ESPER_STORE_SET(record.stage.to_stage, esper_stage_name(what->to));
    record.stage.alpha = what->alpha;
    record.stage.acc_delta = what->improvement;
    record.stage.epochs_in_stage = what->epochs_in_stage;
    ESPER_STORE_SET(record.stage.initiator, pruned ? what->initiator : reason[0] != '\0' ? "policy" : "auto");
    ESPER_STORE_SET(record.stage.reason, reason);
    push(growth, &record);
    event.seed_moved.epoch = epoch;
    event.seed_moved.slot = what->slot;
    event.seed_moved.seed = what->seed_id;
    event.seed_moved.blueprint = what->blueprint;
    event.seed_moved.from = esper_stage_name(what->from);
    event.seed_moved.to = esper_stage_name(what->to);
    event.seed_moved.alpha = what->alpha;
    event.seed_moved.params = what->params;
    event.seed_moved.reason = reason;
    event.seed_moved.initiator = what->initiator;
    emit(growth, &event);
}

static void record_gate(const esper_growth *growth, int k, const esper_slot_event *what, uint32_t epoch)
{
    const esper_gate_result *result = &what->gate;
    esper_store_record record = record_of(growth, ESPER_STORE_GATE, epoch), checks[ESPER_GATE_MAX_CHECKS];
    esper_event event = {.kind = ESPER_EVENT_GATE_JUDGED};
    char why[ESPER_GATE_WHY_CHARS];

    record.gate.seed = growth->state.seed[k].number;
    ESPER_STORE_SET(record.gate.slot, what->slot);
    ESPER_STORE_SET(record.gate.gate, esper_gate_name(result->gate));
    ESPER_STORE_SET(record.gate.mode, result->permissive ? "permissive" : "strict");
    ESPER_STORE_SET(record.gate.to_stage, esper_stage_name(what->to));
    record.gate.passed = result->passed;
    record.gate.score = result->score;
    ESPER_STORE_SET(record.gate.message, esper_gate_why(result, why));
    for (int i = 0; i < result->n_checks; i++) {
        checks[i] = record_of(growth, ESPER_STORE_CHECK, epoch);
        ESPER_STORE_SET(checks[i].check.name, esper_gate_check_name(result->checks[i].kind));
        checks[i].check.value = known(result->checks[i].value);
        checks[i].check.threshold = known(result->checks[i].threshold);
        checks[i].check.passed = result->checks[i].passed;
    }
    if (growth->recording.records.store != NULL)
        (void)esper_store_push_gate(growth->recording.records.store, &record, checks, result->n_checks);
    event.gate_judged.epoch = epoch;
    event.gate_judged.slot = what->slot;
    event.gate_judged.seed = what->seed_id;
    event.gate_judged.gate = esper_gate_name(result->gate);
    event.gate_judged.passed = result->passed;
    event.gate_judged.message = why;
    emit(growth, &event);
}

void growth_record_events(esper_growth *growth, uint32_t epoch)
{
    for (int i = 0; i < growth->recording.events.n; i++) {
        const esper_slot_event *event = &growth->recording.event_room[i];
        int k = esper_slots_find(&growth->network->slots, event->slot);

        if (event->kind == ESPER_SLOT_EVENT_GATE)
            record_gate(growth, k, event, epoch);
        if (event->kind == ESPER_SLOT_EVENT_GERMINATED)
            record_germination(growth, k, epoch);
        if ((event->kind == ESPER_SLOT_EVENT_STAGE && event->to != ESPER_STAGE_PRUNED) || /* that is told by PRUNED */
            event->kind == ESPER_SLOT_EVENT_GERMINATED || event->kind == ESPER_SLOT_EVENT_PRUNED)
            record_move(growth, k, event, epoch);
    }
}

/* ------------------------------------------------------------------------------------------------ incidents */

static void record_health(const esper_growth *growth, const esper_incident *incident)
{
    esper_store_record record =
        esper_store_record_of(ESPER_STORE_HEALTH, incident->at.epoch + 1, (int64_t)incident->at.step);

    record.health.n_skipped = (int64_t)esper_guarded_reading(growth->network).n_skipped;
    record.health.n_tensors = (int64_t)incident->n_tensors;
    if (incident->tensor != NULL) {
        ESPER_STORE_SET(record.health.tensor, incident->tensor);
        ESPER_STORE_SET(record.health.role, incident->role);
        ESPER_STORE_SET(record.health.problem, incident->problem);
        record.health.n_elements = (int64_t)incident->n_elements;
        if (incident->first_index != ESPER_GUARD_NONE)
            record.health.first_index = (int64_t)incident->first_index;
    }
    record.health.loss = known(incident->loss);
    ESPER_STORE_SET(record.health.reason, esper_governor_reason_name(incident->reason));
    ESPER_STORE_SET(record.health.action, esper_governor_action_name(incident->action));
    push(growth, &record);
}

void growth_record_incident(esper_growth *growth, const esper_incident *incident, int n_pruned)
{
    esper_store_record record;
    char text[512];

    record_health(growth, incident);
    if (!incident->restored)
        return;
    record = esper_store_record_of(ESPER_STORE_ROLLBACK, incident->to.epoch + 1, (int64_t)incident->to.step);
    ESPER_STORE_SET(record.rollback.action, esper_governor_action_name(incident->action));
    record.rollback.from_epoch = incident->at.epoch + 1;
    record.rollback.from_step = (int64_t)incident->at.step;
    record.rollback.to_epoch = incident->to.epoch + 1;
    record.rollback.to_step = (int64_t)incident->to.step;
    record.rollback.n_damaged = incident->n_damaged;
    record.rollback.n_pruned = n_pruned;
    record.rollback.lr_scale = growth->network->detour.lr_scale;
    record.rollback.seconds = incident->seconds;
    ESPER_STORE_SET(record.rollback.reason, esper_incident_describe(incident, text, sizeof(text)));
    push(growth, &record);
}
