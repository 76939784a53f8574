/* Internal. What this machine can do at most, measured: the limits that benchmarks are set beside. */
#ifndef ESPER_BENCH_CPU_PEAK_H
#define ESPER_BENCH_CPU_PEAK_H

#include "base/pool.h"

/* FLOP/s of fused multiply-adds on registers by all threads of the pool, in the widest vectors of the processor. Takes
 * about a tenth of a second. */
double esper_cpu_peak_flops(esper_pool *pool);

#endif
