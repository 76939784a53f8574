/* Internal. The job of `esper train` and `esper grow`: epochs of training and validation, checkpoints, events, and the test at
 * the end. A run that grows also has a decision log and a store. */
#ifndef ESPER_RUN_RUN_H
#define ESPER_RUN_RUN_H

#include <signal.h>

#include "base/log.h"
#include "grow/growth.h"
#include "run/best.h"
#include "run/checkpoint.h"
#include "run/run_dir.h"
#include "run/task.h"
#include "engine/network.h"

/* What a watcher may look at. */
typedef struct esper_run_view {
    const esper_task    *task;
    const esper_network *network;
    const esper_growth  *growth;  /* NULL: the network stays as it is */
    const char          *run_dir;
    double               samples_per_s; /* of this epoch so far */
    double               seconds_left;  /* of the run's training, at the present speed; < 0 = not known yet */
} esper_run_view;

/* Someone who watches a run. Members may be NULL. Called on the thread of the run; what they do delays it. At the end
 * of an epoch the network's cursor still stands there. `evaluation` is called before each batch of a validation, of a trial (of the training split), or of
 * the test, with the part that is done. */
typedef struct esper_run_observer {
    void *context;
    void (*begin)(void *context, const esper_run_view *view);
    void (*step)(void *context, const esper_run_view *view);
    void (*evaluation)(void *context, const esper_run_view *view, esper_split split, double part);
    void (*epoch)(void *context, const esper_run_view *view, const esper_epoch_record *record);
    void (*incident)(void *context, const esper_run_view *view, const esper_incident *incident);
} esper_run_observer;

/* What a run is to another one of the same store. */
typedef struct esper_run_kin {
    const char *store;    /* path of the store; NULL = one of its own */
    int64_t     parent;   /* number of the other run there */
    const char *relation; /* "static-control" */
} esper_run_kin;

/* What a job does about a wish to stop. Whoever is in doubt for too long may end the process at any time, as by SIGKILL. */
typedef enum esper_hearing {
    ESPER_HEARS_NOTHING, /* it opens what it needs, and there is nothing to save yet */
    ESPER_HEARS,         /* it looks at `stop` between steps, batches and the like */
    ESPER_HEARS_AND_LEAVES /* it has seen it and saves, or is done anyway */
} esper_hearing;

typedef struct esper_run_desc {
    const esper_task            *task;   /* NULL when resuming: the checkpoint says */
    const esper_config          *config;
    const char                  *resume; /* a run or a checkpoint file, or NULL */
    bool                         grows;
    const esper_decision_history *replay; /* grows by these decisions and writes nothing; or NULL */
    const esper_run_kin         *kin;    /* or NULL */
    const esper_run_observer    *observer; /* or NULL */
    const esper_log             *log;
    const volatile sig_atomic_t *stop; /* becomes non-zero: save and leave. Or NULL */
    volatile sig_atomic_t *hears; /* is told how far it is with that, an esper_hearing. Or NULL */
    /* of a job of several ranks, which all call this alike; rank 0 writes */
    esper_comm                  *comm;    /* NULL: there is but one */
    const volatile sig_atomic_t *cut_off; /* becomes non-zero: the job is over, nobody is waited for. Or NULL */
    int                          threads; /* for a configuration that says 0; 0 = every core */
    /* Of runs side by side in one process, each on a thread of its own: whose backend it shares, and of the same data that, too; and
     * the stream of its thread (esper_backend_each). NULL: it has its own. */
    const esper_engine          *beside;
    esper_backend_stream        *stream;
} esper_run_desc;

typedef struct esper_run_result {
    bool               stopped; /* before the end, on request: a checkpoint was saved */
    esper_cursor       cursor;  /* where it stands; all epochs done and stopped: only the test is missing */
    uint32_t           epochs, steps_per_epoch; /* of the whole run, and of an epoch */
    double             loss_now;                /* of the epoch it stands in; NaN before its first step */
    char               run_dir[ESPER_PATH_CHARS];
    esper_epoch_record last; /* epoch 0 = none was finished */
    esper_best         best;
    double             loss_test, acc_test;
    double             total_reward; /* the run's return; NaN = none */
    uint64_t           weight_hash;
    uint64_t           n_skipped, n_rollbacks; /* by the governor */
    int64_t            params;
    double             seconds;
    char               unwritten[1024]; /* a sentence about what the disk did not take; "": all is written */
    /* of a run that grows */
    int64_t            params_host, store_run; /* number in its store; 0 = there is none */
    double             flops_sample, flops_train;
    uint64_t           n_faults_left; /* of drills: they found nothing to strike */
    uint64_t           n_replayed; /* of a replay: entries of the log that came again, all with equal weights */
    char               kept[ESPER_CONFIG_TEXT_CHARS]; /* seeds that were kept, as `plant` takes them */
} esper_run_result;

/* The text of a failure says what to do next. */
esper_status esper_run_train(const esper_run_desc *desc, esper_run_result *result_out);

/* Whether the run of this checkpoint has told its end, in its events and in its store (kin: as in the run's description). One that
 * was killed behind its last checkpoint, or stopped in its test, has not: resumed, it is tested and ends. */
bool esper_run_is_closed(const char *checkpoint, const esper_run_kin *kin);

/* Whether the run of a checkpoint, which lies at `path`, has had all that `asked` (or, where that says nothing, the run itself) wants, and
 * is closed. */
bool esper_run_is_done(const esper_checkpoint *checkpoint, const char *path, const esper_config *asked,
                       const esper_run_kin *kin);

#endif
