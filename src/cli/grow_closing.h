/* Internal. What `esper grow` says when it is done: the closing table and the lineage, read back from the run's store. */
#ifndef ESPER_CLI_GROW_CLOSING_H
#define ESPER_CLI_GROW_CLOSING_H

#include "run/run.h"

/* Prints them. `result` is of this process, or NULL: only where there is no store are its numbers used. */
esper_status esper_grow_closing_print(const char *run_dir, const esper_run_result *result);

/* What its decisions earned, and of what parts; those only where there is a store. A return that goes by gain is known by the run's
 * static control, and `total` is NaN. */
void esper_grow_closing_return(const char *run_dir, const esper_config *config, double total);

#endif
