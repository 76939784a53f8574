/* Internal to src/data. Arrays of people's own: .npy, .npz and safetensors files with samples and labels. */
#ifndef ESPER_DATA_ARRAYS_H
#define ESPER_DATA_ARRAYS_H

#include "data/prepared.h"

/* Fills a set of that kind from the file. */
esper_status esper_arrays_prepare(const esper_dataset_desc *desc, esper_dataset_kind kind, esper_prepared *set_out);

/* Samples without labels, as the plan says: images as bytes brought to its size, or rows as they are. The store's arrays are freed by
 * the caller, also on failure. */
esper_status esper_arrays_read(const char *path, esper_dataset_kind kind, const esper_source_plan *plan,
                               esper_store *store_out);

/* The key of the file, and of the arrays beside a .npy. */
esper_status esper_arrays_hash(const char *path, uint64_t *hash_out);

#endif
