/* Internal. Fleets on a GPU. */
#ifndef ESPER_BENCH_FLEET_GPU_H
#define ESPER_BENCH_FLEET_GPU_H

#include "bench/bench.h"

/* fleet.gpu1, fleet.gpu16, fleet.gpu64, fleet.gpu64_grown, fleet.gpu1024, as far as they are wanted. */
esper_status esper_bench_fleet_gpu(esper_bench_request *request);

#endif
