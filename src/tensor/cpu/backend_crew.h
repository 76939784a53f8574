/* Internal. The crew: how the CPU backend runs the programs of one network or many on the pool's threads.
 *
 * While there are at least as many networks as threads, a thread runs a network's program by itself from its first launch
 * to its last: nobody waits for anybody, and the network stays in that core's caches. A thread that finds no other network
 * helps those that still have one, launch by launch. Which of the two happens when is left to chance: no bit depends on it. */
#ifndef ESPER_TENSOR_CPU_BACKEND_CREW_H
#define ESPER_TENSOR_CPU_BACKEND_CREW_H

#include "base/pool.h"
#include "tensor/backend.h"
#include "tensor/kernel.h"
#include "tensor/tune.h"

typedef struct esper_crew esper_crew;

/* Pool and tune are borrowed until close; the latter may change between runs. */
esper_status esper_crew_open(esper_backend *be, esper_pool *pool, const esper_kernel_set *kernels,
                             const esper_tune *tune, esper_crew **crew_out);
void         esper_crew_close(esper_crew *crew);

/* Returns when all programs have run. Takes no memory. On the stream of an item of esper_crew_each: one after the other, by the
 * thread that has the item, and those that help it. */
void esper_crew_run(esper_crew *crew, const esper_backend_stream *stream, const esper_program *programs,
                    int n_programs);

/* One launch: its lanes and their ranges shared by all threads; or, likewise, by the item's. */
void esper_crew_run_launch(esper_crew *crew, const esper_backend_stream *stream, const esper_launch *launch);

/* Runs items of the host's work like programs: a thread has one by itself while there are as many left as threads, and is
 * helped with its launches by those that find none. */
void esper_crew_each(esper_crew *crew, int n_items, esper_backend_item run_item, void *context);

#endif
