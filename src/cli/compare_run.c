/* The runs of comparisons as processes. */
#include "cli/compare_run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/compare_together.h"
#include "cli/compare_work.h"
#include "run/settings.h"

enum { NAP_MS = 20, NOT_STARTED = 127 };

typedef struct child {
    pid_t                     pid; /* 0 = the place is free */
    const esper_compare_part *part;
    esper_compare_run        *run;
    bool                      resumed;
} child;

typedef struct fleet {
    const esper_compare_desc *desc;
    compare_work              work;
    compare_job               job; /* that is being started, or has ended */
    child                     children[ESPER_COMPARE_MAX_JOBS];
    int                       n_children;
    bool                      asked; /* the children have been asked to stop */
} fleet;

/* ------------------------------------------------------------------------------------------------ starting */

enum { ARG_CHARS = ESPER_CONFIG_NAME_CHARS + ESPER_CONFIG_TEXT_CHARS + 2, MAX_ARGS = ESPER_CONFIG_N_KEYS + 8 };

typedef struct command_line {
    char  texts[ESPER_CONFIG_N_KEYS][ARG_CHARS];
    char  words[3][ESPER_PATH_CHARS];
    char *argv[MAX_ARGS];
} command_line;

/* Every setting that can have an effect on the run, as a flag: neither a file nor the environment can say otherwise. */
static void write_command(command_line *line, const esper_compare *compare, const esper_config *config, bool resume)
{
    esper_config_use use = esper_settings_use(compare->task, ESPER_CONFIG_IN_GROW, config);
    char flag[ESPER_CONFIG_NAME_CHARS], value[ESPER_CONFIG_TEXT_CHARS];
    const char *instead;
    int n = 0;

    snprintf(line->words[0], sizeof(line->words[0]), "%s", esper_cli_argv0());
    line->argv[n++] = line->words[0];
    snprintf(line->words[1], sizeof(line->words[1]), "grow");
    line->argv[n++] = line->words[1];
    snprintf(line->words[2], sizeof(line->words[2]), resume ? "--resume=%s" : "%s",
             resume ? config->run_dir : compare->task->name);
    line->argv[n++] = line->words[2];
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        if (esper_config_why_not(config, i, &use, &instead) != NULL)
            continue;
        if (resume && use.deciders == ESPER_CONFIG_BY_SEARCH && strcmp(esper_config_key_at(i)->name, "plant") == 0)
            continue; /* it has been found */
        esper_config_flag_name(esper_config_key_at(i)->name, flag);
        esper_config_value_text(config, i, value);
        snprintf(line->texts[i], sizeof(line->texts[i]), "%s=%s", flag, value);
        line->argv[n++] = line->texts[i];
    }
    assert(n < MAX_ARGS);
    line->argv[n] = NULL;
}

/* In the child: never returns. */
static void become(char *const *argv, int log, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);

    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* who compares was killed: nobody waits for this run any more */
    if (getppid() == parent)
        execv("/proc/self/exe", argv);
    _exit(NOT_STARTED);
}

static esper_status spawn(const compare_job *job, pid_t *pid_out)
{
    char path[ESPER_PATH_CHARS];
    command_line *line;
    pid_t parent = getpid();
    int log;

    ESPER_TRY(compare_work_path(job->part, job->run, ".log", path));
    log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (job->resume ? 0 : O_TRUNC), 0666);
    if (log < 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    line = esper_mem_alloc(sizeof(*line));
    if (line == NULL) {
        close(log);
        return ESPER_FAIL(ESPER_E_NOMEM, "the command of a run");
    }
    write_command(line, job->part->compare, &job->config, job->resume);
    fflush(NULL); /* what is buffered here is not written there once more */
    *pid_out = fork();
    if (*pid_out == 0)
        become(line->argv, log, parent);
    esper_mem_free(line);
    close(log);
    return *pid_out > 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_IO, "no process for a run: %s", strerror(errno));
}

static esper_status start(fleet *self, const compare_job *job)
{
    child *place = self->children;

    assert(self->n_children < self->desc->jobs && self->desc->jobs <= ESPER_COMPARE_MAX_JOBS);
    while (place->pid != 0)
        place++;
    ESPER_TRY(spawn(job, &place->pid));
    place->part = job->part;
    place->run = job->run;
    place->resumed = job->resume;
    self->n_children++;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ending */

static compare_ending describe_end(const child *ended, int code)
{
    compare_ending ending = {.stopped = WIFEXITED(code) && WEXITSTATUS(code) == ESPER_EXIT_STOPPED,
                             .orderly = WIFEXITED(code),
                             .refused = WIFEXITED(code) && WEXITSTATUS(code) == ESPER_EXIT_USAGE};
    char path[ESPER_PATH_CHARS];

    if (code == 0)
        return ending;
    if (WIFSIGNALED(code))
        snprintf(ending.why, sizeof(ending.why), "killed by signal %d (%s)", WTERMSIG(code), strsignal(WTERMSIG(code)));
    else if (WEXITSTATUS(code) == NOT_STARTED)
        snprintf(ending.why, sizeof(ending.why), "the program could not be started again");
    else
        snprintf(ending.why, sizeof(ending.why), "it ended with code %d", WEXITSTATUS(code));
    if (!WIFSIGNALED(code) && compare_work_path(ended->part, ended->run, ".log", path) == ESPER_OK)
        compare_work_complaint(path, ending.why);
    return ending;
}

static esper_status end_run(fleet *self, const child *ended, int code)
{
    compare_ending ending = describe_end(ended, code);
    compare_job *job = &self->job;
    bool again;

    job->part = ended->part;
    job->run = ended->run;
    job->resume = ended->resumed;
    ESPER_TRY(compare_work_configure(&self->work, job->part, job->run, &job->config));
    ESPER_TRY(compare_work_end(&self->work, job, &ending, &again));
    return again ? start(self, job) : ESPER_OK;
}

static esper_status reap(fleet *self)
{
    int code;

    for (int i = 0; i < self->desc->jobs; i++) {
        child ended = self->children[i];

        if (ended.pid == 0 || waitpid(ended.pid, &code, WNOHANG) != ended.pid)
            continue;
        self->children[i].pid = 0;
        self->n_children--;
        assert(self->n_children >= 0);
        ESPER_TRY(end_run(self, &ended, code));
    }
    return ESPER_OK;
}

/* Asks them once to save and leave. */
static void ask_to_stop(fleet *self)
{
    for (int i = 0; i < self->desc->jobs && !self->asked; i++)
        if (self->children[i].pid != 0)
            kill(self->children[i].pid, SIGTERM);
    self->asked = true;
}

/* ------------------------------------------------------------------------------------------------ the loop */

static esper_status run_until_done(fleet *self)
{
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
    bool found = true;

    while (found || self->n_children > 0) {
        ESPER_TRY(reap(self));
        found = *self->desc->stop == 0;
        if (!found)
            ask_to_stop(self);
        while (found && self->n_children < self->desc->jobs) {
            ESPER_TRY(compare_work_next(&self->work, &self->job, &found));
            if (found)
                ESPER_TRY(start(self, &self->job));
        }
        if (self->n_children > 0)
            nanosleep(&nap, NULL);
    }
    return ESPER_OK;
}

esper_status esper_compare_run_all(const esper_compare_desc *desc)
{
    char message[1024];
    esper_status status;
    fleet *self;

    if (desc->together)
        return esper_compare_run_together(desc);
    self = esper_mem_alloc(sizeof(*self));
    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the runs of a comparison");
    self->desc = desc;
    compare_work_init(&self->work, desc);
    status = run_until_done(self);
    if (status != ESPER_OK) {
        snprintf(message, sizeof(message), "%s", esper_last_error());
        ask_to_stop(self); /* no child outlives us. What they have done is saved */
        for (int i = 0; i < desc->jobs; i++)
            if (self->children[i].pid != 0)
                waitpid(self->children[i].pid, NULL, 0);
        ESPER_FAIL(status, "%s", message);
    }
    esper_mem_free(self);
    return status;
}
