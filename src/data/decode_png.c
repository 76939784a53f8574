/* PNG, by libpng: the one file that knows it. Any depth, palette, interlacing and transparency; see picture.h for what becomes of
 * them. libpng leaves a failure by longjmp, so that everything that must be freed lives outside the function that sets it. */
#include <png.h>

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/picture.h"

enum { WORDS_CHARS = 160, MAX_CHUNK_BYTES = 8 << 20 };

typedef struct decoder {
    const uint8_t *bytes;
    size_t         n, at;
    png_structp    png;
    png_infop      info;
    png_bytepp     rows;
    jmp_buf        failed;
    bool           no_memory;
    char           words[WORDS_CHARS]; /* what libpng said */
    esper_picture  picture;
} decoder;

static void read_bytes(png_structp png, png_bytep out, size_t n)
{
    decoder *self = png_get_io_ptr(png);

    if (n > self->n - self->at)
        png_error(png, "the file is cut off");
    memcpy(out, self->bytes + self->at, n);
    self->at += n;
}

__attribute__((noreturn)) static void on_error(png_structp png, const char *words)
{
    decoder *self = png_get_error_ptr(png);

    snprintf(self->words, sizeof(self->words), "%s", words);
    longjmp(self->failed, 1);
}

static void on_warning(png_structp png, const char *words)
{
    (void)png;
    (void)words;
}

/* To 8 bits, and grey or RGB, with transparency as one more channel where there is any. */
static void ask_for_bytes(decoder *self)
{
    if (png_get_bit_depth(self->png, self->info) == 16) {
        self->picture.was |= ESPER_PICTURE_WAS_DEEP;
        png_set_scale_16(self->png);
    }
    png_set_expand(self->png); /* palettes, fewer than 8 bits, and a colour that is clear */
    png_set_interlace_handling(self->png);
    png_read_update_info(self->png, self->info);
}

/* Lays pixels with transparency onto white, in place: values as they are stored, without a thought of gamma. */
static void lay_onto_white(esper_picture *picture)
{
    size_t n = (size_t)picture->height * (size_t)picture->width;
    int colours = picture->channels - 1;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *from = picture->pixels + i * (size_t)picture->channels;
        int alpha = from[colours];

        for (int c = 0; c < colours; c++)
            picture->pixels[i * (size_t)colours + (size_t)c] =
                (uint8_t)((from[c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
    picture->channels = colours;
    picture->was |= ESPER_PICTURE_WAS_CLEAR;
}

static void decode(decoder *self)
{
    esper_picture *picture = &self->picture;
    size_t row_bytes;

    png_set_user_limits(self->png, ESPER_PICTURE_MAX_SIDE, ESPER_PICTURE_MAX_SIDE);
    png_set_chunk_malloc_max(self->png, MAX_CHUNK_BYTES);
    png_set_read_fn(self->png, self, read_bytes);
    png_read_info(self->png, self->info);
    ask_for_bytes(self);
    picture->height = (int)png_get_image_height(self->png, self->info);
    picture->width = (int)png_get_image_width(self->png, self->info);
    picture->channels = png_get_channels(self->png, self->info);
    row_bytes = png_get_rowbytes(self->png, self->info);
    if (picture->channels < 1 || picture->channels > 4 ||
        row_bytes != (size_t)picture->width * (size_t)picture->channels)
        png_error(self->png, "an unknown kind of pixels");
    picture->pixels = esper_mem_alloc((size_t)picture->height * row_bytes);
    self->rows = esper_mem_alloc((size_t)picture->height * sizeof(*self->rows));
    if (picture->pixels == NULL || self->rows == NULL) {
        self->no_memory = true;
        png_error(self->png, "out of memory");
    }
    for (int i = 0; i < picture->height; i++)
        self->rows[i] = picture->pixels + (size_t)i * row_bytes;
    png_read_image(self->png, self->rows);
    png_read_end(self->png, NULL);
    if (picture->channels == 2 || picture->channels == 4)
        lay_onto_white(picture);
}

esper_status esper_png_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out)
{
    decoder *self = esper_mem_alloc(sizeof(*self));
    volatile bool done = false;
    esper_status status = ESPER_OK;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a PNG", name);
    self->bytes = bytes;
    self->n = n;
    self->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, self, on_error, on_warning);
    self->info = self->png != NULL ? png_create_info_struct(self->png) : NULL;
    self->no_memory = self->info == NULL;
    if (self->info != NULL && setjmp(self->failed) == 0) {
        decode(self);
        done = true;
    }
    png_destroy_read_struct(&self->png, &self->info, NULL);
    esper_mem_free(self->rows);
    if (done)
        *picture_out = self->picture;
    else {
        status = self->no_memory ? ESPER_FAIL(ESPER_E_NOMEM, "%s: a PNG", name)
                                 : ESPER_FAIL(ESPER_E_FORMAT, "%s: a damaged PNG: %s", name, self->words);
        esper_picture_fini(&self->picture);
    }
    esper_mem_free(self);
    return status;
}
