/* ctest: timeout=120 cost=2 driver=only */
/* What `backend = auto` comes to where there is a device: by the work of a step, by what computed a run until now, and not at all
 * where somebody has said; and that a run does as chosen. */
#include "engine/helpers.h"
#include "run/backend_choice.h"

static esper_backend_choice choose(const char *task, const char *lines, const char *recorded)
{
    esper_config config = config_of(task, lines, "");
    esper_dataset_desc desc = esper_task_data(task_named(task), &config);
    esper_backend_choice choice;
    esper_dataset_info info;

    check_good(esper_dataset_measure(&desc, &info));
    check_good(esper_backend_choose(task_named(task), &config, &info, recorded, &choice));
    return choice;
}

static void by_the_work(void **state)
{
    /* 8 images of 3x32x32: 3 (2 x 27 x 2 x 1024 + 2 x 18 x 4 x 256) FLOPs each */
    esper_backend_choice small = choose("synth", "batch = 8\nchannels = 2\nblocks = 2\n", NULL);
    esper_backend_choice large = choose("synth", "batch = 128\nchannels = 32\nblocks = 3\n", "");

    (void)state;
    assert_string_equal(small.name, "cpu");
    assert_string_equal(large.name, "cuda");
    assert_non_null(strstr(small.why, "from 500 on it is the GPU's"));
    assert_non_null(strstr(large.why, "chosen as a step takes"));
    assert_string_equal(
        choose("synth_text", "batch = 16\nlayers = 4\nwidth = 128\nheads = 4\ncontext = 128\n", NULL).name, "cuda");
}

/* A run goes on as it began, and is replayed so. */
static void by_what_was(void **state)
{
    const char *small = "batch = 8\nchannels = 2\nblocks = 2\n", *large = "batch = 128\nchannels = 32\nblocks = 3\n";

    (void)state;
    assert_string_equal(choose("synth", small, "cuda/sm_90/k1a2b3c4d").name, "cuda");
    assert_string_equal(choose("synth", large, "cpu/avx512/td14867bb").name, "cpu");
}

static void by_what_was_said(void **state)
{
    (void)state;
    assert_null(choose("synth", "backend = cpu\nbatch = 128\nchannels = 32\nblocks = 3\n", NULL).name);
    assert_null(choose("synth", "backend = cuda\nbatch = 8\nchannels = 2\nblocks = 2\n", NULL).name);
    assert_null(choose("synth", "backend = ref\nbatch = 8\n", "cuda/sm_90/k1a2b3c4d").name);
}

static void see_backend(void *context, const esper_run_view *view)
{
    const esper_engine *engine = view->network->engine;

    snprintf(context, 200, "%.8s%s%s", esper_backend_identity(engine->backend),
             engine->backend_why[0] != '\0' ? " " : "", engine->backend_why);
}

static void a_run_does_so(void **state)
{
    char seen[200] = "";
    esper_config config =
        config_of("synth_table", "threads = 1\nbatch = 8\nmax_steps = 1\nepochs = 1\nrun_dir = table\n", "");
    esper_run_observer observer = {.context = seen, .begin = see_backend};
    esper_run_desc desc = {.task = task_named("synth_table"), .config = &config, .observer = &observer};
    esper_run_result result;

    (void)state;
    check_good(esper_run_train(&desc, &result));
    assert_memory_equal(seen, "cpu/", 4);
    assert_non_null(strstr(seen, " chosen as a step takes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_the_work),
        cmocka_unit_test(by_what_was),
        cmocka_unit_test(by_what_was_said),
        cmocka_unit_test(a_run_does_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
