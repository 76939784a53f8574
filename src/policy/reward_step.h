/* Internal. The reward of one step of a run with any number of seeds, out of the terms of a mode (reward.h), and the ledger
 * that one environment keeps for it over an episode.
 *
 * Every seed earns and costs in every step, whichever slot was decided on; the operation's own terms go to its slot. A step
 * is settled after the operation was tried and the slots have ticked:
 *
 *   shaping      weight (gamma Phi(after this step) - Phi(after the last)), of each slot; Phi of an episode's end is 0. So an
 *                episode's discounted shaping is 0 whatever was done: it moves rewards in time, and adds none.
 *   gates        a bonus for a fossil is paid when the gate let it pass
 *   accounts     are frozen by a prune until the slot is empty; at the end, what is on probation is taken back
 *   hindsight    a partner that helped a kept seed is paid in the same step; one entry for each pair, dropped with its seed
 *   gain         of the accuracy over the twin's, of the parameters and of all FLOPs spent so far the change is paid; where the accuracy of an epoch is not
 *                known, the next that is makes up for it
 *   improvement  by all seeds is the loss without any of them; with one of them alone, which would be its contribution, the
 *                accuracy since it germinated */
#ifndef ESPER_POLICY_REWARD_STEP_H
#define ESPER_POLICY_REWARD_STEP_H

#include "base/fields.h"
#include "policy/reward.h"
#include "policy/view.h"

enum { ESPER_REWARD_MAX_SLOTS = 32 };

/* What is kept of one slot. */
typedef struct esper_reward_account {
    double            potential;       /* weighted, after the last step */
    double            alpha, params;   /* in the last step */
    double            accuracy_before; /* when its seed germinated; NaN = no seed */
    double            escrow;
    esper_reward_drip drip;            /* of its fossil; total 0 = none */
    double            boost[ESPER_REWARD_MAX_SLOTS]; /* by each partner, the last measured; 0 = none */
    int32_t           boosted[ESPER_REWARD_MAX_SLOTS]; /* epoch of that */
    int32_t           frozen, unused;  /* pruned: the account stays empty until the slot is */
} esper_reward_account;

/* Plain memory without holes: a copy is a snapshot. */
typedef struct esper_reward_ledger {
    esper_reward_account slot[ESPER_REWARD_MAX_SLOTS];
    double               accuracies[64]; /* the last ones, for the stable accuracy: epoch e at e % 64 */
    double               accuracy_first, loss; /* of the first step; of the last; NaN = none yet */
    double               gain, doublings, flop_doublings; /* that are paid for */
    double               flops, flops_begun;   /* of a step, added up over the epochs: as it was, and as the network began */
    int32_t              n_steps, n_fossils, n_contributing, unused;
} esper_reward_ledger;

extern const esper_field esper_reward_account_fields[],
    esper_reward_ledger_fields[]; /* of the latter all but its slots */

/* A pair of seeds that was measured. */
typedef struct esper_reward_pair {
    int    first, second; /* slots */
    double value;         /* synergy, points */
} esper_reward_pair;

/* What happened in a step. Everything is borrowed for the call. */
typedef struct esper_reward_facts {
    const esper_policy_view *view;   /* before the decision */
    int           op, slot;          /* as it came out: `wait` for what was not legal; slot -1 = none */
    bool          failed;            /* it was legal, and refused by a gate */
    const int    *stages, *epochs;   /* (n_slots) stage and epochs in it of each slot after the step; NULL: as in the view */
    bool          last;              /* the episode ends here */
    double        params_host, params_begun; /* of the host alone; of the network as it began, planted seeds included */
    double flops, /* of a step of training in the epoch of the view, with its part of what trials and births took */
        flops_begun; /* of a step of the network as it began; 0: not known */
    double        improvement;       /* points that would be lost without any seed on probation; NaN = not measured */
    int           n_measured;        /* seeds that take part in that */
    double        accuracy_committed; /* without seeds on probation; NaN: the accuracy */
    double        accuracy_twin;     /* of the same host that got nothing, now; NaN = not known */
    const esper_reward_pair *pairs;  /* (n_pairs) */
    int           n_pairs, n_auto_pruned;
} esper_reward_facts;

/* The episode begins in this view, or goes on there after a rollback: potentials are those of now, accounts are empty. What was
 * paid before a rollback is forfeited, so all of the gain is still to be paid for. */
void esper_reward_ledger_init(esper_reward_ledger *ledger, const esper_reward_config *config,
                              const esper_policy_view *view);

/* E_ARG: more slots than a ledger has. A reward is always finite: see n_bad. */
esper_status esper_reward_step(const esper_reward_config *config, const esper_reward_facts *facts,
                               esper_reward_ledger *ledger, esper_reward *reward_out);

#endif
