/* Internal. Image files made for tests: PNG of every kind, by libpng, and JPEG, by libjpeg. */
#ifndef ESPER_TESTS_PICTURES_H
#define ESPER_TESTS_PICTURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum picture_kind {
    PICTURE_GREY,
    PICTURE_GREY_CLEAR, /* with transparency */
    PICTURE_RGB,
    PICTURE_RGB_CLEAR,
    PICTURE_PALETTE,
    PICTURE_CMYK, /* JPEG only */
} picture_kind;

typedef struct picture_file {
    bool         jpeg;
    picture_kind kind;
    int          depth; /* PNG: 1, 2, 4 (grey and palette), 8 or 16; 0 = 8 */
    bool         woven; /* interlaced PNG, progressive JPEG */
    int          height, width;
} picture_file;

/* Whether this build can make and read them. */
bool picture_has_png(void);
bool picture_has_jpeg(void);

/* The value that a made picture has at a place, 0..255, before whatever the file's kind does to it: a gradient that depends on
 * `mark`, so that pictures can be told apart. Transparent kinds are opaque in their upper half and clear below. */
int picture_value(int mark, int row, int column, int channel);

/* The file's bytes; free with free(). */
uint8_t *picture_make(const picture_file *file, int mark, size_t *n_out);

/* The same written to a path; its folders are made. */
void picture_write(const char *path, const picture_file *file, int mark);

#endif
