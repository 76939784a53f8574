/* What is to be run, and what came of it. */
#include "cli/compare_work.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { NAP_MS = 20, LEAVING_MS = 30000, MAX_LOG_BYTES = 1 << 26 };

/* ------------------------------------------------------------------------------------------------ places */

esper_status compare_work_path(const esper_compare_part *part, const esper_compare_run *run, const char *ending,
                               char path_out[ESPER_PATH_CHARS])
{
    char name[ESPER_COMPARE_NAME_CHARS + 8];

    esper_compare_name(part->compare, run, name);
    strcat(name, ending);
    return esper_run_path(part->dir, name, path_out);
}

/* Several at a time share the threads, each a process or all the threads of one. Results do not depend on it. */
esper_status compare_work_configure(const compare_work *self, const esper_compare_part *part,
                                    const esper_compare_run *run, esper_config *config_out)
{
    const esper_compare_desc *desc = self->desc;
    int share = desc->threads / desc->jobs;
    int threads = desc->jobs == 1 || desc->together ? part->compare->config.threads : share > 1 ? share : 1;
    char dir[ESPER_PATH_CHARS];

    ESPER_TRY(compare_work_path(part, run, "", dir));
    ESPER_TRY(esper_compare_configure(part->compare, run, dir, threads, config_out));
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

void compare_work_complaint(const char *log, char why_out[ESPER_COMPARE_WHY_CHARS])
{
    static const char mark[] = "esper: ";
    char *text, *at, *last = NULL;
    size_t bytes;

    if (esper_file_read(log, MAX_LOG_BYTES, &text, &bytes) != ESPER_OK)
        return;
    for (at = text; (at = strstr(at, mark)) != NULL; at += strlen(mark))
        if (at == text || at[-1] == '\n')
            last = at + strlen(mark);
    if (last != NULL)
        snprintf(why_out, ESPER_COMPARE_WHY_CHARS, "%.*s", (int)strcspn(last, "\n"), last);
    esper_mem_free(text);
}

/* ------------------------------------------------------------------------------------------------ telling */

int compare_work_left(const compare_work *self)
{
    int n_left = 0;

    for (int p = 0; p < self->desc->n_parts; p++) {
        const esper_compare *compare = self->desc->parts[p].compare;

        for (int i = 0; i < compare->n_runs; i++)
            n_left += compare->runs[i].result.outcome == ESPER_COMPARE_PENDING ||
                      compare->runs[i].result.outcome == ESPER_COMPARE_RUNNING;
    }
    return n_left;
}

static void name_run(const esper_compare_part *part, const esper_compare_run *run, char *text, size_t size)
{
    char name[ESPER_COMPARE_NAME_CHARS];

    esper_compare_name(part->compare, run, name);
    snprintf(text, size, "%s%s", part->label, name);
}

enum { FULL_NAME_CHARS = ESPER_COMPARE_NAME_CHARS + 32 };

/* "  3/40  heuristic-1  88.12 %, 12,345 parameters, 1:02; 37 left, about 40:10" */
static void tell(const compare_work *self, const esper_compare_part *part, const esper_compare_run *run,
                 const char *remark)
{
    const esper_compare_result *result = &run->result;
    char name[FULL_NAME_CHARS], params[ESPER_TEXT_CHARS], took[ESPER_TEXT_CHARS];
    char earned[ESPER_TEXT_CHARS] = "", what[256], about[ESPER_TEXT_CHARS + 16] = "";
    int n_left = compare_work_left(self);

    name_run(part, run, name, sizeof(name));
    if (!isnan(esper_compare_return(part->compare, run)))
        snprintf(earned, sizeof(earned), "return %.2f, ", esper_compare_return(part->compare, run));
    if (result->outcome == ESPER_COMPARE_GOOD)
        snprintf(what, sizeof(what), "%6.2f %%, %s%s parameters, %s", result->acc_test, earned,
                 esper_text_count(result->params, params), esper_text_duration(result->seconds, took));
    else
        snprintf(what, sizeof(what), "%s%s%.100s", esper_compare_outcome_name(result->outcome),
                 result->why[0] != '\0' ? ": " : "", result->why);
    if (n_left > 0 && self->n_begun > 0 && !self->desc->together)
        snprintf(about, sizeof(about), ", about %s",
                 esper_text_duration((esper_clock_seconds() - self->began) / self->n_begun * n_left, took));
    esper_terminal_print(self->desc->progress, "%4d/%d  %-*s  %s%s; %d left%s\n", self->n_runs - n_left, self->n_runs,
                         self->name_width, name, what, remark, n_left, about);
    fflush(self->desc->progress);
}

void compare_work_init(compare_work *self, const esper_compare_desc *desc)
{
    char name[FULL_NAME_CHARS];

    *self = (compare_work){.desc = desc, .began = esper_clock_seconds()};
    for (int p = 0; p < desc->n_parts; p++)
        for (int i = 0; i < desc->parts[p].compare->n_runs; i++) { /* all stand in one column */
            name_run(&desc->parts[p], &desc->parts[p].compare->runs[i], name, sizeof(name));
            self->name_width = (int)strlen(name) > self->name_width ? (int)strlen(name) : self->name_width;
            self->n_runs++;
        }
}

/* ------------------------------------------------------------------------------------------------ what is next */

/* A file may have been written anew since the run of that name was made. */
static esper_status check_policy(const esper_compare_part *part, const esper_compare_run *run, const char *run_dir)
{
    const esper_compare_line *line = &part->compare->lines[run->line];
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
static void await_leaving(const compare_work *self, const char *dir)
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

/* Its result is there already, or it is to go on, or to begin: then it is RUNNING. */
static esper_status take_up(compare_work *self, compare_job *job)
{
    esper_compare_run *run = job->run;
    const char *dir = job->config.run_dir;
    char path[ESPER_PATH_CHARS];
    esper_status status;

    ESPER_TRY(compare_work_configure(self, job->part, run, &job->config));
    await_leaving(self, dir);
    status = esper_compare_read(dir, &job->config, &run->result);
    if (status == ESPER_E_CONFIG || status == ESPER_E_NOMEM)
        return status;
    if (status == ESPER_OK && run->result.outcome != ESPER_COMPARE_PENDING) {
        ESPER_TRY(check_policy(job->part, run, dir));
        ESPER_TRY(compare_work_path(job->part, run, ".log", path));
        if (run->result.outcome == ESPER_COMPARE_BROKEN_OFF)
            compare_work_complaint(path, run->result.why);
        self->n_found++;
        tell(self, job->part, run, " (was there)");
        return ESPER_OK;
    }
    job->resume = status == ESPER_OK && is_there(dir, ESPER_RUN_CHECKPOINT) &&
                  is_there(dir, ESPER_RUN_STORE); /* one without the other is started anew */
    if (!job->resume)
        clear_run(dir);
    run->result.outcome = ESPER_COMPARE_RUNNING;
    return ESPER_OK;
}

/* Looks at a pending run; *moved_out: it is no longer pending. */
static esper_status look_at(compare_work *self, compare_job *job, bool *moved_out)
{
    esper_compare *compare = job->part->compare;
    esper_compare_run *run = job->run;
    char other[ESPER_COMPARE_NAME_CHARS], remark[ESPER_COMPARE_NAME_CHARS + 16] = "";
    bool ready;

    ESPER_TRY(esper_compare_prepare(compare, run, &ready));
    if (ready)
        ESPER_TRY(take_up(self, job));
    *moved_out = run->result.outcome != ESPER_COMPARE_PENDING;
    if (ready || !*moved_out)
        return ESPER_OK;
    if (run->same_as >= 0) {
        esper_compare_name(compare, &compare->runs[run->same_as], other);
        snprintf(remark, sizeof(remark), " (as %s)", other);
    }
    tell(self, job->part, run, remark);
    return ESPER_OK;
}

esper_status compare_work_next(compare_work *self, compare_job *job_out, bool *found_out)
{
    bool moved = true, any;

    *found_out = false;
    while (moved) { /* what is known now may be what another one has waited for */
        moved = false;
        for (int p = 0; p < self->desc->n_parts; p++)
            for (int i = 0; i < self->desc->parts[p].compare->n_runs; i++) {
                job_out->part = &self->desc->parts[p];
                job_out->run = &self->desc->parts[p].compare->runs[i];
                if (job_out->run->result.outcome != ESPER_COMPARE_PENDING)
                    continue;
                ESPER_TRY(look_at(self, job_out, &any));
                moved |= any;
                if (job_out->run->result.outcome == ESPER_COMPARE_RUNNING) {
                    *found_out = true;
                    return ESPER_OK;
                }
            }
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ what came of it */

esper_status compare_work_end(compare_work *self, compare_job *job, const compare_ending *ending, bool *again_out)
{
    esper_compare_run *run = job->run;
    esper_status status = esper_compare_read(job->config.run_dir, &job->config, &run->result);

    *again_out = false;
    if (status != ESPER_OK) {
        run->result.outcome = ESPER_COMPARE_FAILED;
        snprintf(run->result.why, sizeof(run->result.why), "its store cannot be read: %.200s", esper_last_error());
    } else if (run->result.outcome == ESPER_COMPARE_BROKEN_OFF) {
        memcpy(run->result.why, ending->why, sizeof(ending->why));
    } else if (run->result.outcome == ESPER_COMPARE_PENDING) {
        if (ending->stopped) {
            run->result.outcome = ESPER_COMPARE_STOPPED;
        } else if (job->resume && ending->orderly) { /* its checkpoint was of no use: runs can be made again */
            clear_run(job->config.run_dir);
            job->resume = false;
            run->result.outcome = ESPER_COMPARE_RUNNING;
            *again_out = true;
            return ESPER_OK;
        } else {
            run->result.outcome = ESPER_COMPARE_FAILED;
            memcpy(run->result.why, ending->why, sizeof(ending->why));
        }
    }
    self->n_begun++;
    tell(self, job->part, run, "");
    if (self->n_begun == 1 && self->n_found == 0 && ending->refused)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s", run->result.why); /* what the very first run refuses, all others will */
    return ESPER_OK;
}
