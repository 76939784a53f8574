/* esper export: a trained network for other programs. */
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "run/checkpoint.h"
#include "run/export.h"
#include "run/single.h"
#include "run/run_dir.h"
#include "run/settings.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* Where to find what the network was trained on: a host takes its shapes from there. */
static const char *const keys[] = {"data", "cache", NULL};

/* What was asked for; NULL: not this. */
typedef struct request {
    const char *file; /* the checkpoint */
    const char *torch_dir, *safetensors;
    const esper_config *config;
    bool        force;
} request;

enum { ABOUT_CHARS = ESPER_PATH_CHARS + 1024 };

/* "    mean 0.4914, 0.4822, 0.4465" */
static size_t list_channels(const char *word, const float *values, int n, char *text, size_t chars)
{
    char number[ESPER_NUMBER_CHARS];
    size_t used = (size_t)snprintf(text, chars, "\n    %s", word);

    for (int c = 0; c < n && used < chars; c++) {
        esper_number_write_float(values[c], number);
        used += (size_t)snprintf(text + used, chars - used, "%s %s", c > 0 ? "," : "", number);
    }
    return used;
}

static void describe(const esper_network *network, const esper_task *task, const char *file, char about[ABOUT_CHARS])
{
    const esper_dataset_info *data = esper_dataset_info_get(network->engine->data);
    size_t used =
        (size_t)snprintf(about, ABOUT_CHARS, "%s: %s\n\nWeights of %s after epoch %u, step %llu.\n", task->name,
                         task->about, file, network->cursor.epoch, (unsigned long long)network->cursor.step);

    assert(used < ABOUT_CHARS);
    if (network->engine->host.topology == ESPER_TOPOLOGY_CNN) { /* what pixels were scaled by */
        used += (size_t)snprintf(about + used, ABOUT_CHARS - used,
                                 "Pixels go in as (value / 255 - mean) / std, channel by channel:\n");
        used += list_channels("mean", data->mean, data->channels, about + used, ABOUT_CHARS - used);
        if (used < ABOUT_CHARS)
            list_channels("std ", data->std, data->channels, about + used, ABOUT_CHARS - used);
    } else if (network->engine->host.topology == ESPER_TOPOLOGY_MLP)
        snprintf(about + used, ABOUT_CHARS - used, "Rows of %d numbers go in, normalised as they were for training.",
                 data->features);
    else
        snprintf(about + used, ABOUT_CHARS - used, "Tokens are ids from 0 to %d, at most %d of them.", data->vocab - 1,
                 network->engine->host.transformer.context);
}

static void print_written(const esper_network *network, const request *asked)
{
    char count[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    esper_terminal_print(stdout, "network   %s after epoch %u, %s parameters\n", asked->file, network->cursor.epoch,
                         esper_text_count(esper_net_count_params(&network->net, -1), count));
    if (asked->safetensors != NULL)
        esper_terminal_print(stdout, "written   %s\n", asked->safetensors);
    if (asked->torch_dir == NULL) {
        esper_job_report_best(asked->file, network->cursor.epoch);
        return;
    }
    esper_terminal_print(stdout, "written   %s/%s and %s/%s\n", asked->torch_dir, ESPER_EXPORT_MODEL, asked->torch_dir,
                         ESPER_EXPORT_WEIGHTS);
    esper_job_report_best(asked->file, network->cursor.epoch);
    printf("next      python3 %s/%s\n", esper_shell_quote_path(asked->torch_dir, quoted), ESPER_EXPORT_MODEL);
}

/* What seeds are weighted by, for those that are not fully part of the stream. */
typedef struct alphas {
    char               names[ESPER_MAX_SLOTS][ESPER_NAME_CHARS];
    esper_torch_number numbers[ESPER_MAX_SLOTS];
    int                n;
} alphas;

static void list_alphas(const esper_network *network, alphas *out)
{
    out->n = 0;
    assert(network->slots.n <= ESPER_MAX_SLOTS);
    for (int k = 0; k < network->slots.n; k++) {
        char *name = out->names[out->n];

        snprintf(name, ESPER_NAME_CHARS, "%s.alpha", network->slots.slot[k].id);
        if (esper_net_find(&network->net, name) != ESPER_NO_TENSOR)
            out->numbers[out->n++] =
                (esper_torch_number){.name = name, .value = esper_splice_alpha(&network->splice, k)};
    }
}

/* Names of what comes out, and for people's own tables of what goes in. */
typedef struct names {
    const char          *classes[ESPER_DATASET_MAX_CLASSES];
    esper_torch_feature *features;
} names;

static esper_status list_names(const esper_dataset *data, names *out, esper_torch_desc *torch)
{
    const esper_dataset_info *info = esper_dataset_info_get(data);

    torch->n_classes = info->kind == ESPER_DATASET_TOKENS ? 0 : info->classes;
    torch->classes = out->classes;
    for (int c = 0; c < torch->n_classes; c++)
        out->classes[c] = esper_dataset_class_name(data, c);
    torch->n_features = (int)esper_dataset_feature_count(data);
    if (torch->n_features == 0)
        return ESPER_OK;
    torch->features = out->features = esper_mem_alloc((size_t)torch->n_features * sizeof(*out->features));
    if (out->features == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d names", torch->n_features);
    for (int i = 0; i < torch->n_features; i++)
        out->features[i].name = esper_dataset_feature(data, (uint32_t)i, &out->features[i].mean, &out->features[i].std);
    return ESPER_OK;
}

static esper_status write_files(const esper_export *what, const esper_network *network, const request *asked)
{
    struct stat a, b;

    if (asked->safetensors != NULL) {
        if (stat(asked->file, &a) == 0 && stat(asked->safetensors, &b) == 0 && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino) /* that would lose the run */
            return ESPER_FAIL(ESPER_E_CONFIG, "%s is the checkpoint itself: choose another file", asked->safetensors);
        ESPER_TRY(esper_export_weights(what, asked->safetensors));
    }
    if (asked->torch_dir != NULL)
        ESPER_TRY(esper_export_torch(what, asked->torch_dir));
    print_written(network, asked);
    return ESPER_OK;
}

static esper_status write_out(const esper_network *network, const esper_task *task, const request *asked)
{
    char about[ABOUT_CHARS];
    names known = {.features = NULL};
    esper_status status;
    static const char *const class_names[ESPER_N_TOPOLOGIES] = {[ESPER_TOPOLOGY_CNN] = "CnnHost",
                                                                [ESPER_TOPOLOGY_TRANSFORMER] = "TransformerHost",
                                                                [ESPER_TOPOLOGY_MLP] = "MlpHost"};
    alphas weights;
    esper_export what = {
        .torch = {.net = &network->net,
                  .class_name = class_names[network->engine->host.topology],
                  .about = about,
                  .numbers = weights.numbers},
        .slab = &network->slab,
        .n_batches = network->cursor.step,
        .force = asked->force,
    };

    list_alphas(network, &weights);
    what.torch.n_numbers = weights.n;
    describe(network, task, asked->file, about);
    status = list_names(network->engine->data, &known, &what.torch);
    if (status == ESPER_OK)
        status = write_files(&what, network, asked);
    esper_mem_free(known.features);
    return status;
}

static esper_status export(const request *asked)
{
    const esper_log log = {.level = asked->config->log_level, .stream = stderr};
    esper_checkpoint checkpoint;
    esper_network *network = NULL;
    esper_config_use use;
    esper_status status;

    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is met like a full disk: the write fails and says so */
    ESPER_TRY(esper_checkpoint_init(asked->file, &checkpoint));
    checkpoint.config.threads = 1; /* nothing is computed */
    checkpoint.config.batch = 1;
    use = esper_settings_use(checkpoint.task, ESPER_CONFIG_IN_TRAIN, &checkpoint.config);
    status = esper_settings_check(asked->config, &checkpoint.config, &use, &log);
    if (status == ESPER_OK)
        status = esper_config_lay_over(&checkpoint.config, asked->config, keys);
    if (status == ESPER_OK)
        status = esper_single_open(checkpoint.task, &checkpoint.config, ESPER_USE_EVALUATE, &network);
    if (status == ESPER_OK)
        status = esper_checkpoint_restore(&checkpoint, network);
    if (status == ESPER_OK)
        status = write_out(network, checkpoint.task, asked);
    esper_single_close(network);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

enum { TORCH, SAFETENSORS, FORCE };

static const esper_command_option options[] = {
    [TORCH] = {"torch", true}, [SAFETENSORS] = {"safetensors", true}, [FORCE] = {"force", false}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    char path[ESPER_PATH_CHARS];
    request asked = {.file = path,
                     .torch_dir = call->given[TORCH],
                     .safetensors = call->given[SAFETENSORS],
                     .config = &call->config,
                     .force = call->given[FORCE] != NULL};

    if (asked.torch_dir == NULL && asked.safetensors == NULL)
        return esper_cli_usage(call, "say where to: --torch DIR, or --safetensors FILE");
    if ((asked.torch_dir != NULL && asked.torch_dir[0] == '\0') ||
        (asked.safetensors != NULL && asked.safetensors[0] == '\0'))
        return esper_cli_usage(call, "--torch and --safetensors want a place, not an empty word");
    ESPER_TRY(esper_run_checkpoint_find(call->words[0], path));
    return export(&asked);
}

const esper_command esper_command_export = {
    .name = "export",
    .arguments = "RUN|FILE [flags]",
    .summary = "a trained network for PyTorch and others",
    .help =
        "Writes the network of a checkpoint so that other programs can use it. FILE is a checkpoint; RUN a directory, the\n"
        "beginning of its name below runs/, or 'last'. Of a run the last network is written; RUN/best.safetensors is the\n"
        "one with the least validation loss.\n\n"
        "  --torch DIR         model.py, a PyTorch module written out line by line, and model.safetensors, its\n"
        "                      weights. It needs PyTorch and nothing else; in evaluation it gives our outputs\n"
        "  --safetensors FILE  the weights alone, under the same names\n"
        "  --force             replace files that are there already\n"
        "  --data PATH         as for train, when what the network was trained on has moved: shapes come from there\n\n"
        "example:\n"
        "  esper train synth --epochs 1\n"
        "  esper export last --torch exported\n"
        "  python3 exported/model.py\n\n"
        "and in a program of yours, with exported/ on the path:\n"
        "  from model import load\n"
        "  model = load(\"exported/model.safetensors\")",
    .keys = keys,
    .options = options,
    .wants = "one run or checkpoint",
    .run = run,
};
