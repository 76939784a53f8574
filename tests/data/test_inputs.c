/* Samples out of files are those of a data set, bit for bit: rows of a table by name, pixels of arrays and of image files; also by a
 * set that only recalls what the data was like. What is no description is refused, and so is what does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/inputs.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A gap and a category in places, quotes and separators in a name. */
static void write_table(void)
{
    FILE *file = fopen("table.csv", "w");

    assert_non_null(file);
    fputs("size,\"a, = \"\"b\"\"\",town,kind\n", file);
    for (int i = 0; i < 120; i++)
        fprintf(file, "%s%d.%d,%g,%s,%s\n", i % 3 == 0 ? "-" : "", i, i % 10, (double)(i * i) / 7.0,
                i % 11 == 0  ? "NA"
                : i % 2 == 0 ? "Oslo = x"
                             : "Rome",
                i % 5 < 2 ? "in" : "out");
    fputs(",1,,in\n", file);
    assert_int_equal(fclose(file), 0);
}

static esper_dataset *open_table(void)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_OWN_TABLE);
    esper_dataset *set;

    desc.path = "table.csv";
    check_good(esper_dataset_open(&desc, &set));
    return set;
}

/* Of a set without samples. Names of classes are a JSON list. */
static esper_dataset *recall(const esper_dataset *set, const char *classes)
{
    esper_page text = {0};
    esper_dataset *again;

    check_good(esper_dataset_describe(set, &text));
    check_good(esper_dataset_recall(text.text, classes, &again));
    esper_page_fini(&text);
    return again;
}

/* All rows of the file are those of the set. */
static void expect_rows(const esper_dataset *set, const esper_inputs *inputs)
{
    size_t n_features = (size_t)esper_dataset_info_get(set)->features;

    assert_int_equal(inputs->n, 121);
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        for (uint32_t i = 0; i < esper_dataset_count(set, (esper_split)split); i++) {
            uint32_t id = esper_dataset_id(set, (esper_split)split, i);

            assert_memory_equal(inputs->values + id * n_features, esper_dataset_row(set, (esper_split)split, id),
                                n_features * sizeof(float));
        }
}

static void test_rows(void **state)
{
    esper_dataset *set, *again;
    esper_inputs inputs = {0};

    (void)state;
    write_table();
    set = open_table();
    again = recall(set, "[\"in\", \"out\"]");
    assert_int_equal(esper_dataset_count(again, ESPER_SPLIT_TRAIN), 0);
    assert_string_equal(esper_dataset_class_name(again, 1), "out");
    check_good(esper_inputs_read(set, "table.csv", &inputs));
    expect_rows(set, &inputs);
    esper_inputs_fini(&inputs);
    check_good(esper_inputs_read(again, "table.csv", &inputs));
    expect_rows(set, &inputs);
    esper_inputs_fini(&inputs);
    esper_dataset_close(again);
    esper_dataset_close(set);
}

static void test_rows_that_do_not_fit(void **state)
{
    static const char *const bad[] = {"size,town\n1,Rome\n",
                                      "1,2\n",
                                      "size,\"a, = \"\"b\"\"\",town\nx,1,Rome\n",
                                      "size,\"a, = \"\"b\"\"\",town\n1,1\n",
                                      "size,\"a, = \"\"b\"\"\",town\n",
                                      ""};
    esper_dataset *set;
    esper_inputs inputs = {0};

    (void)state;
    write_table();
    set = open_table();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_text("bad.csv", bad[i]);
        assert_int_equal(esper_inputs_read(set, "bad.csv", &inputs), ESPER_E_FORMAT);
        esper_inputs_fini(&inputs);
    }
    assert_int_equal(esper_inputs_read(set, "picture.png", &inputs), ESPER_E_CONFIG);
    esper_inputs_fini(&inputs);
    esper_dataset_close(set);
}

/* A table of 121 rows, whose names and words may hold anything: they stand in quotes. */
static void write_named(const char *number, const char *category, const char *word)
{
    FILE *file = fopen("table.csv", "w");

    assert_non_null(file);
    fprintf(file, "\"%s\",\"%s\",kind\n", number, category);
    for (int i = 0; i < 121; i++)
        fprintf(file, "%d.5,\"%s\",%s\n", i * 7 % 50, i % 3 == 0 ? word : "Rome", i % 5 < 2 ? "in" : "out");
    assert_int_equal(fclose(file), 0);
}

/* Of such a table, and without a remark: no word of it is new. */
static void check_named(const char *number, const char *category, const char *word)
{
    esper_inputs inputs = {0};
    esper_dataset *set, *again;

    write_named(number, category, word);
    set = open_table();
    again = recall(set, "[\"in\", \"out\"]");
    check_good(esper_inputs_read(again, "table.csv", &inputs));
    expect_rows(set, &inputs);
    assert_string_equal(inputs.remark, "");
    esper_inputs_fini(&inputs);
    esper_dataset_close(again);
    esper_dataset_close(set);
}

/* A set keeps its names as they can be shown, with question marks. */
static void test_names_that_command_terminals(void **state)
{
    (void)state;
    check_named("si\nze", "town", "Oslo");
    check_named("size", "to\x1b[1mwn", "Oslo");
    check_named("size", "town", "Os\tlo");
    check_named("size", "to\xc2\x9bwn", "Os\x7flo");
}

static void test_columns_without_a_name(void **state)
{
    esper_inputs inputs = {0};
    esper_dataset *set;

    (void)state;
    check_named("", "town", "Oslo");
    check_named("size", "", "Oslo");
    set = open_table();
    write_text("moved.csv", "\"\",size\nRome,1\n"); /* without a name it is known by its place, and this is another */
    assert_int_equal(esper_inputs_read(set, "moved.csv", &inputs), ESPER_E_FORMAT);
    esper_inputs_fini(&inputs);
    esper_dataset_close(set);
}

/* No set has two, but a file may say so: the first alone is what rows without names may lack. */
static void test_a_note_of_several_targets(void **state)
{
    static const char note[] =
        "{\"source\": \"table\", \"classes\": 2, \"features\": 2, \"scaled\": 2,"
        " \"numbers\": [[\"a\", 0, 1], [\"b\", 0, 1]],"
        " \"columns\": [[\"t\", \"target, 2 classes\"], [\"a\", \"number from 0 to 9\"],"
        " [\"u\", \"target, 2 classes\"], [\"b\", \"number from 0 to 9\"], [\"v\", \"target, 2 classes\"],"
        " [\"w\", \"target, 2 classes\"]]}";
    static const float wanted[] = {1, 3, 6, 8};
    esper_inputs inputs = {0};
    esper_dataset *set;

    (void)state;
    check_good(esper_dataset_recall(note, "[\"in\", \"out\"]", &set));
    write_text("bare.csv", "1,2,3,4,5\n6,7,8,9,0\n");
    check_good(esper_inputs_read(set, "bare.csv", &inputs));
    assert_int_equal(inputs.n, 2);
    assert_memory_equal(inputs.values, wanted, sizeof(wanted));
    esper_inputs_fini(&inputs);
    write_text("bare.csv", "1,2,3,4\n");
    assert_int_equal(esper_inputs_read(set, "bare.csv", &inputs), ESPER_E_FORMAT);
    esper_inputs_fini(&inputs);
    esper_dataset_close(set);
}

/* Images as an array: (N, H, W), bytes. */
static void write_array(void)
{
    static const char head[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (40, 6, 5), }";
    static const char label_head[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (40,), }";
    const char *const heads[] = {head, label_head};
    static const char *const paths[] = {"images.npy", "labels.npy"};

    for (int f = 0; f < 2; f++) {
        FILE *file = fopen(paths[f], "wb");
        size_t n = 118 - strlen(heads[f]) - 1;
        const uint8_t begin[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};

        assert_non_null(file);
        fwrite(begin, 1, sizeof(begin), file);
        fprintf(file, "%s%*s\n", heads[f], (int)n, "");
        for (int i = 0; i < (f == 0 ? 40 * 30 : 40); i++)
            fputc(f == 0 ? i * 37 % 256 : i % 3, file);
        assert_int_equal(fclose(file), 0);
    }
}

static void test_images(void **state)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_OWN_IMAGES);
    esper_dataset *set, *again;
    esper_inputs inputs = {0};

    (void)state;
    write_array();
    desc.path = "images.npy";
    check_good(esper_dataset_open(&desc, &set));
    again = recall(set, "[\"0\", \"1\", \"2\"]");
    check_good(esper_inputs_read(again, "images.npy", &inputs));
    assert_int_equal(inputs.n, 40);
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        for (uint32_t i = 0; i < esper_dataset_count(set, (esper_split)split); i++) {
            uint32_t id = esper_dataset_id(set, (esper_split)split, i);
            const uint8_t *image = esper_dataset_image(set, (esper_split)split, id);

            for (int k = 0; k < 30; k++)
                assert_memory_equal(&inputs.values[id * 30 + (uint32_t)k], &esper_dataset_levels(set, 0)[image[k]],
                                    sizeof(float));
        }
    esper_inputs_fini(&inputs);
    esper_dataset_close(again);
    esper_dataset_close(set);
}

/* Bytes of that shape as a .npy file, all of one value. */
static void write_npy(const char *path, const char *shape, int n, int value)
{
    FILE *file = fopen(path, "wb");
    char head[119];

    assert_non_null(file);
    snprintf(head, sizeof(head), "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }", shape);
    assert_int_equal(fwrite("\x93NUMPY\x01\0\x76\0", 1, 10, file), 10);
    fprintf(file, "%-117s\n", head);
    for (int i = 0; i < n; i++)
        fputc(value, file);
    assert_int_equal(fclose(file), 0);
}

/* Two channels are no colours: grey is not made of them, nor they of grey. */
static void test_arrays_of_other_channels(void **state)
{
    static const char note[] = "{\"source\": \"images\", \"classes\": 2, \"channels\": 2, \"height\": 9, \"width\": 8,"
                               " \"mean\": [0, 0], \"std\": [1, 1]}";
    esper_inputs inputs = {0};
    esper_dataset *set;

    (void)state;
    check_good(esper_dataset_recall(note, "[\"in\", \"out\"]", &set));
    write_npy("two.npy", "5, 2, 9, 8", 5 * 2 * 72, 9);
    check_good(esper_inputs_read(set, "two.npy", &inputs));
    assert_int_equal(inputs.n, 5);
    esper_inputs_fini(&inputs);
    write_npy("grey.npy", "5, 1, 9, 8", 5 * 72, 9);
    assert_int_equal(esper_inputs_read(set, "grey.npy", &inputs), ESPER_E_FORMAT);
    esper_inputs_fini(&inputs);
    write_npy("plane.npy", "5, 9, 8", 5 * 72, 9);
    assert_int_equal(esper_inputs_read(set, "plane.npy", &inputs), ESPER_E_FORMAT);
    esper_inputs_fini(&inputs);
    write_npy("colours.npy", "5, 3, 9, 8", 5 * 3 * 72, 9);
    assert_int_equal(esper_inputs_read(set, "colours.npy", &inputs), ESPER_E_FORMAT);
    esper_inputs_fini(&inputs);
    esper_dataset_close(set);
}

/* The file that is named is read, whatever lies beside it in small letters. */
static void test_an_ending_in_capitals(void **state)
{
    static const char note[] =
        "{\"source\": \"table\", \"classes\": 2, \"features\": 3, \"scaled\": 0, \"numbers\": [], \"columns\": []}";
    esper_inputs inputs = {0};
    esper_dataset *set;

    (void)state;
    check_good(esper_dataset_recall(note, "[\"in\", \"out\"]", &set));
    for (int i = 0; i < 2; i++) {
        write_npy("X.NPY", "4, 3", 12, 5);
        check_good(esper_inputs_read(set, "X.NPY", &inputs));
        assert_int_equal(inputs.n, 4);
        assert_true(inputs.values[11] == 5.0f);
        esper_inputs_fini(&inputs);
        write_npy("x.npy", "2, 3", 6, 1);
        write_npy("X.npy", "2, 3", 6, 1);
    }
    esper_dataset_close(set);
}

static void test_descriptions_that_are_none(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"source\": \"nothing\"}",
        "{\"source\": \"text\", \"context\": 0, \"vocab\": 256}",
        "{\"source\": \"text\", \"context\": 8, \"vocab\": 1000000}",
        "{\"source\": \"fashion\", \"classes\": 10, \"channels\": 1, \"height\": 28, \"width\": 28, \"mean\": [0], \"std\": [0]}",
        "{\"source\": \"fashion\", \"classes\": 10, \"channels\": 1, \"height\": 28, \"width\": 28, \"mean\": [], \"std\": [1]}",
        "{\"source\": \"fashion\", \"classes\": 10, \"channels\": 99, \"height\": 28, \"width\": 28, \"mean\": [0], \"std\": [1]}",
        "{\"source\": \"synth_table\", \"classes\": 2, \"features\": 3, \"scaled\": 2}",
        "{\"source\": \"synth_table\", \"classes\": 2, \"features\": 3, \"scaled\": 0, \"numbers\": [[\"a\", 0, 1]]}",
        "{\"source\": \"images\", \"classes\": 3, \"channels\": 1, \"height\": 8, \"width\": 8, \"mean\": [0], \"std\": [1]}",
    };
    esper_dataset *set = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (esper_dataset_recall(bad[i], "[\"a\"]", &set) != ESPER_E_FORMAT)
            fail_msg("taken for a description: %s", bad[i]);
    assert_null(set);
}

/* The nth allocation fails, for every n; jansson's are not counted. */
static void test_memory_runs_out(void **state)
{
    esper_dataset *set;
    esper_status status = ESPER_E_NOMEM;
    uint64_t n = 1;

    (void)state;
    write_table();
    set = open_table();
    for (; status != ESPER_OK; n++) {
        esper_inputs inputs = {0};

        esper_mem_fail_at(n);
        status = esper_inputs_read(set, "table.csv", &inputs);
        esper_mem_fail_at(0);
        esper_inputs_fini(&inputs);
        assert_true(status == ESPER_OK || status == ESPER_E_NOMEM);
    }
    assert_true(n > 5);
    esper_dataset_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_that_do_not_fit),
        cmocka_unit_test(test_names_that_command_terminals),
        cmocka_unit_test(test_columns_without_a_name),
        cmocka_unit_test(test_a_note_of_several_targets),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_arrays_of_other_channels),
        cmocka_unit_test(test_an_ending_in_capitals),
        cmocka_unit_test(test_descriptions_that_are_none),
        cmocka_unit_test(test_memory_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
