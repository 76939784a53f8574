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
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_descriptions_that_are_none),
        cmocka_unit_test(test_memory_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
