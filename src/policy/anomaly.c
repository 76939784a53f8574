/* The checks, one function for what belongs together. */
#include "policy/anomaly.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

static const double RATIO_HIGH = 5, RATIO_LOW = 0.1, VALUE_HIGH = 5, RMS_HIGH = 10, RMS_LOW = 1e-6;
static const double ENTROPY_GONE = 0.1, ENTROPY_LOW = 0.3, KL_HIGH = 0.5, KL_RAISED = 0.1, DRIFT = 0.5;
static const double EMA = 0.99, DRIFT_EPSILON = 1e-8, NORM_LOW = 1e-7, NORM_HIGH = 100, POOR_HEALTH = 0.3;
static const double RECOVERED = 1.5; /* times its threshold: a head's entropy counts as restored */

enum { COLLAPSE_UPDATES = 3, TELL_EVERY = 10 };

static const char *const names[ESPER_N_ANOMALIES] = {
#define X(name, text) [ESPER_ANOMALY_##name] = text,
    ESPER_ANOMALY_LIST(X)
#undef X
};

const char *esper_anomaly_name(int anomaly)
{
    return anomaly >= 0 && anomaly < ESPER_N_ANOMALIES ? names[anomaly] : NULL;
}

/* ------------------------------------------------------------------------------------------------ recurrent state */

static esper_state_size size_of(const float *values, int n_envs, int width, esper_state_health *health)
{
    esper_state_size size = {0};
    double all = 0;

    assert(n_envs >= 0 && width > 0);
    for (int env = 0; env < n_envs; env++) {
        double sum = 0, rms;

        for (int i = 0; i < width; i++) {
            double x = (double)values[(size_t)env * (size_t)width + (size_t)i];

            health->has_nan = health->has_nan || isnan(x);
            health->has_inf = health->has_inf || isinf(x);
            if (!isfinite(x))
                continue;
            sum += x * x;
            size.abs_max = fmax(size.abs_max, fabs(x));
        }
        rms = sqrt(sum / width);
        size.rms_mean += rms / n_envs;
        size.rms_max = fmax(size.rms_max, rms);
        all += sum;
    }
    size.norm = sqrt(all);
    size.rms = n_envs > 0 ? sqrt(all / n_envs / width) : 0;
    return size;
}

esper_state_health esper_state_health_of(const float *h, const float *c, int n_envs, int width)
{
    esper_state_health health = {0};

    health.h = size_of(h, n_envs, width, &health);
    health.c = size_of(c, n_envs, width, &health);
    health.healthy = !health.has_nan && !health.has_inf && health.h.rms > RMS_LOW && health.h.rms < RMS_HIGH &&
                     health.c.rms > RMS_LOW && health.c.rms < RMS_HIGH;
    return health;
}

/* ------------------------------------------------------------------------------------------------ checks */

static void find(esper_findings *f, esper_anomaly anomaly, bool holds)
{
    assert((int)anomaly >= 0 && anomaly < ESPER_N_ANOMALIES);
    if (holds)
        f->found |= 1u << anomaly;
}

/* The drift is that from where the mean stood before this update. */
static double drift_of(double value, double *mean, bool first)
{
    double drift = first ? 0 : fabs(value - *mean) / (*mean + DRIFT_EPSILON);

    *mean = first ? value : EMA * *mean + (1 - EMA) * value;
    return drift;
}

static void check_drift(esper_detector *d, esper_findings *f, const esper_vitals *v)
{
    bool first = d->n_updates == 0, poor = v->grad_norm < NORM_LOW || v->grad_norm > NORM_HIGH;

    if (!isfinite(v->grad_norm)) { /* never let into a mean */
        find(f, ESPER_ANOMALY_NOT_FINITE, true);
        return;
    }
    f->norm_drift = drift_of(v->grad_norm, &d->ema_norm, first);
    f->health_drift = drift_of(poor ? POOR_HEALTH : 1, &d->ema_health, first);
    d->n_updates++;
    find(f, ESPER_ANOMALY_NORM_DRIFT, f->norm_drift > DRIFT);
    find(f, ESPER_ANOMALY_HEALTH_DRIFT, f->health_drift > DRIFT);
}

/* A streak grows below the threshold, ends well above it, and holds in between. */
static void check_heads(esper_detector *d, esper_findings *f, const esper_vitals *v)
{
    for (int head = 0; head < v->n_heads; head++) {
        double entropy = v->head_entropy[head], threshold = v->head_threshold[head];

        if (isinf(entropy)) {
            find(f, ESPER_ANOMALY_HEAD_NOT_FINITE, true);
            f->heads |= 1u << head;
        } else if (entropy < threshold) {
            d->streak[head]++;
        } else if (entropy > RECOVERED * threshold) {
            d->streak[head] = 0;
        }
        if (d->streak[head] >= COLLAPSE_UPDATES) {
            find(f, ESPER_ANOMALY_HEAD_COLLAPSE, true);
            f->heads |= 1u << head;
        }
    }
}

esper_findings esper_detector_check(esper_detector *detector, const esper_vitals *vitals)
{
    const esper_vitals *v = vitals;
    const esper_state_health *s = v->state;
    bool finite = isfinite(v->ratio_max) && isfinite(v->ratio_min);
    esper_findings f = {0};

    assert(v->n_heads >= 0 && v->n_heads <= ESPER_POLICY_MAX_HEADS);
    find(&f, ESPER_ANOMALY_RATIO_NOT_FINITE, !finite);
    find(&f, ESPER_ANOMALY_RATIO_EXPLOSION, finite && v->ratio_max > RATIO_HIGH);
    find(&f, ESPER_ANOMALY_RATIO_COLLAPSE, finite && v->ratio_min < RATIO_LOW);
    find(&f, ESPER_ANOMALY_KL_EXTREME, v->kl > KL_HIGH);
    find(&f, ESPER_ANOMALY_KL_SPIKE, v->kl > KL_RAISED && !(v->kl > KL_HIGH));
    find(&f, ESPER_ANOMALY_ENTROPY_COLLAPSE, v->entropy < ENTROPY_GONE);
    find(&f, ESPER_ANOMALY_ENTROPY_LOW, v->entropy < ENTROPY_LOW && !(v->entropy < ENTROPY_GONE));
    find(&f, ESPER_ANOMALY_VALUE_COLLAPSE,
         v->n_usable > 0 && (v->value_loss > VALUE_HIGH || v->bellman_error > VALUE_HIGH));
    find(&f, ESPER_ANOMALY_NOT_FINITE,
         !isfinite(v->policy_loss) || !isfinite(v->total_loss) || isinf(v->value_loss) || isinf(v->bellman_error) ||
             isinf(v->kl) || isinf(v->entropy));
    check_drift(detector, &f, v);
    if (s != NULL) {
        find(&f, ESPER_ANOMALY_LSTM_NAN, s->has_nan);
        find(&f, ESPER_ANOMALY_LSTM_INF, s->has_inf);
        find(&f, ESPER_ANOMALY_LSTM_H_EXPLOSION, s->h.rms_max > RMS_HIGH);
        find(&f, ESPER_ANOMALY_LSTM_C_EXPLOSION, s->c.rms_max > RMS_HIGH);
        find(&f, ESPER_ANOMALY_LSTM_H_VANISHING, s->h.rms < RMS_LOW);
        find(&f, ESPER_ANOMALY_LSTM_C_VANISHING, s->c.rms < RMS_LOW);
    }
    check_heads(detector, &f, v);
    for (int a = 0; a < ESPER_N_ANOMALIES; a++) {
        uint64_t before = detector->repeats[a];

        if ((f.found >> a & 1u) != 0 && before % TELL_EVERY == 0)
            f.told |= 1u << a;
        detector->repeats[a] = (f.found >> a & 1u) != 0 ? before + 1 : 0;
    }
    return f;
}
