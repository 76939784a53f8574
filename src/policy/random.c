/* A policy that draws: first an operation, then where, then how, each evenly among what the mask allows. Every draw is a
 * function of (seed, network, epoch), so it has nothing to remember. It never asks for a trial: it would not hear the answer. */
#include <assert.h>

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

/* The number of one of the bits that are set, of which there is at least one. */
static int32_t pick_bit(esper_rng *rng, uint64_t bits)
{
    assert(bits != 0);
    for (uint32_t nth = esper_rng_below(rng, (uint32_t)__builtin_popcountll(bits)); nth > 0; nth--)
        bits &= bits - 1;
    return __builtin_ctzll(bits);
}

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    const policy_random *policy = (const policy_random *)base;
    uint64_t ops = 0, slots = 0;
    esper_mask mask;
    esper_rng rng;
    int32_t op;

    esper_rng_init(&rng, &(esper_rng_key){.seed = policy->seed,
                                          .purpose = ESPER_RNG_POLICY,
                                          .network = policy->network,
                                          .step = (uint32_t)view->epoch});
    esper_mask_build(view, &mask);
    for (int i = 0; i < ESPER_N_SLOT_OPS; i++)
        if (i != ESPER_SLOT_OP_TRY)
            ops |= (uint64_t)mask.ops[i] << i;
    op = pick_bit(&rng, ops);
    esper_decision_init(decision_out, (esper_slot_op)op);
    esper_decision_because(decision_out, ESPER_REASON_CHANCE, "Drawn at random");
    if (op == ESPER_SLOT_OP_WAIT)
        return ESPER_OK;
    for (int s = 0; s < view->n_slots; s++)
        slots |= (uint64_t)mask.slots[op][s] << s;
    decision_out->slot = pick_bit(&rng, slots);
    if (op == ESPER_SLOT_OP_GERMINATE) {
        decision_out->blueprint =
            pick_bit(&rng, view->slots[decision_out->slot].blueprints & esper_policy_blueprints(view->topology));
        decision_out->style = (int32_t)esper_rng_below(&rng, ESPER_N_STYLES);
        decision_out->tempo = esper_action_tempo((int)esper_rng_below(&rng, ESPER_N_TEMPOS));
    }
    if (op == ESPER_SLOT_OP_GERMINATE || op == ESPER_SLOT_OP_SET_ALPHA_TARGET)
        decision_out->target = esper_action_target((int)esper_rng_below(&rng, ESPER_N_TARGETS));
    if (op == ESPER_SLOT_OP_SET_ALPHA_TARGET || op == ESPER_SLOT_OP_PRUNE) {
        decision_out->speed = esper_action_speed((int)esper_rng_below(&rng, ESPER_N_SPEEDS));
        decision_out->curve = (int32_t)esper_rng_below(&rng, ESPER_N_ALPHA_CHOICES);
    }
    return ESPER_OK;
}

const esper_policy_ops esper_policy_random = {
    .name = "random",
    .about = "draws evenly among all that is legal but trials, from the run's seed",
    .open = open_random,
    .decide = decide,
};
