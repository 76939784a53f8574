/* The policy that tries: when to ask, what to try, whom to believe. */
#include "policy/trials.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/actions.h"
#include "policy/policy.h"
#include "slot/gate.h"

enum { LEAST_STEPS = 16 };           /* fewer tell nothing */
static const double most_part = 0.5; /* of what is left for trials goes into one */
static const double rest = 0.03;     /* share of the run that a new seed, or a host that needs none, is left alone */

/* A candidate that has won, too, and joins in one of the next epochs. */
typedef struct trials_runner {
    int32_t slot, blueprint;
    double  gain, error;
} trials_runner;

/* What is remembered. */
typedef struct trials_memory {
    double   spent;   /* FLOPs, on trials */
    double   next;    /* share of the run at which to ask again */
    double   n_steps; /* of the last trial's last round: what has not shown in those needs longer */
    uint64_t tried;   /* bits 1 << slot: it had a candidate in some trial */
    int32_t  n_kept;  /* seeds kept when it was asked last */
    int32_t  is_done; /* what was left could not be paid then: a matter of the seeds kept */
    int64_t  n_runners;
    trials_runner runners[ESPER_TRIAL_MAX_SEEDS - 1]; /* (n_runners), the best last */
} trials_memory;

_Static_assert(ESPER_POLICY_MAX_SLOTS <= 64, "a bit for each slot");
_Static_assert(sizeof(trials_memory) == 48 + (ESPER_TRIAL_MAX_SEEDS - 1) * sizeof(trials_runner),
               "no padding: all of it is written to checkpoints");

typedef struct policy_trials {
    esper_policy         base;
    esper_trial_settings settings;
    esper_trial_ground   ground;
    trials_memory        memory;
    esper_fork           forks[ESPER_TRIAL_MAX_FORKS];
    int                  n; /* nothing first */
} policy_trials;

double esper_trial_bound(int n_candidates)
{
    double tail = 0.05 / n_candidates, low = 0.0, high = 10.0;

    assert(n_candidates > 0);
    while (high - low > 1e-9) { /* of the normal distribution: validation has thousands of samples */
        double middle = 0.5 * (low + high);

        if (0.5 * erfc(middle / sqrt(2.0)) > tail)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* What a fork is worth: its gain, less what the FLOPs it takes would bring elsewhere. */
static double worth(double price, const esper_fork *nothing, const esper_fork *fork)
{
    double paid = price * log2(fork->sample_flops / nothing->sample_flops);

    return isfinite(fork->loss) ? fork->gain - paid : -(double)INFINITY;
}

void esper_trial_rank(double price, esper_fork *forks, int n)
{
    for (int i = 2; i < n; i++) {
        esper_fork fork = forks[i];
        int at = i;

        for (; at > 1 && worth(price, &forks[0], &forks[at - 1]) < worth(price, &forks[0], &fork); at--)
            forks[at] = forks[at - 1];
        forks[at] = fork;
    }
}

/* ------------------------------------------------------------------------------------------------ what to try */

uint32_t esper_trial_usual(esper_topology topology)
{
    static const char *const usual[][2] = {
        [ESPER_TOPOLOGY_CNN] = {"conv_light", "conv_heavy"},
        [ESPER_TOPOLOGY_TRANSFORMER] = {"attention", "mlp_small"},
        [ESPER_TOPOLOGY_MLP] = {"glu", "mlp"},
    };
    const esper_blueprint *blueprint;
    uint32_t bits = 0;

    for (int i = 0; i < 2; i++)
        if (esper_blueprint_find(topology, usual[topology][i], &blueprint) == ESPER_OK)
            bits |= 1u << blueprint->index;
    return bits;
}

static esper_status add_fork(policy_trials *self, int slot, int blueprint)
{
    esper_fork *fork = &self->forks[self->n];

    *fork = (esper_fork){
        .slot = slot, .blueprint = blueprint, .loss = (double)NAN, .gain = (double)NAN, .error = (double)NAN};
    self->n++;
    return self->ground.measure(self->ground.context, fork);
}

/* Every seed that may germinate, in every empty slot of these. */
static esper_status list_forks(policy_trials *self, const esper_policy_view *view, uint64_t slots)
{
    esper_mask mask;

    esper_mask_build(view, &mask);
    self->n = 0;
    ESPER_TRY(add_fork(self, -1, -1));
    for (int s = 0; s < view->n_slots; s++)
        for (int b = 0; b < ESPER_POLICY_BLUEPRINTS && self->n < ESPER_TRIAL_MAX_FORKS; b++)
            if (mask.slots[ESPER_SLOT_OP_GERMINATE][s] && (slots & UINT64_C(1) << s) != 0 &&
                (view->slots[s].blueprints & self->settings.blueprints & 1u << b) != 0)
                ESPER_TRY(add_fork(self, s, b));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rounds */

static double flops_of_steps(const policy_trials *self, int n)
{
    double flops = 0.0;

    for (int i = 0; i < n; i++)
        flops += self->forks[i].step_flops;
    return flops;
}

static double flops_beside_steps(const policy_trials *self, int n, uint32_t n_batches)
{
    double flops = 0.0;

    for (int i = 0; i < n; i++)
        flops += self->forks[i].birth_steps * self->forks[i].step_flops +
                 self->forks[i].sample_flops * self->settings.batch * n_batches;
    return flops;
}

/* How many batches a round validates: all in the last, half as many in the one before. */
static uint32_t batches_of_round(const policy_trials *self, int round, int n_rounds)
{
    uint32_t n_batches = self->settings.n_batches >> (n_rounds - 1 - round);

    return n_batches > 0 ? n_batches : 1;
}

/* How many steps `funds` pay for the first n forks. */
static double steps_of_round(const policy_trials *self, int n, int round, int n_rounds, double funds)
{
    uint32_t most = self->settings.n_steps;
    double left = funds - flops_beside_steps(self, n, batches_of_round(self, round, n_rounds)),
           n_steps = floor(left / flops_of_steps(self, n));

    return most > 0 ? fmin(n_steps, ceil(most / exp2(n_rounds - 1 - round))) : fmin(n_steps, 1e6);
}

static double spent_on_forks(const policy_trials *self)
{
    double flops = 0.0;

    for (int i = 0; i < self->n; i++)
        flops += self->forks[i].flops;
    return flops;
}

/* Until two candidates are left, or one; or as many as are asked for. */
static int usual_rounds(const policy_trials *self)
{
    int n = 1, most = self->settings.n_rounds;

    for (int n_candidates = self->n - 1; n_candidates > 2 && n != most; n_candidates = (n_candidates + 1) / 2)
        n++;
    return n;
}

/* How many rounds `funds` pay for: fewer than usual where the first would be too short to tell anything. 0: even one would be. */
static int count_rounds(const policy_trials *self, double funds)
{
    int n = usual_rounds(self);

    while (n > 0 && steps_of_round(self, self->n, 0, n, funds / n) < LEAST_STEPS)
        n--;
    return n;
}

/* What a trial would be. */
typedef struct trial_plan {
    int    n_candidates; /* that there are, whether or not a trial of them would tell anything new */
    int    n_rounds;     /* 0: there is none */
    double funds;
} trial_plan;

/* Steps of a last round that `funds` could pay for, if the cheapest are left in it. */
static double steps_of_last_round(const policy_trials *self, int n_rounds, double funds)
{
    double cheapest = (double)INFINITY, most = self->settings.n_steps > 0 ? self->settings.n_steps : (double)INFINITY;

    for (int i = 1; i < self->n; i++)
        cheapest = fmin(cheapest, self->forks[i].step_flops);
    return fmin(funds / n_rounds / (self->forks[0].step_flops + cheapest * (self->n > 2 ? 2.0 : 1.0)), most);
}

static bool is_on_probation(const esper_policy_view *view)
{
    for (int s = 0; s < view->n_slots; s++)
        if (view->slots[s].stage == ESPER_STAGE_HOLDING)
            return true;
    return false;
}

/* Lists the candidates of a trial that can tell something new, and what may go into it. All are, where the last round can be
 * long enough for those that have lost: twice as long as before, or, in a network that another seed has changed, half as long,
 * which is what half of what is left pays for. Else those that were never tried. No rounds: there are none, or nothing to pay
 * them with. */
static esper_status plan_trial(policy_trials *self, const esper_policy_view *view, int n_kept, trial_plan *plan)
{
    const uint64_t choices[] = {UINT64_MAX, ~self->memory.tried};
    /* As long as others may be kept, or not, what has lost waits for that. */
    bool changed = n_kept != self->memory.n_kept && !is_on_probation(view);
    double left = self->settings.share * view->budget - self->memory.spent, least[2];

    least[0] = self->memory.n_steps * (changed ? 0.5 : 2.0);
    least[1] = 0.0;
    for (int i = 0; i < 2; i++) {
        ESPER_TRY(list_forks(self, view, choices[i]));
        if (i == 0)
            plan->n_candidates = self->n - 1;
        plan->funds = most_part * left;
        if (count_rounds(self, plan->funds) <
            usual_rounds(self)) /* rather one that tells something than two that do not */
            plan->funds = left;
        plan->n_rounds = self->n > 1 ? count_rounds(self, plan->funds) : 0;
        if (plan->n_rounds > 0 && steps_of_last_round(self, plan->n_rounds, plan->funds) >= least[i])
            return ESPER_OK;
    }
    plan->n_rounds = 0;
    return ESPER_OK;
}

/* Rounds until few candidates, usually two, have been compared with nothing for longest. */
static esper_status hold(policy_trials *self, int n_rounds, double funds)
{
    int n_candidates = self->n - 1;

    for (int round = 0; round < n_rounds; round++) {
        double left = funds - spent_on_forks(self),
               n_steps = steps_of_round(self, n_candidates + 1, round, n_rounds, left / (n_rounds - round));

        if (n_steps < LEAST_STEPS) /* those who are left are dearer than most */
            break;
        for (int i = 0; i <= n_candidates; i++)
            self->forks[i].round = round;
        ESPER_TRY(self->ground.compare(self->ground.context, self->forks, n_candidates + 1, (uint32_t)n_steps,
                                       batches_of_round(self, round, n_rounds)));
        esper_trial_rank(self->settings.price, self->forks, n_candidates + 1);
        n_candidates = (n_candidates + 1) / 2;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the answer */

/* Whether its gain is not one that chance brings, and pays. */
static bool has_won(const policy_trials *self, const esper_fork *fork)
{
    double bound = esper_trial_bound(self->n - 1);

    return isfinite(fork->loss) && fork->gain - bound * fork->error > 0.0 &&
           worth(self->settings.price, &self->forks[0], fork) > 0.0;
}

static void germinate(int slot, int blueprint, double gain, double error, esper_decision *decision_out)
{
    esper_decision_init(decision_out, ESPER_SLOT_OP_GERMINATE);
    decision_out->slot = slot;
    decision_out->blueprint = blueprint;
    decision_out->tempo = 0;
    decision_out->style = ESPER_STYLE_LINEAR_ADD;
    decision_out->confidence = 1.0 - 0.5 * erfc(gain / error / sqrt(2.0));
}

/* Those behind the best that have won, each in a slot of its own: what they gained is known, though not beside each other. */
static void list_runners(policy_trials *self)
{
    uint64_t taken = UINT64_C(1) << self->forks[1].slot;
    int n = 0;

    for (int i = 2; i < self->n && n < self->settings.n_seeds - 1; i++) {
        const esper_fork *fork = &self->forks[i];

        if (!has_won(self, fork) || (taken & UINT64_C(1) << fork->slot) != 0)
            continue;
        taken |= UINT64_C(1) << fork->slot;
        memmove(&self->memory.runners[1], &self->memory.runners[0], (size_t)n * sizeof(trials_runner));
        self->memory.runners[0] = (trials_runner){fork->slot, fork->blueprint, fork->gain, fork->error};
        n++;
    }
    self->memory.n_runners = n;
}

/* The next that has won and still fits. */
static bool follow_up(policy_trials *self, const esper_policy_view *view, esper_decision *decision_out)
{
    esper_mask mask;

    esper_mask_build(view, &mask);
    while (self->memory.n_runners > 0) {
        const trials_runner *runner = &self->memory.runners[--self->memory.n_runners];
        esper_fork fork = {
            .slot = runner->slot, .blueprint = runner->blueprint, .gain = runner->gain, .error = runner->error};

        if (runner->slot >= view->n_slots || !mask.slots[ESPER_SLOT_OP_GERMINATE][runner->slot] ||
            (view->slots[runner->slot].blueprints & 1u << runner->blueprint) == 0)
            continue;
        self->ground.vouch(self->ground.context, &fork);
        germinate(fork.slot, fork.blueprint, fork.gain, fork.error, decision_out);
        esper_decision_because(decision_out, ESPER_REASON_TRIAL_WON,
                               "Next in the trial before, in %s: loss %.4f below the fork without a seed (error %.4f)",
                               view->slots[fork.slot].id, fork.gain, fork.error);
        return true;
    }
    return false;
}

/* The best fork, if it has won. */
static void answer(policy_trials *self, const esper_policy_view *view, esper_decision *decision_out)
{
    const esper_fork *best = &self->forks[1];

    self->memory.n_runners = 0;
    if (!has_won(self, best)) {
        esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
        esper_decision_because(decision_out, ESPER_REASON_TRIAL_LOST,
                               "Of %d tried none pays: the best gained %.4f (error %.4f) in %u steps", self->n - 1,
                               best->gain, best->error, best->n_steps);
        return;
    }
    list_runners(self);
    germinate(best->slot, best->blueprint, best->gain, best->error, decision_out);
    esper_decision_because(decision_out, ESPER_REASON_TRIAL_WON,
                           "Best of %d tried in %s: loss %.4f below the fork without a seed (error %.4f) in %u steps",
                           self->n - 1, view->slots[best->slot].id, best->gain, best->error, best->n_steps);
}

/* Nothing is tried as long as no other seed is kept: less is left later, and it costs more. */
static void give_up(policy_trials *self, int n_candidates, esper_decision *decision_out)
{
    self->memory.is_done = 1;
    esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
    if (n_candidates == 0)
        esper_decision_because(decision_out, ESPER_REASON_NO_BLUEPRINT, "No seed fits any more");
    else if (self->memory.spent > 0.0)
        esper_decision_because(decision_out, ESPER_REASON_LATE, "What is left for trials does not pay for one");
    else
        esper_decision_because(decision_out, ESPER_REASON_LATE,
                               "Too short a run for a trial of %d seeds: more --epochs, or fewer --blueprints or "
                               "--slots, would pay for one",
                               n_candidates);
}

static esper_status try_seeds(policy_trials *self, const esper_policy_view *view, int n_kept,
                              esper_decision *decision_out)
{
    uint64_t tried = self->memory.tried;
    trial_plan plan;
    double spent;

    ESPER_TRY(plan_trial(self, view, n_kept, &plan));
    if (plan.n_rounds > 0) {
        ESPER_TRY(hold(self, plan.n_rounds, plan.funds));
        ESPER_TRY(self->ground.record(self->ground.context, self->forks, self->n));
        answer(self, view, decision_out);
        for (int i = 1; i < self->n; i++)
            tried |= UINT64_C(1) << self->forks[i].slot;
        spent = spent_on_forks(self);
        self->memory.tried = tried;
        self->memory.spent += spent;
        self->memory.n_steps = self->forks[1].n_steps;
        self->memory.next = view->share + spent / view->budget + rest;
        self->memory.is_done = 0;
    } else
        give_up(self, plan.n_candidates, decision_out);
    if (!is_on_probation(view)) /* else what has lost is still to be looked at in the network that was changed */
        self->memory.n_kept = n_kept;
    return ESPER_OK;
}

/* A seed on probation that has shown what hangs on it; or has shown, at the last moment, that nothing does. */
static bool conclude(const esper_policy_view *view, esper_decision *decision_out)
{
    esper_mask mask;

    esper_mask_build(view, &mask);
    for (int s = 0; s < view->n_slots; s++) {
        const esper_policy_slot *slot = &view->slots[s];
        bool bounded = slot->contribution_epochs >= ESPER_GATE_MIN_BOUND_EPOCHS;

        if (slot->stage != ESPER_STAGE_HOLDING || !bounded)
            continue;
        if (slot->contribution_low >= ESPER_GATE_MIN_CONTRIBUTION && mask.slots[ESPER_SLOT_OP_FOSSILIZE][s]) {
            esper_decision_init(decision_out, ESPER_SLOT_OP_FOSSILIZE);
            esper_decision_because(decision_out, ESPER_REASON_CONTRIBUTES,
                                   "Without it accuracy is %.2f lower, at least %.2f", slot->contribution,
                                   slot->contribution_low);
        } else if (slot->contribution_high < 0.0 && mask.slots[ESPER_SLOT_OP_PRUNE][s]) {
            esper_decision_init(decision_out, ESPER_SLOT_OP_PRUNE);
            esper_decision_because(decision_out, ESPER_REASON_NO_CONTRIBUTION,
                                   "Without it accuracy is not lower: %.2f at most", slot->contribution_high);
        } else
            continue;
        decision_out->slot = s;
        return true;
    }
    return false;
}

static esper_status decide(esper_policy *policy, const esper_policy_view *view, esper_decision *decision_out)
{
    policy_trials *self = (policy_trials *)policy;
    bool late = view->max_epochs > 0 && view->epoch >= view->max_epochs, is_done;
    int n_kept = 0;

    for (int s = 0; s < view->n_slots; s++)
        n_kept += view->slots[s].stage == ESPER_STAGE_FOSSILIZED;
    if (!late && follow_up(self, view, decision_out))
        return ESPER_OK;
    is_done = self->memory.is_done != 0 && (n_kept == self->memory.n_kept || is_on_probation(view));
    if (!late && !is_done && view->share >= self->memory.next)
        return try_seeds(self, view, n_kept, decision_out);
    if (conclude(view, decision_out))
        return ESPER_OK;
    esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
    if (late)
        esper_decision_because(decision_out, ESPER_REASON_LATE, ESPER_TRIALS_OVER);
    else if (!is_done)
        esper_decision_because(decision_out, ESPER_REASON_EARLY,
                               "The next trial comes when %.1f %% of the run is spent", 100.0 * self->memory.next);
    else
        esper_decision_because(decision_out, ESPER_REASON_NO_BLUEPRINT, ESPER_TRIALS_DONE);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status open_trials(const esper_policy_setup *setup, esper_policy **policy_out)
{
    policy_trials *self = esper_mem_alloc(sizeof(*self));

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "trials");
    assert(setup->trials != NULL && setup->ground != NULL);
    self->base.ops = &esper_policy_trials;
    self->settings = *setup->trials;
    self->ground = *setup->ground;
    self->memory.next = self->settings.first;
    *policy_out = &self->base;
    return ESPER_OK;
}

static size_t pack(const esper_policy *policy, void *memory)
{
    const policy_trials *self = (const policy_trials *)policy;

    if (memory != NULL)
        memcpy(memory, &self->memory, sizeof(self->memory));
    return sizeof(self->memory);
}

static esper_status unpack(esper_policy *policy, const void *memory, size_t bytes)
{
    policy_trials *self = (policy_trials *)policy;
    trials_memory found;

    if (bytes != sizeof(found))
        return ESPER_FAIL(ESPER_E_FORMAT, "%zu bytes, where trials remember %zu", bytes, sizeof(found));
    memcpy(&found, memory, sizeof(found));
    if (!(found.spent >= 0.0 && found.n_steps >= 0.0) || isnan(found.next) || found.n_kept < 0 || found.is_done < 0 ||
        found.is_done > 1 || found.n_runners < 0 || found.n_runners >= ESPER_TRIAL_MAX_SEEDS)
        return ESPER_FAIL(ESPER_E_FORMAT, "trials remember what cannot be");
    for (int i = 0; i < found.n_runners; i++)
        if (found.runners[i].slot < 0 || found.runners[i].slot >= ESPER_POLICY_MAX_SLOTS ||
            found.runners[i].blueprint < 0 || found.runners[i].blueprint >= ESPER_POLICY_BLUEPRINTS)
            return ESPER_FAIL(ESPER_E_FORMAT, "trials remember a seed that cannot be");
    self->memory = found;
    return ESPER_OK;
}

const esper_policy_ops esper_policy_trials = {
    .name = "trials",
    .about = "forks the run, trains a fork with each seed that may grow, and keeps what pays",
    .open = open_trials,
    .decide = decide,
    .pack = pack,
    .unpack = unpack,
};
