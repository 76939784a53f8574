/* Internal. Exchange between ranks that share memory: all of them on one machine.
 *
 * Every rank has a seat in the memory, which it alone writes: two lines for short letters and two sheets for long ones. A
 * step is: write a letter, put the step's tag on the line, wait until everybody's line has it, read their letters.
 *
 *   rank 0   line 0   tag of step 6, words      Step 7 uses the lines 7 & 1. A rank that puts tag 8 has read all of 7, and
 *            line 1   tag of step 7, words      nobody puts 9 before all have put 8: so what belongs to 7 is not written
 *   rank 1   line 0   ...                       again before everybody has read it.
 *
 * A line is a cache line: a short letter comes with its tag in one transfer between cores. The tag also says what the step
 * is for, so ranks that are not at the same call are noticed. */
#ifndef ESPER_DIST_MPI_WINDOW_H
#define ESPER_DIST_MPI_WINDOW_H

#include <stdatomic.h>

#include "dist/kind.h"
#include "dist/mpi/wait.h"

enum { ESPER_LETTER_BYTES = 1 << 17, ESPER_LINE_BYTES = 56 };

typedef struct esper_seat_line {
    _Alignas(64) _Atomic uint64_t tag; /* step and call; written last */
    unsigned char letter[ESPER_LINE_BYTES];
} esper_seat_line;

/* Begins on a cache line of its own. */
typedef struct esper_seat {
    esper_seat_line lines[2];
    _Alignas(64) int64_t process, rank;
    atomic_bool has_left; /* and will not come again */
    _Alignas(64) unsigned char sheets[2][ESPER_LETTER_BYTES];
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
