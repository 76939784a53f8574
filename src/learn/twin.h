/* Internal. The twin of an environment: the same network at the same epoch, had it got nothing. Gain is held against it.
 *
 *     no seed in the stream: the network is its own twin ──> one joins: a fork without seeds ──> the fork trains on beside it
 *
 * A seed that learns aside leaves every bit of the host as it is, so an environment costs nothing more, and has gained exactly
 * nothing, until a seed becomes part of the network. What the twin came to is kept epoch by epoch: where the network goes back and
 * plays epochs again, it meets the same readings. The twin has no guard.
 *
 * What a twin comes to depends on its engine and its seed alone, and not on what is decided: where episodes have seeds in common, a
 * book keeps their curves, and a twin that is in it is not trained again. One whose network went back or left a step out before
 * they parted is an exception, and is neither written there nor looked up. */
#ifndef ESPER_LEARN_TWIN_H
#define ESPER_LEARN_TWIN_H

#include "engine/network.h"

/* Curves of twins; any thread may use it. */
typedef struct esper_twin_book esper_twin_book;

esper_status esper_twin_book_open(esper_twin_book **book_out);
void         esper_twin_book_close(esper_twin_book *book);
int          esper_twin_book_count(esper_twin_book *book); /* curves in it */

typedef struct esper_twin esper_twin;

/* Of a network, which is borrowed until close, and has a guard, and has trained no epoch yet. book: borrowed likewise; NULL: there is
 * none. */
esper_status esper_twin_open(esper_network *of, esper_twin_book *book, esper_twin **twin_out);
void         esper_twin_close(esper_twin *twin); /* what it has come to goes into the book, where it is whole */

/* From now on it computes on this stream, as its network does. */
void esper_twin_move(esper_twin *twin, esper_backend_stream *stream);

/* A decision was carried out: they part where a seed has become part of the network. */
esper_status esper_twin_watch(esper_twin *twin);

/* Somebody else may train it while its network trains: a thread that comes here with a stream of its own does what the network's thread
 * begins, and stays until it is dismissed. The network's thread expects one before it comes, begins an epoch, asks for its accuracy
 * later, and dismisses whoever is there; where nobody is it trains the twin itself when it asks. */
void         esper_twin_expect(esper_twin *twin);
void         esper_twin_serve(esper_twin *twin, esper_backend_stream *stream);
esper_status esper_twin_begin(esper_twin *twin, uint32_t epoch);
void         esper_twin_dismiss(esper_twin *twin);

/* Its validation accuracy at the end of an epoch, from 1; `own` is what the network has there. Trains the twin up to it. */
esper_status esper_twin_accuracy(esper_twin *twin, uint32_t epoch, double own, double *accuracy_out);

#endif
