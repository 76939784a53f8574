/* Learning rates at known steps and shares of a run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "nn/schedule.h"

enum { LATE = 1000 }; /* a step after any warm-up */

static void check(const esper_schedule *schedule, uint64_t step, double share, double expected)
{
    double got = esper_schedule_lr(schedule, step, share);

    if (!(fabs(got - expected) <= 1e-15 + 1e-12 * fabs(expected)))
        fail_msg("step %llu, share %g: rate %.17g, expected %.17g", (unsigned long long)step, share, got, expected);
}

static void test_constant(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_CONSTANT, .lr = 0.01, .lr_min = 0.5, .fall = 0.5};

    (void)state;
    check(&schedule, 0, 0.0, 0.01);
    check(&schedule, 9, 0.9, 0.01);
    check(&schedule, 1000000, 1.0, 0.01);
}

/* From 1 to 0.2: the middle at half of the run, a quarter of the way down at a quarter of the angle. */
static void test_cosine(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.2, .fall = 0.1};

    (void)state;
    check(&schedule, LATE, 0.0, 1.0);
    check(&schedule, LATE, 0.25, 0.2 + 0.4 * (1.0 + sqrt(0.5)));
    check(&schedule, LATE, 0.5, 0.6);
    check(&schedule, LATE, 0.75, 0.2 + 0.4 * (1.0 - sqrt(0.5)));
    check(&schedule, LATE, 1.0, 0.2);
}

/* Held at 1 for three quarters of the run, then from 1 to 0.2. */
static void test_hold(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_HOLD, .lr = 1.0, .lr_min = 0.2, .fall = 0.25};

    (void)state;
    check(&schedule, LATE, 0.0, 1.0);
    check(&schedule, LATE, 0.5, 1.0);
    check(&schedule, LATE, 0.75, 1.0);
    check(&schedule, LATE, 0.8125, 0.8);
    check(&schedule, LATE, 0.875, 0.6);
    check(&schedule, LATE, 1.0, 0.2);
}

static void test_fall_of_nothing_and_of_all(void **state)
{
    esper_schedule never = {.kind = ESPER_SCHEDULE_HOLD, .lr = 0.3, .fall = 0.0};
    esper_schedule always = {.kind = ESPER_SCHEDULE_HOLD, .lr = 0.3, .fall = 1.0};

    (void)state;
    check(&never, LATE, 0.0, 0.3);
    check(&never, LATE, 0.999, 0.3);
    check(&never, LATE, 1.0, 0.3);
    check(&always, LATE, 0.0, 0.3);
    check(&always, LATE, 0.5, 0.15);
    check(&always, LATE, 1.0, 0.0);
}

/* It goes by steps, whatever is spent in them, and what comes behind it goes by the share. */
static void test_warmup(void **state)
{
    static const esper_schedule_kind kinds[] = {ESPER_SCHEDULE_CONSTANT, ESPER_SCHEDULE_COSINE, ESPER_SCHEDULE_HOLD};
    static const double at_half[] = {0.4, 0.2, 0.4};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_schedule schedule = {.kind = kinds[i], .lr = 0.4, .fall = 0.25, .warmup_steps = 4};

        for (uint64_t step = 0; step < 4; step++)
            for (int part = 0; part <= 4; part++)
                check(&schedule, step, part / 4.0, 0.1 * (double)(step + 1));
        check(&schedule, 4, 0.0, 0.4);
        check(&schedule, 4, 0.5, at_half[i]);
    }
}

/* More was spent than there was: it stays where it ended. */
static void test_beyond_the_end(void **state)
{
    esper_schedule schedule = {.kind = ESPER_SCHEDULE_COSINE, .lr = 1.0, .lr_min = 0.2, .fall = 0.25};

    (void)state;
    check(&schedule, LATE, 1.5, 0.2);
    schedule.kind = ESPER_SCHEDULE_HOLD;
    check(&schedule, LATE, 1.5, 0.2);
}

static void test_never_rises_after_warmup(void **state)
{
    static const esper_schedule_kind kinds[] = {ESPER_SCHEDULE_COSINE, ESPER_SCHEDULE_HOLD};

    (void)state;
    for (int i = 0; i < 2; i++) {
        esper_schedule schedule = {.kind = kinds[i], .lr = 0.3, .lr_min = 0.01, .fall = 0.4};
        double before = schedule.lr;

        for (int part = 0; part <= 100; part++) {
            double rate = esper_schedule_lr(&schedule, LATE, part / 100.0);

            if (rate > before)
                fail_msg("share %g: rate %g, then %g", part / 100.0, before, rate);
            before = rate;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_fall_of_nothing_and_of_all),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_beyond_the_end),
        cmocka_unit_test(test_never_rises_after_warmup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
