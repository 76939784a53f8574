/* Internal to src/data. A folder of images: which files belong to which class and to which part of the data.
 *
 *     DIR/CLASS/file.png                     a tenth, drawn by the seed, becomes the test
 *     DIR/train/CLASS/file.png, DIR/test/CLASS/file.png
 *
 * Names that begin with a dot are passed over, as everywhere. What else is passed over is counted and told. */
#ifndef ESPER_DATA_FOLDER_H
#define ESPER_DATA_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"

typedef struct esper_folder_file {
    char    *path;  /* below the folder */
    int      class; /* in the order of names, byte by byte */
    int      store; /* ESPER_STORE_TRAIN or ESPER_STORE_TEST */
    uint64_t n_bytes;
    int64_t  time_ns; /* when it was last changed */
} esper_folder_file;

enum { ESPER_FOLDER_NAMED = 5 }; /* files that are named where many are meant */

typedef struct esper_folder_passed {
    uint64_t n;
    char    *named[ESPER_FOLDER_NAMED]; /* the first of them, in the order of names */
} esper_folder_passed;

typedef struct esper_folder {
    char               *path;
    esper_folder_file  *files; /* (n_files) by store, class and name */
    uint64_t            n_files, room;
    char              **classes; /* (n_classes) */
    int                 n_classes, class_room;
    bool                has_splits;  /* train/ and perhaps test/ below */
    bool                has_test;
    char               *joined;      /* "val": joined with the training data, because there is a test as well; or NULL */
    esper_folder_passed others;      /* files that are no images by their names, and folders below classes */
    esper_folder_passed empty;       /* folders of classes without images */
} esper_folder;

/* Start from zeros; call fini also on failure. */
esper_status esper_folder_list(const char *path, esper_folder *folder);
void         esper_folder_fini(esper_folder *folder);

/* Of all that was listed. */
uint64_t esper_folder_hash(const esper_folder *folder);

/* "a.txt, b.txt and 3 more" into text. */
void esper_folder_name_passed(const esper_folder_passed *passed, char *text, size_t chars);
void esper_folder_passed_add(esper_folder_passed *passed, const char *name);
void esper_folder_passed_fini(esper_folder_passed *passed);

#endif
