/* esper learn: a growth policy of one's own, trained by PPO. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "cli/report_page.h"
#include "run/learn.h"
#include "run/policy_note.h"
#include "ui/learn_view.h"
#include "ui/terminal.h"
#include "ui/text.h"

#define FAST_TASK "fashion_fast"

/* Where everything is, and what to do with it. */
static void print_next(const esper_learn_result *result, const char *task)
{
    char flags[ESPER_POLICY_FLAGS_CHARS] = "", quoted[ESPER_SHELL_CHARS], file[ESPER_SHELL_CHARS];
    const char *program = esper_cli_program(), *dir = esper_shell_quote_path(result->run_dir, quoted), *policy;
    const esper_task *learned_on;

    if (result->policy[0] == '\0') { /* a program has learned, and keeps what it has learned to itself */
        esper_terminal_print(stdout, "records   %s/%s\n", result->run_dir, ESPER_RUN_STORE);
        printf("next      %s report %s\n", program, dir);
        return;
    }
    if (result->unwritten[0] == '\0')
        esper_terminal_print(stdout, "saved     %s\n", result->policy);
    printf("next      %s report %s\n", program, dir);
    if (esper_task_find(task, &learned_on) == ESPER_OK)
        esper_policy_flags(result->policy, learned_on, flags);
    policy = esper_shell_quote_path(result->policy, file);
    printf("          %s grow %s%s --policy %s\n", program, task, flags, policy);
    if (strchr(result->policy, ',') == NULL) /* commas part the policies of a list */
        printf("          %s compare %s%s --policies static,random,heuristic,%s --first-seed 1001\n", program, task,
               flags, policy);
}

/* The page about it, as `esper grow` leaves one. That there is none is no failure of the run. */
static void write_page(const char *run_dir)
{
    esper_report_numbers numbers;
    char path[ESPER_PATH_CHARS], size[ESPER_TEXT_CHARS];
    size_t bytes;
    esper_status status = esper_run_path(run_dir, ESPER_REPORT_NAME, path);

    if (status == ESPER_OK)
        status = esper_report_page_write(run_dir, path, &numbers, &bytes);
    if (status == ESPER_OK)
        esper_terminal_print(stdout, "report    %s (%s): open it in a browser\n", path,
                             esper_text_bytes((double)bytes, size));
    else
        fprintf(stderr, "esper: no report was written: %s\n", esper_last_error());
}

static void report(const esper_learn_result *result, const char *task)
{
    const esper_learn_times *times = &result->times;
    double all = times->hosts + times->validation + times->policy + times->bookkeeping + times->waiting;
    char took[ESPER_TEXT_CHARS], episodes[ESPER_TEXT_CHARS], params[ESPER_TEXT_CHARS], error[32] = "";

    esper_terminal_print(stdout, "learned   %" PRIu32 " round%s, %s episode%s, in %s%s\n", result->rounds,
                         result->rounds == 1 ? "" : "s", esper_text_count((int64_t)result->n_episodes, episodes),
                         result->n_episodes == 1 ? "" : "s", esper_text_duration(result->seconds, took),
                         result->settled ? ": the return has not risen for as many rounds as patience allows" : "");
    if (isfinite(result->last.total_reward_error)) /* of one episode there is none */
        snprintf(error, sizeof(error), " +- %.2f", result->last.total_reward_error);
    if (result->last.round > 0)
        esper_terminal_print(stdout, "return    %.2f%s in the last round, validation accuracy %.2f %%, %s parameters\n",
                             result->last.total_reward, error, result->last.accuracy,
                             esper_text_count(llround(result->last.params), params));
    if (all > 0.0)
        esper_terminal_print(
            stdout,
            "time      hosts %.1f %%, validation %.1f %%, policy %.1f %%, bookkeeping %.1f %%, waiting %.1f %%\n",
            100.0 * times->hosts / all, 100.0 * times->validation / all, 100.0 * times->policy / all,
            100.0 * times->bookkeeping / all, 100.0 * times->waiting / all);
    if (result->n_skipped + result->n_bad_rewards + result->n_bad_observations > 0)
        esper_terminal_print(stdout,
                             "guard     %" PRIu64 " minibatches skipped, %" PRIu64 " rewards and %" PRIu64
                             " readings left out: they were not finite\n",
                             result->n_skipped, result->n_bad_rewards, result->n_bad_observations);
    print_next(result, task);
}

static void report_stopped(const esper_learn_result *result)
{
    char quoted[ESPER_SHELL_CHARS];

    printf("stopped after %" PRIu32 " of %" PRIu32 " round%s; the round that was begun is lost", result->rounds,
           result->rounds_asked, result->rounds_asked == 1 ? "" : "s");
    if (result->policy[0] != '\0')
        printf(", all before it is saved. Go on with: %s learn --resume %s", esper_cli_program(),
               esper_shell_quote_path(result->run_dir, quoted));
    printf("\n");
}

static esper_status learn(const esper_job *job, int *code_out)
{
    esper_learn_progress progress;
    esper_learn_observer observer;
    esper_learn_result result;
    esper_learn_desc desc = {.task = job->task,
                             .config = job->config,
                             .resume = job->resume,
                             .observer = &observer,
                             .log = &job->log,
                             .stop = job->stop,
                             .hears = job->hears,
                             .comm = job->comm,
                             .cut_off = job->cut_off,
                             .threads = job->threads};
    esper_status status;

    esper_learn_progress_init(&progress, job->config->progress, stdout);
    observer = esper_learn_progress_observer(&progress);
    status = esper_learn_run(&desc, &result);
    esper_live_clear(&progress.live);
    if (status != ESPER_OK)
        return status;
    *code_out = result.stopped ? ESPER_EXIT_STOPPED : ESPER_EXIT_OK;
    if (esper_job_is_silent(job))
        return ESPER_OK;
    if (esper_live_is_shown(&progress.live))
        printf("\n");
    if (result.stopped)
        report_stopped(&result);
    else
        report(&result, result.task);
    if (!result.stopped)
        write_page(result.run_dir);
    if (esper_job_report_unwritten(result.unwritten) != ESPER_EXIT_OK)
        *code_out = ESPER_EXIT_FAILED;
    return ESPER_OK;
}

enum { RESUME };

static const esper_command_option options[] = {[RESUME] = {"resume", true}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    esper_job job;
    esper_status status = esper_job_open_task(call, FAST_TASK, call->given[RESUME], &job);

    if (status == ESPER_OK)
        status = learn(&job, &call->code);
    esper_job_close(&job);
    return status;
}

#define WHO_DECIDES                                                                                                    \
    "it says who decides, and here a policy learns to. (A program that learns by itself is given by --policy-cmd)"

/* What is not as `esper grow` has it: see esper_task_configure. Who decides is not asked here. */
static const esper_command_own own[] = {
    {.key = "run_dir", .help = "Directory for this run's policy and records. Empty: runs/learn-<task>-<date>-<n>."},
    {.key = "policy", .refusal = WHO_DECIDES},
    {.key = "decisions", .refusal = WHO_DECIDES},
    {.key = "policy_cmd",
     .help = "A program that decides in place of the policy, and learns by itself: asked about every environment over "
             "JSON lines (docs/policy-protocol.md)."},
    {.key = "reward",
     .help = "What decisions are paid by: gain, escrow, shaped, basic, basic_plus, simplified, sparse, minimal or loss "
             "(docs/learning.md). With policy_cmd the program is told, and nothing is recorded of single decisions."},
    {.key = "gates", .preset = "permissive"},
    {.key = NULL},
};

const esper_command esper_command_learn = {
    .name = "learn",
    .arguments = "[TASK] [flags]",
    .summary = "train a growth policy by reinforcement (default task: " FAST_TASK ")",
    .help =
        "Plays episodes: networks of the task grow side by side, and a recurrent policy decides about each of them once an\n"
        "epoch. Decisions are paid by --reward: accuracy gained over the same network that got nothing, which is trained\n"
        "beside each that grows, less the price of parameters and FLOPs added. After every round (one episode of each environment)\n"
        "the policy is updated by PPO and saved. Columns of the progress: mean return and its standard error, validation\n"
        "accuracy, parameters and seeds kept at the end of episodes, entropy (1: undecided) of the choice of operation, slot\n"
        "and blueprint, how far the update moved the policy (KL), and how much of the returns the critic explains.\n\n"
        "The policy's file is also the checkpoint. Ctrl-C leaves; what is saved is the last whole round. Below mpirun the\n"
        "environments are spread over the ranks; the policy that comes out does not depend on their number.\n\n"
        "  --resume RUN    go on with a run, bit for bit: a directory, the beginning of its name below runs/, 'last', or a\n"
        "                  policy's file\n"
        "  --config FILE   read settings from a file\n\n"
        "lists of tasks (--tasks), whose entries `esper info lists` shows; others may stand beside one, as in 'fast, photos drawn=2':\n"
        "  fast            Fashion-MNIST and a synthetic table, small: 2 entries as they are, 7 drawn\n"
        "  synthetic       images and a table that need no files: 2 as they are, 8 drawn\n"
        "  kinds           images, a table and text: 3 as they are, 10 drawn\n\n"
        "A list of your own is a file, --tasks @FILE: an entry a line, behind # a comment.\n\n"
        "With --policy-cmd a program of yours decides, and learns as it likes: it is asked about every environment in turn,\n"
        "and told what each decision was worth (docs/policy-protocol.md). The store then has episodes and the means of rounds;\n"
        "single decisions and rewards are the program's to keep.\n\n"
        "examples:  esper learn fashion_fast --rounds 60\n"
        "           esper learn fashion_fast --reward sparse --seed 2\n"
        "           esper learn --resume last --rounds 200\n"
        "           esper grow fashion_fast --policy runs/learn-fashion_fast-20260131-1/policy.safetensors",
    .has_config = true,
    .job = ESPER_CONFIG_IN_LEARN,
    .has_ranks = true,
    .own = own,
    .options = options,
    .most_words = 1,
    .run = run,
};
