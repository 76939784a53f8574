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
#include "run/export_program.h"
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
    const char *torch_dir, *safetensors, *c_dir, *onnx;
    const char *name; /* of functions and files of C */
    const esper_config *config;
    bool        int8, force;
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

/* Of C: what it takes, and how to try it. */
static void print_c(const esper_export_size *size, const request *asked)
{
    char weights[ESPER_TEXT_CHARS], memory[ESPER_TEXT_CHARS], macs[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];
    char again[ESPER_SHELL_CHARS];
    const char *dir, *same;

    esper_terminal_print(stdout, "written   %s/%s.c, %s/%s.h and %s/main.c, a test\n", asked->c_dir, asked->name,
                         asked->c_dir, asked->name, asked->c_dir);
    esper_terminal_print(
        stdout, "takes     %s bytes of weights (flash), %s bytes of memory (RAM), %s multiplications a sample\n",
        esper_text_count(size->weight_bytes, weights), esper_text_count(size->memory_bytes, memory),
        esper_text_count(size->macs, macs));
    if (asked->int8)
        esper_terminal_print(stdout,
                             "int8      %.2f %% of %s answers on the validation split are those of the floats\n",
                             size->n_compared > 0 ? 100.0 * (double)size->n_same / (double)size->n_compared : 0.0,
                             esper_text_count((int64_t)size->n_compared, weights));
    dir = esper_shell_quote_path(asked->c_dir, quoted);
    same = esper_shell_quote_path(asked->c_dir, again);
    printf("next      cc -O2 -o test %s/main.c %s/%s.c -lm && ./test\n", dir, same, asked->name);
}

static void print_written(const esper_network *network, const esper_export_size *size, const request *asked)
{
    char count[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    esper_terminal_print(stdout, "network   %s after epoch %u, %s parameters\n", asked->file, network->cursor.epoch,
                         esper_text_count(esper_net_count_params(&network->net, -1), count));
    if (asked->safetensors != NULL)
        esper_terminal_print(stdout, "written   %s\n", asked->safetensors);
    if (asked->onnx != NULL)
        esper_terminal_print(stdout, "written   %s\n", asked->onnx);
    if (asked->torch_dir == NULL) {
        esper_job_report_best(asked->file, network->cursor.epoch);
        if (asked->c_dir != NULL)
            print_c(size, asked);
        return;
    }
    esper_terminal_print(stdout, "written   %s/%s and %s/%s\n", asked->torch_dir, ESPER_EXPORT_MODEL, asked->torch_dir,
                         ESPER_EXPORT_WEIGHTS);
    esper_job_report_best(asked->file, network->cursor.epoch);
    if (asked->c_dir != NULL)
        print_c(size, asked);
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

/* Whether a path is the checkpoint's own: writing there would lose the run. */
static bool is_checkpoint(const request *asked, const char *path)
{
    struct stat a, b;

    return path != NULL && stat(asked->file, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static esper_status write_files(const esper_export *what, esper_network *network, const request *asked)
{
    const esper_export_program program = {.network = network,
                                          .about = what->torch.about,
                                          .name = asked->name,
                                          .int8 = asked->int8,
                                          .force = asked->force};
    esper_export_size size = {0};

    if (is_checkpoint(asked, asked->safetensors) || is_checkpoint(asked, asked->onnx))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is the checkpoint itself: choose another file",
                          is_checkpoint(asked, asked->safetensors) ? asked->safetensors : asked->onnx);
    if (asked->safetensors != NULL)
        ESPER_TRY(esper_export_weights(what, asked->safetensors));
    if (asked->onnx != NULL)
        ESPER_TRY(esper_export_onnx(&program, asked->onnx));
    if (asked->c_dir != NULL)
        ESPER_TRY(esper_export_c(&program, asked->c_dir, &size));
    if (asked->torch_dir != NULL)
        ESPER_TRY(esper_export_torch(what, asked->torch_dir));
    print_written(network, &size, asked);
    return ESPER_OK;
}

static esper_status write_out(esper_network *network, const esper_task *task, const request *asked)
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

/* With the data where it is to be calibrated; else what the checkpoint knows of it will do. */
static esper_status open_network(const esper_checkpoint *checkpoint, const request *asked, esper_network **network_out)
{
    bool given = esper_config_place_of(&checkpoint->config, esper_config_find("data")) == ESPER_CONFIG_FLAG;

    if (!asked->int8 && !given)
        return esper_single_recall(checkpoint, &checkpoint->config, network_out);
    if (esper_single_open(checkpoint->task, &checkpoint->config, ESPER_USE_EVALUATE, network_out) != ESPER_OK)
        return esper_fail_within(
            ESPER_E_NOTFOUND, "%s",
            asked->int8 ? "--int8 takes its scales from the training data (--data PATH says where it is): " : "");
    return esper_checkpoint_restore(checkpoint, *network_out);
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
    checkpoint.config.threads = 1; /* a few samples are computed, one by one */
    checkpoint.config.batch = 1;
    use = esper_settings_use(checkpoint.task, ESPER_CONFIG_IN_TRAIN, &checkpoint.config);
    status = esper_settings_check(asked->config, &checkpoint.config, &use, &log);
    if (status == ESPER_OK)
        status = esper_config_lay_over(&checkpoint.config, asked->config, keys);
    if (status == ESPER_OK)
        status = open_network(&checkpoint, asked, &network);
    if (status == ESPER_OK)
        status = write_out(network, checkpoint.task, asked);
    esper_single_close(network);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

enum { TORCH, SAFETENSORS, C, ONNX, INT8, NAME, FORCE };

static const esper_command_option options[] = {[TORCH] = {"torch", true},  [SAFETENSORS] = {"safetensors", true},
                                               [C] = {"c", true},          [ONNX] = {"onnx", true},
                                               [INT8] = {"int8", false},   [NAME] = {"name", true},
                                               [FORCE] = {"force", false}, {.name = NULL}};

static bool is_empty(const char *place)
{
    return place != NULL && place[0] == '\0';
}

static esper_status run(esper_cli_call *call)
{
    char path[ESPER_PATH_CHARS];
    request asked = {.file = path,
                     .torch_dir = call->given[TORCH],
                     .safetensors = call->given[SAFETENSORS],
                     .c_dir = call->given[C],
                     .onnx = call->given[ONNX],
                     .name = call->given[NAME] != NULL ? call->given[NAME] : "model",
                     .int8 = call->given[INT8] != NULL,
                     .config = &call->config,
                     .force = call->given[FORCE] != NULL};

    if (asked.torch_dir == NULL && asked.safetensors == NULL && asked.c_dir == NULL && asked.onnx == NULL)
        return esper_cli_usage(call, "say where to: --c DIR, --onnx FILE, --torch DIR, or --safetensors FILE");
    if (is_empty(asked.torch_dir) || is_empty(asked.safetensors) || is_empty(asked.c_dir) || is_empty(asked.onnx))
        return esper_cli_usage(call, "--c, --onnx, --torch and --safetensors want a place, not an empty word");
    if (asked.c_dir == NULL && (asked.int8 || call->given[NAME] != NULL))
        return esper_cli_usage(call, "--int8 and --name go with --c DIR");
    ESPER_TRY(esper_run_checkpoint_find(call->words[0], path));
    return export(&asked);
}

const esper_command esper_command_export = {
    .name = "export",
    .arguments = "RUN|FILE [flags]",
    .summary = "a trained network for C, ONNX, PyTorch",
    .help =
        "Writes the network of a checkpoint so that other programs can use it. FILE is a checkpoint; RUN a directory, the\n"
        "beginning of its name below runs/, or 'last'. Of a run the last network is written; RUN/best.safetensors is the\n"
        "one with the least validation loss.\n\n"
        "  --c DIR             model.c, one file of C99 with the weights inside, model.h, and main.c, a test: for programs and\n"
        "                      microcontrollers. No libraries but libm, no memory of its own\n"
        "    --int8            in whole numbers: weights of 8 bits, a quarter of the size, with scales from training data\n"
        "    --name NAME       what files and functions are called instead of model\n"
        "  --onnx FILE         an ONNX model, opset 13, for ONNX Runtime and others\n"
        "  --torch DIR         model.py, a PyTorch module written out line by line, and model.safetensors, its\n"
        "                      weights. It needs PyTorch and nothing else; in evaluation it gives our outputs\n"
        "  --safetensors FILE  the weights alone, under the same names\n"
        "  --force             replace files that are there already\n"
        "  --data PATH         as for train, where --int8, or an old checkpoint, needs data that has moved\n\n"
        "example:\n"
        "  esper train synth --epochs 1\n"
        "  esper export last --c firmware --int8\n"
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
