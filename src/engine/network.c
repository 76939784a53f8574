/* A network: its opening, its programs, forks, and where it stands. */
#include "engine/network.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/init.h"
#include "engine/guarded.h"
#include "engine/side.h"

double esper_tally_loss(const esper_tally *tally)
{
    return tally->targets > 0 ? tally->loss / (double)tally->targets : (double)NAN;
}

double esper_tally_accuracy(const esper_tally *tally)
{
    return tally->targets > 0 ? 100.0 * (double)tally->correct / (double)tally->targets : (double)NAN;
}

/* ------------------------------------------------------------------------------------------------ opening */

/* The slots of a host, all empty, and how seeds are put there. */
static esper_status open_slots(esper_network *network)
{
    const esper_engine *engine = network->engine;
    const esper_config *config = &engine->config;
    esper_slot_rules rules = {.permissive = config->gates == ESPER_CONFIG_GATES_PERMISSIVE,
                              .gate_epochs = config->gate_epochs,
                              .embargo_ticks = config->embargo};

    network->splice = (esper_splice){
        .topology = engine->host.topology,
        .slots = &network->slots,
        .training = engine->use != ESPER_USE_EVALUATE,
        .incubation =
            config->incubation == ESPER_CONFIG_INCUBATION_STRAIGHT ? ESPER_INCUBATION_STRAIGHT : ESPER_INCUBATION_ASIDE,
    };
    return esper_slots_init(&network->slots, engine->plain.boundaries, engine->plain.n_boundaries, &rules);
}

static esper_status open_slab(esper_network *network)
{
    const esper_engine *engine = network->engine;
    int n_moments = engine->config.optimizer == ESPER_CONFIG_OPTIMIZER_ADAMW ? 2 : 1;
    esper_slab_desc desc = {.n_moments = engine->use != ESPER_USE_EVALUATE ? n_moments : 0};
    int64_t limit = esper_engine_params_limit(&engine->config), host = esper_net_count_params(&engine->plain, -1),
            room = limit > host ? limit - host : 0;
    bool limited = limit > 0 && engine->config.plant[0] == '\0'; /* nobody asks a planted seed for its size */
    esper_status status;

    if (engine->use == ESPER_USE_GROW || engine->config.plant[0] != '\0')
        ESPER_TRY(esper_splice_reserve(&network->slots, &engine->plain, engine->host.topology, UINT32_MAX,
                                       limited ? room : -1, &desc));
    status = esper_slab_init(&network->slab, engine->backend, &engine->plain, &desc);
    if (status == ESPER_E_NOMEM)
        return ESPER_FAIL(ESPER_E_NOMEM,
                          "%zu bytes for the weights, gradients and moments: a smaller network needs less",
                          esper_slab_bytes(&engine->plain, &desc));
    return status;
}

static esper_status open_optimiser(esper_network *network)
{
    const esper_config *config = &network->engine->config;
    const esper_slab *slab = &network->slab;
    const uint32_t *flag = network->flag;
    esper_optim_desc desc = {
        .backend = network->engine->backend,
        .slabs = &slab,
        .n_slabs = 1,
        .flags = &flag,
        .kind = config->optimizer == ESPER_CONFIG_OPTIMIZER_ADAMW ? ESPER_OP_ADAMW : ESPER_OP_SGD,
        .settings =
            {
                .lr = (float)config->lr,
                .momentum = (float)config->momentum,
                .decay = (float)config->weight_decay,
                .beta1 = (float)config->beta1,
                .beta2 = (float)config->beta2,
                .eps = (float)config->adam_eps,
                .clip = (float)config->clip,
            },
    };

    return esper_optim_open(&desc, &network->optim);
}

static esper_status take_rows(esper_network *network)
{
    const esper_engine *engine = network->engine;
    const esper_net *net = &engine->plain;
    size_t bytes = esper_network_row_bytes(network) * ESPER_NETWORK_ROWS * ESPER_NETWORK_BANKS;
    size_t staged = (size_t)esper_engine_max_samples(engine) * sizeof(float) *
                    (size_t)(net->tensors[net->input].count + net->tensors[net->target].count);
    void *memory;

    if (engine->samples.backend != NULL) /* picks alone pass through the host */
        staged = (size_t)engine->config.batch * sizeof(esper_pick);
    ESPER_TRY(esper_backend_alloc(engine->backend, bytes, &memory));
    network->results = memory;
    network->rows = network->banks[0];
    network->read = esper_mem_alloc(bytes);
    network->staged = esper_backend_is_behind(engine->backend) ? esper_mem_alloc(staged) : NULL;
    if (network->read == NULL || (network->staged == NULL && esper_backend_is_behind(engine->backend)))
        return ESPER_FAIL(ESPER_E_NOMEM, "results of %d batches", (int)ESPER_NETWORK_ROWS);
    return ESPER_OK;
}

/* Everything but weights and a program. */
static esper_status open_record(esper_network *network)
{
    esper_engine *engine = network->engine;
    esper_sampler_desc order = esper_engine_sampler(engine, ESPER_SPLIT_TRAIN, network->seed);
    void *memory;

    ESPER_TRY(open_slots(network));
    ESPER_TRY(open_slab(network));
    network->sample_ids = esper_mem_alloc((size_t)engine->config.batch * sizeof(*network->sample_ids));
    if (network->sample_ids == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "batch of %d", engine->config.batch);
    network->pass = (esper_pass){.seed = network->seed, .sample_id = network->sample_ids};
    ESPER_TRY(take_rows(network));
    if (engine->use == ESPER_USE_EVALUATE)
        return ESPER_OK;
    ESPER_TRY(esper_backend_alloc(engine->backend, sizeof(*network->flag), &memory));
    network->flag = memory;
    ESPER_TRY(esper_ranks_reserve(&engine->ranks, &network->slab));
    ESPER_TRY(esper_sampler_open(&order, &network->order));
    if (esper_ranks_are_many(&engine->ranks))
        esper_sampler_share(network->order, (uint32_t)engine->ranks.rank, (uint32_t)engine->ranks.size);
    return open_optimiser(network);
}

void esper_network_add_part(esper_network *network, const esper_state_part *part)
{
    assert(network->n_parts < ESPER_MAX_PARTS);
    network->parts[network->n_parts++] = *part;
}

void esper_network_drop_part(esper_network *network, const char *name)
{
    for (int i = 0; i < network->n_parts; i++)
        if (strcmp(network->parts[i].name, name) == 0)
            network->parts[i] = network->parts[--network->n_parts];
}

static esper_status make_record(esper_engine *engine, uint64_t seed, esper_backend_stream *stream,
                                esper_network **network_out)
{
    esper_network *network = esper_mem_alloc(sizeof(*network));
    esper_status status;

    if (network == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "network");
    network->engine = engine;
    engine->n_networks++;
    network->seed = seed;
    network->stream = stream;
    network->detour.lr_scale = 1.0;
    esper_net_init(&network->net);
    status = open_record(network);
    if (status != ESPER_OK) {
        esper_network_remove(network);
        return status;
    }
    *network_out = network;
    return ESPER_OK;
}

void esper_network_remove(esper_network *network)
{
    if (network == NULL)
        return;
    (void)esper_network_wait(network); /* a backend that is lost has said so before */
    esper_guarded_close(network);
    esper_side_close_all(network->side);
    esper_optim_close(network->optim);
    esper_sampler_close(network->order);
    esper_mem_free(network->detour.passed);
    esper_mem_free(network->sample_ids);
    esper_mem_free(network->read);
    esper_mem_free(network->staged);
    esper_backend_release(network->engine->backend, network->results);
    esper_backend_release(network->engine->backend, network->flag);
    esper_plan_close(network->plan);
    esper_slab_fini(&network->slab);
    esper_net_fini(&network->net);
    network->engine->n_networks--;
    esper_mem_free(network);
}

/* ------------------------------------------------------------------------------------------------ growing */

/* Seeds learn until they are kept, and not while they are being taken out; kept ones belong to the host. */
static void set_groups(esper_network *network)
{
    if (network->optim == NULL)
        return;
    for (int k = 0; k < network->slots.n && k + 1 < network->slab.n_regions; k++) {
        const esper_slot *slot = &network->slots.slot[k];
        bool learns = esper_splice_has_seed(&network->splice, k) && !esper_slot_is_frozen(slot);

        esper_optim_enable(network->optim, 0, k + 1, learns);
        esper_optim_join(network->optim, 0, k + 1, slot->stage == ESPER_STAGE_FOSSILIZED);
    }
}

/* All that can fail comes before the plan is replaced. */
static esper_status rebuild(esper_network *network)
{
    const esper_engine *engine = network->engine;
    struct esper_side *sides[ESPER_MAX_SLOTS];
    esper_plan_net plan_net = {.net = &network->net,
                               .slab = &network->slab,
                               .pass = &network->pass,
                               .exchange = engine->exchange.sum != NULL ? &engine->exchange : NULL};
    esper_plan_desc desc = {
        .backend = engine->backend,
        .cache = engine->plans,
        .nets = &plan_net,
        .n_nets = 1,
        .max_samples = esper_engine_max_samples(engine),
        .training = network->splice.training,
    };
    esper_slab old = network->slab, slab = old;
    esper_status status;

    ESPER_TRY(esper_splice_build(&network->splice, &network->engine->host, &network->net));
    esper_side_keep(network);
    if (!network->splice.training && network->plan != NULL) /* as large as the network: the weights are still to come */
        ESPER_TRY(esper_slab_init(&slab, engine->backend, &network->net, &(esper_slab_desc){0}));
    network->slab = slab;
    status = esper_side_open_all(network, sides);
    if (status == ESPER_OK) {
        status = esper_plan_reopen(&desc, &network->plan);
        esper_side_close_all(status == ESPER_OK ? network->side : sides);
        if (status == ESPER_OK)
            memcpy(network->side, sides, sizeof(sides));
    }
    if (status != ESPER_OK)
        network->slab = old;
    if (slab.memory != old.memory)
        esper_slab_fini(status == ESPER_OK ? &old : &slab);
    return status;
}

esper_status esper_network_replan(esper_network *network)
{
    uint64_t program = esper_splice_key(&network->splice);
    esper_net old = network->net;
    esper_status status;

    ESPER_TRY(esper_network_read(network));
    if (network->plan != NULL && program == network->program) {
        set_groups(network);
        return ESPER_OK;
    }
    ESPER_TRY(esper_network_wait(network)); /* the launches of what it is now */
    esper_net_init(&network->net);
    status = rebuild(network);
    esper_net_fini(status == ESPER_OK ? &old : &network->net);
    if (status != ESPER_OK) {
        network->net = old;
        return status;
    }
    network->program = program;
    network->step_cost =
        (uint64_t)llround(esper_engine_plan_flops(network->engine, network->plan) + esper_side_flops(network));
    esper_splice_find_alphas(&network->splice, &network->net, network->alpha_input);
    set_groups(network);
    return esper_guarded_restructure(network);
}

static esper_status clear_range(const esper_network *network, esper_family family, const int64_t *begin, int region)
{
    float *values = network->slab.family[family];

    if (values == NULL)
        return ESPER_OK;
    return esper_backend_fill(network->engine->backend, network->stream, values + begin[region], 0.0f,
                              (size_t)(begin[region + 1] - begin[region]));
}

esper_status esper_network_clear_region(esper_network *network, int slot)
{
    const esper_slab *slab = &network->slab;

    ESPER_TRY(clear_range(network, ESPER_FAMILY_PARAM, slab->param_begin, slot + 1));
    ESPER_TRY(clear_range(network, ESPER_FAMILY_BUFFER, slab->buffer_begin, slot + 1));
    return network->optim != NULL ? esper_optim_reset(network->optim, network->stream, 0, slot + 1) : ESPER_OK;
}

/* Weights, moments and age of the host's layer before the slot, tensor by tensor: a seed's have the names of that layer's. What
 * has no such name (a gate network) stays as it was born. */
static esper_status copy_layer(esper_network *network, const esper_net *net, int slot)
{
    const esper_boundary *boundary = esper_net_find_boundary(net, network->slots.slot[slot].id);
    const esper_slab *slab = &network->slab;
    static const esper_family families[] = {ESPER_FAMILY_PARAM, ESPER_FAMILY_MOMENT1, ESPER_FAMILY_MOMENT2};
    char name[ESPER_NAME_CHARS + 16];

    assert(boundary != NULL);
    if (boundary->layer_end == 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: there is no layer before it that a seed could be a copy of",
                          boundary->slot);
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *to = &net->tensors[t];
        int from;

        if (to->region != slot + 1 || to->role != ESPER_ROLE_PARAM)
            continue;
        snprintf(name, sizeof(name), "layers.%d.%s", boundary->layer_end - 1, to->name + strlen(boundary->slot) + 1);
        from = esper_net_find(net, name);
        if (from == ESPER_NO_TENSOR)
            continue;
        assert(net->tensors[from].region == 0);
        if (net->tensors[from].count != to->count)
            return ESPER_FAIL(ESPER_E_ARG, "%s: the layer before it is of another width: a seed cannot be its copy",
                              boundary->slot);
        for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++)
            if (slab->family[families[f]] != NULL)
                ESPER_TRY(esper_backend_copy(slab->backend, NULL, esper_slab_at(slab, families[f], to),
                                             esper_slab_at(slab, families[f], &net->tensors[from]),
                                             (size_t)to->count * sizeof(float)));
    }
    if (network->optim != NULL)
        esper_optim_group(network->optim, 0, slot + 1)->t = esper_optim_group(network->optim, 0, 0)->t;
    return ESPER_OK;
}

static esper_status bear_draw(esper_network *network, int slot, uint32_t draw)
{
    esper_splice splice = network->splice;
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_birth_key key = {
        .seed = network->seed, .network = draw, .number = (uint32_t)network->slots.slot[slot].n_seeds - 1};
    const esper_blueprint *blueprint;
    esper_net net;
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slot %s", network->slots.slot[slot].id);
    *slots = network->slots;
    slots->slot[slot].stage = ESPER_STAGE_TRAINING; /* so that it is part of a program */
    splice.slots = slots;
    splice.training = true;
    esper_net_init(&net);
    status = esper_blueprint_find(splice.topology, slots->slot[slot].blueprint, &blueprint);
    if (status == ESPER_OK)
        status = esper_blueprint_check_birth(blueprint, slots->slot[slot].birth);
    if (status == ESPER_OK)
        status = esper_splice_build(&splice, &network->engine->host, &net);
    if (status == ESPER_OK)
        status = esper_network_clear_region(network, slot);
    if (status == ESPER_OK)
        status = esper_network_wait(network); /* weights are born on the backend's first stream */
    if (status == ESPER_OK)
        status = esper_init_seed(&net, &network->slab, &key, slot + 1);
    if (status == ESPER_OK && network->slots.slot[slot].birth == ESPER_BIRTH_COPY)
        status = copy_layer(network, &net, slot);
    if (status == ESPER_OK)
        status = esper_backend_sync(network->engine->backend);
    esper_net_fini(&net);
    esper_mem_free(slots);
    return status;
}

/* A fork in which the seed of a slot has its full weight, before the next batch that there is to train on. */
static esper_status open_judge(esper_network *network, int slot, esper_network **judge_out)
{
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slot %s", network->slots.slot[slot].id);
    *slots = network->slots;
    slots->slot[slot].stage = ESPER_STAGE_HOLDING;
    slots->slot[slot].alpha.value = 1.0;
    status = esper_network_fork(network, slots, judge_out);
    esper_mem_free(slots);
    while (status == ESPER_OK && !esper_network_batch_due(*judge_out))
        esper_network_next_epoch(*judge_out);
    return status;
}

/* The square of the norm of a draw's gradients, of all ranks: what a step along them lowers the loss by, for its length. */
static esper_status judge_draw(esper_network *judge, int slot, uint32_t draw, double *square_out)
{
    enum { PART = 1024 };
    const esper_slab *slab = &judge->slab;
    const int64_t begin = slab->param_begin[slot + 1], end = slab->param_begin[slot + 2];
    float part[PART];
    double square = 0.0;

    ESPER_TRY(bear_draw(judge, slot, draw));
    ESPER_TRY(esper_network_gradients(judge));
    ESPER_TRY(esper_network_exchange(judge));
    ESPER_TRY(esper_network_wait(judge));
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < PART ? end - at : PART;
        ESPER_TRY(
            esper_backend_read(slab->backend, part, slab->family[ESPER_FAMILY_GRAD] + at, (size_t)n * sizeof(*part)));
        for (int64_t i = 0; i < n; i++)
            square += (double)part[i] * (double)part[i];
    }
    *square_out = square;
    return ESPER_OK;
}

/* The best of the draws; of equals the earlier. One that is not finite is none. */
static esper_status choose_draw(esper_network *network, int slot, uint32_t *draw_out)
{
    double square, best = -1.0;
    esper_network *judge = NULL;
    esper_status status = ESPER_OK;

    *draw_out = 0;
    ESPER_TRY(open_judge(network, slot, &judge));
    for (uint32_t draw = 0; status == ESPER_OK && draw < ESPER_BIRTH_DRAWS; draw++) {
        status = judge_draw(judge, slot, draw, &square);
        if (status == ESPER_OK && isfinite(square) && square > best) {
            best = square;
            *draw_out = draw;
        }
    }
    if (status == ESPER_OK)
        esper_network_charge(network, ESPER_BIRTH_DRAWS * (double)judge->step_cost);
    esper_network_remove(judge);
    return status;
}

esper_status esper_network_bear(esper_network *network, int slot)
{
    uint32_t draw = 0; /* will do where weights are about to be read from a file */

    if (network->slots.slot[slot].birth == ESPER_BIRTH_FIRST && network->optim != NULL)
        ESPER_TRY(choose_draw(network, slot, &draw));
    return bear_draw(network, slot, draw);
}

/* One word of `plant`: slot:blueprint, and then, where they are not the usual, :operator and :birth. */
static esper_status plant_one(esper_network *network, const char *word)
{
    char id[ESPER_SLOT_CHARS + 8], name[ESPER_BLUEPRINT_CHARS + 8], how[16] = "add", born[16] = "own";
    const esper_blueprint *blueprint;
    int birth = 0, n = sscanf(word, "%23[^:]:%27[^:]:%15[^:]:%15s", id, name, how, born),
        k = n >= 1 ? esper_slots_find(&network->slots, id) : -1;

    if (n < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: '%s' is no slot:blueprint, such as r0c1:conv_light", word);
    if (k < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: this host has no slot '%s': the first is %s, the last %s%s", id,
                          network->slots.slot[0].id, network->slots.slot[network->slots.n - 1].id,
                          strchr(id, '_') != NULL            ? "; --stack N opens slots behind seeds that were kept"
                          : strncmp(id, "wide", 4) == 0 ? "; --widen has slots for new channels"
                                                        : "");
    if (esper_blueprint_find(network->engine->host.topology, name, &blueprint) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "plant: ");
    if (!esper_slot_is_empty(&network->slots.slot[k]))
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: slot %s stands there twice", id);
    while (birth < ESPER_N_BIRTHS && strcmp(esper_birth_name(birth), born) != 0)
        birth++;
    if (birth == ESPER_N_BIRTHS)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: '%s' is no birth: there are own, zero, small, copy and first", born);
    if (esper_blueprint_check_birth(blueprint, birth) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "plant: slot %s: ", id);
    if (blueprint->index == ESPER_BLUEPRINT_WIDE && strcmp(how, "gate") == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: slot %s: new channels are added, and have no gate", id);
    ESPER_TRY(esper_slot_plant(
        &network->slots.slot[k], blueprint, how, birth, esper_splice_count_seed(blueprint, &network->engine->plain, id),
        esper_splice_count_gate(network->engine->host.topology, network->slots.slot[k].channels)));
    return esper_network_bear(network, k);
}

static esper_status plant_seeds(esper_network *network)
{
    char words[ESPER_CONFIG_TEXT_CHARS], *rest = words, *word;

    snprintf(words, sizeof(words), "%s", network->engine->config.plant);
    while ((word = strsep(&rest, ",")) != NULL)
        if (word[0] != '\0')
            ESPER_TRY(plant_one(network, word));
    for (int k = 0; k < network->slots.n; k++)
        if (!esper_slot_is_empty(&network->slots.slot[k]) && !esper_slots_is_open(&network->slots, k))
            return ESPER_FAIL(ESPER_E_CONFIG, "plant: %s opens behind a seed in %s, and none is planted there",
                              network->slots.slot[k].id,
                              network->slots.slot[esper_slots_behind(&network->slots, k)].id);
    return ESPER_OK;
}

/* What the configuration lets a run spend that begins with this network. */
static uint64_t budget_of(const esper_network *network)
{
    const esper_config *config = &network->engine->config;
    uint64_t budget;

    if (config->length == ESPER_CONFIG_LENGTH_EPOCHS)
        return 0;
    if (config->flops > 0.0)
        return (uint64_t)fmax(fmin(config->flops, 9e18), 1.0);
    if (__builtin_mul_overflow((uint64_t)config->epochs * network->engine->steps_per_epoch, network->step_cost,
                               &budget))
        return UINT64_MAX / 2;
    return budget;
}

esper_status esper_network_add(esper_engine *engine, uint64_t seed, esper_backend_stream *stream,
                               esper_network **network_out)
{
    esper_network *network = NULL;
    esper_status status;

    status = make_record(engine, seed, stream, &network);
    if (status != ESPER_OK)
        return esper_engine_tell_room(engine, status, engine->n_networks);
    status = esper_init_net(&engine->plain, &network->slab, seed, 0, -1);
    if (status == ESPER_OK)
        status = plant_seeds(network);
    if (status == ESPER_OK)
        status = esper_network_replan(network);
    if (status != ESPER_OK) {
        esper_network_remove(network);
        return esper_engine_tell_room(engine, status, engine->n_networks);
    }
    network->budget = budget_of(network);
    *network_out = network;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ forks */

static esper_status copy_detour(const esper_detour *from, esper_detour *to)
{
    size_t bytes = from->n_passed * sizeof(*from->passed);

    *to = (esper_detour){.draw = from->draw, .lr_scale = from->lr_scale};
    if (bytes == 0)
        return ESPER_OK;
    to->passed = esper_mem_alloc(bytes);
    if (to->passed == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "list of %u batches to pass over", from->n_passed);
    memcpy(to->passed, from->passed, bytes);
    to->n_passed = to->room_passed = from->n_passed;
    return ESPER_OK;
}

static esper_status copy_state(const esper_network *parent, esper_network *fork)
{
    esper_backend *backend = parent->engine->backend;

    assert(fork->slab.bytes == parent->slab.bytes);
    ESPER_TRY(esper_backend_copy(backend, parent->stream, fork->slab.memory, parent->slab.memory, parent->slab.bytes));
    ESPER_TRY(copy_detour(&parent->detour, &fork->detour));
    fork->cursor = parent->cursor;
    fork->tally = parent->tally;
    fork->lr = parent->lr;
    fork->grad_norm = parent->grad_norm;
    for (int r = 0; r < parent->slab.n_regions; r++)
        esper_optim_group(fork->optim, 0, r)->t = esper_optim_group(parent->optim, 0, r)->t;
    return esper_network_wait(parent);
}

esper_status esper_network_fork(esper_network *parent, const esper_slots *slots, esper_network **fork_out)
{
    esper_network *fork = NULL;
    esper_status status;

    assert(parent->optim != NULL);
    ESPER_TRY(esper_network_read(parent));
    status = make_record(parent->engine, parent->seed, parent->stream, &fork);
    if (status != ESPER_OK)
        return esper_engine_tell_room(parent->engine, status, parent->engine->n_networks);
    status = copy_state(parent, fork);
    if (status == ESPER_OK) {
        fork->slots = slots != NULL ? *slots : parent->slots;
        fork->splice.stand_in = parent->splice.stand_in;
        status = esper_network_replan(fork);
    }
    if (status != ESPER_OK) {
        esper_network_remove(fork);
        return esper_engine_tell_room(parent->engine, status, parent->engine->n_networks);
    }
    *fork_out = fork;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ detours */

esper_status esper_network_pass_over(esper_network *network, uint32_t epoch, uint32_t batch)
{
    esper_detour *detour = &network->detour;

    if (detour->n_passed == detour->room_passed) {
        uint32_t room = detour->room_passed == 0 ? 16 : 2 * detour->room_passed;
        void *grown = esper_mem_grow(detour->passed, room * sizeof(*detour->passed));

        if (grown == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "list of %u batches to pass over", room);
        detour->passed = grown;
        detour->room_passed = room;
    }
    detour->passed[detour->n_passed++] = (esper_place){epoch, batch, detour->draw};
    return ESPER_OK;
}

void esper_network_forget_before(esper_network *network, const esper_cursor *cursor)
{
    esper_detour *detour = &network->detour;
    uint32_t n = 0;

    for (uint32_t i = 0; i < detour->n_passed; i++) {
        esper_place place = detour->passed[i];

        if (place.epoch > cursor->epoch || (place.epoch == cursor->epoch && place.batch >= cursor->batch))
            detour->passed[n++] = place;
    }
    detour->n_passed = n;
}

void esper_network_redraw(esper_network *network, uint32_t draw)
{
    network->detour.draw = draw % ESPER_SAMPLER_DRAWS;
    network->epoch_drawn = false;
}

void esper_network_position(const esper_network *network, esper_position *position_out)
{
    assert(!esper_network_has_unread(network));
    memset(position_out, 0, sizeof(*position_out));
    position_out->cursor = network->cursor;
    position_out->tally = network->tally;
    for (int r = 0; r < network->slab.n_regions; r++)
        position_out->ages[r] = esper_optim_group(network->optim, 0, r)->t;
    position_out->slots = network->slots;
}

esper_status esper_network_go_back(esper_network *network, const esper_position *position)
{
    network->cursor = position->cursor;
    network->tally = position->tally;
    network->n_rows = network->n_under_way = 0;
    network->epoch_drawn = false;
    for (int r = 0; r < network->slab.n_regions; r++)
        esper_optim_group(network->optim, 0, r)->t = position->ages[r];
    network->slots = position->slots;
    return esper_network_replan(network);
}

void esper_network_next_epoch(esper_network *network)
{
    network->cursor.epoch++;
    network->cursor.batch = 0;
    network->tally = (esper_tally){0};
    network->n_rows = network->n_under_way = 0;
    network->epoch_drawn = false;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_memory esper_network_memory(const esper_network *network)
{
    const esper_engine *engine = network->engine;
    esper_plan_stats plan = esper_plan_stats_of(network->plan);
    const esper_slab *slab = &network->slab;
    esper_memory memory = {
        .data = (size_t)esper_dataset_info_get(engine->data)->n_bytes,
        .slab = slab->bytes,
        .activations = plan.arena_bytes + esper_side_bytes(network),
        .tables = sizeof(*engine) + sizeof(*network) + esper_net_bytes(&engine->plain) +
                  esper_net_bytes(&network->net) + plan.table_bytes + esper_plan_cache_stats_of(engine->plans).bytes +
                  (size_t)engine->config.batch * sizeof(*network->sample_ids) +
                  2 * ESPER_NETWORK_BANKS * ESPER_NETWORK_ROWS * esper_network_row_bytes(network) +
                  engine->ranks.room * sizeof(*engine->ranks.bucket) +
                  engine->ranks.stage_room * sizeof(*engine->ranks.stage),
    };

    for (int split = 0; split < ESPER_N_SPLITS; split++) {
        int n_orders = split == ESPER_SPLIT_TRAIN && network->order != NULL ? 2 : 1;

        memory.tables +=
            (size_t)n_orders * esper_sampler_predict_bytes(esper_dataset_count(engine->data, (esper_split)split));
    }
    if (network->optim != NULL)
        memory.tables += esper_optim_bytes(&slab, 1);
    memory.total = memory.data + memory.slab + memory.activations + memory.tables;
    return memory;
}

double esper_network_share(const esper_network *network)
{
    const esper_engine *engine = network->engine;
    double steps = (double)engine->config.epochs * engine->steps_per_epoch;

    if (network->budget > 0)
        return fmin((double)network->cursor.spent / (double)network->budget, 1.0);
    return steps > 0.0 ? fmin((double)network->cursor.step / steps, 1.0) : 1.0;
}

bool esper_network_is_over(const esper_network *network)
{
    const esper_cursor *cursor = &network->cursor;

    if (network->budget > 0)
        return cursor->spent >= network->budget && cursor->batch == 0;
    return cursor->epoch >= (uint32_t)network->engine->config.epochs;
}

bool esper_network_epoch_done(const esper_network *network)
{
    return network->cursor.batch >= network->engine->steps_per_epoch ||
           (network->budget > 0 && network->cursor.spent >= network->budget);
}

uint32_t esper_network_epochs_until(const esper_network *network, double share)
{
    const esper_engine *engine = network->engine;
    const esper_cursor *cursor = &network->cursor;
    double left, steps;

    assert(share >= 0.0 && share <= 1.0);
    if (network->budget == 0)
        return (uint32_t)ceil(share * engine->config.epochs);
    left = share * (double)network->budget - (double)cursor->spent;
    steps = cursor->batch + ceil(left / (double)network->step_cost);
    return (uint32_t)fmin(fmax(cursor->epoch + ceil(steps / engine->steps_per_epoch), 0.0), 1e9);
}

uint32_t esper_network_epochs(const esper_network *network)
{
    const esper_cursor *cursor = &network->cursor;

    if (network->budget > 0 && cursor->spent >= network->budget)
        return cursor->epoch + (cursor->batch > 0); /* its last epoch is a short one */
    return esper_network_epochs_until(network, 1.0);
}

void esper_network_charge(esper_network *network, double flops)
{
    assert(flops >= 0.0);
    network->cursor.spent += (uint64_t)llround(flops);
}

int64_t esper_network_params(const esper_network *network)
{
    int64_t n = esper_net_count_params(&network->net, 0);

    for (int k = 0; k < network->slots.n; k++)
        if (network->slots.slot[k].stage != ESPER_STAGE_TRAINING)
            n += esper_net_count_params(&network->net, k + 1);
    return n;
}

uint64_t esper_network_hash(const esper_network *network)
{
    return esper_weight_hash(&network->net, &network->slab);
}
