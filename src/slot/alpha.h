/* Internal. The weight alpha with which a seed is blended in, and the ramp that moves it: pure arithmetic on one plain
 * record.
 *
 *      HOLD ──retarget──> UP or DOWN ──step, step, ... the last one lands exactly on the target──> HOLD
 *
 * A ramp is never changed while it runs. Numbers that are not finite are refused, never clamped. */
#ifndef ESPER_SLOT_ALPHA_H
#define ESPER_SLOT_ALPHA_H

#include <stdbool.h>
#include <stdint.h>

#include "esper.h"

/* The values are the recorded codes. */
#define ESPER_ALPHA_MODE_LIST(X) X(HOLD, 0, "hold") X(UP, 1, "up") X(DOWN, 2, "down")
#define ESPER_ALPHA_CURVE_LIST(X) X(LINEAR, 1, "linear") X(COSINE, 2, "cosine") X(SIGMOID, 3, "sigmoid")

typedef enum esper_alpha_mode {
#define X(name, code, text) ESPER_ALPHA_##name = code,
    ESPER_ALPHA_MODE_LIST(X)
#undef X
} esper_alpha_mode;

typedef enum esper_alpha_curve {
#define X(name, code, text) ESPER_CURVE_##name = code,
    ESPER_ALPHA_CURVE_LIST(X)
#undef X
} esper_alpha_curve;

/* Two values of alpha nearer than this are the same. */
#define ESPER_ALPHA_NEAR 1e-6

typedef struct esper_alpha {
    double  value;         /* alpha now, 0..1 */
    double  start, target; /* of the ramp */
    double  steepness;     /* of the sigmoid: 12; at least 0.1 */
    int32_t mode, curve;
    int32_t n_steps, n_done; /* of the ramp; both 0 when alpha was put there at once */
} esper_alpha;

/* How to get to a target. */
typedef struct esper_alpha_ramp {
    int    n_steps;   /* 0 or less: at once */
    int    curve;     /* 0 = as before */
    double steepness; /* 0 = as before */
} esper_alpha_ramp;

/* At rest at 0, linear. */
void esper_alpha_init(esper_alpha *alpha);

/* Begins a ramp from the value of now. E_STATE while one runs; E_ARG: not finite, no such curve. A target equal to alpha is
 * no ramp: nothing is left to be done. */
esper_status esper_alpha_retarget(esper_alpha *alpha, double target, const esper_alpha_ramp *ramp);

/* One tick of a ramp; true when this one reached the target. */
bool esper_alpha_step(esper_alpha *alpha);

/* Puts it at rest at `value`, as its own start and target. Counts of steps become n_steps, all done. */
void esper_alpha_settle(esper_alpha *alpha, double value, int n_steps);

/* Whether it rests at its target. */
bool esper_alpha_is_at_target(const esper_alpha *alpha);

/* The share of the way at t in 0..1 (clamped), itself in 0..1: 0 at 0, 1/2 at 1/2, 1 at 1, never falling. */
double esper_alpha_progress(int curve, double steepness, double t);

/* "up", "sigmoid"; NULL for other codes. */
const char *esper_alpha_mode_name(int mode);
const char *esper_alpha_curve_name(int curve);

#endif
