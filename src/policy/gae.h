/* Internal. How much better than expected each step of an episode was: generalised advantage estimation, and the one scale that
 * all advantages of a round share. */
#ifndef ESPER_POLICY_GAE_H
#define ESPER_POLICY_GAE_H

#include "policy/normaliser.h"

#define ESPER_GAE_STD_FLOOR 0.1 /* advantages are never divided by less */

typedef struct esper_gae_options {
    double gamma, lambda;
    double value_scale; /* what values and bootstraps are multiplied by first; 1 = they are raw */
} esper_gae_options;

/* One lane: (n) of each. A step that is done and not truncated ends an episode: nothing behind it counts. The last step of a
 * lane, when truncated, is followed by its bootstrap value; else by nothing. */
typedef struct esper_gae_lane {
    int            n;
    const float   *rewards, *values, *bootstraps;
    const uint8_t *done, *truncated;
    float         *advantages, *returns, *errors; /* written; returns are raw: advantage + value */
} esper_gae_lane;

void esper_gae_run(const esper_gae_options *options, const esper_gae_lane *lane);

/* The advantages of a round are gathered in moments, lane by lane, in any order and over ranks; then each lane is scaled:
 * less the mean, by the deviation, which counts as ESPER_GAE_STD_FLOOR at least. */
typedef struct esper_gae_stats {
    double mean, std; /* before */
    bool   floored;
} esper_gae_stats;

void            esper_gae_gather(const float *advantages, int n, esper_moments *moments);
esper_gae_stats esper_gae_stats_of(const esper_moments *moments);
void            esper_gae_scale(const esper_gae_stats *stats, float *advantages, int n);

#endif
