/* The rules, in the order in which they are asked. */
#include "policy/heuristic.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "policy/policy.h"
#include "slot/gate.h"

typedef struct heuristic {
    esper_policy             base;
    esper_topology           topology;
    uint64_t                 seed;
    uint32_t                 network;
    esper_heuristic_settings settings;
    esper_heuristic_memory   memory;
} heuristic;

static const double alpha_tolerance = 1e-6;
static const double forgotten_penalty = 0.1; /* smaller ones are dropped */

enum { NEVER = -100 }; /* an epoch long ago */

/* ------------------------------------------------------------------------------------------------ settings */

static int index_of(esper_topology topology, const char *name)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);

    for (int i = 0; list[i] != NULL; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i]->index;
    return -1;
}

void esper_heuristic_settings_init(esper_heuristic_settings *settings, esper_topology topology)
{
    static const char *const rotations[][5] = {
        [ESPER_TOPOLOGY_CNN] = {"conv_light", "conv_heavy", "attention", "norm", "depthwise"},
        [ESPER_TOPOLOGY_TRANSFORMER] = {"lora", "mlp_small", "attention", "norm", "lora_large"},
        [ESPER_TOPOLOGY_MLP] = {"mlp_small", "glu", "lora_large", "norm", "mlp"},
    };

    *settings = (esper_heuristic_settings){.plateau_epochs = 3,
                                           .min_epoch = 5,
                                           .embargo_epochs = 5,
                                           .late_epochs = 25,
                                           .failing_epochs = 5,
                                           .failing_drop = 2.0,
                                           .training_epochs = 30,
                                           .holding_epochs = 10,
                                           .tempo = 5,
                                           .bound_epochs = 3,
                                           .bound_threshold = 1.0,
                                           .min_contribution = 0.5,
                                           .ransom_contribution = 0.1,
                                           .ransom_improvement = 0.0,
                                           .penalty = 2.0,
                                           .penalty_decay = 0.98,
                                           .penalty_threshold = 1.0,
                                           .n_rotation = 5};
    for (int i = 0; i < settings->n_rotation; i++)
        settings->rotation[i] = index_of(topology, rotations[topology][i]);
}

void esper_heuristic_settings_pace(esper_heuristic_settings *settings, int gate_epochs)
{
    int *const epochs[] = {&settings->plateau_epochs, &settings->min_epoch,       &settings->embargo_epochs,
                           &settings->late_epochs,    &settings->failing_epochs,  &settings->training_epochs,
                           &settings->holding_epochs, &settings->tempo};

    if (gate_epochs == ESPER_GATE_MIN_EPOCHS)
        return;
    for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++)
        *epochs[i] = esper_gate_pace(*epochs[i], gate_epochs);
    settings->failing_drop *= (double)ESPER_GATE_MIN_EPOCHS / gate_epochs;
    settings->penalty_decay = pow(settings->penalty_decay, (double)ESPER_GATE_MIN_EPOCHS / gate_epochs);
}

/* "conv_light, norm, ...": what can germinate in the topology. */
static void list_names(esper_topology topology, char *text, size_t size)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);

    text[0] = '\0';
    for (int i = 0; list[i] != NULL; i++) {
        if (list[i]->index == 0)
            continue;
        strncat(text, text[0] == '\0' ? "" : ", ", size - strlen(text) - 1);
        strncat(text, list[i]->name, size - strlen(text) - 1);
    }
}

esper_status esper_heuristic_settings_rotate(esper_heuristic_settings *settings, esper_topology topology,
                                             const char *names)
{
    esper_heuristic_settings changed = *settings;
    char name[32], all[192];

    changed.n_rotation = 0;
    list_names(topology, all, sizeof(all));
    for (size_t n; *names != '\0'; names += n + (names[n] == ',')) {
        int index;

        n = strcspn(names, ",");
        snprintf(name, sizeof(name), "%.*s", (int)n, names);
        index = n < sizeof(name) ? index_of(topology, name) : -1;
        if (index <= 0)
            return ESPER_FAIL(ESPER_E_ARG, "rotation: no %s blueprint '%s' can germinate: there are %s",
                              esper_topology_name(topology), name, all);
        for (int i = 0; i < changed.n_rotation; i++)
            if (changed.rotation[i] == index)
                return ESPER_FAIL(ESPER_E_ARG, "rotation: '%s' stands there twice", name);
        assert(changed.n_rotation < ESPER_POLICY_BLUEPRINTS); /* no two are the same */
        changed.rotation[changed.n_rotation++] = index;
    }
    if (changed.n_rotation == 0)
        return ESPER_FAIL(ESPER_E_ARG, "rotation: no blueprints; name at least one");
    *settings = changed;
    return ESPER_OK;
}

static esper_status check_settings(const esper_heuristic_settings *s, esper_topology topology)
{
    char names[192];

    if (s->n_rotation < 1 || s->n_rotation > ESPER_POLICY_BLUEPRINTS)
        return ESPER_FAIL(ESPER_E_ARG, "heuristic: a rotation of %d blueprints, expected 1 to %d", s->n_rotation,
                          ESPER_POLICY_BLUEPRINTS);
    list_names(topology, names, sizeof(names));
    for (int i = 0; i < s->n_rotation; i++)
        if (s->rotation[i] <= 0 || esper_policy_blueprint(topology, s->rotation[i]) == NULL)
            return ESPER_FAIL(ESPER_E_ARG,
                              "heuristic: blueprint %d of the rotation cannot germinate in a %s: there are %s",
                              s->rotation[i], esper_topology_name(topology), names);
    if (s->plateau_epochs < 0 || s->min_epoch < 0 || s->embargo_epochs < 0 || s->late_epochs < 0 ||
        s->failing_epochs < 0 || s->training_epochs < 0 || s->holding_epochs < 0 || s->bound_epochs < 0)
        return ESPER_FAIL(ESPER_E_ARG, "heuristic: a number of epochs is negative");
    if (s->tempo < 1)
        return ESPER_FAIL(ESPER_E_ARG, "heuristic: a tempo of %d epochs: expected 1 or more", s->tempo);
    if (!(s->penalty_decay >= 0.0 && s->penalty_decay <= 1.0) || !(s->penalty >= 0.0) || isinf(s->penalty) ||
        isnan(s->penalty_threshold))
        return ESPER_FAIL(ESPER_E_ARG, "heuristic: penalty %g, decay %g, threshold %g: expected a decay of 0 to 1",
                          s->penalty, s->penalty_decay, s->penalty_threshold);
    if (isnan(s->failing_drop) || isnan(s->bound_threshold) || isnan(s->min_contribution) ||
        isnan(s->ransom_contribution) || isnan(s->ransom_improvement))
        return ESPER_FAIL(ESPER_E_ARG, "heuristic: a threshold is not a number");
    return ESPER_OK;
}

static esper_status open_heuristic(const esper_policy_setup *setup, esper_policy **policy_out)
{
    esper_heuristic_settings settings;
    heuristic *policy;

    esper_heuristic_settings_init(&settings, setup->topology);
    if (setup->heuristic != NULL)
        settings = *setup->heuristic;
    ESPER_TRY(check_settings(&settings, setup->topology));
    policy = esper_mem_alloc(sizeof(*policy));
    if (policy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "heuristic policy");
    policy->base.ops = &esper_policy_heuristic;
    policy->topology = setup->topology;
    policy->seed = setup->seed;
    policy->network = setup->network;
    policy->settings = settings;
    policy->memory.last_prune_epoch = NEVER;
    policy->memory.last_decay_epoch = -1;
    *policy_out = &policy->base;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ penalties, rotation */

/* By penalty, then by name. */
static bool comes_before(const heuristic *policy, int a, int b)
{
    const double *penalties = policy->memory.penalties;

    assert(a >= 0 && a < ESPER_POLICY_BLUEPRINTS && b >= 0 && b < ESPER_POLICY_BLUEPRINTS);
    if (penalties[a] != penalties[b])
        return penalties[a] < penalties[b];
    return strcmp(esper_policy_blueprint(policy->topology, a)->name,
                  esper_policy_blueprint(policy->topology, b)->name) < 0;
}

/* All are penalised: those of the rotation that fit, by penalty, and of them the one whose turn it is. */
static int least_penalised(const heuristic *policy, uint32_t allowed, int64_t turn)
{
    const esper_heuristic_settings *settings = &policy->settings;
    int sorted[ESPER_POLICY_BLUEPRINTS] = {settings->rotation[0]}, n = 0;

    assert(settings->n_rotation > 0 && settings->n_rotation <= ESPER_POLICY_BLUEPRINTS && turn >= 0);
    for (int i = 0; i < settings->n_rotation; i++) {
        int index = settings->rotation[i], at = n;

        if ((allowed & 1u << index) == 0)
            continue;
        for (; at > 0 && comes_before(policy, index, sorted[at - 1]); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = index;
        n++;
    }
    return sorted[turn % (n > 0 ? n : 1)];
}

/* The next blueprint in turn that fits and is not penalised. At least one of the rotation must fit. */
static int next_blueprint(heuristic *policy, uint32_t allowed)
{
    const esper_heuristic_settings *settings = &policy->settings;
    esper_heuristic_memory *memory = &policy->memory;
    int64_t start = memory->rotation_index;

    for (int tried = 0; tried < settings->n_rotation; tried++) {
        int index = settings->rotation[memory->rotation_index++ % settings->n_rotation];

        if ((allowed & 1u << index) != 0 && memory->penalties[index] < settings->penalty_threshold)
            return index;
    }
    memory->rotation_index = start + 1;
    return least_penalised(policy, allowed, start);
}

/* ------------------------------------------------------------------------------------------------ germination */

static double evidence_of(const esper_policy_slot *slot)
{
    return isnan(slot->evidence) ? -(double)INFINITY : slot->evidence;
}

/* The empty slot with the most evidence, between equals by lot; -1 = nothing of the rotation fits anywhere. */
static int choose_slot(const heuristic *policy, const esper_policy_view *view)
{
    uint32_t wanted = 0, n_equal = 0;
    int best = -1;
    esper_rng rng;

    for (int i = 0; i < policy->settings.n_rotation; i++)
        wanted |= 1u << policy->settings.rotation[i];
    esper_rng_init(&rng, &(esper_rng_key){.seed = policy->seed,
                                          .purpose = ESPER_RNG_POLICY,
                                          .network = policy->network,
                                          .step = (uint32_t)view->epoch,
                                          .tag = 1});
    for (int s = 0; s < view->n_slots; s++) {
        const esper_policy_slot *slot = &view->slots[s];
        double evidence = evidence_of(slot), most = best >= 0 ? evidence_of(&view->slots[best]) : 0.0;

        if (slot->stage != ESPER_STAGE_DORMANT || (slot->blueprints & wanted) == 0 || (best >= 0 && evidence < most))
            continue;
        n_equal = best >= 0 && evidence == most ? n_equal + 1 : 1;
        if (n_equal == 1 || esper_rng_below(&rng, n_equal) == 0)
            best = s;
    }
    return best;
}

static void wait_for(esper_decision *decision, esper_reason reason, const char *text)
{
    esper_decision_init(decision, ESPER_SLOT_OP_WAIT);
    esper_decision_because(decision, reason, "%s", text);
}

static void germinate(heuristic *policy, const esper_policy_view *view, esper_decision *decision)
{
    int slot = choose_slot(policy, view), plateau = view->signals.plateau_epochs;

    if (slot < 0) {
        wait_for(decision, ESPER_REASON_NO_BLUEPRINT, "No blueprint of the rotation fits a free slot");
        return;
    }
    esper_decision_init(decision, ESPER_SLOT_OP_GERMINATE);
    decision->slot = slot;
    decision->blueprint = next_blueprint(policy, view->slots[slot].blueprints);
    decision->tempo = policy->settings.tempo;
    decision->confidence = fmin(1.0, plateau / 5.0);
    esper_decision_because(decision, ESPER_REASON_PLATEAU, "Plateau detected (%d epochs)", plateau);
    policy->memory.germinations++;
}

static void decide_germination(heuristic *policy, const esper_policy_view *view, esper_decision *decision)
{
    const esper_heuristic_settings *settings = &policy->settings;
    int64_t since_prune = view->epoch - policy->memory.last_prune_epoch;
    int n_empty = 0;

    for (int s = 0; s < view->n_slots; s++)
        n_empty += view->slots[s].stage == ESPER_STAGE_DORMANT && !view->slots[s].closed;
    esper_decision_init(decision, ESPER_SLOT_OP_WAIT);
    if (since_prune < settings->embargo_epochs)
        esper_decision_because(decision, ESPER_REASON_EMBARGO, "Embargo (%d/%d since prune)", (int)since_prune,
                               settings->embargo_epochs);
    else if (!view->signals.host_stabilized)
        wait_for(decision, ESPER_REASON_UNSTABLE, "Host not stabilized");
    else if (view->epoch < settings->min_epoch)
        esper_decision_because(decision, ESPER_REASON_EARLY, "Too early (epoch %d)", view->epoch);
    else if (view->max_epochs > 0 && view->max_epochs - view->epoch < settings->late_epochs)
        esper_decision_because(decision, ESPER_REASON_LATE, "Too late (%d epochs left, a seed takes %d)",
                               view->max_epochs - view->epoch, settings->late_epochs);
    else if (n_empty == 0 || (view->max_seeds > 0 && esper_policy_view_seeds(view) >= view->max_seeds))
        wait_for(decision, ESPER_REASON_NO_SLOT, "No available slots");
    else if (view->signals.plateau_epochs >= settings->plateau_epochs)
        germinate(policy, view, decision);
    else
        wait_for(decision, ESPER_REASON_PROGRESS, "Training progressing normally");
}

/* ------------------------------------------------------------------------------------------------ management */

static bool is_failing(const heuristic *policy, const esper_policy_slot *slot)
{
    /* In TRAINING a seed cannot do the host any harm: what it would do is what a trial says, where there is one. */
    bool tried = slot->stage == ESPER_STAGE_TRAINING && !isnan(slot->trial_gain);
    double change = tried ? slot->trial_gain : slot->improvement;

    return slot->epochs_in_stage >= policy->settings.failing_epochs && change < -policy->settings.failing_drop;
}

/* A limit of 0 is none. */
static bool is_over(int epochs, int limit)
{
    return limit > 0 && epochs >= limit;
}

static void prune(heuristic *policy, const esper_policy_view *view, esper_decision *decision)
{
    int blueprint = view->slots[decision->slot].blueprint;

    decision->op = ESPER_SLOT_OP_PRUNE;
    policy->memory.last_prune_epoch = view->epoch;
    if (blueprint >= 0 && blueprint < ESPER_POLICY_BLUEPRINTS)
        policy->memory.penalties[blueprint] += policy->settings.penalty;
}

static void fossilize(const esper_policy_slot *slot, esper_decision *decision)
{
    decision->op = ESPER_SLOT_OP_FOSSILIZE;
    decision->confidence = fmin(1.0, slot->contribution / 5.0);
    esper_decision_because(decision, ESPER_REASON_CONTRIBUTES, "Fossilizing: %+.2f%% dependence", slot->contribution);
}

/* A measurement with bounds: kept when it surely reaches the gate's threshold, removed when it surely does not. */
static void judge_bounds(heuristic *policy, const esper_policy_view *view, esper_decision *decision)
{
    const esper_heuristic_settings *settings = &policy->settings;
    const esper_policy_slot *slot = &view->slots[decision->slot];
    double low = slot->contribution_low, high = slot->contribution_high;
    bool counts = slot->contribution_epochs >= settings->bound_epochs;

    if (counts && low >= settings->bound_threshold) {
        fossilize(slot, decision);
        esper_decision_because(decision, ESPER_REASON_CONTRIBUTES, "Fossilizing: %+.2f%% dependence, at least %+.2f%%",
                               slot->contribution, low);
    } else if (counts && high < settings->bound_threshold) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_NO_CONTRIBUTION,
                               "No improvement in HOLDING (%+.2f%%, at most %+.2f%%)", slot->contribution, high);
    } else if (is_over(slot->epochs_in_stage, settings->holding_epochs)) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_STUCK, "Not proven in %d epochs of HOLDING (%+.2f%% to %+.2f%%)",
                               slot->epochs_in_stage, low, high);
    } else {
        esper_decision_because(decision, ESPER_REASON_UNDECIDED,
                               "Undecided: %+.2f%% to %+.2f%% dependence in %d epochs", low, high,
                               slot->contribution_epochs);
    }
}

/* Where a contribution is a bare number, the recorded rule judges it. */
static void manage_holding(heuristic *policy, const esper_policy_view *view, esper_decision *decision)
{
    const esper_heuristic_settings *settings = &policy->settings;
    const esper_policy_slot *slot = &view->slots[decision->slot];

    if (isnan(slot->contribution) && is_over(slot->epochs_in_stage, settings->holding_epochs)) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_STUCK, "No dependence was measured in %d epochs of HOLDING",
                               slot->epochs_in_stage);
    } else if (isnan(slot->contribution)) {
        esper_decision_because(decision, ESPER_REASON_UNMEASURED,
                               "Awaiting counterfactual dependence before fossilization");
    } else if (isfinite(slot->contribution_low) && isfinite(slot->contribution_high)) {
        judge_bounds(policy, view, decision);
    } else if (slot->contribution > settings->ransom_contribution &&
               slot->improvement_total < settings->ransom_improvement) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_RANSOMWARE,
                               "Ransomware pattern: high counterfactual (%.3f) but negative improvement (%.3f)",
                               slot->contribution, slot->improvement_total);
    } else if (slot->contribution > settings->min_contribution) {
        fossilize(slot, decision);
    } else {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_NO_CONTRIBUTION, "No improvement in HOLDING (%+.2f%%)",
                               slot->contribution);
    }
}

static void decide_management(heuristic *policy, const esper_policy_view *view, int live, esper_decision *decision)
{
    const esper_policy_slot *slot = &view->slots[live];
    bool trains = slot->stage == ESPER_STAGE_TRAINING;

    esper_decision_init(decision, ESPER_SLOT_OP_WAIT);
    decision->slot = live;
    if (slot->stage == ESPER_STAGE_GERMINATED) {
        decision->op = ESPER_SLOT_OP_ADVANCE;
        esper_decision_because(decision, ESPER_REASON_NEXT_STAGE, "Advance to TRAINING");
    } else if (slot->stage == ESPER_STAGE_HOLDING) {
        manage_holding(policy, view, decision);
    } else if (is_failing(policy, slot)) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_FAILING, "Failing in %s", trains ? "TRAINING" : "BLENDING");
    } else if (trains && is_over(slot->epochs_in_stage, policy->settings.training_epochs)) {
        prune(policy, view, decision);
        esper_decision_because(decision, ESPER_REASON_STUCK, "Not ready to blend after %d epochs of TRAINING",
                               slot->epochs_in_stage);
    } else if (trains) {
        decision->op = ESPER_SLOT_OP_ADVANCE;
        esper_decision_because(decision, ESPER_REASON_NEXT_STAGE, "Advance to BLENDING (improvement %+.2f%%)",
                               slot->improvement);
    } else if (slot->alpha_target >= 1.0 - alpha_tolerance && slot->alpha_mode == ESPER_POLICY_ALPHA_HOLD &&
               fabs(slot->alpha - slot->alpha_target) <= alpha_tolerance) {
        decision->op = ESPER_SLOT_OP_ADVANCE;
        esper_decision_because(decision, ESPER_REASON_NEXT_STAGE, "Advance to HOLDING (full amplitude reached)");
    } else {
        esper_decision_because(decision, ESPER_REASON_BLENDING, "Blending: alpha=%.2f", slot->alpha);
    }
}

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    heuristic *policy = (heuristic *)base;
    double *penalties = policy->memory.penalties;

    for (int i = 0; view->epoch > policy->memory.last_decay_epoch && i < ESPER_POLICY_BLUEPRINTS; i++) {
        penalties[i] *= policy->settings.penalty_decay;
        if (penalties[i] < forgotten_penalty)
            penalties[i] = 0.0;
    }
    if (view->epoch > policy->memory.last_decay_epoch)
        policy->memory.last_decay_epoch = view->epoch;
    for (int s = 0; s < view->n_slots; s++)
        if (esper_stage_has_seed(view->slots[s].stage) && view->slots[s].stage != ESPER_STAGE_FOSSILIZED) {
            decide_management(policy, view, s, decision_out);
            return ESPER_OK;
        }
    decide_germination(policy, view, decision_out);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ packed */

static size_t pack(const esper_policy *base, void *memory)
{
    if (memory != NULL)
        memcpy(memory, &((const heuristic *)base)->memory, sizeof(esper_heuristic_memory));
    return sizeof(esper_heuristic_memory);
}

static esper_status unpack(esper_policy *base, const void *packed, size_t bytes)
{
    esper_heuristic_memory memory = {0};
    size_t shorter =
        offsetof(esper_heuristic_memory, penalties[16]); /* as it was before ESPER_BLUEPRINT_TEXTS was 16 */

    if (bytes != sizeof(memory) && bytes != shorter)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed heuristic: %zu bytes, expected %zu", bytes, sizeof(memory));
    memcpy(&memory, packed, bytes);
    if (memory.rotation_index < 0 || memory.germinations < 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed heuristic: its counters are impossible");
    for (int i = 0; i < ESPER_POLICY_BLUEPRINTS; i++)
        if (!(memory.penalties[i] >= 0.0) || isinf(memory.penalties[i]))
            return ESPER_FAIL(ESPER_E_FORMAT, "packed heuristic: penalty %d is %g", i, memory.penalties[i]);
    ((heuristic *)base)->memory = memory;
    return ESPER_OK;
}

const esper_policy_ops esper_policy_heuristic = {
    .name = "heuristic",
    .about = "rules: germinate on a plateau, keep what is proven, prune what is not",
    .open = open_heuristic,
    .decide = decide,
    .pack = pack,
    .unpack = unpack,
};
