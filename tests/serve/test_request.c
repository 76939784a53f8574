/* What comes from the other side of a socket: targets, marks, hosts and tokens, good and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/request.h"

static void check_code(const char *target, int code)
{
    esper_request request;
    int got = esper_request_read(target, &request);

    if (got != code)
        fail_msg("%s: %d, expected %d", target, got, code);
}

static void test_targets(void **state)
{
    esper_request request;

    (void)state;
    assert_int_equal(esper_request_read("/", &request), 200);
    assert_int_equal(request.route, ESPER_ROUTE_FILE);
    assert_string_equal(request.file, "index.html");
    assert_int_equal(esper_request_read("/style.css?v=3", &request), 200);
    assert_string_equal(request.file, "style.css");
    assert_int_equal(esper_request_read("/api/runs", &request), 200);
    assert_int_equal(request.route, ESPER_ROUTE_RUNS);
    assert_int_equal(esper_request_read("/api/run?run=compared%2Fnone-1", &request), 200);
    assert_int_equal(request.route, ESPER_ROUTE_RUN);
    assert_string_equal(request.run, "compared/none-1");
    assert_int_equal(esper_request_read("/api/run?run=na%C3%AFve", &request), 200);
    assert_string_equal(request.run, "na\xC3\xAFve");
    assert_int_equal(esper_request_read("/api/drawing?run=a&epoch=12", &request), 200);
    assert_int_equal(request.epoch, 12);
    assert_int_equal(esper_request_read("/api/drawing?run=a", &request), 200);
    assert_int_equal(request.epoch, -1);
    assert_int_equal(esper_request_read("/api/live?run=a&since=7.1200.-1&x=y&&", &request), 200);
    assert_true(request.has_mark);
    assert_int_equal(request.mark.generation, 7);
    assert_int_equal(request.mark.seq, 1200);
    assert_int_equal(request.mark.seq_control, -1);
    assert_int_equal(esper_request_read("/?token=0123456789abcdef0123456789abcdef", &request), 200);
    assert_string_equal(request.token, "0123456789abcdef0123456789abcdef");
}

static void test_hostile_targets(void **state)
{
    static const char *const unreadable[] = {"",
                                             "*",
                                             "http://elsewhere/",
                                             "/%",
                                             "/%0",
                                             "/%zz",
                                             "/a%00b",
                                             "/api/run",
                                             "/api/run?run=",
                                             "/api/run?run=%ff",
                                             "/api/run?run=%c0%ae%c0%ae",
                                             "/api/run?run=%ed%a0%80",
                                             "/api/run?run=a%0d%0aSet-Cookie:x",
                                             "/api/run?run=%1b[31m",
                                             "/api/run?run=%c2%9b",
                                             "/api/drawing?run=a&epoch=-1",
                                             "/api/drawing?run=a&epoch=1e3",
                                             "/api/drawing?run=a&epoch=",
                                             "/api/drawing?run=a&epoch=99999999999999999999",
                                             "/api/live?since=1.2",
                                             "/api/live?since=1.2.3.4",
                                             "/api/live?since=a.b.c",
                                             "/api/live?since=-1.2.3",
                                             "/api/live?since=1.-2.3",
                                             "/?token=short",
                                             "/?token=0123456789ABCDEF0123456789ABCDEF",
                                             "/?token=0123456789abcdef0123456789abcdef0"};
    static const char *const absent[] = {"/../etc/passwd",
                                         "/..%2f..%2fetc%2fpasswd",
                                         "/a/b",
                                         "//",
                                         "/api/",
                                         "/api/runs/x",
                                         "/a-name-that-is-longer-than-that-of-any-file-of-ours.js"};
    char longest[4096] = "/api/run?run=";

    (void)state;
    for (size_t i = 0; i < sizeof(unreadable) / sizeof(unreadable[0]); i++)
        check_code(unreadable[i], 400);
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        check_code(absent[i], 404);
    memset(longest + strlen(longest), 'a', ESPER_REQUEST_ID_CHARS - 1); /* as long as can be, and by one longer */
    check_code(longest, 200);
    strcat(longest, "a");
    check_code(longest, 400);
}

static void test_marks(void **state)
{
    const esper_mark mark = {.generation = INT64_MAX, .seq = INT64_MAX, .seq_control = -1};
    char text[ESPER_MARK_CHARS];
    esper_mark back;

    (void)state;
    assert_true(esper_mark_read(esper_mark_write(&mark, text), &back));
    assert_true(memcmp(&mark, &back, sizeof(mark)) == 0);
    assert_false(esper_mark_read("", &back));
    assert_false(esper_mark_read("1.2.3 ", &back));
}

static void test_hosts(void **state)
{
    static const char *const local[] = {"localhost",        "LocalHost:8600", "127.0.0.1", "127.0.0.1:1",
                                        "127.255.0.3:8600", "[::1]",          "[::1]:8600"};
    static const char *const other[] = {"",
                                        ":8600",
                                        "example.org",
                                        "localhost.example.org",
                                        "127.0.0.1.example.org",
                                        "127.0.0.1:80:90",
                                        "127.0.0.1:",
                                        "127.0.0.1:x",
                                        "127.0.0",
                                        "127.0.0.256",
                                        "128.0.0.1",
                                        "[::1",
                                        "[::2]",
                                        "[::1]x",
                                        "0x7f.0.0.1",
                                        "127.1",
                                        "evil@localhost"};

    (void)state;
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (!esper_host_is_local(local[i]))
            fail_msg("%s is this machine", local[i]);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (esper_host_is_local(other[i]))
            fail_msg("%s is not this machine", other[i]);
}

static void test_tokens(void **state)
{
    static const char good[] = "0123456789abcdef0123456789abcdef";
    char token[ESPER_TOKEN_CHARS];

    (void)state;
    assert_true(esper_token_from_bearer("Bearer 0123456789abcdef0123456789abcdef", token));
    assert_true(esper_token_is(token, good));
    assert_false(esper_token_is(token, "0123456789abcdef0123456789abcdee"));
    assert_false(esper_token_is(token, "1123456789abcdef0123456789abcdef"));
    assert_false(esper_token_from_bearer("Basic 0123456789abcdef0123456789abcdef", token));
    assert_false(esper_token_from_bearer("Bearer 0123456789abcdef0123456789abcdef ", token));
    assert_false(esper_token_from_bearer("Bearer ", token));
    assert_true(esper_token_from_cookies("a=b; esper-8600=0123456789abcdef0123456789abcdef; c", "esper-8600", token));
    assert_true(
        esper_token_from_cookies("esper-8600=no; esper-8600=0123456789abcdef0123456789abcdef", "esper-8600", token));
    assert_false(esper_token_from_cookies("esper-86=0123456789abcdef0123456789abcdef", "esper-8600", token));
    assert_false(esper_token_from_cookies("xesper-8600=0123456789abcdef0123456789abcdef", "esper-8600", token));
    assert_false(esper_token_from_cookies("esper-8600", "esper-8600", token));
    assert_false(esper_token_from_cookies("; ;;", "esper-8600", token));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets), cmocka_unit_test(test_hostile_targets), cmocka_unit_test(test_marks),
        cmocka_unit_test(test_hosts),   cmocka_unit_test(test_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
