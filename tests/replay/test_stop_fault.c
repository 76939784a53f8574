/* ctest: timeout=120 cost=4 */
/* A run that is stopped in the midst of an epoch, at every step, and meets a fault when it is gone on with: it ends as the unbroken
 * run, which goes back to the snapshot from where the epoch began. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/helpers.h"

enum { STEPS_AN_EPOCH = 5 };

static const char settings[] =
    "epochs = 4\nmax_steps = 5\npolicy = random\ngates = permissive\ngate_epochs = 1\nseed = 3\n";

/* Grows, or goes on with it, and stops after so many steps; -1: does not. */
static esper_status grow_steps(const esper_config *config, const char *resume, int n_steps, esper_run_result *result)
{
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {
        .task = resume == NULL ? task_named("synth") : NULL,
        .config = config,
        .resume = resume,
        .grows = true,
        .observer = &observer,
        .stop = &stopping.stop,
    };

    return esper_run_train(&desc, result);
}

static bool is_there(const char *dir, const char *name)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    check_good(esper_run_path(dir, name, path));
    return lstat(path, &info) == 0;
}

static void check_same_log(const char *a, const char *b)
{
    char path[ESPER_PATH_CHARS], *text_a, *text_b;
    size_t n_a, n_b;

    check_good(esper_run_path(a, ESPER_RUN_DECISIONS, path));
    check_good(esper_file_read(path, 1 << 20, &text_a, &n_a));
    check_good(esper_run_path(b, ESPER_RUN_DECISIONS, path));
    check_good(esper_file_read(path, 1 << 20, &text_b, &n_b));
    if (n_a != n_b || memcmp(text_a, text_b, n_a) != 0)
        fail_msg("%s and %s have different decision logs", a, b);
    esper_mem_free(text_a);
    esper_mem_free(text_b);
}

static esper_config growing(const char *dir, const char *inject)
{
    char text[512];

    snprintf(text, sizeof(text), "%srun_dir = %s\ninject = %s\n", settings, dir, inject);
    return config_of("synth", SMALL_CNN, text);
}

/* Stopped after `first` steps, and, unless that is 0, after `second` more. */
static void check_stopped(const char *inject, const char *whole_dir, const esper_run_result *whole, int first,
                          int second)
{
    esper_run_result result;
    esper_config config, nothing;
    char dir[64];

    snprintf(dir, sizeof(dir), "%s-%d-%d", whole_dir, first, second);
    config = growing(dir, inject);
    esper_config_init(&nothing);
    check_good(grow_steps(&config, NULL, first, &result));
    assert_true(result.stopped);
    assert_int_equal(is_there(dir, ESPER_RUN_BEFORE), result.cursor.batch > 0 && !is_there(dir, ESPER_RUN_SOUND));
    if (second > 0)
        check_good(grow_steps(&nothing, dir, second, &result));
    check_good(grow_steps(&nothing, dir, -1, &result));
    if (result.weight_hash != whole->weight_hash)
        fail_msg("%s stopped after %d and %d steps ends elsewhere", inject, first, second);
    check_same_log(whole_dir, dir);
    assert_false(is_there(dir, ESPER_RUN_BEFORE) || is_there(dir, ESPER_RUN_SOUND));
}

static void a_fault_behind_a_stop(void **state)
{
    static const char *const faults[] = {"8:host:param:nan", "8:host:param:nan,12:host:moment:inf",
                                         "9:host:buffer:nan,10:host:param:nan"};

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        esper_run_result whole;
        esper_config config;
        char dir[16];

        snprintf(dir, sizeof(dir), "whole-%zu", i);
        config = growing(dir, faults[i]);
        check_good(grow_steps(&config, NULL, -1, &whole));
        assert_true(whole.n_rollbacks > 0);
        for (int k = 1; k <= (i == 0 ? 5 : 2); k++)
            check_stopped(faults[i], dir, &whole, STEPS_AN_EPOCH + k, 0);
        for (int k = 1; i == 0 && k <= 3; k++) /* twice, and also in the part that was gone back to */
            check_stopped(faults[i], dir, &whole, STEPS_AN_EPOCH + 1, k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_behind_a_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
