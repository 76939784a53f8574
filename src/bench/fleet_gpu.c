/* esper bench fleet --backend cuda: fleets of an engine's networks on a GPU, each with its own data order, weights and place.
 *
 * What is timed is what a run does between two looks at its results: batches gathered and augmented, passes, the guard's part
 * left out, steps, results read back every sixteen batches. */
#include "bench/fleet_gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/task.h"
#include "device/cuda_driver.h"
#include "engine/set.h"
#include "nn/blueprint.h"
#include "run/single.h"
#include "ui/terminal.h"

enum {
    ROUNDS = 9,
    FEW_ROUNDS = 3,
    QUICK_ROUNDS = 2,
    STEPS = 320,
    FEW_STEPS = 128,
    QUICK_STEPS = 16,
    WARM_STEPS = 64,
    BATCH = 128
};

enum { N_TRAIN = 50000 }; /* as many as CIFAR-10 has: an epoch is 351 steps, and what is timed most of one */

static const char settings[] = "batch = 128\nblocks = 3\nchannels = 8\nclip = 0\n";

/* What grown networks have, in turn: every topology of the list, and pairs of neighbours. */
static const struct {
    const char *slot, *blueprint;
} seeds[] = {
    {"r0c0", "norm"},       {"r0c1", "conv_light"}, {"r1c0", "attention"},  {"r1c1", "depthwise"},
    {"r2c0", "bottleneck"}, {"r2c1", "conv_light"}, {"r0c2", "conv_small"}, {"r1c2", "conv_heavy"},
};

enum { N_SEEDS = sizeof(seeds) / sizeof(seeds[0]) };

typedef struct gpu_fleet {
    esper_dataset  *data;
    esper_engine   *engine;
    esper_network **networks; /* (n) */
    esper_incident *incidents;
    int             n;
    double          flops; /* of a step of all */
} gpu_fleet;

static void close_all(gpu_fleet *f)
{
    for (int i = 0; f->networks != NULL && i < f->n; i++)
        esper_network_remove(f->networks[i]);
    esper_engine_close(f->engine);
    esper_dataset_close(f->data);
    esper_mem_free(f->networks);
    esper_mem_free(f->incidents);
    *f = (gpu_fleet){0};
}

/* A seed where this host has such a slot. */
static esper_status plant(esper_network *network, int which)
{
    int k = esper_slots_find(&network->slots, seeds[which].slot);
    const esper_blueprint *blueprint;

    if (k < 0 || !esper_slot_is_empty(&network->slots.slot[k]))
        return ESPER_OK;
    ESPER_TRY(esper_blueprint_find(ESPER_TOPOLOGY_CNN, seeds[which].blueprint, &blueprint));
    ESPER_TRY(esper_slot_plant(&network->slots.slot[k], blueprint, "add", ESPER_BIRTH_OWN,
                               esper_splice_count_params(blueprint, network->slots.slot[k].channels), 0));
    return esper_network_bear(network, k);
}

/* Network i has seed i / 2 of the list, and every second one that after it. */
static esper_status grow_apart(esper_network *network, int i)
{
    ESPER_TRY(plant(network, i / 2 % N_SEEDS));
    if (i % 2 == 1)
        ESPER_TRY(plant(network, (i / 2 + 1) % N_SEEDS));
    return esper_network_replan(network);
}

static esper_status open_all(const esper_bench_request *request, int n, bool grown, gpu_fleet *f)
{
    esper_config config;
    const esper_task *task;
    esper_dataset_desc data;

    ESPER_TRY(esper_bench_configure("synth", settings, request->config, &config, &task));
    data = esper_task_data(task, &config);
    data.n_train = N_TRAIN;
    ESPER_TRY(esper_dataset_open(&data, &f->data));
    ESPER_TRY(esper_single_engine(task, &config, grown ? ESPER_USE_GROW : ESPER_USE_TRAIN, f->data, 0, &f->engine));
    f->networks = esper_mem_alloc((size_t)n * sizeof(esper_network *));
    f->incidents = esper_mem_alloc((size_t)n * sizeof(*f->incidents));
    if (f->networks == NULL || f->incidents == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet of %d", n);
    for (; f->n < n; f->n++) {
        ESPER_TRY(esper_network_add(f->engine, (uint64_t)f->n + 1, NULL, &f->networks[f->n]));
        if (grown) {
            esper_status status = grow_apart(f->networks[f->n], f->n);

            if (status != ESPER_OK) {
                f->n++;
                return status;
            }
        }
        f->networks[f->n]->budget = 0;
        f->flops += esper_engine_plan_flops(f->engine, f->networks[f->n]->plan);
    }
    return ESPER_OK;
}

/* So many steps of all; epochs follow each other. */
static esper_status step_all(gpu_fleet *f, uint32_t n_steps)
{
    while (n_steps > 0) {
        uint32_t left = f->engine->steps_per_epoch - f->networks[0]->cursor.batch,
                 some = left < n_steps ? left : n_steps;

        if (left == 0) {
            for (int i = 0; i < f->n; i++)
                esper_network_next_epoch(f->networks[i]);
            continue;
        }
        ESPER_TRY(esper_engine_step(f->engine, f->networks, f->n, some, f->incidents));
        n_steps -= some;
    }
    for (int i = 0; i < f->n; i++)
        ESPER_TRY(esper_network_read(f->networks[i]));
    return ESPER_OK;
}

/* fp32 multiply-adds that all multiprocessors can do in a second, at the clock that the driver names. */
static esper_status peak_flops(double *flops_out)
{
    enum { CLOCK_KHZ = 13, MULTIPROCESSORS = 16 };
    int major = 0, minor = 0, khz = 0, n = 0;
    CUdevice device;

    ESPER_TRY(esper_cuda_driver_load());
    ESPER_TRY(ESPER_CUDA(cuDeviceGet, &device, 0));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &khz, CLOCK_KHZ, device));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &n, MULTIPROCESSORS, device));
    *flops_out = 2e3 * khz * n * (major * 10 + minor == 75 || major * 10 + minor == 80 ? 64 : 128);
    return ESPER_OK;
}

/* A step of all, by what the backend has counted. */
typedef struct step_parts {
    double launches, lanes;                 /* lanes of a launch */
    double writing, handing, waiting,
        idle; /* ms: of one thread's page, a round; of all threads, a round; ms of the device, a step */
    double share_idle;                      /* of the device's time */
} step_parts;

static step_parts parts_of(const esper_backend_figures *a, const esper_backend_figures *b, double n_steps)
{
    double rounds = (double)(b->n_rounds - a->n_rounds), pages = (double)(b->n_pages - a->n_pages);
    double launches = (double)(b->n_launches - a->n_launches), all = b->busy - a->busy + b->idle - a->idle;

    return (step_parts){
        .launches = launches / n_steps,
        .lanes = launches > 0.0 ? (double)(b->n_lanes - a->n_lanes) / launches : 0.0,
        .writing = pages > 0.0 ? 1e3 * (b->writing - a->writing) / pages : 0.0,
        .handing = rounds > 0.0 ? 1e3 * (b->handing - a->handing) / rounds : 0.0,
        .waiting = rounds > 0.0 ? 1e3 * (b->waiting - a->waiting) / rounds : 0.0,
        .idle = 1e3 * (b->idle - a->idle) / n_steps,
        .share_idle = all > 0.0 ? (b->idle - a->idle) / all : 0.0,
    };
}

static void print_line(const esper_bench_request *request, const char *name, const gpu_fleet *f, double rate,
                       double spread, double peak, const step_parts *parts)
{
    double flops = rate / BATCH / f->n * f->flops;
    char text[1024];
    esper_json out;

    if (!request->json) {
        esper_terminal_print(stdout, "%-18s %12.0f samples/s (+-%.1f %%)  %6.2f TFLOP/s  %5.1f %% of fp32 peak\n", name,
                             rate, 100.0 * spread, flops * 1e-12, 100.0 * flops / peak);
        esper_terminal_print(
            stdout,
            "%-18s the device idle %.1f %%; %.0f launches a step, of %.1f lanes; a round: a thread writes for %.2f "
            "ms, handing on takes %.2f ms, waiting %.2f ms\n",
            "", 100.0 * parts->share_idle, parts->launches, parts->lanes, parts->writing, parts->handing,
            parts->waiting);
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "value"), esper_json_real(&out, rate);
    esper_json_key(&out, "unit"), esper_json_text(&out, "samples/s");
    esper_json_key(&out, "spread"), esper_json_real(&out, spread);
    esper_json_key(&out, "limit"), esper_json_real(&out, rate * peak / flops);
    esper_json_key(&out, "ratio"), esper_json_real(&out, flops / peak);
    esper_json_key(&out, "tflops"), esper_json_real(&out, flops * 1e-12);
    esper_json_key(&out, "networks"), esper_json_int(&out, f->n);
    esper_json_key(&out, "idle"), esper_json_real(&out, parts->share_idle);
    esper_json_key(&out, "launches"), esper_json_real(&out, parts->launches);
    esper_json_key(&out, "lanes"), esper_json_real(&out, parts->lanes);
    esper_json_key(&out, "writing_ms"), esper_json_real(&out, parts->writing);
    esper_json_key(&out, "handing_ms"), esper_json_real(&out, parts->handing);
    esper_json_key(&out, "waiting_ms"), esper_json_real(&out, parts->waiting);
    esper_json_key(&out, "kernels"), esper_json_text(&out, esper_backend_identity(f->engine->backend));
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

static esper_status measure(const esper_bench_request *request, const char *name, gpu_fleet *f)
{
    int n_rounds = request->quick ? QUICK_ROUNDS : f->n > 100 ? FEW_ROUNDS : ROUNDS;
    int n_steps = request->quick ? QUICK_STEPS : f->n > 100 ? FEW_STEPS : STEPS;
    esper_backend_figures before, after;
    double rates[ROUNDS], peak, median;
    step_parts parts;

    ESPER_TRY(peak_flops(&peak));
    ESPER_TRY(step_all(f, WARM_STEPS));
    esper_backend_figures_get(f->engine->backend, &before);
    for (int round = 0; round < n_rounds; round++) {
        double began = esper_clock_seconds();

        ESPER_TRY(step_all(f, (uint32_t)n_steps));
        rates[round] = (double)n_steps * BATCH * f->n / (esper_clock_seconds() - began);
    }
    esper_backend_figures_get(f->engine->backend, &after);
    parts = parts_of(&before, &after, (double)n_rounds * n_steps);
    median = esper_bench_quantile(rates, n_rounds, 0.5);
    print_line(request, name, f, median, (rates[n_rounds - 1] - rates[0]) / 2.0 / median, peak, &parts);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ changes of topology */

enum {
    CHANGING = 64,
    CHANGES = 3,
    STEPS_BETWEEN = 32,
    CHANGE_STEPS = (CHANGES + 1) * STEPS_BETWEEN,
    CHANGE_ROUNDS = 3
};

/* All step through the better part of an epoch; networks first .. first + n - 1 grow a seed on the way, one after the other. */
typedef struct changes {
    gpu_fleet   *fleet;
    int          first, n;
    double       seconds[CHANGING]; /* that a change took its thread */
    esper_status status[CHANGING];
} changes;

/* The first seed of the list whose slot is there, and empty. */
static int first_empty(const esper_network *network)
{
    int which = 0;

    for (; which < N_SEEDS - 1; which++) {
        int k = esper_slots_find(&network->slots, seeds[which].slot);

        if (k >= 0 && esper_slot_is_empty(&network->slots.slot[k]))
            break;
    }
    return which;
}

static esper_status go_and_change(changes *self, int item)
{
    esper_network *network = self->fleet->networks[item];
    int change_at = item >= self->first && item < self->first + self->n ? STEPS_BETWEEN * (item - self->first + 1) : -1;
    esper_incident incident;

    for (int i = 0; i < CHANGE_STEPS; i++) {
        if (i == change_at) {
            double began;

            ESPER_TRY(esper_network_read(network));
            began = esper_clock_seconds();
            ESPER_TRY(plant(network, first_empty(network)));
            ESPER_TRY(esper_network_replan(network));
            self->seconds[item] = esper_clock_seconds() - began;
        }
        ESPER_TRY(esper_guarded_step(network, &incident));
    }
    return ESPER_OK;
}

static void change_item(void *context, int item, esper_backend_stream *stream)
{
    changes *self = context;
    esper_network *network = self->fleet->networks[item];

    network->stream = stream;
    self->status[item] = go_and_change(self, item);
    network->stream = NULL;
}

/* How long the device was idle between its rounds meanwhile. */
static esper_status go_all(changes *self, int first, int n, double *idle_out)
{
    gpu_fleet *f = self->fleet;
    esper_backend_figures before, after;

    for (int i = 0; i < f->n; i++) {
        ESPER_TRY(esper_network_read(f->networks[i]));
        esper_network_next_epoch(f->networks[i]);
    }
    self->first = first;
    self->n = n;
    esper_backend_figures_get(f->engine->backend, &before);
    esper_engine_each(f->engine, f->n, change_item, self);
    esper_backend_figures_get(f->engine->backend, &after);
    for (int i = 0; i < f->n; i++)
        if (self->status[i] != ESPER_OK)
            return ESPER_FAIL(self->status[i], "network %d of a fleet that changes", i);
    *idle_out = after.idle - before.idle;
    return ESPER_OK;
}

/* In turn without changes and with them. */
static esper_status measure_changes(const esper_bench_request *request, const char *name, gpu_fleet *f)
{
    int n_rounds = request->quick ? 1 : CHANGE_ROUNDS;
    double idle[CHANGE_ROUNDS], host[CHANGE_ROUNDS], without, with;
    changes self = {.fleet = f};
    char text[512];
    esper_json out;

    ESPER_TRY(step_all(f, WARM_STEPS));
    for (int round = 0; round < n_rounds; round++) {
        ESPER_TRY(go_all(&self, 0, 0, &without));
        ESPER_TRY(go_all(&self, round * CHANGES, CHANGES, &with));
        idle[round] = 1e3 * (with - without) / CHANGES;
        host[round] = 1e3 * self.seconds[round * CHANGES];
    }
    with = esper_bench_quantile(idle, n_rounds, 0.5);
    without = esper_bench_quantile(host, n_rounds, 0.5);
    if (!request->json) {
        esper_terminal_print(
            stdout,
            "%-18s %12.3f ms for which the device is idle at a topology change (goal: below 1); planning anew takes "
            "its thread %.2f ms\n",
            name, with, without);
        return ESPER_OK;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "value"), esper_json_real(&out, with);
    esper_json_key(&out, "unit"), esper_json_text(&out, "ms");
    esper_json_key(&out, "limit"), esper_json_real(&out, 1.0);
    esper_json_key(&out, "limit_is"), esper_json_text(&out, "the goal");
    esper_json_key(&out, "ratio"), esper_json_real(&out, with);
    esper_json_key(&out, "replan_ms"), esper_json_real(&out, without);
    esper_json_key(&out, "kernels"), esper_json_text(&out, esper_backend_identity(f->engine->backend));
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
    return ESPER_OK;
}

esper_status esper_bench_fleet_gpu(esper_bench_request *request)
{
    static const struct {
        const char *name;
        int         n;
        bool        grown, changes;
    } cases[] = {{"fleet.gpu1", 1, false, false},
                 {"fleet.gpu16", 16, false, false},
                 {"fleet.gpu64", 64, false, false},
                 {"fleet.gpu64_grown", 64, true, false},
                 {"fleet.gpu64_change", CHANGING, true, true},
                 {"fleet.gpu1024", 1024, false, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gpu_fleet f = {0};
        esper_status status;

        if (!esper_bench_is_wanted(request, cases[i].name))
            continue;
        request->n_run++;
        status = open_all(request, cases[i].n, cases[i].grown, &f);
        if (status == ESPER_OK)
            status =
                cases[i].changes ? measure_changes(request, cases[i].name, &f) : measure(request, cases[i].name, &f);
        close_all(&f);
        ESPER_TRY(status);
    }
    return ESPER_OK;
}
