/* Internal. What the commands that run for long share. */
#ifndef ESPER_CLI_JOB_H
#define ESPER_CLI_JOB_H

#include "cli/cli.h"
#include "run/run.h"

/* From now on Ctrl-C and other polite signals set the flag: the run saves and leaves. A second one ends the program, and so does the
 * first while a job opens what it needs (hears, below). */
const volatile sig_atomic_t *esper_job_listen(void);

/* A long job: listens to signals, and is a rank where a launcher has started several. */
typedef struct esper_job {
    const esper_task            *task;   /* NULL: what is resumed says */
    esper_config                *config;
    const char                  *resume; /* or NULL */
    esper_log                    log;
    const volatile sig_atomic_t *stop;
    volatile sig_atomic_t
        *hears; /* an esper_hearing, by which a signal ends it at once, or after a moment, or leaves it alone */
    esper_comm                  *comm;
    const volatile sig_atomic_t *cut_off;
    int                          threads; /* of the machine's cores, this rank's share; 0 = all */
} esper_job;

/* Ranks beyond the first are silent from now on, but for failures. Below a launcher SIGTERM means that the job is over: nobody is
 * waited for. Borrows the configuration. Closed in any case. */
esper_status esper_job_open(esper_config *config, esper_job *job_out);
void         esper_job_close(esper_job *job);

/* Opens the job of a command that makes runs: of the task that was named, or else of `usual` unless something is resumed. Settings that cannot have an effect on it are refused or told (run/settings.h), and are
 * not asked of a resumed run. */
esper_status esper_job_open_task(esper_cli_call *call, const char *usual, const char *resume, esper_job *job_out);

/* The run of a job; the caller adds an observer. */
esper_run_desc esper_job_run(const esper_job *job);

bool esper_job_is_silent(const esper_job *job);

/* Says where a run that was stopped stands, and how to go on with it by `command`; the code of the exit. */
int esper_job_report_stopped(const esper_run_result *result, const char *command);

/* What the guard did, if anything; and where the run is saved. */
void esper_job_report_guard(const esper_run_result *result);
void esper_job_report_saved(const esper_run_result *result);

/* What the disk did not take of a run that is done, on the standard error; the code of the exit. "": nothing, and 0. */
int esper_job_report_unwritten(const char *unwritten);

/* Where `file`, of `epoch`, is the last network of a run and another has the least validation loss: says so, and where it is. */
void esper_job_report_best(const char *file, uint32_t epoch);

#endif
