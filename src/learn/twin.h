/* Internal. The twin of an environment: the same network at the same epoch, had it got nothing. Gain is held against it.
 *
 *     no seed yet: the network is its own twin ──> a germination: it is forked first ──> the fork trains on beside it
 *
 * So an environment in which nothing grows costs nothing more, and has gained exactly nothing. What the twin came to is kept epoch
 * by epoch: where the network goes back and plays epochs again, it meets the same readings. The twin has no guard. */
#ifndef ESPER_LEARN_TWIN_H
#define ESPER_LEARN_TWIN_H

#include "engine/network.h"

typedef struct esper_twin esper_twin;

/* Of a network, which is borrowed until close and has trained no epoch yet. */
esper_status esper_twin_open(esper_network *of, esper_twin **twin_out);
void         esper_twin_close(esper_twin *twin);

/* From now on it computes on this stream, as its network does. */
void         esper_twin_move(esper_twin *twin, esper_backend_stream *stream);

/* A seed is about to germinate for the first time. */
esper_status esper_twin_part(esper_twin *twin);
bool         esper_twin_has_parted(const esper_twin *twin);
/* It did not: the two are one again. */
void esper_twin_join(esper_twin *twin);

/* Its validation accuracy at the end of an epoch, from 1; `own` is what the network has there. Trains the twin up to it. */
esper_status esper_twin_accuracy(esper_twin *twin, uint32_t epoch, double own, double *accuracy_out);

#endif
