/* Words for shells: what stands there is what a shell makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/shell.h"

static const char *quote(const char *text, bool ascii)
{
    static char quoted[ESPER_SHELL_CHARS];

    esper_shell_keep_ascii(ascii);
    return esper_shell_quote(text, quoted);
}

static const char *quote_path(const char *path)
{
    static char quoted[ESPER_SHELL_CHARS];

    esper_shell_keep_ascii(false);
    return esper_shell_quote_path(path, quoted);
}

static void only_what_needs_it_is_quoted(void **state)
{
    (void)state;
    assert_string_equal(quote("runs/fashion-20261116-1", false), "runs/fashion-20261116-1");
    assert_string_equal(quote("a=1,b=2.5", false), "'a=1,b=2.5'");
    assert_string_equal(quote("a=~/x", false), "'a=~/x'"); /* a shell may take it for an assignment */
    assert_string_equal(quote("a:~/x", false), "'a:~/x'");
    assert_string_equal(quote("r\xc3\xbcn", false), "r\xc3\xbcn");
    assert_string_equal(quote("", false), "''");
    assert_string_equal(quote("my run", false), "'my run'");
    assert_string_equal(quote("~/x", false), "'~/x'");
    assert_string_equal(quote("it's", false), "'it'\\''s'");
    assert_string_equal(quote("a;b", false), "'a;b'");
    assert_string_equal(quote("r\xc3\xbcn", true), "$'r\\303\\274n'");
    assert_string_equal(quote("\xff", false), "$'\\377'");
    assert_string_equal(quote("a\033[31m", false), "$'a\\033[31m'");
    assert_string_equal(quote("a\xc2\x9b", false), "$'a\\302\\233'"); /* CSI in one character */
    assert_string_equal(quote("a\xc2\xa0", false), "a\xc2\xa0");
}

static void paths_are_not_taken_for_options(void **state)
{
    char path[1400];

    (void)state;
    assert_string_equal(quote_path("-x"), "./-x");
    assert_string_equal(quote_path("--my run"), "'./--my run'");
    assert_string_equal(quote_path("runs/-x"), "runs/-x");
    assert_string_equal(quote_path(""), "''");
    assert_string_equal(quote("-1", false), "-1");
    memset(path, '-', sizeof(path));
    path[1238] = '\0';
    assert_int_equal(strlen(quote_path(path)), 1240);
    path[1238] = '-';
    path[1399] = '\0';
    assert_ptr_equal(quote_path(path), path);
}

/* What bash takes a word for, from a file, as a person would paste it. */
static void check_round(const char *text, bool ascii)
{
    char read[ESPER_SHELL_CHARS];
    FILE *file = fopen("word.sh", "w");
    size_t n;

    assert_non_null(file);
    fprintf(file, "printf %%s %s\n", quote(text, ascii));
    fclose(file);
    file = popen("bash word.sh", "r");
    assert_non_null(file);
    n = fread(read, 1, sizeof(read) - 1, file);
    read[n] = '\0';
    assert_int_equal(pclose(file), 0);
    if (strcmp(read, text) != 0)
        fail_msg("%s: bash makes \"%s\" of it", quote(text, ascii), read);
}

static void shells_undo_it(void **state)
{
    static const char *const words[] = {
        "",          "plain",        "two words", "$HOME",        "`id`",          "a\"b",   "it's", "\\",
        "a\\nb",     "*?[x]",        "~",         "#x",           "a&b|c>d<e",     "(x){y}", "!1",   "tab\there",
        "line\nend", "r\xc3\xbcn's", "\xff\xfe",  "\033]0;x\007", "a b\xc3\xbc\\'", "a=~/x", "x:~"};

    (void)state;
    if (system("bash -c true") != 0) {
        print_message("skipped: no bash\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        check_round(words[i], false);
        check_round(words[i], true);
    }
}

/* The longest that fits, in its longest form; beyond that, nothing is cut. */
static void long_words_keep_their_end(void **state)
{
    char text[1400];

    (void)state;
    memset(text, '\'', sizeof(text));
    text[1240] = '\0';
    assert_int_equal(strlen(quote(text, false)), 4 * 1240 + 2);
    memset(text, '\'', sizeof(text));
    text[1399] = '\0';
    assert_ptr_equal(quote(text, false), text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_needs_it_is_quoted),
        cmocka_unit_test(paths_are_not_taken_for_options),
        cmocka_unit_test(shells_undo_it),
        cmocka_unit_test(long_words_keep_their_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
