/* Pictures from PNG and JPEG: every kind there is, every byte cut off, bytes changed at random; and sizes. */
#include "data/helpers.h"

#include "base/rng.h"
#include "data/picture.h"
#include "support/effort.h"
#include "support/pictures.h"

static void need(bool has, const char *library)
{
    if (!has) {
        printf("skipped: this build has no %s\n", library);
        skip();
    }
}

/* What a kind makes of a value at a place. */
static int wanted(const picture_file *file, int mark, int i, int j, int c)
{
    int depth = file->depth > 0 ? file->depth : 8;
    int value = picture_value(mark, i, j, c), cut = depth < 8 ? value >> (8 - depth) : value;
    bool clear = file->kind == PICTURE_GREY_CLEAR || file->kind == PICTURE_RGB_CLEAR;

    if (clear && i >= file->height / 2)
        return 255;
    if (file->kind == PICTURE_PALETTE) {
        cut = depth < 8 ? picture_value(mark, i, j, 0) >> (8 - depth) : picture_value(mark, i, j, 0);
        return c == 0 ? cut : c == 1 ? 255 - cut : cut / 2;
    }
    return depth < 8 ? cut * 255 / ((1 << depth) - 1) : value;
}

static void test_png_kinds(void **state)
{
    static const picture_file files[] = {
        {.kind = PICTURE_GREY},
        {.kind = PICTURE_GREY, .depth = 1},
        {.kind = PICTURE_GREY, .depth = 2},
        {.kind = PICTURE_GREY, .depth = 4},
        {.kind = PICTURE_GREY, .depth = 16},
        {.kind = PICTURE_GREY, .woven = true},
        {.kind = PICTURE_GREY_CLEAR},
        {.kind = PICTURE_GREY_CLEAR, .depth = 16},
        {.kind = PICTURE_RGB},
        {.kind = PICTURE_RGB, .depth = 16, .woven = true},
        {.kind = PICTURE_RGB_CLEAR},
        {.kind = PICTURE_RGB_CLEAR, .depth = 16},
        {.kind = PICTURE_PALETTE},
        {.kind = PICTURE_PALETTE, .depth = 4},
        {.kind = PICTURE_PALETTE, .depth = 1, .woven = true},
    };

    (void)state;
    need(picture_has_png(), "libpng");
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        picture_file file = files[f];
        esper_picture picture;
        esper_picture_head head;
        size_t n;
        uint8_t *bytes;
        bool grey = file.kind == PICTURE_GREY || file.kind == PICTURE_GREY_CLEAR;

        file.height = 11;
        file.width = 13;
        bytes = picture_make(&file, 3, &n);
        assert_ok(esper_picture_look("a.png", bytes, n, &head));
        assert_int_equal(head.height, 11);
        assert_int_equal(head.width, 13);
        assert_int_equal(head.channels, grey ? 1 : 3);
        assert_ok(esper_picture_decode("a.png", bytes, n, &picture));
        assert_int_equal(picture.channels, grey ? 1 : 3);
        assert_int_equal((picture.was & ESPER_PICTURE_WAS_DEEP) != 0, file.depth == 16);
        assert_int_equal((picture.was & ESPER_PICTURE_WAS_CLEAR) != 0,
                         file.kind == PICTURE_GREY_CLEAR || file.kind == PICTURE_RGB_CLEAR);
        for (int i = 0; i < 11; i++)
            for (int j = 0; j < 13; j++)
                for (int c = 0; c < picture.channels; c++)
                    if (picture.pixels[(i * 13 + j) * picture.channels + c] != wanted(&file, 3, i, j, c))
                        fail_msg("file %zu, row %d, column %d, channel %d: %d, wanted %d", f, i, j, c,
                                 picture.pixels[(i * 13 + j) * picture.channels + c], wanted(&file, 3, i, j, c));
        esper_picture_fini(&picture);
        free(bytes);
    }
    assert_int_equal(blocks_live(), 0);
}

static void test_jpeg_kinds(void **state)
{
    static const picture_file files[] = {{.jpeg = true, .kind = PICTURE_GREY, .height = 24, .width = 40},
                                         {.jpeg = true, .kind = PICTURE_RGB, .height = 24, .width = 40},
                                         {.jpeg = true, .kind = PICTURE_RGB, .woven = true, .height = 24, .width = 40},
                                         {.jpeg = true, .kind = PICTURE_CMYK, .height = 24, .width = 40}};

    (void)state;
    need(picture_has_jpeg(), "libjpeg");
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        const picture_file *file = &files[f];
        esper_picture picture;
        esper_picture_head head;
        size_t n;
        uint8_t *bytes = picture_make(file, 2, &n);

        assert_ok(esper_picture_look("a.jpg", bytes, n, &head));
        assert_int_equal(head.height, 24);
        assert_int_equal(head.width, 40);
        assert_ok(esper_picture_decode("a.jpg", bytes, n, &picture));
        assert_int_equal(picture.height, 24);
        assert_int_equal(picture.channels, file->kind == PICTURE_GREY ? 1 : 3);
        assert_int_equal(picture.was, file->kind == PICTURE_CMYK ? ESPER_PICTURE_WAS_CMYK : 0);
        for (int i = 0; i < 24; i++)
            for (int j = 0; j < 40; j++)
                for (int c = 0; c < picture.channels; c++) {
                    int want = picture_value(2, i / 8, j / 8, c);
                    int got = picture.pixels[(i * 40 + j) * picture.channels + c];

                    if (file->kind == PICTURE_CMYK) /* libjpeg writes an Adobe marker: inks are inverted */
                        want = want * picture_value(2, i / 8, j / 8, 3) / 255;
                    if (abs(got - want) > 24)
                        fail_msg("file %zu, row %d, column %d, channel %d: %d, wanted about %d", f, i, j, c, got, want);
                }
        esper_picture_fini(&picture);
        free(bytes);
    }
    assert_int_equal(blocks_live(), 0);
}

/* A file that ends early is damaged, wherever it ends; but for a JPEG's last bytes, which end nothing but the file. */
static void test_cut_off(void **state)
{
    static const picture_file files[] = {
        {.kind = PICTURE_RGB, .height = 9, .width = 7},
        {.jpeg = true, .kind = PICTURE_RGB, .height = 16, .width = 16},
        {.jpeg = true, .kind = PICTURE_GREY, .woven = true, .height = 16, .width = 16}};

    (void)state;
    need(picture_has_png() && picture_has_jpeg(), "libpng and libjpeg");
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        size_t n;
        uint8_t *bytes = picture_make(&files[f], 1, &n);

        for (size_t cut = 0; cut < n - 2; cut++) {
            esper_picture picture = {0};
            uint8_t *part = malloc(cut + 1); /* of exactly that size, so that a sanitizer sees a step beyond */

            memcpy(part, bytes, cut);
            part = realloc(part, cut > 0 ? cut : 1);
            if (esper_picture_decode("cut", part, cut, &picture) == ESPER_OK)
                fail_msg("file %zu: %zu of %zu bytes were taken for a picture", f, cut, n);
            if (strstr(esper_last_error(), "cut") == NULL)
                fail_msg("the file is not named: %s", esper_last_error());
            free(part);
        }
        free(bytes);
    }
    assert_int_equal(blocks_live(), 0);
}

static void test_changed_bytes(void **state)
{
    static const picture_file files[] = {{.kind = PICTURE_PALETTE, .depth = 4, .height = 9, .width = 7},
                                         {.kind = PICTURE_GREY_CLEAR, .woven = true, .height = 9, .width = 7},
                                         {.jpeg = true, .kind = PICTURE_RGB, .woven = true, .height = 16, .width = 16},
                                         {.jpeg = true, .kind = PICTURE_CMYK, .height = 16, .width = 16}};
    esper_rng_key key = {.seed = 5};
    esper_rng rng;

    (void)state;
    need(picture_has_png() && picture_has_jpeg(), "libpng and libjpeg");
    esper_rng_init(&rng, &key);
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++)
        for (int t = 0; t < effort(2000, 300); t++) {
            esper_picture picture = {0};
            size_t n;
            uint8_t *bytes = picture_make(&files[f], 1, &n);

            for (uint32_t k = 0; k < 1 + esper_rng_below(&rng, 3); k++)
                bytes[esper_rng_below(&rng, (uint32_t)n)] = (uint8_t)esper_rng_below(&rng, 256);
            if (esper_picture_decode("changed", bytes, n, &picture) == ESPER_OK) {
                assert_in_range(picture.height, 1, ESPER_PICTURE_MAX_SIDE);
                assert_true(picture.channels == 1 || picture.channels == 3);
            } else
                assert_non_null(strstr(esper_last_error(), "changed"));
            esper_picture_fini(&picture);
            free(bytes);
        }
    assert_int_equal(blocks_live(), 0);
}

static void test_strangers(void **state)
{
    static const uint8_t huge[33] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0,    0, 13, 'I',
                                     'H',  'D', 'R', 0,   0,    0x40, 0,    0,    0, 0x40, 0, 8,  2};
    esper_picture picture;

    (void)state;
    assert_fails(esper_picture_decode("a.png", (const uint8_t *)"", 0, &picture), ESPER_E_FORMAT,
                 "a.png: the file is empty");
    assert_fails(esper_picture_decode("a.png", (const uint8_t *)"GIF89a..", 8, &picture), ESPER_E_FORMAT,
                 "neither PNG nor JPEG");
    assert_fails(esper_picture_decode("a.png", huge, sizeof(huge), &picture), ESPER_E_FORMAT, "16384 x 16384");
}

/* The mean of what a smaller picture covers; a constant stays one; grey from colour and back. */
static void test_sizes(void **state)
{
    uint8_t pixels[4 * 6 * 3], out[64 * 64 * 3];
    esper_picture picture = {.height = 4, .width = 6, .channels = 1, .pixels = pixels};

    (void)state;
    for (int i = 0; i < 24; i++)
        pixels[i] = (uint8_t)(i * 10);
    assert_ok(esper_picture_fit(&picture, 1, 2, 3, out));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            int a = (2 * i * 6 + 2 * j) * 10, mean = (a + a + 10 + a + 60 + a + 70 + 2) / 4;

            assert_in_range(out[i * 3 + j], mean - 1, mean + 1);
        }
    for (int size = 1; size <= 64; size += 7) { /* up and down, none brighter or darker than it was */
        memset(pixels, 200, sizeof(pixels));
        assert_ok(esper_picture_fit(&picture, 3, size, 64 - size + 1, out));
        for (int i = 0; i < 3 * size * (64 - size + 1); i++)
            assert_in_range(out[i], 199, 200);
    }
    picture.channels = 3;
    for (int i = 0; i < 72; i++)
        pixels[i] = (uint8_t)(i % 3 == 0 ? 255 : 0);
    assert_ok(esper_picture_fit(&picture, 1, 4, 6, out));
    assert_int_equal(out[0], 76); /* 0.299 * 255 */
    assert_ok(esper_picture_fit(&picture, 3, 4, 6, out)); /* (H, W, C) to (C, H, W) */
    assert_int_equal(out[0], 255);
    assert_int_equal(out[24], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_kinds),     cmocka_unit_test(test_jpeg_kinds), cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_changed_bytes), cmocka_unit_test(test_strangers),  cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
