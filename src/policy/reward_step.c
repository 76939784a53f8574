/* One step of any number of seeds: who is looked at, what is remembered, and the terms that look at the whole. */
#include "policy/reward_step.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "policy/reward_terms.h"

const esper_field esper_reward_account_fields[] = {
#define X(type, member) ESPER_FIELD(esper_reward_account, type, member),
    X(REAL, potential) X(REAL, alpha) X(REAL, params) X(REAL, accuracy_before) X(REAL, escrow) X(REAL, drip.total)
        X(REAL, drip.scale) X(REAL, drip.paid) X(REAL, boost) X(I32, boosted) X(I32, frozen) ESPER_FIELDS_END
#undef X
};

const esper_field esper_reward_ledger_fields[] = {
#define X(type, member) ESPER_FIELD(esper_reward_ledger, type, member),
    X(REAL, accuracies) X(REAL, accuracy_first) X(REAL, loss) X(REAL, gain) X(REAL, doublings) X(REAL, flop_doublings)
        X(REAL, flops) X(REAL, flops_begun) X(I32, n_steps) X(I32, n_fossils) X(I32, n_contributing) ESPER_FIELDS_END
#undef X
};

enum { HISTORY = sizeof(((esper_reward_ledger *)0)->accuracies) / sizeof(double) };

_Static_assert(sizeof(esper_reward_account) == (8 + ESPER_REWARD_MAX_SLOTS) * 8 + ESPER_REWARD_MAX_SLOTS * 4 + 8,
               "an account has no holes");

/* A step that is being settled. */
typedef struct settling {
    const esper_reward_config *config;
    const esper_reward_terms  *terms;
    const esper_reward_facts  *facts;
    const esper_policy_view   *view;
    esper_reward_ledger       *ledger;
    esper_reward               reward;
} settling;

static bool is_seed(const esper_policy_slot *slot)
{
    return esper_stage_has_seed(slot->stage) && slot->stage != ESPER_STAGE_FOSSILIZED;
}

static double potential_of(const esper_reward_config *config, int stage, int epochs)
{
    const esper_reward_terms *terms = esper_reward_terms_of(config->mode);

    return terms->potential != NULL ? terms->potential(config, stage, epochs) : 0.0;
}

/* ------------------------------------------------------------------------------------------------ the ledger */

static void clear_account(esper_reward_ledger *ledger, int s)
{
    esper_reward_account *account = &ledger->slot[s];

    assert(s >= 0 && s < ESPER_REWARD_MAX_SLOTS);
    account->escrow = 0.0;
    account->frozen = 0;
    account->accuracy_before = (double)NAN;
    account->drip = (esper_reward_drip){0};
    for (int i = 0; i < ESPER_REWARD_MAX_SLOTS; i++)
        account->boost[i] = ledger->slot[i].boost[s] = 0.0;
}

void esper_reward_ledger_init(esper_reward_ledger *ledger, const esper_reward_config *config,
                              const esper_policy_view *view)
{
    memset(ledger, 0, sizeof(*ledger));
    ledger->accuracy_first = ledger->loss = (double)NAN;
    for (int s = 0; s < ESPER_REWARD_MAX_SLOTS; s++) {
        const esper_policy_slot *slot = s < view->n_slots ? &view->slots[s] : NULL;
        bool live = slot != NULL && esper_stage_has_seed(slot->stage);

        clear_account(ledger, s);
        if (!live)
            continue;
        ledger->slot[s].potential = potential_of(config, slot->stage, slot->epochs_in_stage);
        ledger->slot[s].alpha = slot->alpha;
        ledger->slot[s].params = (double)slot->params;
        ledger->slot[s].accuracy_before = view->accuracy_valid;
        ledger->n_fossils += slot->stage == ESPER_STAGE_FOSSILIZED;
    }
}

/* ------------------------------------------------------------------------------------------------ what terms look at */

static void look_at_run(const settling *s, esper_reward_input *in)
{
    const esper_policy_view *view = s->view;
    const esper_reward_facts *facts = s->facts;
    const esper_reward_ledger *ledger = s->ledger;

    *in = (esper_reward_input){
        .telescopes = true,
        .has_names = true,
        .contribution = (double)NAN,
        .accuracy_before = (double)NAN,
        .epoch = facts->last ? view->epoch : -1, /* the end is where the facts say */
        .max_epochs = view->epoch,
        .accuracy = view->accuracy_valid,
        .accuracy_stable = (double)INFINITY,
        .accuracy_committed = isnan(facts->accuracy_committed) ? view->accuracy_valid : facts->accuracy_committed,
        .accuracy_delta = view->accuracy_valid - ledger->accuracy_first,
        .loss = view->loss_valid,
        .loss_delta = isnan(ledger->loss) ? 0.0 : view->loss_valid - ledger->loss,
        .params_host = facts->params_host,
        .n_fossils = ledger->n_fossils,
        .n_contributing = ledger->n_contributing,
    };
    /* the worst of the last epochs, this one included */
    for (int i = 0; i < s->config->escrow_stable_window && i < ledger->n_steps && i < HISTORY; i++)
        in->accuracy_stable = fmin(in->accuracy_stable, ledger->accuracies[(ledger->n_steps - 1 - i) % HISTORY]);
}

/* Rent is for what is in the stream, by its weight; and for the place. A shock is what alpha jumped by since the last step. */
static void look_at_params(const settling *s, esper_reward_input *in)
{
    double host = s->facts->params_host, base = s->config->base_slot_rent_ratio * host;

    in->params_total = host;
    for (int k = 0; k < s->view->n_slots; k++) {
        const esper_policy_slot *slot = &s->view->slots[k];
        const esper_reward_account *account = &s->ledger->slot[k];
        double alpha = esper_stage_has_seed(slot->stage) ? slot->alpha : 0.0, jump = alpha - account->alpha;

        if (slot->stage == ESPER_STAGE_BLENDING || slot->stage == ESPER_STAGE_HOLDING ||
            slot->stage == ESPER_STAGE_FOSSILIZED)
            in->params_effective += base + alpha * (double)slot->params;
        if (slot->stage == ESPER_STAGE_FOSSILIZED)
            in->params_fossils += (double)slot->params;
        if (esper_stage_has_seed(slot->stage) && slot->epochs_total >= s->config->loss_grace_epochs)
            in->params_total += (double)slot->params;
        if (account->params > 0.0)
            in->shock += jump * jump * account->params / fmax(host, s->config->rent_host_params_floor);
        in->n_active += is_seed(slot);
    }
}

/* What is new of gain, size and cost. */
static void look_at_gain(const settling *s, esper_reward_input *in)
{
    double gain = s->view->accuracy_valid - s->facts->accuracy_twin;
    double doublings = esper_reward_doublings((double)s->view->params_total, s->facts->params_begun);

    gain = isfinite(gain) ? gain : s->ledger->gain;
    in->gain_delta = gain - s->ledger->gain;
    in->doublings_delta = doublings - s->ledger->doublings;
    s->ledger->gain = gain;
    s->ledger->doublings = doublings;
    s->ledger->flops += s->facts->flops;
    s->ledger->flops_begun += s->facts->flops_begun;
    doublings = esper_reward_doublings(s->ledger->flops, s->ledger->flops_begun);
    in->flop_doublings_delta = doublings - s->ledger->flop_doublings;
    s->ledger->flop_doublings = doublings;
}

/* The same with the seed of one slot; an operation is looked at where it was done. */
static void look_at_slot(const settling *s, int k, esper_reward_input *in)
{
    const esper_policy_slot *slot = &s->view->slots[k];
    const esper_reward_account *account = &s->ledger->slot[k];

    assert(k >= 0 && k < ESPER_REWARD_MAX_SLOTS);
    in->op = s->facts->slot == k ? s->facts->op : ESPER_SLOT_OP_WAIT;
    in->failed = s->facts->failed;
    in->epoch = s->view->epoch;
    in->max_epochs = s->view->max_epochs;
    in->has_seed = esper_stage_has_seed(slot->stage);
    in->contribution = account->frozen ? (double)NAN : slot->contribution;
    in->accuracy_before = account->accuracy_before;
    in->escrow = account->escrow;
    in->seed = (esper_reward_seed){.stage = slot->stage,
                                   .epochs_in_stage = slot->epochs_in_stage,
                                   .age = slot->epochs_total,
                                   .improvement = account->frozen ? (double)NAN : slot->improvement,
                                   .total = s->facts->n_measured >= 2 /* what all seeds brought, seen from this one */
                                                ? s->facts->improvement
                                                : s->view->accuracy_valid - account->accuracy_before,
                                   .interaction = slot->interaction};
}

/* ------------------------------------------------------------------------------------------------ slot by slot */

static void settle_slot(settling *s, int k)
{
    const esper_policy_slot *slot = &s->view->slots[k];
    esper_reward_account *account = &s->ledger->slot[k];
    double credit = 0.0;
    esper_reward_input in;

    look_at_run(s, &in);
    look_at_slot(s, k, &in);
    if (in.has_seed) {
        s->terms->seed(s->config, &in, &s->reward);
        if (s->config->mode == ESPER_REWARD_ESCROW)
            account->escrow = isfinite(s->reward.escrow_next) ? s->reward.escrow_next : 0.0;
    } else if (slot->stage == ESPER_STAGE_DORMANT) {
        clear_account(s->ledger, k);
    }
    if (s->facts->slot != k)
        return;
    s->terms->op(s->config, &in, &s->reward);
    if (s->facts->failed)
        return;
    if (s->facts->op == ESPER_SLOT_OP_GERMINATE) {
        clear_account(s->ledger, k);
        account->accuracy_before = s->view->accuracy_valid;
    } else if (s->facts->op == ESPER_SLOT_OP_PRUNE) {
        account->frozen = 1;
    } else if (s->facts->op == ESPER_SLOT_OP_FOSSILIZE) {
        for (int i = 0; i < s->view->n_slots; i++) /* hindsight for the partners of a seed that is kept */
            credit += esper_reward_hindsight(s->config->hindsight_weight, account->boost[i], slot->contribution) *
                      pow(s->config->gamma, s->view->epoch - account->boosted[i]);
        s->reward.part[ESPER_PART_HINDSIGHT] += fmin(credit, s->config->hindsight_cap);
        s->ledger->n_fossils++;
        s->ledger->n_contributing += slot->contribution >= s->config->min_fossilize_contribution;
        account->drip = s->reward.drip;
    }
}

/* ------------------------------------------------------------------------------------------------ the whole */

/* Moves each slot's potential on. At the end of an episode it is 0 everywhere, and an account of what is still on probation is
 * taken back. */
static void settle_accounts(settling *s)
{
    const esper_reward_facts *facts = s->facts;

    for (int k = 0; k < s->view->n_slots; k++) {
        const esper_policy_slot *slot = &s->view->slots[k];
        esper_reward_account *account = &s->ledger->slot[k];
        int stage = facts->stages != NULL ? facts->stages[k] : slot->stage;
        int epochs = facts->epochs != NULL ? facts->epochs[k] : slot->epochs_in_stage;
        double now = facts->last ? 0.0 : potential_of(s->config, stage, epochs);
        bool kept = facts->slot == k && facts->op == ESPER_SLOT_OP_FOSSILIZE && !facts->failed;

        s->reward.part[ESPER_PART_SHAPING] += s->config->gamma * now - account->potential;
        account->potential = now;
        account->alpha = esper_stage_has_seed(slot->stage) ? slot->alpha : 0.0;
        account->params = esper_stage_has_seed(slot->stage) ? (double)slot->params : 0.0;
        if (facts->last && is_seed(slot) && !kept) {
            s->reward.part[ESPER_PART_FORFEIT] -= account->escrow;
            account->escrow = 0.0;
        }
    }
}

/* The drips of fossils whose contribution was measured in this step. */
static void settle_run(settling *s)
{
    esper_reward_drip drips[ESPER_REWARD_MAX_SLOTS];
    double contributions[ESPER_REWARD_MAX_SLOTS];
    int from[ESPER_REWARD_MAX_SLOTS] = {0}, n = 0;
    esper_reward_input in;

    look_at_run(s, &in);
    look_at_params(s, &in);
    look_at_gain(s, &in);
    for (int k = 0; k < s->view->n_slots; k++) {
        const esper_policy_slot *slot = &s->view->slots[k];

        if (slot->stage != ESPER_STAGE_FOSSILIZED || !(s->ledger->slot[k].drip.total > 0.0) ||
            !isfinite(slot->contribution))
            continue;
        drips[n] = s->ledger->slot[k].drip;
        contributions[n] = slot->contribution;
        from[n++] = k;
    }
    in.drips = drips;
    in.contributions = contributions;
    in.n_drips = n;
    s->terms->run(s->config, &in, &s->reward);
    for (int i = 0; i < n; i++)
        s->ledger->slot[from[i]].drip = drips[i];
}

esper_status esper_reward_step(const esper_reward_config *config, const esper_reward_facts *facts,
                               esper_reward_ledger *ledger, esper_reward *reward_out)
{
    settling s = {.config = config, .facts = facts, .view = facts->view, .ledger = ledger};

    if (facts->view->n_slots > ESPER_REWARD_MAX_SLOTS || facts->slot >= facts->view->n_slots)
        return ESPER_FAIL(ESPER_E_ARG, "a reward for slot %d of %d; a ledger has %d", facts->slot, facts->view->n_slots,
                          (int)ESPER_REWARD_MAX_SLOTS);
    s.terms = esper_reward_terms_of(config->mode);
    esper_reward_init(&s.reward);
    if (isnan(ledger->accuracy_first))
        ledger->accuracy_first = s.view->accuracy_valid;
    ledger->accuracies[ledger->n_steps++ % HISTORY] = s.view->accuracy_valid;
    for (int i = 0; i < facts->n_pairs; i++) {
        int a = facts->pairs[i].first, b = facts->pairs[i].second;

        assert(a >= 0 && a < s.view->n_slots && b >= 0 && b < s.view->n_slots);
        ledger->slot[a].boost[b] = ledger->slot[b].boost[a] = facts->pairs[i].value;
        ledger->slot[a].boosted[b] = ledger->slot[b].boosted[a] = s.view->epoch;
    }
    for (int k = 0; k < s.view->n_slots; k++)
        settle_slot(&s, k);
    settle_run(&s);
    settle_accounts(&s);
    s.reward.part[ESPER_PART_AUTO_PRUNE] += config->auto_prune_penalty * facts->n_auto_pruned;
    ledger->loss = isfinite(s.view->loss_valid) ? s.view->loss_valid : ledger->loss;
    esper_reward_close(&s.reward);
    *reward_out = s.reward;
    return ESPER_OK;
}
