/* esper bench ranks: what the exchange of gradients takes of a training step. Every rank runs it; rank 0 prints. */
#include <assert.h>
#include <stdio.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/task.h"
#include "run/single.h"
#include "ui/terminal.h"

enum { WARM_STEPS = 5, STEPS = 200, QUICK_STEPS = 3 };

static const double deadline_s = 30.0;

/* A network of 99,922 parameters on 3x32x32 images, batches of 128 over all ranks. */
static const char settings[] = "batch = 128\nblocks = 5\nchannels = 8\nclip = 0\n";

/* In seconds, medians. */
typedef struct ranks_times {
    double step, exchange, wait; /* the exchange itself; waiting for ranks that are not there yet */
} ranks_times;

static esper_status time_step(esper_network *network, ranks_times *times_out)
{
    double began, computed, met, exchanged;

    if (network->cursor.batch >= network->engine->steps_per_epoch)
        esper_network_next_epoch(network);
    began = esper_clock_seconds();
    ESPER_TRY(esper_network_gradients(network));
    computed = esper_clock_seconds();
    ESPER_TRY(esper_comm_barrier(
        network->engine->ranks.comm)); /* else the exchange would be charged with the slowest rank's lag */
    met = esper_clock_seconds();
    ESPER_TRY(esper_network_exchange(network));
    exchanged = esper_clock_seconds();
    ESPER_TRY(esper_network_apply(network));
    *times_out =
        (ranks_times){.step = esper_clock_seconds() - began, .exchange = exchanged - met, .wait = met - computed};
    return ESPER_OK;
}

static esper_status measure(esper_network *network, int n_steps, ranks_times *times_out)
{
    double values[3][STEPS];
    ranks_times times;

    assert(n_steps > 0);
    network->budget = 0; /* as many steps as it takes */
    for (int i = -WARM_STEPS; i < n_steps; i++) {
        ESPER_TRY(time_step(network, &times));
        if (i < 0)
            continue;
        values[0][i] = times.step;
        values[1][i] = times.exchange;
        values[2][i] = times.wait;
    }
    *times_out = (ranks_times){.step = esper_bench_quantile(values[0], n_steps, 0.5),
                               .exchange = esper_bench_quantile(values[1], n_steps, 0.5),
                               .wait = esper_bench_quantile(values[2], n_steps, 0.5)};
    return ESPER_OK;
}

static size_t count_numbers(const esper_network *network)
{
    return (size_t)esper_slab_count(&network->slab, ESPER_FAMILY_GRAD) + network->engine->ranks.room;
}

static void print_line(const esper_network *network, const ranks_times *times, const esper_bench_request *request)
{
    int n_ranks = esper_comm_size(network->engine->ranks.comm);
    double share = 100.0 * times->exchange / times->step;
    char text[512];
    esper_json out;

    if (!request->json) {
        esper_terminal_print(
            stdout,
            "ranks.exchange %8.3f %% of a step of %.2f ms: %.1f us for %zu numbers, and %.1f us of waiting for the slowest; "
            "%d rank%s%s\n",
            share, 1e3 * times->step, 1e6 * times->exchange, count_numbers(network), 1e6 * times->wait, n_ranks,
            n_ranks == 1 ? "" : "s", request->quick ? "   quick" : "");
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, "ranks.exchange");
    esper_json_key(&out, "value"), esper_json_real(&out, share);
    esper_json_key(&out, "unit"), esper_json_text(&out, "% of step");
    esper_json_key(&out, "step_ms"), esper_json_real(&out, 1e3 * times->step);
    esper_json_key(&out, "exchange_us"), esper_json_real(&out, 1e6 * times->exchange);
    esper_json_key(&out, "wait_us"), esper_json_real(&out, 1e6 * times->wait);
    esper_json_key(&out, "floats"), esper_json_int(&out, (int64_t)count_numbers(network));
    esper_json_key(&out, "ranks"), esper_json_int(&out, n_ranks);
    esper_json_key(&out, "threads"), esper_json_int(&out, esper_pool_threads(network->engine->pool));
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    if (request->quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
}

static esper_status bench(esper_comm *comm, const esper_bench_request *request)
{
    esper_network *network = NULL;
    esper_engine *engine = NULL;
    esper_dataset_desc desc;
    esper_dataset *data;
    const esper_task *task;
    ranks_times times;
    esper_config config;
    esper_status status;

    ESPER_TRY(esper_bench_configure("synth", settings, request->config, &config, &task));
    desc = esper_task_data(task, &config);
    ESPER_TRY(esper_dataset_open(&desc, &data));
    status = esper_single_engine(task, &config, ESPER_USE_TRAIN, data, 1, &engine);
    if (status == ESPER_OK)
        status = esper_engine_join(engine, comm);
    if (status == ESPER_OK)
        status = esper_network_add(engine, config.seed, NULL, &network);
    if (status == ESPER_OK)
        status = measure(network, request->quick ? QUICK_STEPS : STEPS, &times);
    if (status == ESPER_OK && esper_comm_rank(comm) == 0)
        print_line(network, &times, request);
    esper_network_remove(network);
    esper_engine_close(engine);
    esper_dataset_close(data);
    return status;
}

static esper_status run(esper_bench_request *request)
{
    esper_comm_options options = {.kind = "auto", .deadline_s = deadline_s};
    esper_comm *comm = NULL;
    esper_status status;

    if (!esper_bench_is_wanted(request, "ranks.exchange"))
        return ESPER_OK;
    request->n_run++;
    if (request->device != NULL || request->paced)
        return ESPER_FAIL(ESPER_E_CONFIG, "ranks takes no --device and no --paced");
    status = esper_comm_open(&options, &comm);
    if (status == ESPER_OK && esper_comm_size(comm) == 1)
        status = ESPER_FAIL(ESPER_E_CONFIG, "one rank has nobody to exchange with: start it with mpirun -n 2");
    if (status == ESPER_OK)
        status = bench(comm, request);
    fflush(stdout);
    esper_comm_close(comm);
    return status;
}

const esper_bench_subject esper_bench_ranks = {.name = "ranks", .run = run};
