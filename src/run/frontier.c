/* Which comparisons a frontier is made of, and what is read off them. */
#include "run/frontier.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/page.h"
#include "base/status.h"

/* ------------------------------------------------------------------------------------------------ what is asked for */

esper_status esper_frontier_read_list(const char *flag, const char *text, int most, double *values_out, int *n_out)
{
    char words[512], *rest = words, *word;
    double value;

    if (snprintf(words, sizeof(words), "%s", text) >= (int)sizeof(words))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: a list of %zu characters is too long", flag, strlen(text));
    for (*n_out = 0; (word = strsep(&rest, ",")) != NULL; values_out[(*n_out)++] = value) {
        if (!esper_number_read_real(word, &value) || !isfinite(value) || value <= 0.0)
            return ESPER_FAIL(ESPER_E_CONFIG, "%s: '%.40s' is no number above 0", flag, word);
        if (*n_out == most)
            return ESPER_FAIL(ESPER_E_CONFIG, "%s: more than %d numbers", flag, most);
        if (*n_out > 0 && value <= values_out[*n_out - 1])
            return ESPER_FAIL(ESPER_E_CONFIG, "%s: %g comes after %g: expected numbers that rise", flag, value,
                              values_out[*n_out - 1]);
    }
    return ESPER_OK;
}

/* A size that hosts of this kind can have: a transformer's width is a multiple of its heads. */
static int size_near(const esper_task *task, const esper_config *config, double size)
{
    bool by_heads = config->host[0] == '\0' && esper_task_topology(task) == ESPER_TOPOLOGY_TRANSFORMER;
    int unit = by_heads ? config->heads : 1;

    return (int)fmax(round(size / unit), 1.0) * unit;
}

static void add_rate(const esper_config *config, double times, esper_page *line)
{
    if (times != 1.0)
        esper_page_print(line, ":lr=%.4g", config->lr * times);
}

/* The lines of a comparison: static networks of all sizes, then grown ones up to each of these sizes but the host's own. */
static void write_lines(const esper_frontier *frontier, const esper_task *task, const esper_config *config,
                        const esper_frontier_desc *desc, esper_page *lines)
{
    for (int s = 0; s < desc->n_sizes; s++)
        for (int r = 0; r < desc->n_rates; r++) {
            esper_page_print(lines, "%snone", s + r > 0 ? "," : "");
            if (desc->sizes[s] != 1.0)
                esper_page_print(lines, ":size=%d",
                                 size_near(task, config, esper_compare_own_size(task, config) * desc->sizes[s]));
            add_rate(config, desc->rates[r], lines);
        }
    for (int c = 0; c < frontier->n_caps; c++)
        for (int r = 0; r < desc->n_rates; r++) {
            esper_page_print(lines, ",%s:max_params=%" PRId64, desc->policy, frontier->caps[c]);
            add_rate(config, desc->rates[r], lines);
        }
}

/* ------------------------------------------------------------------------------------------------ making it */

static esper_status count_params(const esper_compare *host, int size, int64_t *params_out)
{
    esper_config config = host->config;
    esper_net net;

    ESPER_TRY(esper_compare_set_size(host, size, &config));
    ESPER_TRY(esper_task_build(host->task, &config, &host->data, &net));
    *params_out = esper_net_count_params(&net, -1);
    esper_net_fini(&net);
    return ESPER_OK;
}

/* What grown networks may have: as much as each static network that is larger than the host. */
static esper_status find_caps(esper_frontier *frontier, const esper_compare *host, const esper_frontier_desc *desc)
{
    for (int s = 0; s < desc->n_sizes; s++)
        if (desc->sizes[s] > 1.0)
            ESPER_TRY(count_params(host,
                                   size_near(host->task, &host->config,
                                             esper_compare_own_size(host->task, &host->config) * desc->sizes[s]),
                                   &frontier->caps[frontier->n_caps++]));
    if (frontier->n_caps == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "--sizes: none is above 1: there is nothing to grow to");
    return ESPER_OK;
}

static esper_status init_budget(esper_frontier *frontier, const esper_compare *host, const esper_frontier_desc *desc,
                                int64_t n_seeds)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    esper_config config = host->config;
    char flops[ESPER_NUMBER_CHARS];
    esper_page lines = {0};
    esper_status status;

    snprintf(flops, sizeof(flops), "%.17g", host->flops * desc->budgets[frontier->n_budgets]);
    ESPER_TRY(esper_config_set(&config, "flops", flops, &source));
    write_lines(frontier, host->task, &config, desc, &lines);
    status = lines.status;
    if (status == ESPER_OK)
        status = esper_compare_init(&frontier->budgets[frontier->n_budgets], host->task, &config, lines.text, n_seeds);
    if (status == ESPER_OK)
        frontier->times[frontier->n_budgets] = desc->budgets[frontier->n_budgets];
    frontier->n_budgets += status == ESPER_OK;
    esper_page_fini(&lines);
    return status;
}

static esper_status init_budgets(esper_frontier *frontier, const esper_task *task, const esper_config *config,
                                 const esper_frontier_desc *desc, int64_t n_seeds)
{
    esper_compare *host = esper_mem_alloc(sizeof(*host)); /* for its budget and its data */
    esper_status status;

    if (host == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a frontier");
    status = esper_compare_init(host, task, config, "none", 1);
    if (status == ESPER_OK) {
        status = find_caps(frontier, host, desc);
        while (status == ESPER_OK && frontier->n_budgets < desc->n_budgets)
            status = init_budget(frontier, host, desc, n_seeds);
        esper_compare_fini(host);
    }
    esper_mem_free(host);
    return status;
}

esper_status esper_frontier_init(esper_frontier *frontier, const esper_task *task, const esper_config *config,
                                 const esper_frontier_desc *desc, int64_t n_seeds)
{
    esper_status status;

    *frontier = (esper_frontier){0};
    if (config->length != ESPER_CONFIG_LENGTH_FLOPS)
        return ESPER_FAIL(ESPER_E_CONFIG, "--frontier has budgets of FLOPs: leave out --length epochs");
    frontier->budgets = esper_mem_alloc((size_t)desc->n_budgets * sizeof(*frontier->budgets));
    if (frontier->budgets == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a frontier of %d budgets", desc->n_budgets);
    status = init_budgets(frontier, task, config, desc, n_seeds);
    if (status != ESPER_OK)
        esper_frontier_fini(frontier);
    return status;
}

void esper_frontier_fini(esper_frontier *frontier)
{
    for (int i = 0; i < frontier->n_budgets; i++)
        esper_compare_fini(&frontier->budgets[i]);
    esper_mem_free(frontier->budgets);
    esper_mem_free(frontier->points);
    *frontier = (esper_frontier){0};
}

const char *esper_frontier_name(const esper_frontier *frontier, int budget, char text[ESPER_FRONTIER_NAME_CHARS])
{
    snprintf(text, ESPER_FRONTIER_NAME_CHARS, "x%g", frontier->times[budget]);
    return text;
}

/* ------------------------------------------------------------------------------------------------ reading it */

esper_status esper_frontier_measure(esper_frontier *frontier)
{
    size_t most = 0;

    for (int b = 0; b < frontier->n_budgets; b++)
        most += (size_t)frontier->budgets[b].n_lines;
    esper_mem_free(frontier->points);
    frontier->n_points = 0;
    frontier->points = esper_mem_alloc((most + 1) * sizeof(*frontier->points));
    if (frontier->points == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a frontier of %zu lines", most);
    for (int b = 0; b < frontier->n_budgets; b++)
        for (int line = 0; line < frontier->budgets[b].n_lines; line++) {
            esper_frontier_point *point = &frontier->points[frontier->n_points];

            *point = (esper_frontier_point){
                .budget = b, .line = line, .grown = frontier->budgets[b].lines[line].kind == ESPER_COMPARE_GROWN};
            esper_compare_summarise(&frontier->budgets[b], line, &point->summary);
            frontier->n_points += point->summary.acc.n > 0 && point->summary.acc_valid.n > 0;
        }
    return ESPER_OK;
}

const esper_frontier_point *esper_frontier_best(const esper_frontier *frontier, bool grown, double params, int budget)
{
    const esper_frontier_point *best = NULL;

    for (int i = 0; i < frontier->n_points; i++) {
        const esper_frontier_point *point = &frontier->points[i];

        if (point->grown == grown && point->summary.params.max <= params && point->budget <= budget &&
            (best == NULL || point->summary.acc_valid.mean > best->summary.acc_valid.mean))
            best = point;
    }
    return best;
}

esper_frontier_gap esper_frontier_compare(const esper_frontier *frontier, double params, int budget)
{
    esper_frontier_gap gap = {.grown = esper_frontier_best(frontier, true, params, budget),
                              .fixed = esper_frontier_best(frontier, false, params, budget)};
    double values[ESPER_COMPARE_MAX_SEEDS];
    int n = 0;

    for (int seed = 0; gap.grown != NULL && gap.fixed != NULL && seed < frontier->budgets[0].n_seeds; seed++) {
        const esper_compare_run *grown =
            esper_compare_find(&frontier->budgets[gap.grown->budget], gap.grown->line, seed);
        const esper_compare_run *fixed =
            esper_compare_find(&frontier->budgets[gap.fixed->budget], gap.fixed->line, seed);

        if (grown->result.outcome == ESPER_COMPARE_GOOD && fixed->result.outcome == ESPER_COMPARE_GOOD)
            values[n++] = grown->result.acc_test - fixed->result.acc_test;
    }
    gap.acc = esper_compare_spread_of(values, n);
    return gap;
}

static void count(esper_frontier_share *share, const esper_frontier_gap *gap)
{
    share->n += gap->acc.n > 0;
    share->n_on += gap->acc.n > 0 && gap->acc.mean >= 0.0;
    share->n_above += gap->acc.n > 0 && gap->acc.mean > 0.0;
}

esper_frontier_share esper_frontier_by_params(const esper_frontier *frontier)
{
    esper_frontier_share share = {0};

    for (int i = 0; i < frontier->n_points; i++) {
        double params = frontier->points[i].summary.params.max;
        esper_frontier_gap gap = esper_frontier_compare(frontier, params, frontier->n_budgets - 1);
        bool again = false;

        for (int k = 0; k < i; k++)
            again |= frontier->points[k].summary.params.max == params;
        if (!again)
            count(&share, &gap);
    }
    return share;
}

esper_frontier_share esper_frontier_by_flops(const esper_frontier *frontier)
{
    esper_frontier_share share = {0};

    for (int b = 0; b < frontier->n_budgets; b++) {
        esper_frontier_gap gap = esper_frontier_compare(frontier, (double)INFINITY, b);

        count(&share, &gap);
    }
    return share;
}

esper_frontier_share esper_frontier_by_both(const esper_frontier *frontier)
{
    esper_frontier_share share = {0};

    for (int b = 0; b < frontier->n_budgets; b++)
        for (int c = 0; c < frontier->n_caps; c++) {
            esper_frontier_gap gap = esper_frontier_compare(frontier, (double)frontier->caps[c], b);

            count(&share, &gap);
        }
    return share;
}
