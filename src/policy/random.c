/* A policy that draws: first an operation, then where, then how, each evenly among what the mask allows. Every draw is a
 * function of (seed, network, epoch), so it has nothing to remember. */
#include <stddef.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "policy/actions.h"
#include "policy/policy.h"

typedef struct policy_random {
    esper_policy base;
    uint64_t     seed;
    uint32_t     network;
} policy_random;

static esper_status open_random(const esper_policy_setup *setup, esper_policy **policy_out)
{
    policy_random *policy = esper_mem_alloc(sizeof(*policy));

    if (policy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "random policy");
    *policy = (policy_random){.base.ops = &esper_policy_random, .seed = setup->seed, .network = setup->network};
    *policy_out = &policy->base;
    return ESPER_OK;
}

static void close_random(esper_policy *policy)
{
    esper_mem_free(policy);
}

/* The index of one of the true entries, of which there is at least one. */
static int32_t pick_true(esper_rng *rng, const bool *entries, int n)
{
    uint32_t n_true = 0, nth;
    int32_t i;

    for (i = 0; i < n; i++)
        n_true += entries[i];
    nth = esper_rng_below(rng, n_true);
    for (i = 0; !entries[i] || nth > 0; i++)
        nth -= entries[i];
    return i;
}

static int32_t pick_bit(esper_rng *rng, uint32_t bits)
{
    bool entries[ESPER_POLICY_BLUEPRINTS];

    for (int i = 0; i < ESPER_POLICY_BLUEPRINTS; i++)
        entries[i] = (bits >> i & 1u) != 0;
    return pick_true(rng, entries, ESPER_POLICY_BLUEPRINTS);
}

static void pick_choices(esper_rng *rng, const esper_policy_view *view, esper_decision *decision)
{
    uint32_t allowed = view->slots[decision->slot].blueprints & esper_policy_blueprints(view->topology);

    if (decision->op == ESPER_SLOT_OP_GERMINATE) {
        decision->blueprint = pick_bit(rng, allowed);
        decision->style = (int32_t)esper_rng_below(rng, ESPER_N_STYLES);
        decision->tempo = esper_action_tempo((int)esper_rng_below(rng, ESPER_N_TEMPOS));
        decision->target = esper_action_target((int)esper_rng_below(rng, ESPER_N_TARGETS));
    } else if (decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET) {
        decision->target = esper_action_target((int)esper_rng_below(rng, ESPER_N_TARGETS));
    }
    if (decision->op == ESPER_SLOT_OP_SET_ALPHA_TARGET || decision->op == ESPER_SLOT_OP_PRUNE) {
        decision->speed = esper_action_speed((int)esper_rng_below(rng, ESPER_N_SPEEDS));
        decision->curve = (int32_t)esper_rng_below(rng, ESPER_N_ALPHA_CHOICES);
    }
}

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    const policy_random *policy = (const policy_random *)base;
    esper_mask mask;
    esper_rng rng;
    int32_t op;

    esper_rng_init(&rng, &(esper_rng_key){.seed = policy->seed,
                                          .purpose = ESPER_RNG_POLICY,
                                          .network = policy->network,
                                          .step = (uint32_t)view->epoch});
    esper_mask_build(view, &mask);
    op = pick_true(&rng, mask.ops, ESPER_N_SLOT_OPS);
    esper_decision_init(decision_out, (esper_slot_op)op);
    esper_decision_because(decision_out, ESPER_REASON_CHANCE, "Drawn at random");
    if (op == ESPER_SLOT_OP_WAIT)
        return ESPER_OK;
    decision_out->slot = pick_true(&rng, mask.slots[op], view->n_slots);
    pick_choices(&rng, view, decision_out);
    return ESPER_OK;
}

const esper_policy_ops esper_policy_random = {
    .name = "random",
    .about = "draws evenly among all that is legal, from the run's seed",
    .open = open_random,
    .close = close_random,
    .decide = decide,
};
