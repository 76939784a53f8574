/* The veto before an operation. */
#include "policy/veto.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

esper_veto esper_veto_of(const esper_policy_view *view, const esper_decision *decision)
{
    const esper_policy_slot *slot = &view->slots[decision->slot];
    bool retargets = decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET, prunes = decision->op == ESPER_SLOT_OP_PRUNE;
    bool germinates = decision->op == ESPER_SLOT_OP_GERMINATE;

    assert(decision->slot >= 0 && decision->slot < view->n_slots);
    if (!isfinite(view->loss_valid))
        return ESPER_VETO_LOSS;
    if (!isfinite(view->accuracy_valid))
        return ESPER_VETO_ACCURACY;
    if (slot->cooldown_left < 0)
        return ESPER_VETO_COOLDOWN;
    if (view->max_seeds > 0 && esper_policy_view_seeds(view) > view->max_seeds)
        return ESPER_VETO_CAPACITY;
    if (germinates && decision->blueprint < 0)
        return ESPER_VETO_BLUEPRINT;
    if (germinates && slot->stage != ESPER_STAGE_DORMANT)
        return ESPER_VETO_OCCUPIED;
    if (retargets && !isfinite(decision->target))
        return ESPER_VETO_TARGET;
    if ((retargets || prunes) && (decision->speed < 0 || decision->curve < 0))
        return ESPER_VETO_SCHEDULE;
    return ESPER_VETO_NONE;
}

const char *esper_veto_about(esper_veto veto)
{
    static const char *const words[] = {
#define X(name, text, about) about,
        ESPER_VETO_LIST(X)
#undef X
    };

    return (size_t)veto < sizeof(words) / sizeof(words[0]) ? words[veto] : NULL;
}
