/* Internal. Samples without labels, out of files, encoded as those of a set were: images brought to its size and normalised by its
 * numbers, columns found by their names, words by what they became. The set may be one without samples (esper_dataset_recall). */
#ifndef ESPER_DATA_INPUTS_H
#define ESPER_DATA_INPUTS_H

#include "data/dataset.h"

typedef struct esper_inputs {
    uint64_t n;
    float   *values;      /* (n, C, H, W) or (n, F), as a network takes them */
    char     remark[400]; /* what was not as in training; "" = nothing */
} esper_inputs;

/* An image, arrays or a table, by the name's ending. Start from zeros; fini in any case. */
esper_status esper_inputs_read(const esper_dataset *set, const char *path, esper_inputs *inputs_out);
void         esper_inputs_fini(esper_inputs *inputs);

/* Whether a name is that of an image, which is one sample. */
bool esper_inputs_is_image(const char *path);

#endif
