/* The runs of comparisons as threads of this process.
 *
 * A thread takes a run, carries it out and takes the next one; the lock is held for what is to be run and what came of it, never
 * while something is computed. A backend that serves all threads together is told when one of them does something else.
 *
 *     house of seed 0 (threads, backend, plans, data) ◄── house of seed 1 (data) ...      opened before the threads, closed behind
 *            ▲                    ▲
 *          run a                run b ...                                                 each with an engine beside its house */
#include "cli/compare_together.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/compare_work.h"
#include "nn/blueprint_text.h"
#include "run/backend_choice.h"
#include "run/run.h"
#include "run/single.h"
#include "ui/grow_observer.h"
#include "ui/live.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum {
    MOST_HOUSES = 16, /* the data of so many seeds lies there all the time; runs of other seeds bring their own */
    FILES_OF_A_RUN =
        12, /* its log, events, decisions, store with what stands beside that, its lock; and a file being written */
    FILES_OF_PROCESS = 64,
};

static const double plain_s = 20.0; /* between lines that say how far all of it is */

typedef struct house {
    esper_dataset *data;
    esper_engine  *engine;
} house;

typedef struct together {
    const esper_compare_desc *desc;
    house                     houses[MOST_HOUSES]; /* by seed */
    int                       n_houses;
    pthread_mutex_t           lock; /* of all below, and of the comparisons */
    pthread_cond_t            turn; /* a run has ended, or all are to end */
    compare_work              work;
    int                       n_running, limit; /* runs under way; as many as there is room for */
    int                       n_started;
    double                   *shares;           /* (work.n_runs) of each run, by place_of: how far it is */
    double                    known;            /* of all of it, when this began */
    esper_live                live;
    bool                      lost;   /* the device is */
    esper_status              status; /* what ends all of it */
    char                      message[1024];
} together;

/* A run under way. */
typedef struct member {
    together           *all;
    compare_job         job;
    double             *share;
    int                 started; /* as the how-manieth; 0: others were there */
    esper_grow_observer watch; /* writes the run's log */
    esper_run_observer  inner; /* of it */
} member;

/* ------------------------------------------------------------------------------------------------ how far all of it is */

static int place_of(const together *self, const esper_compare_part *part, const esper_compare_run *run)
{
    int place = (int)(run - part->compare->runs);

    for (const esper_compare_part *before = self->desc->parts; before < part; before++)
        place += before->compare->n_runs;
    return place;
}

/* By FLOPs; those of runs that are over count whole. */
static double part_done(const together *self)
{
    double done = 0.0, all = 0.0;
    int place = 0;

    for (int p = 0; p < self->desc->n_parts; p++) {
        const esper_compare *compare = self->desc->parts[p].compare;

        for (int i = 0; i < compare->n_runs; i++, place++) {
            esper_compare_outcome outcome = compare->runs[i].result.outcome;
            bool is_over = outcome != ESPER_COMPARE_PENDING && outcome != ESPER_COMPARE_RUNNING;

            done += (is_over ? 1.0 : self->shares[place]) * compare->flops;
            all += compare->flops;
        }
    }
    return done / all;
}

/* "  12/81  [====>     ]  34 %  48 under way, about 3:20 left"; the lock is held. */
static void show(together *self)
{
    double part, seconds = esper_clock_seconds() - self->work.began;
    char words[128], took[ESPER_TEXT_CHARS], where[32];

    if (!esper_live_is_due(&self->live, plain_s))
        return;
    part = part_done(self);
    snprintf(
        words, sizeof(words), "%d under way, about %s left", self->n_running,
        esper_text_duration(part > self->known + 0.01 ? seconds * (1.0 - part) / (part - self->known) : -1.0, took));
    snprintf(where, sizeof(where), "%4d/%d", self->work.n_runs - compare_work_left(&self->work), self->work.n_runs);
    if (self->live.bar)
        esper_live_draw(&self->live, where, part, words);
    else
        esper_terminal_print(self->desc->progress, "%s  %.0f %% of all training, %s\n", where, 100.0 * part, words);
    fflush(self->desc->progress);
}

static void begin(void *context, const esper_run_view *view)
{
    member *self = context;

    self->inner.begin(self->inner.context, view);
}

static void epoch(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    member *self = context;
    together *all = self->all;

    self->inner.epoch(self->inner.context, view, record);
    pthread_mutex_lock(&all->lock);
    *self->share = esper_network_share(view->network);
    show(all);
    pthread_mutex_unlock(&all->lock);
}

static void incident(void *context, const esper_run_view *view, const esper_incident *what)
{
    member *self = context;

    self->inner.incident(self->inner.context, view, what);
}

/* ------------------------------------------------------------------------------------------------ a run */

static esper_status open_log(const compare_job *job, FILE **log_out)
{
    char path[ESPER_PATH_CHARS];
    int file;

    ESPER_TRY(compare_work_path(job->part, job->run, ".log", path));
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (job->resume ? 0 : O_TRUNC), 0666);
    *log_out = file >= 0 ? fdopen(file, "a") : NULL;
    if (*log_out != NULL)
        return ESPER_OK;
    if (file >= 0)
        close(file);
    return ESPER_FAIL(ESPER_E_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static void log_end(FILE *log, const esper_run_result *result)
{
    char loss[ESPER_TEXT_CHARS];

    if (result->stopped)
        fprintf(log, "stopped in epoch %u after %u of %u batches\n", result->cursor.epoch + 1, result->cursor.batch,
                result->steps_per_epoch);
    else
        fprintf(log, "test      %.2f %%, loss %s\nweights   %016" PRIx64 "\n", result->acc_test,
                esper_text_loss(result->loss_test, loss), result->weight_hash);
    if (result->unwritten[0] != '\0')
        fprintf(log, "esper: %s\n", result->unwritten);
}

/* As `esper grow` would. No steps are shown: a look at a run that a device is at would keep all others waiting. */
static esper_status grow(member *self, esper_backend_stream *stream, bool *stopped_out)
{
    const esper_compare_desc *desc = self->all->desc;
    const compare_job *job = &self->job;
    int seed = job->run->seed < self->all->n_houses ? job->run->seed : 0;
    esper_run_observer observer = {.context = self, .begin = begin, .epoch = epoch, .incident = incident};
    esper_run_result result = {.stopped = false};
    esper_log log = {.level = job->config.log_level};
    esper_run_desc run = {.task = job->resume ? NULL : job->part->compare->task,
                          .config = &job->config,
                          .resume = job->resume ? job->config.run_dir : NULL,
                          .grows = true,
                          .observer = &observer,
                          .log = &log,
                          .stop = desc->stop,
                          .beside = self->all->houses[seed].engine,
                          .stream = stream};
    esper_status status;

    ESPER_TRY(open_log(job, &log.stream));
    esper_grow_observer_init(&self->watch, ESPER_CONFIG_PROGRESS_PLAIN, log.stream);
    self->inner = esper_grow_observer_of(&self->watch);
    status = esper_run_train(&run, &result);
    if (status == ESPER_OK)
        log_end(log.stream, &result);
    else
        fprintf(log.stream, "esper: %s\n", esper_last_error());
    fclose(log.stream);
    *stopped_out = result.stopped || status == ESPER_E_STOPPED;
    return status;
}

/* A run that found no room beside others goes on later, when fewer are there; the lock is held. */
static bool waits_for_room(together *self, const member *one, esper_status status)
{
    int n = self->n_running > 1 ? self->n_running - 1 : 1;
    bool alone = one->started == self->n_started;

    if (status != ESPER_E_NOMEM || alone)
        return false;
    self->limit = n < self->limit ? n : self->limit;
    one->job.run->result.outcome = ESPER_COMPARE_PENDING;
    return true;
}

static void give_up(together *self, esper_status status)
{
    if (self->status != ESPER_OK)
        return;
    self->status = status;
    snprintf(self->message, sizeof(self->message), "%s", esper_last_error());
}

/* What came of it; *again_out: once more from its beginning. The lock is held. */
static void end(together *self, member *one, esper_status status, bool stopped, bool *again_out)
{
    compare_job *job = &one->job;
    compare_ending ending = {.stopped = stopped,
                             .orderly = status != ESPER_E_DEVICE && status != ESPER_E_NOMEM,
                             .refused = status == ESPER_E_CONFIG || status == ESPER_E_ARG};

    *again_out = false;
    if (self->live.bar)
        esper_live_clear(&self->live);
    if (status == ESPER_E_DEVICE || (self->lost && status != ESPER_OK)) { /* what they all say is said once */
        self->lost = true;
        job->run->result.outcome = ESPER_COMPARE_STOPPED;
        give_up(self, ESPER_E_DEVICE);
        return;
    }
    if (waits_for_room(self, one, status))
        return;
    if (status != ESPER_OK)
        snprintf(ending.why, sizeof(ending.why), "%s", esper_last_error());
    status = compare_work_end(&self->work, job, &ending, again_out);
    if (status != ESPER_OK)
        give_up(self, status);
    show(self);
}

static void play(member *self, esper_backend_stream *stream)
{
    together *all = self->all;
    esper_backend *backend = all->houses[0].engine->backend;
    esper_status status;
    bool stopped = false, again = true;

    self->share = &all->shares[place_of(all, self->job.part, self->job.run)];
    while (again) {
        pthread_mutex_unlock(&all->lock);
        esper_backend_stand_by(backend, false);
        status = grow(self, stream, &stopped);
        esper_backend_stand_by(backend, true);
        pthread_mutex_lock(&all->lock);
        end(all, self, status, stopped, &again);
    }
}

/* What each thread does. Where items run in turn, the first one does all. */
static void play_all(void *context, int item, esper_backend_stream *stream)
{
    together *self = context;
    esper_backend *backend = self->houses[0].engine->backend;
    member *mine = esper_mem_alloc(sizeof(*mine));
    esper_status status = mine != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "a run");

    (void)item;
    esper_backend_stand_by(backend, true);
    pthread_mutex_lock(&self->lock);
    while (status == ESPER_OK && self->status == ESPER_OK && *self->desc->stop == 0) {
        bool found = false;

        mine->all = self;
        if (self->n_running < self->limit)
            status = compare_work_next(&self->work, &mine->job, &found);
        if (status != ESPER_OK || (!found && self->n_running == 0))
            break;
        if (!found) {
            pthread_cond_wait(&self->turn, &self->lock);
            continue;
        }
        self->n_started++;
        mine->started = self->n_running++ == 0 ? self->n_started : 0;
        play(mine, stream);
        self->n_running--;
        pthread_cond_broadcast(&self->turn);
    }
    if (status != ESPER_OK)
        give_up(self, status);
    pthread_cond_broadcast(&self->turn);
    pthread_mutex_unlock(&self->lock);
    esper_backend_stand_by(backend, false);
    esper_mem_free(mine);
}

/* ------------------------------------------------------------------------------------------------ the house */

/* What there is one of: texts of blueprints are known to all of a process, so that runs would see each other's; and how products are
 * made is the backend's. */
static esper_status settle_lines(const compare_work *work)
{
    const esper_config *common = &work->desc->parts[0].compare->config;
    esper_config *config = esper_mem_alloc(sizeof(*config));
    esper_status status = config != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "a configuration");

    for (int p = 0; p < work->desc->n_parts; p++)
        for (int i = 0; status == ESPER_OK && i < work->desc->parts[p].compare->n_lines; i++) {
            status = esper_compare_configure_line(work->desc->parts[p].compare, i, config);
            if (status == ESPER_OK && config->widen)
                esper_blueprint_add_wide();
            if (status == ESPER_OK && config->precision != common->precision)
                status = ESPER_FAIL(ESPER_E_CONFIG,
                                    "%s: runs side by side on one backend have one precision: give it as a flag",
                                    work->desc->parts[p].compare->lines[i].name);
            if (status == ESPER_OK && strcmp(config->add_blueprints, common->add_blueprints) != 0)
                status = ESPER_FAIL(ESPER_E_CONFIG,
                                    "%s: runs side by side in one process have the same blueprints: give "
                                    "--add-blueprints as a flag, for all of them%s",
                                    work->desc->parts[p].compare->lines[i].name,
                                    common->backend == ESPER_CONFIG_BACKEND_CUDA ? "" : ", or leave out --together");
        }
    esper_mem_free(config);
    return status == ESPER_OK ? esper_blueprint_texts_add(common->add_blueprints) : status;
}

static esper_status open_house(together *self, int seed)
{
    const esper_compare *compare = self->desc->parts[0].compare;
    static const esper_config_source source = {.place = ESPER_CONFIG_PRESET};
    esper_config config = compare->config;
    esper_backend_choice choice;
    esper_dataset_desc data;
    house *mine = &self->houses[seed];

    config.seed = esper_compare_seed(compare, seed);
    data = esper_task_data(compare->task, &config);
    ESPER_TRY(esper_dataset_open(&data, &mine->data));
    self->n_houses++;
    if (seed > 0)
        return esper_single_engine_beside(compare->task, &config, ESPER_USE_GROW, mine->data, self->houses[0].engine,
                                          &mine->engine);
    ESPER_TRY(esper_backend_choose(compare->task, &config, &compare->data, NULL, &choice));
    if (choice.name != NULL) {
        esper_config_withdraw(&config, esper_config_find("backend"));
        ESPER_TRY(esper_config_set(&config, "backend", choice.name, &source));
    }
    return esper_single_engine(compare->task, &config, ESPER_USE_GROW, mine->data, self->desc->threads, &mine->engine);
}

static esper_status open_houses(together *self)
{
    int n_seeds = self->desc->parts[0].compare->n_seeds;

    for (int seed = 0; seed < n_seeds && seed < MOST_HOUSES; seed++)
        ESPER_TRY(open_house(self, seed));
    self->shares = esper_mem_alloc((size_t)self->work.n_runs * sizeof(*self->shares));
    return self->shares != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "%d runs", self->work.n_runs);
}

static void close_houses(together *self)
{
    for (int seed = self->n_houses - 1; seed >= 0; seed--) {
        esper_engine_close(self->houses[seed].engine);
        esper_dataset_close(self->houses[seed].data);
    }
    esper_mem_free(self->shares);
}

/* How many runs may have their files open: as far as the system lets us, which often only asks to be asked. */
static int room_for_files(int n)
{
    rlim_t wanted = (rlim_t)n * FILES_OF_A_RUN + FILES_OF_PROCESS;
    struct rlimit limit;
    int room;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return n;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return n;
    room = ((int)limit.rlim_cur - FILES_OF_PROCESS) / FILES_OF_A_RUN;
    return room > 1 ? room : 1;
}

static void run_threads(together *self)
{
    const esper_engine *engine = self->houses[0].engine;
    int width = esper_backend_width(engine->backend, engine->pool), n = self->work.n_runs;

    n = n < self->desc->jobs ? n : self->desc->jobs;
    n = n < width ? n : width;
    self->limit = room_for_files(n);
    if (self->limit < n)
        esper_terminal_print(self->desc->progress,
                             "%*s  no more than %d at a time: ulimit -n lets them open no more files\n", 9, "",
                             self->limit);
    n = self->limit;
    self->known = part_done(self);
    esper_live_init(&self->live, self->desc->parts[0].compare->config.progress, self->desc->progress);
    esper_backend_each(engine->backend, n, play_all, self);
    esper_live_clear(&self->live);
    if (self->limit < n)
        esper_terminal_print(self->desc->progress, "%*s  there was room for %d at a time\n", 9, "", self->limit);
}

esper_status esper_compare_run_together(const esper_compare_desc *desc)
{
    together *self = esper_mem_alloc(sizeof(*self));
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the runs of a comparison");
    self->desc = desc;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->turn, NULL);
    compare_work_init(&self->work, desc);
    status = settle_lines(&self->work);
    if (status == ESPER_OK)
        status = open_houses(self);
    if (status == ESPER_OK) {
        run_threads(self);
        status = self->status;
    }
    close_houses(self);
    if (self->lost) /* told now: closing has failed, too */
        ESPER_FAIL(
            status,
            "the device is lost (%s). What has ended is kept, and the other runs have their checkpoints: the same "
            "command, with its --dir, goes on",
            self->message);
    else if (self->status != ESPER_OK)
        ESPER_FAIL(status, "%s", self->message);
    pthread_cond_destroy(&self->turn);
    pthread_mutex_destroy(&self->lock);
    esper_mem_free(self);
    return status;
}
