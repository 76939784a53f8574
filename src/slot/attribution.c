/* Coalitions, their budget, and what follows from what was read of them. */
#include "slot/attribution.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "slot/splice.h"

/* ------------------------------------------------------------------------------------------------ what to look at */

void esper_attribution_options_init(esper_attribution_options *options)
{
    *options = (esper_attribution_options){.max_shapley = ESPER_ATTRIBUTION_EXACT};
}

/* AS_IS is 0: a coalition starts as the network itself. */
static esper_coalition *push_coalition(esper_attribution_plan *plan)
{
    esper_coalition *coalition = &plan->coalition[plan->n_coalitions++];

    assert(plan->n_coalitions <= (int)(sizeof(plan->coalition) / sizeof(plan->coalition[0])));
    coalition->trial = -1;
    return coalition;
}

static void push_subset(esper_attribution_plan *plan, uint32_t on)
{
    esper_coalition *coalition = push_coalition(plan);

    coalition->on = on;
    for (int i = 0; i < plan->n_participants; i++)
        if ((on >> i & 1u) == 0)
            coalition->presence[plan->participant[i]] = ESPER_PRESENCE_OUT;
}

/* Bits of all n participants. */
static uint32_t all_of(int n)
{
    assert(n >= 0 && n <= ESPER_MAX_SLOTS && ESPER_MAX_SLOTS <= 32);
    return (uint32_t)((UINT64_C(1) << n) - 1);
}

void esper_attribution_plan_make(const esper_slots *slots, const esper_attribution_options *options,
                                 esper_attribution_plan *plan_out)
{
    esper_attribution_options usual;
    esper_attribution_plan *plan = plan_out;
    uint32_t all;

    esper_attribution_options_init(&usual);
    if (options == NULL)
        options = &usual;
    memset(plan, 0, sizeof(*plan));
    for (int k = 0; k < slots->n; k++) {
        const esper_slot *slot = &slots->slot[k];
        bool blended = slot->stage == ESPER_STAGE_BLENDING || slot->stage == ESPER_STAGE_HOLDING ||
                       (slot->stage == ESPER_STAGE_FOSSILIZED && options->include_fossils);

        if (blended && (float)slot->alpha.value > 0.0f) /* as programs see it: an alpha too small for them is none */
            plan->participant[plan->n_participants++] = k;
    }
    all = all_of(plan->n_participants);
    plan->exact = plan->n_participants <= ESPER_ATTRIBUTION_EXACT && plan->n_participants <= options->max_shapley;
    for (uint32_t on = 0; plan->exact && on < all; on++)
        push_subset(plan, on);
    for (int i = 0; !plan->exact && i < plan->n_participants; i++)
        push_subset(plan, all & ~(1u << i));
    for (int k = 0; k < slots->n; k++)
        if (slots->slot[k].stage == ESPER_STAGE_TRAINING) {
            esper_coalition *trial = push_coalition(plan);

            trial->on = all;
            trial->trial = k;
            trial->presence[k] = ESPER_PRESENCE_FULL;
        }
}

/* ------------------------------------------------------------------------------------------------ its price */

esper_attribution_pace esper_attribution_budget(const esper_attribution_cost *cost)
{
    static const esper_attribution_pace never;
    double budget = cost->share * cost->training_flops, per_batch = cost->variant_flops * cost->batch, epochs;
    uint32_t least, most;

    if (cost->batch < 1 || cost->n_batches < 1 || !isfinite(budget) || !(budget > 0.0) || !(per_batch >= 0.0) ||
        !isfinite(per_batch))
        return never;
    if (per_batch * cost->n_batches <= budget)
        return (esper_attribution_pace){cost->n_batches, 1};
    least = cost->min_samples / cost->batch + (cost->min_samples % cost->batch != 0);
    least = least < 1 ? 1 : least < cost->n_batches ? least : cost->n_batches;
    most = (uint32_t)(budget / per_batch); /* below n_batches */
    if (most >= least)
        return (esper_attribution_pace){most, 1};
    epochs = ceil(per_batch * least / budget);
    return epochs < (double)INT32_MAX ? (esper_attribution_pace){least, (uint32_t)epochs} : never;
}

bool esper_attribution_is_due(esper_attribution_pace pace, uint32_t epoch)
{
    return pace.every > 0 && pace.n_slice > 0 && epoch % pace.every == 0;
}

/* ------------------------------------------------------------------------------------------------ what follows */

/* Accuracies of the coalitions relative to the network's, by their bits: all that is asked is a difference of some. Only
 * exact plans fill it whole. */
typedef struct value_table {
    double of[1 << ESPER_ATTRIBUTION_EXACT];
} value_table;

/* An estimate has both its numbers or none. */
static esper_estimate estimate_of(double value, double error)
{
    if (!isfinite(value) || !isfinite(error) || error < 0.0)
        return (esper_estimate){(double)NAN, (double)NAN};
    return (esper_estimate){value, error};
}

static double factorial(int n)
{
    return n < 2 ? 1.0 : n * factorial(n - 1);
}

/* The mean, over all orders in which the participants could join, of what it adds to those before it: a coalition S stands
 * before it in |S|! (n - |S| - 1)! of n! orders. */
static double shapley_of(const value_table *value, int n, int i)
{
    double sum = 0.0;

    assert(n <= ESPER_ATTRIBUTION_EXACT && i >= 0 && i < n);
    for (uint32_t others = 0; others < 1u << n; others++) {
        int size = __builtin_popcount(others);

        if ((others >> i & 1u) == 0)
            sum += factorial(size) * factorial(n - size - 1) / factorial(n) *
                   (value->of[others | 1u << i] - value->of[others]);
    }
    return sum;
}

/* Whatever rests on all coalitions. */
static void take_exact(const esper_attribution_plan *plan, const esper_attribution_reading *readings,
                       esper_attribution *attribution)
{
    value_table value = {{0.0}}; /* the network's own stays 0 */
    int n = plan->n_participants;

    assert(n <= ESPER_ATTRIBUTION_EXACT);
    for (int c = 0; c < plan->n_coalitions; c++)
        if (plan->coalition[c].trial < 0)
            value.of[plan->coalition[c].on] = isfinite(readings[c].difference) ? -readings[c].difference : (double)NAN;
    for (int i = 0; i < n; i++) {
        attribution->shapley[plan->participant[i]] = shapley_of(&value, n, i);
        for (int j = i + 1; j < n; j++) {
            uint32_t first = 1u << i, second = 1u << j;

            assert(attribution->n_synergies < (int)(sizeof(attribution->synergy) / sizeof(attribution->synergy[0])));
            attribution->synergy[attribution->n_synergies++] = (esper_synergy){
                .first = plan->participant[i],
                .second = plan->participant[j],
                .value = value.of[first | second] - value.of[first] - value.of[second] + value.of[0],
            };
        }
    }
}

void esper_attribution_take(const esper_attribution_plan *plan, const esper_attribution_reading *readings,
                            esper_attribution *attribution_out)
{
    static const esper_estimate unknown = {(double)NAN, (double)NAN};
    esper_attribution *a = attribution_out;
    uint32_t all = all_of(plan->n_participants);

    memset(a, 0, sizeof(*a));
    a->total = unknown;
    for (int k = 0; k < ESPER_MAX_SLOTS; k++) {
        a->contribution[k] = a->trial[k] = unknown;
        a->shapley[k] = (double)NAN;
    }
    for (int c = 0; c < plan->n_coalitions; c++) {
        const esper_coalition *coalition = &plan->coalition[c];
        double difference = readings[c].difference;
        esper_estimate loss = estimate_of(difference, readings[c].error);

        if (c == 0 || readings[c].n_samples < a->n_samples)
            a->n_samples = readings[c].n_samples;
        if (coalition->trial >= 0) {
            a->trial[coalition->trial] = estimate_of(-difference, readings[c].error);
            continue;
        }
        if (coalition->on == 0)
            a->total = loss;
        for (int i = 0; i < plan->n_participants; i++)
            if (coalition->on == (all & ~(1u << i)))
                a->contribution[plan->participant[i]] = loss;
    }
    if (plan->exact)
        take_exact(plan, readings, a);
}

/* ------------------------------------------------------------------------------------------------ over epochs */

/* The readings of n epochs are taken as x_e = truth + s + d_e. s is what the choice of validation samples does: they are the
 * same in every epoch, so s is the same, and its variance (the mean of the squared errors, known from thousands of samples)
 * does not shrink with n. d_e is the seed's drift from epoch to epoch; its variance, estimated from the n readings, does.
 * The bound is mean -+ sqrt(z^2 var(s) + t^2 var(d) / n): each part has the quantile that fits what is known of it, the normal
 * one and Student's with n - 1 degrees. Student's for both would be needlessly wide where s is most of it (2.9 for 1.6 after
 * three epochs); this one covers 95 % as well, as the test simulates. */
#define Z95 1.6448536269514722

void esper_bound_reset(esper_bound *bound)
{
    memset(bound, 0, sizeof(*bound));
}

void esper_bound_add(esper_bound *bound, double value, double error)
{
    if (!isfinite(value) || !isfinite(error) || error < 0.0) {
        esper_bound_reset(bound);
        return;
    }
    bound->n_epochs++;
    bound->sum += value;
    bound->sum_squares += value * value;
    bound->sum_error_squares += error * error;
    if (!isfinite(bound->sum_squares) || !isfinite(bound->sum_error_squares))
        esper_bound_reset(bound);
}

/* Student's one-sided 95 % quantile: a table where few degrees make it steep, a series in 1 / degrees after that. */
static double student_95(uint64_t degrees)
{
    static const double table[] = {6.313752, 2.919986, 2.353363, 2.131847, 2.015048,
                                   1.943180, 1.894579, 1.859548, 1.833113, 1.812461};
    double z = Z95, n = (double)degrees, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;

    assert(degrees >= 1);
    if (degrees <= sizeof(table) / sizeof(*table))
        return table[degrees - 1];
    return z + (z3 + z) / (4.0 * n) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n) +
           (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n);
}

/* How far the bounds lie from the mean. */
static double width_of(const esper_bound *bound)
{
    double n = (double)bound->n_epochs, mean = esper_bound_mean(bound), drift, t;

    if (bound->n_epochs < 2)
        return (double)NAN;
    t = student_95(bound->n_epochs - 1);
    drift = fmax(bound->sum_squares - n * mean * mean, 0.0) / (n - 1.0);
    return sqrt(Z95 * Z95 * bound->sum_error_squares / n + t * t * drift / n);
}

double esper_bound_mean(const esper_bound *bound)
{
    return bound->n_epochs > 0 ? bound->sum / (double)bound->n_epochs : (double)NAN;
}

double esper_bound_lower(const esper_bound *bound)
{
    return esper_bound_mean(bound) - width_of(bound);
}

double esper_bound_upper(const esper_bound *bound)
{
    return esper_bound_mean(bound) + width_of(bound);
}
