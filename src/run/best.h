/* Internal. The best network of a run so far, by validation loss, and how long the run waits for a better one.
 *
 * The network is kept as it was validated, beside the run's checkpoint. With a patience, so many epochs without a better one
 * shorten the run: a rate that is held begins to fall, and once it falls, or where it neither is held nor falls, the run ends. Like a
 * rollback's detours this is state that going back does not undo. */
#ifndef ESPER_RUN_BEST_H
#define ESPER_RUN_BEST_H

#include "engine/network.h"

typedef struct esper_best {
    uint32_t epoch;          /* whose end it was, from 1; 0 = none yet */
    double   loss, accuracy; /* of its validation */
    uint32_t waits_from;     /* the epoch after which the waiting began */
    uint64_t budget;         /* that the run was shortened to; 0 = it was not */
} esper_best;

/* As a part of the network's checkpoints; it must stay where it is until the network is removed. */
void esper_best_attach(esper_best *best, esper_network *network);

/* An epoch was validated: is it the best so far? A loss that is no number never is. */
bool esper_best_offer(esper_best *best, uint32_t epoch, double loss, double accuracy);

typedef enum esper_best_verdict {
    ESPER_BEST_GO_ON,
    ESPER_BEST_FALL, /* the rate falls from here on */
    ESPER_BEST_END,  /* the run is over with this epoch */
} esper_best_verdict;

/* At the end of an epoch, all it cost charged: waits, or shortens the network's budget. patience 0: for ever. */
esper_best_verdict esper_best_wait(esper_best *best, int patience, uint32_t epoch, esper_network *network);

#endif
