/* Internal. What the ring, fault injection and backends need of a guard beyond the public functions. */
#ifndef ESPER_GUARD_GUARD_INTERNAL_H
#define ESPER_GUARD_GUARD_INTERNAL_H

#include "guard/engine.h"

/* The options in force; as long as the guard. */
const esper_guard_options *esper_guard_options_of(const esper_guard *guard);

/* The engine of a device, as long as the guard; NULL when no tensor was ever registered there. */
esper_scan_engine *esper_guard_engine(const esper_guard *guard, int32_t device);

/* What was launched and not read will not be read. */
void esper_guard_give_up(esper_guard *guard);

#endif
