/* Internal. The pact: ranks that are to compute the same thing find out first whether they can. */
#ifndef ESPER_RUN_PACT_H
#define ESPER_RUN_PACT_H

#include "engine/engine.h"

/* An identity is backend/kernels/table: how many of its characters say what bits come out. Other tables change the speed
 * alone (docs/determinism.md). */
size_t esper_pact_kernel_chars(const char *identity);

/* Compares build, kernels, configuration and data of all ranks with rank 0's. The first difference is E_CONFIG on every rank:
 * its rank, both values, and what makes them equal. Only settings that say where things are and what is shown may differ. */
esper_status esper_pact_check(const esper_engine *engine, bool grows, esper_comm *comm);

#endif
