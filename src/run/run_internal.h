/* Internal. What the parts of a run (run/run.h) share: run_open.c is how it begins, run.c the loop, run_tell.c what is told of it,
 * run_ranks.c what there is to it when several ranks work on one run. */
#ifndef ESPER_RUN_RUN_INTERNAL_H
#define ESPER_RUN_RUN_INTERNAL_H

#include "grow/epoch.h"
#include "run/best.h"
#include "run/policy_note.h"
#include "run/run_base.h"

typedef struct run {
    run_base              base;
    const esper_run_desc *desc;
    esper_network        *network;
    esper_growth         *growth;  /* NULL: the network stays as it is */
    esper_bus             bus;
    esper_run_result      result;
    char                  checkpoint[ESPER_PATH_CHARS], sound[ESPER_PATH_CHARS], before[ESPER_PATH_CHARS];
    char                  best_path[ESPER_PATH_CHARS];
    esper_best            best;
    char                  resumed_from[ESPER_PATH_CHARS];
    char                  resumed_kernels[64]; /* backend and kernel set that wrote it */
    char                  policy_note[ESPER_POLICY_NOTE_CHARS]; /* what a learned policy was trained otherwise with; "" = nothing */
    double                began, read_at;
    esper_epoch_player    player;
    uint32_t              saved_epoch;         /* epochs behind the checkpoint that lies there */
    uint64_t              saved_step;          /* and steps */
    uint64_t              midst_step; /* of an epoch, at which it was resumed; UINT64_MAX: not in the midst */
    bool                  again; /* it is to be resumed from an earlier checkpoint */
    bool                  warned;
    bool                  is_unsaved, best_is_unsaved, log_waits; /* the disk did not take the last checkpoint; the best network's;
                                                                     entries of the log */
    char                  why_unsaved[512];
    volatile sig_atomic_t stop;    /* somebody wants the run to stop; of several ranks, all know */
    bool                  store_ended; /* the store knows how the run ended */
    double               *vitals; /* the governor's memory before it judged the epoch, of a run that grows */
    size_t                n_vitals;
} run;

/* run_open.c */
esper_status run_open(run *self);
void         run_measure_network(run *self);                     /* its size and price, now */
bool         run_computes_alike(const char *identity, const char *other); /* two backends' */

/* Of runs side by side: the others are not to wait for this one, which is at work on the host (on), or has done it. */
void run_stand_by(const run *self, bool on);

/* run.c. As the network stands, behind the rows of the store; of a state in doubt, the checkpoint before stays beside it. */
esper_status run_write_checkpoint(run *self);

/* Where the checkpoint stands that is on disk, whoever wrote it; false: there is none. */
bool run_look_at_disk(const run *self, esper_cursor *cursor_out);

/* run_tell.c */
esper_fact run_fact(const run *self, esper_fact_kind kind);   /* of now, with nothing in it */
esper_fact run_start(const run *self);                        /* its identity, for its first line and its row */
esper_fact run_end(const run *self, esper_status status);     /* what came of it, for the last line and the row */
void run_tell(run *self, esper_fact *fact);
void run_tell_start(run *self);
void run_tell_incident(run *self, const esper_incident *incident);
void run_warn_if_not_finite(run *self, const esper_epoch_record *record);

/* To who watches: an epoch, an incident, or, without either, a step; and a batch of an evaluation. */
void run_show(const run *self, const esper_epoch_record *record, const esper_incident *incident);
void run_show_evaluation(void *context, esper_split split, uint32_t n_done, uint32_t n_batches);

/* run_ranks.c. Each rank opens its engine and network by itself, with its share of the machine's cores; on the way they find out
 * whether they can work together. */
esper_status run_open_network(run *self);

/* A checkpoint was restored from `path`: did all ranks read the same? */
esper_status run_check_restored(const run *self, const char *path);

/* Asked between steps, and between batches of an evaluation: one rank's wish is everybody's, so that all leave at the same place. A
 * rank alone need not ask. */
esper_status run_ask_to_stop(run *self);
bool         run_stop_wanted(const run *self);

/* Whether the other ranks are out of reach, or about to be: the launcher has ended the job. */
bool run_is_cut_off(const run *self);

/* Fails with the reason why they are, which may have been met where nobody could tell it: in the midst of a validation. */
esper_status run_tell_cut_off(run *self);

/* At the end of an epoch: do all ranks stand where this one does? They compute alike, so what differs is a fault, and nobody can go
 * on. What they last agreed on is saved then, unless it is. */
esper_status run_agree(run *self);

/* This rank is cut off: what it still has of the state that all shared is saved, unless something newer is. Every survivor does so, as
 * none knows which of them there are; their files are of the same run, and the last one stays. Gives `status`, with what to
 * do next. */
esper_status run_rescue(run *self, esper_status status);

#endif
