/* What stands above the progress of a run. */
#include "ui/banner.h"

#include <assert.h>
#include <string.h>

#include "ui/terminal.h"
#include "ui/text.h"

enum { MOST_CHANNELS_LISTED = 5 };

static const char *unit_of(const esper_network *network)
{
    return network->engine->host.topology == ESPER_TOPOLOGY_CNN ? "images" : "sequences";
}

/* The network as it is: flags may have made another one than the task tells of. */
static void print_network(const esper_network *network, FILE *stream)
{
    const esper_host_cnn *cnn = &network->engine->host.cnn;
    const esper_host_transformer *host = &network->engine->host.transformer;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];

    fprintf(stream, "  network   ");
    if (network->engine->host.topology == ESPER_TOPOLOGY_CNN) { /* "3 blocks of 8-16-32 channels, 3x3 kernels" */
        fprintf(stream, "%d blocks of %d", cnn->blocks, cnn->channels);
        for (int i = 1; i < cnn->blocks && cnn->blocks <= MOST_CHANNELS_LISTED; i++)
            fprintf(stream, "-%d", cnn->channels << i);
        if (cnn->blocks > MOST_CHANNELS_LISTED)
            fprintf(stream, "..%d", cnn->channels << (cnn->blocks - 1));
        fprintf(stream, " channels, %dx%d kernels", cnn->kernel, cnn->kernel);
        if (cnn->pools < cnn->blocks)
            fprintf(stream, ", %d pool%s", cnn->pools, cnn->pools == 1 ? "" : "s");
    } else
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
    char count[ESPER_TEXT_CHARS];

    assert(network->slots.n > 0);
    esper_terminal_print(
        stream, "  growth    %d slot%s from %s to %s; %s decides, %s gates\n", network->slots.n,
        network->slots.n == 1 ? "" : "s", network->slots.slot[0].id, network->slots.slot[network->slots.n - 1].id,
        config->policy_cmd[0] != '\0' ? "a program" : config->policy, esper_config_gates_name(config->gates));
    if (config->max_params > 0)
        fprintf(stream, "            up to %s parameters\n", esper_text_count(config->max_params, count));
}

void esper_banner_print(const esper_run_view *view, FILE *stream)
{
    const esper_network *network = view->network;
    const char *about = view->task->about;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS];
    esper_memory memory = esper_network_memory(network);

    esper_terminal_print(stream, "%s: %.*s\n", view->task->name, (int)strcspn(about, ";"), about); /* the data alone */
    print_network(network, stream);
    if (view->growth != NULL)
        print_growth(network, stream);
    esper_terminal_print(stream, "  data      %s %s to train on, %s to validate, %s to test\n",
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_TRAIN), a),
                         unit_of(network),
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_VALID), b),
                         esper_text_count(esper_dataset_count(network->engine->data, ESPER_SPLIT_TEST), c));
    esper_terminal_print(stream, "  machine   %s, %d thread%s, %s of memory\n",
                         esper_backend_identity(network->engine->backend), esper_pool_threads(network->engine->pool),
                         esper_pool_threads(network->engine->pool) == 1 ? "" : "s",
                         esper_text_bytes((double)memory.total, d));
    esper_terminal_print(stream, "  run       %s\n", view->run_dir);
    if (network->cursor.step > 0)
        fprintf(stream, "            resumed in epoch %u after %u of %u batches\n", network->cursor.epoch + 1,
                network->cursor.batch, network->engine->steps_per_epoch);
    fprintf(stream, "            Ctrl-C saves and leaves\n\n");
}
