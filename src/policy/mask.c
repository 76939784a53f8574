/* Preconditions, each with the words for its refusal. */
#include "policy/mask.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "policy/veto.h"

/* What a germination needs, or a trial of one. */
static const char *needs_of_seed(const esper_policy_view *view, const esper_policy_slot *slot)
{
    if (slot->stage != ESPER_STAGE_DORMANT)
        return "an empty slot";
    if (slot->closed)
        return "a kept seed in the slot before it";
    if ((slot->blueprints & esper_policy_blueprints(view->topology)) == 0)
        return "a blueprint that fits the slot and the budget of parameters";
    return view->max_seeds > 0 && esper_policy_view_seeds(view) >= view->max_seeds ? "fewer seeds than max_seeds"
                                                                                   : NULL;
}

static const char *needs_of_trial(const esper_policy_view *view, const esper_policy_slot *slot)
{
    const char *needs = needs_of_seed(view, slot);

    if (needs != NULL)
        return needs;
    if (!(view->forks_left > 0.0))
        return "a run in which trials may be asked for, and something left of its trial_share";
    if (!(slot->fork_share > 0.0))
        return "one of the kinds that are tried to fit the slot";
    if (slot->fork_stands)
        return "another network than the one of the last trial there, or some epochs since";
    return slot->fork_share > view->forks_left ? "more left of trial_share than it takes" : NULL;
}

/* The precondition of an operation: NULL = fulfilled, else what it needs. */
static const char *needs_of(const esper_policy_view *view, const esper_policy_slot *slot, int op)
{
    int stage = slot->stage;
    bool blends = stage == ESPER_STAGE_BLENDING, holds = stage == ESPER_STAGE_HOLDING;

    assert(op >= 0 && op < ESPER_N_SLOT_OPS);
    switch (op) {
    case ESPER_SLOT_OP_GERMINATE:
        return needs_of_seed(view, slot);
    case ESPER_SLOT_OP_TRY:
        return needs_of_trial(view, slot);
    case ESPER_SLOT_OP_SET_ALPHA_TARGET:
        if (!blends && !holds)
            return "a seed that is blending or holding";
        return slot->alpha_mode == ESPER_POLICY_ALPHA_HOLD ? NULL : "an alpha that does not move";
    case ESPER_SLOT_OP_PRUNE:
        return esper_stage_has_seed(stage) && stage != ESPER_STAGE_FOSSILIZED ? NULL : "a seed that is not fossilized";
    case ESPER_SLOT_OP_FOSSILIZE:
        return holds ? NULL : "a seed that is holding";
    case ESPER_SLOT_OP_ADVANCE:
        if (view->advances_itself)
            return "a run whose gates do not forward seeds by themselves";
        return stage == ESPER_STAGE_GERMINATED || stage == ESPER_STAGE_TRAINING || blends
                   ? NULL
                   : "a seed that is germinated, training or blending";
    default: /* to wait */
        return NULL;
    }
}

/* The same for who decides, and gives a seed time. The rules of a run that hurries (gate_epochs below 5) do not, and may prune
 * at once. */
static const char *strict_needs_of(const esper_policy_view *view, const esper_policy_slot *slot, int op)
{
    const char *needs = needs_of(view, slot, op);

    if (needs != NULL || op != ESPER_SLOT_OP_PRUNE)
        return needs;
    if (slot->epochs_total < ESPER_MASK_MIN_PRUNE_AGE)
        return "a seed of 5 epochs or more";
    return slot->alpha_mode == ESPER_POLICY_ALPHA_HOLD ? NULL : "an alpha that does not move";
}

bool esper_mask_legal(const esper_policy_view *view, int slot, int op)
{
    return slot >= 0 && slot < view->n_slots && op >= 0 && op < ESPER_N_SLOT_OPS &&
           strict_needs_of(view, &view->slots[slot], op) == NULL;
}

/* The slot's blueprints are those that fit without a gate network. One that does not fit with it is not masked, since styles and
 * blueprints are drawn apart: it is a germination that is refused, and told as one. */
static esper_status check_germination(const esper_policy_view *view, const esper_policy_slot *slot,
                                      const esper_decision *decision, bool strict)
{
    const char *blueprint = esper_policy_blueprint(view->topology, decision->blueprint)->name;
    bool gated = esper_style_blend(decision->style) == ESPER_BLEND_GATE;
    int64_t params = slot->blueprint_params[decision->blueprint] + (gated ? slot->gate_params : 0);
    double flops = slot->blueprint_flops[decision->blueprint] + (gated ? slot->gate_flops : 0.0);

    if (gated && slot->gate_params < 0)
        return ESPER_FAIL(ESPER_E_STATE, "%s takes no gate network: choose another style", slot->id);
    if ((slot->blueprints & 1u << decision->blueprint) == 0)
        return ESPER_FAIL(ESPER_E_STATE,
                          "blueprint %s does not fit %s, the setting birth or what is left of the budget", blueprint,
                          slot->id);
    if (!strict && view->params_limit > 0 && view->params_total + params > view->params_limit)
        return ESPER_FAIL(ESPER_E_STATE, "%s in %s would take the network beyond %lld parameters", blueprint, slot->id,
                          (long long)view->params_limit);
    if (!strict && view->flops_limit > 0.0 && view->flops_total + flops > view->flops_limit)
        return ESPER_FAIL(ESPER_E_STATE, "%s in %s would take the network beyond %.4g FLOPs for a sample", blueprint,
                          slot->id, view->flops_limit);
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
    const char *op = esper_slot_op_name(decision->op), *needs, *stage;
    const esper_policy_slot *slot;

    ESPER_TRY(esper_decision_check(decision, view->topology));
    if (decision->op == ESPER_SLOT_OP_WAIT)
        return ESPER_OK;
    if (decision->slot >= view->n_slots)
        return ESPER_FAIL(ESPER_E_ARG, "there is no slot %d of %d", (int)decision->slot, view->n_slots);
    slot = &view->slots[decision->slot];
    stage = esper_stage_name(slot->stage);
    needs = (strict ? strict_needs_of : needs_of)(view, slot, decision->op);
    if (needs != NULL && !esper_stage_has_seed(slot->stage))
        return ESPER_FAIL(ESPER_E_STATE, "%s %s needs %s; %s is %s", op, slot->id, needs, slot->id,
                          stage != NULL ? stage : "in no stage");
    if (needs != NULL)
        return ESPER_FAIL(ESPER_E_STATE, "%s %s needs %s; %s is %s for %d of its %d epochs, alpha %.2f, %s to %.2f", op,
                          slot->id, needs, slot->id, stage, slot->epochs_in_stage, slot->epochs_total, slot->alpha,
                          esper_policy_alpha_name(slot->alpha_mode), slot->alpha_target);
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

void esper_mask_build(const esper_policy_view *view, esper_mask *mask_out)
{
    bool busy = false; /* a slot in which something is under way that germination elsewhere would disturb */

    assert(view->n_slots <= ESPER_POLICY_MAX_SLOTS);
    memset(mask_out, 0, sizeof(*mask_out));
    for (int s = 0; s < view->n_slots; s++) {
        int stage = view->slots[s].stage;

        busy =
            busy || stage == ESPER_STAGE_GERMINATED || stage == ESPER_STAGE_TRAINING || esper_stage_cools_down(stage);
    }
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        for (int s = 0; s < view->n_slots; s++) {
            bool grows = op == ESPER_SLOT_OP_GERMINATE || op == ESPER_SLOT_OP_TRY;

            mask_out->slots[op][s] = esper_mask_legal(view, s, op) && !(busy && grows);
            mask_out->ops[op] = mask_out->ops[op] || mask_out->slots[op][s];
        }
    mask_out->ops[ESPER_SLOT_OP_WAIT] = true;
}
