/* Internal. A program as it is evaluated (nn/infer.h) as C: one file of C99 with the weights inside, its header, and a test.
 *
 * The C needs libc and libm and nothing else, takes no memory, and keeps nothing between calls: activations lie in a struct of the
 * caller's. It is valid as C++ too. The same network gives the same text. Names from anywhere (classes, columns, paths) are written
 * as strings in which all but plain characters stand by their numbers, and in comments as plain characters alone. */
#ifndef ESPER_NN_C99_EXPORT_H
#define ESPER_NN_C99_EXPORT_H

#include "nn/fixed.h"

enum { ESPER_C99_NAME_CHARS = 32 };

typedef struct esper_c99_feature {
    const char *name; /* UTF-8, anything */
    float       mean, std;
} esper_c99_feature;

typedef struct esper_c99_desc {
    const esper_infer       *infer;
    const esper_fixed       *fixed;   /* of infer; NULL: in floats */
    const char              *name;    /* what names and files begin with: esper_c99_is_name */
    const char              *about;   /* lines at the head of the files; NULL = none */
    const char *const       *classes; /* UTF-8, anything */
    int                      n_classes;
    const esper_c99_feature *features; /* of rows; all of them, or none */
    int                      n_features;
    const float             *mean, *std; /* of pixels, for each channel: (value / 255 - mean) / std; NULL: it takes no pixels */
    /* Samples for the test, with the outputs they are to give: pixels, or floats, or ids, as the network takes them. */
    const void              *samples;
    const float             *expected;
    int                      n_samples;
} esper_c99_desc;

typedef struct esper_c99 {
    char   *header, *source, *test;
    int64_t weight_bytes, memory_bytes;
} esper_c99;

/* A letter, then letters, digits and _. */
bool esper_c99_is_name(const char *name);

esper_status esper_c99_init(esper_c99 *c99, const esper_c99_desc *desc);
void         esper_c99_fini(esper_c99 *c99);

#endif
