/* Internal. The progress of `esper train` on a terminal or in a log: a line for each epoch, and between them a bar that is
 * drawn over itself, or, where that cannot be, a plain line now and then; there about a hundred of a long run's epochs have one. */
#ifndef ESPER_UI_PROGRESS_H
#define ESPER_UI_PROGRESS_H

#include "run/run.h"
#include "ui/live.h"

typedef struct esper_progress {
    esper_live live;
    bool       brief; /* set after init: without the lines about task, network, data and machine; of a bar nothing stays */
} esper_progress;

void esper_progress_init(esper_progress *progress, esper_config_progress kind, FILE *stream);

/* The observer to hand to a run; borrows `progress`. */
esper_run_observer esper_progress_observer(esper_progress *progress);

#endif
