/* Internal. Growth: what happens to a network's seeds at the end of every epoch, and between.
 *
 *     validate ── accuracy of the network, and of every coalition of its seeds that is needed
 *        └─> judged by the governor (guarded.h); if it goes back, the rest of this does not happen
 *     end_epoch ── slots take the readings ──> policy ──> decision log ──> the operation, through its gate ──> ticks
 *        └─> the reward; the network is built anew where its structure changed
 *
 * Two kinds of memory. State (signals, bounds, what the policy remembers) goes into snapshots and is undone with the steps
 * since; facts (entries in the log, faults injected, FLOPs spent) are not. Both go into checkpoints. Everything is decided by
 * readings, so seed and decision log make a run again. */
#ifndef ESPER_GROW_GROWTH_H
#define ESPER_GROW_GROWTH_H

#include "policy/policy.h"
#include "policy/reward.h"
#include "policy/tracker.h"
#include "slot/attribution.h"
#include "telemetry/fact.h"
#include "grow/decision_log.h"
#include "engine/guarded.h"

typedef struct esper_growth esper_growth;

/* Whether policy, blueprints and decisions go together, as far as that can be said before there is a network. E_CONFIG names the
 * key. */
esper_status esper_growth_check_config(const esper_config *config, esper_topology topology);

/* Opens the policy that the network's configuration names and becomes the network's companion; the network is borrowed, and
 * one for growing. With `history` (borrowed) decisions come from there: a replay, in which every entry has to come again in
 * its order and with its weights. One that does not is E_STATE; past the last one everything is E_STOPPED. `inject`: faults for
 * a drill; NULL: those of the configuration. Comes before the guard is opened. */
esper_status esper_growth_open(esper_network *network, const esper_decision_history *history, const char *inject,
                               esper_growth **growth_out);
void         esper_growth_close(esper_growth *growth);

/* Where a growth writes what it does. Members may be NULL. Borrowed until close. */
typedef struct esper_growth_records {
    const char  *decisions; /* path of the decision log */
    bool         resume;    /* the log is there already: it is cut back to what this growth remembers */
    esper_bus   *bus;       /* for facts */
} esper_growth_records;

/* Takes part in a guarded training from now on. */
esper_status esper_growth_attach(esper_growth *growth, const esper_growth_records *records);

/* One line of a run's history. Accuracies in percent. */
typedef struct esper_epoch_record {
    uint32_t epoch; /* from 1, as people count */
    double   loss_train, acc_train, loss_valid, acc_valid;
    double   acc_twin; /* on validation, of the same network that got nothing; NaN = there is no such twin */
    double   lr, grad_norm;
    double   samples_per_s; /* training alone */
    double   seconds;       /* training and validation */
} esper_epoch_record;

/* The same as a fact, with what can be told before it is decided what follows. */
esper_fact esper_epoch_fact(const esper_network *network, const esper_epoch_record *done);

/* Whether the faults on purpose could be written down, to be asked after a step. What could not was not done, and the run would go
 * elsewhere than the one that it can. */
esper_status esper_growth_check_drills(const esper_growth *growth);

/* Writes what of the decision log waits for room on the disk; to be asked before anything is saved that rests on it. E_IO: there is
 * none yet. */
esper_status esper_growth_write_log(esper_growth *growth);

/* Somebody who knows only when all passes of a validation are done whether the network was in a state to be validated: if it was not,
 * nothing comes of it. */
typedef struct esper_growth_settler {
    void *context;
    esper_status (*settle)(void *context, bool *good_out);
} esper_growth_settler;

/* Validates the network as it is and measures its seeds. Changes nothing that counts. E_STOPPED as
 * esper_network_evaluate. settler: or NULL */
esper_status esper_growth_validate(esper_growth *growth, const esper_follower *follower,
                                   const esper_growth_settler *settler, esper_tally *tally_out);

/* The epoch was good: takes its readings, decides, acts. A failure (the policy's, the log's) leaves slots and state as they
 * were before the call, so that a checkpoint made then asks again. */
esper_status esper_growth_end_epoch(esper_growth *growth, const esper_epoch_record *record);

/* The same in two parts, for those who decide elsewhere: what a policy is to see (borrowed until the next call), then what is to
 * be done about it. `last`: the episode ends here, and with it what rewards are paid for. A failure of either leaves things as
 * they were before the first. */
esper_status esper_growth_observe(esper_growth *growth, const esper_epoch_record *record,
                                  const esper_policy_view **view_out);
esper_status esper_growth_decide(esper_growth *growth, const esper_decision *decision, bool last);

/* What the policy that was opened with the growth says about the view. */
esper_status esper_growth_ask(esper_growth *growth, esper_decision *decision_out);

/* What the governor asks for after it went back with PRUNE: removes all seeds that are not kept. For others nothing. */
esper_status esper_growth_heed(esper_growth *growth, const esper_incident *incident);

/* ------------------------------------------------------------------------------------------------ about it */

/* What happened at the last end of an epoch, and how seeds stand: for views. Borrowed until the next call. */
typedef struct esper_growth_look {
    const esper_slots       *slots;
    const esper_gate_result *gates;        /* by slot: the last asked; gate -1 = none of its present seed */
    const esper_estimate    *contribution; /* by slot: of the last validation */
    const esper_estimate    *trial;        /* by slot */
    const esper_slot_event  *events;       /* of the last end of an epoch, or of what the governor asked for since */
    int                      n_events;
    const esper_decision    *decision;
    bool                     accepted;     /* what was decided is done */
    const char              *refusal;      /* else why not */
    const esper_fork        *best;         /* candidate of the trial at the last end of an epoch; NULL: none was held */
    int                      n_tried;      /* candidates that it had */
    int                      n_trying;     /* those of the round of a trial that is under way; 0: there is none */
    bool                     may_grow;     /* somebody decides, and there is time left */
} esper_growth_look;

esper_growth_look esper_growth_look_at(const esper_growth *growth);

/* What several epochs say of a seed's contribution together, while it is HOLDING. */
esper_bound esper_growth_bound_of(const esper_growth *growth, int slot);

/* Records come with acc_twin: rewards that go by gain can be reckoned. */
void esper_growth_expect_twin(esper_growth *growth);

/* What the last decision was worth, by the settings `reward` and `reward_weights`. */
const esper_reward *esper_growth_reward(const esper_growth *growth);

/* What it has cost and brought so far. */
typedef struct esper_growth_account {
    double   flops_train;  /* spent on training, attribution included */
    double   flops_sample; /* of a forward pass of one sample now */
    double   flops_host;   /* of one through the host alone, without seeds */
    double
        total_reward; /* of all decisions: once the run went back, or was stopped, what had been earned since the last time
                              is forfeited, and a penalty is due. NaN: it goes by gain, and there is no twin */
    uint64_t n_logged;      /* entries of the decision log */
    uint64_t n_waiting;     /* of them, those that wait for room on the disk */
    const int64_t *
        rows; /* (ESPER_FACT_N_TABLES) told of it when it was last saved or kept, by table; the growth's own. NULL: not known */
    uint64_t n_faults_left; /* that were asked for and have not been injected */
    bool     is_replayed;   /* of a replay: every entry of the history has come again */
} esper_growth_account;

esper_growth_account esper_growth_account_of(const esper_growth *growth);

/* FLOPs of training that were spent before it was opened, for the account. */
void esper_growth_count_before(esper_growth *growth, double flops);

/* Reads the two settings. E_CONFIG names the key. */
esper_status esper_growth_reward_config(const esper_config *config, esper_reward_config *reward_out);

enum { ESPER_GROWTH_HINT_CHARS = 256 };

/* Whether the epochs are too few for any seed to be kept, and what to do about it; "" = they are not. */
const char *esper_growth_foresee(const esper_config *config, char text[ESPER_GROWTH_HINT_CHARS]);

#define ESPER_GROWTH_PENALTY (-10.0) /* for a decision that the governor had to undo */

/* Of the host and of every seed in a slot, also of one that has germinated and does not train yet. */
int64_t esper_growth_params(const esper_growth *growth);

/* A hash of the last decision and what became of it: ranks compare it. */
uint64_t esper_growth_verdict(const esper_growth *growth);

/* Who decides, for records: "heuristic", "a program", "learned 0123456789abcdef best.safetensors". */
const char *esper_growth_decider(const esper_growth *growth);

/* The seeds that are kept, as the setting `plant` takes them. */
void esper_growth_kept(const esper_growth *growth, char text[ESPER_CONFIG_TEXT_CHARS]);

#endif
