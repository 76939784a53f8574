/* Internal. The one thread pool.
 *
 * A job is a number of independent items; threads take the next item from a shared counter. Which thread computes an
 * item can change from run to run, so an item must own everything it writes: that is what makes results independent of
 * the number of threads. */
#ifndef ESPER_BASE_POOL_H
#define ESPER_BASE_POOL_H

#include <stdbool.h>

#include "esper.h"

typedef struct esper_pool esper_pool;

/* item is in 0 .. n_items-1; worker is in 0 .. n_threads-1 and says whose scratch memory may be used. */
typedef void (*esper_pool_item)(void *context, int item, int worker);

/* n_threads counts the caller, who works too; 0 = one for each core this process may use. */
esper_status esper_pool_open(int n_threads, esper_pool **pool_out);
void         esper_pool_close(esper_pool *pool);

int esper_pool_threads(const esper_pool *pool);

/* There are more threads than cores: who waits had better give its core away. */
bool esper_pool_is_crowded(const esper_pool *pool);

/* Runs all items and returns when the last is done. Takes no memory. One caller at a time; items may not call it. */
void esper_pool_run(esper_pool *pool, int n_items, esper_pool_item run_item, void *context);

#endif
