/* ctest: timeout=120 cost=4 */
/* Tables as text: what is a field, a number, a header, a category; what is refused, and where; and rows of numbers made of them. */
#include "data/helpers.h"

#include <math.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/prepared.h"
#include "support/effort.h"

static esper_status read_text(const char *text, const char *target, esper_csv *csv)
{
    *csv = (esper_csv){0};
    return esper_csv_read("t.csv", text, strlen(text), target, csv);
}

static float cell(const esper_csv *csv, int row, int column)
{
    return csv->cells[row * csv->n_columns + column];
}

#define assert_refused(text, target, status, words)              \
    do {                                                         \
        esper_csv csv_;                                          \
        assert_fails(read_text(text, target, &csv_), status, words); \
        esper_csv_fini(&csv_);                                   \
        assert_int_equal(blocks_live(), 0);                      \
    } while (0)

/* ------------------------------------------------------------------------------------------------ numbers */

static void test_numbers(void **state)
{
    static const char *const good[] = {"0",
                                       "-0",
                                       "+1",
                                       "1.",
                                       ".5",
                                       "-1.25",
                                       "1e3",
                                       "1E-3",
                                       "123456789012345678",
                                       "0.1",
                                       "1e22",
                                       "1e23",
                                       "1.7976931348623157e308",
                                       "5e-324",
                                       "3.14159265358979",
                                       "00012",
                                       "1e+05",
                                       "9007199254740993",
                                       "0.000001",
                                       "179.99"};
    static const char *const bad[] = {"",    "-",    ".",   "e5",  "1e",  "1e+", "1x",   "x1",
                                      "1 2", "0x10", "nan", "inf", "1,5", "--1", "1.2.3"};
    esper_rng_key key = {.seed = 3};
    esper_rng rng;
    double value;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(esper_csv_number(good[i], good[i] + strlen(good[i]), &value));
        if (value != strtod(good[i], NULL))
            fail_msg("%s became %.17g", good[i], value);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (esper_csv_number(bad[i], bad[i] + strlen(bad[i]), &value))
            fail_msg("'%s' is a number: %g", bad[i], value);
    esper_rng_init(&rng, &key);
    for (int i = 0; i < effort(200000, 5000); i++) { /* to the last bit, as the C library reads them */
        char text[64];
        int decimals = (int)esper_rng_below(&rng, 12), power = (int)esper_rng_below(&rng, 40) - 20;
        double mantissa = ((double)esper_rng_u32(&rng) - 2147483648.0) / 1000.0;

        if (i % 2 == 0)
            snprintf(text, sizeof(text), "%.*f", decimals, mantissa);
        else
            snprintf(text, sizeof(text), "%.*fe%d", decimals, mantissa, power);
        assert_true(esper_csv_number(text, text + strlen(text), &value));
        if (value != strtod(text, NULL))
            fail_msg("%s became %.17g", text, value);
    }
}

/* ------------------------------------------------------------------------------------------------ fields */

static void test_plain(void **state)
{
    esper_csv csv;

    (void)state;
    assert_ok(read_text("a,b,kind\n1,2.5,x\n-3, 4 ,y\n", "", &csv));
    assert_int_equal(csv.n_rows, 2);
    assert_int_equal(csv.n_columns, 3);
    assert_true(csv.has_header);
    assert_string_equal(csv.columns[1].name, "b");
    assert_true(cell(&csv, 0, 1) == 2.5f && cell(&csv, 1, 0) == -3.0f && cell(&csv, 1, 1) == 4.0f);
    assert_int_equal(csv.target, 2);
    assert_string_equal(esper_csv_word(&csv.columns[2], 1), "y");
    esper_csv_fini(&csv);
    assert_int_equal(blocks_live(), 0);
}

static void test_quotes(void **state)
{
    esper_csv csv;

    (void)state;
    assert_ok(read_text("\"a, or b\",\"say \"\"so\"\"\",kind\n\"1\",\"two\nlines, \"\"three\"\"\",x\n2,plain,\"y\"\n",
                        "", &csv));
    assert_string_equal(csv.columns[0].name, "a, or b");
    assert_string_equal(csv.columns[1].name, "say \"so\"");
    assert_int_equal(csv.n_rows, 2);
    assert_string_equal(esper_csv_word(&csv.columns[1], 0), "two\nlines, \"three\"");
    assert_true(cell(&csv, 0, 0) == 1.0f);
    esper_csv_fini(&csv);
    assert_refused("a,b\n1,\"open\n2,x\n", "", ESPER_E_FORMAT, "the quote in line 2 is never closed");
    assert_refused("a,b\n1,\"x\"y\n", "", ESPER_E_FORMAT, "line 2: text behind a closing quote");
}

/* Byte order mark, CRLF, semicolons, tabs, empty lines, no line end at the last, no header. */
static void test_dialects(void **state)
{
    esper_csv csv;

    (void)state;
    assert_ok(read_text("\xef\xbb\xbf\r\na;b;c\r\n1;2;x\r\n\r\n3;4;y", "", &csv));
    assert_true(csv.had_mark && csv.separator == ';' && csv.n_blank == 1 && csv.n_rows == 2);
    assert_string_equal(csv.columns[0].name, "a");
    assert_string_equal(csv.columns[2].name, "c");
    assert_string_equal(esper_csv_word(&csv.columns[2], 1), "y");
    esper_csv_fini(&csv);
    assert_ok(read_text("a\tb\n1\tx\n2\ty\n", "b", &csv));
    assert_true(csv.separator == '\t');
    esper_csv_fini(&csv);
    assert_ok(read_text("5.1,3.5,setosa\n4.9,3.0,virginica\n", "", &csv));
    assert_false(csv.has_header);
    assert_int_equal(csv.n_rows, 2);
    assert_string_equal(csv.columns[1].name, "column 2");
    esper_csv_fini(&csv);
    assert_ok(read_text(",b,c\n0,1,x\n1,2,y\n", "", &csv)); /* as pandas writes its index */
    assert_string_equal(csv.columns[0].name, "column 1");
    esper_csv_fini(&csv);
    assert_int_equal(blocks_live(), 0);
}

static void test_missing_and_types(void **state)
{
    esper_csv csv;

    (void)state;
    assert_ok(read_text("n,w,mixed,k\n1,red,1,x\n,NA,b,y\nnan,?,2,x\n4,blue,,null\n", "", &csv));
    assert_false(csv.columns[0].is_words);
    assert_int_equal(csv.columns[0].n_missing, 2);
    assert_true(isnan(cell(&csv, 1, 0)) && isnan(cell(&csv, 2, 0)) && cell(&csv, 3, 0) == 4.0f);
    assert_true(csv.columns[1].is_words);
    assert_int_equal(csv.columns[1].n_words, 2);
    assert_int_equal(csv.columns[1].n_missing, 2);
    assert_true(csv.columns[2].is_words); /* a late word: read again from the top */
    assert_int_equal(csv.columns[2].n_words, 3);
    assert_int_equal(csv.columns[2].word_line, 3);
    assert_int_equal(csv.columns[3].n_missing, 1);
    esper_csv_fini(&csv);
    assert_int_equal(blocks_live(), 0);
}

static void test_refused(void **state)
{
    char *wide = malloc(ESPER_CSV_MAX_FIELD + 64);

    (void)state;
    assert_refused("", "", ESPER_E_FORMAT, "the table is empty");
    assert_refused("\n\n", "", ESPER_E_FORMAT, "the table is empty");
    assert_refused("a\n1\n2\n", "", ESPER_E_FORMAT, "one column");
    assert_refused("a,b\n1,x\n1,2,y\n", "", ESPER_E_FORMAT, "line 3 has 3 fields, and the first has 2");
    assert_refused("a,b\n1,\"two\nlines\"\n1\n", "", ESPER_E_FORMAT, "line 4 has 1 field, and the first has 2");
    assert_refused("a,a\n1,x\n", "", ESPER_E_FORMAT, "two columns are called 'a'");
    assert_refused("age,kind\n1,x\n", "knd", ESPER_E_CONFIG, "no column is called 'knd'");
    assert_refused("a,b\n1e99,x\n", "", ESPER_E_FORMAT, "line 2, column 'a': 1e99 is too large");
    assert_refused("a,b\n1,\xff\n", "", ESPER_E_FORMAT, "line 2: a field is not UTF-8");
    strcpy(wide, "a,b\n1,");
    memset(wide + 6, 'x', ESPER_CSV_MAX_FIELD + 8);
    strcpy(wide + 6 + ESPER_CSV_MAX_FIELD + 8, "\n");
    assert_refused(wide, "", ESPER_E_FORMAT, "line 2 has a field of more than 1048576 bytes");
    free(wide);
}

/* A line without an end, of a file so long that nobody should read on: all behind its first 2 MiB cannot be read here. */
static void test_endless(void **state)
{
    enum { READABLE = 2 << 20, ALL = 64 << 20 };
    static const struct {
        const char *begin;
        char        goes_on;
        const char *words;
    } cases[] = {
        {"", 'a', "line 1 has a field of more than 1048576 bytes"},
        {"", ',', "more than 16384 columns"},
        {"\"", '"', "line 1 has a field of more than 1048576 bytes"},
        {"\"", 'z', "line 1 has a field of more than 1048576 bytes"},
        {"a,b\n1,x\n", '7', "line 3 has a field of more than 1048576 bytes"},
        {"a,b\n1,x\n", ',', "line 3 has more than 16384 fields, and the first has 2"},
        {"a,b\n1,x\n2,\"", '\n', "line 3 has a field of more than 1048576 bytes"},
        {"a,b\n1,x\n2,\"", '"', "line 3 has a field of more than 1048576 bytes"},
    };
    char *bytes = mmap(NULL, ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)state;
    assert_true(bytes != MAP_FAILED);
    assert_int_equal(mprotect(bytes, READABLE, PROT_READ | PROT_WRITE), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_csv csv = {0};

        memset(bytes, cases[i].goes_on, READABLE);
        memcpy(bytes, cases[i].begin, strlen(cases[i].begin));
        assert_fails(esper_csv_read("endless.csv", bytes, ALL, "", &csv), ESPER_E_FORMAT, cases[i].words);
        esper_csv_fini(&csv);
        assert_int_equal(blocks_live(), 0);
    }
    munmap(bytes, ALL);
}

/* Whatever bytes change: a table or an error, and nothing left. */
static void test_changed_bytes(void **state)
{
    static const char text[] = "a;\"b c\";kind\n1;2.5;x\n;\"q\"\"\";y\n3e5;NA;x\n\"4\";\"l\nm\";z\n";
    esper_rng_key key = {.seed = 9};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &key);
    for (int t = 0; t < effort(20000, 2000); t++) {
        size_t n = 1 + esper_rng_below(&rng, sizeof(text) - 1);
        char *copy = malloc(n);
        esper_csv csv = {0};

        memcpy(copy, text, n);
        for (uint32_t k = 0; k < esper_rng_below(&rng, 4); k++)
            copy[esper_rng_below(&rng, (uint32_t)n)] = "\";,\n\r\t\0 x1."[esper_rng_below(&rng, 11)];
        (void)esper_csv_read("t.csv", copy, n, "", &csv);
        esper_csv_fini(&csv);
        free(copy);
    }
    assert_int_equal(blocks_live(), 0);
}

/* ------------------------------------------------------------------------------------------------ rows */

static void expect_text(const esper_prepared *set, const char *words)
{
    const esper_page *page = &set->plan.texts.page;

    for (size_t at = 0; at < page->used; at += strlen(page->text + at) + 1)
        if (strstr(page->text + at, words) != NULL)
            return;
    fail_msg("nothing says \"%s\"", words);
}

static esper_status prepare(const char *text, const char *target, esper_prepared *set)
{
    *set = (esper_prepared){0};
    return esper_table_prepare("t.csv", text, strlen(text), target, set);
}

#define assert_unfit(text, target, status, words)            \
    do {                                                     \
        esper_prepared set_;                                 \
        assert_fails(prepare(text, target, &set_), status, words); \
        esper_prepared_fini(&set_);                          \
        assert_int_equal(blocks_live(), 0);                  \
    } while (0)

static void test_rows(void **state)
{
    static const char text[] =
        "kind,n,city,same,empty,m\n10,1,Oslo,7,,5\n9,,Rome,7,,6\n10,3,,7,,7\n,4,Rome,7,,8\n2,5,Oslo,7,,9\n";
    /* Numbers n and m; whether n is missing; Oslo, Rome, whether the city is missing. */
    static const float wanted[4][6] = {
        {1, 5, 0, 1, 0, 0}, {NAN, 6, 1, 0, 1, 0}, {3, 7, 0, 0, 0, 1}, {5, 9, 0, 1, 0, 0}};
    static const uint8_t labels[4] = {2, 1, 2, 0}; /* 2 < 9 < 10: numbers in their order */
    esper_prepared set;

    (void)state;
    assert_ok(prepare(text, "kind", &set));
    assert_int_equal(set.plan.n_items[0], 4); /* one has no class */
    assert_int_equal(set.plan.features, 6);
    assert_int_equal(set.plan.numbers, 2);
    assert_int_equal(set.plan.classes, 3);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(set.stores[0].labels[i], labels[i]);
        for (int f = 0; f < 6; f++) {
            float value = set.stores[0].rows[i * 6 + f];

            if (!(value == wanted[i][f] || (isnan(value) && isnan(wanted[i][f]))))
                fail_msg("row %d, number %d: %g, wanted %g", i, f, (double)value, (double)wanted[i][f]);
        }
    }
    expect_text(&set, "1 row without a target left out");
    expect_text(&set, "same: left out: always the same");
    expect_text(&set, "empty: left out: nothing is in it");
    expect_text(&set, "category of 2 values, 1 missing");
    expect_text(&set, "city = Oslo");
    expect_text(&set, "n is missing");
    esper_prepared_fini(&set);
    assert_int_equal(blocks_live(), 0);
}

static void test_unfit(void **state)
{
    char *text = malloc(400000);
    int n;

    (void)state;
    assert_unfit("a,b\n1,x\n2,x\n", "", ESPER_E_FORMAT, "all rows are of one class, 'b' is 'x'");
    assert_unfit("a,b\n1,\n2,\n", "", ESPER_E_FORMAT, "the target 'b' has no values at all");
    assert_unfit("a,b\n1,x\n1,y\n", "", ESPER_E_FORMAT, "no column but the target says anything");
    n = sprintf(text, "a,b\n");
    for (int i = 0; i < 300; i++)
        n += sprintf(text + n, "%d,%d.5\n", i, i);
    assert_unfit(text, "", ESPER_E_UNSUPPORTED, "has 300 different numbers: that asks for a number");
    assert_unfit(text, "a", ESPER_E_UNSUPPORTED, "the target 'a' has 300 different numbers");
    n = sprintf(text, "a,b\n");
    for (int i = 0; i < 300; i++)
        n += sprintf(text + n, "%d,name%d\n", i, i);
    assert_unfit(text, "", ESPER_E_UNSUPPORTED, "has 300 different values, and at most 256 classes");
    n = sprintf(text, "a,b\n"); /* a column of numbers with a slip of the pen */
    for (int i = 0; i < 300; i++)
        n += sprintf(text + n, i == 77 ? "oops%d,%d\n" : "%d,%d\n", i, i % 2);
    assert_unfit(text, "", ESPER_E_FORMAT,
                 "the column 'a' holds numbers, but for 1 of its cells; the first is 'oops77' in line 79");
    n = sprintf(text, "id,a,b\n"); /* names of rows are told and left out */
    for (int i = 0; i < 2000; i++)
        n += sprintf(text + n, "row%d,%d,%d\n", i, i % 7, i % 2);
    {
        esper_prepared set;

        assert_ok(prepare(text, "", &set));
        expect_text(&set, "id: left out: text with more than 1024 different values");
        assert_int_equal(set.plan.features, 1);
        esper_prepared_fini(&set);
    }
    free(text);
}

/* What is set aside says nothing about how numbers are normalised. */
static void test_statistics(void **state)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_OWN_TABLE);
    esper_dataset *set;
    const esper_dataset_info *info;
    double sum = 0.0, squares = 0.0;
    float mean, std;
    FILE *file = fopen("t.csv", "wb");

    (void)state;
    fprintf(file, "v,w,k\n");
    for (int i = 0; i < 500; i++)
        fprintf(file, "%d,%s,%s\n", i * i, i % 9 == 0 ? "" : "1.5", i % 2 == 0 ? "even" : "odd");
    fclose(file);
    desc.path = "t.csv";
    desc.cache = "cache";
    desc.seed = 4;
    assert_ok(esper_dataset_open(&desc, &set));
    info = esper_dataset_info_get(set);
    assert_int_equal(info->kind, ESPER_DATASET_VECTORS);
    assert_int_equal(info->count[ESPER_SPLIT_TEST], 50);
    assert_string_equal(esper_dataset_class_name(set, 1), "odd");
    for (uint32_t i = 0; i < info->count[ESPER_SPLIT_TRAIN]; i++) {
        uint32_t id = esper_dataset_id(set, ESPER_SPLIT_TRAIN, i);
        float v = esper_dataset_row(set, ESPER_SPLIT_TRAIN, id)[0];

        assert_int_equal(esper_dataset_label(set, ESPER_SPLIT_TRAIN, id), id % 2);
        sum += (double)v;
        squares += (double)v * (double)v;
    }
    sum /= info->count[ESPER_SPLIT_TRAIN];
    squares /= info->count[ESPER_SPLIT_TRAIN];
    assert_true(fabs(sum) < 1e-4 && fabs(squares - 1.0) < 1e-3);
    assert_string_equal(esper_dataset_feature(set, 0, &mean, &std), "v");
    for (uint32_t i = 0; i < 50; i++) { /* the test by the same numbers, and none is left that is none */
        uint32_t id = esper_dataset_id(set, ESPER_SPLIT_TEST, i);
        const float *row = esper_dataset_row(set, ESPER_SPLIT_TEST, id);

        assert_true(fabsf(row[0] - ((float)(id * id) - mean) / std) < 1e-4f);
        for (int f = 0; f < info->features; f++)
            assert_true(isfinite(row[f]));
    }
    esper_dataset_close(set);
    assert_int_equal(blocks_live(), 0);
}

/* Every class is in every split in its proportion, whatever the seed; a class of one row is trained on; and a larger limit only adds
 * rows to those of a smaller one. */
static void test_splits_by_class(void **state)
{
    static const int n_of[] = {60, 30, 9, 1};
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_OWN_TABLE);
    FILE *file = fopen("t.csv", "wb");

    (void)state;
    fprintf(file, "v,k\n");
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < n_of[c]; i++)
            fprintf(file, "%d,%c\n", i, 'a' + c);
    fclose(file);
    desc.path = "t.csv";
    desc.cache = "cache";
    desc.valid_fraction = 0.2;
    for (uint64_t seed = 0; seed < 50; seed++) {
        int count[ESPER_N_SPLITS][4] = {{0}};
        bool in_all[100] = {false};
        esper_dataset *all, *few;

        desc.seed = seed;
        desc.train_limit = 0;
        assert_ok(esper_dataset_open(&desc, &all));
        for (int s = 0; s < ESPER_N_SPLITS; s++)
            for (uint32_t i = 0; i < esper_dataset_count(all, (esper_split)s); i++) {
                uint32_t id = esper_dataset_id(all, (esper_split)s, i);

                count[s][esper_dataset_label(all, (esper_split)s, id)]++;
                in_all[id] = in_all[id] || s == ESPER_SPLIT_TRAIN;
            }
        for (int s = 0; s < ESPER_N_SPLITS; s++)
            for (int c = 0; c < 4; c++) {
                double wanted = n_of[c] * (double)esper_dataset_count(all, (esper_split)s) / 100.0;

                if (fabs(count[s][c] - wanted) > 1.0)
                    fail_msg("seed %d: %s has %d of class %d, expected about %g", (int)seed,
                             esper_split_name((esper_split)s), count[s][c], c, wanted);
            }
        assert_int_equal(count[ESPER_SPLIT_TRAIN][3], 1);
        desc.train_limit = 20;
        assert_ok(esper_dataset_open(&desc, &few));
        assert_int_equal(esper_dataset_count(few, ESPER_SPLIT_TRAIN), 20);
        for (uint32_t i = 0; i < 20; i++)
            assert_true(in_all[esper_dataset_id(few, ESPER_SPLIT_TRAIN, i)]);
        esper_dataset_close(few);
        esper_dataset_close(all);
    }
    assert_int_equal(blocks_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_quotes),
        cmocka_unit_test(test_dialects),
        cmocka_unit_test(test_missing_and_types),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_changed_bytes),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_unfit),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_splits_by_class),
    };

    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
