/* Internal. The rule-based policy: germinate when the host has settled and is on a plateau, lead one seed at a time through
 * its stages, keep it when its contribution is proven, remove it when it is not.
 *
 * Where it differs from the recorded rules, on purpose:
 *   - a seed germinates in the empty slot with the most evidence (recorded: in the first empty one); between equals the
 *     run's random numbers choose;
 *   - in HOLDING, contributions come with bounds: the seed is fossilized when the lower bound reaches what the gate asks,
 *     pruned when the upper one stays below it, or after 10 epochs. A bare number is judged as recorded;
 *   - no seed blocks its slot for ever: HOLDING ends after 10 epochs without a contribution, and TRAINING after 30 in which
 *     the gate to BLENDING stayed shut (recorded: no limits);
 *   - a seed in TRAINING is failing by what a trial of it says (recorded: by the host's accuracy, which it cannot change);
 *   - nothing germinates that could not be kept before the run ends (recorded: at any time);
 *   - what a prune costs its blueprint outlasts the embargo (recorded: halved every epoch, never above the threshold);
 *   - the default rotation depends on the topology (recorded: that of images, which transformers refuse), and blueprints
 *     that do not fit a slot are passed over.
 * All numbers are settings; with the recorded ones the recorded decisions come out.
 *
 * It prunes a failing seed whatever its alpha does, at once (speed 0): that is legal for a slot, but more than
 * esper_mask_check allows. */
#ifndef ESPER_POLICY_HEURISTIC_H
#define ESPER_POLICY_HEURISTIC_H

#include <stdint.h>

#include "policy/view.h"

typedef struct esper_heuristic_settings {
    int    plateau_epochs;  /* epochs of plateau before a germination: 3 */
    int    min_epoch;       /* no germination before: 5 */
    int    embargo_epochs;  /* no germination for so long after a prune: 5 */
    int    late_epochs;     /* nor with fewer epochs left than a seed needs to be kept: 25; 0 = never too late */
    int    failing_epochs;  /* a seed is failing after so many epochs in its stage: 5 ... */
    double failing_drop;    /* ... if accuracy fell by more than these points in it: 2 */
    int    training_epochs; /* TRAINING ends in a prune after: 30; 0 = never */
    int    holding_epochs;  /* HOLDING does after: 10; 0 = never */
    int    tempo;           /* epochs of a blend-in: 5 */
    int    bound_epochs;    /* bounds count from so many measured epochs on: 3 */
    double bound_threshold; /* points of contribution that bounds are held against, the gate's: 1 */
    double min_contribution;       /* a bare number must be above: 0.5 */
    double ransom_contribution;    /* a bare number above this, 0.1 ... */
    double ransom_improvement;     /* ... while accuracy fell below this since germination, 0: pruned */
    double penalty;                /* of a blueprint for each prune: 2 */
    double penalty_decay;          /* each epoch: 0.98, a half-life of 34 epochs */
    double penalty_threshold;      /* from it on a blueprint is passed over while there are others: 1 */
    int    n_rotation;
    int    rotation[ESPER_POLICY_BLUEPRINTS]; /* indices of blueprints, tried in turn */
} esper_heuristic_settings;

void esper_heuristic_settings_init(esper_heuristic_settings *settings, esper_topology topology);

/* Keeps time with gates that ask for so many epochs: all numbers of epochs above but bound_epochs, which is statistics, are
 * made for 10 (ESPER_GATE_MIN_EPOCHS) and go up or down with it, rounded up. Penalties last for as many stages as before. In
 * fewer epochs of more meaning accuracy moves further from one to the next: failing_drop goes the other way. */
void esper_heuristic_settings_pace(esper_heuristic_settings *settings, int gate_epochs);

/* Sets the rotation from names: "conv_light,norm". E_ARG for an empty list, a name twice, or one the topology does not have. */
esper_status esper_heuristic_settings_rotate(esper_heuristic_settings *settings, esper_topology topology,
                                             const char *names);

/* What it remembers, and what its pack has behind the head: plain memory without holes. Packs from when there were fewer
 * blueprints end earlier; penalties that they do not have are 0. */
typedef struct esper_heuristic_memory {
    int64_t rotation_index, germinations, last_prune_epoch, last_decay_epoch;
    double  penalties[ESPER_POLICY_BLUEPRINTS]; /* by index; 0 = none */
} esper_heuristic_memory;

#endif
