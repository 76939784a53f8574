/* Internal to src/data. Arrays of people's own: .npy, .npz and safetensors files with samples and labels. */
#ifndef ESPER_DATA_ARRAYS_H
#define ESPER_DATA_ARRAYS_H

#include "data/prepared.h"

/* Fills a set of that kind from the file. */
esper_status esper_arrays_prepare(const esper_dataset_desc *desc, esper_dataset_kind kind, esper_prepared *set_out);

/* The key of the file, and of the arrays beside a .npy. */
esper_status esper_arrays_hash(const char *path, uint64_t *hash_out);

#endif
