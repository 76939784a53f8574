/* esper bench train: training steps of small networks, beside what the processor's multiply-add units would allow. */
#include <assert.h>
#include <stdio.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/cpu_peak.h"
#include "bench/task.h"
#include "run/single.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { AHEAD = ESPER_NETWORK_ROWS, WARM_STEPS = 5, MAX_STEPS = 400, PACED_WARM_STEPS = 1, LEAST_STEPS = 3 };

static const double least_seconds = 2.0, quick_seconds = 0.1, paced_seconds = 0.5;

typedef struct bench_case {
    const char *name, *unit;
    const char *task;
    const char *settings; /* "key value" pairs, NULL at the end */
    int         per_sample; /* what a sample counts: tokens of a sequence, or 1 */
} bench_case;

/* The networks that comparisons are made with: 3x32x32 images, batches of 128; sequences of 128 bytes, batches of 16. */
static const bench_case cases[] = {
    {"train.cnn_small", "samples/s", "synth", "batch = 128\nblocks = 3\nchannels = 8\nclip = 0\n", 1},
    {"train.cnn_100k", "samples/s", "synth", "batch = 128\nblocks = 5\nchannels = 8\nclip = 0\n", 1},
    {"train.lm_tiny", "tokens/s", "synth_text",
     "batch = 16\nlayers = 4\nwidth = 128\nheads = 4\ncontext = 128\nsegments = 2\nclip = 0\n", 128},
    {"train.cnn_wide", "samples/s", "synth", "batch = 128\nblocks = 3\nchannels = 32\nclip = 0\n", 1},
    {"train.lm_384", "tokens/s", "synth_text",
     "batch = 16\nlayers = 4\nwidth = 384\nheads = 6\ncontext = 128\nsegments = 2\nclip = 0\n", 128},
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

/* One step, or on a backend that is behind as many as are read together: nobody waits between them in a run. */
static esper_status take_steps(esper_network *network, int *n_out)
{
    *n_out = esper_backend_is_behind(network->engine->backend) ? AHEAD : 1;
    for (int i = 0; i < *n_out; i++) {
        if (network->cursor.batch >= network->engine->steps_per_epoch)
            esper_network_next_epoch(network);
        ESPER_TRY(esper_network_queue_step(network));
    }
    return esper_network_read(network);
}

/* The median time of a training step, data included, over as many as take `least` seconds. */
static esper_status time_steps(esper_network *network, int n_warm, double least, double *seconds_out)
{
    double times[MAX_STEPS], spent = 0.0;
    int n = 0;

    assert(n_warm >= 0 && least >= 0.0);
    network->budget = 0; /* as many steps as it takes */
    for (int i = 0; n < MAX_STEPS && (n < LEAST_STEPS || spent < least); i++) {
        double began = esper_clock_seconds();
        int n_steps;

        ESPER_TRY(take_steps(network, &n_steps));
        if (i < n_warm)
            continue;
        times[n] = (esper_clock_seconds() - began) / n_steps;
        spent += times[n++] * n_steps;
    }
    *seconds_out = esper_bench_quantile(times, n, 0.5);
    return ESPER_OK;
}

static void print_line(const bench_case *bench, double value, double limit, const esper_network *network,
                       const esper_bench_request *request)
{
    char text[512], a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];
    esper_json out;

    if (!request->json) {
        esper_terminal_print(stdout, "%-18s %12s %-10s limit %12s   %5.1f %%%s\n", bench->name,
                             esper_text_count((int64_t)value, a), bench->unit, esper_text_count((int64_t)limit, b),
                             100.0 * value / limit, request->quick ? "   quick" : "");
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, bench->name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, bench->unit);
    esper_json_key(&out, "limit"), esper_json_real(&out, limit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, value / limit);
    esper_json_key(&out, "kernels"), esper_json_text(&out, esper_backend_identity(network->engine->backend));
    esper_json_key(&out, "threads"), esper_json_int(&out, esper_pool_threads(network->engine->pool));
    if (request->quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

/* Once, above the first line. */
static void print_header(const esper_network *network)
{
    esper_terminal_print(stdout,
                         "training with %s, %d thread%s; limit: the multiply-add peak measured in the same run\n",
                         esper_backend_identity(network->engine->backend), esper_pool_threads(network->engine->pool),
                         esper_pool_threads(network->engine->pool) == 1 ? "" : "s");
    fflush(stdout);
}

/* The rate of steps, beside what the peak allows. */
static esper_status measure(const bench_case *bench, esper_network *network, int batch,
                            const esper_bench_request *request)
{
    esper_plan_stats stats = esper_plan_stats_of(network->plan);
    double flops = (stats.forward.flops + stats.backward.flops) / batch, seconds;

    if (request->n_run == 1 && !request->json)
        print_header(network);
    ESPER_TRY(time_steps(network, WARM_STEPS, request->quick ? quick_seconds : least_seconds, &seconds));
    print_line(bench, (double)batch * bench->per_sample / seconds,
               esper_cpu_peak_flops(network->engine->pool) / flops * bench->per_sample, network, request);
    return ESPER_OK;
}

/* A median step for each line of standard input. */
static esper_status measure_paced(const bench_case *bench, esper_network *network, bool quick)
{
    char line[64];
    double seconds;

    ESPER_TRY(time_steps(network, WARM_STEPS, 0.0, &seconds));
    printf("{\"name\":\"%s\",\"ready\":true,\"kernels\":\"%s\",\"threads\":%d,\"commit\":\"%s\"}\n", bench->name,
           esper_backend_identity(network->engine->backend), esper_pool_threads(network->engine->pool),
           esper_build_commit());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        ESPER_TRY(time_steps(network, PACED_WARM_STEPS, quick ? quick_seconds : paced_seconds, &seconds));
        printf("{\"name\":\"%s\",\"value\":%.6f,\"unit\":\"ms\"}\n", bench->name, 1e3 * seconds);
        fflush(stdout);
    }
    return ESPER_OK;
}

static esper_status bench_train(const bench_case *bench, const esper_bench_request *request)
{
    esper_network *network;
    esper_config config;
    const esper_task *task;
    esper_status status;

    ESPER_TRY(esper_bench_configure(bench->task, bench->settings, request->config, &config, &task));
    ESPER_TRY(esper_single_open(task, &config, ESPER_USE_TRAIN, &network));
    status =
        request->paced ? measure_paced(bench, network, request->quick) : measure(bench, network, config.batch, request);
    esper_single_close(network);
    return status;
}

static esper_status run(esper_bench_request *request)
{
    int n_wanted = 0;

    for (int i = 0; i < N_CASES; i++)
        n_wanted += esper_bench_is_wanted(request, cases[i].name);
    if (n_wanted > 0 && request->device != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "train takes no --device");
    if (n_wanted > 1 && request->paced)
        return ESPER_FAIL(ESPER_E_CONFIG, "--paced takes the whole name of one benchmark, '%s' means %d", request->name,
                          n_wanted);
    for (int i = 0; i < N_CASES; i++)
        if (esper_bench_is_wanted(request, cases[i].name)) {
            request->n_run++;
            ESPER_TRY(bench_train(&cases[i], request));
        }
    return ESPER_OK;
}

const esper_bench_subject esper_bench_train = {.name = "train", .run = run};
