/* ctest: timeout=30 */
/* What is odd about an update: every check at its threshold, drift, streaks, telling and not telling, recurrent state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "policy/anomaly.h"

#define BIT(name) (1u << ESPER_ANOMALY_##name)
#define D_NAN     ((double)NAN)
#define D_INF     ((double)INFINITY)

/* Nothing odd about this one. */
static esper_vitals sound(void)
{
    esper_vitals v = {.ratio_max = 1.3,
                      .ratio_min = 0.8,
                      .kl = 0.01,
                      .entropy = 0.7,
                      .value_loss = 0.5,
                      .bellman_error = 1,
                      .grad_norm = 2,
                      .policy_loss = -0.1,
                      .total_loss = 0.2,
                      .n_usable = 100,
                      .n_heads = 2,
                      .head_entropy = {0.5, D_NAN},
                      .head_threshold = {0.1, 0.1}};

    return v;
}

static uint32_t found_in(const esper_vitals *v)
{
    esper_detector d = {0};

    return esper_detector_check(&d, v).found;
}

static void expect(uint32_t found, uint32_t expected)
{
    if (found != expected)
        fail_msg("found %#x, expected %#x", found, expected);
}

static void thresholds(void **state)
{
    esper_vitals v = sound();

    (void)state;
    expect(found_in(&v), 0);
#define WITH(field, value, bits)      \
    do {                              \
        v = sound();                  \
        v.field = (value);            \
        expect(found_in(&v), (bits)); \
    } while (0)
    WITH(ratio_max, 5.0, 0);
    WITH(ratio_max, 5.001, BIT(RATIO_EXPLOSION));
    WITH(ratio_min, 0.1, 0);
    WITH(ratio_min, 0.099, BIT(RATIO_COLLAPSE));
    WITH(ratio_max, D_INF, BIT(RATIO_NOT_FINITE));
    WITH(value_loss, 5.0, 0);
    WITH(value_loss, 5.001, BIT(VALUE_COLLAPSE));
    WITH(bellman_error, 5.001, BIT(VALUE_COLLAPSE));
    WITH(bellman_error, D_NAN, 0); /* not known */
    WITH(entropy, 0.2, BIT(ENTROPY_LOW));
    WITH(entropy, 0.05, BIT(ENTROPY_COLLAPSE));
    WITH(kl, 0.2, BIT(KL_SPIKE));
    WITH(kl, 0.6, BIT(KL_EXTREME));
    WITH(policy_loss, D_NAN, BIT(NOT_FINITE));
    WITH(grad_norm, D_INF, BIT(NOT_FINITE));
    WITH(head_entropy[1], D_INF, BIT(HEAD_NOT_FINITE));
#undef WITH
    v = sound();
    v.value_loss = 9;
    v.n_usable = 0;
    expect(found_in(&v), 0);
}

/* The mean moves after the comparison, by one part in a hundred. */
static void drift(void **state)
{
    esper_detector d = {0};
    esper_vitals v = sound();
    esper_findings f = esper_detector_check(&d, &v);

    (void)state;
    assert_true(f.norm_drift == 0 && d.ema_norm == 2);
    v.grad_norm = 3;
    f = esper_detector_check(&d, &v);
    assert_true(fabs(f.norm_drift - 0.5) < 1e-6 && f.found == 0);
    assert_true(fabs(d.ema_norm - 2.01) < 1e-12);
    v.grad_norm = 101;
    f = esper_detector_check(&d, &v);
    expect(f.found, BIT(NORM_DRIFT) | BIT(HEALTH_DRIFT));
    v.grad_norm = D_NAN;
    d = (esper_detector){.ema_norm = 4, .n_updates = 1};
    esper_detector_check(&d, &v);
    assert_true(d.ema_norm == 4 && d.n_updates == 1); /* what is not finite is in no mean */
}

/* Three updates in a row; between threshold and half as much again a streak neither grows nor ends. */
static void collapsing_heads(void **state)
{
    static const double entropies[] = {0.09, 0.05, 0.12, 0.08, 0.14, 0.16, 0.05};
    static const bool collapsed[] = {false, false, false, true, true, false, false};
    esper_detector d = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(entropies) / sizeof(entropies[0]); i++) {
        esper_vitals v = sound();
        esper_findings f;

        v.head_entropy[0] = entropies[i];
        f = esper_detector_check(&d, &v);
        if (((f.found & BIT(HEAD_COLLAPSE)) != 0) != collapsed[i] || f.heads != (collapsed[i] ? 1u : 0u))
            fail_msg("update %zu: found %#x, heads %#x", i, f.found, f.heads);
    }
}

/* When it begins, then every tenth time, and again when it comes back. */
static void telling(void **state)
{
    esper_detector d = {0};
    esper_vitals v = sound();
    int n_told = 0;

    (void)state;
    v.ratio_max = 7;
    for (int i = 0; i < 21; i++) {
        esper_findings f = esper_detector_check(&d, &v);

        assert_true((f.found & BIT(RATIO_EXPLOSION)) != 0);
        n_told += (f.told & BIT(RATIO_EXPLOSION)) != 0;
    }
    assert_int_equal(n_told, 3);
    v.ratio_max = 1;
    esper_detector_check(&d, &v);
    v.ratio_max = 7;
    assert_true((esper_detector_check(&d, &v).told & BIT(RATIO_EXPLOSION)) != 0);
}

static void recurrent_state(void **state)
{
    float h[4] = {3, 4, 0, 0}, c[4] = {1, 1, 1, 1};
    esper_state_health s = esper_state_health_of(h, c, 2, 2);
    esper_vitals v = sound();

    (void)state;
    assert_true(s.healthy && fabs(s.h.norm - 5) < 1e-6 && fabs(s.h.rms - 2.5) < 1e-6);
    assert_true(fabs(s.h.rms_max - 5 / sqrt(2)) < 1e-6 && fabs(s.h.rms_mean - 2.5 / sqrt(2)) < 1e-6);
    assert_true(s.h.abs_max == 4 && fabs(s.c.rms - 1) < 1e-6);
    v.state = &s;
    expect(found_in(&v), 0);
    h[1] = NAN;
    c[0] = INFINITY;
    s = esper_state_health_of(h, c, 2, 2);
    assert_true(s.has_nan && s.has_inf && !s.healthy && isfinite(s.h.norm));
    expect(found_in(&v), BIT(LSTM_NAN) | BIT(LSTM_INF));
    h[0] = 30;
    h[1] = c[0] = c[1] = c[2] = c[3] = 0;
    s = esper_state_health_of(h, c, 2, 2);
    expect(found_in(&v), BIT(LSTM_H_EXPLOSION) | BIT(LSTM_C_VANISHING));
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(esper_anomaly_name(ESPER_ANOMALY_KL_SPIKE), "kl_spike");
    assert_null(esper_anomaly_name(ESPER_N_ANOMALIES));
    assert_null(esper_anomaly_name(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thresholds), cmocka_unit_test(drift),           cmocka_unit_test(collapsing_heads),
        cmocka_unit_test(telling),    cmocka_unit_test(recurrent_state), cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
