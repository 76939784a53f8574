/* Internal. One network on one data set: the step, the evaluation, and the exact state between them.
 *
 * State is the slab, the optimiser's count of steps, the cursor and the tally; everything else (order, augmentation,
 * dropout, learning rate) is a function of the configuration and the cursor. So a checkpoint is small, and a resumed run is the unbroken run bit for bit. */
#ifndef ESPER_ENGINE_TRAINER_H
#define ESPER_ENGINE_TRAINER_H

#include <signal.h>

#include "data/batch.h"
#include "nn/optim.h"
#include "slot/splice.h"
#include "tensor/plan.h"
#include "engine/ranks.h"
#include "engine/task.h"

/* Where the run stands: the next batch to train on. */
typedef struct esper_cursor {
    uint32_t epoch, batch; /* from 0; batch == steps of an epoch: the epoch's training is done, its end is not */
    uint64_t step;         /* optimiser steps taken in all */
} esper_cursor;

/* Sums over the batches of an epoch or an evaluation. */
typedef struct esper_tally {
    double   loss;    /* sum over targets */
    uint64_t correct; /* targets */
    uint64_t targets, samples;
} esper_tally;

double esper_tally_loss(const esper_tally *tally);     /* mean over targets; NaN when there are none */
double esper_tally_accuracy(const esper_tally *tally); /* percent; NaN likewise */

/* The last epochs of a run, in which the rate falls once more: growing is over then. 0: there are none. */
int esper_finish_epochs(const esper_config *config);

/* A batch by its place: batch of an epoch, in the order of a draw (data/batch.h). */
typedef struct esper_place {
    uint32_t epoch, batch, draw;
} esper_place;

/* What was decided on the way: like the cursor it is state, but going back does not undo it. */
typedef struct esper_detour {
    uint32_t     draw;     /* which order of an epoch's samples is in force; 0 at first */
    double       lr_scale; /* what the schedule's rate is multiplied by; 1 at first */
    esper_place *passed;   /* batches to pass over when the cursor meets them */
    uint32_t     n_passed, room_passed;
} esper_detour;

/* What a trainer is for. */
typedef enum esper_use {
    ESPER_USE_EVALUATE, /* no gradients and no moments */
    ESPER_USE_TRAIN,    /* a network that stays as it is */
    ESPER_USE_GROW,     /* the slab has room for a seed in every slot */
} esper_use;

/* State of somebody else that goes where the trainer's goes: into snapshots and checkpoints. */
typedef struct esper_companion {
    void  *context;
    size_t bytes; /* of what pack writes; stays the same */
    void (*pack)(void *context, void *bytes_out);
    /* whole: from a checkpoint; else from a snapshot, and what a rollback does not undo stays as it is. */
    esper_status (*unpack)(void *context, const void *bytes, bool whole);
} esper_companion;

typedef struct esper_trainer {
    /* Read-only for others. */
    const esper_task *task;
    esper_config      config;
    esper_pool       *pool;
    esper_backend    *backend;
    esper_dataset    *data;
    esper_host        host;
    esper_slots       slots; /* state; whoever changes it calls esper_trainer_replan */
    esper_net         net;   /* host and seeds, as the slots say */
    esper_slab        slab;
    esper_plan       *plan;
    esper_optim      *optim; /* NULL for inference */
    esper_cursor      cursor;
    esper_tally       tally; /* of the present epoch's training */
    esper_detour      detour;
    uint32_t          steps_per_epoch;
    double            grad_norm; /* of the last step, before clipping */
    double            lr;        /* of the last step */
    esper_governor   *governor;  /* NULL, or who judges this training (guarded.h): checkpoints keep its memory */
    esper_companion   companion; /* pack NULL: there is none */
    esper_ranks       ranks;     /* among which it is one */
    /* Private. */
    bool           borrows_data;
    esper_splice   splice;
    uint64_t       program;                       /* key of what is planned */
    int            alpha_input[ESPER_MAX_SLOTS];  /* tensor, or ESPER_NO_TENSOR */
    struct esper_side *side[ESPER_MAX_SLOTS];     /* where a seed learns aside; NULL elsewhere */
    esper_pass     pass;
    esper_exchange exchange; /* sum NULL: norms are each rank's own */
    esper_sampler *samplers[ESPER_N_SPLITS];
    uint32_t      *sample_ids; /* (batch) */
    esper_batch_sums sums;     /* of the batch whose gradients are there */
    uint32_t       n_loaded;
    bool           epoch_drawn;
} esper_trainer;

/* Loads the data, builds the network with weights born from the seed, plants the seeds that the configuration names, and
 * plans. The configuration is copied. Works on storage of the caller's that must not move until esper_trainer_fini. */
esper_status esper_trainer_init(esper_trainer *trainer, const esper_task *task, const esper_config *config,
                                esper_use use);
/* The same on data that is there already: many networks learn from one set. Borrowed until fini. */
esper_status esper_trainer_init_on(esper_trainer *trainer, esper_dataset *data, const esper_task *task,
                                   const esper_config *config, esper_use use);
void         esper_trainer_fini(esper_trainer *trainer);

/* Becomes one of the ranks of a job (borrowed): takes its part of every batch from now on. Right after esper_trainer_init, on
 * all ranks; their weights are found to be equal. */
esper_status esper_trainer_join(esper_trainer *trainer, esper_comm *comm);

/* The slots have changed: builds the program anew where that is due, plans it, and tells the optimiser which seeds learn.
 * On failure the old program stays. */
esper_status esper_trainer_replan(esper_trainer *trainer);

/* Empties the region of a slot and fills it with the weights its present seed is born with. The slab must have room. */
esper_status esper_trainer_bear(esper_trainer *trainer, int slot);

/* A region as if no seed had ever been there. */
void esper_trainer_clear_region(esper_trainer *trainer, int slot);

/* One step on the cursor's batch; moves the cursor and adds to the tally. Not past the epoch's end. Where the rest of the
 * epoch is to be passed over there is nothing to train on, and the cursor moves to the end. */
esper_status esper_trainer_step(esper_trainer *trainer);

/* The same in parts, for those who look between them: is there a batch (after those to pass over)? This rank's gradients;
 * those of all ranks; then the step they make, or none. Without the step nothing has changed but the gradients and the norm
 * buffers. */
bool         esper_trainer_batch_due(esper_trainer *trainer);
esper_status esper_trainer_gradients(esper_trainer *trainer);
esper_status esper_trainer_exchange(esper_trainer *trainer);
esper_status esper_trainer_apply(esper_trainer *trainer);

/* Detours. Batches to pass over are places in the draw in force; those before a cursor can be forgotten when the run will
 * not come back there. A new draw takes effect at once, also in the middle of an epoch. */
esper_status esper_trainer_pass_over(esper_trainer *trainer, uint32_t epoch, uint32_t batch);
void         esper_trainer_forget_before(esper_trainer *trainer, const esper_cursor *cursor);
void         esper_trainer_redraw(esper_trainer *trainer, uint32_t draw);

/* Where a trainer stands, but for the slab. */
typedef struct esper_position {
    esper_cursor cursor;
    esper_tally  tally;
    uint32_t     ages[ESPER_MAX_REGIONS]; /* steps that each region's group has taken; 0 beyond the slab's regions */
    esper_slots  slots;
} esper_position;

/* Bytes between members are 0, so that equal positions are equal bytes. */
void esper_trainer_position(const esper_trainer *trainer, esper_position *position_out);
/* Puts the trainer there, its network too; the slab is the caller's to put back. */
esper_status esper_trainer_go_back(esper_trainer *trainer, const esper_position *position);

/* Begins the next epoch: cursor and tally. */
void esper_trainer_next_epoch(esper_trainer *trainer);

/* Someone who follows an evaluation. Members may be NULL. */
typedef struct esper_follower {
    const volatile sig_atomic_t *stop; /* becomes non-zero: leave */
    void                        *context;
    void (*batch)(void *context, esper_split split, uint32_t n_done, uint32_t n_batches); /* before each */
} esper_follower;

/* Goes once through a split with the weights as they are. A trainer that trains meets its training split as it trains
 * on it, augmented; one for evaluation meets every split whole and plain. E_STOPPED when the follower (or NULL) wants
 * no more: there is no tally then, and nothing has changed. */
esper_status esper_trainer_evaluate(esper_trainer *trainer, esper_split split, const esper_follower *follower,
                                    esper_tally *tally_out);

/* Batches of a split that count: max_steps caps validation as it caps epochs, but not the test. */
uint32_t esper_trainer_batches(const esper_trainer *trainer, esper_split split);

/* Puts this rank's part of a batch into the inputs of a plan of the trainer's, made for its pass, and tells the pass about
 * it. A part without samples is not to be run. */
void esper_trainer_load(esper_trainer *trainer, const esper_plan *plan, const esper_net *net, esper_split split,
                        uint32_t batch);

/* What the parts said they would take, in bytes: the prediction that the allocation border is held to. */
typedef struct esper_memory {
    size_t data, slab, activations, tables, total;
} esper_memory;

esper_memory esper_trainer_memory(const esper_trainer *trainer);

/* The most samples of a batch that fall to one rank: what its plans are made for. */
int esper_trainer_max_samples(const esper_trainer *trainer);

/* FLOPs of a full batch, of all ranks together: of such a plan's passes, and of a training step. */
double esper_trainer_plan_flops(const esper_trainer *trainer, const esper_plan *plan);
double esper_trainer_step_flops(const esper_trainer *trainer);

/* Samples of the batch that was loaded last, of all ranks together. */
uint32_t esper_trainer_n_loaded(const esper_trainer *trainer);

/* Parameters of the network as it is tested: seeds that only learn have no part in it. */
int64_t esper_trainer_params(const esper_trainer *trainer);

uint64_t esper_trainer_hash(const esper_trainer *trainer);

#endif
