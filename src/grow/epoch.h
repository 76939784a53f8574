/* Internal. One epoch of a network, as a run and an environment play it:
 *
 *     steps ──> the state is scanned ──> validation ──> measured ──> judged by the governor ──> good, or gone back
 *
 * What the epoch leads to (a decision, the next epoch) is the caller's. */
#ifndef ESPER_GROW_EPOCH_H
#define ESPER_GROW_EPOCH_H

#include "grow/growth.h"

typedef enum esper_epoch_end {
    ESPER_EPOCH_GOOD,
    ESPER_EPOCH_GONE_BACK, /* the cursor stands where the guard put it: to be played again from there */
    ESPER_EPOCH_STOPPED,   /* by the governor, for good */
} esper_epoch_end;

/* Who plays an epoch. Members that are functions may be NULL. */
typedef struct esper_epoch_player {
    esper_network *network;
    esper_growth  *growth; /* NULL: the network stays as it is */
    void          *context;
    /* After every step. E_STOPPED ends the epoch there. */
    esper_status (*stepped)(void *context);
    /* The guard met something, and growth has not been told yet: the player tells it. */
    esper_status (*met)(void *context, const esper_incident *incident);
    /* A call of the guard's failed; gives the status to end with. */
    esper_status (*failed)(void *context, esper_status status);
    /* The epoch is validated and not yet judged. */
    esper_status (*measured)(void *context, const esper_epoch_record *record);
    esper_follower follower; /* of the validation */
    /* Written on the way. */
    double   began;         /* when this stretch of steps did, */
    uint64_t first_samples; /* and of the tally then */
    double   seconds_train, seconds_valid; /* in all */
    esper_epoch_end
        settled; /* what came of the epoch's end, where that is known behind the validation (engine/guarded.h) */
} esper_epoch_player;

/* Plays what is left of the cursor's epoch, whatever the guard meets on the way, and its end once. record_out is of this network
 * where the end is not STOPPED. E_STOPPED in the midst of the validation: the cursor still stands before it. */
esper_status esper_epoch_play(esper_epoch_player *player, esper_epoch_record *record_out, esper_epoch_end *end_out);

/* Training samples per second of the stretch so far. */
double esper_epoch_speed(const esper_epoch_player *player);

/* Scans the state now, as the end of an epoch does. */
esper_status esper_epoch_settle(esper_epoch_player *player, esper_epoch_end *end_out);

/* Before the first step of an epoch, and before a checkpoint of the last one's end: scans the state, and takes a snapshot of it. */
esper_status esper_epoch_begin(esper_epoch_player *player, esper_epoch_end *end_out);

#endif
