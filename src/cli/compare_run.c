/* Starting, watching and reading the runs of a comparison. */
#include "cli/compare_run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "run/settings.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { NAP_MS = 20, LEAVING_MS = 30000, MAX_LOG_BYTES = 1 << 26, NOT_STARTED = 127 };

typedef struct child {
    pid_t              pid; /* 0 = the place is free */
    esper_compare_run *run;
    bool               resumed;
} child;

typedef struct fleet {
    const esper_compare_desc *desc;
    child                     children[ESPER_COMPARE_MAX_JOBS];
    int                       n_children;
    int                       n_begun, n_found; /* ended here; taken from before */
    int                       name_width;       /* of the longest name of a run */
    double                    began;
    bool                      asked; /* the children have been asked to stop */
} fleet;

/* ------------------------------------------------------------------------------------------------ places */

/* The directory of a run, or with ".log" its log. */
static esper_status path_of(const fleet *self, const esper_compare_run *run, const char *ending,
                            char path_out[ESPER_PATH_CHARS])
{
    char name[ESPER_COMPARE_NAME_CHARS + 8];

    esper_compare_name(self->desc->compare, run, name);
    strcat(name, ending);
    return esper_run_path(self->desc->dir, name, path_out);
}

/* Several at a time share the threads. Results do not depend on it. */
static esper_status configure(const fleet *self, const esper_compare_run *run, esper_config *config_out)
{
    int share = self->desc->threads / self->desc->jobs;
    int threads = self->desc->jobs == 1 ? self->desc->compare->config.threads : share > 1 ? share : 1;
    char dir[ESPER_PATH_CHARS];

    ESPER_TRY(path_of(self, run, "", dir));
    ESPER_TRY(esper_compare_configure(self->desc->compare, run, dir, threads, config_out));
    config_out->progress = ESPER_CONFIG_PROGRESS_PLAIN;
    return ESPER_OK;
}

static bool is_there(const char *dir, const char *name)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    return esper_run_path(dir, name, path) == ESPER_OK && stat(path, &info) == 0;
}

/* Removes what a run wrote, and nothing else: it begins anew. */
static void clear_run(const char *dir)
{
    static const char *const files[] = {ESPER_RUN_CONFIG,       ESPER_RUN_EVENTS, ESPER_RUN_DECISIONS,
                                        ESPER_RUN_CHECKPOINT,   ESPER_RUN_SOUND,  ESPER_RUN_BEFORE,
                                        ESPER_RUN_BEST,         ESPER_RUN_STORE,  ESPER_RUN_STORE "-wal",
                                        ESPER_RUN_STORE "-shm", ESPER_RUN_REPORT, NULL};
    char path[ESPER_PATH_CHARS];

    for (int i = 0; files[i] != NULL; i++)
        if (esper_run_path(dir, files[i], path) == ESPER_OK)
            unlink(path);
}

/* The last complaint in a log: "esper: ..." */
static void read_complaint(const char *path, char why_out[ESPER_COMPARE_WHY_CHARS])
{
    static const char mark[] = "esper: ";
    char *text, *at, *last = NULL;
    size_t bytes;

    if (esper_file_read(path, MAX_LOG_BYTES, &text, &bytes) != ESPER_OK)
        return;
    for (at = text; (at = strstr(at, mark)) != NULL; at += strlen(mark))
        if (at == text || at[-1] == '\n')
            last = at + strlen(mark);
    if (last != NULL)
        snprintf(why_out, ESPER_COMPARE_WHY_CHARS, "%.*s", (int)strcspn(last, "\n"), last);
    esper_mem_free(text);
}

/* ------------------------------------------------------------------------------------------------ telling */

/* "  3/40  heuristic-1  88.12 %, 12,345 parameters, 1:02; 37 left, about 40:10" */
static void tell(const fleet *self, const esper_compare_run *run, const char *remark)
{
    const esper_compare *compare = self->desc->compare;
    const esper_compare_result *result = &run->result;
    char name[ESPER_COMPARE_NAME_CHARS], params[ESPER_TEXT_CHARS], took[ESPER_TEXT_CHARS];
    char earned[ESPER_TEXT_CHARS] = "", what[256], about[ESPER_TEXT_CHARS + 16] = "";
    int n_left = 0;

    for (int i = 0; i < compare->n_runs; i++)
        n_left += compare->runs[i].result.outcome == ESPER_COMPARE_PENDING ||
                  compare->runs[i].result.outcome == ESPER_COMPARE_RUNNING;
    esper_compare_name(compare, run, name);
    if (!isnan(esper_compare_return(compare, run)))
        snprintf(earned, sizeof(earned), "return %.2f, ", esper_compare_return(compare, run));
    if (result->outcome == ESPER_COMPARE_GOOD)
        snprintf(what, sizeof(what), "%6.2f %%, %s%s parameters, %s", result->acc_test, earned,
                 esper_text_count(result->params, params), esper_text_duration(result->seconds, took));
    else
        snprintf(what, sizeof(what), "%s%s%.100s", esper_compare_outcome_name(result->outcome),
                 result->why[0] != '\0' ? ": " : "", result->why);
    if (n_left > 0 && self->n_begun > 0)
        snprintf(about, sizeof(about), ", about %s",
                 esper_text_duration((esper_clock_seconds() - self->began) / self->n_begun * n_left, took));
    esper_terminal_print(self->desc->progress, "%4d/%d  %-*s  %s%s; %d left%s\n", compare->n_runs - n_left,
                         compare->n_runs, self->name_width, name, what, remark, n_left, about);
    fflush(self->desc->progress);
}

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

static esper_status spawn(const fleet *self, const esper_compare_run *run, const esper_config *config, bool resume,
                          pid_t *pid_out)
{
    char path[ESPER_PATH_CHARS];
    command_line *line;
    pid_t parent = getpid();
    int log;

    ESPER_TRY(path_of(self, run, ".log", path));
    log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
    if (log < 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    line = esper_mem_alloc(sizeof(*line));
    if (line == NULL) {
        close(log);
        return ESPER_FAIL(ESPER_E_NOMEM, "the command of a run");
    }
    write_command(line, self->desc->compare, config, resume);
    fflush(NULL); /* what is buffered here is not written there once more */
    *pid_out = fork();
    if (*pid_out == 0)
        become(line->argv, log, parent);
    esper_mem_free(line);
    close(log);
    return *pid_out > 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_IO, "no process for a run: %s", strerror(errno));
}

static esper_status start(fleet *self, esper_compare_run *run, const esper_config *config, bool resume)
{
    child *place = self->children;

    assert(self->n_children < self->desc->jobs && self->desc->jobs <= ESPER_COMPARE_MAX_JOBS);
    while (place->pid != 0)
        place++;
    if (!resume)
        clear_run(config->run_dir);
    ESPER_TRY(spawn(self, run, config, resume, &place->pid));
    place->run = run;
    place->resumed = resume;
    run->result.outcome = ESPER_COMPARE_RUNNING;
    self->n_children++;
    return ESPER_OK;
}

/* A file may have been written anew since the run of that name was made. */
static esper_status check_policy(const fleet *self, const esper_compare_run *run, const char *run_dir)
{
    const esper_compare_line *line = &self->desc->compare->lines[run->line];
    char hash[20];

    snprintf(hash, sizeof(hash), "%016" PRIx64, line->hash);
    if (line->file[0] == '\0' || strstr(run->result.policy, hash) != NULL)
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_CONFIG,
        "%s holds a run by another policy than %s is now (%s there, %s here): choose another directory, or "
        "remove that one to run it again",
        run_dir, line->file, run->result.policy, hash);
}

/* A comparison that was killed may have left a run that is on its way out: asked to stop, it saves. It has its directory until then,
 * and what it leaves there is what we go on from. */
static void await_leaving(const fleet *self, const char *dir)
{
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (int ms = 0; fd >= 0 && ms < LEAVING_MS && *self->desc->stop == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 &&
                     errno == EWOULDBLOCK;
         ms += NAP_MS)
        nanosleep(&nap, NULL);
    if (fd >= 0)
        close(fd); /* and with it the lock, which is the run's to take */
}

/* A run whose turn has come: its result is there already, or it goes on, or it begins. */
static esper_status take_up(fleet *self, esper_compare_run *run)
{
    char path[ESPER_PATH_CHARS];
    esper_config config;
    esper_status status;
    bool resume;

    ESPER_TRY(configure(self, run, &config));
    await_leaving(self, config.run_dir);
    status = esper_compare_read(config.run_dir, &config, &run->result);
    if (status == ESPER_E_CONFIG || status == ESPER_E_NOMEM)
        return status;
    if (status == ESPER_OK && run->result.outcome != ESPER_COMPARE_PENDING) {
        ESPER_TRY(check_policy(self, run, config.run_dir));
        ESPER_TRY(path_of(self, run, ".log", path));
        if (run->result.outcome == ESPER_COMPARE_BROKEN_OFF)
            read_complaint(path, run->result.why);
        self->n_found++;
        tell(self, run, " (was there)");
        return ESPER_OK;
    }
    resume = status == ESPER_OK && is_there(config.run_dir, ESPER_RUN_CHECKPOINT) &&
             is_there(config.run_dir, ESPER_RUN_STORE); /* one without the other is started anew */
    return start(self, run, &config, resume);
}

/* ------------------------------------------------------------------------------------------------ ending */

static void describe_end(const fleet *self, esper_compare_run *run, int code)
{
    char path[ESPER_PATH_CHARS];

    if (WIFSIGNALED(code))
        snprintf(run->result.why, sizeof(run->result.why), "killed by signal %d (%s)", WTERMSIG(code),
                 strsignal(WTERMSIG(code)));
    else if (WEXITSTATUS(code) == NOT_STARTED)
        snprintf(run->result.why, sizeof(run->result.why), "the program could not be started again");
    else
        snprintf(run->result.why, sizeof(run->result.why), "it ended with code %d", WEXITSTATUS(code));
    if (!WIFSIGNALED(code) && path_of(self, run, ".log", path) == ESPER_OK)
        read_complaint(path, run->result.why);
}

static esper_status end_run(fleet *self, const child *ended, int code)
{
    esper_compare_run *run = ended->run;
    esper_config config;
    esper_status status;

    ESPER_TRY(configure(self, run, &config));
    status = esper_compare_read(config.run_dir, &config, &run->result);
    if (status != ESPER_OK) {
        run->result.outcome = ESPER_COMPARE_FAILED;
        snprintf(run->result.why, sizeof(run->result.why), "its store cannot be read: %.200s", esper_last_error());
    } else if (run->result.outcome == ESPER_COMPARE_BROKEN_OFF) {
        describe_end(self, run, code);
    } else if (run->result.outcome == ESPER_COMPARE_PENDING) {
        if (WIFEXITED(code) && WEXITSTATUS(code) == ESPER_EXIT_STOPPED) {
            run->result.outcome = ESPER_COMPARE_STOPPED;
        } else if (ended->resumed && WIFEXITED(code)) {
            return start(self, run, &config, false); /* its checkpoint was of no use: runs can be made again */
        } else {
            run->result.outcome = ESPER_COMPARE_FAILED;
            describe_end(self, run, code);
        }
    }
    self->n_begun++;
    tell(self, run, "");
    if (self->n_begun == 1 && self->n_found == 0 && WIFEXITED(code) && WEXITSTATUS(code) == ESPER_EXIT_USAGE)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s", run->result.why); /* what the very first run refuses, all others will */
    return ESPER_OK;
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

/* Goes once through what is pending; *moved_out says whether anything came of it. */
static esper_status advance(fleet *self, bool *moved_out)
{
    esper_compare *compare = self->desc->compare;
    char other[ESPER_COMPARE_NAME_CHARS], remark[ESPER_COMPARE_NAME_CHARS + 16];

    *moved_out = false;
    for (int i = 0; i < compare->n_runs && self->n_children < self->desc->jobs; i++) {
        esper_compare_run *run = &compare->runs[i];
        bool ready;

        if (run->result.outcome != ESPER_COMPARE_PENDING)
            continue;
        ESPER_TRY(esper_compare_prepare(compare, run, &ready));
        if (ready)
            ESPER_TRY(take_up(self, run));
        *moved_out |= run->result.outcome != ESPER_COMPARE_PENDING;
        if (ready || run->result.outcome == ESPER_COMPARE_PENDING)
            continue;
        if (run->same_as >= 0)
            esper_compare_name(compare, &compare->runs[run->same_as], other);
        snprintf(remark, sizeof(remark), run->same_as >= 0 ? " (as %s)" : "%s", run->same_as >= 0 ? other : "");
        tell(self, run, remark);
    }
    return ESPER_OK;
}

static esper_status run_until_done(fleet *self)
{
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
    bool moved = true;

    while (moved || self->n_children > 0) {
        moved = false;
        ESPER_TRY(reap(self));
        if (*self->desc->stop != 0)
            ask_to_stop(self);
        else
            ESPER_TRY(advance(self, &moved));
        if (self->n_children > 0)
            nanosleep(&nap, NULL);
    }
    return ESPER_OK;
}

esper_status esper_compare_run_all(const esper_compare_desc *desc)
{
    const esper_compare *compare = desc->compare;
    fleet *self = esper_mem_alloc(sizeof(*self));
    char message[1024], name[ESPER_COMPARE_NAME_CHARS];
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the runs of a comparison");
    self->desc = desc;
    for (int i = 0; i < compare->n_runs; i++) { /* all stand in one column */
        esper_compare_name(compare, &compare->runs[i], name);
        self->name_width = (int)strlen(name) > self->name_width ? (int)strlen(name) : self->name_width;
    }
    self->began = esper_clock_seconds();
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
