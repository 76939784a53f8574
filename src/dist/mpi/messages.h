/* Internal. Exchange by messages, for ranks on several machines. Everything is made of one thing: send something to a rank
 * while receiving something from one. All in about log2(ranks) rounds. */
#ifndef ESPER_DIST_MPI_MESSAGES_H
#define ESPER_DIST_MPI_MESSAGES_H

#include "dist/kind.h"
#include "dist/mpi/wait.h"

enum { ESPER_MESSAGE_BYTES = 1 << 20 };

typedef struct esper_messages {
    esper_comm_link        *link;
    const esper_wait_rules *rules;
    const void             *comm;    /* an MPI_Comm; not by its type, which only mpi.h knows */
    void                   *scratch; /* ESPER_MESSAGE_BYTES */
} esper_messages;

esper_status esper_messages_sum(esper_messages *messages, void *values, size_t count, esper_comm_number number);
esper_status esper_messages_or(esper_messages *messages, uint64_t *words, size_t count);
esper_status esper_messages_broadcast(esper_messages *messages, void *bytes, size_t count, int root);
esper_status esper_messages_gather(esper_messages *messages, const void *mine, size_t count, void *all_out);
esper_status esper_messages_barrier(esper_messages *messages);

#endif
