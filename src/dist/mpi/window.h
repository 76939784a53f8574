/* Internal. Exchange between ranks that share memory: all of them on one machine.
 *
 * Every rank has a seat in the memory, which it alone writes: a counter of steps and two letters. A step is: write a
 * letter, count, wait until everybody has counted as far, read their letters.
 *
 *   rank 0   step ───┐                       step 7 is read from letters 7 & 1. A rank that counts 8 has read all of 7,
 *            letter 0│ letter 1              and nobody counts 9 before all have counted 8: so the letter of 7 is not
 *   rank 1   step <──┘                       written again before everybody has read it.
 *            letter 0  letter 1
 *
 * With the counter stands what the step is for, so ranks that are not at the same call are noticed. */
#ifndef ESPER_DIST_MPI_WINDOW_H
#define ESPER_DIST_MPI_WINDOW_H

#include <stdatomic.h>

#include "dist/kind.h"
#include "dist/mpi/wait.h"

enum { ESPER_LETTER_BYTES = 1 << 17 };

/* Begins on a cache line of its own. */
typedef struct esper_seat {
    _Alignas(64) _Atomic uint64_t step;
    uint64_t    what[2]; /* of the last two steps */
    int64_t     process, rank;
    atomic_bool has_left; /* and will not come again */
    _Alignas(64) unsigned char letter[2][ESPER_LETTER_BYTES];
} esper_seat;

typedef struct esper_window {
    esper_comm_link        *link;
    const esper_wait_rules *rules;
    esper_seat            **seats; /* of all ranks */
    esper_seat             *mine;
    const void            **letters; /* of all ranks, in a step */
    uint64_t                step;
    bool                    sees_processes; /* whether one is gone can be asked of the system */
} esper_window;

/* Takes its seat. All ranks; then a barrier of the caller's own; then begin, which says whether the memory is what it should
 * be: every seat where its rank put it. */
void esper_window_sit(esper_window *window);
bool esper_window_begin(esper_window *window);
/* Tells the others not to wait. */
void esper_window_leave(esper_window *window);

esper_status esper_window_sum(esper_window *window, void *values, size_t count, esper_comm_number number);
esper_status esper_window_or(esper_window *window, uint64_t *words, size_t count);
esper_status esper_window_broadcast(esper_window *window, void *bytes, size_t count, int root);
esper_status esper_window_gather(esper_window *window, const void *mine, size_t count, void *all_out);
esper_status esper_window_barrier(esper_window *window);
esper_status esper_window_end(esper_window *window); /* a barrier, and the last call there is */

#endif
