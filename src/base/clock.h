/* Internal. Time for progress, logs and benchmarks. Nothing that decides may read it. */
#ifndef ESPER_BASE_CLOCK_H
#define ESPER_BASE_CLOCK_H

#include <stdint.h>

uint64_t esper_clock_ns(void);      /* monotonic, from an arbitrary origin */
double   esper_clock_seconds(void); /* the same in seconds */

#endif
