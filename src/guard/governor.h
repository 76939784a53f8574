/* Internal. The governor's memory as numbers, for those who keep it in a checkpoint: a resumed run then judges as the
 * unbroken one would have. */
#ifndef ESPER_GUARD_GOVERNOR_H
#define ESPER_GUARD_GOVERNOR_H

#include "esper.h"

/* Numbers that a governor's memory takes. */
size_t esper_governor_memory_count(const esper_governor *governor);

/* Writes them; reads them again into a governor of the same options. E_FORMAT: these are no governor's, or another's. */
void         esper_governor_pack(const esper_governor *governor, double *numbers_out);
esper_status esper_governor_unpack(esper_governor *governor, const double *numbers, size_t n_numbers);

/* Takes back the losses of such a memory alone: those that were judged since will be judged again. */
esper_status esper_governor_unpack_history(esper_governor *governor, const double *numbers, size_t n_numbers);

/* Forgets the losses so far, and anomalies among them: the network has become another one, whose losses are not to be measured by
 * those of before. It judges again once it has seen enough of them; losses that are not finite it judges always. What it has
 * asked for, and the ladder, stay. */
void esper_governor_forget_losses(esper_governor *governor);

#endif
