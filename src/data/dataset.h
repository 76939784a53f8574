/* Internal. A data set in memory: one object, whatever its source.
 *
 * Image sets hold uint8 images (C, H, W) with a label each. Vector sets hold rows of a table: F numbers, normalised, with a
 * label each. Token sets hold flat runs of uint16 tokens; sample i is the window of tokens i*T .. i*T+T, of which the first T
 * are the input and the last T the target.
 *
 * Splits: the training data is cut by seed, and by nothing else (but of people's own class by class), into validation and training;
 * what gates, governor and rewards see comes from there. The test split has its own files, or is the last tenth of a text or a tenth of images, drawn by
 * the seed, and is for the end.
 * A sample's id is its index in the order of the files: of the training data for training and validation (and for a
 * test split that is cut from it), of the test data for test. Augmentation is keyed by it. */
#ifndef ESPER_DATA_DATASET_H
#define ESPER_DATA_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "esper.h"

/* enum name, the name people see, whether it holds images, tokens or vectors */
#define ESPER_SOURCE_LIST(X)                 \
    X(FASHION, "fashion", IMAGES)            \
    X(MNIST, "mnist", IMAGES)                \
    X(CIFAR10, "cifar10", IMAGES)            \
    X(TEXT, "text", TOKENS)                  \
    X(TOKENS, "tokens", TOKENS)              \
    X(SYNTH_IMAGES, "synth_images", IMAGES)  \
    X(SYNTH_TOKENS, "synth_tokens", TOKENS)  \
    X(SYNTH_TABLE, "synth_table", VECTORS)   \
    X(OWN_IMAGES, "images", IMAGES)          \
    X(OWN_TABLE, "table", VECTORS)

typedef enum esper_source {
#define X(name, text, kind) ESPER_SOURCE_##name,
    ESPER_SOURCE_LIST(X)
#undef X
    ESPER_N_SOURCES
} esper_source;

typedef enum esper_dataset_kind {
    ESPER_DATASET_IMAGES,
    ESPER_DATASET_TOKENS,
    ESPER_DATASET_VECTORS,
} esper_dataset_kind;

typedef enum esper_split { ESPER_SPLIT_TRAIN, ESPER_SPLIT_VALID, ESPER_SPLIT_TEST, ESPER_N_SPLITS } esper_split;

enum {
    ESPER_DATASET_MAX_CHANNELS = 16,
    ESPER_DATASET_MAX_CLASSES = 256,
    ESPER_DATASET_MAX_VOCAB = 65536,
    ESPER_DATASET_MAX_FEATURES = 65536,
    ESPER_DATASET_MAX_SIDE = 4096, /* pixels of an image in a set of people's own */
};

/* Who is told how far the decoding of a folder has got: a verb ("decoding"), files done and in all. Called on the thread that
 * opened the set. */
typedef struct esper_dataset_progress {
    void (*tell)(void *context, const char *what, uint64_t done, uint64_t total);
    void *context;
} esper_dataset_progress;

/* What to open. Start from esper_dataset_desc_default(). */
typedef struct esper_dataset_desc {
    esper_source source;
    const char  *path;           /* NULL or "" = the source's own place; ':' separates several */
    uint64_t     seed;           /* of the split, and of synthetic contents */
    double       valid_fraction; /* of the training data, 0 .. 0.9 */
    uint32_t     train_limit;    /* most samples of the training split, drawn by the seed; 0 = all */
    int          keep_classes;   /* of a set with labels: only so many of its classes, drawn by the seed; 0 = all */
    int          context;        /* T: tokens of a window; token sets only */
    int          vocab;          /* token files and synthetic tokens; 0 = the source's own */
    int          channels, height, width;          /* synthetic images only */
    int          features;                         /* synthetic tables only: F */
    int          classes;                          /* both */
    uint32_t     n_train, n_test;                  /* synthetic sets only: samples before carving, and of the test */
    /* Data of people's own, which is decoded once and kept (docs/data.md): */
    const char  *image_size; /* "HxW"; "" or NULL: as the images are, or chosen */
    bool         grey;       /* colour is turned into grey */
    bool         skip_bad;   /* damaged files are left out and told, instead of being an error */
    const char  *target;     /* of a table: the column with the classes; "" or NULL: the last */
    const char  *cache;      /* where what was decoded is kept; "" or NULL: the usual place of caches */
    int          threads;    /* that decode; 0: one for each core */
    const esper_dataset_progress *progress; /* or NULL */
} esper_dataset_desc;

/* What is in a set. The same before it is loaded (esper_dataset_measure) and after. */
typedef struct esper_dataset_info {
    const char        *name; /* of the source; static */
    esper_dataset_kind kind;
    int                channels, height, width;          /* image sets */
    int                features;                         /* vector sets: F */
    int                classes;                          /* image and vector sets */
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

/* Whether a source's data is people's own: named by a path, decoded into the cache, and telling of itself. */
bool esper_source_is_own(esper_source source);

/* Whether it is made here, without files. */
bool esper_source_is_synthetic(esper_source source);

/* Finds out what opening would give, from sizes and file heads alone; data of people's own is decoded if it is not in the cache, and
 * what is left of a set that keeps some of its classes only its labels tell. Fails as opening does when files are missing. */
esper_status esper_dataset_measure(const esper_dataset_desc *desc, esper_dataset_info *info_out);

/* Whether two descriptions are of one set: the same contents in the same splits. */
bool esper_dataset_is_of(const esper_dataset_desc *desc, const esper_dataset_desc *other);

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
const float    *esper_dataset_row(const esper_dataset *set, esper_split split, uint32_t id);   /* (F) normalised */
uint8_t         esper_dataset_label(const esper_dataset *set, esper_split split, uint32_t id); /* of an image or a row */
const uint16_t *esper_dataset_window(const esper_dataset *set, esper_split split, uint32_t id); /* (T + 1) */

/* All items that a split's ids count in, as they lie one behind the other: images of bytes, rows of floats, or 16-bit tokens; their
 * bytes, and labels where they have them (NULL otherwise). Splits that share them give the same. */
const void *esper_dataset_items(const esper_dataset *set, esper_split split, size_t *bytes_out,
                                const uint8_t **labels_out, size_t *n_labels_out);

/* Of a set with classes: the name of one, which may be any UTF-8; its number where the data does not name it. */
const char *esper_dataset_class_name(const esper_dataset *set, int class);

/* The same as it is shown, on one line: '?' for control characters, a long one is cut. */
enum { ESPER_DATASET_SHOWN_CHARS = 96 };
const char *esper_dataset_class_shown(const esper_dataset *set, int class, char shown[ESPER_DATASET_SHOWN_CHARS]);

/* Whether classes have names of their own. */
bool esper_dataset_names_classes(const esper_dataset *set);

/* The names of all classes with commas between them, as many as fit: "cat, dog and 98 more". */
void esper_dataset_list_classes(const esper_dataset *set, char *text_out, size_t chars);

/* What the data tells of itself, for people: remarks; and of a table its columns, with what they were taken for. */
uint32_t    esper_dataset_remark_count(const esper_dataset *set);
const char *esper_dataset_remark(const esper_dataset *set, uint32_t index);
uint32_t    esper_dataset_column_count(const esper_dataset *set);
const char *esper_dataset_column(const esper_dataset *set, uint32_t index, const char **about_out);

/* What a number of a row of people's own data is ("age", "age is missing", "city = Oslo"), and how it was normalised: less the mean,
 * by the deviation, both of the training split; 0 and 1 where it was not. */
uint32_t    esper_dataset_feature_count(const esper_dataset *set);
const char *esper_dataset_feature(const esper_dataset *set, uint32_t index, float *mean_out, float *std_out);

/* Whether the test split is a tenth of the data, drawn by the seed. */
bool esper_dataset_is_test_drawn(const esper_dataset *set);

/* Whether the cache held the set when it was opened; and the file that holds it now. E_ARG for data that is not people's own. */
bool         esper_dataset_was_cached(const esper_dataset *set);
esper_status esper_dataset_cache_path(const esper_dataset_desc *desc, char *path_out, size_t chars);

/* Whether a file's name is that of arrays (.npy, .npz, .safetensors); and what kind of data is in such a file. */
bool         esper_arrays_is_file(const char *path);
esper_status esper_arrays_kind(const char *path, esper_dataset_kind *kind_out);

/* "HxW" or "N"; "" gives 0 and 0. */
esper_status esper_image_size_read(const char *text, int *height_out, int *width_out);

/* All that a network has to know of its data to be used without it, as JSON: shapes, how inputs are normalised, what columns of a
 * table became. And a set without samples made of that text, and of the names of its classes (a JSON list, NULL where it has none).
 * E_FORMAT: it is not what was described. */
esper_status esper_dataset_describe(const esper_dataset *set, esper_page *out);
esper_status esper_dataset_recall(const char *text, const char *classes, esper_dataset **set_out);

/* The 256 normalised values a pixel of a channel can have: levels[value]. */
const float *esper_dataset_levels(const esper_dataset *set, int channel);

#endif
