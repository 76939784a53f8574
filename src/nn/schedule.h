/* Internal. Learning rates over a run, by the share of it that is spent. */
#ifndef ESPER_NN_SCHEDULE_H
#define ESPER_NN_SCHEDULE_H

#include <stdint.h>

typedef enum esper_schedule_kind {
    ESPER_SCHEDULE_CONSTANT,
    ESPER_SCHEDULE_COSINE, /* down to lr_min along half a cosine, from the start to the end */
    ESPER_SCHEDULE_HOLD,   /* held, then down to lr_min along a straight line in the last part, `fall` */
} esper_schedule_kind;

typedef struct esper_schedule {
    esper_schedule_kind kind;
    double              lr, lr_min;
    double              fall;         /* 0 to 1 */
    uint64_t            warmup_steps; /* rising linearly from lr / warmup_steps; all kinds */
} esper_schedule;

/* The rate of step `step`, counted from 0, before which `share` of the run, 0 to 1, is spent. A pure function: nothing is carried
 * from step to step. */
double esper_schedule_lr(const esper_schedule *schedule, uint64_t step, double share);

#endif
