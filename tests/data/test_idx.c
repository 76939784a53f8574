/* IDX files: plain and packed, and every way they can be wrong. */
#include "data/helpers.h"

#include "data/idx.h"

enum { N = 5, H = 3, W = 4, IMAGE_BYTES = N * H * W, FILE_BYTES = 16 + IMAGE_BYTES };

static uint8_t values[IMAGE_BYTES], image_file[FILE_BYTES];

static int set_up(void **state)
{
    for (int i = 0; i < IMAGE_BYTES; i++)
        values[i] = (uint8_t)(i * 11 + 3);
    make_idx(image_file, 3, (uint32_t[]){N, H, W}, values, sizeof(values));
    return scratch_enter(state);
}

static void check_images(const char *path)
{
    uint8_t read[IMAGE_BYTES] = {0};
    const esper_idx_shape *shape;
    esper_idx *idx;

    assert_ok(esper_idx_open(path, &idx));
    shape = esper_idx_shape_get(idx);
    assert_int_equal(shape->rank, 3);
    assert_int_equal(shape->dims[0], N);
    assert_int_equal(shape->dims[1], H);
    assert_int_equal(shape->dims[2], W);
    assert_int_equal(shape->n_bytes, IMAGE_BYTES);
    assert_ok(esper_idx_read(idx, read));
    esper_idx_close(idx);
    assert_memory_equal(read, values, IMAGE_BYTES);
}

static void test_plain_and_packed(void **state)
{
    (void)state;
    write_file("plain", image_file, FILE_BYTES);
    check_images("plain");
    write_gzip("packed.gz", image_file, FILE_BYTES);
    check_images("packed.gz");
    write_gzip("packed-without-suffix", image_file, FILE_BYTES); /* the contents decide, not the name */
    check_images("packed-without-suffix");
}

static void test_labels(void **state)
{
    uint8_t file[8 + N], read[N];
    esper_idx *idx;

    (void)state;
    make_idx(file, 1, (uint32_t[]){N}, values, N);
    assert_ok(esper_idx_open_memory("labels", file, sizeof(file), &idx));
    assert_int_equal(esper_idx_shape_get(idx)->rank, 1);
    assert_int_equal(esper_idx_shape_get(idx)->n_bytes, N);
    assert_ok(esper_idx_read(idx, read));
    esper_idx_close(idx);
    assert_memory_equal(read, values, N);
}

/* Packed data may come in several members, as when files were packed in parts and joined. */
static void test_members(void **state)
{
    uint8_t joined[1024];
    size_t n;

    (void)state;
    write_gzip("a.gz", image_file, 30);
    write_gzip("b.gz", image_file + 30, FILE_BYTES - 30);
    n = read_file("a.gz", joined, sizeof(joined));
    n += read_file("b.gz", joined + n, sizeof(joined) - n);
    write_file("joined.gz", joined, n);
    check_images("joined.gz");
}

/* Opens and reads; whichever fails first. */
static esper_status read_all(const void *bytes, size_t n)
{
    uint8_t read[2 * IMAGE_BYTES];
    esper_idx *idx;
    esper_status st = esper_idx_open_memory("file", bytes, n, &idx);

    if (st != ESPER_OK)
        return st;
    assert_in_range(esper_idx_shape_get(idx)->n_bytes, 1, sizeof(read));
    st = esper_idx_read(idx, read);
    esper_idx_close(idx);
    return st;
}

static void test_every_truncation(void **state)
{
    uint8_t packed[1024];
    size_t n;

    (void)state;
    for (size_t length = 0; length < FILE_BYTES; length++)
        assert_fails(read_all(image_file, length), ESPER_E_FORMAT, "truncated");
    assert_ok(read_all(image_file, FILE_BYTES));

    write_gzip("whole.gz", image_file, FILE_BYTES);
    n = read_file("whole.gz", packed, sizeof(packed));
    for (size_t length = 2; length < n; length++) /* also within the checksum that follows the data */
        assert_fails(read_all(packed, length), ESPER_E_FORMAT, "truncated");
    assert_ok(read_all(packed, n));
}

static void test_wrong_head(void **state)
{
    uint8_t bad[FILE_BYTES];

    (void)state;
    memcpy(bad, image_file, FILE_BYTES);
    bad[0] = 'P';
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "not an IDX file");
    bad[0] = 0;
    bad[2] = 0x0D;
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "type 0x0d");
    bad[2] = 0x08;
    for (int rank = 0; rank < 256; rank++) {
        bad[3] = (uint8_t)rank;
        if (rank == 1 || rank == 3)
            continue;
        assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "expected 1 (labels) or 3 (images)");
    }
}

static void test_lying_sizes(void **state)
{
    uint8_t bad[FILE_BYTES];

    (void)state;
    make_idx(bad, 3, (uint32_t[]){N + 1, H, W}, values, sizeof(values));
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "truncated");
    make_idx(bad, 3, (uint32_t[]){0xFFFFFFFFu, 4096, 4096}, values, sizeof(values));
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "cannot fit");
    make_idx(bad, 3, (uint32_t[]){N, 4097, W}, values, sizeof(values));
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "side of 4097");
    make_idx(bad, 3, (uint32_t[]){N, 0, W}, values, sizeof(values));
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "is 0");
    make_idx(bad, 3, (uint32_t[]){N - 1, H, W}, values, sizeof(values));
    assert_fails(read_all(bad, FILE_BYTES), ESPER_E_FORMAT, "trailing bytes");

    /* Packed, a file may grow, but not without limit: nothing large may be asked for on the word of a short file. */
    make_idx(bad, 3, (uint32_t[]){1000000, 1000, 1000}, values, sizeof(values));
    write_gzip("lie.gz", bad, FILE_BYTES);
    assert_fails(esper_idx_open("lie.gz", &(esper_idx *){NULL}), ESPER_E_FORMAT, "cannot fit");
}

static void test_damaged_gzip(void **state)
{
    uint8_t packed[1024], bad[1024];
    size_t n;

    (void)state;
    write_gzip("whole.gz", image_file, FILE_BYTES);
    n = read_file("whole.gz", packed, sizeof(packed));
    memcpy(bad, packed, n);
    bad[n - 6] ^= 1; /* in the checksum */
    assert_fails(read_all(bad, n), ESPER_E_FORMAT, "damaged gzip data");
    memcpy(bad, packed, n);
    memcpy(bad + n, "junk", 4);
    assert_fails(read_all(bad, n + 4), ESPER_E_FORMAT, "bytes follow the end of the gzip data");

    memcpy(bad, image_file, FILE_BYTES);
    bad[FILE_BYTES] = 7;
    write_gzip("longer.gz", bad, FILE_BYTES + 1);
    n = read_file("longer.gz", packed, sizeof(packed));
    assert_fails(read_all(packed, n), ESPER_E_FORMAT, "trailing bytes");
}

static void test_not_a_file(void **state)
{
    esper_idx *idx = NULL;

    (void)state;
    make_dir("directory");
    assert_fails(esper_idx_open("directory", &idx), ESPER_E_IO, "directory: is not a regular file");
    assert_fails(esper_idx_open("absent", &idx), ESPER_E_NOTFOUND, "absent");
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_fails(esper_idx_open("pipe", &idx), ESPER_E_IO, "pipe: is not a regular file"); /* and does not wait */
    assert_null(idx);
}

static void test_failing_memory(void **state)
{
    uint64_t before = blocks_live();
    esper_status st = ESPER_E_NOMEM;
    int n_failed = 0;

    (void)state;
    write_gzip("packed.gz", image_file, FILE_BYTES);
    for (uint64_t k = 1; st != ESPER_OK; k++) {
        uint8_t read[IMAGE_BYTES];
        esper_idx *idx = NULL;

        esper_mem_fail_at(k);
        st = esper_idx_open("packed.gz", &idx);
        if (st == ESPER_OK)
            st = esper_idx_read(idx, read);
        esper_mem_fail_at(0);
        esper_idx_close(idx);
        assert_int_equal(blocks_live(), before);
        if (st != ESPER_OK)
            assert_int_equal(st, ESPER_E_NOMEM);
        n_failed += st != ESPER_OK;
    }
    assert_in_range(n_failed, 5, 20); /* stream, name, buffer, zlib's own, reader */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_packed), cmocka_unit_test(test_labels),
        cmocka_unit_test(test_members),          cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_wrong_head),       cmocka_unit_test(test_lying_sizes),
        cmocka_unit_test(test_damaged_gzip),     cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_failing_memory),
    };

    return cmocka_run_group_tests_name("idx", tests, set_up, scratch_leave);
}
