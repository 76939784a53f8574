/* Internal. The progress of `esper train` on a terminal or in a log: a line for each epoch, and between them a bar that is
 * drawn over itself, or, where that cannot be, a plain line now and then. */
#ifndef ESPER_UI_PROGRESS_H
#define ESPER_UI_PROGRESS_H

#include <stdio.h>

#include "base/config.h"
#include "run/run.h"
#include "ui/terminal.h"

typedef struct esper_progress {
    FILE          *stream; /* borrowed */
    esper_terminal terminal;
    bool   bar, plain;
    bool   brief; /* set after init: without the lines about task, network, data and machine; of a bar nothing stays */
    bool   bar_shown;
    double last_shown; /* clock at the last bar or plain line */
} esper_progress;

/* `auto` takes the bar on a terminal that takes escapes, and plain lines elsewhere. */
void esper_progress_init(esper_progress *progress, esper_config_progress kind, FILE *stream);

/* Whether anything is shown at all. */
bool esper_progress_is_shown(const esper_progress *progress);

/* Takes the bar away, so that other output can follow. */
void esper_progress_clear(esper_progress *progress);

/* The observer to hand to a run; borrows `progress`. */
esper_run_observer esper_progress_observer(esper_progress *progress);

#endif
