/* Internal. The data set in the memory of a backend that makes its batches itself. */
#ifndef ESPER_ENGINE_SAMPLES_H
#define ESPER_ENGINE_SAMPLES_H

#include "data/batch.h"
#include "tensor/backend.h"

typedef struct esper_samples {
    esper_backend *backend; /* NULL: batches are the host's to make */
    esper_gather   of_split[ESPER_N_SPLITS]; /* all but the batch */
    void          *memory;  /* levels, items and labels */
} esper_samples;

/* Copies the whole set there. A backend that makes no batches, or has no room for the set, is no failure: then `backend` is NULL. */
esper_status esper_samples_init(esper_samples *samples, esper_backend *backend, const esper_dataset *set);
void         esper_samples_fini(esper_samples *samples);

#endif
