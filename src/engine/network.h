/* Internal. A network of an engine: a record of its exact state, the step, and the evaluation.
 *
 * State is the slab, the slot table, the optimiser's count of steps, the cursor and the tally; everything else (order,
 * augmentation, dropout, learning rate) is a function of the configuration, the seed and the cursor. So a checkpoint is small, a
 * resumed run is the unbroken run bit for bit, and a fork is a copy. */
#ifndef ESPER_ENGINE_NETWORK_H
#define ESPER_ENGINE_NETWORK_H

#include <signal.h>

#include "base/fields.h"
#include "nn/optim.h"
#include "slot/splice.h"
#include "engine/engine.h"

/* Where the run stands: the next batch to train on. */
typedef struct esper_cursor {
    uint32_t epoch, batch; /* from 0; batch == steps of an epoch: the epoch's training is done, its end is not */
    uint64_t step;         /* optimiser steps taken in all */
    uint64_t spent;        /* training FLOPs that led here; of what was undone, batches that are passed over since */
} esper_cursor;

/* Sums over the batches of an epoch or an evaluation. */
typedef struct esper_tally {
    double   loss;    /* sum over targets */
    uint64_t correct; /* targets */
    uint64_t targets, samples;
} esper_tally;

double esper_tally_loss(const esper_tally *tally);     /* mean over targets; NaN when there are none */
double esper_tally_accuracy(const esper_tally *tally); /* percent; NaN likewise */

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

/* State of somebody else that goes into a checkpoint of the network, as a note of text. */
typedef struct esper_state_part {
    const char *name; /* of the note */
    void       *context;
    esper_status (*write)(void *context, esper_page *out); /* nothing is written: there is no such note */
    esper_status (*read)(void *context, const char *text);
} esper_state_part;

enum { ESPER_MAX_PARTS = 4 };

/* State of somebody else that goes into snapshots of the network. */
typedef struct esper_companion {
    void  *context;
    size_t bytes; /* of what pack writes; stays the same */
    void (*pack)(void *context, void *bytes_out);
    /* whole: as if the run had never gone on from there; else what a rollback does not undo stays as it is. */
    esper_status (*unpack)(void *context, const void *bytes, bool whole);
} esper_companion;

/* A rate that falls to 0 along a straight line, apart from the run's schedule: that of a fork on trial. */
typedef struct esper_descent {
    double   lr;      /* it falls from */
    uint64_t from;    /* this step on */
    uint64_t n_steps; /* in so many; 0: the schedule's rate is in force */
} esper_descent;

enum { ESPER_NETWORK_ROWS = 16 }; /* batches whose results are read together, at most */
enum { ESPER_NETWORK_BANKS = 2 };  /* of so many rows: those that are being filled, and those that are under way */

/* A batch whose results are not read yet: what the host knows of it. */
typedef struct esper_row {
    esper_cursor cursor;    /* where the run stood */
    double       lr_before; /* the rate of the step before */
    int          n_samples;
    uint32_t     n_total;   /* samples of all ranks */
    esper_batch_sums sums;  /* among ranks, which need them at once */
    bool         judged;    /* a guard's verdicts are in the row */
} esper_row;

typedef struct esper_network {
    /* Read-only for others. */
    esper_engine *engine;
    uint64_t      seed;  /* of its weights, its order of samples, augmentation and dropout */
    esper_slots   slots; /* state; whoever changes it calls esper_network_replan */
    esper_splice  splice;
    esper_net     net;   /* host and seeds, as the slots say */
    uint64_t      program; /* key of what is planned */
    esper_slab    slab;
    esper_plan   *plan;
    esper_optim  *optim; /* NULL for inference */
    esper_cursor  cursor;
    esper_tally   tally; /* of the present epoch's training; whole after esper_network_read */
    esper_detour  detour;
    uint64_t      budget;    /* training FLOPs that the run may spend; 0: it goes by its epochs */
    uint64_t      step_cost; /* FLOPs of a training step on a full batch, of all ranks together */
    esper_descent descent;
    double        grad_norm; /* of the last step, before clipping; likewise */
    double        lr;        /* of the last step */
    esper_companion companion; /* pack NULL: there is none */
    esper_state_part parts[ESPER_MAX_PARTS];
    int             n_parts;
    esper_backend_stream *stream; /* on which it computes; NULL: all threads together */
    esper_status  status;         /* of the last work it had a part in (set.h), and what went wrong */
    char          message[512];
    /* Private. */
    esper_sampler *order; /* of the training split; NULL for inference */
    bool           epoch_drawn;
    int            alpha_input[ESPER_MAX_SLOTS];  /* tensor, or ESPER_NO_TENSOR */
    struct esper_guarded *guarded; /* NULL: it has no guard (guarded.h) */
    struct esper_side *side[ESPER_MAX_SLOTS];     /* where a seed learns aside; NULL elsewhere */
    esper_pass     pass;
    uint32_t      *sample_ids; /* (batch) */
    uint32_t       n_loaded;
    uint32_t      *flag;      /* on the backend: a guard's scan has found something, and steps are skipped; NULL for inference */
    float         *results;   /* on the backend: of batches that are not read yet, or are being evaluated (step.c) */
    float         *read;      /* the same on the host, when they are read */
    esper_row      banks[ESPER_NETWORK_BANKS][ESPER_NETWORK_ROWS];
    int            bank;      /* that is being filled */
    esper_row     *rows;      /* of that one */
    int            n_rows;
    int            n_under_way; /* rows of the other one, whose reading is queued and which nobody has heard of yet */
    uint64_t       ticket;      /* how far the backend must be for that */
    void          *staged;    /* a batch on its way to a backend that is behind; NULL where there is none */
} esper_network;

/* A network with weights born from the seed, in which the seeds that the configuration names are planted. It computes on the
 * stream; NULL: on all threads together. */
esper_status esper_network_add(esper_engine *engine, uint64_t seed, esper_backend_stream *stream,
                               esper_network **network_out);
void         esper_network_remove(esper_network *network);

/* A copy of a network that trains: weights, moments, norm buffers, cursor, tally, detours, and the seed, so that it meets the same
 * batches; with other slots where some are given. Whoever puts a seed there bears it. It has no guard and no companion. */
esper_status esper_network_fork(esper_network *parent, const esper_slots *slots, esper_network **fork_out);

/* Parts of checkpoints, while their owner is there. */
void esper_network_add_part(esper_network *network, const esper_state_part *part);
void esper_network_drop_part(esper_network *network, const char *name);

/* The slots have changed: builds the program anew where that is due, plans it, and tells the optimiser which seeds learn and the
 * guard what to scan. On failure the network is not to be stepped before it is planned again. */
esper_status esper_network_replan(esper_network *network);

enum { ESPER_BIRTH_DRAWS = 8 }; /* of a seed that is born FIRST; each costs a step */

/* Empties the region of a slot and fills it with the weights its present seed is born with, as its slot's `birth` says. The slab
 * must have room. FIRST: the gradients of each draw are computed, in a fork, on the next batch; that is charged. E_ARG: it cannot
 * be born so. */
esper_status esper_network_bear(esper_network *network, int slot);

/* A region as if no seed had ever been there. */
esper_status esper_network_clear_region(esper_network *network, int slot);

/* One step on the cursor's batch; moves the cursor and adds to the tally. Not past the epoch's end. Where the rest of the
 * epoch is to be passed over there is nothing to train on, and the cursor moves to the end. */
esper_status esper_network_step(esper_network *network);

/* The same without the read-back; and in parts, for those who queue something between them: is there a batch (after those to
 * pass over)? This rank's gradients; those of all ranks; then the step they make, which does nothing while the flag is up. */
esper_status esper_network_queue_step(esper_network *network);
bool         esper_network_batch_due(esper_network *network);
esper_status esper_network_gradients(esper_network *network);
esper_status esper_network_exchange(esper_network *network);
esper_status esper_network_apply(esper_network *network);

/* The one wait: what steps since the last time have brought is in the tally afterwards. esper_network_step does it itself.
 * Where a guard's flag went up on the way, the steps from there on were none: the network stands where it did then, and its
 * guard tells of it in its next step. */
esper_status esper_network_read(esper_network *network);

/* The same for who has more to queue and nothing to decide now: what the steps have brought is known a call later, at the latest with
 * the next esper_network_read, while those after them are computed. What is done about it is the same: steps behind a raised flag were
 * none, however many there are. Where the backend is never behind, it reads. */
esper_status esper_network_read_behind(esper_network *network);

/* Whether there is something to read. */
bool esper_network_has_unread(const esper_network *network);

/* Detours. Batches to pass over are places in the draw in force; those before a cursor can be forgotten when the run will
 * not come back there. A new draw takes effect at once, also in the middle of an epoch. */
esper_status esper_network_pass_over(esper_network *network, uint32_t epoch, uint32_t batch);
void         esper_network_forget_before(esper_network *network, const esper_cursor *cursor);
void         esper_network_redraw(esper_network *network, uint32_t draw);

/* Where a network stands, but for the slab. */
typedef struct esper_position {
    esper_cursor cursor;
    esper_tally  tally;
    uint32_t     ages[ESPER_MAX_REGIONS]; /* steps that each region's group has taken; 0 beyond the slab's regions */
    esper_slots  slots;
} esper_position;

/* Bytes between members are 0, so that equal positions are equal bytes. */
void esper_network_position(const esper_network *network, esper_position *position_out);
/* Puts the network there, its network too; the slab is the caller's to put back. */
esper_status esper_network_go_back(esper_network *network, const esper_position *position);

/* Puts other FLOPs of training on the run's account: those of what was measured or tried. */
void esper_network_charge(esper_network *network, double flops);

/* Begins the next epoch: cursor and tally. */
void esper_network_next_epoch(esper_network *network);

/* Someone who follows an evaluation. Members may be NULL. */
typedef struct esper_follower {
    const volatile sig_atomic_t *stop; /* becomes non-zero: leave */
    void                        *context;
    void (*batch)(void *context, esper_split split, uint32_t n_done, uint32_t n_batches); /* before each */
} esper_follower;

/* What is asked of an evaluation, and what comes of it. */
typedef struct esper_request {
    esper_network *network;
    esper_split    split;
    uint32_t       n_batches; /* 0 = all that count */
    float         *losses;    /* (samples) each sample's, mean over its targets, of this rank's part; NULL = nobody asks */
    esper_tally    tally;     /* of all ranks */
    float         *corrects;  /* (samples) each sample's right targets, as losses; NULL = nobody asks */
} esper_request;

esper_status esper_network_answer(esper_request *request, const esper_follower *follower);

/* Goes once through a split with the weights as they are. A network that trains meets its training split as it trains
 * on it, augmented; one for evaluation meets every split whole and plain. E_STOPPED when the follower (or NULL) wants
 * no more: there is no tally then, and nothing has changed. */
esper_status esper_network_evaluate(esper_network *network, esper_split split, const esper_follower *follower,
                                    esper_tally *tally_out);

/* Puts this rank's part of a batch into the inputs of a plan of the network's, made for its pass, and tells the pass about
 * it. A part without samples is not to be run. */
esper_status esper_network_load(esper_network *network, esper_plan *plan, const esper_net *net, esper_split split,
                                uint32_t batch);

/* The batch itself: to the inputs of the plan. targets: where the targets go, or NULL: to the plan's as well. */
esper_status esper_network_put_batch(const esper_network *network, esper_plan *plan, const esper_net *net,
                                     esper_split split, uint32_t batch, int32_t *targets);

/* Waits for all that the network has queued; and the threads that are there for its host's work: NULL = the caller alone. */
esper_status esper_network_wait(const esper_network *network);
esper_pool  *esper_network_pool(const esper_network *network);

/* A guard's verdicts on a batch: on the state it was to be used with, and on all behind the pass. Where those of a row are put, on
 * the backend. */
typedef enum esper_verdict { ESPER_VERDICT_STATE, ESPER_VERDICT_PASS, ESPER_N_VERDICTS } esper_verdict;

uint32_t *esper_network_verdicts(const esper_network *network, int row);

/* Where a row of the bank in use lies among those of both. */
int esper_network_place_of_row(const esper_network *network, int row);

size_t esper_network_row_bytes(const esper_network *network);

/* What the parts said they would take, in bytes, data and engine included: the prediction that the allocation border is held
 * to. */
typedef struct esper_memory {
    size_t data, slab, activations, tables, total;
} esper_memory;

esper_memory esper_network_memory(const esper_network *network);

/* The share of the run that is spent, 0 to 1; whether all is, and no epoch is open; the epochs of the run, as far as can be
 * foretold while the network stays as it is; and those until a share is spent, or was. */
double   esper_network_share(const esper_network *network);
bool     esper_network_is_over(const esper_network *network);
uint32_t esper_network_epochs(const esper_network *network);
uint32_t esper_network_epochs_until(const esper_network *network, double share);

/* The rate of the next step, but for what the governor made of it. */
double esper_network_rate(const esper_network *network);

/* The epoch's training is done: no batch is left of it, or nothing of the budget. */
bool esper_network_epoch_done(const esper_network *network);

/* Samples of the batch that was loaded last, of all ranks together. */
uint32_t esper_network_n_loaded(const esper_network *network);

/* Parameters of the network as it is tested: seeds that only learn have no part in it. */
int64_t esper_network_params(const esper_network *network);

uint64_t esper_network_hash(const esper_network *network);

#endif
