/* esper bench fleet: several networks as lanes of one plan, on two threads and on one; and how long planning anew takes. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/fleet_gpu.h"
#include "nn/blueprint.h"
#include "nn/host.h"
#include "nn/init.h"
#include "nn/optim.h"
#include "tensor/plan.h"
#include "ui/terminal.h"

enum { MOST_NETS = 4, BATCH = 128, WARM_ROUNDS = 1, ROUNDS = 21, QUICK_ROUNDS = 3, STEPS = 8, REPLANS = 50 };

/* What stands in a network's slot; slot NULL: nothing. */
typedef struct fleet_seed {
    const char *slot, *blueprint;
} fleet_seed;

/* Four topologies: the host alone, and three that have grown apart. */
static const fleet_seed topologies[MOST_NETS] = {
    {NULL, NULL},
    {"r1c0", "conv_light"},
    {"r1c1", "depthwise"},
    {"r0c2", "bottleneck"},
};

/* The plan points into it: it may not be moved once open. */
typedef struct fleet {
    esper_pool    *pool;
    esper_backend *backend;
    int            n_nets;
    esper_net      nets[MOST_NETS];
    esper_slab     slabs[MOST_NETS];
    esper_pass     passes[MOST_NETS];
    esper_plan    *plan;
    esper_optim   *optim;
    uint32_t       sample_ids[BATCH];
} fleet;

/* The seed is part of the stream, as when it has fossilised. */
static int put_seed(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const fleet_seed *seed = context;
    const esper_blueprint *blueprint;
    char prefix[ESPER_SLOT_CHARS + 1];

    if (seed->slot == NULL || strcmp(seed->slot, boundary->slot) != 0)
        return x;
    if (esper_blueprint_find(ESPER_TOPOLOGY_CNN, seed->blueprint, &blueprint) != ESPER_OK)
        return ESPER_NO_TENSOR;
    snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
    esper_net_enter(net, prefix, boundary->order + 1);
    x = esper_blueprint_build(blueprint, net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
    esper_net_enter(net, "", 0);
    return x;
}

static esper_status build_net(esper_net *net, const fleet_seed *seed)
{
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN,
                       .cnn = {.in_channels = 3,
                               .height = 32,
                               .width = 32,
                               .classes = 10,
                               .blocks = 3,
                               .channels = 8,
                               .kernel = 3,
                               .pools = 3},
                       .with_loss = true};
    fleet_seed copy = *seed;
    esper_status status;

    esper_net_init(net);
    net->hook = put_seed;
    net->hook_context = &copy;
    status = esper_host_build(&host, net);
    net->hook_context = NULL;
    return status;
}

static esper_status open_net(fleet *f, int k, const fleet_seed *seed)
{
    assert(k >= 0 && k < MOST_NETS);
    ESPER_TRY(build_net(&f->nets[k], seed));
    ESPER_TRY(esper_slab_init(&f->slabs[k], f->backend, &f->nets[k], &(esper_slab_desc){.n_moments = 1}));
    ESPER_TRY(esper_init_net(&f->nets[k], &f->slabs[k], 1, (uint32_t)k, -1));
    f->passes[k] = (esper_pass){
        .n_samples = BATCH, .training = true, .loss_scale = 1.0f / BATCH, .seed = 1, .sample_id = f->sample_ids};
    return ESPER_OK;
}

static esper_status open_plan(fleet *f)
{
    esper_plan_net nets[MOST_NETS];
    esper_plan_desc desc = {
        .backend = f->backend, .nets = nets, .n_nets = f->n_nets, .max_samples = BATCH, .training = true};

    for (int k = 0; k < f->n_nets; k++)
        nets[k] = (esper_plan_net){.net = &f->nets[k], .slab = &f->slabs[k], .pass = &f->passes[k]};
    return esper_plan_reopen(&desc, &f->plan);
}

/* Some data: what stands there does not matter to the time, but it should be of the usual size. */
static esper_status fill(fleet *f)
{
    int64_t count = f->nets[0].tensors[f->nets[0].input].count * BATCH;
    float *images = esper_mem_alloc((size_t)count * sizeof(*images));
    int32_t targets[BATCH];
    esper_status status = ESPER_OK;

    if (images == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a batch");
    for (int64_t i = 0; i < count; i++)
        images[i] = (float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1.0f;
    for (int i = 0; i < BATCH; i++)
        targets[i] = i % 10;
    for (int k = 0; k < f->n_nets && status == ESPER_OK; k++) {
        status = esper_plan_write(f->plan, NULL, k, f->nets[k].input, images, BATCH);
        if (status == ESPER_OK)
            status = esper_plan_write(f->plan, NULL, k, f->nets[k].target, targets, BATCH);
    }
    esper_mem_free(images);
    return status;
}

static esper_status open_fleet(fleet *f, int n_threads, int n_nets, const fleet_seed *seeds)
{
    const esper_slab *slabs[MOST_NETS];
    esper_optim_desc optim = {.slabs = slabs,
                              .n_slabs = n_nets,
                              .kind = ESPER_OP_SGD,
                              .settings = {.lr = 0.01f, .momentum = 0.9f, .decay = 5e-4f}};

    assert(n_nets > 0 && n_nets <= MOST_NETS);
    *f = (fleet){.n_nets = n_nets};
    ESPER_TRY(esper_pool_open(n_threads, &f->pool));
    ESPER_TRY(esper_backend_open("cpu", f->pool, &f->backend));
    for (int k = 0; k < n_nets; k++) {
        ESPER_TRY(open_net(f, k, &seeds[k]));
        slabs[k] = &f->slabs[k];
    }
    ESPER_TRY(open_plan(f));
    ESPER_TRY(fill(f));
    optim.backend = f->backend;
    return esper_optim_open(&optim, &f->optim);
}

static void close_fleet(fleet *f)
{
    esper_optim_close(f->optim);
    esper_plan_close(f->plan);
    for (int k = 0; k < f->n_nets; k++) {
        esper_slab_fini(&f->slabs[k]);
        esper_net_fini(&f->nets[k]);
    }
    esper_backend_close(f->backend);
    esper_pool_close(f->pool);
}

static esper_status step(fleet *f, double *seconds_out)
{
    double began = esper_clock_seconds();

    ESPER_TRY(esper_plan_gradients(f->plan));
    ESPER_TRY(esper_optim_step(f->optim));
    ESPER_TRY(esper_backend_sync(f->backend));
    *seconds_out = esper_clock_seconds() - began;
    return ESPER_OK;
}

/* Steps that follow each other, as in training: threads that have slept through the other fleet's turn are awake. */
static esper_status median_step(fleet *f, double *seconds_out)
{
    double seconds[STEPS];

    for (int i = 0; i < STEPS; i++)
        ESPER_TRY(step(f, &seconds[i]));
    *seconds_out = esper_bench_quantile(seconds, STEPS, 0.5);
    return ESPER_OK;
}

static void print_line(const esper_bench_request *request, const char *name, double value, const char *unit,
                       double limit, const char *limit_is)
{
    char text[512];
    esper_json out;

    if (!request->json) {
        esper_terminal_print(stdout, "%-18s %8.3f %-6s limit %8.3f (%s)\n", name, value, unit, limit, limit_is);
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, unit);
    esper_json_key(&out, "limit"), esper_json_real(&out, limit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, value / limit);
    esper_json_key(&out, "limit_is"), esper_json_text(&out, limit_is);
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

/* Steps of `wide` on two threads and of `narrow` on one, in turn: how many times as many samples a second. */
static esper_status compare(fleet *wide, fleet *narrow, int n_rounds, double *times_out)
{
    double ratios[ROUNDS], on_all, on_one;

    assert(n_rounds > 0 && n_rounds <= ROUNDS);
    for (int i = -WARM_ROUNDS; i < n_rounds; i++) {
        ESPER_TRY(median_step(wide, &on_all));
        ESPER_TRY(median_step(narrow, &on_one));
        if (i >= 0)
            ratios[i] = wide->n_nets / on_all / (narrow->n_nets / on_one);
    }
    *times_out = esper_bench_quantile(ratios, n_rounds, 0.5);
    return ESPER_OK;
}

/* n networks on two threads beside n_alone of them on one. */
static esper_status bench_lanes(esper_bench_request *request, const char *name, int n_nets, int n_alone,
                                const fleet_seed *seeds)
{
    static fleet wide, narrow;
    double times = 0;
    esper_status status = open_fleet(&wide, 2, n_nets, seeds);

    if (status == ESPER_OK) {
        status = open_fleet(&narrow, 1, n_alone, seeds);
        if (status == ESPER_OK)
            status = compare(&wide, &narrow, request->quick ? QUICK_ROUNDS : ROUNDS, &times);
        close_fleet(&narrow);
    }
    close_fleet(&wide);
    if (status == ESPER_OK)
        print_line(request, name, times, "times", 2.0, "two threads for one");
    return status;
}

/* From a host to the same host with a seed and back, by turns: what a splice costs between two steps. */
static esper_status bench_replan(esper_bench_request *request, const char *name)
{
    static fleet f;
    double times[REPLANS], unused;
    esper_status status = open_fleet(&f, 2, 1, &topologies[1]);

    for (int i = 0; i < REPLANS && status == ESPER_OK; i++) {
        double began = esper_clock_seconds();

        esper_net_fini(&f.nets[0]);
        status = build_net(&f.nets[0], &topologies[i % 2]);
        if (status == ESPER_OK)
            status = open_plan(&f);
        times[i] = 1e3 * (esper_clock_seconds() - began);
        if (status == ESPER_OK) {
            status = fill(&f);
            if (status == ESPER_OK)
                status = step(&f, &unused);
        }
    }
    if (status == ESPER_OK)
        print_line(request, name, esper_bench_quantile(times, REPLANS, 0.5), "ms", 1.0, "the goal");
    close_fleet(&f);
    return status;
}

static esper_status run(esper_bench_request *request)
{
    static const fleet_seed alike[2] = {{NULL, NULL}, {NULL, NULL}};
    static const char *const names[] = {"fleet.two", "fleet.four", "fleet.replan"};

    if (request->config->backend == ESPER_CONFIG_BACKEND_CUDA)
        return esper_bench_fleet_gpu(request);
    for (int i = 0; i < 3; i++) {
        if (!esper_bench_is_wanted(request, names[i]))
            continue;
        request->n_run++;
        if (request->paced || request->device != NULL)
            return ESPER_FAIL(ESPER_E_CONFIG, "fleet takes neither --device nor --paced");
        ESPER_TRY(i == 0   ? bench_lanes(request, names[i], 2, 1, alike)
                  : i == 1 ? bench_lanes(request, names[i], MOST_NETS, MOST_NETS, topologies)
                           : bench_replan(request, names[i]));
    }
    return ESPER_OK;
}

const esper_bench_subject esper_bench_fleet = {.name = "fleet", .run = run};
