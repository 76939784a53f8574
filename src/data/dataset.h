/* Internal. A data set in memory: one object, whatever its source.
 *
 * Image sets hold uint8 images (C, H, W) with a label each. Token sets hold flat runs of uint16 tokens; sample i is the
 * window of tokens i*T .. i*T+T, of which the first T are the input and the last T the target.
 *
 * Splits: the training data is cut by seed, and by nothing else, into validation and training; what gates, governor and
 * rewards see comes from there. The test split has its own files, or is the last tenth of a text, and is for the end.
 * A sample's id is its index in the order of the files: of the training data for training and validation (and for a
 * test split that is its tail), of the test data for test. Augmentation is keyed by it. */
#ifndef ESPER_DATA_DATASET_H
#define ESPER_DATA_DATASET_H

#include <stdint.h>

#include "esper.h"

/* enum name, the name people see, whether it holds images or tokens */
#define ESPER_SOURCE_LIST(X)                 \
    X(FASHION, "fashion", IMAGES)            \
    X(MNIST, "mnist", IMAGES)                \
    X(CIFAR10, "cifar10", IMAGES)            \
    X(TEXT, "text", TOKENS)                  \
    X(TOKENS, "tokens", TOKENS)              \
    X(SYNTH_IMAGES, "synth_images", IMAGES)  \
    X(SYNTH_TOKENS, "synth_tokens", TOKENS)

typedef enum esper_source {
#define X(name, text, kind) ESPER_SOURCE_##name,
    ESPER_SOURCE_LIST(X)
#undef X
    ESPER_N_SOURCES
} esper_source;

typedef enum esper_dataset_kind { ESPER_DATASET_IMAGES, ESPER_DATASET_TOKENS } esper_dataset_kind;

typedef enum esper_split { ESPER_SPLIT_TRAIN, ESPER_SPLIT_VALID, ESPER_SPLIT_TEST, ESPER_N_SPLITS } esper_split;

enum { ESPER_DATASET_MAX_CHANNELS = 16, ESPER_DATASET_MAX_CLASSES = 256, ESPER_DATASET_MAX_VOCAB = 65536 };

/* What to open. Start from esper_dataset_desc_default(). */
typedef struct esper_dataset_desc {
    esper_source source;
    const char  *path;           /* NULL or "" = the source's own place; ':' separates several */
    uint64_t     seed;           /* of the split, and of synthetic contents */
    double       valid_fraction; /* of the training data, 0 .. 0.9 */
    uint32_t     train_limit;    /* most samples of the training split, drawn by the seed; 0 = all */
    int          context;        /* T: tokens of a window; token sets only */
    int          vocab;          /* token files and synthetic tokens; 0 = the source's own */
    int          channels, height, width, classes; /* synthetic images only */
    uint32_t     n_train, n_test;                  /* synthetic sets only: samples before carving, and of the test */
} esper_dataset_desc;

/* What is in a set. The same before it is loaded (esper_dataset_measure) and after. */
typedef struct esper_dataset_info {
    const char        *name; /* of the source; static */
    esper_dataset_kind kind;
    int                channels, height, width, classes; /* image sets */
    int                context, vocab;                   /* token sets */
    float              mean[ESPER_DATASET_MAX_CHANNELS]; /* (channels) inputs: (value / 255 - mean) / std */
    float              std[ESPER_DATASET_MAX_CHANNELS];  /* (channels) */
    uint32_t           count[ESPER_N_SPLITS];            /* samples */
    uint64_t           n_bytes;                          /* held at our allocation border while the set is open */
} esper_dataset_info;

typedef struct esper_dataset esper_dataset;

const char        *esper_source_name(esper_source source);
esper_dataset_kind esper_source_kind(esper_source source);
const char        *esper_split_name(esper_split split);

esper_dataset_desc esper_dataset_desc_default(esper_source source);

/* Finds out what opening would give, from sizes and file heads alone. Fails as opening does when files are missing. */
esper_status esper_dataset_measure(const esper_dataset_desc *desc, esper_dataset_info *info_out);

/* Loads the whole set. E_NOTFOUND when its files are not there: the message names them and says what to do. */
esper_status esper_dataset_open(const esper_dataset_desc *desc, esper_dataset **set_out);
void         esper_dataset_close(esper_dataset *set);

const esper_dataset_info *esper_dataset_info_get(const esper_dataset *set);
uint32_t                  esper_dataset_count(const esper_dataset *set, esper_split split);

/* Of all contents: sets that are equal have equal ones, wherever they were loaded from. */
uint64_t esper_dataset_hash(const esper_dataset *set);

/* The id of sample `index` of a split; ids rise with the index. */
uint32_t esper_dataset_id(const esper_dataset *set, esper_split split, uint32_t index);

/* Contents by id; they hold until the set is closed. */
const uint8_t  *esper_dataset_image(const esper_dataset *set, esper_split split, uint32_t id); /* (C, H, W) */
uint8_t         esper_dataset_label(const esper_dataset *set, esper_split split, uint32_t id);
const uint16_t *esper_dataset_window(const esper_dataset *set, esper_split split, uint32_t id); /* (T + 1) */

/* The 256 normalised values a pixel of a channel can have: levels[value]. */
const float *esper_dataset_levels(const esper_dataset *set, int channel);

#endif
