/* Internal. One network of a task and all it stands on, data and engine: what most commands need. */
#ifndef ESPER_RUN_SINGLE_H
#define ESPER_RUN_SINGLE_H

#include "engine/network.h"
#include "run/checkpoint.h"
#include "run/task.h"

/* Loads the data and opens an engine on it for as many threads as the configuration says; then a network of its seed. */
esper_status esper_single_open(const esper_task *task, const esper_config *config, esper_use use,
                               esper_network **network_out);
/* The network of a checkpoint, restored, to be evaluated: on what the checkpoint knows of its data, a set without samples, or on the
 * data itself where an old one knows nothing. */
esper_status esper_single_recall(const esper_checkpoint *checkpoint, const esper_config *config,
                                 esper_network **network_out);
/* Closes all of it. */
void esper_single_close(esper_network *network);

/* The engine alone, on data that is there. threads: where the configuration says 0. */
esper_status esper_single_engine(const esper_task *task, const esper_config *config, esper_use use, esper_dataset *data,
                                 int threads, esper_engine **engine_out);

/* The same on the threads and the backend of another engine, which is closed after it. */
esper_status esper_single_engine_beside(const esper_task *task, const esper_config *config, esper_use use,
                                        esper_dataset *data, const esper_engine *beside, esper_engine **engine_out);

#endif
