/* esper info: backends, operations, tasks, blueprints, features, rewards, configuration in force, programs and plans. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/cli.h"
#include "cli/info_data.h"
#include "cli/info_plan.h"
#include "cli/own_data.h"
#include "device/device_cuda.h"
#include "dist/comm.h"
#include "nn/blueprint.h"
#include "policy/features.h"
#include "policy/learned.h"
#include "policy/reward.h"
#include "run/run_dir.h"
#include "tensor/cuda/images.h"
#include "tensor/kernel.h"
#include "run/learn.h"
#include "run/settings.h"
#include "run/single.h"
#include "run/task_lists.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* How several processes work as one job; where that cannot be, why. */
static void print_communicators(void)
{
    static const char *const kinds[] = {"self", "mpi"};
    esper_terminal terminal = esper_terminal_look(stdout);

    printf("\ncommunicators\n");
    for (int i = 0; i < 2; i++) {
        char text[128];
        bool is_here = esper_comm_describe(kinds[i], text, sizeof(text)) == ESPER_OK;

        esper_terminal_print(stdout, "  %s %-4s  %s\n", esper_terminal_tick(&terminal, is_here), kinds[i],
                             is_here ? text : esper_last_error());
    }
}

/* What somebody wants to know. */
typedef struct question {
    const esper_config *config;
    const char         *topic; /* NULL: none */
    const char         *task;  /* NULL: the first */
    bool                timed; /* with --time */
    bool                text;  /* with --text */
    bool                all;   /* with --all: settings that have no effect, too */
    bool                json;  /* with --json: of data */
    esper_config_job    job;   /* whose settings: those of `esper train`; with --grow or --learn of these */
} question;

/* The device that the cuda backend would take, or why there is none. */
static void print_cuda_device(void)
{
    char free_text[ESPER_TEXT_CHARS], total_text[ESPER_TEXT_CHARS];
    uint64_t free_bytes = 0, total = 0;
    esper_device *device;

    if (esper_device_open("cuda", 0, &device) != ESPER_OK) {
        esper_terminal_print(stdout, "  device of the cuda backend here: none (%s)\n", esper_last_error());
        return;
    }
    if (esper_device_memory_free(device, &free_bytes) != ESPER_OK || esper_cuda_memory(device, &total) != ESPER_OK)
        free_bytes = total = 0;
    esper_terminal_print(stdout, "  device of the cuda backend here: %s (sm_%d), %s of %s free%s\n",
                         esper_cuda_device_title(device), esper_cuda_capability(device),
                         esper_text_bytes((double)free_bytes, free_text), esper_text_bytes((double)total, total_text),
                         esper_tensor_images[0].image.binary == NULL ? "; NVRTC compiles its kernels at run time" : "");
    printf("  how many networks of a task fit it: esper info plan TASK --backend cuda\n");
    esper_device_close(device);
}

/* The policy that `--policy learned` means. */
static void print_policy(void)
{
    char path[ESPER_PATH_CHARS];
    esper_learned_file *file;

    if (!esper_run_policy_shipped(path)) {
        printf("  policy that ships with it: none\n");
        return;
    }
    if (esper_learned_open(path, &file) != ESPER_OK) {
        esper_terminal_print(stdout, "  policy that ships with it: %s\n", esper_last_error());
        return;
    }
    esper_terminal_print(stdout, "  policy that ships with it (--policy learned): %s, hash %016" PRIx64 "\n", path,
                         esper_learned_hash_of(file));
    esper_learned_close(file);
}

static esper_status info_backends(const question *asked)
{
    const esper_kernel_set *kernels = esper_kernels_choose();

    (void)asked;
    esper_terminal_print(stdout, "esper %s (%s, %s, %s)\n\nbackends\n", esper_version(), esper_build_commit(),
                         esper_build_type(), esper_build_compiler());
    for (int i = 0; esper_backend_list()[i] != NULL; i++)
        esper_terminal_print(stdout, "  %-6s  %s\n", esper_backend_list()[i]->name, esper_backend_list()[i]->about);
    printf("  kernels of the cpu backend here: %s\n", kernels != NULL ? kernels->name : "none (see ESPER_KERNELS)");
    print_cuda_device();
    print_communicators();
    print_policy();
    return ESPER_OK;
}

static esper_status info_ops(const question *asked)
{
    (void)asked;
    printf("operations (inputs -> outputs)\n");
    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        printf("  %-18s %d -> %d\n", info->name, info->n_in, info->n_out);
    }
    return ESPER_OK;
}

static esper_status info_tasks(const question *asked)
{
    esper_terminal terminal = esper_terminal_look(stdout);

    (void)asked;
    printf("tasks (%s: the data is here)\n", terminal.utf8 ? "a tick" : "a plus");
    for (int i = 0; esper_task_list()[i] != NULL; i++) {
        const esper_task *task = esper_task_list()[i];
        esper_config preset;
        esper_dataset_desc desc;
        esper_dataset_info info;

        esper_config_init(&preset);
        ESPER_TRY(esper_task_configure(task, ESPER_CONFIG_IN_TRAIN, &preset));
        desc = esper_task_data(task, &preset);
        if (esper_source_is_own(task->source)) { /* there is nothing that could be missing */
            esper_terminal_print(stdout, "  - %-23s  your %s: %s\n", task->name,
                                 task->source == ESPER_SOURCE_OWN_TABLE ? "file" : "folder", task->about);
            continue;
        }
        esper_terminal_print(stdout, "  %s %-23s  %s\n",
                             esper_terminal_tick(&terminal, esper_dataset_measure(&desc, &info) == ESPER_OK),
                             task->name, task->about);
    }
    return ESPER_OK;
}

static esper_status info_blueprints(const question *asked)
{
    static const char *const sizes[ESPER_N_TOPOLOGIES] = {[ESPER_TOPOLOGY_CNN] = "64 channels",
                                                          [ESPER_TOPOLOGY_TRANSFORMER] = "width 384",
                                                          [ESPER_TOPOLOGY_MLP] = "width 64"};
    char count[ESPER_TEXT_CHARS];

    (void)asked;
    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++) {
        const esper_blueprint *const *list = esper_blueprint_list((esper_topology)topology);

        printf("%s blueprints (about so many parameters at %s)\n", esper_topology_name((esper_topology)topology),
               sizes[topology]);
        for (int i = 0; list[i] != NULL; i++)
            esper_terminal_print(stdout, "  %-16s %12s  %s\n", list[i]->name,
                                 esper_text_count(list[i]->estimate, count), list[i]->about);
    }
    return ESPER_OK;
}

static esper_status info_hosts(const question *asked)
{
    const esper_host_preset *list = esper_host_presets();

    (void)asked;
    printf("hosts that have a name (--host NAME)\n");
    for (int i = 0; list[i].name != NULL; i++)
        esper_terminal_print(stdout, "\n  %-12s  %s\n                %s\n", list[i].name, list[i].about, list[i].text);
    printf("\nstages of a text (--host TEXT or FILE)\n\n");
#define X(kind, word, takes, arguments, about) \
    esper_terminal_print(stdout, "  %-10s %-27s %s\n", word, arguments, about);
    ESPER_HOST_STAGE_LIST(X)
#undef X
    esper_terminal_print(stdout, "  %-10s %-27s %s\n", "linear", "[tied]",
                         "at the end: to the classes or tokens of the data; tied: with the weights of embed");
    esper_terminal_print(stdout, "  %-10s %-27s %s\n", "[ ... ]", "[xN] [residual]",
                         "the stages inside, N times; residual: each copy is added to what goes into it");
    return ESPER_OK;
}

static esper_status info_lists(const question *asked)
{
    (void)asked;
    printf("lists of tasks to learn on (esper learn --tasks NAME); @FILE is one of your own\n");
    for (int i = 0; esper_task_lists()[i].name != NULL; i++) {
        const esper_tasks_named *list = &esper_task_lists()[i];
        char text[ESPER_CONFIG_TEXT_CHARS], *at = text;

        esper_terminal_print(stdout, "\n  %-10s  %s\n", list->name, list->about);
        snprintf(text, sizeof(text), "%s", list->text);
        for (bool more = true; more;) {
            char *end = esper_task_lists_entry_end(at);

            more = *end == ',';
            *end = '\0';
            esper_terminal_print(stdout, "              %s\n", at + strspn(at, " "));
            at = end + 1;
        }
    }
    return ESPER_OK;
}

static esper_status info_rewards(const question *asked)
{
    const esper_reward_field *list;
    int n;

    (void)asked;
    list = esper_reward_field_list(&n);
    printf("what decisions can be paid by (--reward); %s unless set otherwise\n\n",
           esper_reward_mode_name(ESPER_REWARD_DEFAULT));
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode++)
        esper_terminal_print(stdout, "  %-12s  %s\n", esper_reward_mode_name(mode), esper_reward_mode_about(mode));
    printf("\nweights (--reward-weights NAME=VALUE,...)\n\n");
    for (int i = 0; i < n; i++)
        esper_terminal_print(stdout, "  %-34s %9g  %s\n", list[i].name, list[i].preset, list[i].about);
    return ESPER_OK;
}

static esper_status info_features(const question *asked)
{
    static const char *const how[] = {"as it is", "running", "running, -1 as 0"}; /* by esper_norm_how */
    static const char *const heads[] = {"how it learns", "what is under way", "what there is to grow",
                                        "the seed of each slot, one slot after the other behind these",
                                        "the slot itself, behind its seed"};
    const esper_feature *list;
    int n, group = -1;

    (void)asked;
    list = esper_feature_list(&n);
    esper_terminal_print(
        stdout,
        "what a learned policy sees: %d values of the run and %d of each slot\n\n"
        "symlog(x) = sign(x) ln(1 + |x|); part(x) = min(x, max_epochs) / max_epochs; running: less the running\n"
        "mean, by the running deviation. A slot is known by what it has, and not by its number\n",
        (int)ESPER_FEATURES_RUN, (int)ESPER_FEATURES_SLOT);
    for (int i = 0; i < n; i++) {
        char at[16];

        if ((int)list[i].group != group)
            esper_terminal_print(stdout, "\n%s: %s\n  %-7s %-22s %-17s %-17s  %s\n",
                                 esper_feature_group_name(list[i].group), heads[list[i].group], "at", "name", "values",
                                 "normalised", "meaning");
        group = (int)list[i].group;
        if (list[i].n > 1)
            snprintf(at, sizeof(at), "%d-%d", list[i].at, list[i].at + list[i].n - 1);
        else
            snprintf(at, sizeof(at), "%d", list[i].at);
        esper_terminal_print(stdout, "  %-7s %-22s %-17s %-17s  %s\n", at, list[i].name, list[i].range,
                             how[list[i].how], list[i].about);
    }
    return ESPER_OK;
}

/* What a run of the task would be. */
typedef struct prospect {
    const esper_task *task;
    esper_config      config;
    esper_config_use  use;
    bool              all; /* settings that have no effect, too */
} prospect;

/* As the command whose settings these are would do. Who wants to see all settings wants to know of those without effect, too. */
static esper_status look_ahead(const question *asked, prospect *run)
{
    const esper_log log = {.level = asked->config->log_level, .stream = stderr};
    esper_config *config = &run->config;

    *config = *asked->config;
    if (asked->job == ESPER_CONFIG_IN_LEARN)
        ESPER_TRY(esper_task_lists_expand(config->tasks));
    ESPER_TRY(esper_own_data_task(asked->task != NULL ? asked->task : esper_task_list()[0]->name, asked->job, config,
                                  &run->task));
    run->use = esper_settings_use(run->task, asked->job, config);
    run->all = asked->all;
    return asked->all ? ESPER_OK : esper_settings_check(config, config, &run->use, &log);
}

static void print_sources(FILE *stream, const void *context)
{
    const prospect *run = context;

    esper_config_print_sources(&run->config, &run->use, run->all, stream);
}

static esper_status info_config(const question *asked)
{
    prospect run;

    ESPER_TRY(look_ahead(asked, &run));
    printf("# configuration in force for %s in `esper %s`%s\n", run.task->name, esper_config_job_name(asked->job),
           asked->job == ESPER_CONFIG_IN_TRAIN ? "; others: --grow, --learn" : "");
    if (!asked->all)
        printf("# settings that have no effect there are left out; --all shows them, and why\n");
    return esper_cli_print(print_sources, &run);
}

static void print_net(FILE *stream, const void *context)
{
    const esper_network *network = context;
    char text[ESPER_HOST_CHARS];

    if (esper_host_describe(&network->engine->host, text) == ESPER_OK)
        fprintf(stream, "host %s\n", text);
    esper_net_print(&network->net, stream);
}

static void print_text(FILE *stream, const void *context)
{
    const esper_network *network = context;
    char text[ESPER_HOST_CHARS];

    if (esper_host_describe(&network->engine->host, text) == ESPER_OK)
        fprintf(stream, "%s\n", text);
}

/* The network, or its plan, as `esper train` or `esper grow` would have it. */
static esper_status info_network(const question *asked)
{
    prospect run;
    esper_network *network;
    esper_status status;

    ESPER_TRY(look_ahead(asked, &run));
    ESPER_TRY(esper_single_open(run.task, &run.config,
                                asked->job != ESPER_CONFIG_IN_TRAIN ? ESPER_USE_GROW : ESPER_USE_TRAIN, &network));
    status = strcmp(asked->topic, "plan") == 0 ? esper_info_plan(network, asked->timed)
                                               : esper_cli_print(asked->text ? print_text : print_net, network);
    esper_single_close(network);
    return status;
}

/* What data is, and what `esper grow` would do with it. */
static esper_status info_data(const question *asked)
{
    question grown = *asked;
    prospect run;

    if (asked->task == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "esper info data: name a folder, a file or a task");
    if (grown.job == ESPER_CONFIG_IN_TRAIN)
        grown.job = ESPER_CONFIG_IN_GROW;
    ESPER_TRY(look_ahead(&grown, &run));
    return esper_info_data(asked->task, run.task, &run.config, asked->json);
}

static const struct {
    const char *name;
    esper_status (*print)(const question *asked);
    bool of_task, timed; /* takes a task, its settings, --grow and --learn; and --time */
} topics[] = {
    {"backends", info_backends, false, false},
    {"ops", info_ops, false, false},
    {"tasks", info_tasks, false, false},
    {"lists", info_lists, false, false},
    {"blueprints", info_blueprints, false, false},
    {"hosts", info_hosts, false, false},
    {"features", info_features, false, false},
    {"rewards", info_rewards, false, false},
    {"config", info_config, true, false},
    {"net", info_network, true, false},
    {"plan", info_network, true, true},
    {"data", info_data, true, false},
};

enum { N_TOPICS = sizeof(topics) / sizeof(topics[0]) };

/* Without a topic: what most people look for, and where the rest is. */
static esper_status print_overview(const question *asked)
{
    char names[N_TOPICS * 16];
    size_t used = 0;

    ESPER_TRY(info_backends(asked));
    printf("\n");
    ESPER_TRY(info_tasks(asked));
    for (int i = 0; i < N_TOPICS; i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s %s",
                                 i == 0             ? ""
                                 : i + 1 < N_TOPICS ? ","
                                                    : " or",
                                 topics[i].name);
    assert(used < sizeof(names));
    esper_terminal_print(stdout, "\nmore: esper info TOPIC, where TOPIC is%s\n", names);
    return ESPER_OK;
}

/* Whether there is a setting among the flags; if so, one. */
static bool find_flag(const esper_config *config, char flag[ESPER_CONFIG_NAME_CHARS])
{
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++)
        if (esper_config_place_of(config, i) == ESPER_CONFIG_FLAG) {
            esper_config_flag_name(esper_config_key_at(i)->name, flag);
            return true;
        }
    return false;
}

static esper_status print_topic(esper_cli_call *call, const question *asked)
{
    const char *name = asked->topic;
    char hint[ESPER_SUGGEST_TEXT_CHARS], flag[ESPER_CONFIG_NAME_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; i < N_TOPICS; i++) {
        esper_suggest_offer(&suggest, topics[i].name);
        if (strcmp(topics[i].name, name) != 0)
            continue;
        if (asked->timed && !topics[i].timed)
            return esper_cli_usage(call, "--time is for `esper info plan`");
        if (asked->job != ESPER_CONFIG_IN_TRAIN && !topics[i].of_task)
            return esper_cli_usage(call, "--grow and --learn are for config, net and plan");
        if (asked->task != NULL && !topics[i].of_task)
            return esper_cli_usage(call, "`esper info %s` is the same for all tasks: '%s' is too much", name,
                                   asked->task);
        if (!topics[i].of_task && find_flag(asked->config, flag))
            return esper_cli_usage(call, "%s is for config, net, plan and data", flag);
        if (asked->json && topics[i].print != info_data)
            return esper_cli_usage(call, "--json is for `esper info data`");
        if (asked->text && strcmp(name, "net") != 0)
            return esper_cli_usage(call, "--text is for `esper info net`");
        if (asked->all && topics[i].print != info_config)
            return esper_cli_usage(call, "--all is for `esper info config`");
        return topics[i].print(asked);
    }
    return esper_cli_usage(call, "no topic is called '%s'%s", name, esper_suggest_text(&suggest, "", hint));
}

enum { TIME, GROW, LEARN, ALL, TEXT, JSON };

static const esper_command_option options[] = {[TIME] = {"time", false},
                                               [GROW] = {"grow", false},
                                               [LEARN] = {"learn", false},
                                               [ALL] = {"all", false},
                                               [TEXT] = {"text", false},
                                               [JSON] = {"json", false},
                                               {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    bool grows = call->given[GROW] != NULL, learns = call->given[LEARN] != NULL;
    question asked = {.config = &call->config,
                      .topic = call->n_words > 0 ? call->words[0] : NULL,
                      .task = call->n_words > 1 ? call->words[1] : NULL,
                      .timed = call->given[TIME] != NULL,
                      .text = call->given[TEXT] != NULL,
                      .all = call->given[ALL] != NULL,
                      .json = call->given[JSON] != NULL,
                      .job = learns  ? ESPER_CONFIG_IN_LEARN
                             : grows ? ESPER_CONFIG_IN_GROW
                                     : ESPER_CONFIG_IN_TRAIN};
    char flag[ESPER_CONFIG_NAME_CHARS];

    if (grows && learns)
        return esper_cli_usage(call, "--grow or --learn: one of them");
    if (call->n_words > 0)
        return print_topic(call, &asked);
    for (int i = 0; options[i].name != NULL; i++)
        if (call->given[i] != NULL)
            return esper_cli_usage(call, "--%s is for `esper info %s`", options[i].name,
                                   i == TIME   ? "plan"
                                   : i == TEXT ? "net"
                                   : i == JSON ? "data"
                                               : "config");
    if (find_flag(&call->config, flag))
        return esper_cli_usage(call, "%s is for config, net, plan and data", flag);
    return print_overview(&asked);
}

const esper_command esper_command_info = {
    .name = "info",
    .arguments = "[TOPIC] [TASK] [flags]",
    .summary = "backends, operations, tasks, configuration in force",
    .help =
        "topics:\n"
        "  backends        what can compute here, and how ranks can work together\n"
        "  ops             the operations networks are made of\n"
        "  tasks           what can be trained, and whether its data is here\n"
        "  lists           lists of tasks to learn on that have a name\n"
        "  blueprints      what can be grown into a network\n"
        "  hosts           networks to begin with that have a name, and the language they are written in\n"
        "  features        what a learned policy sees of a run and its slots\n"
        "  rewards         what its decisions are paid by, and the weights of that\n"
        "  config [TASK]   every setting that can have an effect, its value and where it came from; --all shows\n"
        "                  the others, too, and why they have none\n"
        "  net [TASK]      the network as a text and as a list of operations; --text prints the text alone, which\n"
        "                  --host takes\n"
        "  plan [TASK]     launches of a training step, what was fused, FLOPs, bytes, shares of the time\n"
        "                  and memory; --time runs some steps and shows measured shares beside\n"
        "  data DATA       what is in a folder, a file or a task's data, and what `esper grow` would do with it, read by the\n"
        "                  flags that say how (--target, --image-size, --grey, --skip-bad); --json: one JSON object\n\n"
        "TASK may be a folder or a file of your own (docs/your-data.md).\n\n"
        "config, net, plan and data take the flags of `esper train`; --grow shows them as `esper grow` has them (data always\n"
        "does), whose settings for a task may be others, and --learn as `esper learn` does. Without a topic: version, backends and\n"
        "tasks.",
    .options = options,
    .most_words = 2,
    .run = run,
};
