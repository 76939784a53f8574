/* Tasks: each preset is sound, and gives the host that the specification says. */
#include "engine/helpers.h"

/* What the data sets would say of themselves; nothing is loaded here. */
static const esper_dataset_info grey = {.channels = 1, .height = 28, .width = 28, .classes = 10};
static const esper_dataset_info colour = {.channels = 3, .height = 32, .width = 32, .classes = 10};
static const esper_dataset_info bytes = {.vocab = 256, .context = 128};
static const esper_dataset_info rows = {.kind = ESPER_DATASET_VECTORS, .features = 16, .classes = 10};
static const esper_dataset_info stories = {.vocab = 50257, .context = 256};

/* Parameters, places to grow and batch size of each preset. */
static const struct {
    const char               *task;
    const esper_dataset_info *data;
    int64_t                   params;
    int                       boundaries, batch;
} presets[] = {
    {"fashion", &grey, 6274, 6, 128},
    {"fashion_fast", &grey, 390, 6, 64},
    {"mnist", &grey, 6274, 6, 128},
    {"cifar_baseline", &colour, 6418, 6, 128},
    {"cifar_scale", &colour, 99922, 10, 128},
    {"cifar_impaired", &colour, 77, 6, 128},
    {"cifar_minimal", &colour, 164, 3, 128},
    {"cifar_multichannel", &colour, 6418, 6, 128},
    {"cifar_postpool", &colour, 24346, 6, 128},
    {"cifar_highres", &colour, 24346, 6, 128},
    {"cifar_deep_multichannel", &colour, 99922, 10, 128},
    {"cifar_deep_impaired", &colour, 1140, 10, 128},
    {"tinystories", &stories, 30044544, 3, 32},
    {"chars", &bytes, 842496, 2, 16},
    {"synth", &colour, 6418, 6, 128},
    {"synth_table", &rows, 778, 2, 64},
};

enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

static void hosts_are_as_specified(void **state)
{
    (void)state;
    for (int i = 0; i < N_PRESETS; i++) {
        const esper_task *task = task_named(presets[i].task);
        esper_config config = config_of(presets[i].task, "", "");
        esper_host host = esper_task_host(task, &config, presets[i].data);
        esper_net net;

        esper_net_init(&net);
        check_good(esper_host_build(&host, &net));
        if (esper_net_count_params(&net, -1) != presets[i].params || net.n_boundaries != presets[i].boundaries)
            fail_msg("%s: %lld parameters, %d boundaries; expected %lld, %d", presets[i].task,
                     (long long)esper_net_count_params(&net, -1), net.n_boundaries, (long long)presets[i].params,
                     presets[i].boundaries);
        assert_int_equal(config.batch, presets[i].batch);
        esper_net_fini(&net);
    }
    assert_int_equal(live_blocks(), 0);
}

/* A preset is no more than a preset: what it sets is marked so, and gives way to everything stronger. */
static void presets_give_way(void **state)
{
    static const esper_config_source file = {.place = ESPER_CONFIG_FILE, .name = "my.conf", .line = 1};
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_good(esper_config_set(&config, "lr", "0.7", &file));
    check_good(esper_task_configure(task_named("chars"), ESPER_CONFIG_IN_TRAIN, &config));
    assert_true(config.lr == 0.7);
    assert_int_equal(config.optimizer, ESPER_CONFIG_OPTIMIZER_ADAMW);
    assert_int_equal(esper_config_place_of(&config, esper_config_find("optimizer")), ESPER_CONFIG_PRESET);
    assert_int_equal(esper_config_place_of(&config, esper_config_find("lr")), ESPER_CONFIG_FILE);
}

static void every_task_is_sound(void **state)
{
    (void)state;
    assert_string_equal(esper_task_list()[0]->name, "fashion"); /* the default */
    for (int i = 0; esper_task_list()[i] != NULL; i++) {
        const esper_task *task = esper_task_list()[i], *found = NULL;
        esper_config config;

        esper_config_init(&config);
        check_good(esper_task_configure(task, ESPER_CONFIG_IN_TRAIN, &config));
        check_good(esper_task_find(task->name, &found));
        assert_ptr_equal(found, task);
        assert_true(strlen(task->about) > 10 && strlen(task->name) < 24);
    }
}

static void names_in_any_case(void **state)
{
    const esper_task *task = NULL;

    (void)state;
    check_good(esper_task_find("Fashion", &task));
    assert_string_equal(task->name, "fashion");
    check_good(esper_task_find("CIFAR_SCALE", &task));
    assert_string_equal(task->name, "cifar_scale");
    check_fails(esper_task_find("cifar_scal", &task), ESPER_E_CONFIG,
                "no task|did you mean 'cifar_scale'|There are: fashion");
    check_fails(esper_task_find("", &task), ESPER_E_CONFIG, "no task|There are: fashion");
    check_fails(esper_task_find("zzzzzzzzzzz", &task), ESPER_E_CONFIG, "'zzzzzzzzzzz'. There are");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_as_specified),
        cmocka_unit_test(presets_give_way),
        cmocka_unit_test(every_task_is_sound),
        cmocka_unit_test(names_in_any_case),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
