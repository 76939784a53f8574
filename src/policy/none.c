/* The policy that waits: a host with slots that nobody uses. It has no state, so one object serves everybody. */
#include <stddef.h>

#include "policy/policy.h"

static esper_policy the_policy = {.ops = &esper_policy_none};

static esper_status open_none(const esper_policy_setup *setup, esper_policy **policy_out)
{
    (void)setup;
    *policy_out = &the_policy;
    return ESPER_OK;
}

static void close_none(esper_policy *policy)
{
    (void)policy;
}

static esper_status decide(esper_policy *policy, const esper_policy_view *view, esper_decision *decision_out)
{
    (void)policy;
    (void)view;
    esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
    esper_decision_because(decision_out, ESPER_REASON_NONE, "No policy");
    return ESPER_OK;
}

const esper_policy_ops esper_policy_none = {
    .name = "none",
    .about = "never does anything: the host alone",
    .open = open_none,
    .close = close_none,
    .decide = decide,
};
