/* Data of people's own: shown while it is decoded. */
#include "cli/own_data.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "run/checkpoint.h"
#include "run/own.h"
#include "run/run_dir.h"
#include "ui/live.h"
#include "ui/text.h"

static const double PLAIN_S = 5.0; /* between plain lines */

typedef struct decoding {
    esper_live  live;
    bool        begun;
    double      since;
} decoding;

static void tell(void *context, const char *what, uint64_t done, uint64_t total)
{
    decoding *self = context;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], words[256];
    double part = total > 0 ? (double)done / (double)total : 1.0;

    self->begun = true;
    if (!esper_live_is_due(&self->live, PLAIN_S))
        return;
    snprintf(words, sizeof(words), "%s, %s of %s", what, esper_text_count((int64_t)done, a),
             esper_text_count((int64_t)total, b));
    if (self->live.bar)
        esper_live_draw(&self->live, "data", part, words);
    else
        esper_terminal_print(stderr, "data      %s\n", words);
}

esper_status esper_own_data_prepare(const esper_task *task, const esper_config *config)
{
    esper_dataset_desc desc = esper_task_data(task, config);
    decoding self = {.since = esper_clock_seconds()};
    const esper_dataset_progress progress = {.tell = tell, .context = &self};
    esper_dataset_info info;
    char took[ESPER_TEXT_CHARS];
    esper_status status;

    if (!esper_source_is_own(task->source) || config->data[0] == '\0')
        return ESPER_OK;
    esper_live_init(&self.live, config->progress, stderr);
    desc.progress = &progress;
    status = esper_dataset_measure(&desc, &info);
    esper_live_clear(&self.live);
    if (status == ESPER_OK && self.begun && esper_live_is_shown(&self.live))
        esper_terminal_print(stderr, "data      %s was not in the cache: decoded in %s\n", config->data,
                             esper_text_duration(esper_clock_seconds() - self.since, took));
    return status;
}

esper_status esper_own_data_task(const char *word, esper_config_job job, esper_config *config,
                                 const esper_task **task_out)
{
    ESPER_TRY(esper_own_find(word, config, task_out));
    ESPER_TRY(esper_own_data_prepare(*task_out, config));
    return esper_task_configure(*task_out, job, config);
}

void esper_own_data_prepare_run(const char *run, const esper_config *asked)
{
    char path[ESPER_PATH_CHARS];
    esper_checkpoint checkpoint;

    if (esper_run_checkpoint_find(run, path) != ESPER_OK || esper_checkpoint_init(path, &checkpoint) != ESPER_OK)
        return;
    if (esper_config_lay_over(&checkpoint.config, asked, NULL) == ESPER_OK)
        (void)esper_own_data_prepare(checkpoint.task, &checkpoint.config);
    esper_checkpoint_fini(&checkpoint);
}
