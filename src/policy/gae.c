/* Advantages, from the last step of an environment to its first. */
#include "policy/gae.h"

#include <assert.h>
#include <stdbool.h>

void esper_gae_run(const esper_gae_options *options, const esper_gae_steps *env)
{
    double next = 0.0, ahead = 0.0, fade = options->gamma * options->lambda;

    assert(env->n >= 0 && options->gamma >= 0.0 && options->lambda >= 0.0);
    for (int t = env->n - 1; t >= 0; t--) {
        bool last = t == env->n - 1, truncated = env->truncated[t] != 0;
        double value = (double)env->values[t] * options->value_scale, error;
        double goes_on = last ? truncated : !(env->done[t] && !truncated);

        if (last)
            next = (double)env->bootstraps[t] * options->value_scale;
        error = (double)env->rewards[t] - value + (goes_on > 0.0 ? options->gamma * next : 0.0);
        ahead = error + (goes_on > 0.0 ? fade * ahead : 0.0);
        env->errors[t] = (float)error;
        env->advantages[t] = (float)ahead;
        env->returns[t] = (float)(ahead + value);
        next = value;
    }
}
