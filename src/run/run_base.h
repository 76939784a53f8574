/* Internal. What `esper train`, `esper grow` and `esper learn` stand on, whatever they do there: task and settings, new or those
 * of the run that goes on; the run's directory; data and engine; the run's row in a store.
 *
 *     init ─► take_up (of a run that goes on) ─► open_engine ─► make_dir ─► begin_dir ─► open_store ... close_store ─► fini */
#ifndef ESPER_RUN_RUN_BASE_H
#define ESPER_RUN_RUN_BASE_H

#include "engine/engine.h"
#include "run/run.h"
#include "telemetry/store.h"

/* As in the jobs' own descriptions, in this order. */
typedef struct run_asked {
    const esper_task            *task;
    const esper_config          *config;
    const char                  *resume;
    const esper_log             *log;
    esper_comm                  *comm;
    const volatile sig_atomic_t *stop, *cut_off;
    int                          threads;
    const esper_engine          *beside; /* or NULL */
} run_asked;

typedef struct run_base {
    run_asked         asked;
    esper_config_job  job;
    const esper_task *task;   /* in force, like the next */
    esper_config      config;
    esper_ranks       ranks;
    bool              writes; /* this process writes down what happens: of all ranks, the first */
    bool              failure_is_known; /* to the other ranks: they have left, and cannot be told again */
    esper_dataset    *data;   /* its own; NULL: it has that of the engine beside it */
    esper_engine     *engine;
    char              kernels[64]; /* what computed the run until now, where it goes on or is replayed; "" = nothing yet */
    char             *dir;    /* (ESPER_PATH_CHARS) the run's, in its result */
    int               lock;   /* of the directory; -1 = none */
    char              record[ESPER_CONFIG_RECORD_CHARS]; /* the configuration as text */
    esper_store      *store;  /* NULL: none is kept */
    int64_t           store_run; /* number in it */
} run_base;

void run_base_init(run_base *self, const run_asked *asked, esper_config_job job, char dir[ESPER_PATH_CHARS]);
void run_base_fini(run_base *self);

/* The end of something that a rank may fail at by itself: then all of them have failed. */
esper_status run_base_settle(run_base *self, esper_status status);

/* The launcher has ended the job: nobody is waited for. */
bool run_base_is_ended(const run_base *self);

/* The run in that file goes on: its task and settings, with what was asked for laid over them as far as that may differ. */
esper_status run_base_take_up(run_base *self, const char *path, const esper_task *task, const esper_config *saved);

/* Data, and an engine with these settings. */
esper_status run_base_open_engine(run_base *self, const esper_config *config);

/* Whether a run goes on where the file lies, unless another directory is asked for. A policy by another name is somebody's copy:
 * what stands beside it is not ours to replace. */
bool run_base_stays(const run_base *self, const char *resumed);

/* The directory, made or gone on in by the rank that writes, and known to all. `resumed`: the file; NULL: a new run. */
esper_status run_base_make_dir(run_base *self, const char *resumed);

/* Locks and cleans it, and puts the configuration there. */
esper_status run_base_begin_dir(run_base *self);

/* Where a run stands, for its store: the epochs that are finished, its step, the entries of its decision log (ESPER_STORE_NO_INT:
 * it has none), and the rows told by then, by table (NULL: they are not counted). */
typedef struct run_mark {
    int64_t        epoch, step, n_decisions;
    const int64_t *rows; /* (ESPER_FACT_N_TABLES) */
} run_mark;

/* The run's row: new, or that of before, cut back to where the run stands. Without a store the job goes on, and says so. */
void run_base_open_store(run_base *self, const esper_fact *start, const esper_run_kin *kin, const run_mark *mark);
void run_base_close_store(run_base *self, const esper_fact *end);

/* Adds the copies for other people's tools that the settings ask for (telemetry/logs.h). epoch: the run stands behind it. What cannot
 * be opened is told, and the job goes on without. */
void run_base_add_logs(run_base *self, esper_bus *bus, bool grows, int64_t epoch);

#endif
