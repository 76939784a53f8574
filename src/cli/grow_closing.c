/* The closing table and the lineage, from the run store. */
#include "cli/grow_closing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "grow/growth.h"
#include "ui/grow_view.h"
#include "ui/report_data.h"
#include "ui/text.h"

static double real_of(double value)
{
    return value != ESPER_STORE_NO_REAL ? value : (double)NAN;
}

static double count_of(int64_t value)
{
    return value != ESPER_STORE_NO_INT ? (double)value : (double)NAN;
}

static int64_t int_of(int64_t value)
{
    return value != ESPER_STORE_NO_INT ? value : 0;
}

/* The lineage knows the lower bound alone; the upper one is an attribution's. */
static esper_growth_seed shown_of(const esper_report_data *data, const esper_store_seed *seed)
{
    const esper_store_record *last = esper_report_attribution_of(data, "contribution", seed->seed);
    const esper_report_trial *trial = esper_report_trial_of(data, seed);
    int kept = (int)int_of(seed->fossilized_epoch), removed = (int)int_of(seed->pruned_epoch);

    return (esper_growth_seed){.slot = seed->slot,
                               .blueprint = seed->blueprint,
                               .params = int_of(seed->params),
                               .stage = esper_stage_find(seed->stage),
                               .germinated = (int)int_of(seed->germinated_epoch),
                               .ended = kept > 0 ? kept : removed,
                               .share = esper_report_birth_share(data, seed),
                               .gain = trial != NULL ? trial->forks[1].gain : (double)NAN,
                               .gain_error = trial != NULL ? trial->forks[1].error : (double)NAN,
                               .n_candidates = trial != NULL ? trial->n - 1 : 0,
                               .dependence = real_of(seed->contribution),
                               .dependence_low = real_of(seed->contribution_lower),
                               .dependence_high = last != NULL ? real_of(last->attribution.upper) : (double)NAN,
                               .reason = kept > 0 || removed > 0 ? seed->reason : NULL};
}

static esper_growth_side side_of(const esper_report_line *line)
{
    return (esper_growth_side){.acc_test = real_of(line->acc_test),
                               .params = int_of(line->params),
                               .flops_per_sample = count_of(line->flops),
                               .flops_training = count_of(line->flops_train),
                               .seconds = real_of(line->seconds)};
}

static esper_status print_stored(const char *store)
{
    esper_growth_seed *seeds = NULL;
    esper_store_reader *reader;
    esper_growth_side grown;
    esper_report_data data;
    esper_status status;

    ESPER_TRY(esper_store_reader_open(store, &reader));
    status = esper_report_data_read(reader, ESPER_REPORT_RUN, &data);
    esper_store_reader_close(reader);
    if (status != ESPER_OK)
        return status;
    grown = side_of(&data.closing.grown);
    grown.flops_trials = esper_report_trial_flops(&data);
    seeds = esper_mem_alloc((size_t)data.n_seeds * sizeof(*seeds) + 1);
    for (int i = 0; seeds != NULL && i < data.n_seeds; i++)
        seeds[i] = shown_of(&data, &data.seeds[i]);
    if (seeds == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "%d seeds", data.n_seeds);
    else
        esper_grow_view_closing(stdout, &(esper_growth_closing){.grown = grown,
                                                                .has_static = data.has_control,
                                                                .fixed = side_of(&data.closing.host),
                                                                .seeds = seeds,
                                                                .n_seeds = data.n_seeds,
                                                                .why_none = esper_report_why_nothing(&data)});
    esper_mem_free(seeds);
    esper_report_data_fini(&data);
    return status;
}

static esper_status add_parts(void *to, const esper_store_record *record)
{
    const double parts[] = {
#define X(e, part, name, about) record->reward.name,
        ESPER_REWARD_PART_LIST(X, )
#undef X
    };
    double *sums = to;

    for (int i = 0; i < ESPER_N_REWARD_PARTS; i++)
        sums[i] += parts[i] != ESPER_STORE_NO_REAL ? parts[i] : 0.0;
    return ESPER_OK;
}

static void print_gain(const char *store, const esper_config *config)
{
    esper_store_run run = esper_store_run_of(""), control = esper_store_run_of("");
    double points = (double)NAN, size = (double)NAN, cost = (double)NAN, total = (double)NAN;
    char params[ESPER_TEXT_CHARS], before[ESPER_TEXT_CHARS];
    esper_store_reader *reader;
    esper_reward_config reward;
    bool known = false;

    if (esper_store_reader_open(store, &reader) == ESPER_OK) {
        known = esper_report_find_runs(reader, ESPER_REPORT_RUN, &run, &control, &known) == ESPER_OK && known;
        esper_store_reader_close(reader);
    }
    if (known && esper_growth_reward_config(config, &reward) == ESPER_OK) {
        points = real_of(run.acc_test) - real_of(control.acc_test);
        size = esper_reward_gain_return(&reward, 0.0, count_of(run.params) / count_of(control.params), 1.0);
        cost = esper_reward_gain_return(&reward, 0.0, 1.0, count_of(run.flops_train) / count_of(control.flops_train));
        total = points + size + cost;
    }
    if (!isfinite(total)) {
        printf("return    not known: gain is held against the host alone, which --static-control trains\n");
        return;
    }
    printf("return    %+.2f\n", total);
    printf("          %+9.2f  points of test accuracy over the static control\n", points);
    printf("          %+9.2f  for %s parameters, and not %s\n", size, esper_text_count(run.params, params),
           esper_text_count(control.params, before));
    printf("          %+9.2f  for %s of training, and not %s\n", cost,
           esper_text_flops(count_of(run.flops_train), params),
           esper_text_flops(count_of(control.flops_train), before));
}

void esper_grow_closing_return(const char *run_dir, const esper_config *config, double total)
{
    double sums[ESPER_N_REWARD_PARTS] = {0.0}, rest = total;
    char store[ESPER_PATH_CHARS];
    esper_store_reader *reader;
    bool has_store = esper_run_path(run_dir, ESPER_RUN_STORE, store) == ESPER_OK, known;

    if (isnan(total)) {
        print_gain(has_store ? store : "", config);
        return;
    }
    known = has_store && esper_store_reader_open(store, &reader) == ESPER_OK;
    printf("return    %.2f, what its decisions earned (esper info rewards)\n", total);
    if (!known)
        return;
    known = esper_report_walk(reader, ESPER_STORE_REWARD, ESPER_REPORT_RUN, true, add_parts, sums) == ESPER_OK;
    esper_store_reader_close(reader);
    for (int i = 0; known && i < ESPER_N_REWARD_PARTS; i++) {
        if (fabs(sums[i]) >= 0.005)
            printf("          %+9.2f  %s\n", sums[i], esper_reward_part_name(i));
        rest -= sums[i];
    }
    if (known && fabs(rest) >= 0.05)
        printf("          %+9.2f  forfeited when the run went back or was stopped\n", rest);
}

esper_status esper_grow_closing_print(const char *run_dir, const esper_run_result *result)
{
    char store[ESPER_PATH_CHARS];
    struct stat info;

    ESPER_TRY(esper_run_path(run_dir, ESPER_RUN_STORE, store));
    if (stat(store, &info) == 0 && (result == NULL || result->store_run > 0)) {
        if (print_stored(store) == ESPER_OK)
            return ESPER_OK;
        fprintf(stderr, "esper: the closing table is not shown: %s\n", esper_last_error()); /* the run is good */
    }
    if (result != NULL)
        printf("test      accuracy %.2f %%\nkept      %s\n", result->acc_test,
               result->kept[0] != '\0' ? result->kept : "no seed");
    return ESPER_OK;
}
