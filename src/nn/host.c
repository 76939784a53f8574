/* The host families: what their settings may be, and the text that they make. */
#include "nn/host.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/status.h"
#include "nn/host_build.h"

const char *esper_topology_name(esper_topology topology)
{
    static const char *const names[ESPER_N_TOPOLOGIES] = {
        [ESPER_TOPOLOGY_CNN] = "cnn", [ESPER_TOPOLOGY_TRANSFORMER] = "transformer", [ESPER_TOPOLOGY_MLP] = "mlp"};

    assert((unsigned)topology < ESPER_N_TOPOLOGIES);
    return names[topology];
}

int esper_topology_find(const char *name)
{
    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++)
        if (strcmp(esper_topology_name((esper_topology)topology), name) == 0)
            return topology;
    return -1;
}

/* ------------------------------------------------------------------------------------------------ cnn */

static esper_status check_cnn(const esper_host_cnn *cnn)
{
    int most_pools = 0; /* how often a map of this size can be halved */

    for (int side = cnn->height < cnn->width ? cnn->height : cnn->width; side >= 2; side /= 2)
        most_pools++;
    if (cnn->blocks < 2)
        return ESPER_FAIL(ESPER_E_ARG, "a cnn host requires at least 2 blocks, not %d", cnn->blocks);
    if (cnn->blocks > 16 || cnn->channels < 1 || (int64_t)cnn->channels << cnn->blocks > 1 << 24)
        return ESPER_FAIL(ESPER_E_ARG, "%d blocks from %d channels: channels double with every block", cnn->blocks,
                          cnn->channels);
    if (cnn->kernel < 1 || cnn->kernel % 2 == 0)
        return ESPER_FAIL(ESPER_E_ARG, "kernel %d: expected an odd size", cnn->kernel);
    if (cnn->height > 0 && cnn->width > 0 && cnn->pools > most_pools && cnn->blocks > most_pools)
        return ESPER_FAIL(ESPER_E_ARG, "%d pools: an image of %dx%d can be halved %d times: choose --pools %d or fewer",
                          cnn->pools, cnn->height, cnn->width, most_pools, most_pools);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ transformer */

static esper_status fail_segments(int layers, int segments)
{
    int fewer = segments < layers ? segments : layers, more = segments;

    while (layers % fewer != 0)
        fewer--;
    while (more < layers && layers % more != 0)
        more++;
    if (more > layers)
        return ESPER_FAIL(ESPER_E_ARG, "%d layers are not divisible into %d segments: choose --segments %d or fewer",
                          layers, segments, fewer);
    return ESPER_FAIL(ESPER_E_ARG, "%d layers are not divisible into %d segments: choose --segments %d or %d", layers,
                      segments, fewer, more);
}

static esper_status check_transformer(const esper_host_transformer *host)
{
    if (host->heads < 1 || host->width % host->heads != 0)
        return ESPER_FAIL(ESPER_E_ARG, "width %d is not divisible by %d heads", host->width, host->heads);
    if (host->segments < 1 || host->layers < 1)
        return ESPER_FAIL(ESPER_E_ARG, "%d layers in %d segments: expected at least 1 of each", host->layers,
                          host->segments);
    if (host->layers % host->segments != 0)
        return fail_segments(host->layers, host->segments);
    if (host->tokens > host->context)
        return ESPER_FAIL(ESPER_E_ARG, "sequence of %d tokens, but the context is %d", host->tokens, host->context);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ mlp */

static esper_status check_mlp(const esper_host_mlp *mlp)
{
    if (mlp->features < 1 || mlp->width < 1)
        return ESPER_FAIL(ESPER_E_ARG, "an mlp host of %d features and width %d: expected at least 1 of each",
                          mlp->features, mlp->width);
    if (mlp->layers < 1 || mlp->layers >= ESPER_MAX_REGIONS)
        return ESPER_FAIL(ESPER_E_ARG, "an mlp host of %d layers: expected 1 to %d, as each ends in a slot",
                          mlp->layers, ESPER_MAX_REGIONS - 1);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ texts */

/* " dropout 0.1"; nothing where none is dropped. */
static void dropout_text(float share, char text[ESPER_NUMBER_CHARS + 16])
{
    char number[ESPER_NUMBER_CHARS];

    text[0] = '\0';
    if (share == 0.0f)
        return;
    esper_number_write_float(share, number);
    snprintf(text, ESPER_NUMBER_CHARS + 16, " dropout %s", number);
}

/* "conv 8 5x5 | pool | conv 16 5x5 | mean | linear" */
static void describe_cnn(const esper_host_cnn *cnn, char text[ESPER_HOST_CHARS])
{
    size_t used = 0;

    for (int block = 0; block < cnn->blocks; block++) {
        used += (size_t)snprintf(text + used, ESPER_HOST_CHARS - used, "conv %d", cnn->channels << block);
        if (cnn->kernel != 3)
            used += (size_t)snprintf(text + used, ESPER_HOST_CHARS - used, " %dx%d", cnn->kernel, cnn->kernel);
        used += (size_t)snprintf(text + used, ESPER_HOST_CHARS - used, block < cnn->pools ? " | pool | " : " | ");
    }
    assert(used + 16 < ESPER_HOST_CHARS);
    snprintf(text + used, ESPER_HOST_CHARS - used, "mean | linear");
}

/* "embed 128 | [[layer 4]x2 | slot]x2 | norm | linear tied"; a slot behind every layer need not be said. */
static void describe_transformer(const esper_host_transformer *host, char text[ESPER_HOST_CHARS])
{
    int each = host->layers / host->segments;
    char dropout[ESPER_NUMBER_CHARS + 16], layers[ESPER_NUMBER_CHARS + 48];

    dropout_text(host->dropout, dropout);
    snprintf(layers, sizeof(layers), "layer %d%s", host->heads, dropout);
    if (host->layers == 1)
        snprintf(text, ESPER_HOST_CHARS, "embed %d%s | %s | norm | linear tied", host->width, dropout, layers);
    else if (each == 1)
        snprintf(text, ESPER_HOST_CHARS, "embed %d%s | [%s]x%d | norm | linear tied", host->width, dropout, layers,
                 host->layers);
    else if (host->segments == 1)
        snprintf(text, ESPER_HOST_CHARS, "embed %d%s | [%s]x%d | slot | norm | linear tied", host->width, dropout,
                 layers, each);
    else
        snprintf(text, ESPER_HOST_CHARS, "embed %d%s | [[%s]x%d | slot]x%d | norm | linear tied", host->width, dropout,
                 layers, each, host->segments);
}

static void describe_mlp(const esper_host_mlp *mlp, char text[ESPER_HOST_CHARS])
{
    char dropout[ESPER_NUMBER_CHARS + 16];

    dropout_text(mlp->dropout, dropout);
    if (mlp->layers == 1)
        snprintf(text, ESPER_HOST_CHARS, "linear %d%s | linear", mlp->width, dropout);
    else
        snprintf(text, ESPER_HOST_CHARS, "[linear %d%s]x%d | linear", mlp->width, dropout, mlp->layers);
}

/* ------------------------------------------------------------------------------------------------ all */

esper_status esper_host_describe(const esper_host *host, char text[ESPER_HOST_CHARS])
{
    if (host->text[0] != '\0') {
        memcpy(text, host->text, ESPER_HOST_CHARS);
        return ESPER_OK;
    }
    switch (host->topology) {
    case ESPER_TOPOLOGY_CNN:
        ESPER_TRY(check_cnn(&host->cnn));
        describe_cnn(&host->cnn, text);
        return ESPER_OK;
    case ESPER_TOPOLOGY_MLP:
        ESPER_TRY(check_mlp(&host->mlp));
        describe_mlp(&host->mlp, text);
        return ESPER_OK;
    default:
        ESPER_TRY(check_transformer(&host->transformer));
        describe_transformer(&host->transformer, text);
        return ESPER_OK;
    }
}

static void add_loss(esper_net *net, int logits)
{
    int one = 1;

    assert(net->status != ESPER_OK || (logits >= 0 && logits < net->n_tensors));
    net->target = net->status != ESPER_OK || net->tensors[logits].rank == 1
                      ? esper_net_input(net, "targets", ESPER_I32, 1, &one)
                      : esper_net_input(net, "targets", ESPER_I32, 1, &net->tensors[logits].dim[0]);
    esper_net_softmax_xent(net, logits, net->target);
}

esper_status esper_host_build(const esper_host *host, esper_net *net)
{
    char text[ESPER_HOST_CHARS];

    ESPER_TRY(esper_host_describe(host, text));
    ESPER_TRY(esper_host_build_text(host, text, net, &net->output));
    if (host->with_loss)
        add_loss(net, net->output);
    return esper_net_status(net);
}
