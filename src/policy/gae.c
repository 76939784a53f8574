/* Advantages, from the last step of a lane to its first. */
#include "policy/gae.h"

#include <math.h>

void esper_gae_run(const esper_gae_options *options, const esper_gae_lane *lane)
{
    double next = 0.0, ahead = 0.0, fade = options->gamma * options->lambda;

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

void esper_gae_gather(const float *advantages, int n, esper_moments *moments)
{
    for (int i = 0; i < n; i++)
        (void)esper_moments_add(moments, (double)advantages[i]);
}

esper_gae_stats esper_gae_stats_of(const esper_moments *moments)
{
    esper_gae_stats stats = {.mean = esper_moments_mean(moments), .std = sqrt(esper_moments_variance(moments))};

    stats.floored = stats.std < ESPER_GAE_STD_FLOOR;
    return stats;
}

void esper_gae_scale(const esper_gae_stats *stats, float *advantages, int n)
{
    double by = fmax(stats->std, ESPER_GAE_STD_FLOOR) + 1e-8;

    for (int i = 0; i < n; i++)
        advantages[i] = (float)(((double)advantages[i] - stats->mean) / by);
}
