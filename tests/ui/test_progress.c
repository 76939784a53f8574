/* Progress: which of its three forms goes where, and what they say. */
#include <unistd.h>

#include "base/file.h"
#include "engine/helpers.h"
#include "ui/progress.h"

/* What a small run with this kind of progress wrote to a plain file. The caller frees it. */
static char *shown_by(esper_config_progress kind)
{
    esper_config config = config_of("synth", SMALL_CNN, "");
    FILE *stream = fopen("shown.txt", "w+");
    esper_progress progress;
    esper_run_observer observer;
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .observer = &observer};
    esper_run_result result;
    char *text;
    size_t bytes;

    assert_non_null(stream);
    esper_progress_init(&progress, kind, stream);
    observer = esper_progress_observer(&progress);
    check_good(esper_run_train(&desc, &result));
    esper_live_clear(&progress.live);
    fclose(stream);
    check_good(esper_file_read("shown.txt", 1 << 20, &text, &bytes));
    return text;
}

static void check_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void check_table(const char *text)
{
    static const char *const parts[] = {"synth: ", "parameters", "images to train on", "machine",    "1 thread,",
                                        "Ctrl-C",  "epoch",      "accuracy",           "valid loss", "samples/s",
                                        "time",    "left",       "\n   1/3 ",          "\n   2/3 ",  "\n   3/3 "};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        check_says(text, parts[i]);
}

static void none_says_nothing(void **state)
{
    char *text = shown_by(ESPER_CONFIG_PROGRESS_NONE);

    (void)state;
    assert_string_equal(text, "");
    esper_mem_free(text);
}

/* No control character but line ends: fit for a log. */
static void plain_is_plain(void **state)
{
    static const esper_config_progress kinds[] = {ESPER_CONFIG_PROGRESS_AUTO, ESPER_CONFIG_PROGRESS_PLAIN};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *text = shown_by(kinds[i]);

        check_table(text);
        check_says(text, "       -\n"); /* nothing is left after the last epoch */
        for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1)
            if (strcspn(at, "\n") > 78)
                fail_msg("%zu columns: %.*s", strcspn(at, "\n"), (int)strcspn(at, "\n"), at);
        for (const char *at = text; *at != '\0'; at++)
            if ((unsigned char)*at < ' ' && *at != '\n')
                fail_msg("character %d at %d", *at, (int)(at - text));
        esper_mem_free(text);
    }
}

/* ---- bars and lines between epochs, which only a slow run shows: its clock is turned back here ---- */

static void show_step_of(esper_config_progress kind, double seconds_left, char *text, size_t size)
{
    esper_config config = config_of("synth", SMALL_CNN, "epochs = 12\n");
    esper_network *network;
    FILE *stream = tmpfile();
    esper_progress progress;
    esper_run_observer observer;
    esper_run_view view = {
        .task = task_named("synth"), .run_dir = "x", .samples_per_s = 12345.6, .seconds_left = seconds_left};
    size_t n;

    assert_non_null(stream);
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    view.network = network;
    check_good(esper_network_step(network));
    check_good(esper_network_step(network));
    esper_progress_init(&progress, kind, stream);
    observer = esper_progress_observer(&progress);
    observer.step(observer.context, &view); /* too soon after the beginning */
    assert_int_equal(ftell(stream), 0);
    progress.live.last_shown -= 60.0;
    observer.step(observer.context, &view);
    observer.step(observer.context, &view); /* too soon again */
    esper_live_clear(&progress.live);
    rewind(stream);
    n = fread(text, 1, size - 1, stream);
    text[n] = '\0';
    fclose(stream);
    esper_single_close(network);
}

static void bar_is_drawn_over_itself(void **state)
{
    char text[1024];

    (void)state;
    show_step_of(ESPER_CONFIG_PROGRESS_BAR, 133, text, sizeof(text));
    assert_int_equal(text[0], '\r');
    check_says(text, "   1/12  [=========>              ]  40 %  loss ");
    check_says(text, " 12,345/s  2:13 left\033[K");
    check_says(text, "\r\033[K"); /* cleared at the end */
    assert_null(strchr(text, '\n'));
}

static void plain_line_tells_the_same(void **state)
{
    char text[1024];

    (void)state;
    show_step_of(ESPER_CONFIG_PROGRESS_PLAIN, 3723, text, sizeof(text));
    check_says(text, "   1/12   40 %  loss ");
    check_says(text, "12,345 samples/s  1:02:03 left\n");
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    assert_null(strchr(text, '\033'));
    show_step_of(ESPER_CONFIG_PROGRESS_PLAIN, -1.0, text, sizeof(text));
    check_says(text, "? left\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_says_nothing),
        cmocka_unit_test(plain_is_plain),
        cmocka_unit_test(bar_is_drawn_over_itself),
        cmocka_unit_test(plain_line_tells_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
