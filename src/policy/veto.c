/* The veto before an operation. */
#include "slot/preflight.h"

#include <math.h>
#include <stddef.h>

esper_veto esper_preflight_check(const esper_preflight *flight)
{
    bool retargets = flight->op == ESPER_SLOT_OP_SET_ALPHA_TARGET, prunes = flight->op == ESPER_SLOT_OP_PRUNE;
    bool germinates = flight->op == ESPER_SLOT_OP_GERMINATE;

    if (!isfinite(flight->loss))
        return ESPER_VETO_LOSS;
    if (!isfinite(flight->accuracy))
        return ESPER_VETO_ACCURACY;
    if (flight->cooldown < 0)
        return ESPER_VETO_COOLDOWN;
    if (flight->max_seeds > 0 && flight->n_seeds > flight->max_seeds)
        return ESPER_VETO_CAPACITY;
    if (germinates && !flight->has_blueprint)
        return ESPER_VETO_BLUEPRINT;
    if (germinates && flight->stage != ESPER_STAGE_DORMANT)
        return ESPER_VETO_OCCUPIED;
    if (retargets && !flight->has_target)
        return ESPER_VETO_TARGET;
    if ((retargets || prunes) && !(flight->has_speed && flight->has_curve))
        return ESPER_VETO_SCHEDULE;
    return ESPER_VETO_NONE;
}

static const struct {
    const char *name, *about;
} vetoes[] = {
#define X(NAME, text, words) {text, words},
    ESPER_VETO_LIST(X)
#undef X
};

const char *esper_veto_name(esper_veto veto)
{
    return (size_t)veto < sizeof(vetoes) / sizeof(vetoes[0]) ? vetoes[veto].name : NULL;
}

const char *esper_veto_about(esper_veto veto)
{
    return (size_t)veto < sizeof(vetoes) / sizeof(vetoes[0]) ? vetoes[veto].about : NULL;
}
