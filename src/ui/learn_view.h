/* Internal. The progress of `esper learn` on a terminal or in a log: a line for each round, and between them a bar that is drawn
 * over itself. */
#ifndef ESPER_UI_LEARN_VIEW_H
#define ESPER_UI_LEARN_VIEW_H

#include <stdio.h>

#include "base/config.h"
#include "run/learn.h"
#include "ui/terminal.h"

typedef struct esper_learn_progress {
    FILE          *stream; /* borrowed */
    esper_terminal terminal;
    bool   bar, plain;
    bool   bar_shown;
    double last_shown; /* clock at the last bar or plain line */
    int    n_lines;    /* since the heads of the columns were shown */
    char   words[128]; /* of the last round, for the bar */
} esper_learn_progress;

/* `auto` takes the bar on a terminal that takes escapes, and plain lines elsewhere. */
void esper_learn_progress_init(esper_learn_progress *progress, esper_config_progress kind, FILE *stream);

bool esper_learn_progress_is_shown(const esper_learn_progress *progress);

/* Takes the bar away, so that other output can follow. */
void esper_learn_progress_clear(esper_learn_progress *progress);

/* The observer to hand to the learning; borrows `progress`. */
esper_learn_observer esper_learn_progress_observer(esper_learn_progress *progress);

#endif
