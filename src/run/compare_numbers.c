/* What a comparison computes: budgets, sizes, means and spreads. */
#include <math.h>

#include "base/status.h"
#include "run/compare.h"

/* ------------------------------------------------------------------------------------------------ budgets and sizes */

int esper_compare_epochs(double flops, double flops_per_epoch)
{
    static const double most = 1000000.0;
    double epochs = flops / flops_per_epoch;

    if (!(epochs >= 1.0)) /* nor a number */
        return 1;
    return epochs < most ? (int)(epochs + 0.5) : (int)most;
}

static bool has_images(const esper_task *task)
{
    return esper_source_kind(task->source) == ESPER_DATASET_IMAGES;
}

const char *esper_compare_size_key(const esper_task *task)
{
    return has_images(task) ? "channels" : "width";
}

/* What is asked for: hosts of size unit, 2 unit, ... that differ in nothing else. */
typedef struct sizing {
    const esper_task         *task;
    esper_config              config;
    const esper_dataset_info *data;
    int                       unit, most;
} sizing;

static esper_status count_params(sizing *self, int units, int64_t *params_out)
{
    esper_host host;
    esper_net net;
    esper_status status;

    *(has_images(self->task) ? &self->config.channels : &self->config.width) = units * self->unit;
    host = esper_task_host(self->task, &self->config, self->data);
    esper_net_init(&net);
    status = esper_host_build(&host, &net);
    if (status == ESPER_OK)
        *params_out = esper_net_count_params(&net, -1);
    esper_net_fini(&net);
    return status;
}

/* The smallest that has at least so many parameters, or the largest of all. More units have more parameters. */
static esper_status search(sizing *self, int64_t params, int *units_out)
{
    int low = 0, high = 1; /* low has fewer */
    int64_t n;

    ESPER_TRY(count_params(self, high, &n));
    while (n < params && high < self->most) { /* doubling first: the largest hosts take long to build */
        low = high;
        high = 2 * high < self->most ? 2 * high : self->most;
        ESPER_TRY(count_params(self, high, &n));
    }
    while (high - low > 1) {
        int middle = low + (high - low) / 2;

        ESPER_TRY(count_params(self, middle, &n));
        *(n < params ? &low : &high) = middle;
    }
    *units_out = high;
    return ESPER_OK;
}

esper_status esper_compare_size(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                                int64_t params, int *size_out, int64_t *params_out)
{
    const esper_config_key *key = esper_config_key_at(esper_config_find(esper_compare_size_key(task)));
    sizing self = {.task = task, .config = *config, .data = data, .unit = has_images(task) ? 1 : config->heads};
    int64_t above, below;
    int units;

    self.most = (int)key->range.high / self.unit;
    ESPER_TRY(search(&self, params, &units));
    ESPER_TRY(count_params(&self, units, &above));
    if (units > 1) {
        ESPER_TRY(count_params(&self, units - 1, &below));
        if (params - below < above - params) {
            units--;
            above = below;
        }
    }
    *size_out = units * self.unit;
    *params_out = above;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ statistics */

esper_compare_spread esper_compare_spread_of(const double *values, int n)
{
    esper_compare_spread spread = {
        .n = n, .mean = (double)NAN, .sd = (double)NAN, .min = (double)NAN, .max = (double)NAN};
    double sum = 0.0, squares = 0.0;

    if (n == 0)
        return spread;
    spread.min = spread.max = values[0];
    for (int i = 0; i < n; i++) {
        sum += values[i];
        spread.min = fmin(spread.min, values[i]);
        spread.max = fmax(spread.max, values[i]);
    }
    spread.mean = sum / n;
    for (int i = 0; i < n; i++)
        squares += (values[i] - spread.mean) * (values[i] - spread.mean);
    if (n > 1)
        spread.sd = sqrt(squares / (n - 1));
    return spread;
}

/* The part of Student's t within -t .. t. For whole degrees of freedom it is a finite sum, in the angle of t / sqrt(n_free). */
static double part_within(double t, int n_free)
{
    double angle = atan(t / sqrt((double)n_free)), sine = sin(angle), square = cos(angle) * cos(angle);
    bool odd = n_free % 2 != 0;
    double term = odd ? cos(angle) : 1.0, sum = n_free == 1 ? 0.0 : term;

    for (int k = odd ? 2 : 1; k + 1 < n_free; k += 2) {
        term *= square * k / (k + 1);
        sum += term;
    }
    return odd ? 2.0 / (double)M_PI * (angle + sine * sum) : sine * sum;
}

double esper_compare_t95(int n_free)
{
    double low = 0.0, high = 20.0;

    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2.0;

        *(part_within(middle, n_free) < 0.95 ? &low : &high) = middle;
    }
    return high;
}

double esper_compare_margin(const esper_compare_spread *spread)
{
    return spread->n < 2 ? (double)NAN : esper_compare_t95(spread->n - 1) * spread->sd / sqrt((double)spread->n);
}

double esper_compare_return(const esper_compare *compare, const esper_compare_run *run)
{
    esper_compare_kind kind = compare->lines[run->line].kind;

    return kind == ESPER_COMPARE_FINAL || kind == ESPER_COMPARE_EQUAL ? (double)NAN : run->result.total_reward;
}

typedef double (*figure)(const esper_compare *compare, const esper_compare_run *run);

static double acc_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return run->result.acc_test;
}

static double params_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return (double)run->result.params;
}

static double flops_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return run->result.flops;
}

static double flops_train_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return run->result.flops_train;
}

static double seconds_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return run->result.seconds;
}

static double epochs_of(const esper_compare *compare, const esper_compare_run *run)
{
    (void)compare;
    return (double)run->result.epochs;
}

/* The run of a line in one of the tables; NULL: it has none there. */
static const esper_compare_run *run_in(const esper_compare *compare, int line, int seed, bool equal_flops)
{
    return esper_compare_find(compare, line, seed, equal_flops && line != compare->grown);
}

static bool is_good(const esper_compare_run *run)
{
    return run != NULL && run->result.outcome == ESPER_COMPARE_GOOD;
}

static esper_compare_spread spread_over(const esper_compare *compare, int line, bool equal_flops, figure value)
{
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    for (int seed = 0; seed < compare->n_seeds; seed++) {
        const esper_compare_run *run = run_in(compare, line, seed, equal_flops);

        if (is_good(run) && isfinite(value(compare, run)))
            values[n++] = value(compare, run);
    }
    return esper_compare_spread_of(values, n);
}

/* One line less another, over the seeds on which both have a result. */
static esper_compare_spread difference_over(const esper_compare *compare, int line, int other, bool equal_flops,
                                            figure value)
{
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    for (int seed = 0; seed < compare->n_seeds && line >= 0 && other >= 0; seed++) {
        const esper_compare_run *a = run_in(compare, line, seed, equal_flops);
        const esper_compare_run *b = run_in(compare, other, seed, equal_flops);

        if (is_good(a) && is_good(b) && isfinite(value(compare, a)) && isfinite(value(compare, b)))
            values[n++] = value(compare, a) - value(compare, b);
    }
    return esper_compare_spread_of(values, n);
}

bool esper_compare_summarise(const esper_compare *compare, int line, bool equal_flops,
                             esper_compare_summary *summary_out)
{
    if (run_in(compare, line, 0, equal_flops) == NULL)
        return false;
    summary_out->acc = spread_over(compare, line, equal_flops, acc_of);
    summary_out->params = spread_over(compare, line, equal_flops, params_of);
    summary_out->flops = spread_over(compare, line, equal_flops, flops_of);
    summary_out->flops_train = spread_over(compare, line, equal_flops, flops_train_of);
    summary_out->seconds = spread_over(compare, line, equal_flops, seconds_of);
    summary_out->epochs = spread_over(compare, line, equal_flops, epochs_of);
    summary_out->total_reward = spread_over(compare, line, equal_flops, esper_compare_return);
    summary_out->gain = difference_over(compare, line, compare->host, equal_flops, acc_of);
    summary_out->n_bad = compare->n_seeds - summary_out->acc.n;
    return true;
}

bool esper_compare_pair_up(const esper_compare *compare, int line, esper_compare_pair *pair_out)
{
    if (line == compare->against)
        return false;
    pair_out->total_reward = difference_over(compare, compare->against, line, false, esper_compare_return);
    pair_out->acc = difference_over(compare, compare->against, line, false, acc_of);
    pair_out->params = difference_over(compare, compare->against, line, false, params_of);
    return true;
}

bool esper_compare_on_front(const esper_compare *compare, int line)
{
    double acc = spread_over(compare, line, false, acc_of).mean;
    double params = spread_over(compare, line, false, params_of).mean;

    for (int other = 0; other < compare->n_lines; other++) {
        double acc_other = spread_over(compare, other, false, acc_of).mean;
        double params_other = spread_over(compare, other, false, params_of).mean;

        if (acc_other >= acc && params_other <= params && (acc_other > acc || params_other < params))
            return false;
    }
    return !isnan(acc) && !isnan(params);
}
