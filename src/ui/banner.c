/* What stands above the progress of a run. */
#include "ui/banner.h"

#include <string.h>

#include "ui/text.h"

enum { MOST_CHANNELS_LISTED = 5 };

static const char *unit_of(const esper_trainer *trainer)
{
    return trainer->host.topology == ESPER_TOPOLOGY_CNN ? "images" : "sequences";
}

/* "3 blocks of 8-16-32 channels, 3x3 kernels" */
static void print_cnn(const esper_host_cnn *host, FILE *stream)
{
    fprintf(stream, "%d blocks of %d", host->blocks, host->channels);
    for (int i = 1; i < host->blocks && host->blocks <= MOST_CHANNELS_LISTED; i++)
        fprintf(stream, "-%d", host->channels << i);
    if (host->blocks > MOST_CHANNELS_LISTED)
        fprintf(stream, "..%d", host->channels << (host->blocks - 1));
    fprintf(stream, " channels, %dx%d kernels", host->kernel, host->kernel);
    if (host->pools < host->blocks)
        fprintf(stream, ", %d pool%s", host->pools, host->pools == 1 ? "" : "s");
}

/* The network as it is: flags may have made another one than the task tells of. */
static void print_network(const esper_trainer *trainer, FILE *stream)
{
    const esper_host_transformer *host = &trainer->host.transformer;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];

    fprintf(stream, "  network   ");
    if (trainer->host.topology == ESPER_TOPOLOGY_CNN)
        print_cnn(&trainer->host.cnn, stream);
    else
        fprintf(stream, "transformer of %d layer%s, width %d, %d head%s, context %d", host->layers,
                host->layers == 1 ? "" : "s", host->width, host->heads, host->heads == 1 ? "" : "s", host->context);
    fprintf(stream, "\n            %s parameters; a step of %d %s takes %s\n",
            esper_text_count(esper_net_count_params(&trainer->net, -1), a), trainer->config.batch, unit_of(trainer),
            esper_text_flops(esper_trainer_step_flops(trainer), b));
    if (trainer->ranks.size > 1)
        fprintf(stream, "            %d ranks, each with its part of every batch\n", trainer->ranks.size);
}

/* Where it can grow, and who decides. */
static void print_growth(const esper_trainer *trainer, FILE *stream)
{
    const esper_config *config = &trainer->config;
    char count[ESPER_TEXT_CHARS];

    fprintf(stream, "  growth    %d slot%s from %s to %s; %s decides, %s gates\n", trainer->slots.n,
            trainer->slots.n == 1 ? "" : "s", trainer->slots.slot[0].id, trainer->slots.slot[trainer->slots.n - 1].id,
            config->policy_cmd[0] != '\0' ? "a program" : config->policy, esper_config_gates_name(config->gates));
    if (config->max_params > 0)
        fprintf(stream, "            up to %s parameters\n", esper_text_count(config->max_params, count));
}

void esper_banner_print(const esper_run_view *view, FILE *stream)
{
    const esper_trainer *trainer = view->trainer;
    const char *about = trainer->task->about;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS];
    esper_memory memory = esper_trainer_memory(trainer);

    fprintf(stream, "%s: %.*s\n", trainer->task->name, (int)strcspn(about, ";"), about); /* the data alone */
    print_network(trainer, stream);
    if (view->growth != NULL)
        print_growth(trainer, stream);
    fprintf(stream, "  data      %s %s to train on, %s to validate, %s to test\n",
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_TRAIN), a), unit_of(trainer),
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_VALID), b),
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_TEST), c));
    fprintf(stream, "  machine   %s, %d thread%s, %s of memory\n", esper_backend_identity(trainer->backend),
            esper_pool_threads(trainer->pool), esper_pool_threads(trainer->pool) == 1 ? "" : "s",
            esper_text_bytes((double)memory.total, d));
    fprintf(stream, "  run       %s\n", view->run_dir);
    if (trainer->cursor.step > 0)
        fprintf(stream, "            resumed in epoch %u after %u of %u batches\n", trainer->cursor.epoch + 1,
                trainer->cursor.batch, trainer->steps_per_epoch);
    fprintf(stream, "            Ctrl-C saves and leaves\n\n");
}
