/* Internal. What there is to see of a run that grows, as plain data: filled by the run, shown by a view. Texts and slots are
 * borrowed for the call. A real that was not measured is NaN. Accuracies are percentages, differences of them points. */
#ifndef ESPER_GROW_GROWTH_VIEW_H
#define ESPER_GROW_GROWTH_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "slot/slot.h"

/* One slot. */
typedef struct esper_growth_slot {
    const esper_slot *slot;
    esper_gate_result gate; /* the last one asked; gate.gate -1 = none yet */
    double dependence, dependence_low, dependence_high; /* points of accuracy that the network loses without its seed */
    double would_add; /* points that a seed which trains aside would bring at once */
    double gradient_ratio;
} esper_growth_slot;

/* What a policy decided last. */
typedef struct esper_growth_decision {
    const char *op;     /* "germinate"; NULL = nothing yet */
    const char *slot;   /* "r0c1"; NULL or "" = none */
    const char *reason; /* in words; NULL or "" = none */
    bool        refused;
    const char *refusal; /* why; NULL or "" = not said */
} esper_growth_decision;

/* A run in the middle of an epoch, or at its end. */
typedef struct esper_growth_view {
    uint32_t    epoch, max_epochs; /* from 1; max_epochs 0 = open end */
    bool        foretold;          /* max_epochs is what follows if nothing grows any more */
    double      share;             /* of the run that is spent, 0 to 1 */
    double      part;              /* of what it does now, 0 to 1 */
    const char *doing;             /* "training", "validating", ...; NULL = training */

    double  loss_train, acc_train; /* of this epoch so far */
    double  loss_valid, acc_valid; /* of the last validation */
    double  acc_best;              /* of all validations */
    int64_t params_total, params_host;

    const esper_growth_slot *slots; /* (n_slots), in the policy's order */
    int                      n_slots;
    esper_growth_decision    decision;

    uint64_t n_rollbacks, n_skips;
    double   lr, samples_per_s;
    double   seconds;      /* that the epoch took, at its end */
    double   seconds_left; /* < 0 or NaN = not known */
} esper_growth_view;

/* A network at the end of its run. */
typedef struct esper_growth_side {
    double  acc_test;
    int64_t params;
    double  flops_per_sample; /* of a forward pass */
    double  flops_training;   /* in all, what was measured and tried included */
    double  seconds;
    double  flops_trials; /* the part that trials took; 0: there were none */
} esper_growth_side;

/* A seed that has lived. */
typedef struct esper_growth_seed {
    const char *slot, *blueprint;
    int64_t     params;
    int         stage;                       /* esper_stage at the end: FOSSILIZED, PRUNED, or where it stands */
    int         germinated, ended;           /* epochs, from 1; 0 = never. ended: fossilized or pruned */
    double      share;                       /* of the run that was spent when it germinated */
    double      gain, gain_error;            /* nats that its fork won over the one that got nothing; NaN: it had no trial */
    int         n_candidates;                /* of that trial */
    double      dependence, dependence_low, dependence_high; /* points of accuracy lost without it, measured last */
    const char *reason;                      /* why it was kept or removed; NULL or "" = none */
} esper_growth_seed;

typedef struct esper_growth_closing {
    esper_growth_side        grown;
    bool                     has_static; /* the fixed host was trained too */
    esper_growth_side        fixed;
    const esper_growth_seed *seeds; /* (n_seeds), by birth */
    int                      n_seeds;
    const char *why_none; /* where there are none: the reason that was decided by; NULL or "" = not known */
} esper_growth_closing;

#endif
