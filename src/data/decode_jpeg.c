/* JPEG, by libjpeg(-turbo): the one file that knows it. Baseline and progressive; grey, YCbCr, RGB, CMYK and YCCK.
 *
 * libjpeg goes on behind damage and warns; here a warning is damage, since half a picture would be learned from in silence. The
 * slow, exact transform is asked for: all processors then give the same pixels. A picture's orientation (EXIF) is not looked at:
 * pixels are taken as they are stored. */
#include <stdio.h> /* jpeglib.h needs it */

#include <jpeglib.h>

#include <setjmp.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/picture.h"

enum { MAX_SCANS = 200 }; /* of a progressive file: each goes over the whole picture, and thousands are an attack */

typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr         errors;
    struct jpeg_progress_mgr      progress;
    jmp_buf                       failed;
    bool                          no_memory;
    char                          words[JMSG_LENGTH_MAX];
    uint8_t                      *line; /* (W, 4) of a CMYK picture */
    esper_picture                 picture;
} decoder;

static decoder *decoder_of(j_common_ptr jpeg)
{
    return jpeg->client_data;
}

__attribute__((noreturn)) static void on_error(j_common_ptr jpeg)
{
    decoder *self = decoder_of(jpeg);

    if (self->words[0] == '\0')
        self->errors.format_message(jpeg, self->words);
    longjmp(self->failed, 1);
}

/* Below 0 is damage that libjpeg would repair as well as it can. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0)
        on_error(jpeg);
}

__attribute__((noreturn)) static void leave(decoder *self, const char *words)
{
    snprintf(self->words, sizeof(self->words), "%s", words);
    on_error((j_common_ptr)&self->jpeg);
}

static void on_progress(j_common_ptr jpeg)
{
    decoder *self = decoder_of(jpeg);

    if (self->jpeg.input_scan_number > MAX_SCANS)
        leave(self, "more scans than a picture has");
}

/* Ink to light. Adobe's files, which are nearly all there are, hold the inks inverted. */
static void rgb_of_line(const decoder *self, uint8_t *out)
{
    for (int j = 0; j < self->picture.width; j++)
        for (int c = 0; c < 3; c++) {
            int ink = self->line[4 * j + c], key = self->line[4 * j + 3];

            if (!self->jpeg.saw_Adobe_marker) {
                ink = 255 - ink;
                key = 255 - key;
            }
            out[3 * j + c] = (uint8_t)((ink * key + 127) / 255);
        }
}

static void decode(decoder *self, const uint8_t *bytes, size_t n)
{
    struct jpeg_decompress_struct *jpeg = &self->jpeg;
    esper_picture *picture = &self->picture;
    size_t row_bytes;
    bool is_cmyk;

    jpeg_create_decompress(jpeg);
    jpeg->client_data = self; /* creating clears it */
    self->progress.progress_monitor = on_progress;
    jpeg->progress = &self->progress;
    jpeg_mem_src(jpeg, bytes, (unsigned long)n);
    jpeg_read_header(jpeg, TRUE);
    if (jpeg->image_width > ESPER_PICTURE_MAX_SIDE || jpeg->image_height > ESPER_PICTURE_MAX_SIDE ||
        (size_t)jpeg->image_width * jpeg->image_height >
            ESPER_PICTURE_MAX_PIXELS) /* another frame than was looked at */
        leave(self, "it is too large");
    is_cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = is_cmyk ? JCS_CMYK : jpeg->jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(jpeg);
    picture->height = (int)jpeg->output_height;
    picture->width = (int)jpeg->output_width;
    picture->channels = jpeg->out_color_space == JCS_GRAYSCALE ? 1 : 3;
    picture->was = is_cmyk ? ESPER_PICTURE_WAS_CMYK : 0;
    if (jpeg->output_components != (is_cmyk ? 4 : picture->channels))
        leave(self, "an unknown kind of pixels");
    row_bytes = (size_t)picture->width * (size_t)picture->channels;
    picture->pixels = esper_mem_alloc((size_t)picture->height * row_bytes);
    self->line = is_cmyk ? esper_mem_alloc((size_t)picture->width * 4) : NULL;
    if (picture->pixels == NULL || (is_cmyk && self->line == NULL)) {
        self->no_memory = true;
        leave(self, "out of memory");
    }
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *row = picture->pixels + jpeg->output_scanline * row_bytes, *into = is_cmyk ? self->line : row;

        jpeg_read_scanlines(jpeg, &into, 1);
        if (is_cmyk)
            rgb_of_line(self, row);
    }
    jpeg_finish_decompress(jpeg);
}

esper_status esper_jpeg_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out)
{
    decoder *self = esper_mem_alloc(sizeof(*self));
    volatile bool done = false;
    esper_status status = ESPER_OK;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a JPEG", name);
    self->jpeg.err = jpeg_std_error(&self->errors);
    self->jpeg.client_data = self;
    self->errors.error_exit = on_error;
    self->errors.emit_message = on_message;
    if (setjmp(self->failed) == 0) {
        decode(self, bytes, n);
        done = true;
    }
    jpeg_destroy_decompress(&self->jpeg);
    esper_mem_free(self->line);
    if (done)
        *picture_out = self->picture;
    else {
        status = self->no_memory ? ESPER_FAIL(ESPER_E_NOMEM, "%s: a JPEG", name)
                                 : ESPER_FAIL(ESPER_E_FORMAT, "%s: a damaged JPEG: %s", name, self->words);
        esper_picture_fini(&self->picture);
    }
    esper_mem_free(self);
    return status;
}
