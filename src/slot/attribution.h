/* Internal. Who is to thank: which coalitions of seeds an epoch's validation has to look at, how much of it the budget
 * allows, and what follows for each seed. Pure logic on the slot table and on plain readings; who runs networks is
 * engine/evaluator.h.
 *
 * The participants are the seeds that carry weight and are still on probation. A coalition is the network with some of
 * them out, or with one seed in training blended in on trial. For few participants every coalition is looked at once, and
 * contribution, synergy and Shapley value are all read from the same table:
 *
 *     participants a, b:   {} {a} {b} {a,b} = the network itself, which needs no coalition
 *     contribution a       {a,b} - {b}
 *     synergy a, b         {a,b} - {a} - {b} + {}
 *     Shapley a            (({a} - {}) + ({a,b} - {b})) / 2 */
#ifndef ESPER_SLOT_ATTRIBUTION_H
#define ESPER_SLOT_ATTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

#include "slot/slots.h"

enum {
    ESPER_ATTRIBUTION_EXACT = 4, /* up to so many participants every coalition may be looked at */
    ESPER_ATTRIBUTION_PAIRS = ESPER_ATTRIBUTION_EXACT * (ESPER_ATTRIBUTION_EXACT - 1) / 2,
    /* all but the whole of 4, and a trial in every other slot: no other table asks for more */
    ESPER_MAX_COALITIONS = (1 << ESPER_ATTRIBUTION_EXACT) - 1 + ESPER_MAX_SLOTS - ESPER_ATTRIBUTION_EXACT,
};

/* ------------------------------------------------------------------------------------------------ what to look at */

typedef struct esper_attribution_options {
    bool include_fossils; /* seeds that stay for good take part, too */
    int  max_shapley;     /* most participants of which all coalitions are looked at; above 4 counts as 4 */
} esper_attribution_options;

/* No fossils; 4. */
void esper_attribution_options_init(esper_attribution_options *options);

typedef struct esper_coalition {
    uint8_t  presence[ESPER_MAX_SLOTS]; /* esper_presence, by index of the table */
    uint32_t on;                        /* bits 1u << rank in the list of participants: those that are not out */
    int32_t  trial;                     /* index of the slot whose seed is on trial; -1 = none */
} esper_coalition;

typedef struct esper_attribution_plan {
    int             n_participants;
    int             participant[ESPER_MAX_SLOTS]; /* indices, in the table's order */
    bool            exact;                        /* every coalition of them is in the list */
    int             n_coalitions;
    esper_coalition coalition[ESPER_MAX_COALITIONS]; /* no two are equal */
} esper_attribution_plan;

/* options NULL: the usual ones. */
void esper_attribution_plan_make(const esper_slots *slots, const esper_attribution_options *options,
                                 esper_attribution_plan *plan_out);

/* ------------------------------------------------------------------------------------------------ its price */

#define ESPER_ATTRIBUTION_SHARE 0.25
enum { ESPER_ATTRIBUTION_MIN_SAMPLES = 1024 };

typedef struct esper_attribution_cost {
    double   training_flops; /* of the epoch, forward and backward */
    double   share;          /* of them that attribution may take */
    double   variant_flops;  /* of one sample, all coalitions together */
    uint32_t batch, n_batches; /* of validation: samples in one, and how many there are */
    uint32_t min_samples;    /* fewer tell too little; where there are fewer, all of them */
} esper_attribution_cost;

typedef struct esper_attribution_pace {
    uint32_t n_slice; /* batches, from the first on; 0 = none at all */
    uint32_t every;   /* epochs: 1 = each; 0 = never */
} esper_attribution_pace;

/* The largest slice that keeps the budget; when the smallest is too dear, that one and less often. A share of 0 or less,
 * or readings that are no numbers, are never. More share never means fewer batches per epoch,
 * nor do cheaper coalitions. */
esper_attribution_pace esper_attribution_budget(const esper_attribution_cost *cost);

/* Whether an epoch is one to look at. */
bool esper_attribution_is_due(esper_attribution_pace pace, uint32_t epoch);

/* ------------------------------------------------------------------------------------------------ what follows */

/* Of one coalition, against the network as it is, paired by sample. */
typedef struct esper_attribution_reading {
    double   difference; /* accuracy of the network - of the coalition, points */
    double   error;      /* standard error of that */
    double   accuracy;   /* of the coalition, percent */
    uint64_t n_samples;
} esper_attribution_reading;

typedef struct esper_estimate {
    double value, error; /* points; NaN = not measured */
} esper_estimate;

typedef struct esper_synergy {
    int    first, second; /* indices of the table */
    double value;         /* points, all others out */
} esper_synergy;

/* By index of the table where there is a list of slots. */
typedef struct esper_attribution {
    esper_estimate contribution[ESPER_MAX_SLOTS]; /* what the network would lose without the seed */
    esper_estimate trial[ESPER_MAX_SLOTS];        /* what it would gain by the seed at once */
    double         shapley[ESPER_MAX_SLOTS];      /* points; NaN = not measured. They add up to the total */
    esper_estimate total;                         /* what it would lose without any participant */
    int            n_synergies;
    esper_synergy  synergy[ESPER_ATTRIBUTION_PAIRS];
    uint64_t       n_samples; /* that the readings were taken over, the fewest of them; 0 = there are none */
} esper_attribution;

/* readings: (plan->n_coalitions), in the plan's order. A reading that is not finite makes what rests on it NaN, and nothing
 * else. */
void esper_attribution_take(const esper_attribution_plan *plan, const esper_attribution_reading *readings,
                            esper_attribution *attribution_out);

/* ------------------------------------------------------------------------------------------------ over epochs */

/* What several epochs' readings of one quantity say together. Plain, without holes: all zero is "never measured". */
typedef struct esper_bound {
    uint64_t n_epochs;
    double   sum, sum_squares;  /* of the readings */
    double   sum_error_squares; /* of their standard errors */
} esper_bound;

void esper_bound_reset(esper_bound *bound);
/* A reading that is not finite, or whose error is none, makes it never measured: what comes after begins anew. */
void esper_bound_add(esper_bound *bound, double value, double error);

/* NaN when never measured; the bounds ask for two epochs at least. One-sided, 95 %. */
double esper_bound_mean(const esper_bound *bound);
double esper_bound_lower(const esper_bound *bound);
double esper_bound_upper(const esper_bound *bound);

#endif
