/* Arrays of one's own: .npy, .npz, stored and deflated, safetensors; images and rows by their shape; what is damaged or unfit. */
#include "data/helpers.h"

#include <math.h>

#include "base/rng.h"
#include "data/dataset.h"
#include "data/npy.h"
#include "data/safetensors.h"
#include "support/effort.h"

enum { N = 40 };

/* The bytes of a .npy file; free with free(). */
static uint8_t *make_npy(const char *descr, const char *shape, const void *data, size_t bytes, size_t *n_out)
{
    char head[128];
    int n = snprintf(head, sizeof(head), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    size_t padded = ((size_t)n + 1 + 10 + 63) / 64 * 64 - 10;
    uint8_t *out = malloc(10 + padded + bytes);

    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (uint8_t)(padded & 255);
    out[9] = (uint8_t)(padded >> 8);
    memset(out + 10, ' ', padded);
    memcpy(out + 10, head, (size_t)n);
    out[10 + padded - 1] = '\n';
    memcpy(out + 10 + padded, data, bytes);
    *n_out = 10 + padded + bytes;
    return out;
}

static void put(uint8_t **at, uint32_t value, int n)
{
    for (int i = 0; i < n; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

/* A ZIP of two members as numpy.savez, or numpy.savez_compressed, writes it. */
static uint8_t *make_npz(const char *const names[2], uint8_t *const parts[2], const size_t sizes[2], bool packed,
                         size_t *n_out)
{
    uint8_t *out = malloc(2 * (sizes[0] + sizes[1]) + 4096), *at = out, *directory;
    uint32_t starts[2], lengths[2];

    for (int i = 0; i < 2; i++) {
        size_t length = sizes[i];
        uint8_t *data = parts[i];

        if (packed) {
            z_stream z = {0};

            data = malloc(compressBound(sizes[i]) + 64);
            assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY), Z_OK);
            z.next_in = parts[i];
            z.avail_in = (unsigned)sizes[i];
            z.next_out = data;
            z.avail_out = (unsigned)compressBound(sizes[i]) + 64;
            assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
            length = z.total_out;
            deflateEnd(&z);
        }
        starts[i] = (uint32_t)(at - out);
        lengths[i] = (uint32_t)length;
        put(&at, 0x04034b50, 4), put(&at, 20, 2), put(&at, 0, 2), put(&at, packed ? 8 : 0, 2), put(&at, 0, 4);
        put(&at, (uint32_t)crc32(0, parts[i], (unsigned)sizes[i]), 4), put(&at, lengths[i], 4);
        put(&at, (uint32_t)sizes[i], 4), put(&at, (uint32_t)strlen(names[i]), 2), put(&at, 0, 2);
        memcpy(at, names[i], strlen(names[i]));
        at += strlen(names[i]);
        memcpy(at, data, length);
        at += length;
        if (packed)
            free(data);
    }
    directory = at;
    for (int i = 0; i < 2; i++) {
        put(&at, 0x02014b50, 4), put(&at, 20, 2), put(&at, 20, 2), put(&at, 0, 2), put(&at, packed ? 8 : 0, 2),
            put(&at, 0, 4);
        put(&at, (uint32_t)crc32(0, parts[i], (unsigned)sizes[i]), 4), put(&at, lengths[i], 4),
            put(&at, (uint32_t)sizes[i], 4);
        put(&at, (uint32_t)strlen(names[i]), 2), put(&at, 0, 2), put(&at, 0, 2), put(&at, 0, 2), put(&at, 0, 2),
            put(&at, 0, 4);
        put(&at, starts[i], 4);
        memcpy(at, names[i], strlen(names[i]));
        at += strlen(names[i]);
    }
    {
        uint32_t size = (uint32_t)(at - directory), start = (uint32_t)(directory - out);

        put(&at, 0x06054b50, 4), put(&at, 0, 4), put(&at, 2, 2), put(&at, 2, 2), put(&at, size, 4), put(&at, start, 4);
        put(&at, 0, 2);
    }
    *n_out = (size_t)(at - out);
    return out;
}

static uint8_t pixels[N * 3 * 8 * 6];
static int64_t labels[N];
static float rows[N * 5];

static int fill(void **state)
{
    for (size_t i = 0; i < sizeof(pixels); i++)
        pixels[i] = (uint8_t)(i * 7 % 251);
    for (int i = 0; i < N; i++)
        labels[i] = i % 4 * 10 - 10; /* -10, 0, 10, 20 */
    for (int i = 0; i < N * 5; i++)
        rows[i] = (float)(i % 11) - 5.0f;
    rows[7] = NAN;
    return scratch_enter(state);
}

static esper_dataset_desc describe(const char *path, esper_source source)
{
    esper_dataset_desc desc = esper_dataset_desc_default(source);

    desc.path = path;
    desc.cache = "cache";
    return desc;
}

static void write_npz(const char *path, const char *shape, bool packed)
{
    static const char *const names[2] = {"images.npy", "labels.npy"};
    size_t sizes[2], n;
    uint8_t *parts[2] = {make_npy("|u1", shape, pixels, sizeof(pixels), &sizes[0]),
                         make_npy("<i8", "(40,)", labels, sizeof(labels), &sizes[1])};
    uint8_t *zip = make_npz(names, parts, sizes, packed, &n);

    write_file(path, zip, n);
    free(parts[0]);
    free(parts[1]);
    free(zip);
}

static void test_images(void **state)
{
    static const char *const shapes[] = {"(40, 8, 6, 3)", "(40, 3, 8, 6)", "(40, 24, 6)"};

    (void)state;
    for (int k = 0; k < 6; k++) {
        esper_dataset_desc desc = describe("i.npz", ESPER_SOURCE_OWN_IMAGES);
        const esper_dataset_info *info;
        esper_dataset_kind kind;
        esper_dataset *set;

        write_npz("i.npz", shapes[k / 2], k % 2 == 1);
        assert_ok(esper_arrays_kind("i.npz", &kind));
        assert_int_equal(kind, ESPER_DATASET_IMAGES);
        assert_ok(esper_dataset_open(&desc, &set));
        info = esper_dataset_info_get(set);
        assert_int_equal(info->channels, k / 2 == 2 ? 1 : 3);
        assert_int_equal(info->height, k / 2 == 2 ? 24 : 8);
        assert_int_equal(info->width, 6);
        assert_int_equal(info->classes, 4);
        assert_string_equal(esper_dataset_class_name(set, 0), "-10");
        for (uint32_t id = 0; id < N; id++) {
            const uint8_t *image = esper_dataset_image(set, ESPER_SPLIT_TRAIN, id);

            assert_int_equal(esper_dataset_label(set, ESPER_SPLIT_TRAIN, id), id % 4);
            for (int c = 0; c < info->channels; c++)
                for (int p = 0; p < info->height * 6; p++) {
                    int at = k / 2 == 0 ? p * 3 + c : c * info->height * 6 + p;

                    assert_int_equal(image[c * info->height * 6 + p], pixels[id * 144 + (uint32_t)at]);
                }
        }
        esper_dataset_close(set);
    }
    {
        esper_dataset_desc desc = describe("i.npz", ESPER_SOURCE_OWN_IMAGES);
        esper_dataset *set;

        desc.image_size = "5x5";
        assert_ok(esper_dataset_open(&desc, &set));
        assert_int_equal(esper_dataset_info_get(set)->height, 5);
        esper_dataset_close(set);
        write_npz("i.npz", "(40, 3, 16, 3)", false);
        desc.image_size = "";
        assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "cannot be told where its channels are");
    }
    assert_int_equal(blocks_live(), 0);
}

static void test_rows_and_npy(void **state)
{
    esper_dataset_desc desc = describe("X.npy", ESPER_SOURCE_OWN_TABLE);
    esper_dataset_kind kind;
    esper_dataset *set;
    size_t n;
    uint8_t *bytes = make_npy("<f4", "(40, 5)", rows, sizeof(rows), &n);

    (void)state;
    write_file("X.npy", bytes, n);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "X.npy and y.npy");
    free(bytes);
    bytes = make_npy("<i8", "(40, 1)", labels, sizeof(labels), &n);
    write_file("y.npy", bytes, n);
    free(bytes);
    assert_ok(esper_arrays_kind("X.npy", &kind));
    assert_int_equal(kind, ESPER_DATASET_VECTORS);
    assert_ok(esper_dataset_open(&desc, &set));
    assert_int_equal(esper_dataset_info_get(set)->features, 5);
    assert_non_null(strstr(esper_dataset_remark(set, 1), "1 numbers are missing"));
    esper_dataset_close(set);
    labels[0] = 7; /* the array beside it changes: another set */
    bytes = make_npy("<i8", "(40,)", labels, sizeof(labels), &n);
    write_file("y.npy", bytes, n);
    free(bytes);
    labels[0] = -10;
    assert_ok(esper_dataset_open(&desc, &set));
    assert_int_equal(esper_dataset_info_get(set)->classes, 5);
    esper_dataset_close(set);
    assert_int_equal(blocks_live(), 0);
}

static void test_safetensors(void **state)
{
    int32_t y[N], bad[N];
    esper_safetensors_tensor tensors[4] = {
        {.name = "x_train", .dtype = ESPER_SAFETENSORS_F32, .rank = 2, .shape = {N, 5}, .data = rows},
        {.name = "y_train", .dtype = ESPER_SAFETENSORS_I32, .rank = 1, .shape = {N}, .data = y},
        {.name = "x_test", .dtype = ESPER_SAFETENSORS_F32, .rank = 2, .shape = {N, 5}, .data = rows},
        {.name = "y_test", .dtype = ESPER_SAFETENSORS_I32, .rank = 1, .shape = {N}, .data = y}};
    esper_dataset_desc desc = describe("t.safetensors", ESPER_SOURCE_OWN_TABLE);
    esper_dataset *set;

    (void)state;
    for (int i = 0; i < N; i++) {
        y[i] = i % 3;
        bad[i] = 5;
    }
    assert_ok(esper_safetensors_write("t.safetensors", tensors, 4, NULL, 0));
    assert_ok(esper_dataset_open(&desc, &set));
    assert_int_equal(esper_dataset_count(set, ESPER_SPLIT_TEST), N);
    assert_false(esper_dataset_is_test_drawn(set));
    esper_dataset_close(set);
    tensors[3].data = bad;
    assert_ok(esper_safetensors_write("t.safetensors", tensors, 4, NULL, 0));
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT,
                 "label 5 is in the test and not in the training data");
    tensors[1].data = bad;
    assert_ok(esper_safetensors_write("t.safetensors", tensors, 2, NULL, 0));
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "all 40 samples have one label");
    tensors[1].shape[0] = N - 1;
    tensors[1].data = y;
    assert_ok(esper_safetensors_write("t.safetensors", tensors, 2, NULL, 0));
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "expected a label for each");
    tensors[0].name = "weights";
    assert_ok(esper_safetensors_write("t.safetensors", tensors, 2, NULL, 0));
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "There is: weights, y_train");
    assert_int_equal(blocks_live(), 0);
}

static void test_unfit(void **state)
{
    esper_safetensors_tensor array;
    size_t n;
    uint8_t *bytes = make_npy(">f4", "(40, 5)", rows, sizeof(rows), &n);

    (void)state;
    assert_fails(esper_npy_read("a", bytes, n, &array), ESPER_E_FORMAT, "an array of the type '>f4'");
    free(bytes);
    bytes = make_npy("<f4", "(40, 6)", rows, sizeof(rows), &n);
    assert_fails(esper_npy_read("a", bytes, n, &array), ESPER_E_FORMAT, "has 800 bytes, and its shape says 960");
    free(bytes);
    bytes = make_npy("<f4", "(4000000000, 4000000000)", rows, sizeof(rows), &n);
    assert_fails(esper_npy_read("a", bytes, n, &array), ESPER_E_FORMAT, "too large");
    free(bytes);
    bytes = make_npy("|O", "(40,)", rows, sizeof(rows), &n);
    assert_fails(esper_npy_read("a", bytes, n, &array), ESPER_E_FORMAT, "expected numbers");
    free(bytes);
    assert_int_equal(blocks_live(), 0);
}

/* Every byte cut off and bytes changed at random: an error or the arrays, never a step beyond. */
static void test_damaged(void **state)
{
    esper_rng_key key = {.seed = 2};
    esper_rng rng;
    uint8_t *whole = malloc(1 << 16);
    size_t n;

    (void)state;
    esper_rng_init(&rng, &key);
    for (int packed = 0; packed < 2; packed++) {
        write_npz("i.npz", "(40, 8, 6, 3)", packed == 1);
        n = read_file("i.npz", whole, 1 << 16);
        for (int t = 0; t < effort(6000, 600); t++) {
            size_t cut = t % 2 == 0 ? n : esper_rng_below(&rng, (uint32_t)n);
            uint8_t *copy = malloc(cut > 0 ? cut : 1);
            esper_npz *npz = NULL;

            memcpy(copy, whole, cut);
            for (uint32_t k = 0; t % 2 == 0 && k < 1 + esper_rng_below(&rng, 3);
                 k++) /* near the ends, where the structure is */
                copy[esper_rng_below(&rng, 2) == 0 ? n - 1 - esper_rng_below(&rng, 160) : esper_rng_below(&rng, 220)] ^=
                    (uint8_t)(1 + esper_rng_below(&rng, 255));
            if (esper_npz_open("i.npz", copy, cut, &npz) == ESPER_OK)
                assert_true(cut == n);
            esper_npz_close(npz);
            free(copy);
        }
    }
    free(whole);
    assert_int_equal(blocks_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images), cmocka_unit_test(test_rows_and_npy), cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_unfit), cmocka_unit_test(test_damaged),
    };

    return cmocka_run_group_tests(tests, fill, scratch_leave);
}
