/* ctest: timeout=300 cost=3 driver=only */
/* A device that is lost in the midst of a run, at one call of the driver after the other: the run ends with a sentence, nothing is left
 * behind, and where there is a checkpoint the sentence names it; resumed, it ends as the run that lost nothing. ESPER_TEST_FULL: every
 * call. The machine's own device cannot be lost at a call. */
#include "engine/helpers.h"
#include "support/cuda_driver.h"

#define LOST_RUN \
    "threads = 1\nbatch = 8\nlayers = 1\nwidth = 4\nmax_steps = 2\nepochs = 3\nvalid_fraction = 0.01\nbackend = cuda\n"

enum { ILLEGAL_ADDRESS = 700, LAUNCH_FAILURE = 719, ECC_UNCORRECTABLE = 214, RUNS = 12, BRIEF_RUNS = 4 };

static esper_config config_of_run(const char *dir)
{
    char more[64];

    snprintf(more, sizeof(more), "run_dir = %s\n", dir);
    return config_of("synth_table", LOST_RUN, more);
}

static uint64_t whole_run(const char *dir, uint64_t *n_calls_out)
{
    esper_config config = config_of_run(dir);
    uint64_t before = cuda_driver_calls();
    esper_run_result result;

    check_good(run_steps("synth_table", &config, NULL, -1, &result));
    *n_calls_out = cuda_driver_calls() - before;
    return result.weight_hash;
}

/* The step that the checkpoint in the folder stands at; false: there is none. */
static bool step_on_disk(const char *dir, uint64_t *step_out)
{
    char path[ESPER_PATH_CHARS];
    uint64_t budget, weights;
    esper_checkpoint found;
    esper_cursor cursor;

    if (esper_checkpoint_init(checkpoint_of(dir, path), &found) != ESPER_OK)
        return false;
    check_good(esper_checkpoint_mark(&found, &cursor, &budget, &weights));
    esper_checkpoint_fini(&found);
    *step_out = cursor.step;
    return true;
}

/* Returns whether there was something to resume. */
static bool lose_at(uint64_t nth, int with, uint64_t weights)
{
    uint64_t blocks = live_blocks(), step;
    char dir[64], words[160];
    esper_run_result result;
    esper_config config;
    esper_status status;

    snprintf(dir, sizeof(dir), "lost-%llu", (unsigned long long)nth);
    config = config_of_run(dir);
    cuda_driver_lose_at(nth, with);
    status = run_steps("synth_table", &config, NULL, -1, &result);
    cuda_driver_lose_at(0, 0);
    if (status == ESPER_OK)
        fail_msg("call %llu: the run has not noticed that the device is gone", (unsigned long long)nth);
    assert_int_equal(live_blocks(), blocks);
    if (!step_on_disk(dir, &step)) {
        assert_true(esper_last_error()[0] != '\0');
        return false;
    }
    snprintf(words, sizeof(words), "the device is lost: |(%d: |The checkpoint of step %llu, in epoch |--resume %s",
             with, (unsigned long long)step, dir);
    check_fails(status, ESPER_E_DEVICE, words);
    check_good(run_steps(NULL, &config, dir, -1, &result));
    if (result.weight_hash != weights)
        fail_msg("lost at call %llu, resumed from step %llu: other weights", (unsigned long long)nth,
                 (unsigned long long)step);
    return true;
}

static void lost_at_any_call(void **state)
{
    static const int results[] = {ILLEGAL_ADDRESS, LAUNCH_FAILURE, ECC_UNCORRECTABLE};
    uint64_t n_calls, weights, stride;
    int n_runs = 0, n_resumed = 0;

    (void)state;
    if (cuda_driver_is_real())
        skip();
    weights = whole_run("whole", &n_calls);
    stride = getenv("ESPER_TEST_FULL") != NULL ? 1 : n_calls / (uint64_t)effort(RUNS, BRIEF_RUNS) + 1;
    for (uint64_t nth = 1; nth < n_calls; nth += stride, n_runs++)
        n_resumed += lose_at(nth, results[n_runs % 3], weights);
    print_message("%llu calls of the driver in a run; lost at %d of them, resumed %d times\n",
                  (unsigned long long)n_calls, n_runs, n_resumed);
    assert_true(n_resumed > n_runs / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_at_any_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
