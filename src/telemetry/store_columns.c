/* The list of facts as columns, and rows in which nothing is measured yet. */
#include <assert.h>
#include <string.h>

#include "base/utf8.h"
#include "telemetry/store_sql.h"

#define SIZE_OF(type, name) sizeof(((type *)NULL)->name)

/* A code's column holds its text. */
#define ESPER_STORE_COLUMN_NAME ESPER_STORE_COLUMN_TEXT

#define COLUMN(type, where, kind_, name_, place, meaning_) \
    ESPER_FACT_IN_ROW_##where(                             \
        {#name_, ESPER_STORE_COLUMN_##kind_, offsetof(type, place), SIZE_OF(type, place), meaning_}, )
#define IN_RECORD(e, where, kind_, arg, name_, meaning_) \
    COLUMN(esper_store_record, where, kind_, name_, e.name_, meaning_)
#define IN_RUN(e, where, kind_, arg, name_, meaning_)  COLUMN(esper_store_run, where, kind_, name_, name_, meaning_)
#define IN_SEED(e, where, kind_, arg, name_, meaning_) COLUMN(esper_store_seed, where, kind_, name_, name_, meaning_)

#define FACT(NAME, name, table, event, priority, fate, meaning) \
    static const esper_store_column columns_##table[] = {ESPER_FACT_##NAME##_FIELDS(IN_RECORD, name)};
ESPER_FACT_TABLE_LIST(FACT)
#undef FACT

enum { KEPT = 1, MANY = 0, UNDONE = 1, STANDS = 0 };

static const struct {
    const char               *name;
    const esper_store_column *columns;
    int                       n_columns;
    bool                      is_kept, is_undone;
} tables[ESPER_STORE_N_KINDS] = {
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    {#table, columns_##table, (int)(sizeof(columns_##table) / sizeof(columns_##table[0])), priority, fate},
    ESPER_FACT_TABLE_LIST(FACT)
#undef FACT
};

static const esper_store_column run_own[] = {ESPER_FACT_RUN_OWN_FIELDS(IN_RUN, run)};
static const esper_store_column run_begin[] = {ESPER_FACT_RUN_STARTED_FIELDS(IN_RUN, run)};
static const esper_store_column run_end[] = {ESPER_FACT_RUN_ENDED_FIELDS(IN_RUN, run)};
static const esper_store_column seeds[] = {ESPER_FACT_SEED_FIELDS(IN_SEED, seed)};

#define COMMON(kind_, name_)                                                                                         \
    {                                                                                                                \
#name_, ESPER_STORE_COLUMN_##kind_, offsetof(esper_store_record, name_), SIZE_OF(esper_store_record, name_), \
            ""                                                                                                       \
    }
static const esper_store_column common[] = {COMMON(INT, run), COMMON(INT, seq), COMMON(REAL, time), COMMON(INT, epoch),
                                            COMMON(INT, step)};

const char *esper_store_table(esper_store_kind kind)
{
    return tables[kind].name;
}

const esper_store_column *esper_store_columns(esper_store_kind kind, int *n_columns_out)
{
    assert(kind < ESPER_STORE_N_KINDS);
    *n_columns_out = tables[kind].n_columns;
    return tables[kind].columns;
}

bool esper_store_is_kept(esper_store_kind kind)
{
    return tables[kind].is_kept;
}

bool esper_store_is_undone(esper_store_kind kind)
{
    return tables[kind].is_undone;
}

const esper_store_column *esper_store_part_columns(esper_store_part part, int *n_columns_out)
{
    static const struct {
        const esper_store_column *columns;
        int                       n;
    } parts[] = {
        [ESPER_STORE_PART_RUN_OWN] = {run_own, sizeof(run_own) / sizeof(run_own[0])},
        [ESPER_STORE_PART_RUN_BEGIN] = {run_begin, sizeof(run_begin) / sizeof(run_begin[0])},
        [ESPER_STORE_PART_RUN_END] = {run_end, sizeof(run_end) / sizeof(run_end[0])},
        [ESPER_STORE_PART_SEED] = {seeds, sizeof(seeds) / sizeof(seeds[0])},
        [ESPER_STORE_PART_COMMON] = {common, sizeof(common) / sizeof(common[0])},
    };

    assert((size_t)part < sizeof(parts) / sizeof(parts[0]));
    *n_columns_out = parts[part].n;
    return parts[part].columns;
}

esper_store_record esper_store_record_of(esper_store_kind kind, int64_t epoch, int64_t step)
{
    esper_fact nothing = esper_fact_of((esper_fact_kind)kind, epoch, step);

    return esper_store_record_from(&nothing);
}

/* Bytes that are no UTF-8 become '?': SQL tools and JSON want text. */
void esper_store_set(char *column, size_t bytes, const char *text)
{
    size_t left = text != NULL ? strlen(text) : 0, used = 0;

    assert(bytes > 0);
    while (left > 0) {
        size_t n = esper_utf8_length((const uint8_t *)text, left), step = n > 0 ? n : 1;

        if (used + step >= bytes)
            break;
        memcpy(column + used, n > 0 ? text : "?", step);
        used += step;
        text += step;
        left -= step;
    }
    memset(column + used, 0, bytes - used);
}

/* The fields of a fact that are in a row are the row's columns, in their order. */
static void fill_row(const esper_fact *fact, const esper_store_column *columns, void *row)
{
    int n_fields;
    const esper_fact_field *fields = esper_fact_fields(fact->kind, &n_fields);

    for (int i = 0; i < n_fields; i++) {
        void *place;

        if (!fields[i].in_row)
            continue;
        place = (char *)row + columns->offset;
        assert(strcmp(columns->name, fields[i].name) == 0);
        if (columns->kind == ESPER_STORE_COLUMN_TEXT)
            esper_store_set(place, columns->bytes, esper_fact_text(fact, &fields[i]));
        else
            memcpy(place, (const char *)fact + fields[i].offset, columns->bytes);
        columns++;
    }
}

esper_store_record esper_store_record_from(const esper_fact *fact)
{
    esper_store_kind kind = (esper_store_kind)fact->kind;
    esper_store_record record;

    assert(fact->kind < ESPER_FACT_N_TABLES);
    memset(&record, 0, sizeof(record)); /* padding too: records are copied and compared as bytes */
    record.kind = kind;
    record.epoch = fact->epoch;
    record.step = fact->step;
    fill_row(fact, tables[kind].columns, &record);
    return record;
}

esper_store_run esper_store_run_of(const char *name)
{
    esper_fact start = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, 0), end = esper_fact_of(ESPER_FACT_RUN_ENDED, 0, 0);
    esper_store_run run;

    memset(&run, 0, sizeof(run));
    run.id = run.n_resumed = ESPER_STORE_NO_INT;
    run.began = run.ended = ESPER_STORE_NO_REAL;
    fill_row(&start, run_begin, &run);
    fill_row(&end, run_end, &run);
    ESPER_STORE_SET(run.name, name);
    return run;
}

esper_store_run esper_store_run_from(const esper_fact *fact)
{
    esper_store_run run = esper_store_run_of("");

    assert(fact->kind == ESPER_FACT_RUN_STARTED || fact->kind == ESPER_FACT_RUN_ENDED);
    fill_row(fact, fact->kind == ESPER_FACT_RUN_STARTED ? run_begin : run_end, &run);
    return run;
}
