/* Internal. What the commands that run for long share. */
#ifndef ESPER_CLI_JOB_H
#define ESPER_CLI_JOB_H

#include "run/run.h"

/* From now on Ctrl-C and other polite signals set the flag: the run saves and leaves. A second one ends the program. */
const volatile sig_atomic_t *esper_job_listen(void);

/* A long job: listens to signals, and is a rank where a launcher has started several. */
typedef struct esper_job {
    const volatile sig_atomic_t *stop;
    esper_comm                  *comm;
    const volatile sig_atomic_t *cut_off;
    int                          threads; /* of the machine's cores, this rank's share; 0 = all */
} esper_job;

/* Ranks beyond the first are silent from now on, but for failures. Below a launcher SIGTERM means that the job is over: nobody is
 * waited for. */
esper_status esper_job_open(esper_config *config, esper_job *job_out);
void         esper_job_close(esper_job *job);

/* Settings that cannot have an effect on the run, of `task` or resumed, are refused or told (run/settings.h), and are not asked of
 * a resumed run. */
esper_status esper_job_check_settings(esper_config_job job, const esper_task *task, const char *resume,
                                      esper_config *config);

bool esper_job_is_silent(const esper_job *job);

/* Where a run that was stopped stands, and how to go on with it by `command`. */
void esper_job_report_stopped(const esper_run_result *result, const char *command);

#endif
