/* esper train: a fixed host. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "run/run.h"
#include "ui/progress.h"
#include "ui/terminal.h"
#include "ui/text.h"

static void report(const esper_run_result *result)
{
    char took[ESPER_TEXT_CHARS], count[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    printf("test      loss %s, accuracy %.2f %%\n", esper_text_loss(result->loss_test, loss), result->acc_test);
    printf("network   %s parameters, weights %016" PRIx64 "\n", esper_text_count(result->params, count),
           result->weight_hash);
    if (result->n_skipped + result->n_rollbacks > 0)
        esper_terminal_print(stdout,
                             "guard     %" PRIu64 " step%s skipped, %" PRIu64 " time%s back to a snapshot: see %s/%s\n",
                             result->n_skipped, result->n_skipped == 1 ? "" : "s", result->n_rollbacks,
                             result->n_rollbacks == 1 ? "" : "s", result->run_dir, ESPER_RUN_EVENTS);
    esper_terminal_print(stdout, "saved     %s/%s after %s\n", result->run_dir, ESPER_RUN_CHECKPOINT,
                         esper_text_duration(result->seconds, took));
    printf("next      %s eval %s\n", esper_cli_program(), esper_shell_quote_path(result->run_dir, quoted));
}

static int train(const esper_task *task, const esper_config *config, const char *resume, const esper_job *job)
{
    esper_log log = {.level = config->log_level, .stream = stderr};
    esper_progress progress;
    esper_run_observer observer;
    esper_run_result result;
    esper_run_desc desc = {.task = task,
                           .config = config,
                           .resume = resume,
                           .log = &log,
                           .stop = job->stop,
                           .comm = job->comm,
                           .cut_off = job->cut_off,
                           .threads = job->threads};
    esper_status status;

    esper_progress_init(&progress, config->progress, stdout);
    observer = esper_progress_observer(&progress);
    desc.observer = &observer;
    status = esper_run_train(&desc, &result);
    esper_live_clear(&progress.live);
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (esper_live_is_shown(&progress.live))
        printf("\n");
    if (result.stopped)
        esper_job_report_stopped(&result, "train");
    else
        report(&result);
    return result.stopped ? ESPER_EXIT_STOPPED : ESPER_EXIT_OK;
}

static int run(int argc, char **argv)
{
    const char *resume = NULL;
    const esper_config_option options[] = {{.name = "resume", .has_value = true, .text_out = &resume}};
    const esper_task *task = NULL;
    esper_config config;
    esper_status status;
    esper_job job;
    bool help;
    int n_left, code;

    status = esper_cli_configure(&esper_command_train, &config, argc, argv, options, 1, &n_left, &help);
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (help)
        return ESPER_EXIT_OK;
    if (n_left > 1)
        return esper_cli_usage(&esper_command_train, "one task at a time: '%s' is too much", argv[1]);
    if (n_left == 1 || resume == NULL) {
        status = esper_task_find(n_left == 1 ? argv[0] : esper_task_list()[0]->name, &task);
        if (status == ESPER_OK)
            status = esper_task_configure(task, &config);
        if (status != ESPER_OK)
            return esper_cli_fail(status);
    }
    status = esper_job_open(&config, &job);
    if (status == ESPER_OK)
        status = esper_job_check_settings(ESPER_CONFIG_IN_TRAIN, task, resume, &config);
    code = status == ESPER_OK ? train(task, &config, resume, &job) : esper_cli_fail(status);
    esper_job_close(&job);
    return code;
}

const esper_command esper_command_train = {
    .name = "train",
    .arguments = "[TASK] [flags]",
    .summary = "train a fixed network (default task: fashion)",
    .help = "Trains the task's network as it is, validates after every epoch, saves, and tests once at the end.\n"
            "(`esper grow` lets it grow meanwhile.)\n"
            "Ctrl-C saves and leaves; a second one leaves at once.\n\n"
            "  --resume RUN    go on with a run, bit for bit where it stopped: a directory, the beginning of its name\n"
            "                  below runs/, 'last', or a checkpoint file\n"
            "  --config FILE   read settings from a file\n\n"
            "examples:  esper train fashion --epochs 10\n"
            "           esper train chars --data my.txt --layers 2\n"
            "           esper train --resume last --epochs 20",
    .has_config = true,
    .has_ranks = true,
    .job = ESPER_CONFIG_IN_TRAIN,
    .run = run,
};
