/* Small hosts with seeds in them. */
#include "support/small_net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/init.h"

enum { RUN_SEED = 7 };

/* ------------------------------------------------------------------------------------------------ hosts and seeds */

esper_host small_cnn(void)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_CNN,
                        .cnn = {.in_channels = 3,
                                .height = 8,
                                .width = 8,
                                .classes = 5,
                                .blocks = 2,
                                .channels = 4,
                                .kernel = 3,
                                .pools = 2},
                        .with_loss = true};
}

esper_host small_transformer(float dropout)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_TRANSFORMER,
                        .transformer = {.vocab = 11,
                                        .width = 16,
                                        .heads = 2,
                                        .layers = 2,
                                        .context = 8,
                                        .tokens = 6,
                                        .segments = 2,
                                        .dropout = dropout,
                                        .embed_std = 0.02f},
                        .with_loss = true};
}

esper_host small_mlp(float dropout)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_MLP,
                        .mlp = {.features = 7, .classes = 5, .layers = 2, .width = 12, .dropout = dropout},
                        .with_loss = true};
}

esper_host spec_cnn(int blocks, int channels, int kernel, int pools)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_CNN,
                        .cnn = {.in_channels = 3,
                                .height = 32,
                                .width = 32,
                                .classes = 10,
                                .blocks = blocks,
                                .channels = channels,
                                .kernel = kernel,
                                .pools = pools},
                        .with_loss = true};
}

esper_host spec_transformer(void)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_TRANSFORMER,
                        .transformer = {.vocab = 50257,
                                        .width = 384,
                                        .heads = 6,
                                        .layers = 6,
                                        .context = 256,
                                        .segments = 3,
                                        .dropout = 0.1f,
                                        .embed_std = 0.02f},
                        .with_loss = true};
}

const char *small_mode_name(small_mode mode)
{
    static const char *const names[SMALL_N_MODES] = {"training", "add", "add isolated", "multiply", "gate"};

    return names[mode];
}

static const small_seed *seed_at(const small_grown *grown, const char *slot)
{
    for (const small_seed *seed = grown->seeds; seed != NULL && seed->slot != NULL; seed++)
        if (strcmp(seed->slot, slot) == 0)
            return seed;
    return NULL;
}

static int put_into_stream(esper_net *net, const small_seed *seed, int h, int u, int s)
{
    int one = 1;
    int alpha = seed->mode == SMALL_TRAINING ? ESPER_NO_TENSOR : esper_net_input(net, "alpha", ESPER_F32, 1, &one);

    switch (seed->mode) {
    case SMALL_TRAINING:
        return esper_net_straight_through(net, h, s);
    case SMALL_MULTIPLY:
        return esper_net_blend_mul(net, h, s, u, alpha);
    case SMALL_GATE:
        return esper_net_blend_gate(net, h, s, esper_gate_build(net, u), alpha);
    default:
        return esper_net_blend_add(net, h, s, alpha);
    }
}

int small_hook(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const small_grown *grown = context;
    const small_seed *seed = seed_at(grown, boundary->slot);
    const esper_blueprint *blueprint;
    char prefix[ESPER_SLOT_CHARS + 2];
    int u;

    if (seed == NULL)
        return x;
    if (esper_blueprint_find(grown->topology, seed->blueprint, &blueprint) != ESPER_OK)
        return ESPER_NO_TENSOR;
    snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
    esper_net_enter(net, prefix, boundary->order + 1);
    u = seed->mode == SMALL_TRAINING || seed->mode == SMALL_ADD_ISOLATED ? esper_net_isolate(net, x) : x;
    return put_into_stream(
        net, seed, x, u,
        esper_blueprint_build(
            blueprint, net, u,
            (esper_blueprint_how){.blend = seed->mode == SMALL_MULTIPLY ? ESPER_BLEND_MULTIPLY : ESPER_BLEND_ADD}));
}

esper_status small_build(esper_net *net, const esper_host *host, const small_seed *seeds)
{
    small_grown grown = {host->topology, seeds};
    esper_status status;

    esper_net_init(net);
    net->hook = seeds != NULL ? small_hook : NULL;
    net->hook_context = &grown;
    status = esper_host_build(host, net);
    net->hook_context = NULL;
    return status;
}

char *small_text(const esper_net *net)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);

    assert_non_null(stream);
    esper_net_print(net, stream);
    fclose(stream);
    return text;
}

/* ------------------------------------------------------------------------------------------------ any net, to run */

void small_run_open(small_run *run, const char *backend, int n_samples, bool training)
{
    small_run_open_on(run, backend, 1, n_samples, training);
}

void small_run_open_on(small_run *run, const char *backend, int n_threads, int n_samples, bool training)
{
    esper_slab_desc slab = {.n_moments = training ? 1 : 0};
    esper_plan_net net = {.net = &run->net, .slab = &run->slab, .pass = &run->pass};

    if (esper_net_status(&run->net) != ESPER_OK)
        fail_msg("net: %s", esper_last_error());
    assert_int_equal(esper_pool_open(n_threads, &run->pool), ESPER_OK);
    assert_int_equal(esper_backend_open(backend, run->pool, &run->backend), ESPER_OK);
    assert_int_equal(esper_slab_init(&run->slab, run->backend, &run->net, &slab), ESPER_OK);
    esper_init_net(&run->net, &run->slab, RUN_SEED, 0, -1);
    run->pass = (esper_pass){.n_samples = n_samples, .training = training, .loss_scale = 1.0f};
    if (esper_plan_open(&(esper_plan_desc){run->backend, &net, 1, n_samples, training, NULL}, &run->plan) != ESPER_OK)
        fail_msg("plan: %s", esper_last_error());
}

void small_run_close(small_run *run)
{
    esper_plan_close(run->plan);
    esper_slab_fini(&run->slab);
    esper_net_fini(&run->net);
    esper_backend_close(run->backend);
    esper_pool_close(run->pool);
}

/* ------------------------------------------------------------------------------------------------ fleets */

static esper_status open_member(small_member *member, esper_backend *backend, const small_desc *desc, int k)
{
    esper_slab_desc slab = {.n_moments = desc->inference ? 0 : 2};
    esper_status status = small_build(&member->net, &desc->host, desc->seeds[k]);

    if (status != ESPER_OK)
        return status;
    status = esper_slab_init(&member->slab, backend, &member->net, &slab);
    if (status != ESPER_OK)
        return status;
    esper_init_net(&member->net, &member->slab, RUN_SEED, desc->network[k], -1);
    member->pass = (esper_pass){.n_samples = SMALL_SAMPLES,
                                .training = !desc->inference,
                                .seed = RUN_SEED,
                                .network = desc->network[k],
                                .sample_id = member->sample_id};
    return ESPER_OK;
}

static esper_status open_plan(small_fleet *fleet, const small_desc *desc)
{
    esper_plan_net nets[SMALL_MAX_NETS];
    esper_plan_desc plan = {.backend = fleet->backend,
                            .nets = nets,
                            .n_nets = fleet->n_nets,
                            .max_samples = SMALL_SAMPLES,
                            .training = !desc->inference};

    for (int k = 0; k < fleet->n_nets; k++)
        nets[k] = (esper_plan_net){
            .net = &fleet->members[k].net, .slab = &fleet->members[k].slab, .pass = &fleet->members[k].pass};
    return esper_plan_open(&plan, &fleet->plan);
}

static esper_status open_optim(small_fleet *fleet, const small_desc *desc)
{
    const esper_slab *slabs[SMALL_MAX_NETS];
    esper_optim_desc optim = {
        .backend = fleet->backend,
        .slabs = slabs,
        .n_slabs = fleet->n_nets,
        .kind = desc->optimiser != 0 ? desc->optimiser : ESPER_OP_SGD,
        .settings = {
            .lr = 0.01f, .momentum = 0.9f, .decay = 5e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .clip = 1.0f}};

    for (int k = 0; k < fleet->n_nets; k++)
        slabs[k] = &fleet->members[k].slab;
    return esper_optim_open(&optim, &fleet->optim);
}

static esper_status open_all(small_fleet *fleet, const small_desc *desc)
{
    esper_status status = esper_pool_open(desc->n_threads, &fleet->pool);

    if (status == ESPER_OK)
        status = esper_backend_open(desc->backend, fleet->pool, &fleet->backend);
    for (int k = 0; k < desc->n_nets && status == ESPER_OK; k++) {
        fleet->n_nets = k + 1;
        status = open_member(&fleet->members[k], fleet->backend, desc, k);
    }
    if (status == ESPER_OK)
        status = open_plan(fleet, desc);
    if (status == ESPER_OK && !desc->inference)
        status = open_optim(fleet, desc);
    return status;
}

esper_status small_fleet_open(small_fleet *fleet, const small_desc *desc)
{
    esper_status status;

    *fleet = (small_fleet){0};
    status = open_all(fleet, desc);
    if (status != ESPER_OK)
        small_fleet_close(fleet);
    return status;
}

void small_fleet_close(small_fleet *fleet)
{
    esper_optim_close(fleet->optim);
    esper_plan_close(fleet->plan);
    for (int k = 0; k < fleet->n_nets; k++) {
        esper_slab_fini(&fleet->members[k].slab);
        esper_net_fini(&fleet->members[k].net);
    }
    esper_backend_close(fleet->backend);
    esper_pool_close(fleet->pool);
    *fleet = (small_fleet){0};
}

static bool is_alpha(const esper_tensor *tensor)
{
    return strstr(tensor->name, ".alpha") != NULL;
}

/* Numbers are noise, ids any of the `n_ids`, alphas 0.3. A few at a time, without taking memory. */
static void fill_input(small_fleet *fleet, float *to, const esper_tensor *tensor, esper_rng *rng, int n_ids,
                       int64_t count)
{
    union {
        float   number[256];
        int32_t id[256];
    } part;

    for (int64_t first = 0, n; first < count; first += n) {
        n = count - first < 256 ? count - first : 256;
        for (int64_t i = 0; i < n; i++)
            if (tensor->dtype == ESPER_I32)
                part.id[i] = (int32_t)esper_rng_below(rng, (uint32_t)n_ids);
            else
                part.number[i] = is_alpha(tensor) ? 0.3f : esper_rng_normal(rng);
        if (esper_backend_copy_in(fleet->backend, NULL, to + first, &part, (size_t)n * sizeof(float)) != ESPER_OK)
            fail_msg("%s", esper_last_error());
    }
}

static void fill_member(small_fleet *fleet, int k, uint32_t step)
{
    small_member *member = &fleet->members[k];
    esper_rng_key key = {.seed = RUN_SEED, .purpose = ESPER_RNG_TEST, .network = member->pass.network, .step = step};
    esper_rng rng;
    int64_t targets = 1;

    for (int t = 0; t < member->net.n_tensors; t++) {
        const esper_tensor *tensor = &member->net.tensors[t];
        const esper_tensor *logits = &member->net.tensors[member->net.output];

        if (tensor->role != ESPER_ROLE_INPUT)
            continue;
        key.sample = t == member->net.input ? 0 : 1; /* the same whatever else the network holds */
        esper_rng_init(&rng, &key);
        fill_input(fleet, esper_plan_data(fleet->plan, k, t), tensor, &rng, logits->dim[logits->rank - 1],
                   tensor->count * member->pass.n_samples);
        if (t == member->net.target)
            targets = tensor->count;
    }
    for (int i = 0; i < member->pass.n_samples; i++)
        member->sample_id[i] = step * (uint32_t)member->pass.n_samples + (uint32_t)i;
    member->pass.step = step;
    member->pass.loss_scale = 1.0f / (float)(member->pass.n_samples * targets);
}

void small_fleet_fill(small_fleet *fleet, uint32_t step)
{
    for (int k = 0; k < fleet->n_nets; k++)
        fill_member(fleet, k, step);
}

esper_status small_fleet_step(small_fleet *fleet, uint32_t step)
{
    esper_status status;

    small_fleet_fill(fleet, step);
    status = esper_plan_forward(fleet->plan);
    if (status == ESPER_OK)
        status = esper_plan_backward(fleet->plan);
    if (status == ESPER_OK)
        status = esper_optim_step(fleet->optim);
    return status == ESPER_OK ? esper_backend_sync(fleet->backend) : status;
}

double small_fleet_loss(const small_fleet *fleet, int k)
{
    const small_member *member = &fleet->members[k];
    float loss[SMALL_SAMPLES];
    double sum = 0.0;

    if (esper_plan_read(fleet->plan, NULL, k, member->net.loss, loss, member->pass.n_samples) != ESPER_OK ||
        esper_backend_sync(fleet->backend) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    for (int i = 0; i < member->pass.n_samples; i++)
        sum += (double)loss[i];
    return sum * (double)member->pass.loss_scale;
}

uint64_t small_fleet_hash(const small_fleet *fleet, int k)
{
    return esper_weight_hash(&fleet->members[k].net, &fleet->members[k].slab);
}

const float *small_fleet_grad(const small_fleet *fleet, int k, const char *name, int64_t *count_out)
{
    const small_member *member = &fleet->members[k];
    int t = esper_net_find(&member->net, name);

    if (t == ESPER_NO_TENSOR)
        return NULL;
    *count_out = member->net.tensors[t].count;
    return esper_slab_at(&member->slab, ESPER_FAMILY_GRAD, &member->net.tensors[t]);
}
