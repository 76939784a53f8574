/* esper grow: the main job. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/grow_closing.h"
#include "cli/grow_control.h"
#include "cli/job.h"
#include "cli/report_page.h"
#include "policy/policy.h"
#include "policy/reward.h"
#include "run/checkpoint.h"
#include "run/run.h"
#include "ui/grow_observer.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* ------------------------------------------------------------------------------------------------ the end */

static void print_page(const char *run_dir)
{
    char path[ESPER_PATH_CHARS], size[ESPER_TEXT_CHARS];
    esper_report_numbers numbers;
    esper_status status = esper_run_path(run_dir, ESPER_REPORT_NAME, path);
    size_t bytes = 0;

    if (status == ESPER_OK)
        status = esper_report_page_write(run_dir, path, &numbers, &bytes);
    if (status == ESPER_OK)
        esper_terminal_print(stdout, "report    %s (%s): open it in a browser\n", path,
                             esper_text_bytes((double)bytes, size));
    else
        fprintf(stderr, "esper: no report was written: %s\n", esper_last_error());
}

static bool is_asked(const esper_config *config, const char *key)
{
    return esper_config_place_of(config, esper_config_find(key)) > ESPER_CONFIG_PRESET;
}

static bool is_usual(const esper_config *config, const char *key)
{
    char text[ESPER_CONFIG_TEXT_CHARS];
    int index = esper_config_find(key);

    esper_config_value_text(config, index, text);
    return strcmp(text, esper_config_key_at(index)->preset) == 0;
}

/* By the settings of the run, which one that is resumed brings along. */
static void print_return(const esper_job *job, const char *run_dir, const esper_run_result *result)
{
    bool asked = is_asked(job->config, "reward") || is_asked(job->config, "reward_weights");
    char path[ESPER_PATH_CHARS];
    esper_checkpoint checkpoint;

    if (esper_run_path(run_dir, ESPER_RUN_CHECKPOINT, path) != ESPER_OK ||
        esper_checkpoint_init(path, &checkpoint) != ESPER_OK)
        return;
    asked = asked || !is_usual(&checkpoint.config, "reward") || !is_usual(&checkpoint.config, "reward_weights");
    if (asked && (result != NULL || strcmp(checkpoint.config.reward, esper_reward_mode_name(ESPER_REWARD_GAIN)) == 0))
        esper_grow_closing_return(run_dir, &checkpoint.config, result != NULL ? result->total_reward : (double)NAN);
    esper_checkpoint_fini(&checkpoint);
}

/* Table, lineage, and where everything is. result NULL: the run had ended before. */
static esper_status close_run(const esper_job *job, const char *run_dir, const esper_run_result *result,
                              bool has_control)
{
    char quoted[ESPER_SHELL_CHARS];
    const char *program = esper_cli_program(), *dir = esper_shell_quote_path(run_dir, quoted);

    if (job->config->progress != ESPER_CONFIG_PROGRESS_NONE)
        printf("\n");
    ESPER_TRY(esper_grow_closing_print(run_dir, result));
    printf("\n");
    print_return(job, run_dir, result);
    if (result != NULL) {
        printf("weights   %016" PRIx64 "\n", result->weight_hash);
        esper_job_report_guard(result);
        if (result->n_faults_left > 0)
            printf("drill     %" PRIu64 " of the faults asked for found nothing to strike\n", result->n_faults_left);
        esper_job_report_saved(result);
    }
    print_page(run_dir);
    printf("next      %s replay %s\n", program, dir);
    printf("          %s export %s --torch DIR\n", program, dir);
    if (!has_control)
        printf("          %s grow --resume %s --static-control\n", program, dir);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the job */

static esper_status grow(const esper_job *job, esper_run_result *result_out)
{
    esper_run_desc desc = esper_job_run(job);
    esper_grow_observer watch;
    esper_run_observer observer;
    esper_status status;

    esper_grow_observer_init(&watch, job->config->progress, stdout);
    observer = esper_grow_observer_of(&watch);
    desc.grows = true;
    desc.observer = &observer;
    status = esper_run_train(&desc, result_out);
    esper_grow_view_clear(&watch.view);
    return status;
}

/* Whether the run that is to be resumed has ended already, so that only its control is wanted; if so, its directory. Anything
 * that is wrong with it is found again, and told, when it is resumed. */
static bool has_ended(const esper_job *job, char dir[ESPER_PATH_CHARS])
{
    bool done = false;
    char *slash;

    if (job->resume == NULL || esper_run_checkpoint_find(job->resume, dir) != ESPER_OK ||
        esper_grow_is_done(dir, job->task, job->config, NULL, &done) != ESPER_OK || !done)
        return false;
    slash = strrchr(dir, '/');
    if (slash == NULL)
        strcpy(dir, ".");
    else
        slash[slash == dir] = '\0';
    return true;
}

static esper_status grow_all(const esper_job *job, bool has_control, int *code_out)
{
    esper_run_result result;
    char dir[ESPER_PATH_CHARS], quoted[ESPER_SHELL_CHARS];
    bool ended = has_control && has_ended(job, dir), stopped = false;
    esper_grow_control_desc control = {.run_dir = dir, .asked = job->config, .log = &job->log, .stop = job->stop};

    if (!ended) {
        ESPER_TRY(grow(job, &result));
        if (result.stopped) {
            *code_out = esper_job_report_stopped(&result, has_control ? "grow --static-control" : "grow");
            if (esper_job_report_unwritten(result.unwritten) != ESPER_EXIT_OK)
                *code_out = ESPER_EXIT_FAILED;
            return ESPER_OK;
        }
        if (esper_job_is_silent(job))
            return ESPER_OK; /* the rest is for the rank that writes */
        snprintf(dir, sizeof(dir), "%s", result.run_dir);
    }
    if (has_control)
        ESPER_TRY(esper_grow_control_run(&control, &stopped, code_out));
    ESPER_TRY(close_run(job, dir, ended ? NULL : &result, has_control));
    if (!ended && esper_job_report_unwritten(result.unwritten) != ESPER_EXIT_OK)
        *code_out = ESPER_EXIT_FAILED;
    if (!stopped)
        return ESPER_OK;
    printf("\nthe static control is not done; go on with it: %s grow --resume %s --static-control\n",
           esper_cli_program(), esper_shell_quote_path(dir, quoted));
    *code_out = ESPER_EXIT_STOPPED;
    return ESPER_OK;
}

/* Who decides: a run that learned stands for its policy, and a decision file needs no other word. */
static esper_status take_policy(esper_config *config)
{
    static const esper_config_source by_flag = {.place = ESPER_CONFIG_FLAG};
    char path[ESPER_PATH_CHARS];

    if (esper_run_policy_take(config->policy, path) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "policy: ");
    if (snprintf(config->policy, sizeof(config->policy), "%.*s", (int)sizeof(config->policy) - 1, path) !=
        (int)strlen(path))
        return ESPER_FAIL(ESPER_E_CONFIG, "policy: the path %.60s... is too long", path);
    if (config->decisions[0] != '\0' &&
        esper_config_place_of(config, esper_config_find("policy")) <= ESPER_CONFIG_PRESET)
        return esper_config_set(config, "policy", esper_policy_scripted.name, &by_flag);
    return ESPER_OK;
}

enum { RESUME, CONTROL };

static const esper_command_option options[] = {
    [RESUME] = {"resume", true}, [CONTROL] = {"static-control", false}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    bool has_control = call->given[CONTROL] != NULL;
    esper_job job;
    esper_status status;

    ESPER_TRY(take_policy(&call->config));
    status = esper_job_open_task(call, esper_task_list()[0]->name, call->given[RESUME], &job);
    if (status == ESPER_OK && has_control && esper_comm_size(job.comm) > 1)
        status = ESPER_FAIL(ESPER_E_CONFIG, "--static-control is for a job of one rank: train the host by itself with "
                                            "`esper train` and the same flags, below the same launcher");
    if (status == ESPER_OK)
        status = grow_all(&job, has_control, &call->code);
    esper_job_close(&job);
    return status;
}

static void more_help(void)
{
    printf("\nwho decides (--policy):\n");
    for (int i = 0; esper_policy_list()[i] != NULL; i++)
        esper_terminal_print(stdout, "  %-14s  %s\n", esper_policy_list()[i]->name, esper_policy_list()[i]->about);
    esper_terminal_print(stdout,
                         "\nexamples:  esper grow fashion --static-control\n"
                         "           esper grow fashion --epochs 60 --max-params 100000 --blueprints conv_light,norm\n"
                         "           esper grow fashion --trial-share 0.3 --trial-price 0.02\n"
                         "           esper grow fashion --policy heuristic\n"
                         "           esper grow fashion --policy scripted --decisions my.txt\n"
                         "           esper grow fashion --policy-cmd 'python3 examples/policy.py'\n"
                         "           esper grow fashion --policy best.safetensors\n"
                         "           esper grow fashion_fast --policy runs/learn-fashion_fast-20260131-1\n"
                         "           esper grow fashion_fast --policy last\n"
                         "           esper grow --resume last --epochs 60\n");
}

const esper_command esper_command_grow = {
    .name = "grow",
    .arguments = "[TASK] [flags]",
    .summary = "grow a network while it trains (default task: fashion)",
    .help =
        "TASK is one of `esper info tasks`, or data of your own: a folder with a folder of PNG or JPEG files for each class,\n"
        "a table (.csv), arrays (.npy, .npz, .safetensors) or a text; `esper info data PATH` tells what is seen in it.\n\n"
        "Trains the task's network and lets it grow. Its length is a budget of training FLOPs: what --epochs cost the network\n"
        "as it begins, or --flops; a larger network gets fewer epochs. At the end of every epoch a policy makes one decision.\n"
        "The usual one, trials, finds out what pays: now and then the run is forked, once as it is and once with each seed\n"
        "that could grow; all forks train on the same batches while their rate falls to 0, the better half for longer and\n"
        "longer. The best seed joins the run if its gain, the validation loss that its fork won over the one that got\n"
        "nothing, is more than chance brings and than its FLOPs cost. Trials are paid from the budget:\n\n"
        "  --trial-share X   most that they may cost, 0.2 of the run     --trial-steps N   steps of the last round at most\n"
        "  --trial-first X   when the first is held, 0.03 of the run     --trial-price X   loss to win for twice the FLOPs\n"
        "  --blueprints A,B  kinds of seeds to try\n\n"
        "Under the other policies (--policy heuristic: rules that wait for a plateau) a seed germinates, learns without\n"
        "changing the network's output, is blended in and put to the test, each step through a gate:\n\n"
        "  G1  germinated -> training     it is sound           G3  blending -> holding      blended in, and stable\n"
        "  G2  training -> blending       it would help now     G5  holding -> fossilized    the network depends on it\n\n"
        "A fault (NaN, Inf, a loss that explodes) is found at the step where it happens; the run goes back to the last good\n"
        "state and goes on. What was decided is in decisions.jsonl in the run's directory: `esper replay` makes the run\n"
        "again from it. At the end come accuracy, size and cost, every seed with its gain and its dependence (the accuracy\n"
        "lost when it is taken away), and report.html. Ctrl-C saves and leaves.\n\n"
        "  --static-control  afterwards train the same host without growth, for as many training FLOPs, and compare\n"
        "  --resume RUN      go on with a run, bit for bit where it stopped: a directory, the beginning of its name\n"
        "                    below runs/, 'last', or a checkpoint file\n"
        "  --config FILE     read settings from a file",
    .more_help = more_help,
    .has_config = true,
    .job = ESPER_CONFIG_IN_GROW,
    .has_ranks = true,
    .options = options,
    .most_words = 1,
    .run = run,
};
