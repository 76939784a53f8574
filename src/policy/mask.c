/* Preconditions, each with the words for its refusal. */
#include "policy/mask.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/veto.h"

enum { WHY_CHARS = 160 };

/* The preconditions of one operation: NULL = fulfilled, else what it needs. */
typedef const char *(*precondition)(const esper_policy_view *view, const esper_policy_slot *slot);

static const char *for_wait(const esper_policy_view *view, const esper_policy_slot *slot)
{
    (void)view;
    (void)slot;
    return NULL;
}

static const char *for_germinate(const esper_policy_view *view, const esper_policy_slot *slot)
{
    if (slot->stage != ESPER_STAGE_DORMANT)
        return "an empty slot";
    if ((slot->blueprints & esper_policy_blueprints(view->topology)) == 0)
        return "a blueprint that fits the slot and the budget of parameters";
    if (view->max_seeds > 0 && esper_policy_view_seeds(view) >= view->max_seeds)
        return "fewer seeds than max_seeds";
    return NULL;
}

static const char *for_set_alpha_target(const esper_policy_view *view, const esper_policy_slot *slot)
{
    (void)view;
    if (slot->stage != ESPER_STAGE_BLENDING && slot->stage != ESPER_STAGE_HOLDING)
        return "a seed that is blending or holding";
    return slot->alpha_mode == ESPER_POLICY_ALPHA_HOLD ? NULL : "an alpha that does not move";
}

static const char *for_prune(const esper_policy_view *view, const esper_policy_slot *slot)
{
    (void)view;
    return esper_stage_has_seed(slot->stage) && slot->stage != ESPER_STAGE_FOSSILIZED ? NULL
                                                                                      : "a seed that is not fossilized";
}

static const char *for_fossilize(const esper_policy_view *view, const esper_policy_slot *slot)
{
    (void)view;
    return slot->stage == ESPER_STAGE_HOLDING ? NULL : "a seed that is holding";
}

static const char *for_advance(const esper_policy_view *view, const esper_policy_slot *slot)
{
    if (view->advances_itself)
        return "a run whose gates do not forward seeds by themselves";
    return slot->stage == ESPER_STAGE_GERMINATED || slot->stage == ESPER_STAGE_TRAINING ||
                   slot->stage == ESPER_STAGE_BLENDING
               ? NULL
               : "a seed that is germinated, training or blending";
}

static const precondition preconditions[ESPER_N_SLOT_OPS] = {
    [ESPER_SLOT_OP_WAIT] = for_wait,
    [ESPER_SLOT_OP_GERMINATE] = for_germinate,
    [ESPER_SLOT_OP_SET_ALPHA_TARGET] = for_set_alpha_target,
    [ESPER_SLOT_OP_PRUNE] = for_prune,
    [ESPER_SLOT_OP_FOSSILIZE] = for_fossilize,
    [ESPER_SLOT_OP_ADVANCE] = for_advance,
};

/* Who decides gives a seed time. The rules of a run that hurries (gate_epochs below 5) do not, and may prune at once. */
static const char *for_patience(const esper_policy_slot *slot, int op)
{
    if (op != ESPER_SLOT_OP_PRUNE)
        return NULL;
    if (slot->epochs_total < ESPER_MASK_MIN_PRUNE_AGE)
        return "a seed of 5 epochs or more";
    return slot->alpha_mode == ESPER_POLICY_ALPHA_HOLD ? NULL : "an alpha that does not move";
}

bool esper_mask_legal(const esper_policy_view *view, int slot, int op)
{
    return slot >= 0 && slot < view->n_slots && op >= 0 && op < ESPER_N_SLOT_OPS &&
           preconditions[op](view, &view->slots[slot]) == NULL && for_patience(&view->slots[slot], op) == NULL;
}

/* "training for 3 of 7 epochs, alpha up to 0.70" */
static void describe(const esper_policy_slot *slot, char text[WHY_CHARS])
{
    const char *stage = esper_stage_name(slot->stage);

    if (!esper_stage_has_seed(slot->stage))
        snprintf(text, WHY_CHARS, "%s", stage != NULL ? stage : "in no stage");
    else
        snprintf(text, WHY_CHARS, "%s for %d of its %d epochs, alpha %.2f, %s to %.2f", stage, slot->epochs_in_stage,
                 slot->epochs_total, slot->alpha, esper_policy_alpha_name(slot->alpha_mode), slot->alpha_target);
}

/* The slot's blueprints are those that fit without a gate network. One that does not fit with it is not masked, since styles and
 * blueprints are drawn apart: it is a germination that is refused, and told as one. */
static esper_status check_germination(const esper_policy_view *view, const esper_policy_slot *slot,
                                      const esper_decision *decision, bool strict)
{
    const char *blueprint = esper_policy_blueprint(view->topology, decision->blueprint)->name;
    bool gated = esper_style_blend(decision->style) == ESPER_BLEND_GATE;
    int64_t params = slot->blueprint_params[decision->blueprint] + (gated ? slot->gate_params : 0);

    if ((slot->blueprints & 1u << decision->blueprint) == 0)
        return ESPER_FAIL(ESPER_E_STATE, "blueprint %s does not fit %s or what is left of the budget", blueprint,
                          slot->id);
    if (!strict && view->params_limit > 0 && view->params_total + params > view->params_limit)
        return ESPER_FAIL(ESPER_E_STATE, "%s in %s would take the network beyond %lld parameters", blueprint, slot->id,
                          (long long)view->params_limit);
    return ESPER_OK;
}

/* At alpha above 0 the operator stays: a policy that names another one is told so, and where a style is always drawn, the new
 * target alone is carried out. A gate network cannot come later than its seed: that is a refusal, too, and no mask. */
static esper_status check_operator(const esper_policy_slot *slot, const esper_decision *decision, bool strict)
{
    esper_blend blend = decision->style == ESPER_STYLE_KEEP ? slot->blend : esper_style_blend(decision->style);

    if (blend != slot->blend && slot->alpha > 0.0 && strict)
        return ESPER_FAIL(ESPER_E_STATE, "%s: style %s has another operator, which can change at alpha 0 alone",
                          slot->id, esper_style_name(decision->style));
    if (blend != slot->blend && slot->alpha <= 0.0 && blend == ESPER_BLEND_GATE && !strict)
        return ESPER_FAIL(ESPER_E_STATE,
                          "%s: a gate network is born with its seed: germinate with the style gated_gate", slot->id);
    return ESPER_OK;
}

/* strict: as a policy's choice; else as what is carried out. */
static esper_status check(const esper_policy_view *view, const esper_decision *decision, bool strict)
{
    const esper_policy_slot *slot;
    char state[WHY_CHARS];
    const char *needs;

    ESPER_TRY(esper_decision_check(decision, view->topology));
    if (decision->op == ESPER_SLOT_OP_WAIT)
        return ESPER_OK;
    if (decision->slot >= view->n_slots)
        return ESPER_FAIL(ESPER_E_ARG, "there is no slot %d of %d", (int)decision->slot, view->n_slots);
    slot = &view->slots[decision->slot];
    needs = preconditions[decision->op](view, slot);
    if (needs == NULL && strict)
        needs = for_patience(slot, decision->op);
    if (needs != NULL) {
        describe(slot, state);
        return ESPER_FAIL(ESPER_E_STATE, "%s %s needs %s; %s is %s", esper_slot_op_name(decision->op), slot->id, needs,
                          slot->id, state);
    }
    if (decision->op == ESPER_SLOT_OP_GERMINATE)
        return check_germination(view, slot, decision, strict);
    return decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET ? check_operator(slot, decision, strict) : ESPER_OK;
}

esper_status esper_mask_check(const esper_policy_view *view, const esper_decision *decision)
{
    return check(view, decision, true);
}

esper_status esper_mask_approve(const esper_policy_view *view, const esper_decision *decision)
{
    esper_veto veto = ESPER_VETO_NONE;

    if (decision->op != ESPER_SLOT_OP_WAIT && decision->slot >= 0 && decision->slot < view->n_slots)
        veto = esper_veto_of(view, decision);
    if (veto != ESPER_VETO_NONE)
        return ESPER_FAIL(ESPER_E_STATE, "%s", esper_veto_about(veto));
    return check(view, decision, false);
}

/* A slot in which something is under way that germination elsewhere would disturb. */
static bool is_busy(int stage)
{
    return stage == ESPER_STAGE_GERMINATED || stage == ESPER_STAGE_TRAINING || esper_stage_cools_down(stage);
}

void esper_mask_build(const esper_policy_view *view, esper_mask *mask_out)
{
    bool busy = false;

    memset(mask_out, 0, sizeof(*mask_out));
    for (int s = 0; s < view->n_slots; s++)
        busy = busy || is_busy(view->slots[s].stage);
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        for (int s = 0; s < view->n_slots && s < ESPER_POLICY_MAX_SLOTS; s++) {
            mask_out->slots[op][s] = esper_mask_legal(view, s, op) && !(busy && op == ESPER_SLOT_OP_GERMINATE);
            mask_out->ops[op] = mask_out->ops[op] || mask_out->slots[op][s];
        }
    }
    mask_out->ops[ESPER_SLOT_OP_WAIT] = true;
}
