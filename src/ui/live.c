/* Bars and plain lines. */
#include "ui/live.h"

#include <assert.h>

#include "base/clock.h"

enum {
    BAR_CELLS = 24,
    NARROW_BAR_CELLS = 10,
    NARROW = 90 /* columns; below it the bar is shorter */,
    PLAIN_EPOCHS = 100
};

static const double bar_s = 0.1;

void esper_live_init(esper_live *live, esper_config_progress kind, FILE *stream)
{
    bool draws;

    *live =
        (esper_live){.stream = stream, .terminal = esper_terminal_look(stream), .last_shown = esper_clock_seconds()};
    draws = live->terminal.escapes;
    live->bar = kind == ESPER_CONFIG_PROGRESS_BAR || (kind == ESPER_CONFIG_PROGRESS_AUTO && draws);
    live->plain = kind == ESPER_CONFIG_PROGRESS_PLAIN || (kind == ESPER_CONFIG_PROGRESS_AUTO && !draws);
    assert(!(live->bar && live->plain));
}

bool esper_live_is_shown(const esper_live *live)
{
    return live->bar || live->plain;
}

bool esper_live_is_due(esper_live *live, double plain_s)
{
    double now = esper_clock_seconds();

    if (!esper_live_is_shown(live) || now - live->last_shown < (live->bar ? bar_s : plain_s))
        return false;
    live->last_shown = now;
    return true;
}

bool esper_live_is_epoch_due(const esper_live *live, uint32_t epoch, uint32_t n_epochs)
{
    uint32_t n = n_epochs > epoch ? n_epochs : epoch;

    return live->last_epoch == 0 || epoch == n_epochs || epoch <= live->last_epoch /* the run went back */ ||
           epoch - live->last_epoch >= (n + PLAIN_EPOCHS - 1) / PLAIN_EPOCHS;
}

void esper_live_draw(esper_live *live, const char *where, double part, const char *words)
{
    char cells[BAR_CELLS + 1];
    esper_line line;

    assert(live->bar);
    esper_terminal_measure(&live->terminal);
    esper_terminal_bar(part, live->terminal.room < NARROW ? NARROW_BAR_CELLS : BAR_CELLS, cells);
    esper_line_init(&line, live->terminal.room, false);
    esper_line_put(&line, " %s [%s] %3.0f %%  %s", where, cells, 100.0 * part, words);
    fprintf(live->stream, "\r%s\033[K", line.text);
    fflush(live->stream);
    live->bar_shown = true;
    live->last_shown = esper_clock_seconds();
}

void esper_live_clear(esper_live *live)
{
    if (live->bar_shown)
        fprintf(live->stream, "\r\033[K");
    live->bar_shown = false;
    fflush(live->stream);
}
