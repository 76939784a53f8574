/* Progress lines. */
#include "ui/progress.h"

#include <string.h>

#include "base/clock.h"
#include "ui/banner.h"
#include "ui/text.h"

static const double plain_interval_s = 15.0;

void esper_progress_init(esper_progress *progress, esper_config_progress kind, FILE *stream)
{
    *progress = (esper_progress){0};
    esper_live_init(&progress->live, kind, stream);
}

/* A bar of the present epoch with words behind it. */
static void draw_cells(esper_progress *progress, const esper_run_view *view, double part, const char *words)
{
    const esper_network *network = view->network;
    uint32_t epochs = esper_network_epochs(network), epoch = network->cursor.epoch;
    char where[32];

    snprintf(where, sizeof(where), "%3u/%-3u", epoch < epochs ? epoch + 1 : epochs, epochs);
    esper_live_draw(&progress->live, where, part, words);
}

static void begin(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;

    if (!esper_live_is_shown(&progress->live))
        return;
    if (!progress->brief)
        esper_banner_print(view, progress->live.stream);
    if (!progress->brief || progress->live.plain)
        fprintf(progress->live.stream,
                "   epoch      loss  accuracy  valid loss  accuracy  samples/s    time    left\n");
    fflush(progress->live.stream);
    if (progress->live.bar)
        draw_cells(progress, view, (double)view->network->cursor.batch / view->network->engine->steps_per_epoch,
                   "starting");
}

static void step(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;
    const esper_network *network = view->network;
    double part = (double)network->cursor.batch / network->engine->steps_per_epoch;
    double accuracy = esper_tally_accuracy(&network->tally);
    char loss[ESPER_TEXT_CHARS], count[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS], words[ESPER_TERMINAL_WIDE];

    if (!esper_live_is_due(&progress->live, plain_interval_s))
        return;
    esper_text_loss(esper_tally_loss(&network->tally), loss);
    esper_text_count((int64_t)view->samples_per_s, count);
    esper_text_duration(view->seconds_left, left);
    snprintf(words, sizeof(words), "loss %s  %.2f %%  %s/s  %s left", loss, accuracy, count, left);
    if (progress->live.bar)
        draw_cells(progress, view, part, words);
    else
        fprintf(progress->live.stream, " %3u/%-3u %3.0f %%  loss %s  accuracy %.2f %%  %s samples/s  %s left\n",
                network->cursor.epoch + 1, esper_network_epochs(network), 100.0 * part, loss, accuracy, count, left);
    fflush(progress->live.stream);
}

/* The first batch always shows: what the run does has changed. */
static void evaluation(void *context, const esper_run_view *view, esper_split split, double part)
{
    esper_progress *progress = context;

    if (progress->live.bar && (part <= 0.0 || esper_live_is_due(&progress->live, plain_interval_s)))
        draw_cells(progress, view, part, split == ESPER_SPLIT_TEST ? "testing" : "validating");
}

static void epoch(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    esper_progress *progress = context;
    uint32_t epochs = esper_network_epochs(view->network);
    char loss[ESPER_TEXT_CHARS], valid[ESPER_TEXT_CHARS];
    char speed[ESPER_TEXT_CHARS], took[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS];

    if (!esper_live_is_shown(&progress->live) || (progress->brief && progress->live.bar))
        return;
    if (progress->live.plain && !esper_live_is_epoch_due(&progress->live, record->epoch, epochs))
        return;
    progress->live.last_epoch = record->epoch;
    esper_live_clear(&progress->live);
    fprintf(progress->live.stream, " %3u/%-3u  %8s  %6.2f %%    %8s  %6.2f %%  %9s %7s %7s\n", record->epoch, epochs,
            esper_text_loss(record->loss_train, loss), record->acc_train, esper_text_loss(record->loss_valid, valid),
            record->acc_valid,
            record->samples_per_s > 0.0 ? esper_text_count((int64_t)record->samples_per_s, speed) : "-",
            esper_text_duration(record->seconds, took),
            record->epoch == epochs ? "-" : esper_text_duration(view->seconds_left, left));
    fflush(progress->live.stream);
    progress->live.last_shown = esper_clock_seconds();
}

esper_run_observer esper_progress_observer(esper_progress *progress)
{
    return (esper_run_observer){
        .context = progress, .begin = begin, .step = step, .evaluation = evaluation, .epoch = epoch};
}
