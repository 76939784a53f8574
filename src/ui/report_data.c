/* What a report is made from, read table by table. */
#include "ui/report_data.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* ------------------------------------------------------------------------------------------------ rows */

void esper_report_rows_fini(esper_report_rows *rows)
{
    esper_mem_free(rows->at);
    *rows = (esper_report_rows){0};
}

/* Anything can stand in a database. Epochs are counted with and drawn, so they must be ones that could be. */
static int64_t likely_epoch(int64_t epoch)
{
    static const int64_t most = 1000000000000;

    return epoch < 0 ? 0 : epoch > most ? most : epoch; /* not told, too: 0 */
}

static esper_status add_row(void *to, const esper_store_record *record)
{
    esper_report_rows *rows = to;

    assert(rows->n <= rows->room);
    if (rows->n == rows->room) {
        int room = rows->room + rows->room / 2 + 32;
        esper_report_row *larger = esper_mem_grow(rows->at, (size_t)room * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "report: %d rows of %s", room, esper_store_table(record->kind));
        rows->at = larger;
        rows->room = room;
    }
    rows->at[rows->n] = (esper_report_row){.record = *record, .stands = true};
    rows->at[rows->n].record.epoch = likely_epoch(record->epoch);
    rows->n++;
    return ESPER_OK;
}

esper_status esper_report_walk(esper_store_reader *reader, esper_store_kind kind, int64_t run, bool standing,
                               esper_report_take take, void *to)
{
    esper_store_filter filter = {.run = run, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .standing = standing};
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_status status;
    bool found = true;

    ESPER_TRY(esper_store_read(reader, kind, &filter, &cursor));
    while ((status = esper_store_next(cursor, &record, &found)) == ESPER_OK && found)
        if ((status = take(to, &record)) != ESPER_OK)
            break;
    esper_store_cursor_close(cursor);
    return status;
}

/* Rows come in the order of seq, so one look at each is enough. */
typedef struct marking {
    esper_report_rows *rows;
    int                next;
} marking;

static esper_status take_standing(void *to, const esper_store_record *record)
{
    marking *mark = to;

    while (mark->next < mark->rows->n && mark->rows->at[mark->next].record.seq < record->seq)
        mark->rows->at[mark->next++].stands = false;
    if (mark->next < mark->rows->n && mark->rows->at[mark->next].record.seq == record->seq)
        mark->next++;
    return ESPER_OK;
}

esper_status esper_report_rows_read(esper_store_reader *reader, esper_store_kind kind, int64_t run,
                                    esper_report_rows *rows_out)
{
    esper_report_rows rows = {0};
    marking mark = {.rows = &rows};
    esper_status status = esper_report_walk(reader, kind, run, false, add_row, &rows);

    if (status == ESPER_OK)
        status = esper_report_walk(reader, kind, run, true, take_standing, &mark);
    if (status != ESPER_OK) {
        esper_report_rows_fini(&rows);
        return status;
    }
    while (mark.next < rows.n)
        rows.at[mark.next++].stands = false;
    *rows_out = rows;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ runs */

esper_status esper_report_find_runs(esper_store_reader *reader, int64_t id, esper_store_run *run_out,
                                    esper_store_run *control_out, bool *has_control_out)
{
    esper_store_run row = esper_store_run_of("");
    esper_store_cursor *cursor;
    esper_status status;
    bool found = true, has_run = false;

    *has_control_out = false;
    ESPER_TRY(esper_store_read_runs(reader, &cursor));
    while ((status = esper_store_next_run(cursor, &row, &found)) == ESPER_OK && found) {
        if (row.id == id) {
            *run_out = row;
            has_run = true;
        }
        if (row.parent_run == id && strcmp(row.relation, ESPER_REPORT_CONTROL) == 0 &&
            (!*has_control_out || row.ended != ESPER_STORE_NO_REAL || control_out->ended == ESPER_STORE_NO_REAL)) {
            *control_out = row;
            *has_control_out = true;
        }
    }
    esper_store_cursor_close(cursor);
    if (status == ESPER_OK && !has_run)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "the store holds no run %lld: nothing was recorded before it ended",
                          (long long)id);
    return status;
}

/* ------------------------------------------------------------------------------------------------ what is condensed */

/* Readings that found nothing are many and say nothing one by one. */
static esper_status take_reading(void *to, const esper_store_record *record)
{
    esper_report_data *data = to;
    bool quiet =
        record->health.n_tensors <= 0 && (record->health.action[0] == '\0' || strcmp(record->health.action, "go") == 0);

    data->n_readings++;
    if (record->health.n_skipped > data->n_skipped)
        data->n_skipped = record->health.n_skipped;
    return quiet ? ESPER_OK : add_row(&data->readings, record);
}

static esper_status take_attribution(void *to, const esper_store_record *record)
{
    esper_report_rows *rows = to;

    for (int i = 0; i < rows->n; i++) {
        esper_store_record *known = &rows->at[i].record;

        if (known->attribution.seed == record->attribution.seed &&
            known->attribution.other_seed == record->attribution.other_seed &&
            strcmp(known->attribution.measure, record->attribution.measure) == 0) {
            *known = *record;
            return ESPER_OK;
        }
    }
    return add_row(rows, record);
}

static esper_status read_seeds(esper_store_reader *reader, esper_report_data *data)
{
    esper_store_cursor *cursor;
    esper_store_seed seed;
    esper_status status;
    bool found = true;

    ESPER_TRY(esper_store_read_seeds(reader, data->run.id, &cursor));
    while ((status = esper_store_next_seed(cursor, &seed, &found)) == ESPER_OK && found) {
        if (data->n_seeds == data->seeds_room) {
            int room = data->seeds_room + data->seeds_room / 2 + 16;
            esper_store_seed *larger = esper_mem_grow(data->seeds, (size_t)room * sizeof(*larger));

            if (larger == NULL) {
                status = ESPER_FAIL(ESPER_E_NOMEM, "report: %d seeds", room);
                break;
            }
            data->seeds = larger;
            data->seeds_room = room;
        }
        seed.germinated_epoch = likely_epoch(seed.germinated_epoch);
        data->seeds[data->n_seeds++] = seed;
    }
    esper_store_cursor_close(cursor);
    return status;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void find_last_epoch(esper_report_data *data)
{
    const esper_report_rows *const drawn[] = {&data->epochs, &data->stages, &data->seed_epochs, &data->control_epochs};

    data->last_epoch = 1;
    for (int i = 0; i < data->n_seeds; i++)
        data->last_epoch = later(data->last_epoch, data->seeds[i].germinated_epoch);
    for (int t = 0; t < 4; t++) {
        if (drawn[t] == &data->control_epochs)
            data->last_grown_epoch = data->last_epoch;
        for (int i = 0; i < drawn[t]->n; i++)
            if (drawn[t]->at[i].stands)
                data->last_epoch = later(data->last_epoch, drawn[t]->at[i].record.epoch);
    }
    for (int i = 0; i < data->rollbacks.n; i++)
        data->last_epoch = later(data->last_epoch, data->rollbacks.at[i].record.rollback.from_epoch);
}

static esper_status read_tables(esper_store_reader *reader, esper_report_data *data)
{
    const struct {
        esper_store_kind   kind;
        esper_report_rows *rows;
    } tables[] = {{ESPER_STORE_EPOCH, &data->epochs},         {ESPER_STORE_STAGE, &data->stages},
                  {ESPER_STORE_SEED_EPOCH, &data->seed_epochs}, {ESPER_STORE_GATE, &data->gates},
                  {ESPER_STORE_CHECK, &data->checks},         {ESPER_STORE_DECISION, &data->decisions},
                  {ESPER_STORE_ROLLBACK, &data->rollbacks},   {ESPER_STORE_CLASS, &data->classes}};

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        ESPER_TRY(esper_report_rows_read(reader, tables[i].kind, data->run.id, tables[i].rows));
    if (data->has_control)
        ESPER_TRY(esper_report_rows_read(reader, ESPER_STORE_EPOCH, data->control.id, &data->control_epochs));
    ESPER_TRY(esper_report_walk(reader, ESPER_STORE_HEALTH, data->run.id, false, take_reading, data));
    return esper_report_walk(reader, ESPER_STORE_ATTRIBUTION, data->run.id, true, take_attribution,
                             &data->attributions);
}

static esper_status read_all(esper_store_reader *reader, int64_t run, esper_report_data *data)
{
    ESPER_TRY(esper_report_find_runs(reader, run, &data->run, &data->control, &data->has_control));
    ESPER_TRY(esper_report_closing(reader, run, &data->closing));
    ESPER_TRY(esper_store_read_config(reader, run, &data->config));
    ESPER_TRY(read_tables(reader, data));
    ESPER_TRY(read_seeds(reader, data));
    ESPER_TRY(esper_report_trials_read(data));
    ESPER_TRY(esper_drawing_read(reader, run, 0, &data->began));
    ESPER_TRY(esper_drawing_read(reader, run, ESPER_DRAWING_LAST, &data->now));
    data->began.params_largest = data->now.params_largest = later(data->began.params_largest, data->now.params_largest);
    ESPER_TRY(esper_store_read_drops(reader, run, data->n_dropped));
    for (int i = 0; i < ESPER_STORE_N_KINDS; i++)
        data->n_dropped_all += data->n_dropped[i];
    find_last_epoch(data);
    return ESPER_OK;
}

esper_status esper_report_data_read(esper_store_reader *reader, int64_t run, esper_report_data *data_out)
{
    esper_report_data data = {.n_seeds = 0};
    esper_status status = read_all(reader, run, &data);

    if (status != ESPER_OK) {
        esper_report_data_fini(&data);
        return status;
    }
    *data_out = data;
    return ESPER_OK;
}

void esper_report_data_fini(esper_report_data *data)
{
    esper_report_rows *const rows[] = {&data->epochs,    &data->control_epochs, &data->stages,   &data->seed_epochs,
                                       &data->gates,     &data->checks,         &data->decisions, &data->rollbacks,
                                       &data->readings,  &data->attributions,   &data->classes};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        esper_report_rows_fini(rows[i]);
    esper_mem_free(data->seeds);
    esper_mem_free(data->forks);
    esper_mem_free(data->trials);
    esper_mem_free(data->config);
    data->seeds = NULL;
    data->forks = NULL;
    data->trials = NULL;
    data->config = NULL;
}

const esper_store_seed *esper_report_seed_of(const esper_report_data *data, int64_t seed)
{
    for (int i = 0; i < data->n_seeds; i++)
        if (data->seeds[i].seed == seed)
            return &data->seeds[i];
    return NULL;
}

const esper_store_record *esper_report_attribution_of(const esper_report_data *data, const char *measure, int64_t seed)
{
    for (int i = 0; i < data->attributions.n; i++) {
        const esper_store_record *record = &data->attributions.at[i].record;

        if (record->attribution.seed == seed && strcmp(record->attribution.measure, measure) == 0)
            return record;
    }
    return NULL;
}
