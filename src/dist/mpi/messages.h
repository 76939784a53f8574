/* Internal. Exchange by messages, for ranks on several machines. Everything is made of one thing: send something to a rank
 * while receiving something from one. All in about log2(ranks) rounds. */
#ifndef ESPER_DIST_MPI_MESSAGES_H
#define ESPER_DIST_MPI_MESSAGES_H

#include "dist/kind.h"
#include "dist/mpi/roster.h"
#include "dist/mpi/wait.h"

enum { ESPER_MESSAGE_BYTES = 1 << 20, ESPER_ROLL_MOST_NS = 1000000000 }; /* the longest roll call */

typedef struct esper_messages {
    esper_comm_link        *link;
    const esper_wait_rules *rules;
    const void             *comm;    /* an MPI_Comm; not by its type, which only mpi.h knows */
    const esper_roster     *roster;
    uint64_t                looked_ns; /* into the roster, when last */
    void                   *scratch; /* ESPER_MESSAGE_BYTES */
    bool                   *is_lost; /* (ranks) not heard of when last asked, or ending the job */
    unsigned                n_calls; /* made so far, as on every other rank ... */
    char                    call;
    int                     tag;     /* ... and with what the present one is, its tag: calls that differ never meet */
} esper_messages;

esper_status esper_messages_sum(esper_messages *m, void *values, size_t count, esper_comm_number number);
esper_status esper_messages_or(esper_messages *m, uint64_t *words, size_t count);
esper_status esper_messages_broadcast(esper_messages *m, void *bytes, size_t count, int root);
esper_status esper_messages_gather(esper_messages *m, const void *mine, size_t count, void *all_out);
esper_status esper_messages_barrier(esper_messages *m);
esper_status esper_messages_end(esper_messages *m); /* the last barrier */

#endif
