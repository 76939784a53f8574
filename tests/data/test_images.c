/* ctest: timeout=120 cost=5 */
/* Folders of images: what is seen in them, what is refused, and the cache, which knows when it is stale. */
#include "data/helpers.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <utime.h>

#include "data/dataset.h"
#include "data/prepared.h"
#include "support/effort.h"
#include "support/pictures.h"

static const picture_file SMALL = {.kind = PICTURE_GREY, .height = 6, .width = 5};

/* `n` PNG files for each of the classes, "a", "b", ... below a folder. */
static void make_folder(const char *dir, int classes, int n, const picture_file *file)
{
    char path[256];

    for (int c = 0; c < classes; c++)
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof(path), "%s/%c/%02d.png", dir, 'a' + c, i);
            picture_write(path, file, 16 * c + i);
        }
}

static esper_dataset_desc describe(const char *dir)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_OWN_IMAGES);

    desc.path = dir;
    desc.cache = "cache";
    desc.threads = 2;
    desc.seed = 1;
    return desc;
}

static int enter(void **state)
{
    if (!picture_has_png() || !picture_has_jpeg()) {
        printf("skipped: this build has no libpng or no libjpeg\n");
        exit(77);
    }
    return scratch_enter(state);
}

static int clear(void **state)
{
    (void)state;
    return system("rm -rf cache pictures") == 0 ? 0 : -1;
}

/* The remark that has these words; fails where there is none. */
static void expect_remark(const esper_dataset *set, const char *words)
{
    for (uint32_t i = 0; i < esper_dataset_remark_count(set); i++)
        if (strstr(esper_dataset_remark(set, i), words) != NULL)
            return;
    for (uint32_t i = 0; i < esper_dataset_remark_count(set); i++)
        printf("remark: %s\n", esper_dataset_remark(set, i));
    fail_msg("no remark has \"%s\"", words);
}

/* ------------------------------------------------------------------------------------------------ what is seen */

static void test_classes(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    const esper_dataset_info *info;
    esper_dataset *set;
    uint32_t n_of[3] = {0};

    (void)state;
    make_folder("pictures", 3, 10, &SMALL);
    assert_ok(esper_dataset_open(&desc, &set));
    info = esper_dataset_info_get(set);
    assert_int_equal(info->classes, 3);
    assert_int_equal(info->height, 6);
    assert_int_equal(info->width, 5);
    assert_int_equal(info->channels, 1);
    assert_string_equal(esper_dataset_class_name(set, 1), "b");
    assert_true(esper_dataset_is_test_drawn(set)); /* a tenth of 30 */
    assert_int_equal(info->count[ESPER_SPLIT_TEST], 3);
    assert_int_equal(info->count[ESPER_SPLIT_VALID], 3);
    assert_int_equal(info->count[ESPER_SPLIT_TRAIN], 24);
    /* Every image is in one split, with its own pixels and label. */
    for (int s = 0; s < ESPER_N_SPLITS; s++)
        for (uint32_t i = 0; i < info->count[s]; i++) {
            uint32_t id = esper_dataset_id(set, (esper_split)s, i);
            int label = esper_dataset_label(set, (esper_split)s, id), mark = 16 * (int)(id / 10) + (int)(id % 10);
            const uint8_t *pixels = esper_dataset_image(set, (esper_split)s, id);

            assert_int_equal(label, id / 10);
            n_of[label]++;
            for (int p = 0; p < 30; p++)
                assert_int_equal(pixels[p], picture_value(mark, p / 5, p % 5, 0));
        }
    for (int c = 0; c < 3; c++)
        assert_int_equal(n_of[c], 10);
    expect_remark(set, "30 PNG, all 6x5");
    expect_remark(set, "grey");
    expect_remark(set, "of the training data");
    esper_dataset_close(set);
    assert_int_equal(blocks_live(), 0);
}

/* Another seed draws another test; the contents, and so their hash, are the same. */
static void test_seeds(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *one, *two;
    bool differ = false;

    (void)state;
    make_folder("pictures", 2, 20, &SMALL);
    assert_ok(esper_dataset_open(&desc, &one));
    desc.seed = 2;
    assert_ok(esper_dataset_open(&desc, &two));
    assert_int_equal(esper_dataset_hash(one), esper_dataset_hash(two));
    for (uint32_t i = 0; i < 4; i++)
        differ = differ || esper_dataset_id(one, ESPER_SPLIT_TEST, i) != esper_dataset_id(two, ESPER_SPLIT_TEST, i);
    assert_true(differ);
    esper_dataset_close(one);
    esper_dataset_close(two);
}

static void test_train_and_test(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;

    (void)state;
    make_folder("pictures/train", 3, 8, &SMALL);
    make_folder("pictures/test", 2, 2, &SMALL);
    make_folder("pictures/val", 2, 2, &SMALL);
    assert_ok(esper_dataset_open(&desc, &set));
    assert_false(esper_dataset_is_test_drawn(set));
    assert_int_equal(esper_dataset_count(set, ESPER_SPLIT_TEST), 4);
    assert_int_equal(esper_dataset_count(set, ESPER_SPLIT_TRAIN) + esper_dataset_count(set, ESPER_SPLIT_VALID), 28);
    expect_remark(set, "val/ is taken as training data");
    esper_dataset_close(set);
    make_folder("pictures/test", 4, 1, &SMALL); /* "d" cannot be learned */
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT,
                 "the class 'd' is in the test and not in the training");
}

/* Of vehicles one class is called train: a folder beside that is no test says so. */
static void test_train_is_a_class(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;

    (void)state;
    for (int i = 0; i < 12; i++) {
        char path[64];

        snprintf(path, sizeof(path), "pictures/%s/%d.png", i % 2 == 0 ? "train" : "bus", i);
        picture_write(path, &SMALL, i);
    }
    assert_ok(esper_dataset_open(&desc, &set));
    assert_string_equal(esper_dataset_class_name(set, 0), "bus");
    assert_string_equal(esper_dataset_class_name(set, 1), "train");
    esper_dataset_close(set);
}

static void test_sizes_and_colours(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;
    static const picture_file files[] = {{.jpeg = true, .kind = PICTURE_RGB, .height = 40, .width = 60},
                                         {.kind = PICTURE_GREY, .height = 30, .width = 30},
                                         {.kind = PICTURE_RGB_CLEAR, .height = 41, .width = 20},
                                         {.kind = PICTURE_RGB, .depth = 16, .height = 8, .width = 90},
                                         {.jpeg = true, .kind = PICTURE_CMYK, .height = 50, .width = 50}};

    (void)state;
    for (int i = 0; i < 20; i++) {
        char path[64];

        snprintf(path, sizeof(path), "pictures/%c/%d.%s", 'x' + i % 2, i, files[i % 5].jpeg ? "JPG" : "png");
        picture_write(path, &files[i % 5], i);
    }
    assert_ok(esper_dataset_open(&desc, &set));
    assert_int_equal(esper_dataset_info_get(set)->channels, 3);
    assert_int_equal(esper_dataset_info_get(set)->height,
                     28); /* the shorter sides are 40, 30, 20, 8, 50: half have 30 */
    expect_remark(set, "12 PNG and 8 JPEG from 8x20 to 50x90");
    expect_remark(set, "brought to 28x28 (--image-size HxW chooses)");
    expect_remark(set, "4 with transparency: laid onto white");
    expect_remark(set, "4 16 bits deep");
    expect_remark(set, "4 in CMYK");
    expect_remark(set, "4 grey ones get three equal channels");
    esper_dataset_close(set);
    desc.image_size = "12x10";
    desc.grey = true;
    assert_ok(esper_dataset_open(&desc, &set));
    assert_int_equal(esper_dataset_info_get(set)->channels, 1);
    assert_int_equal(esper_dataset_info_get(set)->height, 12);
    assert_int_equal(esper_dataset_info_get(set)->width, 10);
    expect_remark(set, "as asked");
    esper_dataset_close(set);
    for (size_t i = 0; i < 6; i++) {
        static const char *const bad[] = {"x", "0x4", "12x", "5000", "8x8x8", "-3x4"};

        desc.image_size = bad[i];
        assert_fails(esper_dataset_open(&desc, &set), ESPER_E_CONFIG, "expected HEIGHTxWIDTH");
    }
}

static void test_names(void **state)
{
    static const char *const names[] = {"日本語", "кот", "a b'c\"d", "%s%n", "\n"};
    esper_dataset_desc desc = describe("pictures");
    char shown[ESPER_DATASET_SHOWN_CHARS];
    esper_dataset *set;

    (void)state;
    for (int i = 0; i < 20; i++) {
        char path[64];

        snprintf(path, sizeof(path), "pictures/%s/%d %s.png", names[i % 5], i, "ä");
        picture_write(path, &SMALL, i);
    }
    assert_ok(esper_dataset_open(&desc, &set));
    assert_string_equal(esper_dataset_class_name(set, 0), "\n"); /* by bytes */
    assert_string_equal(esper_dataset_class_name(set, 4), "日本語");
    assert_string_equal(esper_dataset_class_shown(set, 0, shown), "?");
    assert_string_equal(esper_dataset_class_shown(set, 4, shown), "日本語");
    esper_dataset_close(set);
    picture_write("pictures/\xff\xfe/1.png", &SMALL, 1);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "is not UTF-8 at byte 0");
}

/* ------------------------------------------------------------------------------------------------ what is refused */

static void test_refused(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;

    (void)state;
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_NOTFOUND, "pictures");
    make_dir("pictures");
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_NOTFOUND, "no images: expected a folder for each class");
    picture_write("pictures/1.png", &SMALL, 1);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_NOTFOUND, "the images lie in it");
    picture_write("pictures/a/1.png", &SMALL, 1);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "are of one class, 'a'");
    picture_write("pictures/b/1.png", &SMALL, 1);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_ARG, "too little data"); /* two images */
    for (int i = 0; i < 257; i++) {
        char path[64];

        snprintf(path, sizeof(path), "pictures/%03d/1.png", i);
        picture_write(path, &SMALL, i);
    }
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_UNSUPPORTED, "more than 256 folders");
    assert_int_equal(blocks_live(), 0);
}

static void test_damaged(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;

    (void)state;
    make_folder("pictures", 2, 12, &SMALL);
    write_file("pictures/a/03.png", "\x89PNG\r\n\x1a\nnothing more", 20);
    write_file("pictures/b/05.png", "", 0);
    write_file("pictures/b/notes.txt", "words", 5);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "pictures/a/03.png: a PNG without a head");
    assert_non_null(strstr(esper_last_error(), "--skip-bad"));
    assert_int_equal(blocks_live(), 0);
    desc.skip_bad = true;
    assert_ok(esper_dataset_open(&desc, &set));
    expect_remark(set, "2 damaged files left out as asked: a/03.png, b/05.png");
    expect_remark(set, "1 not taken for an image: b/notes.txt");
    assert_int_equal(esper_dataset_count(set, ESPER_SPLIT_TRAIN) + esper_dataset_count(set, ESPER_SPLIT_VALID) +
                         esper_dataset_count(set, ESPER_SPLIT_TEST),
                     22);
    for (uint32_t id = 0; id < 22; id++) { /* the others have kept their labels and pixels */
        uint32_t name = id < 11 ? id + (id >= 3) : id - 11 + (id - 11 >= 5);
        int label = esper_dataset_label(set, ESPER_SPLIT_TRAIN, id);

        assert_int_equal(label, id >= 11);
        assert_int_equal(esper_dataset_image(set, ESPER_SPLIT_TRAIN, id)[0],
                         picture_value(16 * label + (int)name, 0, 0, 0));
    }
    esper_dataset_close(set);
    for (int i = 0; i < 12; i++) { /* a class of which nothing is left */
        char path[64];

        snprintf(path, sizeof(path), "pictures/a/%02d.png", i);
        write_file(path, "x", 1);
    }
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_FORMAT, "no image of the class 'a' can be read");
}

/* ------------------------------------------------------------------------------------------------ the cache */

static bool open_is_cached(const esper_dataset_desc *desc, uint64_t *hash_out)
{
    esper_dataset *set;
    bool was;

    assert_ok(esper_dataset_open(desc, &set));
    was = esper_dataset_was_cached(set);
    if (hash_out != NULL)
        *hash_out = esper_dataset_hash(set);
    esper_dataset_close(set);
    return was;
}

static void test_cache(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    struct utimbuf times = {1000000000, 1000000000};
    uint64_t first, hash;
    char path[4200];
    uint8_t bytes[8192];
    size_t n;

    (void)state;
    make_folder("pictures", 2, 10, &SMALL);
    assert_false(open_is_cached(&desc, &first));
    assert_true(open_is_cached(&desc, &hash));
    assert_int_equal(first, hash);
    assert_int_equal(utime("pictures/a/00.png", &times), 0); /* touched */
    assert_false(open_is_cached(&desc, &hash));
    assert_int_equal(first, hash);
    assert_int_equal(rename("pictures/b/09.png", "pictures/b/99.png"), 0); /* renamed */
    assert_false(open_is_cached(&desc, NULL));
    picture_write("pictures/b/07.png", &SMALL, 99); /* changed */
    assert_int_equal(utime("pictures/b/07.png", &times), 0);
    assert_false(open_is_cached(&desc, &hash));
    assert_int_not_equal(first, hash);
    assert_int_equal(remove("pictures/b/07.png"), 0); /* gone */
    assert_false(open_is_cached(&desc, &first));
    desc.grey = true; /* read otherwise: beside the other, which stays */
    assert_false(open_is_cached(&desc, NULL));
    desc.grey = false;
    assert_true(open_is_cached(&desc, NULL));
    /* Damage in any part, and every length: made anew, with the same contents. */
    assert_ok(esper_dataset_cache_path(&desc, path, sizeof(path)));
    n = read_file(path, bytes, sizeof(bytes));
    assert_in_range(n, 500, sizeof(bytes) - 1);
    for (size_t at = 0; at < n; at += n / (size_t)effort(60, 12)) {
        uint8_t kept = bytes[at];

        bytes[at] = (uint8_t)(kept + 1); /* the version among them */
        write_file(path, bytes, n);
        open_is_cached(&desc, &hash);
        assert_int_equal(first, hash);
        bytes[at] = kept;
        write_file(path, bytes, at); /* cut off */
        assert_false(open_is_cached(&desc, &hash));
        assert_int_equal(first, hash);
        assert_true(open_is_cached(&desc, &hash));
    }
    assert_int_equal(blocks_live(), 0);
}

/* A cache that cannot be written is said, with what to do. */
static void test_no_room(void **state)
{
    esper_dataset_desc desc = describe("pictures");
    esper_dataset *set;

    (void)state;
    make_folder("pictures", 2, 10, &SMALL);
    write_file("cache", "a file", 6);
    assert_fails(esper_dataset_open(&desc, &set), ESPER_E_IO, "--cache DIR");
    assert_int_equal(unlink("cache"), 0);
    assert_ok(esper_dataset_open(&desc, &set));
    esper_dataset_close(set);
}

/* Several processes at once: one decodes, all read the same. */
static void test_at_once(void **state)
{
    enum { N = 4 };
    esper_dataset_desc desc = describe("pictures");
    uint64_t hash;
    pid_t children[N];

    (void)state;
    make_folder("pictures", 2, 30, &SMALL);
    fflush(stdout);
    for (int i = 0; i < N; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            esper_dataset *set;
            char path[16];
            uint64_t mine;
            FILE *file;

            if (esper_dataset_open(&desc, &set) != ESPER_OK)
                _exit(1);
            mine = esper_dataset_hash(set);
            snprintf(path, sizeof(path), "hash%d", i);
            file = fopen(path, "wb");
            _exit(file != NULL && fwrite(&mine, sizeof(mine), 1, file) == 1 && fclose(file) == 0 ? 0 : 1);
        }
    }
    for (int i = 0; i < N; i++) {
        int how;

        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        assert_int_equal(how, 0);
    }
    assert_true(open_is_cached(&desc, &hash));
    for (int i = 0; i < N; i++) {
        char path[16];
        uint64_t theirs;

        snprintf(path, sizeof(path), "hash%d", i);
        assert_int_equal(read_file(path, &theirs, sizeof(theirs)), sizeof(theirs));
        assert_int_equal(theirs, hash);
    }
    assert_int_equal(count_entries("cache"), 2); /* the set and its lock */
}

static esper_status open_and_close(void *context)
{
    esper_dataset *set;
    esper_status status = esper_dataset_open(context, &set);

    if (status == ESPER_OK)
        esper_dataset_close(set);
    return status;
}

/* No allocation may fail unnoticed, and none is leaked when another fails. */
static void test_out_of_memory(void **state)
{
    esper_dataset_desc desc = describe("pictures");

    (void)state;
    make_folder("pictures", 2, 2, &SMALL);
    picture_write("pictures/a/x.jpg", &(picture_file){.jpeg = true, .kind = PICTURE_RGB, .height = 20, .width = 9}, 1);
    desc.threads = 1;
    for (uint64_t nth = 1;; nth++) {
        esper_status status;

        assert_int_equal(system("rm -rf cache"), 0);
        esper_mem_fail_at(nth);
        status = open_and_close(&desc);
        esper_mem_fail_at(0);
        assert_int_equal(blocks_live(), 0);
        if (status == ESPER_OK && nth > 20)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_classes, clear),
        cmocka_unit_test_teardown(test_seeds, clear),
        cmocka_unit_test_teardown(test_train_and_test, clear),
        cmocka_unit_test_teardown(test_train_is_a_class, clear),
        cmocka_unit_test_teardown(test_sizes_and_colours, clear),
        cmocka_unit_test_teardown(test_names, clear),
        cmocka_unit_test_teardown(test_refused, clear),
        cmocka_unit_test_teardown(test_damaged, clear),
        cmocka_unit_test_teardown(test_cache, clear),
        cmocka_unit_test_teardown(test_no_room, clear),
        cmocka_unit_test_teardown(test_at_once, clear),
        cmocka_unit_test_teardown(test_out_of_memory, clear),
    };

    return cmocka_run_group_tests(tests, enter, scratch_leave);
}
