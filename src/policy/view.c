/* The view as JSON, and the names in it. */
#include "policy/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policy/mask.h"

void esper_policy_slot_init(esper_policy_slot *slot, esper_topology topology, const char *id)
{
    double unset = (double)NAN;

    *slot = (esper_policy_slot){.stage = ESPER_STAGE_DORMANT,
                                .blueprints = esper_policy_blueprints(topology),
                                .blueprint = -1,
                                .fork_blueprint = -1,
                                .fork_gain = unset,
                                .fork_error = unset,
                                .blend = ESPER_BLEND_ADD,
                                .evidence = unset,
                                .improvement = unset,
                                .improvement_total = unset,
                                .contribution = unset,
                                .contribution_low = unset,
                                .contribution_high = unset,
                                .trial_gain = unset,
                                .gradient_ratio = unset,
                                .gradient_health = unset,
                                .gradient_norm = unset};
    snprintf(slot->id, sizeof(slot->id), "%s", id);
}

const char *esper_policy_alpha_name(int mode)
{
    static const char *const names[] = {
#define X(name, code, text) [code] = text,
        ESPER_POLICY_ALPHA_LIST(X)
#undef X
    };

    return mode >= 0 && mode < (int)(sizeof(names) / sizeof(names[0])) ? names[mode] : NULL;
}

const esper_blueprint *esper_policy_blueprint(esper_topology topology, int index)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);

    for (int i = 0; list[i] != NULL; i++)
        if (list[i]->index == index)
            return list[i];
    return NULL;
}

uint32_t esper_policy_blueprints(esper_topology topology)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    uint32_t bits = 0;

    for (int i = 0; list[i] != NULL; i++)
        if (list[i]->index != 0)
            bits |= 1u << list[i]->index;
    return bits;
}

int esper_policy_view_seeds(const esper_policy_view *view)
{
    int n = 0;

    for (int s = 0; s < view->n_slots; s++)
        n += esper_stage_has_seed(view->slots[s].stage);
    return n;
}

int esper_policy_view_find(const esper_policy_view *view, const char *id)
{
    for (int s = 0; s < view->n_slots; s++)
        if (strcmp(view->slots[s].id, id) == 0)
            return s;
    return -1;
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void put_int(esper_json *json, const char *key, int64_t value)
{
    esper_json_key(json, key);
    esper_json_int(json, value);
}

static void put_bool(esper_json *json, const char *key, bool value)
{
    esper_json_key(json, key);
    esper_json_bool(json, value);
}

static void put_text(esper_json *json, const char *key, const char *text)
{
    esper_json_key(json, key);
    esper_json_text(json, text);
}

/* A value that can be a reading of NaN. */
static void put_real(esper_json *json, const char *key, double value)
{
    esper_json_key(json, key);
    esper_json_real(json, value);
}

/* A value that can be missing. */
static void put_measured(esper_json *json, const char *key, double value)
{
    esper_json_key(json, key);
    if (isnan(value))
        esper_json_null(json);
    else
        esper_json_real(json, value);
}

static void put_reals(esper_json *json, const char *key, const double *values, int n)
{
    esper_json_key(json, key);
    esper_json_array_begin(json);
    for (int i = 0; i < n; i++)
        esper_json_real(json, values[i]);
    esper_json_array_end(json);
}

static void begin(esper_json *json, const char *key)
{
    esper_json_key(json, key);
    esper_json_object_begin(json);
}

static void put_part(esper_json *json, const char *key, double loss, double accuracy)
{
    begin(json, key);
    put_real(json, "loss", loss);
    put_real(json, "accuracy", accuracy);
    esper_json_object_end(json);
}

/* The trial that was asked for last in a slot. */
static void put_fork(esper_json *json, const esper_policy_view *view, const esper_policy_slot *slot)
{
    const esper_blueprint *blueprint = esper_policy_blueprint(view->topology, slot->fork_blueprint);

    begin(json, "fork");
    put_text(json, "blueprint", blueprint != NULL ? blueprint->name : NULL);
    put_measured(json, "gain", slot->fork_gain);
    put_measured(json, "error", slot->fork_error);
    put_int(json, "epochs", slot->fork_epochs);
    put_int(json, "seeds", slot->fork_seeds);
    put_bool(json, "stands", slot->fork_stands);
    esper_json_object_end(json);
}

/* The seed's part of a slot. */
static void put_seed(esper_json *json, const esper_policy_view *view, const esper_policy_slot *slot)
{
    const esper_blueprint *blueprint = esper_policy_blueprint(view->topology, slot->blueprint);

    begin(json, "seed");
    put_text(json, "id", slot->seed);
    put_text(json, "blueprint", blueprint != NULL ? blueprint->name : NULL);
    put_int(json, "params", slot->params);
    put_text(json, "operator", esper_blend_name(slot->blend));
    put_int(json, "tempo", slot->tempo);
    put_real(json, "alpha", slot->alpha);
    put_real(json, "alpha_target", slot->alpha_target);
    put_text(json, "alpha_mode", esper_policy_alpha_name(slot->alpha_mode));
    put_int(json, "epochs_in_stage", slot->epochs_in_stage);
    put_int(json, "epochs_total", slot->epochs_total);
    put_measured(json, "improvement", slot->improvement);
    put_measured(json, "improvement_total", slot->improvement_total);
    put_measured(json, "contribution", slot->contribution);
    put_measured(json, "contribution_low", slot->contribution_low);
    put_measured(json, "contribution_high", slot->contribution_high);
    put_int(json, "contribution_epochs", slot->contribution_epochs);
    put_measured(json, "trial_gain", slot->trial_gain);
    put_measured(json, "gradient_ratio", slot->gradient_ratio);
    put_measured(json, "gradient_health", slot->gradient_health);
    esper_json_object_end(json);
}

static void put_slot(esper_json *json, const esper_policy_view *view, int s)
{
    const esper_blueprint *const *list = esper_blueprint_list(view->topology);
    const esper_policy_slot *slot = &view->slots[s];

    esper_json_object_begin(json);
    put_text(json, "id", slot->id);
    put_text(json, "stage", esper_stage_name(slot->stage));
    put_int(json, "channels", slot->channels);
    put_int(json, "cooldown_left", slot->cooldown_left);
    put_measured(json, "evidence", slot->evidence);
    begin(json, "blueprints"); /* what may germinate here: name and parameters */
    for (int i = 0; list[i] != NULL; i++)
        if ((slot->blueprints & 1u << list[i]->index) != 0)
            put_int(json, list[i]->name, slot->blueprint_params[list[i]->index]);
    esper_json_object_end(json);
    esper_json_key(json, "legal");
    esper_json_array_begin(json);
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        if (esper_mask_legal(view, s, op))
            esper_json_text(json, esper_slot_op_name(op));
    esper_json_array_end(json);
    put_real(json, "fork_share", slot->fork_share);
    if (slot->fork_blueprint >= 0) {
        put_fork(json, view, slot);
    } else {
        esper_json_key(json, "fork");
        esper_json_null(json);
    }
    if (esper_stage_has_seed(slot->stage)) {
        put_seed(json, view, slot);
    } else {
        esper_json_key(json, "seed");
        esper_json_null(json);
    }
    esper_json_object_end(json);
}

void esper_policy_view_write(const esper_policy_view *view, esper_json *json)
{
    const esper_signals *signals = &view->signals;
    const esper_policy_episode *episode = view->episode;
    char seed[24];

    put_int(json, "epoch", view->epoch);
    put_int(json, "max_epochs", view->max_epochs);
    put_text(json, "topology", esper_topology_name(view->topology));
    put_part(json, "train", view->loss_train, view->accuracy_train);
    put_part(json, "valid", view->loss_valid, view->accuracy_valid);
    begin(json, "signals");
    put_real(json, "loss_delta", signals->loss_delta);
    put_real(json, "accuracy_delta", signals->accuracy_delta);
    put_int(json, "plateau_epochs", signals->plateau_epochs);
    put_bool(json, "host_stabilized", signals->host_stabilized);
    put_real(json, "best_accuracy", signals->best_accuracy);
    put_real(json, "best_loss", signals->best_loss);
    put_reals(json, "losses", signals->losses, signals->n_history);
    put_reals(json, "accuracies", signals->accuracies, signals->n_history);
    esper_json_object_end(json);
    put_int(json, "params_total", view->params_total);
    put_int(json, "params_limit", view->params_limit);
    if (view->flops_limit > 0.0) {
        put_real(json, "flops_total", view->flops_total);
        put_real(json, "flops_limit", view->flops_limit);
    }
    put_int(json, "max_seeds", view->max_seeds);
    put_real(json, "forks_left", view->forks_left);
    if (episode != NULL) {
        begin(json, "episode");
        put_int(json, "number", (int64_t)episode->number);
        snprintf(seed, sizeof(seed), "%llu", (unsigned long long)episode->seed); /* JSON's numbers have 53 bits */
        put_text(json, "seed", seed);
        put_int(json, "env", episode->env);
        put_measured(json, "reward", episode->reward);
        put_bool(json, "over", episode->over);
        esper_json_object_end(json);
    }
    esper_json_key(json, "slots");
    esper_json_array_begin(json);
    for (int s = 0; s < view->n_slots; s++)
        put_slot(json, view, s);
    esper_json_array_end(json);
}
