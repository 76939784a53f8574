/* Long jobs on the command line: how they are asked to stop, and what is said then. */
#include "cli/job.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/cli.h"
#include "dist/launch.h"
#include "run/settings.h"
#include "ui/terminal.h"
#include "ui/text.h"

static volatile sig_atomic_t stop;
static volatile sig_atomic_t is_rank, cut_off; /* one of several; told by the launcher that the job is over */

/* The first signal asks the run to save and leave; the second is the system's to handle. A launcher gives its ranks a moment
 * after SIGTERM, too short to agree on anything. */
static void ask_to_stop(int number)
{
    if (is_rank != 0 && number == SIGTERM)
        cut_off = 1;
    else
        stop = 1;
    signal(number, SIG_DFL);
}

const volatile sig_atomic_t *esper_job_listen(void)
{
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL); /* a connection that broke off */
    signal(SIGPIPE, SIG_IGN); /* Ctrl-C also ends the `tee` we write to: that must not end us before we have saved */
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is met like a full disk: the write fails and says so */
    return &stop;
}

static const char *const comm_names[] = {
#define X(name, text) text,
    ESPER_CONFIG_COMM_LIST(X)
#undef X
};

/* A program that decides is asked by rank 0 while the others wait. */
static double longest_wait(const esper_config *config)
{
    return config->rank_deadline + (config->policy_cmd[0] != '\0' ? config->policy_deadline : 0.0);
}

/* An equal part of the machine, or as many cores as the process is bound to where that is less. */
static int share_of_cores(const esper_comm *comm)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN) / esper_comm_neighbours(comm);
    cpu_set_t mine;

    if (sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_COUNT(&mine) < n)
        n = CPU_COUNT(&mine);
    return n > 1 ? (int)n : 1;
}

static bool silence(void)
{
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    bool done = nowhere >= 0 && fflush(stdout) == 0 && dup2(nowhere, STDOUT_FILENO) >= 0;

    if (nowhere >= 0)
        close(nowhere);
    return done;
}

esper_status esper_job_open(esper_config *config, esper_job *job_out)
{
    esper_comm_options options = {
        .kind = comm_names[config->comm], .deadline_s = longest_wait(config), .abort = &cut_off};

    *job_out = (esper_job){.stop = esper_job_listen(), .cut_off = &cut_off};
    is_rank = esper_launcher_look().size > 1; /* from now on: opening waits, too */
    if (is_rank && config->comm == ESPER_CONFIG_COMM_SELF)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "comm = self, and a launcher has started several processes: each would do the whole job. "
                          "Leave --comm out, or call the program by itself");
    ESPER_TRY(esper_comm_open(&options, &job_out->comm));
    if (esper_comm_size(job_out->comm) == 1)
        return ESPER_OK;
    is_rank = 1;
    job_out->threads = share_of_cores(job_out->comm);
    esper_cli_name_rank(esper_comm_rank(job_out->comm));
    if (config->progress == ESPER_CONFIG_PROGRESS_AUTO) /* launchers make terminals of pipes */
        config->progress = ESPER_CONFIG_PROGRESS_PLAIN;
    if (esper_job_is_silent(job_out)) {
        config->progress = ESPER_CONFIG_PROGRESS_NONE;
        config->log_level = ESPER_LOG_ERROR; /* what there is to warn of, rank 0 says */
        if (!silence())
            return ESPER_FAIL(ESPER_E_IO, "/dev/null cannot be opened");
    }
    return ESPER_OK;
}

void esper_job_close(esper_job *job)
{
    esper_comm_close(job->comm);
    job->comm = NULL;
}

esper_status esper_job_check_settings(esper_config_job job, const esper_task *task, const char *resume,
                                      esper_config *config)
{
    const esper_log log = {.level = config->log_level, .stream = stderr};
    esper_config_use use;

    if (resume != NULL)
        return esper_settings_check_resumed(resume, job, config, &log);
    use = esper_settings_use(task, job, config);
    return esper_settings_check(config, config, &use, &log);
}

bool esper_job_is_silent(const esper_job *job)
{
    return esper_comm_rank(job->comm) > 0;
}

void esper_job_report_stopped(const esper_run_result *result, const char *command)
{
    const esper_cursor *cursor = &result->cursor;
    char took[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];
    const char *dir = esper_shell_quote_path(result->run_dir, quoted);

    if (cursor->epoch >= result->epochs) {
        esper_terminal_print(stdout, "stopped before the end of the test\nsaved in %s after %s\n", result->run_dir,
                             esper_text_duration(result->seconds, took));
        printf("test it with: %s eval %s\n", esper_cli_program(), dir);
        return;
    }
    printf("stopped in epoch %u after %u of %u batches", cursor->epoch + 1, cursor->batch, result->steps_per_epoch);
    if (cursor->batch > 0)
        printf(", loss %s", esper_text_loss(result->loss_now, loss));
    esper_terminal_print(stdout, "\nsaved in %s after %s\n", result->run_dir,
                         esper_text_duration(result->seconds, took));
    printf("go on with: %s %s --resume %s\n", esper_cli_program(), command, dir);
}
