/* What growth does, written down: the decision log, which must hold, and facts for those who watch. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/actions.h"
#include "grow/growth_internal.h"

static esper_fact fact_of(const esper_growth *growth, esper_fact_kind kind, uint32_t epoch)
{
    return esper_fact_of(kind, epoch, (int64_t)growth->network->cursor.step);
}

static void tell(const esper_growth *growth, esper_fact *fact)
{
    esper_bus_tell(growth->recording.records.bus, fact, 1);
}

/* ------------------------------------------------------------------------------------------------ the decision log */

esper_status growth_log(esper_growth *growth, const esper_log_entry *entry)
{
    esper_log_entry whole = *entry;

    whole.share = esper_network_share(growth->network);
    if (growth->recording.log != NULL || growth->deciding.history != NULL ||
        esper_ranks_are_many(&growth->network->engine->ranks)) /* else nobody keeps it: an environment */
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

/* The copy of the entry just logged: what all of them have. */
static esper_fact copy_of_entry(const esper_growth *growth, esper_log_source source, const char *op, uint32_t epoch)
{
    esper_fact fact = fact_of(growth, ESPER_FACT_DECISION, epoch);

    assert(growth->facts.n_logged > 0);
    fact.decision.number = (int64_t)growth->facts.n_logged - 1;
    fact.decision.source = esper_log_source_name(source);
    fact.decision.op = op;
    fact.decision.accepted = 1;
    if (growth->recording.log != NULL)
        fact.decision.line = esper_decision_log_line(growth->recording.log);
    if (source != ESPER_LOG_POLICY)
        fact.to = ESPER_TO_ROWS;
    return fact;
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

esper_status growth_log_fork(esper_growth *growth, const esper_fork *fork)
{
    const esper_blueprint *blueprint = esper_policy_blueprint(growth->network->engine->host.topology, fork->blueprint);
    esper_log_entry entry = {.step = growth->network->cursor.step,
                             .epoch = (int32_t)growth->recording.record.epoch,
                             .source = ESPER_LOG_TRIAL,
                             .trial = {.blueprint = fork->blueprint,
                                       .round = fork->round,
                                       .n_steps = fork->n_steps,
                                       .n_samples = fork->n_samples,
                                       .loss = fork->loss,
                                       .gain = fork->gain,
                                       .error = fork->error,
                                       .flops = fork->flops,
                                       .fork = fork->weights}};
    char text[ESPER_DECISION_TEXT_CHARS];
    esper_fact fact;

    if (fork->slot >= 0)
        snprintf(entry.slot, sizeof(entry.slot), "%s", growth->network->slots.slot[fork->slot].id);
    ESPER_TRY(growth_log(growth, &entry));
    if (fork->slot < 0)
        snprintf(text, sizeof(text), "loss %.4f without a seed, in %u steps, round %d", fork->loss, fork->n_steps,
                 fork->round + 1);
    else
        snprintf(text, sizeof(text), "loss %.4f, %.4f below the fork without a seed (error %.4f) in %u steps, round %d",
                 fork->loss, fork->gain, fork->error, fork->n_steps, fork->round + 1);
    fact = copy_of_entry(growth, ESPER_LOG_TRIAL, "trial", growth->recording.record.epoch);
    fact.decision.slot = fork->slot >= 0 ? entry.slot : NULL;
    fact.decision.blueprint = blueprint != NULL ? blueprint->name : NULL;
    fact.decision.text = text;
    fact.decision.reason = text;
    tell(growth, &fact);
    return ESPER_OK;
}

esper_status growth_log_governor(void *context, const esper_incident *incident)
{
    esper_growth *growth = context;
    esper_log_entry entry = {
        .step = incident->at.step, .epoch = (int32_t)incident->at.epoch + 1, .source = ESPER_LOG_GOVERNOR};
    esper_log_governor *governor = &entry.governor;
    const char *reason = esper_governor_reason_name(incident->reason);
    char why[ESPER_LOG_TENSOR_CHARS + 96];
    esper_fact fact;

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
    if (governor->role >= 0)
        snprintf(why, sizeof(why), "%s: %s in %s (%s)", reason, governor->problem, governor->tensor,
                 esper_log_role_name(governor->role));
    else
        snprintf(why, sizeof(why), "%s: validation loss %g", reason, governor->loss);
    fact =
        copy_of_entry(growth, ESPER_LOG_GOVERNOR, esper_governor_action_name(incident->action), (uint32_t)entry.epoch);
    fact.decision.reason = why;
    tell(growth, &fact);
    return ESPER_OK;
}

void growth_record_injection(esper_growth *growth, const esper_log_entry *entry)
{
    const esper_log_injection *injection = &entry->injection;
    esper_fact fact =
        copy_of_entry(growth, ESPER_LOG_INJECTION, esper_log_fault_name(injection->fault), (uint32_t)entry->epoch);
    char what[ESPER_LOG_TENSOR_CHARS + 64];

    snprintf(what, sizeof(what), "%s (%s), element %" PRIu64, injection->tensor, esper_log_role_name(injection->role),
             injection->element);
    fact.decision.reason = what;
    tell(growth, &fact);
}

/* ------------------------------------------------------------------------------------------------ epochs */

static void record_decision(const esper_growth *growth, uint32_t epoch)
{
    const esper_decision *decision = &growth->deciding.decision;
    const esper_blueprint *blueprint =
        esper_policy_blueprint(growth->network->engine->host.topology, decision->blueprint);
    bool has_slot = decision->slot >= 0 && decision->slot < growth->network->slots.n;
    esper_fact fact = copy_of_entry(growth, ESPER_LOG_POLICY, esper_slot_op_name(decision->op), epoch);

    if (has_slot) {
        const esper_slot *slot = &growth->network->slots.slot[decision->slot];

        fact.decision.slot = slot->id;
        if (esper_slot_is_active(slot))
            fact.decision.seed = growth->state.seed[decision->slot].number;
    }
    if (decision->op == ESPER_SLOT_OP_GERMINATE) {
        fact.decision.blueprint = blueprint != NULL ? blueprint->name : NULL;
        fact.decision.blend = esper_style_blend(decision->style);
        fact.decision.tempo = decision->tempo;
        fact.decision.alpha_target = decision->target;
    }
    if (decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET || decision->op == ESPER_SLOT_OP_PRUNE) {
        fact.decision.alpha_target = decision->op == ESPER_SLOT_OP_PRUNE ? 0.0 : decision->target;
        fact.decision.alpha_speed = decision->speed;
        fact.decision.alpha_curve = decision->curve;
    }
    fact.decision.accepted = growth->deciding.accepted;
    fact.decision.text = decision->text;
    fact.decision.refusal = growth->deciding.refusal;
    fact.decision.reason = growth->deciding.accepted ? decision->text : growth->deciding.refusal;
    tell(growth, &fact);
}

static void record_seed(const esper_growth *growth, int k, uint32_t epoch)
{
    const esper_slot *slot = &growth->network->slots.slot[k];
    esper_fact fact = fact_of(growth, ESPER_FACT_SEED_EPOCH, epoch);

    fact.seed_epoch.seed = growth->state.seed[k].number;
    fact.seed_epoch.slot = slot->id;
    fact.seed_epoch.stage = slot->stage;
    fact.seed_epoch.epochs_in_stage = slot->epochs_in_stage;
    fact.seed_epoch.alpha = slot->alpha.value;
    fact.seed_epoch.alpha_target = slot->alpha.target;
    fact.seed_epoch.params = slot->seed_params + slot->gate_params;
    if (slot->known & ESPER_KNOWN_HEALTH) {
        fact.seed_epoch.grad_norm = slot->grad_norm;
        fact.seed_epoch.grad_health = slot->grad_health;
    }
    if (slot->known & ESPER_KNOWN_RATIO)
        fact.seed_epoch.grad_ratio = slot->grad_ratio;
    tell(growth, &fact);
}

/* What a slot's seed, or the slot without one, is worth by some measure, over this epoch. */
static esper_fact worth_of(const esper_growth *growth, int k, uint32_t epoch, esper_measure measure, double value)
{
    esper_fact fact = fact_of(growth, ESPER_FACT_ATTRIBUTION, epoch);

    assert(k >= 0 && k < growth->network->slots.n);
    fact.attribution.measure = measure;
    fact.attribution.slot = growth->network->slots.slot[k].id;
    fact.attribution.value = esper_fact_known(value);
    fact.attribution.n_epochs = 1;
    if (measure != ESPER_MEASURE_EVIDENCE) {
        fact.attribution.seed = growth->state.seed[k].number;
        fact.attribution.n_samples = (int64_t)growth->measuring.found.n_samples;
    }
    return fact;
}

/* One estimate of one seed, with bounds where there are any. */
static void record_estimate(const esper_growth *growth, int k, uint32_t epoch, esper_measure measure,
                            const esper_estimate *estimate)
{
    const esper_bound *bound = &growth->state.seed[k].bound;
    esper_fact fact = worth_of(growth, k, epoch, measure, estimate->value);

    if (isnan(estimate->value))
        return;
    fact.attribution.lower = esper_fact_known(estimate->value - 1.645 * estimate->error);
    fact.attribution.upper = esper_fact_known(estimate->value + 1.645 * estimate->error);
    if (measure == ESPER_MEASURE_CONTRIBUTION && bound->n_epochs >= 2) { /* several epochs together */
        fact.attribution.value = esper_bound_mean(bound);
        fact.attribution.lower = esper_bound_lower(bound);
        fact.attribution.upper = esper_bound_upper(bound);
        fact.attribution.n_epochs = (int64_t)bound->n_epochs;
    }
    tell(growth, &fact);
}

static void record_attribution(const esper_growth *growth, uint32_t epoch)
{
    const esper_attribution *found = &growth->measuring.found;

    for (int k = 0; k < growth->network->slots.n; k++) {
        esper_estimate shapley = {found->shapley[k], (double)NAN};

        record_estimate(growth, k, epoch, ESPER_MEASURE_CONTRIBUTION, &found->contribution[k]);
        record_estimate(growth, k, epoch, ESPER_MEASURE_TRIAL, &found->trial[k]);
        record_estimate(growth, k, epoch, ESPER_MEASURE_SHAPLEY, &shapley);
    }
    for (int i = 0; i < found->n_synergies; i++) {
        esper_fact fact =
            worth_of(growth, found->synergy[i].first, epoch, ESPER_MEASURE_SYNERGY, found->synergy[i].value);

        fact.attribution.other_seed = growth->state.seed[found->synergy[i].second].number;
        tell(growth, &fact);
    }
}

esper_fact esper_epoch_fact(const esper_network *network, const esper_epoch_record *done)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_EPOCH, done->epoch, (int64_t)network->cursor.step);

    fact.epoch_done.loss_train = done->loss_train;
    fact.epoch_done.acc_train = done->acc_train;
    fact.epoch_done.loss_valid = done->loss_valid;
    fact.epoch_done.acc_valid = done->acc_valid;
    fact.epoch_done.lr = done->lr;
    fact.epoch_done.grad_norm = done->grad_norm;
    fact.epoch_done.samples_per_s = done->samples_per_s;
    fact.epoch_done.seconds = done->seconds;
    return fact;
}

void growth_record_epoch(esper_growth *growth, const esper_epoch_record *done)
{
    const esper_network *network = growth->network;
    esper_fact fact = esper_epoch_fact(network, done);

    if (growth->recording.records.bus == NULL)
        return; /* an environment: nobody keeps it, and a hash of all weights would be for nothing */
    fact.to = ESPER_TO_ROWS; /* its line was written when it was measured */
    fact.epoch_done.params = esper_growth_params(growth);
    fact.epoch_done.n_seeds = 0;
    for (int k = 0; k < network->slots.n; k++)
        fact.epoch_done.n_seeds += esper_slot_is_active(&network->slots.slot[k]);
    fact.epoch_done.flops_train = (int64_t)growth->facts.flops;
    fact.epoch_done.weight_hash = esper_network_hash(network);
    tell(growth, &fact);
    if (growth->measuring.measured)
        record_attribution(growth, done->epoch);
    for (int k = 0; k < network->slots.n; k++) /* what the policy is shown of empty slots */
        if (!isnan(growth->measuring.probed[k])) {
            fact = worth_of(growth, k, done->epoch, ESPER_MEASURE_EVIDENCE, growth_evidence(growth, k));
            tell(growth, &fact);
        }
    record_decision(growth, done->epoch);
    if (growth_is_paid(growth)) {
        fact = fact_of(growth, ESPER_FACT_REWARD, done->epoch);
        fact.reward.episode_epoch = done->epoch;
        fact.reward.op = esper_action_effective_op(&growth->deciding.view, &growth->deciding.decision);
        esper_fact_set_reward(&fact, growth->deciding.reward.total, growth->deciding.reward.part);
        tell(growth, &fact);
    }
    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_active(&network->slots.slot[k]))
            record_seed(growth, k, done->epoch);
}

/* ------------------------------------------------------------------------------------------------ what slots tell */

static void record_move(const esper_growth *growth, int k, const esper_slot_event *what, uint32_t epoch)
{
    bool pruned = what->kind == ESPER_SLOT_EVENT_PRUNED;
    bool wanted = growth->deciding.decision.slot == k && growth->deciding.decision.op != ESPER_SLOT_OP_WAIT;
    const char *reason = what->reason[0] != '\0' ? what->reason : wanted ? growth->deciding.decision.text : "";
    esper_fact fact = fact_of(growth, ESPER_FACT_STAGE, epoch);

    fact.stage.seed = growth->state.seed[k].number;
    fact.stage.seed_id = what->seed_id;
    fact.stage.slot = what->slot;
    fact.stage.blueprint = what->blueprint;
    fact.stage.from_stage = what->from;
    fact.stage.to_stage = what->to;
    fact.stage.alpha = what->alpha;
    fact.stage.acc_delta = what->improvement;
    fact.stage.epochs_in_stage = what->epochs_in_stage;
    fact.stage.params = what->params;
    fact.stage.reason = reason;
    fact.stage.initiator = pruned ? what->initiator : reason[0] != '\0' ? "policy" : "auto";
    tell(growth, &fact);
}

/* The evaluation and, behind it, its checks. */
static void record_gate(const esper_growth *growth, int k, const esper_slot_event *what, uint32_t epoch)
{
    const esper_gate_result *result = &what->gate;
    esper_fact facts[1 + ESPER_GATE_MAX_CHECKS] = {fact_of(growth, ESPER_FACT_GATE, epoch)};
    char why[ESPER_GATE_WHY_CHARS];

    facts[0].gate.seed = growth->state.seed[k].number;
    facts[0].gate.seed_id = what->seed_id;
    facts[0].gate.slot = what->slot;
    facts[0].gate.gate = result->gate;
    facts[0].gate.mode = result->permissive;
    facts[0].gate.to_stage = what->to;
    facts[0].gate.passed = result->passed;
    facts[0].gate.score = result->score;
    facts[0].gate.message = esper_gate_why(result, why);
    for (int i = 0; i < result->n_checks; i++) {
        esper_fact *check = &facts[1 + i];

        *check = fact_of(growth, ESPER_FACT_CHECK, epoch);
        check->check.name = result->checks[i].kind;
        check->check.value = esper_fact_known(result->checks[i].value);
        check->check.threshold = esper_fact_known(result->checks[i].threshold);
        check->check.passed = result->checks[i].passed;
    }
    esper_bus_tell(growth->recording.records.bus, facts, 1 + result->n_checks);
}

void growth_record_events(esper_growth *growth, uint32_t epoch)
{
    assert(growth->recording.events.n <= GROWTH_MAX_EVENTS);
    for (int i = 0; i < growth->recording.events.n; i++) {
        const esper_slot_event *event = &growth->recording.event_room[i];
        int k = esper_slots_find(&growth->network->slots, event->slot);

        assert(k >= 0); /* slots tell of themselves alone */
        if (event->kind == ESPER_SLOT_EVENT_GATE)
            record_gate(growth, k, event, epoch);
        if (event->kind == ESPER_SLOT_EVENT_GERMINATED) {
            const esper_slot *slot = &growth->network->slots.slot[k];
            esper_fact fact = fact_of(growth, ESPER_FACT_GERMINATION, epoch);

            fact.germination.seed = growth->state.seed[k].number;
            fact.germination.slot = slot->id;
            fact.germination.blueprint = slot->blueprint;
            fact.germination.blend = slot->blend;
            fact.germination.params = slot->seed_params + slot->gate_params;
            fact.germination.reason = growth->deciding.decision.text;
            tell(growth, &fact);
        }
        if ((event->kind == ESPER_SLOT_EVENT_STAGE && event->to != ESPER_STAGE_PRUNED) || /* that is told by PRUNED */
            event->kind == ESPER_SLOT_EVENT_GERMINATED || event->kind == ESPER_SLOT_EVENT_PRUNED)
            record_move(growth, k, event, epoch);
    }
}
