/* Internal. What is odd about an update of a policy: measured, told, and never acted upon here.
 *
 * An anomaly that goes on is told when it begins and then every tenth time. What is not defined for an update (NAN in the
 * vitals) is not odd. */
#ifndef ESPER_POLICY_ANOMALY_H
#define ESPER_POLICY_ANOMALY_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/policy_net.h"

#define ESPER_ANOMALY_LIST(X)                  \
    X(RATIO_NOT_FINITE, "ratio_nan_inf")       \
    X(RATIO_EXPLOSION, "ratio_explosion")      \
    X(RATIO_COLLAPSE, "ratio_collapse")        \
    X(VALUE_COLLAPSE, "value_collapse")        \
    X(NOT_FINITE, "numerical_instability")     \
    X(ENTROPY_COLLAPSE, "entropy_collapse")    \
    X(ENTROPY_LOW, "entropy_low")              \
    X(KL_EXTREME, "kl_extreme")                \
    X(KL_SPIKE, "kl_spike")                    \
    X(NORM_DRIFT, "gradient_norm_drift")       \
    X(HEALTH_DRIFT, "gradient_health_drift")   \
    X(LSTM_NAN, "lstm_nan")                    \
    X(LSTM_INF, "lstm_inf")                    \
    X(LSTM_H_EXPLOSION, "lstm_h_explosion")    \
    X(LSTM_C_EXPLOSION, "lstm_c_explosion")    \
    X(LSTM_H_VANISHING, "lstm_h_vanishing")    \
    X(LSTM_C_VANISHING, "lstm_c_vanishing")    \
    X(HEAD_NOT_FINITE, "head_entropy_nan_inf") \
    X(HEAD_COLLAPSE, "head_entropy_collapse")

typedef enum esper_anomaly {
#define X(name, text) ESPER_ANOMALY_##name,
    ESPER_ANOMALY_LIST(X)
#undef X
    ESPER_N_ANOMALIES
} esper_anomaly;

const char *esper_anomaly_name(int anomaly); /* NULL for a code that is none */

/* ------------------------------------------------------------------------------------------------ recurrent state */

/* One of h and c, over some environments. */
typedef struct esper_state_size {
    double norm, rms, rms_mean, rms_max, abs_max; /* of all; all; mean and largest over environments; largest value */
} esper_state_size;

typedef struct esper_state_health {
    esper_state_size h, c;
    bool             has_nan, has_inf, healthy; /* both RMS between 1e-6 and 10 */
} esper_state_health;

/* h and c are (n_envs, width), all layers of an environment together. Values that are not finite are flagged and left out. */
esper_state_health esper_state_health_of(const float *h, const float *c, int n_envs, int width);

/* ------------------------------------------------------------------------------------------------ the detector */

/* What an update came to. NAN: not known, or not defined this time; infinite numbers, and NAN in `known`, are odd. */
typedef struct esper_vitals {
    double ratio_max, ratio_min, kl, entropy; /* entropy: mean over heads, 0 .. 1 */
    double value_loss, bellman_error;
    double grad_norm;                         /* largest before clipping; finite */
    double policy_loss, total_loss;           /* always defined */
    int    n_usable;                          /* steps the actor could learn from */
    int    n_heads;
    double head_entropy[ESPER_POLICY_MAX_HEADS];  /* NAN: the head had nothing to choose */
    double head_threshold[ESPER_POLICY_MAX_HEADS]; /* below which it has collapsed */
    const esper_state_health *state;          /* of the rollout's end; NULL: none */
} esper_vitals;

/* All zero is a new one. Plain, without holes: saved as it is. */
typedef struct esper_detector {
    double   ema_norm, ema_health;
    uint64_t n_updates;
    uint64_t streak[ESPER_POLICY_MAX_HEADS];  /* updates in a row with a collapsed entropy */
    uint64_t repeats[ESPER_N_ANOMALIES];      /* updates in a row with this anomaly */
} esper_detector;

typedef struct esper_findings {
    uint32_t found, told;  /* bits 1 << anomaly: all, and those to be told now */
    uint32_t heads;        /* bits 1 << head: which have collapsed or are not finite */
    double   norm_drift, health_drift;
} esper_findings;

/* After every update that was performed. */
esper_findings esper_detector_check(esper_detector *detector, const esper_vitals *vitals);

#endif
