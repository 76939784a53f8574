/* The training step and evaluation of one network. The loop over epochs is in run.c. */
#include "engine/network.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/init.h"
#include "nn/schedule.h"
#include "engine/side.h"

static const char *const backend_names[] = {
#define X(name, text) text,
    ESPER_CONFIG_BACKEND_LIST(X)
#undef X
};

double esper_tally_loss(const esper_tally *tally)
{
    return tally->targets > 0 ? tally->loss / (double)tally->targets : (double)NAN;
}

double esper_tally_accuracy(const esper_tally *tally)
{
    return tally->targets > 0 ? 100.0 * (double)tally->correct / (double)tally->targets : (double)NAN;
}

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status open_samplers(esper_network *network, esper_use use)
{
    const esper_config *config = &network->config;

    for (int split = 0; split < ESPER_N_SPLITS; split++) {
        esper_sampler_desc desc = {
            .set = network->data,
            .split = (esper_split)split,
            .batch_size = (uint32_t)config->batch,
            .training = use != ESPER_USE_EVALUATE && split == ESPER_SPLIT_TRAIN,
            .seed = config->seed,
            .augment = {.crop = config->crop, .flip = config->flip, .cutout = config->cutout},
        };

        ESPER_TRY(esper_sampler_open(&desc, &network->samplers[split]));
    }
    return ESPER_OK;
}

uint32_t esper_network_batches(const esper_network *network, esper_split split)
{
    uint32_t n = esper_sampler_batches(network->samplers[split]), cap = (uint32_t)network->config.max_steps;

    return cap > 0 && cap < n && split != ESPER_SPLIT_TEST ? cap : n;
}

int esper_network_max_samples(const esper_network *network)
{
    return (network->config.batch + network->ranks.size - 1) / network->ranks.size;
}

/* Batch statistics of a single value are undefined. */
static esper_status check_batch_norms(const esper_network *network)
{
    const esper_sampler *sampler = network->samplers[ESPER_SPLIT_TRAIN];
    uint32_t n_samples = network->config.sync_norm
                             ? esper_sampler_batch_total(sampler, 0)
                             : esper_sampler_batch_total(sampler, 0) / (uint32_t)network->ranks.size;

    for (int o = 0; o < network->net.n_ops; o++) {
        const esper_op *op = &network->net.ops[o];
        const esper_tensor *x = &network->net.tensors[op->in[0]];

        if (op->kind == ESPER_OP_BATCH_NORM && (int64_t)n_samples * x->dim[1] * x->dim[2] == 1)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s of one sample with maps of one pixel leave batch norm nothing to "
                              "average: use a larger --batch or fewer --pools",
                              esper_ranks_are_many(&network->ranks) ? "parts of a batch" : "batches");
    }
    return ESPER_OK;
}

/* The network as it is planned for training. */
static esper_plan_net describe_net(const esper_network *network)
{
    return (esper_plan_net){.net = &network->net,
                            .slab = &network->slab,
                            .pass = &network->pass,
                            .exchange = network->exchange.sum != NULL ? &network->exchange : NULL};
}

static esper_plan_desc describe_plan(const esper_network *network, const esper_plan_net *net)
{
    return (esper_plan_desc){
        .backend = network->backend,
        .nets = net,
        .n_nets = 1,
        .max_samples = esper_network_max_samples(network),
        .training = network->splice.training,
    };
}

/* The slots of a host, all empty, and how seeds are put there. */
static esper_status open_slots(esper_network *network, esper_use use)
{
    const esper_config *config = &network->config;
    esper_slot_rules rules = {.permissive = config->gates == ESPER_CONFIG_GATES_PERMISSIVE,
                              .gate_epochs = config->gate_epochs,
                              .embargo_ticks = config->embargo};

    ESPER_TRY(esper_slots_init(&network->slots, network->net.boundaries, network->net.n_boundaries, &rules));
    network->splice = (esper_splice){
        .topology = network->host.topology,
        .slots = &network->slots,
        .training = use != ESPER_USE_EVALUATE,
        .incubation =
            config->incubation == ESPER_CONFIG_INCUBATION_STRAIGHT ? ESPER_INCUBATION_STRAIGHT : ESPER_INCUBATION_ASIDE,
    };
    network->program = esper_splice_key(&network->splice);
    esper_splice_find_alphas(&network->splice, &network->net, network->alpha_input);
    return ESPER_OK;
}

static esper_status open_slab(esper_network *network, esper_use use)
{
    int n_moments = network->config.optimizer == ESPER_CONFIG_OPTIMIZER_ADAMW ? 2 : 1;
    esper_slab_desc desc = {.n_moments = use != ESPER_USE_EVALUATE ? n_moments : 0};
    esper_status status;

    if (use == ESPER_USE_GROW || network->config.plant[0] != '\0')
        ESPER_TRY(esper_splice_reserve(&network->slots, network->host.topology, UINT32_MAX, &desc));
    status = esper_slab_init(&network->slab, network->backend, &network->net, &desc);
    if (status == ESPER_E_NOMEM)
        return ESPER_FAIL(ESPER_E_NOMEM,
                          "%zu bytes for the weights, gradients and moments: a smaller network needs less",
                          esper_slab_bytes(&network->net, &desc));
    return status;
}

static esper_status build_network(esper_network *network, esper_use use)
{
    esper_plan_net plan_net = describe_net(network);
    esper_plan_desc plan_desc;

    network->host = esper_task_host(network->task, &network->config, esper_dataset_info_get(network->data));
    ESPER_TRY(esper_host_build(&network->host, &network->net));
    ESPER_TRY(open_slots(network, use));
    ESPER_TRY(open_slab(network, use));
    esper_init_net(&network->net, &network->slab, network->config.seed, 0, -1);
    plan_desc = describe_plan(network, &plan_net);
    return esper_plan_open(&plan_desc, &network->plan);
}

static esper_status open_optimiser(esper_network *network)
{
    const esper_config *config = &network->config;
    const esper_slab *slab = &network->slab;
    esper_optim_desc desc = {
        .backend = network->backend,
        .slabs = &slab,
        .n_slabs = 1,
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

/* For inference the slab is as large as the network, and made anew for another one: the weights are still to come. */
static esper_status fit_slab(esper_network *network, esper_slab *slab_out)
{
    *slab_out = network->slab;
    return network->splice.training ? ESPER_OK
                                    : esper_slab_init(slab_out, network->backend, &network->net, &(esper_slab_desc){0});
}

/* All that can fail comes before the plan is replaced. */
static esper_status rebuild(esper_network *network)
{
    struct esper_side *sides[ESPER_MAX_SLOTS];
    esper_plan_net plan_net = describe_net(network);
    esper_plan_desc desc = describe_plan(network, &plan_net);
    esper_slab old = network->slab, slab;
    esper_status status;

    ESPER_TRY(esper_splice_build(&network->splice, &network->host, &network->net));
    esper_side_keep(network);
    ESPER_TRY(fit_slab(network, &slab));
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

    if (program != network->program) {
        esper_net_init(&network->net);
        status = rebuild(network);
        esper_net_fini(status == ESPER_OK ? &old : &network->net);
        if (status != ESPER_OK) {
            network->net = old;
            return status;
        }
        network->program = program;
        esper_splice_find_alphas(&network->splice, &network->net, network->alpha_input);
    }
    set_groups(network);
    return ESPER_OK;
}

static void clear_range(float *family, const int64_t *begin, int region)
{
    if (family != NULL)
        memset(family + begin[region], 0, (size_t)(begin[region + 1] - begin[region]) * sizeof(*family));
}

void esper_network_clear_region(esper_network *network, int slot)
{
    const esper_slab *slab = &network->slab;

    clear_range(slab->family[ESPER_FAMILY_PARAM], slab->param_begin, slot + 1);
    clear_range(slab->family[ESPER_FAMILY_BUFFER], slab->buffer_begin, slot + 1);
    if (network->optim != NULL)
        esper_optim_reset(network->optim, 0, slot + 1);
}

esper_status esper_network_bear(esper_network *network, int slot)
{
    esper_splice splice = network->splice;
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_birth birth = {.seed = network->config.seed, .number = (uint32_t)network->slots.slot[slot].n_seeds - 1};
    esper_net net;
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slot %s", network->slots.slot[slot].id);
    *slots = network->slots;
    slots->slot[slot].stage = ESPER_STAGE_TRAINING; /* so that it is part of a program */
    splice.slots = slots;
    splice.training = true;
    esper_net_init(&net);
    status = esper_splice_build(&splice, &network->host, &net);
    if (status == ESPER_OK) {
        esper_network_clear_region(network, slot);
        esper_init_seed(&net, &network->slab, &birth, slot + 1);
    }
    esper_net_fini(&net);
    esper_mem_free(slots);
    return status;
}

/* One word of `plant`: slot:blueprint, or slot:blueprint:operator. */
static esper_status plant_one(esper_network *network, const char *word)
{
    char id[ESPER_SLOT_CHARS + 8], name[ESPER_BLUEPRINT_CHARS + 8], how[16] = "add";
    const esper_blueprint *blueprint;
    int n = sscanf(word, "%23[^:]:%31[^:]:%15s", id, name, how),
        k = n >= 1 ? esper_slots_find(&network->slots, id) : -1;

    if (n < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: '%s' is no slot:blueprint, such as r0c1:conv_light", word);
    if (k < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: this host has no slot '%s': the first is %s, the last %s", id,
                          network->slots.slot[0].id, network->slots.slot[network->slots.n - 1].id);
    if (esper_blueprint_find(network->host.topology, name, &blueprint) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "plant: ");
    if (!esper_slot_is_empty(&network->slots.slot[k]))
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: slot %s stands there twice", id);
    ESPER_TRY(esper_slot_plant(&network->slots.slot[k], blueprint, how,
                               esper_splice_count_params(blueprint, network->slots.slot[k].channels),
                               esper_splice_count_gate(network->host.topology, network->slots.slot[k].channels)));
    return esper_network_bear(network, k);
}

static esper_status plant_seeds(esper_network *network)
{
    char words[ESPER_CONFIG_TEXT_CHARS], *rest = words, *word;

    snprintf(words, sizeof(words), "%s", network->config.plant);
    while ((word = strsep(&rest, ",")) != NULL)
        if (word[0] != '\0')
            ESPER_TRY(plant_one(network, word));
    return esper_network_replan(network);
}

static esper_status open_parts(esper_network *network, esper_use use)
{
    const esper_config *config = &network->config;
    esper_dataset_desc data_desc = esper_task_data(network->task, config);

    ESPER_TRY(esper_pool_open(config->threads, &network->pool));
    ESPER_TRY(esper_backend_open(backend_names[config->backend], network->pool, &network->backend));
    if (!network->borrows_data)
        ESPER_TRY(esper_dataset_open(&data_desc, &network->data));
    ESPER_TRY(open_samplers(network, use));
    ESPER_TRY(build_network(network, use));
    network->sample_ids = esper_mem_alloc((size_t)config->batch * sizeof(*network->sample_ids));
    if (network->sample_ids == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "batch of %d", config->batch);
    network->pass = (esper_pass){.seed = config->seed, .sample_id = network->sample_ids};
    if (use != ESPER_USE_EVALUATE) {
        ESPER_TRY(check_batch_norms(network));
        network->steps_per_epoch = esper_network_batches(network, ESPER_SPLIT_TRAIN);
        ESPER_TRY(open_optimiser(network));
    }
    return plant_seeds(network);
}

esper_status esper_network_init(esper_network *network, const esper_task *task, const esper_config *config,
                                esper_use use)
{
    return esper_network_init_on(network, NULL, task, config, use);
}

esper_status esper_network_init_on(esper_network *network, esper_dataset *data, const esper_task *task,
                                   const esper_config *config, esper_use use)
{
    esper_status status;

    memset(network, 0, sizeof(*network));
    network->data = data;
    network->borrows_data = data != NULL;
    network->ranks.size = 1;
    network->task = task;
    network->config = *config;
    network->detour.lr_scale = 1.0;
    esper_net_init(&network->net);
    status = open_parts(network, use);
    if (status != ESPER_OK)
        esper_network_fini(network);
    return status;
}

/* Every rank must have something of every training batch, or it would have no gradients to give. */
static esper_status check_shares(const esper_network *network)
{
    uint32_t n = esper_sampler_batch_total(network->samplers[ESPER_SPLIT_TRAIN], 0);

    if (n < (uint32_t)network->ranks.size)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "batches of %u samples cannot be shared by %d ranks: use a larger --batch or fewer ranks", n,
                          network->ranks.size);
    return network->optim != NULL ? check_batch_norms(network) : ESPER_OK;
}

static esper_status sum_over_ranks(void *ranks, double *values, size_t count)
{
    return esper_ranks_sum(ranks, values, count);
}

esper_status esper_network_join(esper_network *network, esper_comm *comm)
{
    esper_plan_net plan_net;
    esper_plan_desc desc;
    bool alike;

    ESPER_TRY(esper_ranks_init(&network->ranks, comm, &network->slab));
    if (!esper_ranks_are_many(&network->ranks))
        return ESPER_OK;
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_share(network->samplers[split], (uint32_t)network->ranks.rank, (uint32_t)network->ranks.size);
    ESPER_TRY(check_shares(network));
    if (network->config.sync_norm)
        network->exchange = (esper_exchange){.sum = sum_over_ranks, .context = &network->ranks};
    plan_net = describe_net(network);
    desc = describe_plan(network, &plan_net);
    ESPER_TRY(esper_plan_reopen(&desc, &network->plan));
    ESPER_TRY(esper_ranks_are_alike(&network->ranks, esper_network_hash(network), &alike));
    return alike ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "the ranks begin with different weights");
}

void esper_network_fini(esper_network *network)
{
    esper_ranks_fini(&network->ranks);
    esper_side_close_all(network->side);
    esper_optim_close(network->optim);
    esper_mem_free(network->detour.passed);
    esper_mem_free(network->sample_ids);
    esper_plan_close(network->plan);
    esper_slab_fini(&network->slab);
    esper_net_fini(&network->net);
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_close(network->samplers[split]);
    if (!network->borrows_data)
        esper_dataset_close(network->data);
    esper_backend_close(network->backend);
    esper_pool_close(network->pool);
    memset(network, 0, sizeof(*network));
}

/* ------------------------------------------------------------------------------------------------ a batch */

void esper_network_load(esper_network *network, const esper_plan *plan, const esper_net *net, esper_split split,
                        uint32_t batch)
{
    const esper_sampler *sampler = network->samplers[split];
    void *input = esper_plan_data(plan, 0, net->input);
    bool images = network->host.topology == ESPER_TOPOLOGY_CNN;
    int inputs[ESPER_MAX_SLOTS];
    esper_batch dest = {
        .images = images ? input : NULL,
        .tokens = images ? NULL : input,
        .targets = esper_plan_data(plan, 0, net->target),
        .ids = network->sample_ids,
    };

    memcpy(inputs, network->alpha_input, sizeof(inputs));
    esper_batch_fill(sampler, batch, network->pool, &dest);
    network->pass.n_samples = (int32_t)esper_sampler_batch_count(sampler, batch);
    network->pass.training = split == ESPER_SPLIT_TRAIN;
    network->pass.step = (uint32_t)network->cursor.step;
    network->n_loaded = esper_sampler_batch_total(sampler, batch);
    network->pass.loss_scale = 1.0f / ((float)network->n_loaded * (float)net->tensors[net->target].count);
    if (net != &network->net) /* another program of the same slots */
        esper_splice_find_alphas(&network->splice, net, inputs);
    esper_splice_fill_alphas(&network->splice, inputs, plan, network->pass.n_samples);
}

static void load_batch(esper_network *network, esper_split split, uint32_t batch)
{
    esper_network_load(network, network->plan, &network->net, split, batch);
}

/* The sum of the first half and that of the second, as gradients are summed: the halves may be those of two ranks. */
static double sum_in_halves(const float *values, int n)
{
    int half = n - n / 2;

    if (n <= 1)
        return n == 1 ? (double)values[0] : 0.0;
    return sum_in_halves(values, half) + sum_in_halves(values + half, n - half);
}

/* The results of this rank's part of the training batch just run. */
static esper_batch_sums sum_results(const esper_network *network)
{
    int n = network->pass.n_samples;

    return (esper_batch_sums){.loss = sum_in_halves(esper_plan_data(network->plan, 0, network->net.loss), n),
                              .correct = sum_in_halves(esper_plan_data(network->plan, 0, network->net.correct), n)};
}

/* Those of an evaluation are added in the order of its samples. */
static void add_results(const esper_network *network, esper_batch_sums *sums)
{
    const float *loss = esper_plan_data(network->plan, 0, network->net.loss);
    const float *correct = esper_plan_data(network->plan, 0, network->net.correct);

    for (int i = 0; i < network->pass.n_samples; i++) {
        sums->loss += (double)loss[i];
        sums->correct += (double)correct[i];
    }
}

static void count_batch(const esper_network *network, esper_tally *tally)
{
    tally->samples += network->n_loaded;
    tally->targets += network->n_loaded * (uint64_t)network->net.tensors[network->net.target].count;
}

static double rate_now(const esper_network *network)
{
    const esper_config *config = &network->config;
    int finish = config->lr_finish < config->epochs ? config->lr_finish : config->epochs;
    int before = config->epochs - finish;
    int epochs = config->lr_epochs > 0 ? config->lr_epochs : before;
    esper_schedule schedule = {
        .kind = config->schedule == ESPER_CONFIG_SCHEDULE_COSINE ? ESPER_SCHEDULE_COSINE : ESPER_SCHEDULE_CONSTANT,
        .lr = config->lr,
        .lr_min = config->lr_min,
        .warmup_steps = (uint64_t)llround(config->warmup * network->steps_per_epoch),
        .total_steps = (uint64_t)epochs * network->steps_per_epoch,
        .finish_from = (uint64_t)before * network->steps_per_epoch,
        .finish_steps = (uint64_t)finish * network->steps_per_epoch,
    };

    return esper_schedule_lr(&schedule, network->cursor.step);
}

/* A seed in TRAINING is young whatever the age of the host: it learns at the full rate, and at the host's from then on. */
static double seed_rate(const esper_network *network, int slot)
{
    bool young = network->slots.slot[slot].stage == ESPER_STAGE_TRAINING;
    double rate = young ? network->config.lr * network->detour.lr_scale : network->lr;

    return rate * network->config.seed_lr;
}

/* ------------------------------------------------------------------------------------------------ a step */

static bool is_passed_over(const esper_network *network)
{
    const esper_detour *detour = &network->detour;

    for (uint32_t i = 0; i < detour->n_passed; i++)
        if (detour->passed[i].batch == network->cursor.batch && detour->passed[i].epoch == network->cursor.epoch &&
            detour->passed[i].draw == detour->draw)
            return true;
    return false;
}

bool esper_network_batch_due(esper_network *network)
{
    while (network->cursor.batch < network->steps_per_epoch && is_passed_over(network))
        network->cursor.batch++;
    return network->cursor.batch < network->steps_per_epoch;
}

esper_status esper_network_gradients(esper_network *network)
{
    if (network->optim == NULL || network->cursor.batch >= network->steps_per_epoch)
        return ESPER_FAIL(ESPER_E_STATE, "no training step is due");
    if (!network->epoch_drawn) {
        esper_sampler_redraw(network->samplers[ESPER_SPLIT_TRAIN], network->cursor.epoch, network->detour.draw);
        network->epoch_drawn = true;
    }
    load_batch(network, ESPER_SPLIT_TRAIN, network->cursor.batch);
    esper_side_take_targets(network);
    ESPER_TRY(esper_plan_gradients(network->plan));
    ESPER_TRY(esper_backend_sync(network->backend));
    network->sums = sum_results(network);
    return esper_side_gradients(network);
}

/* The host's and those with a seed in them, whether it learns or not. */
static uint64_t regions_in_use(const esper_network *network)
{
    uint64_t regions = 1;

    for (int k = 0; k < network->slots.n && k + 1 < network->slab.n_regions; k++)
        if (esper_splice_has_seed(&network->splice, k))
            regions |= (uint64_t)1 << (k + 1);
    return regions;
}

esper_status esper_network_exchange(esper_network *network)
{
    double share = (double)network->pass.n_samples / network->n_loaded;

    return esper_ranks_exchange(&network->ranks, &network->slab, regions_in_use(network), share, &network->sums);
}

esper_status esper_network_apply(esper_network *network)
{
    network->lr = rate_now(network) * network->detour.lr_scale;
    esper_optim_group(network->optim, 0, 0)->lr = (float)network->lr;
    for (int r = 1; r < network->slab.n_regions; r++)
        esper_optim_group(network->optim, 0, r)->lr = (float)seed_rate(network, r - 1);
    ESPER_TRY(esper_optim_step(network->optim));
    ESPER_TRY(esper_backend_sync(network->backend));
    network->tally.loss += network->sums.loss;
    network->tally.correct += (uint64_t)network->sums.correct;
    count_batch(network, &network->tally);
    network->grad_norm = esper_optim_norm(network->optim, 0, 0);
    network->cursor.batch++;
    network->cursor.step++;
    return ESPER_OK;
}

esper_status esper_network_step(esper_network *network)
{
    if (network->cursor.batch < network->steps_per_epoch && !esper_network_batch_due(network))
        return ESPER_OK;
    ESPER_TRY(esper_network_gradients(network));
    ESPER_TRY(esper_network_exchange(network));
    return esper_network_apply(network);
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
    network->epoch_drawn = false;
}

esper_status esper_network_evaluate(esper_network *network, esper_split split, const esper_follower *follower,
                                    esper_tally *tally_out)
{
    static const esper_follower nobody;
    uint32_t n = esper_network_batches(network, split);
    esper_batch_sums sums = {0};
    esper_tally tally = {0};
    double both[2];

    if (follower == NULL)
        follower = &nobody;
    for (uint32_t batch = 0; batch < n; batch++) {
        if (follower->stop != NULL && *follower->stop != 0)
            return ESPER_FAIL(ESPER_E_STOPPED, "evaluation of the %s split", esper_split_name(split));
        if (follower->batch != NULL)
            follower->batch(follower->context, split, batch, n);
        load_batch(network, split, batch);
        count_batch(network, &tally);
        if (network->pass.n_samples == 0)
            continue;
        network->pass.training = false;
        ESPER_TRY(esper_plan_forward(network->plan));
        ESPER_TRY(esper_backend_sync(network->backend));
        add_results(network, &sums);
    }
    both[0] = sums.loss;
    both[1] = sums.correct;
    ESPER_TRY(esper_ranks_sum(&network->ranks, both, 2));
    tally.loss = both[0];
    tally.correct = (uint64_t)both[1];
    *tally_out = tally;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_memory esper_network_memory(const esper_network *network)
{
    esper_plan_stats plan = esper_plan_stats_of(network->plan);
    const esper_slab *slab = &network->slab;
    esper_memory memory = {
        .data = (size_t)esper_dataset_bytes(network->data),
        .slab = slab->bytes,
        .activations = plan.arena_bytes + esper_side_bytes(network),
        .tables = plan.table_bytes + (size_t)network->config.batch * sizeof(*network->sample_ids) +
                  network->ranks.room * sizeof(*network->ranks.bucket),
    };

    for (int split = 0; split < ESPER_N_SPLITS; split++)
        memory.tables += (size_t)esper_sampler_predict_bytes(esper_dataset_count(network->data, (esper_split)split));
    if (network->optim != NULL)
        memory.tables += esper_optim_bytes(&slab, 1);
    memory.total = memory.data + memory.slab + memory.activations + memory.tables;
    return memory;
}

double esper_network_plan_flops(const esper_network *network, const esper_plan *plan)
{
    esper_plan_stats stats = esper_plan_stats_of(plan);

    return (stats.forward.flops + stats.backward.flops) * network->config.batch / esper_network_max_samples(network);
}

double esper_network_step_flops(const esper_network *network)
{
    return esper_network_plan_flops(network, network->plan) + esper_side_flops(network);
}

uint32_t esper_network_n_loaded(const esper_network *network)
{
    return network->n_loaded;
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
