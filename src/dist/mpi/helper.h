/* Internal. A thread for the calls of MPI that wait for all ranks and have no deadline: starting, making communicators and
 * memory, ending. Who gives it work watches the clock meanwhile; work that never ends is left behind with its thread, and
 * all it uses, until the process ends. Without work it sleeps. */
#ifndef ESPER_DIST_MPI_HELPER_H
#define ESPER_DIST_MPI_HELPER_H

#include <pthread.h>
#include <stdbool.h>

typedef struct esper_helper {
    pthread_t       thread;
    pthread_mutex_t mutex;
    pthread_cond_t  given;
    void (*work)(void *context); /* NULL: none, or done */
    void           *context;
    bool            must_end;
} esper_helper;

bool esper_helper_start(esper_helper *helper);
void esper_helper_stop(esper_helper *helper); /* its work is done */

void esper_helper_give(esper_helper *helper, void (*work)(void *context), void *context);
bool esper_helper_is_done(esper_helper *helper);

#endif
