/* Seeds in the stream. One hook, called at every boundary of a host. */
#include "slot/splice.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/status.h"
#include "tensor/cost.h"

/* How a slot's seed takes part in a program. */
typedef enum seed_part {
    PART_NONE,
    PART_PROBE,
    PART_INCUBATED, /* behind the host */
    PART_FOLDED,    /* the stream goes through it */
    PART_BLENDED,   /* by its operator */
} seed_part;

float esper_splice_alpha(const esper_splice *splice, int slot)
{
    if (splice->presence[slot] == ESPER_PRESENCE_FULL)
        return 1.0f;
    return (float)splice->slots->slot[slot].alpha.value;
}

void esper_splice_find_alphas(const esper_splice *splice, const esper_net *net, int inputs_out[ESPER_MAX_SLOTS])
{
    char name[ESPER_NAME_CHARS];

    for (int k = 0; k < splice->slots->n; k++) {
        int t;

        snprintf(name, sizeof(name), "%s.alpha", splice->slots->slot[k].id);
        t = esper_net_find(net, name);
        inputs_out[k] = t != ESPER_NO_TENSOR && net->tensors[t].role == ESPER_ROLE_INPUT ? t : ESPER_NO_TENSOR;
    }
}

esper_status esper_splice_fill_alphas(const esper_splice *splice, const int inputs[ESPER_MAX_SLOTS],
                                      const esper_plan *plan, esper_backend_stream *stream, int n_samples)
{
    for (int k = 0; k < splice->slots->n; k++)
        if (inputs[k] != ESPER_NO_TENSOR)
            ESPER_TRY(esper_plan_fill(plan, stream, 0, inputs[k], esper_splice_alpha(splice, k), n_samples));
    return ESPER_OK;
}

static seed_part part_of(const esper_splice *splice, int k)
{
    const esper_slot *slot = &splice->slots->slot[k];
    bool full = splice->presence[k] == ESPER_PRESENCE_FULL;

    if (slot->stage == ESPER_STAGE_DORMANT)
        return splice->probes && esper_slots_is_open(splice->slots, k) ? PART_PROBE : PART_NONE;
    if (!esper_stage_runs_seed(slot->stage) || splice->presence[k] == ESPER_PRESENCE_OUT)
        return PART_NONE;
    if (slot->stage == ESPER_STAGE_TRAINING && !full)
        return splice->training ? PART_INCUBATED : PART_NONE;
    if (!splice->training && !(esper_splice_alpha(splice, k) > 0.0f))
        return PART_NONE; /* no weight, and nothing to learn: the output is the host's own */
    return slot->blend == ESPER_BLEND_ADD && esper_splice_alpha(splice, k) >= 1.0f ? PART_FOLDED : PART_BLENDED;
}

bool esper_splice_has_seed(const esper_splice *splice, int slot)
{
    seed_part part = part_of(splice, slot);

    return part != PART_NONE && part != PART_PROBE;
}

static int blend(esper_net *net, const esper_slot *slot, int h, int u, int s, int gate)
{
    int one = 1, alpha = esper_net_input(net, "alpha", ESPER_F32, 1, &one);

    switch (slot->blend) {
    case ESPER_BLEND_MULTIPLY:
        return esper_net_blend_mul(net, h, s, u, alpha);
    case ESPER_BLEND_GATE:
        return esper_net_blend_gate(net, h, s, gate, alpha);
    default:
        return esper_net_blend_add(net, h, s, alpha);
    }
}

/* No gradient reaches the host through the seed. */
static bool is_alone(const esper_splice *splice, const esper_slot *slot, seed_part part)
{
    return part == PART_INCUBATED || (slot->isolate_blending && splice->training);
}

static int add_seed(esper_net *net, const esper_splice *splice, int k, seed_part part, const esper_boundary *boundary,
                    int h)
{
    const esper_slot *slot = &splice->slots->slot[k];
    const esper_blueprint *blueprint;
    esper_blueprint_how how;
    esper_wide wide = boundary->wide;
    int u = is_alone(splice, slot, part) ? esper_net_isolate(net, h) : h, s, gate = ESPER_NO_TENSOR;

    assert(k >= 0 && k < splice->slots->n);
    if (splice->stand_in != NULL)
        blueprint = splice->stand_in;
    else if (esper_blueprint_find(splice->topology, slot->blueprint, &blueprint) != ESPER_OK)
        return ESPER_NO_TENSOR;
    how = (esper_blueprint_how){.blend = (esper_blend)slot->blend, .birth = (esper_birth)slot->birth};
    if (splice->host != NULL && splice->topology == ESPER_TOPOLOGY_TRANSFORMER) {
        how.heads = splice->host->transformer.heads;
        how.dropout = splice->host->transformer.dropout;
    }
    if (wide.channels > 0) {
        how.wide = &wide;
        wide.source = u != h ? esper_net_isolate(net, wide.source) : wide.source;
    }
    s = esper_blueprint_build(blueprint, net, u, how);
    if (slot->blend == ESPER_BLEND_GATE)
        gate =
            esper_gate_build(net, u); /* in TRAINING nobody listens to it yet, but its weights are there from birth */
    if (part == PART_INCUBATED)
        return splice->incubation == ESPER_INCUBATION_STRAIGHT ? esper_net_straight_through(net, h, s) : h;
    return part == PART_FOLDED ? s : blend(net, slot, h, u, s, gate);
}

int esper_splice_put(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const esper_splice *splice = context;
    int k = esper_slots_find(splice->slots, boundary->slot), width = boundary->channels, weight;
    seed_part part = k >= 0 ? part_of(splice, k) : PART_NONE;
    char prefix[ESPER_SLOT_CHARS + 2];
    bool image;

    if (part == PART_NONE || x == ESPER_NO_TENSOR)
        return x;
    snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
    esper_net_enter(net, prefix, k + 1);
    if (part != PART_PROBE)
        return add_seed(net, splice, k, part, boundary, x);
    if (boundary->wide.channels > 0)
        return x;
    image = net->tensors[x].rank == 3; /* a silent linear map beside the stream */
    weight = esper_net_param(net, "probe.weight", image ? 4 : 2, (int[]){width, width, 3, 3},
                             (esper_init){ESPER_INIT_CONSTANT, 0.0f});
    return esper_net_add(net, x, image ? esper_net_conv2d(net, x, weight, 1, 1) : esper_net_linear(net, x, weight, -1));
}

esper_status esper_splice_build(const esper_splice *splice, const esper_host *host, esper_net *net)
{
    esper_splice copy = *splice;
    esper_status status;

    copy.host = host;
    net->hook = esper_splice_put;
    net->hook_context = &copy;
    status = esper_host_build(host, net);
    net->hook = NULL;
    net->hook_context = NULL;
    if (status == ESPER_OK)
        esper_net_drop_unused(net); /* seeds that learn aside, gate networks nobody listens to yet */
    return status == ESPER_OK ? esper_net_status(net) : status;
}

/* All that a slot has to do with the program, and nothing else: hashed as bytes, so without gaps. */
typedef struct slot_facts {
    int32_t part, blend, isolated, incubation;
} slot_facts;

int esper_splice_cut_slot(const esper_slots *slots, const esper_net *plain, int slot)
{
    int found = slot;

    if (esper_net_find_boundary(plain, slots->slot[slot].id)->wide.channels == 0)
        return slot;
    for (int k = 0; k < slots->n; k++)
        if (slots->slot[k].depth < slots->slot[slot].depth &&
            (found == slot || slots->slot[k].depth > slots->slot[found].depth) &&
            esper_net_find_boundary(plain, slots->slot[k].id)->wide.channels == 0)
            found = k;
    return found;
}

void esper_splice_keep_at(const esper_splice *splice, esper_net *net, int slot)
{
    const esper_boundary *at = esper_net_find_boundary(net, splice->slots->slot[slot].id), *last;

    assert(at != NULL);
    last = net->boundaries + net->n_boundaries - 1;
    net->tensors[at->tensor].keep = true;
    for (const esper_boundary *b = at; b <= last; b++) {
        int k = esper_slots_find(splice->slots, b->slot);

        if (b->wide.channels > 0 && b->wide.source < at->tensor && k >= 0 &&
            esper_stage_has_seed(splice->slots->slot[k].stage))
            net->tensors[b->wide.source].keep = true;
    }
}

uint64_t esper_splice_key(const esper_splice *splice)
{
    uint64_t key = splice->training;

    for (int k = 0; k < splice->slots->n; k++) {
        const esper_slot *slot = &splice->slots->slot[k];
        seed_part part = part_of(splice, k);
        slot_facts facts = {.part = (int32_t)part};

        if (esper_splice_has_seed(splice, k)) {
            facts.blend = slot->blend;
            facts.incubation = part == PART_INCUBATED ? (int32_t)splice->incubation : 0;
            facts.isolated = part != PART_INCUBATED && is_alone(splice, slot, part);
        }
        key = XXH64(&facts, sizeof(facts), key);
        if (esper_splice_has_seed(splice, k))
            key = XXH64(slot->blueprint, strlen(slot->blueprint), key);
    }
    return key;
}

/* ------------------------------------------------------------------------------------------------ sizes */

/* A net of its own with a stream of that width; small sides will do, as no parameter depends on them. */
static int open_stream(esper_net *net, esper_topology topology, int channels)
{
    esper_net_init(net);
    if (topology == ESPER_TOPOLOGY_CNN)
        return esper_net_input(net, "x", ESPER_F32, 3, (int[]){channels, 4, 4});
    if (topology == ESPER_TOPOLOGY_MLP)
        return esper_net_input(net, "x", ESPER_F32, 1, &channels);
    return esper_net_input(net, "x", ESPER_F32, 2, (int[]){4, channels});
}

int64_t esper_splice_count_params(const esper_blueprint *blueprint, int channels)
{
    esper_net net;
    int x = open_stream(&net, blueprint->topology, channels);
    int64_t n;

    esper_blueprint_build(blueprint, &net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
    switch (esper_net_status(&net)) {
    case ESPER_OK:
        n = esper_net_count_params(&net, -1);
        break;
    case ESPER_E_NOMEM:
        n = -1;
        break;
    default:
        n = ESPER_SPLICE_UNFIT;
        break;
    }
    esper_net_fini(&net);
    return n;
}

/* A stream as it is in front of a slot of new channels, of any number of samples. */
static int open_wide(esper_net *net, const esper_net *plain, const esper_boundary *boundary, esper_wide *wide_out)
{
    const esper_tensor *x = &plain->tensors[boundary->tensor], *source = &plain->tensors[boundary->wide.source];

    esper_net_init(net);
    *wide_out = boundary->wide;
    wide_out->source = esper_net_input(net, "source", ESPER_F32, source->rank, source->dim);
    return esper_net_input(net, "x", ESPER_F32, x->rank, x->dim);
}

int64_t esper_splice_count_seed(const esper_blueprint *blueprint, const esper_net *plain, const char *slot)
{
    const esper_boundary *boundary = esper_net_find_boundary(plain, slot);
    esper_blueprint_how how = {.blend = ESPER_BLEND_ADD};
    esper_wide wide;
    esper_net net;
    esper_status status;
    int64_t n;

    assert(boundary != NULL);
    if (boundary->wide.channels == 0)
        return esper_splice_count_params(blueprint, boundary->channels);
    how.wide = &wide;
    esper_blueprint_build(blueprint, &net, open_wide(&net, plain, boundary, &wide), how);
    status = esper_net_status(&net);
    n = status == ESPER_OK ? esper_net_count_params(&net, -1) : status == ESPER_E_NOMEM ? -1 : ESPER_SPLICE_UNFIT;
    esper_net_fini(&net);
    return n;
}

int64_t esper_splice_count_gate(esper_topology topology, int channels)
{
    esper_net net;
    int x = open_stream(&net, topology, channels);
    int64_t n;

    esper_gate_build(&net, x);
    n = esper_net_status(&net) == ESPER_OK ? esper_net_count_params(&net, -1) : -1;
    esper_net_fini(&net);
    return n;
}

typedef struct flops_count {
    const esper_host      *host;
    const esper_slots     *slots;
    const esper_blueprint *blueprint; /* NULL: a gate network */
    double                *flops;     /* (slots) */
} flops_count;

/* The stream goes on as it was: what is put beside it is there to be counted. */
static int count_beside(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const flops_count *count = context;
    int k = esper_slots_find(count->slots, boundary->slot);
    bool is_wide = boundary->wide.channels > 0;
    esper_blueprint_how how = {.blend = ESPER_BLEND_ADD, .wide = is_wide ? &boundary->wide : NULL};
    char prefix[ESPER_SLOT_CHARS + 2];
    double before;

    if (k < 0 || x == ESPER_NO_TENSOR)
        return x;
    if (is_wide ? count->blueprint == NULL || count->blueprint->index != ESPER_BLUEPRINT_WIDE
                : count->blueprint != NULL && esper_splice_count_params(count->blueprint, boundary->channels) < 0)
        return x;
    snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
    before = esper_net_flops(net);
    esper_net_enter(net, prefix, k + 1);
    if (count->host->topology == ESPER_TOPOLOGY_TRANSFORMER)
        how.heads = count->host->transformer.heads;
    if (count->blueprint != NULL)
        esper_blueprint_build(count->blueprint, net, x, how);
    else
        esper_gate_build(net, x);
    count->flops[k] = esper_net_flops(net) - before;
    return x;
}

esper_status esper_splice_count_flops(const esper_host *host, const esper_slots *slots,
                                      const esper_blueprint *blueprint, double flops_out[ESPER_MAX_SLOTS])
{
    double flops[ESPER_MAX_SLOTS] = {0.0};
    flops_count count = {host, slots, blueprint, flops};
    esper_net net;
    esper_status status;

    esper_net_init(&net);
    net.hook = count_beside;
    net.hook_context = &count;
    status = esper_host_build(host, &net);
    if (status == ESPER_OK)
        memcpy(flops_out, flops, sizeof(flops));
    esper_net_fini(&net);
    return status;
}

int64_t esper_splice_count_probe(esper_topology topology, int channels)
{
    return (int64_t)channels * channels * (topology == ESPER_TOPOLOGY_CNN ? 9 : 1);
}

static void raise_to(int64_t *value, int64_t least)
{
    if (*value < least)
        *value = least;
}

/* What one kind of seed takes in a region, gaps between tensors included; nothing where it is unfit. */
static esper_status reserve_one(const esper_blueprint *blueprint, int channels, int64_t *params, int64_t *buffers)
{
    esper_net net;
    int x = open_stream(&net, blueprint->topology, channels);
    esper_status status;

    esper_blueprint_build(blueprint, &net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
    esper_gate_build(&net, x);
    status = esper_net_status(&net);
    if (status == ESPER_OK) {
        raise_to(params, net.region_params[0]);
        raise_to(buffers, net.region_buffers[0]);
    }
    esper_net_fini(&net);
    return status == ESPER_E_NOMEM ? status : ESPER_OK;
}

/* The same of new channels. */
static esper_status reserve_wide(const esper_blueprint *blueprint, const esper_net *plain,
                                 const esper_boundary *boundary, int64_t *params, int64_t *buffers)
{
    esper_wide wide;
    esper_blueprint_how how = {.blend = ESPER_BLEND_ADD, .wide = &wide};
    esper_net net;
    esper_status status;

    esper_blueprint_build(blueprint, &net, open_wide(&net, plain, boundary, &wide), how);
    status = esper_net_status(&net);
    if (status == ESPER_OK) {
        raise_to(params, net.region_params[0]);
        raise_to(buffers, net.region_buffers[0]);
    }
    esper_net_fini(&net);
    return status;
}

esper_status esper_splice_reserve(const esper_slots *slots, const esper_net *plain, esper_topology topology,
                                  uint32_t blueprints, int64_t room, esper_slab_desc *desc)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);

    assert(slots->n < ESPER_MAX_REGIONS);
    if (desc->n_regions < slots->n + 1)
        desc->n_regions = slots->n + 1;
    for (int k = 0; k < slots->n; k++) {
        int channels = slots->slot[k].channels;
        bool limited = room >= 0 && esper_slots_behind(slots, k) >= 0;
        const esper_boundary *boundary = plain != NULL ? esper_net_find_boundary(plain, slots->slot[k].id) : NULL;

        if (boundary != NULL && boundary->wide.channels > 0) {
            const esper_blueprint *wide;

            ESPER_TRY(esper_blueprint_find(topology, "wide", &wide));
            ESPER_TRY(reserve_wide(wide, plain, boundary, &desc->region_params[k + 1], &desc->region_buffers[k + 1]));
            continue;
        }
        raise_to(&desc->region_params[k + 1], esper_splice_count_probe(topology, channels) + ESPER_SLAB_ALIGN);
        for (int i = 0; list[i] != NULL; i++)
            if ((blueprints >> list[i]->index & 1u) != 0 &&
                !(limited && esper_splice_count_params(list[i], channels) > room))
                ESPER_TRY(reserve_one(list[i], channels, &desc->region_params[k + 1], &desc->region_buffers[k + 1]));
    }
    return ESPER_OK;
}
