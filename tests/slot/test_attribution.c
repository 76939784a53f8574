/* Attribution: which coalitions are asked for, what they may cost, what follows from them, and whether bounds hold what
 * they promise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "slot/attribution.h"
#include "slot/splice.h"

/* ---------------------------------------------------------------------------------------------------- helpers */

static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* In (0, 1). */
static double next_share(uint64_t *state)
{
    return ((double)(next_bits(state) >> 11) + 0.5) / 9007199254740992.0;
}

static double next_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(next_share(state)));

    return radius * cos(6.283185307179586 * next_share(state));
}

static void set_slot(esper_slots *slots, int k, int stage, double alpha)
{
    slots->slot[k].stage = stage;
    slots->slot[k].alpha.value = alpha;
}

/* So many empty slots. */
static void make_slots(esper_slots *slots, int n)
{
    memset(slots, 0, sizeof(*slots));
    slots->n = n;
    for (int k = 0; k < n; k++) {
        slots->slot[k].depth = k;
        slots->slot[k].stage = ESPER_STAGE_DORMANT;
    }
}

static void check_near(const char *what, double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance))
        fail_msg("%s: %.12g, expected %.12g within %g", what, value, wanted, tolerance);
}

static void check_unknown(const char *what, double value)
{
    if (!isnan(value))
        fail_msg("%s: %.12g, expected not measured", what, value);
}

/* Readings of a plan whose coalitions have these accuracies, by their bits; trials gain 1 point + their slot's index. */
static void read_values(const esper_attribution_plan *plan, const double *accuracy,
                        esper_attribution_reading readings[ESPER_MAX_COALITIONS])
{
    double whole = accuracy[(1u << plan->n_participants) - 1];

    for (int c = 0; c < plan->n_coalitions; c++) {
        const esper_coalition *coalition = &plan->coalition[c];
        double acc = coalition->trial >= 0 ? whole + 1.0 + coalition->trial : accuracy[coalition->on];

        readings[c] = (esper_attribution_reading){whole - acc, 0.1 + 0.01 * c, acc, 1000};
    }
}

/* ---------------------------------------------------------------------------------------------------- coalitions */

static void test_nobody_takes_part(void **state)
{
    esper_slots slots;
    esper_attribution_plan plan;
    esper_attribution attribution;

    (void)state;
    make_slots(&slots, 6);
    set_slot(&slots, 0, ESPER_STAGE_GERMINATED, 0.0);
    set_slot(&slots, 1, ESPER_STAGE_BLENDING, 0.0);   /* no weight yet */
    set_slot(&slots, 2, ESPER_STAGE_BLENDING, 1e-60); /* none that a program could see */
    set_slot(&slots, 3, ESPER_STAGE_FOSSILIZED, 1.0);
    set_slot(&slots, 4, ESPER_STAGE_EMBARGOED, 0.0);
    esper_attribution_plan_make(&slots, NULL, &plan);
    assert_int_equal(plan.n_participants, 0);
    assert_int_equal(plan.n_coalitions, 0);
    esper_attribution_take(&plan, NULL, &attribution);
    for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
        check_unknown("contribution", attribution.contribution[k].value);
        check_unknown("trial", attribution.trial[k].error);
        check_unknown("Shapley value", attribution.shapley[k]);
    }
    check_unknown("total", attribution.total.value);
    assert_int_equal(attribution.n_synergies, 0);
    assert_int_equal(attribution.n_samples, 0);
}

static void check_coalitions(const esper_slots *slots, const esper_attribution_plan *plan)
{
    for (int c = 0; c < plan->n_coalitions; c++) {
        const esper_coalition *coalition = &plan->coalition[c];
        int n_changed = 0;

        for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
            int presence = coalition->presence[k], stage = k < slots->n ? slots->slot[k].stage : 0;

            n_changed += presence != ESPER_PRESENCE_AS_IS;
            if (presence == ESPER_PRESENCE_FULL && (stage != ESPER_STAGE_TRAINING || coalition->trial != k))
                fail_msg("coalition %d: slot %d of stage %d on trial", c, k, stage);
            if (presence == ESPER_PRESENCE_OUT &&
                (coalition->trial >= 0 || stage == ESPER_STAGE_TRAINING || stage == ESPER_STAGE_DORMANT))
                fail_msg("coalition %d: slot %d of stage %d is out", c, k, stage);
        }
        assert_true(n_changed > 0); /* else it would be the network itself */
        for (int d = 0; d < c; d++)
            if (memcmp(coalition->presence, plan->coalition[d].presence, sizeof(coalition->presence)) == 0)
                fail_msg("coalitions %d and %d are equal", d, c);
    }
}

/* blending first, training behind; a fossil in the last slot. */
static void check_counts(int n_blending, int n_training, bool fossils, int max_shapley, int wanted)
{
    esper_attribution_options options = {.include_fossils = fossils, .max_shapley = max_shapley};
    esper_attribution_plan plan;
    esper_slots slots;

    make_slots(&slots, ESPER_MAX_SLOTS);
    for (int k = 0; k < n_blending; k++)
        set_slot(&slots, k, k % 2 == 0 ? ESPER_STAGE_BLENDING : ESPER_STAGE_HOLDING, k % 2 == 0 ? 0.3 : 1.0);
    for (int k = n_blending; k < n_blending + n_training; k++)
        set_slot(&slots, k, ESPER_STAGE_TRAINING, 0.0);
    if (n_blending + n_training < ESPER_MAX_SLOTS)
        set_slot(&slots, ESPER_MAX_SLOTS - 1, ESPER_STAGE_FOSSILIZED, 1.0);
    esper_attribution_plan_make(&slots, &options, &plan);
    if (plan.n_coalitions != wanted)
        fail_msg("%d blending, %d training, fossils %d, exact up to %d: %d coalitions, expected %d", n_blending,
                 n_training, fossils, max_shapley, plan.n_coalitions, wanted);
    assert_int_equal(plan.n_participants, n_blending + fossils);
    check_coalitions(&slots, &plan);
}

static void test_coalitions_are_few_and_distinct(void **state)
{
    (void)state;
    check_counts(0, 0, false, 4, 0);
    check_counts(1, 0, false, 4, 1);
    check_counts(2, 0, false, 4, 3);
    check_counts(3, 0, false, 4, 7);
    check_counts(4, 0, false, 4, 15);
    check_counts(5, 0, false, 4, 5);
    check_counts(31, 0, false, 4, 31);
    check_counts(32, 0, false, 4, 32);
    check_counts(3, 0, true, 4, 15); /* the fossil is the fourth */
    check_counts(4, 0, true, 4, 5);
    check_counts(3, 0, false, 2, 3); /* leave one out alone */
    check_counts(1, 0, false, 0, 1);
    check_counts(5, 0, false, 9, 5); /* more than 4 is never exact */
    check_counts(0, 3, false, 4, 3);
    check_counts(2, 3, false, 4, 6);
    check_counts(4, 28, false, 4, ESPER_MAX_COALITIONS);
    check_counts(16, 16, false, 4, 32);
    check_counts(0, 32, false, 4, 32);
}

/* ---------------------------------------------------------------------------------------------------- what follows */

/* Four slots in use, not next to each other, the first n of which take part. */
static const int places[] = {1, 2, 5, 9};

static void plan_for(int n, bool with_trial, esper_attribution_plan *plan)
{
    esper_slots slots;

    make_slots(&slots, 12);
    for (int i = 0; i < n; i++)
        set_slot(&slots, places[i], ESPER_STAGE_HOLDING, 1.0);
    if (with_trial)
        set_slot(&slots, 7, ESPER_STAGE_TRAINING, 0.0);
    esper_attribution_plan_make(&slots, NULL, plan);
}

/* By definition: all orders in which they could join. `order` holds n of them, from `at` on still to be tried. */
static double sum_marginals(const double *accuracy, int n, int i, int *order, int at, int *n_orders)
{
    double sum = 0.0;

    if (at == n) {
        uint32_t before = 0;

        for (int k = 0; order[k] != i; k++)
            before |= 1u << order[k];
        ++*n_orders;
        return accuracy[before | 1u << i] - accuracy[before];
    }
    for (int k = at; k < n; k++) {
        int kept = order[at];

        order[at] = order[k];
        order[k] = kept;
        sum += sum_marginals(accuracy, n, i, order, at + 1, n_orders);
        order[k] = order[at];
        order[at] = kept;
    }
    return sum;
}

static void check_table(const double *accuracy, int n)
{
    esper_attribution_reading readings[ESPER_MAX_COALITIONS];
    esper_attribution_plan plan;
    esper_attribution attribution;
    uint32_t all = (1u << n) - 1;
    double sum = 0.0;
    int next = 0;

    plan_for(n, true, &plan);
    read_values(&plan, accuracy, readings);
    esper_attribution_take(&plan, readings, &attribution);
    for (int i = 0; i < n; i++) {
        int order[] = {0, 1, 2, 3}, n_orders = 0;
        double marginals = sum_marginals(accuracy, n, i, order, 0, &n_orders);

        check_near("contribution", attribution.contribution[places[i]].value,
                   accuracy[all] - accuracy[all & ~(1u << i)], 1e-9);
        check_near("Shapley value", attribution.shapley[places[i]], marginals / n_orders, 1e-9);
        sum += attribution.shapley[places[i]];
        for (int j = i + 1; j < n; j++, next++) {
            assert_int_equal(attribution.synergy[next].first, places[i]);
            assert_int_equal(attribution.synergy[next].second, places[j]);
            check_near("synergy", attribution.synergy[next].value,
                       accuracy[1u << i | 1u << j] - accuracy[1u << i] - accuracy[1u << j] + accuracy[0], 1e-9);
        }
    }
    assert_int_equal(attribution.n_synergies, next);
    check_near("sum of Shapley values", sum, accuracy[all] - accuracy[0], 1e-9);
    check_near("total", attribution.total.value, accuracy[all] - accuracy[0], 1e-9);
    check_near("trial", attribution.trial[7].value, 8.0, 1e-9);
    check_near("error of the trial", attribution.trial[7].error, 0.1 + 0.01 * (plan.n_coalitions - 1), 1e-12);
    check_unknown("contribution of an empty slot", attribution.contribution[0].value);
    check_unknown("trial of a seed that blends", attribution.trial[1].value);
    assert_int_equal(attribution.n_samples, 1000);
}

static void test_everything_comes_from_one_table(void **state)
{
    uint64_t rng = 1;

    (void)state;
    for (int n = 1; n <= 4; n++)
        for (int round = 0; round < 100; round++) {
            double accuracy[16];

            for (int s = 0; s < 16; s++)
                accuracy[s] = 100.0 * next_share(&rng);
            check_table(accuracy, n);
        }
}

/* Seeds that do not know of each other: what each adds is its Shapley value and its contribution, and no pair has more. */
static void test_independent_seeds(void **state)
{
    static const double worth[] = {3.0, -1.0, 0.0, 2.5};
    esper_attribution_reading readings[ESPER_MAX_COALITIONS];
    esper_attribution_plan plan;
    esper_attribution attribution;
    double accuracy[16];

    (void)state;
    for (int s = 0; s < 16; s++) {
        accuracy[s] = 60.0;
        for (int i = 0; i < 4; i++)
            accuracy[s] += (s >> i & 1) != 0 ? worth[i] : 0.0;
    }
    plan_for(4, false, &plan);
    read_values(&plan, accuracy, readings);
    esper_attribution_take(&plan, readings, &attribution);
    for (int i = 0; i < 4; i++) {
        check_near("contribution", attribution.contribution[places[i]].value, worth[i], 1e-9);
        check_near("Shapley value", attribution.shapley[places[i]], worth[i], 1e-9);
    }
    for (int p = 0; p < 6; p++)
        check_near("synergy", attribution.synergy[p].value, 0.0, 1e-9);
}

static void test_five_seeds_have_contributions_alone(void **state)
{
    esper_attribution_reading readings[ESPER_MAX_COALITIONS];
    esper_attribution_plan plan;
    esper_attribution attribution;
    esper_slots slots;

    (void)state;
    make_slots(&slots, 5);
    for (int k = 0; k < 5; k++)
        set_slot(&slots, k, ESPER_STAGE_BLENDING, 0.5);
    esper_attribution_plan_make(&slots, NULL, &plan);
    for (int c = 0; c < plan.n_coalitions; c++)
        readings[c] = (esper_attribution_reading){c + 1.0, 0.5, 50.0, 100 - (uint64_t)c};
    esper_attribution_take(&plan, readings, &attribution);
    for (int k = 0; k < 5; k++) {
        check_near("contribution", attribution.contribution[k].value, k + 1.0, 0.0);
        check_near("its error", attribution.contribution[k].error, 0.5, 0.0);
        check_unknown("Shapley value", attribution.shapley[k]);
    }
    check_unknown("total", attribution.total.value);
    assert_int_equal(attribution.n_synergies, 0);
    assert_int_equal(attribution.n_samples, 96);
}

/* One coalition that could not be measured spoils what rests on it and leaves the rest. */
static void test_bad_readings_stay_where_they_are(void **state)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, (double)-INFINITY};
    double accuracy[16] = {50.0, 52.0, 53.0, 57.0};

    (void)state;
    for (size_t b = 0; b < sizeof(bad) / sizeof(*bad); b++) {
        esper_attribution_reading readings[ESPER_MAX_COALITIONS];
        esper_attribution_plan plan;
        esper_attribution attribution;

        plan_for(2, true, &plan);
        read_values(&plan, accuracy, readings);
        assert_int_equal(plan.coalition[1].on, 1); /* the first alone: the second's contribution rests on it */
        readings[1].difference = bad[b];
        readings[3].error = bad[b];
        esper_attribution_take(&plan, readings, &attribution);
        check_near("contribution", attribution.contribution[places[0]].value, 4.0, 1e-9);
        check_unknown("contribution", attribution.contribution[places[1]].value);
        check_unknown("its error", attribution.contribution[places[1]].error);
        check_unknown("synergy", attribution.synergy[0].value);
        check_unknown("Shapley value", attribution.shapley[places[0]]);
        check_near("total", attribution.total.value, 7.0, 1e-9);
        check_unknown("trial", attribution.trial[7].value);
    }
}

/* ---------------------------------------------------------------------------------------------------- budget */

static void check_pace(esper_attribution_cost cost, uint32_t n_slice, uint32_t every)
{
    esper_attribution_pace pace = esper_attribution_budget(&cost);

    if (pace.n_slice != n_slice || pace.every != every)
        fail_msg("training %g, share %g, variants %g: %u batches every %u, expected %u every %u", cost.training_flops,
                 cost.share, cost.variant_flops, pace.n_slice, pace.every, n_slice, every);
}

static void test_budget(void **state)
{
    /* 4000 may be spent, a batch costs 100 for each FLOP of a sample's variants */
    esper_attribution_cost cost = {.training_flops = 16000.0,
                                   .share = 0.25,
                                   .variant_flops = 1.0,
                                   .batch = 100,
                                   .n_batches = 50,
                                   .min_samples = 1000};

    (void)state;
    check_pace(cost, 40, 1);
    cost.variant_flops = 0.5;
    check_pace(cost, 50, 1);
    cost.variant_flops = 0.0; /* nobody to look at */
    check_pace(cost, 50, 1);
    cost.variant_flops = 4.0;
    check_pace(cost, 10, 1);
    cost.variant_flops = 4.1;
    check_pace(cost, 10, 2);
    cost.variant_flops = 40.0;
    check_pace(cost, 10, 10);
    cost.min_samples = 950; /* 9.5 batches */
    check_pace(cost, 10, 10);
    cost.min_samples = 1000000; /* there are not so many */
    check_pace(cost, 50, 50);
    cost.min_samples = 0;
    check_pace(cost, 1, 1);
    cost.variant_flops = 1e300;
    check_pace(cost, 0, 0);
}

static void test_budget_without_sense(void **state)
{
    esper_attribution_cost good = {1e9, 0.25, 1e3, 32, 40, 1024}, cost = good;

    (void)state;
    cost.share = 0.0;
    check_pace(cost, 0, 0);
    cost.share = -1.0;
    check_pace(cost, 0, 0);
    cost.share = (double)NAN;
    check_pace(cost, 0, 0);
    cost = good;
    cost.training_flops = 0.0;
    check_pace(cost, 0, 0);
    cost.training_flops = (double)INFINITY;
    check_pace(cost, 0, 0);
    cost = good;
    cost.variant_flops = (double)NAN;
    check_pace(cost, 0, 0);
    cost = good;
    cost.n_batches = 0;
    check_pace(cost, 0, 0);
    cost = good;
    cost.batch = 0;
    check_pace(cost, 0, 0);
    assert_false(esper_attribution_is_due((esper_attribution_pace){0, 0}, 0));
    assert_true(esper_attribution_is_due((esper_attribution_pace){3, 1}, 17));
    assert_true(esper_attribution_is_due((esper_attribution_pace){3, 4}, 8));
    assert_false(esper_attribution_is_due((esper_attribution_pace){3, 4}, 9));
}

static double batches_per_epoch(const esper_attribution_cost *cost)
{
    esper_attribution_pace pace = esper_attribution_budget(cost);

    return pace.every > 0 ? (double)pace.n_slice / pace.every : 0.0;
}

static void test_budget_is_kept_and_monotone(void **state)
{
    uint64_t rng = 5;

    (void)state;
    for (int round = 0; round < 100000; round++) {
        esper_attribution_cost cost = {
            .training_flops = exp(40.0 * next_share(&rng)),
            .share = next_share(&rng),
            .variant_flops = exp(20.0 * next_share(&rng)),
            .batch = 1 + (uint32_t)(next_bits(&rng) % 300),
            .n_batches = 1 + (uint32_t)(next_bits(&rng) % 500),
            .min_samples = (uint32_t)(next_bits(&rng) % 3000),
        };
        esper_attribution_cost more = cost, cheaper = cost;
        double rate = batches_per_epoch(&cost), spent = rate * cost.batch * cost.variant_flops;

        more.share *= 1.0 + next_share(&rng);
        cheaper.variant_flops *= next_share(&rng);
        if (spent > cost.share * cost.training_flops * (1.0 + 1e-12))
            fail_msg("round %d: spends %g of %g", round, spent, cost.share * cost.training_flops);
        if (batches_per_epoch(&more) < rate || batches_per_epoch(&cheaper) < rate)
            fail_msg("round %d: %g batches per epoch, %g with more share, %g when cheaper", round, rate,
                     batches_per_epoch(&more), batches_per_epoch(&cheaper));
    }
}

/* ---------------------------------------------------------------------------------------------------- bounds */

static void test_bound_of_known_readings(void **state)
{
    esper_bound bound = {0};

    (void)state;
    _Static_assert(sizeof(esper_bound) == 32, "no holes");
    check_unknown("mean of nothing", esper_bound_mean(&bound));
    check_unknown("lower of nothing", esper_bound_lower(&bound));
    esper_bound_add(&bound, 0.0, 0.0);
    check_near("mean of one", esper_bound_mean(&bound), 0.0, 0.0);
    check_unknown("lower of one", esper_bound_lower(&bound));
    check_unknown("upper of one", esper_bound_upper(&bound));
    esper_bound_add(&bound, 1.0, 0.0);
    check_near("lower of two", esper_bound_lower(&bound), 0.5 - 6.313752 * 0.5, 1e-6);
    esper_bound_add(&bound, 2.0, 0.0);
    check_near("mean of three", esper_bound_mean(&bound), 1.0, 1e-12);
    check_near("lower of three", esper_bound_lower(&bound), 1.0 - 2.919986 / sqrt(3.0), 1e-6);
    check_near("upper of three", esper_bound_upper(&bound), 1.0 + 2.919986 / sqrt(3.0), 1e-6);
    esper_bound_reset(&bound);
    for (int e = 0; e < 5; e++) /* the same samples in every epoch: more epochs do not help */
        esper_bound_add(&bound, 2.0, 0.5);
    check_near("lower of equal readings", esper_bound_lower(&bound), 2.0 - 1.644854 * 0.5, 1e-6);
}

/* Student's quantiles beyond the table, from the literature: 11, 20, 40 and 120 degrees. */
static void test_bound_of_many_epochs(void **state)
{
    static const struct {
        int    degrees;
        double quantile;
    } known[] = {{10, 1.812461}, {11, 1.795885}, {20, 1.724718}, {40, 1.683851}, {120, 1.657651}};

    (void)state;
    for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++) {
        int n = known[k].degrees + 1;
        double squares = 0.0, mean = 0.0, wanted;
        esper_bound bound = {0};

        for (int e = 0; e < n; e++) {
            double value = e % 3;

            esper_bound_add(&bound, value, 0.0);
            mean += value / n;
            squares += value * value;
        }
        wanted = known[k].quantile * sqrt((squares - n * mean * mean) / (n - 1) / n);
        check_near("distance of the bound", esper_bound_upper(&bound) - mean, wanted, 1e-4 * wanted);
    }
}

static void test_bound_of_bad_readings(void **state)
{
    static const double bad[][2] = {
        {(double)NAN, 0.1}, {1.0, (double)NAN}, {(double)INFINITY, 0.1}, {1.0, (double)INFINITY}, {1.0, -0.1},
        {1e200, 0.1},       {1.0, 1e200}};

    (void)state;
    for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) {
        static const esper_bound never;
        esper_bound bound = {0};

        for (int e = 0; e < 4; e++)
            esper_bound_add(&bound, 5.0, 0.1);
        esper_bound_add(&bound, bad[k][0], bad[k][1]);
        assert_memory_equal(&bound, &never, sizeof(bound));
        check_unknown("lower", esper_bound_lower(&bound));
        esper_bound_add(&bound, 5.0, 0.1);
        assert_int_equal(bound.n_epochs, 1);
    }
}

/* How often the truth, 0, lies above the lower and below the upper bound of n epochs. */
static void check_coverage(int n, double sampling, double drift, double *least)
{
    enum { CASES = 20000 };
    const double noise = 3.0 * sqrt(0.95 * 0.05 / CASES);
    uint64_t rng = (uint64_t)n * 1000 + (uint64_t)(10.0 * drift);
    int n_lower = 0, n_upper = 0;

    for (int i = 0; i < CASES; i++) {
        double chosen = sampling * next_normal(&rng);
        esper_bound bound = {0};

        for (int e = 0; e < n; e++)
            esper_bound_add(&bound, chosen + drift * next_normal(&rng), sampling);
        n_lower += esper_bound_lower(&bound) <= 0.0;
        n_upper += esper_bound_upper(&bound) >= 0.0;
    }
    *least = fmin(*least, fmin(n_lower, n_upper) / CASES);
    if (n_lower < (0.95 - noise) * CASES || n_upper < (0.95 - noise) * CASES)
        fail_msg("%d epochs, errors %g, drift %g: bounds hold in %d and %d of %d cases", n, sampling, drift, n_lower,
                 n_upper, CASES);
    if (n_lower > 0.985 * CASES) /* it is not that wide for nothing */
        fail_msg("%d epochs, errors %g, drift %g: the lower bound holds in %d of %d cases", n, sampling, drift, n_lower,
                 CASES);
}

static void test_bounds_cover(void **state)
{
    static const double drifts[] = {0.0, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0};
    double least = 1.0;

    (void)state;
    for (int n = 3; n <= 10; n++) {
        check_coverage(n, 0.0, 1.0, &least);
        for (size_t d = 0; d < sizeof(drifts) / sizeof(*drifts); d++)
            check_coverage(n, 1.0, drifts[d], &least);
    }
    print_message("bounds hold in at least %.4f of the cases\n", least);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_takes_part),
        cmocka_unit_test(test_coalitions_are_few_and_distinct),
        cmocka_unit_test(test_everything_comes_from_one_table),
        cmocka_unit_test(test_independent_seeds),
        cmocka_unit_test(test_five_seeds_have_contributions_alone),
        cmocka_unit_test(test_bad_readings_stay_where_they_are),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_budget_without_sense),
        cmocka_unit_test(test_budget_is_kept_and_monotone),
        cmocka_unit_test(test_bound_of_known_readings),
        cmocka_unit_test(test_bound_of_many_epochs),
        cmocka_unit_test(test_bound_of_bad_readings),
        cmocka_unit_test(test_bounds_cover),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
