/* What the driver of programs with driver=also has counted, and the call it is to fail (cuda/driver.c). */
#ifndef ESPER_TESTS_SUPPORT_CUDA_DRIVER_H
#define ESPER_TESTS_SUPPORT_CUDA_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

int  cuda_driver_syncs(void);    /* waits for a stream */
int  cuda_driver_waits(void);    /* for a stream or an event */
int  cuda_driver_idle_waits(void); /* those for an event behind which no launch was queued */
int  cuda_driver_allocations(void); /* of memory, of the device or pinned, and its giving back */
bool cuda_driver_is_real(void);  /* the machine's own: nothing is counted */
int  cuda_driver_launches(void); /* of kernels of tensor/cuda/ */
int  cuda_driver_graphs(void);   /* that were made */
int  cuda_driver_graph_launches(void);
int  cuda_driver_beside(void);   /* launches of graphs that came before one which was added sooner: nothing ordered them */
void cuda_driver_fail_at(uint64_t nth);

/* From the nth call from now on all calls answer this, as a device does that is gone; 0: it is there again. */
void     cuda_driver_lose_at(uint64_t nth, int result);
uint64_t cuda_driver_calls(void); /* in all, so far */

#endif
