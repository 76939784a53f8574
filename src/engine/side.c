/* Side programs: one for each seed that learns aside. */
#include "engine/side.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

typedef struct esper_side {
    int          slot;
    esper_splice splice;
    esper_net    net;
    esper_plan  *plan;
    int          alpha_input[ESPER_MAX_SLOTS];
    int          source; /* the network's tensor that it begins with */
} esper_side;

static bool is_wanted(const esper_network *network, int k)
{
    return network->splice.training && network->splice.incubation == ESPER_INCUBATION_ASIDE &&
           network->slots.slot[k].stage == ESPER_STAGE_TRAINING;
}

/* Where the side program of a seed begins. */
static int cut_of(const esper_network *network, int k)
{
    return esper_splice_cut_slot(&network->slots, &network->engine->plain, k);
}

static int stream_at(const esper_network *network, const esper_net *net, int k)
{
    const esper_boundary *boundary = esper_net_find_boundary(net, network->slots.slot[cut_of(network, k)].id);

    return boundary != NULL ? boundary->tensor : ESPER_NO_TENSOR;
}

void esper_side_keep(esper_network *network)
{
    for (int k = 0; k < network->slots.n; k++)
        if (is_wanted(network, k))
            esper_splice_keep_at(&network->splice, &network->net, cut_of(network, k));
}

/* ------------------------------------------------------------------------------------------------ opening */

static void close_side(esper_side *side)
{
    if (side == NULL)
        return;
    esper_plan_close(side->plan);
    esper_net_fini(&side->net);
    esper_mem_free(side);
}

void esper_side_close_all(struct esper_side **sides)
{
    for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
        close_side(sides[k]);
        sides[k] = NULL;
    }
}

/* The host from the slot on, with the seed at full weight. All but the seed is frozen: the host's norms are what they are, as
 * batch statistics would be those of a network that is not trained, and move its buffers; the seed's own learn. */
static esper_status plan_side(esper_network *network, esper_side *side)
{
    esper_plan_net net = {.net = &side->net,
                          .slab = &network->slab,
                          .pass = &network->pass,
                          .frozen = ~((uint64_t)1 << (side->slot + 1)),
                          .exchange = network->engine->exchange.sum != NULL ? &network->engine->exchange : NULL};
    esper_plan_desc desc = {.backend = network->engine->backend,
                            .cache = network->engine->plans,
                            .nets = &net,
                            .n_nets = 1,
                            .max_samples = esper_engine_max_samples(network->engine),
                            .training = true};

    side->splice = network->splice;
    side->splice.presence[side->slot] = ESPER_PRESENCE_FULL;
    ESPER_TRY(esper_splice_build(&side->splice, &network->engine->host, &side->net));
    ESPER_TRY(esper_net_cut(&side->net, stream_at(network, &side->net, side->slot)));
    esper_splice_find_alphas(&side->splice, &side->net, side->alpha_input);
    return esper_plan_open(&desc, &side->plan);
}

static esper_status open_side(esper_network *network, int k, struct esper_side **side_out)
{
    esper_side *side = esper_mem_alloc(sizeof(*side));
    esper_status status;

    if (side == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "side program of slot %s", network->slots.slot[k].id);
    side->slot = k;
    side->source = stream_at(network, &network->net, k);
    esper_net_init(&side->net);
    status = plan_side(network, side);
    if (status != ESPER_OK) {
        close_side(side);
        return status;
    }
    *side_out = side;
    return ESPER_OK;
}

esper_status esper_side_open_all(esper_network *network, struct esper_side **sides_out)
{
    struct esper_side *sides[ESPER_MAX_SLOTS] = {NULL};
    esper_status status = ESPER_OK;

    for (int k = 0; status == ESPER_OK && k < network->slots.n; k++)
        if (is_wanted(network, k))
            status = open_side(network, k, &sides[k]);
    if (status != ESPER_OK)
        esper_side_close_all(sides);
    else
        memcpy(sides_out, sides, sizeof(sides));
    return status;
}

/* ------------------------------------------------------------------------------------------------ a pass */

/* The first n_samples of a tensor of the network's to one of a side program's. */
static esper_status hand_over(const esper_network *network, int from, const esper_side *side, int to)
{
    size_t bytes = (size_t)network->pass.n_samples * (size_t)side->net.tensors[to].count * sizeof(float);

    assert(side->net.tensors[to].count == network->net.tensors[from].count);
    assert(from != network->net.input || !esper_plan_is_packed(network->plan, 0));
    return esper_backend_copy(network->engine->backend, network->stream, esper_plan_data(side->plan, 0, to),
                              esper_plan_data(network->plan, 0, from), bytes);
}

esper_status esper_side_take_targets(esper_network *network)
{
    _Static_assert(sizeof(int32_t) == sizeof(float), "targets are as large as values");
    for (int k = 0; k < network->slots.n; k++)
        if (network->side[k] != NULL)
            ESPER_TRY(hand_over(network, network->net.target, network->side[k], network->side[k]->net.target));
    return ESPER_OK;
}

/* Up to the slot both programs are the same, and so are the numbers of their tensors. */
static esper_status run_side(esper_network *network, esper_side *side)
{
    int passing[ESPER_MAX_REGIONS], n = esper_net_list_passing(&side->net, passing);

    ESPER_TRY(hand_over(network, side->source, side, side->net.input)); /* the stream as the network made it */
    for (int i = 0; i < n; i++)
        ESPER_TRY(hand_over(network, passing[i], side, passing[i]));
    ESPER_TRY(esper_splice_fill_alphas(&side->splice, side->alpha_input, side->plan, network->stream,
                                       network->pass.n_samples));
    return esper_plan_gradients_one(side->plan, network->stream, 0);
}

esper_status esper_side_gradients(esper_network *network)
{
    for (int k = 0; k < network->slots.n; k++)
        if (network->side[k] != NULL)
            ESPER_TRY(run_side(network, network->side[k]));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about them */

double esper_side_flops(const esper_network *network)
{
    double flops = 0.0;

    for (int k = 0; k < network->slots.n; k++)
        if (network->side[k] != NULL)
            flops += esper_engine_plan_flops(network->engine, network->side[k]->plan);
    return flops;
}

size_t esper_side_bytes(const esper_network *network)
{
    size_t bytes = 0;

    for (int k = 0; k < network->slots.n; k++)
        if (network->side[k] != NULL) {
            esper_plan_stats stats = esper_plan_stats_of(network->side[k]->plan);

            bytes += stats.arena_bytes + stats.table_bytes;
        }
    return bytes;
}
