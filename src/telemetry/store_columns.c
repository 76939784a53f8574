/* The list of the store as data, and records in which nothing is measured yet. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "policy/actions.h"
#include "telemetry/store_sql.h"

#define SIZE_OF(type, name) sizeof(((type *)NULL)->name)

#define IN_RECORD(e, kind_, size, name_, meaning_)                                                                    \
    {#name_, ESPER_STORE_COLUMN_##kind_, offsetof(esper_store_record, e.name_), SIZE_OF(esper_store_record, e.name_), \
     meaning_},
#define TABLE(NAME, name, table, lane, fate, meaning) \
    static const esper_store_column columns_##table[] = {ESPER_STORE_##NAME##_COLUMNS(IN_RECORD, name)};
ESPER_STORE_LIST(TABLE)
#undef TABLE

enum { KEPT = 1, MANY = 0, UNDONE = 1, FACT = 0 };

static const struct {
    const char               *name;
    const esper_store_column *columns;
    int                       n_columns;
    bool                      is_kept, is_undone;
} tables[ESPER_STORE_N_KINDS] = {
#define TABLE(NAME, name, table, lane, fate, meaning) \
    {#table, columns_##table, (int)(sizeof(columns_##table) / sizeof(columns_##table[0])), lane, fate},
    ESPER_STORE_LIST(TABLE)
#undef TABLE
};

#define IN_RUN(e, kind_, size, name_, meaning_)                                                \
    {#name_, ESPER_STORE_COLUMN_##kind_, offsetof(esper_store_run, name_), SIZE_OF(esper_store_run, name_), meaning_},
#define IN_SEED(e, kind_, size, name_, meaning_)                                               \
    {#name_, ESPER_STORE_COLUMN_##kind_, offsetof(esper_store_seed, name_), SIZE_OF(esper_store_seed, name_), meaning_},
static const esper_store_column run_own[] = {ESPER_STORE_RUN_OWN_COLUMNS(IN_RUN, run)};
static const esper_store_column run_begin[] = {ESPER_STORE_RUN_BEGIN_COLUMNS(IN_RUN, run)};
static const esper_store_column run_end[] = {ESPER_STORE_RUN_END_COLUMNS(IN_RUN, run)};
static const esper_store_column seeds[] = {ESPER_STORE_SEED_COLUMNS(IN_SEED, seed)};

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
    };

    *n_columns_out = parts[part].n;
    return parts[part].columns;
}

const esper_store_column *esper_store_common_columns(int *n_columns_out)
{
    *n_columns_out = (int)(sizeof(common) / sizeof(common[0]));
    return common;
}

void esper_store_sql_clear(void *base, const esper_store_column *columns, int n)
{
    for (int i = 0; i < n; i++) {
        void *field = (char *)base + columns[i].offset;

        memset(field, 0, columns[i].bytes);
        if (columns[i].kind == ESPER_STORE_COLUMN_INT)
            *(int64_t *)field = ESPER_STORE_NO_INT;
        else if (columns[i].kind == ESPER_STORE_COLUMN_REAL)
            *(double *)field = ESPER_STORE_NO_REAL;
    }
}

esper_store_record esper_store_record_of(esper_store_kind kind, int64_t epoch, int64_t step)
{
    esper_store_record record;

    memset(&record, 0, sizeof(record)); /* padding too: records are copied and compared as bytes */
    record.kind = kind;
    record.epoch = epoch;
    record.step = step;
    esper_store_sql_clear(&record, tables[kind].columns, tables[kind].n_columns);
    return record;
}

esper_store_run esper_store_run_of(const char *name)
{
    esper_store_run run;

    memset(&run, 0, sizeof(run));
    esper_store_sql_clear(&run, run_own, sizeof(run_own) / sizeof(run_own[0]));
    esper_store_sql_clear(&run, run_begin, sizeof(run_begin) / sizeof(run_begin[0]));
    esper_store_sql_clear(&run, run_end, sizeof(run_end) / sizeof(run_end[0]));
    ESPER_STORE_SET(run.name, name);
    return run;
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

void esper_store_set_reward(esper_store_record *record, double total, const double parts[ESPER_N_REWARD_PARTS])
{
    assert(record->kind == ESPER_STORE_REWARD);
    record->reward.total = total;
#define X(e, part, name, about) record->reward.name = parts[ESPER_PART_##part];
    ESPER_REWARD_PART_LIST(X, )
#undef X
}

void esper_store_set_entropy(esper_store_record *record, const double *entropy)
{
    double *const columns[] = {
        [ESPER_HEAD_SLOT] = &record->update.entropy_slot,
        [ESPER_HEAD_BLUEPRINT] = &record->update.entropy_blueprint,
        [ESPER_HEAD_STYLE] = &record->update.entropy_style,
        [ESPER_HEAD_TEMPO] = &record->update.entropy_tempo,
        [ESPER_HEAD_TARGET] = &record->update.entropy_alpha_target,
        [ESPER_HEAD_SPEED] = &record->update.entropy_alpha_speed,
        [ESPER_HEAD_CURVE] = &record->update.entropy_alpha_curve,
        [ESPER_HEAD_OP] = &record->update.entropy_op,
    };
    _Static_assert(sizeof(columns) / sizeof(columns[0]) == ESPER_N_HEADS, "a head without its column");

    assert(record->kind == ESPER_STORE_UPDATE);
    for (int head = 0; head < ESPER_N_HEADS; head++)
        *columns[head] = isnan(entropy[head]) ? ESPER_STORE_NO_REAL : entropy[head];
}
