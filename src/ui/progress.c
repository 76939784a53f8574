/* Progress lines. */
#include "ui/progress.h"

#include <string.h>

#include "base/clock.h"
#include "ui/banner.h"
#include "ui/text.h"

enum { BAR_CELLS = 24, NARROW_BAR_CELLS = 10, NARROW = 90, LINE_CHARS = ESPER_TERMINAL_WIDE };

static const double bar_interval_s = 0.1, plain_interval_s = 15.0;

void esper_progress_init(esper_progress *progress, esper_config_progress kind, FILE *stream)
{
    bool draws;

    *progress = (esper_progress){.stream = stream, .terminal = esper_terminal_look(stream)};
    draws = progress->terminal.escapes;
    progress->bar = kind == ESPER_CONFIG_PROGRESS_BAR || (kind == ESPER_CONFIG_PROGRESS_AUTO && draws);
    progress->plain = kind == ESPER_CONFIG_PROGRESS_PLAIN || (kind == ESPER_CONFIG_PROGRESS_AUTO && !draws);
    progress->last_shown = esper_clock_seconds();
}

bool esper_progress_is_shown(const esper_progress *progress)
{
    return progress->bar || progress->plain;
}

void esper_progress_clear(esper_progress *progress)
{
    if (progress->bar_shown)
        fprintf(progress->stream, "\r\033[K");
    progress->bar_shown = false;
    fflush(progress->stream);
}

/* A bar of the present epoch with words behind it. */
static void draw_cells(esper_progress *progress, const esper_run_view *view, double part, const char *words)
{
    const esper_network *network = view->network;
    uint32_t epochs = (uint32_t)network->engine->config.epochs, epoch = network->cursor.epoch;
    char cells[BAR_CELLS + 1];
    esper_line line;

    esper_terminal_measure(&progress->terminal);
    esper_terminal_bar(part, progress->terminal.room < NARROW ? NARROW_BAR_CELLS : BAR_CELLS, cells);
    esper_line_init(&line, progress->terminal.room, false);
    esper_line_put(&line, " %3u/%-3u [%s] %3.0f %%  %s", epoch < epochs ? epoch + 1 : epochs, epochs, cells,
                   100.0 * part, words);
    fprintf(progress->stream, "\r%s\033[K", line.text);
    progress->bar_shown = true;
    fflush(progress->stream);
}

static void draw_bar(esper_progress *progress, const esper_run_view *view, double part)
{
    const esper_tally *tally = &view->network->tally;
    char loss[ESPER_TEXT_CHARS], count[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS], words[LINE_CHARS];

    snprintf(words, sizeof(words), "loss %s  %.2f %%  %s/s  %s left", esper_text_loss(esper_tally_loss(tally), loss),
             esper_tally_accuracy(tally), esper_text_count((int64_t)view->samples_per_s, count),
             esper_text_duration(view->seconds_left, left));
    draw_cells(progress, view, part, words);
}

static void draw_plain(const esper_progress *progress, const esper_run_view *view, double part)
{
    const esper_network *network = view->network;
    char loss[ESPER_TEXT_CHARS], count[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS];

    fprintf(progress->stream, " %3u/%-3d %3.0f %%  loss %s  accuracy %.2f %%  %s samples/s  %s left\n",
            network->cursor.epoch + 1, network->engine->config.epochs, 100.0 * part,
            esper_text_loss(esper_tally_loss(&network->tally), loss), esper_tally_accuracy(&network->tally),
            esper_text_count((int64_t)view->samples_per_s, count), esper_text_duration(view->seconds_left, left));
    fflush(progress->stream);
}

static void begin(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;

    if (!esper_progress_is_shown(progress))
        return;
    if (!progress->brief)
        esper_banner_print(view, progress->stream);
    if (!progress->brief || progress->plain)
        fprintf(progress->stream, "   epoch      loss  accuracy  valid loss  accuracy  samples/s    time    left\n");
    fflush(progress->stream);
    if (progress->bar)
        draw_cells(progress, view, (double)view->network->cursor.batch / view->network->engine->steps_per_epoch,
                   "starting");
}

static void step(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;
    double now = esper_clock_seconds();
    double part = (double)view->network->cursor.batch / view->network->engine->steps_per_epoch;

    if (!esper_progress_is_shown(progress))
        return;
    if (now - progress->last_shown < (progress->bar ? bar_interval_s : plain_interval_s))
        return;
    progress->last_shown = now;
    if (progress->bar)
        draw_bar(progress, view, part);
    else
        draw_plain(progress, view, part);
}

/* The first batch always shows: what the run does has changed. */
static void evaluation(void *context, const esper_run_view *view, esper_split split, double part)
{
    esper_progress *progress = context;
    double now = esper_clock_seconds();

    if (!progress->bar || (part > 0.0 && now - progress->last_shown < bar_interval_s))
        return;
    progress->last_shown = now;
    draw_cells(progress, view, part, split == ESPER_SPLIT_TEST ? "testing" : "validating");
}

static void epoch(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    esper_progress *progress = context;
    bool is_last = (int)record->epoch == view->network->engine->config.epochs;
    char loss[ESPER_TEXT_CHARS], valid[ESPER_TEXT_CHARS];
    char speed[ESPER_TEXT_CHARS], took[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS];

    if (!esper_progress_is_shown(progress) || (progress->brief && progress->bar))
        return;
    esper_progress_clear(progress);
    fprintf(progress->stream, " %3u/%-3d  %8s  %6.2f %%    %8s  %6.2f %%  %9s %7s %7s\n", record->epoch,
            view->network->engine->config.epochs, esper_text_loss(record->loss_train, loss), record->acc_train,
            esper_text_loss(record->loss_valid, valid), record->acc_valid,
            record->samples_per_s > 0.0 ? esper_text_count((int64_t)record->samples_per_s, speed) : "-",
            esper_text_duration(record->seconds, took), is_last ? "-" : esper_text_duration(view->seconds_left, left));
    fflush(progress->stream);
    progress->last_shown = esper_clock_seconds();
}

esper_run_observer esper_progress_observer(esper_progress *progress)
{
    return (esper_run_observer){
        .context = progress, .begin = begin, .step = step, .evaluation = evaluation, .epoch = epoch};
}
