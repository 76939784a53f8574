/* What a comparison computes: budgets, sizes, means and spreads. */
#include <math.h>

#include "base/status.h"
#include "train/compare.h"

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

typedef double (*figure)(const esper_compare_result *result);

static double acc_of(const esper_compare_result *result)
{
    return result->acc_test;
}

static double params_of(const esper_compare_result *result)
{
    return (double)result->params;
}

static double flops_of(const esper_compare_result *result)
{
    return result->flops;
}

static double flops_train_of(const esper_compare_result *result)
{
    return result->flops_train;
}

static double seconds_of(const esper_compare_result *result)
{
    return result->seconds;
}

static double epochs_of(const esper_compare_result *result)
{
    return (double)result->epochs;
}

/* The run of a line in one of the tables; NULL: it has none there. */
static const esper_compare_run *run_in(const esper_compare *compare, int line, int seed, bool equal_flops)
{
    return esper_compare_find(compare, line, seed, equal_flops && line != compare->grown);
}

static esper_compare_spread spread_over(const esper_compare *compare, int line, bool equal_flops, figure value)
{
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    for (int seed = 0; seed < compare->n_seeds; seed++) {
        const esper_compare_run *run = run_in(compare, line, seed, equal_flops);

        if (run != NULL && run->result.outcome == ESPER_COMPARE_GOOD)
            values[n++] = value(&run->result);
    }
    return esper_compare_spread_of(values, n);
}

/* Over the seeds on which both have a result. */
static esper_compare_spread gain_over_host(const esper_compare *compare, int line, bool equal_flops)
{
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    for (int seed = 0; seed < compare->n_seeds && compare->host >= 0; seed++) {
        const esper_compare_run *run = run_in(compare, line, seed, equal_flops);
        const esper_compare_run *host = run_in(compare, compare->host, seed, equal_flops);

        if (run != NULL && host != NULL && run->result.outcome == ESPER_COMPARE_GOOD &&
            host->result.outcome == ESPER_COMPARE_GOOD)
            values[n++] = run->result.acc_test - host->result.acc_test;
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
    summary_out->gain = gain_over_host(compare, line, equal_flops);
    summary_out->n_bad = compare->n_seeds - summary_out->acc.n;
    return true;
}
