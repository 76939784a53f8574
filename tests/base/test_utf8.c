/* What is UTF-8 and what is not, and that a setting which is not is refused before it can spoil a record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/config.h"
#include "base/utf8.h"

static void check(const char *bytes, size_t n, size_t wanted)
{
    size_t found = esper_utf8_length((const uint8_t *)bytes, n);

    if (found != wanted)
        fail_msg("byte 0x%02x of %zu: length %zu, wanted %zu", (unsigned char)bytes[0], n, found, wanted);
}

static void test_lengths(void **state)
{
    (void)state;
    check("a", 1, 1);
    check("\x7f", 1, 1);
    check("\xc3\xa9", 2, 2);
    check("\xe2\x82\xac", 3, 3);
    check("\xf0\x9f\x8c\xb1", 4, 4);
    check("\xf4\x8f\xbf\xbf", 4, 4); /* the last one there is */
}

static void test_refusals(void **state)
{
    (void)state;
    check("\x80", 1, 0);             /* stray */
    check("\xc3", 1, 0);             /* cut off */
    check("\xc3"
          "a",
          2, 0); /* missing its second byte */
    check("\xe2\x82", 2, 0);
    check("\xc0\xaf", 2, 0);         /* overlong */
    check("\xe0\x80\xaf", 3, 0);
    check("\xed\xa0\x80", 3, 0);     /* surrogate */
    check("\xf4\x90\x80\x80", 4, 0); /* past the last */
    check("\xff", 1, 0);
}

/* On one line, as many bytes as before. */
static void test_shown(void **state)
{
    static const char *const pairs[][2] = {
        {"", ""},
        {"caf\xc3\xa9 \xe7\x8c\xab", "caf\xc3\xa9 \xe7\x8c\xab"},
        {"a\nb\x1b[31m\x7f", "a?b?[31m?"},
        {"\xc2\x9b"
         "c\xff\xe2\x82",
         "??c???"}, /* a control of two bytes; stray ones; a cut-off character */
    };
    char text[32];

    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        snprintf(text, sizeof(text), "%s", pairs[i][0]);
        esper_utf8_show(text);
        assert_string_equal(text, pairs[i][1]);
    }
}

static void test_settings_are_utf8(void **state)
{
    const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    esper_config config;

    (void)state;
    esper_config_init(&config);
    assert_int_equal(esper_config_set(&config, "run_dir", "caf\xc3\xa9", &source), ESPER_OK);
    assert_int_equal(esper_config_set(&config, "run_dir", "caf\xe9", &source), ESPER_E_CONFIG);
    assert_string_equal(config.run_dir, "caf\xc3\xa9");
    assert_non_null(strstr(esper_last_error(), "UTF-8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shown),
        cmocka_unit_test(test_settings_are_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
