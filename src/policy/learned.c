/* What a learned policy is for, the learner that goes with it, and how it chooses. */
#include "policy/learned.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/features.h"
#include "policy/masked.h"
#include "policy/reward.h"

enum {
    ID_ROWS = 14,
    ID_WIDTH = 4,
    SLOT_WIDTH = 64,
    CHUNK_STEPS = 16
}; /* the last row of the table stands for an empty slot */

/* A fifteenth of the recorded floors. Those left an operation among six at most a quarter, so that a policy could neither
 * commit nor wait; with these it can be sure by 95 %, and every choice that is open is still tried now and then. */
static const double FLOOR_PART = 1.0 / 15.0;

/* By head: recorded floor of a probability, weight of the entropy, mean entropy below which a penalty is due, its weight,
 * and the mean entropy below which the head has collapsed. */
static const struct {
    double floor, entropy, soft_floor, penalty, collapsed;
} settings[ESPER_N_HEADS] = {
    [ESPER_HEAD_SLOT] = {0.05, 1.0, 0.15, 0.1, 0.10},   [ESPER_HEAD_BLUEPRINT] = {0.12, 1.3, 0.20, 0.3, 0.05},
    [ESPER_HEAD_STYLE] = {0.08, 1.2, 0.15, 0.1, 0.08},  [ESPER_HEAD_TEMPO] = {0.12, 1.3, 0.20, 0.3, 0.05},
    [ESPER_HEAD_TARGET] = {0.08, 1.2, 0.10, 0.1, 0.08}, [ESPER_HEAD_SPEED] = {0.06, 1.2, 0.10, 0.1, 0.08},
    [ESPER_HEAD_CURVE] = {0.06, 1.2, 0.10, 0.1, 0.08},  [ESPER_HEAD_OP] = {0.15, 1.0, 0.30, 0.3, 0.08},
};

_Static_assert((int)ESPER_N_HEADS <= (int)ESPER_POLICY_MAX_HEADS, "a network has room for all heads");

/* ------------------------------------------------------------------------------------------------ what it is for */

void esper_learned_identity_init(esper_learned_identity *identity)
{
    esper_policy_net_desc net;

    esper_policy_net_desc_init(&net);
    *identity = (esper_learned_identity){.gates = ESPER_CONFIG_GATES_STRICT,
                                         .features_version = ESPER_FEATURES_VERSION,
                                         .width = net.width,
                                         .hidden = net.hidden,
                                         .layers = net.layers};
    snprintf(identity->reward, sizeof(identity->reward), "%s", esper_reward_mode_name(ESPER_REWARD_DEFAULT));
}

esper_status esper_learned_identity_set_slots(esper_learned_identity *identity, const char *const *ids, int n_slots)
{
    if (n_slots < 1 || n_slots > ESPER_POLICY_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "a policy chooses among 1 to %d slots, not %d", (int)ESPER_POLICY_MAX_SLOTS,
                          n_slots);
    for (int s = 0; s < n_slots; s++)
        if (ids[s][0] == '\0' || strlen(ids[s]) >= ESPER_POLICY_ID_CHARS || strpbrk(ids[s], " \t\n") != NULL)
            return ESPER_FAIL(ESPER_E_ARG, "'%.40s' is no id of a slot", ids[s]);
    memset(identity->slots, 0, sizeof(identity->slots));
    for (int s = 0; s < n_slots; s++)
        snprintf(identity->slots[s], sizeof(identity->slots[s]), "%s", ids[s]);
    identity->n_slots = n_slots;
    identity->n_features = esper_features_count(n_slots);
    return ESPER_OK;
}

void esper_learned_net(const esper_learned_identity *identity, esper_policy_net_desc *net_out)
{
    esper_policy_net_desc_init(net_out);
    net_out->n_features = ESPER_FEATURES_RUN;
    net_out->n_slots = net_out->n_ids = net_out->n_contributions = identity->n_slots;
    net_out->n_slot_features = ESPER_FEATURES_SLOT;
    net_out->there = ESPER_FEATURE_THERE;
    net_out->slot_width = SLOT_WIDTH < identity->width ? SLOT_WIDTH : identity->width;
    net_out->id_rows = ID_ROWS;
    net_out->id_width = ID_WIDTH;
    net_out->n_heads = ESPER_N_HEADS;
    for (int head = 0; head < ESPER_N_HEADS; head++)
        net_out->heads[head] = (esper_policy_head){.name = esper_head_name(head),
                                                   .size = esper_head_size(head, identity->n_slots),
                                                   .kind = head == ESPER_HEAD_OP     ? ESPER_POLICY_OF_RUN
                                                           : head == ESPER_HEAD_SLOT ? ESPER_POLICY_AMONG_SLOTS
                                                                                     : ESPER_POLICY_OF_SLOT};
    net_out->q_head = ESPER_HEAD_OP;
    net_out->width = identity->width;
    net_out->hidden = identity->hidden;
    net_out->layers = identity->layers;
}

void esper_learned_ppo(const esper_learned_identity *identity, esper_ppo_desc *desc_out)
{
    esper_ppo_desc_init(desc_out);
    esper_learned_net(identity, &desc_out->net);
    if (identity->max_epochs > 0) {
        desc_out->max_steps = identity->max_epochs;
        desc_out->chunk_steps = identity->max_epochs < CHUNK_STEPS ? identity->max_epochs : CHUNK_STEPS;
    }
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        desc_out->floors[head] = settings[head].floor * FLOOR_PART;
        desc_out->collapsed[head] = settings[head].collapsed;
        desc_out->weights.head_entropy[head] = settings[head].entropy;
        desc_out->weights.head_floor[head] = settings[head].soft_floor;
        desc_out->weights.head_penalty[head] = settings[head].penalty;
    }
}

esper_status esper_learned_normaliser(double momentum, esper_normaliser **norm_out)
{
    uint8_t how[ESPER_FEATURES_RUN];

    esper_features_how(how);
    return esper_normaliser_open(ESPER_FEATURES_RUN, how, momentum, norm_out);
}

/* ------------------------------------------------------------------------------------------------ choosing */

static esper_status choose_head(const esper_ppo *ppo, int env, const esper_action_mask *mask, esper_rng *rng, int head,
                                esper_learned_choice *choice)
{
    int32_t *chosen = choice->action.choice;
    esper_masked masked;

    choice->masks[head] = esper_action_mask_head(mask, head, chosen[ESPER_HEAD_OP], chosen[ESPER_HEAD_SLOT]);
    /* Where an operation does not ask for a slot there is none for which the others could be undecided. */
    choice->open[head] =
        head == ESPER_HEAD_OP || esper_action_matters(chosen[ESPER_HEAD_OP], head) ? choice->masks[head] : 0;
    if (esper_ppo_head(ppo, env, head, chosen, choice->masks[head], &masked) != ESPER_OK)
        return esper_fail_within(ESPER_E_ARG, "head %s of a policy: ", esper_head_name(head));
    chosen[head] = rng != NULL ? esper_masked_sample(&masked, rng) : esper_masked_greedy(&masked);
    choice->log_probs[head] = (float)esper_masked_log_prob(&masked, chosen[head]);
    choice->entropies[head] = masked.entropy;
    if (head == ESPER_HEAD_OP)
        choice->probability = masked.mixed[chosen[head]];
    return ESPER_OK;
}

esper_status esper_learned_choose(const esper_ppo *ppo, int env, const esper_action_mask *mask, esper_rng *rng,
                                  esper_learned_choice *choice_out)
{
    esper_learned_choice choice = {.forced = esper_action_is_forced(mask)};

    ESPER_TRY(choose_head(ppo, env, mask, rng, ESPER_HEAD_OP, &choice));
    ESPER_TRY(choose_head(ppo, env, mask, rng, ESPER_HEAD_SLOT, &choice));
    for (int head = 0; head < ESPER_N_HEADS; head++)
        if (head != ESPER_HEAD_OP && head != ESPER_HEAD_SLOT)
            ESPER_TRY(choose_head(ppo, env, mask, rng, head, &choice));
    choice.value = esper_ppo_value(ppo, env);
    *choice_out = choice;
    return ESPER_OK;
}
