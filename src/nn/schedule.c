/* Constant and cosine schedules with linear warm-up. */
#include "nn/schedule.h"

#include <math.h>

double esper_schedule_lr(const esper_schedule *schedule, uint64_t step)
{
    double part;

    if (step < schedule->warmup_steps)
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup_steps;
    if (schedule->kind == ESPER_SCHEDULE_CONSTANT)
        return schedule->lr;
    if (step >= schedule->total_steps)
        return schedule->lr_min;
    part = (double)(step - schedule->warmup_steps) / (double)(schedule->total_steps - schedule->warmup_steps);
    return schedule->lr_min + 0.5 * (schedule->lr - schedule->lr_min) * (1.0 + cos(3.14159265358979323846 * part));
}
