/* esper replay: makes a grown run again from its seed and its decision log. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "run/checkpoint.h"
#include "run/run.h"
#include "run/settings.h"
#include "ui/progress.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* How it is computed and shown, and where the data lies: none of it changes a bit. */
static const char *const keys[] = {"threads", "progress", "log_level", "data", "cache", NULL};

/* What is known of the run. */
typedef struct original {
    char                   dir[ESPER_PATH_CHARS];
    const esper_task      *task;
    esper_config           config;
    esper_cursor           cursor; /* of its checkpoint */
    uint64_t               budget, weights;
    esper_decision_history history;
} original;

/* ------------------------------------------------------------------------------------------------ reading */

static esper_status read_checkpoint(const char *path, original *self)
{
    esper_checkpoint checkpoint;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init(path, &checkpoint));
    self->task = checkpoint.task;
    self->config = checkpoint.config;
    if (strcmp(self->config.policy, esper_policy_halving.name) == 0)
        self->config.plant[0] = '\0'; /* it finds them again */
    status = esper_checkpoint_mark(&checkpoint, &self->cursor, &self->budget, &self->weights);
    if (status == ESPER_OK && !esper_checkpoint_has_growth(&checkpoint))
        status = ESPER_FAIL(ESPER_E_CONFIG,
                            "%s is of a run that does not grow, and has no decisions to replay: train it again with "
                            "--config %s/%s",
                            path, self->dir, ESPER_RUN_CONFIG);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

static esper_status read_history(original *self)
{
    char path[ESPER_PATH_CHARS];

    ESPER_TRY(esper_run_path(self->dir, ESPER_RUN_DECISIONS, path));
    ESPER_TRY(esper_decision_history_read(path, UINT64_MAX, &self->history));
    if (strcmp(self->history.head.task, self->task->name) != 0 || self->history.head.seed != self->config.seed)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s is of %s, seed %" PRIu64 "; the checkpoint is of %s, seed %" PRIu64, path,
                          self->history.head.task, self->history.head.seed, self->task->name, self->config.seed);
    return ESPER_OK;
}

static esper_status read_original(const char *name, const esper_config *asked, original *self)
{
    const esper_log log = {.level = asked->log_level, .stream = stderr};
    char path[ESPER_PATH_CHARS];
    esper_config_use use;

    ESPER_TRY(esper_run_network_find(name, self->dir));
    ESPER_TRY(esper_run_checkpoint_find(self->dir, path));
    ESPER_TRY(read_checkpoint(path, self));
    ESPER_TRY(read_history(self));
    use = esper_settings_use(self->task, ESPER_CONFIG_IN_GROW, &self->config);
    ESPER_TRY(esper_settings_check(asked, &self->config, &use, &log));
    return esper_config_lay_over(&self->config, asked, keys);
}

/* ------------------------------------------------------------------------------------------------ replaying */

static esper_status judge(const original *self, const esper_run_result *result)
{
    const char *program = esper_cli_program();
    uint64_t n_decisions = 0;
    /* at the end of the run, or at its last checkpoint, there are weights to compare with as well */
    bool compared = self->cursor.epoch == result->cursor.epoch && self->cursor.step == result->cursor.step;
    char took[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    assert(result->n_replayed <= self->history.n);
    for (uint64_t i = 0; i < result->n_replayed; i++)
        n_decisions += self->history.entries[i].source == ESPER_LOG_POLICY;
    if (compared && self->weights != result->weight_hash)
        return ESPER_FAIL(ESPER_E_STATE,
                          "after epoch %u the weights are %016" PRIx64 ", and the checkpoint of %s says %016" PRIx64,
                          result->cursor.epoch, result->weight_hash, self->dir, self->weights);
    printf("replay    %u epoch%s, %" PRIu64 " decision%s, %" PRIu64 " entr%s of guard and drills: weights equal\n",
           result->cursor.epoch, result->cursor.epoch == 1 ? "" : "s", n_decisions, n_decisions == 1 ? "" : "s",
           result->n_replayed - n_decisions, result->n_replayed - n_decisions == 1 ? "y" : "ies");
    printf("weights   %016" PRIx64 "%s\n", result->weight_hash, compared ? ", as in the checkpoint" : "");
    if (result->cursor.epoch < result->epochs)
        printf("          the log ends here, before the run's %u epochs: go on with %s grow --resume %s\n",
               result->epochs, program, esper_shell_quote_path(self->dir, quoted));
    printf("took      %s\n", esper_text_duration(result->seconds, took));
    return ESPER_OK;
}

/* Where a replay and its log part. Snapshots do not outlast a process, so a resumed run goes back to other ones. */
static esper_status explain(const original *self, esper_status status)
{
    char message[1024];

    if (status != ESPER_E_STATE)
        return status;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    return ESPER_FAIL(
        status,
        "%s is not made again by its log: %s. Of a run that was resumed, a replay cannot follow a rollback "
        "after that, other kernels, another number of ranks, or other settings of the guard%s",
        self->dir, message,
        self->config.length == ESPER_CONFIG_LENGTH_EPOCHS && self->config.schedule != ESPER_CONFIG_SCHEDULE_CONSTANT
            ? "; nor more epochs, by which its rate falls"
            : "");
}

static esper_status replay(const original *self, esper_job *job, int *code_out)
{
    esper_run_desc desc;
    esper_progress progress;
    esper_run_observer observer;
    esper_run_result result;
    esper_status status;

    desc = esper_job_run(job);
    desc.task = self->task;
    desc.config = &self->config;
    desc.grows = true;
    desc.replay = &self->history;
    desc.observer = &observer;
    job->log.level = self->config.log_level;
    esper_progress_init(&progress, self->config.progress, stdout);
    progress.brief = true;
    observer = esper_progress_observer(&progress);
    if (esper_live_is_shown(&progress.live))
        esper_terminal_print(stdout, "replay of %s: task %s, seed %" PRIu64 ", %s, %" PRIu64 " entries of its log\n\n",
                             self->dir, self->task->name, self->config.seed, self->history.head.kernels,
                             self->history.n);
    status = esper_run_train(&desc, &result);
    esper_live_clear(&progress.live);
    if (status == ESPER_OK && result.stopped) {
        printf("stopped in epoch %u; %" PRIu64 " entries of the log had come again with equal weights\n",
               result.cursor.epoch + 1, result.n_replayed);
        *code_out = ESPER_EXIT_STOPPED;
        return ESPER_OK;
    }
    if (esper_live_is_shown(&progress.live) && status == ESPER_OK)
        printf("\n");
    if (status == ESPER_OK)
        status = judge(self, &result);
    return status == ESPER_OK ? ESPER_OK : explain(self, status);
}

static esper_status run(esper_cli_call *call)
{
    original self = {0};
    esper_job job;
    esper_status status = esper_job_open(&call->config, &job);

    if (status == ESPER_OK)
        status = read_original(call->words[0], &call->config, &self);
    if (status == ESPER_OK)
        status = replay(&self, &job, &call->code);
    esper_job_close(&job);
    esper_decision_history_free(&self.history);
    return status;
}

const esper_command esper_command_replay = {
    .name = "replay",
    .arguments = "RUN [flags]",
    .summary = "make a grown run again and compare every weight",
    .help =
        "Trains a grown run again from its seed, with the decisions of its log (decisions.jsonl) in place of a policy, and\n"
        "compares the hash of all weights at every entry of the log, and at the end with the checkpoint's. Equal hashes\n"
        "prove that the log and the seed are the whole story of the run, faults and rollbacks included. Nothing is written.\n"
        "The exit status is 1 where the two differ, and the message says at which epoch and step.\n"
        "RUN is a directory, the beginning of its name below runs/, or 'last'.\n\n"
        "Bits are the same on any number of threads, but not on other kernels (docs/determinism.md): on a processor\n"
        "that has several sets, ESPER_KERNELS=avx2 and the like choose the one the run was made with.\n\n"
        "  --threads N     threads that compute; 0 uses every core\n"
        "  --progress P    auto, bar, plain or none\n"
        "  --log-level L   the least important messages still printed\n"
        "  --data PATH     as for grow, when the data has moved",
    .keys = keys,
    .has_ranks = true,
    .wants = "one run",
    .run = run,
};
