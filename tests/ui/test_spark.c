/* Curves in characters: as high as they should be, never wider than their room, whatever the values are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ui/spark.h"

static void a_rise_is_seen(void **state)
{
    static const double values[] = {0, 1, 2, 3, 4, 5, 6, 7};
    esper_line line;

    (void)state;
    esper_line_init(&line, 79, false);
    esper_spark_line(values, 8, true, &line);
    assert_string_equal(line.text, "▁▂▃▄▅▆▇█");
    assert_int_equal(line.columns, 8);
    esper_line_init(&line, 79, false);
    esper_spark_line(values, 8, false, &line);
    assert_string_equal(line.text, "....####");
}

/* Of more values than columns each column is the mean of its share. */
static void more_than_fit_are_averaged(void **state)
{
    double values[1000];
    esper_line line;

    (void)state;
    for (int i = 0; i < 1000; i++)
        values[i] = i < 500 ? 0.0 : 1.0;
    esper_line_init(&line, 10, false);
    esper_spark_line(values, 1000, false, &line);
    assert_string_equal(line.text, ".....#####");
}

static void what_is_no_number_is_a_blank(void **state)
{
    static const double values[] = {0.0, NAN, INFINITY, 1.0}, none[] = {NAN, NAN}, equal[] = {3.0, 3.0};
    esper_line line;

    (void)state;
    esper_line_init(&line, 79, false);
    esper_spark_line(values, 4, false, &line);
    assert_string_equal(line.text, ".  #");
    esper_line_init(&line, 79, false);
    esper_spark_line(none, 2, false, &line);
    esper_spark_line(NULL, 0, false, &line);
    assert_string_equal(line.text, "");
    esper_spark_line(equal, 2, true, &line);
    assert_int_equal(line.columns, 2);
}

static void charts_of_every_size(void **state)
{
    double values[300];
    esper_line line;

    (void)state;
    for (int i = 0; i < 300; i++)
        values[i] = sin(i * 0.1);
    for (int n = 1; n <= 300; n += 23)
        for (int columns = 1; columns <= 120; columns += 7)
            for (int n_rows = 1; n_rows <= 9; n_rows++) {
                esper_spark_chart chart = {
                    .values = values, .n = n, .n_rows = n_rows, .columns = columns, .utf8 = true};

                assert_true(esper_spark_measure(&chart));
                for (int row = 0; row < n_rows; row++) {
                    esper_line_init(&line, columns, false);
                    esper_spark_row(&chart, row, &line);
                    assert_true(line.columns <= columns && !line.full);
                }
                assert_null(strchr(line.text, ' ')); /* the lowest row is never empty */
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rise_is_seen),
        cmocka_unit_test(more_than_fit_are_averaged),
        cmocka_unit_test(what_is_no_number_is_a_blank),
        cmocka_unit_test(charts_of_every_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
