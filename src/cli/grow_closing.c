/* The closing table and the lineage, from the run store. */
#include "cli/grow_closing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/grow_view.h"
#include "ui/report.h"

/* All seeds of a run, as the store has them and as the view shows them. */
typedef struct lineage {
    esper_store_seed  *seeds;
    esper_growth_seed *shown;
    double            *upper; /* bounds of contributions; NaN = none */
    int                n, room;
} lineage;

static double real_of(double value)
{
    return value != ESPER_STORE_NO_REAL ? value : (double)NAN;
}

static double count_of(int64_t value)
{
    return value != ESPER_STORE_NO_INT ? (double)value : (double)NAN;
}

static int epoch_of(int64_t epoch)
{
    return epoch != ESPER_STORE_NO_INT ? (int)epoch : 0;
}

static void free_lineage(lineage *all)
{
    esper_mem_free(all->seeds);
    esper_mem_free(all->shown);
    esper_mem_free(all->upper);
}

/* ------------------------------------------------------------------------------------------------ reading */

static esper_status make_room(lineage *all)
{
    enum { FIRST = 16 };
    int room = all->room > 0 ? 2 * all->room : FIRST;
    esper_store_seed *seeds;

    if (all->n < all->room)
        return ESPER_OK;
    seeds = esper_mem_grow(all->seeds, (size_t)room * sizeof(*seeds));
    if (seeds == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d seeds", room);
    all->seeds = seeds;
    all->room = room;
    return ESPER_OK;
}

static esper_status read_seeds(esper_store_reader *reader, lineage *all)
{
    esper_store_cursor *cursor = NULL;
    esper_status status = esper_store_read_seeds(reader, ESPER_REPORT_RUN, &cursor);
    bool found = status == ESPER_OK;

    while (status == ESPER_OK && found) {
        status = make_room(all);
        if (status == ESPER_OK)
            status = esper_store_next_seed(cursor, &all->seeds[all->n], &found);
        all->n += status == ESPER_OK && found;
    }
    esper_store_cursor_close(cursor);
    return status;
}

/* The lineage knows the lower bound alone; the upper one stands beside it. */
static esper_status read_upper(esper_store_reader *reader, lineage *all)
{
    const esper_store_filter filter = {
        .run = ESPER_REPORT_RUN, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .standing = true};
    esper_store_cursor *cursor = NULL;
    esper_store_record record;
    esper_status status = esper_store_read(reader, ESPER_STORE_ATTRIBUTION, &filter, &cursor);
    bool found = status == ESPER_OK;

    while (status == ESPER_OK && found) {
        status = esper_store_next(cursor, &record, &found);
        for (int i = 0; status == ESPER_OK && found && i < all->n; i++)
            if (all->seeds[i].seed == record.attribution.seed &&
                strcmp(record.attribution.measure, "contribution") == 0)
                all->upper[i] = real_of(record.attribution.upper);
    }
    esper_store_cursor_close(cursor);
    return status;
}

static esper_growth_seed shown_of(const esper_store_seed *seed, double upper)
{
    int kept = epoch_of(seed->fossilized_epoch), removed = epoch_of(seed->pruned_epoch);

    return (esper_growth_seed){.slot = seed->slot,
                               .blueprint = seed->blueprint,
                               .params = seed->params != ESPER_STORE_NO_INT ? seed->params : 0,
                               .stage = esper_stage_find(seed->stage),
                               .germinated = epoch_of(seed->germinated_epoch),
                               .blended = epoch_of(seed->blended_epoch),
                               .ended = kept > 0 ? kept : removed,
                               .contribution = real_of(seed->contribution),
                               .contribution_low = real_of(seed->contribution_lower),
                               .contribution_high = upper,
                               .reason = kept > 0 || removed > 0 ? seed->reason : NULL};
}

static esper_status read_lineage(esper_store_reader *reader, lineage *all)
{
    ESPER_TRY(read_seeds(reader, all));
    all->shown = esper_mem_alloc((size_t)all->n * sizeof(*all->shown) + 1);
    all->upper = esper_mem_alloc((size_t)all->n * sizeof(*all->upper) + 1);
    if (all->shown == NULL || all->upper == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d seeds", all->n);
    for (int i = 0; i < all->n; i++)
        all->upper[i] = (double)NAN;
    ESPER_TRY(read_upper(reader, all));
    for (int i = 0; i < all->n; i++)
        all->shown[i] = shown_of(&all->seeds[i], all->upper[i]);
    return ESPER_OK;
}

static esper_growth_side side_of(const esper_report_line *line)
{
    return (esper_growth_side){.acc_test = real_of(line->acc_test),
                               .params = line->params != ESPER_STORE_NO_INT ? line->params : 0,
                               .flops_per_sample = count_of(line->flops),
                               .flops_training = count_of(line->flops_train),
                               .seconds = real_of(line->seconds)};
}

/* ------------------------------------------------------------------------------------------------ printing */

static esper_status print_stored(const char *store)
{
    esper_store_reader *reader = NULL;
    esper_report_numbers numbers;
    lineage all = {0};
    esper_status status = esper_store_reader_open(store, &reader);

    if (status == ESPER_OK)
        status = esper_report_closing(reader, ESPER_REPORT_RUN, &numbers);
    if (status == ESPER_OK)
        status = read_lineage(reader, &all);
    if (status == ESPER_OK)
        esper_grow_view_closing(stdout, &(esper_growth_closing){.grown = side_of(&numbers.grown),
                                                                .has_static = numbers.host.run != ESPER_STORE_NO_INT,
                                                                .fixed = side_of(&numbers.host),
                                                                .seeds = all.shown,
                                                                .n_seeds = all.n});
    free_lineage(&all);
    esper_store_reader_close(reader);
    return status;
}

static void print_result(const esper_run_result *result)
{
    printf("test      accuracy %.2f %%\nkept      %s\n", result->acc_test,
           result->kept[0] != '\0' ? result->kept : "no seed");
}

esper_status esper_grow_closing_print(const char *run_dir, const esper_run_result *result)
{
    char store[ESPER_PATH_CHARS];
    struct stat info;

    ESPER_TRY(esper_run_path(run_dir, ESPER_RUN_STORE, store));
    if (stat(store, &info) == 0 && (result == NULL || result->store_run > 0))
        return print_stored(store);
    if (result != NULL)
        print_result(result);
    return ESPER_OK;
}
