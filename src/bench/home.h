/* Internal. A directory for the runs that a benchmark makes. */
#ifndef ESPER_BENCH_HOME_H
#define ESPER_BENCH_HOME_H

#include "esper.h"

enum { ESPER_BENCH_HOME_CHARS = 48 };

esper_status esper_bench_home_open(char home_out[ESPER_BENCH_HOME_CHARS]);
/* With the runs in it. "": there is none. */
void         esper_bench_home_close(const char *home);

#endif
