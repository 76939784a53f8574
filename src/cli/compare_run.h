/* Internal. The runs of comparisons, carried out: as processes, each an `esper grow` of this same program, so that one that crashes
 * ends nothing else (compare_run.c); or side by side in this one, as lanes of one backend, which is what a GPU is for
 * (compare_together.c). Either way a run has a directory of its own, and what it left there is its result. */
#ifndef ESPER_CLI_COMPARE_RUN_H
#define ESPER_CLI_COMPARE_RUN_H

#include <signal.h>
#include <stdio.h>

#include "run/compare.h"

enum { ESPER_COMPARE_MAX_JOBS = 256 };

/* A comparison, and where its runs are kept. */
typedef struct esper_compare_part {
    esper_compare *compare;
    char           dir[ESPER_PATH_CHARS]; /* each run has a directory and a log there */
    char           label[32];             /* before the names of its runs, where there are several parts: "x0.5/"; else "" */
} esper_compare_part;

typedef struct esper_compare_desc {
    esper_compare_part          *parts; /* (n_parts) of one task, and the same seeds */
    int                          n_parts;
    int                          jobs;     /* runs at a time, at most */
    int                          threads;  /* of all of them together; of one alone: as configured */
    bool                         together; /* in this process */
    FILE                        *progress;
    const volatile sig_atomic_t *stop; /* becomes non-zero: runs save and leave, and so does this */
} esper_compare_desc;

/* Until every run is over, or stop. What was run there before is taken as it is, what was begun goes on. E_CONFIG: a run there
 * is of another configuration, or the configuration is refused by the first run. E_DEVICE: a device was lost under runs that
 * share it, which can go on. */
esper_status esper_compare_run_all(const esper_compare_desc *desc);

#endif
