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
    char count[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    printf("test      loss %s, accuracy %.2f %%\n", esper_text_loss(result->loss_test, loss), result->acc_test);
    printf("network   %s parameters, weights %016" PRIx64 "\n", esper_text_count(result->params, count),
           result->weight_hash);
    esper_job_report_guard(result);
    esper_job_report_saved(result);
    printf("next      %s eval %s\n", esper_cli_program(), esper_shell_quote_path(result->run_dir, quoted));
}

static esper_status train(const esper_job *job, int *code_out)
{
    esper_run_desc desc = esper_job_run(job);
    esper_run_observer observer;
    esper_run_result result;
    esper_progress progress;
    esper_status status;

    esper_progress_init(&progress, job->config->progress, stdout);
    observer = esper_progress_observer(&progress);
    desc.observer = &observer;
    status = esper_run_train(&desc, &result);
    esper_live_clear(&progress.live);
    if (status != ESPER_OK)
        return status;
    if (esper_live_is_shown(&progress.live))
        printf("\n");
    if (result.stopped)
        *code_out = esper_job_report_stopped(&result, "train");
    else
        report(&result);
    if (esper_job_report_unwritten(result.unwritten) != ESPER_EXIT_OK)
        *code_out = ESPER_EXIT_FAILED;
    return ESPER_OK;
}

enum { RESUME };

static const esper_command_option options[] = {[RESUME] = {"resume", true}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    esper_job job;
    esper_status status = esper_job_open_task(call, esper_task_list()[0]->name, call->given[RESUME], &job);

    if (status == ESPER_OK)
        status = train(&job, &call->code);
    esper_job_close(&job);
    return status;
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
            "           esper train photos/                    a folder of your own, as `esper grow` takes it\n"
            "           esper train --resume last --epochs 20",
    .has_config = true,
    .has_ranks = true,
    .job = ESPER_CONFIG_IN_TRAIN,
    .options = options,
    .most_words = 1,
    .run = run,
};
