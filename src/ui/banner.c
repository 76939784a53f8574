/* What stands above the progress of a run. */
#include "ui/banner.h"

#include <assert.h>
#include <string.h>

#include "run/own.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { MOST_CHANNELS_LISTED = 5 };

static const char *unit_of(const esper_network *network)
{
    static const char *const units[ESPER_N_TOPOLOGIES] = {
        [ESPER_TOPOLOGY_CNN] = "images", [ESPER_TOPOLOGY_TRANSFORMER] = "sequences", [ESPER_TOPOLOGY_MLP] = "rows"};

    return units[network->engine->host.topology];
}

/* The network as it is: flags may have made another one than the task tells of. */
static void print_network(const esper_network *network, FILE *stream)
{
    const esper_host_cnn *cnn = &network->engine->host.cnn;
    const esper_host_transformer *host = &network->engine->host.transformer;
    const esper_host_mlp *mlp = &network->engine->host.mlp;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];

    fprintf(stream, "  network   ");
    if (network->engine->host.text[0] != '\0')
        esper_terminal_print(stream, "%s", network->engine->host.text);
    else if (network->engine->host.topology == ESPER_TOPOLOGY_CNN) { /* "3 blocks of 8-16-32 channels, 3x3 kernels" */
        fprintf(stream, "%d blocks of %d", cnn->blocks, cnn->channels);
        for (int i = 1; i < cnn->blocks && cnn->blocks <= MOST_CHANNELS_LISTED; i++)
            fprintf(stream, "-%d", cnn->channels << i);
        if (cnn->blocks > MOST_CHANNELS_LISTED)
            fprintf(stream, "..%d", cnn->channels << (cnn->blocks - 1));
        fprintf(stream, " channels, %dx%d kernels", cnn->kernel, cnn->kernel);
        if (cnn->pools < cnn->blocks)
            fprintf(stream, ", %d pool%s", cnn->pools, cnn->pools == 1 ? "" : "s");
    } else if (network->engine->host.topology == ESPER_TOPOLOGY_MLP)
        fprintf(stream, "MLP of %d layer%s, width %d, for %d number%s of a row", mlp->layers,
                mlp->layers == 1 ? "" : "s", mlp->width, mlp->features, mlp->features == 1 ? "" : "s");
    else
        fprintf(stream, "transformer of %d layer%s, width %d, %d head%s, context %d", host->layers,
                host->layers == 1 ? "" : "s", host->width, host->heads, host->heads == 1 ? "" : "s", host->context);
    fprintf(stream, "\n            %s parameters; a step of %d %s takes %s\n",
            esper_text_count(esper_net_count_params(&network->net, -1), a), network->engine->config.batch,
            unit_of(network), esper_text_flops((double)network->step_cost, b));
    if (network->engine->ranks.size > 1)
        fprintf(stream, "            %d ranks, each with its part of every batch\n", network->engine->ranks.size);
}

/* Where it can grow, and who decides. */
static void print_growth(const esper_network *network, FILE *stream)
{
    const esper_config *config = &network->engine->config;
    char count[ESPER_TEXT_CHARS], flops[ESPER_TEXT_CHARS];
    int n = network->slots.n / (network->engine->host.stack + 1); /* at the beginning */
    int64_t limit;

    assert(n > 0);
    if (n == 1)
        esper_terminal_print(stream, "  growth    one slot, %s", network->slots.slot[0].id);
    else
        esper_terminal_print(stream, "  growth    %d slots from %s to %s", n, network->slots.slot[0].id,
                             network->slots.slot[n - 1].id);
    if (network->engine->host.stack > 0)
        esper_terminal_print(stream, ", open again behind kept seeds (%d more)", network->slots.n - n);
    esper_terminal_print(stream, "; %s decides, %s gates\n",
                         config->policy_cmd[0] != '\0' ? "a program" : config->policy,
                         esper_config_gates_name(config->gates));
    limit = esper_engine_params_limit(config);
    if (limit > 0 && config->max_flops > 0.0)
        fprintf(stream, "            up to %s parameters and %s for a sample\n", esper_text_count(limit, count),
                esper_text_flops(config->max_flops, flops));
    else if (limit > 0)
        fprintf(stream, "            up to %s parameters\n", esper_text_count(limit, count));
    else if (config->max_flops > 0.0)
        fprintf(stream, "            up to %s for a sample\n", esper_text_flops(config->max_flops, flops));
}

/* Data of people's own: what was seen in it, what was done about it, and what was chosen by it. */
static void print_own_data(const esper_network *network, FILE *stream)
{
    const esper_dataset *data = network->engine->data;
    const esper_config *config = &network->engine->config;
    char list[ESPER_LINE_BYTES] = "", value[ESPER_CONFIG_TEXT_CHARS], source[ESPER_CONFIG_TEXT_CHARS + 32];

    if (esper_dataset_is_test_drawn(data))
        fprintf(stream, "            the test is a tenth of it, drawn by the seed\n");
    for (uint32_t i = 0; i < esper_dataset_remark_count(data); i++)
        esper_terminal_print(stream, "  %-9s %s\n", i == 0 ? "seen" : "", esper_dataset_remark(data, i));
    esper_dataset_list_classes(data, list, 400);
    esper_terminal_print(stream, "            %d classes: %s\n", esper_dataset_info_get(data)->classes, list);
    list[0] = '\0';
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        esper_config_source_text(config, key, source, sizeof(source));
        if (strstr(source, ESPER_OWN_PRESET) == NULL)
            continue;
        esper_config_value_text(config, key, value);
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s %s", list[0] != '\0' ? ", " : "",
                 esper_config_key_at(key)->name, value);
    }
    if (list[0] != '\0')
        esper_terminal_print(stream, "  chosen    by the data: %s\n", list);
}

void esper_banner_print(const esper_run_view *view, FILE *stream)
{
    const esper_network *network = view->network;
    const char *about = view->task->about;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS];
    esper_memory memory = esper_network_memory(network);

    if (esper_source_is_own(view->task->source))
        esper_terminal_print(stream, "%s: %s\n", view->task->name, network->engine->config.data);
    else
        esper_terminal_print(stream, "%s: %.*s\n", view->task->name, (int)strcspn(about, ";"),
                             about); /* the data alone */
    print_network(network, stream);
    if (view->growth != NULL)
        print_growth(network, stream);
    esper_terminal_print(stream, "  data      %s %s to train on, %s to validate, %s to test\n",
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_TRAIN), a),
                         unit_of(network),
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_VALID), b),
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_TEST), c));
    if (esper_source_is_own(view->task->source))
        print_own_data(network, stream);
    esper_terminal_print(stream, "  machine   %s, %d thread%s, %s of memory\n",
                         esper_backend_identity(network->engine->backend), esper_pool_threads(network->engine->pool),
                         esper_pool_threads(network->engine->pool) == 1 ? "" : "s",
                         esper_text_bytes((double)memory.total, d));
    if (network->engine->backend_why[0] != '\0')
        esper_terminal_print(stream, "            %s\n", network->engine->backend_why);
    esper_terminal_print(stream, "  run       %s\n", view->run_dir);
    if (network->cursor.step > 0)
        fprintf(stream, "            resumed in epoch %u after %u of %u batches\n", network->cursor.epoch + 1,
                network->cursor.batch, network->engine->steps_per_epoch);
    fprintf(stream, "            Ctrl-C saves and leaves\n\n");
}
