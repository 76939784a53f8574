/* Growth: opening, and the order of things at the end of an epoch. */
#include "grow/growth.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/cost.h"
#include "grow/growth_internal.h"

/* ------------------------------------------------------------------------------------------------ opening */

/* Readings that depend on the host alone. */
static esper_status count_blueprints(esper_growth *growth)
{
    const esper_network *network = growth->network;
    const esper_blueprint *const *list = esper_blueprint_list(network->engine->host.topology);
    bool known = true;

    for (int k = 0; k < network->slots.n; k++) {
        const esper_slot *slot = &network->slots.slot[k];
        bool is_wide = esper_net_find_boundary(&network->engine->plain, slot->id)->wide.channels > 0;

        for (int i = 0; list[i] != NULL; i++) {
            growth->deciding.blueprint_params[k][list[i]->index] =
                esper_splice_count_seed(list[i], &network->engine->plain, slot->id);
            known = known && growth->deciding.blueprint_params[k][list[i]->index] != -1;
        }
        growth->deciding.gate_params[k] =
            is_wide ? ESPER_SPLICE_UNFIT : esper_splice_count_gate(network->engine->host.topology, slot->channels);
        known = known && growth->deciding.gate_params[k] != -1;
    }
    return known ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "sizes of %d slots' seeds", network->slots.n);
}

/* How much of the host is in front of each slot. */
static void find_places(esper_growth *growth)
{
    const esper_net *plain = &growth->network->engine->plain;
    double params = 0.0, flops = 0.0, all_params = (double)esper_net_count_params(plain, 0);
    double all_flops = esper_net_flops(plain);

    for (int o = 0; o < plain->n_ops; o++) {
        esper_lane lane = esper_net_lane(plain, &plain->ops[o]);

        for (int i = 0; i < esper_op_info_of(plain->ops[o].kind)->n_in; i++) {
            int t = plain->ops[o].in[i];

            if (t != ESPER_NO_TENSOR && plain->tensors[t].role == ESPER_ROLE_PARAM)
                params += (double)plain->tensors[t].count;
        }
        flops += esper_op_cost(plain->ops[o].kind, ESPER_FORWARD, &lane, 1).flops;
        for (int k = 0; k < growth->network->slots.n; k++) {
            const esper_boundary *at = esper_net_find_boundary(plain, growth->network->slots.slot[k].id);

            if (at == NULL || at->tensor != plain->ops[o].out[0])
                continue;
            growth->deciding.params_before[k] = all_params > 0.0 ? fmin(params / all_params, 1.0) : 0.0;
            growth->deciding.flops_before[k] = all_flops > 0.0 ? flops / all_flops : 0.0;
        }
    }
}

/* Likewise: of what is tried, so that it is known what a trial costs; of all of them where a limit asks for it. */
static esper_status count_flops(esper_growth *growth)
{
    const esper_engine *engine = growth->network->engine;
    const esper_slots *slots = &growth->network->slots;
    const esper_blueprint *const *list = esper_blueprint_list(engine->host.topology);
    growth_deciding *deciding = &growth->deciding;
    double flops[ESPER_MAX_SLOTS];

    for (int i = 0; list[i] != NULL; i++) {
        if ((deciding->trials.blueprints >> list[i]->index & 1u) == 0)
            continue;
        ESPER_TRY(esper_splice_count_flops(&engine->host, slots, list[i], flops));
        for (int k = 0; k < slots->n; k++)
            deciding->trial_flops[k][list[i]->index] = flops[k];
    }
    if (engine->config.max_flops <= 0.0)
        return ESPER_OK;
    deciding->host_flops = esper_net_flops(&engine->plain);
    ESPER_TRY(esper_splice_count_flops(&engine->host, slots, NULL, deciding->gate_flops));
    for (int i = 0; list[i] != NULL; i++) {
        ESPER_TRY(esper_splice_count_flops(&engine->host, slots, list[i], flops));
        for (int k = 0; k < slots->n; k++)
            deciding->blueprint_flops[k][list[i]->index] = flops[k];
    }
    return ESPER_OK;
}

static esper_status check_policy(const esper_config *config)
{
    const esper_policy_ops *policy = &esper_policy_learned;
    bool has_program = config->policy_cmd[0] != '\0', is_file = esper_policy_is_file(config->policy);
    int key = esper_config_find("policy");
    /* Whether somebody asked for this policy: a run's record names every key, so the default there says nothing. */
    bool is_asked = esper_config_place_of(config, key) > ESPER_CONFIG_FILE ||
                    (esper_config_place_of(config, key) == ESPER_CONFIG_FILE &&
                     strcmp(config->policy, esper_config_key_at(key)->preset) != 0);

    if (!is_file && esper_policy_find(config->policy, &policy) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "policy: ");
    if (!is_file && policy == &esper_policy_learned)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "policy = learned: none ships with this program: give the policy's file, or the "
                          "directory of the run that learned it, in place of the name: --policy "
                          "best.safetensors");
    if (has_program && is_asked && policy != &esper_policy_command)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "policy_cmd and policy = %s: one of them decides. Leave one out, or set policy = command",
                          policy->name);
    if (!has_program && policy == &esper_policy_command)
        return ESPER_FAIL(ESPER_E_CONFIG, "policy = command needs the program: give it with --policy-cmd COMMAND");
    if (policy == &esper_policy_scripted && !has_program && config->decisions[0] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "policy = scripted needs a decision file: give one with --decisions FILE");
    if (config->decisions[0] != '\0' && (has_program || policy != &esper_policy_scripted) &&
        esper_config_place_of(config, esper_config_find("decisions")) == ESPER_CONFIG_FLAG)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "decisions: only policy = scripted reads a decision file, and %s decides here",
                          has_program ? "a program" : policy->name);
    return ESPER_OK;
}

/* Bits 1 << index of the blueprints that are tried, in trials or by the heuristic. Those of texts, and new channels, are for who names
 * what is to germinate: a learned policy has no choice for them. */
static uint32_t kinds_tried(const esper_config *config, esper_topology topology, const esper_heuristic_settings *rules,
                            bool in_trials)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    bool usual = config->blueprints[0] == '\0' && in_trials;
    bool by_name = config->policy_cmd[0] != '\0' || strcmp(config->policy, esper_policy_trials.name) == 0 ||
                   strcmp(config->policy, esper_policy_scripted.name) == 0;
    uint32_t kinds = usual ? esper_trial_usual(topology) : 0;

    if (usual && by_name && config->widen)
        kinds |= 1u << ESPER_BLUEPRINT_WIDE;
    for (int i = 0; usual && by_name && config->add_blueprints[0] != '\0' && list[i] != NULL; i++)
        if (list[i]->text != NULL) /* who adds one wants to see it tried */
            kinds |= 1u << list[i]->index;
    for (int i = 0; !usual && i < rules->n_rotation; i++)
        kinds |= 1u << rules->rotation[i];
    return kinds;
}

/* A birth that the run is set to, and that nobody who decides here could choose a blueprint for. */
static esper_status check_birth(const esper_config *config, esper_topology topology,
                                const esper_heuristic_settings *rules)
{
    const char *birth = esper_birth_name((int)config->birth);
    bool by_rules = config->policy_cmd[0] == '\0' && strcmp(config->policy, esper_policy_heuristic.name) == 0;
    bool by_trials = config->policy_cmd[0] == '\0' && strcmp(config->policy, esper_policy_trials.name) == 0;
    uint32_t fit = 0; /* to be born so */

    for (int i = 1; i < ESPER_POLICY_BLUEPRINTS; i++) {
        const esper_blueprint *blueprint = esper_policy_blueprint(topology, i);

        if (blueprint != NULL && (blueprint->births >> config->birth & 1u) != 0)
            fit |= 1u << i;
    }
    if (fit == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "birth = %s: no %s blueprint can be born so", birth,
                          esper_topology_name(topology));
    if ((by_rules || by_trials) && (fit & kinds_tried(config, topology, rules, by_trials)) == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "birth = %s: nothing that %s can be born so: give --blueprints layer", birth,
                          by_rules ? "the heuristic tries" : "is tried");
    if (config->birth == ESPER_CONFIG_BIRTH_COPY && esper_policy_is_file(config->policy))
        return ESPER_FAIL(ESPER_E_CONFIG, "birth = copy: a learned policy does not know the blueprint `layer`");
    return ESPER_OK;
}

esper_status esper_growth_check_config(const esper_config *config, esper_topology topology)
{
    esper_heuristic_settings rules;
    esper_reward_config reward;

    ESPER_TRY(check_policy(config));
    ESPER_TRY(esper_growth_reward_config(config, &reward));
    if (!config->guard)
        return ESPER_FAIL(ESPER_E_CONFIG, "growing needs the guard, whose scans also measure what gates ask for: "
                                          "leave guard = true");
    esper_heuristic_settings_init(&rules, topology);
    if (config->blueprints[0] != '\0' &&
        esper_heuristic_settings_rotate(&rules, topology, config->blueprints) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "blueprints: ");
    return check_birth(config, topology, &rules);
}

const char *esper_growth_foresee(const esper_config *config, char text[ESPER_GROWTH_HINT_CHARS])
{
    bool permissive = config->gates == ESPER_CONFIG_GATES_PERMISSIVE;
    int least = esper_gate_least_epochs(permissive, config->gate_epochs),
        of_one = esper_gate_least_epochs(permissive, 1);
    /* The most that gates may ask for where a seed is to be kept within these epochs; 0 = even 1 is too much. */
    int most = config->epochs >= of_one
                   ? 1 + (config->epochs - of_one) / (esper_gate_least_epochs(permissive, 2) - of_one)
                   : 0;
    int n;

    text[0] = '\0';
    if (config->epochs >= least || (config->length == ESPER_CONFIG_LENGTH_FLOPS && config->flops > 0.0))
        return text;
    n = snprintf(
        text, ESPER_GROWTH_HINT_CHARS,
        "no seed can be kept in %d epochs: with %s gates and gate_epochs = %d that takes %d. Ask for --epochs %d",
        config->epochs, esper_config_gates_name(config->gates), config->gate_epochs, least, least);
    if (most >= 1)
        snprintf(text + n, ESPER_GROWTH_HINT_CHARS - (size_t)n, ", or --gate-epochs %d", most);
    else if (config->gate_epochs > 1)
        snprintf(text + n, ESPER_GROWTH_HINT_CHARS - (size_t)n, ", or --gate-epochs 1 --epochs %d", of_one);
    return text;
}

static esper_status open_policy(esper_growth *growth)
{
    const esper_network *network = growth->network;
    const esper_config *config = &network->engine->config;
    const char *ids[ESPER_MAX_SLOTS];
    const char *name = config->policy_cmd[0] != '\0'           ? esper_policy_command.name
                       : esper_policy_is_file(config->policy) ? esper_policy_learned.name
                                                              : config->policy;
    esper_heuristic_settings rules;
    esper_trial_ground ground = growth_trial_ground(growth);
    esper_trial_settings trials = {.share = config->trial_share,
                                   .first = config->trial_first,
                                   .n_steps = (uint32_t)config->trial_steps,
                                   .n_rounds = config->trial_rounds,
                                   .n_seeds = config->trial_seeds,
                                   .price = config->trial_price,
                                   .batch = config->batch,
                                   .n_batches = esper_engine_batches(network->engine, ESPER_SPLIT_VALID)};
    esper_policy_setup setup = {
        .topology = network->engine->host.topology,
        .seed = network->seed,
        .max_epochs = network->budget > 0 && config->flops > 0.0 ? 0 : config->epochs, /* at most: it may grow dearer */
        .slot_ids = ids,
        .n_slots = network->slots.n,
        .heuristic = &rules,
        .trials = &trials,
        .ground = &ground,
        .script = config->decisions,
        .command = config->policy_cmd,
        .deadline_ms = (int)fmin(config->policy_deadline * 1000.0, 1e9),
        .policy_file = config->policy,
        .task = network->engine->task,
        .backend = esper_backend_name(network->engine->backend),
        .room_bytes = GROWTH_POLICY_BYTES,
    };

    for (int k = 0; k < network->slots.n; k++)
        ids[k] = network->slots.slot[k].id;
    esper_heuristic_settings_init(&rules, setup.topology);
    esper_heuristic_settings_pace(&rules, config->gate_epochs);
    rules.plateau_epochs = config->plateau_epochs;
    if (config->blueprints[0] != '\0')
        ESPER_TRY(esper_heuristic_settings_rotate(&rules, setup.topology, config->blueprints));
    trials.blueprints = kinds_tried(config, setup.topology, &rules, true);
    growth->deciding.trials = trials;
    growth->deciding.tries = strcmp(name, esper_policy_trials.name) == 0;
    growth->deciding.follows = network->engine->ranks.rank > 0 && strcmp(name, esper_policy_command.name) == 0;
    if ((growth->deciding.history != NULL && !growth->deciding.tries) || growth->deciding.follows)
        name = "none"; /* what it would say is known already, or comes from rank 0; trials are held again */
    ESPER_TRY(esper_policy_open(name, &setup, &growth->deciding.policy));
    if (esper_policy_pack_bytes(growth->deciding.policy) > GROWTH_POLICY_BYTES)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "policy %s remembers %zu bytes: there is room for %d", name,
                          esper_policy_pack_bytes(growth->deciding.policy), (int)GROWTH_POLICY_BYTES);
    return ESPER_OK;
}

/* A rate that falls goes by the budget: with another one every step before was another. */
static esper_status check_budget(const esper_growth *growth)
{
    const esper_decision_history *history = growth->deciding.history;
    const esper_network *network = growth->network;

    if (history == NULL || history->head.budget == network->budget ||
        network->engine->config.schedule == ESPER_CONFIG_SCHEDULE_CONSTANT)
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                      "the run was begun for %.3g FLOPs and resumed for %.3g: its learning rate fell by two schedules, "
                      "which a replay cannot follow",
                      (double)history->head.budget, (double)network->budget);
}

static esper_status open_parts(esper_growth *growth, const char *inject)
{
    esper_network *network = growth->network;
    int64_t n_buffers = esper_slab_count(&network->slab, ESPER_FAMILY_BUFFER);
    esper_tracker_options options;
    void *memory;

    assert(network->slots.n <= ESPER_MAX_SLOTS);
    ESPER_TRY(check_budget(growth));
    esper_tracker_options_init(&options);
    esper_tracker_options_pace(&options, network->engine->config.gate_epochs);
    options.plateau_threshold = network->engine->config.plateau;
    ESPER_TRY(esper_tracker_init(&growth->deciding.tracker, &options));
    ESPER_TRY(esper_growth_reward_config(&network->engine->config, &growth->deciding.reward_config));
    ESPER_TRY(open_policy(growth));
    ESPER_TRY(growth_read_faults(growth, inject != NULL ? inject : network->engine->config.inject));
    ESPER_TRY(esper_evaluator_open(network, ESPER_SPLIT_VALID, &growth->measuring.evaluator));
    ESPER_TRY(esper_backend_alloc(network->engine->backend, (size_t)n_buffers * sizeof(float), &memory));
    growth->measuring.buffers = memory;
    ESPER_TRY(count_blueprints(growth));
    find_places(growth);
    ESPER_TRY(count_flops(growth));
    for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
        growth->state.seed[k].ratio = (double)NAN;
        growth->deciding.gates[k].gate = -1;
        growth->measuring.probed[k] = growth->state.promise[k] = (double)NAN;
    }
    for (int k = 0; k < network->slots.n; k++) /* planted ones */
        if (esper_slot_is_active(&network->slots.slot[k]))
            growth->state.seed[k].number = (int32_t)growth->facts.n_seeds++;
    growth->recording.events =
        (esper_slot_events){.events = growth->recording.event_room, .capacity = GROWTH_MAX_EVENTS};
    esper_decision_init(&growth->deciding.decision, ESPER_SLOT_OP_WAIT);
    growth_count_flops(growth);
    return ESPER_OK;
}

esper_status esper_growth_open(esper_network *network, const esper_decision_history *history, const char *inject,
                               esper_growth **growth_out)
{
    esper_growth *growth;
    esper_status status;

    ESPER_TRY(esper_growth_check_config(&network->engine->config, network->engine->host.topology));
    growth = esper_mem_alloc(sizeof(*growth));
    if (growth == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "growth");
    growth->network = network;
    growth->trial_won.slot = growth->trial_won.blueprint = -1;
    growth->deciding.history = history;
    growth->facts.counted = 1;
    esper_net_init(&growth->measuring.probe_net);
    status = open_parts(growth, inject);
    if (status != ESPER_OK) {
        esper_growth_close(growth);
        return status;
    }
    growth->deciding.params_begun = (double)esper_growth_params(growth);
    growth->deciding.flops_begun = (double)growth->network->step_cost;
    growth_join(growth);
    *growth_out = growth;
    return ESPER_OK;
}

void esper_growth_close(esper_growth *growth)
{
    if (growth == NULL)
        return;
    growth_leave(growth);
    esper_decision_log_close(growth->recording.log);
    esper_plan_close(growth->measuring.probe_plan);
    esper_net_fini(&growth->measuring.probe_net);
    esper_evaluator_close(growth->measuring.evaluator);
    esper_policy_close(growth->deciding.policy);
    esper_backend_release(growth->network->engine->backend, growth->measuring.buffers);
    esper_mem_free(growth);
}

esper_status esper_growth_attach(esper_growth *growth, const esper_growth_records *records)
{
    const esper_network *network = growth->network;
    esper_log_head head = {.topology = network->engine->host.topology,
                           .seed = network->seed,
                           .ranks = network->engine->ranks.size,
                           .budget = network->budget,
                           .data = esper_dataset_hash(network->engine->data)};

    growth->recording.records = *records;
    if (records->bus != NULL) /* it counts on */
        memcpy(records->bus->n_rows, growth->facts.rows, sizeof(growth->facts.rows));
    esper_guarded_watch(growth->network, growth_watch_gradients, growth_wants_gradients, growth);
    esper_guarded_set_clerk(growth->network, growth_log_governor, growth);
    if (growth->drills.n_faults > 0)
        esper_guarded_set_drill(growth->network, growth_drill, growth);
    if (records->decisions == NULL)
        return ESPER_OK;
    snprintf(head.task, sizeof(head.task), "%s", network->engine->task);
    snprintf(head.kernels, sizeof(head.kernels), "%s", esper_backend_identity(network->engine->backend));
    return esper_decision_log_open(records->decisions, &head, records->resume, growth->facts.n_logged,
                                   &growth->recording.log);
}

esper_status esper_growth_write_log(esper_growth *growth)
{
    return growth->recording.log != NULL ? esper_decision_log_catch_up(growth->recording.log) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the end of an epoch */

/* The next entry of the history, if it is a decision. Whether it belongs here is checked when it is logged. */
static esper_status decide_again(esper_growth *growth, esper_decision *decision_out)
{
    const esper_log_entry *entry;
    esper_decision decision;

    ESPER_TRY(growth_next_decision(growth, &entry));
    decision = entry->decision;
    decision.slot = -1;
    if (entry->slot[0] != '\0') {
        decision.slot = esper_slots_find(&growth->network->slots, entry->slot);
        if (decision.slot < 0)
            return ESPER_FAIL(ESPER_E_STATE, "entry %llu of the log: this network has no slot %s",
                              (unsigned long long)entry->number, entry->slot);
    }
    *decision_out = decision;
    return ESPER_OK;
}

/* A program may say anything: rank 0 asks, and the others take its answer and what it remembers. */
static esper_status decide_by_program(esper_growth *growth, esper_decision *decision_out)
{
    const esper_ranks *ranks = &growth->network->engine->ranks;
    esper_decision decision = growth->deciding.decision;
    esper_status status = ESPER_OK;

    if (!growth->deciding.follows)
        status = esper_policy_decide(growth->deciding.policy, &growth->deciding.view, &decision);
    ESPER_TRY(esper_ranks_settle(ranks, status));
    growth_gather(growth);
    ESPER_TRY(esper_ranks_share(ranks, &decision, sizeof(decision)));
    ESPER_TRY(esper_ranks_share(ranks, &growth->state.policy_bytes, sizeof(growth->state.policy_bytes)));
    ESPER_TRY(esper_ranks_share(ranks, growth->state.policy, sizeof(growth->state.policy)));
    *decision_out = decision;
    return ESPER_OK;
}

static esper_status observe(esper_growth *growth)
{
    growth->recording.events.n = growth->recording.events.n_dropped = 0;
    ESPER_TRY(esper_growth_check_drills(growth));
    growth_take_readings(growth, &growth->recording.record);
    growth_make_view(growth, &growth->recording.record, &growth->deciding.view);
    ESPER_TRY(esper_tracker_update(&growth->deciding.tracker, (int)growth->recording.record.epoch,
                                   growth->recording.record.loss_valid, growth->recording.record.acc_valid,
                                   growth->deciding.views, growth->deciding.view.n_slots,
                                   &growth->deciding.view.signals));
    growth_begin_ledger(growth);
    return ESPER_OK;
}

static esper_status carry_out(esper_growth *growth, const esper_decision *decision, bool last)
{
    growth->deciding.decision = *decision;
    if (decision->op == ESPER_SLOT_OP_GERMINATE && decision->birth == ESPER_BIRTH_UNSAID)
        growth->deciding.decision.birth = (int32_t)growth->network->engine->config.birth;
    if (decision->op == ESPER_SLOT_OP_TRY) /* changes nothing: its forks stand before it in the log, as others' do */
        ESPER_TRY(growth_try(growth, decision));
    ESPER_TRY(growth_log_decision(growth, growth->recording.record.epoch));
    ESPER_TRY(growth_act(growth));
    ESPER_TRY(growth_pay(growth, last));
    growth_record_epoch(growth, &growth->recording.record);
    growth_record_events(growth, growth->recording.record.epoch);
    for (int k = 0; k < growth->network->slots.n; k++)
        growth->state.seed[k].sampled = 0;
    return growth_rebuild(growth);
}

/* After a failure: slots, state and network as they were when the end of the epoch began. */
static esper_status undo_unless(esper_growth *growth, esper_status status)
{
    esper_network *network = growth->network;
    char message[1024];

    if (status == ESPER_OK)
        return ESPER_OK;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    network->slots = growth->slots_before;
    growth->state = growth->state_before;
    network->cursor.spent = growth->spent_before;
    growth_take_facts(growth, &growth->facts_before); /* what was logged since is cut off when the run is resumed */
    (void)esper_network_replan(network); /* the run ends here; a checkpoint is made of the network */
    for (int k = 0; k < network->slots.n; k++)
        if (!esper_stage_runs_seed(network->slots.slot[k].stage)) /* not born yet, or no longer there */
            esper_network_clear_region(network, k);
    (void)growth_spread(growth); /* bytes that it packed itself a moment ago */
    return ESPER_FAIL(status, "%s", message);
}

esper_status esper_growth_observe(esper_growth *growth, const esper_epoch_record *record,
                                  const esper_policy_view **view_out)
{
    growth_gather(growth);
    growth->state_before = growth->state;
    growth->facts_before = growth->facts;
    growth->slots_before = growth->network->slots;
    growth->recording.record = *record;
    growth->n_tried = 0;
    ESPER_TRY(undo_unless(growth, observe(growth)));
    *view_out = &growth->deciding.view;
    return ESPER_OK;
}

esper_status esper_growth_ask(esper_growth *growth, esper_decision *decision_out)
{
    esper_policy *policy = growth->deciding.policy;
    bool by_program = growth->deciding.follows || strcmp(esper_policy_name(policy), esper_policy_command.name) == 0;

    if (growth->deciding.tries && growth->deciding.history != NULL &&
        growth->deciding.n_replayed == growth->deciding.history->n)
        return undo_unless(growth, ESPER_FAIL(ESPER_E_STOPPED, "the log ends here"));
    return undo_unless(growth, growth->deciding.history != NULL && !growth->deciding.tries
                                   ? decide_again(growth, decision_out)
                               : by_program                     ? decide_by_program(growth, decision_out)
                                            : esper_policy_decide(policy, &growth->deciding.view, decision_out));
}

/* Whether a seed that had no weight has all that it is to have: nothing was faded in. One that is born silent and joins at once
 * changes nothing. */
static bool joins_at_once(const esper_slot *before, const esper_slot *now)
{
    bool silent = esper_birth_is_silent(now->birth) && !esper_stage_runs_seed(before->stage);

    return before->alpha.value <= 0.0 && now->alpha.value > 0.0 && now->alpha.mode == ESPER_ALPHA_HOLD && !silent;
}

esper_status esper_growth_decide(esper_growth *growth, const esper_decision *decision, bool last)
{
    assert(growth->recording.record.epoch > 0); /* it was observed */
    ESPER_TRY(undo_unless(growth, carry_out(growth, decision, last)));
    for (int k = 0; k < growth->network->slots.n; k++)
        if (joins_at_once(&growth->slots_before.slot[k], &growth->network->slots.slot[k]))
            esper_guarded_forget_losses(growth->network);
    growth->measuring.measured = false;
    return ESPER_OK;
}

esper_status esper_growth_end_epoch(esper_growth *growth, const esper_epoch_record *record)
{
    const esper_policy_view *view;
    esper_decision decision;

    ESPER_TRY(esper_growth_observe(growth, record, &view));
    ESPER_TRY(esper_growth_ask(growth, &decision));
    return esper_growth_decide(growth, &decision, record->epoch >= esper_network_epochs(growth->network));
}

/* ------------------------------------------------------------------------------------------------ going back */

/* Rung (c) of the ladder: what is not kept is removed. The reason begins with "governor_", as slots expect it. */
static esper_status prune_all(esper_growth *growth, const char *reason)
{
    esper_slots *slots = &growth->network->slots;

    for (int k = 0; k < slots->n; k++) {
        if (!esper_slot_is_active(&slots->slot[k]) || slots->slot[k].stage == ESPER_STAGE_FOSSILIZED)
            continue;
        ESPER_TRY(esper_slot_prune(&slots->slot[k], reason, "governor", &growth->recording.events));
        growth->facts.n_auto_pruned++;
    }
    growth_record_events(growth, growth->network->cursor.epoch + 1);
    return growth_rebuild(growth);
}

esper_status esper_growth_heed(esper_growth *growth, const esper_incident *incident)
{
    if (incident->action == ESPER_GOVERNOR_GO)
        return ESPER_OK;
    growth->measuring.measured = false;
    if (incident->restored)
        growth->facts.went_back = growth->facts.n_logged + 1;
    growth->recording.events.n = growth->recording.events.n_dropped = 0; /* those of before are told */
    if (incident->restored && incident->action == ESPER_GOVERNOR_PRUNE)
        ESPER_TRY(prune_all(growth, esper_governor_reason_name(incident->reason)));
    if (incident->restored || incident->action == ESPER_GOVERNOR_STOP)
        growth_forfeit(growth);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_growth_look esper_growth_look_at(const esper_growth *growth)
{
    return (esper_growth_look){
        .slots = &growth->network->slots,
        .gates = growth->deciding.gates,
        .contribution = growth->measuring.found.contribution,
        .trial = growth->measuring.found.trial,
        .events = growth->recording.event_room,
        .n_events = growth->recording.events.n,
        .decision = &growth->deciding.decision,
        .accepted = growth->deciding.accepted,
        .refusal = growth->deciding.refusal,
        .best = growth->n_tried > 0 ? &growth->trial_won : NULL,
        .n_tried = growth->n_tried,
        .n_trying = growth->n_trying,
        .may_grow = strcmp(esper_growth_decider(growth), esper_policy_none.name) != 0 &&
                    growth->network->cursor.epoch < growth_last_epoch(growth->network),
    };
}

esper_growth_account esper_growth_account_of(const esper_growth *growth)
{
    const esper_decision_history *history = growth->deciding.history;

    return (esper_growth_account){
        .flops_train = growth->facts.flops,
        .flops_sample = growth->measuring.sample_flops,
        .flops_host = esper_net_flops(&growth->network->engine->plain),
        .total_reward = growth_is_paid(growth) ? growth->facts.earned : (double)NAN,
        .n_logged = growth->facts.n_logged,
        .n_waiting = growth->recording.log != NULL ? esper_decision_log_n_waiting(growth->recording.log) : 0,
        .rows = growth->facts.counted != 0 ? growth->facts.rows : NULL,
        .n_faults_left = (uint64_t)growth->drills.n_faults - growth->facts.n_injected,
        .is_replayed = history != NULL && growth->deciding.n_replayed == history->n,
    };
}

void esper_growth_count_before(esper_growth *growth, double flops)
{
    assert(flops >= 0.0);
    growth->facts.flops += flops;
}

esper_bound esper_growth_bound_of(const esper_growth *growth, int slot)
{
    assert(slot >= 0 && slot < growth->network->slots.n);
    return growth->state.seed[slot].bound;
}

uint64_t esper_growth_verdict(const esper_growth *growth)
{
    uint64_t hash = XXH64(&growth->deciding.decision, sizeof(growth->deciding.decision), growth->deciding.accepted);

    hash = XXH64(growth->deciding.refusal, strlen(growth->deciding.refusal), hash);
    for (int k = 0; k < growth->network->slots.n; k++) {
        const esper_gate_result *gate = &growth->deciding.gates[k];
        int64_t said[] = {gate->gate, gate->passed};

        hash = XXH64(said, sizeof(said), hash);
    }
    hash = XXH64(&growth->trial_won.gain, sizeof(growth->trial_won.gain), hash);
    hash = XXH64(&growth->trial_won.weights, sizeof(growth->trial_won.weights), hash);
    return XXH64(&growth->facts.n_logged, sizeof(growth->facts.n_logged), hash);
}

const char *esper_growth_decider(const esper_growth *growth)
{
    const char *name = esper_policy_describe(growth->deciding.policy);

    return growth->deciding.follows || strcmp(name, esper_policy_command.name) == 0 ? "a program" : name;
}

void esper_growth_kept(const esper_growth *growth, char text[ESPER_CONFIG_TEXT_CHARS])
{
    size_t n = 0;

    text[0] = '\0';
    for (int k = 0; k < growth->network->slots.n && n < ESPER_CONFIG_TEXT_CHARS; k++) {
        const esper_slot *slot = &growth->network->slots.slot[k];

        if (slot->stage == ESPER_STAGE_FOSSILIZED)
            n += (size_t)snprintf(text + n, ESPER_CONFIG_TEXT_CHARS - n, "%s%s:%s:%s", n > 0 ? "," : "", slot->id,
                                  slot->blueprint, esper_blend_name(slot->blend));
    }
}
