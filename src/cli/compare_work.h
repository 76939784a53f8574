/* Internal. What is to be run of some comparisons and what came of it, whoever runs it: compare_run.c or compare_together.c. */
#ifndef ESPER_CLI_COMPARE_WORK_H
#define ESPER_CLI_COMPARE_WORK_H

#include "cli/compare_run.h"

typedef struct compare_work {
    const esper_compare_desc *desc;
    int                       n_runs;           /* of all parts */
    int                       n_begun, n_found; /* ended here; taken from before */
    int                       name_width;       /* of the longest name of a run */
    double                    began;
} compare_work;

/* A run whose turn has come. */
typedef struct compare_job {
    const esper_compare_part *part;
    esper_compare_run        *run;
    bool                      resume; /* it goes on from its checkpoint */
    esper_config              config;
} compare_job;

/* How it ended, as far as its store may not say. */
typedef struct compare_ending {
    bool stopped; /* on request */
    bool orderly; /* it came to its end, whatever that was: it did not crash */
    bool refused; /* what it was asked for */
    char why[ESPER_COMPARE_WHY_CHARS]; /* of a failure */
} compare_ending;

void compare_work_init(compare_work *self, const esper_compare_desc *desc);

/* The next run to begin or to go on with; what it left of an attempt that is of no use is removed. Runs whose result is there are
 * taken on the way. *found_out false: nothing can begin before another one has ended. */
esper_status compare_work_next(compare_work *self, compare_job *job_out, bool *found_out);

/* The configuration of a run that is under way. */
esper_status compare_work_configure(const compare_work *self, const esper_compare_part *part,
                                    const esper_compare_run *run, esper_config *config_out);

/* Takes its result, and tells it. *again_out: it could not go on from its checkpoint, and is to begin anew, as `job` says now. */
esper_status compare_work_end(compare_work *self, compare_job *job, const compare_ending *ending, bool *again_out);

/* A path in the part's directory: that of a run, or with ".log" its log. */
esper_status compare_work_path(const esper_compare_part *part, const esper_compare_run *run, const char *ending,
                               char path_out[ESPER_PATH_CHARS]);

/* The last complaint in a log: "esper: ..." */
void compare_work_complaint(const char *log, char why_out[ESPER_COMPARE_WHY_CHARS]);

int compare_work_left(const compare_work *self); /* runs that are not over */

#endif
