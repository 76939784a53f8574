/* Advantages, from the last step of a lane to its first. */
#include "policy/gae.h"

#include <assert.h>
#include <stdbool.h>

void esper_gae_run(const esper_gae_options *options, const esper_gae_lane *lane)
{
    double next = 0.0, ahead = 0.0, fade = options->gamma * options->lambda;

    assert(lane->n >= 0 && options->gamma >= 0.0 && options->lambda >= 0.0);
    for (int t = lane->n - 1; t >= 0; t--) {
        bool last = t == lane->n - 1, truncated = lane->truncated[t] != 0;
        double value = (double)lane->values[t] * options->value_scale, error;
        double goes_on = last ? truncated : !(lane->done[t] && !truncated);

        if (last)
            next = (double)lane->bootstraps[t] * options->value_scale;
        error = (double)lane->rewards[t] - value + (goes_on > 0.0 ? options->gamma * next : 0.0);
        ahead = error + (goes_on > 0.0 ? fade * ahead : 0.0);
        lane->errors[t] = (float)error;
        lane->advantages[t] = (float)ahead;
        lane->returns[t] = (float)(ahead + value);
        next = value;
    }
}
