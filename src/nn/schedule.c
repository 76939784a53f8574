/* Constant and cosine schedules with linear warm-up. */
#include "nn/schedule.h"

#include <assert.h>
#include <math.h>

/* Half a cosine from `high` to `low`: step `step` of `n_steps`. */
static double fall(double high, double low, uint64_t step, uint64_t n_steps)
{
    double part = (double)step / (double)n_steps;

    assert(step <= n_steps && n_steps > 0);
    return low + 0.5 * (high - low) * (1.0 + cos(3.14159265358979323846 * part));
}

double esper_schedule_lr(const esper_schedule *schedule, uint64_t step)
{
    uint64_t finish = schedule->finish_from, n_finish = schedule->finish_steps, warmup = schedule->warmup_steps;

    if (step < warmup)
        return schedule->lr * (double)(step + 1) / (double)warmup;
    if (schedule->kind == ESPER_SCHEDULE_CONSTANT)
        return schedule->lr;
    if (n_finish > 0 && step >= finish)
        return step - finish < n_finish ? fall(schedule->lr, 0.0, step - finish, n_finish) : 0.0;
    if (step >= schedule->total_steps)
        return schedule->lr_min;
    return fall(schedule->lr, schedule->lr_min, step - warmup, schedule->total_steps - warmup);
}
