/* Internal. The static control of a grown run: its host, fixed, on the same seed and budget, in a directory inside the run's.
 * The two share a store. */
#ifndef ESPER_CLI_GROW_CONTROL_H
#define ESPER_CLI_GROW_CONTROL_H

#include "run/run.h"

#define ESPER_GROW_CONTROL_DIR "control"

typedef struct esper_grow_control_desc {
    const char                  *run_dir; /* of the grown run, which has ended */
    const esper_config          *asked;   /* threads, progress and log level are taken from here */
    const esper_log             *log;
    const volatile sig_atomic_t *stop;
} esper_grow_control_desc;

/* Trains it, goes on with it, or finds that it is done. *stopped_out: on request, before its end; it has been saved. *code_out becomes
 * that of a failure where the disk did not take all of it, which has been told then. */
esper_status esper_grow_control_run(const esper_grow_control_desc *desc, bool *stopped_out, int *code_out);

/* Whether a checkpoint is of a grown run of the task (NULL: of any) that has had all the epochs that `asked` (or, where that
 * says nothing, the run itself) wants, and has ended. */
esper_status esper_grow_is_done(const char *path, const esper_task *task, const esper_config *asked,
                                const esper_run_kin *kin, bool *done_out);

#endif
