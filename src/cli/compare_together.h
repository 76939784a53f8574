/* Internal. The runs of comparisons side by side in this process, each on a thread of its own, as lanes of one backend. */
#ifndef ESPER_CLI_COMPARE_TOGETHER_H
#define ESPER_CLI_COMPARE_TOGETHER_H

#include "cli/compare_run.h"

/* As esper_compare_run_all. Runs are to the bit what they are as processes: each has its engine, its directory, its log and its
 * store, and they share threads, backend, plans, and what lies on the backend of the data. Where memory is too small for one
 * more, fewer go at a time, and the one that found no room goes on when another has ended. */
esper_status esper_compare_run_together(const esper_compare_desc *desc);

#endif
