/* What a policy is shown, and what is done about its answer. */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/mask.h"
#include "grow/growth_internal.h"

/* ------------------------------------------------------------------------------------------------ the view */

static void show_seed(const esper_growth *growth, int k, esper_policy_slot *view)
{
    const esper_slot *slot = &growth->network->slots.slot[k];
    const esper_bound *bound = &growth->state.seed[k].bound;

    snprintf(view->seed, sizeof(view->seed), "%s", slot->seed_id);
    view->blueprint = slot->blueprint_index;
    view->params = slot->seed_params + slot->gate_params;
    view->blend = (esper_blend)slot->blend;
    view->tempo = slot->tempo;
    view->alpha = slot->alpha.value;
    view->alpha_target = slot->alpha.target;
    view->alpha_mode = slot->alpha.mode;
    view->alpha_steps = slot->alpha.n_steps;
    view->alpha_done = slot->alpha.n_done;
    view->alpha_velocity = esper_slot_alpha_velocity(slot);
    view->epochs_in_stage = slot->epochs_in_stage;
    view->epochs_total = slot->epochs_total;
    view->improvement = esper_slot_stage_improvement(slot);
    view->improvement_total = esper_slot_improvement(slot);
    if (slot->known & ESPER_KNOWN_CONTRIBUTION)
        view->contribution = slot->contribution;
    if (!slot->permissive &&
        slot->stage == ESPER_STAGE_HOLDING) { /* known when it has bounds, not by a first reading */
        view->contribution = bound->n_epochs >= 2 ? esper_bound_mean(bound) : (double)NAN;
        view->contribution_low = esper_bound_lower(bound);
        view->contribution_high = esper_bound_upper(bound);
        view->contribution_epochs = (int)bound->n_epochs;
    }
    if (growth->measuring.measured)
        view->trial_gain = growth->measuring.found.trial[k].value;
    if (slot->known & ESPER_KNOWN_RATIO)
        view->gradient_ratio = slot->grad_ratio;
    if (slot->known & ESPER_KNOWN_HEALTH) {
        view->gradient_health = slot->grad_health;
        view->gradient_norm = slot->grad_norm;
        view->vanishing = slot->vanishing != 0;
        view->exploding = slot->exploding != 0;
    }
    view->measured = growth->measuring.measured && !isnan(growth->measuring.found.contribution[k].value) &&
                     slot->stage != ESPER_STAGE_FOSSILIZED; /* a fossil keeps the reading it was kept for */
    view->contribution_velocity = slot->contribution_velocity;
    view->interaction = slot->interaction;
}

/* The trial that was asked for in a slot, and what the next one would cost. */
static void show_fork(const esper_growth *growth, int k, const esper_policy_view *whole, esper_policy_slot *view)
{
    const growth_fork *fork = &growth->state.fork[k];

    if (view->stage == ESPER_STAGE_DORMANT)
        view->fork_share = growth_trial_share(growth, k, view->blueprints);
    if (fork->blueprint == 0)
        return;
    view->fork_blueprint = fork->blueprint;
    view->fork_gain = fork->gain;
    view->fork_error = fork->error;
    view->fork_epochs = whole->epoch - fork->epoch;
    view->fork_seeds = fork->n_seeds;
    view->fork_stands = fork->seeds == growth_seeds_now(growth) && view->fork_epochs < GROWTH_FORK_EPOCHS;
}

static void show_slot(const esper_growth *growth, int k, const esper_policy_view *whole, esper_policy_slot *view)
{
    const esper_slot *slot = &growth->network->slots.slot[k];
    const int64_t *costs = growth->deciding.blueprint_params[k];
    const double *flops = growth->deciding.blueprint_flops[k];

    esper_policy_slot_init(view, growth->network->engine->host.topology, slot->id);
    view->stage = slot->stage;
    view->closed = !esper_slots_is_open(&growth->network->slots, k);
    view->channels = slot->channels;
    view->params_before = growth->deciding.params_before[k];
    view->flops_before = growth->deciding.flops_before[k];
    view->cooldown_left = esper_slot_cooldown(slot);
    view->evidence = growth_evidence(growth, k);
    view->blueprints = view->closed ? 0 : esper_policy_blueprints(growth->network->engine->host.topology);
    for (int i = 1; i < ESPER_POLICY_BLUEPRINTS; i++) { /* those that fit the slot, the budget and the usual birth */
        const esper_blueprint *blueprint = esper_policy_blueprint(growth->network->engine->host.topology, i);

        if (blueprint == NULL || (blueprint->births >> growth->network->engine->config.birth & 1u) == 0 ||
            costs[i] == ESPER_SPLICE_UNFIT ||
            (whole->params_limit > 0 && whole->params_total + costs[i] > whole->params_limit) ||
            (whole->flops_limit > 0.0 && whole->flops_total + flops[i] > whole->flops_limit))
            view->blueprints &= ~(1u << i);
    }
    memcpy(view->blueprint_params, costs, sizeof(view->blueprint_params));
    view->gate_params = growth->deciding.gate_params[k];
    memcpy(view->blueprint_flops, flops, sizeof(view->blueprint_flops));
    view->gate_flops = growth->deciding.gate_flops[k];
    show_fork(growth, k, whole, view);
    if (esper_slot_is_active(slot))
        show_seed(growth, k, view);
}

int64_t esper_growth_params(const esper_growth *growth)
{
    const esper_network *network = growth->network;
    int64_t n = esper_net_count_params(&network->net, 0);

    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_active(&network->slots.slot[k]))
            n += network->slots.slot[k].seed_params + network->slots.slot[k].gate_params;
    return n;
}

/* FLOPs of a sample with every seed at full weight, as parameters are counted. */
static double flops_of_sample(const esper_growth *growth)
{
    const growth_deciding *deciding = &growth->deciding;
    double flops = deciding->host_flops;

    for (int k = 0; k < growth->network->slots.n; k++) {
        const esper_slot *slot = &growth->network->slots.slot[k];

        if (esper_slot_is_active(slot))
            flops += deciding->blueprint_flops[k][slot->blueprint_index] +
                     (slot->gate_params > 0 ? deciding->gate_flops[k] : 0.0);
    }
    return flops;
}

/* A rate that falls leaves no time to grow. An episode of learning is to be grown in as a whole. */
uint32_t growth_last_epoch(const esper_network *network)
{
    const esper_config *config = &network->engine->config;
    bool finishes = network->budget > 0 && config->schedule == ESPER_CONFIG_SCHEDULE_HOLD;

    return finishes ? esper_network_epochs_until(network, 1.0 - config->fall) : esper_network_epochs(network);
}

void growth_make_view(esper_growth *growth, const esper_epoch_record *record, esper_policy_view *view_out)
{
    const esper_network *network = growth->network;

    *view_out = (esper_policy_view){
        .topology = network->engine->host.topology,
        .epoch = (int)record->epoch,
        .max_epochs = (int)growth_last_epoch(network),
        .share = esper_network_share(network),
        .budget = network->budget > 0 ? (double)network->budget
                                      : (double)network->engine->config.epochs * network->engine->steps_per_epoch *
                                            (double)network->step_cost,
        .loss_train = record->loss_train,
        .accuracy_train = record->acc_train,
        .loss_valid = record->loss_valid,
        .accuracy_valid = record->acc_valid,
        .params_total = esper_growth_params(growth),
        .params_limit = esper_engine_params_limit(&network->engine->config),
        .flops_total = flops_of_sample(growth),
        .flops_limit = network->engine->config.max_flops,
        .max_seeds = network->engine->config.max_seeds,
        .last_refused = growth->state.refused != 0,
        .rolled_back = growth->facts.went_back > growth->state.decided,
        .forks_left = growth_trials_left(growth),
        .slots = growth->deciding.views,
        .n_slots = network->slots.n,
    };
    growth->deciding.flops_seen = (double)network->step_cost;
    growth->deciding.flops_beside = 0.0;
    for (int k = 0; k < network->slots.n; k++)
        show_slot(growth, k, view_out, &growth->deciding.views[k]);
}

/* ------------------------------------------------------------------------------------------------ operations */

__attribute__((format(printf, 2, 3))) static esper_status refuse(esper_growth *growth, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(growth->deciding.refusal, sizeof(growth->deciding.refusal), format, args);
    va_end(args);
    growth->deciding.accepted = false;
    return ESPER_OK;
}

/* A slot that says no is a reading; anything else is a failure. */
static esper_status unless_refused(esper_growth *growth, esper_status status)
{
    if (status != ESPER_E_STATE && status != ESPER_E_ARG)
        return status;
    return refuse(growth, "%s", esper_last_error());
}

esper_status growth_put_seed(const esper_growth *growth, esper_slot *slot, const esper_decision *decision,
                             esper_slot_events *events)
{
    const growth_deciding *deciding = &growth->deciding;
    const esper_network *network = growth->network;
    const esper_blueprint *blueprint = esper_policy_blueprint(network->engine->host.topology, decision->blueprint);
    int k = esper_slots_find(&network->slots, slot->id);
    esper_germination wanted;
    char seed_id[ESPER_SEED_ID_CHARS];

    assert(k >= 0 && blueprint != NULL && deciding->blueprint_params[k][blueprint->index] != ESPER_SPLICE_UNFIT);
    esper_germination_init(&wanted, blueprint->name, blueprint->index);
    snprintf(seed_id, sizeof(seed_id), "%s-%s-%lld", slot->id, blueprint->name, (long long)growth->facts.n_seeds);
    wanted.seed_id = seed_id;
    wanted.ramp = esper_ramp_find(esper_style_ramp(decision->style));
    wanted.blend = esper_style_blend(decision->style);
    wanted.tempo = decision->tempo > 0 ? decision->tempo : 1;
    wanted.birth = decision->birth;
    wanted.target = decision->target;
    wanted.host_params = esper_net_count_params(&network->net, 0);
    wanted.seed_params = deciding->blueprint_params[k][blueprint->index];
    wanted.gate_params = wanted.blend == ESPER_BLEND_GATE ? deciding->gate_params[k] : 0;
    return esper_slot_germinate(slot, &wanted, events);
}

/* The seed that a trial was won with joins at once; what it has shown is the evidence of its gate. */
static esper_status join(esper_growth *growth, int k)
{
    const esper_fork *won = &growth->trial_won;
    bool is_shown = won->slot == k && won->blueprint == growth->deciding.decision.blueprint;
    esper_merit gain = {.value = is_shown ? won->gain : (double)NAN, .how = ESPER_MERIT_FORKS};
    esper_gate_result result;
    char why[ESPER_GATE_WHY_CHARS];

    ESPER_TRY(esper_slot_join(&growth->network->slots.slot[k], &gain, &growth->recording.events, &result));
    return result.passed ? ESPER_OK
                         : refuse(growth, "%s: %s", esper_gate_name(result.gate), esper_gate_why(&result, why));
}

/* Its weights are born when they are first needed (growth_act). */
static esper_status germinate(esper_growth *growth, int k)
{
    esper_slot *slot = &growth->network->slots.slot[k];
    const esper_decision *decision = &growth->deciding.decision;
    esper_status status = growth_put_seed(growth, slot, decision, &growth->recording.events);

    if (status != ESPER_OK)
        return unless_refused(growth, status);
    growth->state.seed[k] = (growth_seed){.ratio = (double)NAN, .number = (int32_t)growth->facts.n_seeds++};
    growth->deciding.gates[k].gate = -1;
    return decision->tempo == 0 ? join(growth, k) : ESPER_OK;
}

static esper_status pass_gate(esper_growth *growth, int k, bool fossilize)
{
    esper_slot *slot = &growth->network->slots.slot[k];
    esper_slot_merits merits = growth_merits(growth, k);
    const esper_slot_merits *judged = slot->permissive ? NULL : &merits;
    esper_gate_result result;
    char why[ESPER_GATE_WHY_CHARS];
    esper_status status = fossilize ? esper_slot_fossilize(slot, judged, &growth->recording.events, &result)
                                    : esper_slot_advance(slot, -1, judged, &growth->recording.events, &result);

    if (status != ESPER_OK)
        return unless_refused(growth, status);
    return result.passed ? ESPER_OK
                         : refuse(growth, "%s: %s", esper_gate_name(result.gate), esper_gate_why(&result, why));
}

static esper_alpha_ramp ramp_of(const esper_decision *decision)
{
    return (esper_alpha_ramp){.n_steps = decision->speed,
                              .curve = esper_alpha_choice_curve(decision->curve),
                              .steepness = esper_alpha_choice_steepness(decision->curve)};
}

static esper_status prune(esper_growth *growth, esper_slot *slot)
{
    const esper_decision *decision = &growth->deciding.decision;
    esper_alpha_ramp ramp = ramp_of(decision);
    const char *reason = esper_reason_name(decision->reason);
    esper_status status = decision->speed > 0
                              ? esper_slot_schedule_prune(slot, &ramp, reason, "policy", &growth->recording.events)
                              : esper_slot_prune(slot, reason, "policy", &growth->recording.events);

    return unless_refused(growth, status);
}

static esper_status set_alpha_target(esper_growth *growth, esper_slot *slot)
{
    const esper_decision *decision = &growth->deciding.decision;
    esper_alpha_ramp ramp = ramp_of(decision);
    int blend = decision->style >= 0 ? (int)esper_style_blend(decision->style) : 0;

    if (slot->alpha.value > 0.0 && blend != slot->blend)
        blend = 0; /* a style is always given; an operator changes only at alpha 0 */
    return unless_refused(growth,
                          esper_slot_set_alpha_target(slot, decision->target, &ramp, blend, &growth->recording.events));
}

/* Carries out what was decided about a slot of the view, where it is legal. */
static esper_status operate(esper_growth *growth)
{
    growth_deciding *deciding = &growth->deciding;
    int k = deciding->decision.slot;
    esper_status status = esper_mask_approve(&deciding->view, &deciding->decision);

    deciding->accepted = true;
    deciding->refusal[0] = '\0';
    if (status != ESPER_OK)
        return unless_refused(growth, status);
    assert(deciding->decision.op == ESPER_SLOT_OP_WAIT || (k >= 0 && k < growth->network->slots.n));
    switch (deciding->decision.op) {
    case ESPER_SLOT_OP_WAIT:
    case ESPER_SLOT_OP_TRY: /* it has been held: the log has its forks before this */
        return ESPER_OK;
    case ESPER_SLOT_OP_GERMINATE:
        return germinate(growth, k);
    case ESPER_SLOT_OP_ADVANCE:
    case ESPER_SLOT_OP_FOSSILIZE:
        return pass_gate(growth, k, deciding->decision.op == ESPER_SLOT_OP_FOSSILIZE);
    case ESPER_SLOT_OP_PRUNE:
        return prune(growth, &growth->network->slots.slot[k]);
    default:
        return set_alpha_target(growth, &growth->network->slots.slot[k]);
    }
}

/* ------------------------------------------------------------------------------------------------ and after it */

/* What its choice cost the network is on the account of the growth, too. */
static esper_status bear(esper_growth *growth, int k)
{
    uint64_t before = growth->network->cursor.spent;
    double flops;

    ESPER_TRY(esper_network_bear(growth->network, k));
    flops = (double)(growth->network->cursor.spent - before);
    growth->facts.flops += flops;
    growth->deciding.flops_beside += flops;
    return ESPER_OK;
}

esper_status growth_act(esper_growth *growth)
{
    esper_slots *slots = &growth->network->slots;
    const esper_slots *before = &growth->slots_before;

    ESPER_TRY(operate(growth));
    for (int k = 0; k < slots->n; k++) {
        esper_slot_merits merits = growth_merits(growth, k);

        esper_slot_tick(&slots->slot[k], slots->slot[k].permissive ? NULL : &merits, &growth->recording.events);
    }
    for (int i = 0; i < growth->recording.events.n; i++) {
        const esper_slot_event *event = &growth->recording.event_room[i];
        int k = esper_slots_find(slots, event->slot);

        if (event->kind == ESPER_SLOT_EVENT_GATE && k >= 0)
            growth->deciding.gates[k] = event->gate;
    }
    /* A seed is born when it becomes part of the network, not earlier: nothing of it is to be kept before, and a copy is one of
     * the host as it is now. */
    for (int k = 0; k < slots->n; k++)
        if (esper_stage_runs_seed(slots->slot[k].stage) && !esper_stage_runs_seed(before->slot[k].stage))
            ESPER_TRY(bear(growth, k));
    growth->state.decided = growth->facts.n_logged;
    growth->state.refused = !growth->deciding.accepted;
    return ESPER_OK;
}

/* The network is made what the slots say; where a seed has gone nothing of it stays. What can fail comes first: a seed whose
 * prune is undone still has its weights. */
esper_status growth_rebuild(esper_growth *growth)
{
    esper_network *network = growth->network;

    ESPER_TRY(esper_network_replan(network));
    for (int k = 0; k < network->slots.n; k++) {
        if (esper_stage_has_seed(network->slots.slot[k].stage))
            continue;
        esper_network_clear_region(network, k);
        growth->state.seed[k] = (growth_seed){.ratio = (double)NAN, .number = growth->state.seed[k].number};
        growth->deciding.gates[k].gate = -1;
    }
    growth->measuring.step_flops = 0.0; /* also an alpha that has left 0 changes what is tested: counted anew */
    growth_count_flops(growth);
    return ESPER_OK;
}
