/* Internal to src/data. Arrays as NumPy writes them: .npy, one array, and .npz, a ZIP of such, stored or deflated.
 *
 * A file is accepted only where all of it makes sense: an array is as long as its shape and type say, and nothing is read that a
 * length merely claims. An array looks like a tensor of a safetensors file (safetensors.h); numbers in other byte orders, arrays in
 * Fortran's order, objects and texts are refused. */
#ifndef ESPER_DATA_NPY_H
#define ESPER_DATA_NPY_H

#include "data/safetensors.h"

/* The array in the bytes of a .npy file; its data points into them, and has `name` for a name. */
esper_status esper_npy_read(const char *name, const void *bytes, size_t n, esper_safetensors_tensor *array_out);

typedef struct esper_npz esper_npz;

/* Over bytes in memory, which must outlive it. */
esper_status esper_npz_open(const char *name, const void *bytes, size_t n, esper_npz **npz_out);
void         esper_npz_close(esper_npz *npz);

/* Arrays by their names in the file, without ".npy". */
size_t                          esper_npz_count(const esper_npz *npz);
const esper_safetensors_tensor *esper_npz_at(const esper_npz *npz, size_t index);

#endif
