/* Internal. The progress of `esper learn` on a terminal or in a log: a line for each round, and between them a bar that is drawn
 * over itself. */
#ifndef ESPER_UI_LEARN_VIEW_H
#define ESPER_UI_LEARN_VIEW_H

#include "run/learn.h"
#include "ui/live.h"

typedef struct esper_learn_progress {
    esper_live live;
    int        n_lines;    /* since the heads of the columns were shown */
    char       words[128]; /* of the last round, for the bar */
} esper_learn_progress;

void esper_learn_progress_init(esper_learn_progress *progress, esper_config_progress kind, FILE *stream);

/* The observer to hand to the learning; borrows `progress`. */
esper_learn_observer esper_learn_progress_observer(esper_learn_progress *progress);

#endif
