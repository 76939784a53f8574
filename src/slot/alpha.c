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

static double steep_enough(double steepness)
{
    return steepness < min_steepness ? min_steepness : steepness;
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

static double sigmoid_progress(double steepness, double t)
{
    double r = logistic(steepness * (t - 0.5));
    double r0 = logistic(-steepness * 0.5), r1 = logistic(steepness * 0.5);

    return r1 == r0 ? t : (r - r0) / (r1 - r0);
}

double esper_alpha_progress(int curve, double steepness, double t)
{
    t = clamp01(t);
    if (curve == ESPER_CURVE_COSINE)
        return 0.5 * (1.0 - cos(pi * t));
    if (curve == ESPER_CURVE_SIGMOID)
        return sigmoid_progress(steepness, t);
    return t;
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

static esper_status check_finite(const char *what, double value)
{
    if (!isfinite(value))
        return ESPER_FAIL(ESPER_E_ARG, "alpha: %s is %g, not finite", what, value);
    return ESPER_OK;
}

static esper_status check_curve(int curve)
{
    if (esper_alpha_curve_name(curve) == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "alpha: there is no curve %d", curve);
    return ESPER_OK;
}

esper_status esper_alpha_init(const esper_alpha *wanted, esper_alpha *alpha_out)
{
    esper_alpha alpha = {.steepness = default_steepness, .mode = ESPER_ALPHA_HOLD, .curve = ESPER_CURVE_LINEAR};

    if (wanted != NULL) {
        alpha = *wanted;
        ESPER_TRY(check_finite("its value", alpha.value));
        ESPER_TRY(check_finite("its start", alpha.start));
        ESPER_TRY(check_finite("its target", alpha.target));
        ESPER_TRY(check_finite("its steepness", alpha.steepness));
        ESPER_TRY(check_curve(alpha.curve));
        if (esper_alpha_mode_name(alpha.mode) == NULL)
            return ESPER_FAIL(ESPER_E_ARG, "alpha: there is no mode %d", alpha.mode);
        alpha.value = clamp01(alpha.value);
        alpha.start = clamp01(alpha.start);
        alpha.target = clamp01(alpha.target);
        alpha.steepness = steep_enough(alpha.steepness);
        alpha.n_steps = alpha.n_steps < 0 ? 0 : alpha.n_steps;
        alpha.n_done = alpha.n_done < 0 ? 0 : alpha.n_done > alpha.n_steps ? alpha.n_steps : alpha.n_done;
    }
    *alpha_out = alpha;
    return ESPER_OK;
}

esper_status esper_alpha_retarget(esper_alpha *alpha, double target, const esper_alpha_ramp *ramp)
{
    ESPER_TRY(check_finite("the target", target));
    ESPER_TRY(check_finite("the steepness", ramp->steepness));
    if (ramp->curve != 0)
        ESPER_TRY(check_curve(ramp->curve));
    if (alpha->mode != ESPER_ALPHA_HOLD)
        return ESPER_FAIL(ESPER_E_STATE, "alpha is on its way to %g, %d of %d steps done: wait until it is there",
                          alpha->target, alpha->n_done, alpha->n_steps);
    alpha->start = alpha->value;
    alpha->target = clamp01(target);
    if (ramp->curve != 0)
        alpha->curve = ramp->curve;
    if (ramp->steepness != 0.0)
        alpha->steepness = steep_enough(ramp->steepness);
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
