/* Internal. The runs of a comparison as processes: each is an `esper grow` of this same program, so that one that crashes ends
 * nothing else, and what it left in its directory is its result. */
#ifndef ESPER_CLI_COMPARE_RUN_H
#define ESPER_CLI_COMPARE_RUN_H

#include <signal.h>
#include <stdio.h>

#include "run/compare.h"

enum { ESPER_COMPARE_MAX_JOBS = 256 };

typedef struct esper_compare_desc {
    esper_compare               *compare;
    const char                  *dir;  /* each run has a directory and a log there */
    int                          jobs; /* runs at a time */
    int                          threads; /* of all of them together; of one alone: as configured */
    FILE                        *progress;
    const volatile sig_atomic_t *stop; /* becomes non-zero: runs save and leave, and so does this */
} esper_compare_desc;

/* Until every run is over, or stop. What was run there before is taken as it is, what was begun goes on. E_CONFIG: a run there
 * is of another configuration, or the configuration is refused by the first run. */
esper_status esper_compare_run_all(const esper_compare_desc *desc);

#endif
