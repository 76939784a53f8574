/* Internal. The networks that benchmarks train. */
#ifndef ESPER_BENCH_TASK_H
#define ESPER_BENCH_TASK_H

#include "run/task.h"

/* A task with a benchmark's settings, and of what was asked for only what leaves the work the same: an ESPER_BATCH in the
 * environment must not change what a figure means. */
esper_status esper_bench_configure(const char *task, const char *settings, const esper_config *asked,
                                   esper_config *config, const esper_task **task_out);

#endif
