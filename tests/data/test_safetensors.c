/* ctest: labels=golden */
/* Safetensors: what is written is read back, what is unsound is refused, a write that fails changes nothing. */
#include "data/helpers.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "data/safetensors.h"
#include "support/golden.h"

/* ---------------------------------------------------------------- made by hand */

typedef struct bytes {
    uint8_t data[4096];
    size_t  n;
} bytes;

/* A file from a header and as many data bytes (0, 1, 2, ...). */
static bytes make_file(const char *header, size_t n_data)
{
    uint64_t n_header = strlen(header);
    bytes file = {.n = 8 + n_header + n_data};

    assert_in_range(file.n, 8, sizeof(file.data));
    memcpy(file.data, &n_header, 8);
    memcpy(file.data + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        file.data[8 + n_header + i] = (uint8_t)i;
    return file;
}

static esper_status try_file(const char *header, size_t n_data)
{
    bytes file = make_file(header, n_data);
    esper_safetensors *opened = NULL;
    esper_status st = esper_safetensors_open_memory("file", file.data, file.n, &opened);

    if (st != ESPER_OK)
        assert_null(opened);
    esper_safetensors_close(opened);
    return st;
}

#define F32(shape, offsets) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_sound_files(void **state)
{
    (void)state;
    assert_ok(try_file("{}", 0));
    assert_ok(try_file("{}      ", 0));
    assert_ok(try_file("{\"__metadata__\":{}}", 0));
    assert_ok(try_file("{\"a\":" F32("[2,2]", "[0,16]") "}", 16));
    assert_ok(try_file("{\"scalar\":" F32("[]", "[0,4]") "}", 4));
    assert_ok(try_file("{\"empty\":" F32("[3,0]", "[0,0]") "}", 0));
    assert_ok(
        try_file("{\"b\":" F32("[1]", "[4,8]") ",\"empty\":" F32("[0]", "[4,4]") ",\"a\":" F32("[1]", "[0,4]") "}", 8));
    assert_ok(try_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"later\":1}}", 4));
}

static void test_contents(void **state)
{
    bytes file = make_file("{\"__metadata__\":{\"k\":\"v\",\"l\":\"\\u00e9\"},"
                           "\"b\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[4,10]},"
                           "\"a\":" F32("[1]", "[0,4]") "}",
                           10);
    const esper_safetensors_tensor *tensor;
    esper_safetensors *opened;
    int16_t copied[3];

    (void)state;
    assert_ok(esper_safetensors_open_memory("file", file.data, file.n, &opened));
    assert_int_equal(esper_safetensors_count(opened), 2);
    assert_string_equal(esper_safetensors_at(opened, 0)->name, "a"); /* in the order of the data */
    tensor = esper_safetensors_find(opened, "b");
    assert_ptr_equal(tensor, esper_safetensors_at(opened, 1));
    assert_int_equal(tensor->dtype, ESPER_SAFETENSORS_I16);
    assert_int_equal(tensor->rank, 1);
    assert_int_equal(tensor->shape[0], 3);
    assert_memory_equal(tensor->data, ((uint8_t[]){4, 5, 6, 7, 8, 9}), 6);
    assert_null(esper_safetensors_find(opened, "c"));
    assert_null(esper_safetensors_find(opened, "__metadata__"));

    assert_int_equal(esper_safetensors_note_count(opened), 2);
    assert_string_equal(esper_safetensors_note_find(opened, "k"), "v");
    assert_string_equal(esper_safetensors_note_at(opened, 1).key, "l");
    assert_string_equal(esper_safetensors_note_at(opened, 1).value, "\xc3\xa9");
    assert_null(esper_safetensors_note_find(opened, "a"));

    assert_ok(esper_safetensors_copy(opened, "b", ESPER_SAFETENSORS_I16, 1, (uint64_t[]){3}, copied));
    assert_int_equal(copied[2], 0x0908);
    assert_fails(esper_safetensors_copy(opened, "b", ESPER_SAFETENSORS_I16, 2, (uint64_t[]){3, 1}, copied),
                 ESPER_E_FORMAT, "file: tensor \"b\": is I16 (3) where I16 (3, 1) is wanted");
    assert_fails(esper_safetensors_copy(opened, "b", ESPER_SAFETENSORS_U16, 1, (uint64_t[]){3}, copied), ESPER_E_FORMAT,
                 "is I16 (3) where U16 (3) is wanted");
    assert_fails(esper_safetensors_copy(opened, "zz", ESPER_SAFETENSORS_U16, 1, (uint64_t[]){3}, copied),
                 ESPER_E_NOTFOUND, "file: holds no tensor \"zz\"");
    esper_safetensors_close(opened);
}

static void test_lying_offsets(void **state)
{
    (void)state;
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,12]") "}", 12), ESPER_E_FORMAT,
                 "file: tensor \"a\": has 12 bytes of data, but its shape and type make 8");
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,8]") "}", 7), ESPER_E_FORMAT,
                 "ends at 8, but the file holds only 7");
    assert_fails(try_file("{\"a\":" F32("[2]", "[8,0]") "}", 8), ESPER_E_FORMAT, "ends (0) before it begins (8)");
    assert_fails(try_file("{\"a\":" F32("[2]", "[-8,0]") "}", 8), ESPER_E_FORMAT, "data_offsets");
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,8.0]") "}", 8), ESPER_E_FORMAT, "data_offsets");
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,4,8]") "}", 8), ESPER_E_FORMAT, "data_offsets");
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,8]") ",\"b\":" F32("[2]", "[4,12]") "}", 12), ESPER_E_FORMAT,
                 "tensor \"b\": its data overlaps that of \"a\"");
    assert_fails(try_file("{\"a\":" F32("[2]", "[0,8]") ",\"b\":" F32("[2]", "[0,8]") "}", 8), ESPER_E_FORMAT,
                 "overlaps");
    assert_fails(try_file("{\"a\":" F32("[1]", "[0,4]") ",\"b\":" F32("[1]", "[8,12]") "}", 12), ESPER_E_FORMAT,
                 "tensor \"b\": 4 bytes before its data belong to no tensor");
    assert_fails(try_file("{\"a\":" F32("[1]", "[4,8]") "}", 8), ESPER_E_FORMAT, "4 bytes before its data");
    assert_fails(try_file("{\"a\":" F32("[1]", "[0,4]") "}", 9), ESPER_E_FORMAT,
                 "file: the last 5 bytes belong to no tensor");
    assert_fails(try_file("{}", 1), ESPER_E_FORMAT, "the last 1 bytes belong to no tensor");
    assert_fails(try_file("{\"e\":" F32("[0]", "[2,2]") ",\"a\":" F32("[1]", "[0,4]") "}", 4), ESPER_E_FORMAT,
                 "overlaps");
}

static void test_lying_shapes(void **state)
{
    (void)state;
    assert_fails(try_file("{\"a\":" F32("[4294967296,4294967296]", "[0,0]") "}", 0), ESPER_E_FORMAT, "more elements");
    assert_fails(try_file("{\"a\":" F32("[4611686018427387904]", "[0,0]") "}", 0), ESPER_E_FORMAT, "more elements");
    assert_fails(try_file("{\"a\":" F32("[-1]", "[0,4]") "}", 4), ESPER_E_FORMAT, "dimension 1");
    assert_fails(try_file("{\"a\":" F32("[1,1.5]", "[0,4]") "}", 4), ESPER_E_FORMAT, "dimension 2");
    assert_fails(try_file("{\"a\":" F32("\"x\"", "[0,4]") "}", 4), ESPER_E_FORMAT, "shape");
    assert_fails(try_file("{\"a\":" F32("[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4), ESPER_E_FORMAT, "9 dimensions");
    assert_fails(try_file("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4), ESPER_E_FORMAT,
                 "type \"F31\" is not known");
    assert_fails(try_file("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4), ESPER_E_FORMAT, "dtype");
    assert_fails(try_file("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4), ESPER_E_FORMAT, "shape");
    assert_fails(try_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), ESPER_E_FORMAT, "data_offsets");
    assert_fails(try_file("{\"a\":7}", 0), ESPER_E_FORMAT, "tensor \"a\": is not described by an object");
}

static void test_bad_headers(void **state)
{
    (void)state;
    assert_fails(try_file("", 0), ESPER_E_FORMAT, "not a safetensors file");
    assert_fails(try_file("[]", 0), ESPER_E_FORMAT, "not a safetensors file");
    assert_fails(try_file(" {}", 0), ESPER_E_FORMAT, "not a safetensors file");
    assert_fails(try_file("{\"a\":", 0), ESPER_E_FORMAT, "not valid JSON");
    assert_fails(try_file("{} x", 0), ESPER_E_FORMAT, "not valid JSON");
    assert_fails(try_file("{\"a\":" F32("[1]", "[0,4]") ",\"a\":" F32("[1]", "[0,4]") "}", 4), ESPER_E_FORMAT,
                 "duplicate");
    assert_fails(try_file("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0), ESPER_E_FORMAT, "duplicate");
    assert_fails(try_file("{\"__metadata__\":{\"k\":1}}", 0), ESPER_E_FORMAT, "metadata \"k\" is not text");
    assert_fails(try_file("{\"__metadata__\":[]}", 0), ESPER_E_FORMAT, "is not an object");
    assert_fails(try_file("{\"a\":" F32("[99999999999999999999]", "[0,4]") "}", 4), ESPER_E_FORMAT, "not valid JSON");
}

/* A header longer than the file, than the format allows, and than memory. */
static void test_header_length(void **state)
{
    static const uint64_t huge[] = {100000001, UINT64_C(1) << 40, UINT64_MAX, UINT64_MAX - 7};
    bytes file = make_file("{}", 0);
    uint64_t n_header = 3;
    esper_safetensors *opened = NULL;

    (void)state;
    memcpy(file.data, &n_header, 8);
    assert_fails(esper_safetensors_open_memory("file", file.data, file.n, &opened), ESPER_E_FORMAT, "truncated");
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        memcpy(file.data, &huge[i], 8);
        assert_fails(esper_safetensors_open_memory("file", file.data, file.n, &opened), ESPER_E_FORMAT,
                     "not the length of a header");
        write_file("huge", file.data, file.n);
        assert_fails(esper_safetensors_open("huge", &opened), ESPER_E_FORMAT, "huge: not a safetensors file");
    }
    for (size_t n = 0; n < 8; n++)
        assert_fails(esper_safetensors_open_memory("file", file.data, n, &opened), ESPER_E_FORMAT, "truncated");
    write_file("short", file.data, 7);
    assert_fails(esper_safetensors_open("short", &opened), ESPER_E_FORMAT, "short: truncated: 7 bytes");
    assert_fails(esper_safetensors_open("absent", &opened), ESPER_E_NOTFOUND, "absent");
    assert_fails(esper_safetensors_open(".", &opened), ESPER_E_IO, "not a regular file");
    assert_null(opened);
}

static void test_every_truncation(void **state)
{
    bytes file = make_file("{\"a\":" F32("[2]", "[0,8]") "}", 8);
    esper_safetensors *opened = NULL;

    (void)state;
    for (size_t n = 0; n < file.n; n++)
        assert_int_equal(esper_safetensors_open_memory("file", file.data, n, &opened), ESPER_E_FORMAT);
    assert_ok(esper_safetensors_open_memory("file", file.data, file.n, &opened));
    esper_safetensors_close(opened);
}

/* ---------------------------------------------------------------- written by us */

static const float      weights[6] = {1.5f, -2.0f, 0.0f, 3e38f, -0.0f, 1e-40f};
static const uint8_t    flags[3] = {1, 0, 1};
static const double     loss = 0.1;
static const int64_t    counter = -5;

static const esper_safetensors_tensor written[] = {
    {.name = "flags", .dtype = ESPER_SAFETENSORS_BOOL, .rank = 1, .shape = {3}, .data = flags},
    {.name = "layer/weight \"\xc3\xa9\"", .dtype = ESPER_SAFETENSORS_F32, .rank = 2, .shape = {2, 3}, .data = weights},
    {.name = "loss", .dtype = ESPER_SAFETENSORS_F64, .rank = 0, .data = &loss},
    {.name = "empty", .dtype = ESPER_SAFETENSORS_F16, .rank = 2, .shape = {0, 7}, .data = NULL},
    {.name = "counter", .dtype = ESPER_SAFETENSORS_I64, .rank = 1, .shape = {1}, .data = &counter},
};

static const esper_safetensors_note notes[] = {{"format", "esper 1"}, {"text", "line\nline \\ \" \t\x01 \xe2\x82\xac"}};

enum { N_WRITTEN = sizeof(written) / sizeof(written[0]), N_NOTES = sizeof(notes) / sizeof(notes[0]) };

static void check_written(const char *path)
{
    esper_safetensors *file;

    assert_ok(esper_safetensors_open(path, &file));
    assert_int_equal(esper_safetensors_count(file), N_WRITTEN);
    for (int i = 0; i < N_WRITTEN; i++) {
        const esper_safetensors_tensor *want = &written[i], *got = esper_safetensors_find(file, want->name);
        size_t width = esper_safetensors_dtype_bytes(want->dtype);

        assert_non_null(got);
        assert_int_equal(got->dtype, want->dtype);
        assert_int_equal(got->rank, want->rank);
        assert_memory_equal(got->shape, want->shape, sizeof(want->shape));
        assert_int_equal((uintptr_t)got->data % width, 0);
        if (got->n_bytes > 0)
            assert_memory_equal(got->data, want->data, (size_t)got->n_bytes);
    }
    assert_int_equal(esper_safetensors_note_count(file), N_NOTES);
    for (int i = 0; i < N_NOTES; i++)
        assert_string_equal(esper_safetensors_note_find(file, notes[i].key), notes[i].value);
    esper_safetensors_close(file);
}

static void test_round_trip(void **state)
{
    uint8_t first[4096], second[4096];
    uint64_t n_header;
    size_t n;

    (void)state;
    assert_ok(esper_safetensors_write("round", written, N_WRITTEN, notes, N_NOTES));
    check_written("round");
    n = read_file("round", first, sizeof(first));
    memcpy(&n_header, first, 8);
    assert_int_equal((8 + n_header) % 64, 0);

    assert_ok(esper_safetensors_write("round", written, N_WRITTEN, notes, N_NOTES)); /* over the first one */
    assert_int_equal(read_file("round", second, sizeof(second)), n);
    assert_memory_equal(first, second, n);

    assert_ok(esper_safetensors_write("nothing", NULL, 0, NULL, 0));
    n = read_file("nothing", first, sizeof(first));
    assert_int_equal(n, 64);
    assert_memory_equal(first + 8, "{} ", 3);
}

/* The header byte for byte: other programs, and our own files of before, hold us to it. */
static void test_header_text(void **state)
{
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"esper 1\",\"text\":\"line\\nline \\\\ \\\" \\t\\u0001 \xe2\x82\xac\"},"
        "\"loss\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"counter\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]},"
        "\"layer/weight \\\"\xc3\xa9\\\"\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[16,40]},"
        "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[40,40]},"
        "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[40,43]}}";
    char found[4096];
    size_t n;

    (void)state;
    assert_ok(esper_safetensors_write("header", written, N_WRITTEN, notes, N_NOTES));
    n = read_file("header", (uint8_t *)found, sizeof(found));
    assert_in_range(n, 8 + sizeof(expected), sizeof(found) - 1);
    found[8 + sizeof(expected) - 1] = '\0';
    assert_string_equal(found + 8, expected);
}

/* The widest of everything: what is sized first has to be enough. */
static void test_widest_header(void **state)
{
    char wide[2][300];
    esper_safetensors_tensor tensor = {.name = wide[0], .dtype = ESPER_SAFETENSORS_BF16, .rank = 8};
    esper_safetensors_note note = {wide[0], wide[1]};
    esper_safetensors *file;

    (void)state;
    for (int i = 0; i < 2; i++) {
        memset(wide[i], 1 + i, sizeof(wide[i]) - 1); /* six characters each */
        wide[i][sizeof(wide[i]) - 1] = '\0';
    }
    for (int d = 1; d < 8; d++)
        tensor.shape[d] = INT64_MAX; /* times 0 */
    assert_ok(esper_safetensors_write("wide", &tensor, 1, &note, 1));
    assert_ok(esper_safetensors_open("wide", &file));
    assert_string_equal(esper_safetensors_at(file, 0)->name, wide[0]);
    assert_memory_equal(esper_safetensors_at(file, 0)->shape, tensor.shape, sizeof(tensor.shape));
    assert_string_equal(esper_safetensors_note_find(file, wide[0]), wide[1]);
    esper_safetensors_close(file);
}

/* Thousands of tensors, found by name, in files and in order. */
static void test_many(void **state)
{
    enum { MANY = 5000 };
    esper_safetensors_tensor *list = calloc(MANY, sizeof(*list));
    char(*names)[16] = calloc(MANY, sizeof(*names));
    esper_safetensors *file;

    (void)state;
    assert_true(list != NULL && names != NULL);
    for (uint32_t i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "t%u", i * 7919u % MANY);
        list[i] = (esper_safetensors_tensor){
            .name = names[i], .dtype = ESPER_SAFETENSORS_F32, .rank = 1, .shape = {1 + i % 6}, .data = weights};
    }
    assert_ok(esper_safetensors_write("many", list, MANY, NULL, 0));
    assert_ok(esper_safetensors_open("many", &file));
    assert_int_equal(esper_safetensors_count(file), MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_string_equal(esper_safetensors_at(file, i)->name, names[i]);
        assert_ptr_equal(esper_safetensors_find(file, names[i]), esper_safetensors_at(file, i));
        assert_int_equal(esper_safetensors_find(file, names[i])->shape[0], 1 + i % 6);
    }
    assert_null(esper_safetensors_find(file, "t"));
    assert_null(esper_safetensors_find(file, "t5000"));
    esper_safetensors_close(file);
    free(names);
    free(list);
}

static esper_status write_one(esper_safetensors_tensor tensor)
{
    return esper_safetensors_write("refused", &tensor, 1, NULL, 0);
}

static void test_refused_writes(void **state)
{
    esper_safetensors_tensor good = written[1], bad, twice[2] = {written[1], written[1]};

    (void)state;
    bad = good;
    bad.data = NULL;
    assert_fails(write_one(bad), ESPER_E_ARG, "no data");
    bad = good;
    bad.rank = 9;
    assert_fails(write_one(bad), ESPER_E_ARG, "rank 9");
    bad = good;
    bad.dtype = ESPER_SAFETENSORS_N_DTYPES;
    assert_fails(write_one(bad), ESPER_E_ARG, "not known");
    bad = good;
    bad.shape[0] = bad.shape[1] = UINT64_C(1) << 32;
    assert_fails(write_one(bad), ESPER_E_ARG, "overflows");
    bad = good;
    bad.name = "__metadata__";
    assert_fails(write_one(bad), ESPER_E_ARG, "may not be named");
    bad = good;
    bad.name = "\xff";
    assert_fails(write_one(bad), ESPER_E_ARG, "not UTF-8");
    assert_fails(esper_safetensors_write("refused", twice, 2, NULL, 0), ESPER_E_ARG, "given twice");
    assert_fails(esper_safetensors_write("refused", NULL, 0, &(esper_safetensors_note){"k", "\xc0\x80"}, 1),
                 ESPER_E_ARG, "not UTF-8");
    assert_fails(esper_safetensors_write("refused", NULL, 0, &(esper_safetensors_note){"k\x80", "v"}, 1), ESPER_E_ARG,
                 "not UTF-8");
    assert_fails(esper_safetensors_write("refused", NULL, 0, &(esper_safetensors_note){"k", NULL}, 1), ESPER_E_ARG,
                 "refused: metadata without its text");
    assert_fails(
        esper_safetensors_write("refused", NULL, 0, (esper_safetensors_note[]){{"k", "v"}, {"l", ""}, {"k", ""}}, 3),
        ESPER_E_ARG, "metadata \"k\" is given twice");
    bad = written[3];
    bad.shape[1] = UINT64_MAX;
    assert_fails(write_one(bad), ESPER_E_ARG, "overflows");
    assert_int_equal(access("refused", F_OK), -1);
    assert_fails(esper_safetensors_write("no/such/directory", &good, 1, NULL, 0), ESPER_E_NOTFOUND,
                 "no/such/directory");
}

/* A disk that fills up while a file is written: the previous one stays, and nothing is left beside it. */
static void test_full_disk(void **state)
{
    enum { LARGE = 100000 };
    float *large = calloc(LARGE, sizeof(*large));
    esper_safetensors_tensor tensor = {
        .name = "large", .dtype = ESPER_SAFETENSORS_F32, .rank = 1, .shape = {LARGE}, .data = large};
    struct rlimit limit, small;

    (void)state;
    assert_non_null(large);
    make_dir("disk");
    assert_ok(esper_safetensors_write("disk/file", written, N_WRITTEN, notes, N_NOTES));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    for (rlim_t room = 0; room < 5000; room += 1000) { /* within the header, too */
        small.rlim_cur = room;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        assert_fails(esper_safetensors_write("disk/file", &tensor, 1, NULL, 0), ESPER_E_IO, "disk/file");
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(count_entries("disk"), 1);
        check_written("disk/file");
    }
    assert_ok(esper_safetensors_write("disk/file", &tensor, 1, NULL, 0));
    free(large);
}

static void test_failing_memory_reading(void **state)
{
    uint64_t before = blocks_live();
    esper_status st = ESPER_E_NOMEM;
    int n_failed = -1;

    (void)state;
    assert_ok(esper_safetensors_write("file", written, N_WRITTEN, notes, N_NOTES));
    for (uint64_t k = 1; st != ESPER_OK; k++, n_failed++) {
        esper_safetensors *file = NULL;

        esper_mem_fail_at(k);
        st = esper_safetensors_open("file", &file);
        esper_mem_fail_at(0);
        assert_true(st == ESPER_OK || st == ESPER_E_NOMEM);
        assert_int_equal(file != NULL, st == ESPER_OK);
        esper_safetensors_close(file);
        assert_int_equal(blocks_live(), before);
    }
    assert_in_range(n_failed, 6, 20);
}

static uint64_t jansson_calls, jansson_fails_at;

static void *jansson_malloc(size_t n)
{
    if (++jansson_calls != jansson_fails_at)
        return malloc(n);
    errno = ENOMEM;
    return NULL;
}

/* The reader of the header has its own memory; when that runs out it is not the file that is at fault. */
static void test_failing_memory_of_the_header(void **state)
{
    static const char header[] = "{\"a\":" F32("[2]", "[0,8]") ",\"__metadata__\":{\"k\":\"v\"}}";
    uint64_t before = blocks_live();
    esper_status st = ESPER_E_NOMEM;

    (void)state;
    json_set_alloc_funcs(jansson_malloc, free);
    for (jansson_fails_at = 1; st != ESPER_OK; jansson_fails_at++) {
        jansson_calls = 0;
        st = try_file(header, 8);
        if (jansson_calls >= jansson_fails_at)
            assert_fails(st, ESPER_E_NOMEM, "file: a header of");
        else
            assert_ok(st);
    }
    json_set_alloc_funcs(malloc, free);
    assert_in_range(jansson_fails_at, 10, 200);
    assert_int_equal(blocks_live(), before);
}

static void test_failing_memory_writing(void **state)
{
    uint64_t before = blocks_live();
    esper_status st = ESPER_E_NOMEM;
    int n_failed = -1;

    (void)state;
    make_dir("mem");
    assert_ok(esper_safetensors_write("mem/file", written, N_WRITTEN, notes, N_NOTES));
    for (uint64_t k = 1; st != ESPER_OK; k++, n_failed++) {
        esper_mem_fail_at(k);
        st = esper_safetensors_write("mem/file", written, N_WRITTEN, notes, N_NOTES);
        esper_mem_fail_at(0);
        assert_true(st == ESPER_OK || st == ESPER_E_NOMEM);
        assert_int_equal(blocks_live(), before);
        assert_int_equal(count_entries("mem"), 1);
        check_written("mem/file");
    }
    assert_in_range(n_failed, 3, 20);
}

/* ---------------------------------------------------------------- written by others */

static int check_recorded(const char *dir, const char *name)
{
    char path[2 * GOLDEN_PATH_CHARS];
    esper_safetensors *file;
    size_t n;

    if (strstr(name, ".safetensors") == NULL)
        return 0;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_ok(esper_safetensors_open(path, &file));
    n = esper_safetensors_count(file);
    assert_in_range(n, 1, 10000);
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(esper_safetensors_find(file, esper_safetensors_at(file, i)->name),
                         esper_safetensors_at(file, i));
    assert_non_null(esper_safetensors_note_find(file, "about"));
    esper_safetensors_close(file);
    return 1;
}

static void test_recorded_files(void **state)
{
    char dir[GOLDEN_PATH_CHARS];
    const struct dirent *entry;
    DIR *handle;
    int n = 0;

    (void)state;
    snprintf(dir, sizeof(dir), "%s/nets", golden_dir());
    handle = opendir(dir);
    if (handle == NULL) {
        printf("skipped: no recorded files at %s\n", dir);
        skip();
    }
    while ((entry = readdir(handle)) != NULL)
        n += check_recorded(dir, entry->d_name);
    closedir(handle);
    print_message("%d recorded files read\n", n);
    assert_in_range(n, 1, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_files),
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_lying_offsets),
        cmocka_unit_test(test_lying_shapes),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_header_text),
        cmocka_unit_test(test_widest_header),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_refused_writes),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_failing_memory_reading),
        cmocka_unit_test(test_failing_memory_of_the_header),
        cmocka_unit_test(test_failing_memory_writing),
        cmocka_unit_test(test_recorded_files),
    };

    return cmocka_run_group_tests_name("safetensors", tests, scratch_enter, scratch_leave);
}
