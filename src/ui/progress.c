/* Progress lines. */
#include "ui/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "ui/text.h"

enum { BAR_CELLS = 24, LINE_CHARS = 200 };

static const double bar_interval_s = 0.1, plain_interval_s = 15.0;

void esper_progress_init(esper_progress *progress, esper_config_progress kind, FILE *stream)
{
    bool terminal = isatty(fileno(stream)) == 1;

    *progress = (esper_progress){.stream = stream};
    progress->bar = kind == ESPER_CONFIG_PROGRESS_BAR || (kind == ESPER_CONFIG_PROGRESS_AUTO && terminal);
    progress->plain = kind == ESPER_CONFIG_PROGRESS_PLAIN || (kind == ESPER_CONFIG_PROGRESS_AUTO && !terminal);
    progress->last_shown = esper_clock_seconds();
}

void esper_progress_clear(esper_progress *progress)
{
    if (progress->bar_shown)
        fprintf(progress->stream, "\r\033[K");
    progress->bar_shown = false;
    fflush(progress->stream);
}

static const char *unit_of(const esper_trainer *trainer)
{
    return trainer->host.topology == ESPER_TOPOLOGY_CNN ? "images" : "sequences";
}

static void begin(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;
    const esper_trainer *trainer = view->trainer;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS];
    esper_memory memory = esper_trainer_memory(trainer);
    esper_plan_stats stats = esper_plan_stats_of(trainer->plan);

    if (!progress->bar && !progress->plain)
        return;
    fprintf(progress->stream, "%s: %s\n", trainer->task->name, trainer->task->about);
    fprintf(progress->stream, "  network   %s parameters, %s forward and backward for a batch of %d\n",
            esper_text_count(esper_net_count_params(&trainer->net, -1), a),
            esper_text_flops(stats.forward.flops + stats.backward.flops, b), trainer->config.batch);
    fprintf(progress->stream, "  data      %s %s to train on, %s to validate, %s to test\n",
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_TRAIN), a), unit_of(trainer),
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_VALID), b),
            esper_text_count(esper_dataset_count(trainer->data, ESPER_SPLIT_TEST), c));
    fprintf(progress->stream, "  machine   %s, %d thread%s, %s of memory\n", esper_backend_identity(trainer->backend),
            esper_pool_threads(trainer->pool), esper_pool_threads(trainer->pool) == 1 ? "" : "s",
            esper_text_bytes((double)memory.total, d));
    fprintf(progress->stream, "  run       %s", view->run_dir);
    if (trainer->cursor.step > 0)
        fprintf(progress->stream, ", resumed in epoch %u after %u of %u batches", trainer->cursor.epoch + 1,
                trainer->cursor.batch, trainer->steps_per_epoch);
    fprintf(progress->stream, " (Ctrl-C saves and leaves)\n\n");
    fprintf(progress->stream, "   epoch      loss  accuracy   valid loss  accuracy   samples/s     time     left\n");
    fflush(progress->stream);
}

/* Characters that fit before the end of the terminal's line: the bar is drawn over itself, so it may not wrap. */
static int room_of(FILE *stream)
{
    struct winsize size;

    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col - 1 : LINE_CHARS;
}

static void draw_bar(esper_progress *progress, const esper_run_view *view, double part)
{
    const esper_trainer *trainer = view->trainer;
    int filled = (int)(part * BAR_CELLS);
    char count[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS], cells[BAR_CELLS + 1], line[LINE_CHARS];

    for (int i = 0; i < BAR_CELLS; i++)
        cells[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    cells[BAR_CELLS] = '\0';
    snprintf(line, sizeof(line), " %3u/%-3d [%s] %3.0f %%  loss %.4f  %.2f %%  %s/s  %s left",
             trainer->cursor.epoch + 1, trainer->config.epochs, cells, 100.0 * part, esper_tally_loss(&trainer->tally),
             esper_tally_accuracy(&trainer->tally), esper_text_count((int64_t)view->samples_per_s, count),
             esper_text_duration(view->seconds_left, left));
    fprintf(progress->stream, "\r%.*s\033[K", room_of(progress->stream), line);
    progress->bar_shown = true;
    fflush(progress->stream);
}

static void draw_plain(const esper_progress *progress, const esper_run_view *view, double part)
{
    const esper_trainer *trainer = view->trainer;
    char count[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS];

    fprintf(progress->stream, " %3u/%-3d %3.0f %%  loss %.4f  accuracy %.2f %%  %s samples/s  %s left\n",
            trainer->cursor.epoch + 1, trainer->config.epochs, 100.0 * part, esper_tally_loss(&trainer->tally),
            esper_tally_accuracy(&trainer->tally), esper_text_count((int64_t)view->samples_per_s, count),
            esper_text_duration(view->seconds_left, left));
    fflush(progress->stream);
}

static void step(void *context, const esper_run_view *view)
{
    esper_progress *progress = context;
    double now = esper_clock_seconds();
    double part = (double)view->trainer->cursor.batch / view->trainer->steps_per_epoch;

    if (!progress->bar && !progress->plain)
        return;
    if (now - progress->last_shown < (progress->bar ? bar_interval_s : plain_interval_s))
        return;
    progress->last_shown = now;
    if (progress->bar)
        draw_bar(progress, view, part);
    else
        draw_plain(progress, view, part);
}

static void epoch(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    esper_progress *progress = context;
    char speed[ESPER_TEXT_CHARS], took[ESPER_TEXT_CHARS], left[ESPER_TEXT_CHARS];

    if (!progress->bar && !progress->plain)
        return;
    esper_progress_clear(progress);
    fprintf(progress->stream, " %3u/%-3d  %8.4f  %6.2f %%     %8.4f  %6.2f %%  %10s  %7s  %7s\n", record->epoch,
            view->trainer->config.epochs, record->loss_train, record->acc_train, record->loss_valid, record->acc_valid,
            esper_text_count((int64_t)record->samples_per_s, speed), esper_text_duration(record->seconds, took),
            esper_text_duration(view->seconds_left, left));
    fflush(progress->stream);
    progress->last_shown = esper_clock_seconds();
}

esper_run_observer esper_progress_observer(esper_progress *progress)
{
    return (esper_run_observer){.context = progress, .begin = begin, .step = step, .epoch = epoch};
}
