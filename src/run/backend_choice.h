/* Internal. Which backend a run computes on where nobody has said (`backend = auto`). Decided by the work alone, which is known before
 * the run begins, and by what the machine has; never by the clock. */
#ifndef ESPER_RUN_BACKEND_CHOICE_H
#define ESPER_RUN_BACKEND_CHOICE_H

#include "run/task.h"

/* FLOPs of a training step from which on it pays to have a device do it: below, a step takes a processor's threads no longer than
 * it takes to tell a device what to do. */
#define ESPER_BACKEND_WORTH_FLOPS 5e8

typedef struct esper_backend_choice {
    const char *name;     /* NULL: as the configuration says */
    char        why[128]; /* for people; "": there was nothing to choose from */
} esper_backend_choice;

/* recorded: what computed the run until now, which goes on as it began where that can be; NULL or "": it begins. */
esper_status esper_backend_choose(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                                  const char *recorded, esper_backend_choice *choice_out);

#endif
