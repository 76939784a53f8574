/* Internal. Learning rates over a run. */
#ifndef ESPER_NN_SCHEDULE_H
#define ESPER_NN_SCHEDULE_H

#include <stdint.h>

typedef enum esper_schedule_kind { ESPER_SCHEDULE_CONSTANT, ESPER_SCHEDULE_COSINE } esper_schedule_kind;

typedef struct esper_schedule {
    esper_schedule_kind kind;
    double              lr, lr_min;   /* cosine falls from lr to lr_min */
    uint64_t            warmup_steps; /* rising linearly from lr / warmup_steps; both kinds */
    uint64_t            total_steps;  /* cosine reaches lr_min at this step */
    uint64_t            finish_from;  /* cosine: from this step on the rate falls once more, from lr to 0 ... */
    uint64_t            finish_steps; /* ... in so many steps; 0: it stays at lr_min */
} esper_schedule;

/* The rate of step `step`, counted from 0. A pure function: nothing is carried from step to step. */
double esper_schedule_lr(const esper_schedule *schedule, uint64_t step);

#endif
