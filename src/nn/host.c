/* The two host families as programs. Parameter names are part of the checkpoint format. */
#include "nn/host.h"

#include <assert.h>

#include "base/status.h"
#include "nn/layer.h"

const char *esper_topology_name(esper_topology topology)
{
    return topology == ESPER_TOPOLOGY_CNN ? "cnn" : "transformer";
}

/* ------------------------------------------------------------------------------------------------ cnn */

/* Row 0: after a block's ReLU. Row 1: after its pool. */
static int cnn_boundary(esper_net *net, const esper_host_cnn *cnn, int row, int block, int x)
{
    esper_boundary boundary = {
        .row = row,
        .col = block,
        .order = row * cnn->blocks + block,
        .channels = cnn->channels << block,
        .position = (float)(2 * block + 1 + row) / (float)(2 * cnn->blocks),
        .layer_begin = block,
        .layer_end = block + 1,
        .surface = row == 0 ? ESPER_SURFACE_PRE_POOL : ESPER_SURFACE_POST_POOL,
    };

    snprintf(boundary.slot, sizeof(boundary.slot), "r%dc%d", row, block);
    return esper_net_boundary(net, boundary, x);
}

static int cnn_block(esper_net *net, const esper_host_cnn *cnn, int block, int x)
{
    char name[ESPER_NAME_CHARS];
    int in = block == 0 ? cnn->in_channels : cnn->channels << (block - 1);

    snprintf(name, sizeof(name), "blocks.%d.conv", block);
    x = esper_layer_conv(net, name, x, (esper_conv){in, cnn->channels << block, cnn->kernel, 1, false});
    snprintf(name, sizeof(name), "blocks.%d.bn", block);
    x = esper_layer_batch_norm(net, name, x, 1.0f);
    x = esper_net_relu(net, x);
    x = cnn_boundary(net, cnn, 0, block, x);
    if (block >= cnn->pools)
        return x;
    x = esper_net_max_pool(net, x);
    return cnn_boundary(net, cnn, 1, block, x);
}

static int build_cnn(esper_net *net, const esper_host_cnn *cnn)
{
    int x = net->input =
        esper_net_input(net, "images", ESPER_F32, 3, (int[]){cnn->in_channels, cnn->height, cnn->width});

    for (int block = 0; block < cnn->blocks; block++)
        x = cnn_block(net, cnn, block, x);
    x = esper_net_global_mean(net, x);
    return esper_layer_linear(
        net, "classifier", x,
        (esper_linear){.in = cnn->channels << (cnn->blocks - 1), .out = cnn->classes, .bias = true});
}

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

static int transformer_boundary(esper_net *net, const esper_host_transformer *host, int segment, int x)
{
    int per_segment = host->layers / host->segments;
    esper_boundary boundary = {
        .row = 0,
        .col = segment,
        .order = segment,
        .channels = host->width,
        .position = (float)(segment + 1) / (float)host->segments,
        .layer_begin = per_segment * segment,
        .layer_end = per_segment * (segment + 1),
        .surface = ESPER_SURFACE_BLOCK_END,
    };

    snprintf(boundary.slot, sizeof(boundary.slot), "r0c%d", segment);
    return esper_net_boundary(net, boundary, x);
}

static int build_transformer(esper_net *net, const esper_host_transformer *host)
{
    int tokens = host->tokens > 0 ? host->tokens : host->context, per_segment = host->layers / host->segments;
    esper_init init = {ESPER_INIT_NORMAL, host->embed_std};
    char prefix[ESPER_NAME_CHARS];
    int table, positions, x;

    net->input = esper_net_input(net, "tokens", ESPER_I32, 1, &tokens);
    table = esper_net_param(net, "tok_emb.weight", 2, (int[]){host->vocab, host->width}, init);
    positions = esper_net_param(net, "pos_emb.weight", 2, (int[]){host->context, host->width}, init);
    x = esper_net_dropout(net, esper_net_embedding(net, net->input, table, positions), host->dropout);
    for (int layer = 0; layer < host->layers; layer++) {
        snprintf(prefix, sizeof(prefix), "layers.%d.", layer);
        x = esper_layer_transformer(net, prefix, x,
                                    (esper_transformer){.heads = host->heads, .dropout = host->dropout});
        if ((layer + 1) % per_segment == 0)
            x = transformer_boundary(net, host, layer / per_segment, x);
    }
    x = esper_layer_layer_norm(net, "ln_f", x);
    return esper_net_linear(net, x, table,
                            ESPER_NO_TENSOR); /* the head is the embedding: one tensor, gradients add up */
}

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

/* ------------------------------------------------------------------------------------------------ both */

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
    int logits;

    if (host->topology == ESPER_TOPOLOGY_CNN) {
        ESPER_TRY(check_cnn(&host->cnn));
        logits = build_cnn(net, &host->cnn);
    } else {
        ESPER_TRY(check_transformer(&host->transformer));
        logits = build_transformer(net, &host->transformer);
    }
    net->output = logits;
    if (host->with_loss)
        add_loss(net, logits);
    return esper_net_status(net);
}
