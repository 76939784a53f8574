/* Growth: opening, the order of things at the end of an epoch, and what is remembered. */
#include "grow/growth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "grow/growth_internal.h"

/* ------------------------------------------------------------------------------------------------ memory */

typedef struct growth_memory {
    growth_state state;
    growth_facts facts;
} growth_memory;

/* The state as it is now: tracker and policy live outside of it. */
static void gather(esper_growth *growth)
{
    esper_tracker_pack(&growth->tracker, growth->state.tracker);
    if (growth->follows)
        return;
    memset(growth->state.policy, 0, sizeof(growth->state.policy));
    growth->state.policy_bytes = esper_policy_pack_bytes(growth->policy);
    esper_policy_pack(growth->policy, growth->state.policy);
}

static esper_status spread(esper_growth *growth)
{
    ESPER_TRY(esper_tracker_unpack(&growth->tracker, growth->state.tracker, sizeof(growth->state.tracker)));
    if (growth->follows)
        return ESPER_OK;
    return esper_policy_unpack(growth->policy, growth->state.policy, growth->state.policy_bytes);
}

static void pack_memory(void *context, void *bytes_out)
{
    esper_growth *growth = context;
    growth_memory memory;

    gather(growth);
    memset(&memory, 0, sizeof(memory));
    memory.state = growth->state;
    memory.facts = growth->facts;
    memcpy(bytes_out, &memory, sizeof(memory));
}

static esper_status unpack_memory(void *context, const void *bytes, bool whole)
{
    esper_growth *growth = context;
    growth_memory memory;

    memcpy(&memory, bytes, sizeof(memory));
    if (memory.state.policy_bytes > GROWTH_POLICY_BYTES)
        return ESPER_FAIL(ESPER_E_FORMAT, "what a policy remembers cannot take %llu bytes",
                          (unsigned long long)memory.state.policy_bytes);
    if (!(memory.facts.flops >= 0.0 && memory.facts.flops < 1e30) || memory.facts.n_seeds < 0 ||
        memory.facts.n_seeds > INT32_MAX || memory.facts.n_logged > UINT32_MAX || !isfinite(memory.facts.earned) ||
        !isfinite(memory.facts.earned_segment))
        return ESPER_FAIL(ESPER_E_FORMAT, "what it says of the growth cannot be: %g FLOPs, %lld seeds",
                          memory.facts.flops, (long long)memory.facts.n_seeds);
    growth->state = memory.state;
    if (whole)
        growth->facts = memory.facts;
    else
        growth->facts.ledger_open = 0;
    growth->measured = false;
    return spread(growth);
}

/* ------------------------------------------------------------------------------------------------ opening */

/* Readings that depend on the host alone. */
static esper_status count_blueprints(esper_growth *growth)
{
    const esper_network *network = growth->network;
    const esper_blueprint *const *list = esper_blueprint_list(network->engine->host.topology);
    bool known = true;

    for (int k = 0; k < network->slots.n; k++) {
        int channels = network->slots.slot[k].channels;

        for (int i = 0; list[i] != NULL; i++) {
            growth->blueprint_params[k][list[i]->index] = esper_splice_count_params(list[i], channels);
            known = known && growth->blueprint_params[k][list[i]->index] != -1;
        }
        growth->gate_params[k] = esper_splice_count_gate(network->engine->host.topology, channels);
        known = known && growth->gate_params[k] >= 0;
    }
    return known ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "sizes of %d slots' seeds", network->slots.n);
}

static esper_status open_tracker(esper_growth *growth)
{
    esper_tracker_options options;

    esper_tracker_options_init(&options);
    esper_tracker_options_pace(&options, growth->network->engine->config.gate_epochs);
    options.plateau_threshold = growth->network->engine->config.plateau;
    return esper_tracker_init(&growth->tracker, &options);
}

/* Whether somebody asked for this policy: a run's record names every key, so the default there says nothing. */
static bool is_policy_asked(const esper_config *config)
{
    int key = esper_config_find("policy");

    return esper_config_place_of(config, key) > ESPER_CONFIG_FILE ||
           strcmp(config->policy, esper_config_key_at(key)->preset) != 0;
}

static esper_status check_policy(const esper_config *config)
{
    const esper_policy_ops *policy = &esper_policy_learned;
    bool has_program = config->policy_cmd[0] != '\0', is_file = esper_policy_is_file(config->policy);

    if (!is_file && esper_policy_find(config->policy, &policy) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "policy: ");
    if (!is_file && policy == &esper_policy_learned)
        return ESPER_FAIL(ESPER_E_CONFIG, "policy = learned: give the policy's file, or the directory of the run that "
                                          "learned it, in place of the name: --policy best.safetensors");
    if (has_program && is_policy_asked(config) && policy != &esper_policy_command)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "policy_cmd and policy = %s: one of them decides. Leave one out, or set policy = command",
                          policy->name);
    if (!has_program && policy == &esper_policy_command)
        return ESPER_FAIL(ESPER_E_CONFIG, "policy = command needs the program: policy_cmd");
    if (policy == &esper_policy_scripted && !has_program && config->decisions[0] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "policy = scripted needs a decision file: decisions");
    if (config->decisions[0] != '\0' && (has_program || policy != &esper_policy_scripted) &&
        esper_config_place_of(config, esper_config_find("decisions")) == ESPER_CONFIG_FLAG)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "decisions: only policy = scripted reads a decision file, and %s decides here",
                          has_program ? "a program" : policy->name);
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
    return ESPER_OK;
}

/* The most that gates may ask for where a seed is to be kept within these epochs; 0 = even 1 is too much. */
static int most_gate_epochs(bool permissive, int epochs)
{
    int least = esper_gate_least_epochs(permissive, 1), each = esper_gate_least_epochs(permissive, 2) - least;

    return epochs >= least ? 1 + (epochs - least) / each : 0;
}

const char *esper_growth_foresee(const esper_config *config, char text[ESPER_GROWTH_HINT_CHARS])
{
    bool permissive = config->gates == ESPER_CONFIG_GATES_PERMISSIVE;
    int least = esper_gate_least_epochs(permissive, config->gate_epochs);
    int most = most_gate_epochs(permissive, config->epochs);
    int n;

    text[0] = '\0';
    if (config->epochs >= least)
        return text;
    n = snprintf(
        text, ESPER_GROWTH_HINT_CHARS,
        "no seed can be kept in %d epochs: with %s gates and gate_epochs = %d that takes %d. Ask for --epochs %d",
        config->epochs, esper_config_gates_name(config->gates), config->gate_epochs, least, least);
    if (most >= 1)
        snprintf(text + n, ESPER_GROWTH_HINT_CHARS - (size_t)n, ", or --gate-epochs %d", most);
    else
        snprintf(text + n, ESPER_GROWTH_HINT_CHARS - (size_t)n, ", or --gate-epochs 1 --epochs %d",
                 esper_gate_least_epochs(permissive, 1));
    return text;
}

static const char *name_of_policy(const esper_config *config)
{
    if (config->policy_cmd[0] != '\0')
        return esper_policy_command.name;
    return esper_policy_is_file(config->policy) ? esper_policy_learned.name : config->policy;
}

static esper_status open_policy(esper_growth *growth)
{
    const esper_network *network = growth->network;
    const esper_config *config = &network->engine->config;
    const char *ids[ESPER_MAX_SLOTS], *name = name_of_policy(config);
    esper_heuristic_settings rules;
    esper_policy_setup setup = {
        .topology = network->engine->host.topology,
        .seed = network->seed,
        .max_epochs = config->epochs,
        .slot_ids = ids,
        .n_slots = network->slots.n,
        .heuristic = &rules,
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
    growth->follows = network->engine->ranks.rank > 0 && strcmp(name, esper_policy_command.name) == 0;
    if (growth->history != NULL || growth->follows)
        name = "none"; /* what it would say is known already, or comes from rank 0 */
    ESPER_TRY(esper_policy_open(name, &setup, &growth->policy));
    if (esper_policy_pack_bytes(growth->policy) > GROWTH_POLICY_BYTES)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "policy %s remembers %zu bytes: there is room for %d", name,
                          esper_policy_pack_bytes(growth->policy), (int)GROWTH_POLICY_BYTES);
    return ESPER_OK;
}

static void init_memory(esper_growth *growth)
{
    for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
        growth->state.seed[k].ratio = (double)NAN;
        growth->gates[k].gate = -1;
        growth->probed[k] = growth->state.promise[k] = (double)NAN;
    }
    for (int k = 0; k < growth->network->slots.n; k++) /* planted ones */
        if (esper_slot_is_active(&growth->network->slots.slot[k]))
            growth->state.seed[k].number = (int32_t)growth->facts.n_seeds++;
    growth->events = (esper_slot_events){.events = growth->event_room, .capacity = GROWTH_MAX_EVENTS};
    esper_decision_init(&growth->decision, ESPER_SLOT_OP_WAIT);
}

static esper_status open_parts(esper_growth *growth, const char *inject)
{
    esper_network *network = growth->network;
    int64_t n_buffers = esper_slab_count(&network->slab, ESPER_FAMILY_BUFFER);

    ESPER_TRY(open_tracker(growth));
    ESPER_TRY(esper_growth_reward_config(&network->engine->config, &growth->reward_config));
    ESPER_TRY(open_policy(growth));
    ESPER_TRY(growth_read_faults(growth, inject != NULL ? inject : network->engine->config.inject));
    ESPER_TRY(esper_evaluator_open(network, ESPER_SPLIT_VALID, &growth->evaluator));
    growth->buffers = esper_mem_alloc((size_t)n_buffers * sizeof(float) + 1);
    if (growth->buffers == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "growth");
    ESPER_TRY(count_blueprints(growth));
    init_memory(growth);
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
    growth->history = history;
    esper_net_init(&growth->probe_net);
    status = open_parts(growth, inject);
    if (status != ESPER_OK) {
        esper_growth_close(growth);
        return status;
    }
    network->companion = (esper_companion){
        .context = growth, .bytes = sizeof(growth_memory), .pack = pack_memory, .unpack = unpack_memory};
    *growth_out = growth;
    return ESPER_OK;
}

void esper_growth_close(esper_growth *growth)
{
    if (growth == NULL)
        return;
    growth->network->companion = (esper_companion){0};
    esper_decision_log_close(growth->log);
    esper_plan_close(growth->probe_plan);
    esper_net_fini(&growth->probe_net);
    esper_evaluator_close(growth->evaluator);
    esper_policy_close(growth->policy);
    esper_mem_free(growth->buffers);
    esper_mem_free(growth);
}

esper_status esper_growth_attach(esper_growth *growth, const esper_growth_records *records)
{
    const esper_network *network = growth->network;
    esper_log_head head = {
        .topology = network->engine->host.topology, .seed = network->seed, .ranks = network->engine->ranks.size};

    growth->records = *records;
    esper_guarded_watch(growth->network, growth_watch_gradients, growth);
    esper_guarded_set_clerk(growth->network, growth_log_governor, growth);
    if (growth->n_faults > 0)
        esper_guarded_set_drill(growth->network, growth_drill, growth);
    if (records->decisions == NULL)
        return ESPER_OK;
    snprintf(head.task, sizeof(head.task), "%s", network->engine->task);
    snprintf(head.kernels, sizeof(head.kernels), "%s", esper_backend_identity(network->engine->backend));
    return esper_decision_log_open(records->decisions, &head, records->resume, growth->facts.n_logged, &growth->log);
}

/* ------------------------------------------------------------------------------------------------ the end of an epoch */

/* The next entry of the history, if it is a decision. Whether it belongs here is checked when it is logged. */
static esper_status decide_again(esper_growth *growth, esper_decision *decision_out)
{
    const esper_log_entry *entry;
    esper_decision decision;

    ESPER_TRY(growth_next_entry(growth, ESPER_LOG_POLICY, &entry));
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
    esper_decision decision = growth->decision;
    esper_status status = ESPER_OK;

    if (!growth->follows)
        status = esper_policy_decide(growth->policy, &growth->view, &decision);
    ESPER_TRY(esper_ranks_settle(ranks, status));
    gather(growth);
    ESPER_TRY(esper_ranks_share(ranks, &decision, sizeof(decision)));
    ESPER_TRY(esper_ranks_share(ranks, &growth->state.policy_bytes, sizeof(growth->state.policy_bytes)));
    ESPER_TRY(esper_ranks_share(ranks, growth->state.policy, sizeof(growth->state.policy)));
    *decision_out = decision;
    return ESPER_OK;
}

static esper_status ask(esper_growth *growth, esper_decision *decision_out)
{
    if (growth->history != NULL)
        return decide_again(growth, decision_out);
    if (growth->follows || strcmp(esper_policy_name(growth->policy), esper_policy_command.name) == 0)
        return decide_by_program(growth, decision_out);
    return esper_policy_decide(growth->policy, &growth->view, decision_out);
}

static esper_status observe(esper_growth *growth)
{
    growth->events.n = growth->events.n_dropped = 0;
    if (growth->drill_status != ESPER_OK)
        return ESPER_FAIL(growth->drill_status, "%s", growth->drill_text);
    growth_take_readings(growth, &growth->record);
    growth_make_view(growth, &growth->record, &growth->view);
    ESPER_TRY(esper_tracker_update(&growth->tracker, (int)growth->record.epoch, growth->record.loss_valid,
                                   growth->record.acc_valid, growth->views, growth->view.n_slots,
                                   &growth->view.signals));
    growth_begin_ledger(growth);
    return ESPER_OK;
}

static esper_status carry_out(esper_growth *growth, const esper_decision *decision, bool last)
{
    growth->decision = *decision;
    ESPER_TRY(growth_log_decision(growth, growth->record.epoch));
    ESPER_TRY(growth_act(growth));
    ESPER_TRY(growth_pay(growth, last));
    growth_record_epoch(growth, &growth->record);
    growth_record_events(growth, growth->record.epoch);
    for (int k = 0; k < growth->network->slots.n; k++)
        growth->state.seed[k].sampled = 0;
    return growth_rebuild(growth);
}

/* Slots, state and network as they were when the end of the epoch began. */
static void undo(esper_growth *growth)
{
    esper_network *network = growth->network;

    network->slots = growth->slots_before;
    growth->state = growth->state_before;
    growth->facts = growth->facts_before; /* what was logged since is cut off when the run is resumed */
    (void)esper_network_replan(network); /* the run ends here; a checkpoint is made of the network */
    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_empty(&network->slots.slot[k]))
            esper_network_clear_region(network, k);
    (void)spread(growth); /* bytes that it packed itself a moment ago */
}

static esper_status undo_unless(esper_growth *growth, esper_status status)
{
    char message[1024];

    if (status == ESPER_OK)
        return ESPER_OK;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    undo(growth);
    return ESPER_FAIL(status, "%s", message);
}

esper_status esper_growth_observe(esper_growth *growth, const esper_epoch_record *record,
                                  const esper_policy_view **view_out)
{
    gather(growth);
    growth->state_before = growth->state;
    growth->facts_before = growth->facts;
    growth->slots_before = growth->network->slots;
    growth->record = *record;
    ESPER_TRY(undo_unless(growth, observe(growth)));
    *view_out = &growth->view;
    return ESPER_OK;
}

esper_status esper_growth_ask(esper_growth *growth, esper_decision *decision_out)
{
    return undo_unless(growth, ask(growth, decision_out));
}

esper_status esper_growth_decide(esper_growth *growth, const esper_decision *decision, bool last)
{
    ESPER_TRY(undo_unless(growth, carry_out(growth, decision, last)));
    growth->measured = false;
    return ESPER_OK;
}

esper_status esper_growth_end_epoch(esper_growth *growth, const esper_epoch_record *record)
{
    const esper_policy_view *view;
    esper_decision decision;

    ESPER_TRY(esper_growth_observe(growth, record, &view));
    ESPER_TRY(esper_growth_ask(growth, &decision));
    return esper_growth_decide(growth, &decision, record->epoch >= (uint32_t)growth->network->engine->config.epochs);
}

/* ------------------------------------------------------------------------------------------------ going back */

/* Rung (c) of the ladder: what is not kept is removed. The reason begins with "governor_", as slots expect it. */
static esper_status prune_all(esper_growth *growth, const char *reason, int *n_pruned_out)
{
    esper_slots *slots = &growth->network->slots;
    *n_pruned_out = 0;
    for (int k = 0; k < slots->n; k++) {
        if (!esper_slot_is_active(&slots->slot[k]) || slots->slot[k].stage == ESPER_STAGE_FOSSILIZED)
            continue;
        ESPER_TRY(esper_slot_prune(&slots->slot[k], reason, "governor", &growth->events));
        ++*n_pruned_out;
    }
    growth_record_events(growth, growth->network->cursor.epoch + 1);
    return growth_rebuild(growth);
}

esper_status esper_growth_heed(esper_growth *growth, const esper_incident *incident)
{
    int n_pruned = 0;

    if (incident->action == ESPER_GOVERNOR_GO)
        return ESPER_OK;
    growth->measured = false;
    if (incident->restored)
        growth->facts.went_back = growth->facts.n_logged + 1;
    growth->events.n = growth->events.n_dropped = 0; /* those of before are told */
    if (incident->restored && incident->action == ESPER_GOVERNOR_PRUNE)
        ESPER_TRY(prune_all(growth, esper_governor_reason_name(incident->reason), &n_pruned));
    growth->facts.n_auto_pruned += n_pruned;
    if (incident->restored || incident->action == ESPER_GOVERNOR_STOP)
        growth_forfeit(growth);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_growth_look esper_growth_look_at(const esper_growth *growth)
{
    return (esper_growth_look){
        .slots = &growth->network->slots,
        .gates = growth->gates,
        .contribution = growth->found.contribution,
        .trial = growth->found.trial,
        .events = growth->event_room,
        .n_events = growth->events.n,
        .decision = &growth->decision,
        .accepted = growth->accepted,
        .refusal = growth->refusal,
    };
}

esper_bound esper_growth_bound_of(const esper_growth *growth, int slot)
{
    return growth->state.seed[slot].bound;
}

double esper_growth_flops_train(const esper_growth *growth)
{
    return growth->facts.flops;
}

double esper_growth_flops_sample(const esper_growth *growth)
{
    return growth->sample_flops;
}

uint64_t esper_growth_n_faults_left(const esper_growth *growth)
{
    return (uint64_t)growth->n_faults - growth->facts.n_injected;
}

uint64_t esper_growth_verdict(const esper_growth *growth)
{
    uint64_t hash = XXH64(&growth->decision, sizeof(growth->decision), growth->accepted);

    hash = XXH64(growth->refusal, strlen(growth->refusal), hash);
    for (int k = 0; k < growth->network->slots.n; k++) {
        const esper_gate_result *gate = &growth->gates[k];
        int64_t said[] = {gate->gate, gate->passed};

        hash = XXH64(said, sizeof(said), hash);
    }
    return XXH64(&growth->facts.n_logged, sizeof(growth->facts.n_logged), hash);
}

bool esper_growth_is_replayed(const esper_growth *growth)
{
    return growth->history != NULL && growth->n_replayed == growth->history->n;
}

const char *esper_growth_decider(const esper_growth *growth)
{
    const char *name = esper_policy_describe(growth->policy);

    return growth->follows || strcmp(name, esper_policy_command.name) == 0 ? "a program" : name;
}

uint64_t esper_growth_n_logged(const esper_growth *growth)
{
    return growth->facts.n_logged;
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
