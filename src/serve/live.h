/* Internal. What happens from here on, for many at once: one thread looks at the stores that somebody watches, makes one message
 * of what is new, and hands the same bytes to everybody. So a run is read as often for two hundred watchers as for one.
 *
 *     stores ── watcher: a few times a second ──> channel of a run: the last messages ──┬─> listener
 *                                                                                       └─> listener ...
 *
 * A message is an event of server-sent events: "id: MARK\nevent: rows\ndata: {...}\n\n". Events are rows (esper_answer_news), reset
 * (rows have gone: read all anew), gone (the run is not there any more), and on the channel of the list, runs. A listener that
 * is behind by more than a channel keeps is ended; it comes again with the mark of what it has, and is told what it missed. */
#ifndef ESPER_SERVE_LIVE_H
#define ESPER_SERVE_LIVE_H

#include <sys/types.h>

#include "serve/catalogue.h"
#include "serve/request.h"

typedef struct esper_live          esper_live;
typedef struct esper_live_listener esper_live_listener;

/* How the server puts a connection to sleep and wakes it, each called with a lock held under which no message can come in between. */
typedef struct esper_live_ops {
    void (*sleep)(void *connection);
    void (*wake)(void *connection);
} esper_live_ops;

/* The catalogue is borrowed. */
esper_status esper_live_open(esper_catalogue *catalogue, const esper_live_ops *ops, esper_live **live_out);

/* Ends all listeners: those that sleep are woken, and find the end. */
void esper_live_stop(esper_live *live);

/* Behind stop, when all listeners are left. */
void esper_live_close(esper_live *live);

/* Listens to a run, or, entry NULL, to the list of all. since: what the listener has already; NULL: all up to now. */
esper_status esper_live_listen(esper_live *live, const esper_catalogue_entry *entry, const esper_mark *since,
                               void *connection, esper_live_listener **listener_out);
void         esper_live_leave(esper_live_listener *listener);

/* The other end has gone, which nobody notices as long as the connection sleeps. */
void esper_live_end(esper_live *live, const void *connection);

/* Copies what is there; 0: nothing is, and the connection was put to sleep; -1: it is over. */
ssize_t esper_live_read(esper_live_listener *listener, char *bytes, size_t room);

#endif
