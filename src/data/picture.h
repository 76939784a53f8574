/* Internal to src/data. Pictures as they come out of files: PNG and JPEG, each behind a file of its own (decode_png.c,
 * decode_jpeg.c; decode_png_none.c and decode_jpeg_none.c in builds without the library).
 *
 * A picture is always 8 bits deep and has 1 channel (grey) or 3 (red, green, blue). What had more is brought there in one
 * documented way, and said: 16 bits keep their upper half, transparency is laid onto white, CMYK becomes RGB. */
#ifndef ESPER_DATA_PICTURE_H
#define ESPER_DATA_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"

enum { ESPER_PICTURE_MAX_SIDE = 16384, ESPER_PICTURE_MAX_PIXELS = 1 << 26, ESPER_PICTURE_MAX_CHANNELS = 3 };

/* What had to be done to it; bits. */
enum { ESPER_PICTURE_WAS_DEEP = 1, ESPER_PICTURE_WAS_CLEAR = 2, ESPER_PICTURE_WAS_CMYK = 4 };

typedef enum esper_picture_format { ESPER_PICTURE_PNG, ESPER_PICTURE_JPEG } esper_picture_format;

typedef struct esper_picture_head {
    esper_picture_format format;
    int                  height, width, channels;
} esper_picture_head;

typedef struct esper_picture {
    int      height, width, channels;
    unsigned was;
    uint8_t *pixels; /* (H, W, C); esper_picture_fini frees it */
} esper_picture;

/* From the first bytes of a file; `n` of them are here. E_FORMAT when they are of no picture, or of none that can be read; an
 * OK with height 0 when more bytes are needed. `name` stands in messages. */
esper_status esper_picture_look(const char *name, const uint8_t *bytes, size_t n, esper_picture_head *head_out);

/* A whole file. E_FORMAT, with the library's words, when it is damaged; a picture cut off is damaged. */
esper_status esper_picture_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out);
void         esper_picture_fini(esper_picture *picture);

/* Into (C, H, W) of any size and 1 or 3 channels: grey from colour by 0.299 R + 0.587 G + 0.114 B, colour from grey by three
 * equal channels; smaller by the mean over the area, larger by linear interpolation. Whole numbers only, so that it is the
 * same everywhere. */
esper_status esper_picture_fit(const esper_picture *picture, int channels, int height, int width, uint8_t *pixels_out);

/* Of one library each. */
esper_status esper_png_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out);
esper_status esper_jpeg_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out);

#endif
