/* Internal. Training under guard: a network whose state is scanned at every step, a ring of its last good states, and the
 * governor that says when to skip, to go back, or to stop (the ladder of docs/guard.md).
 *
 * A step:
 *
 *     scan of the state ──> snapshot, when due ──> gradients, of all ranks ──> scan of everything ──> optimiser step, or skipped
 *
 * All of it is queued, and nobody waits: a scan that finds something raises the network's flag, a word in the backend's memory,
 * and while that is up the optimiser's launch changes nothing and what was found stays there. The host hears of it when it reads
 * results back (before a snapshot, at an epoch's end, every so many steps), or at once where looking costs nothing.
 *
 * Parameters, moments and norm buffers are scanned before they are used, and again with the gradients they led to; within a
 * scan, state stands before gradients. So what is named is what was hit, not what it spoiled. A forward pass that met NaN or
 * Inf leaves them in the norm buffers as well: those are put back from a copy, so the step is skipped, as the weights are
 * good, and a gradient is named. A skipped step leaves nothing behind: no moments, no counts, no norm buffers, as if its
 * batch had been passed over.
 *
 * Among ranks, what any of them finds is everybody's finding: they skip and go back together.
 *
 * Whatever happened is decided by the readings alone, so a run that is told to pass over the same batches
 * (esper_network_pass_over) is the same run, bit for bit. */
#ifndef ESPER_ENGINE_GUARDED_H
#define ESPER_ENGINE_GUARDED_H

#include "engine/network.h"

/* Opens guard, ring and governor for a network with an optimiser, as its engine's configuration says, until close or until the
 * network is removed. It must not be stepped otherwise then. Takes all memory here. */
esper_status esper_guarded_open(esper_network *network);
void         esper_guarded_close(esper_network *network);

/* What a call met. */
typedef struct esper_incident {
    esper_governor_action action; /* GO: nothing happened, and all below is empty */
    esper_governor_reason reason;
    esper_cursor          at; /* where the run stood */
    /* What a scan found; tensor is NULL when it was the vital signs. Texts belong to the network. */
    const char *tensor, *role;
    const char *problem;     /* "NaN", "Inf", or "changed" when only the checksum tells */
    uint64_t    n_elements;  /* of the tensor that are bad */
    uint64_t    first_index; /* of them; ESPER_GUARD_NONE when not known */
    uint64_t    n_tensors;   /* bad ones in all */
    int         rank;        /* where it was, the first of them; -1 = there is but one, or it cannot be said */
    int         n_ranks;     /* that had something bad in their part of the batch; 0 = not known */
    double      loss;        /* of the vital signs; NaN otherwise */
    /* What was done. */
    bool         restored; /* the state is that of the snapshot at `to` */
    esper_cursor to;
    uint32_t     unkept;    /* bits 1 << slot: seeds that are there at `to` and not kept */
    uint32_t     n_damaged; /* newer snapshots that were found damaged and passed over */
    double       seconds;   /* of the restore */
    char         failure[192]; /* why there was none, where one was wanted; else "" */
} esper_incident;

/* The sentence for people: "NaN in blocks.0.conv.weight (param): 1 element, the first at 17; 1 bad tensor; back from
 * step 40 to step 30". */
const char *esper_incident_describe(const esper_incident *incident, char *text, size_t chars);

/* The network has changed (esper_network_replan calls it): its tensors are registered anew. Snapshots stay: one from before
 * brings the network of its time back. */
esper_status esper_guarded_restructure(esper_network *network);

/* The governor's memory was put back behind the opening snapshot: tells it of that one, as it was told of its like before. */
esper_status esper_guarded_tell_snapshot(esper_network *network);

/* Somebody who is told of every step whose gradients were found good, when it is read back: with the scan of an epoch's last one, if
 * `wishes` says so then, and NULL for others. */
typedef void (*esper_scan_watcher)(void *context, const esper_row *row, const esper_guard_report *report);
typedef bool (*esper_scan_wish)(void *context);

void esper_guarded_watch(esper_network *network, esper_scan_watcher watcher, esper_scan_wish wishes, void *context);

/* From esper_network_read: so many rows were good, and the next was not by this verdict (NULL: that were all). */
esper_status esper_guarded_hear(esper_network *network, int n_good, const esper_verdict *verdict);

/* The steps of a network without a guard are what they are, and nothing is ever met.
 *
 * One step on the cursor's batch, or what is to be done about an earlier one: the incident says where. After a restore the cursor stands where the snapshot was taken, maybe in an earlier
 * epoch. After STOP the state is the last good one, if there was any, and further steps are E_STATE. */
esper_status esper_guarded_step(esper_network *network, esper_incident *incident_out);

/* Scans the state now: before it is validated or saved. */
esper_status esper_guarded_settle(esper_network *network, esper_incident *incident_out);

/* For who queues more behind an epoch's end before he asks what it was: where the backend is behind, the epoch's last steps are not waited
 * for, esper_guarded_settle_behind queues the scan and says so, and esper_guarded_settle tells what came of both behind somebody's next
 * wait. What is done about it is the same. */
void         esper_guarded_let_behind(esper_network *network, bool on);
esper_status esper_guarded_settle_behind(esper_network *network, bool *queued_out);

/* The same where an epoch is about to begin, with the snapshot that is due there. It is taken before anything of the epoch is
 * done, at the cursor that a checkpoint of the epoch's end has: a run that is resumed from it takes the very same one. */
esper_status esper_guarded_begin_epoch(esper_network *network, esper_incident *incident_out);

/* Lets the governor judge a validation loss. */
esper_status esper_guarded_judge(esper_network *network, double loss, esper_incident *incident_out);

/* The network computes something else than it did a moment ago (a seed joined at full weight): a loss that jumps is no sign of
 * divergence, and losses are judged by those that come from now on. Going back to before brings those of then back. */
void esper_guarded_forget_losses(esper_network *network);

esper_governor_reading esper_guarded_reading(const esper_network *network);
esper_governor        *esper_guarded_governor(esper_network *network);

/* Somebody who writes down what the governor said, before it is done. Where the run is to go back, `to` and `unkept` are of the
 * newest snapshot, unless it proves damaged; `restored` and what else follows is not known yet. A failure ends the step with
 * it, and nothing is done. */
typedef esper_status (*esper_clerk)(void *context, const esper_incident *incident);

/* For a run that ends because of such a failure, or whose ranks have lost each other (nobody is asked): the newest snapshot as if the run had never gone on from it. Facts, detours and
 * the governor's memory are those of then, too, so that a checkpoint of it goes on like one that was made then. On failure
 * the state is not to be saved. */
esper_status esper_guarded_retreat(esper_network *network);

/* The ranks have found that they agree: the state as it is now is kept beside the snapshots, in place of the one that was, and
 * a run whose ranks part goes back to it in the same way. */
esper_status esper_guarded_keep(esper_network *network);
esper_status esper_guarded_retreat_to_kept(esper_network *network);

void esper_guarded_set_clerk(esper_network *network, esper_clerk clerk, void *context);

/* Drills: called at these places of a step, to do there what a fault would do. */
typedef enum esper_drill_point {
    ESPER_DRILL_BETWEEN_STEPS,  /* before the scan of the state */
    ESPER_DRILL_BEFORE_FORWARD, /* after it */
    ESPER_DRILL_GRADIENTS,      /* gradients are there, not yet scanned */
} esper_drill_point;

typedef void (*esper_drill)(void *context, esper_network *network, esper_drill_point point);

void         esper_guarded_set_drill(esper_network *network, esper_drill drill, void *context);
esper_guard *esper_guarded_guard(esper_network *network); /* for esper_guard_inject */

#endif
