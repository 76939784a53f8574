/* esper bench: figures beside their limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "tensor/cpu_peak.h"
#include "train/trainer.h"
#include "ui/text.h"

enum { WARM_STEPS = 5, MAX_STEPS = 400 };

static const double least_seconds = 2.0;

typedef struct bench_case {
    const char *name, *unit;
    const char *task;
    const char *settings; /* "key = value" lines laid over the task's */
    int         per_sample; /* what a sample counts: tokens of a sequence, or 1 */
} bench_case;

/* The networks that comparisons are made with: 3x32x32 images, batches of 128; sequences of 128 bytes, batches of 16. */
static const bench_case cases[] = {
    {"train.cnn_small", "samples/s", "synth", "batch = 128\nblocks = 3\nchannels = 8\nclip = 0\n", 1},
    {"train.cnn_100k", "samples/s", "synth", "batch = 128\nblocks = 5\nchannels = 8\nclip = 0\n", 1},
    {"train.lm_tiny", "tokens/s", "synth_text",
     "batch = 16\nlayers = 4\nwidth = 128\nheads = 4\ncontext = 128\nsegments = 2\nclip = 0\n", 128},
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

/* The median time of a training step, data included. */
static esper_status time_steps(esper_trainer *trainer, double *seconds_out)
{
    double times[MAX_STEPS], spent = 0.0;
    int n = 0;

    for (int i = 0; i < WARM_STEPS + MAX_STEPS && spent < least_seconds; i++) {
        double began;

        if (trainer->cursor.batch >= trainer->steps_per_epoch)
            esper_trainer_next_epoch(trainer);
        began = esper_clock_seconds();
        ESPER_TRY(esper_trainer_step(trainer));
        if (i < WARM_STEPS)
            continue;
        times[n] = esper_clock_seconds() - began;
        spent += times[n++];
    }
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
    *seconds_out = times[n / 2];
    return ESPER_OK;
}

static void print_line(const bench_case *bench, double value, double limit, const esper_trainer *trainer, bool json)
{
    char text[512], a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];
    esper_json out;

    if (!json) {
        printf("%-18s %12s %-10s limit %12s   %5.1f %%\n", bench->name, esper_text_count((int64_t)value, a),
               bench->unit, esper_text_count((int64_t)limit, b), 100.0 * value / limit);
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, bench->name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, bench->unit);
    esper_json_key(&out, "limit"), esper_json_real(&out, limit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, value / limit);
    esper_json_key(&out, "kernels"), esper_json_text(&out, esper_backend_identity(trainer->backend));
    esper_json_key(&out, "threads"), esper_json_int(&out, esper_pool_threads(trainer->pool));
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

/* The case's settings, and of what was asked for only what leaves the work the same: an ESPER_BATCH in the environment
 * must not change what a figure means. */
static esper_status configure(const bench_case *bench, const esper_config *asked, esper_config *config,
                              const esper_task **task_out)
{
    esper_task task;

    esper_config_init(config);
    config->threads = asked->threads;
    config->backend = asked->backend;
    ESPER_TRY(esper_task_find(bench->task, task_out));
    task = **task_out;
    task.settings = bench->settings;
    ESPER_TRY(esper_task_configure(*task_out, config));
    return esper_task_configure(&task, config);
}

/* Once, above the first line. */
static void print_header(const esper_trainer *trainer)
{
    printf("training with %s, %d thread%s; limit: the multiply-add peak measured in the same run\n",
           esper_backend_identity(trainer->backend), esper_pool_threads(trainer->pool),
           esper_pool_threads(trainer->pool) == 1 ? "" : "s");
    fflush(stdout);
}

static esper_status bench_train(const bench_case *bench, const esper_config *asked, bool is_first, bool json)
{
    esper_trainer *trainer = esper_mem_alloc(sizeof(*trainer));
    esper_config config;
    const esper_task *task;
    esper_status status;
    double seconds, flops;

    if (trainer == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    status = configure(bench, asked, &config, &task);
    if (status == ESPER_OK)
        status = esper_trainer_init(trainer, task, &config, true);
    if (status == ESPER_OK) {
        esper_plan_stats stats = esper_plan_stats_of(trainer->plan);

        if (is_first && !json)
            print_header(trainer);
        status = time_steps(trainer, &seconds);
        flops = (stats.forward.flops + stats.backward.flops) / config.batch;
        if (status == ESPER_OK)
            print_line(bench, (double)config.batch * bench->per_sample / seconds,
                       esper_cpu_peak_flops(trainer->pool) / flops * bench->per_sample, trainer, json);
        esper_trainer_fini(trainer);
    }
    esper_mem_free(trainer);
    return status;
}

/* NAME is a whole name or the part before the point. */
static bool is_wanted(const char *name, const char *wanted)
{
    size_t n = strlen(wanted);

    return strncmp(name, wanted, n) == 0 && (name[n] == '\0' || name[n] == '.');
}

static int run(int argc, char **argv)
{
    const char *json = NULL;
    const esper_config_option options[] = {{.name = "json", .text_out = &json}};
    esper_config config;
    esper_status status;
    bool help;
    int n_left, n_run = 0;

    status = esper_cli_configure(&esper_command_bench, &config, argc, argv, options, 1, &n_left, &help);
    if (status == ESPER_OK && help)
        return ESPER_EXIT_OK;
    if (status == ESPER_OK && n_left != 1)
        return esper_cli_usage(&esper_command_bench, "expected the name of a benchmark");
    for (int i = 0; i < N_CASES && status == ESPER_OK; i++)
        if (is_wanted(cases[i].name, argv[0])) {
            status = bench_train(&cases[i], &config, n_run == 0, json != NULL);
            n_run++;
        }
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (n_run == 0)
        return esper_cli_usage(&esper_command_bench, "no benchmark is called '%s'", argv[0]);
    return ESPER_EXIT_OK;
}

const esper_command esper_command_bench = {
    .name = "bench",
    .arguments = "NAME [flags]",
    .summary = "figures beside their limits",
    .help =
        "  train           training steps of three small networks, each beside what the processor's multiply-add units\n"
        "                  would allow, measured in the same run (train.cnn_small, train.cnn_100k, train.lm_tiny)\n\n"
        "  --json          one JSON object a line: name, value, unit, limit, ratio\n"
        "  --threads N, --backend NAME   as for train",
    .keys = (const char *const[]){"threads", "backend", NULL},
    .run = run,
};
