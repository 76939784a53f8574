/* Image files, by the libraries' own writers. */
#include "support/pictures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#ifdef ESPER_HAVE_PNG
#include <png.h>
#endif
#ifdef ESPER_HAVE_JPEG
#include <jpeglib.h>
#endif

bool picture_has_png(void)
{
#ifdef ESPER_HAVE_PNG
    return true;
#else
    return false;
#endif
}

bool picture_has_jpeg(void)
{
#ifdef ESPER_HAVE_JPEG
    return true;
#else
    return false;
#endif
}

int picture_value(int mark, int row, int column, int channel)
{
    return (mark * 37 + row * 5 + column * 3 + channel * 61) & 255;
}

#ifdef ESPER_HAVE_PNG
typedef struct growing {
    uint8_t *bytes;
    size_t   n, room;
} growing;

static void append(png_structp png, png_bytep data, size_t n)
{
    growing *out = png_get_io_ptr(png);

    if (out->n + n > out->room) {
        out->room = 2 * (out->n + n);
        out->bytes = realloc(out->bytes, out->room);
        assert_non_null(out->bytes);
    }
    memcpy(out->bytes + out->n, data, n);
    out->n += n;
}

/* One row in the file's own format. */
static void fill_row(const picture_file *file, int mark, int row, uint8_t *out)
{
    int depth = file->depth > 0 ? file->depth : 8;
    int colours = file->kind == PICTURE_RGB || file->kind == PICTURE_RGB_CLEAR ? 3 : 1;
    bool clear = file->kind == PICTURE_GREY_CLEAR || file->kind == PICTURE_RGB_CLEAR;
    size_t bit = 0;

    memset(out, 0, (size_t)file->width * 8);
    for (int j = 0; j < file->width; j++)
        for (int c = 0; c < colours + clear; c++) {
            int value = c == colours ? (row < file->height / 2 ? 255 : 0) : picture_value(mark, row, j, c);

            if (depth == 16) {
                out[bit / 8] = (uint8_t)value;
                out[bit / 8 + 1] = (uint8_t)value;
            } else
                out[bit / 8] = (uint8_t)(out[bit / 8] | (value >> (8 - depth)) << (8 - depth - (int)(bit % 8)));
            bit += (size_t)depth;
        }
}

static uint8_t *make_png(const picture_file *file, int mark, size_t *n_out)
{
    static const int types[] = {[PICTURE_GREY] = PNG_COLOR_TYPE_GRAY,
                                [PICTURE_GREY_CLEAR] = PNG_COLOR_TYPE_GRAY_ALPHA,
                                [PICTURE_RGB] = PNG_COLOR_TYPE_RGB,
                                [PICTURE_RGB_CLEAR] = PNG_COLOR_TYPE_RGB_ALPHA,
                                [PICTURE_PALETTE] = PNG_COLOR_TYPE_PALETTE};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_bytepp rows = calloc((size_t)file->height, sizeof(*rows));
    png_color palette[256];
    growing out = {0};
    int depth = file->depth > 0 ? file->depth : 8;

    if (setjmp(png_jmpbuf(png)) != 0)
        fail_msg("libpng could not write");
    png_set_write_fn(png, &out, append, NULL);
    png_set_IHDR(png, info, (png_uint_32)file->width, (png_uint_32)file->height, depth, types[file->kind],
                 file->woven ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    for (int i = 0; i < 256; i++)
        palette[i] = (png_color){(uint8_t)i, (uint8_t)(255 - i), (uint8_t)(i / 2)};
    if (file->kind == PICTURE_PALETTE)
        png_set_PLTE(png, info, palette, 1 << depth);
    png_write_info(png, info);
    for (int i = 0; i < file->height; i++) {
        rows[i] = malloc((size_t)file->width * 8);
        fill_row(file, mark, i, rows[i]);
    }
    png_write_image(png, rows);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    for (int i = 0; i < file->height; i++)
        free(rows[i]);
    free(rows);
    *n_out = out.n;
    return out.bytes;
}
#endif

#ifdef ESPER_HAVE_JPEG
static uint8_t *make_jpeg(const picture_file *file, int mark, size_t *n_out)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long n = 0;
    int colours = file->kind == PICTURE_GREY ? 1 : file->kind == PICTURE_CMYK ? 4 : 3;
    uint8_t *row = malloc((size_t)file->width * 4);

    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &n);
    jpeg.image_width = (JDIMENSION)file->width;
    jpeg.image_height = (JDIMENSION)file->height;
    jpeg.input_components = colours;
    jpeg.in_color_space = colours == 1 ? JCS_GRAYSCALE : colours == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 95, TRUE);
    if (file->woven)
        jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (int i = 0; i < file->height; i++) {
        for (int j = 0; j < file->width; j++)
            for (int c = 0; c < colours; c++)
                row[j * colours + c] = (uint8_t)picture_value(mark, i / 8, j / 8, c); /* smooth: JPEG keeps it nearly */
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(row);
    *n_out = (size_t)n;
    return bytes;
}
#endif

uint8_t *picture_make(const picture_file *file, int mark, size_t *n_out)
{
#ifdef ESPER_HAVE_PNG
    if (!file->jpeg)
        return make_png(file, mark, n_out);
#endif
#ifdef ESPER_HAVE_JPEG
    if (file->jpeg)
        return make_jpeg(file, mark, n_out);
#endif
    (void)mark;
    (void)n_out;
    fail_msg("this build cannot make a %s", file->jpeg ? "JPEG" : "PNG");
    return NULL;
}

void picture_write(const char *path, const picture_file *file, int mark)
{
    char dir[4096];
    size_t n;
    uint8_t *bytes = picture_make(file, mark, &n);
    FILE *stream;

    snprintf(dir, sizeof(dir), "%s", path);
    for (char *slash = strchr(dir, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(dir, 0777);
        *slash = '/';
    }
    stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, n, stream), n);
    assert_int_equal(fclose(stream), 0);
    free(bytes);
}
