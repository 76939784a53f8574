/* Internal. A frontier: what growing reaches beside static networks at many sizes and many budgets of training FLOPs.
 *
 * For each budget there is a comparison (run/compare.h) of
 *
 *     static networks    hosts of several sizes, each at several learning rates
 *     grown ones         the task's host, grown up to the parameters of each of these sizes, at the same rates
 *
 * so that both sides are tuned alike. Networks are chosen by their validation, read by their test: at a budget the best of each
 * side among those that keep within it. */
#ifndef ESPER_RUN_FRONTIER_H
#define ESPER_RUN_FRONTIER_H

#include "run/compare.h"

enum { ESPER_FRONTIER_MAX_BUDGETS = 16, ESPER_FRONTIER_MAX_VALUES = 16 };

/* What is asked for, as multiples: of the FLOPs, size and learning rate that the task has. */
typedef struct esper_frontier_desc {
    double      budgets[ESPER_FRONTIER_MAX_BUDGETS], sizes[ESPER_FRONTIER_MAX_VALUES], rates[ESPER_FRONTIER_MAX_VALUES];
    int         n_budgets, n_sizes, n_rates;
    const char *policy; /* that grows: "trials" */
} esper_frontier_desc;

/* A line of one of the comparisons, over its seeds. */
typedef struct esper_frontier_point {
    int                   budget, line;
    bool                  grown;
    esper_compare_summary summary;
} esper_frontier_point;

typedef struct esper_frontier {
    esper_compare        *budgets; /* n_budgets, from the smallest */
    double                times[ESPER_FRONTIER_MAX_BUDGETS];
    int                   n_budgets;
    esper_frontier_point *points; /* those with a good result, once esper_frontier_measure has been called */
    int                   n_points;
    int64_t               caps[ESPER_FRONTIER_MAX_VALUES]; /* parameters that grown networks may have, rising */
    int                   n_caps;
} esper_frontier;

/* "0.5,1,2" into rising numbers above 0. */
esper_status esper_frontier_read_list(const char *flag, const char *text, int most, double *values_out, int *n_out);

esper_status esper_frontier_init(esper_frontier *frontier, const esper_task *task, const esper_config *config,
                                 const esper_frontier_desc *desc, int64_t n_seeds);
void         esper_frontier_fini(esper_frontier *frontier);

/* "x0.5": what the directory of a budget's comparison is called. */
enum { ESPER_FRONTIER_NAME_CHARS = 32 };

const char *esper_frontier_name(const esper_frontier *frontier, int budget, char text[ESPER_FRONTIER_NAME_CHARS]);

/* Collects the points from what has been run. */
esper_status esper_frontier_measure(esper_frontier *frontier);

/* The best of one side, by validation, with at most so many parameters and of budgets up to that one; NULL: there is none. */
const esper_frontier_point *esper_frontier_best(const esper_frontier *frontier, bool grown, double params, int budget);

/* Grown less static at a limit, paired by seed. */
typedef struct esper_frontier_gap {
    const esper_frontier_point *grown, *fixed;
    esper_compare_spread        acc; /* n = 0: one of them is missing */
} esper_frontier_gap;

esper_frontier_gap esper_frontier_compare(const esper_frontier *frontier, double params, int budget);

/* At how many limits grown networks are on or above the static frontier, in the mean over seeds, and at how many above it: one that
 * kept no seed is the static host, and on it. */
typedef struct esper_frontier_share {
    int n, n_on, n_above;
} esper_frontier_share;

esper_frontier_share esper_frontier_by_params(
    const esper_frontier *frontier); /* at every size that occurs, all budgets open */
esper_frontier_share esper_frontier_by_flops(const esper_frontier *frontier);  /* at every budget, all sizes open */
esper_frontier_share esper_frontier_by_both(const esper_frontier *frontier);   /* every cap at every budget */

#endif
