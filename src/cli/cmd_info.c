/* esper info: backends, operations, tasks, blueprints, configuration in force, programs and plans. */
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/cli.h"
#include "cli/info_plan.h"
#include "dist/comm.h"
#include "nn/blueprint.h"
#include "tensor/kernel.h"
#include "train/trainer.h"
#include "ui/text.h"

/* How several processes work as one job; where that cannot be, why. */
static void print_communicators(void)
{
    static const char *const kinds[] = {"self", "mpi"};

    printf("\ncommunicators\n");
    for (int i = 0; i < 2; i++) {
        char text[128];
        bool is_here = esper_comm_describe(kinds[i], text, sizeof(text)) == ESPER_OK;

        printf("  %s %-4s %s\n", is_here ? "\u2713" : "\u2717", kinds[i], is_here ? text : esper_last_error());
    }
}

static esper_status info_backends(const esper_config *config, const char *task_name)
{
    const esper_kernel_set *kernels = esper_kernels_choose();

    (void)config;
    (void)task_name;
    printf("esper %s (%s, %s, %s)\n\nbackends\n", esper_version(), esper_build_commit(), esper_build_type(),
           esper_build_compiler());
    for (int i = 0; esper_backend_list()[i] != NULL; i++)
        printf("  %-6s %s\n", esper_backend_list()[i]->name, esper_backend_list()[i]->about);
    printf("  kernels of the cpu backend here: %s\n", kernels != NULL ? kernels->name : "none (see ESPER_KERNELS)");
    print_communicators();
    return ESPER_OK;
}

static esper_status info_ops(const esper_config *config, const char *task_name)
{
    (void)config;
    (void)task_name;
    printf("operations (inputs -> outputs)\n");
    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        printf("  %-18s %d -> %d\n", info->name, info->n_in, info->n_out);
    }
    return ESPER_OK;
}

static esper_status info_tasks(const esper_config *config, const char *task_name)
{
    (void)config;
    (void)task_name;
    printf("tasks (a tick: the data is here)\n");
    for (int i = 0; esper_task_list()[i] != NULL; i++) {
        const esper_task *task = esper_task_list()[i];
        esper_config preset;
        esper_dataset_desc desc;
        esper_dataset_info info;

        esper_config_init(&preset);
        ESPER_TRY(esper_task_configure(task, &preset));
        desc = esper_task_data(task, &preset);
        printf("  %s %-24s %s\n", esper_dataset_measure(&desc, &info) == ESPER_OK ? "\u2713" : "\u2717", task->name,
               task->about);
    }
    return ESPER_OK;
}

static esper_status info_blueprints(const esper_config *config, const char *task_name)
{
    char count[ESPER_TEXT_CHARS];

    (void)config;
    (void)task_name;
    for (int topology = ESPER_TOPOLOGY_CNN; topology <= ESPER_TOPOLOGY_TRANSFORMER; topology++) {
        const esper_blueprint *const *list = esper_blueprint_list((esper_topology)topology);

        printf("%s blueprints (about so many parameters at %s)\n", esper_topology_name((esper_topology)topology),
               topology == ESPER_TOPOLOGY_CNN ? "64 channels" : "width 384");
        for (int i = 0; list[i] != NULL; i++)
            printf("  %-16s %12s  %s\n", list[i]->name, esper_text_count(list[i]->estimate, count), list[i]->about);
    }
    return ESPER_OK;
}

static esper_status info_config(const esper_config *config, const char *task_name)
{
    esper_config with_task = *config;
    const esper_task *task = esper_task_list()[0];

    if (task_name != NULL)
        ESPER_TRY(esper_task_find(task_name, &task));
    ESPER_TRY(esper_task_configure(task, &with_task));
    printf("# configuration in force for %s\n", task->name);
    esper_config_print_sources(&with_task, stdout);
    return ESPER_OK;
}

/* Opens a task as `esper train` would. */
static esper_status open_task(const esper_config *config, const char *task_name, esper_trainer **trainer_out)
{
    esper_config with_task = *config;
    const esper_task *task = esper_task_list()[0];
    esper_trainer *trainer;
    esper_status status;

    if (task_name != NULL)
        ESPER_TRY(esper_task_find(task_name, &task));
    ESPER_TRY(esper_task_configure(task, &with_task));
    trainer = esper_mem_alloc(sizeof(*trainer));
    if (trainer == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "task %s", task->name);
    status = esper_trainer_init(trainer, task, &with_task, ESPER_USE_TRAIN);
    if (status != ESPER_OK) {
        esper_mem_free(trainer);
        return status;
    }
    *trainer_out = trainer;
    return ESPER_OK;
}

static void close_task(esper_trainer *trainer)
{
    esper_trainer_fini(trainer);
    esper_mem_free(trainer);
}

static esper_status info_net(const esper_config *config, const char *task_name)
{
    esper_trainer *trainer;

    ESPER_TRY(open_task(config, task_name, &trainer));
    esper_net_print(&trainer->net, stdout);
    close_task(trainer);
    return ESPER_OK;
}

static esper_status info_plan(const esper_config *config, const char *task_name)
{
    esper_trainer *trainer;
    esper_status status;

    ESPER_TRY(open_task(config, task_name, &trainer));
    status = esper_info_plan(trainer, false);
    close_task(trainer);
    return status;
}

static esper_status info_plan_timed(const esper_config *config, const char *task_name)
{
    esper_trainer *trainer;
    esper_status status;

    ESPER_TRY(open_task(config, task_name, &trainer));
    status = esper_info_plan(trainer, true);
    close_task(trainer);
    return status;
}

static const struct {
    const char *name;
    esper_status (*print)(const esper_config *config, const char *task_name);
    esper_status (*print_timed)(const esper_config *config, const char *task_name); /* with --time; NULL = not for it */
} topics[] = {
    {"backends", info_backends, NULL},     {"ops", info_ops, NULL},       {"tasks", info_tasks, NULL},
    {"blueprints", info_blueprints, NULL}, {"config", info_config, NULL}, {"net", info_net, NULL},
    {"plan", info_plan, info_plan_timed},
};

enum { N_TOPICS = sizeof(topics) / sizeof(topics[0]) };

/* Without a topic: what most people look for, and where the rest is. */
static esper_status print_overview(const esper_config *config)
{
    ESPER_TRY(info_backends(config, NULL));
    printf("\n");
    ESPER_TRY(info_tasks(config, NULL));
    printf("\nmore: esper info TOPIC, where TOPIC is");
    for (int i = 0; i < N_TOPICS; i++)
        printf("%s %s", i == 0 ? "" : i + 1 < N_TOPICS ? "," : " or", topics[i].name);
    printf("\n");
    return ESPER_OK;
}

static int print_topic(const esper_config *config, const char *name, const char *task_name, bool timed)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;
    esper_status status;

    esper_suggest_init(&suggest, name);
    for (int i = 0; i < N_TOPICS; i++) {
        esper_suggest_offer(&suggest, topics[i].name);
        if (strcmp(topics[i].name, name) != 0)
            continue;
        if (timed && topics[i].print_timed == NULL)
            return esper_cli_usage(&esper_command_info, "--time is for `esper info plan`");
        status = timed ? topics[i].print_timed(config, task_name) : topics[i].print(config, task_name);
        return status == ESPER_OK ? ESPER_EXIT_OK : esper_cli_fail(status);
    }
    return esper_cli_usage(&esper_command_info, "no topic is called '%s'%s", name,
                           esper_suggest_text(&suggest, "", hint));
}

static int run(int argc, char **argv)
{
    const char *timed = NULL;
    const esper_config_option options[] = {{.name = "time", .text_out = &timed}};
    esper_config config;
    esper_status status;
    bool help;
    int n_left;

    status = esper_cli_configure(&esper_command_info, &config, argc, argv, options, 1, &n_left, &help);
    if (status == ESPER_OK && help)
        return ESPER_EXIT_OK;
    if (status == ESPER_OK && n_left > 2)
        return esper_cli_usage(&esper_command_info, "'%s' is too much", argv[2]);
    if (status == ESPER_OK && n_left > 0)
        return print_topic(&config, argv[0], n_left > 1 ? argv[1] : NULL, timed != NULL);
    if (status == ESPER_OK && timed != NULL)
        return esper_cli_usage(&esper_command_info, "--time is for `esper info plan`");
    if (status == ESPER_OK)
        status = print_overview(&config);
    return status == ESPER_OK ? ESPER_EXIT_OK : esper_cli_fail(status);
}

const esper_command esper_command_info = {
    .name = "info",
    .arguments = "[TOPIC] [TASK] [flags]",
    .summary = "backends, operations, tasks, configuration in force",
    .help = "topics:\n"
            "  backends        what can compute here, and how ranks can work together\n"
            "  ops             the operations networks are made of\n"
            "  tasks           what can be trained, and whether its data is here\n"
            "  blueprints      what can be grown into a network\n"
            "  config [TASK]   every setting, its value and where it came from\n"
            "  net [TASK]      the network as a list of operations\n"
            "  plan [TASK]     launches of a training step, what was fused, FLOPs, bytes, shares of the time\n"
            "                  and memory; --time runs some steps and shows measured shares beside\n\n"
            "config, net and plan take the flags of `esper train`. Without a topic: version, backends and tasks.",
    .run = run,
};
