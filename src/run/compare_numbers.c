/* What a comparison computes: sizes, means and spreads. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "grow/growth.h"
#include "run/compare.h"

enum { MOST_EIGHTHS = 64 };

/* ------------------------------------------------------------------------------------------------ sizes */

static bool has_images(const esper_task *task)
{
    return esper_source_kind(task->source) == ESPER_DATASET_IMAGES;
}

const char *esper_compare_size_key(const esper_task *task, const esper_config *config)
{
    if (config->host[0] != '\0')
        return "eighths";
    return has_images(task) ? "channels" : "width";
}

int esper_compare_own_size(const esper_task *task, const esper_config *config)
{
    if (config->host[0] != '\0')
        return 8; /* eighths */
    return has_images(task) ? config->channels : config->width;
}

/* What is asked for: hosts of size unit, 2 unit, ... that differ in nothing else. */
typedef struct sizing {
    const esper_task         *task;
    esper_config              config;
    const esper_dataset_info *data;
    int                       unit, most;
    char                      text[ESPER_HOST_CHARS]; /* of the host; "" = by settings */
} sizing;

static esper_status count_params(sizing *self, int units, int64_t *params_out)
{
    esper_net net;

    if (self->text[0] != '\0')
        ESPER_TRY(esper_host_text_scale(self->text, units, self->config.host));
    *(has_images(self->task) ? &self->config.channels : &self->config.width) = units * self->unit;
    ESPER_TRY(esper_task_build(self->task, &self->config, self->data, &net));
    *params_out = esper_net_count_params(&net, -1);
    esper_net_fini(&net);
    return ESPER_OK;
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
    const char *key = esper_compare_size_key(task, config);
    bool by_text = config->host[0] != '\0', by_heads = esper_task_topology(task) == ESPER_TOPOLOGY_TRANSFORMER;
    sizing self = {.task = task, .config = *config, .data = data, .unit = by_heads && !by_text ? config->heads : 1};
    int64_t above, below;
    int units;

    memcpy(self.text, config->host, sizeof(self.text));
    self.most = by_text ? MOST_EIGHTHS : (int)esper_config_key_at(esper_config_find(key))->range.high / self.unit;
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

    assert(n_free >= 1);
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

/* The part by which two runs of one budget may differ: a step, and the last attribution. */
#define ALIKE 0.1

double esper_compare_return(const esper_compare *compare, const esper_compare_run *run)
{
    esper_compare_kind kind = compare->lines[run->line].kind;
    const esper_compare_run *host = compare->host >= 0 ? esper_compare_find(compare, compare->host, run->seed) : NULL;
    esper_reward_config reward;

    if ((kind != ESPER_COMPARE_HOST && kind != ESPER_COMPARE_GROWN) ||
        esper_growth_reward_config(&compare->config, &reward) != ESPER_OK)
        return (double)NAN;
    if (reward.mode != ESPER_REWARD_GAIN)
        return run->result.total_reward;
    if (host == NULL || host->result.outcome != ESPER_COMPARE_GOOD || run->result.outcome != ESPER_COMPARE_GOOD)
        return (double)NAN;
    if (compare->config.length == ESPER_CONFIG_LENGTH_FLOPS &&
        fabs(run->result.flops_train / host->result.flops_train - 1.0) > ALIKE) /* of other budgets no gain is known */
        return (double)NAN;
    return esper_reward_gain_return(&reward, run->result.acc_test - host->result.acc_test,
                                    (double)run->result.params / (double)host->result.params,
                                    run->result.flops_train / host->result.flops_train);
}

typedef enum figure {
    ACC,
    ACC_VALID,
    PARAMS,
    FLOPS,
    FLOPS_TRAIN,
    SECONDS,
    EPOCHS,
    RETURN,
    PER_TFLOP,
    N_FIGURES
} figure;

/* NaN: there is none, or no good result. */
static double value_of(const esper_compare *compare, const esper_compare_run *run, figure what)
{
    const esper_compare_result *result = &run->result;
    const double values[N_FIGURES] = {
        [ACC] = result->acc_test,
        [ACC_VALID] = result->acc_valid,
        [PARAMS] = (double)result->params,
        [FLOPS] = result->flops,
        [FLOPS_TRAIN] = result->flops_train,
        [SECONDS] = result->seconds,
        [EPOCHS] = (double)result->epochs,
        [RETURN] = esper_compare_return(compare, run),
        [PER_TFLOP] = esper_compare_return(compare, run) / (result->flops_train / 1e12),
    };

    assert(what < N_FIGURES);
    return result->outcome == ESPER_COMPARE_GOOD ? values[what] : (double)NAN;
}

/* Over the seeds on which the line has a result; with `less`, another line, what it has more, over those on which both have. */
static esper_compare_spread spread_over(const esper_compare *compare, int line, const int *less, figure what)
{
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    assert(compare->n_seeds <= ESPER_COMPARE_MAX_SEEDS);
    for (int seed = 0; seed < compare->n_seeds && line >= 0 && (less == NULL || *less >= 0); seed++) {
        const esper_compare_run *run = esper_compare_find(compare, line, seed);
        const esper_compare_run *other = less != NULL ? esper_compare_find(compare, *less, seed) : NULL;

        values[n] = run != NULL ? value_of(compare, run, what) : (double)NAN;
        if (less != NULL)
            values[n] -= other != NULL ? value_of(compare, other, what) : (double)NAN;
        n += isfinite(values[n]);
    }
    return esper_compare_spread_of(values, n);
}

void esper_compare_summarise(const esper_compare *compare, int line, esper_compare_summary *summary_out)
{
    summary_out->acc = spread_over(compare, line, NULL, ACC);
    summary_out->acc_valid = spread_over(compare, line, NULL, ACC_VALID);
    summary_out->params = spread_over(compare, line, NULL, PARAMS);
    summary_out->flops = spread_over(compare, line, NULL, FLOPS);
    summary_out->flops_train = spread_over(compare, line, NULL, FLOPS_TRAIN);
    summary_out->seconds = spread_over(compare, line, NULL, SECONDS);
    summary_out->epochs = spread_over(compare, line, NULL, EPOCHS);
    summary_out->total_reward = spread_over(compare, line, NULL, RETURN);
    summary_out->per_tflop = spread_over(compare, line, NULL, PER_TFLOP);
    summary_out->gain = spread_over(compare, line, &compare->host, ACC);
    summary_out->n_bad = compare->n_seeds - summary_out->acc.n;
}

bool esper_compare_pair_up(const esper_compare *compare, int line, esper_compare_pair *pair_out)
{
    if (line == compare->against)
        return false;
    pair_out->total_reward = spread_over(compare, compare->against, &line, RETURN);
    pair_out->acc = spread_over(compare, compare->against, &line, ACC);
    pair_out->params = spread_over(compare, compare->against, &line, PARAMS);
    pair_out->per_tflop = spread_over(compare, compare->against, &line, PER_TFLOP);
    return true;
}

bool esper_compare_on_front(const esper_compare *compare, int line)
{
    double acc = spread_over(compare, line, NULL, ACC).mean;
    double params = spread_over(compare, line, NULL, PARAMS).mean;

    for (int other = 0; other < compare->n_lines; other++) {
        double acc_other = spread_over(compare, other, NULL, ACC).mean;
        double params_other = spread_over(compare, other, NULL, PARAMS).mean;

        if (acc_other >= acc && params_other <= params && (acc_other > acc || params_other < params))
            return false;
    }
    return !isnan(acc) && !isnan(params);
}
