/* Internal. The pact: ranks that are to compute the same thing find out first whether they can. */
#ifndef ESPER_TRAIN_PACT_H
#define ESPER_TRAIN_PACT_H

#include "train/trainer.h"

/* Compares build, kernels, configuration and data of all ranks with rank 0's. The first difference is E_CONFIG on every rank:
 * its rank, both values, and what makes them equal. Settings that may differ (`is_free`) are not looked at. */
esper_status esper_pact_check(const esper_trainer *trainer, esper_comm *comm, bool (*is_free)(const char *key));

#endif
