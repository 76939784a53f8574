/* Pictures: which format a file has, and how a picture is brought to a size. */
#include "data/picture.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { PNG_HEAD_BYTES = 33, WEIGHT_BITS = 14, ROW_BITS = 8 };

static const uint8_t png_magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

static uint32_t big_endian(const uint8_t *bytes, int n)
{
    uint32_t value = 0;

    for (int i = 0; i < n; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* ------------------------------------------------------------------------------------------------ heads */

/* A head of a few bytes can ask for gigabytes. */
static esper_status check_size(const char *name, const char *format, uint32_t width, uint32_t height)
{
    if (width == 0 || height == 0 || width > ESPER_PICTURE_MAX_SIDE || height > ESPER_PICTURE_MAX_SIDE ||
        (uint64_t)width * height > ESPER_PICTURE_MAX_PIXELS)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a %s of %u x %u: expected 1 to %d pixels a side, and at most %d in all",
                          name, format, width, height, (int)ESPER_PICTURE_MAX_SIDE, (int)ESPER_PICTURE_MAX_PIXELS);
    return ESPER_OK;
}

static esper_status look_at_png(const char *name, const uint8_t *bytes, size_t n, esper_picture_head *head)
{
    uint32_t width, height, colour;

    if (n < PNG_HEAD_BYTES || memcmp(bytes + 12, "IHDR", 4) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a PNG without a head: the file is damaged or cut off", name);
    width = big_endian(bytes + 16, 4);
    height = big_endian(bytes + 20, 4);
    colour = bytes[25];
    ESPER_TRY(check_size(name, "PNG", width, height));
    head->width = (int)width;
    head->height = (int)height;
    head->channels = colour == 0 || colour == 4 ? 1 : 3; /* grey, and grey with transparency */
    return ESPER_OK;
}

/* Markers that begin a frame: C0 to CF, but for tables (C4), extensions (C8) and arithmetic conditioning (CC). */
static bool begins_frame(uint8_t marker)
{
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

static esper_status look_at_jpeg(const char *name, const uint8_t *bytes, size_t n, esper_picture_head *head)
{
    size_t at = 2;

    while (at + 4 <= n) {
        uint8_t marker = bytes[at + 1];
        size_t length = big_endian(bytes + at + 2, 2);

        if (bytes[at] != 0xff || marker == 0xda || marker == 0xd9)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: a JPEG without a frame: the file is damaged", name);
        if (marker == 0xff) { /* fill bytes */
            at++;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) { /* without a length */
            at += 2;
            continue;
        }
        if (begins_frame(marker)) {
            if (at + 10 > n)
                return ESPER_OK;
            head->height = (int)big_endian(bytes + at + 5, 2);
            head->width = (int)big_endian(bytes + at + 7, 2);
            head->channels = bytes[at + 9] == 1 ? 1 : 3;
            return check_size(name, "JPEG", (uint32_t)head->width, (uint32_t)head->height);
        }
        if (length < 2)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: a JPEG with a part of no length: the file is damaged", name);
        at += 2 + length;
    }
    return ESPER_OK; /* more bytes are needed */
}

static bool is_png(const uint8_t *bytes, size_t n)
{
    return n >= sizeof(png_magic) && memcmp(bytes, png_magic, sizeof(png_magic)) == 0;
}

static bool is_jpeg(const uint8_t *bytes, size_t n)
{
    return n >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff;
}

static esper_status fail_unknown(const char *name, size_t n)
{
    return n == 0 ? ESPER_FAIL(ESPER_E_FORMAT, "%s: the file is empty", name)
                  : ESPER_FAIL(ESPER_E_FORMAT, "%s: neither PNG nor JPEG, whatever its name says", name);
}

esper_status esper_picture_look(const char *name, const uint8_t *bytes, size_t n, esper_picture_head *head_out)
{
    esper_picture_head head = {0};

    if (is_png(bytes, n)) {
        head.format = ESPER_PICTURE_PNG;
        ESPER_TRY(look_at_png(name, bytes, n, &head));
    } else if (is_jpeg(bytes, n)) {
        head.format = ESPER_PICTURE_JPEG;
        ESPER_TRY(look_at_jpeg(name, bytes, n, &head));
    } else
        return fail_unknown(name, n);
    *head_out = head;
    return ESPER_OK;
}

esper_status esper_picture_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out)
{
    esper_picture_head head;

    ESPER_TRY(esper_picture_look(name, bytes, n, &head));
    if (head.format == ESPER_PICTURE_PNG)
        return esper_png_decode(name, bytes, n, picture_out);
    if (head.height == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a damaged JPEG: the file is cut off", name);
    return esper_jpeg_decode(name, bytes, n, picture_out);
}

void esper_picture_fini(esper_picture *picture)
{
    esper_mem_free(picture->pixels);
    *picture = (esper_picture){0};
}

/* ------------------------------------------------------------------------------------------------ sizes */

/* Channel c of a pixel, where `wanted` channels are asked for. */
static uint8_t value_of(const esper_picture *picture, const uint8_t *pixel, int wanted, int c)
{
    if (wanted == picture->channels)
        return pixel[c];
    if (wanted == 3)
        return pixel[0];
    return (uint8_t)((299 * pixel[0] + 587 * pixel[1] + 114 * pixel[2] + 500) / 1000);
}

/* What an output position reads along one axis: `n` inputs from `first` on, with weights that add up to 1 << WEIGHT_BITS. */
typedef struct tap {
    int first, n;
    int at; /* of its weights in the list */
} tap;

typedef struct axis {
    tap     *taps;    /* (n_out) */
    int32_t *weights; /* (n_out * most) */
    int      most;
} axis;

/* Along an axis that gets shorter, input i has the weight of its overlap with the output's share; along one that gets longer,
 * the two inputs around the output's centre share it. Both in exact whole numbers; the last weight takes what rounding left. */
static void fill_tap(axis *self, int n_in, int n_out, int o)
{
    const int64_t one = (int64_t)1 << WEIGHT_BITS;
    tap *out = &self->taps[o];
    int32_t *weights = self->weights + (size_t)o * (size_t)self->most;
    int64_t left = one;

    out->at = o * self->most;
    if (n_in >= n_out) { /* in units of 1 / n_out of an input: output o covers [o * n_in, (o + 1) * n_in) */
        int64_t from = (int64_t)o * n_in, to = from + n_in;

        out->first = (int)(from / n_out);
        out->n = (int)((to + n_out - 1) / n_out) - out->first;
        for (int k = 0; k < out->n; k++) {
            int64_t low = (int64_t)(out->first + k) * n_out, high = low + n_out;
            int64_t overlap = (high < to ? high : to) - (low > from ? low : from);

            weights[k] = (int32_t)(k + 1 < out->n ? overlap * one / n_in : left);
            left -= weights[k];
        }
        return;
    }
    /* The centre of output o lies at (2 o + 1) n_in / (2 n_out) - 1/2 inputs. */
    int64_t place = ((int64_t)(2 * o + 1) * n_in - n_out) * one / (2 * n_out);

    place = place < 0 ? 0 : place > (n_in - 1) * one ? (n_in - 1) * one : place;
    out->first = (int)(place / one);
    out->n = out->first + 1 < n_in ? 2 : 1;
    weights[0] = (int32_t)(out->n == 2 ? one - place % one : one);
    if (out->n == 2)
        weights[1] = (int32_t)(place % one);
}

static esper_status axis_init(axis *self, int n_in, int n_out)
{
    self->most = n_in >= n_out ? n_in / n_out + 2 : 2;
    self->taps = esper_mem_alloc((size_t)n_out * sizeof(*self->taps));
    self->weights = esper_mem_alloc((size_t)n_out * (size_t)self->most * sizeof(*self->weights));
    if (self->taps == NULL || self->weights == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a picture's size");
    for (int o = 0; o < n_out; o++)
        fill_tap(self, n_in, n_out, o);
    return ESPER_OK;
}

static void axis_fini(axis *self)
{
    esper_mem_free(self->taps);
    esper_mem_free(self->weights);
}

/* Rows first, kept with ROW_BITS bits behind the point; then columns. */
static void resize(const esper_picture *picture, const axis *x, const axis *y, int channels, int height, int width,
                   int32_t *rows, uint8_t *out)
{
    const int64_t half = (int64_t)1 << (WEIGHT_BITS + ROW_BITS - 1);

    for (int c = 0; c < channels; c++) {
        for (int i = 0; i < picture->height; i++) {
            const uint8_t *line = picture->pixels + (size_t)i * (size_t)picture->width * (size_t)picture->channels;

            for (int o = 0; o < width; o++) {
                const tap *t = &x->taps[o];
                int64_t sum = 0;

                for (int k = 0; k < t->n; k++)
                    sum += (int64_t)x->weights[t->at + k] *
                           value_of(picture, line + (size_t)(t->first + k) * (size_t)picture->channels, channels, c);
                rows[(size_t)i * (size_t)width + (size_t)o] = (int32_t)(sum >> (WEIGHT_BITS - ROW_BITS));
            }
        }
        for (int o = 0; o < height; o++)
            for (int j = 0; j < width; j++) {
                const tap *t = &y->taps[o];
                int64_t sum = 0;

                for (int k = 0; k < t->n; k++)
                    sum += (int64_t)y->weights[t->at + k] * rows[(size_t)(t->first + k) * (size_t)width + (size_t)j];
                sum = (sum + half) >> (WEIGHT_BITS + ROW_BITS);
                out[((size_t)c * (size_t)height + (size_t)o) * (size_t)width + (size_t)j] =
                    (uint8_t)(sum > 255 ? 255 : sum);
            }
    }
}

esper_status esper_picture_fit(const esper_picture *picture, int channels, int height, int width, uint8_t *pixels_out)
{
    size_t n_pixels = (size_t)height * (size_t)width;
    axis x = {0}, y = {0};
    int32_t *rows;
    esper_status status;

    if (picture->height == height && picture->width == width) {
        for (int c = 0; c < channels; c++)
            for (size_t i = 0; i < n_pixels; i++)
                pixels_out[(size_t)c * n_pixels + i] =
                    value_of(picture, picture->pixels + i * (size_t)picture->channels, channels, c);
        return ESPER_OK;
    }
    rows = esper_mem_alloc((size_t)picture->height * (size_t)width * sizeof(*rows));
    status = rows != NULL ? axis_init(&x, picture->width, width) : ESPER_FAIL(ESPER_E_NOMEM, "a picture's rows");
    if (status == ESPER_OK)
        status = axis_init(&y, picture->height, height);
    if (status == ESPER_OK)
        resize(picture, &x, &y, channels, height, width, rows, pixels_out);
    axis_fini(&x);
    axis_fini(&y);
    esper_mem_free(rows);
    return status;
}
