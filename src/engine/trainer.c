/* The training step and evaluation of one network. The loop over epochs is in run.c. */
#include "engine/trainer.h"

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

static esper_status open_samplers(esper_trainer *trainer, esper_use use)
{
    const esper_config *config = &trainer->config;

    for (int split = 0; split < ESPER_N_SPLITS; split++) {
        esper_sampler_desc desc = {
            .set = trainer->data,
            .split = (esper_split)split,
            .batch_size = (uint32_t)config->batch,
            .training = use != ESPER_USE_EVALUATE && split == ESPER_SPLIT_TRAIN,
            .seed = config->seed,
            .augment = {.crop = config->crop, .flip = config->flip, .cutout = config->cutout},
        };

        ESPER_TRY(esper_sampler_open(&desc, &trainer->samplers[split]));
    }
    return ESPER_OK;
}

uint32_t esper_trainer_batches(const esper_trainer *trainer, esper_split split)
{
    uint32_t n = esper_sampler_batches(trainer->samplers[split]), cap = (uint32_t)trainer->config.max_steps;

    return cap > 0 && cap < n && split != ESPER_SPLIT_TEST ? cap : n;
}

int esper_trainer_max_samples(const esper_trainer *trainer)
{
    return (trainer->config.batch + trainer->ranks.size - 1) / trainer->ranks.size;
}

/* Batch statistics of a single value are undefined. */
static esper_status check_batch_norms(const esper_trainer *trainer)
{
    const esper_sampler *sampler = trainer->samplers[ESPER_SPLIT_TRAIN];
    uint32_t n_samples = trainer->config.sync_norm
                             ? esper_sampler_batch_total(sampler, 0)
                             : esper_sampler_batch_total(sampler, 0) / (uint32_t)trainer->ranks.size;

    for (int o = 0; o < trainer->net.n_ops; o++) {
        const esper_op *op = &trainer->net.ops[o];
        const esper_tensor *x = &trainer->net.tensors[op->in[0]];

        if (op->kind == ESPER_OP_BATCH_NORM && (int64_t)n_samples * x->dim[1] * x->dim[2] == 1)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s of one sample with maps of one pixel leave batch norm nothing to "
                              "average: use a larger --batch or fewer --pools",
                              esper_ranks_are_many(&trainer->ranks) ? "parts of a batch" : "batches");
    }
    return ESPER_OK;
}

/* The network as it is planned for training. */
static esper_plan_net describe_net(const esper_trainer *trainer)
{
    return (esper_plan_net){.net = &trainer->net,
                            .slab = &trainer->slab,
                            .pass = &trainer->pass,
                            .exchange = trainer->exchange.sum != NULL ? &trainer->exchange : NULL};
}

static esper_plan_desc describe_plan(const esper_trainer *trainer, const esper_plan_net *net)
{
    return (esper_plan_desc){
        .backend = trainer->backend,
        .nets = net,
        .n_nets = 1,
        .max_samples = esper_trainer_max_samples(trainer),
        .training = trainer->splice.training,
    };
}

/* The slots of a host, all empty, and how seeds are put there. */
static esper_status open_slots(esper_trainer *trainer, esper_use use)
{
    const esper_config *config = &trainer->config;
    esper_slot_rules rules = {.permissive = config->gates == ESPER_CONFIG_GATES_PERMISSIVE,
                              .gate_epochs = config->gate_epochs,
                              .embargo_ticks = config->embargo};

    ESPER_TRY(esper_slots_init(&trainer->slots, trainer->net.boundaries, trainer->net.n_boundaries, &rules));
    trainer->splice = (esper_splice){
        .topology = trainer->host.topology,
        .slots = &trainer->slots,
        .training = use != ESPER_USE_EVALUATE,
        .incubation =
            config->incubation == ESPER_CONFIG_INCUBATION_STRAIGHT ? ESPER_INCUBATION_STRAIGHT : ESPER_INCUBATION_ASIDE,
    };
    trainer->program = esper_splice_key(&trainer->splice);
    esper_splice_find_alphas(&trainer->splice, &trainer->net, trainer->alpha_input);
    return ESPER_OK;
}

static esper_status open_slab(esper_trainer *trainer, esper_use use)
{
    int n_moments = trainer->config.optimizer == ESPER_CONFIG_OPTIMIZER_ADAMW ? 2 : 1;
    esper_slab_desc desc = {.n_moments = use != ESPER_USE_EVALUATE ? n_moments : 0};
    esper_status status;

    if (use == ESPER_USE_GROW || trainer->config.plant[0] != '\0')
        ESPER_TRY(esper_splice_reserve(&trainer->slots, trainer->host.topology, UINT32_MAX, &desc));
    status = esper_slab_init(&trainer->slab, trainer->backend, &trainer->net, &desc);
    if (status == ESPER_E_NOMEM)
        return ESPER_FAIL(ESPER_E_NOMEM,
                          "%zu bytes for the weights, gradients and moments: a smaller network needs less",
                          esper_slab_bytes(&trainer->net, &desc));
    return status;
}

static esper_status build_network(esper_trainer *trainer, esper_use use)
{
    esper_plan_net plan_net = describe_net(trainer);
    esper_plan_desc plan_desc;

    trainer->host = esper_task_host(trainer->task, &trainer->config, esper_dataset_info_get(trainer->data));
    ESPER_TRY(esper_host_build(&trainer->host, &trainer->net));
    ESPER_TRY(open_slots(trainer, use));
    ESPER_TRY(open_slab(trainer, use));
    esper_init_net(&trainer->net, &trainer->slab, trainer->config.seed, 0, -1);
    plan_desc = describe_plan(trainer, &plan_net);
    return esper_plan_open(&plan_desc, &trainer->plan);
}

static esper_status open_optimiser(esper_trainer *trainer)
{
    const esper_config *config = &trainer->config;
    const esper_slab *slab = &trainer->slab;
    esper_optim_desc desc = {
        .backend = trainer->backend,
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

    return esper_optim_open(&desc, &trainer->optim);
}

/* ------------------------------------------------------------------------------------------------ growing */

/* Seeds learn until they are kept, and not while they are being taken out; kept ones belong to the host. */
static void set_groups(esper_trainer *trainer)
{
    if (trainer->optim == NULL)
        return;
    for (int k = 0; k < trainer->slots.n && k + 1 < trainer->slab.n_regions; k++) {
        const esper_slot *slot = &trainer->slots.slot[k];
        bool learns = esper_splice_has_seed(&trainer->splice, k) && !esper_slot_is_frozen(slot);

        esper_optim_enable(trainer->optim, 0, k + 1, learns);
        esper_optim_join(trainer->optim, 0, k + 1, slot->stage == ESPER_STAGE_FOSSILIZED);
    }
}

/* For inference the slab is as large as the network, and made anew for another one: the weights are still to come. */
static esper_status fit_slab(esper_trainer *trainer, esper_slab *slab_out)
{
    *slab_out = trainer->slab;
    return trainer->splice.training ? ESPER_OK
                                    : esper_slab_init(slab_out, trainer->backend, &trainer->net, &(esper_slab_desc){0});
}

/* All that can fail comes before the plan is replaced. */
static esper_status rebuild(esper_trainer *trainer)
{
    struct esper_side *sides[ESPER_MAX_SLOTS];
    esper_plan_net plan_net = describe_net(trainer);
    esper_plan_desc desc = describe_plan(trainer, &plan_net);
    esper_slab old = trainer->slab, slab;
    esper_status status;

    ESPER_TRY(esper_splice_build(&trainer->splice, &trainer->host, &trainer->net));
    esper_side_keep(trainer);
    ESPER_TRY(fit_slab(trainer, &slab));
    trainer->slab = slab;
    status = esper_side_open_all(trainer, sides);
    if (status == ESPER_OK) {
        status = esper_plan_reopen(&desc, &trainer->plan);
        esper_side_close_all(status == ESPER_OK ? trainer->side : sides);
        if (status == ESPER_OK)
            memcpy(trainer->side, sides, sizeof(sides));
    }
    if (status != ESPER_OK)
        trainer->slab = old;
    if (slab.memory != old.memory)
        esper_slab_fini(status == ESPER_OK ? &old : &slab);
    return status;
}

esper_status esper_trainer_replan(esper_trainer *trainer)
{
    uint64_t program = esper_splice_key(&trainer->splice);
    esper_net old = trainer->net;
    esper_status status;

    if (program != trainer->program) {
        esper_net_init(&trainer->net);
        status = rebuild(trainer);
        esper_net_fini(status == ESPER_OK ? &old : &trainer->net);
        if (status != ESPER_OK) {
            trainer->net = old;
            return status;
        }
        trainer->program = program;
        esper_splice_find_alphas(&trainer->splice, &trainer->net, trainer->alpha_input);
    }
    set_groups(trainer);
    return ESPER_OK;
}

static void clear_range(float *family, const int64_t *begin, int region)
{
    if (family != NULL)
        memset(family + begin[region], 0, (size_t)(begin[region + 1] - begin[region]) * sizeof(*family));
}

void esper_trainer_clear_region(esper_trainer *trainer, int slot)
{
    const esper_slab *slab = &trainer->slab;

    clear_range(slab->family[ESPER_FAMILY_PARAM], slab->param_begin, slot + 1);
    clear_range(slab->family[ESPER_FAMILY_BUFFER], slab->buffer_begin, slot + 1);
    if (trainer->optim != NULL)
        esper_optim_reset(trainer->optim, 0, slot + 1);
}

esper_status esper_trainer_bear(esper_trainer *trainer, int slot)
{
    esper_splice splice = trainer->splice;
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_birth birth = {.seed = trainer->config.seed, .number = (uint32_t)trainer->slots.slot[slot].n_seeds - 1};
    esper_net net;
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slot %s", trainer->slots.slot[slot].id);
    *slots = trainer->slots;
    slots->slot[slot].stage = ESPER_STAGE_TRAINING; /* so that it is part of a program */
    splice.slots = slots;
    splice.training = true;
    esper_net_init(&net);
    status = esper_splice_build(&splice, &trainer->host, &net);
    if (status == ESPER_OK) {
        esper_trainer_clear_region(trainer, slot);
        esper_init_seed(&net, &trainer->slab, &birth, slot + 1);
    }
    esper_net_fini(&net);
    esper_mem_free(slots);
    return status;
}

/* One word of `plant`: slot:blueprint, or slot:blueprint:operator. */
static esper_status plant_one(esper_trainer *trainer, const char *word)
{
    char id[ESPER_SLOT_CHARS + 8], name[ESPER_BLUEPRINT_CHARS + 8], how[16] = "add";
    const esper_blueprint *blueprint;
    int n = sscanf(word, "%23[^:]:%31[^:]:%15s", id, name, how),
        k = n >= 1 ? esper_slots_find(&trainer->slots, id) : -1;

    if (n < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: '%s' is no slot:blueprint, such as r0c1:conv_light", word);
    if (k < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: this host has no slot '%s': the first is %s, the last %s", id,
                          trainer->slots.slot[0].id, trainer->slots.slot[trainer->slots.n - 1].id);
    if (esper_blueprint_find(trainer->host.topology, name, &blueprint) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "plant: ");
    if (!esper_slot_is_empty(&trainer->slots.slot[k]))
        return ESPER_FAIL(ESPER_E_CONFIG, "plant: slot %s stands there twice", id);
    ESPER_TRY(esper_slot_plant(&trainer->slots.slot[k], blueprint, how,
                               esper_splice_count_params(blueprint, trainer->slots.slot[k].channels),
                               esper_splice_count_gate(trainer->host.topology, trainer->slots.slot[k].channels)));
    return esper_trainer_bear(trainer, k);
}

static esper_status plant_seeds(esper_trainer *trainer)
{
    char words[ESPER_CONFIG_TEXT_CHARS], *rest = words, *word;

    snprintf(words, sizeof(words), "%s", trainer->config.plant);
    while ((word = strsep(&rest, ",")) != NULL)
        if (word[0] != '\0')
            ESPER_TRY(plant_one(trainer, word));
    return esper_trainer_replan(trainer);
}

static esper_status open_parts(esper_trainer *trainer, esper_use use)
{
    const esper_config *config = &trainer->config;
    esper_dataset_desc data_desc = esper_task_data(trainer->task, config);

    ESPER_TRY(esper_pool_open(config->threads, &trainer->pool));
    ESPER_TRY(esper_backend_open(backend_names[config->backend], trainer->pool, &trainer->backend));
    if (!trainer->borrows_data)
        ESPER_TRY(esper_dataset_open(&data_desc, &trainer->data));
    ESPER_TRY(open_samplers(trainer, use));
    ESPER_TRY(build_network(trainer, use));
    trainer->sample_ids = esper_mem_alloc((size_t)config->batch * sizeof(*trainer->sample_ids));
    if (trainer->sample_ids == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "batch of %d", config->batch);
    trainer->pass = (esper_pass){.seed = config->seed, .sample_id = trainer->sample_ids};
    if (use != ESPER_USE_EVALUATE) {
        ESPER_TRY(check_batch_norms(trainer));
        trainer->steps_per_epoch = esper_trainer_batches(trainer, ESPER_SPLIT_TRAIN);
        ESPER_TRY(open_optimiser(trainer));
    }
    return plant_seeds(trainer);
}

esper_status esper_trainer_init(esper_trainer *trainer, const esper_task *task, const esper_config *config,
                                esper_use use)
{
    return esper_trainer_init_on(trainer, NULL, task, config, use);
}

esper_status esper_trainer_init_on(esper_trainer *trainer, esper_dataset *data, const esper_task *task,
                                   const esper_config *config, esper_use use)
{
    esper_status status;

    memset(trainer, 0, sizeof(*trainer));
    trainer->data = data;
    trainer->borrows_data = data != NULL;
    trainer->ranks.size = 1;
    trainer->task = task;
    trainer->config = *config;
    trainer->detour.lr_scale = 1.0;
    esper_net_init(&trainer->net);
    status = open_parts(trainer, use);
    if (status != ESPER_OK)
        esper_trainer_fini(trainer);
    return status;
}

/* Every rank must have something of every training batch, or it would have no gradients to give. */
static esper_status check_shares(const esper_trainer *trainer)
{
    uint32_t n = esper_sampler_batch_total(trainer->samplers[ESPER_SPLIT_TRAIN], 0);

    if (n < (uint32_t)trainer->ranks.size)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "batches of %u samples cannot be shared by %d ranks: use a larger --batch or fewer ranks", n,
                          trainer->ranks.size);
    return trainer->optim != NULL ? check_batch_norms(trainer) : ESPER_OK;
}

static esper_status sum_over_ranks(void *ranks, double *values, size_t count)
{
    return esper_ranks_sum(ranks, values, count);
}

esper_status esper_trainer_join(esper_trainer *trainer, esper_comm *comm)
{
    esper_plan_net plan_net;
    esper_plan_desc desc;
    bool alike;

    ESPER_TRY(esper_ranks_init(&trainer->ranks, comm, &trainer->slab));
    if (!esper_ranks_are_many(&trainer->ranks))
        return ESPER_OK;
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_share(trainer->samplers[split], (uint32_t)trainer->ranks.rank, (uint32_t)trainer->ranks.size);
    ESPER_TRY(check_shares(trainer));
    if (trainer->config.sync_norm)
        trainer->exchange = (esper_exchange){.sum = sum_over_ranks, .context = &trainer->ranks};
    plan_net = describe_net(trainer);
    desc = describe_plan(trainer, &plan_net);
    ESPER_TRY(esper_plan_reopen(&desc, &trainer->plan));
    ESPER_TRY(esper_ranks_are_alike(&trainer->ranks, esper_trainer_hash(trainer), &alike));
    return alike ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "the ranks begin with different weights");
}

void esper_trainer_fini(esper_trainer *trainer)
{
    esper_ranks_fini(&trainer->ranks);
    esper_side_close_all(trainer->side);
    esper_optim_close(trainer->optim);
    esper_mem_free(trainer->detour.passed);
    esper_mem_free(trainer->sample_ids);
    esper_plan_close(trainer->plan);
    esper_slab_fini(&trainer->slab);
    esper_net_fini(&trainer->net);
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_close(trainer->samplers[split]);
    if (!trainer->borrows_data)
        esper_dataset_close(trainer->data);
    esper_backend_close(trainer->backend);
    esper_pool_close(trainer->pool);
    memset(trainer, 0, sizeof(*trainer));
}

/* ------------------------------------------------------------------------------------------------ a batch */

void esper_trainer_load(esper_trainer *trainer, const esper_plan *plan, const esper_net *net, esper_split split,
                        uint32_t batch)
{
    const esper_sampler *sampler = trainer->samplers[split];
    void *input = esper_plan_data(plan, 0, net->input);
    bool images = trainer->host.topology == ESPER_TOPOLOGY_CNN;
    int inputs[ESPER_MAX_SLOTS];
    esper_batch dest = {
        .images = images ? input : NULL,
        .tokens = images ? NULL : input,
        .targets = esper_plan_data(plan, 0, net->target),
        .ids = trainer->sample_ids,
    };

    memcpy(inputs, trainer->alpha_input, sizeof(inputs));
    esper_batch_fill(sampler, batch, trainer->pool, &dest);
    trainer->pass.n_samples = (int32_t)esper_sampler_batch_count(sampler, batch);
    trainer->pass.training = split == ESPER_SPLIT_TRAIN;
    trainer->pass.step = (uint32_t)trainer->cursor.step;
    trainer->n_loaded = esper_sampler_batch_total(sampler, batch);
    trainer->pass.loss_scale = 1.0f / ((float)trainer->n_loaded * (float)net->tensors[net->target].count);
    if (net != &trainer->net) /* another program of the same slots */
        esper_splice_find_alphas(&trainer->splice, net, inputs);
    esper_splice_fill_alphas(&trainer->splice, inputs, plan, trainer->pass.n_samples);
}

static void load_batch(esper_trainer *trainer, esper_split split, uint32_t batch)
{
    esper_trainer_load(trainer, trainer->plan, &trainer->net, split, batch);
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
static esper_batch_sums sum_results(const esper_trainer *trainer)
{
    int n = trainer->pass.n_samples;

    return (esper_batch_sums){.loss = sum_in_halves(esper_plan_data(trainer->plan, 0, trainer->net.loss), n),
                              .correct = sum_in_halves(esper_plan_data(trainer->plan, 0, trainer->net.correct), n)};
}

/* Those of an evaluation are added in the order of its samples. */
static void add_results(const esper_trainer *trainer, esper_batch_sums *sums)
{
    const float *loss = esper_plan_data(trainer->plan, 0, trainer->net.loss);
    const float *correct = esper_plan_data(trainer->plan, 0, trainer->net.correct);

    for (int i = 0; i < trainer->pass.n_samples; i++) {
        sums->loss += (double)loss[i];
        sums->correct += (double)correct[i];
    }
}

static void count_batch(const esper_trainer *trainer, esper_tally *tally)
{
    tally->samples += trainer->n_loaded;
    tally->targets += trainer->n_loaded * (uint64_t)trainer->net.tensors[trainer->net.target].count;
}

int esper_finish_epochs(const esper_config *config)
{
    if (config->schedule == ESPER_CONFIG_SCHEDULE_CONSTANT)
        return 0;
    return config->lr_finish < config->epochs ? config->lr_finish : config->epochs;
}

static double rate_now(const esper_trainer *trainer)
{
    const esper_config *config = &trainer->config;
    int finish = esper_finish_epochs(config);
    int before = config->epochs - finish;
    int epochs = config->lr_epochs > 0 ? config->lr_epochs : before;
    esper_schedule schedule = {
        .kind = config->schedule == ESPER_CONFIG_SCHEDULE_COSINE ? ESPER_SCHEDULE_COSINE : ESPER_SCHEDULE_CONSTANT,
        .lr = config->lr,
        .lr_min = config->lr_min,
        .warmup_steps = (uint64_t)llround(config->warmup * trainer->steps_per_epoch),
        .total_steps = (uint64_t)epochs * trainer->steps_per_epoch,
        .finish_from = (uint64_t)before * trainer->steps_per_epoch,
        .finish_steps = (uint64_t)finish * trainer->steps_per_epoch,
    };

    return esper_schedule_lr(&schedule, trainer->cursor.step);
}

/* A seed in TRAINING is young whatever the age of the host: it learns at the full rate, and at the host's from then on. */
static double seed_rate(const esper_trainer *trainer, int slot)
{
    bool young = trainer->slots.slot[slot].stage == ESPER_STAGE_TRAINING;
    double rate = young ? trainer->config.lr * trainer->detour.lr_scale : trainer->lr;

    return rate * trainer->config.seed_lr;
}

/* ------------------------------------------------------------------------------------------------ a step */

static bool is_passed_over(const esper_trainer *trainer)
{
    const esper_detour *detour = &trainer->detour;

    for (uint32_t i = 0; i < detour->n_passed; i++)
        if (detour->passed[i].batch == trainer->cursor.batch && detour->passed[i].epoch == trainer->cursor.epoch &&
            detour->passed[i].draw == detour->draw)
            return true;
    return false;
}

bool esper_trainer_batch_due(esper_trainer *trainer)
{
    while (trainer->cursor.batch < trainer->steps_per_epoch && is_passed_over(trainer))
        trainer->cursor.batch++;
    return trainer->cursor.batch < trainer->steps_per_epoch;
}

esper_status esper_trainer_gradients(esper_trainer *trainer)
{
    if (trainer->optim == NULL || trainer->cursor.batch >= trainer->steps_per_epoch)
        return ESPER_FAIL(ESPER_E_STATE, "no training step is due");
    if (!trainer->epoch_drawn) {
        esper_sampler_redraw(trainer->samplers[ESPER_SPLIT_TRAIN], trainer->cursor.epoch, trainer->detour.draw);
        trainer->epoch_drawn = true;
    }
    load_batch(trainer, ESPER_SPLIT_TRAIN, trainer->cursor.batch);
    esper_side_take_targets(trainer);
    ESPER_TRY(esper_plan_gradients(trainer->plan));
    ESPER_TRY(esper_backend_sync(trainer->backend));
    trainer->sums = sum_results(trainer);
    return esper_side_gradients(trainer);
}

/* The host's and those with a seed in them, whether it learns or not. */
static uint64_t regions_in_use(const esper_trainer *trainer)
{
    uint64_t regions = 1;

    for (int k = 0; k < trainer->slots.n && k + 1 < trainer->slab.n_regions; k++)
        if (esper_splice_has_seed(&trainer->splice, k))
            regions |= (uint64_t)1 << (k + 1);
    return regions;
}

esper_status esper_trainer_exchange(esper_trainer *trainer)
{
    double share = (double)trainer->pass.n_samples / trainer->n_loaded;

    return esper_ranks_exchange(&trainer->ranks, &trainer->slab, regions_in_use(trainer), share, &trainer->sums);
}

esper_status esper_trainer_apply(esper_trainer *trainer)
{
    trainer->lr = rate_now(trainer) * trainer->detour.lr_scale;
    esper_optim_group(trainer->optim, 0, 0)->lr = (float)trainer->lr;
    for (int r = 1; r < trainer->slab.n_regions; r++)
        esper_optim_group(trainer->optim, 0, r)->lr = (float)seed_rate(trainer, r - 1);
    ESPER_TRY(esper_optim_step(trainer->optim));
    ESPER_TRY(esper_backend_sync(trainer->backend));
    trainer->tally.loss += trainer->sums.loss;
    trainer->tally.correct += (uint64_t)trainer->sums.correct;
    count_batch(trainer, &trainer->tally);
    trainer->grad_norm = esper_optim_norm(trainer->optim, 0, 0);
    trainer->cursor.batch++;
    trainer->cursor.step++;
    return ESPER_OK;
}

esper_status esper_trainer_step(esper_trainer *trainer)
{
    if (trainer->cursor.batch < trainer->steps_per_epoch && !esper_trainer_batch_due(trainer))
        return ESPER_OK;
    ESPER_TRY(esper_trainer_gradients(trainer));
    ESPER_TRY(esper_trainer_exchange(trainer));
    return esper_trainer_apply(trainer);
}

/* ------------------------------------------------------------------------------------------------ detours */

esper_status esper_trainer_pass_over(esper_trainer *trainer, uint32_t epoch, uint32_t batch)
{
    esper_detour *detour = &trainer->detour;

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

void esper_trainer_forget_before(esper_trainer *trainer, const esper_cursor *cursor)
{
    esper_detour *detour = &trainer->detour;
    uint32_t n = 0;

    for (uint32_t i = 0; i < detour->n_passed; i++) {
        esper_place place = detour->passed[i];

        if (place.epoch > cursor->epoch || (place.epoch == cursor->epoch && place.batch >= cursor->batch))
            detour->passed[n++] = place;
    }
    detour->n_passed = n;
}

void esper_trainer_redraw(esper_trainer *trainer, uint32_t draw)
{
    trainer->detour.draw = draw % ESPER_SAMPLER_DRAWS;
    trainer->epoch_drawn = false;
}

void esper_trainer_position(const esper_trainer *trainer, esper_position *position_out)
{
    memset(position_out, 0, sizeof(*position_out));
    position_out->cursor = trainer->cursor;
    position_out->tally = trainer->tally;
    for (int r = 0; r < trainer->slab.n_regions; r++)
        position_out->ages[r] = esper_optim_group(trainer->optim, 0, r)->t;
    position_out->slots = trainer->slots;
}

esper_status esper_trainer_go_back(esper_trainer *trainer, const esper_position *position)
{
    trainer->cursor = position->cursor;
    trainer->tally = position->tally;
    trainer->epoch_drawn = false;
    for (int r = 0; r < trainer->slab.n_regions; r++)
        esper_optim_group(trainer->optim, 0, r)->t = position->ages[r];
    trainer->slots = position->slots;
    return esper_trainer_replan(trainer);
}

void esper_trainer_next_epoch(esper_trainer *trainer)
{
    trainer->cursor.epoch++;
    trainer->cursor.batch = 0;
    trainer->tally = (esper_tally){0};
    trainer->epoch_drawn = false;
}

esper_status esper_trainer_evaluate(esper_trainer *trainer, esper_split split, const esper_follower *follower,
                                    esper_tally *tally_out)
{
    static const esper_follower nobody;
    uint32_t n = esper_trainer_batches(trainer, split);
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
        load_batch(trainer, split, batch);
        count_batch(trainer, &tally);
        if (trainer->pass.n_samples == 0)
            continue;
        trainer->pass.training = false;
        ESPER_TRY(esper_plan_forward(trainer->plan));
        ESPER_TRY(esper_backend_sync(trainer->backend));
        add_results(trainer, &sums);
    }
    both[0] = sums.loss;
    both[1] = sums.correct;
    ESPER_TRY(esper_ranks_sum(&trainer->ranks, both, 2));
    tally.loss = both[0];
    tally.correct = (uint64_t)both[1];
    *tally_out = tally;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_memory esper_trainer_memory(const esper_trainer *trainer)
{
    esper_plan_stats plan = esper_plan_stats_of(trainer->plan);
    const esper_slab *slab = &trainer->slab;
    esper_memory memory = {
        .data = (size_t)esper_dataset_bytes(trainer->data),
        .slab = slab->bytes,
        .activations = plan.arena_bytes + esper_side_bytes(trainer),
        .tables = plan.table_bytes + (size_t)trainer->config.batch * sizeof(*trainer->sample_ids) +
                  trainer->ranks.room * sizeof(*trainer->ranks.bucket),
    };

    for (int split = 0; split < ESPER_N_SPLITS; split++)
        memory.tables += (size_t)esper_sampler_predict_bytes(esper_dataset_count(trainer->data, (esper_split)split));
    if (trainer->optim != NULL)
        memory.tables += esper_optim_bytes(&slab, 1);
    memory.total = memory.data + memory.slab + memory.activations + memory.tables;
    return memory;
}

double esper_trainer_plan_flops(const esper_trainer *trainer, const esper_plan *plan)
{
    esper_plan_stats stats = esper_plan_stats_of(plan);

    return (stats.forward.flops + stats.backward.flops) * trainer->config.batch / esper_trainer_max_samples(trainer);
}

double esper_trainer_step_flops(const esper_trainer *trainer)
{
    return esper_trainer_plan_flops(trainer, trainer->plan) + esper_side_flops(trainer);
}

uint32_t esper_trainer_n_loaded(const esper_trainer *trainer)
{
    return trainer->n_loaded;
}

int64_t esper_trainer_params(const esper_trainer *trainer)
{
    int64_t n = esper_net_count_params(&trainer->net, 0);

    for (int k = 0; k < trainer->slots.n; k++)
        if (trainer->slots.slot[k].stage != ESPER_STAGE_TRAINING)
            n += esper_net_count_params(&trainer->net, k + 1);
    return n;
}

uint64_t esper_trainer_hash(const esper_trainer *trainer)
{
    return esper_weight_hash(&trainer->net, &trainer->slab);
}
