/* Internal to src/data. What a source of data provides: how much there is, then the data itself.
 *
 * Measuring comes first and reads only sizes and heads; dataset.c then takes all memory and the source fills it.
 * A set has two stores: the training data (later cut into training and validation) and the test data. */
#ifndef ESPER_DATA_SOURCE_H
#define ESPER_DATA_SOURCE_H

#include <stdbool.h>

#include "base/page.h"
#include "data/dataset.h"

enum { ESPER_STORE_TRAIN, ESPER_STORE_TEST, ESPER_N_STORES };

/* What a set tells of itself: texts one after the other, each with a zero at its end. Names of classes come first, then remarks
 * for people, then for each column of a table its name and a description, and of each number of a row what it is. */
typedef struct esper_source_texts {
    esper_page page;
    uint32_t   n_classes, n_remarks, n_columns, n_features;
} esper_source_texts;

typedef struct esper_source_plan {
    int      channels, height, width;          /* image sets */
    int      features;                         /* vector sets */
    int      numbers;                          /* people's own: the first so many are normalised by the training split */
    int      classes;                          /* both */
    int      vocab;                            /* token sets */
    float    mean[ESPER_DATASET_MAX_CHANNELS], std[ESPER_DATASET_MAX_CHANNELS];
    /* Images, rows or tokens. A token set without test tokens gives up its last tenth; people's own images and rows a tenth that is
     * drawn by the seed. */
    uint64_t n_items[ESPER_N_STORES];
    uint64_t key;                     /* of what the cache holds; sources that are prepared */
    bool     was_fresh;               /* the cache held it already */
    esper_source_texts texts;         /* freed by who measured; sources that are prepared */
} esper_source_plan;

typedef struct esper_store {
    uint64_t  n_items; /* images, rows or tokens */
    uint8_t  *images;  /* (n_items, C, H, W); image sets: NULL in others */
    float    *rows;    /* (n_items, F) normalised; vector sets */
    uint8_t  *labels;  /* (n_items) below the number of classes; image and vector sets */
    uint16_t *tokens;  /* (n_items) below the vocabulary; token sets */
} esper_store;

typedef struct esper_source_ops {
    esper_status (*measure)(const esper_dataset_desc *desc, esper_source_plan *plan_out);
    /* Fills both stores, whose memory is as large as the plan says. Files that no longer fit the plan are a failure. */
    esper_status (*load)(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES]);
} esper_source_ops;

extern const esper_source_ops esper_source_fashion, esper_source_cifar10, esper_source_text, esper_source_tokens,
    esper_source_synth_images, esper_source_synth_tokens, esper_source_synth_table, esper_source_own_images,
    esper_source_own_table;

/* A set without samples, which knows what they were like (dataset_note.c). Takes over the texts. */
typedef struct esper_source_blank {
    esper_dataset_info info;
    int                n_scaled;
    const float       *row_mean, *row_std; /* (n_scaled) copied */
} esper_source_blank;

esper_status esper_dataset_open_empty(const esper_source_blank *blank, esper_source_texts *texts,
                                      esper_dataset **set_out);

/* Leading numbers of a row that are normalised when a set is opened. */
int esper_dataset_scaled(const esper_dataset *set);

/* Whether it has fewer classes than its source. */
bool esper_dataset_is_part(const esper_dataset *set);

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
