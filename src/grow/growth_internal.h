/* Internal. What the parts of growth (grow/growth.h) share: growth.c opens and leads, growth_measure.c measures,
 * growth_memory.c remembers, growth_act.c does what was decided, growth_reward.c says what it was worth, growth_record.c writes it down, growth_replay.c holds it against a log, growth_inject.c spoils numbers for drills. */
#ifndef ESPER_GROW_GROWTH_INTERNAL_H
#define ESPER_GROW_GROWTH_INTERNAL_H

#include "policy/reward_step.h"
#include "engine/evaluator.h"
#include "grow/growth.h"

enum {
    GROWTH_POLICY_BYTES = 20480, /* room for what a policy remembers: a program may have it keep 16,383 bytes of text */
    GROWTH_MAX_EVENTS = 4 * ESPER_MAX_SLOTS,
    GROWTH_MAX_FAULTS = 64,
    GROWTH_PROBE_BATCHES = 8,
    GROWTH_FORK_EPOCHS = 6, /* that the answer of a trial stands for, while the network has the same seeds */
};

/* What is remembered of a slot's seed from epoch to epoch. */
typedef struct growth_seed {
    esper_bound bound;           /* of its contribution, while HOLDING */
    double      ratio;           /* smoothed; NaN = never measured */
    double      sample[3];       /* the epoch's last look at its gradients: norm, health, ratio */
    int32_t     vanishing, exploding;
    int32_t     sampled;         /* there was a look in this epoch */
    int32_t     number;          /* of the seed in this run */
} growth_seed;

/* The last trial that was asked for in a slot. */
typedef struct growth_fork {
    int32_t  blueprint; /* whose fork did best; 0 = there was none */
    int32_t  epoch;     /* in which it was held, from 1 */
    int32_t  n_seeds;   /* in the network then */
    int32_t  n_steps;   /* that its forks were trained for */
    double   gain, error;
    uint64_t seeds;     /* which they were: growth_seeds_now */
} growth_fork;

_Static_assert(ESPER_TRACKER_PACK_BYTES % 8 == 0 && sizeof(growth_fork) == 40, "a state has no holes");

/* Undone by a rollback. Plain memory. */
typedef struct growth_state {
    uint8_t             tracker[ESPER_TRACKER_PACK_BYTES];
    growth_seed         seed[ESPER_MAX_SLOTS];
    double              promise[ESPER_MAX_SLOTS]; /* of what probes of an empty slot found, smoothed; NaN = none yet */
    growth_fork         fork[ESPER_MAX_SLOTS];
    esper_reward_ledger ledger;
    uint64_t            decided; /* entries of the log when the last decision was in it */
    uint64_t            refused; /* 1: it was not carried out */
    uint64_t            policy_bytes;
    uint8_t             policy[GROWTH_POLICY_BYTES];
} growth_state;

/* Not undone. */
typedef struct growth_facts {
    uint64_t n_logged;   /* entries of the decision log */
    uint64_t n_injected;
    uint64_t went_back;  /* entries of the log when the run last went back, and 1; 0 = never */
    int64_t  n_seeds;    /* that have germinated */
    int64_t  n_auto_pruned; /* seeds the governor removed since the last decision */
    int64_t  n_segment;     /* decisions since the run began or went back */
    int64_t  ledger_open;   /* 0: the next view begins it; accounts do not outlive what they were paid for */
    double   earned, earned_segment; /* rewards: of all of them, and of those */
    int64_t  counted; /* 0: the checkpoint was of a version that does not count rows, and `rows` are not all of them */
    int64_t  rows[ESPER_FACT_N_TABLES]; /* told of the run, by table: what a store has of it */
    double   asked; /* share of the run that trials took which were asked for */
    double   flops; /* spent on training and attribution; last, as fault/test_grow_alloc.c compares all but that */
} growth_facts;

typedef struct growth_fault {
    uint64_t    step;
    char        where[ESPER_NAME_CHARS]; /* "host", "seed" or a tensor */
    int         role, fault;
    int         rank; /* it is spoiled there; -1 = on every rank */
} growth_fault;

/* What is found out about the network in this epoch, and what it takes to do so. */
typedef struct growth_measuring {
    esper_evaluator       *evaluator;
    esper_attribution_plan plan;
    esper_attribution      found;
    bool                   measured;    /* found is of this epoch */
    double                 probation;   /* points that would be lost without any seed on probation; NaN = not measured */
    int                    n_probation; /* seeds on probation that carry weight */
    double                 step_flops, sample_flops; /* of the present program */
    uint64_t               counted_program;
    double                 probed[ESPER_MAX_SLOTS]; /* squared gradient of a probe there; NaN = none was made */
    esper_plan            *probe_plan;
    esper_net              probe_net;
    uint64_t               probe_program;
    float                 *buffers; /* on the backend: copy of the norm buffers around a probe */
} growth_measuring;

/* Who decides, what is shown, what was decided and what became of it. */
typedef struct growth_deciding {
    esper_policy           *policy;
    bool                    tries;   /* trials decide */
    bool                    follows; /* a program decides, and rank 0 alone asks it: state.policy is what that remembers */
    esper_tracker           tracker;
    const esper_decision_history *history;
    uint64_t                n_replayed; /* entries of the history behind us */
    esper_policy_view       view;
    esper_policy_slot       views[ESPER_MAX_SLOTS];
    esper_decision          decision;
    bool                    accepted;
    char                    refusal[256];
    esper_gate_result       gates[ESPER_MAX_SLOTS];
    int64_t                 blueprint_params[ESPER_MAX_SLOTS][ESPER_POLICY_BLUEPRINTS];
    int64_t                 gate_params[ESPER_MAX_SLOTS];
    double                  params_before[ESPER_MAX_SLOTS], flops_before[ESPER_MAX_SLOTS]; /* as views have them */
    double                  host_flops; /* of a sample; with the next two counted where max_flops is set */
    double                  blueprint_flops[ESPER_MAX_SLOTS][ESPER_POLICY_BLUEPRINTS];
    double                  gate_flops[ESPER_MAX_SLOTS];
    esper_trial_settings    trials;       /* as they are held, by the policy that does or where one is asked for */
    double                  trial_flops[ESPER_MAX_SLOTS][ESPER_POLICY_BLUEPRINTS]; /* of a sample, of what is tried */
    esper_reward_config     reward_config;
    bool                    has_twin;
    double                  params_begun, flops_begun; /* of the network as it was added; the latter of a training step */
    double                  flops_seen;   /* of a training step in the epoch that the view is of */
    double                  flops_beside; /* of trials and births since that view */
    esper_reward            reward; /* of the last decision */
} growth_deciding;

/* What is written down, and where. */
typedef struct growth_recording {
    esper_growth_records records;
    esper_decision_log  *log; /* NULL: none is kept */
    esper_epoch_record   record; /* of this epoch */
    esper_slot_event     event_room[GROWTH_MAX_EVENTS];
    esper_slot_events    events;
} growth_recording;

/* Faults that were asked for. */
typedef struct growth_drills {
    growth_fault faults[GROWTH_MAX_FAULTS];
    int          n_faults;
    esper_status status;    /* a drill cannot fail where it stands: the end of the epoch does */
    char         text[512]; /* and says so */
} growth_drills;

struct esper_growth {
    esper_network   *network;
    growth_state     state;
    growth_facts     facts;
    growth_measuring measuring;
    growth_deciding  deciding;
    growth_recording recording;
    growth_drills    drills;
    /* what end_epoch goes back to when it fails */
    esper_slots      slots_before;
    growth_state     state_before;
    growth_facts     facts_before;
    uint64_t         spent_before;
    esper_fork       trial_won; /* the best of the last trial, or the one that joined by it last; slot -1: there was none */
    int              n_tried;   /* candidates of the trial at this end of an epoch; 0: none was held */
    int              n_trying;  /* those of the round under way; 0: there is none */
    esper_follower   follower;  /* of the last validation: it follows trials too, as steps of the training split */
};

/* growth_memory.c */
void         growth_gather(esper_growth *growth); /* the state as it is now: tracker and policy live outside of it */
esper_status growth_spread(esper_growth *growth); /* back to them */
void         growth_take_facts(esper_growth *growth, const growth_facts *facts); /* of another time, in place of those of now */
void         growth_join(esper_growth *growth);   /* what is remembered goes where the network's state goes; until leave */
void         growth_leave(esper_growth *growth);

/* growth_measure.c */
void         growth_count_flops(esper_growth *growth);
void         growth_charge(esper_growth *growth, double flops); /* of what is measured, on the run's account */
bool         growth_wants_gradients(void *context);
void         growth_watch_gradients(void *context, const esper_row *row, const esper_guard_report *report);
void         growth_take_readings(esper_growth *growth, const esper_epoch_record *record);
esper_status growth_probe(esper_growth *growth);
double       growth_evidence(const esper_growth *growth, int slot); /* what a seed there promises; NaN = not known */
esper_slot_merits growth_merits(const esper_growth *growth, int slot);

/* growth_act.c */
uint32_t     growth_last_epoch(const esper_network *network); /* that there is time to grow in */
void         growth_make_view(esper_growth *growth, const esper_epoch_record *record, esper_policy_view *view_out);
esper_status growth_act(esper_growth *growth);
esper_status growth_rebuild(esper_growth *growth);
/* The germination that a decision asks for, in a slot of the network's or of a copy of its table. events may be NULL. */
esper_status growth_put_seed(const esper_growth *growth, esper_slot *slot, const esper_decision *decision,
                             esper_slot_events *events);

/* growth_trial.c */
esper_trial_ground growth_trial_ground(esper_growth *growth);
double       growth_trials_left(const esper_growth *growth); /* share of the run; 0: none may be asked for */
double       growth_trial_share(const esper_growth *growth, int slot, uint32_t blueprints); /* of one, about; 0: none fits */
uint64_t     growth_seeds_now(const esper_growth *growth); /* another number where seeds have come or gone */
/* Holds the trial that a decision asks for, where it may. Its forks are in the log when it returns. */
esper_status growth_try(esper_growth *growth, const esper_decision *decision);

/* growth_reward.c */
void         growth_begin_ledger(esper_growth *growth); /* where it is not open: with the view of now */
esper_status growth_pay(esper_growth *growth, bool last);
bool         growth_is_paid(const esper_growth *growth); /* its rewards can be reckoned */
void         growth_forfeit(esper_growth *growth); /* the run went back, or was stopped */

/* growth_replay.c */
esper_status growth_next_entry(esper_growth *growth, int source, const esper_log_entry **entry_out);
esper_status growth_next_decision(esper_growth *growth,
                                  const esper_log_entry **entry_out); /* behind forks that it asked for */
esper_status growth_check_entry(esper_growth *growth, const esper_log_entry *entry);

/* growth_record.c */
esper_status growth_log(esper_growth *growth, const esper_log_entry *entry);
esper_status growth_log_decision(esper_growth *growth, uint32_t epoch);
esper_status growth_log_fork(esper_growth *growth, const esper_fork *fork);
void         growth_record_epoch(esper_growth *growth, const esper_epoch_record *done);
void         growth_record_events(esper_growth *growth, uint32_t epoch);
void         growth_record_injection(esper_growth *growth, const esper_log_entry *entry); /* that was just logged */
esper_status growth_log_governor(void *context, const esper_incident *incident);

/* growth_inject.c */
esper_status growth_read_faults(esper_growth *growth, const char *text);
void         growth_drill(void *context, esper_network *network, esper_drill_point point);

#endif
