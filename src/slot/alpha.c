/* The ramp of alpha. */
#include "slot/alpha.h"

#include <assert.h>
#include <math.h>

#include "base/status.h"

static const double default_steepness = 12.0, min_steepness = 0.1;
static const double pi = 3.14159265358979323846;

static double clamp01(double x)
{
    return x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
}

/* The logistic function, written so that exp() never overflows. */
static double logistic(double x)
{
    double e;

    if (x >= 0.0)
        return 1.0 / (1.0 + exp(-x));
    e = exp(x);
    return e / (1.0 + e);
}

double esper_alpha_progress(int curve, double steepness, double t)
{
    double r, r0 = logistic(-steepness * 0.5), r1 = logistic(steepness * 0.5);

    t = clamp01(t);
    if (curve == ESPER_CURVE_COSINE)
        return 0.5 * (1.0 - cos(pi * t));
    if (curve != ESPER_CURVE_SIGMOID || r1 == r0)
        return t;
    r = logistic(steepness * (t - 0.5));
    return (r - r0) / (r1 - r0);
}

const char *esper_alpha_mode_name(int mode)
{
    switch (mode) {
#define X(name, code, text) \
    case code:              \
        return text;
        ESPER_ALPHA_MODE_LIST(X)
#undef X
    default:
        return NULL;
    }
}

const char *esper_alpha_curve_name(int curve)
{
    switch (curve) {
#define X(name, code, text) \
    case code:              \
        return text;
        ESPER_ALPHA_CURVE_LIST(X)
#undef X
    default:
        return NULL;
    }
}

void esper_alpha_init(esper_alpha *alpha)
{
    *alpha = (esper_alpha){.steepness = default_steepness, .mode = ESPER_ALPHA_HOLD, .curve = ESPER_CURVE_LINEAR};
}

esper_status esper_alpha_retarget(esper_alpha *alpha, double target, const esper_alpha_ramp *ramp)
{
    if (!isfinite(target) || !isfinite(ramp->steepness))
        return ESPER_FAIL(ESPER_E_ARG, "alpha: target %g or steepness %g is not finite", target, ramp->steepness);
    if (ramp->curve != 0 && esper_alpha_curve_name(ramp->curve) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "alpha: there is no curve %d", ramp->curve);
    if (alpha->mode != ESPER_ALPHA_HOLD)
        return ESPER_FAIL(ESPER_E_STATE, "alpha is on its way to %g, %d of %d steps done: wait until it is there",
                          alpha->target, alpha->n_done, alpha->n_steps);
    alpha->start = alpha->value;
    alpha->target = clamp01(target);
    if (ramp->curve != 0)
        alpha->curve = ramp->curve;
    if (ramp->steepness != 0.0)
        alpha->steepness = fmax(ramp->steepness, min_steepness);
    alpha->n_done = 0;
    if (ramp->n_steps > 0 && alpha->target != alpha->value) {
        alpha->n_steps = ramp->n_steps;
        alpha->mode = alpha->target > alpha->value ? ESPER_ALPHA_UP : ESPER_ALPHA_DOWN;
    } else {
        alpha->n_steps = 0;
        alpha->value = alpha->target;
    }
    return ESPER_OK;
}

bool esper_alpha_step(esper_alpha *alpha)
{
    double way, low, high;

    assert(alpha->n_done >= 0 && alpha->n_done <= alpha->n_steps);
    if (alpha->mode == ESPER_ALPHA_HOLD || alpha->n_steps == 0)
        return false;
    if (++alpha->n_done >= alpha->n_steps) {
        alpha->n_done = alpha->n_steps;
        alpha->value = alpha->target;
        alpha->mode = ESPER_ALPHA_HOLD;
        return true;
    }
    way = esper_alpha_progress(alpha->curve, alpha->steepness, (double)alpha->n_done / (double)alpha->n_steps);
    low = fmin(alpha->start, alpha->target);
    high = fmax(alpha->start, alpha->target);
    alpha->value = fmin(high, fmax(low, alpha->start + (alpha->target - alpha->start) * way)); /* rounding only */
    return false;
}

void esper_alpha_settle(esper_alpha *alpha, double value, int n_steps)
{
    assert(value >= 0.0 && value <= 1.0 && n_steps >= 0);
    alpha->value = alpha->start = alpha->target = value;
    alpha->mode = ESPER_ALPHA_HOLD;
    alpha->n_steps = alpha->n_done = n_steps;
}

bool esper_alpha_is_at_target(const esper_alpha *alpha)
{
    return alpha->mode == ESPER_ALPHA_HOLD && fabs(alpha->value - alpha->target) <= ESPER_ALPHA_NEAR;
}
