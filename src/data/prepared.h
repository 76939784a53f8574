/* Internal to src/data. Data of people's own, as it is once decoded: kept in a file of the cache, so that it is decoded once.
 *
 * The file is written whole or not at all, under a lock, so that any number of processes may ask at once: the first decodes,
 * the others wait and read. Its key says what it was made of: the version of this format, all settings that matter, and path,
 * size and time of every file. Another key is another set: the file is made anew. So is one that is damaged, cut off, or of
 * another version.
 *
 *     head | texts | contents of the training data | contents of the test data
 */
#ifndef ESPER_DATA_PREPARED_H
#define ESPER_DATA_PREPARED_H

#include "data/source.h"

enum { ESPER_PREPARED_VERSION = 2 };

typedef struct esper_prepared {
    esper_source_plan plan;                   /* owns its texts */
    esper_store       stores[ESPER_N_STORES]; /* filled by who builds */
} esper_prepared;

/* How a kind of data is prepared. */
typedef struct esper_preparer {
    /* Looks at the files, reading none of them: what is there, as a key. `*found_out` is for build and is freed by `close`. */
    esper_status (*look)(const esper_dataset_desc *desc, uint64_t *key_out, void **found_out);
    /* Decodes everything into memory. */
    esper_status (*build)(const esper_dataset_desc *desc, void *found, esper_prepared *set_out);
    void (*close)(void *found);
} esper_preparer;

/* What is to be told of a set; the plan takes over. Start from zeros. Texts come in this order: classes, remarks,
 * columns, features. */
void esper_prepared_class(esper_prepared *set, const char *name);
void esper_prepared_remark(esper_prepared *set, const char *format, ...) __attribute__((format(printf, 2, 3)));
void esper_prepared_column(esper_prepared *set, const char *name, const char *about);
void esper_prepared_feature(esper_prepared *set, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Of sets of images: mean and deviation of the training data; and a remark about them. */
void esper_images_normalise(const esper_store *store, esper_source_plan *plan);
void esper_images_tell_normalised(esper_prepared *set);

/* A table from its text (table.c); for the source, tests and fuzzing. */
esper_status esper_table_prepare(const char *name, const char *bytes, size_t n, const char *target,
                                 esper_prepared *set_out);

/* What is prepared, made now if there is nothing or something else. The plan owns its texts. */
esper_status esper_prepared_measure(const esper_dataset_desc *desc, const esper_preparer *preparer,
                                    esper_source_plan *plan_out);

/* The contents, into stores as large as the plan says. */
esper_status esper_prepared_load(const esper_dataset_desc *desc, const esper_preparer *preparer,
                                 const esper_source_plan *plan, esper_store stores[ESPER_N_STORES]);

/* Where the file lies, or would: "CACHE/photos-0123456789abcdef.esper". */
esper_status esper_prepared_path(const esper_dataset_desc *desc, char *path_out, size_t chars);

/* A key of one file: path, size and time. */
esper_status esper_prepared_hash_file(const char *path, uint64_t *hash_out);

/* Memory for the stores of a plan. E_NOMEM says how much that would be; more than the machine has is asked for by nobody. */
esper_status esper_prepared_alloc(esper_prepared *set);
void         esper_prepared_fini(esper_prepared *set);

#endif
