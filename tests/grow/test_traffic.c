/* ctest: timeout=120 cost=5 sealed=also */
/* Growth without its arithmetic: random lifecycles on the backend that computes nothing. Sealed, also in memory that nobody may
 * touch, and behind the host: what is left is the logic, and that needs none of the numbers. */
#include "base/file.h"
#include "engine/helpers.h"

static int count(const char *path, const char *word)
{
    char *text;
    size_t bytes;
    int n = 0;

    check_good(esper_file_read(path, (size_t)64 << 20, &text, &bytes));
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n++;
    esper_mem_free(text);
    return n;
}

/* how: the environment's word for the sealed backend; dir: where the run goes. */
static void traffic(const char *how, const char *dir, const char *more)
{
    esper_config config =
        config_of("synth",
                  "backend = null\npolicy = random\ngates = permissive\nlength = epochs\nepochs = 120\nmax_steps = 2\n"
                  "threads = 1\nbatch = 8\ncheckpoint_every = 0\n",
                  more);
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
    char path[ESPER_PATH_CHARS];
    esper_run_result result;

    setenv("ESPER_SEALED", how, 1);
    snprintf(config.run_dir, sizeof(config.run_dir), "%s", dir);
    check_good(esper_run_train(&desc, &result));
    assert_int_equal(result.last.epoch, 120);
    assert_int_equal(result.n_rollbacks + result.n_skipped, 0);
    snprintf(path, sizeof(path), "%s/events.jsonl", dir);
    if (count(path, "\"accepted\":1") < 50)
        fail_msg("%d decisions of 120 epochs were accepted", count(path, "\"accepted\":1"));
    assert_int_equal(live_blocks(), 0);
}

static void lifecycles_need_no_numbers(void **state)
{
    (void)state;
    traffic("at once", "aside", "");
    traffic("at once", "straight", "incubation = straight\n");
}

static void lifecycles_need_no_waiting(void **state)
{
    (void)state;
    traffic("behind", "behind", "");
    assert_int_equal(count("behind/events.jsonl", "\"epoch_ended\""), 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifecycles_need_no_numbers),
        cmocka_unit_test(lifecycles_need_no_waiting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
