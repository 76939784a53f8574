/* What a terminal is taken for, lines that fit it, and streams of ASCII. */
#include <string.h>

#include "base/mem.h"
#include "ui/ascii.h"
#include "ui/helpers.h"
#include "ui/terminal.h"

static void put_in_place(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* ------------------------------------------------------------------------------------------------ what it can do */

static void environment_tells(void **state)
{
    static const struct {
        const char *term, *no_color;
        bool        escapes, colour;
    } cases[] = {{"xterm", NULL, true, true},  {"xterm", "", true, true},    {"xterm", "1", true, false},
                 {"dumb", NULL, false, false}, {NULL, NULL, false, false}, {"", NULL, false, false}};
    terminal tty;
    FILE *file = tmpfile();

    (void)state;
    assert_non_null(file);
    terminal_open(&tty, 24, 80);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_terminal seen, none;

        put_in_place("TERM", cases[i].term);
        put_in_place("NO_COLOR", cases[i].no_color);
        seen = esper_terminal_look(tty.stream);
        none = esper_terminal_look(file);
        assert_true(seen.is_tty && !none.is_tty && !none.escapes && !none.colour);
        assert_int_equal(seen.escapes, cases[i].escapes);
        assert_int_equal(seen.colour, cases[i].colour);
        assert_int_equal(seen.room, 79);
        assert_int_equal(seen.rows, 24);
        assert_int_equal(none.room, ESPER_TERMINAL_WIDE);
        assert_int_equal(none.rows, 0);
    }
    terminal_close(&tty);
    fclose(file);
}

/* The strongest variable that is set decides; a locale that is not installed is judged by its name. */
static void locale_tells(void **state)
{
    static const struct {
        const char *all, *characters, *language;
        bool        utf8;
    } cases[] = {
        {NULL, NULL, NULL, false},
        {"C", NULL, "C.UTF-8", false},
        {"POSIX", NULL, NULL, false},
        {NULL, NULL, "C.UTF-8", true},
        {"", "", "C.UTF-8", true},
        {NULL, "C", "C.UTF-8", false},
        {NULL, "C.UTF-8", "C", true},
        {"xx_YY.UTF-8", NULL, "C", true},
        {"xx_YY.utf8@z", NULL, "C", true},
        {"xx_YY", NULL, "C.UTF-8", false},
        {"xx_YY.ISO-8859-1", NULL, NULL, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_terminal seen;

        put_in_place("LC_ALL", cases[i].all);
        put_in_place("LC_CTYPE", cases[i].characters);
        put_in_place("LANG", cases[i].language);
        seen = esper_terminal_look(stdout);
        if (seen.utf8 != cases[i].utf8)
            fail_msg("case %zu: %s", i, seen.utf8 ? "UTF-8" : "no UTF-8");
        assert_string_equal(esper_terminal_tick(&seen, true), cases[i].utf8 ? "\xe2\x9c\x93" : "+");
        assert_string_equal(esper_terminal_tick(&seen, false), cases[i].utf8 ? "\xe2\x9c\x97" : "-");
    }
}

static void sizes_are_taken_again(void **state)
{
    struct winsize size = {.ws_row = 50, .ws_col = 132};
    esper_terminal seen;
    terminal tty;

    (void)state;
    terminal_open(&tty, 0, 0);
    seen = esper_terminal_look(tty.stream);
    assert_int_equal(seen.room, 79); /* it does not say: the usual */
    assert_int_equal(seen.rows, 24);
    assert_int_equal(ioctl(tty.master, TIOCSWINSZ, &size), 0);
    esper_terminal_measure(&seen);
    assert_int_equal(seen.room, 131);
    assert_int_equal(seen.rows, 50);
    terminal_close(&tty);
}

/* ------------------------------------------------------------------------------------------------ lines */

static void numbers_are_never_broken(void **state)
{
    static const char row[] = "  name  1,234,567 parameters  12.5 MFLOP  0.123456 of 9,876,543 samples seen\n";
    terminal tty;

    (void)state;
    for (int width = 24; width < 100; width++) {
        char joined[256] = "", *at;
        const char *text;

        terminal_open(&tty, 24, width);
        esper_terminal_print(tty.stream, "%s", row);
        text = terminal_read(&tty);
        for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
            if ((int)strcspn(line, "\r") > width)
                fail_msg("%d columns:\n%s", width, text);
        for (const char *c = text; *c != '\0'; c++) { /* without breaks and indents it is the same again */
            at = joined + strlen(joined);
            if (*c != '\r' && *c != '\n' && !(*c == ' ' && (at == joined || at[-1] == ' ')))
                *at = *c;
            else if (*c == '\n' && at > joined && at[-1] != ' ')
                *at = ' ';
        }
        assert_string_equal(joined, "name 1,234,567 parameters 12.5 MFLOP 0.123456 of 9,876,543 samples seen ");
        terminal_close(&tty);
    }
}

static void cells_hang_below_themselves(void **state)
{
    terminal tty;

    (void)state;
    terminal_open(&tty, 24, 40);
    esper_terminal_print(tty.stream, "  --flag N   what it is for, and that is told at length [default 12]\n\nshort\n");
    assert_string_equal(terminal_read(&tty), "  --flag N   what it is for, and that is\r\n"
                                             "             told at length [default 12]\r\n\r\nshort\r\n");
    esper_terminal_print(tty.stream, "no line end");
    assert_string_equal(terminal_read(&tty), "no line end");
    terminal_close(&tty);
}

static void files_get_whole_lines(void **state)
{
    char text[600] = "", read[700] = "";
    FILE *file = tmpfile();

    (void)state;
    for (int i = 0; i < 50; i++)
        strcat(text, "ten chars ");
    esper_terminal_print(file, "%s\n", text);
    rewind(file);
    assert_non_null(fgets(read, sizeof(read), file));
    assert_int_equal(strlen(read), 501);
    fclose(file);
}

static void words_fit_or_go(void **state)
{
    esper_line line;

    (void)state;
    esper_line_init(&line, 12, false);
    esper_line_put(&line, "loss 12,345,678 left");
    assert_string_equal(line.text, "loss ");
    esper_line_put(&line, "more");
    assert_string_equal(line.text, "loss "); /* nothing comes after what did not fit */
    esper_line_init(&line, 12, false);
    esper_line_put(&line, "exactly this and more");
    assert_string_equal(line.text, "exactly this");
    esper_line_init(&line, 12, false);
    esper_line_put(&line, "loss");
    esper_line_put_whole(&line, "  12 MFLOPs");
    assert_string_equal(line.text, "loss");
    assert_int_equal(line.columns, 4);
    esper_line_init(&line, 30, false);
    esper_line_put(&line, "a wordthathasnoendandisnonumberatall");
    assert_string_equal(line.text, "a wordthathasnoendandisnonumbe");
}

/* ------------------------------------------------------------------------------------------------ ASCII */

static void check_ascii(const char *text, size_t step, const char *wanted)
{
    char read[512];
    FILE *file = tmpfile(), *ascii;
    size_t n;

    assert_non_null(file);
    ascii = esper_ascii_open(fileno(file));
    assert_non_null(ascii);
    for (size_t i = 0; i < strlen(text); i += step) { /* a flush may come within a character */
        fprintf(ascii, "%.*s", (int)step, text + i);
        fflush(ascii);
    }
    assert_int_equal(fclose(ascii), 0);
    rewind(file);
    n = fread(read, 1, sizeof(read) - 1, file);
    read[n] = '\0';
    assert_string_equal(read, wanted);
    fclose(file);
}

static void nothing_beyond_ascii(void **state)
{
    esper_mem_stats before, after;

    (void)state;
    esper_mem_stats_get(&before);
    for (size_t step = 1; step < 40; step++) {
        check_ascii("plain \033[1m text\n", step, "plain \033[1m text\n");
        check_ascii("r\xc3\xbcn \xe2\x9c\x93 \xf0\x9f\x98\x80!", step, "r\\u00fcn \\u2713 \\ud83d\\ude00!");
        check_ascii("\xff \xc3( \xe2\x9c! \xed\xa0\x80", step, "\\xff \\xc3( \\xe2\\x9c! \\xed\\xa0\\x80");
        check_ascii("cut \xf0\x9f\x98", step, "cut \\xf0\\x9f\\x98");
    }
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_live, before.n_live);
}

static void full_disks_are_noticed(void **state)
{
    int full = open("/dev/full", O_WRONLY);
    FILE *ascii;

    (void)state;
    if (full < 0) {
        print_message("skipped: no /dev/full\n");
        skip();
    }
    ascii = esper_ascii_open(full);
    assert_non_null(ascii);
    fprintf(ascii, "no room");
    assert_int_not_equal(fflush(ascii), 0);
    assert_true(ferror(ascii));
    fclose(ascii);
    close(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_tells),
        cmocka_unit_test(locale_tells),
        cmocka_unit_test(sizes_are_taken_again),
        cmocka_unit_test(numbers_are_never_broken),
        cmocka_unit_test(cells_hang_below_themselves),
        cmocka_unit_test(files_get_whole_lines),
        cmocka_unit_test(words_fit_or_go),
        cmocka_unit_test(nothing_beyond_ascii),
        cmocka_unit_test(full_disks_are_noticed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
