/* Internal. The job of `esper train`: epochs of training and validation, checkpoints, events, and the test at the end. */
#ifndef ESPER_TRAIN_RUN_H
#define ESPER_TRAIN_RUN_H

#include <signal.h>

#include "base/log.h"
#include "train/run_dir.h"
#include "train/trainer.h"

/* One line of a run's history. Accuracies in percent. */
typedef struct esper_epoch_record {
    uint32_t epoch; /* from 1, as people count */
    double   loss_train, acc_train, loss_valid, acc_valid;
    double   lr, grad_norm;
    double   samples_per_s; /* training alone */
    double   seconds;       /* training and validation */
} esper_epoch_record;

/* What a watcher may look at. */
typedef struct esper_run_view {
    const esper_trainer *trainer;
    const char          *run_dir;
    double               samples_per_s; /* of this epoch so far */
    double               seconds_left;  /* of the run's training, at the present speed; < 0 = not known yet */
} esper_run_view;

/* Someone who watches a run. Members may be NULL. Called on the thread of the run; what they do delays it. At the end
 * of an epoch the trainer's cursor still stands there. `evaluation` is called before each batch of a validation or of
 * the test, with the part that is done. */
typedef struct esper_run_observer {
    void *context;
    void (*begin)(void *context, const esper_run_view *view);
    void (*step)(void *context, const esper_run_view *view);
    void (*evaluation)(void *context, const esper_run_view *view, esper_split split, double part);
    void (*epoch)(void *context, const esper_run_view *view, const esper_epoch_record *record);
} esper_run_observer;

typedef struct esper_run_desc {
    const esper_task            *task;   /* NULL when resuming: the checkpoint says */
    const esper_config          *config;
    const char                  *resume; /* a run or a checkpoint file, or NULL */
    const esper_run_observer    *observer; /* or NULL */
    const esper_log             *log;
    const volatile sig_atomic_t *stop; /* becomes non-zero: save and leave. Or NULL */
} esper_run_desc;

typedef struct esper_run_result {
    bool               stopped; /* before the end, on request: a checkpoint was saved */
    esper_cursor       cursor;  /* where it stands; all epochs done and stopped: only the test is missing */
    uint32_t           epochs, steps_per_epoch; /* of the whole run, and of an epoch */
    double             loss_now;                /* of the epoch it stands in; NaN before its first step */
    char               run_dir[ESPER_PATH_CHARS];
    esper_epoch_record last; /* epoch 0 = none was finished */
    double             loss_test, acc_test;
    uint64_t           weight_hash;
    uint64_t           n_skipped, n_rollbacks; /* by the governor */
    int64_t            params;
    double             seconds;
} esper_run_result;

esper_status esper_run_train(const esper_run_desc *desc, esper_run_result *result_out);

#endif
