/* ctest: sets=each */
/* Every function of vec_math.h against libm in double, over a sweep of all magnitudes and a dense one where it bends, and
 * at its limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "tensor/cpu/vec_math.h"

/* One function: found and exact, and what its error is a share of. */
typedef struct subject {
    const char *name;
    simd_vec (*found)(simd_vec x);
    double (*exact)(double x);
    double (*scale)(double x, double exact);
    double worst, at; /* the largest error so far, and its x */
} subject;

#define WRAP(name)                             \
    static simd_vec name##_found(simd_vec x) \
    {                                          \
        return vec_##name(x);                  \
    }
WRAP(exp)
WRAP(log)
WRAP(tanh)
WRAP(sigmoid)
WRAP(gelu)
WRAP(gelu_slope)

/* exp_down is for x <= 0. */
static simd_vec exp_down_found(simd_vec x)
{
    return vec_exp_down(-vec_abs(x));
}

static double exp_down_exact(double x)
{
    return exp(-fabs(x));
}

static double sigmoid_exact(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_exact(double x)
{
    return x * 0.5 * erfc(-x * M_SQRT1_2);
}

static double gelu_slope_exact(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

/* Of the result itself; the last bit of a subnormal result is all there is. */
static double of_result(double x, double exact)
{
    (void)x;
    return fmax(fabs(exact), (double)FLT_TRUE_MIN / 2e-7);
}

/* Of the result itself; one that is not a normal number may be 0 instead. */
static double of_normal_result(double x, double exact)
{
    (void)x;
    return exact > 1.0001 * (double)FLT_MIN ? exact : (double)FLT_MIN / 1e-7;
}

static double of_one_or_x(double x, double exact)
{
    (void)exact;
    return fmax(1, fabs(x));
}

static subject subjects[] = {
    {"exp", exp_found, exp, of_result, 0, 0},
    {"log", log_found, log, of_result, 0, 0},
    {"tanh", tanh_found, tanh, of_result, 0, 0},
    {"sigmoid", sigmoid_found, sigmoid_exact, of_one_or_x, 0, 0},
    {"gelu", gelu_found, gelu_exact, of_one_or_x, 0, 0},
    {"gelu_slope", gelu_slope_found, gelu_slope_exact, of_one_or_x, 0, 0},
    {"exp_down", exp_down_found, exp_down_exact, of_normal_result, 0, 0},
};
enum { N_SUBJECTS = sizeof(subjects) / sizeof(subjects[0]) };

/* What the vector function makes of one value; every lane must make the same of it. */
static float apply(const subject *s, float x)
{
    float lane[SIMD_VEC];
    simd_vec y;

    for (int i = 0; i < SIMD_VEC; i++)
        lane[i] = x;
    memcpy(&y, lane, sizeof(y));
    y = s->found(y);
    memcpy(lane, &y, sizeof(lane));
    for (int i = 1; i < SIMD_VEC; i++)
        if (memcmp(&lane[0], &lane[i], sizeof(float)) != 0)
            fail_msg("%s(%g): %g in lane 0, %g in lane %d", s->name, (double)x, (double)lane[0], (double)lane[i], i);
    return lane[0];
}

static void check_one(subject *s, float x)
{
    double exact = s->exact((double)x), found = (double)apply(s, x), error;

    if ((double)(float)exact == found || (isnan(exact) && isnan(found)))
        return;
    error = fabs(found - exact) / s->scale((double)x, exact);
    if (!(error <= s->worst)) {
        s->worst = error;
        s->at = (double)x;
    }
}

/* Every 4099th of all floats with both signs: all exponents, all kinds of mantissas. */
static void sweep_all(subject *s)
{
    for (uint64_t bits = 0; bits < 0x7f800000u; bits += 4099) {
        uint32_t low = (uint32_t)bits;
        float x;

        memcpy(&x, &low, sizeof(x));
        check_one(s, x);
        check_one(s, -x);
    }
}

static void sweep_dense(subject *s, float from, float to)
{
    for (int i = 0; i < 400000; i++)
        check_one(s, from + (to - from) * (float)i / 400000);
}

static void test_errors(void **state)
{
    (void)state;
    for (int k = 0; k < N_SUBJECTS; k++) {
        subject *s = &subjects[k];

        sweep_all(s);
        sweep_dense(s, -12, 12);
        sweep_dense(s, 0.5f, 1.5f);
        sweep_dense(s, -105, 90);
        printf("%-10s largest error %.2e at %.9g\n", s->name, s->worst, s->at);
        if (!(s->worst <= 2e-7))
            fail_msg("%s(%.9g): %.9g, expected %.9g", s->name, s->at, (double)apply(s, (float)s->at), s->exact(s->at));
    }
}

static void check_exactly(int k, float x, float expected)
{
    float found = apply(&subjects[k], x);

    if (!(found == expected && !signbit(found) == !signbit(expected)))
        fail_msg("%s(%g): %.9g, expected %.9g", subjects[k].name, (double)x, (double)found, (double)expected);
}

static void test_limits(void **state)
{
    enum { EXP, LOG, TANH, SIGMOID, GELU, SLOPE, DOWN };

    (void)state;
    check_exactly(EXP, 0, 1);
    check_exactly(EXP, -INFINITY, 0);
    check_exactly(EXP, -104.5f, 0);
    check_exactly(EXP, -FLT_MAX, 0);
    check_exactly(EXP, INFINITY, INFINITY);
    check_exactly(EXP, 88.8f, INFINITY);
    check_exactly(EXP, FLT_MAX, INFINITY);
    check_exactly(LOG, 1, 0);
    check_exactly(LOG, 0, -INFINITY);
    check_exactly(LOG, INFINITY, INFINITY);
    check_exactly(TANH, 0, 0);
    check_exactly(TANH, -0.0f, -0.0f);
    check_exactly(TANH, INFINITY, 1);
    check_exactly(TANH, -INFINITY, -1);
    check_exactly(TANH, 20, 1);
    check_exactly(SIGMOID, INFINITY, 1);
    check_exactly(SIGMOID, -INFINITY, 0);
    check_exactly(SIGMOID, 0, 0.5f);
    check_exactly(GELU, 0, 0);
    check_exactly(GELU, 30, 30);
    check_exactly(GELU, 1e30f, 1e30f);
    check_exactly(SLOPE, 30, 1);
    check_exactly(SLOPE, 0, 0.5f);
    check_exactly(DOWN, 0, 1);
    check_exactly(DOWN, -88, 0);
    check_exactly(DOWN, -FLT_MAX, 0);
    check_exactly(DOWN, -INFINITY, 0);
}

static void test_not_a_number(void **state)
{
    (void)state;
    for (int k = 0; k < N_SUBJECTS; k++)
        if (!isnan(apply(&subjects[k], NAN)))
            fail_msg("%s(NaN): %g", subjects[k].name, (double)apply(&subjects[k], NAN));
    assert_true(isnan(apply(&subjects[1], -1)));
    assert_true(isnan(apply(&subjects[1], -INFINITY)));
    assert_true(isnan(apply(&subjects[1], -FLT_TRUE_MIN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_not_a_number),
    };

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
