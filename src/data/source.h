/* Internal to src/data. What a source of data provides: how much there is, then the data itself.
 *
 * Measuring comes first and reads only sizes and heads; dataset.c then takes all memory and the source fills it.
 * A set has two stores: the training data (later cut into training and validation) and the test data. */
#ifndef ESPER_DATA_SOURCE_H
#define ESPER_DATA_SOURCE_H

#include "data/dataset.h"

enum { ESPER_STORE_TRAIN, ESPER_STORE_TEST, ESPER_N_STORES };

typedef struct esper_source_plan {
    int      channels, height, width, classes; /* image sets */
    int      vocab;                            /* token sets */
    float    mean[ESPER_DATASET_MAX_CHANNELS], std[ESPER_DATASET_MAX_CHANNELS];
    uint64_t n_items[ESPER_N_STORES]; /* images, or tokens; a token set without test tokens gives up its last tenth */
} esper_source_plan;

typedef struct esper_store {
    uint64_t  n_items; /* images, or tokens */
    uint8_t  *images;  /* (n_items, C, H, W); NULL in token sets, as labels */
    uint8_t  *labels;  /* (n_items) below the number of classes */
    uint16_t *tokens;  /* (n_items) below the vocabulary; NULL in image sets */
} esper_store;

typedef struct esper_source_ops {
    esper_status (*measure)(const esper_dataset_desc *desc, esper_source_plan *plan_out);
    /* Fills both stores, whose memory is as large as the plan says. Files that no longer fit the plan are a failure. */
    esper_status (*load)(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES]);
} esper_source_ops;

extern const esper_source_ops esper_source_fashion, esper_source_cifar10, esper_source_text, esper_source_tokens,
    esper_source_synth_images, esper_source_synth_tokens;

/* desc->path, or `otherwise` when it is empty. */
const char *esper_source_path(const esper_dataset_desc *desc, const char *otherwise);

/* "dir/name" in new memory; NULL when memory is out. */
char *esper_source_join(const char *dir, const char *name);

/* E_NOTFOUND with what to do about it: `found` is what was met (it may be esper_last_error()), `wants` names the files
 * wanted in `place`. */
esper_status esper_source_missing(const esper_dataset_desc *desc, const char *found, const char *place,
                                  const char *wants);

/* Fails unless every label is below n_classes; says which is not. */
esper_status esper_source_check_labels(const char *path, const uint8_t *labels, uint64_t n, int n_classes);

#endif
