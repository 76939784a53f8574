/* The closing table and the lineage, from the run store. */
#include "cli/grow_closing.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/grow_view.h"
#include "ui/report_data.h"

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
    int kept = (int)int_of(seed->fossilized_epoch), removed = (int)int_of(seed->pruned_epoch);

    return (esper_growth_seed){.slot = seed->slot,
                               .blueprint = seed->blueprint,
                               .params = int_of(seed->params),
                               .stage = esper_stage_find(seed->stage),
                               .germinated = (int)int_of(seed->germinated_epoch),
                               .blended = (int)int_of(seed->blended_epoch),
                               .ended = kept > 0 ? kept : removed,
                               .contribution = real_of(seed->contribution),
                               .contribution_low = real_of(seed->contribution_lower),
                               .contribution_high = last != NULL ? real_of(last->attribution.upper) : (double)NAN,
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
    esper_report_data data;
    esper_status status;

    ESPER_TRY(esper_store_reader_open(store, &reader));
    status = esper_report_data_read(reader, ESPER_REPORT_RUN, &data);
    esper_store_reader_close(reader);
    if (status != ESPER_OK)
        return status;
    seeds = esper_mem_alloc((size_t)data.n_seeds * sizeof(*seeds) + 1);
    for (int i = 0; seeds != NULL && i < data.n_seeds; i++)
        seeds[i] = shown_of(&data, &data.seeds[i]);
    if (seeds == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "%d seeds", data.n_seeds);
    else
        esper_grow_view_closing(stdout, &(esper_growth_closing){.grown = side_of(&data.closing.grown),
                                                                .has_static = data.has_control,
                                                                .fixed = side_of(&data.closing.host),
                                                                .seeds = seeds,
                                                                .n_seeds = data.n_seeds});
    esper_mem_free(seeds);
    esper_report_data_fini(&data);
    return status;
}

esper_status esper_grow_closing_print(const char *run_dir, const esper_run_result *result)
{
    char store[ESPER_PATH_CHARS];
    struct stat info;

    ESPER_TRY(esper_run_path(run_dir, ESPER_RUN_STORE, store));
    if (stat(store, &info) == 0 && (result == NULL || result->store_run > 0))
        return print_stored(store);
    if (result != NULL)
        printf("test      accuracy %.2f %%\nkept      %s\n", result->acc_test,
               result->kept[0] != '\0' ? result->kept : "no seed");
    return ESPER_OK;
}
