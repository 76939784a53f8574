/* The tasks. Settings not named here are the defaults of base/config_keys.h. */
#include "run/task.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/suggest.h"
#include "run/own.h"
#include "slot/splice.h"
#include "tensor/cost.h"

/* The five-block host of a cifar task. */
#define DEEP "blocks = 5\n"
/* Crop and flip are what everybody trains CIFAR with. */
#define CIFAR "crop = 4\nflip = true\nepochs = 30\n"

#define GROWN(name_, source_, settings_, growth_, about_)                                                            \
    &(const esper_task)                                                                                              \
    {                                                                                                                \
        .name = name_, .source = ESPER_SOURCE_##source_, .settings = settings_, .growth = growth_, .about = about_   \
    }
#define TASK(name_, source_, settings_, about_) GROWN(name_, source_, settings_, "", about_)

/* The rate is held while seeds are tried and join, and falls once, at the end: one that falls early, to make a host look settled,
 * costs more than growing brings. A run that grows may decide every 200 steps. */
#define FASHION_LR "lr = 0.1\nweight_decay = 5e-5\nclip = 0\nschedule = hold\nfall = 0.3\n"
#define FASHION_GROWTH "epochs = 55\nmax_steps = 200\nmax_params = 30000\n"
#define SHALLOW "blocks = 2\nchannels = 16\n"

/* A run to learn growing from: about a second on one core. The host sees no neighbourhoods, so that much hangs on what grows
 * where; its rate falls all the way, so that what comes late has little time to learn. (At 0.08 the host alone is best, by half a
 * point; but seeds that learn aside in the first slots explode.) A seed of who acts at once takes 10
 * epochs to be kept, and the next may germinate when it blends: three in a run, and no more. Of 2100 samples set aside an
 * epoch's validation takes the same 2048. An epoch takes milliseconds: a checkpoint of each, with the rows that it waits for, would
 * take longer than training. */
#define FAST                                                                                                            \
    "threads = 1\nepochs = 24\nbatch = 64\nmax_steps = 32\ntrain_limit = 10000\nvalid_fraction = 0.035\n"              \
    "lr = 0.06\nweight_decay = 5e-5\nschedule = cosine\nchannels = 4\nkernel = 1\n" \
    "checkpoint_every = 20\n"
#define FAST_GROWTH "length = epochs\ngate_epochs = 4\nembargo = 2\nplateau = 3\nplateau_epochs = 1\n"

static const esper_task *const tasks[] = {
    GROWN("fashion", FASHION, FASHION_LR, FASHION_GROWTH SHALLOW,
          "Fashion-MNIST, 28x28 grey, 10 classes; 3 blocks of 8-16-32 channels, to grow from 2 of 16-32"),
    GROWN("fashion_long", FASHION, FASHION_LR "epochs = 100\ncrop = 2\nflip = true\n",
          "epochs = 100\nmax_steps = 200\ncrop = 2\nflip = true\nblocks = 2\nchannels = 32\n"
          "blueprints = conv_heavy\nmax_params = 100000\n",
          "the same for longer, from 2 blocks of 32-64: how far growing gets below 100,000 parameters"),
    GROWN("fashion_impaired", FASHION, FASHION_LR "channels = 4\nkernel = 1\n",
          FASHION_GROWTH "epochs = 300\n", /* a host that costs next to nothing: for 20 or more of what it becomes */
          "Fashion-MNIST; a host of 1x1 kernels and 4-8-16 channels that needs help"),
    GROWN("fashion_fast", FASHION, FAST, FAST_GROWTH,
          "a small part of Fashion-MNIST and a weak host: growing in a second or two, for learning to grow"),
    GROWN("mnist", MNIST, FASHION_LR, FASHION_GROWTH SHALLOW, "MNIST digits from IDX files; the host of `fashion`"),
    TASK("cifar_baseline", CIFAR10, CIFAR, "CIFAR-10; 3 blocks of 8-16-32 channels (6,418 parameters)"),
    TASK("cifar_scale", CIFAR10, CIFAR DEEP, "CIFAR-10; 5 blocks of 8..128 channels (99,922 parameters)"),
    TASK("cifar_impaired", CIFAR10, CIFAR "channels = 1\nkernel = 1\n",
         "CIFAR-10; a host of 77 parameters that needs help"),
    TASK("cifar_minimal", CIFAR10, CIFAR "channels = 2\nkernel = 1\npools = 0\n",
         "CIFAR-10; 164 parameters, no pools, full-size maps"),
    TASK("cifar_multichannel", CIFAR10, CIFAR, "CIFAR-10; the baseline's host, meant for all 6 slots"),
    TASK("cifar_postpool", CIFAR10, CIFAR "channels = 16\n",
         "CIFAR-10; 3 blocks of 16-32-64 channels, meant for the slots after pools"),
    TASK("cifar_highres", CIFAR10, CIFAR "channels = 16\n",
         "CIFAR-10; the same host, meant for the slots before pools"),
    TASK("cifar_deep_multichannel", CIFAR10, CIFAR DEEP, "CIFAR-10; 5 blocks, meant for all 10 slots"),
    TASK("cifar_deep_impaired", CIFAR10, CIFAR DEEP "channels = 2\nkernel = 1\n",
         "CIFAR-10; 5 blocks of 2..32 channels, 1x1 kernels (1,140 parameters)"),
    TASK(
        "chars", TEXT,
        "batch = 16\noptimizer = adamw\nlr = 2e-3\nweight_decay = 0.01\nschedule = hold\nfall = 0.5\nwarmup = 0.1\nepochs = 10\n",
        "bytes of any UTF-8 text; transformer of 4 layers, width 128, context 128"),
    TASK(
        "tinystories", TOKENS,
        "batch = 32\noptimizer = adamw\nlr = 6e-4\nweight_decay = 0.01\nschedule = cosine\nwarmup = 0.1\nmax_steps = 2000\n"
        "layers = 6\nwidth = 384\nheads = 6\ncontext = 256\nsegments = 3\ndropout = 0.1\n",
        "flat uint16 token files; transformer of 6 layers, width 384, vocabulary 50257 (30 M parameters)"),
    TASK("synth", SYNTH_IMAGES, "epochs = 3\nlr = 0.05\n", "small synthetic images, for a quick trial without data"),
    TASK("synth_text", SYNTH_TOKENS,
         "epochs = 3\nbatch = 16\noptimizer = adamw\nlr = 1e-3\nlayers = 2\nwidth = 32\ncontext = 32\n",
         "small synthetic token sequences, for a quick trial without data"),
    GROWN("synth_table", SYNTH_TABLE,
          "epochs = 20\nbatch = 64\noptimizer = adamw\nlr = 3e-3\nweight_decay = 0.01\nschedule = hold\nlayers = 2\n"
          "width = 16\n",
          "epochs = 60\nlayers = 1\n", /* a host that cannot multiply columns, and much data: it pays to grow */
          "a synthetic table of 16 columns and 10 classes, for a quick trial without data; 2 layers, to grow from 1"),
    TASK("images", OWN_IMAGES, FASHION_LR,
         "images, a folder for each class: `esper grow DIR` finds host and length by them"),
    TASK("table", OWN_TABLE, "optimizer = adamw\nlr = 3e-3\nweight_decay = 0.01\nschedule = hold\nfall = 0.3\n",
         "a table: `esper grow FILE.csv --target COLUMN` finds host and length by it"),
    NULL,
};

const esper_task *const *esper_task_list(void)
{
    return tasks;
}

/* In any case, and with '-' for '_'. */
static bool is_name(const char *typed, const char *name)
{
    while (*typed != '\0' && (tolower((unsigned char)*typed) == *name || (*typed == '-' && *name == '_'))) {
        typed++;
        name++;
    }
    return *typed == '\0' && *name == '\0';
}

esper_status esper_task_find(const char *name, const esper_task **task_out)
{
    char list[512] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; tasks[i] != NULL; i++) {
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i > 0 ? ", " : "", tasks[i]->name);
        esper_suggest_offer(&suggest, tasks[i]->name);
        if (is_name(name, tasks[i]->name)) {
            *task_out = tasks[i];
            return ESPER_OK;
        }
    }
    return ESPER_FAIL(ESPER_E_CONFIG, "no task is called '%s'%s There are: %s", name,
                      suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", list);
}

static esper_status lay_over(const esper_task *task, const char *settings, esper_config *config)
{
    char line[256], *value;
    const esper_config_source source = {.place = ESPER_CONFIG_PRESET, .name = task->name};

    for (const char *at = settings; *at != '\0'; at = strchr(at, '\n') + 1) {
        snprintf(line, sizeof(line), "%.*s", (int)(strchr(at, '\n') - at), at);
        value = strstr(line, " = ");
        assert(value != NULL && strchr(at, '\n') - at < (int)sizeof(line));
        *value = '\0';
        ESPER_TRY(esper_config_set(config, line, value + strlen(" = "), &source));
    }
    return ESPER_OK;
}

esper_status esper_task_configure(const esper_task *task, esper_config_job job, esper_config *config)
{
    static const esper_config_source by_learning = {.place = ESPER_CONFIG_PRESET, .name = "learn"};
    static const char *const of_learning[][2] = {{"gates", "permissive"}, {"threads", "0"}}; /* threads: of the fleet */

    ESPER_TRY(lay_over(task, task->settings, config));
    if (job != ESPER_CONFIG_IN_TRAIN)
        ESPER_TRY(lay_over(task, task->growth, config));
    ESPER_TRY(esper_own_choose(task, job, config));
    for (size_t i = 0; job == ESPER_CONFIG_IN_LEARN && i < sizeof(of_learning) / sizeof(of_learning[0]); i++)
        ESPER_TRY(esper_config_set(config, of_learning[i][0], of_learning[i][1], &by_learning));
    return ESPER_OK;
}

esper_dataset_desc esper_task_data(const esper_task *task, const esper_config *config)
{
    esper_dataset_desc desc = esper_dataset_desc_default(task->source);

    desc.path = config->data;
    desc.seed = config->data_seed != 0 ? config->data_seed : config->seed;
    desc.valid_fraction = config->valid_fraction;
    desc.train_limit = (uint32_t)config->train_limit;
    desc.context = config->context;
    desc.image_size = config->image_size;
    desc.grey = config->grey;
    desc.skip_bad = config->skip_bad;
    desc.target = config->target;
    desc.cache = config->cache;
    desc.threads = config->threads;
    if (config->classes > 0 && esper_source_is_synthetic(task->source))
        desc.classes = config->classes;
    else if (esper_source_kind(task->source) != ESPER_DATASET_TOKENS)
        desc.keep_classes = config->classes;
    if (task->synth.n_train > 0)
        desc.n_train = task->synth.n_train;
    if (task->synth.channels > 0) {
        desc.channels = task->synth.channels;
        desc.height = task->synth.height;
        desc.width = task->synth.width;
    }
    return desc;
}

esper_topology esper_task_topology(const esper_task *task)
{
    static const esper_topology topologies[] = {
        [ESPER_DATASET_IMAGES] = ESPER_TOPOLOGY_CNN,
        [ESPER_DATASET_TOKENS] = ESPER_TOPOLOGY_TRANSFORMER,
        [ESPER_DATASET_VECTORS] = ESPER_TOPOLOGY_MLP,
    };

    return topologies[esper_source_kind(task->source)];
}

esper_host esper_task_host(const esper_task *task, const esper_config *config, const esper_dataset_info *data)
{
    esper_host host = {
        .with_loss = true, .topology = esper_task_topology(task), .stack = config->stack, .widen = config->widen};

    _Static_assert(sizeof(host.text) == sizeof(config->host) && sizeof(host.slots) == sizeof(config->slots),
                   "a setting fits its place");
    memcpy(host.text, config->host, sizeof(host.text));
    memcpy(host.slots, config->slots, sizeof(host.slots));

    if (host.topology == ESPER_TOPOLOGY_CNN) {
        host.cnn = (esper_host_cnn){
            .in_channels = data->channels,
            .height = data->height,
            .width = data->width,
            .classes = data->classes,
            .blocks = config->blocks,
            .channels = config->channels,
            .kernel = config->kernel,
            .pools = config->pools < 0 ? config->blocks : config->pools,
        };
        return host;
    }
    if (host.topology == ESPER_TOPOLOGY_MLP) {
        host.mlp = (esper_host_mlp){
            .features = data->features,
            .classes = data->classes,
            .layers = config->layers,
            .width = config->width,
            .dropout = (float)config->dropout,
        };
        return host;
    }
    host.transformer = (esper_host_transformer){
        .vocab = data->vocab,
        .width = config->width,
        .heads = config->heads,
        .layers = config->layers,
        .context = config->context,
        .segments = config->segments,
        .dropout = (float)config->dropout,
        .embed_std = 0.02f,
    };
    if (host.text[0] != '\0') /* seeds that are like the host's layers go by them */
        esper_host_text_layers(host.text, &host.transformer.heads, &host.transformer.dropout);
    return host;
}

esper_status esper_task_build(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                              esper_net *net_out)
{
    esper_host host = esper_task_host(task, config, data);
    esper_status status;

    esper_net_init(net_out);
    status = esper_host_build(&host, net_out);
    if (status != ESPER_OK)
        esper_net_fini(net_out);
    return status;
}

esper_status esper_task_measure_host(const esper_task *task, const esper_config *config, esper_task_size *size_out)
{
    esper_dataset_desc desc = esper_task_data(task, config);
    esper_task_size size = {.least_seed = INT64_MAX, .least_seed_flops = (double)INFINITY};
    double flops[ESPER_MAX_SLOTS];
    const esper_blueprint *const *list;
    esper_dataset_info data;
    esper_host host;
    esper_slots slots;
    esper_net net;
    esper_status status;

    ESPER_TRY(esper_dataset_measure(&desc, &data));
    host = esper_task_host(task, config, &data);
    list = esper_blueprint_list(host.topology);
    ESPER_TRY(esper_task_build(task, config, &data, &net));
    size.params = esper_net_count_params(&net, -1);
    size.flops = esper_net_flops(&net);
    status = esper_slots_init(&slots, net.boundaries, net.n_boundaries, &(esper_slot_rules){0});
    for (int i = 0; status == ESPER_OK && list[i] != NULL; i++) {
        status = esper_splice_count_flops(&host, &slots, list[i], flops);
        for (int k = 0; status == ESPER_OK && k < slots.n; k++) {
            int64_t n = esper_splice_count_seed(list[i], &net, slots.slot[k].id);

            if (n <= 0)
                continue;
            size.least_seed = n < size.least_seed ? n : size.least_seed;
            size.least_seed_flops = fmin(size.least_seed_flops, flops[k]);
        }
    }
    esper_net_fini(&net);
    if (status == ESPER_OK)
        *size_out = size;
    return status;
}
