/* Internal to the tests. What tests of runs share: small configurations, runs that stop at a step, and a look into what
 * they left on disk. */
#ifndef ESPER_TESTS_ENGINE_HELPERS_H
#define ESPER_TESTS_ENGINE_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "support/effort.h"
#include "support/slab_look.h"
#include "run/checkpoint.h"
#include "run/run.h"
#include "run/single.h"

/* Networks and batches so small that a step takes a millisecond, and epochs of a few steps. One thread: on a busy
 * machine threads wait for each other far longer than such steps take. */
#define SMALL_CNN "threads = 1\nbatch = 8\nchannels = 2\nblocks = 2\nmax_steps = 5\nepochs = 3\n"
#define SMALL_TEXT "threads = 1\nbatch = 4\nlayers = 2\nwidth = 8\nheads = 2\ncontext = 8\nmax_steps = 5\nepochs = 3\n"

static inline void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* The call failed with this status, and its message holds these words (separated by '|'). */
static inline void check_fails(esper_status status, esper_status wanted, const char *words)
{
    char copy[512], *rest = copy, *word;

    if (status != wanted)
        fail_msg("%s (%s), expected %s", esper_status_name(status), status == ESPER_OK ? "" : esper_last_error(),
                 esper_status_name(wanted));
    snprintf(copy, sizeof(copy), "%s", words);
    while ((word = strsep(&rest, "|")) != NULL)
        if (strstr(esper_last_error(), word) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), word);
}

static inline const esper_task *task_named(const char *name)
{
    const esper_task *task = NULL;

    check_good(esper_task_find(name, &task));
    return task;
}

/* Lays lines "key = value" over a configuration, but for keys that have no effect in any of these jobs; 0: all keys. */
static inline void lay_over(esper_config *config, unsigned jobs, const char *lines, const esper_config_source *source)
{
    char copy[1024], *rest = copy, *line;

    snprintf(copy, sizeof(copy), "%s", lines);
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *value = strstr(line, " = ");

        if (value == NULL)
            continue;
        *value = '\0';
        if (jobs == 0 || (esper_config_jobs_of(esper_config_find(line)) & jobs) != 0)
            check_good(esper_config_set(config, line, value + 3, source));
    }
}

/* The same as flags would be. */
static inline void set_keys(esper_config *config, const char *lines)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};

    lay_over(config, 0, lines, &source);
}

/* A task's configuration with these lines on top. Epochs are so short that most of a run's time goes into validating: under
 * a sanitizer 40 samples of "synth" do for that, instead of 200. */
static inline esper_config config_of(const char *task, const char *lines, const char *more)
{
    esper_config config;

    esper_config_init(&config);
    check_good(esper_task_configure(task_named(task), ESPER_CONFIG_IN_TRAIN, &config));
    if (is_brief())
        set_keys(&config, "valid_fraction = 0.02\n");
    set_keys(&config, lines);
    set_keys(&config, more);
    return config;
}

static inline uint64_t live_blocks(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

/* ---- runs ---- */

/* Asks a run to stop once so many steps were taken by this process. */
typedef struct stopper {
    int                   steps_left; /* < 0: never */
    volatile sig_atomic_t stop;
} stopper;

static inline void stopper_step(void *context, const esper_run_view *view)
{
    stopper *self = context;

    (void)view;
    if (--self->steps_left == 0)
        self->stop = 1;
}

/* Runs a task (NULL when resuming) until its end or for n_steps (< 0: until its end). */
static inline esper_status run_steps(const char *task, const esper_config *config, const char *resume, int n_steps,
                                     esper_run_result *result)
{
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {
        .task = task != NULL ? task_named(task) : NULL,
        .config = config,
        .resume = resume,
        .observer = &observer,
        .stop = &stopping.stop,
    };

    return esper_run_train(&desc, result);
}

static inline const char *checkpoint_of(const char *run_dir, char path[ESPER_PATH_CHARS])
{
    check_good(esper_run_path(run_dir, ESPER_RUN_CHECKPOINT, path));
    return path;
}

#endif
