/* Internal. Shows a run that grows in the view of grow_view.h. */
#ifndef ESPER_UI_GROW_OBSERVER_H
#define ESPER_UI_GROW_OBSERVER_H

#include "slot/slots.h"
#include "run/run.h"
#include "ui/grow_view.h"

typedef struct esper_grow_observer {
    esper_grow_view    view;
    esper_epoch_record last;     /* epoch 0 = none yet */
    double             acc_best; /* of all validations seen; NaN = none yet */
    esper_growth_slot  slots[ESPER_MAX_SLOTS];
} esper_grow_observer;

void esper_grow_observer_init(esper_grow_observer *watch, esper_config_progress kind, FILE *stream);

/* The observer to hand to a run; borrows `watch`. Shows nothing, and leaves incidents to the log, where the view is off. */
esper_run_observer esper_grow_observer_of(esper_grow_observer *watch);

#endif
