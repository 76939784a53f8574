/* Internal to the tests. A look at the backend's memory from outside, and a hand in it: what tests do to networks in the stead of
 * faults, and how they compare what came of it. Between steps, when nothing is queued. */
#ifndef ESPER_TESTS_SUPPORT_SLAB_LOOK_H
#define ESPER_TESTS_SUPPORT_SLAB_LOOK_H

#include <stdlib.h>

#include <xxhash.h>

#include "tensor/plan.h"

/* The values of a family; NULL where the slab has none. */
static inline float *slab_values(const esper_slab *slab, esper_family family)
{
    return esper_backend_address(slab->backend, slab->family[family]);
}

/* The values of a tensor of a plan's first network; NULL where it has none. */
static inline void *plan_values(esper_backend *backend, const esper_plan *plan, int tensor)
{
    return esper_backend_address(backend, esper_plan_data(plan, 0, tensor));
}

/* Everything but the gradients, added to a hash. */
static inline uint64_t slab_hash(const esper_slab *slab, uint64_t hash)
{
    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        if (f != ESPER_FAMILY_GRAD && slab->family[f] != NULL) {
            size_t bytes = (size_t)esper_slab_count(slab, (esper_family)f) * sizeof(float);
            void *values = malloc(bytes + 1);

            if (values == NULL || esper_backend_read(slab->backend, values, slab->family[f], bytes) != ESPER_OK)
                abort();
            hash = XXH64(values, bytes, hash);
            free(values);
        }
    return hash;
}

#endif
