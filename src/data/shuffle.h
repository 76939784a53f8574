/* Internal to src/data. A random order, the same for the same key. */
#ifndef ESPER_DATA_SHUFFLE_H
#define ESPER_DATA_SHUFFLE_H

#include "base/rng.h"

/* Puts the list into a random order (Fisher and Yates). The key's `sample` is not used: it counts parts of long lists,
 * since one stream of numbers has an end. */
void esper_shuffle(uint32_t *list, uint32_t n, const esper_rng_key *key);

#endif
