/* ctest: timeout=120 cost=3 */
/* JPEGs in colour, of several sizes, from a folder with train/ and test/ to a grown network that tells them apart. */
#include "data/helpers.h"

#include "support/pictures.h"

static int run(const char *command)
{
    char line[1024];

    snprintf(line, sizeof(line), "\"$ESPER\" %s >out.txt 2>err.txt", command);
    return system(line);
}

static void expect_said(const char *words)
{
    static char text[1 << 16];
    size_t n = read_file("out.txt", text, sizeof(text) - 1);

    text[n] = '\0';
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, text);
}

/* Classes differ in brightness and colour (the mark turns the gradient), so that a few steps tell them apart. */
static void test_story(void **state)
{
    static const char *const classes[] = {"café", "猫", "plain"};

    (void)state;
    if (getenv("ESPER") == NULL || !picture_has_jpeg()) {
        printf("skipped: no program, or this build has no libjpeg\n");
        skip();
    }
    for (int i = 0; i < 132; i++) {
        picture_file file = {
            .jpeg = true, .kind = PICTURE_RGB, .woven = i % 2 == 1, .height = 40 + i % 5, .width = 56 - i % 7};
        char path[96];

        snprintf(path, sizeof(path), "photos/%s/%s/%d.jpeg", i < 102 ? "train" : "test", classes[i % 3], i);
        picture_write(path, &file, 2 * (i % 3));
    }
    assert_int_equal(run("grow photos --threads 1 --epochs 30 --cache kept --run-dir grown --progress plain"), 0);
    expect_said("132 JPEG from 40x50 to 44x56 (height x width)");
    expect_said("brought to 40x40 (--image-size HxW chooses)");
    expect_said("3 classes: caf");
    expect_said("30 to test");
    assert_int_equal(run("eval grown --cache kept --json"), 0);
    expect_said("\"name\":\"猫\",\"samples\":10");
    expect_said("\"accuracy\":100");
    assert_int_equal(run("replay grown --cache kept"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_story)};

    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
