/* Long jobs on the command line: how they are asked to stop, and what is said then. */
#include "cli/job.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/own_data.h"
#include "dist/launch.h"
#include "run/checkpoint.h"
#include "run/settings.h"
#include "ui/terminal.h"
#include "ui/text.h"

static volatile sig_atomic_t stop, hears = ESPER_HEARS; /* hears: a job that opens first says so */
static volatile sig_atomic_t is_rank, cut_off;          /* one of several; told by the launcher that the job is over */
static volatile sig_atomic_t is_ordered;                /* by a signal that is no person's, who could be told to wait */

/* How long a job that was asked to stop may be in a step, a batch or an update. */
static const struct itimerspec patience = {.it_value = {.tv_nsec = 700000000}};
static timer_t impatience;
static volatile sig_atomic_t has_impatience;

static void say(const char *words, size_t n)
{
    ssize_t written = write(STDERR_FILENO, words, n);

    (void)written;
}

/* Below, only what a handler may call is called. */
#define SAY(words) say(words, sizeof(words) - 1)

/* The first signal asks the run to save and leave; the second is the system's to handle. A job may open large files and networks
 * for a while, and nobody looks at `stop` then: there is nothing to save. A launcher gives its ranks a moment after SIGTERM, too
 * short to agree on anything. */
static void ask_to_stop(int number)
{
    if (is_rank == 0 && hears == ESPER_HEARS_NOTHING) {
        SAY("esper: stopped before it had begun\n");
        _exit(ESPER_EXIT_STOPPED);
    }
    if (is_rank != 0 && number == SIGTERM)
        cut_off = 1;
    else
        stop = 1;
    if (number != SIGINT)
        is_ordered = 1;
    if (is_rank == 0 && has_impatience != 0)
        timer_settime(impatience, 0, &patience, NULL);
    signal(number, SIG_DFL);
}

/* It is in the midst of something long. What is on disk is good to go on from at any moment, so that nothing but the work since is
 * lost when it ends here. A person is asked what is better. */
static void insist(int number)
{
    (void)number;
    if (hears == ESPER_HEARS_AND_LEAVES)
        return;
    if (is_ordered == 0) {
        SAY("esper: a step takes long; the run is saved when it is done. Ctrl-C again leaves at once, with what was saved last\n");
        return;
    }
    SAY("esper: stopped in the midst of a long step: it goes on from what was saved last\n");
    _exit(ESPER_EXIT_STOPPED);
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

/* From now on a job that does not look at `stop` for too long is ended. Without a timer it is waited for. */
static void lose_patience(void)
{
    struct sigaction action = {.sa_handler = insist, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};

    if (has_impatience == 0 && sigaction(SIGALRM, &action, NULL) == 0)
        has_impatience = timer_create(CLOCK_MONOTONIC, &event, &impatience) == 0;
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
    esper_comm_options options = {.kind = esper_config_key_at(esper_config_find("comm"))->choices[config->comm],
                                  .deadline_s = config->rank_deadline,
                                  .join_s = config->join_deadline,
                                  .abort = &cut_off,
                                  .log = &job_out->log};

    if (config->policy_cmd[0] != '\0')
        options.deadline_s +=
            config->policy_deadline; /* a program that decides is asked by rank 0 while the others wait */
    hears = ESPER_HEARS_NOTHING;
    lose_patience();
    is_rank = esper_launcher_look().size > 1; /* from now on: opening waits, too */
    *job_out = (esper_job){.config = config,
                           .log = {.level = config->log_level, .stream = stderr},
                           .stop = esper_job_listen(),
                           .hears = &hears,
                           .cut_off = &cut_off};
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
        config->log_level = job_out->log.level = ESPER_LOG_ERROR; /* what there is to warn of, rank 0 says */
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

esper_status esper_job_open_task(esper_cli_call *call, const char *usual, const char *resume, esper_job *job_out)
{
    const esper_task *task = NULL;
    esper_config_use use;

    assert(call->n_words <= 1);
    *job_out = (esper_job){0};
    if (call->n_words == 1 || resume == NULL) {
        ESPER_TRY(
            esper_own_data_task(call->n_words == 1 ? call->words[0] : usual, call->command->job, &call->config, &task));
    }
    ESPER_TRY(esper_job_open(&call->config, job_out));
    job_out->task = task;
    job_out->resume = resume;
    if (resume != NULL && !esper_job_is_silent(job_out))
        esper_own_data_prepare_run(resume, &call->config);
    if (resume != NULL)
        return esper_settings_check_resumed(resume, call->command->job, &call->config, &job_out->log);
    use = esper_settings_use(task, call->command->job, &call->config);
    return esper_settings_check(&call->config, &call->config, &use, &job_out->log);
}

esper_run_desc esper_job_run(const esper_job *job)
{
    assert(job->config != NULL && job->stop != NULL);
    return (esper_run_desc){.task = job->task,
                            .config = job->config,
                            .resume = job->resume,
                            .log = &job->log,
                            .stop = job->stop,
                            .hears = job->hears,
                            .comm = job->comm,
                            .cut_off = job->cut_off,
                            .threads = job->threads};
}

bool esper_job_is_silent(const esper_job *job)
{
    assert(job->comm != NULL);
    return esper_comm_rank(job->comm) > 0;
}

int esper_job_report_stopped(const esper_run_result *result, const char *command)
{
    const esper_cursor *cursor = &result->cursor;
    char took[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];
    const char *dir = esper_shell_quote_path(result->run_dir, quoted);

    if (cursor->epoch >= result->epochs) {
        esper_terminal_print(stdout, "stopped before the end of the test\nsaved in %s after %s\n", result->run_dir,
                             esper_text_duration(result->seconds, took));
        printf("test it with: %s eval %s\n", esper_cli_program(), dir);
        return ESPER_EXIT_STOPPED;
    }
    printf("stopped in epoch %u after %u of %u batches", cursor->epoch + 1, cursor->batch, result->steps_per_epoch);
    if (cursor->batch > 0)
        printf(", loss %s", esper_text_loss(result->loss_now, loss));
    esper_terminal_print(stdout, "\nsaved in %s after %s\n", result->run_dir,
                         esper_text_duration(result->seconds, took));
    printf("go on with: %s %s --resume %s\n", esper_cli_program(), command, dir);
    return ESPER_EXIT_STOPPED;
}

void esper_job_report_guard(const esper_run_result *result)
{
    if (result->n_skipped + result->n_rollbacks > 0)
        esper_terminal_print(stdout,
                             "guard     %" PRIu64 " step%s skipped, %" PRIu64 " time%s back to a snapshot: see %s/%s\n",
                             result->n_skipped, result->n_skipped == 1 ? "" : "s", result->n_rollbacks,
                             result->n_rollbacks == 1 ? "" : "s", result->run_dir, ESPER_RUN_EVENTS);
}

void esper_job_report_saved(const esper_run_result *result)
{
    char took[ESPER_TEXT_CHARS], path[ESPER_PATH_CHARS + sizeof(ESPER_RUN_BEST)];

    if (result->unwritten[0] == '\0')
        esper_terminal_print(stdout, "saved     %s/%s after %s\n", result->run_dir, ESPER_RUN_CHECKPOINT,
                             esper_text_duration(result->seconds, took));
    if (result->best.epoch > 0 && result->best.epoch != result->last.epoch &&
        snprintf(path, sizeof(path), "%s/%s", result->run_dir, ESPER_RUN_BEST) < (int)sizeof(path) &&
        access(path, R_OK) == 0)
        esper_terminal_print(stdout,
                             "best      %s of epoch %u: validation loss %.4f, accuracy %.2f %% (last %.4f, %.2f %%)\n",
                             path, result->best.epoch, result->best.loss, result->best.accuracy,
                             result->last.loss_valid, result->last.acc_valid);
}

int esper_job_report_unwritten(const char *unwritten)
{
    if (unwritten[0] == '\0')
        return ESPER_EXIT_OK;
    fflush(stdout);
    fprintf(stderr, "esper: %s\n", unwritten);
    return ESPER_EXIT_FAILED;
}

void esper_job_report_best(const char *file, uint32_t epoch)
{
    const char *slash = strrchr(file, '/');
    char path[ESPER_PATH_CHARS];
    esper_checkpoint best;
    esper_cursor cursor;
    uint64_t budget, weights;
    uint32_t of;

    if (slash == NULL || strcmp(slash + 1, ESPER_RUN_CHECKPOINT) != 0 ||
        snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - file), file, ESPER_RUN_BEST) >= (int)sizeof(path) ||
        access(path, R_OK) != 0 || esper_checkpoint_init(path, &best) != ESPER_OK)
        return;
    if (esper_checkpoint_mark(&best, &cursor, &budget, &weights) == ESPER_OK) {
        of = cursor.epoch + (cursor.batch > 0); /* it is kept when it has been validated, just before its epoch ends */
        if (of != epoch)
            esper_terminal_print(stdout,
                                 "note      this is the run's last network; for the one with the least validation "
                                 "loss, of epoch %u, give %s\n",
                                 of, path);
    }
    esper_checkpoint_fini(&best);
}
