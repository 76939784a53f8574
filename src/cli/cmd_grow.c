/* esper grow: the main job. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "train/run.h"
#include "ui/progress.h"
#include "ui/text.h"

static int grow(const esper_task *task, const esper_config *config, const char *resume, bool control)
{
    esper_log log = {.level = config->log_level, .stream = stderr};
    esper_progress progress;
    esper_run_observer observer;
    esper_run_desc desc = {.task = task,
                           .config = config,
                           .resume = resume,
                           .grows = true,
                           .log = &log,
                           .stop = esper_job_listen()};
    esper_run_result result;
    esper_status status;

    (void)control;
    esper_progress_init(&progress, config->progress, stdout);
    observer = esper_progress_observer(&progress);
    desc.observer = &observer;
    status = esper_run_train(&desc, &result);
    esper_progress_clear(&progress);
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (result.stopped) {
        esper_job_report_stopped(&result, "grow");
        return ESPER_EXIT_STOPPED;
    }
    printf("test %.2f params %" PRId64 " hash %016" PRIx64 " kept %s flops %.3g %.3g\n", result.acc_test, result.params,
           result.weight_hash, result.kept, result.flops_sample, result.flops_train);
    return ESPER_EXIT_OK;
}

static int run(int argc, char **argv)
{
    const char *resume = NULL, *control = NULL;
    const esper_config_option options[] = {{.name = "resume", .has_value = true, .text_out = &resume},
                                           {.name = "static-control", .text_out = &control}};
    const esper_task *task = NULL;
    esper_config config;
    esper_status status;
    bool help;
    int n_left;

    status = esper_cli_configure(&esper_command_grow, &config, argc, argv, options, 2, &n_left, &help);
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (help)
        return ESPER_EXIT_OK;
    if (n_left > 1)
        return esper_cli_usage(&esper_command_grow, "one task at a time: '%s' is too much", argv[1]);
    if (n_left == 1 || resume == NULL) {
        status = esper_task_find(n_left == 1 ? argv[0] : esper_task_list()[0]->name, &task);
        if (status == ESPER_OK)
            status = esper_task_configure(task, &config);
        if (status != ESPER_OK)
            return esper_cli_fail(status);
    }
    return grow(task, &config, resume, control != NULL);
}

const esper_command esper_command_grow = {
    .name = "grow",
    .arguments = "[TASK] [flags]",
    .summary = "grow a network while it trains (default task: fashion)",
    .help = "Trains the task's network and lets seeds grow in its slots.",
    .has_config = true,
    .run = run,
};
