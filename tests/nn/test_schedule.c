/* Learning rates at known steps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "nn/schedule.h"

static void check(const esper_schedule *schedule, uint64_t step, double expected)
{
    double got = esper_schedule_lr(schedule, step);

    if (!(fabs(got - expected) <= 1e-15 + 1e-12 * fabs(expected)))
        fail_msg("step %llu: rate %.17g, expected %.17g", (unsigned long long)step, got, expected);
}

static void test_constant(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_CONSTANT, .lr = 0.01, .lr_min = 0.5, .total_steps = 10};

    (void)state;
    check(&schedule, 0, 0.01);
    check(&schedule, 9, 0.01);
    check(&schedule, 1000000, 0.01);
}

static void test_constant_with_warmup(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_CONSTANT, .lr = 0.4, .warmup_steps = 4};

    (void)state;
    check(&schedule, 0, 0.1);
    check(&schedule, 1, 0.2);
    check(&schedule, 2, 0.3);
    check(&schedule, 3, 0.4);
    check(&schedule, 4, 0.4);
    check(&schedule, 99, 0.4);
}

/* Over 8 steps from 1 to 0.2: the middle at step 4, a quarter of the way at 2. */
static void test_cosine(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.2, .total_steps = 8};

    (void)state;
    check(&schedule, 0, 1.0);
    check(&schedule, 2, 0.2 + 0.4 * (1.0 + sqrt(0.5)));
    check(&schedule, 4, 0.6);
    check(&schedule, 6, 0.2 + 0.4 * (1.0 - sqrt(0.5)));
    check(&schedule, 8, 0.2);
    check(&schedule, 100, 0.2);
}

static void test_cosine_with_warmup(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .warmup_steps = 2, .total_steps = 10};

    (void)state;
    check(&schedule, 0, 0.5);
    check(&schedule, 1, 1.0);
    check(&schedule, 2, 1.0);
    check(&schedule, 6, 0.5);
    check(&schedule, 10, 0.0);
}

static void test_cosine_never_rises_after_warmup(void **state)
{
    esper_schedule schedule = {
        .kind = ESPER_SCHEDULE_COSINE, .lr = 0.3, .lr_min = 0.01, .warmup_steps = 5, .total_steps = 60};

    (void)state;
    for (uint64_t step = 5; step < 80; step++)
        if (esper_schedule_lr(&schedule, step + 1) > esper_schedule_lr(&schedule, step))
            fail_msg("step %llu: rate %g, then %g", (unsigned long long)step, esper_schedule_lr(&schedule, step),
                     esper_schedule_lr(&schedule, step + 1));
}

/* 8 steps from 1 to 0.2, flat to step 12, and 4 more from 1 to 0. */
static void test_finish(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_COSINE,
                               .lr = 1.0,
                               .lr_min = 0.2,
                               .total_steps = 8,
                               .finish_from = 12,
                               .finish_steps = 4};

    (void)state;
    check(&schedule, 4, 0.6);
    check(&schedule, 11, 0.2);
    check(&schedule, 12, 1.0);
    check(&schedule, 14, 0.5);
    check(&schedule, 15, 0.5 * (1.0 - sqrt(0.5)));
    check(&schedule, 16, 0.0);
    schedule.finish_from = 6; /* before the first fall is over */
    check(&schedule, 5, 0.2 + 0.4 * (1.0 + cos(3.14159265358979323846 * 5 / 8)));
    check(&schedule, 6, 1.0);
}

/* Warm-up as long as the run or longer, and a run of no steps, have rates too. */
static void test_odd_lengths(void **state)
{
    esper_schedule all_warmup = {
        .kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.25, .warmup_steps = 4, .total_steps = 4};
    esper_schedule none = {.kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.25};
    esper_schedule longer = {
        .kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.25, .warmup_steps = 8, .total_steps = 4};

    (void)state;
    check(&all_warmup, 3, 1.0);
    check(&all_warmup, 4, 0.25);
    check(&none, 0, 0.25);
    check(&longer, 3, 0.5);
    check(&longer, 8, 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),
        cmocka_unit_test(test_constant_with_warmup),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_cosine_with_warmup),
        cmocka_unit_test(test_cosine_never_rises_after_warmup),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_odd_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
