/* Records as text: what is read is what was written, and nothing else is taken for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/fields.h"
#include "base/mem.h"

typedef struct inner {
    double value;
} inner;

typedef struct record {
    double   reals[3];
    inner    part;
    int32_t  small[2];
    int64_t  large;
    uint64_t larger;
} record;

static const esper_field fields[] = {
    ESPER_FIELD(record, REAL, reals), ESPER_FIELD(record, REAL, part.value), ESPER_FIELD(record, I32, small),
    ESPER_FIELD(record, I64, large),  ESPER_FIELD(record, U64, larger),      ESPER_FIELDS_END,
};

static bool read_all(const char *text, const char *prefix, record *out)
{
    esper_field_line line;

    memset(out, 0, sizeof(*out));
    while (esper_fields_next(&text, &line))
        if (!esper_fields_read(&line, prefix, fields, out))
            return false;
    return true;
}

static void comes_back_bit_for_bit(void **state)
{
    const record one = {
        .reals = {1.0 / 3.0, -0.0, (double)INFINITY},
        .part = {5e-324},
        .small = {INT32_MIN, 7},
        .large = INT64_MIN,
        .larger = UINT64_MAX,
    };
    esper_page text = {0};
    record two;

    (void)state;
    esper_fields_write(&text, "a.3.", fields, &one);
    assert_int_equal(text.status, ESPER_OK);
    assert_non_null(strstr(text.text, "a.3.part.value 0x"));
    assert_true(read_all(text.text, "a.3.", &two));
    assert_memory_equal(&one, &two, sizeof(one));
    esper_page_fini(&text);
}

static void zeros_are_left_out(void **state)
{
    const record none = {.large = 1};
    esper_page text = {0};

    (void)state;
    esper_fields_write(&text, "", fields, &none);
    assert_string_equal(text.text, "large 1\n");
    esper_page_fini(&text);
}

static void nan_stays(void **state)
{
    const record one = {.reals = {(double)NAN, 0.0, 1.0}};
    esper_page text = {0};
    record two;

    (void)state;
    esper_fields_write(&text, "", fields, &one);
    assert_true(read_all(text.text, "", &two));
    assert_true(isnan(two.reals[0]) && two.reals[2] == 1.0);
    esper_page_fini(&text);
}

static void strangers_are_refused(void **state)
{
    static const char *const strange[] = {"x.large 1\n",  "larg 1\n",    "largest 1\n", "large\n",
                                          "large 1 2\n",  "large one\n", "small 1\n",   "small 1 2 3\n",
                                          "6573706572\n", "large 1x\n",  "large  1 \n"};
    record out;

    (void)state;
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
        if (read_all(strange[i], "", &out))
            fail_msg("'%s' is taken", strange[i]);
}

static void memory_runs_out(void **state)
{
    const record one = {.large = 1};
    esper_page text = {0};

    (void)state;
    esper_mem_fail_at(1);
    esper_fields_write(&text, "", fields, &one);
    esper_mem_fail_at(0);
    assert_int_equal(text.status, ESPER_E_NOMEM);
    esper_page_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_bit_for_bit), cmocka_unit_test(zeros_are_left_out), cmocka_unit_test(nan_stays),
        cmocka_unit_test(strangers_are_refused),  cmocka_unit_test(memory_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
