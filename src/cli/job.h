/* Internal. What the commands that run for long share. */
#ifndef ESPER_CLI_JOB_H
#define ESPER_CLI_JOB_H

#include "train/run.h"

/* From now on Ctrl-C and other polite signals set the flag: the run saves and leaves. A second one ends the program. */
const volatile sig_atomic_t *esper_job_listen(void);

/* Where a run that was stopped stands, and how to go on with it by `command`. */
void esper_job_report_stopped(const esper_run_result *result, const char *command);

#endif
