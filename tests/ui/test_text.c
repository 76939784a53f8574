/* Numbers as people read them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ui/text.h"

static void counts(void **state)
{
    static const struct {
        int64_t     count;
        const char *text;
    } cases[] = {
        {0, "0"},
        {7, "7"},
        {-7, "-7"},
        {999, "999"},
        {1000, "1,000"},
        {-1000, "-1,000"},
        {-999, "-999"},
        {12345, "12,345"},
        {123456, "123,456"},
        {-123456, "-123,456"},
        {1234567, "1,234,567"},
        {1000000000000, "1,000,000,000,000"},
        {INT64_MAX, "9,223,372,036,854,775,807"},
        {INT64_MIN, "-9,223,372,036,854,775,808"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[ESPER_TEXT_CHARS];

        assert_ptr_equal(esper_text_count(cases[i].count, text), text);
        assert_string_equal(text, cases[i].text);
    }
}

static void bytes(void **state)
{
    static const struct {
        double      bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {1023, "1023 bytes"},
        {1024, "1.00 KiB"},
        {1536, "1.50 KiB"},
        {10239, "10.0 KiB"},
        {12.3 * 1024 * 1024, "12.3 MiB"},
        {9.99 * 1024 * 1024, "9.99 MiB"},
        {9.996 * 1024 * 1024, "10.0 MiB"},
        {3.0 * 1024 * 1024 * 1024, "3.00 GiB"},
        {2.0 * 1024 * 1024 * 1024 * 1024, "2.00 TiB"},
        {5000.0 * 1024 * 1024 * 1024 * 1024, "5000.0 TiB"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[ESPER_TEXT_CHARS];

        assert_string_equal(esper_text_bytes(cases[i].bytes, text), cases[i].text);
    }
}

static void flops(void **state)
{
    char text[ESPER_TEXT_CHARS];

    (void)state;
    assert_string_equal(esper_text_flops(0, text), "0 FLOP");
    assert_string_equal(esper_text_flops(999, text), "999 FLOP");
    assert_string_equal(esper_text_flops(1000, text), "1.00 kFLOP");
    assert_string_equal(esper_text_flops(1.62e6, text), "1.62 MFLOP");
    assert_string_equal(esper_text_flops(45.67e9, text), "45.7 GFLOP");
    assert_string_equal(esper_text_flops(3e12, text), "3.00 TFLOP");
}

static void losses(void **state)
{
    char text[ESPER_TEXT_CHARS];

    (void)state;
    assert_string_equal(esper_text_loss(0.12346, text), "0.1235");
    assert_string_equal(esper_text_loss(999.5, text), "999.5000");
    assert_string_equal(esper_text_loss(2.1e9, text), "2.10e+09");
    assert_string_equal(esper_text_loss((double)INFINITY, text), "inf");
    assert_string_equal(esper_text_loss((double)NAN, text), "nan");
    assert_string_equal(esper_text_loss(-(double)NAN, text), "nan");
}

static void durations(void **state)
{
    static const struct {
        double      seconds;
        const char *text;
    } cases[] = {
        {0, "0.0 s"},
        {0.04, "0.0 s"},
        {4.2, "4.2 s"},
        {9.94, "9.9 s"},
        {9.96, "0:10"},
        {59.4, "0:59"},
        {59.6, "1:00"},
        {133, "2:13"},
        {3599.4, "59:59"},
        {3599.6, "1:00:00"},
        {3723, "1:02:03"},
        {100 * 3600.0, "100:00:00"},
        {-1, "?"},
        {-0.001, "?"},
        {(double)NAN, "?"},
        {(double)INFINITY, "?"},
        {(double)-INFINITY, "?"},
        {1e300, "?"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[ESPER_TEXT_CHARS];

        assert_string_equal(esper_text_duration(cases[i].seconds, text), cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts), cmocka_unit_test(bytes),     cmocka_unit_test(flops),
        cmocka_unit_test(losses), cmocka_unit_test(durations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
