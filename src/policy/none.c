/* Policies that wait: a host with slots that nobody uses, and a network that was found before anybody could decide. */
#include "base/mem.h"
#include "base/status.h"
#include "policy/policy.h"

static esper_status open_as(const esper_policy_ops *ops, esper_policy **policy_out)
{
    esper_policy *policy = esper_mem_alloc(sizeof(*policy));

    if (policy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "policy");
    policy->ops = ops;
    *policy_out = policy;
    return ESPER_OK;
}

static esper_status open_none(const esper_policy_setup *setup, esper_policy **policy_out)
{
    (void)setup;
    return open_as(&esper_policy_none, policy_out);
}

static esper_status open_halving(const esper_policy_setup *setup, esper_policy **policy_out)
{
    (void)setup;
    return open_as(&esper_policy_halving, policy_out);
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
    .decide = decide,
};

const esper_policy_ops esper_policy_halving = {
    .name = "halving",
    .about = "never does anything: the run searches among static networks before it begins",
    .open = open_halving,
    .decide = decide,
};
