/* Internal. How much better than expected each step of an episode was: generalised advantage estimation. */
#ifndef ESPER_POLICY_GAE_H
#define ESPER_POLICY_GAE_H

#include <stdint.h>

typedef struct esper_gae_options {
    double gamma, lambda;
    double value_scale; /* what values and bootstraps are multiplied by first; 1 = they are raw */
} esper_gae_options;

/* One environment: (n) of each. A step that is done and not truncated ends an episode: nothing behind it counts. The last step of a
 * environment, when truncated, is followed by its bootstrap value; else by nothing. */
typedef struct esper_gae_steps {
    int            n;
    const float   *rewards, *values, *bootstraps;
    const uint8_t *done, *truncated;
    float         *advantages, *returns, *errors; /* written; returns are raw: advantage + value */
} esper_gae_steps;

void esper_gae_run(const esper_gae_options *options, const esper_gae_steps *env);

#endif
