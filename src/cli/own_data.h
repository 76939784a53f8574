/* Internal. Data of people's own on the command line: found, decoded with progress, and what fits it chosen. */
#ifndef ESPER_CLI_OWN_DATA_H
#define ESPER_CLI_OWN_DATA_H

#include "run/task.h"

/* The task that a word names or, being a path, leads to, with its settings laid below those in `config`. Data that is not in the cache
 * is decoded now, which is shown on standard error. */
esper_status esper_own_data_task(const char *word, esper_config_job job, esper_config *config,
                                 const esper_task **task_out);

/* Decodes the data of a task if it is not in the cache, and shows that; nothing for tasks whose data is read as it is. */
esper_status esper_own_data_prepare(const esper_task *task, const esper_config *config);

/* The same for a run that is on record, so that the way on is not silent for minutes. Whoever opens the run says what is wrong. */
void esper_own_data_prepare_run(const char *run, const esper_config *asked);

#endif
