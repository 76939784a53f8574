/* Constant, cosine, and hold-then-fall schedules with linear warm-up. */
#include "nn/schedule.h"

#include <assert.h>
#include <math.h>

double esper_schedule_lr(const esper_schedule *schedule, uint64_t step, double share)
{
    double range = schedule->lr - schedule->lr_min, left = fmax(1.0 - share, 0.0);

    assert(share >= 0.0 && schedule->fall >= 0.0 && schedule->fall <= 1.0);
    if (step < schedule->warmup_steps)
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup_steps;
    switch (schedule->kind) {
    case ESPER_SCHEDULE_COSINE:
        return schedule->lr_min + 0.5 * range * (1.0 - cos(3.14159265358979323846 * left));
    case ESPER_SCHEDULE_HOLD:
        return left < schedule->fall ? schedule->lr_min + range * left / schedule->fall : schedule->lr;
    default:
        return schedule->lr;
    }
}
